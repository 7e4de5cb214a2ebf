//! Which node reaches which disk, the disks that an ownership has entered, and what its owner does with a disk that returns: as `arden-host` does it
//! with the fences `scsi` and `nvme`. With a kind whose keys nobody can read, a fence cuts a node off from all disks, and no disk has to be entered.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use arden_block::sim::{Initiator, SimDisk};
use arden_block::{BlockDevice, Buf, DeviceInfo, IoError, IoResult, LocalFuture, SharedBuf};
use arden_cluster::{Epoch, Holder, NodeId};

use super::machine::{Done, key};
use super::shell::{COMMAND_MAX_NS, EPOCH_BITS};
use super::world::{Happening, TTL_NS, World};

pub(super) const DISKS_MAX: usize = 3;
/// An owner looks so often for disks that are back.
const LOOK_NS: u64 = 8_000_000;

/// The disks that one ownership has entered.
#[derive(Debug, Default)]
pub(super) struct Entered {
    epoch: Epoch,
    /// Holders that were fenced on every disk that was reached then.
    fenced: BTreeSet<Holder>,
    /// Those that were fenced on each disk.
    on: [BTreeSet<Holder>; DISKS_MAX],
    /// The keys that each disk had before the ownership's own came.
    before: [Option<Vec<Holder>>; DISKS_MAX],
    /// The answer to the registration came.
    heard: [bool; DISKS_MAX],
    registered: [bool; DISKS_MAX],
}

impl Entered {
    pub(super) fn begin(&mut self, epoch: Epoch) {
        if self.epoch != epoch {
            *self = Entered { epoch, ..Entered::default() };
        }
    }
}

/// Ends the commands of an ownership to all disks once one of them has refused a command.
#[derive(Clone)]
pub(super) struct Guard {
    from: Initiator,
    ended: Rc<Cell<bool>>,
}

impl Guard {
    pub(super) fn new(from: Initiator) -> Guard {
        Guard { from, ended: Rc::default() }
    }

    pub(super) fn wrap(&self, disk: &SimDisk, inner: Rc<dyn BlockDevice>) -> Rc<dyn BlockDevice> {
        Rc::new(Guarded { inner, disk: disk.clone(), guard: self.clone() })
    }
}

struct Guarded {
    inner: Rc<dyn BlockDevice>,
    disk: SimDisk,
    guard: Guard,
}

impl Guarded {
    fn run<T: 'static>(&self, ask: impl FnOnce() -> LocalFuture<IoResult<T>>) -> LocalFuture<IoResult<T>> {
        if self.guard.ended.get() {
            return Box::pin(std::future::ready(Err(IoError::Conflict)));
        }
        let (answer, guard, disk) = (ask(), self.guard.clone(), self.disk.clone());
        Box::pin(async move {
            let answer = answer.await;
            if matches!(answer, Err(IoError::Gone)) && !disk.registered().contains(&guard.from.key) {
                guard.ended.set(true);
                return Err(IoError::Conflict);
            }
            answer
        })
    }
}

impl BlockDevice for Guarded {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn read(&self, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        self.run(|| self.inner.read(offset, len))
    }
    fn write(&self, offset: u64, data: SharedBuf, durable: bool) -> LocalFuture<IoResult<()>> {
        self.run(|| self.inner.write(offset, data, durable))
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        self.run(|| self.inner.write_zeroes(offset, len))
    }
    fn discard(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        self.run(|| self.inner.discard(offset, len))
    }
    fn flush(&self) -> LocalFuture<IoResult<()>> {
        self.run(|| self.inner.flush())
    }
    fn lost_content(&self) -> bool {
        self.inner.lost_content()
    }
}

/// How far a disk that is back is with being entered.
#[derive(Debug, Clone)]
pub(super) enum Admission {
    /// No newer key is there.
    Look,
    Register,
    /// These keys were there before.
    Fence(Vec<u64>),
    /// The keys are read once more.
    Confirm,
}

