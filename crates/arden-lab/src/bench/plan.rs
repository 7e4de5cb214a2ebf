//! What `make bench` is asked for.

use std::{path::PathBuf, time::Duration};

use clap::ValueEnum;

use super::small::Row;
use crate::work::Amount;

/// Of each of the two files that a volume of the benchmark lies on.
pub const VOLUME_DISK_BYTES: u64 = 8 << 30;

/// A part of `make bench`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Small files, random reads and streams on a directory, a volume, a continuously available share and Samba
    Small,
    /// What the daemon keeps in memory
    Memory,
    /// 4 KiB reads from memory beside an echo
    Reads,
    /// Sequential writing and reading on a mirror beside the space itself
    Streams,
    /// Copies on a continuously available share and a plain one
    E1,
    /// Write-through and cached copies
    E2,
}

/// What to run, decided.
#[derive(Debug, Clone)]
pub struct Plan {
    pub parts: Vec<Part>,
    /// Of the small part.
    pub rows: Vec<Row>,
    pub arden: PathBuf,
    /// Script that starts and stops Samba; without it Arden is measured alone.
    pub samba: Option<PathBuf>,
    /// Samba's modes; the first takes part in every round.
    pub modes: Vec<String>,
    pub rounds: usize,
    pub amount: Amount,
    /// Of the memory part.
    pub sessions: usize,
    pub stream_bytes: u64,
    /// E1's and E2's data is so many times smaller than published.
    pub scale: u64,
    /// The longest that E1 may take; E2 half of that.
    pub limit: Duration,
    /// Everything is made in directories of its own here, which are removed.
    pub dir: PathBuf,
    pub commit: String,
    /// Pages that get the tables.
    pub pages: Vec<PathBuf>,
}
