//! The pool map as bytes, see `docs/on-disk-space.md`. The map of a large pool is larger as bytes than the memory that a
//! pool may take, so it is made and read in parts.

use std::collections::BTreeMap;
use std::sync::Arc;

use arden_block::BLOCK_BYTES;
use xxhash_rust::xxh3::Xxh3;

use crate::base::bitmap::Bitmap;
use crate::base::codec::{Reader, Writer};
use crate::base::error::SpaceResult;
use crate::map::layout::{COLUMNS_MAX, Layout, Provision};
use crate::map::pool_map::{
    Column, DiskRec, DiskState, Group, JournalRec, LINEAGE_MAX, NAME_MAX, PoolMap, Shape, SpaceRec, UNWRITTEN,
};

/// What is in memory at once, about.
pub(crate) const PART_BYTES: usize = 1 << 20;
const WHAT: &str = "the pool map";

/// Makes the bytes of a map as it was when this began, whatever becomes of the map meanwhile.
pub(crate) struct Encoder {
    spaces: Vec<SpaceRec>,
    /// The space whose groups are made, and the next of them.
    at: (usize, usize),
    made: Vec<u8>,
}

impl Encoder {
    pub(crate) fn new(map: &PoolMap) -> Encoder {
        let mut w = Writer::default();
        encode_head(&mut w, map);
        let spaces: Vec<SpaceRec> = map.spaces.values().cloned().collect();
        if let Some(s) = spaces.first() {
            encode_space(&mut w, s);
        }
        Encoder { spaces, at: (0, 0), made: w.0 }
    }

    /// Length and checksum of what the parts are together.
    pub(crate) fn measure(map: &PoolMap) -> (u64, u64) {
        let (mut all, mut len, mut hash) = (Encoder::new(map), 0, Xxh3::new());
        while let Some(p) = all.part() {
            len += p.len() as u64;
            hash.update(&p);
        }
        (len, hash.digest())
    }

    /// The next part; all but the last are of `PART_BYTES`.
    pub(crate) fn part(&mut self) -> Option<Vec<u8>> {
        let mut w = Writer(std::mem::take(&mut self.made));
        while w.0.len() < PART_BYTES {
            let Some(space) = self.spaces.get(self.at.0) else { break };
            if let Some(g) = space.groups.get(self.at.1) {
                encode_group(&mut w, g.as_deref());
                self.at.1 += 1;
            } else {
                self.at = (self.at.0 + 1, 0);
                if let Some(next) = self.spaces.get(self.at.0) {
                    encode_space(&mut w, next);
                }
            }
        }
        self.made = w.0.split_off(w.0.len().min(PART_BYTES));
        (!w.0.is_empty()).then_some(w.0)
    }
}

/// Reads a map as its bytes come.
pub(crate) struct Decoder {
    data: Vec<u8>,
    /// Bytes that are still to come.
    more: usize,
    hash: Xxh3,
    /// Only what comes before the spaces.
    head_only: bool,
    map: Option<PoolMap>,
    /// Spaces to come; the one whose groups come, its shape, and how many of them.
    spaces_left: usize,
    space: Option<(SpaceRec, Shape, usize)>,
}

impl Decoder {
    /// Of a map of `len` bytes.
    pub(crate) fn new(len: u64, head_only: bool) -> Decoder {
        let (data, hash) = (Vec::new(), Xxh3::new());
        Decoder { data, more: len as usize, hash, head_only, map: None, spaces_left: 0, space: None }
    }

    pub(crate) fn push(&mut self, part: &[u8]) {
        self.hash.update(part);
        self.more = self.more.saturating_sub(part.len());
        if self.is_done() {
            return;
        }
        let mut data = std::mem::take(&mut self.data);
        data.extend_from_slice(part);
        let mut r = Reader::of_more(&data, WHAT, self.more);
        let mut used = 0;
        // What cannot be read yet is cut off, or damaged: at the end that is the same.
        while !self.is_done() && self.item(&mut r).is_ok() {
            used = data.len() - r.left();
        }
        data.drain(..used);
        self.data = data;
    }

    pub(crate) fn checksum(&self) -> u64 {
        self.hash.digest()
    }

