//! The connection as others see it, [MS-SMB2] 3.3.1.7, and its channels: what NEGOTIATE settled, and what others leave for it to send.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use arden_lock::{Mutex, RwLock, ranks};
use arden_wire::smb2::Dialect;

use crate::{
    model::Negotiated,
    sessions::{
        Pending, Session,
        crypto::SigningKey,
        work::{Answers, BlockingWork, Parked},
    },
};

/// The part of a connection that others reach: sessions bound to it, and what waits to be sent or run.
pub struct Peer {
    pub id: u64,
    pub ip: std::net::IpAddr,
    /// With the port, for people.
    pub address: String,
    pub local_address: std::net::SocketAddr,
    pub negotiated: OnceLock<Negotiated>,
    pub channels: RwLock<HashMap<u64, Arc<Channel>>, ranks::PeerChannels>,
    pub mailbox: Mutex<Mailbox, ranks::Mailbox>,
    /// Tells the connection's owner that the mailbox has something.
    pub wake: Box<dyn Fn() + Send + Sync>,
    pub closed: AtomicBool,
    /// Requests that a CANCEL can end.
    pub pending: Mutex<Pending, ranks::Pending>,
    /// The buffer of the last large answer, as long as that was: its bytes are there already, and need no zeros before
    /// the next is read into them.
    pub large: Mutex<Vec<u8>, ranks::LargeBuffer>,
}

#[derive(Default)]
pub struct Mailbox {
    /// Complete transport frames.
    pub frames: Vec<Unsent>,
    /// Parked requests that may go on.
    pub resumed: Vec<Box<dyn Parked>>,
    /// Messages that waited for stable storage.
    pub finished: Vec<Box<dyn Answers>>,
    /// What follows a cancelled request, or came after the work on an open, and may block.
    pub jobs: Vec<Box<dyn BlockingWork>>,
    /// Nobody looks here any more.
    pub closed: bool,
}

/// A frame that is to be sent, and what it holds until it was.
pub struct Unsent {
    pub frame: Vec<u8>,
    /// Nothing of it is used: it is dropped with the frame.
    _held: Option<Box<dyn Send>>,
}

impl From<Vec<u8>> for Unsent {
    fn from(frame: Vec<u8>) -> Unsent {
        Unsent { frame, _held: None }
    }
}

impl Mailbox {
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.resumed.is_empty() && self.finished.is_empty() && self.jobs.is_empty()
    }
}

impl Peer {
    pub fn dialect(&self) -> Dialect {
        self.negotiated.get().map_or(Dialect::Smb202, |n| n.dialect)
    }
    pub fn client_guid(&self) -> u128 {
        self.negotiated.get().map_or(0, |n| n.client_guid)
    }
    pub fn channel(&self, session_id: u64) -> Option<Arc<Channel>> {
        self.channels.read().get(&session_id).cloned()
    }
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
    pub fn send(&self, frame: Vec<u8>) {
        self.send_unsent(frame.into());
    }
    /// The same with something that goes when the frame was sent, or its connection is gone.
    pub fn send_holding(&self, frame: Vec<u8>, held: Box<dyn Send>) {
        self.send_unsent(Unsent { frame, _held: Some(held) });
    }
    fn send_unsent(&self, frame: Unsent) {
        {
            let mut mailbox = self.mailbox.lock();
            if mailbox.closed {
                return;
            }
            mailbox.frames.push(frame);
        }
        (self.wake)();
    }
    /// The message's answers are signed and sent by the connection. Given back where that is gone.
    pub fn finish(&self, finished: Box<dyn Answers>) -> Option<Box<dyn Answers>> {
        let mut mailbox = self.mailbox.lock();
        if mailbox.closed {
            return Some(finished);
        }
        mailbox.finished.push(finished);
        drop(mailbox);
        (self.wake)();
        None
    }
    /// The connection runs it where it may block. Where that is gone, it is forgotten.
    pub fn run(&self, job: Box<dyn BlockingWork>) {
        let mut mailbox = self.mailbox.lock();
        if mailbox.closed {
            drop(mailbox);
            return drop(job);
        }
        mailbox.jobs.push(job);
        drop(mailbox);
        (self.wake)();
    }
    pub fn resume(&self, message: Box<dyn Parked>) {
        self.mailbox.lock().resumed.push(message);
        (self.wake)();
    }
}

/// A session on a connection, [MS-SMB2] 3.3.1.14.
pub struct Channel {
    pub session: Arc<Session>,
    pub signing: SigningKey,
    pub peer: Weak<Peer>,
}
