//! E3, storage spaces under the five profiles: every layout on 2, 4 and 8 disks, disk caches on and off, two
//! interleaves, and a sweep of block sizes. It runs in virtual time on timing models of disks, the same on every
//! machine, and on real disks when some are given.

use std::{
    path::PathBuf,
    rc::Rc,
    time::{Duration, Instant},
};

use arden_block::{BlockDevice, Rt, sim::SimDisk, timing};
use arden_space::{Layout, Pool, Space};

use arden_measure::{
    Result,
    base::units::size,
    fail,
    load::{Access, BlockTarget, Content, Live, Load, Profile, Window, drive, fill},
    outcome::{Outcome, Point, Relation},
    page::svg::short,
    sweep::view::View,
};

use super::Options;
use crate::pools::{self, SpaceSetup, files};

const DISK_BYTES: u64 = 147_000_000_000;
const SWEEP_OUTSTANDING: usize = 32;

/// The configuration of a space.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Setup {
    pub(crate) layout: Layout,
    pub(crate) disks: usize,
    pub(crate) cache: bool,
    pub(crate) interleave_bytes: u64,
}

impl Setup {
    fn line(&self) -> String {
        format!("{} disks, {}", self.disks, if self.cache { "cache on" } else { "cache off" })
    }
}

/// A space with its pool and runtime.
pub(crate) struct World {
    rt: Rt,
    pool: Pool,
    space: Space,
}

impl World {
    fn build(rt: Rt, devices: Vec<Rc<dyn BlockDevice>>, setup: Setup, bytes: u64) -> Result<World> {
        let Setup { layout, interleave_bytes, .. } = setup;
        let space = SpaceSetup { layout, columns: None, interleave_bytes, bytes };
        let (pool, space) = pools::create(&rt, devices, Vec::new(), space)?;
        Ok(World { rt, pool, space })
    }

    /// A space on simulated SAS disks of 10,000 rpm, which keep only the pool's own data.
    fn simulated(setup: Setup, bytes: u64) -> Result<World> {
        let rt = Rt::virtual_clock(1);
        let model = || timing::Model::sas_10k_147g(setup.cache);
        let disks = (0..setup.disks).map(|i| SimDisk::timed(&format!("d{i}"), DISK_BYTES, i as u64, model(), false));
        let devices = disks.map(|d| d.attach(&rt)).collect();
        World::build(rt, devices, setup, bytes)
    }

    pub(crate) fn real(paths: &[PathBuf], setup: Setup, bytes: u64) -> Result<World> {
        let rt = Rt::real();
        let devices = paths[..setup.disks].iter().map(|path| files::open(&rt, path)).collect::<Result<Vec<_>>>()?;
        World::build(rt, devices, setup, bytes)
    }

    /// Waits until the log and the disks' caches are empty, so that a load does not pay for the one before.
    fn drain_caches(&self) {
        let (rt, space) = (self.rt.clone(), self.space.clone());
        let pause_ns = if rt.is_virtual() { 10_000_000_000 } else { 200_000_000 };
        let _ = self.rt.block_on(async move {
            let _ = space.flush().await;
            rt.sleep_ns(pause_ns).await;
        });
    }

    pub(crate) fn target(&self) -> BlockTarget {
        BlockTarget::new(&self.rt, Rc::new(self.space.device()))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let pool = self.pool.clone();
        let _ = self.rt.block_on(async move { pool.close().await });
        self.rt.shutdown();
    }
}

/// The loads of one space.
struct Plan {
    outstanding: Vec<usize>,
    sweep: Vec<u32>,
    file_bytes: u64,
    window: Window,
}

fn layouts(disks: usize) -> Vec<Layout> {
    let names: &[&str] = match disks {
        2 => &["simple", "mirror2"],
        4 => &["simple", "mirror2", "parity"],
        _ => &["simple", "mirror2", "mirror3", "parity", "dual-parity"],
    };
    names.iter().filter_map(|n| Layout::parse(n)).collect()
}

fn setups(quick: bool) -> Vec<Setup> {
    let mut all = Vec::new();
    for interleave_kib in [256u64, 64] {
        for cache in [true, false] {
            for disks in [2, 4, 8] {
                for layout in layouts(disks) {
                    // A quick run changes one property at a time.
                    if quick && disks != 8 && (interleave_kib == 64 || !cache)
                        || quick && (interleave_kib == 64 && !cache || layout == Layout::DualParity)
                    {
                        continue;
                    }
                    all.push(Setup { layout, disks, cache, interleave_bytes: interleave_kib << 10 });
                }
            }
        }
    }
    all
}

