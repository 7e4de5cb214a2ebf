//! `make bench-space` on real disks: interleaved rounds of Arden and its peer, and the medians of their ratios.

use std::{path::PathBuf, time::Duration};

use arden_measure::{
    Error, Result,
    base::{process, stats::median},
    load::{Access, BlockTarget, Content, Live, Load, Profile, Target, Window, drive, flush},
};
use arden_space::Layout;

use super::{Line, Sample, btrfs::Mounted, fio};
use crate::pools::{
    files::{self, FilePool},
    timed::INTERLEAVE_BYTES,
};

/// The amount of each measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    pub dir: PathBuf,
    /// Script that sets up btrfs; without it its rows are left out.
    pub btrfs: Option<PathBuf>,
    pub rounds: usize,
    pub seconds: f64,
    pub disk_bytes: u64,
    pub file_bytes: u64,
}

const DISKS: usize = 4;

/// The request of one measurement.
#[derive(Debug, Clone)]
struct Ask {
    profile: Profile,
    depth: usize,
    durable: bool,
}

impl Ask {
    fn new(name: &str, access: Access, read_percent: u8, block_bytes: u32, depth: usize) -> Ask {
        Ask { profile: Profile { name: name.into(), access, read_percent, block_bytes }, depth, durable: false }
    }

    fn durable(depth: usize) -> Ask {
        Ask { durable: true, ..Ask::new("durable write", Access::Random, 0, 8192, depth) }
    }

    fn title(&self) -> String {
        let access = self.profile.access.name();
        format!("{access} {} {} KiB, {} in flight", self.profile.name, self.profile.block_bytes >> 10, self.depth)
    }
}

/// Runs the generator on a target. Written data is flushed before the clock stops.
fn ours(target: &mut BlockTarget, ask: &Ask, plan: &Plan) -> Result<Sample> {
    let p = &ask.profile;
    let load = Load { durable: ask.durable, seed: 1, ..Load::of(p, ask.depth, plan.file_bytes) };
    let window = Window { warm_up_ns: 0, measure_ns: (plan.seconds * 1e9) as u64 };
    let (busy, start) = (process::own(), target.now_ns());
    let m = drive(target, &load, window, &mut Content::plain(1), &Live::default());
    if let Some(problem) = m.problem {
        return Err(Error(problem));
    }
    if p.read_percent < 100 {
        flush(target)?;
    }
    let ops = (m.recorder.reads + m.recorder.writes) as f64;
    let took = (target.now_ns() - start) as f64 / 1e9;
    Ok(Sample { io_s: ops / took, cpu_us: (process::own() - busy).as_secs_f64() * 1e6 / ops })
}

/// The samples of both sides, by round.
#[derive(Default)]
struct Comparison {
    ours: Vec<Sample>,
    peer: Vec<Sample>,
}

fn middle(values: impl Iterator<Item = f64>) -> f64 {
    median(&values.collect::<Vec<f64>>())
}

impl Comparison {
    fn add(&mut self, what: &str, ours: Sample, peer: Sample) {
        eprintln!(
            "{what:<58} {:>9.0}/s {:>6.1} us   peer {:>9.0}/s {:>6.1} us   {:.2}",
            ours.io_s,
            ours.cpu_us,
            peer.io_s,
            peer.cpu_us,
            ours.io_s / peer.io_s
        );
        self.ours.push(ours);
        self.peer.push(peer);
    }

    fn rates(&self, section: &'static str, what: String, aim: f64) -> Line {
        let rate = |v: &[Sample]| format!("{:.0}/s", middle(v.iter().map(|s| s.io_s)));
        let ratio = middle(self.ours.iter().zip(&self.peer).map(|(o, p)| o.io_s / p.io_s));
        Line { section, what, ours: rate(&self.ours), peer: rate(&self.peer), ratio, aim, at_most: false }
    }

    fn cpu(&self, section: &'static str, what: String) -> Line {
        let cpu = |v: &[Sample]| middle(v.iter().map(|s| s.cpu_us));
        let ratio = middle(self.ours.iter().zip(&self.peer).map(|(o, p)| o.cpu_us - p.cpu_us));
        let text = |us: f64| format!("{us:.1} us");
        Line { section, what, ours: text(cpu(&self.ours)), peer: text(cpu(&self.peer)), ratio, aim: 6.0, at_most: true }
    }
}

