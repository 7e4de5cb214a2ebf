//! Kept states: the root of the tree as a checkpoint left it, for as long as a snapshot needs it. Owns which blocks outlive
//! their last file for its sake.
//!
//! A block of data lives from the epoch it was written in to the one in which its last file let go of it, and each
//! snapshot ends an epoch. So a snapshot holds the blocks that were born by then and died since. Dead blocks are listed
//! under the youngest snapshot that holds them; when that goes, they move to the next older one, or become free where
//! they were born after that. Nodes of the tree follow the same rule with checkpoints for epochs, and need no list:
//! opening finds them from the roots.
//!
//! | lock | protects | taken |
//! |---|---|---|
//! | `Snapshot::in_use` | the snapshot's blocks from being freed | for reading by every look at it, for writing by its deletion; before the engine's state |

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arden_lock::{ReadGuard, RwLock, WriteGuard, ranks};
use arden_wire::{
    FileTime,
    cursor::{Put, Reader},
};

use crate::{
    disk::{
        error::{VolError, VolResult},
        keys::{self, Val},
        run::Run,
        treenode::{NO_ROOT, Ptr, root_of},
    },
    engine::{
        tree::{Root, Tree},
        view::{Take, View},
    },
};

const LEAVING: u32 = 1;

pub struct Snapshot {
    /// The last epoch that it holds blocks of.
    pub epoch: u32,
    pub time: FileTime,
    pub label: String,
    /// The checkpoint that it is.
    pub generation: u64,
    pub root: Root,
    /// It is being deleted, and the journal says so: it holds nothing any more.
    leaving: AtomicBool,
    /// Nobody begins to read it any more.
    closed: AtomicBool,
    /// Held for reading by whoever reads it.
    in_use: RwLock<(), ranks::SnapshotUse>,
}

impl Snapshot {
    pub fn new(epoch: u32, time: FileTime, label: &str, generation: u64, root: Root) -> Snapshot {
        Snapshot {
            epoch,
            time,
            label: label.to_owned(),
            generation,
            root,
            leaving: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            in_use: RwLock::new(()),
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let (ptr, level) = self.root.unwrap_or((Ptr::default(), NO_ROOT));
        let mut out = Vec::with_capacity(52 + self.label.len());
        out.put_u32(if self.is_leaving() { LEAVING } else { 0 });
        out.put_u64(self.time.0);
        out.put_u64(self.generation);
        ptr.encode(&mut out);
        out.put_u32(u32::from(level));
        out.extend_from_slice(self.label.as_bytes());
        out
    }

    pub fn decode(key: &[u8], value: &[u8]) -> VolResult<Snapshot> {
        let bad = VolError::Corrupt("snapshot");
        let mut r = Reader::new(value);
        let (flags, time, generation) = (r.u32()?, FileTime(r.u64()?), r.u64()?);
        let root = root_of(Ptr::decode(&mut r)?, r.u32()?)?;
        Ok(Snapshot {
            epoch: u32::try_from(keys::first(key)).map_err(|_| bad)?,
            time,
            label: String::from_utf8(r.rest().to_vec()).map_err(|_| bad)?,
            generation,
            root,
            leaving: AtomicBool::new(flags & LEAVING != 0),
            closed: AtomicBool::new(flags & LEAVING != 0),
            in_use: RwLock::new(()),
        })
    }

    pub fn key(&self) -> Vec<u8> {
        keys::one(keys::SNAPSHOT, u64::from(self.epoch))
    }

    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// From now on it is being deleted; false when it was already.
    pub fn leave(&self) -> bool {
        !self.leaving.swap(true, Ordering::AcqRel)
    }

    /// Nobody begins to read it any more; returns when nobody does.
    pub fn close(&self) -> WriteGuard<'_, ()> {
        self.closed.store(true, Ordering::Release);
        self.in_use.write()
    }

    /// None when it is closed.
    pub fn read<'a>(&'a self, tree: &'a Tree) -> Option<Past<'a>> {
        let held = self.in_use.read_recursive();
        (!self.closed.load(Ordering::Acquire)).then(|| Past { tree, root: &self.root, _held: held })
    }
}

/// Blocks that only snapshots hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dead {
    /// The youngest snapshot that does.
    pub epoch: u32,
    pub run: Run,
    pub birth: u32,
}

impl Dead {
    pub fn key(&self) -> Vec<u8> {
        keys::two(keys::DEAD, u64::from(self.epoch), self.run.start)
    }
    pub fn encode(&self) -> Vec<u8> {
        [(self.run.len as u32).to_le_bytes(), self.birth.to_le_bytes()].concat()
    }
    pub fn decode(key: &[u8], value: &[u8]) -> VolResult<Dead> {
        let bad = VolError::Corrupt("dead blocks");
        let mut r = Reader::new(value);
        let (len, birth) = (u64::from(r.u32()?), r.u32()?);
        let epoch = u32::try_from(keys::first(key)).map_err(|_| bad)?;
        Ok(Dead { epoch, run: Run { start: keys::second(key), len }, birth })
    }
}

/// A snapshot's state, for reading; it does not go while this lives.
pub struct Past<'a> {
    tree: &'a Tree,
    root: &'a Root,
    _held: ReadGuard<'a, ()>,
}

impl View for Past<'_> {
    fn get(&self, key: &[u8]) -> VolResult<Option<Val>> {
        self.tree.get(self.root, key)
    }
    fn scan(&self, start: &[u8], end: &[u8], take: &mut Take<'_>) -> VolResult<()> {
        if start >= end { Ok(()) } else { self.tree.scan(self.root, start, end, take) }
    }
}

/// Every node of every tree once, oldest tree first.
pub fn visit_nodes(
    snapshots: &[Arc<Snapshot>],
    root: &Root,
    tree: &Tree,
    f: &mut dyn FnMut(&Ptr) -> VolResult<()>,
) -> VolResult<()> {
    let roots = snapshots.iter().map(|s| (s.root, s.generation)).chain([(*root, u64::MAX)]);
    let mut before = 0;
    for (root, generation) in roots {
        tree.visit(&root, &mut |ptr, _| {
            // What an older snapshot has too was visited there, with all that is below.
            if ptr.birth <= before {
                return Ok(false);
            }
            f(ptr).map(|()| true)
        })?;
        before = generation;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::treenode::LEVEL_MAX;

    #[test]
    fn a_snapshot_at_a_level_that_no_tree_has_is_damage() {
        let decode = |root| {
            let snapshot = Snapshot::new(3, FileTime(1), "label", 4, root);
            Snapshot::decode(&snapshot.key(), &snapshot.encode()).map(|snapshot| snapshot.root)
        };
        let at = |level| Some((Ptr { block: 100, birth: 1, sum: 2 }, level));
        for root in [None, at(0), at(LEVEL_MAX)] {
            assert_eq!(decode(root), Ok(root));
        }
        assert_eq!(decode(at(LEVEL_MAX + 1)), Err(VolError::Corrupt("the tree is too deep")));
    }
}
