//! Faults: which, when, and their end. Also the administrator, who decides after etcd went back to an older state.

use arden_block::rng::Rng;
use arden_cluster::{Epoch, Event, Record, SetOwner, Transaction};

use super::etcd::Etcd;
use super::machine::{POOL, Stopped, Until};
use super::world::{Happening, NODES, TTL_NS, World};

/// A process that goes on hears of what happened meanwhile within this time.
const DEAF_MAX_NS: u64 = 6_000_000;

/// The longest that a process is stopped which waits for something.
pub(super) const STOP_MAX_NS: u64 = 5 * TTL_NS;
/// etcd is down for so long before it is restored: longer than a lease lasts.
const DOWN_NS: u64 = 2 * TTL_NS;

/// A fault that strikes at a chosen moment: most of them when commands of the owner are on their way.
#[derive(Debug, Clone, Copy)]
pub(super) enum Aim {
    Kill,
    /// Until its successor has acknowledged a write.
    Stop,
    /// The shell counts the disks as lost, with commands on their way.
    GiveUp,
}

/// An old state of etcd, and what is done with it.
enum Restore {
    Never,
    /// A copy is taken at this time.
    Copy(u64),
    /// A copy is taken right before the first acquisition after this time.
    Acquisition(u64),
    /// The node that etcd is to forget has to begin its import before this time.
    Import {
        node: usize,
        until_ns: u64,
        copy: Box<Etcd>,
    },
    /// The copy is put back at this time.
    Back(u64, Box<Etcd>),
    /// The administrator decides at this time.
    Decide(u64),
}

pub(super) struct Trouble {
    pub(super) ends_ns: u64,
    next_ns: u64,
    /// The longest time between two faults.
    gap_max_ns: u64,
    leader_ns: Option<u64>,
    /// Until when two nodes do not hear each other.
    cut_ns: [[u64; NODES]; NODES],
    restore: Restore,
    /// Waits for its moment.
    aim: Option<Aim>,
    /// Registrations that wait for the fence of their holder: the process, and the epoch.
    pub(super) held: [Option<(u64, Epoch)>; NODES],
    /// Until when a process runs with a copy of a node's state.
    copy_ends_ns: Option<u64>,
    /// A disk that does not come back by itself.
    pub(super) dead: Option<usize>,
    ended: bool,
}

impl Trouble {
    pub(super) fn new(rng: &mut Rng, shows_keys: bool) -> Trouble {
        let ends_ns = rng.range(8, 16) * TTL_NS;
        let at = rng.range(TTL_NS, ends_ns / 2);
        // Without keys to be seen, an owner that a restored etcd has forgotten is noticed by the labels alone.
        let restore = match rng.below(4) {
            0 if shows_keys => Restore::Copy(at),
            1 if shows_keys => Restore::Acquisition(at),
            _ => Restore::Never,
        };
        let next_ns = rng.range(0, TTL_NS);
        let gap_max_ns = if rng.one_in(2) { TTL_NS } else { 4 * TTL_NS };
        let cut_ns = [[0; NODES]; NODES];
        Trouble {
            ends_ns,
            next_ns,
            gap_max_ns,
            leader_ns: None,
            cut_ns,
            restore,
            aim: None,
            held: [None; NODES],
            copy_ends_ns: None,
            dead: None,
            ended: false,
        }
    }

    pub(super) fn is_on(&self, t_ns: u64) -> bool {
        t_ns < self.ends_ns
    }

    pub(super) fn is_cut(&self, t_ns: u64, a: usize, b: usize) -> bool {
        t_ns < self.cut_ns[a.min(b)][a.max(b)]
    }
}

impl World {
    pub(super) fn make_trouble(&mut self) {
        self.restore();
        for i in 0..NODES {
            self.end_of_faults(i);
        }
        self.take_aim();
        if self.trouble.copy_ends_ns.is_some_and(|at| self.t_ns >= at) {
            self.trouble.copy_ends_ns = None;
            self.kill(NODES);
            (self.machines[NODES].number, self.machines[NODES].starts_ns) = (NODES, u64::MAX);
        }
        if self.trouble.leader_ns.is_some_and(|at| self.t_ns >= at) {
            self.trouble.leader_ns = None;
            self.etcd.elect(self.t_ns);
        }
        if !self.trouble.is_on(self.t_ns) {
            if !std::mem::replace(&mut self.trouble.ended, true) {
                self.heal();
            }
        } else if self.t_ns >= self.trouble.next_ns {
            self.trouble.next_ns = self.t_ns + self.rng.range(1_000_000, self.trouble.gap_max_ns);
            self.strike();
        }
    }

