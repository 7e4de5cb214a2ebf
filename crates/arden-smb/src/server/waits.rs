//! Requests that wait for somebody else: put aside under the number of their wait until it is over.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use arden_lock::{Mutex, ranks};
use arden_store::fs::WaitId;
use arden_wire::NtStatus;

use crate::{
    server::Server,
    sessions::{
        Peer,
        work::{BlockingWork, Parked, Ran, Without},
    },
    trees::deferred::Deferred,
};

/// Marks the numbers of waits that are not the open table's.
const OWN: u64 = 1 << 63;

enum Waiting {
    /// A wait of the trees' own whose request is not put aside yet.
    Announced,
    /// The wait was over before its request was put aside.
    Resumed,
    Parked(Box<dyn Parked>),
    /// Another node's request: who tells it.
    Forwarded(Box<dyn FnOnce() + Send>),
}

/// Who waits for what.
#[derive(Default)]
pub(crate) struct Waits {
    parked: Mutex<HashMap<WaitId, Waiting>, ranks::Parked>,
    runner: OnceLock<Runner>,
}

/// Has a message run on a thread that may block, in its user's turn.
pub type Runner = Box<dyn Fn(Box<dyn BlockingWork>) + Send + Sync>;

impl Waits {
    pub(super) fn is_awaited(&self, wait: WaitId) -> bool {
        self.parked.lock().contains_key(&wait)
    }

    /// What becomes of the request of this wait without the connection `peer_id`.
    fn without(&self, wait: WaitId, peer_id: u64) -> Without {
        match self.parked.lock().get(&wait) {
            Some(Waiting::Parked(message)) => message.without(peer_id),
            _ => Without::Forgotten,
        }
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

    /// The message runs on: at its connection, or where that is gone on a thread that may block.
    pub(crate) fn go_on(&self, peer: Arc<Peer>, message: Box<dyn Parked>) {
        let gone = if peer.is_closed() { Some(message) } else { peer.resume(message) };
        // Nobody hears the answer, but what was asked for happens.
        gone.into_iter().for_each(|message| self.run_unheard(message.detach()));
    }

    /// The same with a message that was elsewhere. Where its connection rests, and has nothing else there, the caller runs the message and
    /// sends what it answers: nobody has to be woken for it.
    pub(crate) fn go_on_here(&self, peer: Arc<Peer>, message: Box<dyn Parked>, bytes: usize) {
        if peer.is_closed() || !peer.rests(bytes) {
            return self.go_on(peer, message);
        }
        let mut out = Vec::new();
        let Ran { rest, granting } = message.run_beside(&mut out);
        peer.send_here(out);
        drop(granting);
        rest.into_iter().for_each(|job| peer.run(job));
    }

    /// Who runs requests whose connection is gone; `run_deferred` itself where nobody is named. The first call counts.
    pub fn on_detached(&self, runner: Runner) {
        let _ = self.waits.runner.set(runner);
    }

    /// Another node's request waits: `over` is called when its wait is over.
    pub(crate) fn park_forwarded(&self, wait: WaitId, over: Box<dyn FnOnce() + Send>) {
        {
            let mut waits = self.waits.parked.lock();
            match waits.remove(&wait) {
                Some(Waiting::Resumed) => {}
                _ => {
                    waits.insert(wait, Waiting::Forwarded(over));
                    return;
                }
            }
        }
        over();
    }

    fn run_detached(&self, message: Box<dyn BlockingWork>) {
        match self.waits.runner.get() {
            Some(runner) => runner(message),
            None => message.run(),
        }
    }

    pub(super) fn announce_wait(&self, wait: WaitId) {
        self.waits.parked.lock().insert(wait, Waiting::Announced);
    }

    /// The wait is over: its request goes on.
    pub fn resume_request(&self, wait: WaitId) {
        let parked = {
            let mut waits = self.waits.parked.lock();
            match waits.remove(&wait) {
                Some(Waiting::Parked(message)) => message,
                Some(Waiting::Forwarded(over)) => {
                    drop(waits);
                    return over();
                }
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

    /// The connection `peer_id` is lost, over which a request came that waits.
    pub(super) fn leave_waiting(&self, wait: WaitId, peer_id: u64) {
        let without = self.waits.without(wait, peer_id);
        if without == Without::GoesOn {
            return;
        }
        if let Some(message) = self.unpark(wait) {
            self.go_on_without(message, without);
        }
    }

    /// The same with a message that was to go on at the connection, and did not come to it.
    pub(super) fn leave_resumed(&self, message: Box<dyn Parked>, peer_id: u64) {
        let without = message.without(peer_id);
        self.go_on_without(message, without);
    }

    fn go_on_without(&self, message: Box<dyn Parked>, without: Without) {
        match without {
            Without::Forgotten => {}
            Without::Cancelled => {
                // Nobody hears what it answers; but what it has of its handle ends, and the rest of its message runs.
                let Ran { rest, granting } = message.abort(NtStatus::CANCELLED, &mut Vec::new());
                drop(granting);
                rest.into_iter().for_each(|rest| self.run_unheard(rest));
            }
            Without::GoesOn => self.run_unheard(message.detach()),
        }
    }

    /// On a thread that may block. What it does may take long, and others' breaks are seen to on the caller's.
    fn run_unheard(&self, message: Box<dyn BlockingWork>) {
        let me = self.me.clone();
        self.trees.defer(Deferred::Other(Box::new(move || match me.upgrade() {
            Some(server) => server.run_detached(message),
            None => drop(message),
        })));
    }

    /// Nobody is put aside for this wait. Its caller may hold any lock.
    pub(crate) fn forget_wait(&self, wait: WaitId) {
        let me = self.me.clone();
        self.trees.defer(Deferred::Other(Box::new(move || drop(me.upgrade().and_then(|server| server.unpark(wait))))));
    }

    /// Takes a waiting request back; it will not be resumed.
    pub fn unpark(&self, wait: WaitId) -> Option<Box<dyn Parked>> {
        let message = match self.waits.parked.lock().remove(&wait) {
            Some(Waiting::Parked(message)) => Some(message),
            _ => None,
        };
        self.trees.table.cancel_wait(wait);
        message
    }
}
