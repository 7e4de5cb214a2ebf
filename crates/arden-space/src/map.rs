//! The pool map: every disk, every space, every slab group, and where the journal begins.
//! One value in memory, written whole to every disk at each commit; log records change it in
//! between. Owns its encoding. See `docs/on-disk-space.md`.

use std::collections::BTreeMap;

use crate::bitmap::Bitmap;
use crate::codec::{Reader, Writer};
use crate::error::SpaceResult;
use crate::layout::{Layout, Provision};

/// The slot number of a stripe that was never written: it reads as zeros.
pub(crate) const UNWRITTEN: u16 = u16::MAX;
/// The code of disks that have an arm.
pub(crate) const ROTATING: u8 = 1;
/// How many epochs the lineage remembers.
pub(crate) const LINEAGE_MAX: usize = 1024;

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

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    /// Tells this group from an earlier one at the same place, for log records.
    pub(crate) incarnation: u64,
    pub(crate) columns: Vec<Column>,
    /// Mirrors: regions being written. Parity: slots that a stale column misses.
    pub(crate) dirty: Bitmap,
    /// Parity: the slot of each stripe.
    pub(crate) stripes: Vec<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpaceRec {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) layout: Layout,
    pub(crate) columns: u16,
    pub(crate) interleave: u64,
    pub(crate) size_bytes: u64,
    pub(crate) provision: Provision,
    pub(crate) groups: Vec<Option<Group>>,
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

#[derive(Debug, Clone, PartialEq, Eq)]
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
    pub(crate) settled_seq: u64,
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
        self.spaces.get(&space)?.groups.get(group)?.as_ref()
    }

    pub(crate) fn group_mut(&mut self, space: u32, group: usize) -> Option<&mut Group> {
        self.spaces.get_mut(&space)?.groups.get_mut(group)?.as_mut()
    }

    /// As `group_mut`, but only the incarnation that a log record speaks of.
    pub(crate) fn group_of(&mut self, space: u32, group: u32, incarnation: u64) -> Option<&mut Group> {
        self.group_mut(space, group as usize).filter(|g| g.incarnation == incarnation)
    }

    pub(crate) fn columns(&self) -> impl Iterator<Item = &Column> {
        self.spaces.values().flat_map(|s| s.groups.iter().flatten()).flat_map(|g| &g.columns)
    }

    pub(crate) fn columns_mut(&mut self) -> impl Iterator<Item = &mut Column> {
        self.spaces.values_mut().flat_map(|s| s.groups.iter_mut().flatten()).flat_map(|g| &mut g.columns)
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
            "map {} of epoch {} (served {}), settled {}, flip floor {}, journal {:x} from {} on {:?}",
            self.seq,
            self.epoch,
            self.served_epoch,
            self.settled_seq,
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

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u128(self.pool_id);
        w.text(&self.name);
        w.u64(self.epoch);
        w.u64(self.seq);
        w.u64(self.slab_bytes);
        w.u64(self.next_incarnation);
        w.u32(self.next_space);
        w.u16(self.next_disk);
        w.0.extend_from_slice(&self.warn_percent);
        w.u64(self.settled_seq);
        w.u64(self.served_epoch);
        w.u64(self.flip_floor);
        w.u32(self.moved.len() as u32);
        for &(space, group, incarnation, stripe, version) in &self.moved {
            w.u32(space);
            w.u32(group);
            w.u64(incarnation);
            w.u32(stripe);
            w.u64(version);
        }
        w.u32(self.lineage.len() as u32);
        for &(e, n) in &self.lineage {
            w.u64(e);
            w.u64(n);
        }
        let j = &self.journal;
        w.u64(j.log_id);
        w.u64(j.size_bytes);
        w.u64(j.start_pos);
        w.u64(j.start_seq);
        w.u32(j.disks.len() as u32);
        j.disks.iter().for_each(|&d| w.u16(d));
        w.u32(self.disks.len() as u32);
        for (&index, d) in &self.disks {
            w.u16(index);
            w.u128(d.id);
            w.u64(d.size_bytes);
            w.u32(d.slabs);
            w.u8(d.state as u8);
            w.u8(u8::from(d.retire));
            w.u8(d.media);
            w.text(&d.name);
        }
        w.u32(self.spaces.len() as u32);
        for s in self.spaces.values() {
            encode_space(&mut w, s);
        }
        w.0
    }

    pub(crate) fn decode(data: &[u8]) -> SpaceResult<PoolMap> {
        let r = &mut Reader::new(data, "the pool map");
        let mut map = PoolMap {
            pool_id: r.u128()?,
            name: r.text()?,
            epoch: r.u64()?,
            seq: r.u64()?,
            slab_bytes: r.u64()?,
            next_incarnation: r.u64()?,
            next_space: r.u32()?,
            next_disk: r.u16()?,
            warn_percent: [r.u8()?, r.u8()?, r.u8()?],
            settled_seq: r.u64()?,
            served_epoch: r.u64()?,
            flip_floor: r.u64()?,
            moved: Vec::new(),
            lineage: Vec::new(),
            journal: JournalRec::default(),
            disks: BTreeMap::new(),
            spaces: BTreeMap::new(),
        };
        if !map.slab_bytes.is_power_of_two() || !(1 << 16..=1 << 40).contains(&map.slab_bytes) {
            return r.bad();
        }
        for _ in 0..r.count()? {
            map.moved.push((r.u32()?, r.u32()?, r.u64()?, r.u32()?, r.u64()?));
        }
        for _ in 0..r.count()? {
            map.lineage.push((r.u64()?, r.u64()?));
        }
        map.journal.log_id = r.u64()?;
        map.journal.size_bytes = r.u64()?;
        map.journal.start_pos = r.u64()?;
        map.journal.start_seq = r.u64()?;
        for _ in 0..r.count()? {
            map.journal.disks.push(r.u16()?);
        }
        for _ in 0..r.count()? {
            let index = r.u16()?;
            let (id, size_bytes, slabs) = (r.u128()?, r.u64()?, r.u32()?);
            let state = match r.u8()? {
                0 => DiskState::Active,
                1 => DiskState::Spare,
                2 => DiskState::Retiring,
                3 => DiskState::Missing,
                _ => return r.bad(),
            };
            let (retire, media, name) = (r.u8()? != 0, r.u8()?, r.text()?);
            map.disks.insert(index, DiskRec { id, size_bytes, slabs, state, retire, media, name });
        }
        for _ in 0..r.count()? {
            let s = decode_space(r, map.slab_bytes)?;
            map.spaces.insert(s.id, s);
        }
        Ok(map)
    }
}

