//! Runs in which a pool is not given what it left: the halves of it were in use without each other, a disk is there twice,
//! an old image of a disk was put back, a disk of another pool stands in its place. A mirror of two disks, each of which can
//! serve alone. Owns what each of these has to end in:
//!
//! * **Split**: two halves, each of which acknowledged something without the other, are not opened together. Whoever says
//!   which half is thrown away gets the other, with everything that was acknowledged there. If only one half acknowledged
//!   anything, together they are either refused or what that half has.
//! * **Copies**: a disk and its copy are not opened together.
//! * **Old images**: a disk with an old image is a disk that lost everything since: nothing of it is ever read.
//! * **Strangers**: a disk of another pool is not written to, whatever its number there.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use arden_block::rng::Rng;
use arden_block::sim::{Faults, SimDisk};
use arden_block::{BLOCK_BYTES, BlockDevice, Buf, Rt};
use arden_space::{CreateOptions, Layout, OpenOptions, Pool, PoolConfig, Provision, Space, SpaceError, read_header};

use crate::oracle::{Oracle, fill};
use crate::stats::{Failure, Stats};

const BLOCKS: u64 = 96;
const LIFE_MAX_NS: u64 = 60_000_000_000;

struct Run {
    rng: Rng,
    stats: Stats,
    verbose: bool,
}

/// What users of one half, or of all of the pool, know.
#[derive(Clone)]
struct Known {
    oracle: Rc<RefCell<Oracle>>,
    /// Anything was acknowledged since the pool was in one piece.
    served: Rc<Cell<bool>>,
}

impl Known {
    fn fork(&self) -> Known {
        Known { oracle: Rc::new(RefCell::new(self.oracle.borrow().clone())), served: Rc::default() }
    }
}

/// How a life of a process ends.
enum End {
    /// With this, all of its work done.
    Done(Result<(), String>),
    Crash,
}

fn config() -> PoolConfig {
    PoolConfig { tick_ms: 5, busy_ms: 0, grace_ms: 1_000_000, io_timeout_ms: 1000, ..PoolConfig::default() }
}

async fn open_with(rt: &Rt, disks: &[SimDisk], discard: Vec<u128>) -> Result<Pool, SpaceError> {
    let devices: Vec<Rc<dyn BlockDevice>> = disks.iter().map(|d| d.attach(rt)).collect();
    Pool::open(rt, devices, None, OpenOptions { config: config(), discard }).await
}

async fn check_all(space: &Space, known: &Known, opened: bool, what: &str) -> Result<(), String> {
    for first in (0..BLOCKS).step_by(16) {
        let mark = known.oracle.borrow().read_begin(first, 16);
        let data =
            space.read(first * BLOCK_BYTES, 16 * BLOCK_BYTES as usize).await.map_err(|e| format!("{what}: {e}"))?;
        let mut o = known.oracle.borrow_mut();
        let checked = if opened { o.check_after_open(first, &data) } else { o.check(first, &data, &mark) };
        checked.map_err(|e| format!("{what}: {e}"))?;
    }
    Ok(())
}

/// Writes, flushes and reads.
async fn work(space: &Space, known: &Known, rng: &mut Rng, steps: u64) -> Result<(), String> {
    for _ in 0..steps {
        let (first, n) = (rng.below(BLOCKS - 8), rng.range(1, 8));
        match rng.below(8) {
            0 => {
                let mark = known.oracle.borrow().flush_begin();
                space.flush().await.map_err(|e| format!("flush: {e}"))?;
                known.oracle.borrow_mut().flush_end(mark);
                known.served.set(true);
            }
            1 => {
                let mark = known.oracle.borrow().read_begin(first, n);
                let data = space.read(first * BLOCK_BYTES, (n * BLOCK_BYTES) as usize).await;
                let data = data.map_err(|e| format!("read: {e}"))?;
                known.oracle.borrow_mut().check(first, &data, &mark)?;
            }
            kind => {
                let version = known.oracle.borrow_mut().new_version();
                let mut buf = Buf::new((n * BLOCK_BYTES) as usize);
                for (i, b) in buf.chunks_mut(BLOCK_BYTES as usize).enumerate() {
                    fill(first + i as u64, version, b);
                }
                known.oracle.borrow_mut().write_begin(first, n, version);
                let written = space.write(first * BLOCK_BYTES, buf.share(), kind < 5).await;
                known.oracle.borrow_mut().write_end(first, n, version, written.is_ok(), kind < 5);
                written.map_err(|e| format!("write: {e}"))?;
                known.served.set(true);
            }
        }
    }
    Ok(())
}