impl World {
    pub(super) fn reaches(&self, node: usize, disk: usize) -> bool {
        self.t_ns >= self.machines[node].no_disk_ns[disk]
    }

    /// The node does not reach the disk before `until_ns`.
    pub(super) fn cut_path(&mut self, node: usize, disk: usize, until_ns: u64) {
        let m = &mut self.machines[node];
        m.no_disk_ns[disk] = m.no_disk_ns[disk].max(until_ns);
        let d = &self.disks[disk];
        d.registered().into_iter().filter(|k| k >> 48 == node as u64).for_each(|k| d.cut(k));
        if let Some(open) = &m.open {
            d.cut(key(node, open.epoch));
        }
    }

    /// No node reaches the disk before `until_ns`.
    pub(super) fn cut_disk(&mut self, disk: usize, until_ns: u64) {
        self.counts.disks_away += 1;
        (0..super::world::NODES).for_each(|node| self.cut_path(node, disk, until_ns));
    }

    pub(super) fn join_paths(&mut self, node: usize) {
        for disk in 0..self.disks.len() {
            let until_ns = &mut self.machines[node].no_disk_ns[disk];
            if *until_ns > 0 && self.t_ns >= *until_ns {
                *until_ns = 0;
                self.disks[disk].join_path(|k| k >> 48 == node as u64);
            }
        }
    }

    /// The disk that stayed away comes back.
    pub(super) fn revive(&mut self) {
        if let Some(disk) = self.trouble.dead.take() {
            let t = self.t_ns;
            self.machines.iter_mut().for_each(|m| m.no_disk_ns[disk] = m.no_disk_ns[disk].min(t));
        }
    }

    /// A node that takes the pool over loses a disk meanwhile, or all nodes do.
    pub(super) fn lose_a_disk_in_failover(&mut self, node: usize) {
        if !self.trouble.is_on(self.t_ns) || !self.rng.one_in(12) {
            return;
        }
        self.counts.disks_lost_in_failovers += 1;
        let disk = self.rng.below(self.disks.len() as u64) as usize;
        let until_ns = self.t_ns + self.rng.range(1_000_000, 2 * TTL_NS);
        if self.rng.one_in(2) { self.cut_path(node, disk, until_ns) } else { self.cut_disk(disk, until_ns) }
    }

    /// The key of an ownership comes to a disk, again until its answer is `heard`.
    fn enter(&mut self, node: usize, epoch: Epoch, disk: usize, heard: bool) {
        let keys = self.keys(disk..disk + 1);
        let entered = &mut self.machines[node].entered;
        if entered.epoch == epoch {
            if entered.heard[disk] {
                return;
            }
            entered.heard[disk] = heard;
            match &mut entered.before[disk] {
                None => entered.before[disk] = Some(keys),
                Some(before) => {
                    let mine = Holder { node: NodeId(node as u16), epoch };
                    before.extend(keys.into_iter().filter(|k| *k != mine));
                }
            }
        }
        self.disks[disk].register(key(node, epoch));
    }

    /// The key comes to a disk, and the answer is lost.
    pub(super) fn enter_unheard(&mut self, node: usize, epoch: Epoch, disk: usize) {
        if self.shows_keys && self.reaches(node, disk) {
            self.counts.registrations_unheard += 1;
            self.enter(node, epoch, disk, false);
        }
    }

    /// A fence of the holder on one disk, which the node enters first: at no moment the disk has neither key, so an owner of before the
    /// holder that takes the disk back finds a newer one.
    pub(super) fn fence_on(&mut self, node: usize, epoch: Epoch, holder: Holder, disk: usize) {
        let entered = match self.preempt(node, epoch, holder, disk) {
            true => &mut self.machines[node].entered,
            false => return,
        };
        if entered.epoch == epoch {
            entered.on[disk].insert(holder);
        }
    }

    /// The holder is fenced on the disk, and the answer is lost.
    pub(super) fn fence_unheard(&mut self, node: usize, epoch: Epoch, holder: Holder, disk: usize) {
        self.counts.fences_unheard += u64::from(self.preempt(node, epoch, holder, disk));
    }

