//! The keys of the tree, one letter for each kind, numbers big-endian so that they sort; and values that are larger
//! than an entry may be, in pieces. docs/on-disk-volume.md has the table. Refuses to know what the values mean.

use std::sync::Arc;

pub type Key = Vec<u8>;
pub type Val = Arc<[u8]>;

/// Streams with blocks in the tree, as of a checkpoint.
pub const DIRTY: u8 = b'W';
/// Blocks of files that lie in the tree until they get a place: stream, block.
pub const BLOCK: u8 = b'B';
/// Pages of the block map.
pub const MAP: u8 = b'A';
/// Blocks that only snapshots hold: the youngest of these, first block.
pub const DEAD: u8 = b'D';
/// Extents: stream, first block.
pub const EXTENT: u8 = b'E';
/// Snapshots, by their epoch.
pub const SNAPSHOT: u8 = b'G';
/// Descriptors by their hash: hash, id.
pub const SD_HASH: u8 = b'H';
/// Inodes.
pub const INODE: u8 = b'I';
/// The change journal: settings, records, the last one of each file.
pub const JOURNAL: u8 = b'J';
/// Opaque values of the store's user, by the user's key.
pub const HANDLE: u8 = b'K';
/// Names of a file besides its first: inode, directory, folded name.
pub const LINK: u8 = b'L';
/// Names: directory, folded name.
pub const NAME: u8 = b'N';
/// Inodes without a name, to be taken away.
pub const ORPHAN: u8 = b'O';
/// Quotas: settings, users, folders.
pub const QUOTA: u8 = b'Q';
/// Reparse data, in pieces.
pub const REPARSE: u8 = b'P';
/// Blocks with more than one user: first block.
pub const REFS: u8 = b'R';
/// Descriptors, in pieces.
pub const SD: u8 = b'S';
/// Streams: inode, folded name.
pub const STREAM: u8 = b'T';
/// Snapshots of streams: set, folded name.
pub const STREAM_SNAPSHOT: u8 = b'V';
/// How many files have a descriptor.
pub const SD_COUNT: u8 = b'U';
/// 8.3 names that are kept: directory, folded short name; directory 0 has the setting.
pub const SHORT: u8 = b'Y';
/// The same by what they are beside: directory, folded name.
pub const SHORT_OF: u8 = b'Z';
/// EAs, in pieces.
pub const EAS: u8 = b'X';

pub fn one(kind: u8, n: u64) -> Key {
    let mut k = Vec::with_capacity(9);
    k.push(kind);
    k.extend_from_slice(&n.to_be_bytes());
    k
}

pub fn two(kind: u8, a: u64, b: u64) -> Key {
    let mut k = Vec::with_capacity(17);
    k.push(kind);
    k.extend_from_slice(&a.to_be_bytes());
    k.extend_from_slice(&b.to_be_bytes());
    k
}

pub fn named(kind: u8, a: u64, name: &str) -> Key {
    let mut k = Vec::with_capacity(9 + name.len());
    k.push(kind);
    k.extend_from_slice(&a.to_be_bytes());
    k.extend_from_slice(name.as_bytes());
    k
}

pub fn link(ino: u64, directory: u64, name: &str) -> Key {
    let mut k = two(LINK, ino, directory);
    k.extend_from_slice(name.as_bytes());
    k
}

pub fn piece(kind: u8, n: u64, piece: u16) -> Key {
    let mut k = one(kind, n);
    k.extend_from_slice(&piece.to_be_bytes());
    k
}

/// Keys of this kind and number are before it.
pub fn end_of(kind: u8, n: u64) -> Key {
    match n.checked_add(1) {
        Some(n) => one(kind, n),
        None => vec![kind + 1],
    }
}

/// The second number of a key.
pub fn second(key: &[u8]) -> u64 {
    number(key, 9)
}

pub fn first(key: &[u8]) -> u64 {
    number(key, 1)
}

fn number(key: &[u8], at: usize) -> u64 {
    let mut n = [0; 8];
    if let Some(part) = key.get(at..at + 8) {
        n.copy_from_slice(part);
    }
    u64::from_be_bytes(n)
}

/// The text after `n` bytes of a key.
pub fn text(key: &[u8], n: usize) -> &str {
    key.get(n..).and_then(|t| std::str::from_utf8(t).ok()).unwrap_or("")
}
