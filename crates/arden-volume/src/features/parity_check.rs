//! The second half of a scrub, on a device that keeps parity: there is no other copy that could be compared with a checksum,
//! only parity that fits or not. All data was read and healed by then; here the volume vouches for the blocks of the rows
//! whose parity does not fit, so that the device may compute it anew. Rows of which a part was written are looked at soon, without a scrub: noise
//! beneath what was written has become part of their parity.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use arden_block::{BLOCK_BYTES, Redundant};
use arden_lock::thread;

use crate::{
    disk::{
        device::{BLOCK, BlockCheck},
        error::{VolError, VolResult},
        inode::Extent,
        keys::{self, Key},
        superblock::{SLOTS, Superblock},
        treenode::NODE_BLOCKS,
    },
    engine::{deferred::Deferred, owner::Engine, view::View},
};

/// Looked at with one call.
const STEP_BYTES: u64 = 16 << 20;
/// Rows that one walk over all extents is made for.
const ROWS_MAX: usize = 16 << 10;
/// How often whoever has patience is asked for rows.
const ROUNDS_MAX: usize = 8;
/// Extents looked up at once.
const BATCH: usize = 64;

/// How to tell whether a block is right: a check, and the block's number in that.
type Known = HashMap<u64, (BlockCheck, usize)>;

/// Whether the device keeps parity.
pub fn has_parity(engine: &Engine) -> bool {
    engine.device.redundant().is_some_and(|copies| matches!(copies.parity_mismatches(0, 0), Ok(Some(_))))
}

/// Blocks of parity that were written anew. `go_on` hears of bytes that were read, and says whether to.
pub fn recompute_parity(engine: &Engine, go_on: &mut dyn FnMut(u64) -> bool) -> VolResult<u64> {
    let Some(copies) = engine.device.redundant() else { return Ok(0) };
    let size_bytes = engine.device.size_bytes();
    let (mut rows, mut healed) = (Vec::new(), 0);
    for at in (0..size_bytes).step_by(STEP_BYTES as usize) {
        let Some((bytes, found)) = copies.parity_mismatches(at, STEP_BYTES.min(size_bytes - at))? else { break };
        rows.extend(found);
        if rows.len() >= ROWS_MAX {
            healed += even_rows(engine, copies, &std::mem::take(&mut rows))?;
        }
        if !go_on(bytes) {
            break;
        }
    }
    Ok(healed + even_rows(engine, copies, &rows)?)
}

/// Asks for rows that were changed and do not fit, and mends them.
pub struct ChangedRows {
    engine: Arc<Engine>,
    has_parity: bool,
}

impl ChangedRows {
    pub fn new(engine: Arc<Engine>) -> Arc<ChangedRows> {
        let has_parity = has_parity(&engine);
        Arc::new(ChangedRows { engine, has_parity })
    }

    /// Blocks that were written anew, of data and of parity. The device looks for so long at what it had no time for yet.
    pub fn mend(&self, patience: Duration) -> VolResult<u64> {
        let Some(copies) = self.engine.device.redundant().filter(|_| self.has_parity) else { return Ok(0) };
        let (mut all, mut healed) = (0, 0);
        let until = thread::now() + patience;
        for _ in 0..ROUNDS_MAX {
            let rows = copies.doubted_parity(until.saturating_duration_since(thread::now()))?;
            if rows.is_empty() {
                break;
            }
            all += rows.len();
            // This makes a checkpoint, which changes rows, too.
            healed += even_rows(&self.engine, copies, &rows)?;
            // Nobody remembers these rows after a crash.
            self.engine.device.flush()?;
            if thread::now() >= until {
                break;
            }
        }
        if all > 0 {
            let why = "a disk returned what was not written there: rows of parity did not fit after a change";
            let volume = self.engine.superblock().label;
            tracing::warn!(volume, rows = all, healed, "{why}");
        }
        Ok(healed)
    }
}

impl Deferred for ChangedRows {
    fn upkeep(&self) -> VolResult<()> {
        self.mend(Duration::ZERO).map(drop)
    }
}

/// Heals the data of rows where it fails, as their parity says, and has their parity computed anew where all of it passes.
fn even_rows(engine: &Engine, copies: &dyn Redundant, rows: &[Vec<u64>]) -> VolResult<u64> {
    let wanted: HashSet<u64> = rows.iter().flatten().map(|at| at / BLOCK_BYTES).collect();
    if wanted.is_empty() {
        return Ok(0);
    }
    // Batches have no checksums that are known here; what they say is in the tree then, and in no need of them.
    match engine.checkpoint() {
        Ok(()) => {}
        Err(VolError::Full) => return Ok(0),
        Err(e) => return Err(e),
    }
    let known = known_blocks(engine, &wanted)?;
    let mut healed = 0;
    for row in rows {
        let number = |at: &u64| ((at - row[0]) / BLOCK_BYTES) as usize;
        let check = |at: &u64| Some((number(at), known.get(&(at / BLOCK_BYTES))?.clone()));
        let checks: BTreeMap<usize, (BlockCheck, usize)> = row.iter().filter_map(check).collect();
        for at in row.iter().filter(|at| checks.contains_key(&number(at))) {
            let verify = BlockCheck::Known(Arc::new(checks.clone())).placed(row[0]);
            // What cannot be healed is told of by a scrub, or whoever reads it.
            healed += copies.heal(*at, BLOCK, &verify).unwrap_or(0);
        }
        // What fails is as it was.
        let verify = BlockCheck::Known(Arc::new(checks)).placed(row[0]);
        healed += copies.recompute_parity(row[0], &verify).unwrap_or(0);
    }
    Ok(healed)
}

