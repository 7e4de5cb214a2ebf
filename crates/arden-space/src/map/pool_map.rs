//! The pool map: every disk, every space, every slab group, and where the journal begins.
//! One value in memory, written whole to every disk at each commit; log records change it in
//! between. Its bytes are `mapcode`. See `docs/on-disk-space.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arden_block::BLOCK_BYTES;

use crate::base::bitmap::Bitmap;
use crate::map::layout::{Layout, Provision};
use crate::map::stripes::Stripes;

/// The slot number of a stripe that was never written: it reads as zeros.
pub(crate) const UNWRITTEN: u16 = u16::MAX;
/// The code of disks that have an arm.
pub(crate) const ROTATING: u8 = 1;
/// How many epochs the lineage remembers.
pub(crate) const LINEAGE_MAX: usize = 1024;
/// The longest name of a pool, in bytes.
pub(crate) const NAME_MAX: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskState {
    /// In use.
    Active,
    /// Holds nothing until another disk fails.
    Spare,
    /// Being emptied.
    Retiring,
    /// Failed or away; what it misses is recorded.
    Missing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiskRec {
    pub(crate) id: u128,
    pub(crate) size_bytes: u64,
    pub(crate) slabs: u32,
    pub(crate) state: DiskState,
    /// Retiring disks that go away stay marked for emptying.
    pub(crate) retire: bool,
    pub(crate) media: u8,
    pub(crate) name: String,
    /// Of a missing disk: the sequence that its label has at least. What has an older one is an old image of it. 0: nothing is known.
    pub(crate) label_seq_min: u64,
    /// Of a missing disk: no opening was served since it left. It was in use in the last one that was.
    pub(crate) left_unserved: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) disk: u16,
    pub(crate) slab: u32,
    /// Parts that the group's dirty bits name are out of date in this column.
    pub(crate) stale: bool,
    /// Where the column is being moved to. Not on disk: a move starts over after a crash.
    pub(crate) target: Option<(u16, u32)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Group {
    /// Tells this group from an earlier one at the same place, for log records.
    pub(crate) incarnation: u64,
    pub(crate) columns: Vec<Column>,
    /// Mirrors: regions being written. Parity: slots that a stale column misses.
    pub(crate) dirty: Bitmap,
    /// Parity: the slot of each stripe.
    pub(crate) stripes: Stripes,
}

#[derive(Debug, Clone)]
pub(crate) struct SpaceRec {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) layout: Layout,
    pub(crate) columns: u16,
    pub(crate) interleave: u64,
    pub(crate) size_bytes: u64,
    pub(crate) provision: Provision,
    /// Shared with a map that is on its way to the disks, and with readers on other threads.
    pub(crate) groups: Vec<Option<Arc<Group>>>,
}

/// Sizes that follow from a space's layout and the pool's slab.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) layout: Layout,
    pub(crate) columns: usize,
    pub(crate) interleave: u64,
    pub(crate) slab_bytes: u64,
    /// Bytes of the space that one group holds.
    pub(crate) group_bytes: u64,
    /// Mirrors: bytes of the space that one dirty bit covers.
    pub(crate) region_bytes: u64,
    /// Parity: slots and stripes in a group; data bytes of a stripe.
    pub(crate) slots: usize,
    pub(crate) stripes: usize,
    pub(crate) stripe_bytes: u64,
}

impl Shape {
    pub(crate) fn new(layout: Layout, columns: usize, interleave: u64, slab_bytes: u64) -> Shape {
        let slots = (slab_bytes / interleave) as usize;
        let data = (columns - layout.parity()) as u64;
        let spare = if layout.parity() > 0 { (slots / 32).max(2).min(slots - 1) } else { 0 };
        let stripes = slots - spare;
        let group_bytes = stripes as u64 * interleave * data;
        let region_bytes = (1 << 20).min(slab_bytes / 4).max(interleave);
        Shape {
            layout,
            columns,
            interleave,
            slab_bytes,
            group_bytes,
            region_bytes,
            slots,
            stripes,
            stripe_bytes: interleave * data,
        }
    }

    pub(crate) fn width(&self) -> usize {
        self.layout.width(self.columns)
    }

