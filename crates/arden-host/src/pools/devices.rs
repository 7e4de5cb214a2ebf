//! Files and block devices as the daemon finds them: what they are, whose label they carry, and opening them
//! for a pool. Refuses what is mounted or in use, and to overwrite what it recognises.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use arden_admin::{
    AdminError, ErrorKind,
    error::Result,
    storage::{DiskInfo, DiskRecord},
};
use arden_block::{BlockDevice, Buf, IoError, Media, Rt, file::FileDevice, identify};
use arden_space::SpaceError;

use super::delay;
use super::scan::answer;
pub use super::scan::{Found, distinct, is_same, scan};

/// How often a disk that is in use is tried again, 20 ms apart.
const BUSY_TRIES: u32 = 100;

/// Facts about disks that were set by hand, by path.
pub type Labels = BTreeMap<String, DiskRecord>;

/// The kind of disk by its name in the API.
pub fn parse_media(text: &str) -> Option<Media> {
    Some(match text {
        "unknown" => Media::Unknown,
        "rotating" => Media::Rotating,
        "ssd" => Media::Ssd,
        "nvme" => Media::Nvme,
        _ => return None,
    })
}

fn media_name(media: Media) -> String {
    format!("{media:?}").to_lowercase()
}

fn described(mut dev: FileDevice, path: &Path, labels: &Labels) -> FileDevice {
    if let Some(l) = labels.get(&path.display().to_string()) {
        dev.describe(l.media.as_deref().and_then(parse_media), l.model.clone(), l.serial.clone());
    }
    dev
}

/// Opens a disk for a pool.
///
/// # Errors
/// Refused, when the disk is in use or cannot be opened.
pub fn open_device(rt: &Rt, path: &Path, labels: &Labels) -> std::result::Result<Rc<dyn BlockDevice>, SpaceError> {
    if let Some(by) = identify::in_use_by(path) {
        return Err(SpaceError::Refused(format!("{} is in use: {by}", path.display())));
    }
    match FileDevice::open(rt, path, true) {
        Ok(d) => Ok(delay::wrap(rt, path, Rc::new(described(d, path, labels)))),
        Err(e) => Err(SpaceError::Refused(format!("{}: {e}", path.display()))),
    }
}

/// Opens a disk of a known pool. The kernel lets go of a killed daemon's disks a moment after its end.
///
/// # Errors
/// As [`open_device`].
pub async fn open_soon(rt: &Rt, path: &Path, labels: &Labels) -> std::result::Result<Rc<dyn BlockDevice>, SpaceError> {
    for _ in 0..BUSY_TRIES {
        let opened = open_device(rt, path, labels);
        if opened.is_ok() || identify::in_use_by(path).is_some() {
            return opened;
        }
        rt.sleep_ns(20_000_000).await;
    }
    open_device(rt, path, labels)
}

/// Refuses a disk with recognisable content, unless forced; a label of a pool only wiping takes away.
///
/// # Errors
/// Conflict, with what is on the disk; invalid, when it is no file or block device.
pub fn check_empty(path: &Path, force: bool) -> Result<()> {
    let content = identify::content_of(path)
        .map_err(|e| AdminError::invalid(format!("{}: {e}", path.display()), "name a file or a block device"))?;
    match content {
        Some(what) if !force => Err(AdminError::new(
            ErrorKind::Conflict,
            format!("{} holds {what}", path.display()),
            "choose another disk, or give --force to overwrite it",
        )),
        _ => Ok(()),
    }
}

/// Disks and the files of directories among `named`; all block devices when none is named.
pub fn candidates(named: &[PathBuf]) -> Vec<PathBuf> {
    if named.is_empty() {
        // By the device of several paths, and not by one of those.
        let mut all = identify::block_devices();
        all.retain(|path| !identify::is_path_of_multipath(path));
        return all;
    }
    let mut out = Vec::new();
    for path in named {
        match std::fs::read_dir(path) {
            Ok(list) => out.extend(list.flatten().map(|e| e.path()).filter(|p| p.is_file())),
            Err(_) => out.push(path.clone()),
        }
    }
    out.sort();
    out.dedup();
    out
}

/// A disk as the API shows it.
///
/// # Errors
/// Invalid, when `path` is no file or block device that can be opened.
pub fn info(path: &Path, labels: &Labels) -> Result<DiskInfo> {
    let rt = Rt::real_with_threads();
    let dev = FileDevice::open(&rt, path, false)
        .map_err(|e| AdminError::invalid(format!("{}: {e}", path.display()), "name a file or a block device"))?;
    let i = described(dev, path, labels).info().clone();
    rt.shutdown();
    Ok(DiskInfo {
        path: path.to_path_buf(),
        size_bytes: i.size_bytes,
        media: media_name(i.media),
        model: i.model,
        serial: i.serial,
        content: match answer(path, identify::content_of) {
            Some(content) => content.ok().flatten().unwrap_or_default(),
            None => "unknown: the disk does not answer".to_string(),
        },
        in_use: identify::in_use_by(path).unwrap_or_default(),
        pool: scan(&[path.to_path_buf()]).pop().map_or_else(String::new, |f| f.pool_name),
    })
}

/// Takes the label away. The lock of a pool that has the disk open refuses it.
///
/// # Errors
/// Conflict, when the disk is in use; failed, with the system's error.
pub fn wipe(path: &Path, force: bool) -> Result<()> {
    check_empty(path, force)?;
    let rt = Rt::real_with_threads();
    let dev = open_device(&rt, path, &Labels::new())
        .map_err(|e| AdminError::new(ErrorKind::Conflict, e.to_string(), "take it out of its use first"))?;
    let zero = async move {
        for at in [0, 64 << 10] {
            dev.write(at, Buf::zeroed(4096).share(), true).await?;
        }
        Ok::<(), IoError>(())
    };
    let done = rt.block_on(zero).unwrap_or(Err(IoError::Gone));
    rt.shutdown();
    done.map_err(|e| AdminError::failed(format!("{}: {e}", path.display()), "see the kernel's log"))
}
