//! The volume: formatting, opening and closing, and all that can be asked of it as a whole. Owns which layers there are
//! and how they are joined; what each does is elsewhere.
//! The order of all locks is in docs/locks.md.

use std::{
    ops::Range,
    sync::{Arc, Weak},
    time::Duration,
};

use arden_block::{BLOCK_BYTES, Device};
use arden_store::quota::{Quota, QuotaControl};
use arden_store::usn::JournalInfo;
use arden_wire::{FileTime, dtyp::Sid};

use crate::{
    disk::{
        device::CrashResync,
        error::{VolError, VolResult},
        gather::{Gather, Writers},
        inode::{Inode, ROOT_INO},
        keys,
        superblock::{SLOTS, Superblock, feature},
    },
    engine::{
        background,
        commit::Committed,
        deferred::{Deferrals, Deferred},
        load::{Loaded, load},
        owner::{Engine, EngineOptions},
        txn::Hooks,
        view::View,
    },
    facade::{recent::Recent, tunnel::Tunnel},
    features::{
        check::{self, CheckReport},
        grow,
        parity_check::ChangedRows,
        quota::{QuotaCounts, Quotas},
        repair::{self, RepairReport},
        scrub::{self, ScrubReport, ScrubSettings},
        snapshot::{SnapshotInfo, Snapshots},
        usn::ChangeJournal,
        usn_record::{Recorder, Unclosed},
    },
    files::{
        access::LastAccess,
        cache::{BlockCache, VolumeBlocks},
        descriptors::Descriptors,
        names::short_names::ShortNames,
        open::OpenFiles,
        owner::Files,
    },
};

/// How long a closing volume looks at rows of parity.
const LOOK_AT_CLOSE: Duration = Duration::from_secs(5);
/// Written with one call when a log is made.
const FORMAT_WRITE_BYTES: usize = 1 << 20;
/// The log in a file is written as a whole where the file system has so many times its room: copies of it may lie there too, and
/// a file system that is nearly full keeps its room for others.
const FORMAT_ROOM: u64 = 8;

/// Limits and habits of an open volume.
#[derive(Debug, Clone)]
pub struct VolumeOptions {
    /// Memory for nodes of the tree, until [`Volume::set_node_memory`] says otherwise.
    pub cache_bytes: usize,
    /// For blocks of files that were read.
    pub blocks: Option<Arc<BlockCache>>,
    /// Changes in memory, until [`Volume::set_change_memory`] says otherwise; a checkpoint is made when they are more.
    pub overlay_bytes_max: usize,
    /// A thread of the volume's own commits and makes checkpoints. Without it, callers do when they have to.
    pub background: bool,
    /// So many bytes of large writes that nobody waits for may be in memory before they reach the device; 0: none.
    pub gather_bytes_max: u64,
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
            gather_bytes_max: 0,
            commit_interval: Duration::from_secs(2),
            give_back_after: Duration::from_secs(60),
        }
    }
}

impl VolumeOptions {
    fn of_engine(&self) -> EngineOptions {
        EngineOptions {
            overlay_bytes_max: self.overlay_bytes_max,
            background: self.background,
            commit_interval: self.commit_interval,
            give_back_after: self.give_back_after,
        }
    }
}

pub struct Volume {
    pub(crate) engine: Arc<Engine>,
    pub(crate) files: Arc<Files>,
    pub(crate) quotas: Quotas,
    pub(crate) journal: Arc<ChangeJournal>,
    pub(crate) snapshots: Snapshots,
    changed_rows: Arc<ChangedRows>,
    pub(crate) tunnel: Tunnel,
    pub(crate) recent: Arc<Recent>,
}

