//! The volume: formatting, opening with replay, group commit, checkpoints, and the table of files in use. Owns the
//! order in which things become durable:
//!
//! - a batch of the journal and the data that it speaks of are flushed before an operation in it is acknowledged as
//!   durable, and before the next batch is written: only the data of the last batches may be missing after a crash;
//! - the nodes of a new tree are flushed before the superblock that leads to them, that before old nodes are reused;
//! - blocks that an operation freed are reused only when that operation is durable.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use arden_block::{BLOCK_BYTES, IoError};
use arden_wire::{FileTime, dtyp::SecurityDescriptor};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::{
    disk::{
        device::{BLOCK, BlockCheck, Device, Settling},
        error::{VolError, VolResult},
        inode::{EXTENT_BLOCKS_MAX, Inode, ROOT_INO},
        keys,
        superblock::{FIRST_EPOCH, JournalStart, SLOTS, Superblock, feature},
        treenode::NODE_BLOCKS,
    },
    engine::{
        alloc::{Alloc, Run},
        background::{self, Bell},
        kv::{self, Core, CoreView, MapOp, Reading, Txn, View},
        later::{self, Later},
        pipeline::Pipeline,
        tree::Tree,
        wal as journal,
        wal::Journal,
    },
    facade::ns::Tunnel,
    features::{
        quota::Counting,
        snapshot,
        usn::{self, Unclosed},
        usnwatch::Watchers,
    },
    files::{cache::BlockCache, open::OpenFile, settle::STREAMS_SETTLED_EARLY},
};

/// Limits and habits of an open volume.
#[derive(Debug, Clone)]
pub struct VolumeOptions {
    /// Memory for nodes of the tree.
    pub cache_bytes: usize,
    /// For blocks of files that were read.
    pub blocks: Option<Arc<BlockCache>>,
    /// Changes in memory; a checkpoint is made when they are more.
    pub overlay_bytes_max: usize,
    /// A thread of the volume's own commits and makes checkpoints. Without it, callers do when they have to.
    pub background: bool,
    /// How long a change that nobody waits for may stay in memory.
    pub commit_interval: Duration,
    /// How long a piece of the device has to be empty before it is given back: what is soon written again should not
    /// have to be made ready again.
    pub give_back_after: Duration,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        VolumeOptions {
            cache_bytes: 64 << 20,
            blocks: None,
            overlay_bytes_max: 64 << 20,
            background: true,
            commit_interval: Duration::from_secs(2),
            give_back_after: Duration::from_secs(60),
        }
    }
}

/// Thousandths of the journal from which on a checkpoint is made, and from which on operations wait for it.
const JOURNAL_FULL_SOFT: u64 = 400;
const JOURNAL_FULL_HARD: u64 = 650;
/// From which on nothing is done without one.
const JOURNAL_FULL_LAST: u64 = 850;
/// The list of streams with blocks in the tree, as of a checkpoint.
const DIRTY_KEY: &[u8] = b"W";
const DIRTY_LISTED_MAX: usize = 250;
const DESCRIPTORS_CACHED_MAX: usize = 4096;

/// A checkpoint that is being made.
pub(crate) struct Freeze {
    seq: u64,
    next_id: u64,
    counters: crate::disk::superblock::Counters,
    epoch: u32,
    start: JournalStart,
    used: u64,
}

pub struct Volume {
    me: Weak<Volume>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) core: RwLock<Core>,
    pub(crate) alloc: Arc<Mutex<Alloc>>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) tree: Tree,
    /// The volume's number in a cache that it shares.
    pub(crate) serial: u64,
    superblock: Mutex<Superblock>,
    /// Held by whoever finishes the deletion of snapshots.
    pub(crate) deletions: Mutex<()>,
    commit: Mutex<()>,
    durable_seq: Arc<AtomicU64>,
    checkpoint: Mutex<Option<Freeze>>,
    failed: Arc<AtomicBool>,
    /// Commits on a device that tells when it has written.
    pub(crate) pipeline: Option<Arc<Pipeline>>,
    pub(crate) options: VolumeOptions,
    pub(crate) files: Mutex<HashMap<u64, Weak<OpenFile>>>,
    /// Files without a name whose last user went.
    reap: Mutex<Vec<u64>>,
    pub(crate) descriptors: Mutex<HashMap<u64, Arc<SecurityDescriptor>>>,
    pub(crate) descriptor_ids: Mutex<HashMap<Vec<u8>, u64>>,
    pub(crate) tunnel: Tunnel,
    pub(crate) unclosed: Unclosed,
    pub(crate) watchers: Watchers,
    /// How reading moves LastAccessTime.
    pub(crate) access_bits: AtomicU32,
    pub(crate) bell: Arc<Bell>,
    pub(crate) later: Arc<Later>,
}

