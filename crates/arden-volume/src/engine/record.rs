//! A transaction's record in the log: its layout, and making its changes again. docs/on-disk-volume.md has the table of
//! operations. Refuses to know when a record is durable.

use std::{collections::BTreeMap, sync::atomic::Ordering};

use arden_wire::cursor::{Put, Reader};

use crate::{
    disk::{
        error::{VolError, VolResult},
        inode::Extent,
        keys::{self, Key, Val},
        run::Run,
        superblock::Counters,
        treenode::ENTRY_MAX,
    },
    engine::{
        state::Core,
        tree::{Layer, Tree},
    },
};

/// A value in pieces is cut at this many bytes.
pub const PIECE_BYTES: usize = 4096;

const OP_PUT: u8 = 1;
const OP_DELETE: u8 = 2;
const OP_PATCH: u8 = 3;
const OP_ENTER: u8 = 4;
const OP_FREE: u8 = 5;
const OP_COUNTERS: u8 = 6;
const OP_DIRTY: u8 = 7;
const OP_NEXT_ID: u8 = 8;
const OP_EPOCH: u8 = 9;

/// Bytes of a record beside those of keys, values and patches: for a key, for a value, for a run of blocks, for the sums, for
/// a stream with blocks that have no place, for an id, and for an epoch.
const KEY_BYTES: usize = 3;
const VALUE_BYTES: usize = 2;
pub const RUN_BYTES: usize = 13;
pub const COUNTERS_BYTES: usize = 17;
const DIRTY_BYTES: usize = 17;
const NEXT_ID_BYTES: usize = 9;
const EPOCH_BYTES: usize = 5;

/// What one transaction changes.
#[derive(Default)]
pub struct Changes {
    map: Layer,
    /// Values that differ from what they were by a few bytes: where, and how many.
    patches: BTreeMap<Key, (usize, usize)>,
    /// What these two take in the record.
    map_bytes: usize,
    pub enters: Vec<Run>,
    pub frees: Vec<Run>,
    /// Added to the sums that are kept.
    pub counters: Counters,
    /// Streams that have, or no longer have, blocks to be given a place.
    pub dirty: Vec<(u64, Option<u64>)>,
    /// The last id given, where one was.
    pub next_id: Option<u64>,
    /// The epoch that begins, where one does.
    pub epoch: Option<u32>,
}

impl Changes {
    /// The sums alone do not count.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty() && self.enters.is_empty() && self.frees.is_empty() && self.epoch.is_none()
    }

    pub fn map(&self) -> &Layer {
        &self.map
    }

    pub fn take_map(&mut self) -> Layer {
        self.map_bytes = 0;
        std::mem::take(&mut self.map)
    }

    /// The key has this value afterwards, or is gone. `patch`: where it differs from what it was, and in how many bytes.
    pub fn set(&mut self, key: Key, value: Option<Val>, patch: Option<(usize, usize)>) {
        let key_bytes = key.len();
        self.map_bytes += change_bytes(key_bytes, value.as_ref().map(|v| v.len()), patch);
        let old_patch = match patch {
            Some(patch) => self.patches.insert(key.clone(), patch),
            None => self.patches.remove(&key),
        };
        if let Some(old) = self.map.insert(key, value) {
            self.map_bytes -= change_bytes(key_bytes, old.map(|v| v.len()), old_patch);
        }
    }

    /// What the record takes, without its length and number.
    pub fn bytes(&self) -> usize {
        let of = |there: bool, bytes| if there { bytes } else { 0 };
        self.map_bytes
            + (self.enters.len() + self.frees.len()) * RUN_BYTES
            + of(self.counters != Counters::default(), COUNTERS_BYTES)
            + of(self.next_id.is_some(), NEXT_ID_BYTES)
            + of(self.epoch.is_some(), EPOCH_BYTES)
            + self.dirty.len() * DIRTY_BYTES
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes());
        for (key, value) in &self.map {
            match (value, self.patches.get(key)) {
                (Some(v), Some((at, len))) => {
                    out.put_u8(OP_PATCH);
                    put_bytes(&mut out, key);
                    out.put_u16(*at as u16);
                    put_bytes(&mut out, &v[*at..*at + *len]);
                }
                (Some(v), None) => {
                    out.put_u8(OP_PUT);
                    put_bytes(&mut out, key);
                    put_bytes(&mut out, v);
                }
                (None, _) => {
                    out.put_u8(OP_DELETE);
                    put_bytes(&mut out, key);
                }
            }
        }
        for (op, runs) in [(OP_ENTER, &self.enters), (OP_FREE, &self.frees)] {
            for run in runs {
                out.put_u8(op);
                out.put_u64(run.start);
                out.put_u32(run.len as u32);
            }
        }
        if self.counters != Counters::default() {
            out.put_u8(OP_COUNTERS);
            out.put_u64(self.counters.promised as u64);
            out.put_u64(self.counters.resident as u64);
        }
        if let Some(id) = self.next_id {
            out.put_u8(OP_NEXT_ID);
            out.put_u64(id);
        }
        if let Some(epoch) = self.epoch {
            out.put_u8(OP_EPOCH);
            out.put_u32(epoch);
        }
        for (sid, ino) in &self.dirty {
            out.put_u8(OP_DIRTY);
            out.put_u64(*sid);
            out.put_u64(ino.unwrap_or(0));
        }
        out
    }
}

