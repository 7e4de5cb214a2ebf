//! Old images in the place of a disk that is missing: nothing on them counts. And disks that left in the middle of a commit, or lost a
//! label: those are no old images.

use crate::common::{attach, attach_without, config, disks, full, life};
use arden_block::sim::{Faults, SimDisk};
use arden_block::{BLOCK_BYTES, Rt};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, Provision, Space, SpaceError, SpaceResult, read_header};

const BLOCKS: u64 = 32;

/// A pool on `n` disks with spaces `s`, and so on, of these layouts and columns, full of 1. The disks of the columns of each.
fn made(n: u64, seed: u64, layouts: &[(Layout, usize)]) -> (Vec<SimDisk>, Vec<Vec<usize>>) {
    let d = disks(n, seed);
    let (all, layouts) = (d.clone(), layouts.to_vec());
    let places = life(&d, None, async move |rt| {
        let options = CreateOptions { slab_bytes: Some(128 << 10), config: config() };
        let pool = Pool::create(&rt, "p", attach(&rt, &all), Vec::new(), options).await.unwrap();
        let mut places = Vec::new();
        for ((layout, columns), name) in layouts.into_iter().zip(["s", "t", "u"]) {
            let size = BLOCKS * BLOCK_BYTES;
            let space = pool.create_space(name, layout, Some(columns), 4096, size, Provision::Thin).await.unwrap();
            space.write(0, full(1, BLOCKS), true).await.unwrap();
            let groups = pool.space_map(space.id()).unwrap();
            places.push(groups[0].1.iter().map(|c| usize::from(c.disk)).collect());
        }
        pool.close().await.unwrap();
        places
    });
    (d, places.unwrap())
}

async fn open(rt: &Rt, disks: &[SimDisk], without: &[usize], discard: Vec<u128>) -> SpaceResult<Pool> {
    Pool::open(rt, attach_without(rt, disks, without), None, OpenOptions { config: config(), discard }).await
}

/// Opens without some of the disks and writes `byte` to the first blocks of the first space.
fn serve(d: &[SimDisk], without: &[usize], byte: u8, blocks: u64) {
    let (all, without) = (d.to_vec(), without.to_vec());
    life(d, None, async move |rt| {
        let pool = open(&rt, &all, &without, Vec::new()).await.unwrap();
        if blocks > 0 {
            pool.space_named("s").unwrap().write(0, full(byte, blocks), true).await.unwrap();
        }
        pool.close().await.unwrap();
    })
    .unwrap();
}

async fn first_bytes(space: &Space) -> SpaceResult<Vec<u8>> {
    let read = space.read(0, (BLOCKS * BLOCK_BYTES) as usize).await?;
    Ok(read.chunks(BLOCK_BYTES as usize).map(|b| b[0]).collect())
}

fn was_distrusted(pool: &Pool) -> bool {
    pool.status().events.iter().any(|e| e.contains("holds what nobody recorded"))
}

/// The pool comes to be opened with disk `of`: at once, or when it is open already.
async fn with_disk(rt: &Rt, d: &[SimDisk], mut without: Vec<usize>, of: usize, at_once: bool) -> SpaceResult<Pool> {
    if at_once {
        return open(rt, d, &without, Vec::new()).await;
    }
    without.push(of);
    let pool = open(rt, d, &without, Vec::new()).await?;
    pool.return_disk(d[of].attach(rt)).await?;
    Ok(pool)
}

#[test]
fn an_old_image_of_a_missing_disk_is_written_as_a_whole() {
    for (layout, n, columns, seed) in
        [(Layout::Mirror2, 2, 1, 50), (Layout::Parity, 3, 3, 51), (Layout::DualParity, 5, 5, 52)]
    {
        for at_once in [true, false] {
            let (d, _) = made(n, seed, &[(layout, columns)]);
            let image = d[1].image();
            serve(&d, &[], 2, BLOCKS);
            // What the disk misses now is not all that the image misses.
            serve(&d, &[1], 3, 1);
            d[1].put_image(&image);
            let all = d.clone();
            life(&d, None, async move |rt| {
                let what = format!("{layout:?}, at once {at_once}");
                let pool = with_disk(&rt, &all, vec![], 1, at_once).await.unwrap();
                pool.resync().await.unwrap();
                assert!(pool.out_of_date().is_empty() && was_distrusted(&pool), "{what}");
                pool.report_failure(0).await.unwrap();
                let read = first_bytes(&pool.space_named("s").unwrap()).await.unwrap();
                assert!(read[0] == 3 && read[1..].iter().all(|&b| b == 2), "{what}: {read:?}");
            })
            .unwrap();
        }
    }
}