fn plan(o: &Options) -> Plan {
    let second = 1_000_000_000;
    let file_bytes = ((32 << 30) / o.scale).max(64 << 20);
    let kib = |list: &[u32]| list.iter().map(|k| k << 10).collect();
    if o.quick {
        let measure_ns = if o.scale > 100 { second / 5 } else { 2 * second };
        let window = Window { warm_up_ns: measure_ns / 4, measure_ns };
        Plan { outstanding: vec![1, 8, 64], sweep: kib(&[4, 64, 512]), file_bytes, window }
    } else {
        let window = Window { warm_up_ns: second, measure_ns: 4 * second };
        let outstanding = vec![1, 3, 8, 16, 32, 64, 128, 256, 512];
        Plan { outstanding, sweep: kib(&[4, 8, 16, 32, 64, 128, 256, 512, 1024]), file_bytes, window }
    }
}

struct Run<'a> {
    plan: Plan,
    live: &'a Live,
    view: &'a mut View,
    outcome: &'a mut Outcome,
    began: Instant,
    limit: Duration,
    prefix: &'a str,
}

impl Run<'_> {
    fn measure(&mut self, world: &World, setup: Setup) -> Result<()> {
        let mut target = world.target();
        if setup.layout.parity() > 0 {
            // Blocks that were never written would not be read from disks.
            fill(&mut target, self.plan.file_bytes, &mut Content::plain(1), self.live)?;
        }
        let interleave = size(setup.interleave_bytes);
        for profile in Profile::standard() {
            world.drain_caches();
            let group = format!("{}{}, {}, {interleave} interleave", self.prefix, profile.name, setup.layout.name());
            for n in self.plan.outstanding.clone() {
                let point = self.point(&mut target, setup, &profile, n, &group, &setup.line())?;
                // Layouts are compared where the number of disks allows all of them.
                if setup.disks == 8 && setup.cache && setup.interleave_bytes == 256 << 10 {
                    let group = format!("{}{}: layouts on 8 disks", self.prefix, profile.name);
                    let config = setup.layout.name().to_string();
                    self.outcome.points.push(Point { group, config, ..point });
                }
            }
        }
        if setup.disks == 8 && setup.cache && setup.interleave_bytes == 256 << 10 {
            for block_bytes in self.plan.sweep.clone() {
                let name = "block sizes".to_string();
                let profile = Profile { name, access: Access::Random, read_percent: 67, block_bytes };
                let group =
                    format!("{}block sizes, random, 67/33, {SWEEP_OUTSTANDING} outstanding, 8 disks", self.prefix);
                self.point(&mut target, setup, &profile, SWEEP_OUTSTANDING, &group, setup.layout.name())?;
            }
        }
        Ok(())
    }

    fn point(
        &mut self,
        target: &mut BlockTarget,
        setup: Setup,
        profile: &Profile,
        outstanding: usize,
        group: &str,
        config: &str,
    ) -> Result<Point> {
        self.live.go_on()?;
        if self.began.elapsed() > self.limit {
            fail!("the time limit of {:?} is reached", self.limit);
        }
        self.view.tick(
            &format!("{}, {}, {}", setup.layout.name(), setup.line(), profile.name),
            self.live,
            self.began.elapsed(),
            self.limit,
        );
        let load = Load::of(profile, outstanding, self.plan.file_bytes);
        let measured = drive(target, &load, self.plan.window, &mut Content::plain(1), self.live);
        if let Some(problem) = measured.problem {
            fail!("{group}, {config}, {outstanding} outstanding: {problem}");
        }
        let point = Point {
            group: group.to_string(),
            config: config.to_string(),
            profile: profile.clone(),
            outstanding,
            rate: None,
            rounds: vec![measured.recorder.figures()],
            partial: false,
        };
        self.outcome.points.push(point.clone());
        Ok(point)
    }
}

/// Runs the experiment on models and, when `disks` are given, on real disks, whose contents are overwritten.
///
/// # Errors
/// A disk fails, or the load was stopped.
pub fn run(disks: &[PathBuf], o: &Options, live: &Live, view: &mut View, outcome: &mut Outcome) -> Result<()> {
    let plan = plan(o);
    outcome.set("file size", size(plan.file_bytes));
    outcome.set("disks of the model", "SAS, 10,000 rpm, 147 GB, 16 MiB cache; virtual time");
    outcome.configs.insert("cache on, cache off".into(), "the disks' own write cache".into());
    let mut r = Run { plan, live, view, outcome, began: Instant::now(), limit: o.limit, prefix: "" };
    let mut result = Ok(());
    for setup in setups(o.quick) {
        result = World::simulated(setup, r.plan.file_bytes).and_then(|world| r.measure(&world, setup));
        if result.is_err() {
            break;
        }
    }
    if result.is_ok() && !disks.is_empty() {
        result = real(disks, &mut r);
    }
    // The most important charts come first.
    outcome.points.sort_by_key(|p| !(p.group.contains(": layouts") || p.group.starts_with("block sizes")));
    let seen = Seen(outcome);
    let relations = disk_relations(&seen).into_iter().chain(parity_relations(&seen)).flatten().collect();
    outcome.relations = relations;
    outcome.verdict = verdict(outcome);
    result
}

