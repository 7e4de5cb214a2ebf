//! Disks that are not what they were: the halves of a split pool, a copy, and one that never became a member.

use crate::common::{attach, config, create, disks, expect, full, life, open};
use arden_block::sim::{Faults, SimDisk};
use arden_space::{CreateOptions, Layout, Pool, Provision, SpaceError, read_header};

/// A mirror on this many disks, full of 1.
fn mirror(count: u64, seed: u64) -> Vec<SimDisk> {
    let d = disks(count, seed);
    let all = d.clone();
    life(&d, None, async move |rt| {
        let (pool, space) = create(&rt, &all, Layout::Mirror2, config()).await;
        space.write(0, full(1, 32), true).await.unwrap();
        pool.close().await.unwrap();
    })
    .unwrap();
    d
}

/// Opens with these disks and fills the space.
fn serve(disks: &[SimDisk], byte: u8, close: bool) {
    let all = disks.to_vec();
    life(disks, None, async move |rt| {
        let pool = open(&rt, &all, Vec::new()).await.unwrap();
        pool.space_named("s").unwrap().write(0, full(byte, 32), true).await.unwrap();
        if close {
            pool.close().await.unwrap();
        }
    })
    .unwrap();
}

#[test]
fn the_halves_of_a_split_mirror_are_not_merged_and_the_one_that_is_kept_has_all_of_its_own() {
    for (seed, close) in [(1, true), (2, false)] {
        let d = mirror(2, seed);
        serve(&d[..1], 2, close);
        serve(&d[1..], 3, close);
        let all = d.clone();
        let both = life(&d, None, async move |rt| open(&rt, &all, Vec::new()).await.map(|_| ())).unwrap();
        assert!(matches!(both, Err(SpaceError::Diverged(_))), "{both:?}");
        let all = d.clone();
        life(&d, None, async move |rt| {
            let other = read_header(&*all[1].attach(&rt)).await.unwrap().unwrap().disk_id;
            let pool = open(&rt, &all, vec![other]).await.unwrap();
            let space = pool.space_named("s").unwrap();
            expect(&space, 2, "the half that is kept").await;
            pool.resync().await.unwrap();
            assert!(pool.out_of_date().is_empty());
            pool.report_failure(0).await.unwrap();
            expect(&space, 2, "on the disk whose history is thrown away").await;
        })
        .unwrap();
    }
}

#[test]
fn a_disk_of_the_other_half_is_not_taken_back_while_the_pool_is_open() {
    let d = mirror(2, 3);
    serve(&d[1..], 3, true);
    let all = d.clone();
    life(&d, None, async move |rt| {
        let pool = open(&rt, &all[..1], Vec::new()).await.unwrap();
        let space = pool.space_named("s").unwrap();
        space.write(0, full(2, 32), true).await.unwrap();
        let returned = pool.return_disk(all[1].attach(&rt)).await;
        assert!(matches!(returned, Err(SpaceError::Diverged(_))), "{returned:?}");
        expect(&space, 2, "without the other half").await;
    })
    .unwrap();
}

/// The second disk leaves, and the first goes on: within one opening, which both know.
#[test]
fn what_was_acknowledged_when_a_disk_had_left_is_not_lost_to_an_opening_of_that_disk() {
    for (seed, gives_up) in [(6, 0), (7, 1), (8, 2)] {
        let d = mirror(2, seed);
        let all = d.clone();
        let ids = life(&d, None, async move |rt| {
            let pool = open(&rt, &all, Vec::new()).await.unwrap();
            pool.report_failure(1).await.unwrap();
            pool.space_named("s").unwrap().write(0, full(2, 32), true).await.unwrap();
            pool.close().await.unwrap();
            pool.status().disks.iter().map(|d| d.id).collect::<Vec<_>>()
        })
        .unwrap();
        serve(&d[1..], 3, true);
        let before: Vec<_> = d.iter().map(SimDisk::image).collect();
        let all = d.clone();
        let both = life(&d, None, async move |rt| open(&rt, &all, Vec::new()).await.map(|_| ())).unwrap();
        assert!(matches!(both, Err(SpaceError::Diverged(_))), "{both:?}");
        assert!(d.iter().zip(&before).all(|(d, before)| d.is_like(before)), "something was written");
        let all = d.clone();
        life(&d, None, async move |rt| {
            if gives_up == 2 {
                let pool = open(&rt, &all[1..], Vec::new()).await.unwrap();
                let returned = pool.return_disk(all[0].attach(&rt)).await;
                assert!(matches!(returned, Err(SpaceError::Diverged(_))), "{returned:?}");
                return expect(&pool.space_named("s").unwrap(), 3, "without what the other acknowledged").await;
            }
            let (pool, kept) = (open(&rt, &all, vec![ids[gives_up]]).await.unwrap(), 3 - gives_up as u8);
            let space = pool.space_named("s").unwrap();
            expect(&space, kept, "of the disk that is kept").await;
            pool.resync().await.unwrap();
            pool.report_failure(1 - gives_up as u16).await.unwrap();
            expect(&space, kept, "on the disk that gave up what it had").await;
        })
        .unwrap();
    }
}

