//! Messages whose current request has to wait for somebody else: put aside, once what was changed before is durable.

use std::sync::Arc;

use arden_auth::Token;
use arden_store::{commit::LaterCommit, error::StoreError, fs::WaitId};
use arden_wire::{NtStatus, smb2::Command};

use super::{Bytes, Chain, State, run};
use crate::{
    base::{buffers::fitted, status, usage::Charge},
    server::Server,
    sessions::{
        Peer, PendingRequest,
        work::{Answered, BlockingWork, Parked, Ran, Without},
    },
};

/// The message runs on at once: its current request may not wait, and `refused` says why. Err: it is put aside, or has to run
/// where it may block.
pub(super) type Aside<'a> = Result<(Bytes<'a>, State), Ran>;

/// Parks the message until `wait` is over. What was answered before leaves with the interim response, and what this request
/// changed before it waits is committed with it: where that failed, the request fails and does not wait.
pub(super) fn put_aside<'a>(
    message: Bytes<'a>,
    mut state: State,
    wait: WaitId,
    out: &mut Vec<u8>,
    may_block: bool,
) -> Aside<'a> {
    state.in_flight.end_work();
    if !state.may_wait() {
        // [MS-SMB2] 3.3.5.2.7: in the middle of a compound only a CREATE or SET_INFO may go asynchronous.
        return refuse(message, state, wait, NtStatus::INTERNAL_ERROR);
    }
    if may_block || !state.commits.scope.is_due() {
        let committed = state.commits.scope.commit();
        return begin_wait(message, state, (wait, committed), out, may_block);
    }
    // The connection goes on meanwhile.
    if !state.pays_for_wait(message.get().len()) {
        return refuse(message, state, wait, NtStatus::INSUFFICIENT_RESOURCES);
    }
    let begun = state.frame.start.map_or(0, |at| out.len() - at);
    let Ok(paid) = state.charge_answers(begun) else {
        return refuse(message, state, wait, NtStatus::INSUFFICIENT_RESOURCES);
    };
    state.beside = false;
    state.peer.pending.lock().begin_job();
    let (commit, out) = (state.commits.scope.later(), state.begun_frame(out));
    let wait = Unattended { server: state.server.clone(), wait: Some(wait) };
    let chain = Chain { message: message.into_owned(), state };
    let message = BeforeWait { chain, out, paid, wait, committed: None };
    match commit {
        Some(commit) => {
            message.commit(commit);
            Err(Ran::default())
        }
        None => Err(Ran { rest: Some(Box::new(message)), ..Ran::default() }),
    }
}

fn refuse(message: Bytes<'_>, mut state: State, wait: WaitId, status: NtStatus) -> Aside<'_> {
    state.server.unpark(wait);
    let i = state.next;
    state.elements[i].refused = Some(status);
    Ok((message, state))
}

/// The same when it is known whether the changes are durable.
fn begin_wait<'a>(
    message: Bytes<'a>,
    mut state: State,
    (wait, committed): (WaitId, Result<(), StoreError>),
    out: &mut Vec<u8>,
    may_block: bool,
) -> Aside<'a> {
    drop(state.committed(out, committed));
    // From here, and not with what its connection sends next: somebody else may make the other response from now on.
    let leaves_here = may_block || state.beside;
    let paid = state.charge_answers(if leaves_here { out.len() } else { 0 });
    let refused = if let Err(error) = committed {
        Some(status::of_error(error))
    } else if let Some(status) = state.elements[state.next].refused {
        Some(status)
    } else if paid.is_err() || state.async_id.is_none() && !state.go_async(out, wait, message.get().len()) {
        Some(NtStatus::INSUFFICIENT_RESOURCES)
    } else {
        None
    };
    if let Some(status) = refused {
        return refuse(message, state, wait, status);
    }
    if leaves_here && !out.is_empty() {
        state.peer.send_holding(fitted(std::mem::take(out)), Box::new(paid));
    }
    state.beside = false;
    // It may wait for the answer to a break.
    state.granting.clear();
    let (server, peer) = (state.server.clone(), state.peer.clone());
    // A CANCEL finds the request waiting and put aside, or keeps it from that.
    let mut pending = peer.pending.lock();
    if let Some(id) = state.async_id {
        let element = &state.elements[state.next];
        let session_id = element.channel.as_ref().map_or(0, |c| c.session.id);
        let header = &element.header;
        // The requests of a lost connection were cancelled before, and this one would not be.
        let is_late = peer.is_closed() && header.command != Command::Create as u16;
        if is_late || !pending.wait(id, PendingRequest { message_id: header.message_id, session_id, wait }) {
            drop(pending);
            return refuse(message, state, wait, NtStatus::CANCELLED);
        }
    }
    server.park(wait, Box::new(Chain { message: message.into_owned(), state }));
    Err(Ran::default())
}

