//! Enumerations: the names from the kernel in its stable order, in pieces; attributes only of entries that are wanted.

use std::{
    mem::MaybeUninit,
    os::fd::OwnedFd,
    sync::{Arc, atomic::Ordering},
};

use arden_wire::names::name_of_bytes;
use rustix::{
    fs::{FileType, RawDir, SeekFrom},
    io::Errno,
};

use super::{
    Shared,
    inode::Inode,
    lookup::is_reserved,
    mark,
    meta::Meta,
    names,
    sys::{self, Kind},
};
use crate::{
    error::StoreError,
    name::is_presentable,
    store::{DirCursor, DirEntry, EntryShort, Result, Stat},
};

/// One piece: some hundred names.
const PIECE_BYTES: usize = 32 * 1024;

pub struct Cursor {
    store: Arc<Shared>,
    dir: Arc<Inode>,
    fd: OwnedFd,
    /// Names of the current piece, one after the other, and where each ends.
    text: String,
    ends: Vec<u32>,
    /// Where the kernel has each of them.
    places: Vec<u64>,
    next: usize,
    /// Where the kernel goes on behind the piece.
    place: u64,
    finished: bool,
    /// What the entry at `next` is, once it was looked at and accepted.
    peeked: Option<Stat>,
}

impl Cursor {
    pub fn new(store: Arc<Shared>, dir: Arc<Inode>) -> Result<Cursor> {
        let fd = names::open_for_reading(dir.pin()).map_err(sys::failure)?;
        Ok(Cursor {
            store,
            dir,
            fd,
            text: String::new(),
            ends: Vec::new(),
            places: Vec::new(),
            next: 0,
            place: 0,
            finished: false,
            peeked: None,
        })
    }

    fn refill(&mut self) -> Result<()> {
        self.clear();
        let mut buf = [MaybeUninit::<u8>::uninit(); PIECE_BYTES];
        let mut entries = RawDir::new(&self.fd, &mut buf);
        loop {
            match entries.next() {
                None => {
                    self.finished = true;
                    return Ok(());
                }
                Some(Err(e)) => return Err(sys::failure(e)),
                Some(Ok(entry)) => {
                    let visible = matches!(
                        entry.file_type(),
                        FileType::RegularFile | FileType::Directory | FileType::Symlink | FileType::Unknown
                    );
                    let name = entry.file_name().to_bytes();
                    if visible && name != b"." && name != b".." {
                        match name_of_bytes(name) {
                            Some(name) if is_presentable(&name) => {
                                if !is_reserved(&name) {
                                    self.text.push_str(&name);
                                    self.ends.push(self.text.len() as u32);
                                    self.places.push(self.place);
                                }
                            }
                            _ => self.store.note_unpresentable(name),
                        }
                    }
                    self.place = entry.next_entry_cookie();
                }
            }
            if entries.is_buffer_empty() {
                return Ok(());
            }
        }
    }

    fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
        self.places.clear();
        self.next = 0;
    }

    fn entry(&self, stat: Stat) -> DirEntry {
        DirEntry { name: self.name(self.next).to_owned(), short: EntryShort::Made, stat }
    }

    fn name(&self, i: usize) -> &str {
        let from = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.text[from..self.ends[i] as usize]
    }
}

impl DirCursor for Cursor {
    fn rewind(&mut self) -> Result<()> {
        rustix::fs::seek(&self.fd, SeekFrom::Start(0)).map_err(sys::failure)?;
        self.clear();
        self.place = 0;
        self.finished = false;
        self.peeked = None;
        Ok(())
    }

    fn peek(&mut self, accept: &dyn Fn(&str) -> bool) -> Result<Option<DirEntry>> {
        if let Some(stat) = self.peeked {
            return Ok(Some(self.entry(stat)));
        }
        loop {
            while self.next < self.ends.len() {
                let name = self.name(self.next);
                if accept(name)
                    && let Some(stat) = self.store.stat_entry(&self.dir, name)?
                {
                    self.peeked = Some(stat);
                    return Ok(Some(self.entry(stat)));
                }
                self.next += 1;
            }
            if self.finished {
                return Ok(None);
            }
            self.refill()?;
        }
    }

    fn advance(&mut self) {
        if self.peeked.take().is_some() {
            self.next += 1;
        }
    }

    fn read_ahead_bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<u32>() + self.places.capacity() * size_of::<u64>()
    }

    fn forget_read_ahead(&mut self) -> Result<()> {
        if let Some(place) = self.places.get(self.next).copied() {
            rustix::fs::seek(&self.fd, SeekFrom::Start(place)).map_err(sys::failure)?;
            (self.place, self.finished, self.peeked) = (place, false, None);
        }
        (self.text, self.ends, self.places, self.next) = (String::new(), Vec::new(), Vec::new(), 0);
        Ok(())
    }
}

impl Shared {
    /// None when it is gone by now, or nothing for clients.
    pub fn stat_entry(&self, dir: &Inode, name: &str) -> Result<Option<Stat>> {
        let mut stat = match sys::stat_child(dir.pin(), name) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(sys::failure(e)),
        };
        let meta = match stat.kind {
            None => return Ok(None),
            Some(Kind::Symlink) => Meta::bare(stat.ctime),
            Some(_) => match self.compose_cached(&stat, name) {
                Some(seen) => return Ok(Some(seen)),
                None => match sys::open_child(dir.pin(), name, false) {
                    Ok(fd) => {
                        // What was opened may be another file by now: all that is said is of one and the same.
                        stat = sys::stat_fd(sys::fd(&fd)).map_err(sys::failure)?;
                        if stat.kind.is_none() {
                            return Ok(None);
                        }
                        let meta = self.read_meta(sys::fd(&fd), &stat)?;
                        self.cache_meta(&stat, meta.clone());
                        meta
                    }
                    Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(None),
                    Err(_) => Meta::bare(stat.ctime),
                },
            },
        };
        Ok(Some(self.compose(&stat, &meta, name)))
    }

    fn note_unpresentable(&self, name: &[u8]) {
        if self.unpresentable.fetch_add(1, Ordering::Relaxed) == 0 {
            let name = String::from_utf8_lossy(name);
            tracing::warn!("left out of listings because no client can name it: {name:?} (told once)");
        }
    }

    pub fn is_empty(&self, dir: &Inode) -> Result<bool> {
        if dir.kind != Kind::Directory {
            return Err(StoreError::NotADirectory.into());
        }
        let fd = names::open_for_reading(dir.pin()).map_err(sys::failure)?;
        let mut empty = true;
        let mut buf = [MaybeUninit::<u8>::uninit(); 1024];
        let mut entries = RawDir::new(&fd, &mut buf);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(sys::failure)?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") && !std::str::from_utf8(name).is_ok_and(mark::is_unfinished) {
                empty = false;
                break;
            }
        }
        Ok(empty)
    }
}
