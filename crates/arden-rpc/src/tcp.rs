//! RPC over TCP (ncacn_ip_tcp), [MS-RPCE] 2.1.1.1 and 3.3, as a state machine without sockets and clock: bytes of one
//! connection go in, bytes and what to do next come out.
//!
//! - **Who may**: an interface says whether its calls need a logon. Such a call is answered only on a connection with a
//!   logon at the level packet integrity or packet privacy; every fragment has to bear the signature of the next message
//!   of that logon. Other levels, and no logon, get the fault access denied. A connection has one logon.
//! - **Cost**: [`FRAG_MAX`], [`CALL_BYTES_MAX`], [`CONTEXTS_MAX`] and [`CALLS_MAX`] bound what a connection makes the server
//!   keep. Who carries the bytes bounds connections, logons and time.
//! - A protocol error ends the connection.

mod association;
mod connection;

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use arden_auth::{MessageSecurity, Token};
use arden_wire::rpc::Syntax;

pub use association::Associations;
pub use connection::{CALL_BYTES_MAX, CALLS_MAX, CONTEXTS_MAX, Connection, FRAG_MAX, Flow};

use crate::call::Fault;
use connection::Outbox;

/// The result of one token of a logon.
pub enum LogonStep {
    /// The client has to answer this token.
    Continue(Vec<u8>),
    /// `reply` goes with the last answer and may be empty.
    Done { reply: Vec<u8>, logon: Authenticated },
    /// The client hears of it after `delay`.
    Refused { delay: Duration },
}

/// A completed logon.
pub struct Authenticated {
    pub user: Arc<Token>,
    /// `None`: the client negotiated neither signing nor sealing.
    pub security: Option<MessageSecurity>,
    /// Counts the logon until it is dropped.
    pub standing: Box<dyn Standing>,
}

/// Whether a user is still what he was when he logged on.
pub trait Standing: Send {
    /// False: the account is gone or disabled, or has lost a group.
    fn is_good(&self) -> bool;
}

/// One authentication under way.
pub trait Logon: Send {
    /// Processes the client's next token.
    fn step(&mut self, token: &[u8]) -> LogonStep;
}

/// What a connection needs of its server.
pub trait Host: Send + Sync {
    /// Begins a logon; `None`: there are too many.
    fn begin_logon(&self) -> Option<Box<dyn Logon>>;
    /// Fresh random bytes.
    fn random(&self) -> [u8; 16];
}

/// Who calls.
pub struct Caller {
    /// `None`: there was no logon, and the interface needs none.
    pub user: Option<Arc<Token>>,
    pub address: IpAddr,
    /// The server's address that the client has connected to.
    pub local: IpAddr,
    /// The association group, [MS-RPCE] 3.3.1.1.1; 0 without a logon.
    pub group: u32,
}

/// What becomes of a call.
pub enum Called {
    /// The stub of its response, or the status of its fault.
    Done(Result<Vec<u8>, u32>),
    /// It is answered later through its [`Reply`]. The number is that to cancel it by.
    Waits(u64),
}

impl Called {
    /// A fault, [C706] appendix E.
    pub(crate) fn fault(fault: Fault) -> Called {
        Called::Done(Err(fault.0))
    }
}

/// Answers one call that waits, from any thread. It is of no effect once the call was cancelled or its connection ended.
pub struct Reply {
    outbox: Arc<Outbox>,
    call_id: u32,
}

impl Reply {
    /// Sends the stub of the response, or the status of a fault.
    pub fn send(self, answer: Result<Vec<u8>, u32>) {
        self.outbox.push(self.call_id, answer);
    }
}

/// An interface that is offered over TCP.
pub trait TcpInterface: Send + Sync {
    /// Its UUID and version, minor in the high half.
    fn syntax(&self) -> Syntax;
    /// Whether calls need a logon with packet integrity at least.
    fn needs_logon(&self) -> bool;
    /// Runs a call.
    fn call(&self, caller: &Caller, opnum: u16, stub: &[u8], reply: Reply, now: Instant) -> Called;
    /// The caller does not wait any more.
    fn cancel(&self, wait: u64);
    /// The last connection of a group has ended: its context handles are run down.
    fn group_ended(&self, group: u32);
}

/// The interfaces of one port.
pub struct TcpService {
    interfaces: Vec<Arc<dyn TcpInterface>>,
    associations: Associations,
}

impl TcpService {
    /// A service without connections.
    pub fn new(interfaces: Vec<Arc<dyn TcpInterface>>) -> Arc<TcpService> {
        Arc::new(TcpService { interfaces, associations: Associations::default() })
    }

    fn leave(&self, group: u32) {
        if self.associations.leave(group) {
            self.interfaces.iter().for_each(|i| i.group_ended(group));
        }
    }
}
