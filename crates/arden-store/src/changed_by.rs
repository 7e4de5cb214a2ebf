//! Whose a change of a store is. Refuses to know what a scope does with its changes: that is `commit`.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of a commit scope, different for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeId(u64);

/// Whom a store has to tell whether a change became durable. None: nobody waits for it.
pub type ChangedBy = Option<ScopeId>;

impl ScopeId {
    /// A number that no scope had before.
    pub(crate) fn next() -> ScopeId {
        static LAST: AtomicU64 = AtomicU64::new(0);
        ScopeId(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
