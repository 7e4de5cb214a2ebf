//! What carries out a node's actions: requests to etcd, fences and registrations disk by disk, and the pool's tasks.

use arden_block::sim::Initiator;
use arden_cluster::{Action, Epoch, Event, Holder, ImportError, NodeId, SetOwner};
use arden_space::{Ownership, SpaceError};

use super::client::{Reply, What};
use super::machine::{Done, Open, POOL, Until, key};
use super::trouble::STOP_MAX_NS;
use super::world::{Happening, Request, TTL_NS, World};

/// One command of a fence or a registration takes so long at most.
pub(super) const COMMAND_MAX_NS: u64 = 2_000_000;
/// The bits of a key that are the epoch.
pub(super) const EPOCH_BITS: u64 = (1 << 48) - 1;

impl World {
    /// Tells a node something; one that is stopped hears it when it goes on.
    pub(super) fn tell(&mut self, i: usize, event: Event) {
        let t_ns = self.t_ns;
        let m = &mut self.machines[i];
        if !m.hears(t_ns) {
            m.inbox.push(event);
            return;
        }
        let now_ns = m.clock.at(t_ns);
        let Some(node) = &mut m.node else { return };
        m.warned |= matches!(event, Event::Read { floor, revision, .. } if revision < floor);
        let (granted, until_ns) = (matches!(event, Event::LeaseGranted { .. }), node.lease_until(now_ns));
        let asked_ns = match event {
            Event::LeaseGranted { sent_ns, .. } | Event::LeaseRenewed { sent_ns, .. } => sent_ns,
            _ => 0,
        };
        let actions = node.handle(now_ns, event);
        // A renewal that does not count is none.
        if (granted || node.lease_until(now_ns) > until_ns) && m.doubtful.is_some_and(|at| asked_ns > at) {
            m.doubtful = None;
        }
        for action in actions {
            self.act(i, action);
        }
    }

    fn act(&mut self, i: usize, action: Action) {
        if !matches!(action, Action::RenewLease { .. } | Action::Read { .. }) {
            self.say(|| format!("node {i}: {action:?}"));
        }
        self.judge_action(i, &action);
        let m = &self.machines[i];
        let (run, sent_ns) = (m.run, m.clock.at(self.t_ns));
        let mut ask = |request| self.send(Happening::ToEtcd { node: i, run, sent_ns, request });
        match action {
            Action::GrantLease => ask(Request::Grant),
            Action::RenewLease { lease } => ask(Request::Renew(lease)),
            Action::Claim { lease, if_alive } => ask(Request::Claim { lease, if_alive }),
            Action::RevokeLease { lease } => ask(Request::Revoke(lease)),
            Action::Read { number, floor, .. } => ask(Request::Read { number, floor }),
            Action::Transact { number, transaction, .. } => ask(Request::Transact { number, transaction }),
            Action::Fence { epoch, holder, .. } => {
                self.machines[i].entered.begin(epoch);
                self.strike_at_fence(i, run);
                self.lose_a_disk_in_failover(i);
                self.fence_next(i, run, epoch, holder, 0);
            }
            Action::Register { epoch, .. } => {
                self.machines[i].entered.begin(epoch);
                self.lose_a_disk_in_failover(i);
                self.register_next(i, run, epoch, 0, Vec::new());
            }
            Action::Import { epoch, written, .. } => {
                self.lose_a_disk_in_failover(i);
                self.import(i, epoch, written);
            }
            Action::Serve { .. } => {
                let m = &mut self.machines[i];
                let Some(open) = &mut m.open else { return };
                open.serves = true;
                // A clock that stood still may let a former owner come so far.
                if let Some(found) = open.found.take().filter(|_| m.doubtful.is_none()) {
                    let epoch = open.epoch;
                    self.opened(i, epoch, &found);
                }
            }
            Action::Close { .. } => {
                if let Some(open) = &mut self.machines[i].open {
                    open.close();
                }
            }
            Action::Stop { epoch, .. } => self.begin_to_stop(i, epoch),
            Action::StoreWentBack => self.counts.went_back += 1,
        }
    }

