//! `arden volume integrity`: shows or sets how reads of a file, a directory or a tree check checksums.

use arden_admin::{
    error::Result,
    volume::{IntegrityInfo, IntegrityQuery, IntegrityState, NewIntegrity},
};
use clap::ValueEnum;

use crate::{commands::Out, table::Table};

/// The values of `--set`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum State {
    /// Reads of damaged data fail; clients do not see the state
    Default,
    /// Reads of damaged data fail; clients see FILE_ATTRIBUTE_INTEGRITY_STREAM
    On,
    /// As `on`, but reads of damaged data return it as it is
    Unenforced,
    /// Reads of damaged data return it as it is
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

/// Shows or sets the integrity of `path` of the volume whose path in the API is `at`.
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
