//! Whether etcd is still the one that this node joined, and not older than what the node has seen of it; and whether this node is still
//! one of the cluster. Keeps the newest revision in the state directory, because a restart must not forget it.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use arden_admin::{AdminError, ErrorKind, error::Result};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    etcd::{Etcd, Found, If, Then},
    files,
    keys::{Names, NodeValue},
};

/// The newest revision is written when it has risen by so much, beside at every change of an ownership.
const WRITTEN_EVERY: u64 = 1000;

/// What this node knows of its etcd.
#[derive(Debug)]
pub struct Trust {
    names: Names,
    /// The value of the key `cluster`.
    cluster: Vec<u8>,
    /// The key of this node's entry, and its value when the node started. None: nobody acts as a node.
    entry: OnceLock<(String, Vec<u8>)>,
    /// It was read that this node is not one of the cluster any more.
    removed: watch::Sender<bool>,
    file: PathBuf,
    seen: AtomicU64,
    written: Mutex<u64>,
}

/// The file with the newest revision.
pub fn seen_file(state_dir: &Path) -> PathBuf {
    state_dir.join("cluster.seen")
}

fn conflict(error: String, hint: &str) -> AdminError {
    AdminError::new(ErrorKind::Conflict, error, hint)
}

/// The error of a node that is not one of the cluster any more.
pub fn removed() -> AdminError {
    conflict(
        "this node was removed from the cluster; its daemon ends".to_string(),
        "`arden cluster leave` clears what is left here; then join with a new token",
    )
}

/// Whether an entry is of the node that wrote the other one. Versions and levels in it may differ.
fn is_same_node(a: &[u8], b: &[u8]) -> bool {
    let of = |value: &[u8]| serde_json::from_slice::<NodeValue>(value).ok().map(|n| (n.name, n.certificate));
    match (of(a), of(b)) {
        (Some(a), Some(b)) => a == b,
        // What is not understood says nothing.
        _ => true,
    }
}

impl Trust {
    /// # Errors
    /// Failed, when the file with the newest revision cannot be read.
    pub fn new(state_dir: &Path, names: &Names, cluster: Vec<u8>) -> Result<Arc<Trust>> {
        let file = seen_file(state_dir);
        let seen = match std::fs::read_to_string(&file) {
            Ok(text) => text.trim().parse().map_err(|_| {
                AdminError::failed(format!("{} has no number", file.display()), "`arden cluster trust` makes it anew")
            })?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => 0,
            Err(e) => return Err(AdminError::failed(format!("{}: {e}", file.display()), "")),
        };
        let (seen, written) = (AtomicU64::new(seen), Mutex::new(seen));
        let (names, entry, removed) = (names.clone(), OnceLock::new(), watch::Sender::new(false));
        Ok(Arc::new(Trust { names, cluster, entry, removed, file, seen, written }))
    }

    /// From now on changes are those of this node, which has this entry.
    pub fn act_as(&self, node: u16, entry: &[u8]) {
        let _ = self.entry.set((self.names.node(node), entry.to_vec()));
    }

    pub fn names(&self) -> &Names {
        &self.names
    }

    /// That etcd has this cluster.
    pub fn cluster(&self) -> If {
        If::Has(self.names.cluster(), self.cluster.clone())
    }

    /// That etcd has this cluster, and this node as one of it. Every change of a node needs both.
    pub fn conditions(&self) -> Vec<If> {
        let entry = self.entry.get().map(|(key, value)| If::Has(key.clone(), value.clone()));
        [Some(self.cluster()), entry].into_iter().flatten().collect()
    }

    /// One change by this node. The revision at which it was applied; None: a condition did not hold.
    ///
    /// # Errors
    /// Conflict, when the node was removed or etcd is not to be believed; those of etcd.
    pub fn change(&self, etcd: &Arc<Etcd>, if_all: Vec<If>, then: Vec<Then>) -> Result<Option<u64>> {
        let if_all = [self.conditions(), if_all].concat();
        let made = etcd.transact_now(if_all, then)?;
        if made.is_none()
            && let Some((key, _)) = self.entry.get()
        {
            let floor = self.floor();
            let found = etcd.read_now(key, &self.names.cluster())?;
            self.check(&found, floor)?;
            self.check_entry(&found)?;
        }
        Ok(made)
    }

