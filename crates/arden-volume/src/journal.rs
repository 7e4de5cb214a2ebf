//! The journal: a ring of batches of operations on the device. An operation is durable once its batch is. A batch is
//! believed when its own checksum holds and it names the checksum of the batch before it, so that nothing left over from
//! an earlier turn of the ring, or from an opening that ended in a crash, is ever taken for a continuation.

use arden_block::BLOCK_BYTES;
use arden_wire::cursor::{Put, Reader};
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    device::{BLOCK, Device},
    error::{VolError, VolResult},
    superblock::JournalStart,
};

const MAGIC: u32 = 0x4C4E_524A;
const HEADER: usize = 48;
/// One batch; more that waits goes into the next.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Where the next batch goes, and what waits to be in it.
struct State {
    next: JournalStart,
    /// Blocks from the replay start of the last checkpoint to `next`, skipped ones included.
    used: u64,
    /// Encoded operations, each with its length.
    pending: Vec<u8>,
    /// Ends of operations in `pending`.
    ends: Vec<(usize, u64)>,
    /// The pending operations speak of data that was written and not flushed.
    data: bool,
}

pub struct Journal {
    first_block: u64,
    blocks: u64,
    id: u64,
    state: Mutex<State>,
}

/// Bytes ready to be written, and the operations that they make durable.
pub struct Sealed {
    pub writes: Vec<(u64, Vec<u8>)>,
    pub last_seq: u64,
    /// Data has to be flushed first.
    pub data: bool,
}

impl Journal {
    pub fn new(first_block: u64, blocks: u64, id: u128, next: JournalStart, used: u64) -> Journal {
        let state = State { next, used, pending: Vec::new(), ends: Vec::new(), data: false };
        Journal { first_block, blocks, id: (id >> 64) as u64, state: Mutex::new(state) }
    }

    /// Appends an operation. It is not durable yet.
    pub fn append(&self, seq: u64, operation: &[u8], data: bool) {
        let mut s = self.state.lock();
        s.pending.put_u32(operation.len() as u32);
        s.pending.put_u64(seq);
        s.pending.extend_from_slice(operation);
        let end = s.pending.len();
        s.ends.push((end, seq));
        s.data |= data;
    }

    /// Parts of the ring in use or spoken for, in thousandths.
    pub fn fullness(&self) -> u64 {
        let s = self.state.lock();
        (s.used + s.pending.len() as u64 / BLOCK_BYTES) * 1000 / self.blocks
    }

    /// One operation.
    pub fn record_bytes_max(&self) -> u64 {
        self.blocks * BLOCK_BYTES / 4
    }

    /// Where a checkpoint of everything appended so far lets replay begin: batches from there on may begin with
    /// operations that it holds already.
    pub fn position(&self) -> (JournalStart, u64) {
        let s = self.state.lock();
        (s.next, s.used)
    }

    /// The checkpoint whose position had `used` is durable.
    pub fn trim(&self, used: u64) {
        self.state.lock().used -= used;
    }

    /// Turns what waits into batches with places. None when nothing waits.
    pub fn seal(&self) -> VolResult<Option<Sealed>> {
        let mut s = self.state.lock();
        let Some(&(_, last_seq)) = s.ends.last() else { return Ok(None) };
        let pending = std::mem::take(&mut s.pending);
        let ends = std::mem::take(&mut s.ends);
        let data = std::mem::take(&mut s.data);
        let mut writes = Vec::new();
        let mut from = 0;
        for (i, (end, _)) in ends.iter().enumerate() {
            let next_end = ends.get(i + 1).map_or(usize::MAX, |(e, _)| *e);
            if next_end.saturating_sub(from) > BATCH_BYTES_MAX {
                writes.push(self.batch(&mut s, &pending[from..*end])?);
                from = *end;
            }
        }
        Ok(Some(Sealed { writes, last_seq, data }))
    }

