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

/// How often it looks at the machine's memory.
const LOOK: Duration = Duration::from_secs(1);
/// How often it divides what there is, while volumes are used.
const DIVISION: Duration = Duration::from_millis(100);
/// After so many divisions in which changes needed less, they get less: after each checkpoint they grow again.
const CHANGES_KEPT: u32 = 600;
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
/// A so much smaller part of the whole is not divided: all grow between two divisions, and what one of them frees is the allocator's
/// until that is asked for it.
const UNDIVIDED_PART: u64 = 10;
/// The whole over the most that nodes get, and over the most that changes get.
const NODES_PART: u64 = 2;
const CHANGES_PART: u64 = 4;
/// The whole over the most that large writes get of the part of changes, until they reach the device.
const GATHER_PART: u64 = 16;
/// What the nodes of a volume may take before the first look.
const NODES_BYTES: u64 = 64 << 20;
/// By so much, beside as much again as it has, the nodes of a volume may grow until the next look, where all want more.
const NODES_GROWTH: u64 = 4 << 20;
/// Changes that make a checkpoint worth while, and no more than that helps.
const OVERLAY_BYTES_MIN: u64 = 1 << 20;
const OVERLAY_BYTES_MAX: u64 = 64 << 20;
const OVERLAYS: u64 = 5;
/// The whole room of blocks, with that of places, over that of places.
const PLACES_PART: u64 = 65;
/// The allocator keeps what checkpoints and caches free. It gives that back when the daemon takes more than volumes hold, so much for
/// all else, and a so much smaller part of the whole.
const BESIDE_BYTES: u64 = 32 << 20;
const UNUSED_PART: u64 = 16;
/// Where all that the daemon takes is nearer than a so much smaller part to what it may take, less that nobody uses is enough, and
/// it is asked more often. What it keeps all the same is taken from the blocks, which have at least a so much smaller part.
const NEAR_PART: u64 = 16;
const UNUSED_NEAR_PART: u64 = 64;
const NEAR_PAUSE: Duration = Duration::from_millis(200);
const BLOCKS_PART_MIN: u64 = 8;
/// When it gave back less than a so much smaller part, it is asked half as often, at least once in the longest pause.
const FRUITLESS_PART: u64 = 64;
const TRIM_PAUSE_MAX: Duration = Duration::from_secs(64);
/// Without a setting, the part of the machine's memory that it may take.
const CACHE_PART_OF_MEMORY: u64 = 8;

/// The most that the cache may take, in bytes: what is set, or an eighth of the machine's memory where that is 0.
pub fn bytes_max(set: u64) -> u64 {
    let memory = rustix::system::sysinfo();
    let memory = (memory.totalram as u64).saturating_mul(u64::from(memory.mem_unit.max(1)));
    if set > 0 { set } else { memory / CACHE_PART_OF_MEMORY }.max(CACHE_BYTES_MIN)
}

/// The most that the nodes of a volume may take that is being opened, in bytes, where those of others take `others`.
pub fn first_node_bytes(bytes_max: u64, others: u64) -> usize {
    NODES_BYTES.min((bytes_max / NODES_PART).saturating_sub(others)) as usize
}

/// How much of large writes each of `count` volumes may have in memory before they reach its device.
pub fn gather_bytes(bytes_max: u64, count: usize) -> u64 {
    let count = count.max(1) as u64;
    let rest = (bytes_max / CHANGES_PART).saturating_sub(OVERLAYS * count * overlay_bytes(bytes_max, count as usize));
    rest.min(bytes_max / GATHER_PART) / count
}

/// The changes after which each of `count` volumes begins a checkpoint, in bytes. Twice as many may gather while one is written,
/// which writes as many; and as many bytes may wait for the log.
pub fn overlay_bytes(bytes_max: u64, count: usize) -> u64 {
    let all = bytes_max / CHANGES_PART - bytes_max / GATHER_PART;
    (all / OVERLAYS / count.max(1) as u64).clamp(OVERLAY_BYTES_MIN, OVERLAY_BYTES_MAX)
}

