//! Clients: each has one request at a time, sends it by any node, and sends it again by another when no answer comes. What was
//! answered is held against the oracle.

use arden_block::{BLOCK_BYTES, Buf, SharedBuf};

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

pub(super) struct Client {
    pub(super) work: Option<Work>,
    pub(super) mark: Option<ReadMark>,
    pub(super) attempts: u64,
    pub(super) begun_ns: u64,
    /// When the request is sent again.
    pub(super) again_ns: u64,
    pub(super) next_ns: u64,
    pub(super) answered: u64,
}

impl Client {
    pub(super) fn new() -> Client {
        Client { work: None, mark: None, attempts: 0, begun_ns: 0, again_ns: 0, next_ns: 0, answered: 0 }
    }
}
