//! Openings by a node of a cluster: under an epoch of the cluster, not when a label has one that the cluster does not know, and
//! only with all disks that are in use.

use std::rc::Rc;

use arden_block::sim::{Faults, SimDisk};
use arden_block::{BlockDevice, Buf, Rt};
use arden_space::{
    CreateOptions, Layout, OpenOptions, Ownership, Pool, Provision, Right, SpaceError, SpaceResult, read_header,
};

const BYTES: usize = 64 << 10;
/// The cluster.
const C: u128 = 0xc1;

/// One life of a process that opens the pool on `disks`, writes `byte` and closes it. The epoch that its labels have then.
fn life(disks: &[SimDisk], ownership: Option<Ownership>, byte: u8) -> SpaceResult<u64> {
    by(disks, ownership.map_or(Right::Alone, Right::Owner), byte)
}

fn by(disks: &[SimDisk], right: Right, byte: u8) -> SpaceResult<u64> {
    let rt = Rt::virtual_clock(u64::from(byte));
    let (devices, rt2): (Vec<Rc<dyn BlockDevice>>, _) = (disks.iter().map(|d| d.attach(&rt)).collect(), rt.clone());
    let epoch = rt
        .block_on(async move {
            let options = OpenOptions::default();
            let pool = Pool::open_as(&rt2, devices.clone(), None, options, right).await?;
            let space = pool.space_named("v")?;
            let mut b = Buf::new(BYTES);
            b.fill(byte);
            space.write(0, b.share(), true).await?;
            pool.close().await?;
            Ok(read_header(&*devices[0]).await?.map_or(0, |h| h.epoch))
        })
        .expect("it came to its end");
    rt.shutdown();
    disks.iter().for_each(SimDisk::crash);
    epoch
}

fn made() -> Vec<SimDisk> {
    let disks: Vec<SimDisk> = (0..2).map(|i| SimDisk::new(&format!("d{i}"), 64 << 20, i)).collect();
    let rt = Rt::virtual_clock(1);
    let (devices, rt2) = (disks.iter().map(|d| d.attach(&rt)).collect(), rt.clone());
    rt.block_on(async move {
        let options = CreateOptions { slab_bytes: Some(1 << 20), ..CreateOptions::default() };
        let pool = Pool::create(&rt2, "tank", devices, Vec::new(), options).await.expect("a pool");
        pool.create_space("v", Layout::Mirror2, None, 256 << 10, 4 << 20, Provision::Thin).await.expect("a space");
        pool.create_space("s", Layout::Simple, Some(1), 256 << 10, 4 << 20, Provision::Thin).await.expect("a space");
        pool.close().await.expect("closed");
    })
    .expect("it came to its end");
    rt.shutdown();
    disks
}

#[test]
fn labels_get_the_epoch_of_the_owner() {
    let disks = made();
    assert_eq!(life(&disks, Some(Ownership { epoch: 7, written: 1, cluster: C }), 2), Ok(7));
    assert_eq!(life(&disks, Some(Ownership { epoch: 9, written: 7, cluster: C }), 3), Ok(9));
}

#[test]
fn a_pool_of_a_cluster_is_opened_by_its_nodes_alone() {
    let disks = made();
    assert_eq!(life(&disks, None, 2), Ok(2));
    assert_eq!(life(&disks, Some(Ownership { epoch: 7, written: 2, cluster: C }), 3), Ok(7));
    let before: Vec<_> = disks.iter().map(SimDisk::image).collect();
    let other = Ownership { epoch: 9, written: 7, cluster: 0xc2 };
    for who in [None, Some(other)] {
        assert_eq!(life(&disks, who, 4), Err(SpaceError::OfCluster(C)), "{who:?}");
    }
    // A disk of it alone, without the others, is no way around.
    assert_eq!(life(&disks[1..], None, 4), Err(SpaceError::OfCluster(C)));
    assert!(disks.iter().zip(&before).all(|(d, b)| d.is_like(b)));
    // Who takes it from the cluster has it, and the cluster sees that somebody else wrote.
    assert_eq!(by(&disks, Right::FromCluster, 5), Ok(8));
    assert_eq!(life(&disks, None, 6), Ok(9), "it counts on");
    assert_eq!(life(&disks, Some(Ownership { epoch: 8, written: 7, cluster: C }), 7), Err(SpaceError::LaterEpoch(9)));
}