impl Volume {
    /// Makes an empty volume on the device; what was there is lost.
    pub fn format(device: &dyn Device, label: &str, id: u128, now: FileTime) -> VolResult<()> {
        let sb = Superblock::plan(device.size_bytes(), id, label, now)?;
        let blank = vec![0; BLOCK_BYTES as usize];
        for slot in 0..SLOTS {
            device.write(slot * BLOCK_BYTES, &blank)?;
            device.write((sb.size_blocks - SLOTS + slot) * BLOCK_BYTES, &blank)?;
        }
        // First: an earlier volume must not be opened without its log.
        device.flush()?;
        Volume::make_log(device, sb.journal_block..sb.journal_block + sb.journal_blocks)?;
        device.flush()?;
        sb.write(device)?;
        device.flush()?;
        Ok(())
    }

    /// Nothing that an earlier volume left may look like the beginning of this log. And the device makes room for all of it: a
    /// volume that cannot write its log stops.
    fn make_log(device: &dyn Device, log: Range<u64>) -> VolResult<()> {
        let blocks = log.end - log.start;
        let zeros = vec![0; FORMAT_WRITE_BYTES];
        let write = |block, blocks: u64| device.write(block * BLOCK_BYTES, &zeros[..(blocks * BLOCK_BYTES) as usize]);
        if device.room_of_files().is_some_and(|room| room / FORMAT_ROOM >= blocks * BLOCK_BYTES) {
            // All of it, once: later batches then find their places written, and wait for nothing but themselves.
            let step = FORMAT_WRITE_BYTES as u64 / BLOCK_BYTES;
            for block in log.clone().step_by(step as usize) {
                write(block, step.min(log.end - block))?;
            }
        } else {
            let piece = device.thin().map_or(blocks, |thin| (thin.piece_bytes() / BLOCK_BYTES).max(1));
            for block in log.clone().step_by(piece as usize) {
                write(block, 1)?;
            }
            write(log.end - 1, 1)?;
        }
        Ok(())
    }

    pub fn open(device: Arc<dyn Device>, options: VolumeOptions) -> VolResult<Arc<Volume>> {
        let by = if options.background { Writers::Own } else { Writers::Callers };
        let device = Gather::over(device, options.gather_bytes_max, by);
        let found = Superblock::read(&*device)?;
        let (loaded, sb) = Volume::begin(&device, &found, options.cache_bytes)?;
        let volume = Volume::assemble(device, sb, loaded, &options)?;
        if found.features & feature::ALWAYS != feature::ALWAYS {
            // In the other slot too, before the first batch, which an earlier program would take for the journal's end.
            volume.engine.renew_superblock()?;
        }
        volume.make_root()?;
        volume.files.collect_orphans()?;
        if let Err(e) = volume.snapshots.finish_deletions() {
            tracing::warn!("a deleted snapshot keeps some room until the volume is opened again: {e}");
        }
        if options.background {
            background::start_housekeeping(&volume.engine)?;
            volume.changed_rows.start()?;
            if !volume.engine.committer.tells() {
                background::start_commits(&volume.engine)?;
            }
        }
        Ok(volume)
    }

    /// Loads what a superblock leads to, and makes it this opening's: durably, before anything else is written.
    fn begin(device: &Arc<dyn Device>, found: &Superblock, cache_bytes: usize) -> VolResult<(Loaded, Superblock)> {
        let resync = CrashResync::of(&**device);
        let mut loaded = load(device, found, cache_bytes, resync.as_ref())?;
        if resync.is_some() {
            // In all copies of its places; all else that counts was flushed before anything spoke of it.
            found.write(&**device)?;
        } else {
            found.restore_places(&**device)?;
        }
        // Whoever wrote it may have ended before it was durable: until it is, the log that the one before leads to counts.
        device.flush()?;
        loaded.wal.forget_what_follows(&**device)?;
        let sb = found.opened(loaded.wal.position().0.batch);
        sb.write(&**device)?;
        device.flush()?;
        loaded.wal.seal_as(&sb);
        if let Some(resync) = resync {
            resync.end()?;
        }
        Ok((loaded, sb))
    }

