//! One pool as one node sees it: what etcd says of it, and how far this node has come with owning it. Owns the order of the steps:
//! acquire, fence, record, register, import, serve, close, release. Whether the lease is good is `node`'s, which calls
//! [`Pool::lose`] before it passes any event on.

use crate::api::{Action, Event, ImportError, Outcome, Route};
use crate::keys::{Epoch, HOLDERS_MAX, Holder, LeaseId, NodeId, OwnerKey, PoolId, Revision, Transaction, View};

/// How far a node has come with owning a pool, as an administrator sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Unowned,
    Fencing,
    Recording,
    Registering,
    Confirming,
    Importing,
    Owned,
    Closing,
    Leaving,
    Lost,
}

/// How an ownership ends in etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leave {
    /// Closed: no command exists any more.
    Release,
    /// Commands may still be on their way.
    GiveUp,
    /// A label bears this epoch, which etcd does not know.
    Block(Epoch),
    /// Closed, and nobody is to acquire the pool any more.
    Retire,
}

/// A fence that is not confirmed.
#[derive(Debug)]
struct Unfenced {
    holder: Holder,
    /// A later holder may have begun to fence it.
    contested: bool,
    /// When it is to be asked for; `None` while it is under way.
    due_ns: Option<u64>,
}

/// An owner leaves the holders that it fenced out of the record. So of the others each may have begun to fence those before it.
fn unfenced(holders: impl IntoIterator<Item = Holder>, now_ns: u64) -> Vec<Unfenced> {
    let holders: Vec<Holder> = holders.into_iter().collect();
    let newest = holders.iter().map(|h| h.epoch).max();
    let one = |holder: Holder| Unfenced { holder, contested: Some(holder.epoch) < newest, due_ns: Some(now_ns) };
    holders.into_iter().map(one).collect()
}

#[derive(Debug)]
enum State {
    Unowned,
    Fencing(Vec<Unfenced>),
    Recording,
    Registering,
    /// Fences keys that were found on the disks.
    Clearing(Vec<Unfenced>),
    /// Waits for a read with this number, or a later one: it was sent after the registration.
    Confirming(u64),
    Importing,
    Owned,
    Closing,
    Leaving(Leave),
    /// Stopping; then the ownership ends so, if the lease is still good. What is given up ends in etcd at once: this node acquires the pool
    /// only when it has stopped.
    Lost(Leave),
}

/// The ownership that a node has, or is about to have.
#[derive(Debug, Clone, Copy)]
struct Ownership {
    key: OwnerKey,
    /// `written` of the record before this ownership raised it.
    written: Epoch,
}

#[derive(Debug)]
struct Pending {
    number: u64,
    sent_ns: u64,
    base: View,
    transaction: Transaction,
}

/// What a pool has to know of its node at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) ns: u64,
    pub(crate) node: NodeId,
    pub(crate) lease: Option<LeaseId>,
    pub(crate) draining: bool,
    /// The newest revision that the node knows of.
    pub(crate) revision: Revision,
    pub(crate) ttl_ns: u64,
    pub(crate) fence_retry_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Pool {
    id: PoolId,
    patience_ns: u64,
    /// Whether the pool is acquired while another node is a holder.
    takes_over: bool,
    /// Whether the pool is acquired at all.
    may_own: bool,
    /// Whether a fence changes the disks: it leaves this node's key there, and may take away others' later than it is waited for.
    fences_on_disks: bool,
    /// The ownership that is to be handed over.
    leaves: Option<Epoch>,
    /// The ownership after which there is to be none.
    retires: Option<Epoch>,
    view: View,
    seen: Revision,
    state: State,
    mine: Option<Ownership>,
    /// The newest epoch that this node went on with: one epoch is imported at most once.
    began: Epoch,
    pending: Option<Pending>,
    /// When the keys were last asked for without an answer so far.
    reading_ns: Option<u64>,
    /// When they were last read.
    read_ns: Option<u64>,
    /// The keys may have changed in a way that the node does not know.
    unsure: bool,
    free_ns: Option<u64>,
    /// Before that this node lets others try.
    again_ns: u64,
    numbers: u64,
}

