//! What the generator drives: something that takes requests and later says that they are done. Has a clock of its own,
//! real or virtual.

use arden_block::{Buf, SharedBuf};

use crate::base::error::Result;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Flush,
}

/// One request. `tag` comes back in [`Done`].
#[derive(Debug, Clone, Copy)]
pub struct Op {
    pub kind: Kind,
    pub offset: u64,
    pub bytes: u32,
    /// A write that is on stable storage before it is acknowledged.
    pub durable: bool,
    pub tag: u32,
    /// The answer of a read has to hand its bytes back.
    pub want_data: bool,
}

/// An answer.
#[derive(Debug)]
pub struct Done {
    pub tag: u32,
    /// When it came, on the target's clock.
    pub at_ns: u64,
    /// What a read gave, when it was wanted.
    pub data: Option<Buf>,
    /// What went wrong, for people.
    pub error: Option<String>,
}

/// A disk, a file, a share.
pub trait Target {
    /// Nanoseconds on its clock, which never runs back.
    fn now_ns(&self) -> u64;
    /// Takes a request; `data` is what a write writes and at least as long as `op.bytes`. Need not send it before `wait`.
    ///
    /// # Errors
    /// When no further request makes sense. What goes wrong with this one alone is in its [`Done`].
    fn start(&mut self, op: Op, data: Option<&SharedBuf>) -> Result<()>;
    /// Sends what was taken without waiting, where that can be told from [`Target::wait`].
    fn send(&mut self) {}
    /// Sends what was taken, and waits until something is done or the clock says `until_ns`. Adds answers to `done`.
    ///
    /// # Errors
    /// When no answer will come any more.
    fn wait(&mut self, until_ns: Option<u64>, done: &mut Vec<Done>) -> Result<()>;
    /// Gives back what it holds elsewhere. Nothing may be under way.
    ///
    /// # Errors
    /// When that fails; it is not tried again.
    fn close(&mut self) -> Result<()> {
        Ok(())
    }
    /// Blocks have to be multiples of this.
    fn granule_bytes(&self) -> u32 {
        1
    }
    /// Whether its clock is the machine's, so that processor time means something.
    fn is_real(&self) -> bool {
        true
    }
}
