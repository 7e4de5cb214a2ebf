//! Small files of the state directory, which only its owner can read.

use std::{io::Write, os::unix::fs::OpenOptionsExt, path::Path};

use arden_admin::{AdminError, error::Result};

/// Replaces the file as a whole; a crash leaves the old one or the new one.
///
/// # Errors
/// Failed, with the system's error.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |e: std::io::Error| AdminError::failed(format!("{}: {e}", path.display()), "check the disk");
    let new = path.with_extension("new");
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new).map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed)?;
    std::fs::rename(&new, path).map_err(failed)?;
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::File::open(dir).and_then(|d| d.sync_all()).map_err(failed)
}
