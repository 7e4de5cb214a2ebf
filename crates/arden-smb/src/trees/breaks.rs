//! Oplock and lease breaks that the open table asks for: who has to be told, [MS-SMB2] 3.3.4.6 and 3.3.4.7.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use arden_store::{
    commit::CommitScope,
    fs::{LeaseBreak, OpenId, OpenOwner, OplockLevel, WaitId, lease_state},
};

use arden_lock::{Mutex, ranks};

use crate::{
    base::metrics::count,
    model::{
        Durability, SmbOpen,
        seam::{Notification, Recipient},
    },
    trees::{Trees, deferred::Deferred},
};

/// What the table says of an open.
enum Break {
    Oplock(OplockLevel, bool),
    Lease(LeaseBreak),
}

/// Opens whose CREATE is under way, by their reserved ids, each with the breaks that came meanwhile.
#[derive(Default)]
pub(crate) struct Openings(Mutex<HashMap<u64, Vec<Break>>, ranks::Openings>);

impl Openings {
    /// Keeps a break for an open that is on its way; gives it back when the open is not.
    fn note(&self, open: OpenId, b: Break) -> Option<Break> {
        match self.0.lock().get_mut(&open.0) {
            Some(breaks) => breaks.push(b),
            None => return Some(b),
        }
        None
    }

    fn first_of(&self, opens: &[OpenId]) -> Option<OpenId> {
        let openings = self.0.lock();
        opens.iter().copied().find(|id| openings.contains_key(&id.0))
    }
}

/// An open from its reservation until it is registered or has failed. The table may speak of it as soon as it is
/// admitted: what it says is told when this is dropped, and kept with what its CREATE keeps.
pub(crate) struct Opening<'a> {
    trees: &'a Trees,
    scope: &'a CommitScope,
    pub id: OpenId,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let breaks = self.trees.openings.0.lock().remove(&self.id.0);
        for b in breaks.into_iter().flatten() {
            match b {
                Break::Oplock(to, ack) => self.trees.break_oplock(self.scope, self.id, to, ack),
                Break::Lease(b) => self.trees.break_lease(self.scope, &b),
            }
        }
    }
}

impl Trees {
    /// A new open; its id is the table's.
    pub(crate) fn begin_open<'a>(&'a self, scope: &'a CommitScope) -> Opening<'a> {
        self.begin_open_as(scope, self.table.reserve_open())
    }

    /// The same for an open that had its id before.
    pub(crate) fn begin_open_as<'a>(&'a self, scope: &'a CommitScope, id: OpenId) -> Opening<'a> {
        self.openings.0.lock().insert(id.0, Vec::new());
        Opening { trees: self, scope, id }
    }

    fn break_oplock(&self, scope: &CommitScope, id: OpenId, to: OplockLevel, ack: bool) {
        if self.openings.note(id, Break::Oplock(to, ack)).is_none() {
            return;
        }
        count(&self.metrics.breaks, 1);
        self.keep_open(scope, id.0);
        // One that is gone has nobody to tell.
        let Some(open) = self.open(id.0) else { return };
        let session = open.session();
        let was_connected = session.is_some();
        if let Some(session) = session {
            // Before the client hears of it, and may answer.
            open.state.lock().breaking = ack;
            let told = Notification::OplockBreak { id: open.id, to };
            let to = Recipient::Session { id: session.id, serial: session.serial };
            if self.notify(to, &told) {
                return;
            }
            open.state.lock().breaking = false;
        }
        self.leave_unanswered(scope, open, was_connected);
    }

    /// Nobody can answer the break of what the open caches, [MS-SMB2] 3.3.4.6 and 3.3.4.7. One that waits for its client by what it
    /// caches is closed. A resilient one stays and caches nothing any more; the client of a persistent one is told when it comes back.
    fn leave_unanswered(&self, scope: &CommitScope, open: Arc<SmbOpen>, was_connected: bool) {
        let durability = {
            let mut state = open.state.lock();
            if !was_connected && state.session.is_some() {
                // It came back meanwhile.
                drop(state);
                return self.tell_break_later(&open);
            }
            let closes = !matches!(state.durability, Durability::Persistent { .. } | Durability::Resilient { .. });
            state.given_up |= closes;
            state.durability
        };
        match durability {
            Durability::Persistent { .. } => {}
            Durability::Resilient { .. } => self.defer(Deferred::EndCache(scope.clone(), open)),
            _ => self.defer(Deferred::Close(scope.clone(), open)),
        }
    }

