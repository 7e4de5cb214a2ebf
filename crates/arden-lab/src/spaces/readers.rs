//! `make bench-space`, one pool that is read by two at once, beside two processes of fio on the same files: by two threads of the
//! process that has the pool, and by two processes over NBD.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    rc::Rc,
    thread,
};

use arden_block::Rt;
use arden_measure::{
    Error, Result,
    base::process,
    load::{BlockTarget, Content, Live, Load, NbdTarget, Profile, Target, Window, drive, fill, flush},
};
use arden_space::{Caller, CreateOptions, Layout, Pool, PoolHost, Provision, SpaceError, nbd::Export};

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
        let (mut direct, mut by_pool, mut nbd, mut peer) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..plan.rounds {
            let host = host(&set, layout, bytes)?;
            let caller = host.caller();
            direct.push(side(&caller, plan, bytes, false)?);
            by_pool.push(side(&caller, plan, bytes, true)?);
            nbd.push(over_nbd(&caller, plan, bytes)?);
            host.stop().map_err(|e| Error(e.to_string()))?;
            peer.push(fio::run(&job(&set, plan))?);
            let round = [&direct, &by_pool, &nbd, &peer].map(|s| s[s.len() - 1]);
            eprintln!("{}, two readers, by the pool's thread, over NBD, fio: {round:?}", layout.name());
        }
        let what = |what: &str| format!("{}, random read 4 KiB, 2 x {DEPTH} in flight{what}", layout.name());
        lines.push(Line::of_rates(SECTION, what(""), &direct, &peer, 0.85));
        lines.push(Line::of_cpu(SECTION, what(": CPU for each, fio's divided by ours"), &direct, &peer, 1.0 / 1.5));
        lines.push(Line::of_rates(SECTION, what(", all by the pool's thread"), &by_pool, &peer, f64::NAN));
        lines.push(Line::of_cpu(SECTION, what(", all by the pool's thread: the same CPU"), &by_pool, &peer, f64::NAN));
        lines.push(Line::of_rates(SECTION, what(", two processes over NBD"), &nbd, &peer, 0.85));
        lines.push(Line::of_cpu(SECTION, what(", over NBD: CPU, both ends"), &nbd, &peer, 1.0 / 1.5));
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

fn profile() -> Profile {
    Profile {
        name: "read".into(),
        access: arden_measure::load::Access::Random,
        read_percent: 100,
        block_bytes: BLOCK_BYTES,
    }
}

/// One reader: its reads, and the seconds that they took.
fn read(target: &mut dyn Target, seed: u64, bytes: u64, seconds: f64) -> Result<(u64, f64)> {
    let load = Load { durable: false, seed, ..Load::of(&profile(), DEPTH, bytes) };
    let start = target.now_ns();
    let window = Window { warm_up_ns: 0, measure_ns: (seconds * 1e9) as u64 };
    let m = drive(target, &load, window, &mut Content::plain(1), &Live::default());
    match m.problem {
        Some(problem) => Err(Error(problem)),
        None => Ok((m.recorder.reads, (target.now_ns() - start) as f64 / 1e9)),
    }
}

/// What a process does that [`readers`] starts: reads an export, and prints reads, seconds and its processor time in seconds.
///
/// # Errors
/// The export cannot be read.
pub fn reader_process(place: &str, seed: u64, seconds: f64) -> Result<()> {
    let mut target = NbdTarget::connect(place, "")?;
    let (busy, bytes) = (process::own(), target.size_bytes());
    let (reads, took_s) = read(&mut target, seed, bytes, seconds)?;
    println!("{reads} {took_s} {}", (process::own() - busy).as_secs_f64());
    Ok(())
}

/// As [`side`], by processes. Processor time is that of all of them and of this one, which serves them.
fn over_nbd(caller: &Caller, plan: &Plan, bytes: u64) -> Result<Sample> {
    let refused = |e: std::io::Error| Error(e.to_string());
    let place = format!("unix:{}", plan.dir.join("nbd").display());
    let export = Export::start(&place, caller.clone(), "s").map_err(refused)?;
    // The pool shows what it has.
    read(&mut NbdTarget::connect(&place, "")?, 9, bytes, 0.2)?;
    thread::sleep(std::time::Duration::from_millis(200));
    let own = std::env::current_exe()?;
    let busy = process::own();
    let start = |seed: u64| -> Result<Child> {
        let mut c = Command::new(&own);
        c.args(["reader", &place, "--seed", &seed.to_string(), "--seconds", &plan.seconds.to_string()]);
        c.stdout(Stdio::piped()).spawn().map_err(refused)
    };
    let all = (1..=READERS as u64).map(start).collect::<Result<Vec<Child>>>()?;
    let (mut io_s, mut ops, mut busy_s) = (0.0, 0.0, 0.0);
    for child in all {
        let out = child.wait_with_output().map_err(refused)?;
        let text = String::from_utf8_lossy(&out.stdout);
        let numbers: Vec<f64> = text.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let [reads, took_s, cpu_s] = numbers[..] else { return Err(Error(format!("a reader said {text:?}"))) };
        io_s += reads / took_s;
        ops += reads;
        busy_s += cpu_s;
    }
    busy_s += (process::own() - busy).as_secs_f64();
    export.stop();
    Ok(Sample { io_s, cpu_us: busy_s * 1e6 / ops })
}

/// All readers at once; processor time is that of the whole process.
fn side(caller: &Caller, plan: &Plan, bytes: u64, by_pool: bool) -> Result<Sample> {
    thread::sleep(std::time::Duration::from_millis(200));
    let (busy, seconds) = (process::own(), plan.seconds);
    let run = move |seed: u64, caller: Caller| -> Result<(u64, f64)> {
        let rt = Rt::real();
        read(&mut target(&caller, &rt, by_pool)?, seed, bytes, seconds)
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
