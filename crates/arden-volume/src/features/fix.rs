//! What repair may do about something that check found.

use arden_store::quota::Quota;

use crate::disk::{keys::Key, run::Run, superblock::Counters};

/// One thing that is safe to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fix {
    /// A record that says something of what does not exist.
    Delete(Key),
    /// A record without a value that has to be there.
    Put(Key),
    /// The sums that are kept.
    Counters(Counters),
    /// How many blocks a stream has; `stream` is the key of a named one, or of a snapshot.
    Blocks { ino: u64, stream: Option<Key>, blocks: u64 },
    /// How many blocks the snapshots of a stream have; `stream` is the key of a named one.
    SnapshotBlocks { ino: u64, stream: Option<Key>, blocks: u64 },
    /// How many names a file has.
    Links(u64, u32),
    /// A file that knows its name, which does not lead to it.
    Name(u64),
    /// Data that no file has.
    NoOwner(u64),
    /// Marked as used, by nobody.
    Release(Run),
    /// Used, and marked as free.
    Claim(Run),
    /// How many users blocks have.
    Users(Run, u32),
    /// How many files have a descriptor.
    Descriptor(u64, u64),
    /// EAs that cannot be read.
    DropEas(u64),
    /// EAs and reparse data of a file that does not exist.
    DropAttributes(u64),
    /// How much EAs take.
    EaSize(u64),
    /// How much somebody, or a folder, has.
    Quota(Key, Quota),
}

impl Fix {
    /// Takes something away, or gives something to use that may be somebody's.
    pub fn needs_certainty(&self) -> bool {
        !matches!(self, Fix::Claim(_) | Fix::Name(_) | Fix::EaSize(_))
    }

    pub fn text(&self) -> String {
        match self {
            Fix::Delete(key) => format!("a record ({}) of what does not exist is taken away", letter(key)),
            Fix::Put(key) => format!("a record ({}) that has to be there is written", letter(key)),
            Fix::Counters(_) => "the sums of promised blocks are counted anew".into(),
            Fix::Blocks { ino, blocks, .. } => format!("file {ino}: {blocks} blocks are counted"),
            Fix::SnapshotBlocks { ino, blocks, .. } => format!("file {ino}: {blocks} blocks of snapshots are counted"),
            Fix::Links(ino, n) => format!("file {ino}: {n} names are counted"),
            Fix::Name(ino) => format!("file {ino}: gets its name back"),
            Fix::NoOwner(sid) => format!("stream {sid}: data that no file has is taken away"),
            Fix::Release(run) => format!("{} blocks from {} on are free", run.len, run.start),
            Fix::Claim(run) => format!("{} blocks from {} on are in use", run.len, run.start),
            Fix::Users(run, n) => format!("{} blocks from {} on have {n} users", run.len, run.start),
            Fix::Descriptor(id, 0) => format!("descriptor {id}: taken away, no file has it"),
            Fix::Descriptor(id, n) => format!("descriptor {id}: {n} files have it"),
            Fix::DropEas(ino) => format!("file {ino}: EAs that cannot be read are taken away"),
            Fix::DropAttributes(ino) => format!("attributes of file {ino}, which does not exist, are taken away"),
            Fix::Quota(_, q) => format!("{} bytes are counted", q.used_bytes),
            Fix::EaSize(ino) => format!("file {ino}: the size of its EAs is counted"),
        }
    }
}

fn letter(key: &[u8]) -> char {
    key.first().map_or('?', |b| *b as char)
}
