//! The second half of a scrub, on a device that keeps parity: there is no other copy that could be compared with a checksum,
//! only parity that fits or not. All data was read and healed by then; here the volume vouches for the blocks of the rows
//! whose parity does not fit, so that the device may compute it anew. Rows of which a part was written are looked at soon, without a scrub
//! (`changed_rows`): noise beneath what was written has become part of their parity.

mod changed_rows;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use arden_block::{BLOCK_BYTES, Redundant};

use crate::{
    disk::{
        device::{BLOCK, BlockCheck},
        error::{VolError, VolResult},
        inode::Extent,
        keys::{self, Key},
        superblock::{SLOTS, Superblock},
        treenode::NODE_BLOCKS,
    },
    engine::{owner::Engine, view::View},
};
pub use changed_rows::ChangedRows;

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
            healed += even_rows(engine, copies, &std::mem::take(&mut rows), &mut || go_on(0))?.healed;
        }
        if !go_on(bytes) {
            break;
        }
    }
    Ok(healed + even_rows(engine, copies, &rows, &mut || go_on(0))?.healed)
}

/// What became of rows.
#[derive(Default)]
struct Evened {
    /// Blocks that were written anew, of data and of parity.
    healed: u64,
    /// All rows were looked at. Else there was no room for a checkpoint, or somebody said that it is to end.
    is_done: bool,
}

/// Heals the data of rows where it fails, as their parity says, and has their parity computed anew where all of it passes. One walk over all
/// extents, which asks `go_on` all the time.
fn even_rows(
    engine: &Engine,
    copies: &dyn Redundant,
    rows: &[Vec<u64>],
    go_on: &mut dyn FnMut() -> bool,
) -> VolResult<Evened> {
    let wanted: HashSet<u64> = rows.iter().flatten().map(|at| at / BLOCK_BYTES).collect();
    if wanted.is_empty() {
        return Ok(Evened { healed: 0, is_done: true });
    }
    // Batches have no checksums that are known here; what they say is in the tree then, and in no need of them.
    match engine.checkpoint() {
        Ok(()) => {}
        Err(VolError::Full) => return Ok(Evened::default()),
        Err(e) => return Err(e),
    }
    let Some(known) = known_blocks(engine, &wanted, go_on)? else { return Ok(Evened::default()) };
    let mut healed = 0;
    for row in rows {
        if !go_on() {
            return Ok(Evened { healed, is_done: false });
        }
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
    Ok(Evened { healed, is_done: true })
}

/// Of these blocks those that count, in the present or in a snapshot. What is written meanwhile is not among them, or
/// fails its check: then its row waits for the next scrub. None where `go_on` says so.
fn known_blocks(engine: &Engine, wanted: &HashSet<u64>, go_on: &mut dyn FnMut() -> bool) -> VolResult<Option<Known>> {
    let mut known = Known::new();
    let end = engine.superblock().size_blocks;
    for slot in (0..SLOTS).chain(end - SLOTS..end).filter(|b| wanted.contains(b)) {
        known.insert(slot, (Superblock::check(), 0));
    }
    // Without one among them the trees, which no checkpoint may change meanwhile, are left alone.
    let nodes = if any_nodes(engine, wanted) { engine.nodes()? } else { Vec::new() };
    for ptr in nodes {
        for i in (0..NODE_BLOCKS).filter(|i| wanted.contains(&(ptr.block + i))) {
            known.insert(ptr.block + i, (ptr.check(), i as usize));
        }
    }
    let snapshots = engine.reading().core.snapshots.clone();
    for past in std::iter::once(None).chain(snapshots.iter().map(|p| Some(&**p))) {
        let mut next: Key = vec![keys::EXTENT];
        loop {
            // It may sleep: with nothing of the state held.
            if !go_on() {
                return Ok(None);
            }
            let Some(view) = engine.state.reading_at(past) else { break };
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
    Ok(Some(known))
}

/// Whether any of these blocks may be a node of a tree: in use, and neither by files nor by the log.
fn any_nodes(engine: &Engine, wanted: &HashSet<u64>) -> bool {
    let sb = engine.superblock();
    let log = sb.journal_block..sb.journal_block + sb.journal_blocks;
    let alloc = engine.state.alloc.lock();
    wanted.iter().any(|block| !log.contains(block) && alloc.may_be_node(*block))
}
