//! Stripes changed in place under the log: power is lost at many moments of it, each time
//! together with a disk, or with more than the space bears, until they are back; and every block
//! reads as it was acknowledged.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::{attach_without, block, life_from};
use arden_block::sim::SimDisk;
use arden_block::{BLOCK_BYTES, Buf, LocalFuture, Rt};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, PoolConfig, Provision, Space, SpaceError};

const BLOCKS: u64 = 96;
const INTERLEAVE: u64 = 8192;

fn config() -> PoolConfig {
    PoolConfig { gather_bytes_max: 256 << 10, tick_ms: 2, busy_ms: 0, ..PoolConfig::default() }
}

async fn open(rt: &Rt, disks: &[SimDisk], without: &[usize]) -> (Pool, Space) {
    let options = OpenOptions { config: config(), discard: Vec::new() };
    let pool = Pool::open(rt, attach_without(rt, disks, without), None, options).await.unwrap();
    let space = pool.space_named("s").unwrap();
    (pool, space)
}

/// One life of a process, cut off at `crash_ns`.
fn life(disks: &[SimDisk], crash_ns: u64, work: impl FnOnce(Rt) -> LocalFuture<()>) {
    life_from(3, disks, Some(crash_ns), work);
}

/// What each block holds, and what a write that was not answered may have made of it.
type Acked = Rc<RefCell<Vec<(u8, u8)>>>;

async fn check(space: &Space, acked: &Acked, what: &str) {
    for at in 0..BLOCKS {
        let b = space.read(at * BLOCK_BYTES, BLOCK_BYTES as usize).await.unwrap();
        let (held, asked) = acked.borrow()[at as usize];
        let whole = b.iter().all(|&x| x == b[0]) && (b[0] == held || b[0] == asked);
        assert!(whole, "{what}: block {at} holds {}, {held} was acknowledged, {asked} asked", b[0]);
        acked.borrow_mut()[at as usize] = (b[0], b[0]);
    }
}

fn crash_everywhere(layout: Layout, disks: usize) -> u64 {
    let patched = Rc::new(Cell::new(0));
    for step in 0..48u64 {
        let d: Vec<SimDisk> =
            (0..disks).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, step * 10 + i as u64)).collect();
        let acked: Acked = Rc::new(RefCell::new(vec![(1, 1); BLOCKS as usize]));
        let all = d.clone();
        life(&d, 1_000_000_000, move |rt| {
            Box::pin(async move {
                let options = CreateOptions { slab_bytes: Some(256 << 10), config: config() };
                let pool = Pool::create(&rt, "p", attach_without(&rt, &all, &[]), Vec::new(), options).await.unwrap();
                let size = BLOCKS * BLOCK_BYTES;
                let space =
                    pool.create_space("s", layout, Some(all.len()), INTERLEAVE, size, Provision::Thin).await.unwrap();
                let mut whole = Buf::new(size as usize);
                whole.fill(1);
                space.write(0, whole.share(), false).await.unwrap();
                pool.close().await.unwrap();
            })
        });
        let (all, list, sum) = (d.clone(), acked.clone(), patched.clone());
        life(&d, 4_000_000 + step * 331_000, move |rt| {
            Box::pin(async move {
                let (pool, space) = open(&rt, &all, &[]).await;
                for i in 0..400u64 {
                    let at = i * 7 % BLOCKS;
                    let byte = 2 + (i / BLOCKS) as u8;
                    list.borrow_mut()[at as usize].1 = byte;
                    space.write(at * BLOCK_BYTES, block(byte), true).await.unwrap();
                    list.borrow_mut()[at as usize].0 = byte;
                    sum.set(sum.get().max(pool.status().stripes_patched));
                }
            })
        });
        // With each disk missing in turn, and once more with power lost in the middle of it.
        let away = step as usize % disks;
        let again = step % 2 == 0;
        if again {
            let all = d.clone();
            life(&d, 1_500_000 + step * 61_000, move |rt| {
                Box::pin(async move {
                    let _open = open(&rt, &all, &[away]).await;
                    rt.sleep_ns(1_000_000_000).await;
                })
            });
        }
        let (all, list, done) = (d.clone(), acked.clone(), Rc::new(Cell::new(false)));
        let told = done.clone();
        life(&d, 2_000_000_000, move |rt| {
            Box::pin(async move {
                let (pool, space) = open(&rt, &all, &[away]).await;
                check(&space, &list, &format!("step {step} without disk {away}")).await;
                pool.return_disk(all[away].attach(&rt)).await.unwrap();
                pool.resync().await.unwrap();
                let scrub = pool.scrub().await.unwrap();
                assert_eq!((scrub.undecided, scrub.lost), (0, 0), "step {step}: parity fits its data");
                check(&space, &list, &format!("step {step}, all back")).await;
                told.set(true);
            })
        });
        assert!(done.get(), "step {step} came to its end");
    }
    patched.get()
}

