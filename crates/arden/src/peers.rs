//! Where the other nodes of a cluster connect to this daemon. Says who was refused, at most a few times a second, because anybody who
//! reaches the port can be refused.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arden_admin::{AdminError, error::Result};
use arden_coordinate::{
    Member,
    peers::{Listener, PeerError},
};

const DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 7445);
/// Refusals that are logged in each of these times.
const LOGGED_MAX: u64 = 10;
const LOGGED_IN: Duration = Duration::from_secs(10);

/// Listens for nodes.
///
/// # Errors
/// Failed, when the address cannot be listened on.
pub async fn listen(member: &Member, address: Option<SocketAddr>) -> Result<Listener> {
    let log = RefusalLog::new();
    let on_refused = Arc::new(move |from: SocketAddr, e: &PeerError| {
        if let Some(unlogged) = log.admit() {
            tracing::warn!(%from, unlogged, "a connection of another node was refused: {e}");
        }
    });
    let listener = Listener::bind(address.unwrap_or(DEFAULT), member.peers(), on_refused).await;
    listener.map_err(|e| AdminError::failed(e.to_string(), "choose another address with --cluster-listen"))
}

/// Limits how many refusals are logged.
struct RefusalLog {
    began: Instant,
    /// The number of the span of time that was logged in last, and refusals in it.
    span: AtomicU64,
    count: AtomicU64,
}

impl RefusalLog {
    fn new() -> RefusalLog {
        RefusalLog { began: Instant::now(), span: AtomicU64::new(0), count: AtomicU64::new(0) }
    }

    /// How many were not logged before this one; None: this one is not logged.
    fn admit(&self) -> Option<u64> {
        self.admit_at(self.began.elapsed())
    }

    fn admit_at(&self, elapsed: Duration) -> Option<u64> {
        let now = elapsed.as_secs() / LOGGED_IN.as_secs();
        let unlogged = match self.span.swap(now, Ordering::Relaxed) == now {
            true => 0,
            false => self.count.swap(0, Ordering::Relaxed).saturating_sub(LOGGED_MAX),
        };
        (self.count.fetch_add(1, Ordering::Relaxed) < LOGGED_MAX).then_some(unlogged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_refusals_are_logged_and_the_others_counted() {
        let log = RefusalLog::new();
        let logged = (0..100).filter(|_| log.admit_at(Duration::from_secs(1)).is_some()).count();
        assert_eq!(logged as u64, LOGGED_MAX);
        assert_eq!(log.admit_at(Duration::from_secs(11)), Some(90));
        assert_eq!(log.admit_at(Duration::from_secs(12)), Some(0));
    }
}