    fn fence_next(&mut self, node: usize, run: u64, epoch: Epoch, holder: Holder, disk: usize) {
        let mut at = self.t_ns + self.rng.range(100_000, COMMAND_MAX_NS);
        if self.trouble.is_on(self.t_ns) && self.rng.one_in(8) {
            self.counts.fences_slow += 1;
            at += self.rng.range(COMMAND_MAX_NS, 60_000_000);
        }
        self.at(at, Happening::FenceDisk { node, run, epoch, holder, disk });
    }

    pub(super) fn fence_disk(&mut self, node: usize, run: u64, epoch: Epoch, holder: Holder, disk: usize) {
        let m = &self.machines[node];
        if m.run != run || m.node.is_none() {
            return;
        }
        if m.stopped.is_some() {
            return self.at(self.t_ns + COMMAND_MAX_NS, Happening::FenceDisk { node, run, epoch, holder, disk });
        }
        let fails = self.trouble.is_on(self.t_ns) && self.rng.one_in(12);
        if fails {
            self.counts.fences_failed += 1;
            match self.rng.below(4) {
                0 | 1 => self.enter_unheard(node, epoch, disk),
                2 => self.fence_unheard(node, epoch, holder, disk),
                _ => {}
            }
            return self.tell(node, Event::FenceFailed { pool: POOL, epoch, holder });
        }
        self.fence_on(node, epoch, holder, disk);
        if disk + 1 < self.disks.len() {
            return self.fence_next(node, run, epoch, holder, disk + 1);
        }
        if !self.note_fenced(node, epoch, holder) {
            self.counts.fences_failed += 1;
            return self.tell(node, Event::FenceFailed { pool: POOL, epoch, holder });
        }
        self.counts.fences += 1;
        self.land_held_registration(holder);
        self.tell(node, Event::Fenced { pool: POOL, epoch, holder });
    }

    /// Its registration arrives when the successor has fenced it, as late as may be: so does the answer.
    fn land_held_registration(&mut self, holder: Holder) {
        let node = usize::from(holder.node.0);
        let Some((run, epoch)) = self.trouble.held[node].take_if(|h| h.1 == holder.epoch) else { return };
        self.counts.held_registrations += 1;
        let last = self.disks.len() - 1;
        let lives = self.machines[node].run == run && self.machines[node].node.is_some();
        let keys = (0..last)
            .flat_map(|d| self.register_on(node, epoch, d, lives && !self.registers_later(node, epoch, d)))
            .collect();
        let at = self.t_ns + self.rng.below(1_000_000);
        self.at(at, Happening::RegisterDisk { node, run, epoch, disk: last, keys });
        let until_ns = self.t_ns + self.rng.below(1_500_000);
        let stopped = self.machines[node].stopped.as_mut().filter(|s| s.until == Until::Fence);
        stopped.into_iter().for_each(|s| s.until_ns = until_ns);
    }

    /// Nobody fenced it in time.
    pub(super) fn release_registration(&mut self, node: usize, run: u64, epoch: Epoch) {
        if self.trouble.held[node].take_if(|h| *h == (run, epoch)).is_some() {
            self.at(self.t_ns, Happening::RegisterDisk { node, run, epoch, disk: 0, keys: Vec::new() });
        }
    }

    fn register_next(&mut self, node: usize, run: u64, epoch: Epoch, disk: usize, keys: Vec<Holder>) {
        let mut at = self.t_ns + self.rng.range(100_000, COMMAND_MAX_NS);
        if disk == 0 && self.trouble.is_on(self.t_ns) && self.rng.one_in(8) && self.machines[node].runs() {
            self.trouble.held[node] = Some((run, epoch));
            let until_ns = self.t_ns + STOP_MAX_NS;
            self.stop_until(node, true, Until::Fence, until_ns);
            return self.at(until_ns, Happening::Unheld { node, run, epoch });
        }
        if self.trouble.is_on(self.t_ns) && self.rng.one_in(8) {
            at += self.rng.range(1_000_000, 200_000_000);
            // Only a machine whose clock stands still meanwhile can take such a registration for a good one.
            if self.rng.one_in(2) {
                self.stop(node, true);
            }
        }
        self.at(at, Happening::RegisterDisk { node, run, epoch, disk, keys });
    }

