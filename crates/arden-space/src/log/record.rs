//! The bytes of a journal batch: a header block, the records, and the data blocks they speak
//! of, under one checksum. See `docs/on-disk-space.md`.

use arden_block::{BLOCK_BYTES, Buf, SharedBuf};

use crate::base::codec::{Reader, Writer, checksum};
use crate::base::error::SpaceResult;

const MAGIC: &[u8; 8] = b"ARDNJRNL";
/// Version 1: the first.
const VERSION: u32 = 1;
/// Version 2: a batch with patch records; all others stay version 1.
const VERSION_PATCH: u32 = 2;
const CHECKSUM_AT: usize = 40;

/// One change, in the order in which it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// New content of blocks of a space; the blocks follow in the payload.
    Data { space: u32, group: u32, incarnation: u64, version: u64, block: u64, count: u32 },
    /// Parity: from now on the stripe lies in `slot`; data up to `upto` is in it.
    Flip { space: u32, group: u32, incarnation: u64, stripe: u32, slot: u16, upto: u64, id: u64, degraded: bool },
    /// Mirrors: the region may differ between its copies.
    Dirty { space: u32, group: u32, incarnation: u64, bit: u32 },
    /// Parity: blocks `row..row + rows` of every unit of the stripe in `slot`, of which the data up
    /// to `upto` is in the log, have the parity that follows in the payload: all of P, then Q.
    Patch {
        space: u32,
        group: u32,
        incarnation: u64,
        upto: u64,
        stripe: u32,
        slot: u16,
        row: u32,
        rows: u32,
        parities: u8,
    },
}

impl Record {
    /// How many blocks of the payload are this record's.
    fn blocks(&self) -> usize {
        match *self {
            Record::Data { count, .. } => count as usize,
            Record::Patch { rows, parities, .. } => rows as usize * usize::from(parities),
            Record::Flip { .. } | Record::Dirty { .. } => 0,
        }
    }
}

pub(crate) struct Batch {
    pub(crate) seq: u64,
    pub(crate) len: u64,
    pub(crate) records: Vec<Record>,
    /// The payload; block `i` of the batch's data records in order.
    pub(crate) payload: SharedBuf,
}

/// The space a batch takes.
pub(crate) fn batch_bytes(records: usize, blocks: usize) -> u64 {
    (48 + records as u64 * 48).next_multiple_of(BLOCK_BYTES) + blocks as u64 * BLOCK_BYTES
}

