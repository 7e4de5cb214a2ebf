//! Requests for shares that another node owns. `engine` stands before this node's trees and hands what is for others to a `link`,
//! the connection to the owner; `owner` is the other end, and runs requests of another node's sessions in this node's trees. Both
//! speak `model::wire` over a stream that proves which node is at its other end.

pub mod engine;
mod frames;
mod lanes;
mod link;
pub mod owner;
mod room;
mod turns;

use std::{future::Future, io, net::IpAddr, pin::Pin, time::Duration};

use tokio::io::{AsyncRead, AsyncWrite};

use crate::model::wire::{Target, Version};

/// A stream to a node whose identity was proved.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// With the version that both ends speak.
pub type Dialed = Pin<Box<dyn Future<Output = io::Result<(Box<dyn Stream>, Version)>> + Send>>;

/// Where a share is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// By this node, or by none: there may be no such share.
    Here,
    Node(u16, Target),
    /// Nobody owns its pool at the moment.
    Nobody,
}

/// What the nodes of a cluster know of each other.
pub trait Nodes: Send + Sync {
    /// Where a share is served, by its name in any case.
    fn place(&self, share: &str) -> Place;
    /// Where clients reach a node instead of this one; empty: nowhere.
    fn addresses(&self, node: u16) -> Vec<IpAddr>;
    /// The other nodes that are alive.
    fn others(&self) -> Vec<u16>;
    /// A new connection to a node.
    fn dial(&self, node: u16) -> Dialed;
}

/// A tree connect waits so long for an owner that answers. Then its client's connection ends, and the client tries again.
const OWNER_WAIT: Duration = Duration::from_secs(20);
/// How often it looks again.
const OWNER_WAIT_STEP: Duration = Duration::from_millis(100);
/// A request for which its user has no room is refused when nothing of the user was answered for so long.
const ROOM_WAIT: Duration = if cfg!(test) { Duration::from_millis(300) } else { Duration::from_secs(20) };
/// Dialing and the hello have so long.
const DIAL_WAIT: Duration = Duration::from_secs(5);
/// A logon that replaces a session, and LOGOFF, wait so long for other nodes to close what the session had open.
const ENDINGS_WAIT: Duration = Duration::from_secs(2);
/// A logon waits for a connection to a node until so long after it was begun: one that cannot be reached holds up few of them.
const PREVIOUS_DIAL_WAIT: Duration = Duration::from_secs(1);
/// The node of the client says something so often, and gives the connection up when it hears nothing for longer.
const PING_EVERY: Duration = Duration::from_secs(2);
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// One frame is written in this time.
const WRITE_WAIT: Duration = Duration::from_secs(30);
/// No more frames are read while so many bytes wait to be written. A user's requests wait before they are run while what their answers may have, and
/// answers that wait to be written, are half of what is free of this.
const UNSENT_BYTES_MAX: usize = 64 << 20;
