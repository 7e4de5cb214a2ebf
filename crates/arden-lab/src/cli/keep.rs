//! Storing and showing the result of a verb.

use std::path::PathBuf;

use arden_measure::{Result, fail, outcome::Outcome};

use super::args::OutArgs;

/// Stores a result, shows it, and reports its problem.
///
/// # Errors
/// Nothing was measured, the file cannot be written, or the measurement ended early.
pub fn finish(outcome: &Outcome, out: &OutArgs, json: bool, text: &str) -> Result<()> {
    let nothing = outcome.points.is_empty() && outcome.ratios.is_empty();
    if let (Some(problem), true) = (&outcome.problem, nothing) {
        fail!("{problem}");
    }
    let path = out.out.clone().unwrap_or_else(|| default_file(&outcome.kind, &outcome.began));
    outcome.save(&path)?;
    if json {
        println!("{}", serde_json::to_string_pretty(outcome).unwrap_or_default());
    } else {
        print!("{text}");
        println!("\nkept in {0}; a page of it: arden lab report {0} --html FILE", path.display());
    }
    match &outcome.problem {
        Some(problem) => fail!("{problem}; what was measured before is kept in {}, marked as partial", path.display()),
        None => Ok(()),
    }
}

/// The default file of a result.
fn default_file(kind: &str, began: &str) -> PathBuf {
    let when: String = began.chars().filter(char::is_ascii_digit).take(14).collect();
    PathBuf::from(format!("arden-lab-{kind}-{when}.json"))
}
