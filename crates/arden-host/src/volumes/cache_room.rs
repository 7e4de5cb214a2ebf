//! How much memory the cache of blocks may take: as much as is set, less while the machine is short of memory, and little where
//! nobody reads. Refuses to know which blocks stay.

use std::{
    fs,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use arden_block::memory::give_back_freed;
use arden_volume::BlockCache;

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
/// Without a setting, the part of the machine's memory that it may take.
const CACHE_PART_OF_MEMORY: u64 = 8;

/// The most that the cache may take, in bytes: what is set, or an eighth of the machine's memory where that is 0.
pub fn bytes_max(set: u64) -> u64 {
    let memory = rustix::system::sysinfo();
    let memory = (memory.totalram as u64).saturating_mul(u64::from(memory.mem_unit.max(1)));
    if set > 0 { set } else { memory / CACHE_PART_OF_MEMORY }.max(CACHE_BYTES_MIN)
}

/// What was seen at one look.
struct Seen {
    now: Instant,
    /// Time for which tasks stood still for memory, since the machine started. None: the kernel does not tell.
    stalled: Option<Duration>,
    /// Bytes in the cache.
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

/// Gives the cache its room, and the system what that sets free.
fn apply(cache: &BlockCache, bytes_max: u64) {
    let before = cache.bytes();
    cache.set_bytes_max(bytes_max);
    if cache.bytes() < before {
        give_back_freed();
        tracing::debug!(before, now = cache.bytes(), "the cache of blocks gave memory back");
    }
}

/// Starts the thread that looks, for as long as there are volumes.
pub(super) fn start(volumes: &Arc<Volumes>) {
    let weak: Weak<Volumes> = Arc::downgrade(volumes);
    let mut room = Room::new(Instant::now(), volumes.cache_bytes_max());
    let mut given = volumes.cache_bytes_max();
    let run = move || loop {
        std::thread::sleep(LOOK);
        let Some(volumes) = weak.upgrade() else { return };
        if volumes.is_stopped() {
            return;
        }
        let cache = &volumes.blocks;
        let bytes_max = volumes.cache_bytes_max();
        let (held, used) = (cache.bytes(), cache.take_used());
        let next = room.look(&Seen { now: Instant::now(), stalled: stalled(), held, used, bytes_max });
        if next != given {
            apply(cache, next);
            given = next;
        }
    };
    if let Err(e) = std::thread::Builder::new().name("arden-cache".into()).spawn(run) {
        tracing::error!("no thread for the room of the cache of blocks: {e}");
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
    fn the_kernels_words_are_understood() {
        let text =
            "some avg10=0.10 avg60=0.00 avg300=0.00 total=1500\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(total_of(text), Some(Duration::from_micros(1500)));
        assert_eq!((total_of(""), total_of("some total=x")), (None, None));
    }
}
