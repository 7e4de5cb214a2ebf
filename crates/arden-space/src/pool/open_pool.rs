//! An open pool: the map in memory, its disks, its spaces, and what fails together. One owner
//! on one runtime; everything that changes the map does so between two awaits.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use arden_block::sync::Mutex;
use arden_block::{BLOCK_BYTES, LocalFuture, Rt};

use crate::base::bitmap::Bitmap;
use crate::base::error::{SpaceError, SpaceResult};
use crate::base::lock::RangeLocks;
use crate::disk::open_disk::DiskRt;
use crate::map::alloc::Allocator;
use crate::map::pool_map::{DiskState, Group, PoolMap, Shape, SpaceRec, UNWRITTEN};
use crate::pool::slab::SlabUsers;
use crate::state::background::Background;
use crate::state::blocks::{DoubtedRows, LoggedBlocks, UnreadBlocks};
use crate::state::departures::Departures;
use crate::state::events::Events;
use crate::state::flips::Flips;
use crate::state::journal::Journal;
use crate::state::lifecycle::Lifecycle;
use crate::state::map::{GroupChange, MapChange, MapState};
use crate::state::overlay::Overlay;
use crate::state::patches::{PatchWork, PatchedStripes, Unflushed};
use crate::state::regions::{MissedRoom, Regions};
use crate::state::room::Room;
use crate::state::rounds::Rounds;
use crate::state::slots::Slots;
use crate::state::trims::Trims;
use crate::state::views::{Gate, PoolViews, SpaceViews};

/// What may be tuned; the defaults are meant for daemons, simulation makes things small.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// Small writes gathered in memory, at most. Half leaves in a round, and the next gathers while that is flushed.
    pub gather_bytes_max: u64,
    /// Durable writes up to this go through the journal.
    pub journal_write_max: usize,
    /// How often background work looks whether there is any.
    pub tick_ms: u64,
    /// How long a missing disk is waited for before others take its place.
    pub grace_ms: u64,
    /// How long a disk may take over an operation before it counts as hung and leaves; a flush
    /// and the zeroing of a slab may take eight times as long.
    pub io_timeout_ms: u64,
    /// Foreground work counts as present for this long after its last operation.
    pub busy_ms: u64,
}

impl Default for PoolConfig {
    fn default() -> PoolConfig {
        PoolConfig {
            gather_bytes_max: 32 << 20,
            journal_write_max: 64 << 10,
            tick_ms: 1000,
            grace_ms: 300_000,
            io_timeout_ms: 20_000,
            busy_ms: 50,
        }
    }
}

/// What is known of a group only while the pool is open.
pub(crate) struct GroupRt {
    /// Mirrors.
    pub(crate) regions: Regions,
    /// Parity.
    pub(crate) slots: Slots,
    /// Users who are reading or writing: the group stays in the map.
    holds: Cell<u32>,
    /// Whether readers on other threads may rely on what they know of it.
    pub(crate) gate: Arc<Gate>,
    /// A durable map has the group: before, records of it in the log would mean nothing.
    mapped: Cell<bool>,
}

impl GroupRt {
    pub(crate) fn new(
        shape: &Shape,
        group: &Group,
        gate: Arc<Gate>,
        missed_room: Rc<MissedRoom>,
        opened: bool,
    ) -> GroupRt {
        let slots = if shape.is_parity() { shape.slots } else { 0 };
        let crashed = opened && !shape.is_parity() && shape.layout.copies() > 1;
        let suspect = if crashed { group.dirty.clone() } else { Bitmap::new(shape.dirty_bits()) };
        GroupRt {
            regions: Regions::new(group.dirty.clone(), suspect, missed_room),
            slots: Slots::new(slots, group.stripes.iter().filter(|&s| s != UNWRITTEN), gate.clone()),
            gate,
            holds: Cell::new(0),
            mapped: Cell::new(opened),
        }
    }

