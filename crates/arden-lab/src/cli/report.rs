//! `arden lab report`: pages, tables and texts of stored results.

use std::path::PathBuf;

use arden_measure::{
    Context, Result,
    outcome::Outcome,
    page::{self, csv, text},
};

use super::args::ReportArgs;

/// Writes the requested pages, or prints the results.
///
/// # Errors
/// A result cannot be read, or a page cannot be written.
pub fn report(args: &ReportArgs) -> Result<()> {
    let outcomes = args.results.iter().map(|p| Outcome::load(p)).collect::<Result<Vec<Outcome>>>()?;
    let write = |path: &PathBuf, text: String| std::fs::write(path, text).context(path.display());
    if let Some(path) = &args.html {
        write(path, page::page(&outcomes))?;
    }
    if let Some(path) = &args.csv {
        write(path, csv::csv(&outcomes))?;
    }
    if args.html.is_none() && args.csv.is_none() {
        for outcome in &outcomes {
            println!("{}, {}", outcome.title, outcome.began);
            print!("{}", text::text(outcome));
        }
    }
    Ok(())
}