fn real(disks: &[PathBuf], r: &mut Run<'_>) -> Result<()> {
    r.prefix = "real disks: ";
    let smallest = disks.iter().filter_map(|p| std::fs::metadata(p).ok()).map(|m| m.len()).filter(|l| *l > 0).min();
    for n in [2, 4, 8].into_iter().filter(|n| *n <= disks.len()) {
        for layout in layouts(n) {
            let setup = Setup { layout, disks: n, cache: true, interleave_bytes: 256 << 10 };
            // A quarter of the smallest disk fits every layout.
            r.plan.file_bytes = r.plan.file_bytes.min(smallest.unwrap_or(u64::MAX) / 4) >> 20 << 20;
            let world = World::real(disks, setup, r.plan.file_bytes)?;
            if layout.parity() == 0 {
                fill(&mut world.target(), r.plan.file_bytes, &mut Content::plain(1), r.live)?;
            }
            r.measure(&world, setup)?;
        }
    }
    Ok(())
}

/// Lines of charts between which relations are checked.
const ON2: &str = "2 disks, cache on";
const ON4: &str = "4 disks, cache on";
const ON8: &str = "8 disks, cache on";
const OFF8: &str = "8 disks, cache off";

/// A side of a ratio: profile, layout, line of the chart, and interleave in KiB.
type Side<'a> = (&'a str, &'a str, &'a str, u64);

/// A ratio with its name; `None` when one side was not measured.
type Named = (String, Option<f64>);

/// Looks up measured points.
struct Seen<'a>(&'a Outcome);

impl Seen<'_> {
    /// The geometric mean of `a` over `b` from 16 outstanding requests on: with fewer, some of eight disks are idle.
    fn ratio(&self, a: Side, b: Side, io: bool) -> Option<f64> {
        let find = |(profile, layout, line, kib): Side| {
            let group = format!("{profile}, {layout}, {kib} KiB interleave");
            let of = self.0.points.iter().filter(move |p| p.group == group && p.config == line && p.outstanding >= 16);
            of.map(|p| if io { p.of(|f| f.io_s) } else { p.of(|f| f.mb_s) }).collect::<Vec<f64>>()
        };
        let logs: Vec<f64> =
            find(a).iter().zip(&find(b)).map(|(a, b)| (a / b).ln()).filter(|v| v.is_finite()).collect();
        (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
    }

    /// Ratios of twice the disks, for the two layouts that exist on every number of disks.
    fn doubled(&self, profile: &str) -> Vec<Named> {
        let one = |layout: &str, (few, many, name): (&str, &str, &str)| {
            let r = self.ratio((profile, layout, many, 256), (profile, layout, few, 256), true);
            (format!("{layout} {name}"), r)
        };
        let steps = [(ON2, ON4, "2 to 4"), (ON4, ON8, "4 to 8")];
        ["simple", "mirror2"].iter().flat_map(|layout| steps.map(|s| one(layout, s))).collect()
    }

    /// Ratio of the disks' write cache on to off.
    fn cached(&self, profile: &str, layout: &str) -> Named {
        let r = self.ratio((profile, layout, ON8, 256), (profile, layout, OFF8, 256), true);
        (format!("{profile}, {layout}"), r)
    }

    /// Ratio of 64 KiB of interleave to 256 KiB.
    fn interleaved(&self, profile: &str, layout: &str) -> Named {
        let r = self.ratio((profile, layout, ON8, 64), (profile, layout, ON8, 256), false);
        (format!("{profile}, {layout}"), r)
    }

    /// Ratio of one layout to another.
    fn over(&self, profile: &str, a: &str, b: &str, line: &str) -> Named {
        let r = self.ratio((profile, a, line, 256), (profile, b, line, 256), true);
        (format!("{profile}, {a} over {b}"), r)
    }
}

/// Compares a published claim with the measured ratios; `None` when none was measured.
fn relation(claim: &str, seen: Vec<Named>, holds: impl Fn(f64) -> bool, why: &str) -> Option<Relation> {
    let known: Vec<(String, f64)> = seen.into_iter().filter_map(|(n, v)| Some((n, v?))).collect();
    (!known.is_empty()).then(|| Relation {
        claim: claim.to_string(),
        seen: known.iter().map(|(n, v)| format!("{n} {v:.2}x")).collect::<Vec<_>>().join(", "),
        holds: known.iter().all(|(_, v)| holds(*v)),
        explanation: why.to_string(),
    })
}