    /// Joins the layers: what takes part in the engine's transactions is there before the engine.
    fn assemble(
        device: Arc<dyn Device>,
        sb: Superblock,
        loaded: Loaded,
        options: &VolumeOptions,
    ) -> VolResult<Arc<Volume>> {
        let serial = sb.id as u64 ^ (sb.id >> 64) as u64;
        let (deferrals, descriptors): (Arc<Deferrals>, Arc<Descriptors>) = Default::default();
        let unclosed = Unclosed::new(deferrals.clone());
        let open = OpenFiles::new(unclosed.clone(), deferrals.clone());
        let counts = QuotaCounts::load(&loaded.view(), &descriptors)?;
        let recorder = Recorder::load(&loaded.view(), open.clone(), unclosed)?;
        let recent = Arc::new(Recent::new());
        let hooks: Hooks =
            vec![(keys::QUOTA, counts.clone()), (keys::JOURNAL, recorder.clone()), (keys::INODE, recent.clone())];
        let engine = Engine::new(device, sb, loaded, (hooks, deferrals), options.of_engine());
        let blocks = VolumeBlocks { cache: options.blocks.clone(), serial };
        let files = Files::new(engine.clone(), open, descriptors, blocks);
        let journal = ChangeJournal::new(engine.clone(), recorder);
        let changed_rows = ChangedRows::new(engine.clone());
        engine.deferrals.register(vec![
            Arc::downgrade(&files) as Weak<dyn Deferred>,
            Arc::downgrade(&journal) as Weak<dyn Deferred>,
        ]);
        let (quotas, snapshots) = (Quotas::new(engine.clone(), counts), Snapshots::new(engine.clone()));
        Ok(Arc::new(Volume {
            engine,
            files,
            quotas,
            journal,
            snapshots,
            changed_rows,
            tunnel: Tunnel::default(),
            recent,
        }))
    }

    /// The first opening of a new volume.
    fn make_root(&self) -> VolResult<()> {
        if self.engine.reading().get(&keys::one(keys::INODE, ROOT_INO))?.is_some() {
            return Ok(());
        }
        let created = self.superblock().created;
        let mut t = self.files.begin();
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
        self.engine.commit_to(seq)
    }

    /// Everything durable, tree up to date: the next opening has nothing to replay. Where there is no room for a new tree, it
    /// replays what it finds in the journal; nothing is missing then either.
    pub fn close(&self) -> VolResult<()> {
        self.engine.stop_threads();
        self.changed_rows.end();
        match self.engine.reclaim_all() {
            // The next opening goes on with it.
            Err(VolError::Full) => {}
            other => other?,
        }
        self.sync()?;
        match self.checkpoint() {
            Err(VolError::Full) => tracing::info!(
                "a volume without room for a checkpoint was closed; its next opening replays the journal"
            ),
            other => other?,
        }
        // Nobody remembers after this which rows those were.
        if let Err(e) = self.changed_rows.mend(LOOK_AT_CLOSE) {
            tracing::warn!("rows of parity that were changed wait for a scrub: {e}");
        }
        Ok(())
    }

    /// Ends the volume for good: nothing is changed any more, and what leads to its content is overwritten.
    pub fn destroy(&self) -> VolResult<()> {
        self.engine.stop_threads();
        self.changed_rows.end();
        let _guard = self.engine.lock_checkpoint();
        self.engine.committer.stop();
        Superblock::wipe(&*self.engine.device)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.changed_rows.stop();
    }
}

/// What the layers below do, for users of the volume as a whole.
impl Volume {
    /// As of the last checkpoint.
    pub fn superblock(&self) -> Superblock {
        self.engine.superblock()
    }

    /// Returns when operation `seq`, and all before it, are durable.
    pub fn commit_to(&self, seq: u64) -> VolResult<()> {
        self.engine.commit_to(seq)
    }