    /// A node, more often the one with the pool.
    fn victim(&mut self) -> usize {
        let owner = self.machines.iter().position(|m| m.is_owner());
        match owner {
            Some(i) if self.rng.below(4) > 0 => i,
            _ => self.rng.below(NODES as u64) as usize,
        }
    }

    fn strike(&mut self) {
        let (i, t) = (self.victim(), self.t_ns);
        let kind = self.rng.below(31);
        self.say(|| format!("trouble {kind} for {i}"));
        match kind {
            0 | 1 => {
                self.kill(i);
                self.machines[i].starts_ns = t + self.rng.range(5_000_000, 2 * TTL_NS);
            }
            2..=4 => self.stop(i, false),
            5 => self.stop(i, true),
            6 | 7 => {
                self.counts.cut_from_etcd += 1;
                self.machines[i].no_etcd_ns = t + self.rng.range(10_000_000, 3 * TTL_NS);
            }
            8 => {
                self.counts.cut_from_peers += 1;
                for j in (0..NODES).filter(|j| *j != i) {
                    self.trouble.cut_ns[i.min(j)][i.max(j)] = t + self.rng.range(10_000_000, 2 * TTL_NS);
                }
            }
            9 => {
                self.counts.cut_from_disks += 1;
                let until_ns = t + self.rng.range(5_000_000, 2 * TTL_NS);
                (0..self.disks.len()).for_each(|disk| self.cut_path(i, disk, until_ns));
            }
            24..=26 => {
                self.counts.paths_cut += 1;
                let disk = self.rng.below(self.disks.len() as u64) as usize;
                let until_ns = t + self.rng.range(3_000_000, 3 * TTL_NS);
                self.cut_path(i, disk, until_ns);
            }
            27..=29 => {
                let disk = self.rng.below(self.disks.len() as u64) as usize;
                let until_ns = t + self.rng.range(3_000_000, 3 * TTL_NS);
                self.cut_disk(disk, until_ns);
            }
            30 if self.trouble.dead.is_none() => {
                self.counts.disks_dead += 1;
                let disk = self.rng.below(self.disks.len() as u64) as usize;
                self.trouble.dead = Some(disk);
                self.cut_disk(disk, u64::MAX);
            }
            10 | 11 => self.lose_leader(),
            12 => {
                self.counts.lagging_watches += 1;
                self.machines[i].lag_ns =
                    (t + self.rng.range(TTL_NS, 4 * TTL_NS), self.rng.range(5_000_000, 2 * TTL_NS));
            }
            13 | 14 => {
                self.counts.drains += 1;
                self.machines[i].drains_ns = Some(t + self.rng.range(10_000_000, 2 * TTL_NS));
                self.tell(i, Event::Drain);
            }
            15 => self.black_out(),
            16 => self.trouble.aim = Some(Aim::Kill),
            17 | 18 => self.trouble.aim = Some(Aim::Stop),
            19 => self.trouble.aim = Some(Aim::GiveUp),
            22 | 23 => self.copy(i),
            _ => self.machines[i].late_renewal = true,
        }
    }

    /// Somebody starts a copy of the node, most often when that has lost its lease or is about to.
    fn copy(&mut self, i: usize) {
        if self.trouble.copy_ends_ns.is_some() {
            return;
        }
        self.counts.copies += 1;
        let t = self.t_ns;
        let ends_ns = t + self.rng.range(TTL_NS, 6 * TTL_NS);
        (self.machines[NODES].number, self.machines[NODES].starts_ns) = (i, t);
        self.trouble.copy_ends_ns = Some(ends_ns);
        if self.rng.below(3) > 0 {
            self.counts.cut_from_etcd += 1;
            self.machines[i].no_etcd_ns = t + self.rng.range(TTL_NS, 2 * TTL_NS);
        }
    }

