//! Integrity of files and trees: how reads are checked against checksums, shown and set by path from the volume's root.

use arden_admin::{
    AdminError, ErrorKind,
    error::Result,
    volume::{IntegrityInfo, IntegrityState, NewIntegrity},
};
use arden_block::BLOCK_BYTES;
use arden_store::{
    error::NotDone,
    name::NtPath,
    store::{FileStore, Integrity, Lookup, NodeRef},
};
use arden_volume::{Durability, VolumeStore};

use super::Volumes;

/// Told with each answer: every block of a volume has such a sum.
const CHECKSUM: &str = "xxh3-64";

fn state(of: Integrity) -> IntegrityState {
    match of {
        Integrity::Unset => IntegrityState::Default,
        Integrity::On => IntegrityState::On,
        Integrity::Unenforced => IntegrityState::Unenforced,
        Integrity::Off => IntegrityState::Off,
    }
}

fn integrity(of: IntegrityState) -> Integrity {
    match of {
        IntegrityState::Default => Integrity::Unset,
        IntegrityState::On => Integrity::On,
        IntegrityState::Unenforced => Integrity::Unenforced,
        IntegrityState::Off => Integrity::Off,
    }
}

fn info(path: String, of: Integrity, changed: u64) -> IntegrityInfo {
    let (checksum, block_bytes) = (CHECKSUM.into(), BLOCK_BYTES as u32);
    IntegrityInfo { path, state: state(of), checksum, block_bytes, changed }
}

pub(super) fn failed(path: &str, e: NotDone) -> AdminError {
    AdminError::failed(format!("{path:?}: {e}"), "`arden volume check` looks for damage")
}

/// Named streams, with their names.
pub(super) fn streams(node: &NodeRef, path: &str) -> Result<Vec<(String, NodeRef)>> {
    let mut out = Vec::new();
    for s in node.streams().map_err(|e| failed(path, e))?.into_iter().filter(|s| !s.name.is_empty()) {
        // One that was deleted meanwhile has nothing to be told or set.
        if let Some(stream) = node.named_stream(&s.name).map_err(|e| failed(path, e))? {
            out.push((format!("{path}:{}", s.name), stream));
        }
    }
    Ok(out)
}

/// A tree that is set, one directory after the other; a path is a stack of directories that are still to be gone through.
struct Setting {
    to: Integrity,
    changed: u64,
}

impl Setting {
    fn set(&mut self, node: &NodeRef, path: &str) -> Result<()> {
        let all = std::iter::once((path.to_owned(), node.clone())).chain(streams(node, path)?);
        for (path, node) in all {
            if node.integrity().map_err(|e| failed(&path, e))? != self.to {
                node.set_integrity(None, self.to).map_err(|e| failed(&path, e))?;
                self.changed += 1;
            }
        }
        Ok(())
    }

    /// What is created below meanwhile has what its directory has, which is set before the directory is listed.
    fn set_below(&mut self, store: &dyn FileStore, root: &NodeRef, path: &str) -> Result<()> {
        let mut left = vec![(path.to_owned(), root.clone())];
        while let Some((path, directory)) = left.pop() {
            let mut cursor = directory.list().map_err(|e| failed(&path, e))?;
            while let Some(entry) = cursor.peek(&|_| true).map_err(|e| failed(&path, e))? {
                cursor.advance();
                let below = if path.is_empty() { entry.name.clone() } else { format!("{path}/{}", entry.name) };
                let Some(node) = find(store, &below)? else { continue };
                self.set(&node, &below)?;
                if node.is_directory() && entry.stat.reparse_tag == 0 {
                    left.push((below, node));
                }
            }
        }
        Ok(())
    }
}

/// `None` where nothing has this name.
fn find(store: &dyn FileStore, path: &str) -> Result<Option<NodeRef>> {
    let Ok(parsed) = NtPath::parse(&path.trim_matches('/').replace('/', "\\")) else { return Ok(None) };
    match store.lookup(&parsed) {
        Ok(Lookup::Found(node)) => Ok(Some(node)),
        _ => Ok(None),
    }
}

pub(super) fn found(store: &dyn FileStore, path: &str) -> Result<NodeRef> {
    let missing = || {
        let text = format!("{path:?} is no file or directory of the volume");
        AdminError::new(ErrorKind::NotFound, text, "paths begin at the volume's root, not at a share's")
    };
    find(store, path)?.ok_or_else(missing)
}

impl Volumes {
    pub(super) fn show_integrity(&self, name: &str, path: &str) -> Result<Vec<IntegrityInfo>> {
        let (volume, _) = Volumes::volume(self, name)?;
        let store = VolumeStore::new(volume, Durability::Plain);
        let node = found(&*store, path)?;
        let path = path.trim_matches('/');
        let all = std::iter::once((path.to_owned(), node.clone())).chain(streams(&node, path)?);
        all.map(|(path, node)| {
            let of = node.integrity().map_err(|e| failed(&path, e))?;
            Ok(info(path, of, 0))
        })
        .collect()
    }

    pub(super) fn change_integrity(&self, name: &str, new: &NewIntegrity) -> Result<IntegrityInfo> {
        let (volume, _) = Volumes::volume(self, name)?;
        let store = VolumeStore::new(volume.clone(), Durability::Plain);
        let node = found(&*store, &new.path)?;
        if new.recursive && !node.is_directory() {
            return Err(AdminError::invalid(
                format!("{:?} is no directory", new.path),
                "leave --recursive away for a file; its streams are set with it",
            ));
        }
        let path = new.path.trim_matches('/');
        let mut setting = Setting { to: integrity(new.state), changed: 0 };
        setting.set(&node, path)?;
        if new.recursive {
            setting.set_below(&*store, &node, path)?;
        }
        volume.sync().map_err(|e| super::refusal(name, e))?;
        Ok(info(path.to_owned(), setting.to, setting.changed))
    }
}
