//! Where persistent opens outlive the daemon: the `HandleStore` trait, and what an open and a lease look like in it. The
//! store keeps bytes under keys and knows nothing of them; a file beside the state (`disk`) and memory (`memory`) are
//! two, a volume is a third. Refuses to decide what is kept: that is the protocol's.

mod disk;
mod memory;
mod not_kept;
mod record;

pub use disk::DiskHandles;
pub use memory::MemoryHandles;
pub use not_kept::NotKept;
pub use record::{KeptBreak, KeptCache, KeptLease, KeptOpen};

use crate::{changed_by::ScopeId, error::StoreError, store::Result};

/// Longest key and value that a store has to take.
pub const KEY_BYTES_MAX: usize = 64;
pub const VALUE_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandleChange {
    Put { key: Vec<u8>, value: Vec<u8> },
    Remove { key: Vec<u8> },
}

/// Told how a commit went, on whichever thread made it.
pub type Committed = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// Keys to bytes, changed in batches. Calls of many threads at once.
pub trait HandleStore: Send + Sync {
    /// Everything that was put and committed, by ascending key.
    fn load(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>, StoreError>;
    /// Changes take their place after all that were put before; those of one call stand or fall together. Does not wait
    /// for the disk, and is not durable before the scope's next `commit`. Called by [`crate::commit::CommitScope::put`],
    /// which knows then that the scope has to commit here.
    fn put(&self, scope: ScopeId, changes: Vec<HandleChange>);
    /// Whether `commit` would have something to do for the scope: changes of other scopes need not count, unless they came
    /// before in the store's own order.
    fn has_uncommitted(&self, scope: ScopeId) -> bool;
    /// All that the scope put before the call is on stable storage when it returns, and all of scopes that have ended.
    /// Callers at the same time share a flush.
    ///
    /// # Errors
    /// Something that the scope put, or a scope that ended without a commit, was not kept.
    fn commit(&self, scope: ScopeId) -> Result<(), StoreError>;
    /// The scope ends: what it put and nobody committed is durable with the next commit of any scope. Does not wait.
    fn end_scope(&self, _scope: ScopeId) {}
    /// Whether there is `commit_later`: where handles and files lie together, and one flush makes both durable.
    fn commits_later(&self) -> bool {
        false
    }
    /// Does not wait: `done` is called when all that `has_uncommitted` counts for the scope, and with `files` every change of a
    /// file, is on stable storage.
    fn commit_later(&self, _scope: ScopeId, _files: bool, done: Committed) {
        done(Err(StoreError::NotSupported));
    }
}
