//! The grammar of `arden lab`, shared by the programs `arden` and `arden-lab`.

use std::path::PathBuf;

use arden_measure::{Result, client::Protection, source::share::Wire};
use clap::{Args, Subcommand, ValueEnum};

use super::password;
use crate::experiment::systems::Store;

/// The verbs of `arden lab`.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Measure a load on a file, a disk or a share of any SMB server
    #[command(
        after_help = "Profiles: file-copy, file-server, database, streaming, restore, all, and those of --profiles-from FILE.\n\
        TARGET: a file, a directory (a file is made in it and removed), a block device, smb://user@host[:port]/share[/path],\n\
        space:NAME (its blocks) and volume:NAME[/file] of the daemon of --state (one is started while none runs),\n\
        sim:LAYOUT,DISKS,KIND[,interleave=SIZE][,columns=N] (disks of KIND sas, sas-uncached or ssd in virtual time), null.\n\n\
        Example:\n  arden lab run database --target /srv/test --outstanding 1,8..64 --file-size 4g\n  \
        arden lab run all --target smb://alice@files/docs --clients 4 --seal\n  \
        arden lab run streaming --target /dev/sdb --duration 30s\n  \
        arden lab run database --target volume:docs --outstanding 8 --file-size 1g\n  \
        arden lab run all --target sim:parity,5,sas --outstanding 8,64\n  \
        arden lab run file-server --target smb://alice@127.0.0.1:4450/docs --rate 2000 --out rate.json"
    )]
    Run(Box<RunArgs>),
    /// Run a published experiment, on running servers or on servers that are started for it
    #[command(after_help = "e1: a continuously available share against a plain one, information workers' files.\n\
        e2: write-through against cached copying.\n\
        e3: storage spaces, every layout, on models of disks in virtual time, and on real ones with --disk.\n\
        e6: large and small reads over SMB.\n\
        Without --target an Arden of its own is started under --dir and removed afterwards.\n\n\
        Example:\n  arden lab experiment e1 --quick\n  \
        arden lab experiment e1 --target smb://alice@files/plain --safe smb://alice@files/ca\n  \
        arden lab experiment e6 --target smb://alice@files/docs --against smb://alice@old/docs")]
    Experiment(Box<ExperimentArgs>),
    /// Make a page from results: tables, charts, published figures, a verdict
    #[command(
        after_help = "Example:\n  arden lab report before.json after.json --html report.html\n  arden lab report e1.json --csv e1.csv"
    )]
    Report(ReportArgs),
    /// Measure the cost of safety on this hardware: signing, encryption, write-through, continuous availability, each
    /// layout
    #[command(
        after_help = "TARGET: a directory on the disks in question (a daemon and pools of files are made in it and removed),\n\
        or smb://user@host[:port]/share of any server.\n\n\
        Example:\n  arden lab advise --target /srv\n  \
        arden lab advise --target smb://alice@files/plain --safe smb://alice@files/ca"
    )]
    Advise(Box<AdviseArgs>),
    /// Compare the loads that two results have in common, with confidence intervals
    #[command(after_help = "Example:\n  arden lab compare arden.json samba.json")]
    Compare { a: PathBuf, b: PathBuf },
}

/// An experiment by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Which {
    E1,
    E2,
    E3,
    E6,
}

/// Arguments of `arden lab experiment`.
#[derive(Debug, Args)]
pub struct ExperimentArgs {
    pub which: Which,
    /// Use less data and time: under three minutes
    #[arg(long)]
    pub quick: bool,
    /// Divisor of the published amounts of data [default: 1, or 16 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub scale: Option<u64>,
    /// Share without continuous availability and write-through
    #[arg(long, value_name = "smb://...")]
    pub target: Option<String>,
    /// Share of the same server that is continuously available or forces write-through
    #[arg(long, value_name = "smb://...", requires = "target")]
    pub safe: Option<String>,
    /// Share of another server, to compare with
    #[arg(long, value_name = "smb://...")]
    pub against: Option<String>,
    /// Safe share of the other server
    #[arg(long, value_name = "smb://...", requires = "against")]
    pub against_safe: Option<String>,
    /// Program to start when no target is given [default: this one]
    #[arg(long, value_name = "PROGRAM")]
    pub arden: Option<PathBuf>,
    /// Storage of the shares of an Arden that is started
    #[arg(long, value_enum, default_value_t)]
    pub store: Store,
    /// Script that starts and stops Samba (tests/peers/samba.sh of the sources), to compare with
    #[arg(long, value_name = "SCRIPT")]
    pub samba: Option<PathBuf>,
    /// File or block device for the pools of e3; may be given several times
    #[arg(long, value_name = "DISK", requires = "force")]
    pub disk: Vec<PathBuf>,
    /// Allow the disks to be overwritten
    #[arg(long)]
    pub force: bool,
    /// Directory for the files of servers that are started, on a disk of the kind that will be used
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// Time limit of the experiment [default: 25m, or 150s with --quick]
    #[arg(long, value_name = "TIME")]
    pub limit: Option<String>,
    /// Seed of the generated data
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub wire: WireArgs,
    #[command(flatten)]
    pub out: OutArgs,
}