/// It saw one disk leave and left before that one was back, and the disks that went on are all that or new ones by now.
#[test]
fn a_disk_that_is_only_behind_the_others_is_taken_back() {
    let d = mirror(3, 9);
    let new = SimDisk::new("new", 6 << 20, 99);
    let all = [&d[..], &[new]].concat();
    let disks = all.clone();
    life(&all, None, async move |rt| {
        let pool = open(&rt, &disks[..3], Vec::new()).await.unwrap();
        let space = pool.space_named("s").unwrap();
        pool.report_failure(1).await.unwrap();
        pool.repair().await.unwrap();
        space.write(0, full(2, 32), true).await.unwrap();
        pool.report_failure(0).await.unwrap();
        pool.return_disk(disks[1].attach(&rt)).await.unwrap();
        pool.add_disk(disks[3].attach(&rt), false).await.unwrap();
        pool.repair().await.unwrap();
        pool.remove_disk(2).await.unwrap();
        pool.close().await.unwrap();
    })
    .unwrap();
    for here in [vec![all[1].clone(), all[3].clone()], vec![all[0].clone(), all[1].clone(), all[3].clone()]] {
        life(&all, None, async move |rt| {
            let pool = open(&rt, &here, Vec::new()).await.unwrap();
            expect(&pool.space_named("s").unwrap(), 2, "of those who went on").await;
            pool.close().await.unwrap();
        })
        .unwrap();
    }
}

/// Opens with these disks, gives each copy of the space a place on them, and fills it.
fn serve_in_turn(disks: &[SimDisk], byte: u8, close: bool) {
    let all = disks.to_vec();
    life(disks, None, async move |rt| {
        let pool = open(&rt, &all, Vec::new()).await.unwrap();
        pool.repair().await.unwrap();
        pool.resync().await.unwrap();
        pool.space_named("s").unwrap().write(0, full(byte, 32), true).await.unwrap();
        pool.flush().await.unwrap();
        if close {
            pool.close().await.unwrap();
        }
    })
    .unwrap();
}

/// Each opening has all that the one before acknowledged, from a disk that was there. The disk that is in use in the end was absent
/// when the one that returns was there.
#[test]
fn disks_that_were_absent_in_turn_are_taken_back() {
    for (seed, close) in [(20, true), (21, false)] {
        let d = mirror(3, seed);
        serve_in_turn(&d[1..], 2, close);
        serve_in_turn(&[d[0].clone(), d[2].clone()], 3, close);
        serve_in_turn(&d[..1], 4, close);
        let all = d.clone();
        life(&d, None, async move |rt| {
            let pool = open(&rt, &all[..1], Vec::new()).await.unwrap();
            pool.return_disk(all[1].attach(&rt)).await.expect("a disk that is behind");
            expect(&pool.space_named("s").unwrap(), 4, "with a disk that returned").await;
        })
        .unwrap();
        serve_in_turn(&d[..1], 5, close);
        let all = d.clone();
        life(&d, None, async move |rt| {
            let pool = open(&rt, &all, Vec::new()).await.expect("two disks that are behind");
            let space = pool.space_named("s").unwrap();
            expect(&space, 5, "what was acknowledged last").await;
            pool.resync().await.unwrap();
            pool.report_failure(0).await.unwrap();
            expect(&space, 5, "on the disks that were behind").await;
        })
        .unwrap();
    }
}

