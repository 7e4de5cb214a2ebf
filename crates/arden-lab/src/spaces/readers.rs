//! `make bench-space`, one pool and two threads that read it at once, as two connections of a daemon would: beside two processes of
//! fio on the same files.

use std::{path::PathBuf, rc::Rc, thread};

use arden_block::Rt;
use arden_measure::{
    Error, Result,
    base::process,
    load::{BlockTarget, Content, Live, Load, Profile, Window, drive, fill, flush},
};
use arden_space::{Caller, CreateOptions, Layout, Pool, PoolHost, Provision, SpaceError};

use super::{Line, Sample, bench::Plan, fio};
use crate::pools::{files, timed::INTERLEAVE_BYTES};

const DISKS: usize = 4;
const READERS: usize = 2;
/// Of each reader.
const DEPTH: usize = 16;
const BLOCK_BYTES: u32 = 4096;
const SECTION: &str = "one pool read by two threads at once, against two processes of fio on the same files";

/// Runs both sides in turn, and the same reads through the pool's thread for orientation.
///
/// # Errors
/// A disk or the peer fails.
pub fn readers(plan: &Plan) -> Result<Vec<Line>> {
    let set = files::make(&plan.dir, "a", DISKS, plan.disk_bytes)?;
    let mut lines = Vec::new();
    for layout in [Layout::Simple, Layout::Mirror2] {
        let bytes = plan.file_bytes / layout.copies() as u64;
        let (mut direct, mut by_pool, mut peer) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..plan.rounds {
            let host = host(&set, layout, bytes)?;
            let caller = host.caller();
            direct.push(side(&caller, plan, bytes, false)?);
            by_pool.push(side(&caller, plan, bytes, true)?);
            host.stop().map_err(|e| Error(e.to_string()))?;
            peer.push(fio::run(&job(&set, plan))?);
            let round = [&direct, &by_pool, &peer].map(|s| s[s.len() - 1]);
            eprintln!("{}, two readers, by the pool's thread, fio: {round:?}", layout.name());
        }
        let what = |what: &str| format!("{}, random read 4 KiB, 2 x {DEPTH} in flight{what}", layout.name());
        lines.push(Line::of_rates(SECTION, what(""), &direct, &peer, 0.85));
        lines.push(Line::of_cpu(SECTION, what(": CPU for each, fio's divided by ours"), &direct, &peer, 1.0 / 1.5));
        lines.push(Line::of_rates(SECTION, what(", all by the pool's thread"), &by_pool, &peer, f64::NAN));
        lines.push(Line::of_cpu(SECTION, what(", all by the pool's thread: the same CPU"), &by_pool, &peer, f64::NAN));
    }
    Ok(lines)
}

fn job<'a>(files: &'a [PathBuf], plan: &Plan) -> fio::Job<'a> {
    fio::Job {
        files,
        rw: "randread",
        block_bytes: BLOCK_BYTES,
        depth: DEPTH,
        bytes: plan.file_bytes,
        durable: false,
        seconds: plan.seconds,
        processes: READERS,
    }
}

/// A pool on a thread of its own, with a space that is written once.
fn host(set: &[PathBuf], layout: Layout, bytes: u64) -> Result<PoolHost> {
    let set = set.to_vec();
    let open = move |rt: Rt| -> std::pin::Pin<Box<dyn Future<Output = std::result::Result<Pool, SpaceError>>>> {
        Box::pin(async move {
            let refused = |e: Error| SpaceError::Refused(e.to_string());
            let disks = set.iter().map(|f| files::open(&rt, f)).collect::<Result<Vec<_>>>().map_err(refused)?;
            let pool = Pool::create(&rt, "measured", disks, Vec::new(), CreateOptions::default()).await?;
            pool.create_space("s", layout, None, INTERLEAVE_BYTES, bytes, Provision::Fixed).await?;
            Ok(pool)
        })
    };
    let host = PoolHost::start(open).map_err(|e| Error(e.to_string()))?;
    let rt = Rt::real();
    let mut target = target(&host.caller(), &rt, true)?;
    fill(&mut target, bytes, &mut Content::plain(1), &Live::default())?;
    flush(&mut target)?;
    Ok(host)
}

fn target(caller: &Caller, rt: &Rt, by_pool: bool) -> Result<BlockTarget> {
    let space = caller.device(rt, "s").map_err(|e| Error(e.to_string()))?;
    let space = if by_pool { space.by_pool_alone() } else { space };
    Ok(BlockTarget::new(rt, Rc::new(space)))
}

/// All readers at once; processor time is that of the whole process.
fn side(caller: &Caller, plan: &Plan, bytes: u64, by_pool: bool) -> Result<Sample> {
    thread::sleep(std::time::Duration::from_millis(200));
    let measure_ns = (plan.seconds * 1e9) as u64;
    let busy = process::own();
    let run = move |seed: u64, caller: Caller| -> Result<(u64, f64)> {
        let rt = Rt::real();
        let mut target = target(&caller, &rt, by_pool)?;
        let profile = Profile {
            name: "read".into(),
            access: arden_measure::load::Access::Random,
            read_percent: 100,
            block_bytes: BLOCK_BYTES,
        };
        let load = Load { durable: false, seed, ..Load::of(&profile, DEPTH, bytes) };
        let start = rt.now_ns();
        let window = Window { warm_up_ns: 0, measure_ns };
        let m = drive(&mut target, &load, window, &mut Content::plain(1), &Live::default());
        match m.problem {
            Some(problem) => Err(Error(problem)),
            None => Ok((m.recorder.reads, (rt.now_ns() - start) as f64 / 1e9)),
        }
    };
    let threads: Vec<_> = (1..=READERS as u64)
        .map(|seed| {
            let caller = caller.clone();
            thread::spawn(move || run(seed, caller))
        })
        .collect();
    let (mut io_s, mut ops) = (0.0, 0);
    for t in threads {
        let (reads, took_s) = t.join().map_err(|_| Error("a reader panicked".into()))??;
        io_s += reads as f64 / took_s;
        ops += reads;
    }
    Ok(Sample { io_s, cpu_us: (process::own() - busy).as_secs_f64() * 1e6 / ops as f64 })
}