    pub(super) fn keys(&self, disks: std::ops::Range<usize>) -> Vec<Holder> {
        let holder = |k: u64| Holder { node: NodeId((k >> 48) as u16), epoch: Epoch(k & EPOCH_BITS) };
        self.disks[disks].iter().flat_map(|d| d.registered()).map(holder).collect()
    }

    /// The command is on its way, whatever became of its process. The keys are read before it.
    pub(super) fn register_disk(&mut self, node: usize, run: u64, epoch: Epoch, disk: usize, mut keys: Vec<Holder>) {
        let m = &self.machines[node];
        let lives = m.run == run && m.node.is_some();
        if lives && self.registers_later(node, epoch, disk) {
            let at = self.t_ns + COMMAND_MAX_NS;
            return self.at(at, Happening::RegisterDisk { node, run, epoch, disk, keys });
        }
        keys.extend(self.register_on(node, epoch, disk, lives));
        if self.reaches(node, disk) {
            let owner = self.etcd.view.owner;
            self.counts.late_registrations += u64::from(owner.is_none_or(|o| o.epoch != epoch));
        }
        if !lives {
            return;
        }
        if disk + 1 < self.disks.len() {
            return self.register_next(node, run, epoch, disk + 1, keys);
        }
        if self.entered(node, epoch).is_empty() {
            return self.tell(node, Event::DisksLost { pool: POOL, epoch });
        }
        let keys = if self.shows_keys { keys } else { Vec::new() };
        self.tell(node, Event::Registered { pool: POOL, epoch, keys });
    }

    fn import(&mut self, i: usize, epoch: Epoch, written: Epoch) {
        self.counts.imports += 1;
        self.initiators += 1;
        let here = self.entered(i, epoch);
        self.judge.borrow_mut().opens(self.initiators, epoch.0, &here);
        let from = Initiator { id: self.initiators, key: key(i, epoch) };
        if self.machines[i].open.is_some() {
            self.failed.get_or_insert(format!("node {i} has the pool open twice"));
        }
        for disk in (0..self.disks.len()).filter(|d| !self.reaches(i, *d)) {
            self.disks[disk].cut(from.key);
        }
        self.counts.imports_without_a_disk += u64::from(here.len() < self.disks.len());
        let disks: Vec<_> = here.into_iter().map(|d| self.disks[d].clone()).collect();
        let ownership = Ownership { epoch: epoch.0, written: written.0, cluster: 1 };
        self.machines[i].open = Some(Open::import(&disks, from, ownership, self.shows_keys, self.rng.next_u64()));
        self.say(|| format!("node {i}: initiator {} imports under {epoch:?}", from.id));
        self.forget_import(i);
    }

    /// The tasks of a node's pool end at once. What they sent may happen for a while.
    pub(super) fn drop_pool(&mut self, i: usize) {
        let Some(open) = self.machines[i].open.take() else { return };
        drop(open.pool);
        open.done.borrow_mut().clear();
        open.rt.shutdown();
        let long = self.trouble.is_on(self.t_ns) && self.rng.one_in(3);
        let late_max_ns = if long { 3 * TTL_NS } else { 40_000_000 };
        for disk in 0..self.disks.len() {
            let at = self.t_ns + self.rng.range(1, late_max_ns);
            self.at(at, Happening::Orphan { id: open.id, disk });
        }
    }

    /// Ends the pool of an ownership. Disks that hang keep its tasks for a while: then nothing of it runs any more, or its tasks go on
    /// until that is over.
    fn begin_to_stop(&mut self, i: usize, epoch: Epoch) {
        let hangs = self.machines[i].open.is_some() && self.trouble.is_on(self.t_ns) && self.rng.one_in(8);
        if !hangs {
            self.drop_pool(i);
            return self.tell(i, Event::Stopped { pool: POOL, epoch });
        }
        self.counts.stops_slow += 1;
        if self.rng.one_in(2) {
            self.drop_pool(i);
        } else if let Some(open) = &mut self.machines[i].open {
            open.serves = false;
        }
        let until_ns = self.t_ns + self.rng.range(1_000_000, 10 * TTL_NS);
        self.machines[i].stopping = Some((epoch, until_ns));
    }