/// As before, but the disk that both openings had is no member any more.
#[test]
fn a_disk_behind_one_that_was_removed_is_taken_back() {
    let d = mirror(3, 22);
    let all = [&d[..], &[SimDisk::new("new", 6 << 20, 2299)]].concat();
    for (here, joins, leaves, byte) in [(vec![1, 2], None, None, 2), (vec![0, 2], Some(3), Some(2), 3)] {
        let disks = all.clone();
        life(&all, None, async move |rt| {
            let here: Vec<SimDisk> = here.into_iter().map(|i: usize| disks[i].clone()).collect();
            let pool = open(&rt, &here, Vec::new()).await.unwrap();
            if let Some(i) = joins {
                pool.add_disk(disks[i as usize].attach(&rt), false).await.unwrap();
            }
            pool.repair().await.unwrap();
            pool.resync().await.unwrap();
            pool.space_named("s").unwrap().write(0, full(byte, 32), true).await.unwrap();
            if let Some(i) = leaves {
                pool.remove_disk(i).await.unwrap();
            }
            pool.close().await.unwrap();
        })
        .unwrap();
    }
    let here = vec![all[0].clone(), all[1].clone(), all[3].clone()];
    life(&all, None, async move |rt| {
        let pool = open(&rt, &here, Vec::new()).await.expect("a disk that is behind");
        expect(&pool.space_named("s").unwrap(), 3, "of those who went on").await;
    })
    .unwrap();
}

/// The second disk leaves, the first goes on, and later the pool is opened with the second, which other disks replace then.
#[test]
fn what_was_acknowledged_when_a_disk_had_left_is_not_lost_to_disks_that_replaced_it() {
    let d = mirror(2, 23);
    let new: Vec<SimDisk> = (0..2).map(|i| SimDisk::new(&format!("new{i}"), 6 << 20, 2390 + i)).collect();
    let all = [&d[..], &new].concat();
    let disks = all.clone();
    life(&d, None, async move |rt| {
        let pool = open(&rt, &disks[..2], Vec::new()).await.unwrap();
        pool.report_failure(1).await.unwrap();
        pool.space_named("s").unwrap().write(0, full(2, 32), true).await.unwrap();
        pool.close().await.unwrap();
    })
    .unwrap();
    let disks = all.clone();
    life(&all, None, async move |rt| {
        let pool = open(&rt, &disks[1..2], Vec::new()).await.unwrap();
        for new in &disks[2..] {
            pool.add_disk(new.attach(&rt), false).await.unwrap();
        }
        pool.repair().await.unwrap();
        pool.space_named("s").unwrap().write(0, full(3, 4), true).await.unwrap();
        pool.remove_disk(1).await.unwrap();
        pool.close().await.unwrap();
    })
    .unwrap();
    let here = vec![all[0].clone(), all[2].clone(), all[3].clone()];
    let disks = here.clone();
    let opened = life(&all, None, async move |rt| open(&rt, &disks, Vec::new()).await.map(drop)).unwrap();
    assert!(matches!(opened, Err(SpaceError::Diverged(_))), "{opened:?}");
    life(&all, None, async move |rt| {
        let pool = open(&rt, &here[1..], Vec::new()).await.unwrap();
        let returned = pool.return_disk(here[0].attach(&rt)).await;
        assert!(matches!(returned, Err(SpaceError::Diverged(_))), "{returned:?}");
    })
    .unwrap();
}

