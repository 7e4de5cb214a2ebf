//! The grammar of `arden lab`, shared by the programs `arden` and `arden-lab`.

use std::path::PathBuf;

use arden_measure::{Result, client::Protection, source::share::Wire};
use clap::{Args, Subcommand, ValueEnum};

use super::password;
use crate::experiment::systems::Store;

/// What `arden lab` can do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Load a file, a disk or a share of any SMB server, and measure it
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
    /// Run a published experiment whole, on servers that run already or that are started for it
    #[command(after_help = "e1: a continuously available share against a plain one, information workers' files.\n\
        e2: write-through against cached copying.\n\
        e3: storage spaces, every layout, on models of disks in virtual time, and on real ones with --disk.\n\
        e6: large and small reads over SMB.\n\
        Without --target an Arden of its own is started under --dir and removed afterwards.\n\n\
        Example:\n  arden lab experiment e1 --quick\n  \
        arden lab experiment e1 --target smb://alice@files/plain --safe smb://alice@files/ca\n  \
        arden lab experiment e6 --target smb://alice@files/docs --against smb://alice@old/docs")]
    Experiment(Box<ExperimentArgs>),
    /// A page for people out of results: tables, charts, published figures, a verdict
    #[command(
        after_help = "Example:\n  arden lab report before.json after.json --html report.html\n  arden lab report e1.json --csv e1.csv"
    )]
    Report(ReportArgs),
    /// What safety costs on this hardware: signing, encryption, write-through, continuous availability, each layout
    #[command(
        after_help = "TARGET: a directory on the disks in question (a daemon and pools of files are made in it and removed),\n\
        or smb://user@host[:port]/share of any server.\n\n\
        Example:\n  arden lab advise --target /srv\n  \
        arden lab advise --target smb://alice@files/plain --safe smb://alice@files/ca"
    )]
    Advise(Box<AdviseArgs>),
    /// How many times A is B, with confidence intervals
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

/// What `arden lab experiment` is asked for.
#[derive(Debug, Args)]
pub struct ExperimentArgs {
    pub which: Which,
    /// Smaller and shorter: under three minutes
    #[arg(long)]
    pub quick: bool,
    /// Data so many times smaller than published [default: 1, or 16 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub scale: Option<u64>,
    /// A share without any promises
    #[arg(long, value_name = "smb://...")]
    pub target: Option<String>,
    /// A share of the same server that is continuously available, or forces write-through
    #[arg(long, value_name = "smb://...", requires = "target")]
    pub safe: Option<String>,
    /// Another server's share, to compare with
    #[arg(long, value_name = "smb://...")]
    pub against: Option<String>,
    /// The other server's safe share
    #[arg(long, value_name = "smb://...", requires = "against")]
    pub against_safe: Option<String>,
    /// The program to start when no target is named [default: this one]
    #[arg(long, value_name = "PROGRAM")]
    pub arden: Option<PathBuf>,
    /// What the shares of an Arden that is started lie on
    #[arg(long, value_enum, default_value_t)]
    pub store: Store,
    /// Script that starts and stops Samba (tests/peers/samba.sh of the sources), to compare with
    #[arg(long, value_name = "SCRIPT")]
    pub samba: Option<PathBuf>,
    /// Files or block devices that e3 builds pools of; may be given several times
    #[arg(long, value_name = "DISK", requires = "force")]
    pub disk: Vec<PathBuf>,
    /// Leave to overwrite them
    #[arg(long)]
    pub force: bool,
    /// Where servers that are started keep their files; on a disk like the one that will be used
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// The longest that the experiment may take [default: 25m, or 150s with --quick]
    #[arg(long, value_name = "TIME")]
    pub limit: Option<String>,
    /// What generated data is made from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub wire: WireArgs,
    #[command(flatten)]
    pub out: OutArgs,
}

/// What `arden lab advise` is asked for.
#[derive(Debug, Args)]
pub struct AdviseArgs {
    #[arg(long)]
    pub target: String,
    /// A share of the same server that is continuously available
    #[arg(long, value_name = "smb://...")]
    pub safe: Option<String>,
    /// Of each measurement
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    pub duration: String,
    /// Measurements of each kind at least; up to three times as many while intervals are wider than a fifth
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// The program to start in a directory [default: this one]
    #[arg(long, value_name = "PROGRAM")]
    pub arden: Option<PathBuf>,
    #[command(flatten)]
    pub wire: WireArgs,
    #[command(flatten)]
    pub out: OutArgs,
}

/// What `arden lab report` is asked for.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Results, as `run` and `experiment` keep them
    #[arg(required = true, value_name = "RESULT")]
    pub results: Vec<PathBuf>,
    /// The page; it needs nothing else
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// All figures, comma-separated
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

/// What `arden lab run` is asked for.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// What is asked for
    #[arg(required = true, value_name = "PROFILE")]
    pub profiles: Vec<String>,
    /// Of what
    #[arg(long)]
    pub target: String,
    /// Requests in flight, of each client: numbers, and ranges that double
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
    /// Size of the test file [default: 1g, or what is there]
    #[arg(long, value_name = "SIZE")]
    pub file_size: Option<String>,
    /// Before anything counts
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub warm_up: String,
    /// Of each measurement
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub duration: String,
    /// Measurements of each point
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Send so many requests a second, whatever the answers do; latency counts from when a request was due
    #[arg(long, value_name = "IOPS")]
    pub rate: Option<f64>,
    /// Compare what is read with what was written
    #[arg(long)]
    pub verify: bool,
    /// Leave to overwrite the device or the file that is there
    #[arg(long)]
    pub force: bool,
    /// Custom profiles: [name], access, read, block
    #[arg(long, value_name = "TOML")]
    pub profiles_from: Option<PathBuf>,
    /// What the target is called in reports
    #[arg(long)]
    pub name: Option<String>,
    #[command(flatten)]
    pub wire: WireArgs,
    #[command(flatten)]
    pub out: OutArgs,
}

/// How shares are spoken to.
#[derive(Debug, Args)]
pub struct WireArgs {
    /// Clients at once, each with a connection of its own and a part of the file
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub clients: u32,
    /// Connections of each client's session
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub channels: u32,
    /// Sign (AES-GMAC or AES-CMAC) even when the server does not ask for it
    #[arg(long, conflicts_with = "seal")]
    pub sign: bool,
    /// Encrypt (AES-128-GCM)
    #[arg(long)]
    pub seal: bool,
    /// File whose first line is the password [or: the variable ARDEN_LAB_PASSWORD, or asked for]
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}

/// Where results go.
#[derive(Debug, Args)]
pub struct OutArgs {
    /// Where the result goes, as JSON [default: arden-lab-KIND-TIME.json here]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

impl WireArgs {
    /// Asks for the password when `target` needs one.
    ///
    /// # Errors
    /// A target with a user, and no password for him.
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
