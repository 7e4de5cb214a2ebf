//! Spaces on simulated disks that take the time of real ones, in virtual time: the same seed gives the same figures on
//! every machine. The disks keep no data beyond labels and maps.

use std::rc::Rc;

use arden_block::{BlockDevice, Rt, sim::SimDisk, timing::Model};
use arden_space::{Layout, Pool, Space, SpaceError};

use super::{SpaceSetup, create};

use arden_measure::{
    Error, Result, fail,
    load::{Access, BlockTarget, Content, Figures, Live, Load, Profile, Window, drive, fill},
};

const SECOND_NS: u64 = 1_000_000_000;
/// The interleave where nothing else is said.
pub const INTERLEAVE_BYTES: u64 = 256 << 10;

/// What the disks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    /// 10,000 rpm, 147 GB, SAS.
    Sas { write_cache: bool },
    /// 500 MB/s class.
    SataSsd,
}

impl Disk {
    /// The timing model of the disk.
    pub fn model(self) -> Model {
        match self {
            Disk::Sas { write_cache } => Model::sas_10k_147g(write_cache),
            Disk::SataSsd => Model::sata_ssd(),
        }
    }

    fn size_bytes(self) -> u64 {
        match self {
            Disk::Sas { .. } => 147_000_000_000,
            Disk::SataSsd => 480_000_000_000,
        }
    }
}

/// What is built.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub disk: Disk,
    pub disks: usize,
    pub spares: usize,
    pub layout: Layout,
    /// The layout's default when `None`.
    pub columns: Option<usize>,
    pub interleave_bytes: u64,
    pub file_bytes: u64,
    /// Written once before anything is measured; without it parity reads zeros from nowhere.
    pub filled: bool,
}

impl Setup {
    /// 256 KiB of interleave, a space of 4 GiB, written once where there is parity.
    pub fn new(layout: Layout, disks: usize, disk: Disk) -> Setup {
        Setup {
            disk,
            disks,
            spares: 0,
            layout,
            columns: None,
            interleave_bytes: INTERLEAVE_BYTES,
            file_bytes: 4 << 30,
            filled: layout.parity() > 0,
        }
    }

    /// With so many columns.
    pub fn columns(mut self, columns: usize) -> Setup {
        self.columns = Some(columns);
        self
    }

    /// With a space of so many bytes.
    pub fn file_bytes(mut self, bytes: u64) -> Setup {
        self.file_bytes = bytes;
        self
    }
}

/// A pool with one space on simulated disks.
pub struct World {
    pub rt: Rt,
    pub disks: Vec<SimDisk>,
    pub pool: Pool,
    pub space: Space,
    setup: Setup,
}

impl World {
    /// Builds the pool and the space.
    ///
    /// # Errors
    /// A setup that cannot be, such as more columns than disks.
    pub fn new(setup: Setup) -> Result<World> {
        let rt = Rt::virtual_clock(1);
        let disks: Vec<SimDisk> = (0..setup.disks + setup.spares)
            .map(|i| SimDisk::timed(&format!("d{i}"), setup.disk.size_bytes(), i as u64, setup.disk.model(), false))
            .collect();
        let mut devices: Vec<Rc<dyn BlockDevice>> = disks.iter().map(|d| d.attach(&rt)).collect();
        let spares = devices.split_off(setup.disks);
        let Setup { layout, columns, interleave_bytes, file_bytes: bytes, .. } = setup;
        let (pool, space) = create(&rt, devices, spares, SpaceSetup { layout, columns, interleave_bytes, bytes })?;
        let world = World { rt, disks, pool, space, setup };
        if setup.filled {
            fill(&mut world.target(), setup.file_bytes, &mut Content::plain(1), &Live::default())?;
            world.flush()?;
        }
        Ok(world)
    }

    /// The space, driven in virtual time.
    pub fn target(&self) -> BlockTarget {
        BlockTarget::new(&self.rt, Rc::new(self.space.device()))
    }

    /// Puts what was written on stable storage.
    ///
    /// # Errors
    /// A flush that fails or never ends.
    pub fn flush(&self) -> Result<()> {
        let space = self.space.clone();
        match self.rt.block_on(async move { space.flush().await }) {
            Some(Ok(())) => Ok(()),
            other => fail!("flush: {other:?}"),
        }
    }

    /// Loses a disk and puts what it held elsewhere, with nobody else there; gives MB/s written.
    ///
    /// # Errors
    /// A repair that fails or leaves something.
    pub fn repair(&self, disk: u16) -> Result<f64> {
        self.disks[usize::from(disk)].kill();
        let (pool, rt) = (self.pool.clone(), self.rt.clone());
        let written = || self.disks.iter().map(|d| d.counters().write_bytes).sum::<u64>();
        let before = written();
        let done = self.rt.block_on(async move {
            pool.report_failure(disk).await?;
            let start = rt.now_ns();
            let report = pool.repair().await?;
            Ok::<_, SpaceError>((report, rt.now_ns() - start, pool.status()))
        });
        let Some(Ok((report, ns, status))) = done else { fail!("repair: {:?}", done.and_then(|d| d.err())) };
        if report.left > 0 || status.spaces.iter().any(|s| s.groups_degraded > 0) {
            fail!("repair left something: {report:?}");
        }
        Ok((written() - before) as f64 * 1e3 / ns as f64)
    }

    /// Runs a profile; the first fifth warms up.
    ///
    /// # Errors
    /// A request that fails.
    pub fn measure(&self, profile: &Profile, outstanding: usize, seconds: f64) -> Result<Figures> {
        let measure_ns = (seconds * SECOND_NS as f64) as u64;
        run(&mut self.target(), profile, outstanding, self.setup.file_bytes, measure_ns)
    }
}

fn run(target: &mut BlockTarget, p: &Profile, outstanding: usize, file_bytes: u64, measure_ns: u64) -> Result<Figures> {
    let load = Load { seed: 7, ..Load::of(p, outstanding, file_bytes) };
    let window = Window { warm_up_ns: measure_ns / 4, measure_ns };
    let m = drive(target, &load, window, &mut Content::plain(1), &Live::default());
    match m.problem {
        None => Ok(m.recorder.figures()),
        Some(p) => Err(Error(p)),
    }
}

/// One disk alone, with nothing on it.
///
/// # Errors
/// A request that fails.
pub fn bare(disk: Disk, p: &Profile, outstanding: usize, file_bytes: u64, seconds: f64) -> Result<Figures> {
    let rt = Rt::virtual_clock(1);
    let device = SimDisk::timed("d", disk.size_bytes(), 1, disk.model(), false).attach(&rt);
    run(&mut BlockTarget::new(&rt, device), p, outstanding, file_bytes, (seconds * SECOND_NS as f64) as u64)
}

/// A standard profile by name.
pub fn standard(name: &str) -> Profile {
    Profile::named(name).expect("one of the five")
}

/// Sequential writes of 64 KiB, and the like.
pub fn profile(access: Access, read_percent: u8, block_bytes: u32) -> Profile {
    Profile { name: String::new(), access, read_percent, block_bytes }
}