#[test]
fn a_label_that_the_cluster_does_not_know_is_refused_and_nothing_is_written() {
    let disks = made();
    assert_eq!(life(&disks, Some(Ownership { epoch: 7, written: 1, cluster: C }), 2), Ok(7));
    let before: Vec<_> = disks.iter().map(SimDisk::image).collect();
    for (epoch, written) in [(8, 6), (7, 7), (6, 6), (6, 9)] {
        let refused = life(&disks, Some(Ownership { epoch, written, cluster: C }), 3);
        assert_eq!(refused, Err(SpaceError::LaterEpoch(7)), "{epoch} after {written}");
    }
    assert!(disks.iter().zip(&before).all(|(d, b)| d.is_like(b)));
    assert_eq!(life(&disks, Some(Ownership { epoch: 8, written: 7, cluster: C }), 3), Ok(8));
}

#[test]
fn one_disk_with_a_later_label_is_enough() {
    let disks = made();
    let old = disks[0].image();
    assert_eq!(life(&disks, Some(Ownership { epoch: 7, written: 1, cluster: C }), 2), Ok(7));
    disks[0].put_image(&old);
    assert_eq!(life(&disks, Some(Ownership { epoch: 3, written: 2, cluster: C }), 3), Err(SpaceError::LaterEpoch(7)));
}

/// Where an old image stands the disk of today is absent, and may have a newer state than those that are here.
#[test]
fn an_old_image_is_not_the_disk_that_an_owner_needs() {
    let disks = made();
    assert_eq!(life(&disks, Some(Ownership { epoch: 7, written: 1, cluster: C }), 2), Ok(7));
    let old = disks[1].image();
    assert_eq!(life(&disks, Some(Ownership { epoch: 8, written: 7, cluster: C }), 3), Ok(8));
    let today = disks[1].image();
    disks[1].put_image(&old);
    let before = disks[0].image();
    let refused = life(&disks, Some(Ownership { epoch: 9, written: 8, cluster: C }), 4);
    assert!(matches!(refused, Err(SpaceError::NotFound(_))), "{refused:?}");
    assert!(disks[0].is_like(&before) && disks[1].is_like(&old));
    disks[1].put_image(&today);
    assert_eq!(life(&disks, Some(Ownership { epoch: 9, written: 8, cluster: C }), 4), Ok(9));
}

/// An owner that reaches no disk hears of it before the one who asked is answered, and one that reaches half of a mirror does not.
#[test]
fn an_owner_hears_when_its_last_disk_has_left() {
    use arden_block::sim::Initiator;
    use std::cell::Cell;
    let disks = made();
    let rt = Rt::virtual_clock(3);
    // Each disk by a path of its own, which ends when it is cut.
    let paths = [7, 8];
    let attach = |(d, key): (&SimDisk, u64)| d.attach_as(&rt, Initiator { id: 1, key });
    disks.iter().zip(paths).for_each(|(d, key)| d.register(key));
    let devices: Vec<Rc<dyn BlockDevice>> = disks.iter().zip(paths).map(attach).collect();
    let (rt2, cut) = (rt.clone(), disks.clone());
    rt.block_on(async move {
        let right = Right::Owner(Ownership { epoch: 7, written: 1, cluster: C });
        let pool = Pool::open_as(&rt2, devices, None, OpenOptions::default(), right).await.expect("open");
        let space = pool.space_named("v").expect("a space");
        let told: Rc<Cell<u32>> = Rc::default();
        let tell = told.clone();
        pool.when_all_disks_left(move || tell.set(tell.get() + 1));
        let write = async |byte: u8| {
            let mut b = Buf::new(BYTES);
            b.fill(byte);
            space.write(0, b.share(), true).await
        };
        assert_eq!((write(1).await, told.get()), (Ok(()), 0));
        cut[0].cut(paths[0]);
        assert_eq!((write(2).await, told.get()), (Ok(()), 0), "half of a mirror serves on");
        cut[1].cut(paths[1]);
        assert!(write(3).await.is_err());
        assert_eq!(told.get(), 1);
        assert!(write(4).await.is_err() && pool.close().await.is_err());
        assert_eq!(told.get(), 1, "once");
        let late = told.clone();
        pool.when_all_disks_left(move || late.set(9));
        assert_eq!(told.get(), 9, "who comes late hears of it at once");
    })
    .expect("it came to its end");
    rt.shutdown();
}