    pub(crate) fn hold(&self) {
        self.holds.set(self.holds.get() + 1);
    }

    pub(crate) fn release(&self) {
        self.holds.set(self.holds.get() - 1);
    }

    pub(crate) fn is_held(&self) -> bool {
        self.holds.get() > 0
    }

    pub(crate) fn is_mapped(&self) -> bool {
        self.mapped.get()
    }

    pub(crate) fn set_mapped(&self) {
        self.mapped.set(true);
    }
}

/// The groups of a space that have slabs.
#[derive(Default)]
pub(crate) struct Groups(RefCell<BTreeMap<usize, Rc<GroupRt>>>);

impl Groups {
    pub(crate) fn get(&self, group: usize) -> Option<Rc<GroupRt>> {
        self.0.borrow().get(&group).cloned()
    }

    pub(crate) fn all(&self) -> Vec<(usize, Rc<GroupRt>)> {
        self.0.borrow().iter().map(|(&i, g)| (i, g.clone())).collect()
    }

    pub(crate) fn numbers(&self) -> Vec<usize> {
        self.0.borrow().keys().copied().collect()
    }

    pub(crate) fn insert(&self, group: usize, rt: GroupRt) {
        self.0.borrow_mut().insert(group, Rc::new(rt));
    }

    pub(crate) fn remove(&self, group: usize) -> Option<Rc<GroupRt>> {
        self.0.borrow_mut().remove(&group)
    }

    pub(crate) fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    /// The space has only `count` groups any more.
    pub(crate) fn truncate(&self, count: usize) {
        self.0.borrow_mut().split_off(&count);
    }
}

/// Who uses a space decides what becomes of copies that a crash left different.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Nobody yet: they stay as they are.
    Nobody,
    /// Somebody who takes every block as it comes: one copy goes over the others.
    Trusting,
    /// Somebody who knows the checksum of every block that counts, and says when the copies of those are equal.
    Verifying,
}

pub(crate) struct SpaceRt {
    pub(crate) id: u32,
    pub(crate) shape: Shape,
    pub(crate) user: Cell<User>,
    /// Writers in place, applying and resync exclude each other by range.
    pub(crate) locks: Rc<RangeLocks>,
    /// Parity: one destage of a stripe at a time.
    pub(crate) stripe_locks: Rc<RangeLocks>,
    pub(crate) overlay: RefCell<Overlay>,
    pub(crate) logged: LoggedBlocks,
    pub(crate) groups: Groups,
    /// Parity.
    pub(crate) patching: PatchedStripes,
    /// Parity whose user verifies.
    pub(crate) doubts: DoubtedRows,
    pub(crate) unread: UnreadBlocks,
    /// What readers on other threads know of it.
    pub(crate) views: Arc<SpaceViews>,
}

impl SpaceRt {
    pub(crate) fn new(id: u32, shape: Shape, pool: &Arc<PoolViews>) -> SpaceRt {
        let views = pool.add_space(id, shape);
        SpaceRt {
            user: Cell::new(User::Nobody),
            id,
            shape,
            locks: Rc::default(),
            stripe_locks: Rc::default(),
            overlay: RefCell::new(Overlay::of(&views)),
            logged: LoggedBlocks::default(),
            groups: Groups::default(),
            patching: PatchedStripes::default(),
            doubts: DoubtedRows::default(),
            unread: UnreadBlocks::default(),
            views,
        }
    }

    /// The group of a block of the space, its incarnation, and the block within it.
    pub(crate) fn locate_group(&self, pool: &Inner, block: u64) -> Option<(u32, u64, u64)> {
        let per = self.shape.group_bytes / BLOCK_BYTES;
        let group = (block / per) as usize;
        let incarnation = pool.map.read().group(self.id, group)?.incarnation;
        Some((group as u32, incarnation, block % per))
    }

    pub(crate) fn group_rt(&self, group: usize) -> Option<Rc<GroupRt>> {
        self.groups.get(group)
    }
}

