//! Fixed amounts of work with the files of a share: their time, and the processor time of server and client.

mod job;
mod listing;
pub mod population;
pub mod run;
mod small;
mod steps;
mod stream;

use arden_measure::{
    Result,
    client::{Client, Protection, Target},
};
use serde::{Deserialize, Serialize};

/// Size in bytes of each random read.
pub const BLOCK_BYTES: usize = 4096;
/// Random reads in flight, on all connections together.
pub const RANDOM_IN_FLIGHT: usize = 32;
/// Size in bytes of the small files.
const SMALL_BYTES: usize = 16 * 1024;
/// Length in bytes that a client asks for when it does not know how large a file is, where the server allows so much.
const LARGEST_READ_BYTES: u32 = 8 << 20;

/// How a client sends the requests of its operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Calls {
    /// The requests of an operation on a small file are one compound, and handles are persistent where they can be. Listings
    /// and work on large files use one connection.
    Compound,
    /// As the crate `smb2`: a new file is created, written and flushed in one compound and closed by another message; a
    /// file of unknown size is opened, read with the largest length, and closed in one compound. No handle is persistent.
    Smb2,
    /// Each request is a message of its own, sent when the one before was answered. Files are flushed before they are closed,
    /// and read with the largest length; no handle is persistent. All work uses all connections.
    Single,
}

/// The kinds of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    Create,
    Read,
    Stat,
    Rename,
    Delete,
    List,
    RandomRead,
    StreamWrite,
    StreamRead,
}

impl Work {
    /// All kinds, in an order in which each finds the files that it needs.
    pub const ALL: [Work; 9] = [
        Work::Create,
        Work::Read,
        Work::Stat,
        Work::Rename,
        Work::Delete,
        Work::List,
        Work::RandomRead,
        Work::StreamWrite,
        Work::StreamRead,
    ];

    /// The description in tables.
    pub fn title(self) -> &'static str {
        match self {
            Work::Create => "create + write 16 KiB + close",
            Work::Read => "open + read 16 KiB + close",
            Work::Stat => "stat",
            Work::Rename => "rename",
            Work::Delete => "delete",
            Work::List => "list 2,000 entries",
            Work::RandomRead => "4 KiB random reads, 32 in flight",
            Work::StreamWrite => "sequential write, 256 MiB",
            Work::StreamRead => "sequential read, 256 MiB",
        }
    }

    /// The description in tables of the work as a client with these calls does it.
    pub fn title_of(self, calls: Calls) -> &'static str {
        match (calls, self) {
            (Calls::Compound, _) => self.title(),
            (Calls::Smb2, Work::Create) => "create + write 16 KiB + flush, close",
            (Calls::Smb2, Work::Read) => "open + read (8 MiB asked) + close of 16 KiB",
            (Calls::Smb2, Work::Delete) => "delete + close",
            (Calls::Single, Work::Create) => "create, write 16 KiB, flush, close",
            (Calls::Single, Work::Read) => "open, read (8 MiB asked), close of 16 KiB",
            (Calls::Single, Work::Stat) => "stat: open, query, close",
            (Calls::Single, Work::Rename) => "rename: open, rename, close",
            (Calls::Single, Work::Delete) => "delete: open, close",
            _ => self.title(),
        }
    }

    /// Whether the work consists of compounds on many small files.
    pub fn is_small(self) -> bool {
        !self.is_stream() && self != Work::RandomRead
    }

    /// The name on the command line.
    pub fn name(self) -> String {
        serde_json::to_value(self).ok().and_then(|v| v.as_str().map(String::from)).unwrap_or_default()
    }

    /// Whether the work is counted in MiB instead of operations.
    pub fn is_stream(self) -> bool {
        matches!(self, Work::StreamWrite | Work::StreamRead)
    }
}

/// The amount of work.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    pub connections: usize,
    /// Compounds in flight on each connection of the small-file work.
    pub depth: usize,
    /// Files of each connection.
    pub files: usize,
    pub lists: usize,
    pub random_reads: usize,
}

impl Amount {
    /// The amount with a fifth of the files, listings and reads, and the same connections and depth.
    pub fn fifth(self) -> Amount {
        Amount {
            files: (self.files / 5).max(1),
            lists: (self.lists / 5).max(1),
            random_reads: (self.random_reads / 5).max(1),
            ..self
        }
    }
}

/// The result of one run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sample {
    /// Operations, or MiB for streams.
    pub operations: u64,
    pub seconds: f64,
    pub server_cpu_seconds: f64,
    pub client_cpu_seconds: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
}

impl Sample {
    /// Operations, or MiB for streams, a second.
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds
    }
    /// Processor time of the server for each operation, in microseconds.
    pub fn server_us(&self) -> f64 {
        self.server_cpu_seconds * 1e6 / self.operations as f64
    }
    /// Processor time of this process for each operation, in microseconds.
    pub fn client_us(&self) -> f64 {
        self.client_cpu_seconds * 1e6 / self.operations as f64
    }
}

/// The server, the protection and the amount of a work.
pub struct Bench<'a> {
    pub target: &'a Target,
    pub protection: Protection,
    /// Process id of the server; `None` when it is on another machine.
    pub server: Option<u32>,
    pub amount: Amount,
    pub calls: Calls,
}

impl Bench<'_> {
    /// Connections of listings and of work on large files.
    fn large_connections(&self) -> usize {
        if self.calls == Calls::Compound { 1 } else { self.amount.connections }
    }

    fn connect(&self) -> Result<Client> {
        Client::connect(self.target, self.protection)
    }
}
