//! Spaces on simulated disks with the timing of real ones, in virtual time: the same seed gives the same figures on
//! every machine. The disks keep labels and maps only.

use std::rc::Rc;

use arden_block::{
    BlockDevice, Buf, DeviceInfo, IoError, IoResult, LocalFuture, Media, Rt, SharedBuf, sim::SimDisk, timing::Model,
};
use arden_space::{Layout, Pool, Space, SpaceError};

use super::{SpaceSetup, create};

use arden_measure::{
    Error, Result, fail,
    load::{Access, BlockTarget, Content, Figures, Live, Load, Profile, Window, drive, fill},
};

const SECOND_NS: u64 = 1_000_000_000;
/// Default interleave in bytes.
pub const INTERLEAVE_BYTES: u64 = 256 << 10;

/// The kind of the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    /// SAS, 10,000 rpm, 147 GB.
    Sas { write_cache: bool },
    /// SATA SSD of the 500 MB/s class.
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

/// The configuration of a space.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub disk: Disk,
    pub disks: usize,
    pub spares: usize,
    pub layout: Layout,
    /// `None`: the layout's default.
    pub columns: Option<usize>,
    pub interleave_bytes: u64,
    pub file_bytes: u64,
    /// The space is written once before the measurement. Without that, parity reads unallocated blocks as zeros.
    pub filled: bool,
}

impl Setup {
    /// A space of 4 GiB with an interleave of 256 KiB; it is filled when the layout has parity.
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

    /// Sets the number of columns.
    pub fn columns(mut self, columns: usize) -> Setup {
        self.columns = Some(columns);
        self
    }

    /// Sets the size of the space.
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
    /// The setup is impossible, for example with more columns than disks.
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

    /// The space as a target in virtual time.
    pub fn target(&self) -> BlockTarget {
        BlockTarget::new(&self.rt, Rc::new(self.space.device()))
    }

    /// Flushes written data to stable storage.
    ///
    /// # Errors
    /// The flush fails or does not end.
    pub fn flush(&self) -> Result<()> {
        let space = self.space.clone();
        match self.rt.block_on(async move { space.flush().await }) {
            Some(Ok(())) => Ok(()),
            other => fail!("flush: {other:?}"),
        }
    }

    /// Loses a disk and repairs the pool without other load. Returns the rate of writing in MB/s.
    ///
    /// # Errors
    /// The repair fails or is incomplete.
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

    /// Runs a profile for `seconds`, of which the first fifth is the warm-up.
    ///
    /// # Errors
    /// A request fails.
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

/// Runs a profile on one disk without a pool.
///
/// # Errors
/// A request fails.
pub fn bare(disk: Disk, p: &Profile, outstanding: usize, file_bytes: u64, seconds: f64) -> Result<Figures> {
    let rt = Rt::virtual_clock(1);
    let device = SimDisk::timed("d", disk.size_bytes(), 1, disk.model(), false).attach(&rt);
    run(&mut BlockTarget::new(&rt, device), p, outstanding, file_bytes, (seconds * SECOND_NS as f64) as u64)
}

/// Runs a profile on bare disks behind nothing but a stripe: no pool, no log, no map. What disks alone would do.
///
/// # Errors
/// A request fails.
pub fn bare_stripe(
    disk: Disk,
    disks: usize,
    p: &Profile,
    outstanding: usize,
    file_bytes: u64,
    seconds: f64,
) -> Result<Figures> {
    let rt = Rt::virtual_clock(1);
    let disks: Vec<Rc<dyn BlockDevice>> = (0..disks)
        .map(|i| SimDisk::timed(&format!("d{i}"), disk.size_bytes(), i as u64, disk.model(), false).attach(&rt))
        .collect();
    let (name, size_bytes) = ("stripe".to_owned(), file_bytes);
    let info = DeviceInfo { name, size_bytes, media: Media::Unknown, model: String::new(), serial: String::new() };
    let stripe: Rc<dyn BlockDevice> = Rc::new(Stripe { disks, info });
    run(&mut BlockTarget::new(&rt, stripe), p, outstanding, file_bytes, (seconds * SECOND_NS as f64) as u64)
}

/// Disks side by side in units of [`INTERLEAVE_BYTES`]. Takes requests that lie in one unit.
struct Stripe {
    disks: Vec<Rc<dyn BlockDevice>>,
    info: DeviceInfo,
}

impl Stripe {
    fn place(&self, offset: u64, len: u64) -> IoResult<(&dyn BlockDevice, u64)> {
        if offset % INTERLEAVE_BYTES + len > INTERLEAVE_BYTES {
            return Err(IoError::Unsupported);
        }
        let (unit, count) = (offset / INTERLEAVE_BYTES, self.disks.len() as u64);
        let disk = &self.disks[(unit % count) as usize];
        Ok((&**disk, unit / count * INTERLEAVE_BYTES + offset % INTERLEAVE_BYTES))
    }
}

impl BlockDevice for Stripe {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        match self.place(offset, len as u64) {
            Ok((disk, at)) => disk.read(at, len),
            Err(e) => Box::pin(async move { Err(e) }),
        }
    }

    fn write(&self, offset: u64, data: SharedBuf, durable: bool) -> LocalFuture<IoResult<()>> {
        match self.place(offset, data.len() as u64) {
            Ok((disk, at)) => disk.write(at, data, durable),
            Err(e) => Box::pin(async move { Err(e) }),
        }
    }

    fn write_zeroes(&self, _offset: u64, _len: u64) -> LocalFuture<IoResult<()>> {
        Box::pin(async { Err(IoError::Unsupported) })
    }

    fn discard(&self, _offset: u64, _len: u64) -> LocalFuture<IoResult<()>> {
        Box::pin(async { Err(IoError::Unsupported) })
    }

    fn flush(&self) -> LocalFuture<IoResult<()>> {
        let flushes: Vec<_> = self.disks.iter().map(|d| d.flush()).collect();
        Box::pin(async move {
            for flush in flushes {
                flush.await?;
            }
            Ok(())
        })
    }
}

/// The standard profile with this name.
pub fn standard(name: &str) -> Profile {
    Profile::named(name).expect("one of the five")
}

/// A profile that is not a standard one.
pub fn profile(access: Access, read_percent: u8, block_bytes: u32) -> Profile {
    Profile { name: String::new(), access, read_percent, block_bytes }
}