    pub(crate) fn finish(self) -> SpaceResult<PoolMap> {
        match self.map {
            Some(map) if self.head_only || self.spaces_left == 0 && self.space.is_none() => Ok(map),
            _ => Reader::new(&[], WHAT).bad(),
        }
    }

    fn is_done(&self) -> bool {
        self.map.is_some() && (self.head_only || self.spaces_left == 0 && self.space.is_none())
    }

    fn item(&mut self, r: &mut Reader<'_>) -> SpaceResult<()> {
        let Some(map) = &mut self.map else {
            let map = decode_head(r)?;
            self.spaces_left = r.count()?;
            self.map = Some(map);
            return Ok(());
        };
        let Some((rec, shape, left)) = &mut self.space else {
            let (rec, groups) = decode_space(r, map.slab_bytes)?;
            let shape = rec.shape(map.slab_bytes);
            self.spaces_left -= 1;
            if groups == 0 {
                map.spaces.insert(rec.id, rec);
            } else {
                self.space = Some((rec, shape, groups));
            }
            return Ok(());
        };
        rec.groups.push(decode_group(r, shape)?);
        *left -= 1;
        if *left == 0
            && let Some((rec, _, _)) = self.space.take()
        {
            map.spaces.insert(rec.id, rec);
        }
        Ok(())
    }
}

/// The state of a missing disk behind whose name the least sequence of its label is. Without one the code is that of `DiskState`.
const MISSING_BOUNDED: u8 = 4;
/// As [`MISSING_BOUNDED`], and no opening was served since the disk left.
const MISSING_UNSERVED: u8 = 5;

fn encode_head(w: &mut Writer, map: &PoolMap) {
    w.u128(map.pool_id);
    w.text(&map.name);
    w.u64(map.epoch);
    w.u64(map.seq);
    w.u64(map.slab_bytes);
    w.u64(map.next_incarnation);
    w.u32(map.next_space);
    w.u16(map.next_disk);
    w.0.extend_from_slice(&map.warn_percent);
    w.u64(map.replicated_seq);
    w.u64(map.served_epoch);
    w.u64(map.flip_floor);
    w.u32(map.moved.len() as u32);
    for &(space, group, incarnation, stripe, version) in &map.moved {
        w.u32(space);
        w.u32(group);
        w.u64(incarnation);
        w.u32(stripe);
        w.u64(version);
    }
    w.u32(map.lineage.len() as u32);
    for &(e, n) in &map.lineage {
        w.u64(e);
        w.u64(n);
    }
    let j = &map.journal;
    w.u64(j.log_id);
    w.u64(j.size_bytes);
    w.u64(j.start_pos);
    w.u64(j.start_seq);
    w.u32(j.disks.len() as u32);
    j.disks.iter().for_each(|&d| w.u16(d));
    w.u32(map.disks.len() as u32);
    for (&index, d) in &map.disks {
        w.u16(index);
        w.u128(d.id);
        w.u64(d.size_bytes);
        w.u32(d.slabs);
        let bounded = d.label_seq_min > 0 || d.left_unserved;
        w.u8(match (d.left_unserved, bounded) {
            (true, _) => MISSING_UNSERVED,
            (false, true) => MISSING_BOUNDED,
            (false, false) => d.state as u8,
        });
        w.u8(u8::from(d.retire));
        w.u8(d.media);
        w.text(&d.name);
        if bounded {
            w.u64(d.label_seq_min);
        }
    }
    w.u32(map.spaces.len() as u32);
}

fn decode_head(r: &mut Reader<'_>) -> SpaceResult<PoolMap> {
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
        replicated_seq: r.u64()?,
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
        let code = r.u8()?;
        let state = match code {
            0 => DiskState::Active,
            1 => DiskState::Spare,
            2 => DiskState::Retiring,
            3 | MISSING_BOUNDED | MISSING_UNSERVED => DiskState::Missing,
            _ => return r.bad(),
        };
        let (retire, media, name) = (r.u8()? != 0, r.u8()?, r.text()?);
        let label_seq_min = if matches!(code, MISSING_BOUNDED | MISSING_UNSERVED) { r.u64()? } else { 0 };
        let left_unserved = code == MISSING_UNSERVED;
        let rec = DiskRec { id, size_bytes, slabs, state, retire, media, name, label_seq_min, left_unserved };
        map.disks.insert(index, rec);
    }
    Ok(map)
}