/// The image of a disk with the last good copy is refused, and changes nothing for the disk of today.
#[test]
fn an_old_image_of_a_missing_disk_with_the_last_copy_is_refused() {
    for at_once in [true, false] {
        let (d, places) = made(6, 53, &[(Layout::Mirror2, 1), (Layout::Mirror3, 1)]);
        let (stale, last) = (places[0][0], places[0][1]);
        let image = d[last].image();
        serve(&d, &[], 2, BLOCKS);
        serve(&d, &[stale], 3, BLOCKS);
        serve(&d, &[stale, last], 0, 0);
        let today = d[last].image();
        d[last].put_image(&image);
        let all = d.clone();
        let opened = life(&d, None, async move |rt| {
            let pool = with_disk(&rt, &all, vec![stale], last, at_once).await?;
            first_bytes(&pool.space_named("s").unwrap()).await
        });
        let Some(Err(SpaceError::Diverged(why))) = &opened else { panic!("at once {at_once}: {opened:?}") };
        assert!(why.contains(&format!("disk {last} (")) && why.contains("space s "), "{why}");
        assert!(d[last].is_like(&image), "at once {at_once}: something was written");
        // Who gives up what it holds has a pool, and does not read old content in it.
        let trial: Vec<SimDisk> = d.iter().zip(0..).map(|(d, i)| d.copy(&d.info().name, 900 + i)).collect();
        let all = trial.clone();
        life(&trial, None, async move |rt| {
            let id = read_header(&*all[last].attach(&rt)).await.unwrap().unwrap().disk_id;
            let pool = open(&rt, &all, &[stale], vec![id]).await.unwrap();
            let read = first_bytes(&pool.space_named("s").unwrap()).await;
            assert_eq!(read, Err(SpaceError::Offline));
            assert!(first_bytes(&pool.space_named("t").unwrap()).await.unwrap().iter().all(|&b| b == 1));
        })
        .unwrap();
        d[last].put_image(&today);
        let all = d.clone();
        life(&d, None, async move |rt| {
            let pool = with_disk(&rt, &all, vec![stale], last, at_once).await.unwrap();
            let read = first_bytes(&pool.space_named("s").unwrap()).await.unwrap();
            assert!(read.iter().all(|&b| b == 3), "at once {at_once}: {read:?}");
            assert!(!was_distrusted(&pool));
        })
        .unwrap();
    }
}

/// Nothing of a space without redundancy can be written again, whether the disk is missing in the map or in use.
#[test]
fn an_old_image_with_a_part_of_a_simple_space_is_refused() {
    for missing in [true, false] {
        let (d, _) = made(3, 54, &[(Layout::Simple, 3), (Layout::Mirror2, 1)]);
        let image = d[1].image();
        serve(&d, &[], 2, BLOCKS);
        if missing {
            serve(&d, &[1], 0, 0);
        }
        let today = d[1].image();
        d[1].put_image(&image);
        let all = d.clone();
        let opened = life(&d, None, async move |rt| open(&rt, &all, &[], Vec::new()).await.map(drop)).unwrap();
        assert!(matches!(opened, Err(SpaceError::Diverged(_))), "missing {missing}: {opened:?}");
        assert!(d[1].is_like(&image), "missing {missing}: something was written");
        d[1].put_image(&today);
        let all = d.clone();
        life(&d, None, async move |rt| {
            let pool = open(&rt, &all, &[], Vec::new()).await.unwrap();
            assert!(first_bytes(&pool.space_named("s").unwrap()).await.unwrap().iter().all(|&b| b == 2));
        })
        .unwrap();
    }
}

/// A disk leaves at some moment of a commit, or is there until power is lost in one. It returns in the same life, in the next, or after one
/// without it. It is always the disk that it was.
#[test]
fn a_disk_that_leaves_in_a_commit_is_no_old_image() {
    for step in 0..120u64 {
        let (d, _) = made(3, 5500 + step, &[(Layout::Simple, 3), (Layout::Mirror2, 1)]);
        let slow = Faults { latency_min_ns: 20_000, latency_max_ns: 90_000, ..Faults::default() };
        d.iter().for_each(|d| d.set_faults(slow.clone()));
        let (dies_ns, crash_ns) = (step * 37_000, step * 41_000 + step % 3 * 700_000);
        let all = d.clone();
        life(&d, Some(20_000_000 + crash_ns), async move |rt| {
            let pool = open(&rt, &all, &[], Vec::new()).await.unwrap();
            let (clock, disk, same) = (rt.clone(), all[1].clone(), pool.clone());
            rt.spawn(async move {
                clock.sleep_until_ns(19_000_000 + dies_ns).await;
                if step % 4 == 2 {
                    return;
                }
                disk.kill();
                for _ in 0..step % 2 * 5 {
                    clock.sleep_ns(200_000).await;
                    disk.revive();
                    let _ = same.return_disk(disk.attach(&clock)).await;
                }
            });
            loop {
                pool.rename("q").await.unwrap();
            }
        });
        d[1].revive();
        if step % 4 > 1 {
            serve(&d, &[1], 0, 0);
        }
        let all = d.clone();
        life(&d, None, async move |rt| {
            let pool = open(&rt, &all, &[], Vec::new()).await.unwrap_or_else(|e| panic!("step {step}: {e}"));
            assert!(!was_distrusted(&pool), "step {step}");
            assert!(first_bytes(&pool.space_named("s").unwrap()).await.unwrap().iter().all(|&b| b == 1));
        })
        .unwrap();
    }
}

/// Where a label is damaged or cannot be read it may be the newest one, and the other says nothing.
#[test]
fn a_missing_disk_that_lost_a_label_is_no_old_image() {
    for (seed, unreadable) in [(56, true), (57, false)] {
        for label_at in [0, 64 << 10] {
            let (d, _) = made(3, seed, &[(Layout::Simple, 3), (Layout::Mirror2, 1)]);
            serve(&d, &[], 2, BLOCKS);
            let all = d.clone();
            life(&d, None, async move |rt| {
                let pool = open(&rt, &all, &[], Vec::new()).await.unwrap();
                pool.report_failure(1).await.unwrap();
                pool.close().await.unwrap();
            })
            .unwrap();
            if unreadable {
                d[1].break_block(label_at)
            } else {
                d[1].rot(label_at)
            }
            let all = d.clone();
            life(&d, None, async move |rt| {
                let pool = open(&rt, &all, &[], Vec::new()).await.unwrap();
                assert!(!was_distrusted(&pool), "unreadable {unreadable}");
                assert!(first_bytes(&pool.space_named("s").unwrap()).await.unwrap().iter().all(|&b| b == 2));
            })
            .unwrap();
        }
    }
}
