//! The label of a disk: two copies at fixed places, written in turn, each with a checksum.
//! It says whose disk this is, where its areas lie and which copy of the map is the newest.

use std::cell::Cell;

use arden_block::{BLOCK_BYTES, BlockDevice, Buf, IoError, Rt};

use crate::base::codec::{Reader, Writer, checksum};
use crate::base::error::{SpaceError, SpaceResult};
use crate::map::mapcode::{Decoder, PART_BYTES};
use crate::map::pool_map::PoolMap;

pub(crate) const LABEL_MAGIC: &[u8; 8] = b"ARDNDISK";
/// Version 1: the first.
pub(crate) const LABEL_VERSION: u32 = 1;
/// Version 2: the pool has parity spaces, whose log may hold patch records. A program that does
/// not know them would take them for the end of the log.
pub(crate) const LABEL_VERSION_PATCHES: u32 = 2;
/// Version 3: the pool belongs to a cluster, which the label names. A program that does not know that would open it beside its owner.
pub(crate) const LABEL_VERSION_CLUSTER: u32 = 3;
/// Version 4: the map says of a missing disk how new its label is at least. A program that does not know that would trust an old image of it.
pub(crate) const LABEL_VERSION_MISSING: u32 = 4;
/// Version 5: the map says of a missing disk that it left after the last opening that was served. A program that does not know that cannot read
/// the map.
pub(crate) const LABEL_VERSION_UNSERVED: u32 = 5;
pub(crate) const LABEL_BYTES: usize = 4096;
pub(crate) const LABEL_AT: [u64; 2] = [0, 64 << 10];
const MAP_AT: u64 = 128 << 10;
const LABEL_BODY: usize = 256;
/// How often a label or map that cannot be read is tried.
const HEADER_TRIES: usize = 5;

/// Where the areas of a disk lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Areas {
    pub(crate) map_slot_bytes: u64,
    pub(crate) journal_at: u64,
    pub(crate) journal_bytes: u64,
    pub(crate) data_at: u64,
}

impl Areas {
    pub(crate) fn for_disk(size_bytes: u64, slab_bytes: u64) -> Areas {
        let align = |n: u64, to: u64| n.div_ceil(to) * to;
        let map_slot_bytes = align((size_bytes / 512).clamp(64 << 10, 64 << 20), 4096);
        let journal_at = MAP_AT + 2 * map_slot_bytes;
        // A small disk gets a larger share: a short log is emptied so often that it costs more than it saves.
        let share = (size_bytes / 256).max((size_bytes / 32).min(64 << 20));
        let journal_bytes = align(share.clamp(1 << 20, 512 << 20), 4096);
        let data_at = align(journal_at + journal_bytes, slab_bytes.min(1 << 20));
        Areas { map_slot_bytes, journal_at, journal_bytes, data_at }
    }

    pub(crate) fn slabs(&self, size_bytes: u64, slab_bytes: u64) -> u32 {
        (size_bytes.saturating_sub(self.data_at) / slab_bytes) as u32
    }

    pub(crate) fn map_slot_at(&self, slot: usize) -> u64 {
        MAP_AT + slot as u64 * self.map_slot_bytes
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) version: u32,
    pub(crate) pool_id: u128,
    pub(crate) disk_id: u128,
    pub(crate) index: u16,
    pub(crate) epoch: u64,
    pub(crate) nonce: u64,
    pub(crate) seq: u64,
    pub(crate) slab_bytes: u64,
    pub(crate) areas: Areas,
    pub(crate) map_slot: u8,
    pub(crate) map_len: u64,
    pub(crate) map_checksum: u64,
    pub(crate) pool_name: String,
    /// The cluster that the pool belongs to; 0: none.
    pub(crate) cluster: u128,
}

impl Label {
    pub(crate) fn encode(&self) -> Buf {
        let mut w = Writer::default();
        w.0.extend_from_slice(LABEL_MAGIC);
        w.u32(self.version);
        w.u16(self.index);
        w.u8(self.map_slot);
        w.u8(0);
        w.u128(self.pool_id);
        w.u128(self.disk_id);
        w.u64(self.epoch);
        w.u64(self.nonce);
        w.u64(self.seq);
        w.u64(self.slab_bytes);
        w.u64(self.areas.map_slot_bytes);
        w.u64(self.areas.journal_at);
        w.u64(self.areas.journal_bytes);
        w.u64(self.areas.data_at);
        w.u64(self.map_len);
        w.u64(self.map_checksum);
        w.text(&self.pool_name[..self.pool_name.len().min(64)]);
        if self.version >= LABEL_VERSION_CLUSTER {
            w.u128(self.cluster);
        }
        w.0.resize(LABEL_BODY, 0);
        let sum = checksum(&w.0);
        w.u64(sum);
        let mut b = Buf::zeroed(LABEL_BYTES);
        b[..w.0.len()].copy_from_slice(&w.0);
        b
    }