/// A group that has no slabs.
pub(crate) const NO_GROUP_BYTES: u64 = 1;
/// What a moved stripe takes, see `PoolMap::moved`.
const MOVED_BYTES: usize = 28;
const LINEAGE_BYTES: usize = 16;
/// What a disk takes among those of the log.
const LOG_DISK_BYTES: usize = 2;
/// What a disk takes in addition when it is missing.
const MISSING_BYTES: usize = 8;

/// How long the map can become by all that may happen to it without being asked first: openings, moves of stripes while a log
/// of `log_bytes` holds older data of them, a new name, a log on all disks, and failures that mark every part of every group.
pub(crate) fn most_bytes(map: &PoolMap, log_bytes: u64) -> u64 {
    let mut w = Writer::default();
    encode_head(&mut w, map);
    let mut more = LINEAGE_MAX.saturating_sub(map.lineage.len()) * LINEAGE_BYTES;
    more += ((log_bytes / BLOCK_BYTES) as usize).saturating_sub(map.moved.len()) * MOVED_BYTES;
    more += NAME_MAX.saturating_sub(map.name.len());
    more += map.disks.len().saturating_sub(map.journal.disks.len()) * LOG_DISK_BYTES;
    more += map.disks.values().filter(|d| d.label_seq_min == 0).count() * MISSING_BYTES;
    let spaces = map.spaces.values().map(|s| {
        let made = s.groups.iter().flatten().count();
        let shape = s.shape(map.slab_bytes);
        space_bytes(s) + made as u64 * group_most_bytes(&shape) + (s.groups.len() - made) as u64 * NO_GROUP_BYTES
    });
    (w.0.len() + more) as u64 + spaces.sum::<u64>()
}

/// What a disk of this name takes, with its part of the log.
pub(crate) fn disk_bytes(name: &str) -> u64 {
    (2 + 16 + 8 + 4 + 3 + 1 + name.len().min(255) + LOG_DISK_BYTES + MISSING_BYTES) as u64
}

/// What a space takes without its groups.
pub(crate) fn space_bytes(rec: &SpaceRec) -> u64 {
    let mut w = Writer::default();
    encode_space(&mut w, rec);
    w.0.len() as u64
}

/// What a group with slabs takes when all of it is marked, as after the failure of a disk.
pub(crate) fn group_most_bytes(shape: &Shape) -> u64 {
    let (columns, words) = (7 * shape.width(), 8 * shape.dirty_bits().div_ceil(64));
    (1 + 8 + columns + 1 + words + 2 * shape.no_stripes().len()) as u64
}

/// What comes before the groups.
fn encode_space(w: &mut Writer, s: &SpaceRec) {
    w.u32(s.id);
    w.text(&s.name);
    w.u8(s.layout.code());
    w.u16(s.columns);
    w.u64(s.interleave);
    w.u64(s.size_bytes);
    w.u8(u8::from(s.provision == Provision::Fixed));
    w.u32(s.groups.len() as u32);
}

/// The space without its groups, and how many they are.
fn decode_space(r: &mut Reader<'_>, slab_bytes: u64) -> SpaceResult<(SpaceRec, usize)> {
    let (id, name) = (r.u32()?, r.text()?);
    let Some(layout) = Layout::from_code(r.u8()?) else { return r.bad() };
    let (columns, interleave, size_bytes) = (r.u16()?, r.u64()?, r.u64()?);
    let provision = if r.u8()? == 0 { Provision::Thin } else { Provision::Fixed };
    let sane = (1..=COLUMNS_MAX).contains(&columns)
        && usize::from(columns) > layout.parity()
        && interleave.is_power_of_two()
        && interleave >= arden_block::BLOCK_BYTES
        && interleave <= slab_bytes;
    if !sane {
        return r.bad();
    }
    let groups = r.count()?;
    Ok((SpaceRec { id, name, layout, columns, interleave, size_bytes, provision, groups: Vec::new() }, groups))
}

fn encode_group(w: &mut Writer, group: Option<&Group>) {
    let Some(g) = group else { return w.u8(0) };
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
    g.stripes.iter().for_each(|x| w.u16(x));
}

