//! Alternate data streams: `user.DosStream.NAME:$DATA`, the bytes and one NUL, as Samba's streams_xattr keeps them.
//! A stream that the file system has no room for in an attribute spills into a file of its own in the root's hidden
//! directory; `user.ArdenStream.NAME` then holds the file's name. A spilled stream stays spilled.

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    sync::{Arc, OnceLock},
};

use rustix::{
    fs::{AtFlags, Mode},
    io::Errno,
};

use super::{
    SPILL_DIRECTORY, Shared, data,
    inode::{Inode, Link},
    mark,
    meta::has_room_for_names,
    node::DirNode,
    sys::{self, Kind, RawStat},
};
use crate::{
    error::{NotDone, StoreError},
    name::{check_stream_name, eq_fold},
    open_stream::StreamRef,
    store::{NodeRef, Result, StreamEntry, Wait},
};

const INLINE: &str = "user.DosStream.";
const INLINE_TAIL: &str = ":$DATA";
const SPILLED: &str = "user.ArdenStream.";
/// What the kernel takes as one attribute at most.
const INLINE_BYTES_MAX: usize = 65_536;
/// A single stream; spilled streams are read and written in place, so this bounds nothing in memory.
const STREAM_BYTES_MAX: u64 = 1 << 40;

pub fn is_stream_attribute(name: &str) -> bool {
    name.starts_with(INLINE) || name.starts_with(SPILLED)
}

fn inline_name(stream: &str) -> String {
    format!("{INLINE}{stream}{INLINE_TAIL}")
}

fn spilled_name(stream: &str) -> String {
    format!("{SPILLED}{stream}")
}

/// Where a stream's bytes are.
enum Place {
    Inline(Vec<u8>),
    Spilled(OwnedFd),
}

impl Shared {
    /// The stream's real name.
    pub fn find_stream(&self, inode: &Inode, name: &str) -> Result<Option<String>> {
        if !self.may_have_streams(inode)? {
            return Ok(None);
        }
        let mut found = None;
        let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
        each_stream(fd, |here| {
            if eq_fold(here, name) {
                found = Some(here.to_owned());
            }
        })?;
        Ok(found)
    }

    fn may_have_streams(&self, inode: &Inode) -> Result<bool> {
        let stat = inode.stat().map_err(sys::failure)?;
        Ok(self.meta(inode, &stat)?.has_streams)
    }

    pub fn stream_node(self: &Arc<Self>, inode: Arc<Inode>, link: Arc<Link>, name: String) -> NodeRef {
        let stream = OnceLock::from(inode.open_streams.open(&name));
        link.node_begins();
        Arc::new(DirNode { store: self.clone(), inode, link, stream })
    }

    pub fn create_stream(&self, inode: &Inode, name: &str, mark: Option<u128>) -> Result<()> {
        check_stream_name(name)?;
        if inode.kind == Kind::Symlink {
            return Err(StoreError::NotSupported.into());
        }
        let _lock = inode.streams.lock();
        if self.find_stream(inode, name)?.is_some() {
            return Err(StoreError::NameCollision.into());
        }
        let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
        check_room(fd, name, mark.map_or(0, |_| mark::name_bytes(name)))?;
        mark::set_of_stream(fd, name, mark)?;
        match sys::set_xattr(fd, &inline_name(name), &[0]) {
            Err(Errno::RANGE | Errno::NAMETOOLONG) => Err(StoreError::InvalidName.into()),
            other => other.map_err(sys::failure),
        }
    }

