//! Thin spaces that give slabs back: power lost at every step of it, with every disk away once, in a pool so full that the
//! slabs are somebody else's at once; disks that are away or being emptied meanwhile; and what becomes of the slabs.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::{attach, attach_without, life_from};
use arden_block::sim::SimDisk;
use arden_block::{BLOCK_BYTES, Buf, Rt, SharedBuf};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, PoolConfig, Provision, Space, SpaceError};

const SLAB: u64 = 128 << 10;

fn disks(n: usize, seed: u64) -> Vec<SimDisk> {
    (0..n).map(|i| SimDisk::new(&format!("d{i}"), 5 << 19, seed * 100 + i as u64)).collect()
}

fn config() -> PoolConfig {
    PoolConfig { gather_bytes_max: 256 << 10, tick_ms: 5, io_timeout_ms: 20, busy_ms: 0, ..PoolConfig::default() }
}

fn bytes(len: u64, byte: u8) -> SharedBuf {
    let mut b = Buf::new(len as usize);
    b.fill(byte);
    b.share()
}

/// One life of a process: `work` runs to its end, or until `crash_ns`; then power is lost. The answer, and how long it was.
fn life<T: 'static, F: Future<Output = T> + 'static>(
    disks: &[SimDisk],
    crash_ns: Option<u64>,
    work: impl FnOnce(Rt, Vec<SimDisk>) -> F,
) -> (Option<T>, u64) {
    life_from(7, disks, crash_ns, |rt| work(rt, disks.to_vec()))
}

async fn create(rt: &Rt, disks: &[SimDisk], layout: Layout, columns: usize) -> Space {
    let devices = attach(rt, disks);
    let options = CreateOptions { slab_bytes: Some(SLAB), config: config() };
    let pool = Pool::create(rt, "p", devices, Vec::new(), options).await.unwrap();
    pool.create_space("s", layout, Some(columns), 4096, 16 << 20, Provision::Thin).await.unwrap()
}

async fn open(rt: &Rt, disks: &[SimDisk], without: Option<usize>) -> Space {
    let devices = attach_without(rt, disks, without.as_slice());
    let pool = Pool::open(rt, devices, None, OpenOptions { config: config(), discard: Vec::new() }).await.unwrap();
    pool.space_named("s").unwrap()
}

/// What lies in each block of a piece, which is one byte all over.
async fn content(space: &Space, piece: u64) -> Vec<u8> {
    let len = space.piece_bytes().unwrap();
    let b = space.read(piece * len, len as usize).await.unwrap();
    b.chunks(BLOCK_BYTES as usize)
        .map(|c| {
            assert!(c.iter().all(|x| *x == c[0]), "piece {piece}: a block of several contents");
            c[0]
        })
        .collect()
}

async fn is_all(space: &Space, piece: u64, byte: u8, what: &str) {
    let found = content(space, piece).await;
    assert!(found.iter().all(|b| *b == byte), "{what}: piece {piece} is not all {byte}: {found:?}");
}

/// Fills pieces from 0 on until there is no slab left; how many there are then. Some blocks are in the log only.
async fn fill_up(space: &Space) -> u64 {
    let len = space.piece_bytes().unwrap();
    for piece in 0.. {
        match space.write(piece * len, bytes(len, 1), false).await {
            Err(SpaceError::OutOfSpace) => {
                space.flush().await.unwrap();
                for i in 0..piece * 3 {
                    space.write(i * len / 3 / BLOCK_BYTES * BLOCK_BYTES, bytes(BLOCK_BYTES, 1), true).await.unwrap();
                }
                return piece;
            }
            other => other.unwrap(),
        }
    }
    0
}

/// Slabs that are taken, and those of columns.
fn slabs(space: &Space) -> (usize, usize) {
    let status = space.pool().status();
    let used = status.disks.iter().map(|d| (d.slabs - d.slabs_free) as usize).sum();
    (used, space.pool().space_map(space.id()).unwrap().iter().map(|(_, columns)| columns.len()).sum())
}

async fn no_slab_is_lost(rt: &Rt, space: &Space, what: &str) {
    for _ in 0..100 {
        if slabs(space).0 == slabs(space).1 {
            return;
        }
        rt.sleep_ns(5_000_000).await;
    }
    panic!("{what}: slabs taken, slabs of columns: {:?}", slabs(space));
}

/// Piece 1 goes, and with its slabs comes piece 40; what was acknowledged, and from when on anything could happen.
type Acked = Rc<Cell<(bool, bool)>>;