impl Volume {
    /// Makes an empty volume on the device; what was there is lost.
    pub fn format(device: &dyn Device, label: &str, id: u128, now: FileTime) -> VolResult<()> {
        let sb = Superblock::plan(device.size_bytes(), id, label, now)?;
        let blank = vec![0; BLOCK_BYTES as usize];
        // Nothing that an earlier volume left may look like the beginning of this journal. And the device makes room for
        // all of it: a volume that cannot write its journal stops.
        let piece = device.piece_bytes().map_or(sb.journal_blocks, |bytes| (bytes / BLOCK_BYTES).max(1));
        for block in (sb.journal_block..sb.journal_block + sb.journal_blocks).step_by(piece as usize) {
            device.write(block * BLOCK_BYTES, &blank)?;
        }
        device.write((sb.journal_block + sb.journal_blocks - 1) * BLOCK_BYTES, &blank)?;
        for slot in 0..SLOTS {
            device.write(slot * BLOCK_BYTES, &blank)?;
            device.write((sb.size_blocks - SLOTS + slot) * BLOCK_BYTES, &blank)?;
        }
        device.flush()?;
        sb.write(device)?;
        device.flush()?;
        Ok(())
    }

    pub fn open(device: Arc<dyn Device>, options: VolumeOptions) -> VolResult<Arc<Volume>> {
        let sb = Superblock::read(&*device)?;
        let parts = load(&device, &sb, &options, device.may_differ())?;
        if device.may_differ() {
            // All else that counts was flushed before anything spoke of it.
            sb.settle(&*device)?;
            device.settle()?;
        }
        let (_, _, journal, _) = &parts;
        journal.forget_what_follows(&*device)?;
        let volume = Volume::from_parts(device, sb, parts, options);
        // Before the first batch, which an earlier program would take for the journal's end.
        volume.use_feature(feature::SEALED_JOURNAL)?;
        volume.make_root()?;
        volume.collect_orphans()?;
        if let Err(e) = volume.finish_deletions() {
            tracing::warn!("a deleted snapshot keeps some room until the volume is opened again: {e}");
        }
        if volume.options.background {
            background::start(&volume)?;
            if volume.pipeline.is_none() {
                later::start(&volume)?;
            }
        }
        Ok(volume)
    }

    pub(crate) fn from_parts(
        device: Arc<dyn Device>,
        sb: Superblock,
        parts: (Core, Alloc, Journal, Tree),
        options: VolumeOptions,
    ) -> Arc<Volume> {
        let (core, alloc, journal, tree) = parts;
        let seq = core.seq;
        let features = sb.features;
        let serial = sb.id as u64 ^ (sb.id >> 64) as u64;
        let (alloc, journal) = (Arc::new(Mutex::new(alloc)), Arc::new(journal));
        let (durable_seq, failed) = (Arc::new(AtomicU64::new(seq)), Arc::new(AtomicBool::new(false)));
        let pipeline = device.writes_later().then(|| {
            Pipeline::new(device.clone(), journal.clone(), alloc.clone(), durable_seq.clone(), failed.clone())
        });
        Arc::new_cyclic(|me| Volume {
            me: me.clone(),
            device,
            core: RwLock::new(core),
            alloc,
            journal,
            tree,
            serial,
            superblock: Mutex::new(sb),
            deletions: Mutex::default(),
            commit: Mutex::new(()),
            durable_seq,
            checkpoint: Mutex::new(None),
            failed,
            pipeline,
            files: Mutex::default(),
            reap: Mutex::default(),
            descriptors: Mutex::default(),
            descriptor_ids: Mutex::default(),
            tunnel: Tunnel::default(),
            unclosed: Unclosed::default(),
            watchers: Watchers::default(),
            access_bits: AtomicU32::new(features),
            bell: Arc::default(),
            later: Arc::default(),
            options,
        })
    }