    /// Looks at this node's entry in what was read and is believed. That the node was removed is remembered.
    ///
    /// # Errors
    /// Conflict, when the entry is not what this node has started with.
    pub fn check_entry(&self, found: &Found) -> Result<()> {
        let Some((key, entry)) = self.entry.get() else { return Ok(()) };
        match found.get(key) {
            Some(pair) if pair.value == *entry => Ok(()),
            Some(pair) if is_same_node(&pair.value, entry) => {
                Err(conflict("this node's entry in etcd has changed".to_string(), "start the node again"))
            }
            _ => {
                self.removed.send_replace(true);
                Err(removed())
            }
        }
    }

    /// Becomes true when this node is not one of the cluster any more, for certain.
    pub fn removed(&self) -> watch::Receiver<bool> {
        self.removed.subscribe()
    }

    /// A read that is sent from now on has this revision or a newer one.
    pub fn floor(&self) -> u64 {
        self.seen.load(Ordering::Acquire)
    }

    /// Looks at what was read, with the key `cluster`, after `floor` was taken.
    ///
    /// # Errors
    /// Conflict, when etcd was emptied, is another one, or went back.
    pub fn check(&self, found: &Found, floor: u64) -> Result<()> {
        if found.revision < floor {
            return Err(conflict(
                format!("etcd went back: it is at revision {}, and was at {floor}", found.revision),
                "it was restored from an older state: stop every node, and believe it again with `arden cluster trust`",
            ));
        }
        match found.get(&self.names.cluster()) {
            Some(pair) if pair.value == self.cluster => {}
            Some(_) => {
                return Err(conflict(
                    "etcd has another description of this cluster".to_string(),
                    "restore etcd, or update this node",
                ));
            }
            None => {
                return Err(conflict(
                    "etcd does not have this cluster: it was emptied, or is another one".to_string(),
                    "restore a backup of etcd: it knows who may still write to the disks",
                ));
            }
        }
        self.seen.fetch_max(found.revision, Ordering::AcqRel);
        let mut written = self.written.lock();
        if *written == 0 || found.revision >= *written + WRITTEN_EVERY {
            self.write(&mut written)?;
        }
        Ok(())
    }

    /// Keeps the newest revision.
    ///
    /// # Errors
    /// Failed, when the file cannot be written.
    pub fn keep(&self) -> Result<()> {
        self.write(&mut self.written.lock())
    }

    fn write(&self, written: &mut u64) -> Result<()> {
        let seen = self.floor();
        if seen > *written {
            files::replace(&self.file, format!("{seen}\n").as_bytes())?;
            *written = seen;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::KeyValue;

    fn found(names: &Names, revision: u64, value: Option<&str>) -> Found {
        let pair = |v: &str| KeyValue { key: names.cluster(), value: v.into(), mod_revision: 1, lease: 0 };
        Found { revision, pairs: value.map(pair).into_iter().collect() }
    }

    #[test]
    fn an_older_an_emptied_and_another_etcd_are_not_believed() {
        let dir = std::env::temp_dir().join(format!("arden-trust-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let names = Names::new("c");
        let trust = Trust::new(&dir, &names, b"it".to_vec()).unwrap();
        trust.check(&found(&names, 20, Some("it")), trust.floor()).unwrap();
        let said = |f: Found| trust.check(&f, trust.floor()).unwrap_err().error;
        assert!(said(found(&names, 19, Some("it"))).contains("went back"));
        assert!(said(found(&names, 21, None)).contains("emptied"));
        assert!(said(found(&names, 21, Some("other"))).contains("another description"));
        trust.check(&found(&names, 15, Some("it")), 10).expect("it was sent before the newer was seen");
        drop(trust);
        let again = Trust::new(&dir, &names, b"it".to_vec()).unwrap();
        assert_eq!(again.floor(), 20, "a restart does not forget it");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
