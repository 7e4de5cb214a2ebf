//! `arden lab`: its grammar (`args`), and the implementation of each verb.

pub mod args;
mod experiment;
mod keep;
mod load;
mod password;
mod report;

use arden_measure::{
    Result,
    outcome::{Outcome, compare},
};

use self::args::Verb;
use crate::targets::daemon::Home;

/// Runs a verb. `json`: the result is written to standard output as JSON. `home`: the daemon of `space:` and `volume:`
/// targets.
///
/// # Errors
/// Invalid arguments, or a problem that ended the measurement; the result until then is stored.
pub fn run(verb: &Verb, home: &Home, json: bool) -> Result<()> {
    match verb {
        Verb::Run(args) => load::load(args, home, json),
        Verb::Experiment(args) => experiment::run(args, json),
        Verb::Advise(args) => experiment::advise(args, json),
        Verb::Report(args) => report::report(args),
        Verb::Compare { a, b } => {
            let lines = compare::compare(&Outcome::load(a)?, &Outcome::load(b)?)?;
            if json {
                println!("{}", serde_json::to_string_pretty(&lines).unwrap_or_default());
            } else {
                print!("{}", compare::text(&lines));
            }
            Ok(())
        }
    }
}