    /// The first opening of a new volume.
    fn make_root(&self) -> VolResult<()> {
        if self.reading().get(&keys::one(keys::INODE, ROOT_INO))?.is_some() {
            return Ok(());
        }
        let created = self.superblock.lock().created;
        let mut t = self.begin();
        let sd = t.intern_descriptor(&arden_store::root::default_descriptor())?;
        let root = Inode {
            directory: true,
            creation: created,
            last_access: created,
            last_write: created,
            change: created,
            links: 1,
            sd,
            ..Inode::default()
        };
        t.put(keys::one(keys::INODE, ROOT_INO), root.encode());
        let seq = t.commit()?;
        self.commit_to(seq)
    }

    /// Takes away what has no name and no user any more.
    pub(crate) fn collect_orphans(&self) -> VolResult<()> {
        let orphans = self.reading().collect(&[keys::ORPHAN], &[keys::ORPHAN + 1], usize::MAX)?;
        let unused = orphans.iter().map(|(k, _)| keys::first(k)).filter(|ino| self.file_in_use(*ino).is_none());
        self.reap.lock().extend(unused);
        self.reap_now();
        Ok(())
    }

    /// None while the volume goes away.
    pub(crate) fn file_for_settling(&self, ino: u64) -> Option<Arc<OpenFile>> {
        self.me.upgrade().map(|me| me.file(ino, false))
    }

    pub fn superblock(&self) -> Superblock {
        self.superblock.lock().clone()
    }

