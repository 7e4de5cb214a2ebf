//! The end of a session: what it had open is closed, or kept for its client. It takes its time where that is much, and so is
//! done where it may block.

use std::{sync::Arc, time::Instant};

use arden_store::commit::CommitScope;

use crate::{
    model::{SessionTables, SmbOpen},
    trees::{Trees, endings::UnderWay},
};

/// More opens are closed where that may take its time.
const INLINE_OPENS_MAX: usize = 16;

/// Whether closing these keeps a thread for milliseconds.
fn closes_long(opens: &[Arc<SmbOpen>]) -> bool {
    opens.len() > INLINE_OPENS_MAX || opens.iter().any(|open| open.closes_long())
}

/// Whether ending this session, or its tree connects, may do so.
pub(crate) fn has_long_end(session: &SessionTables) -> bool {
    let some: Vec<_> = session.opens.read().values().take(INLINE_OPENS_MAX + 1).cloned().collect();
    closes_long(&some)
}

/// A session that is gone, and what it had open.
#[must_use]
pub(crate) struct Ending {
    pub trees: Arc<Trees>,
    pub opens: Vec<Arc<SmbOpen>>,
    pub keep_durable: bool,
    pub now: Instant,
    /// Until it is finished.
    pub under_way: Arc<UnderWay>,
}

impl Ending {
    pub fn is_long(&self) -> bool {
        closes_long(&self.opens)
    }

    /// It counts as under way until this is dropped.
    pub fn until_durable(&self) -> Arc<UnderWay> {
        self.under_way.clone()
    }

    pub fn finish(mut self, scope: &CommitScope) {
        self.close(scope);
    }

    fn close(&mut self, scope: &CommitScope) {
        for open in std::mem::take(&mut self.opens) {
            self.trees.end_usn_waits(&open);
            if self.keep_durable && self.trees.keep_disconnected(&open, self.now) {
                continue;
            }
            self.trees.close_object(scope, &open);
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
