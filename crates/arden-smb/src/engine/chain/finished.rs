//! Messages whose answers wait until what they speak of is durable, without a thread.

use std::sync::atomic::Ordering;

use arden_store::{commit::LaterCommit, error::StoreError};

use super::{Element, State};
use crate::{base::buffers::Paid, engine::commits::Commits, sessions::work::Answers, trees::deferred::Deferred};

/// A message whose answers wait to be sent, now that it is known whether what they speak of is durable.
pub(super) struct Finished {
    state: State,
    out: Vec<u8>,
    committed: Result<(), StoreError>,
    /// Kept from being freed with the frame.
    commits: Commits,
    /// The user pays until the answers have left, however long the commit takes and whoever does not read them.
    paid: Option<Paid>,
}

impl Finished {
    /// Begins to commit what `state` has changed, without a thread that waits. Answers leave when that is done.
    pub(super) fn commit(commit: LaterCommit, state: State, out: Vec<u8>) {
        state.server.committing.fetch_add(1, Ordering::Relaxed);
        // Some requests of the message may name no session.
        let token = state.elements.iter().find_map(|element| Some(element.channel.as_ref()?.session.token()));
        let payer = token.map(|token| state.server.buffers.payer(&token, state.peer.ip));
        let bytes = out.capacity() + size_of::<State>() + state.elements.capacity() * size_of::<Element>();
        let paid = payer.map(|payer| payer.owe(bytes));
        commit.run(Box::new(move |committed| {
            Finished { state, out, committed, commits: Commits::default(), paid }.hand_over();
        }));
    }

    /// The thread that tells of a commit has to write for others, and must not be the one that frees what is used here. It
    /// sends the answer itself where no other message of the server waits for a commit: nobody has to be woken for it. Several are
    /// for their connections, which sign and send them side by side.
    fn hand_over(mut self) {
        let (server, peer) = (self.state.server.clone(), self.state.peer.clone());
        let granting = self.state.take_granting();
        let alone = server.committing.fetch_sub(1, Ordering::Relaxed) == 1;
        if let Some(undelivered) = peer.finish(Box::new(self), alone) {
            server.trees.defer(Deferred::Other(Box::new(move || drop(undelivered))));
        }
        // Breaks of what the answer grants are behind it.
        drop(granting);
    }
}

impl Answers for Finished {
    fn bytes(&self) -> usize {
        self.out.len()
    }

    fn frame(&mut self) -> Vec<u8> {
        self.commits = self.state.committed(&mut self.out, self.committed);
        self.state.finish_frame(&mut self.out);
        std::mem::take(&mut self.out)
    }

    fn is_written(&mut self) {
        self.paid = None;
    }
}