/// A wait that no request is put aside for yet. It may be over meanwhile.
struct Unattended {
    server: Arc<Server>,
    wait: Option<WaitId>,
}

impl Drop for Unattended {
    fn drop(&mut self) {
        // The message was forgotten with its connection.
        if let Some(wait) = self.wait.take() {
            self.server.forget_wait(wait);
        }
    }
}

/// A message whose current request is about to wait, and what it has answered so far, until that is durable.
struct BeforeWait {
    chain: Chain,
    out: Vec<u8>,
    /// For these answers.
    paid: Option<Charge>,
    wait: Unattended,
    /// None: it is to be committed on a thread that may block.
    committed: Option<Result<(), StoreError>>,
}

impl BeforeWait {
    /// No thread waits for it. A CANCEL that comes meanwhile keeps the request from waiting.
    fn commit(self, commit: LaterCommit) {
        let (server, peer) = (self.chain.state.server.clone(), self.chain.state.peer.clone());
        commit.run(Box::new(move |committed| {
            server.go_on(peer, Box::new(BeforeWait { committed: Some(committed), ..self }));
        }));
    }

    fn go_on(self, out: &mut Vec<u8>, may_block: bool) -> Ran {
        let BeforeWait { chain: Chain { message, mut state }, out: begun, paid, mut wait, committed } = self;
        let peer = state.peer.clone();
        state.restore_frame(out, &begun);
        drop(begun);
        let committed = committed.unwrap_or_else(|| state.commits.scope.commit());
        // What leaves here is paid for anew.
        drop(paid);
        let message = Bytes::Owned(message);
        let aside = match wait.wait.take() {
            Some(wait) => begin_wait(message, state, (wait, committed), out, may_block),
            None => Ok((message, state)),
        };
        let ran = match aside {
            Ok((message, state)) => run(message, state, out, may_block),
            Err(ran) => ran,
        };
        // Afterwards: a CANCEL that came meanwhile is for the wait that this has begun.
        peer.pending.lock().end_job();
        ran
    }
}

impl Parked for BeforeWait {
    fn peer(&self) -> &Arc<Peer> {
        &self.chain.state.peer
    }

    fn without(&self, peer_id: u64) -> Without {
        self.chain.without(peer_id)
    }

    fn run(self: Box<Self>, out: &mut Vec<u8>, may_block: bool) -> Ran {
        self.go_on(out, may_block)
    }

    fn run_beside(mut self: Box<Self>, out: &mut Vec<u8>) -> Ran {
        self.chain.state.beside = true;
        self.go_on(out, false)
    }

    fn abort(mut self: Box<Self>, status: NtStatus, out: &mut Vec<u8>) -> Ran {
        let i = self.chain.state.next;
        self.chain.state.elements[i].refused = Some(status);
        self.go_on(out, false)
    }

    fn detach(self: Box<Self>) -> Box<dyn BlockingWork> {
        self
    }
}

impl BlockingWork for BeforeWait {
    fn bytes(&self) -> usize {
        self.chain.bytes()
    }

    fn waiting_bytes(&self) -> usize {
        self.chain.waiting_bytes() + self.out.capacity()
    }

    fn user(&self) -> Option<Arc<Token>> {
        self.chain.user()
    }

    fn peer(&self) -> &Arc<Peer> {
        &self.chain.state.peer
    }

    fn answer(self: Box<Self>, _spent: &mut Vec<u8>) -> Answered {
        let mut out = Vec::new();
        let Ran { rest, granting } = self.go_on(&mut out, true);
        debug_assert!(rest.is_none());
        Answered { frame: out, granting }
    }
}
