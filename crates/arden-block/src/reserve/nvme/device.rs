//! NVMe commands to a namespace through the kernel (NVME_IOCTL_IO_CMD, NVME_IOCTL_ADMIN_CMD). Beside the ring, `memory` and SG_IO the
//! only file with `unsafe`.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use super::{Command, Namespace, Queue};
use crate::reserve::Data;

/// A preempting that aborts waits for the commands that it ends.
const TIMEOUT_MS: u32 = 30_000;

const ID: Opcode = opcode::none(b'N', 0x40);
const ADMIN_CMD: Opcode = opcode::read_write::<PassthruCmd>(b'N', 0x41);
const IO_CMD: Opcode = opcode::read_write::<PassthruCmd>(b'N', 0x43);

/// `struct nvme_passthru_cmd` of the kernel's `linux/nvme_ioctl.h`.
#[repr(C)]
#[derive(Default)]
struct PassthruCmd {
    opcode: u8,
    flags: u8,
    rsvd1: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<PassthruCmd>() == 72);

/// An ioctl whose return value is of interest: the namespace's number, or a status.
struct Request<'a> {
    opcode: Opcode,
    command: Option<&'a mut PassthruCmd>,
}

// SAFETY: NVME_IOCTL_ID takes no argument. The other two take a `struct nvme_passthru_cmd`, of which `PassthruCmd` is the layout,
// and change it. `open` and `command` below make no other request.
unsafe impl Ioctl for Request<'_> {
    type Output = i32;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.command.as_mut().map_or(std::ptr::null_mut(), |c| std::ptr::from_mut::<PassthruCmd>(c).cast())
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(out)
    }
}

/// A namespace of this machine, by its block device or its generic device.
pub struct NvmeDisk {
    fd: OwnedFd,
    number: u32,
}

impl NvmeDisk {
    /// Opens the disk without a lock: a reservation is changed also while the disk is in use here.
    ///
    /// # Errors
    /// `Unsupported`, with the reason, when it is no NVMe namespace, or a part of one; that of the system.
    pub fn open(path: &Path) -> io::Result<NvmeDisk> {
        check_kind(path)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        // SAFETY: NVME_IOCTL_ID takes no argument and writes nothing.
        let number = unsafe { ioctl(&fd, Request { opcode: ID, command: None })? };
        Ok(NvmeDisk { fd, number: number.cast_unsigned() })
    }
}

/// A partition would be refused by the kernel, or passed to the whole namespace, depending on its version.
fn check_kind(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let refuse = |why: String| Err(io::Error::new(io::ErrorKind::Unsupported, why));
    let meta = fs::metadata(path)?;
    let kind = match meta.file_type() {
        t if t.is_block_device() => "block",
        t if t.is_char_device() => "char",
        _ => return refuse("it is no block device".into()),
    };
    let rdev = meta.rdev();
    let dir = PathBuf::from(format!("/sys/dev/{kind}/{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev)));
    let has = |name: &str| dir.join(name).exists();
    let generic = || fs::read_link(dir.join("subsystem")).is_ok_and(|s| s.ends_with("nvme-generic"));
    match () {
        () if has("partition") => return refuse("it is a partition, and reservations are of whole namespaces".into()),
        () if has("dm") => return refuse("it is a device of the device mapper, not an NVMe namespace".into()),
        () if kind == "block" && !has("nsid") || kind == "char" && !generic() => {
            return refuse("it is no NVMe namespace".into());
        }
        () => {}
    }
    let hosts = hosts_of(&dir.join("device"));
    if hosts.len() > 1 {
        let all = hosts.into_iter().collect::<Vec<_>>().join(", ");
        return refuse(format!("this machine reaches it under several host identifiers: {all}"));
    }
    Ok(())
}

/// The host identifiers of the controllers that the kernel uses for a namespace: of one, or, with its multipath, of all in a subsystem.
fn hosts_of(device: &Path) -> BTreeSet<String> {
    let all = fs::read_dir(device).into_iter().flatten().flatten().map(|e| e.path());
    let controllers = all.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("nvme")));
    let id = |dir: &Path| fs::read_to_string(dir.join("hostid")).ok().map(|id| id.trim().to_string());
    match id(device) {
        Some(id) => BTreeSet::from([id]),
        None => controllers.filter_map(|c| id(&c)).collect(),
    }
}

impl Namespace for NvmeDisk {
    fn command(&self, command: &Command, data: Data<'_>) -> io::Result<u16> {
        let (direction, at, len) = match data {
            Data::None => (0b00, 0, 0),
            Data::Out(bytes) => (0b01, bytes.as_ptr().expose_provenance(), bytes.len()),
            Data::In(bytes) => (0b10, bytes.as_mut_ptr().expose_provenance(), bytes.len()),
        };
        // Bits 1:0 of an opcode say where its data goes.
        if command.opcode & 0b11 != direction {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "data of the other direction"));
        }
        let mut passed = PassthruCmd {
            opcode: command.opcode,
            nsid: if command.of_namespace { self.number } else { 0 },
            addr: at as u64,
            data_len: u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?,
            cdw10: command.cdw10,
            cdw11: command.cdw11,
            timeout_ms: TIMEOUT_MS,
            ..PassthruCmd::default()
        };
        let opcode = if command.queue == Queue::Admin { ADMIN_CMD } else { IO_CMD };
        // SAFETY: the request is one that `Request` is for. The call returns when the command has ended, also by its timeout: the
        // kernel maps or copies the memory that the request names only until then. That memory is the bytes of `data`, borrowed for
        // longer than the call, with their length. It is written to only by commands whose opcode moves data to the host, which are
        // taken only with `In`, a mutable borrow.
        let status = unsafe { ioctl(&self.fd, Request { opcode, command: Some(&mut passed) })? };
        u16::try_from(status).map_err(|_| io::Error::other(format!("the kernel gave the status {status:#x}")))
    }
}
