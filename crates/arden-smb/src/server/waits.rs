//! Requests that wait for somebody else: put aside under the number of their wait until it is over.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use arden_lock::{Mutex, ranks};
use arden_store::fs::WaitId;

use crate::{
    model::{Peer, work::Parked},
    server::{Server, deferred::Deferred},
};

/// Marks the numbers of the server's own waits.
const OWN: u64 = 1 << 63;

enum Waiting {
    /// A wait of the server's own whose request is not put aside yet.
    Announced,
    /// The wait was over before its request was put aside.
    Resumed,
    Parked(Box<dyn Parked>),
}

/// Who waits for what.
#[derive(Default)]
pub(crate) struct Waits {
    parked: Mutex<HashMap<WaitId, Waiting>, ranks::Parked>,
    /// Creates with a CreateGuid that wait for somebody's oplock: their replays have to come later.
    creates: Mutex<HashSet<(u128, u128)>, ranks::PendingCreates>,
}

impl Waits {
    /// Whether the request of this wait goes on without the connection `peer_id`.
    pub fn survives(&self, wait: WaitId, peer_id: u64) -> bool {
        match self.parked.lock().get(&wait) {
            Some(Waiting::Parked(message)) => message.survives(peer_id),
            _ => false,
        }
    }
}

/// A create that waits; the note goes with it.
pub struct PendingCreate {
    server: Arc<Server>,
    key: (u128, u128),
}

impl Drop for PendingCreate {
    fn drop(&mut self) {
        self.server.waits.creates.lock().remove(&self.key);
    }
}

impl Server {
    /// Puts a request aside until its wait is over.
    pub fn park(&self, wait: WaitId, message: Box<dyn Parked>) {
        let peer = message.peer().clone();
        {
            let mut waits = self.waits.parked.lock();
            match waits.remove(&wait) {
                Some(Waiting::Resumed) => {}
                _ => {
                    waits.insert(wait, Waiting::Parked(message));
                    return;
                }
            }
        }
        self.go_on(peer, message);
    }

    fn go_on(&self, peer: Arc<Peer>, message: Box<dyn Parked>) {
        if peer.is_closed() { self.defer(Deferred::Run(message.detach())) } else { peer.resume(message) }
    }

    /// A wait of the server's own, from the upper half of the numbers; the table counts from below. Until it is over or
    /// taken back: to end it after that is nothing.
    pub fn new_wait(&self) -> WaitId {
        let wait = WaitId(OWN | self.next_id());
        self.waits.parked.lock().insert(wait, Waiting::Announced);
        wait
    }

    /// The wait is over: its request goes on.
    pub fn resume(&self, wait: WaitId) {
        let parked = {
            let mut waits = self.waits.parked.lock();
            match waits.remove(&wait) {
                Some(Waiting::Parked(message)) => message,
                None if wait.0 & OWN != 0 => return,
                _ => {
                    waits.insert(wait, Waiting::Resumed);
                    return;
                }
            }
        };
        let peer = parked.peer().clone();
        self.go_on(peer, parked);
    }

    /// Takes a waiting request back; it will not be resumed.
    pub fn unpark(&self, wait: WaitId) -> Option<Box<dyn Parked>> {
        let message = match self.waits.parked.lock().remove(&wait) {
            Some(Waiting::Parked(message)) => Some(message),
            _ => None,
        };
        self.table.cancel_wait(wait);
        message
    }

    pub fn create_is_pending(&self, client: u128, guid: u128) -> bool {
        self.waits.creates.lock().contains(&(client, guid))
    }
    pub fn note_pending_create(self: &Arc<Server>, client: u128, guid: u128) -> PendingCreate {
        self.waits.creates.lock().insert((client, guid));
        PendingCreate { server: self.clone(), key: (client, guid) }
    }
}