async fn exchange(rt: Rt, all: Vec<SimDisk>, layout: Layout, columns: usize, acked: Acked) -> u64 {
    let space = create(&rt, &all, layout, columns).await;
    let filled = fill_up(&space).await;
    assert!(filled >= 3, "{filled}");
    let (begun, len) = (rt.now_ns(), space.piece_bytes().unwrap());
    space.discard(len, len).await.unwrap();
    acked.set((true, false));
    // In parts, and each durable: through the log, in its place, or as whole stripes.
    for at in (0..len).step_by(32 << 10) {
        space.write(40 * len + at, bytes((32 << 10).min(len - at), 2), true).await.unwrap();
    }
    acked.set((true, true));
    rt.sleep_ns(3_000_000).await;
    begun
}

fn crash_at_every_step(layout: Layout, columns: usize, n: usize) {
    let acked = Acked::default();
    let (begun, end) = life(&disks(n, 1), None, |rt, all| exchange(rt, all, layout, columns, acked));
    let begun = begun.unwrap();
    let steps = 90;
    let mut seen = [false; 3];
    for step in 0..steps {
        let crash_ns = begun + (end - begun) * step / steps;
        let without = (layout.tolerance() > 0).then(|| step as usize % (n + 1)).filter(|d| *d < n);
        let what = format!("{layout:?}, crash at {crash_ns}, then without {without:?}");
        let (d, acked) = (disks(n, 1), Acked::default());
        let told = acked.clone();
        life(&d, Some(crash_ns), |rt, all| exchange(rt, all, layout, columns, told));
        let (discarded, written) = acked.get();
        seen[usize::from(discarded) + usize::from(written)] = true;
        let opened = life(&d, None, async move |rt: Rt, all: Vec<SimDisk>| {
            let space = open(&rt, &all, without).await;
            is_all(&space, 0, 1, &what).await;
            is_all(&space, 2, 1, &what).await;
            let gone = content(&space, 1).await;
            assert!(gone.iter().all(|b| *b == gone[0] && *b < 2), "{what}: piece 1 is there or gone, not {gone:?}");
            assert!(!discarded || gone[0] == 0, "{what}: piece 1 came back");
            let len = space.piece_bytes().unwrap();
            let come = space.read(40 * len, len as usize).await.unwrap();
            assert!(come.iter().all(|b| *b == 0 || *b == 2), "{what}: foreign bytes in piece 40");
            assert!(!written || come.iter().all(|b| *b == 2), "{what}: what was durable is lost");
            space.pool().resync().await.unwrap();
            let scrub = space.pool().scrub().await.unwrap();
            assert_eq!((scrub.undecided, scrub.lost), (0, 0), "{what}");
            no_slab_is_lost(&rt, &space, &what).await;
        });
        assert!(opened.0.is_some(), "the opening ends");
    }
    assert_eq!(seen, [true; 3], "{layout:?}: crashes before, between and after");
}

#[test]
fn a_crash_at_any_step_leaves_a_simple_group_or_zeros() {
    crash_at_every_step(Layout::Simple, 1, 2);
}

#[test]
fn a_crash_at_any_step_leaves_a_mirrored_group_or_zeros() {
    crash_at_every_step(Layout::Mirror2, 1, 2);
}

#[test]
fn a_crash_at_any_step_leaves_a_parity_group_or_zeros() {
    crash_at_every_step(Layout::Parity, 3, 3);
}

/// Its slabs are in use again when the disk that had missed it returns.
#[test]
fn a_disk_that_was_away_when_slabs_went_brings_nothing_back() {
    for (layout, columns, n) in [(Layout::Mirror2, 1, 2), (Layout::Parity, 3, 4)] {
        for away in 0..n {
            let what = format!("{layout:?} without {away}");
            let done = life(&disks(n, 2), None, async move |rt: Rt, all: Vec<SimDisk>| {
                let space = create(&rt, &all, layout, columns).await;
                fill_up(&space).await;
                let len = space.piece_bytes().unwrap();
                all[away].kill();
                space.pool().report_failure(away as u16).await.unwrap();
                space.discard(len, len).await.unwrap();
                is_all(&space, 1, 0, &what).await;
                space.write(40 * len, bytes(len, 2), true).await.unwrap();
                space.write(len, bytes(BLOCK_BYTES, 3), true).await.err();
                all[away].revive();
                space.pool().return_disk(all[away].attach(&rt)).await.unwrap();
                space.pool().resync().await.unwrap();
                is_all(&space, 0, 1, &what).await;
                is_all(&space, 40, 2, &what).await;
                assert!(content(&space, 1).await[1..].iter().all(|b| *b == 0), "{what}");
                let scrub = space.pool().scrub().await.unwrap();
                assert_eq!((scrub.undecided, scrub.lost), (0, 0), "{what}");
                no_slab_is_lost(&rt, &space, &what).await;
            });
            assert!(done.0.is_some(), "{layout:?} without {away}: it ends");
        }
    }
}

