//! How much memory volumes may take: as much as is set, less while the machine is short of memory, and little where nobody reads. Owns
//! how it is divided among blocks of files, nodes of the volumes' trees, and changes that wait for a checkpoint. Refuses to know which
//! blocks and nodes stay.

use std::{
    fs,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use arden_block::memory::give_back_freed;
use arden_volume::{BlockCache, Volume};

use super::Volumes;

/// How often it looks.
const LOOK: Duration = Duration::from_secs(1);
/// The time in which some task stood still for memory (`some` of /proc/pressure/memory), for each second: from here on memory is
/// short.
const STALLED_A_SECOND: Duration = Duration::from_millis(20);
/// Once memory was short, how long it must not have been before the cache grows.
const CALM: Duration = Duration::from_secs(30);
/// Growth at each look is a so much smaller part of what is set.
const GROWTH_PART: u64 = 64;
/// A cache that nobody used for so long gives back half of what it holds, and again after each `IDLE_STEP`.
const IDLE: Duration = Duration::from_secs(300);
const IDLE_STEP: Duration = Duration::from_secs(60);
/// It is not made smaller than this.
pub const CACHE_BYTES_MIN: u64 = 32 << 20;
/// Nodes and changes get their parts in steps of a so much smaller part of the whole, so that the rest changes seldom.
const STEP_PART: u64 = 16;
/// The whole over the most that nodes get, and over the most that changes get.
const NODES_PART: u64 = 2;
const CHANGES_PART: u64 = 4;
/// What the nodes of a volume may take before the first look.
const NODES_BYTES: u64 = 64 << 20;
/// Changes that make a checkpoint worth while, and no more than that helps.
const OVERLAY_BYTES_MIN: u64 = 8 << 20;
const OVERLAY_BYTES_MAX: u64 = 64 << 20;
/// Without a setting, the part of the machine's memory that it may take.
const CACHE_PART_OF_MEMORY: u64 = 8;

/// The most that the cache may take, in bytes: what is set, or an eighth of the machine's memory where that is 0.
pub fn bytes_max(set: u64) -> u64 {
    let memory = rustix::system::sysinfo();
    let memory = (memory.totalram as u64).saturating_mul(u64::from(memory.mem_unit.max(1)));
    if set > 0 { set } else { memory / CACHE_PART_OF_MEMORY }.max(CACHE_BYTES_MIN)
}

/// The most that the nodes of a volume may take that was just opened, in bytes.
pub fn first_node_bytes(bytes_max: u64) -> usize {
    NODES_BYTES.min(bytes_max / NODES_PART) as usize
}

/// The changes after which a volume begins a checkpoint, in bytes: twice as many may gather while it is written, beside those that
/// it writes.
pub fn overlay_bytes(bytes_max: u64) -> usize {
    (bytes_max / CHANGES_PART / 4).clamp(OVERLAY_BYTES_MIN, OVERLAY_BYTES_MAX) as usize
}

/// The parts of the room that are not for blocks, in bytes.
#[derive(Default)]
struct Parts {
    nodes: u64,
    changes: u64,
}

impl Parts {
    /// How much nodes and blocks may take of `limit`, where nodes and changes take so much now. Nodes have at least half a step to grow
    /// before the next look.
    fn divide(&mut self, limit: u64, nodes: u64, changes: u64) -> (u64, u64) {
        let step = (limit / STEP_PART).max(1);
        if nodes + step / 2 > self.nodes || nodes + 3 * step < self.nodes {
            self.nodes = (nodes + step).next_multiple_of(step);
        }
        if changes > self.changes || changes + 3 * step < self.changes {
            self.changes = changes.next_multiple_of(step);
        }
        let nodes = self.nodes.min(limit / NODES_PART);
        (nodes, limit - nodes - self.changes.min(limit / CHANGES_PART))
    }
}

/// The part of one volume, whose nodes take `own`, of what the nodes of `count` volumes may take, which are `all` now.
fn part_of(own: u64, all: u64, count: usize, bytes_max: u64) -> u64 {
    if all <= bytes_max {
        own + (bytes_max - all) / count.max(1) as u64
    } else {
        (u128::from(own) * u128::from(bytes_max) / u128::from(all)) as u64
    }
}

/// What was seen at one look.
struct Seen {
    now: Instant,
    /// Time for which tasks stood still for memory, since the machine started. None: the kernel does not tell.
    stalled: Option<Duration>,
    /// Bytes that are taken, by blocks and by all else.
    held: u64,
    used: bool,
    /// As it is set.
    bytes_max: u64,
}

/// The room of the cache from look to look.
struct Room {
    /// What memory leaves it.
    limit: u64,
    stalled: Option<Duration>,
    looked: Instant,
    short: Option<Instant>,
    last_use: Instant,
    last_step: Instant,
}

impl Room {
    fn new(now: Instant, bytes_max: u64) -> Room {
        Room { limit: bytes_max, stalled: None, looked: now, short: None, last_use: now, last_step: now }
    }

    /// How much the cache may take from now on.
    fn look(&mut self, seen: &Seen) -> u64 {
        let since = seen.now.saturating_duration_since(self.looked);
        let stalled = seen.stalled.zip(self.stalled).map(|(now, before)| now.saturating_sub(before));
        (self.looked, self.stalled) = (seen.now, seen.stalled);
        let floor = CACHE_BYTES_MIN.min(seen.bytes_max);
        if stalled.is_some_and(|stalled| {
            stalled.as_secs_f64() >= STALLED_A_SECOND.as_secs_f64() * since.as_secs_f64().max(1e-3)
        }) {
            self.short = Some(seen.now);
            self.limit = (self.limit.min(seen.held) / 2).max(floor);
        } else if self.short.is_none_or(|short| seen.now.saturating_duration_since(short) >= CALM) {
            let whole = if self.short.is_some() { self.limit + seen.bytes_max / GROWTH_PART } else { seen.bytes_max };
            self.limit = whole;
            if self.limit >= seen.bytes_max {
                self.short = None;
            }
        }
        self.limit = self.limit.min(seen.bytes_max);
        if seen.used {
            (self.last_use, self.last_step) = (seen.now, seen.now);
        }
        let idle = seen.now.saturating_duration_since(self.last_use) >= IDLE;
        if idle && seen.now.saturating_duration_since(self.last_step) >= IDLE_STEP {
            self.last_step = seen.now;
            return self.limit.min(seen.held / 2).max(floor.min(self.limit));
        }
        self.limit
    }
}

/// The time for which some task stood still for memory.
fn stalled() -> Option<Duration> {
    let text = fs::read_to_string("/proc/pressure/memory").ok()?;
    total_of(&text)
}

fn total_of(text: &str) -> Option<Duration> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let total = some.split_whitespace().find_map(|word| word.strip_prefix("total="))?;
    total.parse().ok().map(Duration::from_micros)
}

