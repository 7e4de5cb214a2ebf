//! Facts of the system about a disk: size, media, model, serial, whether it is in use, and which file system or label lies
//! on it. Reads `/sys` and `/proc`; writes nothing.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::Media;

/// What `/sys` says of a block device; blanks for a file.
#[derive(Debug, Clone)]
pub struct Identity {
    pub media: Media,
    pub model: String,
    pub serial: String,
}

/// What the names that the device mapper has for multipath devices begin with.
pub const MULTIPATH_UUID: &str = "mpath-";

/// The directory of a block device in sysfs.
pub fn sys_dir_of(path: &Path) -> Option<PathBuf> {
    sys_dir(fs::metadata(path).ok().filter(|meta| meta.file_type().is_block_device())?.rdev())
}

/// Whether the kernel's multipath has made a device of this one and others, by which alone it is to be used.
pub fn is_path_of_multipath(path: &Path) -> bool {
    let holders = sys_dir_of(path).and_then(|dir| fs::read_dir(dir.join("holders")).ok());
    holders.into_iter().flatten().flatten().any(|holder| {
        fs::read_to_string(holder.path().join("dm/uuid")).is_ok_and(|uuid| uuid.starts_with(MULTIPATH_UUID))
    })
}

fn sys_dir(rdev: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    if major == 0 {
        return None;
    }
    let dir = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    Some(dir)
}

fn sys_text(dir: &Path, name: &str) -> Option<String> {
    // A partition has no queue or model of its own: look at its parent.
    for d in [Some(dir), dir.parent()].into_iter().flatten() {
        if let Ok(s) = fs::read_to_string(d.join(name)) {
            return Some(s.trim().to_string());
        }
    }
    None
}

/// Media, model and serial of what `rdev` names.
pub fn identity(path: &Path, rdev: u64) -> Identity {
    let Some(dir) = sys_dir(rdev) else {
        return Identity { media: Media::Unknown, model: "file".into(), serial: String::new() };
    };
    let media = if path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("nvme")) {
        Media::Nvme
    } else {
        match sys_text(&dir, "queue/rotational").as_deref() {
            Some("0") => Media::Ssd,
            Some("1") => Media::Rotating,
            _ => Media::Unknown,
        }
    };
    Identity {
        media,
        model: sys_text(&dir, "device/model").unwrap_or_default(),
        serial: sys_text(&dir, "device/serial").or_else(|| sys_text(&dir, "serial")).unwrap_or_default(),
    }
}

/// The whole block devices of this machine that hold anything: no partitions, no memory disks.
pub fn block_devices() -> Vec<PathBuf> {
    let Ok(list) = fs::read_dir("/sys/block") else { return Vec::new() };
    let skip = ["ram", "zram", "sr", "fd", "nbd"];
    let mut out: Vec<PathBuf> = list
        .flatten()
        .filter(|e| !skip.iter().any(|s| e.file_name().to_string_lossy().starts_with(s)))
        .filter(|e| fs::read_to_string(e.path().join("size")).is_ok_and(|s| s.trim() != "0"))
        .map(|e| Path::new("/dev").join(e.file_name()))
        .filter(|p| p.exists())
        .collect();
    out.sort();
    out
}

/// The size of a block device.
///
/// # Errors
/// The system's.
pub fn block_size_bytes(path: &Path) -> io::Result<u64> {
    fs::File::open(path)?.seek(SeekFrom::End(0))
}

/// Why a device cannot be taken, if so: mounted, swap, or held by another driver.
pub fn in_use_by(path: &Path) -> Option<String> {
    let meta = fs::metadata(path).ok()?;
    if !meta.file_type().is_block_device() {
        return None;
    }
    let real = fs::canonicalize(path).ok()?;
    let name = real.to_string_lossy().into_owned();
    let dir = sys_dir(meta.rdev())?;
    let own = format!("{}:{}", rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let mut numbers = vec![own];
    if let Ok(list) = fs::read_dir(&dir) {
        // A disk is in use when one of its partitions is.
        numbers.extend(
            list.flatten().filter_map(|e| fs::read_to_string(e.path().join("dev")).ok()).map(|s| s.trim().to_string()),
        );
    }
    for line in fs::read_to_string("/proc/self/mountinfo").unwrap_or_default().lines() {
        let f: Vec<&str> = line.split(' ').collect();
        if f.len() > 4 && numbers.iter().any(|n| n == f[2]) {
            return Some(format!("mounted at {}", f[4]));
        }
    }
    if fs::read_to_string("/proc/swaps").unwrap_or_default().lines().any(|l| l.split(' ').next() == Some(&name)) {
        return Some("swap space".into());
    }
    let holder = fs::read_dir(dir.join("holders")).ok()?.flatten().next()?;
    Some(format!("held by {}", holder.file_name().to_string_lossy()))
}

/// Names what is recognisably on a device, for the refusal that asks for `--force`.
///
/// # Errors
/// The system's, when the disk cannot be read.
pub fn content_of(path: &Path) -> io::Result<Option<String>> {
    let mut f = fs::File::open(path)?;
    let mut head = vec![0u8; 70_000];
    let mut n = 0;
    while n < head.len() {
        match f.read(&mut head[n..])? {
            0 => break,
            k => n += k,
        }
    }
    let at = |off: usize, magic: &[u8]| n >= off + magic.len() && &head[off..off + magic.len()] == magic;
    let found = if at(0, b"ARDNDISK") {
        "an Arden disk label"
    } else if at(0x438, &[0x53, 0xEF]) {
        "an ext file system"
    } else if at(0, b"XFSB") {
        "an XFS file system"
    } else if at(0x10040, b"_BHRfS_M") {
        "a btrfs file system"
    } else if at(3, b"NTFS    ") {
        "an NTFS file system"
    } else if at(4086, b"SWAPSPACE2") {
        "swap space"
    } else if at(0, b"LUKS\xBA\xBE") {
        "an encrypted volume (LUKS)"
    } else if at(536, b"LVM2") || at(512, b"LABELONE") {
        "an LVM physical volume"
    } else if at(4096, &[0xFC, 0x4E, 0x2B, 0xA9]) {
        "a Linux RAID member"
    } else if at(512, b"EFI PART") {
        "a GPT partition table"
    } else if at(510, &[0x55, 0xAA]) {
        "a partition table or boot sector"
    } else if head[..n].iter().any(|&b| b != 0) {
        "unknown data"
    } else {
        return Ok(None);
    };
    Ok(Some(found.to_string()))
}