    /// Whether `commit_later` needs no thread of the caller's.
    pub fn commits_later(&self) -> bool {
        self.engine.commits_later()
    }

    /// Calls `done`, which must not wait for this volume, when operation `seq`, and all before it, are durable.
    pub fn commit_later(&self, seq: u64, done: Committed) {
        self.engine.commit_later(seq, done)
    }

    /// Makes everything done so far durable.
    pub fn sync(&self) -> VolResult<()> {
        self.engine.sync()
    }

    /// The number of the last operation, and of the last durable one.
    pub fn progress(&self) -> (u64, u64) {
        self.engine.progress()
    }

    /// Brings the tree on the device up to date and lets the journal begin anew.
    pub fn checkpoint(&self) -> VolResult<()> {
        self.engine.checkpoint()
    }

    /// Bytes in memory for nodes of the tree, and for changes that no checkpoint has written yet, with data that is on its way to the
    /// device.
    pub fn memory(&self) -> (u64, u64) {
        let (nodes, changes) = self.engine.memory();
        (nodes, changes + self.engine.device.gathered_bytes())
    }

    /// From now on nodes of the tree take at most so much memory, in bytes; what is more than that goes at once.
    pub fn set_node_memory(&self, bytes_max: u64) {
        self.engine.state.tree.set_cache_bytes(usize::try_from(bytes_max).unwrap_or(usize::MAX));
    }

    /// From now on large writes that nobody waits for take at most so much memory until they reach the device.
    pub fn set_gather_memory(&self, bytes_max: u64) {
        self.engine.device.set_gather_bytes(bytes_max);
    }

    /// From now on a checkpoint begins when changes in memory are more than so many bytes. While it is written, twice as many may
    /// gather.
    pub fn set_change_memory(&self, bytes_max: u64) {
        self.engine.set_overlay_bytes(usize::try_from(bytes_max).unwrap_or(usize::MAX));
    }

    /// Whether nodes of the tree were used since the last call.
    pub fn take_nodes_used(&self) -> bool {
        self.engine.state.tree.take_used()
    }

    /// Gives blocks that lie in the tree a place on the device, those of all streams.
    pub fn allocate_delayed(&self) -> VolResult<()> {
        self.files.allocate_delayed()
    }

    /// Total, free, and promised bytes.
    pub fn room(&self) -> (u64, u64, u64) {
        self.engine.room()
    }

    /// What can be given back to the device is given back now: others need it.
    pub fn give_all_back(&self) {
        self.engine.give_all_back()
    }

    /// Takes in what the device has become larger by. The size afterwards, in bytes.
    pub fn grow(&self) -> VolResult<u64> {
        grow::grow(&self.engine)
    }

    /// Reads every copy of everything, and heals what can be.
    pub fn scrub(&self, settings: &ScrubSettings) -> VolResult<ScrubReport> {
        scrub::scrub(&self.engine, settings)
    }

    /// On parity: looks at rows of which a part was written since they were last looked at, and mends those whose parity does not fit. The volume
    /// does so by itself when there is time. Looks for at most `patience`, and gives the number of blocks that were written anew.
    pub fn mend_changed_rows(&self, patience: Duration) -> VolResult<u64> {
        self.changed_rows.mend(patience)
    }

    /// Looks at everything; with `verify_data` also reads all data against its checksums. Errors are in the report.
    pub fn check(&self, verify_data: bool) -> VolResult<CheckReport> {
        // What is left of it is none of its errors.
        let _ = self.engine.reclaim_all();
        check::check(&self.files, verify_data)
    }

    /// Mends what is safe to mend, while the volume is in use. With `dry_run` it only says what it would begin with.
    pub fn repair(&self, dry_run: bool) -> VolResult<RepairReport> {
        repair::repair(&self.files, dry_run)
    }

    /// What moves LastAccessTime.
    pub fn last_access(&self) -> LastAccess {
        self.files.last_access()
    }