#[test]
fn a_stripe_of_parity_changed_in_place_survives_a_crash_at_any_step_with_a_lost_disk() {
    assert!(crash_everywhere(Layout::Parity, 4) > 10, "stripes were changed in place");
}

#[test]
fn a_stripe_of_dual_parity_changed_in_place_survives_a_crash_at_any_step_with_a_lost_disk() {
    assert!(crash_everywhere(Layout::DualParity, 5) > 10, "stripes were changed in place");
}

/// The other space of the pool is used meanwhile, so much that the log turns over.
async fn use_other(pool: &Pool, byte: u8) {
    let other = pool.space_named("b").unwrap();
    for i in 0..300 {
        other.write(i % 64 * BLOCK_BYTES, block(byte), true).await.unwrap();
    }
    for i in 0..64 {
        let b = other.read(i * BLOCK_BYTES, BLOCK_BYTES as usize).await.unwrap();
        assert!(b.iter().all(|&x| x == byte), "the other space is not what was written");
    }
}

/// Blocks that can be read are right, the others say why; nothing can be written.
async fn check_beyond(space: &Space, acked: &Acked, what: &str) {
    for at in 0..BLOCKS {
        let (held, asked) = acked.borrow()[at as usize];
        match space.read(at * BLOCK_BYTES, BLOCK_BYTES as usize).await {
            Ok(b) => assert!(b.iter().all(|&x| x == held) || b.iter().all(|&x| x == asked), "{what}: block {at}"),
            Err(e) => assert_eq!(e, SpaceError::Offline, "{what}: block {at}"),
        }
    }
    assert_eq!(space.write(0, block(99), true).await.unwrap_err(), SpaceError::Offline, "{what}");
}

/// So many disks of the group, from its `from`-th column on, that it bears one less, and a copy of the log stays.
fn too_many(group: &[usize], journal: &[usize], layout: Layout, from: usize) -> Vec<usize> {
    let pick = |from: usize| (0..=layout.tolerance()).map(|i| group[(from + i) % group.len()]).collect::<Vec<_>>();
    let all = (0..group.len()).map(|i| pick(from + i));
    all.into_iter().find(|away| journal.iter().any(|j| !away.contains(j))).unwrap()
}

