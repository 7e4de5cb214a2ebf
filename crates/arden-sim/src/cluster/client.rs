//! Clients: each has one request at a time, sends it by any node, and sends it again by another when no answer comes. What was
//! answered is held against the oracles. The last client only reads, and seeks a node that may still answer though it owns no more.

use std::rc::Rc;

use arden_block::{BLOCK_BYTES, Buf, SharedBuf};
use arden_cluster::Epoch;

use super::opens::Mode;
use crate::oracle::{ReadMark, fill};

/// What a client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Read,
    /// Of this version.
    Write(u32),
    /// Opens or closes a file.
    Open(usize, Mode),
}

/// A request on its way.
#[derive(Clone, Copy)]
pub(super) struct Work {
    pub(super) client: usize,
    /// Grows with every sending.
    pub(super) attempt: u64,
    pub(super) what: What,
    /// Blocks that are read or written.
    pub(super) first: u64,
    pub(super) n: u64,
    /// The node that the client is connected to.
    pub(super) via: usize,
    /// The ownership under which the client opened its handle last: no other executes the request.
    pub(super) handle: Epoch,
}

/// How a request ends.
#[derive(Clone)]
pub(super) enum Told {
    Data(Rc<Buf>),
    Done,
    Refused,
}

/// What a client is told.
#[derive(Clone)]
pub(super) enum Reply {
    /// Its handle is not open here; from now on it is, under this epoch.
    Reopened(Epoch),
    Ends(Told),
}

impl Work {
    pub(super) fn data(&self) -> Option<SharedBuf> {
        let What::Write(version) = self.what else { return None };
        let mut b = Buf::new((self.n * BLOCK_BYTES) as usize);
        for (i, block) in b.chunks_mut(BLOCK_BYTES as usize).enumerate() {
            fill(self.first + i as u64, version, block);
        }
        Some(b.share())
    }
}

impl std::fmt::Display for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Work { client, attempt, what, first, n, via, handle: _ } = self;
        write!(f, "client {client} by node {via}, attempt {attempt}: ")?;
        match what {
            What::Read => write!(f, "read of block {first}+{n}"),
            What::Write(v) => write!(f, "write of block {first}+{n}, version {v}"),
            What::Open(file, mode) => write!(f, "file {file} as {mode:?}"),
        }
    }
}

#[derive(Default)]
pub(super) struct Client {
    pub(super) work: Option<Work>,
    pub(super) mark: Option<ReadMark>,
    pub(super) attempts: u64,
    pub(super) begun_ns: u64,
    /// When the request is sent again.
    pub(super) again_ns: u64,
    pub(super) next_ns: u64,
    pub(super) answered: u64,
    pub(super) handle: Epoch,
}