/// A column of the group is on its way to another disk when the group goes.
#[test]
fn a_group_may_go_while_it_is_being_moved() {
    for (layout, columns, n) in [(Layout::Mirror2, 1, 3), (Layout::Parity, 3, 4)] {
        for delay in 0..40u64 {
            let what = format!("{layout:?}, after {delay} steps");
            let done = life(&disks(n, 3), None, async move |rt: Rt, all: Vec<SimDisk>| {
                let space = create(&rt, &all, layout, columns).await;
                let len = space.piece_bytes().unwrap();
                for piece in 0..3 {
                    space.write(piece * len, bytes(len, 1), true).await.unwrap();
                }
                let (pool, removed) = (space.pool().clone(), Rc::new(RefCell::new(None)));
                let told = removed.clone();
                rt.spawn(async move {
                    let result = pool.remove_disk(0).await;
                    *told.borrow_mut() = Some(result);
                });
                rt.sleep_ns(delay * 250_000).await;
                for piece in [0, 1] {
                    space.discard(piece * len, len).await.unwrap();
                }
                space.write(0, bytes(2 * BLOCK_BYTES, 2), true).await.unwrap();
                while removed.borrow().is_none() {
                    rt.sleep_ns(1_000_000).await;
                }
                assert_eq!(removed.take(), Some(Ok(())), "{what}");
                let first = content(&space, 0).await;
                assert!(first[..2] == [2, 2] && first[2..].iter().all(|b| *b == 0), "{what}: {first:?}");
                is_all(&space, 1, 0, &what).await;
                is_all(&space, 2, 1, &what).await;
                let scrub = space.pool().scrub().await.unwrap();
                assert_eq!((scrub.undecided, scrub.lost), (0, 0), "{what}");
                no_slab_is_lost(&rt, &space, &what).await;
            });
            assert!(done.0.is_some(), "{layout:?}, after {delay} steps: it ends");
        }
    }
}

/// Whoever reads and writes while others discard sees what one of them left, and no error.
#[test]
fn users_of_a_group_that_goes_again_and_again_see_no_error() {
    for (layout, columns, n) in [(Layout::Simple, 1, 2), (Layout::Mirror2, 1, 2), (Layout::Parity, 3, 3)] {
        let done = life(&disks(n, 4), None, async move |rt: Rt, all: Vec<SimDisk>| {
            let space = create(&rt, &all, layout, columns).await;
            let len = space.piece_bytes().unwrap();
            let left = Rc::new(Cell::new(6));
            for user in 0..6u64 {
                let (space, rt2, left) = (space.clone(), rt.clone(), left.clone());
                rt.spawn(async move {
                    for i in 0..40u64 {
                        let at = (user * 7 + i * 5) % 30 * BLOCK_BYTES;
                        match user {
                            0 => space.discard(0, len).await.unwrap(),
                            1 => space.discard(0, 2 * BLOCK_BYTES).await.unwrap(),
                            2 | 3 => space.write(at, bytes(BLOCK_BYTES, 1), user == 2).await.unwrap(),
                            _ => {
                                let found = content(&space, 0).await;
                                assert!(found.iter().all(|b| *b < 2), "{layout:?}: {found:?}");
                            }
                        }
                        rt2.sleep_ns(user * 90_000).await;
                    }
                    left.set(left.get() - 1);
                });
            }
            while left.get() > 0 {
                rt.sleep_ns(1_000_000).await;
            }
            space.discard(0, len).await.unwrap();
            is_all(&space, 0, 0, "at the end").await;
            no_slab_is_lost(&rt, &space, "at the end").await;
            assert_eq!(slabs(&space), (0, 0));
        });
        assert!(done.0.is_some(), "{layout:?}: it ends");
    }
}

