//! Which requests of a connection a CANCEL can end, [MS-SMB2] 3.3.5.16.

use std::collections::{HashMap, VecDeque};

use arden_store::fs::WaitId;

/// The requests of a connection that a CANCEL can end. Locked before `Waits::parked` and the mailbox.
#[derive(Default)]
pub struct Pending {
    /// Those that were answered with STATUS_PENDING and wait, by AsyncId.
    waiting: HashMap<u64, PendingRequest>,
    /// Messages on threads that may block: their requests are not in `waiting`, and may be there soon.
    jobs: usize,
    /// CANCELs that came while their request was perhaps among these, by AsyncId or MessageId, with their session; the oldest first.
    early: VecDeque<EarlyCancel>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlyCancel {
    pub asynchronous: bool,
    /// The AsyncId, or the MessageId.
    pub id: u64,
    pub session_id: u64,
}

/// A connection has few requests under way; CANCELs of anything else are forgotten.
const EARLY_CANCELS_MAX: usize = 1024;

impl Pending {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The request that a CANCEL means: by AsyncId, or by MessageId. The MessageId 0 is NEGOTIATE's, which never waits:
    /// clients of Samba send it where they have no AsyncId yet (but not with AES-GMAC), for the request that they sent last.
    pub fn find(&self, asynchronous: bool, id: u64, session_id: u64) -> Option<(u64, PendingRequest)> {
        let named = |(id, p): (&u64, &PendingRequest)| (*id, *p);
        match (asynchronous, id) {
            (true, id) => self.waiting.get(&id).map(|p| (id, *p)),
            (false, 0) => {
                let own = self.waiting.iter().filter(|(_, p)| p.session_id == session_id);
                own.max_by_key(|(_, p)| p.message_id).map(named)
            }
            (false, id) => self.waiting.iter().find(|(_, p)| p.message_id == id).map(named),
        }
    }

    /// A request waits from now on; false: its CANCEL came before.
    pub fn wait(&mut self, id: u64, request: PendingRequest) -> bool {
        let PendingRequest { message_id, session_id, .. } = request;
        let means = |c: &EarlyCancel| match (c.asynchronous, c.id) {
            (true, named) => named == id,
            (false, named) => named == 0 || named == message_id,
        };
        let is_for = |c: &EarlyCancel| c.session_id == session_id && means(c);
        if let Some(at) = self.early.iter().position(is_for) {
            self.early.remove(at);
            return false;
        }
        self.waiting.insert(id, request);
        true
    }

    pub fn remove(&mut self, id: u64) -> bool {
        self.waiting.remove(&id).is_some()
    }

    /// All of them: the connection ends.
    pub fn drain(&mut self) -> Vec<PendingRequest> {
        self.waiting.drain().map(|(_, p)| p).collect()
    }

    pub fn begin_job(&mut self) {
        self.jobs += 1;
    }

    pub fn end_job(&mut self) {
        self.jobs -= 1;
        if self.jobs == 0 {
            self.early.clear();
        }
    }

    /// A CANCEL whose request does not wait: it does not begin to, if it is on a thread that may block.
    pub fn cancel_early(&mut self, cancel: EarlyCancel) {
        if self.jobs == 0 || self.early.contains(&cancel) {
            return;
        }
        if self.early.len() == EARLY_CANCELS_MAX {
            self.early.pop_front();
        }
        self.early.push_back(cancel);
    }
}

#[derive(Debug, Clone, Copy)]
pub struct PendingRequest {
    pub message_id: u64,
    /// Of the session that asked; 0 where there is none.
    pub session_id: u64,
    pub wait: WaitId,
}
