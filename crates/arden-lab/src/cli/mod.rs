//! `arden lab`: its grammar (`args`), and what each verb does with it.

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

/// Does what a verb says. `json`: the result goes to standard output as JSON. `home`: the daemon that `space:` and `volume:`
/// targets belong to.
///
/// # Errors
/// What was wrong with the arguments, or ended the measurement; what was measured until then is kept.
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