fn decode_group(r: &mut Reader<'_>, shape: &Shape) -> SpaceResult<Option<Arc<Group>>> {
    if r.u8()? == 0 {
        return Ok(None);
    }
    let incarnation = r.u64()?;
    let mut columns = Vec::with_capacity(shape.width());
    for _ in 0..shape.width() {
        columns.push(Column { disk: r.u16()?, slab: r.u32()?, stale: r.u8()? != 0, target: None });
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
    let mut stripes = shape.no_stripes();
    for i in 0..stripes.len() {
        let slot = r.u16()?;
        if slot != UNWRITTEN && usize::from(slot) >= shape.slots {
            return r.bad();
        }
        stripes.set(i, slot);
    }
    Ok(Some(Arc::new(Group { incarnation, columns, dirty, stripes })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(name: &str) -> DiskRec {
        let state = DiskState::Active;
        DiskRec {
            id: 1,
            size_bytes: 1,
            slabs: 1,
            state,
            retire: false,
            media: 0,
            name: name.to_string(),
            label_seq_min: 0,
            left_unserved: false,
        }
    }

    fn space(id: u32, layout: Layout, columns: u16) -> SpaceRec {
        let (interleave, provision) = (4096, Provision::Thin);
        let (name, groups) = (format!("s{id}"), vec![None; 3]);
        SpaceRec { id, name, layout, columns, interleave, size_bytes: 1 << 20, provision, groups }
    }

    fn map() -> PoolMap {
        PoolMap {
            pool_id: 1,
            name: "p".to_string(),
            epoch: 1,
            seq: 0,
            slab_bytes: 1 << 20,
            next_incarnation: 1,
            next_space: 1,
            next_disk: 0,
            lineage: vec![(1, 1)],
            warn_percent: [70, 80, 90],
            replicated_seq: 0,
            served_epoch: 1,
            flip_floor: 0,
            moved: Vec::new(),
            journal: JournalRec::default(),
            disks: (0..4).map(|i| (i, disk("d"))).collect(),
            spaces: BTreeMap::new(),
        }
    }

    /// A map of three disks, of which the last is missing, and of one mirror.
    fn map_with_a_missing_disk() -> PoolMap {
        let mut m = map();
        (m.epoch, m.seq, m.replicated_seq, m.served_epoch, m.flip_floor) = (7, 300, 299, 7, 11);
        (m.next_incarnation, m.next_space, m.next_disk) = (5, 2, 3);
        (m.moved, m.lineage) = (vec![(1, 1, 4, 9, 77)], vec![(6, 60), (7, 70)]);
        m.journal = JournalRec { log_id: 8, disks: vec![0, 1], size_bytes: 1 << 20, start_pos: 4096, start_seq: 40 };
        m.disks = (0..3).map(|i| (i, DiskRec { id: 100 + u128::from(i), slabs: 20, ..disk("d") })).collect();
        let gone = m.disks.get_mut(&2).unwrap();
        (gone.state, gone.retire) = (DiskState::Missing, true);
        let mut s = space(1, Layout::Mirror2, 1);
        let column = |disk, stale| Column { disk, slab: 3, stale, target: None };
        let shape = s.shape(m.slab_bytes);
        let (columns, mut dirty) = (vec![column(0, false), column(2, true)], Bitmap::new(shape.dirty_bits()));
        dirty.set(0);
        s.groups[1] = Some(Arc::new(Group { incarnation: 4, columns, dirty, stripes: shape.no_stripes() }));
        m.spaces.insert(1, s);
        m
    }
    /// `map_with_a_missing_disk`, as a program wrote it that kept no lower bound.
    const WITHOUT_BOUND: &str = "\
        01000000000000000000000000000000017007000000000000002c010000000000000000100000000000050000000000000002000000030046505a2b01000000\
        00000007000000000000000b000000000000000100000001000000010000000400000000000000090000004d000000000000000200000006000000000000003c\
        00000000000000070000000000000046000000000000000800000000000000000010000000000000100000000000002800000000000000020000000000010003\
        00000000006400000000000000000000000000000001000000000000001400000000000001640100650000000000000000000000000000000100000000000000\
        14000000000000016402006600000000000000000000000000000001000000000000001400000003010001640100000001000000027331010100001000000000\
        00000000100000000000000300000000010400000000000000000003000000000200030000000101010000000000000000";

    fn bytes_of(map: &PoolMap) -> Vec<u8> {
        Encoder::new(map).part().unwrap()
    }

    fn decoded(bytes: &[u8]) -> SpaceResult<PoolMap> {
        let mut d = Decoder::new(bytes.len() as u64, false);
        bytes.chunks(7).for_each(|part| d.push(part));
        d.finish()
    }

    #[test]
    fn a_map_without_lower_bounds_is_read_and_written_as_it_was() {
        let hex = |i: usize| u8::from_str_radix(&WITHOUT_BOUND[i..i + 2], 16).unwrap();
        let old: Vec<u8> = (0..WITHOUT_BOUND.len()).step_by(2).map(hex).collect();
        let map = decoded(&old).unwrap();
        assert_eq!(map.disks, map_with_a_missing_disk().disks);
        assert_eq!((map.disks[&2].state, map.disks[&2].label_seq_min), (DiskState::Missing, 0));
        assert!(!map.bounds_missing_disks());
        assert_eq!(bytes_of(&map), old);
    }

    #[test]
    fn a_lower_bound_is_read_as_it_was_written_and_a_map_that_is_cut_off_is_not_read() {
        let mut map = map_with_a_missing_disk();
        map.disks.get_mut(&2).unwrap().label_seq_min = 0x0102_0304_0506_0708;
        assert!(map.bounds_missing_disks());
        read_as_written(&map);
        // And that no opening was served since.
        map.disks.get_mut(&2).unwrap().left_unserved = true;
        assert!(map.has_unserved_departures());
        read_as_written(&map);
    }

    fn read_as_written(map: &PoolMap) {
        let bytes = bytes_of(map);
        let back = decoded(&bytes).unwrap();
        assert_eq!((&back.disks, bytes_of(&back)), (&map.disks, bytes.clone()));
        (0..bytes.len()).for_each(|n| assert!(decoded(&bytes[..n]).is_err(), "{n} bytes of {}", bytes.len()));
        // Any one byte may be wrong: that is read as another map, or refused.
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] = !wrong[at];
            let _ = decoded(&wrong);
        }
    }

    /// All that `most_bytes` provides for has happened.
    fn filled(mut map: PoolMap, log_bytes: u64) -> PoolMap {
        map.name = "n".repeat(NAME_MAX);
        map.lineage = vec![(1, 1); LINEAGE_MAX];
        map.moved = vec![(1, 1, 1, 1, 1); (log_bytes / BLOCK_BYTES) as usize];
        map.journal.disks = map.disks.keys().copied().collect();
        map.disks.values_mut().for_each(|d| (d.state, d.label_seq_min) = (DiskState::Missing, 1));
        for s in map.spaces.values_mut() {
            for g in s.groups.iter_mut().flatten() {
                Arc::make_mut(g).dirty.set_all();
            }
        }
        map
    }

    #[test]
    fn the_longest_map_is_as_long_as_was_said() {
        let log = 1 << 20;
        let mut m = map();
        for (id, layout, columns) in [(1, Layout::Mirror2, 2), (2, Layout::Parity, 3), (3, Layout::DualParity, 4)] {
            let (before, mut s) = (most_bytes(&m, log), space(id, layout, columns));
            m.spaces.insert(id, s.clone());
            let three = 3 * NO_GROUP_BYTES;
            assert_eq!(most_bytes(&m, log), before + space_bytes(&s) + three, "{layout:?} without slabs");
            let shape = s.shape(m.slab_bytes);
            let column = Column { disk: 0, slab: 0, stale: false, target: None };
            let (columns, dirty) = (vec![column; shape.width()], Bitmap::new(shape.dirty_bits()));
            s.groups[1] = Some(Arc::new(Group { incarnation: 1, columns, dirty, stripes: shape.no_stripes() }));
            let with_group = before + space_bytes(&s) + three - NO_GROUP_BYTES + group_most_bytes(&shape);
            m.spaces.insert(id, s);
            assert_eq!(most_bytes(&m, log), with_group, "{layout:?}");
            assert!(Encoder::measure(&m).0 < with_group);
            assert_eq!(Encoder::measure(&filled(m.clone(), log)).0, with_group, "{layout:?}");
        }
        let before = most_bytes(&m, log);
        m.disks.insert(9, disk("another"));
        assert_eq!(most_bytes(&m, log), before + disk_bytes("another"));
    }
}