/// The open volumes as they were last seen.
#[derive(Default)]
struct OpenVolumes {
    volumes: Vec<Weak<Volume>>,
    nodes: u64,
    changes: u64,
}

impl OpenVolumes {
    /// Looks again. Whether nodes were used since the last look.
    fn look(&mut self, now: Option<Vec<Arc<Volume>>>) -> bool {
        let open = now.unwrap_or_else(|| self.volumes.iter().filter_map(Weak::upgrade).collect());
        let memory: Vec<(u64, u64)> = open.iter().map(|v| v.memory()).collect();
        self.nodes = memory.iter().map(|m| m.0).sum();
        self.changes = memory.iter().map(|m| m.1).sum();
        self.volumes = open.iter().map(Arc::downgrade).collect();
        open.iter().fold(false, |used, v| v.take_nodes_used() || used)
    }

    fn set_node_memory(&self, bytes_max: u64) {
        for volume in self.volumes.iter().filter_map(Weak::upgrade) {
            let own = volume.memory().0;
            volume.set_node_memory(part_of(own, self.nodes, self.volumes.len(), bytes_max));
        }
    }
}

/// Gives blocks and nodes their room, and the system what that sets free.
fn apply(cache: &BlockCache, open: &OpenVolumes, (nodes, blocks): (u64, u64), given: &mut u64) {
    let before = cache.bytes();
    open.set_node_memory(nodes);
    if blocks != std::mem::replace(given, blocks) {
        cache.set_bytes_max(blocks);
    }
    if cache.bytes() < before || nodes < open.nodes {
        give_back_freed();
        tracing::debug!(before, blocks = cache.bytes(), nodes, "volumes gave memory back");
    }
}

