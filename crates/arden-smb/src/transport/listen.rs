//! Takes connections until the server stops, and runs what is to happen at its time.

use std::{
    fs::File,
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    net::TcpListener,
    runtime::Handle,
    sync::{Notify, watch},
};

use crate::{
    base::time::Time,
    server::Server,
    transport::{jobs::begin, shell::Transport},
};

/// Takes up one descriptor, until `accept` needs it.
const SPARE_DESCRIPTOR: &str = "/dev/null";
/// How long a server that stops waits for its connections.
const END_TIMEOUT: Duration = Duration::from_secs(10);

impl Server {
    /// Accepts connections until `shutdown` is done, then ends them: a client whose request was not answered finds its
    /// connection gone, and never learns from an answer that the server is taking its sessions down.
    pub async fn serve(
        self: &Arc<Server>,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let timers = tokio::spawn(timers(self.clone()));
        let live = Arc::new(AtomicUsize::new(0));
        let mut spare = File::open(SPARE_DESCRIPTOR).ok();
        let (stop, stopped) = watch::channel(false);
        tokio::pin!(shutdown);
        loop {
            let (socket, address) = tokio::select! {
                () = &mut shutdown => break,
                accepted = listener.accept() => match accepted {
                    Ok(x) => x,
                    Err(e) => {
                        // Out of descriptors, most likely. Who has not logged on gives some back, and with the spare one the
                        // next in the queue is told at once instead of waiting there.
                        tracing::warn!(error = %e, "accept failed");
                        self.admission.make_room();
                        drop(spare.take());
                        let _ = tokio::time::timeout(Duration::from_millis(100), listener.accept()).await;
                        spare = File::open(SPARE_DESCRIPTOR).ok();
                        continue;
                    }
                },
            };
            if socket.local_addr().is_ok_and(|local| !self.admits_at(local)) {
                continue;
            }
            let Some(transport) = Transport::admitted(self, socket, address) else { continue };
            live.fetch_add(1, Ordering::Relaxed);
            crate::base::metrics::count(&self.trees.metrics.connections, 1);
            let (live, stopped) = (live.clone(), stopped.clone());
            tokio::spawn(async move {
                let reason = transport.run(stopped).await;
                tracing::debug!(client = %address, reason, "connection closed");
                live.fetch_sub(1, Ordering::Relaxed);
            });
        }
        timers.abort();
        drop(stopped);
        stop.send_replace(true);
        // Every connection has a receiver until it has ended.
        if tokio::time::timeout(END_TIMEOUT, stop.closed()).await.is_err() {
            tracing::warn!(
                connections = live.load(Ordering::Relaxed),
                "connections have not ended: a disk that hangs?"
            );
        }
        Ok(())
    }
}

/// How often all opens are looked at for what is over.
const BEAT: Duration = Duration::from_millis(500);

/// Break time-outs, expired handles, and what table events left to do.
async fn timers(server: Arc<Server>) {
    let wake = Arc::new(Notify::new());
    let signal = wake.clone();
    server.trees.on_deferred(Box::new(move || signal.notify_one()));
    let (runtime, weak) = (Handle::current(), Arc::downgrade(&server));
    server.on_detached(Box::new(move |message| {
        if let Some(server) = weak.upgrade() {
            begin(&server, &runtime, message, None, None);
        }
    }));
    let mut looked = Time::read().now;
    let since = |looked: Instant| Time::read().now.duration_since(looked);
    loop {
        let _ = tokio::time::timeout(BEAT.saturating_sub(since(looked)), wake.notified()).await;
        let (server, looks) = (server.clone(), since(looked) >= BEAT);
        let _ = tokio::task::spawn_blocking(move || {
            server.trees.set_time(Time::read());
            server.trees.run_deferred();
            // Not each time that somebody has left something: there may be a million opens.
            if looks {
                server.tick(Time::read());
            }
        })
        .await;
        if looks {
            looked = Time::read().now;
        }
    }
}