#[test]
fn a_disk_that_is_in_use_has_to_be_there() {
    let disks = made();
    let alone = life(&disks[..1], Some(Ownership { epoch: 7, written: 1, cluster: C }), 2);
    assert!(matches!(alone, Err(SpaceError::NotFound(_))), "{alone:?}");
    assert!(life(&disks[..1], None, 2).is_ok(), "one machine opens half of a mirror");
    // Now its map says that the other is missing.
    assert_eq!(life(&disks[..1], Some(Ownership { epoch: 7, written: 2, cluster: C }), 3), Ok(7));
}

/// Keys of the paths to the disks: disk 0 before and after it was away, and disk 1.
const KEYS: [u64; 3] = [6, 7, 8];
/// A disk returns, and the other one, which alone knows what was written meanwhile, is cut off `after_ns` later. Whether a write was
/// acknowledged then.
fn acknowledged_by_a_disk_that_returned(disks: &[SimDisk], after_ns: u64) -> bool {
    use arden_block::sim::Initiator;
    let rt = Rt::virtual_clock(after_ns);
    let attach = |d: usize, key: u64| {
        disks[d].register(key);
        disks[d].attach_as(&rt, Initiator { id: 1, key })
    };
    let (devices, returning) = (vec![attach(0, KEYS[0]), attach(1, KEYS[2])], attach(0, KEYS[1]));
    let (rt2, cut) = (rt.clone(), disks.to_vec());
    let written = rt.block_on(async move {
        let right = Right::Owner(Ownership { epoch: 7, written: 1, cluster: C });
        let pool = Pool::open_as(&rt2, devices, None, OpenOptions::default(), right).await.expect("open");
        let write = async |space: &str, byte: u8| {
            let mut b = Buf::new(BYTES);
            b.fill(byte);
            pool.space_named(space)?.write(0, b.share(), true).await
        };
        write("v", 1).await.expect("written");
        cut[0].cut(KEYS[0]);
        write("v", 2).await.expect("half of a mirror serves on");
        let back = pool.clone();
        rt2.spawn(async move { drop(back.return_disk(returning).await) });
        rt2.sleep_ns(after_ns).await;
        cut[1].cut(KEYS[2]);
        // Nothing of this space was written before: the disk that is left takes it all.
        rt2.timeout_ns(20_000_000_000, write("s", 9)).await == Some(Ok(()))
    });
    rt.shutdown();
    disks.iter().for_each(SimDisk::crash);
    written.expect("it came to its end")
}

/// The next owner reaches the disk alone whose owner went on without it.
#[test]
fn a_disk_that_does_not_know_of_one_that_returned_is_not_opened_without_it() {
    let (mut acknowledged, mut opened) = (0, 0);
    for step in 0..200 {
        let disks = made();
        disks.iter().for_each(|d| d.set_faults(Faults { latency_max_ns: 100_000, ..Faults::default() }));
        let written = acknowledged_by_a_disk_that_returned(&disks, 10_000 * step + 1);
        acknowledged += u32::from(written);
        let rt = Rt::virtual_clock(step);
        let (device, rt2) = (disks[1].attach(&rt), rt.clone());
        let found = rt.block_on(async move {
            let right = Right::Owner(Ownership { epoch: 8, written: 7, cluster: C });
            let pool = Pool::open_as(&rt2, vec![device], None, OpenOptions::default(), right).await?;
            let read = pool.space_named("s")?.read(0, BYTES).await?;
            Ok::<_, SpaceError>(read[0])
        });
        rt.shutdown();
        match found.expect("it came to its end") {
            Ok(byte) => {
                opened += 1;
                assert!(!written || byte == 9, "after {step} steps: an acknowledged write is lost");
            }
            // It may lie on the disk that is not there.
            Err(e) => assert!(matches!(e, SpaceError::NotFound(_) | SpaceError::Offline), "{e}"),
        }
    }
    assert!(acknowledged > 0 && opened > 0, "{acknowledged} {opened}");
}