pub(crate) fn encode(log_id: u64, seq: u64, records: &[Record], blocks: &[SharedBuf]) -> SharedBuf {
    let mut w = Writer::default();
    w.0.extend_from_slice(MAGIC);
    let patches = records.iter().any(|r| matches!(r, Record::Patch { .. }));
    w.u32(if patches { VERSION_PATCH } else { VERSION });
    w.u32(records.len() as u32);
    w.u64(log_id);
    w.u64(seq);
    let len = batch_bytes(records.len(), blocks.len());
    w.u32(len as u32);
    w.u32(blocks.len() as u32);
    w.u64(0);
    for r in records {
        encode_record(&mut w, r);
    }
    let meta = len as usize - blocks.len() * BLOCK_BYTES as usize;
    let mut b = Buf::new(len as usize);
    b[..w.0.len()].copy_from_slice(&w.0);
    b[w.0.len()..meta].fill(0);
    for (i, data) in blocks.iter().enumerate() {
        let at = meta + i * BLOCK_BYTES as usize;
        b[at..at + BLOCK_BYTES as usize].copy_from_slice(data);
    }
    let sum = checksum(&b);
    b[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
    b.share()
}

fn encode_record(w: &mut Writer, r: &Record) {
    let start = w.0.len();
    match *r {
        Record::Data { space, group, incarnation, version, block, count } => {
            w.u8(1);
            w.u32(space);
            w.u32(group);
            w.u64(incarnation);
            w.u64(version);
            w.u64(block);
            w.u32(count);
        }
        Record::Flip { space, group, incarnation, stripe, slot, upto, id, degraded } => {
            w.u8(2);
            w.u32(space);
            w.u32(group);
            w.u64(incarnation);
            w.u64(upto);
            w.u64(id);
            w.u32(stripe);
            w.u16(slot);
            w.u8(u8::from(degraded));
        }
        Record::Dirty { space, group, incarnation, bit } => {
            w.u8(3);
            w.u32(space);
            w.u32(group);
            w.u64(incarnation);
            w.u32(bit);
        }
        Record::Patch { space, group, incarnation, upto, stripe, slot, row, rows, parities } => {
            w.u8(4);
            w.u32(space);
            w.u32(group);
            w.u64(incarnation);
            w.u64(upto);
            w.u32(stripe);
            w.u16(slot);
            w.u32(row);
            w.u32(rows);
            w.u8(parities);
        }
    }
    w.0.resize(start + 48, 0);
}

/// For the trace: what a batch says.
pub(crate) fn outline(records: &[Record]) -> String {
    let one = |r: &Record| match r {
        Record::Data { space, group, version, block, count, .. } => {
            format!("data {space}/{group} block {block}+{count} v{version}")
        }
        Record::Flip { space, group, stripe, slot, upto, id, degraded, .. } => {
            format!("move {id} {space}/{group} stripe {stripe} to {slot} up to v{upto} degraded {degraded}")
        }
        Record::Dirty { space, group, bit, .. } => format!("dirty {space}/{group} region {bit}"),
        Record::Patch { space, group, stripe, slot, upto, row, rows, .. } => {
            format!("patch {space}/{group} stripe {stripe} in {slot} row {row}+{rows} up to v{upto}")
        }
    };
    records.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The length of the batch whose header this is, if it is the one looked for.
pub(crate) fn peek(header: &[u8], log_id: u64, seq: u64) -> Option<u64> {
    if header.len() < 48 || &header[..8] != MAGIC {
        return None;
    }
    let r = &mut Reader::new(&header[8..], "journal");
    let (version, _, id, s, len) = (r.u32().ok()?, r.u32().ok()?, r.u64().ok()?, r.u64().ok()?, r.u32().ok()?);
    let fits = u64::from(len).is_multiple_of(BLOCK_BYTES) && len > 0 && len <= 64 << 20;
    ((VERSION..=VERSION_PATCH).contains(&version) && id == log_id && s == seq && fits).then_some(u64::from(len))
}

/// `None` when the checksum does not hold.
pub(crate) fn decode(mut data: Buf) -> SpaceResult<Option<Batch>> {
    let mut sum = [0; 8];
    sum.copy_from_slice(&data[CHECKSUM_AT..CHECKSUM_AT + 8]);
    data[CHECKSUM_AT..CHECKSUM_AT + 8].fill(0);
    if checksum(&data) != u64::from_le_bytes(sum) {
        return Ok(None);
    }
    let r = &mut Reader::new(&data[8..48], "a journal batch");
    let (_, count, _, seq, len, blocks) = (r.u32()?, r.u32()? as usize, r.u64()?, r.u64()?, r.u32()?, r.u32()?);
    let blocks = blocks as usize;
    let meta = (len as usize).checked_sub(blocks * BLOCK_BYTES as usize);
    let Some(meta) = meta.filter(|&m| len as usize == data.len() && 48 + count * 48 <= m) else { return r.bad() };
    let mut records = Vec::with_capacity(count);
    let mut named = 0;
    for i in 0..count {
        let at = 48 + i * 48;
        let r = &mut Reader::new(&data[at..at + 48], "a journal record");
        let kind = r.u8()?;
        let (space, group, incarnation) = (r.u32()?, r.u32()?, r.u64()?);
        records.push(match kind {
            1 => {
                let (version, block, count) = (r.u64()?, r.u64()?, r.u32()?);
                Record::Data { space, group, incarnation, version, block, count }
            }
            2 => {
                let (upto, id, stripe, slot, degraded) = (r.u64()?, r.u64()?, r.u32()?, r.u16()?, r.u8()? != 0);
                Record::Flip { space, group, incarnation, stripe, slot, upto, id, degraded }
            }
            3 => Record::Dirty { space, group, incarnation, bit: r.u32()? },
            4 => {
                let (upto, stripe, slot) = (r.u64()?, r.u32()?, r.u16()?);
                let (row, rows, parities) = (r.u32()?, r.u32()?, r.u8()?);
                Record::Patch { space, group, incarnation, upto, stripe, slot, row, rows, parities }
            }
            _ => return r.bad(),
        });
        named += records.last().map_or(0, Record::blocks);
    }
    if named != blocks {
        return r.bad();
    }
    let payload = data.share().slice(meta, blocks * BLOCK_BYTES as usize);
    Ok(Some(Batch { seq, len: u64::from(len), records, payload }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_survives_and_a_flipped_bit_is_noticed() {
        let mut b = Buf::new(8192);
        b.fill(9);
        let b = b.share();
        let records = vec![
            Record::Data { space: 1, group: 2, incarnation: 3, version: 4, block: 5, count: 2 },
            Record::Flip { space: 1, group: 2, incarnation: 3, stripe: 7, slot: 8, upto: 9, id: 3, degraded: true },
            Record::Dirty { space: 1, group: 2, incarnation: 3, bit: 11 },
            Record::Patch {
                space: 1,
                group: 2,
                incarnation: 3,
                upto: 9,
                stripe: 7,
                slot: 8,
                row: 5,
                rows: 1,
                parities: 2,
            },
        ];
        let block = |i: usize| b.slice(i * 4096, 4096);
        let bytes = encode(77, 5, &records, &[block(0), block(1), block(0), block(1)]);
        assert_eq!(peek(&bytes, 77, 5), Some(bytes.len() as u64));
        assert_eq!(peek(&bytes, 77, 6), None);
        let back = decode(Buf::copy_of(&bytes)).unwrap().unwrap();
        assert_eq!((back.records, back.payload.len()), (records, 16384));
        for at in [60, 4096, 9000] {
            let mut bad = Buf::copy_of(&bytes);
            bad[at] ^= 1;
            assert!(decode(bad).unwrap().is_none());
        }
    }
}
