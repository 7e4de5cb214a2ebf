//! `arden lab run`: profiles on a target at each number of outstanding requests.

use std::{path::Path, time::Duration};

use arden_measure::{
    Context, Result,
    base::units::size,
    fail,
    load::{Access, Live, Load, Profile, Window},
    outcome::{Outcome, Point},
    source::{Need, share::Wire},
    sweep::{self, Clients, TimedLoad, view::View},
};

use crate::targets::{self, daemon::Home};

/// The run that the arguments describe.
#[derive(Debug, Clone)]
pub struct Plan {
    pub target: String,
    /// The name of the target in results.
    pub name: Option<String>,
    pub profiles: Vec<Profile>,
    pub outstanding: Vec<usize>,
    pub rate: Option<f64>,
    pub write_through: bool,
    pub file_bytes: Option<u64>,
    pub warm_up: Duration,
    pub duration: Duration,
    pub rounds: usize,
    pub clients: usize,
    pub verify: bool,
    pub force: bool,
    pub wire: Wire,
    /// The daemon of `space:` and `volume:` targets.
    pub home: Home,
}

fn settings(outcome: &mut Outcome, plan: &Plan) {
    outcome.set("target", &plan.target);
    outcome.set("warm-up", format!("{:?}", plan.warm_up));
    outcome.set("duration", format!("{:?}", plan.duration));
    outcome.set("rounds", plan.rounds);
    outcome.set("clients", plan.clients);
    outcome.set("write-through", plan.write_through);
    outcome.set("verify", plan.verify);
    if plan.target.starts_with("smb://") || plan.target.starts_with("volume:") {
        outcome.set("channels", plan.wire.channels);
        outcome.set("protection", format!("{:?}", plan.wire.protection));
    }
    if let Some(rate) = plan.rate {
        outcome.set("rate", format!("{rate} IO/s, latency from when a request was due"));
    }
}

/// Runs a plan. A problem ends it; the outcome holds the points until then and the problem.
pub fn run(plan: &Plan, live: &Live, view: &mut View) -> Outcome {
    let mut outcome = Outcome::begin("run", &format!("Load on {}", plan.name.as_ref().unwrap_or(&plan.target)));
    settings(&mut outcome, plan);
    let began = std::time::Instant::now();
    let result = measure(plan, live, view, &mut outcome);
    view.clear();
    outcome.took_s = began.elapsed().as_secs_f64();
    outcome.complete = result.is_ok();
    outcome.problem = result.err().map(|e| e.to_string());
    outcome
}

fn measure(plan: &Plan, live: &Live, view: &mut View, outcome: &mut Outcome) -> Result<()> {
    let writes = plan.profiles.iter().any(|p| p.read_percent < 100);
    let verify = plan.verify.then_some(0x00C0_FFEE);
    let mut source = targets::parse(&plan.target, &plan.wire, &plan.home)?;
    let need = Need { writes, force: plan.force, verify, file_bytes: plan.file_bytes };
    view.say("making and filling the test file");
    let result = source.prepare(&need, live).and_then(|prepared| {
        outcome.set("file size", size(prepared.file_bytes));
        let mut steps = Vec::new();
        for _ in 0..plan.rounds.max(1) {
            for profile in &plan.profiles {
                for n in &plan.outstanding {
                    steps.push(TimedLoad {
                        title: format!("{}, {n} outstanding", profile.name),
                        load: Load {
                            rate: plan.rate,
                            durable: plan.write_through,
                            ..Load::of(profile, *n, prepared.file_bytes)
                        },
                        window: Window {
                            warm_up_ns: plan.warm_up.as_nanos() as u64,
                            measure_ns: plan.duration.as_nanos() as u64,
                        },
                    });
                }
            }
        }
        let how = Clients { count: plan.clients, writes, write_through: plan.write_through, verify };
        let config = plan.name.clone().unwrap_or_else(|| source.name());
        let each_round = plan.profiles.len() * plan.outstanding.len();
        sweep::run(source.as_ref(), how, prepared, &steps, live, view, |i, figures, problem| {
            let at = i % each_round;
            let profile = &plan.profiles[at / plan.outstanding.len()];
            let outstanding = plan.outstanding[at % plan.outstanding.len()];
            // A problem before the first answer leaves no point.
            if problem.is_some() && figures.reads + figures.writes == 0 {
                return Ok(());
            }
            if i < each_round {
                outcome.points.push(Point {
                    group: profile.name.clone(),
                    config: config.clone(),
                    profile: profile.clone(),
                    outstanding,
                    rate: plan.rate,
                    rounds: Vec::new(),
                    partial: false,
                });
            }
            if let Some(point) = outcome.points.get_mut(at) {
                point.rounds.push(figures);
                point.partial |= problem.is_some();
            }
            Ok(())
        })
    });
    let removed = source.remove();
    result?;
    if let Err(e) = removed {
        outcome.notes.push(format!("The test file could not be removed: {e}"));
    }
    Ok(())
}