/// The first disk leaves, and the others go on; later the pool is opened with the first, and one of the others gives up what it had.
/// The third then has nothing that counts, either: all of it is written again.
#[test]
fn who_went_on_with_a_disk_that_gave_that_up_is_brought_up_to_date_as_a_whole() {
    let d = disks(3, 24);
    let all = d.clone();
    let ids = life(&d, None, async move |rt| {
        let options = CreateOptions { slab_bytes: Some(128 << 10), config: config() };
        let pool = Pool::create(&rt, "p", attach(&rt, &all), Vec::new(), options).await.unwrap();
        for name in ["a", "b", "c"] {
            let space =
                pool.create_space(name, Layout::Mirror2, Some(1), 4096, 32 * 4096, Provision::Fixed).await.unwrap();
            space.write(0, full(1, 32), true).await.unwrap();
        }
        pool.close().await.unwrap();
        pool.status().disks.iter().map(|d| d.id).collect::<Vec<_>>()
    })
    .unwrap();
    let all = d.clone();
    life(&d, None, async move |rt| {
        let pool = open(&rt, &all, Vec::new()).await.unwrap();
        pool.report_failure(0).await.unwrap();
        for name in ["a", "b", "c"] {
            pool.space_named(name).unwrap().write(0, full(2, 32), true).await.unwrap();
        }
        pool.close().await.unwrap();
    })
    .unwrap();
    let first = d[..1].to_vec();
    life(&d, None, async move |rt| open(&rt, &first, Vec::new()).await.unwrap().close().await.unwrap()).unwrap();
    let two = d[..2].to_vec();
    life(&d, None, async move |rt| {
        let pool = open(&rt, &two, vec![ids[1]]).await.unwrap();
        pool.resync().await.unwrap();
        pool.close().await.unwrap();
    })
    .unwrap();
    let all = d.clone();
    life(&d, None, async move |rt| {
        let pool = open(&rt, &all, Vec::new()).await.unwrap();
        pool.resync().await.unwrap();
        let mut compared = 0;
        for name in ["a", "b", "c"] {
            let space = pool.space_named(name).unwrap();
            let columns = pool.space_map(space.id()).unwrap()[0].1.clone();
            if columns.iter().all(|c| c.disk != 1) {
                expect(&space, 1, "of the history that is kept").await;
                compared += 1;
            }
        }
        pool.report_failure(0).await.unwrap();
        for name in ["a", "b", "c"] {
            let space = pool.space_named(name).unwrap();
            let columns = pool.space_map(space.id()).unwrap()[0].1.clone();
            if columns.iter().all(|c| c.disk != 1) {
                expect(&space, 1, "on the disk that went on with the other").await;
            }
        }
        assert!(compared > 0, "no space has its copies on the first disk and the third");
    })
    .unwrap();
}

/// No opening of the second disk alone came between: its map calls the first one in use.
#[test]
fn a_disk_that_is_discarded_gives_up_what_only_it_has() {
    let d = mirror(2, 25);
    let all = d.clone();
    let ids = life(&d, None, async move |rt| {
        let pool = open(&rt, &all, Vec::new()).await.unwrap();
        pool.report_failure(1).await.unwrap();
        pool.space_named("s").unwrap().write(0, full(2, 32), true).await.unwrap();
        pool.close().await.unwrap();
        pool.status().disks.iter().map(|d| d.id).collect::<Vec<_>>()
    })
    .unwrap();
    let all = d.clone();
    life(&d, None, async move |rt| {
        let pool = open(&rt, &all, vec![ids[0]]).await.unwrap();
        let space = pool.space_named("s").unwrap();
        expect(&space, 1, "of the disk that is kept").await;
        pool.resync().await.unwrap();
        pool.report_failure(1).await.unwrap();
        expect(&space, 1, "on the disk that gave up what it had").await;
    })
    .unwrap();
}