fn encode_space(w: &mut Writer, s: &SpaceRec) {
    w.u32(s.id);
    w.text(&s.name);
    w.u8(s.layout.code());
    w.u16(s.columns);
    w.u64(s.interleave);
    w.u64(s.size_bytes);
    w.u8(u8::from(s.provision == Provision::Fixed));
    w.u32(s.groups.len() as u32);
    for g in &s.groups {
        let Some(g) = g else {
            w.u8(0);
            continue;
        };
        w.u8(1);
        w.u64(g.incarnation);
        for c in &g.columns {
            w.u16(c.disk);
            w.u32(c.slab);
            w.u8(u8::from(c.stale));
        }
        if g.dirty.any() {
            w.u8(1);
            g.dirty.words().iter().for_each(|&x| w.u64(x));
        } else {
            w.u8(0);
        }
        g.stripes.iter().for_each(|&x| w.u16(x));
    }
}

fn decode_space(r: &mut Reader<'_>, slab_bytes: u64) -> SpaceResult<SpaceRec> {
    let (id, name) = (r.u32()?, r.text()?);
    let Some(layout) = Layout::from_code(r.u8()?) else { return r.bad() };
    let (columns, interleave, size_bytes) = (r.u16()?, r.u64()?, r.u64()?);
    let provision = if r.u8()? == 0 { Provision::Thin } else { Provision::Fixed };
    let sane = (1..=crate::layout::COLUMNS_MAX).contains(&columns)
        && usize::from(columns) > layout.parity()
        && interleave.is_power_of_two()
        && interleave >= arden_block::BLOCK_BYTES
        && interleave <= slab_bytes;
    if !sane {
        return r.bad();
    }
    let mut s = SpaceRec { id, name, layout, columns, interleave, size_bytes, provision, groups: Vec::new() };
    let shape = s.shape(slab_bytes);
    for _ in 0..r.count()? {
        if r.u8()? == 0 {
            s.groups.push(None);
            continue;
        }
        let incarnation = r.u64()?;
        let mut list = Vec::new();
        for _ in 0..shape.width() {
            list.push(Column { disk: r.u16()?, slab: r.u32()?, stale: r.u8()? != 0, target: None });
        }
        let bits = shape.dirty_bits();
        let mut dirty = Bitmap::new(bits);
        if r.u8()? != 0 {
            let mut words = Vec::new();
            for _ in 0..bits.div_ceil(64) {
                words.push(r.u64()?);
            }
            dirty = match Bitmap::from_words(bits, words) {
                Some(b) => b,
                None => return r.bad(),
            };
        }
        let mut stripes = Vec::new();
        if shape.is_parity() {
            for _ in 0..shape.stripes {
                let slot = r.u16()?;
                if slot != UNWRITTEN && usize::from(slot) >= shape.slots {
                    return r.bad();
                }
                stripes.push(slot);
            }
        }
        s.groups.push(Some(Group { incarnation, columns: list, dirty, stripes }));
    }
    Ok(s)
}