    pub fn streams(&self, inode: &Inode) -> Result<Vec<StreamEntry>> {
        let mut out = Vec::new();
        if inode.kind == Kind::File {
            let stat = inode.stat().map_err(sys::failure)?;
            let allocation = self.data_allocation(&stat, &self.meta(inode, &stat)?);
            out.push(StreamEntry { name: String::new(), size: stat.size, allocation });
        }
        if inode.kind == Kind::Symlink || !self.may_have_streams(inode)? {
            return Ok(out);
        }
        let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
        let mut names = Vec::new();
        each_stream(fd, |name| names.push(name.to_owned()))?;
        for name in names {
            match self.stream_size(inode, &name) {
                Ok((size, allocation)) => out.push(StreamEntry { name, size, allocation }),
                Err(NotDone::Failed(StoreError::Deleted)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(out)
    }

    /// Size and allocation.
    pub fn stream_size(&self, inode: &Inode, name: &str) -> Result<(u64, u64)> {
        let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
        if let Some(id) = spill_id(fd, name)? {
            let stat = sys::stat_fd(sys::fd(&self.open_spilled(&id, false)?)).map_err(sys::failure)?;
            return Ok((stat.size, stat.allocated));
        }
        let value_bytes = sys::xattr_bytes(fd, &inline_name(name)).map_err(sys::failure)?.ok_or(StoreError::Deleted)?;
        let size = value_bytes.saturating_sub(1) as u64;
        Ok((size, size))
    }

    fn place(&self, inode: &Inode, name: &str, write: bool) -> Result<Place> {
        let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
        if let Some(id) = spill_id(fd, name)? {
            return self.open_spilled(&id, write).map(Place::Spilled);
        }
        let value = sys::get_xattr(fd, &inline_name(name), INLINE_BYTES_MAX).map_err(sys::failure)?;
        let mut value = value.ok_or(StoreError::Deleted)?;
        value.pop();
        Ok(Place::Inline(value))
    }

    fn open_spilled(&self, id: &str, write: bool) -> Result<OwnedFd> {
        let own = self.spill_directory(false)?.map(|dir| sys::open_child(sys::fd(&dir), id, write));
        match own.unwrap_or(Err(Errno::NOENT)) {
            Err(Errno::NOENT) => {}
            other => return other.map_err(sys::failure),
        }
        let others = self.spill_directories_of_others();
        let found = others.iter().find_map(|dir| sys::open_child(sys::fd(dir), id, write).ok());
        found.ok_or(StoreError::Inconsistent.into())
    }

    pub fn read_stream(&self, inode: &Inode, name: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _lock = inode.streams.lock();
        match self.place(inode, name, false)? {
            Place::Inline(bytes) => {
                let Some(rest) = usize::try_from(offset).ok().and_then(|o| bytes.get(o..)) else { return Ok(0) };
                let n = rest.len().min(buf.len());
                buf[..n].copy_from_slice(&rest[..n]);
                Ok(n)
            }
            Place::Spilled(fd) => data::read_at(sys::fd(&fd), offset, buf, Wait::Yes),
        }
    }

    pub fn write_stream(&self, inode: &Inode, name: &str, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64).filter(|e| *e <= STREAM_BYTES_MAX);
        let end = end.ok_or(StoreError::DiskFull)?;
        let _lock = inode.streams.lock();
        match self.place(inode, name, true)? {
            Place::Spilled(fd) => data::write_at(sys::fd(&fd), offset, bytes),
            Place::Inline(old) if end >= INLINE_BYTES_MAX as u64 => {
                let fd = self.spill(inode, name, &old)?;
                data::write_at(sys::fd(&fd), offset, bytes)
            }
            Place::Inline(mut value) => {
                if value.len() < end as usize {
                    value.resize(end as usize, 0);
                }
                value[offset as usize..end as usize].copy_from_slice(bytes);
                self.store_inline(inode, name, value)
            }
        }
    }

    pub fn set_stream_size(&self, inode: &Inode, name: &str, size: u64) -> Result<()> {
        if size > STREAM_BYTES_MAX {
            return Err(StoreError::DiskFull.into());
        }
        let _lock = inode.streams.lock();
        let fd = match self.place(inode, name, true)? {
            Place::Spilled(fd) => fd,
            Place::Inline(old) if size >= INLINE_BYTES_MAX as u64 => self.spill(inode, name, &old)?,
            Place::Inline(mut value) => {
                value.resize(size as usize, 0);
                return self.store_inline(inode, name, value);
            }
        };
        rustix::fs::ftruncate(&fd, size).map_err(sys::failure)
    }

    /// Never makes the stream longer.
    pub fn zero_stream(&self, inode: &Inode, name: &str, offset: u64, len: u64) -> Result<()> {
        let _lock = inode.streams.lock();
        let place = self.place(inode, name, true)?;
        let size = match &place {
            Place::Inline(bytes) => bytes.len() as u64,
            Place::Spilled(fd) => sys::stat_fd(sys::fd(fd)).map_err(sys::failure)?.size,
        };
        let end = offset.saturating_add(len).min(size);
        if offset >= end {
            return Ok(());
        }
        match place {
            Place::Spilled(fd) => data::zero(sys::fd(&fd), offset, end),
            Place::Inline(mut value) => {
                value[offset as usize..end as usize].fill(0);
                self.store_inline(inode, name, value)
            }
        }
    }

    fn store_inline(&self, inode: &Inode, name: &str, mut value: Vec<u8>) -> Result<()> {
        let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
        value.push(0);
        match sys::set_xattr(fd, &inline_name(name), &value) {
            Err(Errno::NOSPC | Errno::TOOBIG | Errno::RANGE) => {
                value.pop();
                self.spill(inode, name, &value).map(|_| ())
            }
            other => other.map_err(sys::failure),
        }
    }

    /// Moves a stream into a file: the file first, then the attribute that names it, then the old attribute goes.
    fn spill(&self, inode: &Inode, name: &str, bytes: &[u8]) -> Result<OwnedFd> {
        let dir = self.spill_directory(true)?.ok_or(StoreError::Inconsistent)?;
        let id = random_id()?;
        let file = sys::create_child(sys::fd(&dir), &id, 0o600).map_err(sys::failure)?;
        let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
        let done = data::write_at(sys::fd(&file), 0, bytes).and_then(|()| {
            match sys::set_xattr(fd, &spilled_name(name), id.as_bytes()) {
                Err(Errno::NOSPC) => {
                    // The old attribute may fill the room that the new one needs.
                    sys::remove_xattr(fd, &inline_name(name)).map_err(sys::failure)?;
                    sys::set_xattr(fd, &spilled_name(name), id.as_bytes()).map_err(sys::failure)
                }
                other => other.map_err(sys::failure),
            }
        });
        if let Err(e) = done {
            let _ = rustix::fs::unlinkat(&dir, id.as_str(), AtFlags::empty());
            return Err(e);
        }
        sys::remove_xattr(fd, &inline_name(name)).map_err(sys::failure)?;
        Ok(file)
    }

    fn spill_directory(&self, create: bool) -> Result<Option<OwnedFd>> {
        let open = || match sys::open_child(self.root.pin(), SPILL_DIRECTORY, false) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(sys::failure(e)),
        };
        if let Some(fd) = open()? {
            return Ok(Some(fd));
        }
        if !create {
            return Ok(None);
        }
        match rustix::fs::mkdirat(self.root.pin(), SPILL_DIRECTORY, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => open(),
            Err(e) => Err(sys::failure(e)),
        }
    }

    /// Nothing happens to one that is gone.
    pub fn delete_stream(&self, inode: &Inode, stream: &StreamRef) -> Result<()> {
        let _lock = inode.streams.lock();
        let Ok(name) = stream.name() else { return Ok(()) };
        let deleted = self.drop_stream(inode, &name);
        inode.open_streams.moved(&name, None);
        deleted
    }

    /// `inode.streams` is held.
    fn drop_stream(&self, inode: &Inode, name: &str) -> Result<()> {
        let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
        if let Some(id) = spill_id(fd, name)? {
            sys::remove_xattr(fd, &spilled_name(name)).map_err(sys::failure)?;
            self.remove_spill(&[id]);
        }
        sys::remove_xattr(fd, &inline_name(name)).map_err(sys::failure)?;
        mark::set_of_stream(fd, name, None)
    }

    pub fn rename_stream(&self, inode: &Inode, stream: &StreamRef, new: &str, replace: bool) -> Result<()> {
        check_stream_name(new)?;
        let _lock = inode.streams.lock();
        let old = stream.name()?;
        if new.len() > old.len() {
            let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
            let is_marked = mark::read(fd, Some(&old))?.is_some();
            check_room(fd, new, if is_marked { mark::name_bytes(new) } else { 0 })?;
        }
        if !eq_fold(&old, new) {
            self.make_way(inode, new, replace)?;
        }
        self.change_name(inode, &old, new)?;
        inode.open_streams.moved(&old, Some(new));
        Ok(())
    }

    /// `inode.streams` is held.
    fn make_way(&self, inode: &Inode, name: &str, replace: bool) -> Result<()> {
        let Some(there) = self.find_stream(inode, name)? else { return Ok(()) };
        if !replace {
            return Err(StoreError::NameCollision.into());
        }
        self.drop_stream(inode, &there)?;
        inode.open_streams.moved(&there, None);
        Ok(())
    }

    /// `inode.streams` is held.
    fn change_name(&self, inode: &Inode, old: &str, new: &str) -> Result<()> {
        let fd = inode.for_reading(self.proc_fds()).map_err(sys::failure)?;
        let (from, to) = match spill_id(fd, old)? {
            Some(_) => (spilled_name(old), spilled_name(new)),
            None => (inline_name(old), inline_name(new)),
        };
        if from == to {
            return Ok(());
        }
        let value = sys::get_xattr(fd, &from, INLINE_BYTES_MAX).map_err(sys::failure)?;
        let value = value.ok_or(StoreError::Deleted)?;
        // The new name has its mark first, as that of a stream that is made.
        mark::set_of_stream(fd, new, mark::read(fd, Some(old))?)?;
        let moved = match sys::set_xattr(fd, &to, &value).map_err(sys::failure) {
            // No room for both at a time.
            Err(NotDone::Failed(StoreError::DiskFull)) => {
                sys::remove_xattr(fd, &from).map_err(sys::failure)?;
                sys::set_xattr(fd, &to, &value).map_err(|e| {
                    let _ = sys::set_xattr(fd, &from, &value);
                    sys::failure(e)
                })
            }
            other => other.and_then(|()| sys::remove_xattr(fd, &from).map_err(sys::failure)),
        };
        let unused = if moved.is_ok() { old } else { new };
        moved.and(mark::set_of_stream(fd, unused, None))
    }

    /// The stream's bytes become the data of the file, which has none. A crash on the way leaves both.
    pub fn stream_to_data(&self, inode: &Inode, stream: &StreamRef) -> Result<()> {
        let _lock = inode.streams.lock();
        let name = &stream.name()?;
        let data = inode.for_writing(self.proc_fds()).map_err(sys::failure)?;
        if inode.stat().map_err(sys::failure)?.size != 0 {
            return Err(StoreError::InvalidParameter.into());
        }
        let copied = match self.place(inode, name, false)? {
            Place::Inline(bytes) => data::write_at(data, 0, &bytes),
            Place::Spilled(file) => data::copy_all(sys::fd(&file), data),
        };
        if let Err(e) = copied {
            let _ = rustix::fs::ftruncate(data, 0);
            return Err(e);
        }
        self.drop_stream(inode, name)?;
        inode.open_streams.moved(name, Some(""));
        Ok(())
    }

    /// The data of the file becomes the stream `name`, and the file has none. A crash on the way leaves both.
    pub fn data_to_stream(&self, inode: &Inode, name: &str, replace: bool) -> Result<()> {
        check_stream_name(name)?;
        let _lock = inode.streams.lock();
        if self.find_stream(inode, name)?.is_none() {
            check_room(inode.for_reading(self.proc_fds()).map_err(sys::failure)?, name, 0)?;
        }
        self.make_way(inode, name, replace)?;
        // No create made it as a stream.
        mark::set_of_stream(inode.for_reading(self.proc_fds()).map_err(sys::failure)?, name, None)?;
        let data = inode.for_writing(self.proc_fds()).map_err(sys::failure)?;
        let size = inode.stat().map_err(sys::failure)?.size;
        if size > STREAM_BYTES_MAX {
            return Err(StoreError::DiskFull.into());
        }
        let moved = match usize::try_from(size) {
            Ok(size) if size < INLINE_BYTES_MAX => {
                let mut bytes = vec![0; size];
                data::read_at(data, 0, &mut bytes, Wait::Yes).and_then(|n| {
                    bytes.truncate(n);
                    self.store_inline(inode, name, bytes)
                })
            }
            _ => self.spill(inode, name, &[]).and_then(|file| data::copy_all(data, sys::fd(&file))),
        };
        if let Err(e) = moved {
            let _ = self.drop_stream(inode, name);
            return Err(e);
        }
        rustix::fs::ftruncate(data, 0).map_err(sys::failure)?;
        // Nodes that were a stream before.
        inode.open_streams.moved("", Some(name));
        Ok(())
    }

    /// The last name of a file went: its spilled streams go too.
    pub fn last_name_gone(&self, inode: &Inode, stat: &RawStat) {
        // Mostly it is known that there are no streams at all.
        let none = self.cached_meta(stat).is_some_and(|m| !m.has_streams);
        if none || inode.kind == Kind::Symlink {
            return;
        }
        if let Ok(fd) = inode.for_reading(self.proc_fds()) {
            self.remove_spill(&spill_ids(fd));
        }
    }

    /// The spilled streams of a file that is about to be replaced.
    pub fn has_spilled_streams(&self, dir: &Inode, name: &str, stat: &RawStat) -> Vec<String> {
        let none = self.cached_meta(stat).is_some_and(|m| !m.has_streams);
        if none || stat.kind != Some(Kind::File) {
            return Vec::new();
        }
        sys::open_child(dir.pin(), name, false).map(|fd| spill_ids(sys::fd(&fd))).unwrap_or_default()
    }

    pub fn remove_spill(&self, ids: &[String]) {
        if ids.is_empty() {
            return;
        }
        let mut places: Vec<OwnedFd> = self.spill_directory(false).ok().flatten().into_iter().collect();
        places.extend(self.spill_directories_of_others());
        for id in ids {
            if !places.iter().any(|dir| rustix::fs::unlinkat(dir, id.as_str(), AtFlags::empty()).is_ok()) {
                tracing::warn!("a spilled stream could not be removed");
            }
        }
    }
}

/// Whether the file may have one more stream, and another `more` bytes of names. One that spills has a shorter name then.
fn check_room(fd: BorrowedFd<'_>, stream: &str, more: usize) -> Result<()> {
    match has_room_for_names(fd, inline_name(stream).len() + 1 + more)? {
        true => Ok(()),
        false => Err(StoreError::TooManyStreams.into()),
    }
}

fn each_stream(fd: BorrowedFd<'_>, mut f: impl FnMut(&str)) -> Result<()> {
    sys::each_xattr(fd, |name| {
        if let Some(rest) = name.strip_prefix(INLINE) {
            // Samba can be told to leave the type out.
            f(rest.strip_suffix(INLINE_TAIL).unwrap_or(rest));
        } else if let Some(rest) = name.strip_prefix(SPILLED) {
            f(rest);
        }
    })
    .map_err(sys::failure)
}

fn spill_id(fd: BorrowedFd<'_>, stream: &str) -> Result<Option<String>> {
    let value = match sys::get_xattr(fd, &spilled_name(stream), 64) {
        Ok(value) => value,
        Err(Errno::RANGE | Errno::TOOBIG) => return Err(StoreError::Inconsistent.into()),
        Err(e) => return Err(sys::failure(e)),
    };
    Ok(value.and_then(valid_id))
}

fn spill_ids(fd: BorrowedFd<'_>) -> Vec<String> {
    let mut names = Vec::new();
    let _ = sys::each_xattr(fd, |name| {
        if name.starts_with(SPILLED) {
            names.push(name.to_owned());
        }
    });
    names.iter().filter_map(|n| sys::get_xattr(fd, n, 64).ok().flatten()).filter_map(valid_id).collect()
}

/// Local users may write such attributes: only a plain name is followed.
fn valid_id(value: Vec<u8>) -> Option<String> {
    let ok = value.len() == 36 && value.iter().all(|b| b.is_ascii_hexdigit() || *b == b'-');
    ok.then(|| String::from_utf8(value).ok()).flatten()
}

fn random_id() -> Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid").map_err(|_| StoreError::Internal)?;
    Ok(id.trim().to_owned())
}