fn fio_name(ask: &Ask) -> &'static str {
    match (ask.profile.access, ask.profile.read_percent) {
        (Access::Random, 100) => "randread",
        (Access::Random, _) => "randwrite",
        (Access::Sequential, 100) => "read",
        (Access::Sequential, _) => "write",
    }
}

/// Runs both sides, Arden first in every second round, because the second side finds data of the first in the caches of
/// the disk. A pause before each side lets the disk write it.
fn in_turn(
    round: usize,
    mut ours: impl FnMut() -> Result<Sample>,
    mut peer: impl FnMut() -> Result<Sample>,
) -> Result<(Sample, Sample)> {
    let pause = || std::thread::sleep(Duration::from_millis(200));
    pause();
    if round.is_multiple_of(2) {
        let mine = ours()?;
        pause();
        return Ok((mine, peer()?));
    }
    let theirs = peer()?;
    pause();
    Ok((ours()?, theirs))
}

/// A simple space on four files, compared with fio on four others.
///
/// # Errors
/// A disk or the peer fails.
pub fn simple(plan: &Plan) -> Result<Vec<Line>> {
    const SECTION: &str = "simple on 4 file disks, against fio on 4 files";
    let (set, raw) = (files::make(&plan.dir, "a", DISKS, plan.disk_bytes)?, raw_files(plan)?);
    let pool = FilePool::new(&set, Layout::Simple, None, INTERLEAVE_BYTES, plan.file_bytes)?;
    let mut asks = Vec::new();
    for depth in [1, 32] {
        asks.push(Ask::new("read", Access::Sequential, 100, 65536, depth));
        asks.push(Ask::new("write", Access::Sequential, 0, 65536, depth));
        asks.push(Ask::new("read", Access::Random, 100, 8192, depth));
        asks.push(Ask::new("write", Access::Random, 0, 8192, depth));
    }
    let cpu_from = asks.len();
    asks.push(Ask::new("read", Access::Random, 100, 4096, 32));
    asks.push(Ask::new("write", Access::Random, 0, 4096, 32));
    let mut pairs: Vec<Comparison> = asks.iter().map(|_| Comparison::default()).collect();
    for round in 0..plan.rounds {
        for (ask, pair) in asks.iter().zip(&mut pairs) {
            let job = fio_job(ask, &raw, plan);
            let (mine, theirs) = in_turn(round, || ours(&mut pool.target(), ask, plan), || fio::run(&job))?;
            pair.add(&format!("simple, {}", ask.title()), mine, theirs);
        }
    }
    let mut lines = Vec::new();
    for (i, (ask, pair)) in asks.iter().zip(&pairs).enumerate() {
        if i < cpu_from {
            lines.push(pair.rates(SECTION, ask.title(), 0.9));
        } else {
            lines.push(pair.cpu(SECTION, format!("CPU more for each {}", ask.title())));
        }
    }
    Ok(lines)
}

fn raw_files(plan: &Plan) -> Result<Vec<PathBuf>> {
    files::make(&plan.dir, "b", DISKS, plan.disk_bytes)
}

fn fio_job<'a>(ask: &Ask, files: &'a [PathBuf], plan: &Plan) -> fio::Job<'a> {
    fio::Job {
        files,
        rw: fio_name(ask),
        block_bytes: ask.profile.block_bytes,
        depth: ask.depth,
        bytes: plan.file_bytes,
        durable: ask.durable,
        seconds: plan.seconds,
        processes: 1,
    }
}

