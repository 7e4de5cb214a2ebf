//! A volume while one disk of its space is overwritten with noise again and again, beside reads, writes of parts of blocks, checkpoints,
//! copies within the volume, openings, its absence, and other disks that make room for new ones. Every byte is compared, and nothing fails: the others
//! have it all. With parity the volume has time to look at the rows that were changed before there is more noise, or the disk leaves: the parity
//! of a row that was changed where there was noise is right only after it.

use std::{collections::BTreeMap, rc::Rc, sync::Arc, time::Duration};

use crate::under::OnSpace;
use arden_block::{BlockDevice, Rt, rng::Rng, sim::SimDisk};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, PoolConfig, Provision, Space, SpaceResult};
use arden_store::{
    name::{NtPath, PathWants},
    store::{FileStore, Lookup, NewFile, NodeRef, Result, Wait},
};
use arden_volume::{BlockCache, Durability, ScrubSettings, Volume, VolumeOptions, VolumeStore};
use arden_wire::{FileTime, access::ATTR_ARCHIVE};

const BLOCK: u64 = 4096;
const INTERLEAVE: u64 = 16 << 10;
const DISK_BYTES: u64 = 16 << 20;
/// Behind the label and the maps of the pool: without those a disk leaves. What follows is its log, and slabs.
const NOISE_FROM: u64 = 256 << 10;
const FILES: usize = 4;
const FILE_BYTES_MAX: u64 = 600_000;

struct Open {
    rt: Rt,
    pool: Pool,
    volume: Arc<Volume>,
    files: Vec<NodeRef>,
}

struct World {
    seed: u64,
    rng: Rng,
    layout: Layout,
    disks: BTreeMap<u16, SimDisk>,
    /// The disk that lies.
    liar: u16,
    open: Option<Open>,
    content: Vec<Vec<u8>>,
    lives: u64,
    /// The disk that lies has left.
    away: bool,
    /// So has another one.
    other_away: Option<u16>,
}

impl Drop for World {
    fn drop(&mut self) {
        OnSpace::end();
    }
}

fn config() -> PoolConfig {
    PoolConfig { gather_bytes_max: 256 << 10, tick_ms: 5, busy_ms: 0, grace_ms: 1_000_000, ..PoolConfig::default() }
}

fn name(file: usize) -> String {
    format!("file {file}")
}

impl World {
    fn new(seed: u64, layout: Layout, disks: usize) -> World {
        let mut rng = Rng::new(seed ^ 0x6c69_6573);
        let disks: BTreeMap<u16, SimDisk> = (0..disks as u16)
            .map(|i| (i, SimDisk::new(&format!("d{i}"), DISK_BYTES, seed * 16 + u64::from(i))))
            .collect();
        let liar = rng.below(disks.len() as u64) as u16;
        let mut world = World {
            seed,
            layout,
            disks,
            liar,
            open: None,
            content: vec![Vec::new(); FILES],
            lives: 0,
            away: false,
            other_away: None,
            rng,
        };
        world.begin(true);
        world
    }

    fn open(&self) -> &Open {
        self.open.as_ref().expect("between an end and a beginning")
    }

    fn pool(&mut self, rt: &Rt, first: bool) -> (Pool, Space) {
        let here = self.disks.iter().filter(|(index, _)| Some(**index) != self.other_away);
        let devices: Vec<Rc<dyn BlockDevice>> = here.map(|(_, d)| d.attach(rt)).collect();
        let (rt2, layout) = (rt.clone(), self.layout);
        let made = rt.block_on(async move {
            if !first {
                let pool =
                    Pool::open(&rt2, devices, None, OpenOptions { config: config(), discard: Vec::new() }).await?;
                let space = pool.space_named("s")?;
                return Ok((pool, space));
            }
            let options = CreateOptions { slab_bytes: Some(256 << 10), config: config() };
            let pool = Pool::create(&rt2, "p", devices, Vec::new(), options).await?;
            let space = pool.create_space("s", layout, None, INTERLEAVE, 8 << 20, Provision::Thin).await?;
            SpaceResult::Ok((pool, space))
        });
        made.expect("an answer").unwrap_or_else(|e| panic!("seed {}: {e}", self.seed))
    }

