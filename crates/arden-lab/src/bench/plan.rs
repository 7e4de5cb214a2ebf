//! The plan of `make bench`.

use std::{path::PathBuf, time::Duration};

use clap::ValueEnum;

use super::small::Row;
use crate::work::Amount;

/// Size in bytes of each of the two files of a volume.
pub const VOLUME_DISK_BYTES: u64 = 8 << 30;

/// A part of `make bench`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Small files, random reads and streams on a directory, a volume, a continuously available share and Samba
    Small,
    /// The same by clients without compounds, and with reads of the largest length
    Clients,
    /// Memory of the daemon
    Memory,
    /// 4 KiB reads from memory, compared with an echo
    Reads,
    /// Sequential writes and reads on a mirror, compared with the space itself
    Streams,
    /// Copies to a continuously available share and to a plain one
    E1,
    /// Write-through and cached copies
    E2,
    /// Many files beside few, and many connections beside few
    Growth,
}

/// The run that the arguments describe.
#[derive(Debug, Clone)]
pub struct Plan {
    pub parts: Vec<Part>,
    /// Rows of the small part.
    pub rows: Vec<Row>,
    /// Rows of the part of clients.
    pub client_rows: Vec<Row>,
    pub arden: PathBuf,
    /// Script that starts and stops Samba; without it Arden is measured alone.
    pub samba: Option<PathBuf>,
    /// Samba's modes; the first takes part in every round.
    pub modes: Vec<String>,
    pub rounds: usize,
    pub amount: Amount,
    /// Sessions of the memory part.
    pub sessions: usize,
    pub stream_bytes: u64,
    /// Files of the part of growth.
    pub growth_files: usize,
    /// Divisor of the published amounts of data of E1 and E2.
    pub scale: u64,
    /// Time limit of E1; that of E2 is half of it.
    pub limit: Duration,
    /// Directory in which all files are made and removed.
    pub dir: PathBuf,
    pub commit: String,
    /// Pages to which the tables are written.
    pub pages: Vec<PathBuf>,
}
