//! SCSI commands to a disk through the kernel (SG_IO). Beside the ring and `memory` the only file with `unsafe`.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Opcode, Setter, Updater, ioctl};

use super::{Data, Reply, Target};

const SG_IO: Opcode = 0x2285;
const SG_SCSI_RESET: Opcode = 0x2284;
/// LOGICAL UNIT RESET, and nothing larger where that fails: other disks of the target are not ours.
const RESET_DEVICE_ALONE: i32 = 0x101;
/// PREEMPT AND ABORT waits for the commands that it ends.
const TIMEOUT_MS: u32 = 30_000;
/// Of a question where other paths lead to the disk too.
const ONE_OF_SEVERAL_TIMEOUT_MS: u32 = 10_000;
const SENSE_BYTES: usize = 64;
const DXFER_NONE: i32 = -1;
const DXFER_TO_DEV: i32 = -2;
const DXFER_FROM_DEV: i32 = -3;

/// `struct sg_io_hdr` of the kernel's `scsi/sg.h`.
#[repr(C)]
struct SgIoHdr {
    interface_id: i32,
    dxfer_direction: i32,
    cmd_len: u8,
    mx_sb_len: u8,
    iovec_count: u16,
    dxfer_len: u32,
    dxferp: *mut c_void,
    cmdp: *const u8,
    sbp: *mut u8,
    timeout: u32,
    flags: u32,
    pack_id: i32,
    usr_ptr: *mut c_void,
    status: u8,
    masked_status: u8,
    msg_status: u8,
    sb_len_wr: u8,
    host_status: u16,
    driver_status: u16,
    resid: i32,
    duration: u32,
    info: u32,
}

/// A whole SCSI disk of this machine.
pub struct SgDisk {
    fd: OwnedFd,
    initiator: Option<String>,
    /// How long an answer is waited for.
    question_timeout_ms: u32,
}

impl SgDisk {
    /// Opens the disk without a lock: a reservation is changed also while the disk is in use here.
    ///
    /// # Errors
    /// `Unsupported`, with the reason, when it is no SCSI disk, or a part of one; that of the system.
    pub fn open(path: &Path) -> io::Result<SgDisk> {
        check_kind(path)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(SgDisk { fd, initiator: initiator(path), question_timeout_ms: TIMEOUT_MS })
    }

    /// Other paths lead to the disk too: a question that is not answered soon goes by one of these.
    pub(super) fn is_one_of_several(&mut self) {
        self.question_timeout_ms = ONE_OF_SEVERAL_TIMEOUT_MS;
    }
}

/// By the place of the device in sysfs: below its iSCSI session, or its Fibre Channel port. Other transports have names that are burned in.
fn initiator(path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let rdev = fs::metadata(path).ok()?.rdev();
    let dir = format!("/sys/dev/block/{}:{}/device", rustix::fs::major(rdev), rustix::fs::minor(rdev));
    initiator_of(&fs::canonicalize(dir).ok()?, Path::new("/sys/class"))
}

fn initiator_of(device: &Path, classes: &Path) -> Option<String> {
    let read = |class: &str, of: &str, name: &str| {
        let text = fs::read_to_string(classes.join(class).join(of).join(name)).ok()?;
        let text = text.trim();
        (!text.is_empty() && text != "<NULL>").then(|| text.to_string())
    };
    device.components().rev().find_map(|part| {
        let part = part.as_os_str().to_str()?;
        let iscsi = || Some(format!("iscsi:{}", read("iscsi_session", part, "initiatorname")?.to_lowercase()));
        let fc = || Some(format!("fc:{}", read("fc_host", part, "port_name")?));
        iscsi().or_else(fc)
    })
}

/// Reservations are of a path to a whole disk. The kernel would send a command for a partition or a mapped device to the disk
/// below, or to one of several paths, of which only that one would have the key (those of a multipath device are opened one by one).
fn check_kind(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::Unsupported, why.to_string()));
    let meta = fs::metadata(path)?;
    if !meta.file_type().is_block_device() {
        return refuse("it is no block device");
    }
    let rdev = meta.rdev();
    let dir = format!("/sys/dev/block/{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let has = |name: &str| Path::new(&dir).join(name).exists();
    match () {
        () if has("partition") => refuse("it is a partition, and persistent reservations are of whole disks"),
        () if has("dm") => refuse("it is a device of the device mapper, and not of its multipath"),
        () if !has("device/scsi_level") => refuse("it is no SCSI disk"),
        () => Ok(()),
    }
}

