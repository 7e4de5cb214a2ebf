//! Fixed amounts of work with the files of a share: their time, and the processor time of server and client.

mod job;
mod listing;
pub mod run;
mod small;
mod stream;

use arden_measure::{
    Result,
    client::{Client, Protection, Target},
};
use serde::{Deserialize, Serialize};

/// Size in bytes of each random read.
pub const BLOCK_BYTES: usize = 4096;
/// Random reads in flight.
pub const RANDOM_IN_FLIGHT: usize = 32;

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
}

impl Bench<'_> {
    fn connect(&self) -> Result<Client> {
        Client::connect(self.target, self.protection)
    }
}
