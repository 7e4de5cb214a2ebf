//! The write-ahead log, on the device and in its document the *journal*: a ring of batches of operations on the device. An operation is durable once its batch is. A batch is
//! believed when its own checksum holds and it names the checksum of the batch before it, so that nothing left over from
//! an earlier turn of the ring, or from an opening that ended in a crash, is ever taken for a continuation. Batches that
//! speak of data share their flush with it: the last ones are believed only when their data is there.

use arden_block::{BLOCK_BYTES, Device, IoError};
use arden_lock::{Mutex, ranks};
use arden_wire::cursor::{Put, Reader};
use xxhash_rust::xxh3::xxh3_64;

use crate::disk::{
    device::{BLOCK, BlockCheck, TRAILED, read_checked},
    error::{VolError, VolResult},
    openings::Openings,
    read_ahead::ReadAhead,
    superblock::{JournalStart, Superblock},
};

const MAGIC: u32 = 0x324E_524A;
/// Of batches without checksums in their blocks, as earlier programs wrote them: only read.
const MAGIC_OLD: u32 = 0x4C4E_524A;
const HEADER: usize = 48;
/// The length and the number of an operation.
const OPERATION_HEADER: usize = 12;
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
    /// Where the pending operations will go.
    plan: Plan,
}

impl State {
    /// What waits is not what it was, or begins elsewhere.
    fn plan_again(&mut self, ring: u64) {
        self.plan = Plan::from(&self.next, self.used);
        let mut from = 0;
        for (end, _) in &self.ends {
            self.plan.add(end - from, ring);
            from = *end;
        }
    }
}

/// How operations become batches: one that reaches the ring's end ends before it, so that hardly any of the ring is
/// skipped, and what is skipped is known before anything is written.
struct Plan {
    /// Where the last batch begins, and what it holds so far.
    block: u64,
    bytes: usize,
    /// Blocks in use before it, skipped ones included.
    used: u64,
}

impl Plan {
    fn from(next: &JournalStart, used: u64) -> Plan {
        Plan { block: next.block, bytes: 0, used }
    }

    /// One more operation. True: it begins a batch.
    fn add(&mut self, bytes: usize, ring: u64) -> bool {
        let joined = self.bytes + bytes;
        if self.bytes > 0 && joined <= BATCH_BYTES_MAX && self.block + batch_blocks(joined) <= ring {
            self.bytes = joined;
            return false;
        }
        let before = self.last_blocks();
        (self.block, self.used) = (self.block + before, self.used + before);
        if self.block + batch_blocks(bytes) > ring {
            self.used += ring - self.block;
            self.block = 0;
        }
        self.bytes = bytes;
        true
    }

    fn last_blocks(&self) -> u64 {
        if self.bytes == 0 { 0 } else { batch_blocks(self.bytes) }
    }
}

pub struct Wal {
    first_block: u64,
    blocks: u64,
    id: u64,
    openings: Openings,
    state: Mutex<State, ranks::WalState>,
}

/// Bytes ready to be written, and the operations that they make durable.
pub struct Sealed {
    pub writes: Vec<(u64, Vec<u8>)>,
    pub last_seq: u64,
}

/// A batch as it was found.
struct Found {
    payload: Vec<u8>,
    blocks: u64,
    sum: u64,
    /// Not 0: it was flushed together with its data and with other batches of the same group.
    group: u64,
}

impl Wal {
    pub fn new(sb: &Superblock, next: JournalStart, used: u64) -> Wal {
        let plan = Plan::from(&next, used);
        let state = State { next, used, pending: Vec::new(), ends: Vec::new(), data: false, plan };
        let (first_block, blocks, id) = (sb.journal_block, sb.journal_blocks, (sb.id >> 64) as u64);
        Wal { first_block, blocks, id, openings: sb.openings.clone(), state: Mutex::new(state) }
    }

    /// Batches are sealed as this superblock says from now on.
    pub fn seal_as(&mut self, sb: &Superblock) {
        self.openings = sb.openings.clone();
    }