fn crash_beyond(layout: Layout, columns: usize) {
    let (patched, waited) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    for step in 0..32u64 {
        let disks: Vec<SimDisk> =
            (0..8).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, 70_000 + step * 10 + i)).collect();
        let acked: Acked = Rc::new(RefCell::new(vec![(1, 1); BLOCKS as usize]));
        let lies: Rc<RefCell<(Vec<usize>, Vec<usize>)>> = Rc::default();
        let (all, told) = (disks.clone(), lies.clone());
        life(&disks, 1_000_000_000, move |rt| {
            Box::pin(async move {
                let options = CreateOptions { slab_bytes: Some(256 << 10), config: config() };
                let pool = Pool::create(&rt, "p", attach_without(&rt, &all, &[]), Vec::new(), options).await.unwrap();
                let size = BLOCKS * BLOCK_BYTES;
                let made = pool.create_space("s", layout, Some(columns), INTERLEAVE, size, Provision::Thin);
                let space = made.await.unwrap();
                let other = pool.create_space("b", Layout::Mirror3, Some(1), INTERLEAVE, 64 << 12, Provision::Thin);
                other.await.unwrap();
                let mut whole = Buf::new(size as usize);
                whole.fill(1);
                space.write(0, whole.share(), false).await.unwrap();
                use_other(&pool, 1).await;
                let group = &pool.space_map(space.id()).unwrap()[0].1;
                let journal = pool.journal_disks().iter().map(|&d| usize::from(d)).collect();
                *told.borrow_mut() = (group.iter().map(|c| usize::from(c.disk)).collect(), journal);
                pool.close().await.unwrap();
            })
        });
        let group = lies.borrow().0.clone();
        let (all, list, sum) = (disks.clone(), acked.clone(), patched.clone());
        life(&disks, 4_000_000 + step * 331_000, move |rt| {
            Box::pin(async move {
                let (pool, space) = open(&rt, &all, &[]).await;
                for i in 0..400u64 {
                    let at = i * 7 % BLOCKS;
                    let byte = 2 + (i / BLOCKS) as u8;
                    list.borrow_mut()[at as usize].1 = byte;
                    space.write(at * BLOCK_BYTES, block(byte), true).await.unwrap();
                    list.borrow_mut()[at as usize].0 = byte;
                    sum.set(sum.get().max(pool.status().stripes_patched));
                }
            })
        });
        // Twice without so many, each time others, and power is lost in the middle of it, too.
        for round in 0..2 {
            let journal = lies.borrow().1.clone();
            let away = too_many(&group, &journal, layout, step as usize + round);
            let what = format!("step {step} without disks {away:?}");
            if (step as usize + round).is_multiple_of(2) {
                let (all, away) = (disks.clone(), away.clone());
                life(&disks, 300_000 + step * 97_000, move |rt| {
                    Box::pin(async move {
                        let _open = open(&rt, &all, &away).await;
                        rt.sleep_ns(1_000_000_000).await;
                    })
                });
            }
            let (all, list, done) = (disks.clone(), acked.clone(), Rc::new(Cell::new(false)));
            let (told, waits, label, log) = (done.clone(), waited.clone(), what.clone(), lies.clone());
            life(&disks, 2_000_000_000, move |rt| {
                Box::pin(async move {
                    let (pool, space) = open(&rt, &all, &away).await;
                    let events = pool.status().events;
                    waits.set(waits.get() + u32::from(events.iter().any(|e| e.starts_with("space s has more disks"))));
                    check_beyond(&space, &list, &label).await;
                    use_other(&pool, 2 + round as u8).await;
                    check_beyond(&space, &list, &label).await;
                    if round == 1 && step % 4 < 2 {
                        for i in away {
                            pool.return_disk(all[i].attach(&rt)).await.unwrap();
                        }
                        check(&space, &list, &format!("{label}, they return")).await;
                        rt.sleep_ns(20_000_000).await;
                        use_other(&pool, 3).await;
                    }
                    log.borrow_mut().1 = pool.journal_disks().iter().map(|&d| usize::from(d)).collect();
                    told.set(true);
                })
            });
            assert!(done.get(), "{what} came to its end");
        }
        let (all, list, done) = (disks.clone(), acked.clone(), Rc::new(Cell::new(false)));
        let told = done.clone();
        life(&disks, 4_000_000_000, move |rt| {
            Box::pin(async move {
                let (pool, space) = open(&rt, &all, &[]).await;
                check(&space, &list, &format!("step {step}, all are back")).await;
                pool.resync().await.unwrap();
                let scrub = pool.scrub().await.unwrap();
                assert_eq!((scrub.undecided, scrub.lost), (0, 0), "step {step}: parity fits its data");
                use_other(&pool, 4).await;
                space.write(0, block(50), true).await.unwrap();
                list.borrow_mut()[0] = (50, 50);
                check(&space, &list, &format!("step {step}, in use again")).await;
                pool.close().await.unwrap();
                told.set(true);
            })
        });
        assert!(done.get(), "step {step} came to its end");
    }
    assert!(patched.get() > 10, "stripes were changed in place");
    assert!(waited.get() > 32, "the log kept what waits in {} of 64 openings", waited.get());
}