/// How the log is emptied while its writer holds it. What does it is above the log, which only calls it.
pub(crate) type EmptyLog = fn(Pool) -> LocalFuture<SpaceResult<()>>;

/// The parts of an open pool. Each owns its state: what its module does not offer cannot be done to it.
pub(crate) struct Inner {
    pub(crate) rt: Rt,
    pub(crate) cfg: PoolConfig,
    pub(crate) map: MapState,
    /// The cluster that the pool belongs to, as labels say from the next commit on; 0: none.
    pub(crate) cluster: Cell<u128>,
    pub(crate) disks: RefCell<BTreeMap<u16, Rc<DiskRt>>>,
    pub(crate) spaces: RefCell<BTreeMap<u32, Rc<SpaceRt>>>,
    /// Deleted ones, whose users may not have noticed yet.
    pub(crate) deleted: RefCell<Vec<Weak<SpaceRt>>>,
    pub(crate) alloc: RefCell<Allocator>,
    pub(crate) slab_users: SlabUsers,
    pub(crate) trims: Trims,
    /// One group at a time is given slabs.
    pub(crate) alloc_lock: Mutex,
    pub(crate) journal: Journal,
    /// Writing the map, and flushes of everything.
    pub(crate) commits: Rounds,
    pub(crate) flushes: Rounds,
    pub(crate) departures: Departures,
    /// Held while a disk leaves for good, until nothing more is written to it.
    pub(crate) removal: Mutex,
    pub(crate) flips: Flips,
    pub(crate) patches: Rc<PatchWork>,
    pub(crate) unflushed: Rc<Unflushed>,
    pub(crate) room: Rc<Room>,
    pub(crate) missed_room: Rc<MissedRoom>,
    pub(crate) life: Lifecycle,
    pub(crate) background: Background,
    pub(crate) events: Events,
    /// What readers on other threads know.
    pub(crate) views: Arc<PoolViews>,
    /// Puts in its place what the log holds, for whoever has no room left in it.
    pub(crate) empty_log: EmptyLog,
    /// Of the newest write.
    version: Cell<u64>,
}

impl Inner {
    pub(crate) fn version(&self) -> u64 {
        self.version.get()
    }

    pub(crate) fn new(
        rt: &Rt,
        map: PoolMap,
        disks: BTreeMap<u16, Rc<DiskRt>>,
        cfg: PoolConfig,
        empty_log: EmptyLog,
    ) -> Inner {
        let alloc = Allocator::from_map(&map);
        let views = Arc::<PoolViews>::default();
        let space = |s: &SpaceRec| (s.id, Rc::new(SpaceRt::new(s.id, s.shape(map.slab_bytes), &views)));
        let spaces = map.spaces.values().map(space).collect();
        Inner {
            rt: rt.clone(),
            background: Background::new(cfg.grace_ms),
            cfg,
            map: MapState::new(map, &views),
            cluster: Cell::new(0),
            disks: RefCell::new(disks),
            spaces: RefCell::new(spaces),
            deleted: RefCell::default(),
            alloc: RefCell::new(alloc),
            slab_users: SlabUsers::default(),
            trims: Trims::default(),
            alloc_lock: Mutex::default(),
            journal: Journal::default(),
            commits: Rounds::default(),
            flushes: Rounds::default(),
            departures: Departures::default(),
            removal: Mutex::default(),
            flips: Flips::default(),
            patches: Rc::default(),
            unflushed: Rc::default(),
            room: Rc::default(),
            missed_room: Rc::default(),
            life: Lifecycle::new(&views),
            events: Events::default(),
            views,
            empty_log,
            version: Cell::new(0),
        }
    }
}

/// A handle to an open pool.
#[derive(Clone)]
pub struct Pool(pub(crate) Rc<Inner>);

