//! Messages whose current request another engine has: put aside without a thread, and counted for their connection, until it has
//! answered.

use std::sync::{Arc, atomic::Ordering};

use arden_wire::NtStatus;

use super::{Bytes, Chain, ChainJob, State, run};
use crate::{
    base::buffers::Paid,
    sessions::{
        Peer,
        work::{BlockingWork, Parked, Ran, Without},
    },
};

/// A message whose current request another engine has, and what it has answered so far. No thread is kept for it.
struct AskedElsewhere {
    chain: Chain,
    out: Vec<u8>,
    /// Counted for its connection.
    bytes: usize,
    is_held: bool,
    /// Paid by the user for what is kept beside these: answers that were made before, and other requests of the message.
    _paid: Option<Paid>,
}

/// So much may be kept beside what the other engine was asked for without being paid for.
const BESIDE_BYTES_MAX: usize = 64 << 10;

impl AskedElsewhere {
    /// It does not wait for the other engine any more. `run` says what comes next.
    fn go_on<T>(self, run: impl FnOnce(Chain, Vec<u8>) -> T) -> T {
        let peer = self.chain.state.peer.clone();
        peer.elsewhere_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        peer.elsewhere_is_much.store(false, Ordering::Relaxed);
        if self.is_held {
            peer.elsewhere_held.fetch_sub(1, Ordering::Relaxed);
        }
        let done = run(self.chain, self.out);
        // Afterwards: a CANCEL that came meanwhile is for a wait that this may have begun.
        peer.pending.lock().end_job();
        done
    }
}

impl Parked for AskedElsewhere {
    fn peer(&self) -> &Arc<Peer> {
        &self.chain.state.peer
    }

    fn without(&self, peer_id: u64) -> Without {
        self.chain.without(peer_id)
    }

    fn run_beside(mut self: Box<Self>, out: &mut Vec<u8>) -> Ran {
        self.chain.state.beside = true;
        self.run(out, false)
    }

    fn run(self: Box<Self>, out: &mut Vec<u8>, may_block: bool) -> Ran {
        self.go_on(|Chain { message, mut state }, begun| {
            state.restore_frame(out, &begun);
            run(Bytes::Owned(message), state, out, may_block)
        })
    }

    fn abort(mut self: Box<Self>, status: NtStatus, out: &mut Vec<u8>) -> Ran {
        let i = self.chain.state.next;
        self.chain.state.elements[i].refused = Some(status);
        self.run(out, false)
    }

    fn detach(self: Box<Self>) -> Box<dyn BlockingWork> {
        self.go_on(|chain, out| {
            chain.state.peer.pending.lock().begin_job();
            Box::new(ChainJob { chain, out })
        })
    }
}

/// Runs the message on when the engine that has its current request has answered.
pub(super) fn run_when_answered(message: Bytes<'_>, mut state: State, out: &mut Vec<u8>) {
    let out = state.begun_frame(out);
    // The other node may be long, and holds the breaks of what it grants itself until it has answered.
    let paused = state.pause_granting();
    let (server, peer) = (state.server.clone(), state.peer.clone());
    let Some(asked) = state.in_flight.elsewhere.clone() else {
        debug_assert!(false, "an engine that asked another says which");
        return state.close_connection("a request was lost");
    };
    let bytes = state.in_flight.bytes_elsewhere();
    peer.elsewhere_asked.fetch_add(1, Ordering::Relaxed);
    peer.elsewhere_bytes.fetch_add(bytes, Ordering::Relaxed);
    if asked.is_much() {
        peer.elsewhere_is_much.store(true, Ordering::Relaxed);
    }
    let is_held = asked.is_held();
    if is_held {
        peer.elsewhere_held.fetch_add(1, Ordering::Relaxed);
    }
    peer.pending.lock().begin_job();
    let message = message.into_owned();
    let beside = (message.len() + out.len()).saturating_sub(bytes);
    let channel = state.elements[state.next].channel.as_ref().filter(|_| beside > BESIDE_BYTES_MAX);
    let paid = channel.map(|channel| server.buffers.payer(&channel.session.token(), peer.ip).owe(beside));
    let mut message = AskedElsewhere { chain: Chain { message, state }, out, bytes, is_held, _paid: paid };
    asked.when_answered(Box::new(move |here| {
        message.chain.state.grant_again(&paused);
        match here {
            true => server.go_on_here(peer, Box::new(message), bytes),
            false => server.go_on(peer, Box::new(message)),
        }
    }));
}