    pub(crate) fn reading(&self) -> Reading<'_> {
        Reading { tree: &self.tree, core: self.core.read() }
    }

    pub(crate) fn begin(&self) -> Txn<'_> {
        Txn::new(self, self.core.write())
    }

    pub(crate) fn check_alive(&self) -> VolResult<()> {
        if self.failed.load(Ordering::Acquire) { Err(VolError::Failed) } else { Ok(()) }
    }

    fn fail(&self, e: VolError) -> VolError {
        if !self.failed.swap(true, Ordering::AcqRel) {
            tracing::error!("the volume stops: {e}");
        }
        e
    }

    /// Returns when operation `seq`, and all before it, are durable. Whoever comes first writes for all who wait.
    pub fn commit_to(&self, seq: u64) -> VolResult<()> {
        if self.durable_seq.load(Ordering::Acquire) >= seq {
            return Ok(());
        }
        if let Some(pipeline) = &self.pipeline {
            return pipeline.wait(seq);
        }
        let _leader = self.commit.lock();
        if self.durable_seq.load(Ordering::Acquire) >= seq {
            return Ok(());
        }
        self.check_alive()?;
        let Some(sealed) = self.journal.seal().map_err(|e| self.fail(e))? else { return Ok(()) };
        self.device.write_durably(&sealed.writes).map_err(|e| self.fail(e.into()))?;
        self.now_durable(sealed.last_seq);
        Ok(())
    }

    fn now_durable(&self, seq: u64) {
        self.durable_seq.fetch_max(seq, Ordering::AcqRel);
        self.alloc.lock().release_upto(seq);
    }

    pub(crate) fn rest(&self) {
        self.alloc.lock().rest();
    }

    /// Makes everything done so far durable.
    pub fn sync(&self) -> VolResult<()> {
        let seq = self.core.read().seq;
        self.commit_to(seq)
    }

    /// The number of the last operation, and of the last durable one.
    pub fn progress(&self) -> (u64, u64) {
        // The durable one first, so that it is never ahead.
        let durable = self.durable_seq.load(Ordering::Acquire);
        (self.core.read().seq, durable)
    }

    /// Before an operation, without locks: makes room in the journal and in memory.
    pub(crate) fn make_room(&self) -> VolResult<()> {
        self.check_alive()?;
        self.reap_now();
        self.write_close_records()?;
        self.bound_waiting()?;
        if self.is_over(JOURNAL_FULL_HARD, 2) || (!self.options.background && self.is_over(JOURNAL_FULL_SOFT, 1)) {
            let mut unfinished = self.checkpoint.lock();
            // Somebody else may have just made one.
            if self.is_over(JOURNAL_FULL_SOFT, 1) {
                return self.checkpoint_locked(&mut unfinished);
            }
        } else if self.is_over(JOURNAL_FULL_SOFT, 1) {
            self.bell.ask_checkpoint();
        } else if self.core.read().dirty.len() >= STREAMS_SETTLED_EARLY {
            self.bell.ask_settling();
        }
        Ok(())
    }

    /// What nobody asked to be durable waits in memory for its batch: no more of it than of changes, whatever room the journal has.
    fn bound_waiting(&self) -> VolResult<()> {
        let (waiting, max) = (self.journal.waiting_bytes(), self.options.overlay_bytes_max);
        if waiting >= max {
            return self.sync();
        }
        if waiting >= max / 2 {
            self.bell.ring();
        }
        Ok(())
    }

    /// The same before an operation that takes away: refused last, as only such make room.
    pub(crate) fn make_room_for_less(&self) -> VolResult<()> {
        match self.make_room() {
            Err(VolError::Full) if self.journal.fullness() < JOURNAL_FULL_LAST => Ok(()),
            other => other,
        }
    }

    fn is_over(&self, journal: u64, overlays: usize) -> bool {
        self.journal.fullness() >= journal
            || self.core.read().overlay_bytes >= self.options.overlay_bytes_max.saturating_mul(overlays)
    }

    /// Brings the tree on the device up to date and lets the journal begin anew.
    pub fn checkpoint(&self) -> VolResult<()> {
        self.checkpoint_locked(&mut self.checkpoint.lock())
    }

    /// While it is held, no checkpoint is made: the trees stay as they are.
    pub(crate) fn lock_checkpoint(&self) -> MutexGuard<'_, Option<Freeze>> {
        self.checkpoint.lock()
    }

    /// A checkpoint that ends an epoch: no operation of this epoch is missing in it, and none of the next is in it. The
    /// epoch that it ended.
    pub(crate) fn checkpoint_epoch(&self, unfinished: &mut Option<Freeze>) -> VolResult<u32> {
        if unfinished.is_some() {
            self.checkpoint_locked(unfinished)?;
        }
        self.settle_blocks()?;
        let mut t = self.begin();
        let epoch = t.core.epoch;
        t.next_epoch();
        t.finish()?;
        *unfinished = Some(self.freeze(&mut t.core));
        drop(t);
        self.checkpoint_locked(unfinished)?;
        Ok(epoch)
    }

    /// Writes the superblock of the last checkpoint with a change, durably.
    pub(crate) fn change_superblock(
        &self,
        _guard: &MutexGuard<'_, Option<Freeze>>,
        change: impl FnOnce(&mut Superblock),
    ) -> VolResult<()> {
        self.check_alive()?;
        let mut sb = self.superblock();
        sb.generation += 1;
        change(&mut sb);
        let written = || -> VolResult<()> {
            sb.write(&*self.device)?;
            self.device.flush()?;
            Ok(())
        };
        written().map_err(|e| self.fail(e))?;
        *self.superblock.lock() = sb;
        Ok(())
    }

    fn checkpoint_locked(&self, unfinished: &mut Option<Freeze>) -> VolResult<()> {
        self.check_alive()?;
        if unfinished.is_none() {
            self.settle_blocks()?;
            let mut core = self.core.write();
            if core.overlay.is_empty() {
                return Ok(());
            }
            *unfinished = Some(self.freeze(&mut core));
        }
        let Some(freeze) = unfinished.as_ref() else { return Ok(()) };
        let (frozen, root) = {
            let core = self.core.read();
            (core.frozen.clone(), core.root)
        };
        let Some(frozen) = frozen else { return Ok(()) };
        let mut sb = self.superblock.lock().clone();
        sb.generation += 1;
        let applied = match self.with_relief(|| self.tree.apply(&root, &frozen, sb.generation, &self.alloc)) {
            Ok(a) => a,
            // No room: tried again later, with what is frozen.
            Err(VolError::Full | VolError::Io(IoError::NoSpace)) => return Err(VolError::Full),
            Err(e) => return Err(self.fail(e)),
        };
        sb.root = applied.root;
        sb.start = freeze.start;
        sb.seq = freeze.seq;
        sb.next_id = freeze.next_id;
        sb.counters = freeze.counters;
        sb.epoch = freeze.epoch;
        if sb.epoch > FIRST_EPOCH {
            sb.features |= feature::SNAPSHOTS;
        }
        let written = || -> VolResult<()> {
            self.device.flush()?;
            sb.write(&*self.device)?;
            self.device.flush()?;
            Ok(())
        };
        written().map_err(|e| self.fail(e))?;
        let (seq, used) = (freeze.seq, freeze.used);
        {
            let mut core = self.core.write();
            core.root = sb.root;
            core.frozen = None;
            let kept = core.snapshots.last().map_or(0, |s| s.generation);
            let mut alloc = self.alloc.lock();
            for ptr in applied.freed.iter().filter(|p| p.birth > kept) {
                self.tree.forget(ptr.block);
                alloc.cancel(Run { start: ptr.block, len: NODE_BLOCKS });
            }
        }
        *self.superblock.lock() = sb;
        self.journal.trim(used, seq);
        *unfinished = None;
        self.now_durable(seq);
        if !self.options.background {
            self.rest();
            self.rest();
            self.give_back();
        }
        Ok(())
    }

    /// Takes all changes so far as the next checkpoint's.
    fn freeze(&self, core: &mut Core) -> Freeze {
        let mut layer = std::mem::take(&mut core.overlay);
        core.overlay_bytes = 0;
        for (page, bytes) in self.alloc.lock().take_dirty() {
            layer.insert(keys::one(keys::MAP, page as u64), bytes.map(Into::into));
        }
        let listed: Vec<u8> = core
            .dirty
            .iter()
            .take(DIRTY_LISTED_MAX)
            .flat_map(|(sid, ino)| [sid.to_le_bytes(), ino.to_le_bytes()].concat())
            .collect();
        layer.insert(DIRTY_KEY.to_vec(), (!listed.is_empty()).then(|| listed.into()));
        core.frozen = Some(Arc::new(layer));
        let (start, used) = self.journal.position();
        let (seq, next_id, counters, epoch) = (core.seq, core.next_id, core.counters, core.epoch);
        Freeze { seq, next_id, counters, epoch, start, used }
    }

    /// A file without a name has no user any more.
    pub(crate) fn reap_later(&self, ino: u64) {
        self.reap.lock().push(ino);
    }

    pub(crate) fn reap_now(&self) {
        loop {
            let Some(ino) = self.reap.lock().pop() else { return };
            if let Err(e) = self.delete_orphan(ino) {
                tracing::warn!("a deleted file keeps its room until the volume is opened again: {e}");
            }
        }
    }

    /// Everything durable, tree up to date: the next opening has nothing to replay. Where there is no room for a new tree, it
    /// replays what it finds in the journal; nothing is missing then either.
    pub fn close(&self) -> VolResult<()> {
        self.stop_background();
        self.reap_now();
        self.sync()?;
        match self.checkpoint() {
            Err(VolError::Full) => {
                tracing::info!(
                    "a volume without room for a checkpoint was closed; its next opening replays the journal"
                );
                Ok(())
            }
            other => other,
        }
    }

    /// Ends the volume for good: nothing is changed any more, and what leads to its content is overwritten.
    pub fn destroy(&self) -> VolResult<()> {
        self.stop_background();
        let _guard = self.lock_checkpoint();
        let _commit = self.commit.lock();
        self.failed.store(true, Ordering::Release);
        if let Some(pipeline) = &self.pipeline {
            pipeline.stop();
        }
        Superblock::wipe(&*self.device)
    }

    fn stop_background(&self) {
        self.bell.stop();
        self.later.stop();
    }

    pub(crate) fn remember_descriptor(&self, id: u64, sd: &Arc<SecurityDescriptor>) {
        let mut cache = self.descriptors.lock();
        if cache.len() >= DESCRIPTORS_CACHED_MAX {
            cache.clear();
        }
        cache.insert(id, sd.clone());
    }

    /// Total, free, and promised bytes.
    pub fn room(&self) -> (u64, u64, u64) {
        self.reap_now();
        let promised = {
            let core = self.core.read();
            (core.counters.promised + core.counters.resident).max(0) as u64
        };
        let alloc = self.alloc.lock();
        let free = alloc.free_blocks().saturating_sub(alloc.reserve).saturating_sub(promised);
        (alloc.total_blocks() * BLOCK_BYTES, free * BLOCK_BYTES, promised * BLOCK_BYTES)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.stop_background();
        // One that stopped has said so.
        if self.options.background && self.check_alive().is_ok() && self.sync().is_err() {
            tracing::warn!("the last changes of a volume may be lost");
        }
    }
}

