//! Random operations of every kind on a volume and on a naive model, a crash at any write, the volume opened again and
//! compared: it has to be as the model was after some operation, not before the last one that was durable; and `check`
//! has to find nothing. `ARDEN_VOLUME_SEEDS=from..to` and `ARDEN_VOLUME_SECONDS` run other seeds, and longer.

mod device;
mod large;
mod pieces;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arden_block::rng::Rng;
use arden_store::store::{FileStore, NewFile};
use arden_volume::{BlockCache, Durability, Volume, VolumeOptions, VolumeStore};
use arden_wire::FileTime;

use arden_testkit::crash::{history::History, model, ops};
use device::CrashDevice;

struct Run {
    rng: Rng,
    seed: u64,
    options: VolumeOptions,
    durability: Durability,
    history: History,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = Rng::new(seed);
        let options = VolumeOptions {
            cache_bytes: 64 << 10,
            blocks: rng.one_in(2).then(|| BlockCache::seeded(300_000, seed)),
            overlay_bytes_max: [20_000, 200_000, 2 << 20][rng.below(3) as usize],
            background: false,
            gather_bytes_max: [0, 200_000, 4 << 20][(seed % 3) as usize],
            commit_interval: Duration::from_secs(60),
            give_back_after: Duration::ZERO,
        };
        let durability = if rng.one_in(3) { Durability::WriteThrough } else { Durability::Plain };
        Run { rng, seed, options, durability, history: History::new(seed) }
    }

    /// How a device that nobody uses any more is found next: power was lost, or the process ended alone.
    fn after(&mut self, device: Arc<CrashDevice>) -> CrashDevice {
        match Arc::try_unwrap(device) {
            Ok(device) if self.rng.one_in(4) => device.outlive_host(),
            Ok(device) => CrashDevice::new(device.crash(&mut self.rng), None),
            Err(_) => panic!("seed {}: the device is still in use", self.seed),
        }
    }

    /// Opens after a crash, several times when it crashes on the way, and finds out which candidate it is.
    fn open(&mut self, mut found: CrashDevice) -> (Arc<CrashDevice>, Arc<Volume>) {
        loop {
            let device = Arc::new(found.telling(self.rng.one_in(2)));
            device.die_after(if self.rng.one_in(4) { Some(self.rng.below(20)) } else { None });
            let opened = Volume::open(device.clone(), self.options.clone());
            let vol = match opened {
                Ok(vol) => vol,
                Err(_) if device.is_dead() => {
                    found = self.after(device);
                    continue;
                }
                Err(e) => panic!("seed {}: {e}", self.seed),
            };
            device.die_after(None);
            if device.is_dead() {
                drop(vol);
                found = self.after(device);
                continue;
            }
            self.history.check_opened(&vol);
            return (device, vol);
        }
    }

    fn run(&mut self) {
        let size = [8usize, 12, 24, 40][self.rng.below(4) as usize] << 20;
        let device = CrashDevice::new(vec![0; size], None);
        Volume::format(&device, "crash", u128::from(self.seed) << 64 | 77, FileTime(1)).unwrap();
        let mut found = CrashDevice::new(device.crash(&mut self.rng), None);
        for _ in 0..1 + self.rng.below(4) {
            let (device, vol) = self.open(found);
            let steps = 20 + self.rng.below(160);
            if self.rng.one_in(5) {
                device.die_after(None);
            } else {
                device.die_after(Some(self.rng.below(steps * 2)));
            }
            let store = VolumeStore::new(vol.clone(), self.durability);
            for _ in 0..steps {
                let through = self.durability == Durability::WriteThrough;
                let outcome = self.history.step(&mut self.rng, &vol, &*store, through);
                if device.is_dead() {
                    break;
                }
                if outcome == ops::Outcome::Durable {
                    let (seq, durable) = vol.progress();
                    assert_eq!(seq, durable, "seed {}: as the volume itself says, not durable", self.seed);
                }
            }
            if !device.is_dead() && self.rng.one_in(2) {
                self.history.check_now(&vol);
            }
            drop(store);
            drop(vol);
            found = self.after(device);
        }
        self.open(found);
    }
}