/// Changes a profile as the command line says.
///
/// # Errors
/// The block size is not from 512 bytes to 16 MiB.
pub fn adapt(mut profile: Profile, block: Option<u64>, read: Option<u8>, access: Option<Access>) -> Result<Profile> {
    if let Some(bytes) = block {
        if !(512..=16 << 20).contains(&bytes) {
            fail!("blocks are from 512 bytes to 16 MiB");
        }
        profile.block_bytes = bytes as u32;
    }
    profile.read_percent = read.unwrap_or(profile.read_percent);
    profile.access = access.unwrap_or(profile.access);
    Ok(profile)
}

/// Profiles by name: standard ones, `all` of them, or those of a file.
///
/// # Errors
/// The file cannot be read, or a name is unknown.
pub fn profiles(names: &[String], file: Option<&Path>) -> Result<Vec<Profile>> {
    let mut known = Profile::standard();
    if let Some(path) = file {
        let text = std::fs::read_to_string(path).context(path.display())?;
        let own = Profile::parse(&text).context(path.display())?;
        known.retain(|p| own.iter().all(|o| o.name != p.name));
        known.extend(own);
    }
    let mut chosen = Vec::new();
    for name in names {
        match known.iter().find(|p| p.name == *name) {
            Some(p) => chosen.push(p.clone()),
            None if name == "all" => chosen.extend(known.iter().cloned()),
            None => {
                let names: Vec<&str> = known.iter().map(|p| p.name.as_str()).collect();
                fail!("there is no profile {name}; known are {} and all", names.join(", "))
            }
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use arden_measure::{client::Protection, page::text::figures};

    use super::*;

    #[test]
    fn profiles_by_name() {
        assert_eq!(profiles(&["all".into()], None).unwrap().len(), 5);
        assert!(profiles(&["x".into()], None).unwrap_err().to_string().contains("database"));
    }

    #[test]
    fn a_plan_runs_verified_and_cleans_up() {
        let dir = std::env::temp_dir().join(format!("arden-lab-run-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let plan = Plan {
            target: dir.display().to_string(),
            name: Some("here".into()),
            profiles: profiles(&["database".into(), "streaming".into()], None).unwrap(),
            outstanding: vec![1, 4],
            rate: None,
            write_through: false,
            file_bytes: Some(4 << 20),
            warm_up: Duration::ZERO,
            duration: Duration::from_millis(150),
            rounds: 2,
            clients: 1,
            verify: true,
            force: false,
            wire: Wire { protection: Protection::Plain, channels: 1, password: None },
            home: Home::default(),
        };
        let outcome = run(&plan, &Live::default(), &mut View::quiet());
        assert_eq!(outcome.problem, None);
        assert_eq!(outcome.points.len(), 4);
        let first = &outcome.points[0];
        assert_eq!((first.group.as_str(), first.outstanding, first.rounds.len()), ("database", 1, 2));
        assert!(first.rounds.iter().all(|f| f.io_s > 0.0 && f.verified > 0 && f.client_cpu_us.is_some()));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        assert!(figures(&outcome).contains("streaming"));

        let stopped = Live::default();
        stopped.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let outcome = run(&plan, &stopped, &mut View::quiet());
        assert!(!outcome.complete && outcome.problem.unwrap().contains("stopped"));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