    pub(crate) fn is_parity(&self) -> bool {
        self.layout.parity() > 0
    }

    /// What is in memory while one region or slot is repaired.
    pub(crate) fn repair_bytes(&self) -> u64 {
        if self.is_parity() { self.interleave * self.columns as u64 } else { self.region_bytes }
    }

    pub(crate) fn data_columns(&self) -> usize {
        self.columns - self.layout.parity()
    }

    /// The stripes of a new group.
    pub(crate) fn no_stripes(&self) -> Stripes {
        if self.is_parity() { Stripes::new(self.stripes, self.slots) } else { Stripes::new(0, 0) }
    }

    /// Blocks of the space that a stripe holds: the first, and the one behind the last.
    pub(crate) fn stripe_blocks(&self, group: usize, stripe: usize) -> (u64, u64) {
        let first = (group as u64 * self.group_bytes + stripe as u64 * self.stripe_bytes) / BLOCK_BYTES;
        (first, first + self.stripe_bytes / BLOCK_BYTES)
    }

    pub(crate) fn dirty_bits(&self) -> usize {
        if self.is_parity() { self.slots } else { self.group_bytes.div_ceil(self.region_bytes) as usize }
    }
}

impl SpaceRec {
    pub(crate) fn shape(&self, slab_bytes: u64) -> Shape {
        Shape::new(self.layout, usize::from(self.columns), self.interleave, slab_bytes)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct JournalRec {
    pub(crate) log_id: u64,
    pub(crate) disks: Vec<u16>,
    pub(crate) size_bytes: u64,
    pub(crate) start_pos: u64,
    pub(crate) start_seq: u64,
}

impl JournalRec {
    /// Sequence and position of the first batch.
    pub(crate) fn start(&self) -> (u64, u64) {
        (self.start_seq, self.start_pos)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct PoolMap {
    pub(crate) pool_id: u128,
    pub(crate) name: String,
    pub(crate) epoch: u64,
    pub(crate) seq: u64,
    pub(crate) slab_bytes: u64,
    pub(crate) next_incarnation: u64,
    pub(crate) next_space: u32,
    pub(crate) next_disk: u16,
    /// `(epoch, nonce)` of each opening, oldest first.
    pub(crate) lineage: Vec<(u64, u64)>,
    pub(crate) warn_percent: [u8; 3],
    /// The newest map known to be on every disk in use. A disk in use with an older one was
    /// away without our knowing.
    pub(crate) replicated_seq: u64,
    /// The newest epoch that was opened to its end. In a later one nothing was ever served,
    /// so a disk that has nothing newer may be taken back by whoever went on without it.
    pub(crate) served_epoch: u64,
    /// Moves of stripes with a smaller number are in this map; their log records are void.
    pub(crate) flip_floor: u64,
    /// Stripes that moved while the log still held older data of theirs:
    /// `(space, group, incarnation, stripe, version)`; data up to that version is void.
    pub(crate) moved: Vec<(u32, u32, u64, u32, u64)>,
    pub(crate) journal: JournalRec,
    pub(crate) disks: BTreeMap<u16, DiskRec>,
    pub(crate) spaces: BTreeMap<u32, SpaceRec>,
}

impl PoolMap {
    pub(crate) fn group(&self, space: u32, group: usize) -> Option<&Group> {
        self.spaces.get(&space)?.groups.get(group)?.as_deref()
    }

    /// The size of a space, and one of its groups to be kept.
    pub(crate) fn shown(&self, space: u32, group: usize) -> Option<(u64, Arc<Group>)> {
        let rec = self.spaces.get(&space)?;
        Some((rec.size_bytes, rec.groups.get(group)?.clone()?))
    }

    pub(crate) fn group_mut(&mut self, space: u32, group: usize) -> Option<&mut Group> {
        self.spaces.get_mut(&space)?.groups.get_mut(group)?.as_mut().map(Arc::make_mut)
    }

    /// Disks that an opening by a node of a cluster has to find.
    pub(crate) fn in_use(&self) -> Vec<u16> {
        self.disks.iter().filter(|(_, r)| r.state != DiskState::Missing).map(|(&i, _)| i).collect()
    }

    pub(crate) fn columns(&self) -> impl Iterator<Item = &Column> {
        self.spaces.values().flat_map(|s| s.groups.iter().flatten()).flat_map(|g| &g.columns)
    }

    /// Gives up every move to the disk; the slabs there.
    fn drop_targets(&mut self, disk: u16) -> Vec<(u16, u32)> {
        let mut out = Vec::new();
        let is_target = |c: &Column| c.target.is_some_and(|t| t.0 == disk);
        for g in self.spaces.values_mut().flat_map(|s| s.groups.iter_mut().flatten()) {
            if g.columns.iter().any(is_target) {
                let columns = Arc::make_mut(g).columns.iter_mut().filter(|c| is_target(c));
                out.extend(columns.filter_map(|c| c.target.take()));
            }
        }
        out
    }

    /// As `group`, but only the incarnation that a log record speaks of.
    pub(crate) fn group_of(&self, space: u32, group: usize, incarnation: u64) -> Option<&Group> {
        self.group(space, group).filter(|g| g.incarnation == incarnation)
    }

    /// A new disk, with the next number.
    pub(crate) fn add_disk(&mut self, rec: DiskRec) -> u16 {
        let index = self.next_disk;
        self.next_disk += 1;
        self.disks.insert(index, rec);
        index
    }

    /// A disk failed or went away, whose label has at least the number `label_seq`; the slabs on it that columns were on the way to.
    pub(crate) fn disk_away(&mut self, disk: u16, label_seq: u64) -> Vec<(u16, u32)> {
        if let Some(d) = self.disks.get_mut(&disk) {
            // One in use has what is on every disk in use. One that was missing has kept what it had.
            let known = if d.state == DiskState::Missing { d.label_seq_min } else { self.replicated_seq };
            d.label_seq_min = known.max(label_seq);
            d.left_unserved |= d.state != DiskState::Missing && self.served_epoch != self.epoch;
            d.retire |= d.state == DiskState::Retiring;
            d.state = DiskState::Missing;
        }
        self.drop_targets(disk)
    }

    /// It says of a missing disk how new its label is at least.
    pub(crate) fn bounds_missing_disks(&self) -> bool {
        self.disks.values().any(|d| d.label_seq_min > 0)
    }

    /// It says of a missing disk that it left after the last opening that was served.
    pub(crate) fn has_unserved_departures(&self) -> bool {
        self.disks.values().any(|d| d.left_unserved)
    }

    /// The opening has come to its end: the pool is served from now on, without the disks that are missing.
    pub(crate) fn serve(&mut self) {
        self.served_epoch = self.epoch;
        self.disks.values_mut().for_each(|d| d.left_unserved = false);
    }

    /// A column lies on the disk, or is on its way there.
    pub(crate) fn holds_columns(&self, disk: u16) -> bool {
        self.columns().any(|c| c.disk == disk || c.target.is_some_and(|t| t.0 == disk))
    }

    pub(crate) fn nonce(&self) -> u64 {
        self.lineage.last().map_or(0, |l| l.1)
    }

    /// Was the state that `other` speaks of last served to anybody known to this map?
    pub(crate) fn knows_served(&self, other: &PoolMap) -> bool {
        let served = other.lineage.iter().find(|l| l.0 == other.served_epoch);
        served.is_some_and(|s| self.lineage.contains(s))
    }

    /// The most failures that any space of the pool is meant to survive.
    pub(crate) fn tolerance(&self) -> usize {
        self.spaces.values().map(|s| s.layout.tolerance()).max().unwrap_or(0).max(1)
    }

    /// For the trace: what differs from one map to the next.
    pub(crate) fn outline(&self) -> String {
        let mut text = format!(
            "map {} of epoch {} (served {}), replicated {}, flip floor {}, journal {:x} from {} on {:?}",
            self.seq,
            self.epoch,
            self.served_epoch,
            self.replicated_seq,
            self.flip_floor,
            self.journal.log_id,
            self.journal.start_seq,
            self.journal.disks
        );
        for s in self.spaces.values() {
            for (i, g) in s.groups.iter().enumerate() {
                let Some(g) = g else { continue };
                text += &format!("; {}/{i}:", s.id);
                for c in &g.columns {
                    let stale = if c.stale { "-" } else { "" };
                    let target = c.target.map_or(String::new(), |(d, s)| format!(">{d}.{s}"));
                    text += &format!(" {}.{}{stale}{target}", c.disk, c.slab);
                }
                text += &format!(" dirty {:?}", g.dirty.ones());
            }
        }
        text
    }
}

/// What holds of every map between two awaits.
impl PoolMap {
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.replicated_seq > self.seq || self.served_epoch > self.epoch {
            let (seq, epoch) = (self.seq, self.epoch);
            return Err(format!(
                "map {seq} of epoch {epoch}: map {} replicated, epoch {} served",
                self.replicated_seq, self.served_epoch
            ));
        }
        if !self.lineage.is_sorted_by(|a, b| a.0 < b.0) || self.lineage.last().is_some_and(|l| l.0 != self.epoch) {
            return Err(format!("lineage {:?} in epoch {}", self.lineage, self.epoch));
        }
        let bound = |r: &DiskRec| r.label_seq_min <= if r.state == DiskState::Missing { self.seq } else { 0 };
        if let Some((i, r)) = self.disks.iter().find(|(_, r)| !bound(r)) {
            return Err(format!(
                "disk {i} is {:?}, with a label of {} or newer in map {}",
                r.state, r.label_seq_min, self.seq
            ));
        }
        let unserved =
            |r: &DiskRec| !r.left_unserved || r.state == DiskState::Missing && self.served_epoch != self.epoch;
        if let Some((i, r)) = self.disks.iter().find(|(_, r)| !unserved(r)) {
            return Err(format!("disk {i} is {:?}, and left in an opening that is not served", r.state));
        }
        let in_use = |d: &u16| self.disks.get(d).is_some_and(|r| r.state != DiskState::Missing);
        let (here, gone): (Vec<u16>, Vec<u16>) = self.journal.disks.iter().copied().partition(in_use);
        if !gone.is_empty() && !here.is_empty() {
            return Err(format!("disks {gone:?} hold the journal and are not in use, {here:?} are"));
        }
        let mut places = BTreeSet::new();
        for c in self.columns() {
            for (disk, slab) in [Some((c.disk, c.slab)), c.target].into_iter().flatten() {
                if self.disks.get(&disk).is_none_or(|d| slab >= d.slabs || disk >= self.next_disk) {
                    return Err(format!("slab {slab} of disk {disk} is in use and does not exist"));
                }
                if !places.insert((disk, slab)) {
                    return Err(format!("slab {slab} of disk {disk} is in use twice"));
                }
            }
        }
        let mut incarnations = BTreeSet::new();
        for s in self.spaces.values() {
            for (i, g) in s.groups.iter().enumerate().filter_map(|(i, g)| Some((i, g.as_ref()?))) {
                let fresh = incarnations.insert(g.incarnation) && g.incarnation < self.next_incarnation;
                if !fresh || s.id >= self.next_space {
                    return Err(format!("group {i} of space {} has incarnation {} again", s.id, g.incarnation));
                }
                g.check(&s.shape(self.slab_bytes)).map_err(|e| format!("group {i} of space {}: {e}", s.id))?;
            }
        }
        Ok(())
    }
}

impl Group {
    fn check(&self, shape: &Shape) -> Result<(), String> {
        if self.columns.len() != shape.width() || self.dirty.len() != shape.dirty_bits() {
            return Err(format!("{} columns, {} dirty bits", self.columns.len(), self.dirty.len()));
        }
        // Columns that stand in for each other.
        let copies = if shape.is_parity() { shape.width() } else { shape.layout.copies() };
        for set in self.columns.chunks(copies) {
            let disks: BTreeSet<u16> = set.iter().map(|c| c.disk).collect();
            if disks.len() < copies {
                return Err(format!("two columns on one disk: {set:?}"));
            }
        }
        let mut slots = BTreeSet::new();
        for slot in self.stripes.iter().filter(|&s| s != UNWRITTEN) {
            if usize::from(slot) >= shape.slots || !slots.insert(slot) {
                return Err(format!("slot {slot} is beyond the group, or has two stripes"));
            }
        }
        Ok(())
    }
}
