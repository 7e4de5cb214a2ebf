//! Opening: everything in memory, from what lies on the device. Owns replay, and which blocks count as used at first.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicU64},
};

use arden_block::{BLOCK_BYTES, Device, IoError};

use crate::{
    disk::{
        device::{BLOCK, BlockCheck, CrashResync, pieces, read_checked},
        error::{VolError, VolResult},
        inode::EXTENT_BLOCKS_MAX,
        keys,
        run::Run,
        superblock::{SLOTS, Superblock},
        treenode::NODE_BLOCKS,
    },
    engine::{
        alloc::Alloc,
        kept::{Snapshot, visit_nodes},
        record::{self, MapOp},
        state::{Core, CoreView},
        tree::Tree,
        wal::{self, Wal},
    },
};

/// What opening finds.
pub struct Loaded {
    pub core: Core,
    pub alloc: Alloc,
    pub wal: Wal,
    pub tree: Tree,
}

impl Loaded {
    pub fn view(&self) -> CoreView<'_> {
        CoreView { core: &self.core, tree: &self.tree }
    }
}

/// Everything in memory, from what lies on the device. `crash_resync`: what the last crash interrupted is made equal in all
/// copies.
pub fn load(
    device: &Arc<dyn Device>,
    sb: &Superblock,
    cache_bytes: usize,
    crash_resync: Option<&CrashResync<'_>>,
) -> VolResult<Loaded> {
    let tree = Tree::new(device.clone(), cache_bytes);
    let mut alloc = Alloc::new(sb.size_blocks);
    let (piece_bytes, held) = pieces(&**device);
    alloc.note_empty(piece_bytes / BLOCK_BYTES, held);
    let fixed = [
        Run { start: 0, len: SLOTS },
        Run { start: sb.journal_block, len: sb.journal_blocks },
        Run { start: sb.size_blocks - SLOTS, len: SLOTS },
    ];
    let twice = VolError::Corrupt("a block has two owners");
    for run in fixed {
        if !alloc.occupy(run) {
            return Err(twice);
        }
    }
    let mut core = Core {
        root: sb.root,
        next_id: AtomicU64::new(sb.next_id),
        seq: sb.seq,
        counters: sb.counters,
        epoch: sb.epoch,
        dirty: BTreeMap::new(),
        ..Core::default()
    };
    load_map(&core, &tree, &mut alloc)?;
    if let Some(list) = core.get(&tree, &[keys::DIRTY])? {
        for pair in list.chunks_exact(16) {
            let mut r = arden_wire::cursor::Reader::new(pair);
            core.dirty.insert(r.u64()?, r.u64()?);
        }
    }
    let wal = Wal::new(sb, sb.start, 0);
    let reader: &dyn Device = crash_resync.map_or(&**device, |resync| resync);
    let is_there = |group: &[Vec<u8>]| {
        let mut blocks = BTreeMap::new();
        // Older operations are in the tree: their data may have made room for others' since.
        let mut note = |seq, record: &[u8]| if seq > sb.seq { record::note_data(record, &mut blocks) } else { Ok(()) };
        group.iter().try_for_each(|batch| wal::each(batch, &mut note))?;
        holds(reader, &blocks)
    };
    let (next, used) = wal.replay(reader, sb.start, &is_there, &mut |seq, record| {
        if seq <= sb.seq {
            return Ok(());
        }
        if seq != core.seq + 1 {
            return Err(VolError::Corrupt("the journal skips an operation"));
        }
        core.seq = seq;
        record::replay(&mut core, &tree, record, &mut |op| replay_map(&mut alloc, seq, op))
    })?;
    alloc.release_upto(core.seq);
    load_snapshots(&mut core, &tree, &mut alloc)?;
    let wal = Wal::new(sb, next, used);
    Ok(Loaded { core, alloc, wal, tree })
}

/// Whether every block, by its place, has this checksum. A device that does not answer says nothing of that.
fn holds(device: &dyn Device, blocks: &BTreeMap<u64, u64>) -> VolResult<bool> {
    let list: Vec<(u64, u64)> = blocks.iter().map(|(block, sum)| (*block, *sum)).collect();
    let mut buf = vec![0; EXTENT_BLOCKS_MAX as usize * BLOCK];
    for run in list.chunk_by(|a, b| a.0 + 1 == b.0).flat_map(|run| run.chunks(EXTENT_BLOCKS_MAX as usize)) {
        let check = BlockCheck::Sums(run.iter().map(|(_, sum)| *sum).collect());
        match read_checked(device, run[0].0 * BLOCK_BYTES, &mut buf[..run.len() * BLOCK], &check) {
            Ok(()) => {}
            Err(IoError::Media) => return Ok(false),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(true)
}

fn load_map(core: &Core, tree: &Tree, alloc: &mut Alloc) -> VolResult<()> {
    let mut result = Ok(());
    core.scan(tree, &[keys::MAP], &[keys::MAP + 1], &mut |k, v| {
        result = alloc.load_page(usize::try_from(keys::first(k)).unwrap_or(usize::MAX), v);
        result.is_ok()
    })?;
    result
}

fn replay_map(alloc: &mut Alloc, seq: u64, op: MapOp) -> VolResult<()> {
    let in_range = |run: &Run| run.start.checked_add(run.len).is_some_and(|e| e <= alloc.total_blocks());
    match op {
        MapOp::Enter(run) if in_range(&run) => {
            // What was freed before in the journal is free here: order is kept.
            alloc.release_upto(seq - 1);
            alloc.enter(run);
            Ok(())
        }
        MapOp::Free(run) if in_range(&run) => {
            alloc.free(seq, run);
            Ok(())
        }
        _ => Err(VolError::Corrupt("journal")),
    }
}

/// The snapshots that there are, and which blocks the nodes of all trees take.
fn load_snapshots(core: &mut Core, tree: &Tree, alloc: &mut Alloc) -> VolResult<()> {
    let mut found = Vec::new();
    core.scan(tree, &[keys::SNAPSHOT], &[keys::SNAPSHOT + 1], &mut |k, v| {
        found.push(Snapshot::decode(k, v));
        true
    })?;
    core.snapshots = found.into_iter().map(|s| s.map(Arc::new)).collect::<VolResult<_>>()?;
    visit_nodes(&core.snapshots, &core.root, tree, &mut |ptr| {
        let run = Run { start: ptr.block, len: NODE_BLOCKS };
        if alloc.occupy(run) { Ok(()) } else { Err(VolError::Corrupt("a block has two owners")) }
    })
}
