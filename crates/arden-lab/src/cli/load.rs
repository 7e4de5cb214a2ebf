//! `arden lab run`: turns the arguments into a plan and runs it.

use std::sync::Arc;

use arden_measure::{
    Result,
    base::units,
    fail,
    load::{Access, Live},
    page::text::figures,
    sweep::view::View,
};

use super::{args::RunArgs, keep::finish};
use crate::{
    experiment::run::{self, Plan},
    local::signals::stop_on_signal,
    targets::daemon::Home,
};

fn plan(args: &RunArgs, home: &Home) -> Result<Plan> {
    let access = match (args.random, args.sequential) {
        (true, _) => Some(Access::Random),
        (_, true) => Some(Access::Sequential),
        _ => None,
    };
    let block = args.block.as_deref().map(units::bytes).transpose()?;
    let chosen = run::profiles(&args.profiles, args.profiles_from.as_deref())?;
    let profiles: Result<Vec<_>> = chosen.into_iter().map(|p| run::adapt(p, block, args.read, access)).collect();
    let mut outstanding = units::outstanding(&args.outstanding)?;
    if let Some(rate) = args.rate {
        if !(rate > 0.0 && rate <= 1e8) {
            fail!("--rate is a number of requests a second");
        }
        // The number in flight of the open loop follows from the target; the largest count limits it.
        outstanding = vec![outstanding.into_iter().max().unwrap_or(1)];
    }
    let duration = units::duration(&args.duration)?;
    if duration.is_zero() {
        fail!("--duration is too short");
    }
    Ok(Plan {
        target: args.target.clone(),
        name: args.name.clone(),
        profiles: profiles?,
        outstanding,
        rate: args.rate,
        write_through: args.write_through,
        file_bytes: args.file_size.as_deref().map(units::bytes).transpose()?,
        warm_up: units::duration(&args.warm_up)?,
        duration,
        rounds: args.rounds as usize,
        clients: args.wire.clients as usize,
        verify: args.verify,
        force: args.force,
        wire: args.wire.wire(&args.target)?,
        home: home.clone(),
    })
}

/// Runs profiles on a target and stores the result.
///
/// # Errors
/// Invalid arguments, or as [`finish`].
pub fn load(args: &RunArgs, home: &Home, json: bool) -> Result<()> {
    let plan = plan(args, home)?;
    let live = Arc::new(Live::default());
    stop_on_signal(&live);
    let outcome = run::run(&plan, &live, &mut View::default());
    finish(&outcome, &args.out, json, &figures(&outcome))
}