/// Of these blocks those that count, in the present or in a snapshot. What is written meanwhile is not among them, or
/// fails its check: then its row waits for the next scrub.
fn known_blocks(engine: &Engine, wanted: &HashSet<u64>) -> VolResult<Known> {
    let mut known = Known::new();
    let end = engine.superblock().size_blocks;
    for slot in (0..SLOTS).chain(end - SLOTS..end).filter(|b| wanted.contains(b)) {
        known.insert(slot, (Superblock::check(), 0));
    }
    for ptr in engine.nodes()? {
        for i in (0..NODE_BLOCKS).filter(|i| wanted.contains(&(ptr.block + i))) {
            known.insert(ptr.block + i, (ptr.check(), i as usize));
        }
    }
    let snapshots = engine.reading().core.snapshots.clone();
    for past in std::iter::once(None).chain(snapshots.iter().map(|p| Some(&**p))) {
        let mut next: Key = vec![keys::EXTENT];
        while let Some(view) = engine.state.reading_at(past) {
            let batch = view.collect(&next, &[keys::EXTENT + 1], BATCH)?;
            drop(view);
            let Some((last, _)) = batch.last() else { break };
            next.clone_from(last);
            next.push(0);
            for (key, value) in &batch {
                let Ok(e) = Extent::decode(keys::second(key), value) else { continue };
                for (block, sum) in (e.dev_block..).zip(&e.sums).filter(|(b, _)| wanted.contains(b)) {
                    known.insert(block, (BlockCheck::Sums(Arc::from([*sum].as_slice())), 0));
                }
            }
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use arden_block::{Device, IoError, IoResult, Verify, device::ParityMismatches};
    use parking_lot::Mutex;

    use super::*;
    use crate::{
        disk::device::MemDevice,
        testing::{Files, Volume, options, volume},
    };

    /// A device that keeps parity and says of some rows that they do not fit.
    struct Rows {
        memory: Arc<MemDevice>,
        wrong: Mutex<Vec<Vec<u64>>>,
        asked: AtomicU64,
        recomputed: AtomicU64,
    }

    impl Device for Rows {
        fn size_bytes(&self) -> u64 {
            self.memory.size_bytes()
        }
        fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
            self.memory.read(offset, buf)
        }
        fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
            self.memory.write(offset, data)
        }
        fn flush(&self) -> IoResult<()> {
            Ok(())
        }
        fn discard(&self, _offset: u64, _len: u64) -> IoResult<()> {
            Ok(())
        }
        fn redundant(&self) -> Option<&dyn Redundant> {
            Some(self)
        }
    }

    impl Redundant for Rows {
        fn read_verified(&self, offset: u64, buf: &mut [u8], verify: &Verify) -> IoResult<()> {
            arden_block::device::read_single(&*self.memory, offset, buf, |at, b| verify(at, b))
        }
        fn copies_pass(&self, offset: u64, len: usize, verify: &Verify) -> bool {
            self.read_verified(offset, &mut vec![0; len], verify).is_ok()
        }
        fn heal(&self, offset: u64, len: usize, verify: &Verify) -> IoResult<u64> {
            self.copies_pass(offset, len, verify).then_some(0).ok_or(IoError::Media)
        }
        fn parity_mismatches(&self, _offset: u64, _len: u64) -> IoResult<Option<ParityMismatches>> {
            Ok(Some((0, Vec::new())))
        }
        fn recompute_parity(&self, _row: u64, _verify: &Verify) -> IoResult<u64> {
            self.recomputed.fetch_add(1, Ordering::Relaxed);
            Ok(1)
        }
        fn doubted_parity(&self, _patience: Duration) -> IoResult<Vec<Vec<u64>>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            Ok(std::mem::take(&mut *self.wrong.lock()))
        }
    }

    #[test]
    fn rows_that_were_changed_are_asked_for_beside_clients_and_at_the_end() {
        let (memory, vol) = volume(16 << 20);
        Files::new(&vol).write("f", &[7; 100_000]);
        vol.close().unwrap();
        drop(vol);
        let rows =
            Arc::new(Rows { memory, wrong: Mutex::default(), asked: AtomicU64::new(0), recomputed: AtomicU64::new(0) });
        let vol = Volume::open(rows.clone(), options()).unwrap();
        let seen = || (rows.asked.load(Ordering::Relaxed), rows.recomputed.load(Ordering::Relaxed));
        vol.engine.deferrals.upkeep().unwrap();
        assert_eq!(seen(), (1, 0));
        *rows.wrong.lock() = vec![vec![0, 65536]];
        vol.engine.deferrals.upkeep().unwrap();
        assert_eq!(seen(), (2, 1));
        *rows.wrong.lock() = vec![vec![4096, 69632], vec![8192, 73728]];
        vol.close().unwrap();
        // Until there is none.
        assert_eq!(seen(), (4, 3));
    }
}