impl Target for SgDisk {
    fn command(&self, cdb: &[u8], data: Data<'_>) -> io::Result<Reply> {
        let mut sense = [0_u8; SENSE_BYTES];
        let timeout = if matches!(data, Data::In(_)) { self.question_timeout_ms } else { TIMEOUT_MS };
        let (direction, at, len) = match data {
            Data::None => (DXFER_NONE, std::ptr::null_mut(), 0),
            // The kernel only reads it, as the direction says.
            Data::Out(bytes) => (DXFER_TO_DEV, bytes.as_ptr().cast_mut().cast(), bytes.len()),
            Data::In(bytes) => (DXFER_FROM_DEV, bytes.as_mut_ptr().cast(), bytes.len()),
        };
        let cmd_len = u8::try_from(cdb.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let dxfer_len = u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut header = SgIoHdr {
            interface_id: i32::from(b'S'),
            dxfer_direction: direction,
            cmd_len,
            mx_sb_len: SENSE_BYTES as u8,
            iovec_count: 0,
            dxfer_len,
            dxferp: at,
            cmdp: cdb.as_ptr(),
            sbp: sense.as_mut_ptr(),
            timeout,
            flags: 0,
            pack_id: 0,
            usr_ptr: std::ptr::null_mut(),
            status: 0,
            masked_status: 0,
            msg_status: 0,
            sb_len_wr: 0,
            host_status: 0,
            driver_status: 0,
            resid: 0,
            duration: 0,
            info: 0,
        };
        // SAFETY: SG_IO takes a `struct sg_io_hdr`, of which `SgIoHdr` is the layout, reads and writes it. The call returns when
        // the command has ended, also by a signal or its timeout: the block layer copies or maps the memory that the header names
        // only until then. That memory is `cdb`, `sense` and the bytes of `data`, which are borrowed for longer than the call, with
        // their lengths; `data` is written to only when it is `In`, which is a mutable borrow.
        unsafe {
            let request = Updater::<SG_IO, SgIoHdr>::new(&mut header);
            ioctl(&self.fd, request)?;
        }
        let told = usize::from(header.sb_len_wr).min(SENSE_BYTES);
        let left = usize::try_from(header.resid).unwrap_or(0);
        Ok(Reply {
            status: header.status,
            host_status: header.host_status,
            sense: super::codec::sense(&sense[..told]),
            transferred: len.saturating_sub(left),
        })
    }

    fn reset(&self) -> io::Result<()> {
        // SAFETY: SG_SCSI_RESET takes a pointer to an `int`, which it only reads.
        unsafe { ioctl(&self.fd, Setter::<SG_SCSI_RESET, i32>::new(RESET_DEVICE_ALONE))? };
        Ok(())
    }

    fn initiator(&self) -> Option<String> {
        self.initiator.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_initiator_is_that_of_the_session_or_port() {
        let root = std::env::temp_dir().join(format!("arden-sg-{}", std::process::id()));
        let put = |at: &str, text: &str| {
            fs::create_dir_all(root.join(at).parent().unwrap()).unwrap();
            fs::write(root.join(at), text).unwrap();
        };
        put("iscsi_session/session3/initiatorname", "iqn.2026-11.Example:a\n");
        put("iscsi_session/session4/initiatorname", "<NULL>\n");
        put("fc_host/host7/port_name", "0x500a0b8000000001\n");
        let of = |device: &str| initiator_of(Path::new(device), &root);
        let disk = "target0:0:0/0:0:0:1";
        let found = of(&format!("/sys/devices/platform/host2/session3/{disk}"));
        assert_eq!(found.as_deref(), Some("iscsi:iqn.2026-11.example:a"));
        let found = of(&format!("/sys/devices/pci0000:00/host7/rport-7:0-1/{disk}"));
        assert_eq!(found.as_deref(), Some("fc:0x500a0b8000000001"));
        assert_eq!(
            (of(&format!("/sys/devices/host2/session4/{disk}")), of(&format!("/sys/devices/host1/{disk}"))),
            (None, None)
        );
        fs::remove_dir_all(&root).unwrap();
    }
}