    /// Strikes when the owner's commands are on their way.
    fn take_aim(&mut self) {
        let Some(aim) = self.trouble.aim.filter(|_| self.trouble.is_on(self.t_ns)) else { return };
        let in_flight = |id| self.disks.iter().any(|d| d.has_in_flight(id));
        let due = self.machines.iter().position(|m| m.runs() && m.open.as_ref().is_some_and(|o| in_flight(o.id)));
        if let Some(i) = due {
            self.trouble.aim = None;
            self.strike_now(i, aim);
        }
    }

    pub(super) fn strike_now(&mut self, i: usize, aim: Aim) {
        if !self.machines[i].runs() {
            return;
        }
        self.say(|| format!("{aim:?} strikes {i}"));
        let t = self.t_ns;
        match aim {
            Aim::Kill => {
                self.counts.aimed_kills += 1;
                self.kill(i);
                self.machines[i].starts_ns = t + self.rng.range(5_000_000, 2 * TTL_NS);
            }
            Aim::Stop => {
                self.counts.aimed_stops += 1;
                self.stop_until(i, false, Until::Successor, t + STOP_MAX_NS);
            }
            Aim::GiveUp => {
                let key = self.machines[i].node.as_ref().and_then(|n| n.view(POOL)).and_then(|v| v.owner);
                if let Some(key) = key.filter(|k| usize::from(k.node.0) == i) {
                    self.counts.disks_given_up += 1;
                    self.tell(i, Event::DisksLost { pool: POOL, epoch: key.epoch });
                }
            }
        }
    }

    /// A node that begins to fence may become one that has to be fenced beside the others.
    pub(super) fn strike_at_fence(&mut self, node: usize, run: u64) {
        let few = self.etcd.view.record.holders.len() < 5;
        if self.trouble.is_on(self.t_ns) && few && self.rng.one_in(5) {
            self.counts.struck_at_fences += 1;
            let aim = if self.rng.one_in(4) { Aim::Kill } else { Aim::GiveUp };
            let at = self.t_ns + self.rng.below(2_000_000);
            self.at(at, Happening::Strike { node, run, aim });
        }
    }

    /// The successor of stopped processes acknowledged a write: they go on now.
    pub(super) fn succeeded(&mut self, successor: usize) {
        for i in (0..NODES).filter(|i| *i != successor) {
            let until_ns = self.t_ns + self.rng.below(5_000_000);
            let waits = self.machines[i].stopped.as_mut().filter(|s| s.until == Until::Successor);
            waits.into_iter().for_each(|s| (s.until, s.until_ns) = (Until::Time, s.until_ns.min(until_ns)));
        }
    }

    /// The answer to a renewal comes late, and nothing else comes from etcd for a while.
    pub(super) fn answer_late(&mut self, node: usize, run: u64, event: Event) {
        self.counts.late_renewals += 1;
        let at = self.t_ns + self.rng.range(3 * TTL_NS / 10, 65 * TTL_NS / 100);
        self.at(at, Happening::Late { node, run, event });
        let until_ns = self.t_ns + 3 * TTL_NS;
        // Somebody else has the time to take over.
        (self.trouble.next_ns, self.trouble.aim) = (self.t_ns + 2 * TTL_NS, None);
        (self.machines[node].no_etcd_ns, self.machines[node].no_clients_ns) = (until_ns, until_ns);
    }

    /// What etcd will go back to, if this acquisition is the one that it is to forget.
    pub(super) fn copy_before(&self, transaction: &Transaction) -> Option<Box<Etcd>> {
        let acquires = matches!(transaction.owner, SetOwner::Put(_));
        let wanted = matches!(self.trouble.restore, Restore::Acquisition(at) if self.t_ns >= at);
        (acquires && wanted && self.trouble.is_on(self.t_ns)).then(|| Box::new(self.etcd.clone()))
    }

    pub(super) fn forget_acquisition(&mut self, node: usize, before: Option<Box<Etcd>>) {
        if let Some(copy) = before {
            self.trouble.restore = Restore::Import { node, until_ns: self.t_ns + TTL_NS, copy };
        }
    }

