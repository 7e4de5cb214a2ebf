//! The rows in virtual time: the gain of more disks, the cost of parity, the speed of a repair.

use arden_measure::{
    Result,
    load::{Access, Profile},
};
use arden_space::Layout;

use super::Line;
use crate::pools::timed::{Disk, Setup, World, bare, bare_stripe, profile, standard};

const SAS: Disk = Disk::Sas { write_cache: true };
/// Default number of requests in flight.
const OUTSTANDING: usize = 64;

fn line(section: &'static str, what: String, ours: f64, peer: f64, aim: f64) -> Line {
    let text = |v: f64| format!("{v:.0}/s");
    Line { section, what, ours: text(ours), peer: text(peer), ratio: ours / peer, aim, at_most: false }
}

/// IO/s of a simple space on `disks` disks.
fn simple(disk: Disk, disks: usize, p: &Profile, file_bytes: u64, seconds: f64) -> Result<f64> {
    let world = World::new(Setup::new(Layout::Simple, disks, disk).file_bytes(file_bytes))?;
    Ok(world.measure(p, OUTSTANDING, seconds)?.io_s)
}

/// The ratio of eight disks to four under a standard profile.
///
/// # Errors
/// The space cannot be built or does not answer.
pub fn doubling(disk: Disk, name: &str, file_bytes: u64, seconds: f64) -> Result<Line> {
    let p = standard(name);
    let four = simple(disk, 4, &p, file_bytes, seconds)?;
    let eight = simple(disk, 8, &p, file_bytes, seconds)?;
    let aim = if p.access == Access::Sequential { 1.95 } else { 1.9 };
    Ok(line(SCALING, format!("{}, {name}", describe(disk)), eight, four, aim))
}

/// The ratio of eight disks to four without a space: the bound of [`doubling`] for requests that lie at random.
///
/// # Errors
/// A disk does not answer.
pub fn bare_doubling(disk: Disk, name: &str, file_bytes: u64, seconds: f64) -> Result<Line> {
    let p = standard(name);
    let four = bare_stripe(disk, 4, &p, OUTSTANDING, file_bytes, seconds)?.io_s;
    let eight = bare_stripe(disk, 8, &p, OUTSTANDING, file_bytes, seconds)?.io_s;
    Ok(line(BARE, format!("{}, {name}", describe(disk)), eight, four, f64::NAN))
}

/// The kind of disk in tables.
pub fn describe(disk: Disk) -> &'static str {
    match disk {
        Disk::Sas { write_cache: true } => "SAS, cache on",
        Disk::Sas { write_cache: false } => "SAS, cache off",
        Disk::SataSsd => "SATA SSD",
    }
}

const SCALING: &str = "virtual time: simple on 8 disks against 4, 64 in flight";
const BARE: &str = "virtual time: the same without a space, 8 bare disks against 4, 64 in flight";
const PARITY: &str = "virtual time: parity on n disks, against (n-1)/n of simple on the same disks, sequential writes";
const REPAIR: &str = "virtual time: repair of one disk, nobody else there, against what one disk streams";
const RAID5: &str = "virtual time: parity with 64 KiB interleave, random 67/33 8 KiB, 64 in flight, against a RAID 5 with a perfect write-back cache";

/// Sequential writes of parity with all disks in one stripe, as a fraction of (n-1)/n of the rate of simple.
///
/// # Errors
/// The space cannot be built or does not answer.
pub fn parity_stream(disk: Disk, disks: usize, seconds: f64) -> Result<Line> {
    let p = standard("restore");
    let bytes = 2 << 30;
    let mut setup = Setup::new(Layout::Parity, disks, disk).columns(disks).file_bytes(bytes);
    setup.filled = false;
    let parity = World::new(setup)?.measure(&p, OUTSTANDING, seconds)?.io_s;
    let bound = simple(disk, disks, &p, bytes, seconds)? * (disks - 1) as f64 / disks as f64;
    Ok(line(PARITY, format!("{}, {disks} disks", describe(disk)), parity, bound, 0.9))
}