impl Pool {
    pub(crate) fn new(id: PoolId, patience_ns: u64) -> Pool {
        Pool {
            id,
            patience_ns,
            takes_over: true,
            may_own: true,
            fences_on_disks: true,
            leaves: None,
            retires: None,
            view: View::default(),
            seen: Revision::default(),
            state: State::Unowned,
            mine: None,
            began: Epoch::default(),
            pending: None,
            reading_ns: None,
            read_ns: None,
            unsure: true,
            free_ns: None,
            again_ns: 0,
            numbers: 0,
        }
    }

    pub(crate) fn id(&self) -> PoolId {
        self.id
    }

    pub(crate) fn set_patience(&mut self, patience_ns: u64) {
        self.patience_ns = patience_ns;
    }

    pub(crate) fn set_takes_over(&mut self, takes_over: bool) {
        self.takes_over = takes_over;
    }

    pub(crate) fn set_may_own(&mut self, may_own: bool) {
        self.may_own = may_own;
    }

    pub(crate) fn set_fences_on_disks(&mut self, on_disks: bool) {
        self.fences_on_disks = on_disks;
    }

    pub(crate) fn hand_over(&mut self, epoch: Epoch) {
        self.leaves = Some(epoch);
    }

    pub(crate) fn retire(&mut self, epoch: Epoch) {
        (self.leaves, self.retires) = (Some(epoch), Some(epoch));
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    pub(crate) fn stage(&self) -> Stage {
        match self.state {
            State::Unowned => Stage::Unowned,
            State::Fencing(_) | State::Clearing(_) => Stage::Fencing,
            State::Recording => Stage::Recording,
            State::Registering => Stage::Registering,
            State::Confirming(_) => Stage::Confirming,
            State::Importing => Stage::Importing,
            State::Owned => Stage::Owned,
            State::Closing => Stage::Closing,
            State::Leaving(_) => Stage::Leaving,
            State::Lost(_) => Stage::Lost,
        }
    }

    /// The epoch that this node serves, or ends serving.
    pub(crate) fn served(&self) -> Option<Epoch> {
        self.mine.filter(|_| matches!(self.state, State::Owned | State::Closing)).map(|m| m.key.epoch)
    }

    pub(crate) fn route(&self, node: NodeId) -> Route {
        match (self.view.owner, self.served()) {
            (Some(key), Some(epoch)) if key.node == node && key.epoch == epoch => Route::Here(epoch),
            (Some(key), _) if key.node != node => Route::Forward(key.node, key.epoch),
            _ => Route::Wait,
        }
    }

    /// This node is no longer the owner, or will not be in a moment: everything of the pool ends here.
    pub(crate) fn lose(&mut self, out: &mut Vec<Action>) {
        self.end(Leave::GiveUp, out);
        self.pending = None;
        self.unsure = true;
    }

    /// etcd is believed anew, from nothing.
    pub(crate) fn forget_store(&mut self) {
        (self.view, self.seen, self.began) = (View::default(), Revision::default(), Epoch::default());
        self.free_ns = None;
        self.unsure = true;
    }

    fn end(&mut self, leave: Leave, out: &mut Vec<Action>) {
        match (&self.state, self.mine) {
            (State::Lost(_), _) | (_, None) => {}
            // It runs here no more.
            (State::Leaving(_), _) => self.leave_behind(),
            (_, Some(m)) => {
                self.state = State::Lost(leave);
                out.push(Action::Stop { pool: self.id, epoch: m.key.epoch });
            }
        }
    }

    fn leave_behind(&mut self) {
        (self.state, self.mine) = (State::Unowned, None);
    }

    pub(crate) fn handle(&mut self, now: Now, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Watched { revision, view, .. } if revision > self.seen => self.see(now, view, revision, out),
            Event::Read { number, revision, view, .. } => self.read(now, (number, revision, view), out),
            Event::Transacted { number, outcome, .. } => self.transacted(now, number, outcome, out),
            Event::Fenced { epoch, holder, .. } => self.fenced(epoch, holder),
            Event::FenceFailed { epoch, holder, .. } => self.fence_failed(now, epoch, holder),
            Event::Registered { epoch, keys, .. } if self.is_at(epoch, |s| matches!(s, State::Registering)) => {
                self.registered(now, keys, out);
            }
            Event::Imported { epoch, .. } if self.is_at(epoch, |s| matches!(s, State::Importing)) => {
                self.state = State::Owned;
                out.push(Action::Serve { pool: self.id, epoch });
            }
            Event::ImportFailed { epoch, why, .. } if self.is_at(epoch, |s| matches!(s, State::Importing)) => {
                let leave = match why {
                    ImportError::LaterEpoch(label) => Leave::Block(label),
                    ImportError::Other => Leave::GiveUp,
                };
                self.again_ns = now.ns + now.ttl_ns;
                self.end(leave, out);
            }
            Event::DisksLost { epoch, .. } if self.is_at(epoch, |s| !matches!(s, State::Leaving(_))) => {
                self.again_ns = now.ns + now.ttl_ns;
                self.end(Leave::GiveUp, out);
            }
            Event::Closed { epoch, .. } if self.is_at(epoch, |s| matches!(s, State::Closing)) => {
                let retires = self.retires == Some(epoch);
                self.state = State::Leaving(if retires { Leave::Retire } else { Leave::Release });
            }
            Event::Stopped { epoch, .. } => self.stopped(now, epoch),
            _ => {}
        }
    }