/// The first disk is opened alone, which ends before it is served, and then the second one is. The first has nothing that was
/// acknowledged and is not on the second, unless the second had left it before.
#[test]
fn a_disk_of_an_opening_that_was_not_served_is_refused_only_if_it_had_gone_on_before() {
    let epoch = |disk: &SimDisk| {
        let disk = disk.clone();
        life(&[], None, async move |rt| read_header(&*disk.attach(&rt)).await.unwrap().unwrap().epoch).unwrap()
    };
    for (had_left, openings) in [(false, 1), (false, 2), (true, 1), (true, 2)] {
        let mut found = 0;
        for step in 0..200u64 {
            let d = mirror(2, 900 + step);
            let all = d.clone();
            life(&d, None, async move |rt| {
                let pool = open(&rt, &all, Vec::new()).await.unwrap();
                if had_left {
                    pool.report_failure(1).await.unwrap();
                }
                pool.space_named("s").unwrap().write(0, full(2, 32), true).await.unwrap();
            })
            .unwrap();
            let half = vec![d[0].clone()];
            let served =
                life(&d[..1], Some(step * 10_000), async move |rt| open(&rt, &half, Vec::new()).await.map(drop));
            assert!(served.is_none(), "step {step}: served before an earlier step showed the epoch");
            if epoch(&d[0]) == epoch(&d[1]) {
                continue;
            }
            (0..openings).for_each(|i| serve(&d[1..], 3 + i, true));
            let all = d.clone();
            let opened = life(&d, None, async move |rt| {
                let pool = open(&rt, &all, Vec::new()).await?;
                expect(&pool.space_named("s").unwrap(), 2 + openings, "what was served").await;
                pool.close().await
            });
            let opened = opened.unwrap();
            match had_left {
                true => assert!(matches!(opened, Err(SpaceError::Diverged(_))), "step {step}: {opened:?}"),
                false => opened.expect("nothing was acknowledged that is lost"),
            }
            found += 1;
            if found == 3 {
                break;
            }
        }
        assert_eq!(found, 3, "openings that end before they are served");
    }
}

#[test]
fn a_clone_is_not_opened_beside_its_disk() {
    let d = mirror(2, 4);
    let mut three = d.clone();
    three.push(d[1].copy("copy", 77));
    let all = three.clone();
    let opened = life(&three, None, async move |rt| open(&rt, &all, Vec::new()).await.map(|_| ())).unwrap();
    assert!(matches!(opened, Err(SpaceError::Refused(_))), "{opened:?}");
    serve(&d, 2, true);
}

/// Old images by mistake: what they are opened with does not condemn the disks of today, which take their places again.
#[test]
fn old_images_without_which_nothing_is_left_are_not_opened() {
    let mut refused = 0;
    for old in [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]] {
        let d = mirror(4, 40);
        let before: Vec<_> = d.iter().map(SimDisk::image).collect();
        (2..5).for_each(|byte| serve(&d, byte, true));
        let today: Vec<_> = d.iter().map(SimDisk::image).collect();
        old.iter().for_each(|&i: &usize| d[i].put_image(&before[i]));
        let all = d.clone();
        let opened = life(&d, None, async move |rt| {
            let pool = open(&rt, &all, Vec::new()).await?;
            expect(&pool.space_named("s").unwrap(), 4, "with old images").await;
            pool.close().await
        });
        let opened = opened.unwrap();
        if let Err(SpaceError::Diverged(why)) = &opened {
            refused += 1;
            assert!(old.iter().all(|i| why.contains(&format!("disk {i} ("))), "{why}");
            assert!((0..4).filter(|i| !old.contains(i)).all(|i| d[i].is_like(&today[i])), "something was written");
            // Without them what has copies elsewhere is served, and all of it when the disks of today are back.
            let all: Vec<_> = (0..4).filter(|i| !old.contains(i)).map(|i| d[i].clone()).collect();
            life(&d, None, async move |rt| open(&rt, &all, Vec::new()).await?.close().await).unwrap().ok();
        } else {
            assert!(matches!(opened, Ok(()) | Err(SpaceError::NotFound(_))), "{opened:?}");
        }
        old.iter().for_each(|&i: &usize| d[i].put_image(&today[i]));
        let all = d.clone();
        life(&d, None, async move |rt| {
            let pool = open(&rt, &all, Vec::new()).await.unwrap();
            expect(&pool.space_named("s").unwrap(), 4, "with the disks of today").await;
        })
        .unwrap();
    }
    assert!(refused > 0);
}

