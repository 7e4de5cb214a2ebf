//! Which disks are away, and how much of that the newest durable map knows. Nothing that an absent disk missed may be
//! acknowledged before the map says that it is away: after a crash the disk would count as good.

use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct Departures {
    /// How often something left (a disk, or a group that was given back), and how much of that is durable.
    count: Cell<u64>,
    durable: Cell<u64>,
    /// Since when a disk is missing, in nanoseconds of the runtime's clock.
    since: RefCell<BTreeMap<u16, u64>>,
    /// Who is missing or behind, and the disks of the journal, according to the newest durable map.
    away_on_disk: RefCell<Vec<u16>>,
    journal_on_disk: RefCell<Vec<u16>>,
    /// Who is in use, according to that map. Empty before the first.
    in_use_on_disk: RefCell<Vec<u16>>,
    /// To be told once when the last disk has left.
    tell_all_left: RefCell<Option<Box<dyn FnOnce()>>>,
}

impl Departures {
    /// Something left: what is acknowledged from now on waits for a map that knows of it.
    pub(crate) fn note(&self) {
        self.count.set(self.count.get() + 1);
    }

    pub(crate) fn note_disk(&self, disk: u16, now_ns: u64) {
        self.since.borrow_mut().insert(disk, now_ns);
        self.note();
    }

    /// A disk that an opening did not find. The map on disk may say so already.
    pub(crate) fn note_absent(&self, disk: u16, now_ns: u64) {
        self.since.borrow_mut().insert(disk, now_ns);
    }

    pub(crate) fn disk_is_back(&self, disk: u16) {
        self.since.borrow_mut().remove(&disk);
    }

    /// Disks that are missing for `grace_ns` or longer.
    pub(crate) fn overdue(&self, now_ns: u64, grace_ns: u64) -> Vec<u16> {
        let since = self.since.borrow();
        since.iter().filter(|(_, at)| now_ns.saturating_sub(**at) >= grace_ns).map(|(&d, _)| d).collect()
    }

    /// `tell` is called when the last disk has left.
    pub(crate) fn when_all_left(&self, tell: Box<dyn FnOnce()>) {
        *self.tell_all_left.borrow_mut() = Some(tell);
    }

    /// The last disk has left.
    pub(crate) fn all_left(&self) {
        let tell = self.tell_all_left.borrow_mut().take();
        if let Some(tell) = tell {
            tell();
        }
    }

    /// Whether somebody wants to know when the last disk has left.
    pub(crate) fn tells_all_left(&self) -> bool {
        self.tell_all_left.borrow().is_some()
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.get()
    }

    pub(crate) fn are_durable(&self) -> bool {
        self.count.get() == self.durable.get()
    }

    /// A map is durable that knows of `count` departures.
    pub(crate) fn map_is_durable(&self, count: u64, away: Vec<u16>, journal: Vec<u16>, in_use: Vec<u16>) {
        *self.away_on_disk.borrow_mut() = away;
        *self.journal_on_disk.borrow_mut() = journal;
        self.found_in_use(in_use);
        self.durable.set(count);
    }

    /// The disks that are in use by the newest durable map.
    pub(crate) fn found_in_use(&self, disks: Vec<u16>) {
        *self.in_use_on_disk.borrow_mut() = disks;
    }

    /// Whether the next map is on one of the disks that the newest durable map calls in use. Else those would go on calling themselves
    /// alone in use, and say nothing of the disks that are.
    pub(crate) fn follows(&self, disks: impl Iterator<Item = u16>) -> bool {
        let before = self.in_use_on_disk.borrow();
        before.is_empty() || disks.into_iter().any(|d| before.contains(&d))
    }

    pub(crate) fn away_on_disk(&self) -> Ref<'_, Vec<u16>> {
        self.away_on_disk.borrow()
    }

    pub(crate) fn journal_on_disk(&self) -> Ref<'_, Vec<u16>> {
        self.journal_on_disk.borrow()
    }

    /// `is_missing` says what the map in memory holds of a disk.
    pub(crate) fn check(&self, is_missing: impl Fn(u16) -> bool) -> Result<(), String> {
        let (count, durable) = (self.count.get(), self.durable.get());
        if durable > count {
            return Err(format!("{durable} departures are durable, of {count}"));
        }
        match self.since.borrow().keys().find(|&&d| !is_missing(d)) {
            Some(d) => Err(format!("disk {d} counts as away and is not missing")),
            None => Ok(()),
        }
    }
}