/// Everything in memory, from what lies on the device. `settle`: what the last crash interrupted is made equal in all
/// copies.
pub(crate) fn load(
    device: &Arc<dyn Device>,
    sb: &Superblock,
    options: &VolumeOptions,
    settle: bool,
) -> VolResult<(Core, Alloc, Journal, Tree)> {
    let tree = Tree::new(device.clone(), options.cache_bytes);
    let mut alloc = Alloc::new(sb.size_blocks);
    alloc.note_empty(device.piece_bytes().unwrap_or(0) / BLOCK_BYTES, device.pieces_held());
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
        next_id: sb.next_id,
        seq: sb.seq,
        counters: sb.counters,
        epoch: sb.epoch,
        dirty: BTreeMap::new(),
        ..Core::default()
    };
    load_map(&core, &tree, &mut alloc)?;
    if let Some(list) = core.get(&tree, DIRTY_KEY)? {
        for pair in list.chunks_exact(16) {
            let mut r = arden_wire::cursor::Reader::new(pair);
            core.dirty.insert(r.u64()?, r.u64()?);
        }
    }
    let journal = Journal::new(sb.journal_block, sb.journal_blocks, sb.id, sb.start, 0);
    let settling = Settling(&**device);
    let reader: &dyn Device = if settle { &settling } else { &**device };
    let is_there = |group: &[Vec<u8>]| {
        let mut blocks = BTreeMap::new();
        // Older operations are in the tree: their data may have made room for others' since.
        let mut note = |seq, record: &[u8]| if seq > sb.seq { kv::note_data(record, &mut blocks) } else { Ok(()) };
        group.iter().try_for_each(|batch| journal::each(batch, &mut note))?;
        Ok(holds(reader, &blocks))
    };
    let (next, used) = journal.replay(reader, sb.start, &is_there, &mut |seq, record| {
        if seq <= sb.seq {
            return Ok(());
        }
        if seq != core.seq + 1 {
            return Err(VolError::Corrupt("the journal skips an operation"));
        }
        core.seq = seq;
        kv::replay(&mut core, &tree, record, &mut |op| replay_map(&mut alloc, seq, op))
    })?;
    let quotas = Counting::load(&CoreView { core: &core, tree: &tree })?;
    core.quotas = quotas;
    core.journal = usn::info_of(&CoreView { core: &core, tree: &tree })?.is_some();
    alloc.release_upto(core.seq);
    snapshot::load(&mut core, &tree, &mut alloc)?;
    let journal = Journal::new(sb.journal_block, sb.journal_blocks, sb.id, next, used);
    Ok((core, alloc, journal, tree))
}

/// Whether every block, by its place, has this checksum.
fn holds(device: &dyn Device, blocks: &BTreeMap<u64, u64>) -> bool {
    let list: Vec<(u64, u64)> = blocks.iter().map(|(block, sum)| (*block, *sum)).collect();
    let mut buf = vec![0; EXTENT_BLOCKS_MAX as usize * BLOCK];
    list.chunk_by(|a, b| a.0 + 1 == b.0).flat_map(|run| run.chunks(EXTENT_BLOCKS_MAX as usize)).all(|run| {
        let check = BlockCheck::Sums(run.iter().map(|(_, sum)| *sum).collect());
        device.read_checked(run[0].0 * BLOCK_BYTES, &mut buf[..run.len() * BLOCK], &check).is_ok()
    })
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