    /// False: the disk is not reached.
    fn preempt(&mut self, node: usize, epoch: Epoch, holder: Holder, disk: usize) -> bool {
        if !self.reaches(node, disk) && self.shows_keys {
            return false;
        }
        if self.shows_keys {
            self.enter(node, epoch, disk, true);
        }
        self.disks[disk].fence(key(usize::from(holder.node.0), holder.epoch));
        true
    }

    /// The holder was fenced on all disks that were reached. False: on none.
    pub(super) fn note_fenced(&mut self, node: usize, epoch: Epoch, holder: Holder) -> bool {
        let entered = &mut self.machines[node].entered;
        let is_fenced = entered.epoch == epoch && entered.on.iter().any(|on| on.contains(&holder));
        if is_fenced {
            entered.fenced.insert(holder);
        }
        is_fenced
    }

    /// Holders that are fenced on the disk when this node registers there: it was not reached when they were on the others, or what one of
    /// them had sent before has come since.
    fn late_victims(&self, node: usize, epoch: Epoch, disk: usize) -> Vec<Holder> {
        let entered = &self.machines[node].entered;
        if entered.epoch != epoch || !self.shows_keys {
            return Vec::new();
        }
        let keys = self.disks[disk].registered();
        let is_there = |h: &Holder| keys.contains(&key(usize::from(h.node.0), h.epoch));
        entered.fenced.iter().filter(|h| !entered.on[disk].contains(h) || is_there(h)).copied().collect()
    }

    /// Whether the registration has to wait until its process goes on, which has more to do on this disk.
    pub(super) fn registers_later(&self, node: usize, epoch: Epoch, disk: usize) -> bool {
        self.machines[node].stopped.is_some() && !self.late_victims(node, epoch, disk).is_empty()
    }

    /// Registers the key of an ownership with one disk, if that is reached. Gives the others, those included that were there before, without those of
    /// holders that were fenced. `lives`: the process of the ownership is there, and hears of it.
    pub(super) fn register_on(&mut self, node: usize, epoch: Epoch, disk: usize, lives: bool) -> Vec<Holder> {
        if !self.reaches(node, disk) {
            if !self.shows_keys {
                self.disks[disk].register(key(node, epoch));
            }
            return Vec::new();
        }
        let late = if lives { self.late_victims(node, epoch, disk) } else { Vec::new() };
        self.enter(node, epoch, disk, true);
        for holder in late {
            self.counts.fenced_on_another_disk += 1;
            self.fence_on(node, epoch, holder, disk);
        }
        let mut keys = self.keys(disk..disk + 1);
        let mine = Holder { node: NodeId(node as u16), epoch };
        keys.retain(|k| *k != mine);
        let entered = &mut self.machines[node].entered;
        if lives && entered.epoch == epoch {
            let before = entered.before[disk].iter().flatten();
            keys.extend(before.filter(|k| !entered.fenced.contains(k)).copied());
        }
        if lives && entered.epoch == epoch && entered.fenced.is_subset(&entered.on[disk]) {
            entered.registered[disk] = true;
        }
        keys
    }

    /// The disks that an ownership may open.
    pub(super) fn entered(&self, node: usize, epoch: Epoch) -> Vec<usize> {
        let entered = &self.machines[node].entered;
        let is_fenced = |d: usize| entered.registered[d] && entered.fenced.is_subset(&entered.on[d]);
        let is_entered = |d: &usize| !self.shows_keys || entered.epoch == epoch && is_fenced(*d);
        (0..self.disks.len()).filter(|d| self.reaches(node, *d)).filter(is_entered).collect()
    }

    /// Whether the disk is missing to an owner that serves.
    pub(super) fn is_missed(&self, disk: usize) -> bool {
        let serving = self.machines.iter().filter_map(|m| m.open.as_ref().filter(|o| o.serves));
        serving.filter_map(|o| o.pool.as_ref()).any(|(p, _)| !p.status().disks[disk].online)
    }