    /// The node that etcd is to forget begins its import: it is stopped within, and etcd is down from now on.
    pub(super) fn forget_import(&mut self, i: usize) {
        if !matches!(self.trouble.restore, Restore::Import { node, .. } if node == i) {
            return;
        }
        if let Restore::Import { copy, .. } = std::mem::replace(&mut self.trouble.restore, Restore::Never) {
            self.counts.restored_acquisitions += 1;
            let (at, run) = (self.t_ns + self.rng.below(1_500_000), self.machines[i].run);
            let aim = if self.rng.one_in(3) { Aim::Kill } else { Aim::Stop };
            self.at(at, Happening::Strike { node: i, run, aim });
            self.trouble.restore = Restore::Back(self.t_ns + DOWN_NS, copy);
        }
    }

    fn kill(&mut self, i: usize) {
        self.counts.kills += 1;
        self.drop_pool(i);
        let m = &mut self.machines[i];
        (m.node, m.stopped, m.stopping, m.drains_ns, m.doubtful) = (None, None, None, None, None);
        m.deaf_ns = 0;
        m.inbox.clear();
        m.starts_ns = self.t_ns;
    }

    pub(super) fn stop(&mut self, i: usize, with_clock: bool) {
        let until_ns = self.t_ns + self.rng.range(1_000_000, 4 * TTL_NS);
        self.stop_until(i, with_clock, Until::Time, until_ns);
    }

    pub(super) fn stop_until(&mut self, i: usize, with_clock: bool, until: Until, until_ns: u64) {
        if !self.machines[i].runs() {
            return;
        }
        *(if with_clock { &mut self.counts.freezes } else { &mut self.counts.stops }) += 1;
        self.machines[i].stopped = Some(Stopped { since_ns: self.t_ns, until_ns, until, with_clock });
        if until != Until::Time {
            return;
        }
        // Its commands are with the disks, or wait where they are.
        if let Some(id) = self.machines[i].open.as_ref().map(|o| o.id).filter(|_| self.rng.one_in(3)) {
            for disk in 0..self.disks.len() {
                let at = self.t_ns + self.rng.range(1, 20_000_000);
                self.at(at, Happening::Orphan { id, disk });
            }
        }
    }

    fn lose_leader(&mut self) {
        if self.trouble.leader_ns.is_some() || self.etcd.is_down {
            return;
        }
        let long = self.rng.one_in(3);
        let lasts = if long { self.rng.range(TTL_NS, 3 * TTL_NS) } else { self.rng.range(5_000_000, TTL_NS / 2) };
        *(if long { &mut self.counts.without_quorum } else { &mut self.counts.without_leader }) += 1;
        self.etcd.has_leader = false;
        self.trouble.leader_ns = Some(self.t_ns + lasts);
    }

    /// Power is lost everywhere; etcd has everything on stable storage.
    fn black_out(&mut self) {
        self.counts.blackouts += 1;
        (0..NODES).for_each(|i| self.kill(i));
        self.disks.iter().for_each(|d| d.crash());
    }

    fn end_of_faults(&mut self, i: usize) {
        let t = self.t_ns;
        let m = &mut self.machines[i];
        if let Some(s) = m.stopped.as_ref().filter(|s| t >= s.until_ns) {
            let deaf_max_ns = if s.until == Until::Fence { DEAF_MAX_NS / 6 } else { DEAF_MAX_NS };
            m.resume(t, self.rng.below(deaf_max_ns));
        }
        let m = &mut self.machines[i];
        if m.hears(t) {
            for event in std::mem::take(&mut m.inbox) {
                self.tell(i, event);
            }
        }
        self.join_paths(i);
        self.end_stop(i);
        if self.machines[i].drains_ns.is_some_and(|at| t >= at) {
            self.machines[i].drains_ns = None;
            self.tell(i, Event::Resume);
        }
    }