/// Random writes of 8 KiB that are durable when they return.
///
/// # Errors
/// A disk or the peer fails.
pub fn durable(plan: &Plan) -> Result<Vec<Line>> {
    const SECTION: &str = "8 KiB durable random writes, against fio with fdatasync on one raw file, 1 in flight";
    let (set, raw) = (files::make(&plan.dir, "a", DISKS, plan.disk_bytes)?, raw_files(plan)?);
    let mut lines = Vec::new();
    let mut ceiling = Vec::new();
    for layout in [Layout::Simple, Layout::Mirror2, Layout::Parity] {
        let pool = FilePool::new(&set, layout, None, INTERLEAVE_BYTES, plan.file_bytes)?;
        let (mut one, mut many) = (Comparison::default(), Comparison::default());
        for _ in 0..plan.rounds {
            let peer = fio::run(&fio_job(&Ask::durable(1), &raw[..1], plan))?;
            one.add(&format!("{}, durable, 1", layout.name()), ours(&mut pool.target(), &Ask::durable(1), plan)?, peer);
            // The peer runs directly afterwards: the speed of this machine's flushes changes within seconds.
            let peer = fio::run(&fio_job(&Ask::durable(1), &raw[..1], plan))?;
            many.add(
                &format!("{}, durable, 32", layout.name()),
                ours(&mut pool.target(), &Ask::durable(32), plan)?,
                peer,
            );
            let free = fio::run(&fio_job(&Ask::new("write", Access::Random, 0, 8192, 32), &raw, plan))?;
            ceiling.push(free.io_s / peer.io_s);
        }
        lines.push(one.rates(SECTION, format!("{}, 1 in flight", layout.name()), 0.8));
        lines.push(many.rates(SECTION, format!("{}, 32 in flight", layout.name()), 8.0));
    }
    lines.push(Line {
        section: SECTION,
        what: "for orientation: fio, 32 in flight, no flush at all".into(),
        ours: String::new(),
        peer: String::new(),
        ratio: median(&ceiling),
        aim: f64::NAN,
        at_most: false,
    });
    Ok(lines)
}

/// Mirror and parity, compared with btrfs raid1 and raid5 on loop devices.
///
/// # Errors
/// A disk or the peer fails.
pub fn against_btrfs(plan: &Plan) -> Result<Vec<Line>> {
    const SECTION: &str = "five profiles, against btrfs on loop devices (direct I/O throughout)";
    let Some(script) = &plan.btrfs else { return Ok(Vec::new()) };
    let (set, raw) = (files::make(&plan.dir, "a", DISKS, plan.disk_bytes)?, raw_files(plan)?);
    let mut lines = Vec::new();
    // btrfs puts 64 KiB of a raid5 stripe on each disk; the interleave here is the same.
    let parity = (Layout::Parity, Some(DISKS), 64 << 10, "raid5");
    for (layout, columns, interleave, peer_name) in [(Layout::Mirror2, None, INTERLEAVE_BYTES, "raid1"), parity] {
        let pool = FilePool::new(&set, layout, columns, interleave, plan.file_bytes)?;
        let peer = Mounted::new(script, peer_name, &plan.dir.join("btrfs"), &raw, plan.file_bytes)?;
        let asks: Vec<Ask> = Profile::standard()
            .into_iter()
            .flat_map(|p| [1, 32].map(|depth| Ask { profile: p.clone(), depth, durable: false }))
            .collect();
        let mut pairs: Vec<Comparison> = asks.iter().map(|_| Comparison::default()).collect();
        for round in 0..plan.rounds {
            for (ask, pair) in asks.iter().zip(&mut pairs) {
                let what = format!("{} / {peer_name}, {}", layout.name(), ask.title());
                let run = |target: Result<BlockTarget>| ours(&mut target?, ask, plan);
                let (mine, mut theirs) = in_turn(round, || run(Ok(pool.target())), || run(peer.target()))?;
                theirs.cpu_us = f64::NAN;
                pair.add(&what, mine, theirs);
            }
        }
        for (ask, pair) in asks.iter().zip(&pairs) {
            let what = format!("{} / {peer_name}, {}, {} in flight", layout.name(), ask.profile.name, ask.depth);
            lines.push(pair.rates(SECTION, what, 1.0));
        }
    }
    Ok(lines)
}

/// The peak of this process's memory, with pools, their spaces under load, and the generator.
///
/// # Errors
/// /proc is not mounted.
pub fn memory() -> Result<Line> {
    let mib = process::memory(std::process::id(), "VmHWM")? as f64 / f64::from(1 << 20);
    Ok(Line {
        section: "memory, at most 64 MiB and 1 MiB for each TiB of pool",
        what: "peak of the whole process with the generator, after all of the above (pools of 4 GiB)".into(),
        ours: format!("{mib:.0} MiB"),
        peer: "64 MiB".into(),
        ratio: 64.0 / mib,
        aim: 1.0,
        at_most: false,
    })
}