/// The disk joined, and a crash came before any other disk was told: the next that joins gets its number.
#[test]
fn a_stranger_with_the_number_of_a_member_is_none() {
    let mut found = 0;
    for step in 0..400u64 {
        let d = mirror(2, 10 + step);
        let stranger = SimDisk::new("stranger", 6 << 20, 7000 + step);
        d.iter().for_each(|d| {
            d.set_faults(Faults { latency_min_ns: 900_000, latency_max_ns: 1_000_000, ..Faults::default() });
        });
        let (all, joins) = (d.clone(), stranger.clone());
        let mut here = d.clone();
        here.push(stranger.clone());
        life(&here, Some(10_000_000 + step * 50_000), async move |rt| {
            let pool = open(&rt, &all, Vec::new()).await.unwrap();
            let _ = pool.add_disk(joins.attach(&rt), false).await;
            rt.sleep_ns(10_000_000_000).await;
        });
        d.iter().for_each(|d| d.set_faults(Faults::default()));
        let member = SimDisk::new("member", 6 << 20, 8000 + step);
        let (all, s, m) = (d.clone(), stranger.clone(), member.clone());
        let same_number = life(&d, None, async move |rt| {
            let labelled = read_header(&*s.attach(&rt)).await.unwrap()?.disk_id;
            let pool = open(&rt, &all, Vec::new()).await.unwrap();
            if pool.status().disks.len() > 2 {
                return None;
            }
            let index = pool.add_disk(m.attach(&rt), false).await.unwrap();
            let space = pool.space_named("s").unwrap();
            space.write(0, full(2, 32), true).await.unwrap();
            pool.close().await.unwrap();
            Some((index, labelled))
        });
        let Some(Some((index, _))) = same_number else { continue };
        found += 1;
        let before = stranger.image();
        let (all, s) = (d.clone(), stranger.clone());
        life(&d, None, async move |rt| {
            let mut three = all.clone();
            three.push(s.clone());
            let pool = open(&rt, &three, Vec::new()).await.unwrap();
            let space = pool.space_named("s").unwrap();
            expect(&space, 2, "beside a stranger").await;
            space.write(0, full(3, 32), true).await.unwrap();
            pool.close().await.unwrap();
        })
        .unwrap();
        assert!(stranger.is_like(&before), "step {step}: written to at an opening");
        let (all, s) = (d.clone(), stranger.clone());
        life(&d, None, async move |rt| {
            let pool: Pool = Pool::open(&rt, attach(&rt, &all), None, Default::default()).await.unwrap();
            let returned = pool.return_disk(s.attach(&rt)).await;
            assert!(matches!(returned, Err(SpaceError::NotFound(_))), "step {step}: number {index}: {returned:?}");
        })
        .unwrap();
        assert!(stranger.is_like(&before), "step {step}: written to at a return");
    }
    assert!(found > 0, "no crash came between the label of the disk and those of the others");
}

/// What was served counts before what is merely newer: two openings of one half end before they are served, and have a higher
/// epoch than the one opening of the other half that was.
#[test]
fn openings_that_were_not_served_yield_to_one_that_was() {
    let epoch = |disk: &SimDisk| {
        let disk = disk.clone();
        life(&[], None, async move |rt| read_header(&*disk.attach(&rt)).await.unwrap().unwrap().epoch).unwrap()
    };
    let mut found = 0;
    for step in 0..400u64 {
        let d = mirror(2, 500 + step);
        let old = epoch(&d[1]);
        for _ in 0..2 {
            let half = vec![d[1].clone()];
            let served =
                life(&d[1..], Some(step * 20_000), async move |rt| open(&rt, &half, Vec::new()).await.map(drop));
            assert!(served.is_none(), "step {step}: served before an earlier step showed both epochs");
        }
        if epoch(&d[1]) < old + 2 {
            continue;
        }
        // Just now the map that begins an epoch is durable; the one that serves it comes later.
        serve(&d[..1], 2, true);
        assert_eq!((epoch(&d[0]), epoch(&d[1])), (old + 1, old + 2));
        let all = d.clone();
        life(&d, None, async move |rt| {
            let pool = open(&rt, &all, Vec::new()).await.expect("neither half is thrown away");
            let space = pool.space_named("s").unwrap();
            expect(&space, 2, "what was served").await;
            pool.resync().await.unwrap();
            pool.report_failure(0).await.unwrap();
            expect(&space, 2, "on the disk that was not served from").await;
        })
        .unwrap();
        found += 1;
        if found == 3 {
            break;
        }
    }
    assert_eq!(found, 3, "openings that end before they are served");
}
