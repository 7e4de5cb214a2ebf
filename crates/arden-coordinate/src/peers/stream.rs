//! A connection to a node, which ends when the node leaves the cluster, gets another certificate, or is not alive as the same run any
//! more; one for shares also when this node itself is not alive.

use std::{
    fmt,
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::watch,
};
use tokio_rustls::TlsStream;

use super::{Known, Me, Table, Tcp};
use crate::identity::Fingerprint;

/// What a connection rests on.
#[derive(Debug, Clone)]
pub(super) struct Bond {
    /// This node has to be alive too. None: that does not matter.
    pub me: Option<Me>,
    pub node: u16,
    pub fingerprint: Fingerprint,
    pub run: String,
}

impl Bond {
    pub(super) fn holds(&self, table: &Table) -> bool {
        self.is_peer_there(table) && self.me.as_ref().is_none_or(|me| is_me_alive(table, me))
    }

    pub(super) fn is_peer_there(&self, table: &Table) -> bool {
        let is_it = |k: &Known| k.fingerprint == Some(self.fingerprint) && k.run.as_ref() == Some(&self.run);
        table.get(&self.node).is_some_and(is_it)
    }
}

/// Whether the lease of this node is good.
pub(super) fn is_me_alive(table: &Table, me: &Me) -> bool {
    table.get(&me.node).is_some_and(|k| k.run.as_ref() == Some(&me.run))
}

/// A connection to a node. Reads and writes fail from the moment on at which its bond was seen not to hold.
pub struct PeerStream {
    tls: TlsStream<Tcp>,
    table: watch::Receiver<Table>,
    bond: Bond,
    /// The bond did not hold at some time: it does not come back, though the node may.
    ended: bool,
    /// Ends when the bond does not hold. Wakes the reader only, so that a stream can be split.
    gone: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
}

impl fmt::Debug for PeerStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerStream").field("node", &self.bond.node).finish_non_exhaustive()
    }
}

fn ended() -> io::Error {
    let why = "by etcd one of both nodes is not alive any more, was started again, left, or has another certificate";
    io::Error::new(io::ErrorKind::ConnectionAborted, why)
}

impl PeerStream {
    pub(super) fn new(tls: TlsStream<Tcp>, table: watch::Receiver<Table>, bond: Bond) -> PeerStream {
        let (mut watched, watches) = (table.clone(), bond.clone());
        let gone = Box::pin(async move {
            // An error: the table itself is gone, and nobody vouches for the node any more.
            let _ = watched.wait_for(|t| !watches.holds(t)).await;
        });
        PeerStream { tls, table, bond, ended: false, gone }
    }

    fn check(&mut self) -> io::Result<()> {
        self.ended = self.ended || !self.bond.holds(&self.table.borrow());
        if self.ended { Err(ended()) } else { Ok(()) }
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // Once it is ready it is not polled again: `check` says so from then on.
        self.check()?;
        if self.gone.as_mut().poll(cx).is_ready() {
            self.ended = true;
            return Poll::Ready(Err(ended()));
        }
        Pin::new(&mut self.tls).poll_read(cx, buf)
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.tls).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.tls).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }
}
