//! The names of one directory in memory, found by their folded form: what makes a case-insensitive look-up cheap,
//! above all one that finds nothing. A listing is a copy; whether it is still true is for the caller to check with
//! the directory's change time, and `Listing` keeps what that needs.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
    mem::MaybeUninit,
    os::fd::BorrowedFd,
    sync::LazyLock,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use arden_wire::names::name_of_bytes;
use rustix::fs::{FileType, RawDir};

use super::{
    lookup::is_reserved,
    sys::{self, Stamp},
};
use crate::name::{eq_fold, fold_char, is_presentable, short_name};

/// Change times on kernels without multigrain timestamps advance by ticks; a listing read this soon after a change
/// may have missed a later change in the same tick.
const TICK: Duration = Duration::from_millis(20);
/// A listing that is not known to be exact is believed for `DirOptions::listing_age_min`, or this many times what reading
/// it took.
const READS_WORTH: u32 = 200;

static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

fn fold_hash(name: &str) -> u64 {
    let mut h = HASHER.build_hasher();
    if name.is_ascii() {
        // In pieces through a small buffer: one call of the hasher for usual names.
        let mut buf = [0u8; 64];
        for chunk in name.as_bytes().chunks(64) {
            let out = &mut buf[..chunk.len()];
            out.copy_from_slice(chunk);
            out.make_ascii_uppercase();
            h.write(out);
        }
    } else {
        let mut utf8 = [0u8; 4];
        let mut folded = Vec::with_capacity(name.len());
        for c in name.chars() {
            folded.extend_from_slice(fold_char(c).encode_utf8(&mut utf8).as_bytes());
        }
        for chunk in folded.chunks(64) {
            h.write(chunk);
        }
    }
    h.finish()
}

/// For keys that are hashes already.
#[derive(Default, Clone)]
struct Identity(u64);
impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, v: u64) {
        self.0 = v;
    }
}
type IdentityBuild = std::hash::BuildHasherDefault<Identity>;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Slot {
    offset: u32,
    len: u16,
    /// It was a regular file when it was entered here.
    regular: bool,
    next: u32,
}

/// All names of a directory, as of `stamp`.
pub struct Listing {
    first: HashMap<u64, u32, IdentityBuild>,
    slots: Vec<Slot>,
    free: u32,
    text: Vec<u8>,
    /// Bytes of `text` that no slot uses any more.
    dead_bytes: usize,
    count: usize,
    /// The directory's change time that this copy belongs to.
    stamp: Stamp,
    /// Nothing can have been missed: read well after `stamp`, and not carried over a change since.
    exact: bool,
    read_at: Instant,
    read_took: Duration,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// In this very case.
    Exact,
    /// Under another spelling.
    As(String),
    Absent,
}

/// A directory has more names than may be held.
#[derive(Debug)]
pub enum ReadError {
    TooLarge,
    /// It has more names than were to be read.
    TooLong,
    Io(rustix::io::Errno),
}

impl Listing {
    /// Reads `dir`, a descriptor of its own for this purpose. `stamp` was the directory's change time before.
    /// `fine_stamps`: two changes never share a change time.
    pub fn read(
        dir: BorrowedFd<'_>,
        stamp: Stamp,
        fine_stamps: bool,
        bytes_max: usize,
        names_max: usize,
    ) -> Result<Listing, ReadError> {
        let started = Instant::now();
        let mut listing = Listing {
            first: HashMap::default(),
            slots: Vec::new(),
            free: NONE,
            text: Vec::new(),
            dead_bytes: 0,
            count: 0,
            stamp,
            exact: fine_stamps || is_told_apart(stamp, SystemTime::now()),
            read_at: started,
            read_took: Duration::ZERO,
        };
        let mut over = false;
        each_name(dir, |name, kind| {
            listing.insert(name, kind == FileType::RegularFile);
            over = listing.bytes() > bytes_max;
            !over && listing.count <= names_max
        })
        .map_err(ReadError::Io)?;
        if listing.count > names_max {
            return Err(ReadError::TooLong);
        }
        if over {
            return Err(ReadError::TooLarge);
        }
        listing.read_took = started.elapsed();
        Ok(listing)
    }

