//! Snapshots of streams, [MS-FSA] 2.1.5.10.29, through an open of the stream.

use std::sync::Arc;

use super::{Fs, Open, Operation, data::OFFSET_MAX};
use crate::{
    commit::{Cause, CommitScope},
    store::{Result, StreamDelta, StreamSnapshotInfo},
};

impl Fs {
    /// 2.1.5.10.29.2, oldest first.
    pub fn stream_snapshots(&self, open: &Arc<Open>) -> Result<Vec<StreamSnapshotInfo>> {
        open.check(Operation::ListStreamSnapshots)?;
        open.node.stream_snapshots()
    }

    /// 2.1.5.10.29.3: see [`crate::store::Node::stream_deltas`].
    pub fn stream_deltas(&self, open: &Arc<Open>, name: &str, from: u64, max: usize) -> Result<Vec<StreamDelta>> {
        open.check(Operation::ListStreamSnapshots)?;
        open.node.stream_deltas(name, from, max)
    }

    /// 2.1.5.10.29.1. What clients hold back of the stream's data is not in it.
    pub fn create_stream_snapshot(&self, scope: &CommitScope, open: &Arc<Open>, name: &str) -> Result<()> {
        open.check(Operation::CreateStreamSnapshot)?;
        self.keeping_times(scope, open, |by| open.node.create_stream_snapshot(by, name))
    }

    /// 2.1.5.10.29.4. A lock of another open on any part keeps the data as it is.
    pub fn revert_stream(&self, open: &Arc<Open>, name: &str, cause: Cause<'_>) -> Result<()> {
        open.check(Operation::RevertStream)?;
        self.check_locks(open, 0, OFFSET_MAX, true)?;
        self.contend(open, cause)?;
        self.keeping_times(cause.scope, open, |by| open.node.revert_stream(by, name))?;
        open.all_valid();
        self.settle_write_time(cause.scope, open);
        self.modified(cause.scope, open, false);
        Ok(())
    }
}