    fn begin(&mut self, first: bool) {
        self.lives += 1;
        self.away = false;
        let rt = Rt::virtual_clock(self.seed * 1000 + self.lives);
        let (pool, space) = self.pool(&rt, first);
        let device = OnSpace::begin(&rt, space, 0).unwrap();
        if first {
            Volume::format(&device, "lies", u128::from(self.seed) << 64 | 9, FileTime(1)).unwrap();
        }
        let options = VolumeOptions {
            cache_bytes: 0,
            blocks: self.rng.one_in(3).then(|| BlockCache::seeded(300_000, self.seed)),
            overlay_bytes_max: [20_000, 200_000, 2 << 20][self.rng.below(3) as usize],
            background: false,
            gather_bytes_max: [0, 200_000][self.rng.below(2) as usize],
            ..VolumeOptions::default()
        };
        let opened = Volume::open(Arc::new(device), options);
        let volume = opened.unwrap_or_else(|e| panic!("seed {}: opening: {e}", self.seed));
        let store = VolumeStore::new(volume.clone(), Durability::Plain);
        let new = NewFile { directory: false, attributes: ATTR_ARCHIVE, security: None, eas: &[], allocation: None };
        let file = |i: usize| match first {
            true => store.root().create_child(None, &name(i), &new).unwrap(),
            false => {
                let path = NtPath { components: vec![name(i)], stream: None, wants: PathWants::Any };
                match store.lookup(&path) {
                    Ok(Lookup::Found(node)) => node,
                    _ => panic!("seed {}: file {i} is not found", self.seed),
                }
            }
        };
        let files = (0..FILES).map(file).collect();
        self.open = Some(Open { rt, pool, volume, files });
    }

    /// In order, or as the host's end leaves it when everything was made durable before.
    /// Whether it was closed.
    fn end(&mut self) -> bool {
        self.mend();
        let Open { rt, pool, volume, files } = self.open.take().expect("open");
        drop(files);
        let closes = self.rng.one_in(2);
        if closes {
            volume.close().unwrap_or_else(|e| panic!("seed {}: closing: {e}", self.seed));
            rt.block_on(async move { pool.close().await }).expect("an answer").expect("closed");
        } else {
            volume.sync().unwrap_or_else(|e| panic!("seed {}: {e}", self.seed));
        }
        drop(volume);
        OnSpace::end();
        rt.shutdown();
        self.disks.values().for_each(|d| {
            d.crash();
            d.end_of_life();
        });
        closes
    }

    /// One block, some, or half of all.
    fn lie(&mut self) {
        self.mend();
        let disk = &self.disks[&self.liar];
        let blocks = (DISK_BYTES - NOISE_FROM) / BLOCK;
        let n = [1, 16, 300, blocks / 2][self.rng.below(4) as usize];
        let first = self.rng.below(blocks - n);
        for block in first..first + n {
            disk.rot(NOISE_FROM + block * BLOCK + self.rng.below(BLOCK / 16) * 16);
        }
    }

    fn done<T>(&self, what: &str, result: Result<T>) -> T {
        result.unwrap_or_else(|e| panic!("seed {}: {what}: {e:?}", self.seed))
    }

    /// Time without clients, and the disks are all there.
    fn mend(&mut self) {
        if self.layout.parity() == 0 || self.away {
            return;
        }
        let mended = self.open().volume.mend_changed_rows(Duration::from_secs(1000));
        mended.unwrap_or_else(|e| panic!("seed {}: {e}", self.seed));
    }

    fn scrub(&mut self) {
        // Of rows of which something waits in memory it leaves the parity as it is: that goes to the disks first.
        let Open { rt, volume, .. } = self.open();
        volume.sync().unwrap();
        rt.run_until_ns(rt.now_ns() + 5_000_000_000);
        let report = self.open().volume.scrub(&ScrubSettings::default()).unwrap();
        assert_eq!((report.damaged_blocks, report.damage.as_slice()), (0, [].as_slice()), "seed {}", self.seed);
    }

