//! A connection to a node, which ends when the node leaves the cluster or gets another certificate.

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

use super::{Table, Tcp};
use crate::identity::Fingerprint;

/// A connection to a node. Reads and writes fail once the node has left.
pub struct PeerStream {
    tls: TlsStream<Tcp>,
    table: watch::Receiver<Table>,
    node: u16,
    fingerprint: Fingerprint,
    /// Ends when the node is gone. Wakes the reader only, so that a stream can be split.
    gone: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
}

impl fmt::Debug for PeerStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerStream").field("node", &self.node).finish_non_exhaustive()
    }
}

fn is_there(table: &Table, node: u16, fingerprint: Fingerprint) -> bool {
    table.get(&node).is_some_and(|k| k.fingerprint == Some(fingerprint))
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the node has left the cluster, or has another certificate")
}

impl PeerStream {
    pub(super) fn new(
        tls: TlsStream<Tcp>,
        table: watch::Receiver<Table>,
        node: u16,
        fingerprint: Fingerprint,
    ) -> PeerStream {
        let mut watched = table.clone();
        let gone = Box::pin(async move {
            // An error: the table itself is gone, and nobody vouches for the node any more.
            let _ = watched.wait_for(|t| !is_there(t, node, fingerprint)).await;
        });
        PeerStream { tls, table, node, fingerprint, gone }
    }

    fn check(&self) -> io::Result<()> {
        match is_there(&self.table.borrow(), self.node, self.fingerprint) {
            true => Ok(()),
            false => Err(ended()),
        }
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // Once it has ended it is not polled again: `check` says the same from then on.
        self.check()?;
        if self.gone.as_mut().poll(cx).is_ready() {
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
