//! The state directory of one daemon. Only its owner has access, and a daemon locks it. Other modules keep their own
//! files in it beside the state.

use std::{
    fs::File,
    io::{Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use crate::error::{AdminError, ErrorKind, Result};

/// The state directory. Dropping the value releases its lock.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    _lock: File,
}

impl StateDirectory {
    /// Opens the directory, makes it when it does not exist, and takes its lock.
    ///
    /// # Errors
    /// Conflict, when another process has the lock; failed, when the directory cannot be made.
    pub fn open(path: &Path) -> Result<StateDirectory> {
        let io = |e: std::io::Error| {
            let hint = "check the path and its permissions, or choose another directory with --state";
            AdminError::failed(format!("state directory {}: {e}", path.display()), hint)
        };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).map_err(io)?;
        let lock = take_lock(path)?;
        Ok(StateDirectory { path: path.to_path_buf(), _lock: lock })
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The Unix socket of the REST API.
    pub fn socket(&self) -> PathBuf {
        socket_path(&self.path)
    }

    /// The file of [`RedbStore`](super::RedbStore).
    pub fn state_file(&self) -> PathBuf {
        self.path.join("state.redb")
    }
}

/// The Unix socket of the REST API in a state directory.
pub fn socket_path(dir: &Path) -> PathBuf {
    dir.join("api.sock")
}

fn take_lock(dir: &Path) -> Result<File> {
    let path = dir.join("lock");
    let failed = |e: std::io::Error| AdminError::failed(format!("{}: {e}", path.display()), "");
    let mut file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    let how = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    if let Err(e) = rustix::fs::flock(&file, how) {
        if e != rustix::io::Errno::WOULDBLOCK {
            return Err(failed(e.into()));
        }
        let mut pid = String::new();
        file.read_to_string(&mut pid).map_err(failed)?;
        return Err(AdminError::new(
            ErrorKind::Conflict,
            format!("another daemon (process {}) uses the state directory {}", pid.trim(), dir.display()),
            "stop it first, or give this one its own directory with --state",
        ));
    }
    file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
    writeln!(file, "{}", std::process::id()).map_err(failed)?;
    Ok(file)
}