    fn read(&mut self, file: usize, from: u64, len: u64) {
        let want = self.content[file].len() as u64;
        let (from, len) = (from.min(want), len.min(want - from.min(want)));
        let mut buf = vec![0; len as usize];
        let read = self.open().files[file].read_at(from, &mut buf, Wait::Yes);
        let n = self.done("a read", read);
        let want = &self.content[file][from as usize..(from + len) as usize];
        assert!(n as u64 == len && buf == want, "seed {}: wrong bytes of file {file} behind {from}", self.seed);
    }

    fn read_all(&mut self) {
        for file in 0..FILES {
            for from in (0..self.content[file].len() as u64).step_by(70_000) {
                self.read(file, from, 70_000);
            }
        }
    }

    fn place(&mut self, file: usize) -> (u64, u64) {
        let len = [1, 100, 4096, 9000, 60_000, 200_000][self.rng.below(6) as usize];
        let from = self.rng.below((self.content[file].len() as u64 + 5000).min(FILE_BYTES_MAX - len));
        (from, 1 + self.rng.below(len))
    }

    fn write(&mut self, file: usize) {
        let (from, len) = self.place(file);
        let bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| self.rng.next_u64().to_le_bytes()).collect();
        let bytes = &bytes[..len as usize];
        let written = self.open().files[file].write_at(None, from, bytes, Wait::Yes);
        self.done("a write", written);
        let content = &mut self.content[file];
        content.resize(content.len().max((from + len) as usize), 0);
        content[from as usize..(from + len) as usize].copy_from_slice(bytes);
    }

    fn copy(&mut self, file: usize) {
        let (other, (from, len)) = ((file + 1) % FILES, self.place(file));
        let to = [from, from / BLOCK * BLOCK, 17][self.rng.below(3) as usize];
        let from = from.min(self.content[other].len() as u64);
        let files = &self.open().files;
        let copied = files[file].copy_from(None, &*files[other], from, to, len);
        let n = self.done("a copy", copied);
        if n == 0 {
            return;
        }
        let part = self.content[other][from as usize..(from + n) as usize].to_vec();
        let content = &mut self.content[file];
        content.resize(content.len().max((to + n) as usize), 0);
        content[to as usize..(to + n) as usize].copy_from_slice(&part);
    }

    fn resize(&mut self, file: usize) {
        let (to, _) = self.place(file);
        let resized = self.open().files[file].set_end_of_file(None, to);
        self.done("a new end", resized);
        self.content[file].resize(to as usize, 0);
    }

    fn zero(&mut self, file: usize) {
        let (from, len) = self.place(file);
        let zeroed = self.open().files[file].zero_range(None, from, len);
        self.done("zeros", zeroed);
        let end = self.content[file].len();
        let range = (from as usize).min(end)..((from + len) as usize).min(end);
        self.content[file][range].fill(0);
    }

    /// A disk that does not lie.
    fn other(&mut self) -> u16 {
        let others: Vec<u16> = self.disks.keys().copied().filter(|d| *d != self.liar).collect();
        others[self.rng.below(others.len() as u64) as usize]
    }

    /// A disk that does not lie makes room for a new one.
    fn replace(&mut self) {
        let leaves = self.other();
        let Open { rt, pool, .. } = self.open();
        let comes = SimDisk::new("new", DISK_BYTES, self.seed + 77 + self.lives);
        let (pool, device) = (pool.clone(), comes.attach(rt));
        let replaced = rt.block_on(async move {
            let index = pool.add_disk(device, false).await?;
            pool.remove_disk(leaves).await?;
            SpaceResult::Ok(index)
        });
        let index = replaced.expect("an answer").unwrap_or_else(|e| panic!("seed {}: {e}", self.seed));
        self.disks.remove(&leaves);
        self.disks.insert(index, comes);
    }

    /// The disk that lies leaves, or is back.
    fn come_or_go(&mut self) {
        self.mend();
        let Open { rt, pool, .. } = self.open();
        let (pool, liar, away, device) = (pool.clone(), self.liar, self.away, self.disks[&self.liar].attach(rt));
        let done = rt.block_on(async move {
            if away { pool.return_disk(device).await.map(drop) } else { pool.report_failure(liar).await }
        });
        done.expect("an answer").unwrap_or_else(|e| panic!("seed {}: {e}", self.seed));
        self.away = !away;
    }

    /// A disk that does not lie leaves, or is back: what it has of blocks that nobody wrote meanwhile stays what it is, and is not what the one that
    /// lies says. When it leaves nothing is dirty: of dirty regions it gets all blocks.
    fn other_comes_or_goes(&mut self) {
        let chosen = self.other();
        let Open { rt, pool, volume, .. } = self.open();
        let (pool, index) = (pool.clone(), self.other_away.unwrap_or(chosen));
        let (away, device) = (self.other_away.is_some(), self.disks[&index].attach(rt));
        volume.sync().unwrap();
        rt.run_until_ns(rt.now_ns() + 1_000_000_000);
        let done = rt.block_on(async move {
            if away { pool.return_disk(device).await.map(drop) } else { pool.report_failure(index).await }
        });
        done.expect("an answer").unwrap_or_else(|e| panic!("seed {}: {e}", self.seed));
        rt.run_until_ns(rt.now_ns() + 1_000_000_000);
        self.other_away = (!away).then_some(index);
    }

    fn step(&mut self) {
        let file = self.rng.below(FILES as u64) as usize;
        match self.rng.below(24) {
            0..=7 => self.write(file),
            8 => self.copy(file),
            9 => self.resize(file),
            10 => self.zero(file),
            11 => {
                let made = self.open().volume.checkpoint();
                self.done("a checkpoint", made.map_err(Into::into));
            }
            12 | 13 => {
                let rt = &self.open.as_ref().expect("open").rt;
                rt.run_until_ns(rt.now_ns() + self.rng.below(300_000_000));
            }
            14..=16 => self.lie(),
            17 if self.rng.one_in(2) && self.other_away.is_none() => {
                let nothing_is_dirty = self.end();
                if nothing_is_dirty && self.layout == Layout::Mirror3 && self.rng.one_in(2) {
                    self.other_away = Some(self.other());
                }
                self.begin(false);
            }
            18 if self.rng.one_in(2) && self.other_away.is_none() => self.replace(),
            19 if self.other_away.is_none() && self.rng.one_in(2) => self.come_or_go(),
            19 | 20 if self.layout == Layout::Mirror3 && !self.away => self.other_comes_or_goes(),
            _ => {
                let (from, len) = self.place(file);
                self.read(file, from, len);
            }
        }
    }

    /// What is left when all was read, written and healed.
    fn finish(&mut self) {
        if self.other_away.is_some() {
            self.other_comes_or_goes();
        }
        self.read_all();
        self.end();
        self.begin(false);
        self.read_all();
        self.scrub();
        assert!(self.open().volume.check(true).unwrap().is_clean(), "seed {}", self.seed);
        self.read_all();
        if self.layout.parity() == 0 {
            let Open { rt, pool, .. } = self.open();
            let pool = pool.clone();
            let status = rt.block_on(async move { pool.status() }).unwrap();
            let blamed = status.disks.iter().filter(|d| d.wrong_blocks > 0);
            assert!(blamed.clone().all(|d| d.index == self.liar), "seed {}: {:?}", self.seed, status.disks);
        }
    }
}

/// So many seeds, or as many as `ARDEN_LIES` says.
fn run(layout: Layout, disks: usize, seeds: u64) {
    let asked = std::env::var("ARDEN_LIES").ok().and_then(|n| n.parse().ok());
    for seed in 0..asked.unwrap_or(seeds) {
        let mut world = World::new(seed, layout, disks);
        (0..150).for_each(|_| world.step());
        world.finish();
    }
}

#[test]
fn one_disk_of_a_mirror_may_lie_beside_everything() {
    run(Layout::Mirror2, 3, 12);
}

#[test]
fn one_disk_of_three_copies_may_lie_beside_everything() {
    run(Layout::Mirror3, 5, 8);
}

#[test]
fn one_disk_of_parity_may_lie_beside_everything() {
    run(Layout::Parity, 4, 32);
}

#[test]
fn one_disk_of_dual_parity_may_lie_beside_everything() {
    run(Layout::DualParity, 6, 6);
}