    /// Appends an operation. It is not durable yet.
    pub fn append(&self, seq: u64, operation: &[u8], data: bool) {
        let mut s = self.state.lock();
        let from = s.pending.len();
        s.pending.put_u32(operation.len() as u32);
        s.pending.put_u64(seq);
        s.pending.extend_from_slice(operation);
        let end = s.pending.len();
        s.plan.add(end - from, self.blocks);
        s.ends.push((end, seq));
        s.data |= data;
    }

    /// Parts of the ring in use or spoken for, in thousandths, with what is skipped at its end.
    pub fn fullness(&self) -> u64 {
        let s = self.state.lock();
        (s.plan.used + s.plan.last_blocks()) * 1000 / self.blocks
    }

    /// The same, with what the largest operation would skip.
    pub fn fullness_before_largest(&self) -> u64 {
        let s = self.state.lock();
        let end = s.plan.block + s.plan.last_blocks();
        let left = self.blocks - end;
        let skip = if left < batch_blocks(self.record_bytes_max()) { left } else { 0 };
        (s.plan.used + s.plan.last_blocks() + skip) * 1000 / self.blocks
    }

    /// Bytes in memory for the next batches.
    pub fn waiting_bytes(&self) -> usize {
        self.state.lock().pending.len()
    }

    /// One operation.
    pub fn record_bytes_max(&self) -> usize {
        (self.blocks * BLOCK_BYTES / 4) as usize
    }

    /// The largest operation that may be appended now. Leaves a sixteenth of the ring to those that are so small that nobody asks
    /// for their room.
    pub fn room_bytes(&self) -> usize {
        let s = self.state.lock();
        let used = s.plan.used + s.plan.last_blocks();
        let free = self.blocks.saturating_sub(used + self.blocks / 16);
        // It lies before the ring's end, or else what is left there is skipped.
        let left = self.blocks - (s.plan.block + s.plan.last_blocks());
        let blocks = left.min(free).max(free.saturating_sub(left));
        let bytes = (blocks as usize * TRAILED).saturating_sub(HEADER + OPERATION_HEADER);
        bytes.min(self.record_bytes_max())
    }

    /// Where a checkpoint of everything appended so far lets replay begin: batches from there on may begin with
    /// operations that it holds already.
    pub fn position(&self) -> (JournalStart, u64) {
        let s = self.state.lock();
        (s.next, s.used)
    }

    /// The checkpoint whose position had `used`, of all operations up to `seq`, is durable. Those that still wait need not
    /// be written any more: where nobody asked for a commit, what waits would else only grow.
    pub fn trim(&self, used: u64, seq: u64) {
        let mut s = self.state.lock();
        s.used -= used;
        let held = s.ends.partition_point(|(_, number)| *number <= seq);
        if let Some((cut, _)) = s.ends[..held].last().copied() {
            s.pending.drain(..cut);
            s.ends.drain(..held);
            s.ends.iter_mut().for_each(|(end, _)| *end -= cut);
            s.data &= !s.ends.is_empty();
        }
        s.plan_again(self.blocks);
    }

    /// Turns what waits into batches with places, all of which are flushed together, with the data that they speak of.
    /// None when nothing waits.
    pub fn seal(&self) -> VolResult<Option<Sealed>> {
        let mut s = self.state.lock();
        let Some(&(_, last_seq)) = s.ends.last() else { return Ok(None) };
        let pending = std::mem::take(&mut s.pending);
        let ends = std::mem::take(&mut s.ends);
        let group = if std::mem::take(&mut s.data) { s.next.batch + 1 } else { 0 };
        let mut writes = Vec::new();
        let mut plan = Plan::from(&s.next, s.used);
        let (mut from, mut before) = (0, 0);
        for (end, _) in &ends {
            if plan.add(end - before, self.blocks) && before > from {
                writes.push(self.batch(&mut s, &pending[from..before], group)?);
                from = before;
            }
            before = *end;
        }
        writes.push(self.batch(&mut s, &pending[from..], group)?);
        s.plan = Plan::from(&s.next, s.used);
        Ok(Some(Sealed { writes, last_seq }))
    }

