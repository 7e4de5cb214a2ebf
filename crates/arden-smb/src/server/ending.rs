//! The end of a session: what it had open is closed, or kept for its client. It takes its time where that is much, and so is
//! done where it may block.

use std::{sync::Arc, time::Instant};

use arden_store::commit::CommitScope;

use crate::{model::SmbOpen, server::Server};

/// More opens are closed where that may take its time.
pub const INLINE_OPENS_MAX: usize = 16;

/// Whether closing these keeps a thread for milliseconds.
pub fn closes_long(opens: &[Arc<SmbOpen>]) -> bool {
    opens.len() > INLINE_OPENS_MAX || opens.iter().any(|open| open.frees_much())
}

/// A session that is gone, and what it had open.
#[must_use]
pub(crate) struct Ending {
    pub server: Arc<Server>,
    pub opens: Vec<Arc<SmbOpen>>,
    pub keep_durable: bool,
    pub now: Instant,
}

impl Ending {
    pub fn is_long(&self) -> bool {
        closes_long(&self.opens)
    }

    pub fn finish(mut self, scope: &CommitScope) {
        self.close(scope);
    }

    fn close(&mut self, scope: &CommitScope) {
        for open in std::mem::take(&mut self.opens) {
            self.server.end_usn_waits(&open);
            if self.keep_durable && self.server.keep_disconnected(&open, self.now) {
                continue;
            }
            self.server.close_object(scope, &open);
        }
    }
}

/// Nobody came to finish it: the connection that was to is gone.
impl Drop for Ending {
    fn drop(&mut self) {
        if !self.opens.is_empty() {
            self.close(&CommitScope::begin());
        }
    }
}
