//! What passes between sessions and trees. To the trees: a request that the sessions' side has verified. To the sessions'
//! side: an answer, and what the client is told of its own accord. Values all of them, without a socket, a connection, a
//! session or a lock, so that another node's sessions can ask this node's trees.

use std::{net::IpAddr, sync::Arc};

use arden_auth::Token;
use arden_rpc::ServerView;
use arden_store::fs::{ClientId, LeaseBreak, OplockLevel, WaitId};
use arden_wire::{
    NtStatus,
    smb2::{Command, Dialect, FileId, HEADER_BYTES, Header},
};

use crate::model::Negotiated;

/// A request whose signature or encryption, credits and session were checked, with the identity of that session.
pub struct VerifiedRequest<'a> {
    /// SessionId, MessageId, TreeId (below: of a related request), command and flags.
    pub header: Header,
    /// From the header on.
    pub message: &'a [u8],
    /// Which session asks: `SessionTables::serial`.
    pub session_serial: u64,
    /// Who asks, as which client.
    pub user: Arc<Token>,
    pub client: ClientId,
    pub anonymous: bool,
    /// What the client and the server settled.
    pub negotiated: &'a Negotiated,
    /// From where, for limits and for people.
    pub ip: IpAddr,
    pub address: &'a str,
    pub encrypted: bool,
    /// It was answered with STATUS_PENDING under this AsyncId.
    pub async_id: Option<u64>,
    /// What it inherits from the requests before it in its compound.
    pub related: Related,
    /// Bytes that its answer may have.
    pub room: usize,
}

impl VerifiedRequest<'_> {
    pub fn dialect(&self) -> Dialect {
        self.negotiated.dialect
    }
}

/// RequestedOplockLevel, [MS-SMB2] 2.2.13.
const OPLOCK_LEVEL_AT: usize = HEADER_BYTES + 3;

/// Whether a request may be granted an oplock or a lease. `message`: from its header on.
pub fn asks_for_cache(header: &Header, message: &[u8]) -> bool {
    let is_create = header.command == Command::Create as u16;
    is_create && message.get(OPLOCK_LEVEL_AT).is_some_and(|level| *level != 0)
}

/// A request that is related to the one before it in its compound and comes directly behind it. Its session, protection and tree are that
/// one's.
pub struct Following<'a> {
    pub header: Header,
    /// From the header on.
    pub message: &'a [u8],
    pub room: usize,
}

/// What related requests inherit, [MS-SMB2] 3.3.5.2.7.2.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Related {
    pub file: Option<FileId>,
    pub tree_id: u32,
    /// Set when the request that should have given the file failed.
    pub failed: Option<NtStatus>,
}

impl Related {
    /// What the next request inherits when the one that left this was answered with `status`.
    #[must_use]
    pub fn behind(mut self, status: NtStatus) -> Related {
        if status.is_error() && self.file.is_none() && self.failed.is_none() {
            self.failed = Some(status);
        }
        self
    }
}

/// What came of a verified request.
#[derive(Debug)]
pub struct Answer {
    pub outcome: Outcome,
    /// For the next request of the compound; the TreeId that a TREE_CONNECT made.
    pub related: Related,
}

#[derive(Debug)]
pub enum Outcome {
    /// The response's body was appended.
    Done(NtStatus),
    /// An error with ErrorData and the number of error contexts in it, [MS-SMB2] 2.2.2.
    Error(NtStatus, Vec<u8>, u8),
    /// Not here: the same request again where it may block.
    Block,
    /// The same again when no other request works on its open (known to what it has in flight), where it may block.
    After,
    /// Asked elsewhere: the same again when the answer is there, which what it has in flight knows. Nobody is told meanwhile.
    Elsewhere,
    /// It waits, and goes on when this wait is over: the same request again, with its AsyncId.
    Pending(WaitId),
    /// The client is not to be trusted any more: the connection ends without an answer.
    Close(&'static str),
}

impl From<NtStatus> for Outcome {
    fn from(status: NtStatus) -> Outcome {
        Outcome::Error(status, Vec::new(), 0)
    }
}

/// Whom to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipient {
    /// Over any connection of this session.
    Session { id: u64, serial: u64 },
    /// Over the client's first connection, [MS-SMB2] 3.3.4.7.
    Client(ClientId),
}

/// What a client is told of the server's own accord.
#[derive(Debug, Clone)]
pub enum Notification {
    OplockBreak { id: FileId, to: OplockLevel },
    LeaseBreak(LeaseBreak),
}

/// The sessions' side as the trees need it.
pub trait Clients: Send + Sync {
    /// False: there is no connection over which to tell it.
    fn notify(&self, to: Recipient, what: &Notification) -> bool;
    /// Tells a client over its first connection to a node; None: to this one.
    fn notify_client_at(&self, node: Option<u16>, client: ClientId, what: &Notification) -> bool;
    /// A wait that the trees make themselves: it may be over before its request is put aside.
    fn announce(&self, wait: WaitId);
    /// The request that waits goes on.
    fn resume(&self, wait: WaitId);
    /// Nobody will wait for this.
    fn forget(&self, wait: WaitId);
    /// Whether a request waits for it, or is about to.
    fn is_awaited(&self, wait: WaitId) -> bool;
    /// For srvsvc, which tells of sessions too.
    fn view(&self) -> Option<Arc<dyn ServerView>>;
}
