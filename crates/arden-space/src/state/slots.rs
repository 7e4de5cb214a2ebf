//! Slots of a group with parity while the pool is open: which are taken, who reads them, and what is being changed in
//! place. The slot of each stripe is in the map.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::base::bitmap::Bitmap;
use crate::state::patches::{Patch, Pins};
use crate::state::views::Gate;

pub(crate) struct Slots {
    /// Slots that hold a stripe, are being written, or were left but not yet durably.
    taken: RefCell<Bitmap>,
    /// Where the search for a free slot goes on.
    next: Cell<usize>,
    pub(crate) readers: Pins,
    /// Readers who reconstruct.
    pub(crate) rebuilds: Pins,
    /// Changes in place, by slot.
    patches: RefCell<BTreeMap<u16, Rc<Patch>>>,
    /// Counts the patches as newer data.
    gate: Arc<Gate>,
    /// The batch, in the live part of the log, that last changed a slot in place.
    patched: RefCell<BTreeMap<u16, u64>>,
}

impl Slots {
    pub(crate) fn new(count: usize, taken: impl Iterator<Item = u16>, gate: Arc<Gate>) -> Slots {
        let mut bits = Bitmap::new(count);
        taken.for_each(|s| bits.set(usize::from(s)));
        Slots {
            taken: RefCell::new(bits),
            next: Cell::default(),
            readers: Pins::default(),
            rebuilds: Pins::default(),
            patches: RefCell::default(),
            gate,
            patched: RefCell::default(),
        }
    }

    /// Takes a slot that nobody reads: `wanted` if it is free.
    pub(crate) fn take(&self, wanted: usize) -> Option<u16> {
        let mut taken = self.taken.borrow_mut();
        let (n, from) = (taken.len(), self.next.get());
        let free = |i: &usize| !taken.get(*i) && !self.readers.is_held(*i as u16);
        let found = std::iter::once(wanted).chain((0..n).map(|k| (from + k) % n)).find(free)?;
        self.next.set((found + 1) % n);
        taken.set(found);
        Some(found as u16)
    }

    pub(crate) fn give_back(&self, slot: u16) {
        self.taken.borrow_mut().clear(usize::from(slot));
    }

    pub(crate) fn is_taken(&self, slot: u16) -> bool {
        self.taken.borrow().get(usize::from(slot))
    }

    /// What is being changed in the slot.
    pub(crate) fn patch(&self, slot: u16) -> Option<Rc<Patch>> {
        self.patches.borrow().get(&slot).cloned()
    }

    pub(crate) fn patches(&self) -> Vec<(u16, Rc<Patch>)> {
        self.patches.borrow().iter().map(|(&s, p)| (s, p.clone())).collect()
    }

    pub(crate) fn begin_patch(&self, slot: u16, patch: Rc<Patch>) {
        self.gate.add_newer();
        let before = self.patches.borrow_mut().insert(slot, patch);
        self.gate.remove_newer(u64::from(before.is_some()));
    }

    pub(crate) fn end_patch(&self, slot: u16) {
        let ended = self.patches.borrow_mut().remove(&slot);
        self.gate.remove_newer(u64::from(ended.is_some()));
    }

    pub(crate) fn retain_patches(&self, keep: impl Fn(&Patch) -> bool) {
        let mut patches = self.patches.borrow_mut();
        let before = patches.len();
        patches.retain(|_, p| keep(p));
        self.gate.remove_newer((before - patches.len()) as u64);
    }

    /// Batch `seq` of the log changes the slot in place: a disk that leaves before that batch is out of the log may have
    /// missed it.
    pub(crate) fn note_patched(&self, slot: u16, seq: u64) {
        self.patched.borrow_mut().insert(slot, seq);
    }

    pub(crate) fn patched(&self) -> Vec<u16> {
        self.patched.borrow().keys().copied().collect()
    }

    /// The log begins at batch `start`.
    pub(crate) fn log_begins_at(&self, start: u64) {
        self.patched.borrow_mut().retain(|_, seq| *seq >= start);
    }

    /// There is a new log, and nothing in it.
    pub(crate) fn log_is_new(&self) {
        self.patched.borrow_mut().clear();
    }

    /// `stripes` are the slots that the map names.
    pub(crate) fn check(&self, mut stripes: impl Iterator<Item = u16>) -> Result<(), String> {
        let count = self.taken.borrow().len();
        match stripes.find(|&s| usize::from(s) < count && !self.is_taken(s)) {
            Some(slot) => Err(format!("slot {slot} has a stripe and is free")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::patches::LogPins;

    #[test]
    fn the_wanted_slot_is_taken_if_it_is_free_and_unread() {
        let slots = Slots::new(4, [0].into_iter(), Arc::default());
        assert_eq!(slots.take(2), Some(2));
        assert_eq!(slots.take(0), Some(3), "0 has a stripe; the search goes on behind the last");
        let reader = slots.readers.hold(1);
        assert_eq!(slots.take(1), None, "the only free one is read");
        drop(reader);
        assert_eq!(slots.take(0), Some(1));
        slots.give_back(2);
        assert_eq!(slots.take(0), Some(2));
    }

    /// Whoever reads a slot beside the pool would get half of a change.
    #[test]
    fn changes_in_place_count_as_newer_data_until_they_end() {
        let gate = Arc::<Gate>::default();
        let slots = Slots::new(8, std::iter::empty(), gate.clone());
        let patch = |stripe| {
            let log = Rc::<LogPins>::default().hold((1, 0));
            Rc::new(Patch::new(stripe, BTreeMap::new(), Vec::new(), BTreeMap::new(), log))
        };
        slots.begin_patch(1, patch(1));
        assert!(gate.has_newer());
        slots.begin_patch(1, patch(2));
        slots.begin_patch(2, patch(3));
        slots.begin_patch(3, patch(4));
        assert_eq!(gate.newer(), 3, "one for each slot");
        slots.end_patch(1);
        slots.end_patch(1);
        assert_eq!(gate.newer(), 2);
        slots.retain_patches(|p| p.stripe == 4);
        assert_eq!(gate.newer(), 1);
        slots.end_patch(3);
        assert!(!gate.has_newer());
    }

    #[test]
    fn slots_changed_by_batches_that_the_log_has_let_go_of_are_forgotten() {
        let slots = Slots::new(4, std::iter::empty(), Arc::default());
        slots.note_patched(1, 5);
        slots.note_patched(2, 7);
        slots.log_begins_at(6);
        assert_eq!(slots.patched(), [2]);
        slots.log_is_new();
        assert!(slots.patched().is_empty());
    }
}