/// Arguments of `arden lab advise`.
#[derive(Debug, Args)]
pub struct AdviseArgs {
    #[arg(long)]
    pub target: String,
    /// Share of the same server that is continuously available
    #[arg(long, value_name = "smb://...")]
    pub safe: Option<String>,
    /// Length of each measurement
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    pub duration: String,
    /// Minimum number of measurements of each kind; up to three times as many while intervals are wider than a fifth
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Program to start in a directory [default: this one]
    #[arg(long, value_name = "PROGRAM")]
    pub arden: Option<PathBuf>,
    #[command(flatten)]
    pub wire: WireArgs,
    #[command(flatten)]
    pub out: OutArgs,
}

/// Arguments of `arden lab report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Results of `run` and `experiment`
    #[arg(required = true, value_name = "RESULT")]
    pub results: Vec<PathBuf>,
    /// Write a self-contained HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write all figures as comma-separated values
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

/// Arguments of `arden lab run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Profiles to run
    #[arg(required = true, value_name = "PROFILE")]
    pub profiles: Vec<String>,
    /// Target of the load
    #[arg(long)]
    pub target: String,
    /// Requests in flight of each client: numbers, and ranges that double
    #[arg(long, default_value = "1,3,8..512", value_name = "N,N..M")]
    pub outstanding: String,
    /// Block size, instead of the profile's
    #[arg(long, value_name = "SIZE")]
    pub block: Option<String>,
    /// Percentage of reads, instead of the profile's
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub read: Option<u8>,
    /// Random access, instead of the profile's
    #[arg(long, conflicts_with = "sequential")]
    pub random: bool,
    /// Sequential access, instead of the profile's
    #[arg(long)]
    pub sequential: bool,
    /// Writes are on stable storage before they are acknowledged
    #[arg(long)]
    pub write_through: bool,
    /// Size of the test file [default: 1g, or the size of an existing file]
    #[arg(long, value_name = "SIZE")]
    pub file_size: Option<String>,
    /// Time before the measurement
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub warm_up: String,
    /// Length of each measurement
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub duration: String,
    /// Number of measurements of each point
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Send this many requests a second, whatever the answers do; latency counts from the time at which a request was
    /// due
    #[arg(long, value_name = "IOPS")]
    pub rate: Option<f64>,
    /// Compare the data that is read with the data that was written
    #[arg(long)]
    pub verify: bool,
    /// Allow an existing file or device to be overwritten
    #[arg(long)]
    pub force: bool,
    /// File of custom profiles: [name], access, read, block
    #[arg(long, value_name = "TOML")]
    pub profiles_from: Option<PathBuf>,
    /// Name of the target in reports
    #[arg(long)]
    pub name: Option<String>,
    #[command(flatten)]
    pub wire: WireArgs,
    #[command(flatten)]
    pub out: OutArgs,
}

/// Protection and number of a share's connections.
#[derive(Debug, Args)]
pub struct WireArgs {
    /// Number of clients, each with its own connection and its part of the file
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub clients: u32,
    /// Connections of each client's session
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub channels: u32,
    /// Sign (AES-GMAC or AES-CMAC) even when the server does not require it
    #[arg(long, conflicts_with = "seal")]
    pub sign: bool,
    /// Encrypt (AES-128-GCM)
    #[arg(long)]
    pub seal: bool,
    /// File whose first line is the password [or: the variable ARDEN_LAB_PASSWORD, or the terminal]
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}

/// The file of the result.
#[derive(Debug, Args)]
pub struct OutArgs {
    /// File of the result, as JSON [default: arden-lab-KIND-TIME.json in the current directory]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

impl WireArgs {
    /// The protection, and the password, for which the user is asked when `target` needs one.
    ///
    /// # Errors
    /// The target has a user, and there is no password for it.
    pub fn wire(&self, target: &str) -> Result<Wire> {
        let protection = match (self.sign, self.seal) {
            (true, _) => Protection::GMAC,
            (_, true) => Protection::Encrypt,
            _ => Protection::Plain,
        };
        let user = target.strip_prefix("smb://").and_then(|t| t.split_once('@')).map(|t| t.0);
        let password = match user {
            Some(user) => Some(password::get(self.password_file.as_deref(), user)?),
            None => None,
        };
        Ok(Wire { protection, channels: self.channels as usize, password })
    }
}
