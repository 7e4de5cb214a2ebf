//! The target of a load: it takes requests and completes them later. It has its own clock, real or virtual.

use arden_block::{Buf, SharedBuf};

use crate::base::error::Result;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Flush,
}

/// A request. Its `tag` returns in [`Done`].
#[derive(Debug, Clone, Copy)]
pub struct Op {
    pub kind: Kind,
    pub offset: u64,
    pub bytes: u32,
    /// The write is on stable storage before it is answered.
    pub durable: bool,
    pub tag: u32,
    /// The answer to a read holds its bytes.
    pub want_data: bool,
}

/// The completion of a request.
#[derive(Debug)]
pub struct Done {
    pub tag: u32,
    /// The time of the completion on the target's clock.
    pub at_ns: u64,
    /// The bytes that were read, when they are wanted.
    pub data: Option<Buf>,
    /// The error, for display.
    pub error: Option<String>,
}

/// A disk, a file, or a file on a share.
pub trait Target {
    /// The target's clock in nanoseconds. It never goes back.
    fn now_ns(&self) -> u64;
    /// Takes a request. `data` holds the bytes of a write, at least `op.bytes`. The request may be sent as late as by
    /// [`Target::wait`].
    ///
    /// # Errors
    /// No further request can succeed. The error of this request alone is in its [`Done`].
    fn start(&mut self, op: Op, data: Option<&SharedBuf>) -> Result<()>;
    /// Sends the requests that were taken, without waiting.
    fn send(&mut self) {}
    /// Sends the requests that were taken, and waits until one completes or the clock reaches `until_ns`. Adds
    /// completions to `done`.
    ///
    /// # Errors
    /// No further completion will come.
    fn wait(&mut self, until_ns: Option<u64>, done: &mut Vec<Done>) -> Result<()>;
    /// Releases resources at the server. No request may be in flight.
    ///
    /// # Errors
    /// The release failed; it is not tried again.
    fn close(&mut self) -> Result<()> {
        Ok(())
    }
    /// Offsets and lengths are multiples of this number of bytes.
    fn granule_bytes(&self) -> u32 {
        1
    }
    /// Whether the clock is that of the machine, so that processor time can be compared with it.
    fn is_real(&self) -> bool {
        true
    }
}
