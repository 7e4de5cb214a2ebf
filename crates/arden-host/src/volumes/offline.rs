//! Reaching into a volume while no daemon has it: on a file or block device by its path, or by the name that the state
//! directory knows, on a space too. The lock of the state directory keeps a daemon from opening it meanwhile.

use std::{fmt::Display, path::Path, sync::Arc};

use arden_admin::{AdminError, ErrorKind, State, StateDirectory, error::Result};
use arden_store::{
    name::NtPath,
    store::{FileStore, Lookup, NewFile, NodeRef, Wait},
};
use arden_volume::{Durability, FileDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::access::ATTR_ARCHIVE;
use serde::Serialize;

use super::{Volumes, no_file, refusal};
use crate::{
    pools::{Pools, adopt_old_list},
    sharing::NothingShared,
};

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    pub directory: bool,
    pub name: String,
    pub size_bytes: u64,
}

/// A volume for the time of one command.
pub struct Offline {
    name: String,
    store: Arc<VolumeStore>,
    /// None when it was opened by its path.
    known: Option<(Arc<Volumes>, Arc<Pools>)>,
}

/// A file of an [`Offline`] volume.
pub struct File {
    node: NodeRef,
    path: String,
}

fn failed<E: Display>(path: &str) -> impl Fn(E) -> AdminError + '_ {
    move |e| AdminError::failed(format!("{path}: {e}"), "")
}

impl Offline {
    /// Opens `volume`: a path, or a single component that is no file and that the state in `state_dir` knows.
    ///
    /// # Errors
    /// Conflict when a daemon uses the state or the device; those of opening a volume.
    fn open(state_dir: &Path, volume: &Path) -> Result<Offline> {
        let name = volume.display().to_string();
        let is_name = volume.components().count() == 1 && !volume.exists() && state_dir.join("state.redb").exists();
        if !is_name {
            let device = FileDevice::open(volume, true).map_err(|e| no_file(volume, e))?;
            let options = VolumeOptions { background: false, ..VolumeOptions::default() };
            let opened = Volume::open(Arc::new(device), options).map_err(|e| refusal(&name, e))?;
            return Ok(Offline { name, store: VolumeStore::new(opened, Durability::Plain), known: None });
        }
        let state = Arc::new(State::open(&Arc::new(StateDirectory::open(state_dir)?))?);
        adopt_old_list(&state, state_dir)?;
        let pools = Pools::start(&state, Arc::new(NothingShared))?;
        let volumes = Volumes::new(&state, &pools);
        match volumes.volume(&name) {
            Ok((opened, _)) => {
                let store = VolumeStore::new(opened, Durability::Plain);
                Ok(Offline { name, store, known: Some((volumes, pools)) })
            }
            Err(e) => {
                pools.stop();
                Err(e)
            }
        }
    }

    /// Runs `work` on the volume; it is closed also when that fails, and then what was done is on the device.
    ///
    /// # Errors
    /// Those of opening, of `work`, and of closing; the first one counts.
    pub fn with<T>(state_dir: &Path, volume: &Path, work: impl FnOnce(&Offline) -> Result<T>) -> Result<T> {
        let opened = Offline::open(state_dir, volume)?;
        let done = work(&opened);
        let closed = opened.close();
        let done = done?;
        closed.map(|()| done)
    }

    fn close(&self) -> Result<()> {
        match &self.known {
            None => self.store.volume_handle().close().map_err(|e| refusal(&self.name, e)),
            Some((volumes, pools)) => {
                volumes.stop();
                pools.stop();
                Ok(())
            }
        }
    }

    /// The file or directory at `path`, from the volume's root.
    ///
    /// # Errors
    /// Not found.
    pub fn find(&self, path: &str) -> Result<File> {
        let parsed = NtPath::parse(path.trim_start_matches('/')).map_err(failed(path))?;
        match self.store.lookup(&parsed).map_err(failed(path))? {
            Lookup::Found(node) => Ok(File { node, path: path.to_string() }),
            _ => Err(AdminError::new(ErrorKind::NotFound, format!("there is no {path:?}"), "")),
        }
    }

    /// The file at `path`, made or emptied.
    ///
    /// # Errors
    /// Not found, when the directory does not exist.
    pub fn create(&self, path: &str) -> Result<File> {
        let parsed = NtPath::parse(path.trim_start_matches('/')).map_err(failed(path))?;
        let node = match self.store.lookup(&parsed).map_err(failed(path))? {
            Lookup::Found(node) => {
                node.set_end_of_file(None, 0).map_err(failed(path))?;
                node
            }
            Lookup::Missing { parent, base: None } => {
                let name = parsed.components.last().cloned().unwrap_or_default();
                let new =
                    NewFile { directory: false, attributes: ATTR_ARCHIVE, security: None, eas: &[], allocation: None };
                parent.create_child(None, &name, &new).map_err(failed(path))?
            }
            _ => return Err(AdminError::new(ErrorKind::NotFound, format!("{path:?} cannot be made"), "")),
        };
        Ok(File { node, path: path.to_string() })
    }
}

impl File {
    /// The entries of a directory.
    ///
    /// # Errors
    /// Failed, when it is not a directory or cannot be read.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut cursor = self.node.list().map_err(failed(&self.path))?;
        let mut entries = Vec::new();
        while let Some(e) = cursor.peek(&|_| true).map_err(failed(&self.path))? {
            let (directory, size_bytes) = (e.stat.directory, e.stat.end_of_file);
            entries.push(Entry { directory, name: e.name.clone(), size_bytes });
            cursor.advance();
        }
        Ok(entries)
    }

    /// Reads from the byte `at` on; 0 at the end of the file.
    ///
    /// # Errors
    /// Failed, when the data cannot be read.
    pub fn read_at(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        self.node.read_at(at, buf, Wait::Yes).map_err(failed(&self.path))
    }

    /// # Errors
    /// Failed, when there is no room.
    pub fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        self.node.write_at(None, at, data, Wait::Yes).map_err(failed(&self.path))
    }
}
