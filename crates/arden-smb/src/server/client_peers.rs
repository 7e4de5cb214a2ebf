//! The connections of each client, for breaks of leases: one change of a file may break thousands of them, and looks through all connections of
//! the server for each would take seconds.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
};

use arden_lock::{Mutex, ranks};
use arden_store::fs::ClientId;

use crate::sessions::{Peer, Session, to_be_told};

/// What is here may have ended; what has a session of a client is here.
#[derive(Default)]
pub struct ClientPeers(Mutex<HashMap<ClientId, BTreeMap<u64, Weak<Peer>>>, ranks::ClientPeers>);

impl ClientPeers {
    /// `peer` has got a channel of a session of this client. It may have lost it again.
    pub fn note(&self, client: ClientId, peer: &Arc<Peer>) {
        let mut all = self.0.lock();
        if session_of(peer, client).is_some() {
            all.entry(client).or_default().insert(peer.id, Arc::downgrade(peer));
        }
    }

    /// A channel of a session of this client has left `peer`.
    pub fn forget(&self, client: ClientId, peer: &Peer) {
        let mut all = self.0.lock();
        // Under the lock: who adds a channel notes it behind that.
        if session_of(peer, client).is_some() {
            return;
        }
        if let Some(peers) = all.get_mut(&client) {
            peers.remove(&peer.id);
            if peers.is_empty() {
                all.remove(&client);
            }
        }
    }

    /// The connection with a session of the client over which it is told something.
    pub fn told(&self, client: ClientId) -> Option<(Arc<Session>, Arc<Peer>)> {
        let all = self.0.lock();
        let there = all.get(&client)?.values().filter_map(Weak::upgrade).filter(|peer| !peer.is_closed());
        to_be_told(there.filter_map(|peer| Some((session_of(&peer, client)?, peer))), |(_, peer)| peer)
    }

    /// All connections with a session of the client.
    pub fn each(&self, client: ClientId, f: impl FnMut(Arc<Peer>)) {
        let peers: Vec<_> = self.0.lock().get(&client).into_iter().flat_map(BTreeMap::values).cloned().collect();
        peers.iter().filter_map(Weak::upgrade).for_each(f);
    }

    pub fn len(&self) -> usize {
        self.0.lock().values().map(BTreeMap::len).sum()
    }
}

fn session_of(peer: &Peer, client: ClientId) -> Option<Arc<Session>> {
    let channels = peer.channels.read();
    channels.values().map(|channel| &channel.session).find(|session| session.client == client).cloned()
}