    /// An owner looks for disks that are back.
    pub(super) fn look_for_disks(&mut self, node: usize) {
        let t = self.t_ns;
        let m = &mut self.machines[node];
        // One disk after the other, as its process does.
        if m.admits == Some(m.run) {
            return;
        }
        let Some(open) = m.open.as_ref().filter(|o| o.serves && t >= m.looks_ns) else { return };
        m.looks_ns = t + LOOK_NS;
        let (epoch, run) = (open.epoch, m.run);
        let Some((pool, _)) = &open.pool else { return };
        let away = pool.status().disks.into_iter().filter(|d| !d.online).map(|d| usize::from(d.index));
        let Some(disk) = away.into_iter().find(|d| t >= m.no_disk_ns[*d]) else { return };
        m.looks_ns = t + 4 * LOOK_NS;
        m.admits = Some(run);
        self.at(t, Happening::Admit { node, run, epoch, disk, step: Admission::Look });
    }

    /// A step of entering a disk that is back, by the owner. It goes on where it was when its process was stopped.
    pub(super) fn admit(&mut self, node: usize, run: u64, epoch: Epoch, disk: usize, step: Admission) {
        if self.machines[node].run == run && self.machines[node].stopped.is_some() {
            return self.at(self.t_ns + COMMAND_MAX_NS, Happening::Admit { node, run, epoch, disk, step });
        }
        let Some(step) = self.admit_further((node, run), epoch, disk, step) else {
            let admits = &mut self.machines[node].admits;
            admits.take_if(|r| *r == run);
            return;
        };
        let mut at = self.t_ns + self.rng.range(50_000, COMMAND_MAX_NS);
        if self.trouble.is_on(self.t_ns) && self.rng.one_in(8) {
            at += self.rng.range(COMMAND_MAX_NS, 60_000_000);
        }
        self.at(at, Happening::Admit { node, run, epoch, disk, step });
    }

    /// What comes next. None: it has ended.
    fn admit_further(
        &mut self,
        (node, run): (usize, u64),
        epoch: Epoch,
        disk: usize,
        step: Admission,
    ) -> Option<Admission> {
        let m = &self.machines[node];
        let owns = m.run == run && m.open.as_ref().is_some_and(|o| o.serves && o.epoch == epoch);
        if !owns || !self.reaches(node, disk) {
            return None;
        }
        let (mine, d) = (key(node, epoch), self.disks[disk].clone());
        let is_newer = |k: &u64| k & EPOCH_BITS > epoch.0;
        match step {
            _ if !self.shows_keys => self.take_back(node, disk),
            Admission::Look if d.registered().iter().any(is_newer) => {}
            Admission::Look => return Some(Admission::Register),
            Admission::Register => {
                let before = d.registered();
                d.register(mine);
                return Some(Admission::Fence(before.into_iter().filter(|k| *k != mine && !is_newer(k)).collect()));
            }
            Admission::Fence(keys) => {
                keys.into_iter().for_each(|k| d.fence(k));
                return Some(Admission::Confirm);
            }
            Admission::Confirm if d.registered().iter().any(is_newer) => {
                self.counts.returns_refused += 1;
                d.unregister(mine);
            }
            Admission::Confirm if d.registered() != [mine] => {}
            Admission::Confirm => self.take_back(node, disk),
        }
        None
    }

    fn take_back(&mut self, node: usize, disk: usize) {
        let Some(open) = &self.machines[node].open else { return };
        let Some((pool, _)) = open.pool.clone() else { return };
        self.judge.borrow_mut().has(open.id, disk);
        let from = Initiator { id: open.id, key: key(node, open.epoch) };
        let (dev, done) = (open.attach(&self.disks[disk], from), open.done.clone());
        self.say(|| format!("node {node}: disk {disk} is back"));
        open.rt.spawn(async move {
            pool.release_device(disk as u16);
            let result = pool.return_disk(dev).await;
            done.borrow_mut().push(Done::Back(result.map(drop)));
        });
    }
}