/// Whether every column of the group can be both read and written where `online` says of each disk whether it is used.
fn usable_on(shape: &Shape, group: &Group, online: impl Fn(u16) -> bool) -> bool {
    let live = |i: usize| !group.columns[i].stale && online(group.columns[i].disk);
    if shape.is_parity() {
        return (0..group.columns.len()).filter(|&i| live(i)).count() >= shape.data_columns();
    }
    let k = shape.layout.copies();
    (0..shape.columns).all(|c| (0..k).any(|i| live(c * k + i)))
}

impl Pool {
    pub fn rt(&self) -> &Rt {
        &self.0.rt
    }

    pub(crate) fn alive(&self) -> SpaceResult<()> {
        if self.0.life.is_closed() { Err(SpaceError::Closed) } else { Ok(()) }
    }

    pub(crate) fn disk(&self, index: u16) -> Option<Rc<DiskRt>> {
        self.0.disks.borrow().get(&index).cloned()
    }

    pub(crate) fn online(&self, index: u16) -> bool {
        self.0.disks.borrow().get(&index).is_some_and(|d| d.online.get())
    }

    pub(crate) fn space_rt(&self, id: u32) -> Option<Rc<SpaceRt>> {
        self.0.spaces.borrow().get(&id).cloned()
    }

    pub(crate) fn next_version(&self) -> u64 {
        let v = self.0.version.get() + 1;
        self.0.version.set(v);
        v
    }

    /// The log of the last opening has data up to this version.
    pub(crate) fn restore_version(&self, version: u64) {
        self.0.version.set(version);
    }

    pub(crate) fn event(&self, text: String) {
        tracing::debug!("{text}");
        self.0.events.add(text);
    }

    pub(crate) fn gathered_bytes(&self) -> u64 {
        self.0.spaces.borrow().values().map(|s| s.overlay.borrow().bytes()).sum()
    }

    /// Byte offset on its disk of a slab.
    pub(crate) fn slab_at(&self, disk: u16, slab: u32) -> u64 {
        let slab_bytes = self.0.map.read().slab_bytes;
        self.disk(disk).map_or(0, |d| d.areas.data_at + u64::from(slab) * slab_bytes)
    }

    /// True when every column of the group can be both read and written.
    pub(crate) fn group_usable(&self, shape: &Shape, group: &Group) -> bool {
        usable_on(shape, group, |disk| self.online(disk))
    }

    /// Takes a disk out of service, records what it misses, and waits until that is durable.
    pub(crate) async fn fail_disk(&self, disk: &Rc<DiskRt>, why: &str) -> SpaceResult<()> {
        self.note_failed(disk, why);
        self.commit().await
    }

    /// Nothing that a departed disk missed may be acknowledged before the map says so: after a
    /// crash the disk would count as good.
    pub(crate) async fn wait_departures_durable(&self) -> SpaceResult<()> {
        while !self.0.departures.are_durable() && !self.0.life.is_opening() {
            self.commit().await?;
        }
        Ok(())
    }

    /// The part of a failure that happens in memory, at once.
    pub(crate) fn note_failed(&self, disk: &Rc<DiskRt>, why: &str) {
        let index = disk.index;
        // A late answer from before the disk left and returned says nothing of it now.
        let current = self.disk(index).is_some_and(|d| Rc::ptr_eq(&d, disk));
        if !disk.leave() || !current {
            return;
        }
        self.event(format!("disk {index} failed: {why}"));
        self.mark_missing(index);
        self.0.background.wake();
        self.tell_if_all_left();
    }

    fn tell_if_all_left(&self) {
        let one_is_here = self.0.disks.borrow().values().any(|d| d.online.get());
        if !one_is_here {
            self.0.departures.all_left();
        }
    }

    /// A write has failed on each disk that it was for. Where somebody else may take the pool over, the map is written to all disks, and
    /// those that do not take it leave: whether it is they that are away, or only what was written to could not be written.
    pub(crate) async fn write_was_lost(&self) {
        if self.0.departures.tells_all_left() {
            let _ = self.commit().await;
        }
    }