#[test]
fn a_pool_opens_though_stripes_changed_in_place_wait_for_more_disks_than_parity_bears() {
    crash_beyond(Layout::Parity, 4);
}

#[test]
fn a_pool_opens_though_stripes_changed_in_place_wait_for_more_disks_than_dual_parity_bears() {
    crash_beyond(Layout::DualParity, 5);
}

/// Which disk has a block full of `byte`, and where.
async fn place_of(rt: &Rt, disks: &[SimDisk], byte: u8) -> (usize, u64) {
    for (i, disk) in disks.iter().enumerate() {
        let device = disk.attach(rt);
        for at in (0..device.info().size_bytes).step_by(BLOCK_BYTES as usize) {
            if device.read(at, BLOCK_BYTES as usize).await.is_ok_and(|b| b.iter().all(|&x| x == byte)) {
                return (i, at);
            }
        }
    }
    panic!("no block of {byte}");
}

/// A block that cannot be read is computed from its row, and the read of the parity takes long. Another block of the row is
/// changed in place meanwhile: the reader must not compute with the old of one column and the new of another.
#[test]
fn a_reader_who_reconstructs_sees_all_of_a_change_in_place_or_nothing() {
    // By block of the stripe: two rows of four units. The first row's parity is 0x7F.
    let bytes = [0x11, 0x12, 0x22, 0x21, 0x44, 0x41, 0x08, 0x09];
    for seed in 0..8 {
        let disks: Vec<SimDisk> =
            (0..5).map(|i| SimDisk::new(&format!("d{i}"), 6 << 20, 9000 + seed * 10 + i)).collect();
        let (all, done) = (disks.clone(), Rc::new(Cell::new(false)));
        let told = done.clone();
        life(&disks, 2_000_000_000, move |rt| {
            Box::pin(async move {
                let options = CreateOptions { slab_bytes: Some(256 << 10), config: config() };
                let pool = Pool::create(&rt, "p", attach_without(&rt, &all, &[]), Vec::new(), options).await.unwrap();
                let size = bytes.len() as u64 * BLOCK_BYTES;
                let made = pool.create_space("s", Layout::Parity, Some(5), INTERLEAVE, size, Provision::Fixed).await;
                let space = made.unwrap();
                let mut stripe = Buf::new(size as usize);
                stripe.chunks_mut(BLOCK_BYTES as usize).zip(bytes).for_each(|(block, byte)| block.fill(byte));
                space.write(0, stripe.share(), false).await.unwrap();
                // It leaves for its slot, and that it lies there is durable.
                rt.sleep_ns(50_000_000).await;
                pool.flush().await.unwrap();
                let (lost, at) = place_of(&rt, &all, 0x44).await;
                let (parity, _) = place_of(&rt, &all, 0x7F).await;
                all[lost].break_block(at);
                all[parity].stick_next(30_000_000);
                let (reader, read): (_, Rc<RefCell<Option<Buf>>>) = (space.clone(), Rc::default());
                let put = read.clone();
                rt.spawn(async move {
                    let b = reader.read(4 * BLOCK_BYTES, BLOCK_BYTES as usize).await.unwrap();
                    *put.borrow_mut() = Some(b);
                });
                // It has the other columns, and waits for the parity.
                rt.sleep_ns(4_000_000).await;
                space.write(0, block(0x99), false).await.unwrap();
                while pool.status().stripes_patched == 0 || read.borrow().is_none() {
                    rt.sleep_ns(100_000).await;
                }
                let held = read.borrow().as_ref().unwrap().iter().all(|&x| x == 0x44);
                assert!(held, "seed {seed}: read {:#x}", read.borrow().as_ref().unwrap()[0]);
                for (i, byte) in std::iter::once(0x99).chain(bytes[1..].iter().copied()).enumerate() {
                    let b = space.read(i as u64 * BLOCK_BYTES, BLOCK_BYTES as usize).await.unwrap();
                    assert!(b.iter().all(|&x| x == byte), "seed {seed}: block {i} holds {:#x}, not {byte:#x}", b[0]);
                }
                told.set(true);
            })
        });
        assert!(done.get(), "seed {seed} came to its end");
    }
}