    fn is_at(&self, epoch: Epoch, state: impl Fn(&State) -> bool) -> bool {
        self.mine.is_some_and(|m| m.key.epoch == epoch) && state(&self.state)
    }

    /// A read of etcd: its number, and the keys as of a revision. It counts also when the revision is one that was seen: an etcd
    /// that was restored gives a number to another state.
    fn read(&mut self, now: Now, (number, revision, view): (u64, Revision, View), out: &mut Vec<Action>) {
        self.reading_ns = None;
        self.unsure = matches!(self.state, State::Confirming(after) if number < after);
        self.read_ns = Some(now.ns);
        let confirms = self.mine.is_some_and(|m| view.owner == Some(m.key));
        if revision >= self.seen {
            self.see(now, view, revision, out);
        }
        match self.state {
            State::Confirming(after) if number >= after && confirms => self.import(out),
            State::Confirming(after) if number >= after => self.end(Leave::GiveUp, out),
            _ => {}
        }
    }

    /// What etcd holds as of `revision`.
    fn see(&mut self, now: Now, view: View, revision: Revision, out: &mut Vec<Action>) {
        (self.view, self.seen) = (view, revision);
        self.free_ns = if self.view.owner.is_some() { None } else { self.free_ns.or(Some(now.ns)) };
        match self.mine {
            None => self.adopt(now),
            Some(m) if self.view.owner != Some(m.key) => self.end(Leave::GiveUp, out),
            Some(m) => {
                let alone = self.view.record.holders == [m.key.holder()] && self.view.record.written == m.key.epoch;
                if matches!(self.state, State::Recording) && alone {
                    self.state = State::Registering;
                    self.pending = None;
                    out.push(Action::Register { pool: self.id, epoch: m.key.epoch });
                }
            }
        }
    }