    fn heal(&mut self) {
        self.say(|| "faults end".into());
        let t = self.t_ns;
        // Without a disk that the map calls in use nobody opens the pool.
        let dead = self.trouble.dead.filter(|disk| self.is_missed(*disk));
        self.trouble.dead = dead;
        self.end_stops();
        for m in &mut self.machines[..NODES] {
            (m.no_etcd_ns, m.no_clients_ns, m.lag_ns) = (0, 0, (0, 0));
            m.starts_ns = m.starts_ns.min(t);
            m.drains_ns = m.drains_ns.map(|_| t);
            let stays = |disk: usize| dead == Some(disk);
            let ends = m.no_disk_ns.iter_mut().enumerate().filter(|(disk, _)| !stays(*disk));
            ends.for_each(|(_, until_ns)| *until_ns = (*until_ns).min(t));
            m.stopped.iter_mut().for_each(|s| s.until_ns = t);
            m.late_renewal = false;
        }
        self.trouble.copy_ends_ns = self.trouble.copy_ends_ns.map(|_| t);
        // Watches that were cut begin anew.
        self.notify();
        self.trouble.aim = None;
        self.trouble.cut_ns = Default::default();
        self.trouble.leader_ns = self.trouble.leader_ns.map(|_| t);
        match std::mem::replace(&mut self.trouble.restore, Restore::Never) {
            Restore::Back(..) | Restore::Decide(_) => self.trouble.restore = Restore::Decide(t),
            _ => {}
        }
    }

    /// One node whose disks hang goes on so for good: the others serve. Where etcd was restored, a pool may have to be blocked, which waits for
    /// the end of the ownership.
    fn end_stops(&mut self) {
        let t = self.t_ns;
        let mut stays = self.counts.restores == 0;
        for (_, until_ns) in self.machines.iter_mut().filter_map(|m| m.stopping.as_mut()) {
            let for_good = std::mem::take(&mut stays);
            self.counts.stops_endless += u64::from(for_good);
            *until_ns = if for_good { u64::MAX } else { t };
        }
    }

    fn restore(&mut self) {
        let t = self.t_ns;
        match &self.trouble.restore {
            Restore::Copy(at) if t >= *at && self.trouble.is_on(t) => {
                let back = t + self.rng.range(TTL_NS, 6 * TTL_NS);
                self.trouble.restore = Restore::Back(back, Box::new(self.etcd.clone()));
            }
            Restore::Import { until_ns, .. } if t >= *until_ns => {
                let old = std::mem::replace(&mut self.trouble.restore, Restore::Never);
                if let Restore::Import { copy, .. } = old {
                    self.trouble.restore = Restore::Back(t + DOWN_NS, copy);
                }
            }
            Restore::Back(at, _) if t + DOWN_NS >= *at && t < *at && !self.etcd.is_down => {
                // All members are down for longer than a lease lasts.
                (self.etcd.has_leader, self.etcd.is_down) = (false, true);
                self.trouble.leader_ns = None;
            }
            Restore::Back(at, old) if t >= *at => {
                self.counts.restores += 1;
                self.etcd = (**old).clone();
                self.etcd.elect(t);
                self.judge.borrow_mut().forgets();
                self.trouble.leader_ns = None;
                self.say(|| format!("etcd goes back to {:?}", self.etcd.view));
                // Nodes that begin anew have not seen what is lost.
                for i in 0..NODES {
                    if self.machines[i].stopped.is_none() && self.rng.one_in(2) {
                        self.kill(i);
                    }
                }
                self.trouble.restore = Restore::Decide(t + self.rng.range(TTL_NS, 5 * TTL_NS));
            }
            Restore::Decide(at) if t >= *at => {
                self.trouble.restore = Restore::Never;
                self.decide();
            }
            _ => {}
        }
    }

    /// `arden pool take --i-am-sure`: every node is off, all keys are removed, and the record says what the labels say.
    fn decide(&mut self) {
        self.counts.blocked += u64::from(self.etcd.view.record.blocked.is_some());
        (0..NODES).for_each(|i| self.kill(i));
        for d in &self.disks {
            d.registered().into_iter().for_each(|k| d.fence(k));
        }
        self.drop_registrations();
        self.judge.borrow_mut().shut_out(self.initiators);
        let epoch = self.newest_label().max(self.etcd.view.record.epoch);
        self.etcd.view.record = Record { epoch, holders: Vec::new(), written: epoch, blocked: None };
        self.etcd.view.owner = None;
        self.etcd.revision.0 += 1;
        self.etcd.view.changed = self.etcd.revision;
        if !self.etcd.has_leader {
            self.etcd.elect(self.t_ns);
        }
        self.say(|| format!("the administrator decides: {:?}", self.etcd.view));
    }
}
