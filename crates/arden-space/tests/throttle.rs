//! Background work stands back: on simulated disks that take the time of real ones, in virtual time, clients keep
//! at least 70 % of their rate while a scrub reads everything or a lost disk is rebuilt. Nothing here depends on
//! the machine.

use std::cell::Cell;
use std::rc::Rc;

use arden_block::sim::SimDisk;
use arden_block::timing::Model;
use arden_block::{Buf, Rt};
use arden_space::{CreateOptions, Layout, Pool, PoolConfig, Provision, Space};

const MS_NS: u64 = 1_000_000;
const SPACE_BYTES: u64 = 128 << 20;
const IN_FLIGHT: u64 = 8;

/// Random 8 KiB, two reads for each write; operations in `ms`.
async fn rate(rt: &Rt, space: &Space, ms: u64) -> u64 {
    let (done, end) = (Rc::new(Cell::new(0u64)), rt.now_ns() + ms * MS_NS);
    for _ in 0..IN_FLIGHT {
        let (rt2, space, done) = (rt.clone(), space.clone(), done.clone());
        rt.spawn(async move {
            while rt2.now_ns() < end {
                let at = rt2.random_u64() % (SPACE_BYTES / 8192) * 8192;
                if rt2.random_u64() % 3 == 0 {
                    space.write(at, Buf::zeroed(8192).share(), false).await.expect("written");
                } else {
                    space.read(at, 8192).await.expect("read");
                }
                done.set(done.get() + 1);
            }
        });
    }
    rt.sleep_ns(ms * MS_NS).await;
    done.get()
}

async fn filled(rt: &Rt, disks: &[SimDisk], layout: Layout) -> (Pool, Space) {
    let config = PoolConfig { grace_ms: 3_600_000, ..PoolConfig::default() };
    let options = CreateOptions { slab_bytes: Some(8 << 20), config };
    let devices = disks.iter().map(|d| d.attach(rt)).collect();
    let pool = Pool::create(rt, "tank", devices, Vec::new(), options).await.expect("a pool");
    let space = pool.create_space("v", layout, None, 256 << 10, SPACE_BYTES, Provision::Thin).await.expect("a space");
    for at in (0..SPACE_BYTES).step_by(1 << 20) {
        space.write(at, Buf::zeroed(1 << 20).share(), false).await.expect("written");
    }
    space.flush().await.expect("flushed");
    (pool, space)
}

/// `ms`: parity gathers writes in memory, which has to fill and empty a few times to say anything of a rate.
fn world(model: Model, layout: Layout, ms: u64) {
    let rt = Rt::virtual_clock(7);
    let disks: Vec<SimDisk> =
        (0..6).map(|i| SimDisk::timed(&format!("d{i}"), 1 << 30, i, model.clone(), false)).collect();
    let rt2 = rt.clone();
    let medium = if matches!(model, Model::Ssd(_)) { "SSDs" } else { "rotating disks" };
    let name = format!("{} on {medium}", layout.name());
    rt.block_on(async move {
        let (pool, space) = filled(&rt2, &disks, layout).await;
        rate(&rt2, &space, ms / 4).await;
        let alone = rate(&rt2, &space, ms).await;
        let scrubbing = Rc::new(Cell::new(0u64));
        {
            let (pool, passes) = (pool.clone(), scrubbing.clone());
            rt2.spawn(async move {
                while pool.scrub().await.is_ok() {
                    passes.set(passes.get() + 1);
                }
            });
        }
        let beside = rate(&rt2, &space, ms).await;
        assert!(!pool.status().progress.is_empty(), "{name}: it was being scrubbed");
        println!("{name}: {alone} operations alone, {beside} beside a scrub");
        assert!(beside * 100 >= alone * 70, "{name}: {beside} beside a scrub, {alone} alone");
        pool.set_cancelled(true);
        rt2.sleep_ns(500 * MS_NS).await;
        pool.set_cancelled(false);

        disks[0].kill();
        rate(&rt2, &space, ms / 4).await;
        let alone = rate(&rt2, &space, ms).await;
        let moved = Rc::new(Cell::new(None));
        {
            let (pool, moved) = (pool.clone(), moved.clone());
            rt2.spawn(async move { moved.set(pool.repair().await.ok()) });
        }
        let beside = rate(&rt2, &space, ms).await;
        println!("{name}: {alone} operations degraded, {beside} beside the repair, which did {:?}", moved.get());
        assert!(beside * 100 >= alone * 70, "{name}: {beside} beside a repair, {alone} alone");
    });
    rt.shutdown();
}

#[test]
fn clients_keep_their_rate_on_ssds() {
    world(Model::sata_ssd(), Layout::Mirror2, 200);
    world(Model::sata_ssd(), Layout::Parity, 1000);
}

#[test]
fn clients_keep_their_rate_on_rotating_disks() {
    world(Model::sas_10k_147g(true), Layout::Mirror2, 3000);
    world(Model::sas_10k_147g(true), Layout::Parity, 12_000);
}