    /// The owner key has this node and its present lease: an acquisition came to pass, whenever it was sent.
    fn adopt(&mut self, now: Now) {
        let Some(key) = self.view.owner.filter(|k| k.node == now.node && Some(k.lease) == now.lease) else { return };
        self.pending = None;
        self.mine = Some(Ownership { key, written: self.view.record.written });
        if key.epoch <= self.began {
            // Left once, in a transaction whose answer was lost.
            self.state = State::Leaving(Leave::GiveUp);
            return;
        }
        self.began = key.epoch;
        let others = self.view.record.holders.iter().filter(|h| **h != key.holder());
        let left = unfenced(others.copied(), now.ns);
        self.state = if left.is_empty() { State::Recording } else { State::Fencing(left) };
    }

    fn transacted(&mut self, now: Now, number: u64, outcome: Outcome, out: &mut Vec<Action>) {
        let Some(p) = self.pending.take_if(|p| p.number == number) else { return };
        match outcome {
            Outcome::Applied(revision) => {
                let view = p.transaction.applied(&p.base, revision);
                if revision > self.seen {
                    self.see(now, view, revision, out);
                }
            }
            Outcome::Refused | Outcome::Unknown => self.unsure = true,
        }
    }

    fn fenced(&mut self, epoch: Epoch, holder: Holder) {
        let here = self.mine.is_some_and(|m| m.key.epoch == epoch);
        if let State::Fencing(left) | State::Clearing(left) = &mut self.state
            && here
        {
            left.retain(|u| u.holder != holder);
            match (left.is_empty(), &self.state) {
                (true, State::Clearing(_)) => self.confirm(),
                (true, _) => self.state = State::Recording,
                _ => {}
            }
        }
    }

    fn fence_failed(&mut self, now: Now, epoch: Epoch, holder: Holder) {
        let here = self.mine.is_some_and(|m| m.key.epoch == epoch);
        if let State::Fencing(left) | State::Clearing(left) = &mut self.state
            && here
        {
            let failed = left.iter_mut().filter(|u| u.holder == holder);
            failed.for_each(|u| u.due_ns = Some(now.ns + now.fence_retry_ns));
        }
    }

    /// A key with an epoch that no label may bear is of a holder that etcd has forgotten. So may an older one be, after an
    /// owner that raised `written` and saw no key: all are fenced.
    fn registered(&mut self, now: Now, mut keys: Vec<Holder>, out: &mut Vec<Action>) {
        let Some(m) = self.mine else { return };
        keys.sort();
        keys.dedup();
        let newest = keys.iter().map(|k| k.epoch).max();
        match newest.filter(|&n| n > m.written) {
            Some(unknown) => self.end(Leave::Block(unknown), out),
            None if keys.is_empty() => self.confirm(),
            None => self.state = State::Clearing(unfenced(keys, now.ns)),
        }
    }

    /// The owner key is read once more: a successor that is not there yet will find this registration, and fence it.
    fn confirm(&mut self) {
        self.state = State::Confirming(self.numbers + 1);
        (self.unsure, self.reading_ns) = (true, None);
    }

    fn import(&mut self, out: &mut Vec<Action>) {
        let Some(m) = self.mine else { return };
        self.state = State::Importing;
        out.push(Action::Import { pool: self.id, epoch: m.key.epoch, written: m.written });
    }

    fn stopped(&mut self, now: Now, epoch: Epoch) {
        let (State::Lost(leave), Some(m)) = (&self.state, self.mine) else { return };
        let leave = *leave;
        if m.key.epoch != epoch {
            return;
        }
        if self.has_key(now, m) {
            self.state = State::Leaving(leave);
        } else {
            self.leave_behind();
        }
    }

    /// Whether the owner key of this ownership is there, as far as this node knows, and its lease is good.
    fn has_key(&self, now: Now, m: Ownership) -> bool {
        now.lease == Some(m.key.lease) && self.view.owner == Some(m.key)
    }