/// The upper bound of a RAID 5: every read is one operation of a disk, every write four (reads and writes of data and
/// parity), no operation waits for another, and each disk's queue is always full.
///
/// # Errors
/// The disk does not answer.
pub fn raid5_bound(disk: Disk, disks: usize, file_bytes: u64) -> Result<f64> {
    let each = file_bytes / (disks as u64 - 1);
    let one = bare(disk, &profile(Access::Random, 100, 8192), 32, each, 20.0)?.io_s;
    Ok(disks as f64 * one / (0.67 + 0.33 * 4.0))
}

/// Random reads and writes of parity, as a fraction of the bound of a RAID 5 of the same disks.
///
/// # Errors
/// The space cannot be built or does not answer.
pub fn parity_random(disk: Disk, disks: usize, file_bytes: u64, seconds: f64) -> Result<Line> {
    let mut setup = Setup::new(Layout::Parity, disks, disk).columns(disks).file_bytes(file_bytes);
    setup.interleave_bytes = 64 << 10;
    let world = World::new(setup)?;
    let ours = world.measure(&standard("database"), OUTSTANDING, seconds)?.io_s;
    let bound = raid5_bound(disk, disks, file_bytes)?;
    Ok(line(RAID5, format!("{}, {disks} disks", describe(disk)), ours, bound, 0.9))
}

/// The rate of a repair after the loss of one disk, without other load, against the streaming rate of one disk.
///
/// # Errors
/// The space cannot be built, or the repair is incomplete.
pub fn repair(disk: Disk, layout: Layout, disks: usize, file_bytes: u64) -> Result<Line> {
    let mut setup = Setup::new(layout, disks, disk).file_bytes(file_bytes);
    if layout.parity() > 0 {
        setup = setup.columns(disks - 1);
    }
    let ours = World::new(setup)?.repair(1)?;
    let stream = bare(disk, &standard("streaming"), 32, file_bytes, 1.0)?.mb_s;
    let text = |v: f64| format!("{v:.0} MB/s");
    Ok(Line {
        section: REPAIR,
        what: format!("{}, {} on {disks} disks", describe(disk), layout.name()),
        ours: text(ours),
        peer: text(stream),
        ratio: ours / stream,
        aim: 0.85,
        at_most: false,
    })
}

/// All rows of the page.
///
/// # Errors
/// A row fails.
pub fn all(quick: bool) -> Result<Vec<Line>> {
    let (seconds, span) = if quick { (2.0, 8 << 30) } else { (5.0, 32 << 30) };
    let cold = Disk::Sas { write_cache: false };
    let mut lines = Vec::new();
    for disk in [SAS, cold, Disk::SataSsd] {
        for p in Profile::standard() {
            lines.push(doubling(disk, &p.name, span, if disk == Disk::SataSsd { 0.1 } else { seconds })?);
        }
    }
    for disk in [SAS, cold, Disk::SataSsd] {
        for p in Profile::standard().into_iter().filter(|p| p.access == Access::Random) {
            lines.push(bare_doubling(disk, &p.name, span, if disk == Disk::SataSsd { 0.1 } else { seconds })?);
        }
    }
    for disk in [SAS, cold, Disk::SataSsd] {
        for disks in [3, 5, 8] {
            lines.push(parity_stream(disk, disks, if disk == Disk::SataSsd { 0.1 } else { seconds / 2.0 })?);
        }
    }
    for disk in [SAS, cold, Disk::SataSsd] {
        for layout in [Layout::Mirror2, Layout::Mirror3, Layout::Parity, Layout::DualParity] {
            lines.push(repair(disk, layout, 6, 1 << 30)?);
        }
    }
    lines.push(parity_random(SAS, 5, 4 << 30, 4.0 * seconds)?);
    Ok(lines)
}
