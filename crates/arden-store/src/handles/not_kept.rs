//! Scopes of whose changes a `HandleStore` could not keep some: who is told of it, and once. Refuses to know why.

use std::collections::BTreeSet;

use crate::{commit::ScopeId, error::StoreError, store::Result};

#[derive(Default)]
pub struct NotKept {
    /// Their commits fail.
    failed: BTreeSet<ScopeId>,
    /// A scope that failed ended without a commit: the next commit of anybody fails.
    unattended: bool,
}

impl NotKept {
    /// A change of the scope could not be kept.
    pub fn note(&mut self, scope: ScopeId) {
        self.failed.insert(scope);
    }

    pub fn is_empty(&self) -> bool {
        !self.unattended && self.failed.is_empty()
    }

    /// Whether [`NotKept::check`] would fail.
    pub fn concerns(&self, scope: ScopeId) -> bool {
        self.unattended || self.failed.contains(&scope)
    }

    /// The scope is committed.
    ///
    /// # Errors
    /// `InsufficientResources`, once, when a change of the scope or of one that nobody committed was not kept.
    pub fn check(&mut self, scope: ScopeId) -> Result<(), StoreError> {
        let concerns = self.concerns(scope);
        self.failed.remove(&scope);
        self.unattended = false;
        if concerns { Err(StoreError::InsufficientResources) } else { Ok(()) }
    }

    /// The scope ends, and nobody commits it any more.
    pub fn end(&mut self, scope: ScopeId) {
        self.unattended |= self.failed.remove(&scope);
    }
}
