//! What a simulated disk did, and what befell it: of each fault how often it happened, so that a run can show that it did.

/// Commands and faults since the disk was made.
#[derive(Default, Debug, Clone)]
pub struct Counters {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
    /// Writes that went to a wrong place, and those that were acknowledged and went nowhere.
    pub misdirected: u64,
    pub lost: u64,
    /// Sectors that changed by themselves.
    pub rotted: u64,
    /// Reads that failed by chance, writes that did, and reads of places that cannot be read.
    pub read_errors: u64,
    pub write_errors: u64,
    pub unreadable: u64,
    /// Flushes that failed, and those that were acknowledged and did nothing.
    pub flushes_failed: u64,
    pub flushes_ignored: u64,
    /// Cached writes that were lost while the disk went on.
    pub cached_lost: u64,
    /// How often the disk died, and commands that waited while it hung.
    pub deaths: u64,
    pub hung: u64,
    /// Operations that were stuck for long, and those that took longer by chance.
    pub stuck: u64,
    pub stalled: u64,
    /// Writes that failed for good, once for each try, and blocks that a crash left unreadable.
    pub writes_failed: u64,
    pub left_unreadable: u64,
    /// Writes that happened when the host had stopped.
    pub landed_alone: u64,
    /// Writes in flight that a fence or a cut path ended.
    pub aborted: u64,
    /// Writes that were not durable when power was lost: those that are there, those that are not, and those of which some
    /// sectors are.
    pub survived: u64,
    pub undone: u64,
    pub torn: u64,
}

impl Counters {
    /// Adds what befell another disk.
    pub fn add(&mut self, c: &Counters) {
        self.reads += c.reads;
        self.writes += c.writes;
        self.flushes += c.flushes;
        self.read_bytes += c.read_bytes;
        self.write_bytes += c.write_bytes;
        self.misdirected += c.misdirected;
        self.lost += c.lost;
        self.rotted += c.rotted;
        self.read_errors += c.read_errors;
        self.write_errors += c.write_errors;
        self.unreadable += c.unreadable;
        self.flushes_failed += c.flushes_failed;
        self.flushes_ignored += c.flushes_ignored;
        self.cached_lost += c.cached_lost;
        self.deaths += c.deaths;
        self.hung += c.hung;
        self.stuck += c.stuck;
        self.stalled += c.stalled;
        self.writes_failed += c.writes_failed;
        self.left_unreadable += c.left_unreadable;
        self.landed_alone += c.landed_alone;
        self.aborted += c.aborted;
        self.survived += c.survived;
        self.undone += c.undone;
        self.torn += c.torn;
    }
}