    /// Whether the copy still is what a directory with this change time holds.
    pub fn is_current(&self, stamp: Stamp, age_min: Duration) -> bool {
        let young = || !age_min.is_zero() && self.read_at.elapsed() < age_min.max(self.read_took * READS_WORTH);
        self.stamp == stamp && (self.exact || young())
    }

    /// One's own change was entered, and the directory's change time is now `stamp`. Somebody else's change in the
    /// same moment would go unnoticed, so the copy is no longer exact.
    pub fn carry_over(&mut self, stamp: Stamp) {
        if self.stamp != stamp {
            self.stamp = stamp;
            self.exact = false;
        }
    }

    /// Memory, roughly.
    pub fn bytes(&self) -> usize {
        self.text.capacity()
            + self.slots.capacity() * size_of::<Slot>()
            + self.first.capacity() * (size_of::<(u64, u32)>() + 1)
    }

    fn name(&self, slot: Slot) -> &str {
        let bytes = &self.text[slot.offset as usize..slot.offset as usize + slot.len as usize];
        // Only `insert` puts bytes there, from a str.
        std::str::from_utf8(bytes).unwrap_or("")
    }

    pub fn find(&self, name: &str) -> Found {
        self.find_kind(name).0
    }

    /// The same, and whether it was a regular file.
    pub fn find_kind(&self, name: &str) -> (Found, bool) {
        let mut best: Option<(&str, bool)> = None;
        let mut at = self.first.get(&fold_hash(name)).copied().unwrap_or(NONE);
        while at != NONE {
            let slot = self.slots[at as usize];
            let here = self.name(slot);
            if here == name {
                return (Found::Exact, slot.regular);
            }
            // Of several spellings always the same one wins.
            if eq_fold(here, name) && best.is_none_or(|(b, _)| here < b) {
                best = Some((here, slot.regular));
            }
            at = slot.next;
        }
        best.map_or((Found::Absent, false), |(name, regular)| (Found::As(name.to_owned()), regular))
    }

    /// The only name whose 8.3 name this is, of those that clients can name.
    pub fn find_short(&self, short: &str) -> Option<String> {
        let first = short.chars().next()?;
        let mut found = None;
        for head in self.first.values() {
            let mut at = *head;
            while at != NONE {
                let slot = self.slots[at as usize];
                at = slot.next;
                let name = self.name(slot);
                if is_reserved(name) || !is_presentable(name) {
                    continue;
                }
                // Cheap first: what begins otherwise has another one.
                let begins = name.chars().find(char::is_ascii_alphanumeric).unwrap_or('_');
                if begins.eq_ignore_ascii_case(&first)
                    && short_name(name).is_some_and(|s| s.eq_ignore_ascii_case(short))
                    && found.replace(name).is_some()
                {
                    return None;
                }
            }
        }
        found.map(str::to_owned)
    }

    pub fn insert(&mut self, name: &str, regular: bool) {
        if self.find(name) == Found::Exact || name.len() > usize::from(u16::MAX) {
            return;
        }
        if self.dead_bytes > self.text.len() / 2 && self.dead_bytes > 4096 {
            self.compact();
        }
        let head = self.first.entry(fold_hash(name)).or_insert(NONE);
        let slot = Slot { offset: self.text.len() as u32, len: name.len() as u16, regular, next: *head };
        let at = if self.free == NONE {
            self.slots.push(slot);
            self.slots.len() as u32 - 1
        } else {
            let at = self.free;
            self.free = self.slots[at as usize].next;
            self.slots[at as usize] = slot;
            at
        };
        *head = at;
        self.text.extend_from_slice(name.as_bytes());
        self.count += 1;
    }

    pub fn remove(&mut self, name: &str) {
        let hash = fold_hash(name);
        let mut before = NONE;
        let mut at = self.first.get(&hash).copied().unwrap_or(NONE);
        while at != NONE {
            let slot = self.slots[at as usize];
            if self.name(slot) == name {
                if before != NONE {
                    self.slots[before as usize].next = slot.next;
                } else if slot.next == NONE {
                    self.first.remove(&hash);
                } else {
                    self.first.insert(hash, slot.next);
                }
                self.slots[at as usize] = Slot { offset: 0, len: 0, regular: false, next: self.free };
                self.free = at;
                self.dead_bytes += slot.len as usize;
                self.count -= 1;
                return;
            }
            before = at;
            at = slot.next;
        }
    }