    /// `tell` is called once, as soon as no disk of the pool answers any more: before the error of the command that showed it is
    /// answered to anybody.
    pub fn when_all_disks_left(&self, tell: impl FnOnce() + 'static) {
        self.0.departures.when_all_left(Box::new(tell));
        self.tell_if_all_left();
    }

    pub(crate) fn mark_missing(&self, index: u16) {
        let now = self.0.rt.now_ns();
        self.0.departures.note_disk(index, now);
        self.0.journal.forget_disk(index);
        // A log whose last disk leaves is on that one and nowhere else: the map names it until there is another.
        let log_stays = self.0.map.read().journal.disks.iter().any(|&d| d != index && self.online(d));
        if log_stays {
            self.0.map.apply(MapChange::LogDiskLeft(index));
        }
        let label_seq = self.disk(index).map_or(0, |d| d.label_seq_min());
        let released = self.0.map.apply(MapChange::DiskAway { disk: index, label_seq });
        self.outdate(|d| d == index);
        for (d, s) in released {
            self.release_slab(d, s);
        }
    }

    /// Disks are back, others are not: what lies on those is out of date wherever a group can do
    /// without it again, because from now on it is written.
    pub(crate) fn outdate_absent(&self) {
        self.0.departures.note();
        self.outdate(|d| !self.online(d));
    }

    fn outdate(&self, gone: impl Fn(u16) -> bool) {
        for space in self.0.spaces.borrow().values().filter(|s| s.shape.layout.tolerance() > 0) {
            let count = self.0.map.read().spaces.get(&space.id).map_or(0, |s| s.groups.len());
            for gi in 0..count {
                self.outdate_group(space, gi, &gone);
            }
        }
    }

    /// Columns of one group on disks that are gone miss writes from now on. Whether it has any that it can do without.
    fn outdate_group(&self, space: &SpaceRt, gi: usize, gone: impl Fn(u16) -> bool) -> bool {
        // What is dirty is not all known before the log was read.
        let was_whole = !space.shape.is_parity()
            && !self.0.life.is_opening()
            && self
                .0
                .map
                .read()
                .group(space.id, gi)
                .is_some_and(|g| g.columns.iter().all(|c| !c.stale && (self.online(c.disk) || gone(c.disk))));
        let Some((columns, marks)) = self.outdated_columns(space, gi, &gone) else { return false };
        self.0.map.apply_to(space.id, gi, &GroupChange::Outdated { columns: &columns, marks: &marks });
        if was_whole && let (Some(group), Some(rt)) = (self.0.map.read().group(space.id, gi), space.group_rt(gi)) {
            rt.regions.first_column_leaves(group.dirty.clone());
        }
        !columns.is_empty()
    }

    /// After an opening: what is dirty is all known, and so is what columns that are not here will miss besides.
    pub(crate) fn know_what_is_missed(&self) {
        let map = self.0.map.read();
        for space in self.0.spaces.borrow().values().filter(|s| s.shape.layout.copies() > 1) {
            for (gi, rt) in space.groups.all() {
                if let Some(group) = map.group(space.id, gi).filter(|g| !self.is_whole(g)) {
                    rt.regions.first_column_leaves(group.dirty.clone());
                }
            }
        }
    }

    /// Some columns of the group are up to date again. One whose disk left meanwhile counted as long as nothing could be
    /// written without it: now it can, so it does not.
    pub(crate) fn outdate_absent_of(&self, space: &SpaceRt, gi: usize) {
        if self.outdate_group(space, gi, |d| !self.online(d)) {
            self.0.departures.note();
        }
    }