    /// After each event: asks for what the state needs next.
    pub(crate) fn advance(&mut self, now: Now, out: &mut Vec<Action>) {
        if now.lease.is_none() {
            return;
        }
        if self.pending.as_ref().is_some_and(|p| now.ns >= p.sent_ns + now.ttl_ns / 2) {
            self.pending = None;
            self.unsure = true;
        }
        let stale = matches!(self.state, State::Unowned) && self.read_ns.is_none_or(|at| now.ns >= at + now.ttl_ns);
        let waits = self.reading_ns.is_some_and(|at| now.ns < at + now.ttl_ns / 4);
        if (self.unsure || stale) && !waits {
            self.reading_ns = Some(now.ns);
            self.numbers += 1;
            out.push(Action::Read { pool: self.id, number: self.numbers, floor: now.revision });
        }
        if self.unsure || self.pending.is_some() {
            return;
        }
        if matches!(self.state, State::Unowned) {
            self.adopt(now);
        }
        if now.draining {
            self.leave_fencing(out);
        }
        let has_key = self.mine.is_some_and(|m| self.has_key(now, m));
        match (&mut self.state, self.mine) {
            (State::Unowned, _) => self.acquire(now, out),
            (State::Fencing(left) | State::Clearing(left), Some(m)) => {
                for u in left.iter_mut().filter(|u| u.due_ns.is_some_and(|at| now.ns >= at)) {
                    u.due_ns = None;
                    let (pool, epoch, holder) = (self.id, m.key.epoch, u.holder);
                    out.push(Action::Fence { pool, epoch, holder, contested: u.contested });
                }
            }
            (State::Recording, Some(m)) => self.transact(now, Transaction::fenced(&self.view, m.key), out),
            (State::Owned, Some(m)) if now.draining || self.leaves == Some(m.key.epoch) => {
                self.state = State::Closing;
                out.push(Action::Close { pool: self.id, epoch: m.key.epoch });
            }
            // Disks that hang may keep the pool's tasks for minutes: a successor, which fences this holder as if it had died, does not
            // wait for their end. What takes this node out of the holders does.
            (State::Leaving(leave) | State::Lost(leave @ Leave::GiveUp), Some(m)) if has_key => {
                let transaction = match *leave {
                    Leave::Release => Transaction::release(&self.view, m.key),
                    Leave::GiveUp => Transaction::give_up(m.key),
                    Leave::Retire => Transaction::retire(&self.view, m.key),
                    Leave::Block(label) => Transaction::block(&self.view, m.key, m.written, label),
                };
                self.transact(now, transaction, out);
            }
            _ => {}
        }
    }

    /// A fence may fail for ever at this node and work at another. Nothing was written under this epoch, and nothing will be. But the next
    /// owner has to know of the key on the disks, which would be one that etcd has forgotten, and that the fence of the others was begun.
    fn leave_fencing(&mut self, out: &mut Vec<Action>) {
        match self.state {
            State::Fencing(_) if !self.fences_on_disks => self.state = State::Leaving(Leave::Release),
            State::Fencing(_) | State::Clearing(_) => self.end(Leave::GiveUp, out),
            _ => {}
        }
    }

    fn acquire(&mut self, now: Now, out: &mut Vec<Action>) {
        let Some(lease) = now.lease else { return };
        let record = &self.view.record;
        let possible = record.blocked.is_none() && record.holders.len() < HOLDERS_MAX && self.view.changed.0 > 0;
        let possible = possible && (self.takes_over || record.holders.iter().all(|h| h.node == now.node));
        let due = self.free_ns.is_some_and(|at| now.ns >= at + self.patience_ns) && now.ns >= self.again_ns;
        if possible
            && due
            && self.may_own
            && !now.draining
            && let Some(acquire) = Transaction::acquire(&self.view, now.node, lease)
        {
            self.transact(now, acquire, out);
        }
    }

    fn transact(&mut self, now: Now, transaction: Transaction, out: &mut Vec<Action>) {
        self.numbers += 1;
        let number = self.numbers;
        self.pending =
            Some(Pending { number, sent_ns: now.ns, base: self.view.clone(), transaction: transaction.clone() });
        out.push(Action::Transact { pool: self.id, number, transaction });
    }
}
