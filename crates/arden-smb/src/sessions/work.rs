//! Messages as others handle them who do not know what is in them: put aside, run where they may block, answered late.

use std::sync::Arc;

use arden_auth::Token;
use arden_wire::NtStatus;

use crate::{base::grants::Granting, sessions::Peer};

/// What becomes of a request that waits when its connection is lost, [MS-SMB2] 3.3.7.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Without {
    /// Its session ends too, and takes what the request has with it.
    Forgotten,
    /// Its session has another channel, and the request is undone: it would change what the client asks for again.
    Cancelled,
    /// The same, but the client takes up what it was for: a CREATE, whose handle a replay finds.
    GoesOn,
}

/// What running a message leaves.
#[derive(Default)]
pub struct Ran {
    /// It has to run on where it may block.
    pub rest: Option<Box<dyn BlockingWork>>,
    /// To be dropped when what was answered is on its way: breaks of what it grants are held until then.
    pub granting: Vec<Granting>,
}

impl From<Option<Box<dyn BlockingWork>>> for Ran {
    fn from(rest: Option<Box<dyn BlockingWork>>) -> Ran {
        Ran { rest, granting: Vec::new() }
    }
}

/// The frame that answers a message.
#[derive(Default)]
pub struct Answered {
    /// Empty where there is none yet.
    pub frame: Vec<u8>,
    /// As in [`Ran`].
    pub granting: Vec<Granting>,
}

/// A message whose current request waits for somebody else.
pub trait Parked: Send {
    fn peer(&self) -> &Arc<Peer>;

    /// What becomes of the current request without the connection `peer_id`.
    fn without(&self, peer_id: u64) -> Without;

    /// The wait is over: runs on, and appends what is answered to `out`. What is left has to run where it may block; nothing
    /// is where `may_block`.
    fn run(self: Box<Self>, out: &mut Vec<u8>, may_block: bool) -> Ran;

    /// The same on a thread that may not block, beside its connection.
    fn run_beside(self: Box<Self>, out: &mut Vec<u8>) -> Ran;

    /// Ends the current request with `status`, and runs on with the rest.
    fn abort(self: Box<Self>, status: NtStatus, out: &mut Vec<u8>) -> Ran;

    /// The wait is over, and the connection is gone: what is left to do, where it may block.
    fn detach(self: Box<Self>) -> Box<dyn BlockingWork>;
}

/// A message that has to run on a thread that may block, and what it has answered so far.
pub trait BlockingWork: Send {
    /// What it keeps in memory while it runs and until its answer is sent, in bytes: its message, and what it may answer at most
    /// is no more than that by credits.
    fn bytes(&self) -> usize;

    /// What it keeps before it runs, in bytes.
    fn waiting_bytes(&self) -> usize;

    /// Who asked; None where that is not known any more.
    fn user(&self) -> Option<Arc<Token>>;

    /// The connection that it came over.
    fn peer(&self) -> &Arc<Peer>;

    /// Runs to the end, or to a wait. What its message was in is left in `spent` where nobody needs it any more.
    fn answer(self: Box<Self>, spent: &mut Vec<u8>) -> Answered;
}

impl dyn BlockingWork {
    /// Runs it, and leaves the answer to its connection.
    pub fn run(self: Box<Self>) {
        let peer = self.peer().clone();
        let Answered { frame, granting } = self.answer(&mut Vec::new());
        if !frame.is_empty() {
            peer.send(frame);
        }
        drop(granting);
    }
}

/// Answers that waited to be sent until it was known whether what they speak of is durable.
pub trait Answers: Send {
    /// How long the frame is, about.
    fn bytes(&self) -> usize;

    /// The frame to be sent, once; empty where there is nothing to say. Frees nothing of what it holds beside it, and takes no
    /// lock of the table of opens or of a store: it may be called by the thread that tells of the commit.
    fn frame(&mut self) -> Vec<u8>;

    /// The frame is on its way, and nobody has to pay for it any more. As for [`Answers::frame`].
    fn is_written(&mut self);
}