/// The parts of the room that are not for blocks, in bytes.
#[derive(Default)]
struct Parts {
    nodes: u64,
    changes: u64,
    /// Divisions since changes needed what they have.
    kept: u32,
}

impl Parts {
    /// How much nodes and blocks may take of `limit`, where nodes and changes take so much now. Both have at least half a step to
    /// grow before the next look.
    fn divide(&mut self, limit: u64, nodes: u64, changes: u64) -> (u64, u64) {
        let step = (limit / STEP_PART).max(1);
        if nodes + step / 2 > self.nodes || nodes + 3 * step < self.nodes {
            self.nodes = (nodes + step).next_multiple_of(step);
        }
        let changes = (changes + step / 2).next_multiple_of(step);
        self.kept = if changes >= self.changes { 0 } else { self.kept + 1 };
        if changes > self.changes || self.kept >= CHANGES_KEPT {
            (self.changes, self.kept) = (changes, 0);
        }
        let nodes = self.nodes.min(limit / NODES_PART);
        let rest = (limit - nodes).saturating_sub(self.changes).max(limit / CHANGES_PART);
        (nodes, rest - rest / PLACES_PART)
    }
}

/// How much the nodes of each volume may take of `bytes_max`, where they take so much now. Each may grow; where that is too much for
/// all, those that have most give it up.
fn parts_of(own: &[u64], bytes_max: u64) -> Vec<u64> {
    let mut parts: Vec<u64> = own.iter().map(|own| own.saturating_mul(2).saturating_add(NODES_GROWTH)).collect();
    let mut by_size: Vec<usize> = (0..parts.len()).collect();
    by_size.sort_by_key(|i| parts[*i]);
    let mut left = bytes_max;
    for (done, i) in by_size.into_iter().enumerate() {
        parts[i] = parts[i].min(left / (own.len() - done) as u64);
        left -= parts[i];
    }
    let more = left / own.len().max(1) as u64;
    parts.into_iter().map(|part| part + more).collect()
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

/// When the allocator is asked to give back what nobody uses.
struct Trim {
    last: Instant,
    pause: Duration,
}

impl Trim {
    /// Whether it is time, where the daemon takes so much and volumes hold so much of it.
    fn is_due(&self, now: Instant, resident: u64, held: u64, limit: u64) -> bool {
        let near = is_near(resident, limit);
        let part = if near { UNUSED_NEAR_PART } else { UNUSED_PART };
        let pause = if near && self.pause <= LOOK { NEAR_PAUSE } else { self.pause };
        now - self.last >= pause && unused(resident, held) > limit / part
    }

    fn done(&mut self, now: Instant, released: u64, limit: u64) {
        self.last = now;
        let fruitless = released < limit / FRUITLESS_PART;
        self.pause = if fruitless { (2 * self.pause).min(TRIM_PAUSE_MAX) } else { LOOK };
    }
}

/// Whether a daemon that takes so much soon takes more than it may.
fn is_near(resident: u64, limit: u64) -> bool {
    resident + limit / NEAR_PART > limit + BESIDE_BYTES
}

/// What the daemon takes beside what volumes hold, and more than it needs for all else.
fn unused(resident: u64, held: u64) -> u64 {
    resident.saturating_sub(held + BESIDE_BYTES)
}

/// What the allocator keeps when it gave back what it could: blocks get so much less.
#[derive(Default)]
struct Kept {
    bytes: u64,
    /// Divisions since it was as much.
    kept: u32,
}

impl Kept {
    /// What blocks get of so much.
    fn leaves(&mut self, blocks: u64, (resident, held): (u64, u64), limit: u64) -> u64 {
        let now = if is_near(resident, limit) { unused(resident, held) } else { 0 };
        let now = now.next_multiple_of((limit / UNUSED_NEAR_PART).max(1));
        self.kept = if now >= self.bytes { 0 } else { self.kept + 1 };
        if now > self.bytes || self.kept >= CHANGES_KEPT {
            (self.bytes, self.kept) = (now, 0);
        }
        blocks.saturating_sub(self.bytes).max(blocks.min(limit / BLOCKS_PART_MIN))
    }
}

/// Memory of this process; 0 where the kernel does not tell.
fn resident_bytes() -> u64 {
    fs::read_to_string("/proc/self/status").map_or(0, |text| resident_of(&text).unwrap_or(0))
}

fn resident_of(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
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
    /// Each with what its nodes take.
    volumes: Vec<(Weak<Volume>, u64)>,
    nodes: u64,
    changes: u64,
}

impl OpenVolumes {
    /// Looks again. Whether nodes were used since the last look.
    fn look(&mut self, now: Option<Vec<Arc<Volume>>>) -> bool {
        let open = now.unwrap_or_else(|| self.volumes.iter().filter_map(|v| v.0.upgrade()).collect());
        let memory: Vec<(u64, u64)> = open.iter().map(|v| v.memory()).collect();
        self.nodes = memory.iter().map(|m| m.0).sum();
        self.changes = memory.iter().map(|m| m.1).sum();
        self.volumes = open.iter().map(Arc::downgrade).zip(memory.iter().map(|m| m.0)).collect();
        // All are asked.
        open.iter().filter(|v| v.take_nodes_used()).count() > 0
    }

    /// Nodes of all volumes may take so much.
    fn set_node_memory(&self, bytes_max: u64) {
        let own: Vec<u64> = self.volumes.iter().map(|v| v.1).collect();
        for ((volume, _), part) in self.volumes.iter().zip(parts_of(&own, bytes_max)) {
            if let Some(volume) = volume.upgrade() {
                volume.set_node_memory(part);
            }
        }
    }

    fn set_change_memory(&self, bytes_max: u64) {
        let count = self.volumes.len();
        let (changes, gathered) = (overlay_bytes(bytes_max, count), gather_bytes(bytes_max, count));
        self.volumes.iter().filter_map(|v| v.0.upgrade()).for_each(|volume| {
            volume.set_change_memory(changes);
            volume.set_gather_memory(gathered);
        });
    }
}

/// Gives blocks and nodes their room.
fn apply(cache: &BlockCache, open: &OpenVolumes, (nodes, blocks): (u64, u64), given: &mut u64) {
    open.set_node_memory(nodes);
    if blocks != std::mem::replace(given, blocks) {
        cache.set_bytes_max(blocks);
    }
}

/// Starts the thread that looks, for as long as there are volumes.
pub(super) fn start(volumes: &Arc<Volumes>) {
    let weak: Weak<Volumes> = Arc::downgrade(volumes);
    let mut room = Room::new(Instant::now(), volumes.cache_bytes_max());
    let mut given = volumes.cache_bytes_max();
    let (mut parts, mut open) = (Parts::default(), OpenVolumes::default());
    let (mut trim, mut kept) = (Trim { last: Instant::now(), pause: LOOK }, Kept::default());
    let (mut limit, mut used, mut busy, mut looked) = (given, false, false, Instant::now());
    let run = move || loop {
        std::thread::sleep(if busy { DIVISION } else { LOOK });
        let Some(volumes) = weak.upgrade() else { return };
        if volumes.is_stopped() {
            return;
        }
        let (cache, bytes_max) = (&volumes.blocks, volumes.cache_bytes_max());
        let nodes_used = open.look(volumes.open_volumes());
        used |= cache.take_used() | nodes_used;
        let now = Instant::now();
        let looks = now - looked >= LOOK || bytes_max < limit;
        if looks {
            let held = cache.bytes() + open.nodes + open.changes;
            limit = room.look(&Seen { now, stalled: stalled(), held, used, bytes_max });
            (busy, used, looked) = (used, false, now);
        }
        // By what is set, and not by what there is now: checkpoints that follow each other soon cost more than they free.
        open.set_change_memory(bytes_max);
        let (nodes, blocks) = parts.divide(limit - limit / UNDIVIDED_PART, open.nodes, open.changes);
        let (mut resident, held) = (resident_bytes(), cache.bytes() + open.nodes + open.changes);
        if trim.is_due(now, resident, held, limit) {
            give_back_freed();
            let before = std::mem::replace(&mut resident, resident_bytes());
            let released = before.saturating_sub(resident);
            trim.done(now, released, limit);
            tracing::debug!(resident, held, released, "unused memory went back to the system");
        }
        apply(cache, &open, (nodes, kept.leaves(blocks, (resident, held), limit)), &mut given);
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
        // The sixty-fifth part of what is left is for places.
        let with = |nodes: u64, left: u64| (nodes * MIB, left * MIB - left * MIB / 65);
        assert_eq!(parts.divide(GIB, 0, 0), with(64, 896));
        assert_eq!(parts.divide(GIB, 30 * MIB, 0), with(64, 896), "a little changes nothing");
        assert_eq!(parts.divide(GIB, 40 * MIB, 30 * MIB), with(128, 832));
        assert_eq!(parts.divide(GIB, 90 * MIB, 64 * MIB), with(128, 768));
        assert_eq!(parts.divide(GIB, 2 * GIB, GIB), with(512, 256), "at most a half and a quarter");
        assert_eq!(parts.divide(GIB, 100 * MIB, 0), (192 * MIB, with(0, 256).1), "changes keep what they needed");
        assert_eq!(
            (0..CHANGES_KEPT).map(|_| parts.divide(GIB, 100 * MIB, 0)).last(),
            Some(with(192, 768)),
            "for a while"
        );
    }

    #[test]
    fn nodes_changes_and_blocks_never_have_more_than_is_set() {
        let mut rng = arden_block::rng::Rng::new(7);
        for _ in 0..2000 {
            let limit = CACHE_BYTES_MIN + rng.below(8 * GIB);
            let count = 1 + rng.below(limit / CHANGES_PART / OVERLAYS / OVERLAY_BYTES_MIN) as usize;
            let each = OVERLAYS * overlay_bytes(limit, count) + gather_bytes(limit, count);
            let changes_max = count as u64 * each;
            assert!(changes_max <= limit / CHANGES_PART, "{count} volumes, {limit}");
            let mut parts = Parts::default();
            let (mut nodes, mut changes) = (0, 0);
            for _ in 0..20 {
                let (most, blocks) = parts.divide(limit, nodes, changes);
                let of_volumes: u64 = parts_of(&vec![nodes / count as u64; count], most).iter().sum();
                assert!(of_volumes <= most && most <= limit / 2);
                changes = rng.below(changes_max.min(changes + limit / STEP_PART / 2) + 1);
                nodes = rng.below(of_volumes + 1);
                let all = most + changes + blocks + blocks / (PLACES_PART - 1);
                assert!(all <= limit && blocks >= limit / 5, "{all} of {limit}");
            }
        }
    }

    #[test]
    fn memory_that_nobody_uses_goes_back_and_is_not_asked_for_in_vain() {
        const MIB: u64 = 1 << 20;
        let began = Instant::now();
        let mut trim = Trim { last: began, pause: LOOK };
        assert!(!trim.is_due(began, 4 * GIB, 0, GIB), "not at once again");
        let at = |s: u64| began + Duration::from_secs(s);
        assert!(!trim.is_due(at(1), 596 * MIB, 500 * MIB, GIB) && trim.is_due(at(1), 597 * MIB, 500 * MIB, GIB));
        trim.done(at(1), GIB / 64 - 1, GIB);
        assert!(!trim.is_due(at(2), 4 * GIB, 0, GIB) && trim.is_due(at(3), 4 * GIB, 0, GIB));
        (0..20).for_each(|_| trim.done(at(3), 0, GIB));
        assert!(!trim.is_due(at(66), 4 * GIB, 0, GIB) && trim.is_due(at(67), 4 * GIB, 0, GIB));
        trim.done(at(67), GIB / 64, GIB);
        assert!(trim.is_due(at(68), 4 * GIB, 0, GIB), "something came of it");
        assert_eq!(resident_of("VmHWM:\t 7 kB\nVmRSS:\t   12 kB\n"), Some(12 << 10));
        assert!(resident_of("").is_none() && resident_bytes() > 1 << 20);
    }

    #[test]
    fn near_the_limit_unused_memory_goes_back_sooner() {
        const MIB: u64 = 1 << 20;
        let began = Instant::now();
        let mut trim = Trim { last: began, pause: LOOK };
        let at = |ms: u64| began + Duration::from_millis(ms);
        // 17 MiB more than all else needs.
        let due = |trim: &Trim, ms, resident| trim.is_due(at(ms), resident * MIB, (resident - 49) * MIB, GIB);
        assert!(!due(&trim, 5000, 992) && due(&trim, 5000, 993) && due(&trim, 200, 993) && !due(&trim, 199, 993));
        assert!(!trim.is_due(at(5000), 1000 * MIB, 952 * MIB, GIB), "16 MiB are not worth while");
        trim.done(began, 0, GIB);
        assert!(!due(&trim, 1999, 993) && due(&trim, 2000, 993), "not in vain again and again");
    }

    #[test]
    fn blocks_make_way_for_what_the_allocator_keeps() {
        const MIB: u64 = 1 << 20;
        let mut kept = Kept::default();
        let mut leaves =
            |blocks: u64, resident: u64, held: u64| kept.leaves(blocks * MIB, (resident * MIB, held * MIB), GIB) / MIB;
        assert_eq!(leaves(400, 900, 700), 400, "there is room");
        assert_eq!(leaves(400, 1100, 1000), 320, "68 MiB, in steps of 16");
        assert_eq!(leaves(400, 1000, 968), 320, "for a while");
        assert_eq!(leaves(400, 1300, 800), 128, "but not all of it");
        assert_eq!(leaves(100, 1300, 800), 100);
        for _ in 0..CHANGES_KEPT {
            leaves(400, 900, 800);
        }
        assert_eq!(leaves(400, 900, 800), 400);
    }

    #[test]
    fn changes_of_volumes_stay_within_their_part() {
        let each = |bytes_max, count| OVERLAYS * overlay_bytes(bytes_max, count) + gather_bytes(bytes_max, count);
        let most = |bytes_max, count: usize| count as u64 * each(bytes_max, count);
        assert_eq!(overlay_bytes(4 * GIB, 1), OVERLAY_BYTES_MAX, "more makes nothing faster");
        for (bytes_max, count) in [(GIB, 1), (GIB, 20), (CACHE_BYTES_MIN, 1)] {
            let part = bytes_max / 4;
            assert!((part - part / 100..=part).contains(&most(bytes_max, count)), "{bytes_max}, {count}");
        }
        assert_eq!(overlay_bytes(CACHE_BYTES_MIN, 100), OVERLAY_BYTES_MIN, "the least");
        assert_eq!((gather_bytes(4 * GIB, 1), gather_bytes(CACHE_BYTES_MIN, 100)), (GIB / 4, 0));
    }

    #[test]
    fn volumes_share_the_room_of_nodes() {
        const MIB: u64 = 1 << 20;
        let parts = |own: &[u64], most: u64| {
            let own: Vec<u64> = own.iter().map(|n| n * MIB).collect();
            parts_of(&own, most * MIB).into_iter().map(|n| n / MIB).collect::<Vec<_>>()
        };
        assert_eq!(parts(&[10, 30], 100), [30, 70], "what they want, and half of the rest");
        assert_eq!(parts(&[10, 30], 30), [15, 15]);
        assert_eq!(parts(&[100, 0], 100), [96, 4], "one that has nothing yet is not starved by one that has all");
        assert_eq!(parts(&[96, 4], 100), [88, 12]);
        assert!(parts(&[], 7).is_empty());
    }

    #[test]
    fn a_volume_that_is_opened_gets_what_others_left() {
        assert_eq!(first_node_bytes(GIB, 0), 64 << 20);
        assert_eq!(first_node_bytes(CACHE_BYTES_MIN, 0), 16 << 20);
        assert_eq!(first_node_bytes(CACHE_BYTES_MIN, 12 << 20), 4 << 20);
        assert_eq!(first_node_bytes(CACHE_BYTES_MIN, GIB), 0);
    }

    /// Names and data of two volumes, each with more than all memory that there is. `cache` tells what volumes hold.
    #[test]
    fn volumes_at_work_never_hold_more_than_is_set() {
        use arden_admin::{
            State,
            volume::{NewVolume, VolumeAdmin},
        };
        use arden_store::store::{NewFile, Wait};
        const SET: u64 = 2 * CACHE_BYTES_MIN;
        // By what changes grow between two divisions, of which one may come late, and half a MiB of nodes for each volume.
        const SLACK: u64 = SET / STEP_PART * 2;

        let dir = std::env::temp_dir().join(format!("arden-room-of-volumes-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let state = Arc::new(State::in_memory().unwrap());
        let set = |bytes| {
            state.change(|s| {
                s.settings.volume_cache_bytes = bytes;
                Ok(())
            })
        };
        set(SET).unwrap();
        let pools = crate::pools::Pools::start(&state, Arc::new(crate::sharing::NothingShared)).unwrap();
        let volumes = Volumes::new(&state, &pools);
        let name = |i: u32| format!("{:08x}{}", i.wrapping_mul(0x9E37_79B9), "-".repeat(230));
        let new = NewFile { directory: false, attributes: 0x20, security: None, eas: &[], allocation: None };
        let mut most = (0, 0);
        let mut stores = Vec::new();
        for volume in ["a", "b"] {
            let file = Some(dir.join(volume));
            let made = NewVolume { name: volume.into(), file, size_bytes: Some(1 << 30), ..NewVolume::default() };
            volumes.create_volume(&made).unwrap();
            let (store, _) = volumes.store(volume, std::path::Path::new("/")).unwrap();
            for i in 0..12_000 {
                let file = store.root().create_child(None, &name(i), &new).unwrap();
                file.write_at(None, 0, &[i as u8; 4096], Wait::Yes).unwrap();
                if i % 50 == 0 {
                    let open = volumes.open_volumes().unwrap();
                    let nodes: u64 = open.iter().map(|v| v.memory().0).sum();
                    most = (most.0.max(nodes), most.1.max(volumes.cache().bytes));
                }
            }
            stores.push(store);
        }
        println!("nodes {}, all {} of {SET} bytes at most", most.0, most.1);
        assert!(most.0 <= SET / NODES_PART + SLACK && most.1 <= SET + SLACK, "{most:?}");
        // What other tests take in this process is taken from the blocks.
        assert!(most.0 > SET / 16 && most.1 > SET / 4, "{most:?}: too little to tell anything");
        // Less is set: what is too much goes at the next look.
        set(CACHE_BYTES_MIN).unwrap();
        let began = Instant::now();
        while volumes.cache().bytes > CACHE_BYTES_MIN {
            assert!(began.elapsed().as_secs() < 30, "{} bytes", volumes.cache().bytes);
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(stores);
        volumes.stop();
        pools.stop();
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_kernels_words_are_understood() {
        let text =
            "some avg10=0.10 avg60=0.00 avg300=0.00 total=1500\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(total_of(text), Some(Duration::from_micros(1500)));
        assert_eq!((total_of(""), total_of("some total=x")), (None, None));
    }
}