/// A block that the disk damaged is healed on the way, and before the read comes to what it read of the next piece, that
/// has gone: whoever verifies knows already that nothing lies there.
#[test]
fn a_verified_read_finds_zeros_in_a_piece_that_went_meanwhile() {
    for (layout, columns, n) in [(Layout::Mirror2, 1, 2), (Layout::Parity, 3, 3)] {
        let done = life(&disks(n, 7), None, async move |rt: Rt, all: Vec<SimDisk>| {
            let space = create(&rt, &all, layout, columns).await;
            let len = space.piece_bytes().unwrap();
            space.write(0, bytes(len, 1), false).await.unwrap();
            space.write(len, bytes(len, 2), false).await.unwrap();
            space.flush().await.unwrap();
            for d in &all[..1] {
                let places = (0..d.info().size_bytes / BLOCK_BYTES).map(|b| b * BLOCK_BYTES);
                let of_first = |&at: &u64| d.peek(at, BLOCK_BYTES as usize).iter().all(|x| *x == 1);
                places.filter(of_first).for_each(|at| d.rot(at));
            }
            let (begun, gone, late) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
            let (discarding, rt2, told, ended) = (space.clone(), rt.clone(), begun.clone(), gone.clone());
            rt.spawn(async move {
                while !told.get() {
                    rt2.sleep_ns(10_000).await;
                }
                discarding.discard(len, len).await.unwrap();
                ended.set(true);
            });
            let (told, count) = (gone.clone(), late.clone());
            let verifier = Rc::new(move |at: u64, b: &[u8]| {
                begun.set(true);
                let is = |byte: u8| b.iter().all(|x| *x == byte);
                count.set(count.get() + u32::from(at >= len && is(2) && told.get()));
                if at < len { is(1) } else { is(0) || is(2) && !told.get() }
            });
            let read = space.read_verified(0, 2 * len as usize, verifier).await;
            assert!(gone.get() && late.get() > 0, "{layout:?}: nothing was read before the piece went");
            let read = read.unwrap_or_else(|e| panic!("{layout:?}: {e}"));
            let (first, second) = read.split_at(len as usize);
            assert!(first.iter().all(|x| *x == 1) && second.iter().all(|x| *x == 0), "{layout:?}");
        });
        assert!(done.0.is_some(), "{layout:?}: it ends");
    }
}

#[test]
fn slabs_are_discarded_on_their_disks_and_a_part_of_a_group_keeps_them() {
    let done = life(&disks(2, 5), None, async move |rt: Rt, all: Vec<SimDisk>| {
        let space = create(&rt, &all, Layout::Mirror2, 1).await;
        let len = space.piece_bytes().unwrap();
        assert_eq!(len, SLAB);
        space.write(0, bytes(len, 1), true).await.unwrap();
        space.discard(0, len - BLOCK_BYTES).await.unwrap();
        space.zero(0, len).await.unwrap();
        assert_eq!(slabs(&space), (2, 2), "what is only zeroed, or not whole, keeps its slabs");
        space.write(0, bytes(len, 1), true).await.unwrap();
        space.discard(0, len).await.unwrap();
        no_slab_is_lost(&rt, &space, "after all of it").await;
        rt.sleep_ns(100_000_000).await;
        for d in &all {
            let size = d.info().size_bytes;
            let kept =
                (0..size / BLOCK_BYTES).filter(|b| d.peek(b * BLOCK_BYTES, 4096).iter().all(|x| *x == 1)).count();
            let gone =
                (0..size / BLOCK_BYTES).filter(|b| d.peek(b * BLOCK_BYTES, 4096).iter().all(|x| *x == 0xDD)).count();
            assert_eq!((kept, gone as u64), (0, len / BLOCK_BYTES));
        }
        space.write(BLOCK_BYTES, bytes(BLOCK_BYTES, 4), true).await.unwrap();
        let found = content(&space, 0).await;
        assert!(found[1] == 4 && found.iter().filter(|b| **b != 0).count() == 1, "{found:?}");
    });
    assert!(done.0.is_some());
}

#[test]
fn a_space_of_fixed_size_keeps_its_slabs() {
    let done = life(&disks(2, 6), None, async move |rt: Rt, all: Vec<SimDisk>| {
        let thin = create(&rt, &all, Layout::Mirror2, 1).await;
        let fixed = thin.pool().create_space("f", Layout::Mirror2, Some(1), 4096, 4 * SLAB, Provision::Fixed).await;
        let fixed = fixed.unwrap();
        assert_eq!((fixed.piece_bytes(), slabs(&fixed)), (None, (8, 8)));
        fixed.write(0, bytes(SLAB, 1), false).await.unwrap();
        fixed.discard(0, 4 * SLAB).await.unwrap();
        assert_eq!(slabs(&fixed), (8, 8));
        assert!(fixed.read(0, SLAB as usize).await.unwrap().iter().all(|b| *b == 0));
        thin.pool().delete_space(fixed.id()).await.unwrap();
        no_slab_is_lost(&rt, &thin, "deleted").await;
        assert_eq!(slabs(&thin), (0, 0));
    });
    assert!(done.0.is_some());
}