    /// Where the client of a resilient open is not back.
    pub(crate) fn end_cache(&self, scope: &CommitScope, open: &Arc<SmbOpen>) {
        let Some(file) = open.file() else { return };
        if open.session().is_some() {
            return self.tell_break_later(open);
        }
        let cause = scope.at(self.time().now);
        // An error: no answer is awaited any more, or none was.
        let _ = match open.lease_key {
            Some(key) => self.table.ack_lease_break(open.client, key, 0, cause).is_ok(),
            None => file.fs().ack_oplock_break(file, OplockLevel::None, cause).is_ok(),
        };
    }

    fn break_lease(&self, scope: &CommitScope, b: &LeaseBreak) {
        count(&self.metrics.breaks, 1);
        self.keep_lease(scope, b.client, b.key);
        loop {
            // Before the registered ones: an open that leaves this list is among those by then.
            let opening = self.openings.first_of(&b.opens);
            let told = Notification::LeaseBreak(b.clone());
            if self.tell_holder(b, &told) {
                return;
            }
            match opening {
                Some(id) if self.openings.note(id, Break::Lease(b.clone())).is_some() => continue,
                Some(_) => return,
                None => {}
            }
            let opens = b.opens.iter().filter_map(|id| self.open(id.0)).map(|open| (open.session(), open));
            // Where the client is connected, and has not taken them up yet, it is told there. It can answer without them.
            let (waiting, mut closing): (Vec<_>, Vec<_>) = opens.partition(|(_, open)| outlasts(open, b.to));
            if waiting.is_empty() || !self.notify(Recipient::Client(b.client), &told) {
                closing.extend(waiting);
            }
            for (session, open) in closing {
                self.leave_unanswered(scope, open, session.is_some());
            }
            return;
        }
    }

    /// A client may be connected to several nodes, one of which it has left without a word: it is told by those by which it has these
    /// opens, that of the latest first. There may be many opens: all are looked at only where it is not told.
    fn tell_holder(&self, b: &LeaseBreak, told: &Notification) -> bool {
        let mut asked = Vec::new();
        let mut nodes = b.opens.iter().rev().filter_map(|id| Some(self.open(id.0)?.session()?.node));
        nodes.any(|node| {
            let is_new = !asked.contains(&node);
            if is_new {
                asked.push(node);
            }
            is_new && self.notify_client_at(node, b.client, told)
        })
    }
}

/// Whether an open that waits for its client does so also while its lease breaks to `to`, [MS-SMB2] 3.3.4.7.
fn outlasts(open: &SmbOpen, to: u32) -> bool {
    match open.state.lock().durability {
        Durability::Persistent { .. } | Durability::Resilient { .. } => true,
        Durability::V1 { .. } | Durability::V2 { .. } => to & lease_state::HANDLE != 0,
        Durability::None => false,
    }
}

/// The trees as the owner of their opens.
pub(crate) struct Events(pub Weak<Trees>);

impl OpenOwner for Events {
    fn oplock_break(&self, scope: &CommitScope, open: OpenId, to: OplockLevel, ack: bool) {
        if let Some(trees) = self.0.upgrade() {
            trees.break_oplock(scope, open, to, ack);
        }
    }

    fn lease_break(&self, scope: &CommitScope, b: &LeaseBreak) {
        if let Some(trees) = self.0.upgrade() {
            trees.break_lease(scope, b);
        }
    }

    fn cache_changed(&self, scope: &CommitScope, opens: &[OpenId]) {
        if let Some(trees) = self.0.upgrade() {
            trees.keep_cache(scope, opens);
        }
    }

    fn resume(&self, wait: WaitId) {
        if let Some(trees) = self.0.upgrade() {
            trees.resume(wait);
        }
    }
}