    fn batch(&self, s: &mut State, payload: &[u8], group: u64) -> VolResult<(u64, Vec<u8>)> {
        let blocks = batch_blocks(payload.len());
        let wraps = s.next.block + blocks > self.blocks;
        let skip = if wraps { self.blocks - s.next.block } else { 0 };
        if s.used + skip + blocks > self.blocks {
            return Err(VolError::Refused("the journal is full"));
        }
        if wraps {
            s.next.block = 0;
        }
        let seed = self.seed(&s.next);
        let mut out = Vec::with_capacity(HEADER + payload.len());
        out.put_u32(MAGIC);
        out.put_u32(payload.len() as u32);
        out.put_u64(self.id);
        out.put_u64(s.next.batch);
        out.put_u64(s.next.previous_sum);
        out.put_u64(group);
        out.put_u64(0);
        out.extend_from_slice(payload);
        let sum = xxh3_64(&out);
        out[40..48].copy_from_slice(&sum.to_le_bytes());
        let mut sealed = Vec::with_capacity(blocks as usize * BLOCK);
        for part in out.chunks(TRAILED) {
            sealed.extend_from_slice(part);
            sealed.resize(sealed.len().next_multiple_of(BLOCK), 0);
        }
        BlockCheck::seal(seed, &mut sealed);
        let at = (self.first_block + s.next.block) * BLOCK_BYTES;
        s.next = JournalStart { block: s.next.block + blocks, batch: s.next.batch + 1, previous_sum: sum };
        s.used += skip + blocks;
        Ok((at, sealed))
    }

    /// What the checksums of a batch's blocks start from: none of another batch passes, whichever copy it is read from, nor
    /// of one in its place that an opening before wrote.
    fn seed(&self, at: &JournalStart) -> u64 {
        let opening = self.openings.generation_of(at.batch).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
        self.id.wrapping_add(at.batch.wrapping_mul(0x9E37_79B9_7F4A_7C15)) ^ at.previous_sum ^ opening
    }

    /// Reads the batches from `start` on, gives each operation to `f`, and answers where the next one goes, and the
    /// blocks from `start` to there. `is_there` says whether all data that batches speak of can be read.
    pub fn replay(
        &self,
        device: &dyn Device,
        start: JournalStart,
        is_there: &dyn Fn(&[Vec<u8>]) -> VolResult<bool>,
        f: &mut dyn FnMut(u64, &[u8]) -> VolResult<()>,
    ) -> VolResult<(JournalStart, u64)> {
        let (mut at, mut used) = (start, 0);
        let ahead = ReadAhead::new(device, (self.first_block + self.blocks) * BLOCK_BYTES);
        // Batches of one group, and where the first of them is: they are durable when a later batch is there.
        let mut held: Vec<Vec<u8>> = Vec::new();
        let (mut group, mut held_at) = (0, (start, 0));
        loop {
            let before = (at, used);
            let found = self.next_batch(&ahead, &mut at, &mut used)?;
            if !held.is_empty() && found.as_ref().is_none_or(|b| b.group != group) {
                if found.is_none() && !is_there(&held)? {
                    return Ok(held_at);
                }
                held.drain(..).try_for_each(|batch| each(&batch, &mut *f))?;
            }
            let Some(found) = found else { return Ok((at, used)) };
            if found.group == 0 {
                each(&found.payload, &mut *f)?;
                continue;
            }
            if held.is_empty() {
                (group, held_at) = (found.group, before);
            }
            held.push(found.payload);
        }
    }

    /// Makes sure that nothing of an earlier opening is ever taken for the next batch: one that was not believed, because its
    /// data was missing or a copy could not be read, fits where the journal ends now, and speaks of a state that never was.
    pub fn forget_what_follows(&self, device: &dyn Device) -> VolResult<()> {
        let (at, used) = self.position();
        let mut places = vec![at.block];
        // Where it would be had it not fitted before the ring's end.
        let skip = self.blocks - at.block;
        if used + skip < self.blocks {
            places.push(0);
        }
        for block in places.into_iter().filter(|block| *block < self.blocks) {
            device.write((self.first_block + block) * BLOCK_BYTES, &[0; BLOCK])?;
        }
        Ok(device.flush()?)
    }

