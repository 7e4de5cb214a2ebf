//! What a run counts, so that a fault that no longer occurs is noticed, and what is told of one that fails.

use arden_block::sim::{Counters, SimDisk};

#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// What befell the disks of spaces and volumes.
    pub disks: Counters,
    pub operations: u64,
    pub crashes: u64,
    pub openings: u64,
    pub kills: u64,
    pub returns: u64,
    pub heals: u64,
    /// Pieces of spaces that gave their slabs back.
    pub freed: u64,
    /// Disks that joined, and that were emptied and left.
    pub joins: u64,
    pub removals: u64,
    /// While a column was being moved its space was deleted, a disk of the move was lost, or was to be removed.
    pub moves_struck: [u64; 3],
    /// Operations that a space without enough disks did not do, and openings that its log had no room for.
    pub waits: u64,
    pub refusals: u64,
    /// Openings refused because more waits for disks than the log can keep.
    pub logs_too_full: u64,
    /// Places that went bad.
    pub broken: u64,
    /// Caches that a reset lost, and those of which nobody was told.
    pub resets: u64,
    pub unnoticed: u64,
    /// Openings without a disk, and those without all disks that hold the log.
    pub absent: u64,
    pub logs_absent: u64,
    /// Crashes of runs in which a disk damages silently.
    pub silent_crashes: u64,
    /// Crashes of the host whose disks keep their power.
    pub host_crashes: u64,
    /// Lives with two disks that damage silently, departures beside one that does, and flushes that fail on two disks at once.
    pub liars: u64,
    pub left_a_liar: u64,
    pub flushes_failed_together: u64,
    /// Crashes beside silent damage of spaces with parity.
    pub parity_crashes: u64,
    /// Lives of a volume that end with a checkpoint soon after a crash.
    pub checkpoints: u64,
    /// Lives of which a tenth of all commands or more take some milliseconds longer.
    pub stalling: u64,
    /// Pauses of clients, in which the background forgets marks and empties the log.
    pub pauses: u64,
    /// Crashes aimed at a moment soon after a departure, at a write of a label, at the turn of the log; of volumes, at a
    /// write of the superblock, at a batch of the journal; of spaces again, between the moment when the pool notices a
    /// departure and the map that says so, while a new group is being mapped, soon after an opening, and when clients have
    /// filled half of the log.
    pub aimed: [u64; 9],
    /// Crashes aimed at the turn of the log after a life that ended there, and crashes soon after one at a superblock.
    pub turned_again: u64,
    pub crashed_again: u64,
    /// Crashes at the first durable write that is acknowledged after a departure was noticed.
    pub aimed_at_answers: u64,
    /// Reads of disks beside the pool's, and those whose view did not hold any more or that the disk did not answer.
    pub direct: [u64; 2],
    /// Volumes that became larger, and looks at a change journal and at limits of quotas that had been told before.
    pub grown: u64,
    pub journals: u64,
    pub limits: u64,
    /// Spaces that grew, were deleted, were made with all their slabs; writes for which there was no room; repairs that
    /// stand back for clients, and those that were paused or cancelled.
    pub spaces_grown: u64,
    pub spaces_deleted: u64,
    pub spaces_fixed: u64,
    pub full: u64,
    pub throttled: u64,
    pub paused: u64,
    /// Openings of pools that were not as they had been left: split, with copies, old images, strangers.
    pub splits: u64,
    pub copies: u64,
    pub old_images: u64,
    pub strangers: u64,
    /// How often the threads of volumes changed, and the most states that a volume may have been in at once.
    pub switches: u64,
    pub possible: u64,
    /// What befell nodes, etcd and the network of a cluster.
    pub cluster: crate::cluster::Counts,
}

impl Stats {
    pub fn add(&mut self, s: &Stats) {
        self.disks.add(&s.disks);
        self.operations += s.operations;
        self.crashes += s.crashes;
        self.openings += s.openings;
        self.kills += s.kills;
        self.returns += s.returns;
        self.heals += s.heals;
        self.freed += s.freed;
        self.joins += s.joins;
        self.removals += s.removals;
        self.moves_struck.iter_mut().zip(s.moves_struck).for_each(|(a, b)| *a += b);
        self.waits += s.waits;
        self.refusals += s.refusals;
        self.logs_too_full += s.logs_too_full;
        self.broken += s.broken;
        self.resets += s.resets;
        self.unnoticed += s.unnoticed;
        self.absent += s.absent;
        self.logs_absent += s.logs_absent;
        self.turned_again += s.turned_again;
        self.crashed_again += s.crashed_again;
        self.silent_crashes += s.silent_crashes;
        self.host_crashes += s.host_crashes;
        self.liars += s.liars;
        self.left_a_liar += s.left_a_liar;
        self.flushes_failed_together += s.flushes_failed_together;
        self.parity_crashes += s.parity_crashes;
        self.stalling += s.stalling;
        self.checkpoints += s.checkpoints;
        self.pauses += s.pauses;
        self.aimed.iter_mut().zip(s.aimed).for_each(|(a, b)| *a += b);
        self.aimed_at_answers += s.aimed_at_answers;
        self.direct.iter_mut().zip(s.direct).for_each(|(a, b)| *a += b);
        self.grown += s.grown;
        self.journals += s.journals;
        self.limits += s.limits;
        self.spaces_grown += s.spaces_grown;
        self.spaces_deleted += s.spaces_deleted;
        self.spaces_fixed += s.spaces_fixed;
        self.full += s.full;
        self.throttled += s.throttled;
        self.paused += s.paused;
        self.splits += s.splits;
        self.copies += s.copies;
        self.old_images += s.old_images;
        self.strangers += s.strangers;
        self.switches += s.switches;
        self.possible = self.possible.max(s.possible);
        self.cluster.add(&s.cluster);
    }

    /// What the disks of a run say of their faults.
    pub(crate) fn count_disks(&mut self, disks: &[SimDisk]) {
        disks.iter().for_each(|d| self.disks.add(&d.counters()));
    }
}

#[derive(Debug, Clone)]
pub struct Failure {
    pub seed: u64,
    pub what: String,
}
