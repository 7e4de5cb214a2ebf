//! Clients: each has one request at a time, sends it by any node, and sends it again by another when no answer comes. What was
//! answered is held against the oracle.

use std::rc::Rc;

use arden_block::{BLOCK_BYTES, Buf, SharedBuf};
use arden_cluster::Epoch;

use crate::oracle::{ReadMark, fill};

/// A request on its way.
#[derive(Clone, Copy)]
pub(super) struct Work {
    pub(super) client: usize,
    /// Grows with every sending.
    pub(super) attempt: u64,
    pub(super) first: u64,
    pub(super) n: u64,
    /// Of a write.
    pub(super) version: Option<u32>,
    /// The node that the client is connected to.
    pub(super) via: usize,
    /// The ownership under which the client opened its handle last: no other executes the request.
    pub(super) handle: Epoch,
}

/// What a client is told.
#[derive(Clone)]
pub(super) enum Reply {
    /// Its handle is not open here; from now on it is, under this epoch.
    Reopened(Epoch),
    Done(Option<Rc<Buf>>),
}

impl Work {
    pub(super) fn data(&self) -> Option<SharedBuf> {
        let version = self.version?;
        let mut b = Buf::new((self.n * BLOCK_BYTES) as usize);
        for (i, block) in b.chunks_mut(BLOCK_BYTES as usize).enumerate() {
            fill(self.first + i as u64, version, block);
        }
        Some(b.share())
    }
}

impl std::fmt::Display for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Work { client, attempt, first, n, version, via, handle: _ } = self;
        write!(f, "client {client} by node {via}, attempt {attempt}: block {first}+{n}, ")?;
        match version {
            None => f.write_str("read"),
            Some(v) => write!(f, "write of version {v}"),
        }
    }
}

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

impl Client {
    pub(super) fn new() -> Client {
        Client {
            work: None,
            mark: None,
            attempts: 0,
            begun_ns: 0,
            again_ns: 0,
            next_ns: 0,
            answered: 0,
            handle: Epoch(0),
        }
    }
}