/// Runs one seed to its end.
pub fn run_identity_seed(seed: u64, verbose: bool) -> Result<Stats, Failure> {
    let mut run = Run { rng: Rng::new(seed ^ 0x6964_656e_7469_7479), stats: Stats::default(), verbose };
    match run.all() {
        Ok(()) => Ok(run.stats),
        Err(what) => Err(Failure { seed, what }),
    }
}

impl Run {
    fn say(&self, what: impl FnOnce() -> String) {
        if self.verbose {
            eprintln!("{}", what());
        }
    }

    fn disks(&mut self, name: &str) -> Vec<SimDisk> {
        let disks: Vec<SimDisk> =
            (0..2).map(|i| SimDisk::new(&format!("{name}{i}"), 5 << 20, self.rng.next_u64())).collect();
        disks.iter().for_each(|d| d.set_faults(Faults { latency_max_ns: 300_000, ..Faults::default() }));
        disks
    }

    /// One life of a process; power is lost at its end, or in the middle.
    fn life<F: Future<Output = Result<(), String>> + 'static>(
        &mut self,
        disks: &[SimDisk],
        known: &[&Known],
        crash_ns: Option<u64>,
        work: impl FnOnce(Rt) -> F,
    ) -> End {
        let rt = Rt::virtual_clock(self.rng.next_u64());
        let out: Rc<RefCell<Option<Result<(), String>>>> = Rc::default();
        let (put, future) = (out.clone(), work(rt.clone()));
        rt.spawn(async move {
            let v = future.await;
            *put.borrow_mut() = Some(v);
        });
        let limit = crash_ns.unwrap_or(LIFE_MAX_NS);
        while out.borrow().is_none() && rt.now_ns() < limit {
            rt.run_until_ns((rt.now_ns() + 250_000).min(limit));
        }
        rt.shutdown();
        disks.iter().for_each(SimDisk::crash);
        disks.iter().for_each(SimDisk::end_of_life);
        known.iter().for_each(|k| k.oracle.borrow_mut().crash());
        let ended = out.borrow_mut().take();
        match ended {
            Some(done) => End::Done(done),
            None if crash_ns.is_none() => End::Done(Err("it does not end".into())),
            None => {
                self.stats.crashes += 1;
                End::Crash
            }
        }
    }

    fn make(&mut self, disks: &[SimDisk]) -> Result<(), String> {
        let all = disks.to_vec();
        let End::Done(made) = self.life(disks, &[], None, async move |rt: Rt| {
            let devices: Vec<Rc<dyn BlockDevice>> = all.iter().map(|d| d.attach(&rt)).collect();
            let options = CreateOptions { slab_bytes: Some(128 << 10), config: config() };
            let made = async {
                let pool = Pool::create(&rt, "p", devices, Vec::new(), options).await?;
                pool.create_space("s", Layout::Mirror2, Some(1), 4096, BLOCKS * BLOCK_BYTES, Provision::Thin).await?;
                pool.close().await
            };
            made.await.map_err(|e| format!("create: {e}"))
        }) else {
            return Ok(());
        };
        made
    }

    /// Opens with these disks, compares, works, and ends orderly or not. What a crash leaves is part of what is known.
    fn session(&mut self, disks: &[SimDisk], known: &Known, crash: bool, discard: Vec<u128>) -> Result<(), String> {
        self.stats.openings += 1;
        let crash_ns = crash.then(|| self.rng.below(25_000_000));
        let (all, k) = (disks.to_vec(), known.clone());
        let (mut rng, steps, close) = (Rng::new(self.rng.next_u64()), self.rng.range(4, 30), self.rng.one_in(2));
        self.stats.operations += steps;
        let end = self.life(disks, &[known], crash_ns, async move |rt: Rt| {
            let pool = open_with(&rt, &all, discard).await.map_err(|e| format!("open: {e}"))?;
            let space = pool.space_named("s").map_err(|e| e.to_string())?;
            check_all(&space, &k, true, "after opening").await?;
            work(&space, &k, &mut rng, steps).await?;
            check_all(&space, &k, false, "at rest").await?;
            if close { pool.close().await.map_err(|e| format!("close: {e}")) } else { Ok(()) }
        });
        match end {
            End::Done(result) => result,
            End::Crash => Ok(()),
        }
    }

    /// Opens with all disks, and waits until every one is up to date. Then each of them alone has everything.
    fn settle(&mut self, disks: &[SimDisk], known: &Known) -> Result<(), String> {
        let (all, k) = (disks.to_vec(), known.clone());
        let end = self.life(disks, &[known], None, async move |rt: Rt| {
            let pool = open_with(&rt, &all, Vec::new()).await.map_err(|e| format!("open: {e}"))?;
            let space = pool.space_named("s").map_err(|e| e.to_string())?;
            check_all(&space, &k, true, "after opening").await?;
            pool.resync().await.map_err(|e| format!("resync: {e}"))?;
            while !pool.out_of_date().is_empty() || pool.journal_disks().len() < all.len() {
                rt.sleep_ns(1_000_000).await;
            }
            for (i, _) in all.iter().enumerate().skip(1) {
                pool.report_failure(i as u16 - 1).await.map_err(|e| format!("report: {e}"))?;
                check_all(&space, &k, false, &format!("without the disks before {i}")).await?;
            }
            for d in all.iter().take(all.len() - 1) {
                pool.return_disk(d.attach(&rt)).await.map_err(|e| format!("return: {e}"))?;
            }
            pool.resync().await.map_err(|e| format!("resync: {e}"))?;
            while !pool.out_of_date().is_empty() || pool.journal_disks().len() < all.len() {
                rt.sleep_ns(1_000_000).await;
            }
            pool.close().await.map_err(|e| format!("close: {e}"))
        });
        match end {
            End::Done(result) => result.map_err(|e| format!("settling: {e}")),
            End::Crash => Ok(()),
        }
    }

    fn all(&mut self) -> Result<(), String> {
        let disks = self.disks("d");
        self.make(&disks)?;
        let known = Known { oracle: Rc::new(RefCell::new(Oracle::new(BLOCKS))), served: Rc::default() };
        for _ in 0..self.rng.range(2, 4) {
            let crash = self.rng.one_in(2);
            self.session(&disks, &known, crash, Vec::new())?;
            self.settle(&disks, &known)?;
            match self.rng.below(4) {
                0 => self.split(&disks, &known)?,
                1 => self.copied(&disks, &known)?,
                2 => self.old_image(&disks, &known)?,
                _ => self.stranger(&disks, &known)?,
            }
            self.settle(&disks, &known)?;
        }
        Ok(())
    }

    /// Tries to open these disks; what became of that.
    fn try_open(&mut self, disks: &[SimDisk]) -> Result<Result<(), SpaceError>, String> {
        let all = disks.to_vec();
        let out: Rc<RefCell<Option<Result<(), SpaceError>>>> = Rc::default();
        let put = out.clone();
        let end = self.life(disks, &[], None, async move |rt: Rt| {
            let opened = open_with(&rt, &all, Vec::new()).await;
            *put.borrow_mut() = Some(opened.map(|_| ()));
            Ok(())
        });
        let opened = out.borrow_mut().take();
        match (end, opened) {
            (End::Done(Ok(())), Some(opened)) => Ok(opened),
            _ => Err("an opening does not end".into()),
        }
    }

    fn ids(&mut self, disks: &[SimDisk]) -> Vec<u128> {
        let rt = Rt::virtual_clock(1);
        let devices: Vec<_> = disks.iter().map(|d| d.attach(&rt)).collect();
        let ids = rt.block_on(async move {
            let mut ids = BTreeMap::new();
            for (i, d) in devices.iter().enumerate() {
                if let Ok(Some(h)) = read_header(&**d).await {
                    ids.insert(i, h.disk_id);
                }
            }
            ids.into_values().collect()
        });
        ids.unwrap_or_default()
    }

    fn split(&mut self, disks: &[SimDisk], known: &Known) -> Result<(), String> {
        let (mut a, mut b) = (disks[..1].to_vec(), disks[1..].to_vec());
        if self.rng.one_in(2) {
            std::mem::swap(&mut a, &mut b);
        }
        let halves = [(a, known.fork()), (b, known.fork())];
        for (disks, known) in &halves {
            let crash = self.rng.one_in(2);
            self.session(disks, known, crash, Vec::new()).map_err(|e| format!("a half: {e}"))?;
        }
        self.stats.splits += 1;
        let served = halves.each_ref().map(|h| h.1.served.get());
        self.say(|| format!("split; served {served:?}"));
        let both = served == [true, true];
        // On copies, so that the answer is all that comes of it.
        let trial: Vec<SimDisk> = disks.iter().map(|d| d.copy(&d.info().name, self.rng.next_u64())).collect();
        let opened = self.try_open(&trial)?;
        match &opened {
            Err(SpaceError::Diverged(_)) => {}
            Ok(()) if !both => {}
            other => return Err(format!("two halves of a pool together, of which {served:?} served: {other:?}")),
        }
        // One half goes on, the other is thrown away.
        let keep = match served {
            [true, false] => 0,
            [false, true] => 1,
            _ => self.rng.below(2) as usize,
        };
        let (kept, thrown) = (&halves[keep].1, &halves[1 - keep].0);
        let discard = self.ids(thrown);
        self.session(disks, kept, false, discard).map_err(|e| format!("half {keep} goes on: {e}"))?;
        *known.oracle.borrow_mut() = kept.oracle.borrow().clone();
        Ok(())
    }

    fn copied(&mut self, disks: &[SimDisk], known: &Known) -> Result<(), String> {
        self.stats.copies += 1;
        let of = self.rng.below(disks.len() as u64) as usize;
        let copy = disks[of].copy("copy", self.rng.next_u64());
        if self.rng.one_in(2) {
            // An old one.
            let crash = self.rng.one_in(2);
            self.session(disks, known, crash, Vec::new())?;
        }
        let before = copy.image();
        let mut all = disks.to_vec();
        all.insert(self.rng.below(all.len() as u64 + 1) as usize, copy.clone());
        match self.try_open(&all)? {
            Err(SpaceError::Refused(_)) if copy.is_like(&before) => Ok(()),
            other => Err(format!("disk {of} and its copy together: {other:?}")),
        }
    }

    fn old_image(&mut self, disks: &[SimDisk], known: &Known) -> Result<(), String> {
        self.stats.old_images += 1;
        let of = self.rng.below(disks.len() as u64) as usize;
        let image = disks[of].image();
        for _ in 0..self.rng.range(1, 2) {
            // To its end: a crash before anything was served would leave an image that is not old.
            self.session(disks, known, false, Vec::new())?;
        }
        // The disk may be missing in the map by then: what it misses is not all that the image misses.
        let missing = self.rng.one_in(2);
        if missing {
            let rest: Vec<SimDisk> = (0..disks.len()).filter(|&i| i != of).map(|i| disks[i].clone()).collect();
            self.session(&rest, known, false, Vec::new()).map_err(|e| format!("without {of}: {e}"))?;
        }
        disks[of].put_image(&image);
        self.say(|| format!("an old image of {of}, missing {missing}"));
        // Wherever a crash comes: what it leaves of the old image is old.
        if self.rng.one_in(2) {
            self.session(disks, known, true, Vec::new()).map_err(|e| format!("an old image of {of}: {e}"))?;
        }
        self.session(disks, known, false, Vec::new()).map_err(|e| format!("an old image of {of}: {e}"))
    }

    fn stranger(&mut self, disks: &[SimDisk], known: &Known) -> Result<(), String> {
        self.stats.strangers += 1;
        let others = self.disks("x");
        self.make(&others)?;
        let of = self.rng.below(disks.len() as u64) as usize;
        let (stranger, before) = (others[of].clone(), others[of].image());
        let (all, k) = (disks.to_vec(), known.clone());
        let end = self.life(disks, &[known], None, async move |rt: Rt| {
            let header = read_header(&*all[0].attach(&rt)).await.map_err(|e| e.to_string())?;
            let pool_id = header.map(|h| h.pool_id);
            let here = all.iter().enumerate().map(|(i, d)| if i == of { &stranger } else { d });
            let devices: Vec<Rc<dyn BlockDevice>> = here.map(|d| d.attach(&rt)).collect();
            let options = OpenOptions { config: config(), discard: Vec::new() };
            let pool = Pool::open(&rt, devices, pool_id, options).await.map_err(|e| format!("open: {e}"))?;
            let space = pool.space_named("s").map_err(|e| e.to_string())?;
            check_all(&space, &k, true, "with a stranger").await?;
            if pool.return_disk(stranger.attach(&rt)).await.is_ok() {
                return Err("a disk of another pool was taken back".into());
            }
            let mut rng = Rng::new(5);
            work(&space, &k, &mut rng, 10).await?;
            pool.close().await.map_err(|e| format!("close: {e}"))
        });
        if let End::Done(result) = end {
            result?;
        }
        if others[of].is_like(&before) {
            Ok(())
        } else {
            Err(format!("the stranger in the place of {of} was written to"))
        }
    }
}
