//! What a change gives back: room on the disk, streams, and locks. Where that is much it takes long, and is not done on a thread that
//! serves others.

use std::sync::{Arc, atomic::Ordering};

use super::{Fs, Open, info::streams_of};
use crate::{
    error::NotDone,
    scope::RequestScope,
    store::{NodeRef, Result, Stat},
};

/// Each takes about 0.3 us.
const FREED_LOCKS_MAX: usize = 8192;
/// Each takes some 10 us, and goes by itself where the file is emptied.
const FREED_STREAMS_MAX: usize = 64;

/// Whether the file with all its streams, or this stream of it, takes much room, or it has many streams.
fn has_much(node: &NodeRef, stat: &Stat) -> bool {
    let mut bytes = stat.allocation;
    if node.stream().is_none() && bytes <= RequestScope::FREED_BYTES_MAX {
        let streams = streams_of(&**node).unwrap_or_default();
        if streams.len() > FREED_STREAMS_MAX {
            return true;
        }
        bytes += streams.iter().filter(|s| !s.name.is_empty()).map(|s| s.allocation).sum::<u64>();
    }
    bytes > RequestScope::FREED_BYTES_MAX
}

/// Before all that this node has is given back.
///
/// # Errors
/// `WouldBlock` where that takes long and this thread must not wait.
pub(super) fn check_may_free(node: &NodeRef, stat: &Stat) -> Result<()> {
    if RequestScope::must_not_wait() && has_much(node, stat) { Err(NotDone::WouldBlock) } else { Ok(()) }
}

impl Fs {
    /// Whether the close of this open takes long: many wait for what it has or are told of it, or much is given back, as it has many locks, or
    /// its file is to be deleted, or has lost its name already.
    pub fn closing_takes_long(&self, open: &Arc<Open>) -> bool {
        if open.locks.load(Ordering::Relaxed) > FREED_LOCKS_MAX || open.file.is_crowded() {
            return true;
        }
        let goes = open.deletes_on_close() || open.file.lock().is_to_go(open);
        let tells = goes || open.pending_filter.load(Ordering::Acquire) != 0;
        goes && open.node.stat().is_ok_and(|stat| has_much(&open.node, &stat))
            || tells && self.telling_takes_long(&*open.node)
    }
}