    /// The end of an ownership that took its time.
    pub(super) fn end_stop(&mut self, i: usize) {
        let m = &mut self.machines[i];
        let due = |(_, until_ns): &mut (Epoch, u64)| self.t_ns >= *until_ns;
        let Some((epoch, _)) = (if m.runs() { m.stopping.take_if(due) } else { None }) else { return };
        self.drop_pool(i);
        self.tell(i, Event::Stopped { pool: POOL, epoch });
    }

    /// What a node must not do, whatever it was told (docs/cluster.md).
    fn judge_action(&mut self, i: usize, action: &Action) {
        let takes = match action {
            Action::Transact { transaction, .. } => matches!(transaction.owner, SetOwner::Put(_)),
            Action::Import { .. } | Action::Serve { .. } => true,
            _ => false,
        };
        if takes && self.machines[i].warned {
            self.failed.get_or_insert(format!("node {i} goes on with an etcd that went back: {action:?}"));
        }
        if let Action::Import { epoch, .. } = action
            && !self.imported.insert((i, *epoch))
            && self.counts.restores == 0
        {
            self.failed.get_or_insert(format!("node {i} imports {epoch:?} once more"));
        }
    }

    /// What the tasks of a node's pool have to say.
    pub(super) fn pool_done(&mut self, i: usize) {
        let Some((list, epoch)) = self.machines[i].open.as_ref().map(|o| (o.done.take(), o.epoch)) else { return };
        for done in list {
            let event = match done {
                Done::Opened(pool, space, found) => {
                    if let Some(open) = &mut self.machines[i].open {
                        open.opened(pool, space, found);
                    }
                    Event::Imported { pool: POOL, epoch }
                }
                Done::NotOpened(e) => {
                    self.say(|| format!("node {i}: not opened: {e}"));
                    self.counts.imports_failed += 1;
                    let why = match e {
                        SpaceError::LaterEpoch(label) => ImportError::LaterEpoch(Epoch(label)),
                        _ => ImportError::Other,
                    };
                    Event::ImportFailed { pool: POOL, epoch, why }
                }
                Done::Closed(true) => {
                    // Nothing is in flight, says the pool. What is all the same happens later.
                    // The key stays, so that the disks are never without a reservation.
                    self.drop_pool(i);
                    Event::Closed { pool: POOL, epoch }
                }
                Done::Back(result) => {
                    self.counts.disks_returned += u64::from(result.is_ok());
                    if let Err(e) = result {
                        self.say(|| format!("node {i}: not taken back: {e}"));
                    }
                    continue;
                }
                Done::Closed(false) => Event::DisksLost { pool: POOL, epoch },
                Done::Worked(work, result) => {
                    let m = &mut self.machines[i];
                    if let Some(open) = &mut m.open {
                        open.clients[work.client].1 = false;
                    }
                    let now_ns = m.clock.at(self.t_ns);
                    let may = m.node.as_ref().is_some_and(|n| n.may_serve(POOL, epoch, now_ns));
                    match result {
                        // Not judged: the clock rule asks for a clock that goes on.
                        Ok((_, from_memory)) if from_memory && m.doubtful.is_some() => continue,
                        Ok((told, _)) if may => {
                            if matches!(work.what, What::Write(_)) {
                                self.succeeded(i);
                            }
                            self.send(Happening::Answer { work, reply: Reply::Ends(told) });
                            continue;
                        }
                        Ok(_) => {
                            self.counts.answers_withheld += 1;
                            continue;
                        }
                        Err(e) => {
                            self.say(|| format!("node {i}: {e}"));
                            Event::DisksLost { pool: POOL, epoch }
                        }
                    }
                }
            };
            self.tell(i, event);
        }
    }
}
