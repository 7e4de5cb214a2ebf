//! `arden volume integrity`: how reads of a file, a directory or a tree are checked, shown and set.

use arden_admin::{
    error::Result,
    volume::{IntegrityInfo, IntegrityQuery, IntegrityState, NewIntegrity},
};
use clap::ValueEnum;

use crate::{commands::Out, table::Table};

/// What `--set` takes.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum State {
    /// Damaged data cannot be read; clients are not told
    Default,
    /// Damaged data cannot be read; clients see FILE_ATTRIBUTE_INTEGRITY_STREAM
    On,
    /// As `on`, but damaged data reads as what is there
    Unenforced,
    /// Damaged data reads as what is there
    Off,
}

impl State {
    fn wire(self) -> IntegrityState {
        match self {
            State::Default => IntegrityState::Default,
            State::On => IntegrityState::On,
            State::Unenforced => IntegrityState::Unenforced,
            State::Off => IntegrityState::Off,
        }
    }
}

fn word(of: IntegrityState) -> &'static str {
    match of {
        IntegrityState::Default => "default",
        IntegrityState::On => "on",
        IntegrityState::Unenforced => "unenforced",
        IntegrityState::Off => "off",
    }
}

/// Shows how `path` of the volume at the API's path `at` is checked, or sets it.
///
/// # Errors
/// The error of the API, or `NotRunning` when no daemon listens.
pub fn run(out: &Out, at: &str, path: String, set: Option<State>, recursive: bool) -> Result<()> {
    let at = format!("{at}/integrity");
    let Some(state) = set else {
        let all: Vec<IntegrityInfo> = out.client.post(&format!("{at}/look"), &IntegrityQuery { path })?;
        out.show(&all, |all| table(all));
        return Ok(());
    };
    let info: IntegrityInfo = out.client.put_body(&at, &NewIntegrity { path, state: state.wire(), recursive })?;
    out.show(&info, |i| format!("/{}: {} ({} changed)\n", i.path, word(i.state), i.changed));
    Ok(())
}

fn table(all: &[IntegrityInfo]) -> String {
    let mut t = Table::new(&["PATH", "INTEGRITY", "CHECKSUM", "BLOCK"]);
    for i in all {
        let path = format!("/{}", i.path);
        t.row([path, word(i.state).into(), i.checksum.clone(), i.block_bytes.to_string()]);
    }
    t.text("nothing there")
}