/// What a change takes in a record: of a key of so many bytes that has a value of so many from now on, or none.
fn change_bytes(key: usize, value: Option<usize>, patch: Option<(usize, usize)>) -> usize {
    let value = value.map_or(0, |v| VALUE_BYTES + patch.map_or(v, |(_, len)| 2 + len));
    KEY_BYTES + key + value
}

/// The same of a key that is put.
pub const fn put_bytes_of(key: usize, value: usize) -> usize {
    KEY_BYTES + key + VALUE_BYTES + value
}

/// And of one that is deleted.
pub const fn delete_bytes_of(key: usize) -> usize {
    KEY_BYTES + key
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u16(bytes.len() as u16);
    out.extend_from_slice(bytes);
}

fn take_bytes<'a>(r: &mut Reader<'a>) -> VolResult<&'a [u8]> {
    let n = r.u16()? as usize;
    Ok(r.bytes(n)?)
}

/// Writes `bytes` at `at`, growing the value as needed.
pub fn overwrite(value: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if value.len() < at + bytes.len() {
        value.resize(at + bytes.len(), 0);
    }
    value[at..at + bytes.len()].copy_from_slice(bytes);
}

/// What replay does to the block map; the rest it does to the state itself.
pub enum MapOp {
    Enter(Run),
    Free(Run),
}

/// One change of a record of the journal.
enum Change<'a> {
    Put { key: &'a [u8], value: &'a [u8] },
    Delete { key: &'a [u8] },
    Patch { key: &'a [u8], at: usize, bytes: &'a [u8] },
    Map(MapOp),
    Counters { promised: i64, resident: i64 },
    Dirty { sid: u64, ino: u64 },
    NextId(u64),
    Epoch(u32),
}

impl<'a> Change<'a> {
    fn read(r: &mut Reader<'a>) -> VolResult<Change<'a>> {
        Ok(match r.u8()? {
            OP_PUT => Change::Put { key: take_bytes(r)?, value: take_bytes(r)? },
            OP_DELETE => Change::Delete { key: take_bytes(r)? },
            OP_PATCH => Change::Patch { key: take_bytes(r)?, at: r.u16()? as usize, bytes: take_bytes(r)? },
            op @ (OP_ENTER | OP_FREE) => {
                let run = Run { start: r.u64()?, len: u64::from(r.u32()?) };
                Change::Map(if op == OP_ENTER { MapOp::Enter(run) } else { MapOp::Free(run) })
            }
            OP_COUNTERS => Change::Counters { promised: r.u64()? as i64, resident: r.u64()? as i64 },
            OP_DIRTY => Change::Dirty { sid: r.u64()?, ino: r.u64()? },
            OP_NEXT_ID => Change::NextId(r.u64()?),
            OP_EPOCH => Change::Epoch(r.u32()?),
            _ => return Err(VolError::Corrupt("journal")),
        })
    }
}

/// Blocks of the device that records of the journal, one after the other, put into files and leave there, and their
/// checksums. What a later one frees may have other data by now.
pub fn note_data(record: &[u8], blocks: &mut BTreeMap<u64, u64>) -> VolResult<()> {
    let mut r = Reader::new(record);
    while r.remaining() > 0 {
        match Change::read(&mut r)? {
            Change::Put { key, value } if key.first() == Some(&keys::EXTENT) => {
                let e = Extent::decode(keys::second(key), value)?;
                blocks.extend((e.dev_block..).zip(e.sums));
            }
            Change::Map(MapOp::Free(run)) => (run.start..run.start.saturating_add(run.len)).for_each(|b| {
                blocks.remove(&b);
            }),
            _ => {}
        }
    }
    Ok(())
}

/// Makes the changes of one record of the journal again.
pub fn replay(
    core: &mut Core,
    tree: &Tree,
    record: &[u8],
    map: &mut dyn FnMut(MapOp) -> VolResult<()>,
) -> VolResult<()> {
    let mut r = Reader::new(record);
    while r.remaining() > 0 {
        match Change::read(&mut r)? {
            Change::Put { key, value } => {
                if 4 + key.len() + value.len() > ENTRY_MAX {
                    return Err(VolError::Corrupt("journal"));
                }
                core.set(key.to_vec(), Some(value.into()));
            }
            Change::Delete { key } => core.set(key.to_vec(), None),
            Change::Patch { key, at, bytes } => {
                let old = core.get(tree, key)?.ok_or(VolError::Corrupt("journal"))?;
                let mut value = old.to_vec();
                if at > PIECE_BYTES || bytes.len() > PIECE_BYTES {
                    return Err(VolError::Corrupt("journal"));
                }
                overwrite(&mut value, at, bytes);
                core.set(key.to_vec(), Some(value.into()));
            }
            Change::Map(op) => map(op)?,
            Change::Counters { promised, resident } => {
                core.counters.promised = core.counters.promised.wrapping_add(promised);
                core.counters.resident = core.counters.resident.wrapping_add(resident);
            }
            Change::Dirty { sid, ino: 0 } => drop(core.dirty.remove(&sid)),
            Change::Dirty { sid, ino } => drop(core.dirty.insert(sid, ino)),
            Change::NextId(id) => _ = core.next_id.fetch_max(id, Ordering::Relaxed),
            Change::Epoch(epoch) => core.epoch = core.epoch.max(epoch),
        }
    }
    Ok(())
}
