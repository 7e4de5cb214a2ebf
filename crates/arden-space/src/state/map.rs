//! The map of an open pool, in memory. Everybody reads it; it changes by `apply`, one kind of change at a time, between two
//! awaits. What holds of it is `PoolMap::check`, which `Pool::check_invariants` asks. A map that is being put together, at the
//! creation or at the opening of a pool, is a plain value and not this. Before a change that readers on other threads rely on takes
//! effect, what they know is declared void.

use std::cell::{Ref, RefCell};
use std::sync::Arc;

use crate::base::bitmap::Bitmap;
use crate::map::pool_map::{DiskRec, DiskState, Group, JournalRec, PoolMap, SpaceRec, UNWRITTEN};
use crate::state::views::PoolViews;

/// A slab of a disk.
type Slab = (u16, u32);

pub(crate) struct MapState {
    map: RefCell<PoolMap>,
    views: Arc<PoolViews>,
}

/// What changes of the pool, its log, its disks and its spaces.
pub(crate) enum MapChange {
    Named(String),
    WarningLevels([u8; 3]),
    /// The opening has come to its end: the pool serves from now on.
    Served,
    /// The map of this number is on every disk in use.
    Replicated(u64),
    /// The map gets its next number, to be written: sequence and position at which the log begins, the moves of stripes that
    /// it holds, and those among them of which the log has older data.
    Numbered {
        log_start: (u64, u64),
        flip_floor: u64,
        moved: Vec<(u32, u32, u64, u32, u64)>,
    },
    /// What the map says of moved stripes is known in memory.
    MovedTaken,
    Log(JournalRec),
    LogDiskLeft(u16),
    /// Its number is the next one.
    DiskJoined(DiskRec),
    DiskRemoved(u16),
    /// It failed or went away: nothing moves to it any more. Its label has at least the number `label_seq`.
    DiskAway {
        disk: u16,
        label_seq: u64,
    },
    DiskBack(u16),
    DiskRetires(u16),
    /// It was to be emptied, and stays.
    DiskStays(u16),
    SpareTakesOver(u16),
    /// Its number is the next one.
    SpaceMade(SpaceRec),
    SpaceDeleted(u32),
    SpaceSized {
        space: u32,
        size_bytes: u64,
        groups: usize,
    },
    /// Its incarnation is the next one.
    GroupMade {
        space: u32,
        group: usize,
        rec: Group,
    },
    GroupGone {
        space: u32,
        group: usize,
    },
}

/// What changes of one group.
pub(crate) enum GroupChange<'a> {
    Dirty(&'a [u32]),
    Clean(u32),
    AllClean,
    /// These columns miss writes from now on; what is marked is out of date in them, or may be.
    Outdated {
        columns: &'a [usize],
        marks: &'a Bitmap,
    },
    /// These columns have all that they missed.
    UpToDate {
        columns: &'a [usize],
    },
    /// A stripe lies in another slot; `degraded`, where a column misses it there.
    StripeMoved {
        stripe: usize,
        slot: u16,
        degraded: bool,
    },
    /// A column is being copied to another slab, too.
    MoveBegins {
        column: usize,
        to: Slab,
    },
    /// The column lies there from now on, and where it lay until that is durable.
    ColumnMoved {
        column: usize,
        to: Slab,
    },
    /// It lies in one place.
    MoveEnds {
        column: usize,
    },
}

impl GroupChange<'_> {
    /// Readers on other threads read columns that miss nothing, whatever is marked.
    fn is_seen_elsewhere(&self) -> bool {
        !matches!(self, GroupChange::Dirty(_) | GroupChange::Clean(_) | GroupChange::AllClean)
    }
}

impl MapState {
    pub(crate) fn new(map: PoolMap, views: &Arc<PoolViews>) -> MapState {
        MapState { map: RefCell::new(map), views: views.clone() }
    }

