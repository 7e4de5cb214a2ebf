//! Reparse points. Symbolic links of Linux appear as IO_REPARSE_TAG_SYMLINK. What clients set is kept as they gave it
//! in `user.SmbReparse`, with its 8-byte header, where newer Samba servers keep it; Arden makes no links that local
//! processes would follow, so a client cannot aim one at the rest of the machine.

use std::{os::fd::BorrowedFd, sync::Arc};

use arden_wire::{
    access::ATTR_REPARSE_POINT,
    cursor::{Put, Reader},
    fscc::reparse_guid_bytes,
    names::{name_of_bytes, name_units, put_name_units},
};

use super::{
    Shared, dosattrib,
    inode::Inode,
    meta::{DOSATTRIB, Meta},
    sys::{self, Kind},
};
use crate::error::StoreError;
use crate::store::Result;

pub const OPAQUE: &str = "user.SmbReparse";
pub const TAG_SYMLINK: u32 = 0xA000_000C;
const SYMLINK_FLAG_RELATIVE: u32 = 1;
/// [MS-FSCC] 2.1.2.2: MAXIMUM_REPARSE_DATA_BUFFER_SIZE.
const BUFFER_BYTES_MAX: usize = 16_384;
const HEADER_BYTES: usize = 8;

pub fn read_opaque_tag(fd: BorrowedFd<'_>) -> u32 {
    match sys::get_xattr(fd, OPAQUE, BUFFER_BYTES_MAX) {
        Ok(Some(value)) => Reader::new(&value).u32().unwrap_or(0),
        _ => 0,
    }
}

impl Shared {
    pub fn reparse(&self, inode: &Inode) -> Result<(u32, Vec<u8>)> {
        if inode.kind == Kind::Symlink {
            let target = rustix::fs::readlinkat(inode.pin(), c"", Vec::new()).map_err(sys::failure)?;
            let target = name_of_bytes(target.to_bytes()).ok_or(StoreError::InvalidReparseData)?;
            return Ok((TAG_SYMLINK, symlink_buffer(&target)));
        }
        let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
        let value = sys::get_xattr(fd, OPAQUE, BUFFER_BYTES_MAX).map_err(sys::failure)?;
        let value = value.ok_or(StoreError::NotAReparsePoint)?;
        let tag = Reader::new(&value).u32().map_err(|_| StoreError::InvalidReparseData)?;
        let data = value.get(HEADER_BYTES..).ok_or(StoreError::InvalidReparseData)?;
        Ok((tag, data.to_vec()))
    }

    pub fn set_reparse(&self, inode: &Arc<Inode>, tag: u32, data: &[u8]) -> Result<()> {
        if tag == 0 {
            return Err(StoreError::InvalidReparseTag.into());
        }
        if data.len() + HEADER_BYTES > BUFFER_BYTES_MAX {
            return Err(StoreError::InvalidReparseData.into());
        }
        if inode.kind == Kind::Symlink {
            return Err(StoreError::NotSupported.into());
        }
        let stat = inode.stat().map_err(sys::failure)?;
        let meta = self.meta(inode, &stat)?;
        if meta.reparse_tag != 0 && meta.reparse_tag != tag {
            return Err(StoreError::ReparseTagMismatch.into());
        }
        if inode.kind == Kind::Directory && !self.is_empty(inode)? {
            return Err(StoreError::DirectoryNotEmpty.into());
        }
        let mut value = Vec::with_capacity(HEADER_BYTES + data.len());
        value.put_u32(tag);
        // As clients give it: without the GUID of another vendor's tag.
        value.put_u16(data.len().saturating_sub(reparse_guid_bytes(tag)) as u16);
        value.put_u16(0);
        value.extend_from_slice(data);
        let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
        sys::set_xattr(fd, OPAQUE, &value).map_err(sys::failure)?;
        self.mark_reparse(inode, fd, meta, tag)?;
        // Nobody walks through it any more without looking.
        if let Some((parent, _)) = inode.dir.as_ref().and_then(|d| d.link.standing())
            && let Some(part) = &parent.dir
        {
            part.subdirs.write().retain(|_, w| !std::ptr::eq(w.as_ptr(), Arc::as_ptr(inode)));
        }
        Ok(())
    }

    /// Samba looks for the attribute before it looks for the buffer.
    fn mark_reparse(&self, inode: &Inode, fd: BorrowedFd<'_>, meta: Meta, tag: u32) -> Result<()> {
        let mut dos = meta.dos;
        let attributes = dos.attributes.unwrap_or(0);
        dos.attributes =
            Some(if tag == 0 { attributes & !ATTR_REPARSE_POINT } else { attributes | ATTR_REPARSE_POINT });
        sys::set_xattr(fd, DOSATTRIB, &dosattrib::encode(&dos)).map_err(sys::failure)?;
        self.after_change(inode, meta, |m| {
            m.dos = dos;
            m.reparse_tag = tag;
        })
    }

    pub fn delete_reparse(&self, inode: &Inode, tag: u32) -> Result<()> {
        if inode.kind == Kind::Symlink {
            return Err(StoreError::NotSupported.into());
        }
        let stat = inode.stat().map_err(sys::failure)?;
        let meta = self.meta(inode, &stat)?;
        match meta.reparse_tag {
            0 => return Err(StoreError::NotAReparsePoint.into()),
            t if t != tag => return Err(StoreError::ReparseTagMismatch.into()),
            _ => {}
        }
        let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
        sys::remove_xattr(fd, OPAQUE).map_err(sys::failure)?;
        self.mark_reparse(inode, fd, meta, 0)
    }
}

/// A symbolic link reparse data buffer without its header, [MS-FSCC] 2.1.2.4.
fn symlink_buffer(target: &str) -> Vec<u8> {
    let relative = !target.starts_with('/');
    let text = target.replace('/', "\\");
    let bytes = name_units(&text) * 2;
    let mut out = Vec::with_capacity(12 + bytes * 2);
    out.put_u16(0);
    out.put_u16(bytes as u16);
    out.put_u16(bytes as u16);
    out.put_u16(bytes as u16);
    out.put_u32(if relative { SYMLINK_FLAG_RELATIVE } else { 0 });
    put_name_units(&mut out, &text);
    put_name_units(&mut out, &text);
    out
}
