//! Log lines on standard error, filtered by level and part. No regular expressions: the filter's memory
//! counts in a daemon that is meant to be small.

use std::io::IsTerminal;

use arden_admin::{AdminError, error::Result};
use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

pub fn init(spec: &str) -> Result<()> {
    let targets: Targets = spec.parse().map_err(|e| {
        AdminError::invalid(
            format!("--log {spec:?}: {e}"),
            "use error, warn, info, debug or trace, or info,arden_smb=debug",
        )
    })?;
    let stderr = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(stderr);
    let _ = tracing_subscriber::registry().with(lines).with(targets).try_init();
    Ok(())
}
