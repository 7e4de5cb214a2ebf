//! `arden volume ls`, `get` and `put`: files of a volume that no daemon has open are listed and copied.

use std::{
    io::{Read, Write},
    path::Path,
};

use arden_admin::{AdminError, error::Result};
use arden_host::Offline;

use crate::commands::Out;

const COPY_BYTES: usize = 1 << 20;

/// Lists a directory of a volume.
///
/// # Errors
/// The errors of `arden_host::Offline`.
pub fn list(out: &Out, volume: &Path, path: &str) -> Result<()> {
    let entries = Offline::with(&out.state, volume, |v| v.find(path)?.entries())?;
    out.show(&entries, |entries| {
        let line = |e: &arden_host::Entry| {
            let mark = if e.directory { "/" } else { "" };
            format!("{:>14}  {}{mark}\n", e.size_bytes, e.name)
        };
        entries.iter().map(line).collect()
    });
    Ok(())
}

/// Copies a file out of a volume.
///
/// # Errors
/// The errors of `arden_host::Offline`, and of the local file.
pub fn get(out: &Out, volume: &Path, path: &str, to: &Path) -> Result<()> {
    Offline::with(&out.state, volume, |v| {
        let file = v.find(path)?;
        let failed = |e: std::io::Error| AdminError::failed(format!("{}: {e}", to.display()), "");
        let mut target = std::fs::File::create(to).map_err(failed)?;
        let (mut buf, mut at) = (vec![0; COPY_BYTES], 0);
        loop {
            let n = file.read_at(at, &mut buf)?;
            if n == 0 {
                return target.sync_all().map_err(failed);
            }
            target.write_all(&buf[..n]).map_err(failed)?;
            at += n as u64;
        }
    })
}

/// Copies a file into a volume.
///
/// # Errors
/// The errors of `arden_host::Offline`, and of the local file.
pub fn put(out: &Out, volume: &Path, from: &Path, path: &str) -> Result<()> {
    let failed = |e: std::io::Error| AdminError::failed(format!("{}: {e}", from.display()), "");
    let mut source = std::fs::File::open(from).map_err(failed)?;
    Offline::with(&out.state, volume, |v| {
        let file = v.create(path)?;
        let (mut buf, mut at) = (vec![0; COPY_BYTES], 0);
        loop {
            let n = source.read(&mut buf).map_err(failed)?;
            if n == 0 {
                return Ok(());
            }
            file.write_at(at, &buf[..n])?;
            at += n as u64;
        }
    })
}