    /// The batch at `at`, or at the ring's beginning, and moves behind it. None: the journal ends here.
    fn next_batch(&self, log: &ReadAhead<'_>, at: &mut JournalStart, used: &mut u64) -> VolResult<Option<Found>> {
        let mut found = self.read_any(log, at)?;
        if found.is_none() && at.block > 0 {
            // The ring may have begun anew.
            let wrapped = JournalStart { block: 0, ..*at };
            found = self.read_any(log, &wrapped)?;
            if found.is_some() {
                *used += self.blocks - at.block;
                *at = wrapped;
            }
        }
        let Some(batch) = &found else { return Ok(None) };
        if *used + batch.blocks > self.blocks {
            return Err(VolError::Corrupt("the journal runs into itself"));
        }
        *at = JournalStart { block: at.block + batch.blocks, batch: at.batch + 1, previous_sum: batch.sum };
        *used += batch.blocks;
        Ok(found)
    }

    fn read_any(&self, log: &ReadAhead<'_>, at: &JournalStart) -> VolResult<Option<Found>> {
        let found = self.read_batch(log, at)?;
        if found.is_some() { Ok(found) } else { self.read_old(log.device(), at) }
    }

    /// The same of an earlier program, whose data was flushed before its batch.
    fn read_old(&self, device: &dyn Device, at: &JournalStart) -> VolResult<Option<Found>> {
        if at.block >= self.blocks {
            return Ok(None);
        }
        let offset = (self.first_block + at.block) * BLOCK_BYTES;
        let mut first = vec![0; BLOCK];
        device.read(offset, &mut first)?;
        let mut r = Reader::new(&first);
        let (magic, len) = (r.u32()?, r.u32()? as usize);
        if magic != MAGIC_OLD || r.u64()? != self.id || r.u64()? != at.batch || r.u64()? != at.previous_sum {
            return Ok(None);
        }
        r.skip(8)?;
        let sum = r.u64()?;
        let blocks = ((HEADER + len) as u64).div_ceil(BLOCK_BYTES);
        if at.block + blocks > self.blocks {
            return Ok(None);
        }
        let mut payload = vec![0; blocks as usize * BLOCK];
        device.read(offset, &mut payload)?;
        payload.truncate(HEADER + len);
        payload[40..48].fill(0);
        if xxh3_64(&payload) != sum {
            return Ok(None);
        }
        payload.drain(..HEADER);
        Ok(Some(Found { payload, blocks, sum, group: 0 }))
    }

    /// None when there is no such batch.
    fn read_batch(&self, log: &ReadAhead<'_>, at: &JournalStart) -> VolResult<Option<Found>> {
        if at.block >= self.blocks {
            return Ok(None);
        }
        let check = BlockCheck::Trailer { seed: self.seed(at) };
        let offset = (self.first_block + at.block) * BLOCK_BYTES;
        let Some(first) = read_sealed(log, offset, BLOCK, &check)? else { return Ok(None) };
        let mut r = Reader::new(&first);
        let (magic, len) = (r.u32()?, r.u32()? as usize);
        if magic != MAGIC || r.u64()? != self.id || r.u64()? != at.batch || r.u64()? != at.previous_sum {
            return Ok(None);
        }
        let group = r.u64()?;
        let sum = r.u64()?;
        let blocks = batch_blocks(len);
        if at.block + blocks > self.blocks {
            return Ok(None);
        }
        // A small batch is one block, and most are small: it is not read twice.
        let sealed = match blocks {
            1 => Some(first),
            _ => read_sealed(log, offset, blocks as usize * BLOCK, &check)?,
        };
        let Some(sealed) = sealed else { return Ok(None) };
        let mut bytes: Vec<u8> = sealed.chunks_exact(BLOCK).flat_map(|b| b[..TRAILED].iter().copied()).collect();
        bytes.truncate(HEADER + len);
        bytes[40..48].fill(0);
        if xxh3_64(&bytes) != sum {
            return Ok(None);
        }
        bytes.drain(..HEADER);
        Ok(Some(Found { payload: bytes, blocks, sum, group }))
    }
}

