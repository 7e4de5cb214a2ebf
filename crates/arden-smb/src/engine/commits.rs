//! What a message changed, which has to be durable before the answer leaves: on shares that are continuously available or
//! write through, and every share of a root that keeps persistent handles. Refuses to send or to build answers.

use arden_store::commit::CommitScope;

/// Changes that have to be durable before what was answered may leave.
#[derive(Default)]
pub struct Commits {
    pub scope: CommitScope,
    /// The first response that speaks of a change.
    first: Option<usize>,
}

impl Commits {
    /// The request ran, and may have joined the scope with what it changed.
    pub fn noted(&mut self, response: usize) {
        if self.first.is_none() && !self.scope.is_empty() {
            self.first = Some(response);
        }
    }
    /// The first response that a failure concerns.
    pub fn first(&self) -> Option<usize> {
        self.first
    }
}