    pub(crate) fn read(&self) -> Ref<'_, PoolMap> {
        self.map.borrow()
    }

    /// What a commit changes, names and levels say nothing of where anything lies.
    ///
    /// A space that is deleted, or as small again as it was, has nothing else that voids reads of its groups. For disks that leave and return
    /// the flag of the attachment is enough; the version of the pool only has readers ask for a view with the disks that are there.
    fn void_views(&self, change: &MapChange) {
        match *change {
            MapChange::Named(_)
            | MapChange::WarningLevels(_)
            | MapChange::Served
            | MapChange::Replicated(_)
            | MapChange::Numbered { .. }
            | MapChange::MovedTaken
            | MapChange::Log(_)
            | MapChange::LogDiskLeft(_) => {}
            MapChange::GroupMade { space, group, .. } | MapChange::GroupGone { space, group } => {
                self.views.raise_group(space, group);
            }
            MapChange::SpaceDeleted(space) => {
                self.views.raise();
                self.views.forget_space(space);
            }
            _ => self.views.raise(),
        }
    }

    /// Changes the map; the slabs that it does not name any more.
    pub(crate) fn apply(&self, change: MapChange) -> Vec<Slab> {
        self.void_views(&change);
        let mut map = self.map.borrow_mut();
        match change {
            MapChange::Named(name) => map.name = name,
            MapChange::WarningLevels(percent) => map.warn_percent = percent,
            MapChange::Served => map.serve(),
            MapChange::Replicated(seq) => map.replicated_seq = map.replicated_seq.max(seq),
            MapChange::Numbered { log_start, flip_floor, moved } => {
                map.seq += 1;
                (map.journal.start_seq, map.journal.start_pos) = log_start;
                (map.flip_floor, map.moved) = (flip_floor, moved);
            }
            MapChange::MovedTaken => map.moved.clear(),
            MapChange::Log(log) => map.journal = log,
            MapChange::LogDiskLeft(disk) => map.journal.disks.retain(|&d| d != disk),
            MapChange::DiskJoined(rec) => drop(map.add_disk(rec)),
            MapChange::DiskRemoved(disk) => drop(map.disks.remove(&disk)),
            MapChange::DiskAway { disk, label_seq } => return map.disk_away(disk, label_seq),
            MapChange::DiskBack(disk) => change_disk(&mut map, disk, |d| {
                if d.state == DiskState::Missing {
                    d.state = if d.retire { DiskState::Retiring } else { DiskState::Active };
                    (d.label_seq_min, d.left_unserved) = (0, false);
                }
            }),
            MapChange::DiskRetires(disk) => change_disk(&mut map, disk, |d| {
                d.retire = true;
                if matches!(d.state, DiskState::Active | DiskState::Spare) {
                    d.state = DiskState::Retiring;
                }
            }),
            MapChange::DiskStays(disk) => change_disk(&mut map, disk, |d| {
                d.retire = false;
                if d.state == DiskState::Retiring {
                    d.state = DiskState::Active;
                }
            }),
            MapChange::SpareTakesOver(disk) => change_disk(&mut map, disk, |d| d.state = DiskState::Active),
            MapChange::SpaceMade(rec) => {
                map.next_space = rec.id + 1;
                map.spaces.insert(rec.id, rec);
            }
            MapChange::SpaceDeleted(space) => {
                return slabs_of(map.spaces.remove(&space).into_iter().flat_map(|s| s.groups));
            }
            MapChange::SpaceSized { space, size_bytes, groups } => {
                let Some(rec) = map.spaces.get_mut(&space) else { return Vec::new() };
                rec.size_bytes = size_bytes;
                let gone = rec.groups.split_off(groups.min(rec.groups.len()));
                rec.groups.resize(groups, None);
                return slabs_of(gone);
            }
            MapChange::GroupMade { space, group, rec } => {
                map.next_incarnation = rec.incarnation + 1;
                if let Some(slot) = map.spaces.get_mut(&space).and_then(|s| s.groups.get_mut(group)) {
                    *slot = Some(Arc::new(rec));
                }
            }
            MapChange::GroupGone { space, group } => {
                let slot = map.spaces.get_mut(&space).and_then(|s| s.groups.get_mut(group));
                return slabs_of(slot.and_then(Option::take).map(Some));
            }
        }
        Vec::new()
    }

    /// Changes a group, where there is one.
    pub(crate) fn apply_to(&self, space: u32, group: usize, change: &GroupChange<'_>) {
        if change.is_seen_elsewhere() {
            self.views.raise_group(space, group);
        }
        let mut map = self.map.borrow_mut();
        let Some(g) = map.group_mut(space, group) else { return };
        match *change {
            GroupChange::Dirty(bits) => bits.iter().for_each(|&bit| g.dirty.set(bit as usize)),
            GroupChange::Clean(bit) => g.dirty.clear(bit as usize),
            GroupChange::AllClean => g.dirty.clear_all(),
            GroupChange::Outdated { columns, marks } => {
                columns.iter().for_each(|&c| g.columns[c].stale = true);
                marks.ones().into_iter().for_each(|bit| g.dirty.set(bit));
            }
            GroupChange::UpToDate { columns } => columns.iter().for_each(|&c| g.columns[c].stale = false),
            GroupChange::StripeMoved { stripe, slot, degraded } => {
                g.stripes.set(stripe, slot);
                match slot {
                    UNWRITTEN => {}
                    _ if degraded => g.dirty.set(usize::from(slot)),
                    _ => g.dirty.clear(usize::from(slot)),
                }
            }
            GroupChange::MoveBegins { column, to } => g.columns[column].target = Some(to),
            GroupChange::ColumnMoved { column, to } => {
                let c = &mut g.columns[column];
                c.target = Some((c.disk, c.slab));
                (c.disk, c.slab, c.stale) = (to.0, to.1, false);
            }
            GroupChange::MoveEnds { column } => g.columns[column].target = None,
        }
    }
}

/// The slabs of groups that are gone, and those that their columns were on the way to.
fn slabs_of(groups: impl IntoIterator<Item = Option<Arc<Group>>>) -> Vec<Slab> {
    let of = |g: &Arc<Group>| {
        let slabs = g.columns.iter().flat_map(|c| [Some((c.disk, c.slab)), c.target]);
        slabs.flatten().collect::<Vec<_>>()
    };
    groups.into_iter().flatten().flat_map(|g| of(&g)).collect()
}

fn change_disk(map: &mut PoolMap, disk: u16, change: impl FnOnce(&mut DiskRec)) {
    if let Some(rec) = map.disks.get_mut(&disk) {
        change(rec);
    }
}