    /// Durable when it returns.
    pub fn set_last_access(&self, policy: LastAccess) -> VolResult<()> {
        self.files.set_last_access(policy)
    }

    /// Where 8.3 names come from.
    pub fn short_names(&self) -> VolResult<ShortNames> {
        self.files.short_names()
    }

    /// For names that are made or changed from now on. Durable when it returns.
    ///
    /// # Errors
    /// [`VolError::Refused`] for [`ShortNames::Made`] on a volume that keeps some.
    pub fn set_short_names(&self, wanted: ShortNames) -> VolResult<()> {
        self.files.set_short_names(wanted)
    }

    /// Counts from now on. The first time this looks at every file once; changes wait meanwhile.
    pub fn begin_counting(&self) -> VolResult<()> {
        self.quotas.begin_counting()
    }

    /// Defaults of users' quotas.
    pub fn quota_control(&self) -> VolResult<QuotaControl> {
        self.quotas.control()
    }

    /// Durable when it returns, as all changes of quotas.
    pub fn set_quota_control(&self, control: &QuotaControl) -> VolResult<()> {
        self.quotas.set_control(control)
    }

    /// All who own something, or have a limit.
    pub fn user_quotas(&self) -> VolResult<Vec<(Sid, Quota)>> {
        self.quotas.users()
    }

    /// None: the user owns nothing and has no limit.
    pub fn user_quota(&self, sid: &Sid) -> VolResult<Option<Quota>> {
        self.quotas.user(sid)
    }

    /// In bytes.
    pub fn set_user_quota(&self, sid: &Sid, threshold: u64, limit: u64) -> VolResult<()> {
        self.quotas.set_user(sid, threshold, limit)
    }

    /// False when there is none. Who owns something stays counted, without a limit.
    pub fn remove_user_quota(&self, sid: &Sid) -> VolResult<bool> {
        self.quotas.remove_user(sid)
    }

    /// By the folders' numbers.
    pub fn folder_quotas(&self) -> VolResult<Vec<(u64, Quota)>> {
        self.quotas.folders()
    }

    /// For what lies below a directory, with all below that; in bytes.
    pub fn set_folder_quota(&self, ino: u64, threshold: u64, limit: u64) -> VolResult<()> {
        self.quotas.set_folder(ino, threshold, limit)
    }

    /// False when there is none.
    pub fn remove_folder_quota(&self, ino: u64) -> VolResult<bool> {
        self.quotas.remove_folder(ino)
    }

    /// All that is told is durable.
    pub fn journal_info(&self) -> VolResult<JournalInfo> {
        self.journal.info()
    }

    /// Begins a change journal, or changes the size of the one there is; 0: the default.
    pub fn create_journal(&self, max_bytes: u64, delta_bytes: u64) -> VolResult<()> {
        self.journal.create(max_bytes, delta_bytes)
    }

    /// Keeps the present state, under `now` or the next free second. Durable when it returns.
    pub fn create_snapshot(&self, now: FileTime, label: &str) -> VolResult<SnapshotInfo> {
        self.snapshots.create(now, label)
    }

    /// In the order in which they were made, without those that are being deleted.
    pub fn snapshots(&self) -> VolResult<Vec<SnapshotInfo>> {
        self.snapshots.list()
    }

    /// False when there is none of this time. Durable when it returns.
    pub fn delete_snapshot(&self, time: FileTime) -> VolResult<bool> {
        self.snapshots.delete(time)
    }
}

/// Checks a volume that is not open. Nothing is written: what is in the journal is applied in memory.
pub fn check_device(device: Arc<dyn Device>, options: VolumeOptions, verify_data: bool) -> VolResult<CheckReport> {
    let sb = Superblock::read(&*device)?;
    let loaded = load(&device, &sb, options.cache_bytes, None)?;
    let volume = Volume::assemble(device, sb, loaded, &VolumeOptions { background: false, ..options })?;
    check::check(&volume.files, verify_data)
}