/// Starts the thread that looks, for as long as there are volumes.
pub(super) fn start(volumes: &Arc<Volumes>) {
    let weak: Weak<Volumes> = Arc::downgrade(volumes);
    let mut room = Room::new(Instant::now(), volumes.cache_bytes_max());
    let mut given = volumes.cache_bytes_max();
    let (mut parts, mut open) = (Parts::default(), OpenVolumes::default());
    let run = move || loop {
        std::thread::sleep(LOOK);
        let Some(volumes) = weak.upgrade() else { return };
        if volumes.is_stopped() {
            return;
        }
        let (cache, bytes_max) = (&volumes.blocks, volumes.cache_bytes_max());
        let nodes_used = open.look(volumes.open_volumes());
        let used = cache.take_used() || nodes_used;
        let held = cache.bytes() + open.nodes + open.changes;
        let limit = room.look(&Seen { now: Instant::now(), stalled: stalled(), held, used, bytes_max });
        apply(cache, &open, parts.divide(limit, open.nodes, open.changes), &mut given);
    };
    if let Err(e) = std::thread::Builder::new().name("arden-cache".into()).spawn(run) {
        tracing::error!("no thread for the memory of volumes: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Looks each second at a cache that is as full as it may be.
    struct World {
        room: Room,
        now: Instant,
        stalled: Duration,
        held: u64,
        limit: u64,
    }

    impl World {
        fn new() -> World {
            let now = Instant::now();
            World { room: Room::new(now, 4 * GIB), now, stalled: Duration::ZERO, held: 4 * GIB, limit: 4 * GIB }
        }

        fn seconds(&mut self, n: u64, stalled_ms: u64, used: bool) -> u64 {
            for _ in 0..n {
                self.now += LOOK;
                self.stalled += Duration::from_millis(stalled_ms);
                let stalled = Some(self.stalled);
                let seen = Seen { now: self.now, stalled, held: self.held, used, bytes_max: 4 * GIB };
                self.limit = self.room.look(&seen);
                self.held = if used { self.limit } else { self.held.min(self.limit) };
            }
            self.limit
        }
    }

    #[test]
    fn it_shrinks_while_memory_is_short_and_grows_slowly_after_a_rest() {
        let mut w = World::new();
        assert_eq!(w.seconds(100, 5, true), 4 * GIB, "a little is nothing");
        assert_eq!(w.seconds(1, 50, true), 2 * GIB);
        assert_eq!(w.seconds(20, 50, true), CACHE_BYTES_MIN);
        assert_eq!(w.seconds(29, 0, true), CACHE_BYTES_MIN, "not before it is calm");
        let grown = w.seconds(10, 0, true);
        assert!(grown > CACHE_BYTES_MIN && grown < GIB, "{grown}");
        assert_eq!(w.seconds(1, 50, true), grown / 2, "memory is short again");
        assert_eq!(w.seconds(200, 0, true), 4 * GIB);
    }

    #[test]
    fn who_is_not_used_gives_back_in_steps_and_may_fill_again_at_once() {
        let mut w = World::new();
        w.seconds(1, 0, true);
        w.seconds(299, 0, false);
        assert_eq!(w.held, 4 * GIB);
        w.seconds(1, 0, false);
        assert_eq!(w.held, 2 * GIB);
        w.seconds(60, 0, false);
        assert_eq!(w.held, GIB);
        w.seconds(600, 0, false);
        assert_eq!(w.held, CACHE_BYTES_MIN);
        assert_eq!(w.seconds(1, 0, true), 4 * GIB);
    }

    #[test]
    fn a_smaller_setting_counts_at_once_and_so_does_a_larger_one() {
        let now = Instant::now();
        let mut room = Room::new(now, 4 * GIB);
        let mut seen = Seen { now, stalled: None, held: 3 * GIB, used: true, bytes_max: GIB };
        assert_eq!(room.look(&seen), GIB);
        seen.bytes_max = 1 << 20;
        assert_eq!(room.look(&seen), 1 << 20, "the floor is no more than what is set");
        seen.bytes_max = 2 * GIB;
        assert_eq!(room.look(&seen), 2 * GIB);
    }

    #[test]
    fn blocks_get_what_nodes_and_changes_leave() {
        const MIB: u64 = 1 << 20;
        let mut parts = Parts::default();
        assert_eq!(parts.divide(GIB, 0, 0), (64 * MIB, 960 * MIB));
        assert_eq!(parts.divide(GIB, 30 * MIB, 0), (64 * MIB, 960 * MIB), "a little changes nothing");
        assert_eq!(parts.divide(GIB, 40 * MIB, 10 * MIB), (128 * MIB, 832 * MIB));
        assert_eq!(parts.divide(GIB, 90 * MIB, 64 * MIB), (128 * MIB, 832 * MIB));
        assert_eq!(parts.divide(GIB, 2 * GIB, GIB), (512 * MIB, 256 * MIB), "at most a half and a quarter");
        assert_eq!(parts.divide(GIB, 100 * MIB, 0), (192 * MIB, 832 * MIB), "less again");
        for limit in [CACHE_BYTES_MIN, 4 * GIB] {
            let (nodes, blocks) = Parts::default().divide(limit, limit, limit);
            assert!(nodes > 0 && blocks >= limit / 4 && nodes + blocks <= limit);
        }
    }

    #[test]
    fn changes_of_a_volume_stay_within_their_part() {
        let most = |bytes_max| 4 * overlay_bytes(bytes_max) as u64;
        assert_eq!(most(4 * GIB), GIB / 4, "more makes nothing faster");
        assert_eq!(most(GIB), GIB / 4);
        assert_eq!(most(GIB / 2), GIB / 8);
        assert_eq!(most(CACHE_BYTES_MIN), CACHE_BYTES_MIN, "the least");
    }

    #[test]
    fn volumes_share_the_room_of_nodes() {
        assert_eq!((part_of(10, 30, 2, 100), part_of(20, 30, 2, 100)), (45, 55));
        assert_eq!((part_of(10, 30, 2, 15), part_of(20, 30, 2, 15)), (5, 10), "each gives up its part");
        assert_eq!(part_of(0, 0, 0, 7), 7);
    }

    #[test]
    fn the_kernels_words_are_understood() {
        let text =
            "some avg10=0.10 avg60=0.00 avg300=0.00 total=1500\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(total_of(text), Some(Duration::from_micros(1500)));
        assert_eq!((total_of(""), total_of("some total=x")), (None, None));
    }
}