    /// `None`: no label. An error: a label of a version we do not know.
    pub(crate) fn decode(data: &[u8]) -> SpaceResult<Option<Label>> {
        if data.len() < LABEL_BODY + 8 || &data[..8] != LABEL_MAGIC {
            return Ok(None);
        }
        let body = &data[..LABEL_BODY];
        if Reader::new(&data[LABEL_BODY..], "label").u64()? != checksum(body) {
            return Ok(None);
        }
        let r = &mut Reader::new(&body[8..], "a disk label");
        let version = r.u32()?;
        if !(LABEL_VERSION..=LABEL_VERSION_UNSERVED).contains(&version) {
            return Err(SpaceError::Corrupt(format!(
                "disk label of version {version}; this program knows {LABEL_VERSION} to {LABEL_VERSION_UNSERVED}"
            )));
        }
        let (index, map_slot, _) = (r.u16()?, r.u8()?, r.u8()?);
        Ok(Some(Label {
            version,
            index,
            map_slot,
            pool_id: r.u128()?,
            disk_id: r.u128()?,
            epoch: r.u64()?,
            nonce: r.u64()?,
            seq: r.u64()?,
            slab_bytes: r.u64()?,
            areas: Areas { map_slot_bytes: r.u64()?, journal_at: r.u64()?, journal_bytes: r.u64()?, data_at: r.u64()? },
            map_len: r.u64()?,
            map_checksum: r.u64()?,
            pool_name: r.text()?,
            cluster: if version >= LABEL_VERSION_CLUSTER { r.u128()? } else { 0 },
        }))
    }
}

/// What a disk says of itself: the newest label whose map is whole.
#[derive(Debug, Clone)]
pub struct DiskHeader {
    pub pool_id: u128,
    pub pool_name: String,
    pub disk_id: u128,
    pub epoch: u64,
    pub(crate) label: Label,
    /// Without its spaces when it is large.
    pub(crate) map: PoolMap,
    pub(crate) whole: bool,
    /// The newest sequence of the disk's labels, also of one whose map is not whole: the disk was in use by then. `None` when a
    /// label is damaged or cannot be read, because that one may be the newest.
    pub(crate) newest_seq: Option<u64>,
}

/// Much hangs on these few sectors: a label taken for unreadable makes its disk out of date.
/// Reads of what lies at the head of a disk.
pub(crate) struct HeaderReads<'a> {
    dev: &'a dyn BlockDevice,
    /// How long one read may take, in nanoseconds.
    limit: Option<(&'a Rt, u64)>,
    /// One took longer: the disk hangs, and nothing more is asked of it.
    hangs: Cell<bool>,
}

impl<'a> HeaderReads<'a> {
    pub(crate) fn within(rt: &'a Rt, dev: &'a dyn BlockDevice, timeout_ms: u64) -> HeaderReads<'a> {
        HeaderReads { dev, limit: Some((rt, timeout_ms.saturating_mul(1_000_000))), hangs: Cell::new(false) }
    }

    async fn once(&self, at: u64, len: usize) -> Result<Buf, IoError> {
        let Some((rt, limit_ns)) = self.limit else { return self.dev.read(at, len).await };
        let read = rt.timeout_ns(limit_ns, self.dev.read(at, len)).await;
        self.hangs.set(self.hangs.get() || read.is_none());
        read.unwrap_or(Err(IoError::Gone))
    }

    async fn retried(&self, at: u64, len: usize) -> Option<Buf> {
        for _ in 0..HEADER_TRIES {
            match self.once(at, len).await {
                Ok(b) => return Some(b),
                Err(IoError::Media) if !self.hangs.get() => {}
                Err(_) => return None,
            }
        }
        None
    }
}

/// Reads a disk's label and map. `None` when it belongs to no pool.
pub async fn read_header(dev: &dyn BlockDevice) -> SpaceResult<Option<DiskHeader>> {
    header(&HeaderReads { dev, limit: None, hangs: Cell::new(false) }).await
}

/// As [`read_header`], and `None` when the disk hangs.
pub(crate) async fn header(reads: &HeaderReads<'_>) -> SpaceResult<Option<DiskHeader>> {
    let mut found: Vec<Label> = Vec::new();
    let mut all_read = true;
    for at in LABEL_AT {
        let Some(b) = reads.retried(at, LABEL_BYTES).await else {
            all_read = false;
            continue;
        };
        let label = Label::decode(&b)?;
        // One that was never written, or was erased, is zeros.
        all_read &= label.is_some() || b.iter().all(|&x| x == 0);
        found.extend(label);
    }
    found.sort_by_key(|l| std::cmp::Reverse((l.epoch, l.seq)));
    let seqs: Vec<(u128, u64)> = found.iter().map(|l| (l.disk_id, l.seq)).collect();
    for label in found {
        let whole = label.map_len <= PART_BYTES as u64;
        let map = read_map(reads, &label, !whole).await?;
        if reads.hangs.get() {
            // An older label would make it an old image.
            break;
        }
        let Some(map) = map else { continue };
        if map.pool_id == label.pool_id && map.seq == label.seq {
            let newest = seqs.iter().filter(|s| s.0 == label.disk_id).map(|s| s.1).max();
            return Ok(Some(DiskHeader {
                pool_id: label.pool_id,
                pool_name: map.name.clone(),
                disk_id: label.disk_id,
                epoch: label.epoch,
                label,
                map,
                whole,
                newest_seq: newest.filter(|_| all_read),
            }));
        }
    }
    Ok(None)
}

/// The map that a label names, or what comes before its spaces. `None` when it is not there as it was written.
pub(crate) async fn read_map(reads: &HeaderReads<'_>, label: &Label, head_only: bool) -> SpaceResult<Option<PoolMap>> {
    if label.map_slot > 1 || label.map_len > label.areas.map_slot_bytes {
        return Ok(None);
    }
    let mut map = Decoder::new(label.map_len, head_only);
    let (start, mut at) = (label.areas.map_slot_at(usize::from(label.map_slot)), 0);
    while at < label.map_len {
        let n = (label.map_len - at).min(PART_BYTES as u64);
        let len = n.next_multiple_of(BLOCK_BYTES) as usize;
        let Some(data) = reads.retried(start + at, len).await else { return Ok(None) };
        map.push(&data[..n as usize]);
        at += n;
    }
    if map.checksum() != label.map_checksum {
        return Ok(None);
    }
    map.finish().map(Some)
}