    fn compact(&mut self) {
        let mut text = Vec::with_capacity(self.text.len() - self.dead_bytes);
        for head in self.first.values() {
            let mut at = *head;
            while at != NONE {
                let slot = &mut self.slots[at as usize];
                let from = slot.offset as usize;
                slot.offset = text.len() as u32;
                text.extend_from_slice(&self.text[from..from + slot.len as usize]);
                at = slot.next;
            }
        }
        self.text = text;
        self.dead_bytes = 0;
    }

    pub fn len(&self) -> usize {
        self.count
    }
}

/// Whether a change that comes now gets another stamp. One ahead of the clock is from before the clock was set back.
pub fn is_told_apart(stamp: Stamp, now: SystemTime) -> bool {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::new(u64::try_from(stamp.0).unwrap_or(0), stamp.1).abs_diff(now) > TICK
}

/// Calls `f` for each name in `dir` that text can be and what it is, `.` and `..` left out, until it answers false.
pub fn each_name(dir: BorrowedFd<'_>, mut f: impl FnMut(&str, FileType) -> bool) -> rustix::io::Result<()> {
    let mut buf = vec![MaybeUninit::uninit(); 32 * 1024];
    let mut entries = RawDir::new(dir, &mut buf);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let Some(name) = name_of_bytes(entry.file_name().to_bytes()) else { continue };
        if name != "." && name != ".." && !f(&name, entry.file_type()) {
            break;
        }
    }
    Ok(())
}

/// Looks for a spelling of `name` without keeping anything: for directories too large for a listing.
pub fn scan(dir: BorrowedFd<'_>, name: &str) -> rustix::io::Result<Found> {
    let mut found = Found::Absent;
    each_name(dir, |here, _| {
        if here == name {
            found = Found::Exact;
            return false;
        }
        if eq_fold(here, name) && !matches!(&found, Found::As(best) if best.as_str() <= here) {
            found = Found::As(here.to_owned());
        }
        true
    })?;
    Ok(found)
}

/// For `sys` users that hold a descriptor of any kind: a fresh one whose position is the beginning.
pub fn open_for_reading(dir: BorrowedFd<'_>) -> rustix::io::Result<std::os::fd::OwnedFd> {
    sys::open_self_directory(dir)
}

#[cfg(test)]
mod tests {
    use arden_block::rng::Rng;

    use super::*;

    fn empty() -> Listing {
        let dir = tempdir();
        let fd = sys::open_root(&dir).unwrap();
        let listing = Listing::read(sys::fd(&fd), Stamp(0, 0), true, usize::MAX, usize::MAX).unwrap();
        std::fs::remove_dir(dir).unwrap();
        listing
    }

    fn tempdir() -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("arden-names-{}-{:?}", std::process::id(), Instant::now()));
        std::fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn a_stamp_is_told_apart_unless_it_is_of_this_moment() {
        let at = |ms: u64| UNIX_EPOCH + Duration::from_millis(ms);
        let stamp = Stamp(100, 0);
        assert!(is_told_apart(stamp, at(100_100)) && is_told_apart(stamp, at(99_900)), "the clock was set back");
        assert!([99_990, 100_000, 100_010].iter().all(|ms| !is_told_apart(stamp, at(*ms))));
    }

    #[test]
    fn agrees_with_a_plain_list() {
        let mut listing = empty();
        let mut plain: Vec<String> = Vec::new();
        let mut rng = Rng::new(1);
        for _ in 0..20_000 {
            let n = rng.below(1 << 31);
            let name = format!("{}{}", ["file", "File", "FILE", "fäle", "FÄLE"][(n % 5) as usize], n / 5 % 300);
            if n % 7 < 4 {
                listing.insert(&name, n % 2 == 0);
                if !plain.contains(&name) {
                    plain.push(name.clone());
                }
            } else {
                listing.remove(&name);
                plain.retain(|p| *p != name);
            }
            let want = if plain.contains(&name) {
                Found::Exact
            } else {
                plain.iter().filter(|p| eq_fold(p, &name)).min().map_or(Found::Absent, |p| Found::As(p.clone()))
            };
            assert_eq!(listing.find(&name), want);
            assert_eq!(listing.len(), plain.len());
        }
        assert!(listing.bytes() < 200_000, "garbage is collected: {}", listing.bytes());
    }
}
