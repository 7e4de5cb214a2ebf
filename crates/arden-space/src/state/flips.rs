//! Stripes of parity spaces that moved to another slot (a flip), and whose move no durable map holds yet. Until then
//! the slot that they left stays taken: a crash would find them there.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use crate::map::pool_map::UNWRITTEN;

/// A stripe that moved and whose move is not durable yet.
#[derive(Debug, Clone)]
pub(crate) struct Flip {
    pub(crate) id: u64,
    pub(crate) space: u32,
    pub(crate) group: u32,
    pub(crate) incarnation: u64,
    pub(crate) stripe: u32,
    pub(crate) slot: u16,
    pub(crate) old: u16,
    pub(crate) upto: u64,
}

/// Space, group and stripe.
type Place = (u32, u32, u32);

/// A stripe that moved while the log held older data of it.
struct Superseded {
    incarnation: u64,
    /// Data up to this version is void.
    version: u64,
    /// The last batch of the log that may hold such data.
    seq: u64,
}

#[derive(Default)]
pub(crate) struct Flips {
    /// In the order of their numbers.
    list: RefCell<Vec<Flip>>,
    next: Cell<u64>,
    superseded: RefCell<BTreeMap<Place, Superseded>>,
}

impl Flips {
    /// The number of the next move: smaller ones have happened.
    pub(crate) fn next_id(&self) -> u64 {
        self.next.get()
    }

    pub(crate) fn restore_next_id(&self, next: u64) {
        self.next.set(next);
    }

    /// Registers a move, which has the next number.
    pub(crate) fn add(&self, flip: Flip) {
        debug_assert_eq!(flip.id, self.next.get());
        self.next.set(flip.id + 1);
        self.list.borrow_mut().push(flip);
    }

    pub(crate) fn get(&self, id: u64) -> Option<Flip> {
        self.list.borrow().iter().find(|f| f.id == id).cloned()
    }

    /// Numbers of the moves before `id` that are not durable.
    pub(crate) fn ids_before(&self, id: u64) -> Vec<u64> {
        self.list.borrow().iter().map(|f| f.id).filter(|&f| f < id).collect()
    }

    pub(crate) fn any(&self, is: impl Fn(&Flip) -> bool) -> bool {
        self.list.borrow().iter().any(is)
    }

    /// The slots that stripes of this group moved to.
    pub(crate) fn slots_of(&self, space: u32, group: usize, incarnation: u64) -> Vec<u16> {
        let of_group = |f: &&Flip| (f.space, f.group as usize, f.incarnation) == (space, group, incarnation);
        self.list.borrow().iter().filter(of_group).map(|f| f.slot).collect()
    }

    /// The moves before `id` are durable; gives them.
    pub(crate) fn retire(&self, id: u64) -> Vec<Flip> {
        let (done, rest): (Vec<_>, Vec<_>) = self.list.borrow_mut().drain(..).partition(|f| f.id < id);
        *self.list.borrow_mut() = rest;
        done
    }

    /// The group is no more.
    pub(crate) fn forget_group(&self, space: u32, group: usize) {
        self.list.borrow_mut().retain(|f| (f.space, f.group as usize) != (space, group));
        self.superseded.borrow_mut().retain(|k, _| (k.0, k.1 as usize) != (space, group));
    }

    /// Data of the stripe up to `version` that the log holds up to batch `seq` is void.
    pub(crate) fn supersede(&self, place: Place, incarnation: u64, version: u64, seq: u64) {
        self.superseded.borrow_mut().insert(place, Superseded { incarnation, version, seq });
    }

    /// What a map has to say that makes the log begin at batch `start`: space, group, incarnation, stripe, version.
    pub(crate) fn superseded_since(&self, start: u64) -> Vec<(u32, u32, u64, u32, u64)> {
        let mut all = self.superseded.borrow_mut();
        all.retain(|_, m| m.seq >= start);
        all.iter().map(|(k, m)| (k.0, k.1, m.incarnation, k.2, m.version)).collect()
    }

    /// The log holds nothing any more.
    pub(crate) fn forget_superseded(&self) {
        self.superseded.borrow_mut().clear();
    }

    /// `version` is the newest of the pool; `is_taken` says whether a slot of a group that still exists is held.
    pub(crate) fn check(&self, version: u64, is_taken: impl Fn(&Flip, u16) -> bool) -> Result<(), String> {
        let list = self.list.borrow();
        if list.iter().any(|f| f.id >= self.next.get()) || !list.is_sorted_by(|a, b| a.id < b.id) {
            return Err(format!("moves are not numbered in order: {list:?}"));
        }
        if let Some(f) = list.iter().find(|f| (f.slot == f.old && f.slot != UNWRITTEN) || f.upto > version) {
            return Err(format!("not a move: {f:?}, newest version {version}"));
        }
        let held = |f: &Flip, slot: u16| slot == UNWRITTEN || is_taken(f, slot);
        match list.iter().find(|f| !held(f, f.slot) || !held(f, f.old)) {
            Some(f) => Err(format!("a slot of a move that is not durable is free: {f:?}")),
            None => Ok(()),
        }
    }
}