fn batch_blocks(payload_bytes: usize) -> u64 {
    (HEADER + payload_bytes).div_ceil(TRAILED) as u64
}

/// Blocks that pass, from all copies or from whichever. None when no copy does; what cannot be read at all is an error, because an
/// operation that was acknowledged may lie there.
fn read_sealed(log: &ReadAhead<'_>, offset: u64, len: usize, check: &BlockCheck) -> VolResult<Option<Vec<u8>>> {
    if let Some(blocks) = log.get(offset, len, check) {
        return Ok(Some(blocks));
    }
    let device = log.device();
    let mut buf = vec![0; len];
    match read_checked(device, offset, &mut buf, check) {
        Ok(()) => Ok(Some(buf)),
        Err(IoError::Media) => Ok(device.read(offset, &mut buf).map(|()| None)?),
        Err(e) => Err(e.into()),
    }
}

/// Gives each operation of a batch to `f`.
pub fn each(payload: &[u8], f: &mut dyn FnMut(u64, &[u8]) -> VolResult<()>) -> VolResult<()> {
    let mut r = Reader::new(payload);
    while r.remaining() > 0 {
        let n = r.u32()? as usize;
        let seq = r.u64()?;
        f(seq, r.bytes(n)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arden_block::{IoResult, rng::Rng};

    use super::*;
    use crate::{
        disk::{device::MemDevice, openings::OPENINGS_MAX},
        testing::{Files, Volume, options, volume, volume_on},
    };

    #[test]
    fn a_batch_that_was_not_believed_once_never_is() {
        not_believed_after(0);
        // So many that the last ones seal their batches as the one before.
        not_believed_after(OPENINGS_MAX + 1);
    }

    fn not_believed_after(openings: usize) {
        let (mut device, mut vol) = volume(16 << 20);
        Files::new(&vol).write("first", b"first");
        vol.checkpoint().unwrap();
        for i in 0..openings {
            Files::new(&vol).write(&format!("opening {i}"), b"of many");
            vol.sync().unwrap();
            device = Arc::new(MemDevice::holding(device.content()));
            vol = volume_on(device.clone());
        }
        let files = Files::new(&vol);
        let pattern = [0xA7; 100_000];
        files.write("with data", &pattern);
        (0..9).for_each(|i| drop(files.write(&format!("lost {i}"), b"lost")));
        vol.sync().unwrap();
        // The batch got to the device, the data that it speaks of did not.
        let mut content = device.content();
        for block in content.chunks_mut(4096).filter(|b| b[..] == pattern[..4096]) {
            block.fill(0);
        }
        let device = Arc::new(MemDevice::holding(content));
        let vol = volume_on(device.clone());
        let files = Files::new(&vol);
        assert!(files.find("with data").is_none() && files.find("lost 8").is_none());
        // Fewer operations than the batch has, of which none gets to the journal.
        files.write("second", b"second");
        vol.checkpoint().unwrap();
        let vol = volume_on(Arc::new(MemDevice::holding(device.content())));
        let report = vol.check(true).unwrap();
        assert!(report.is_clean(), "{:?}", report.errors);
        let files = Files::new(&vol);
        assert_eq!((files.read("first"), files.read("second")), (b"first".to_vec(), b"second".to_vec()));
        assert!((0..9).all(|i| files.find(&format!("lost {i}")).is_none()));
    }

    /// Memory, of which a part does not answer, as that of a space whose disks are away.
    struct Away {
        memory: MemDevice,
        away: std::ops::Range<u64>,
    }

    impl Device for Away {
        fn size_bytes(&self) -> u64 {
            self.memory.size_bytes()
        }
        fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
            let meets = offset < self.away.end && self.away.start < offset + buf.len() as u64;
            if meets { Err(IoError::Gone) } else { self.memory.read(offset, buf) }
        }
        fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
            self.memory.write(offset, data)
        }
        fn flush(&self) -> IoResult<()> {
            Ok(())
        }
        fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
            self.memory.discard(offset, len)
        }
    }

    #[test]
    fn data_that_is_away_does_not_make_its_batch_one_that_never_was() {
        let (device, vol) = volume(16 << 20);
        Files::new(&vol).write("first", b"first");
        vol.checkpoint().unwrap();
        let pattern = [0xA7; 100_000];
        Files::new(&vol).write("with data", &pattern);
        vol.sync().unwrap();
        let content = device.content();
        let place = content.chunks(4096).position(|block| block[..] == pattern[..4096]).unwrap() as u64 * BLOCK_BYTES;
        let open = |away| Volume::open(Arc::new(Away { memory: MemDevice::holding(content.clone()), away }), options());
        assert_eq!(open(place..place + BLOCK_BYTES).err(), Some(VolError::Io(IoError::Gone)));
        assert_eq!(Files::new(&open(0..0).unwrap()).read("with data"), pattern);
    }

    #[test]
    fn what_a_checkpoint_holds_waits_for_the_journal_no_longer() {
        let (device, vol) = volume(8 << 20);
        let files = Files::new(&vol);
        // More than the ring has, and nobody asks for a commit.
        for i in 0..200u8 {
            files.write("file", &[i; 32 << 10]);
            assert!(vol.engine.state.wal.fullness() < 1000, "after {i}");
        }
        let found = Files::new(&volume_on(Arc::new(MemDevice::holding(device.content())))).read("file");
        assert!(found.iter().all(|b| *b == found[0]), "a crash leaves what some checkpoint had");
        assert_eq!(vol.sync(), Ok(()));
        let after = volume_on(Arc::new(MemDevice::holding(device.content())));
        assert_eq!(Files::new(&after).read("file"), [199; 32 << 10]);
        assert_eq!(vol.progress().0, vol.progress().1);
    }

    /// The smallest log: what waits is a large part of it, and often has to go on at its beginning.
    #[test]
    fn no_batch_is_refused_where_the_log_said_that_there_is_room() {
        let (device, vol) = volume(8 << 20);
        let sb = vol.engine.superblock();
        let wal = Wal::new(&sb, sb.start, 0);
        assert_eq!(wal.blocks, 256);
        let mut rng = Rng::new(7);
        let (mut seq, mut begin, mut first) = (sb.seq, sb.start, sb.seq + 1);
        for turn in 0..2000 {
            // A checkpoint of all so far, whose place in the log is where what waits will begin.
            let (at, used) = wal.position();
            wal.trim(used, seq);
            (begin, first) = (at, seq + 1);
            let full = 300 + rng.below(570);
            while wal.fullness() < full {
                seq += 1;
                let bytes = rng.below(60_000) as usize;
                wal.append(seq, &vec![seq as u8; bytes], false);
                if rng.below(8) == 0 {
                    write(&wal, &device, turn);
                }
            }
            write(&wal, &device, turn);
        }
        let mut next = first;
        let each = &mut |number: u64, operation: &[u8]| {
            assert_eq!(number, next);
            assert!(operation.iter().all(|b| *b == number as u8));
            next += 1;
            Ok(())
        };
        let (end, used) = wal.replay(&*device, begin, &|_| Ok(true), each).unwrap();
        assert_eq!((next, end.block, used), (seq + 1, wal.position().0.block, wal.position().1));
    }

    fn write(wal: &Wal, device: &MemDevice, turn: u32) {
        let told = wal.fullness();
        let sealed = wal.seal().unwrap_or_else(|e| panic!("turn {turn}: {e}"));
        device.write_durably(&sealed.map_or(Vec::new(), |sealed| sealed.writes)).unwrap();
        let used = wal.position().1;
        assert_eq!(used * 1000 / wal.blocks, told, "turn {turn}");
    }
}