/// The published claims about the number of disks, caches and interleaves.
fn disk_relations(seen: &Seen) -> [Option<Relation>; 4] {
    let doubles = |v: f64| (1.2..=2.2).contains(&v);
    [
        relation(
            "Doubling the disks: sequential throughput up to 2x",
            seen.doubled("streaming"),
            doubles,
            "Streaming, 16 and more outstanding I/Os. With few in flight 64 KiB requests do not reach all disks at once.",
        ),
        relation(
            "Doubling the disks: random throughput 1.2x to 2.2x",
            [seen.doubled("database"), seen.doubled("file-server")].concat(),
            doubles,
            "Database and file server, 16 and more outstanding I/Os; with few in flight the disks do not all have work.",
        ),
        relation(
            "The disks' write cache shows at medium load",
            vec![
                seen.cached("database", "simple"),
                seen.cached("database", "mirror2"),
                seen.cached("file-copy", "simple"),
            ],
            |v| v > 1.02,
            "Cache on over cache off, 8 disks. Sequential writes at full depth keep the disks busy either way.",
        ),
        relation(
            "Interleave: 64 KiB was compared with 256 KiB; no figures were published",
            vec![
                seen.interleaved("streaming", "simple"),
                seen.interleaved("restore", "simple"),
                seen.interleaved("database", "simple"),
            ],
            |_| true,
            "64 KiB over 256 KiB, 8 disks, 16 and more outstanding I/Os: enough in flight for every disk either way.",
        ),
    ]
}

/// The published claims about parity.
fn parity_relations(seen: &Seen) -> [Option<Relation>; 2] {
    [
        relation(
            "Parity reads at no disadvantage",
            vec![seen.over("streaming", "parity", "simple", ON4)],
            |v| v >= 0.45,
            "4 disks: of parity's 3 columns 2 hold data, and the arms pass over the third: half of simple's 4 is what there is.",
        ),
        relation(
            "Parity writes far behind, because every write is journalled first",
            vec![
                seen.over("restore", "parity", "mirror2", ON8),
                seen.over("database", "parity", "mirror2", ON8),
                seen.over("file-copy", "parity", "mirror2", ON8),
            ],
            |v| v < 0.6,
            "Arden aims at the opposite: large writes as full stripes, small ones gathered. Where it is as published, the aim is not reached \
             on rotating disks: small writes fill the journal faster than stripes are rebuilt from it.",
        ),
    ]
}

/// The best figures of every layout as sentences.
fn verdict(outcome: &Outcome) -> Vec<String> {
    let best = |layout: &str, profile: &str, f: fn(&Point) -> f64| {
        let group = format!("{profile}: layouts on 8 disks");
        let of = outcome.points.iter().filter(|p| p.group == group && p.config == layout);
        of.map(f).fold(0.0, f64::max)
    };
    layouts(8)
        .iter()
        .map(|layout| layout.name())
        .filter(|layout| best(layout, "database", |p| p.of(|f| f.io_s)) > 0.0)
        .map(|layout| {
            format!(
                "{layout}, 8 disks: up to {} IO/s under the database profile, {} MB/s streaming, {} MB/s restoring.",
                short(best(layout, "database", |p| p.of(|f| f.io_s))),
                short(best(layout, "streaming", |p| p.of(|f| f.mb_s))),
                short(best(layout, "restore", |p| p.of(|f| f.mb_s)))
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_on_models_gives_the_same_figures_again() {
        let setup =
            Setup { layout: Layout::parse("mirror2").unwrap(), disks: 4, cache: true, interleave_bytes: 256 << 10 };
        let once = || {
            let world = World::simulated(setup, 256 << 20).unwrap();
            let profile = Profile::named("database").unwrap();
            let load = Load::of(&profile, 8, 256 << 20);
            let window = Window { warm_up_ns: 0, measure_ns: 500_000_000 };
            let m = drive(&mut world.target(), &load, window, &mut Content::plain(1), &Live::default());
            assert_eq!(m.problem, None);
            m.recorder.figures()
        };
        let first = once();
        assert!(first.io_s > 50.0, "{first:?}");
        assert_eq!(first, once());
    }

    #[test]
    fn quick_setups_change_one_thing_at_a_time() {
        assert_eq!(setups(false).len(), 4 * 10);
        let quick = setups(true);
        assert!(
            quick.len() < 20 && quick.iter().any(|s| !s.cache) && quick.iter().any(|s| s.interleave_bytes == 64 << 10)
        );
    }
}