    /// The group's columns on disks that are gone and that it can do without, and what may be out of date in them. None: it
    /// has no columns there.
    fn outdated_columns(&self, space: &SpaceRt, gi: usize, gone: impl Fn(u16) -> bool) -> Option<(Vec<usize>, Bitmap)> {
        let map = self.0.map.read();
        let group = map.group(space.id, gi)?;
        let held: Vec<usize> = (0..group.columns.len()).filter(|&i| gone(group.columns[i].disk)).collect();
        if held.is_empty() {
            return None;
        }
        let mut without = group.clone();
        // The last good copy stays: nothing is written until it is back.
        let outdated = held.into_iter().filter(|&i| !group.columns[i].stale).filter(|&i| {
            without.columns[i].stale = true;
            without.columns[i].stale = self.group_usable(&space.shape, &without);
            without.columns[i].stale
        });
        let outdated = outdated.collect();
        Some((outdated, self.unflushed(space, gi, group.incarnation)))
    }

    /// A disk that leaves may have lost what was written since its last flush.
    fn unflushed(&self, space: &SpaceRt, gi: usize, incarnation: u64) -> Bitmap {
        let shape = &space.shape;
        let mut marks = Bitmap::new(shape.dirty_bits());
        if shape.is_parity() {
            for slot in self.0.flips.slots_of(space.id, gi, incarnation) {
                marks.set(usize::from(slot));
            }
            if let Some(rt) = space.group_rt(gi) {
                rt.slots.patched().iter().for_each(|&slot| marks.set(usize::from(slot)));
            }
        } else {
            if !space.group_rt(gi).is_some_and(|g| g.is_mapped()) {
                // The zeros that a new slab was filled with are flushed by the commit that maps
                // the group; before, they may be lost.
                marks.set_all();
            }
            let per = shape.group_bytes / BLOCK_BYTES;
            let first = gi as u64 * per;
            for block in space.logged.within(first..first + per) {
                marks.set(((block - first) * BLOCK_BYTES / shape.region_bytes) as usize);
            }
        }
        marks
    }

    /// Every disk that takes part in a flush.
    pub(crate) fn unflushed_disks(&self) -> Vec<Rc<DiskRt>> {
        self.0.disks.borrow().values().filter(|d| d.online.get() && d.has_unflushed()).cloned().collect()
    }
}

impl Pool {
    /// Disks that are missing, or whose columns are not up to date yet, here or on disk.
    pub fn out_of_date(&self) -> Vec<u16> {
        let mut out = self.away_in_memory();
        out.extend(self.0.departures.away_on_disk().iter());
        out.sort_unstable();
        out.dedup();
        out
    }

    pub(crate) fn away_in_memory(&self) -> Vec<u16> {
        let map = self.0.map.read();
        let mut out: Vec<u16> = map
            .disks
            .iter()
            .filter(|(i, d)| d.state == DiskState::Missing || !self.online(**i))
            .map(|(&i, _)| i)
            .collect();
        out.extend(map.columns().filter(|c| c.stale).map(|c| c.disk));
        out.sort_unstable();
        out.dedup();
        out
    }

    /// Disks that hold the journal, here and according to the newest durable map. One of them
    /// has to stay whole. They should be one more than the best layout tolerates failures; they
    /// are fewer from a disk's loss until the journal moves to others.
    pub fn journal_disks(&self) -> Vec<u16> {
        let durable = self.0.departures.journal_on_disk();
        let map = self.0.map.read();
        map.journal.disks.iter().copied().filter(|&d| durable.contains(&d) && self.online(d)).collect()
    }

    /// Somebody else noticed that a disk is not to be trusted now.
    pub async fn report_failure(&self, disk: u16) -> SpaceResult<()> {
        match self.disk(disk) {
            Some(d) => self.fail_disk(&d, "reported from outside").await,
            None => Ok(()),
        }
    }

    /// No column of the group misses anything.
    pub(crate) fn is_whole(&self, group: &Group) -> bool {
        group.columns.iter().all(|c| !c.stale && self.online(c.disk))
    }

    /// Nor is one of them on its way to another disk.
    pub(crate) fn is_in_place(&self, group: &Group) -> bool {
        self.is_whole(group) && group.columns.iter().all(|c| c.target.is_none())
    }
}
