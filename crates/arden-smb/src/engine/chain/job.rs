//! Messages that go on on threads that may block.

use std::sync::Arc;

use arden_auth::Token;

use super::{Bytes, Chain, Element, Rest, State, run};
use crate::sessions::{
    Peer,
    work::{Answered, BlockingWork, Ran},
};

/// A chain and what it has answered so far.
pub(super) struct ChainJob {
    pub chain: Chain,
    pub out: Vec<u8>,
}

impl ChainJob {
    /// The frame that was begun in `out` goes along.
    pub fn of_begun(message: Bytes<'_>, mut state: State, out: &mut Vec<u8>) -> Ran {
        let out = state.begun_frame(out);
        ChainJob::rest(message, state, out).into()
    }

    /// `out`: the frame that was begun, moved into a buffer of its own.
    pub fn rest(message: Bytes<'_>, state: State, out: Vec<u8>) -> Rest {
        state.peer.pending.lock().begin_job();
        Some(Box::new(ChainJob { chain: Chain { message: message.into_owned(), state }, out }))
    }
}

impl Chain {
    /// As of [`BlockingWork`].
    pub fn bytes(&self) -> usize {
        let state = &self.state;
        let asked: usize = state.elements.iter().map(|e| usize::from(e.header.credit_charge.max(1)) << 16).sum();
        self.message.len().max(asked.min(state.server.trees.config.limits.answer_bytes_max))
    }

    /// The same, without what it has answered.
    pub fn waiting_bytes(&self) -> usize {
        let state = size_of::<State>() + self.state.elements.capacity() * size_of::<Element>();
        self.message.capacity() + state
    }

    pub fn user(&self) -> Option<Arc<Token>> {
        let elements = &self.state.elements;
        // Some requests of the message may name no session.
        let mut at_hand = elements.get(self.state.next).into_iter().chain(elements);
        at_hand.find_map(|element| Some(element.channel.as_ref()?.session.token()))
    }
}

impl BlockingWork for ChainJob {
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

    fn answer(self: Box<Self>, spent: &mut Vec<u8>) -> Answered {
        let ChainJob { chain, mut out } = *self;
        let peer = chain.state.peer.clone();
        *spent = chain.message;
        let Ran { rest, granting } = run(Bytes::Lent(spent), chain.state, &mut out, true);
        debug_assert!(rest.is_none());
        peer.pending.lock().end_job();
        Answered { frame: out, granting }
    }
}
