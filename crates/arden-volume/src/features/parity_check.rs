//! The second half of a scrub, on a device that keeps parity: there is no other copy that could be compared with a checksum,
//! only parity that fits or not. All data was read and healed by then; here the volume vouches for the blocks of the rows
//! whose parity does not fit, so that the device may compute it anew.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use arden_block::{BLOCK_BYTES, Redundant};

use crate::{
    disk::{
        device::BlockCheck,
        error::{VolError, VolResult},
        inode::Extent,
        keys::{self, Key},
        superblock::{SLOTS, Superblock},
        treenode::NODE_BLOCKS,
    },
    engine::{owner::Engine, view::View},
};

/// Looked at with one call.
const STEP_BYTES: u64 = 16 << 20;
/// Rows that one walk over all extents is made for.
const ROWS_MAX: usize = 16 << 10;
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