fn seeds() -> (u64, u64, Duration) {
    let seconds = std::env::var("ARDEN_VOLUME_SECONDS").ok().and_then(|s| s.parse().ok());
    let range = std::env::var("ARDEN_VOLUME_SEEDS").ok();
    let parsed =
        range.as_deref().and_then(|s| s.split_once("..")).map(|(a, b)| (a.parse().unwrap(), b.parse().unwrap()));
    let (from, to) = parsed.unwrap_or((0, u64::MAX));
    let limit = if range.is_some() && seconds.is_none() { 1_000_000 } else { seconds.unwrap_or(10) };
    (from, to, Duration::from_secs(limit))
}

#[test]
fn a_crash_at_any_write_loses_nothing_durable_and_leaves_nothing_half_done() {
    let (from, to, limit) = seeds();
    let (started, mut n) = (Instant::now(), 0);
    for seed in from..to {
        if started.elapsed() > limit {
            break;
        }
        if std::env::var_os("ARDEN_VOLUME_VERBOSE").is_some() {
            eprintln!("seed {seed}");
        }
        let run = std::panic::catch_unwind(|| Run::new(seed).run());
        if let Err(e) = run {
            eprintln!("seed {seed} fails: ARDEN_VOLUME_SEEDS={seed}..{}", seed + 1);
            std::panic::resume_unwind(e);
        }
        n += 1;
    }
    println!("{n} seeds from {from}");
}

/// The process ends while a checkpoint is written, and power is lost while the next one opens the volume: what it found may have
/// been in the device's cache only, and the checkpoint before leads to a log that is whole.
#[test]
fn a_checkpoint_that_an_opening_found_in_a_cache_is_durable_before_the_log_before_it_is_written_over() {
    let mut rng = Rng::new(5);
    let options = VolumeOptions { cache_bytes: 64 << 10, background: false, ..VolumeOptions::default() };
    let device = Arc::new(CrashDevice::new(vec![0; 8 << 20], None));
    Volume::format(&*device, "crash", 77, FileTime(1)).unwrap();
    // The log begins with its area's first block, which an opening erases where a batch that begins anew would be.
    let vol = Volume::open(device.clone(), options.clone()).unwrap();
    let store = VolumeStore::new(vol.clone(), Durability::WriteThrough);
    let root = store.root();
    for i in 0..20 {
        let new = NewFile { directory: false, attributes: 0, security: None, eas: &[], allocation: None };
        root.create_child(None, &format!("file {i}"), &new).unwrap();
    }
    vol.sync().unwrap();
    let durable = vol.progress().1;
    drop((root, store, vol));
    let media = device.crash(&mut rng);
    let mut checkpoints = 0;
    for step in 0..600u64 {
        let (ended, lost) = (step % 12, step / 12 % 8);
        let device = Arc::new(CrashDevice::new(media.clone(), None));
        let vol = Volume::open(device.clone(), options.clone()).unwrap();
        device.die_after(Some(ended));
        let written = vol.checkpoint().is_ok();
        checkpoints += u64::from(written);
        drop(vol);
        let alone = Arc::try_unwrap(device).unwrap_or_else(|_| panic!("the device is still in use")).outlive_host();
        let device = Arc::new(alone);
        device.die_after(Some(lost));
        drop(Volume::open(device.clone(), options.clone()));
        let device = Arc::new(CrashDevice::new(device.crash(&mut rng), None));
        let there = Volume::open(device, options.clone()).map(|vol| vol.progress().0);
        let all = there.as_ref().is_ok_and(|&there| there >= durable);
        assert!(all, "ended at {ended}, power lost at {lost}: {there:?}, {durable} were durable");
    }
    assert!(
        (1..600).contains(&checkpoints),
        "the end of the process falls into each step of a checkpoint: {checkpoints}"
    );
}
