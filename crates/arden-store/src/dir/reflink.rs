//! Extents that two files share. The only file here with `unsafe`: rustix clones whole files only.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::ioctl::{Setter, ioctl, opcode};

/// `struct file_clone_range` of linux/fs.h.
#[repr(C)]
struct CloneRange {
    source: i64,
    source_offset: u64,
    len: u64,
    offset: u64,
}

/// FICLONERANGE. It copies nothing: where the file system cannot share, nothing happens.
const CLONE_RANGE: rustix::ioctl::Opcode = opcode::write::<CloneRange>(0x94, 13);

/// Lets `len` bytes at `offset` of `to` share the extents of `from`; not 0, which would be all that there is.
pub fn share(
    from: BorrowedFd<'_>,
    source_offset: u64,
    to: BorrowedFd<'_>,
    offset: u64,
    len: u64,
) -> rustix::io::Result<()> {
    let range = CloneRange { source: i64::from(from.as_raw_fd()), source_offset, len, offset };
    // SAFETY: FICLONERANGE reads a file_clone_range, whose layout CloneRange has and whose size is in the opcode, and keeps no
    // pointer to it. The descriptors are borrowed for the call.
    unsafe { ioctl(to, Setter::<CLONE_RANGE, CloneRange>::new(range)) }
}