    fn batch(&self, s: &mut State, payload: &[u8]) -> VolResult<(u64, Vec<u8>)> {
        let blocks = ((HEADER + payload.len()) as u64).div_ceil(BLOCK_BYTES);
        let wraps = s.next.block + blocks > self.blocks;
        let skip = if wraps { self.blocks - s.next.block } else { 0 };
        if s.used + skip + blocks > self.blocks {
            return Err(VolError::Refused("the journal is full"));
        }
        if wraps {
            s.next.block = 0;
        }
        let mut out = Vec::with_capacity(blocks as usize * BLOCK);
        out.put_u32(MAGIC);
        out.put_u32(payload.len() as u32);
        out.put_u64(self.id);
        out.put_u64(s.next.batch);
        out.put_u64(s.next.previous_sum);
        out.put_u64(0);
        out.put_u64(0);
        out.extend_from_slice(payload);
        let sum = xxh3_64(&out);
        out[40..48].copy_from_slice(&sum.to_le_bytes());
        out.resize(blocks as usize * BLOCK, 0);
        let at = (self.first_block + s.next.block) * BLOCK_BYTES;
        s.next = JournalStart { block: s.next.block + blocks, batch: s.next.batch + 1, previous_sum: sum };
        s.used += skip + blocks;
        Ok((at, out))
    }

    /// Reads the batches from `start` on, gives each operation to `f`, and answers where the next one goes, and the
    /// blocks from `start` to there.
    pub fn replay(
        &self,
        device: &dyn Device,
        start: JournalStart,
        f: &mut dyn FnMut(u64, &[u8]) -> VolResult<()>,
    ) -> VolResult<(JournalStart, u64)> {
        let (mut at, mut used) = (start, 0);
        loop {
            let here = self.read_batch(device, &at)?;
            let (payload, blocks, sum) = match here {
                Some(found) => found,
                None if at.block > 0 => {
                    // The ring may have begun anew.
                    let wrapped = JournalStart { block: 0, ..at };
                    match self.read_batch(device, &wrapped)? {
                        Some(found) => {
                            used += self.blocks - at.block;
                            at = wrapped;
                            found
                        }
                        None => return Ok((at, used)),
                    }
                }
                None => return Ok((at, used)),
            };
            if used + blocks > self.blocks {
                return Err(VolError::Corrupt("the journal runs into itself"));
            }
            let mut r = Reader::new(&payload);
            while r.remaining() > 0 {
                let n = r.u32()? as usize;
                let seq = r.u64()?;
                f(seq, r.bytes(n)?)?;
            }
            at = JournalStart { block: at.block + blocks, batch: at.batch + 1, previous_sum: sum };
            used += blocks;
        }
    }

    /// The payload, the blocks that the batch takes, and its checksum. None when there is no such batch.
    fn read_batch(&self, device: &dyn Device, at: &JournalStart) -> VolResult<Option<(Vec<u8>, u64, u64)>> {
        if at.block >= self.blocks {
            return Ok(None);
        }
        let mut first = vec![0; BLOCK];
        device.read((self.first_block + at.block) * BLOCK_BYTES, &mut first)?;
        let mut r = Reader::new(&first);
        let (magic, len) = (r.u32()?, r.u32()? as usize);
        if magic != MAGIC || r.u64()? != self.id || r.u64()? != at.batch || r.u64()? != at.previous_sum {
            return Ok(None);
        }
        r.skip(8)?;
        let sum = r.u64()?;
        let blocks = ((HEADER + len) as u64).div_ceil(BLOCK_BYTES);
        if at.block + blocks > self.blocks {
            return Ok(None);
        }
        let mut bytes = vec![0; blocks as usize * BLOCK];
        device.read((self.first_block + at.block) * BLOCK_BYTES, &mut bytes)?;
        bytes.truncate(HEADER + len);
        bytes[40..48].fill(0);
        if xxh3_64(&bytes) != sum {
            return Ok(None);
        }
        bytes.drain(..HEADER);
        Ok(Some((bytes, blocks, sum)))
    }
}
