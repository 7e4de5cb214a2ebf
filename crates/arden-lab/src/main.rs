//! The command line of `arden-lab`: benchmarks, experiments and single loads.
#![forbid(unsafe_code)]

use std::{fs, net::SocketAddr, path::PathBuf};

use arden_lab::{
    bench::{
        self,
        plan::{Part, Plan},
        small::{self, Guard},
        tables::replace_section,
    },
    cli,
    targets::daemon,
    work::{Amount, Bench, Calls, Work},
};
use arden_measure::{Error, Result, base::units::duration, client::Target, fail};
use clap::{Args, Parser, Subcommand, ValueEnum};

#[derive(Parser)]
#[command(name = "arden-lab", version, about = "Measures SMB servers")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Compare Arden with Samba, an echo and its own spaces in interleaved rounds, as `make bench` does
    #[command(
        after_help = "Example:\n  arden-lab bench --arden target/release/arden --samba tests/peers/samba.sh --dir /var/tmp --only reads,e2"
    )]
    Bench(BenchArgs),
    /// Compare spaces with fio and btrfs, and measure them on simulated disks, as `make bench-space` does
    BenchSpace(SpacesArgs),
    /// Read an NBD export at random: what `bench-space` starts as its clients
    #[command(hide = true)]
    Reader {
        place: String,
        #[arg(long)]
        seed: u64,
        #[arg(long)]
        seconds: f64,
    },
    /// Run one workload of small files on a server that is running
    #[command(
        after_help = "Example:\n  arden-lab work stat --to 127.0.0.1:4450 --share demo --user demo --password pw"
    )]
    Work(WorkArgs),
    #[command(flatten)]
    Lab(cli::args::Verb),
}

/// Arguments of `bench-space`.
#[derive(Args)]
struct SpacesArgs {
    /// Directory of the file disks; nothing is removed from it
    #[arg(long)]
    dir: PathBuf,
    /// Script that sets up btrfs on loop devices; without it its rows are left out
    #[arg(long)]
    btrfs: Option<PathBuf>,
    /// Run one short round
    #[arg(long)]
    quick: bool,
    /// Run only these parts: simple, readers, btrfs, durable, models
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Length of one run in seconds
    #[arg(long, default_value_t = 1.2)]
    seconds: f64,
    /// Page whose tables are replaced; needed when parts are left out
    #[arg(long)]
    page: Option<PathBuf>,
}

#[derive(Args)]
struct Size {
    /// Files of each connection
    #[arg(long, default_value_t = 2500)]
    files: usize,
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Compounds in flight on each connection of the small-file work
    #[arg(long, default_value_t = 1)]
    depth: usize,
    #[arg(long, default_value_t = 100)]
    lists: usize,
    #[arg(long, default_value_t = 200_000)]
    random_reads: usize,
}

impl Size {
    fn amount(&self) -> Amount {
        Amount {
            connections: self.connections,
            depth: self.depth,
            files: self.files,
            lists: self.lists,
            random_reads: self.random_reads,
        }
    }
}

#[derive(Args)]
struct BenchArgs {
    /// The arden program
    #[arg(long)]
    arden: PathBuf,
    /// Script that starts and stops Samba; without it Arden is measured alone
    #[arg(long)]
    samba: Option<PathBuf>,
    /// Samba's modes; the first takes part in every round, the others in the first, with a fifth of the work
    #[arg(long, value_delimiter = ',', default_value = "plain,nt,durable")]
    modes: Vec<String>,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Run a fifth of the work, once
    #[arg(long)]
    quick: bool,
    /// Run only these parts (small, clients, memory, reads, streams, e1, e2, growth), or only these workloads of small and clients
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Directory for the files and the state of the servers
    #[arg(long)]
    dir: PathBuf,
    /// Divisor of the published amounts of data of E1 and E2 [default: 4, or 64 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    scale: Option<u64>,
    /// Time limit of E1; that of E2 is half of it
    #[arg(long, value_name = "TIME", default_value = "10m")]
    limit: String,
    /// Sessions of the memory measurement; 0 leaves it out
    #[arg(long, default_value_t = 1000)]
    sessions: usize,
    #[command(flatten)]
    size: Size,
    /// Files of the part growth [default: 1000000, or 20000 with --quick]
    #[arg(long, value_name = "N")]
    growth_files: Option<usize>,
    /// Commit that the report names
    #[arg(long, default_value = "unknown")]
    commit: String,
    /// Page with markers for the tables, instead of docs/bench.md, which gets those of parts that ran completely
    #[arg(long)]
    page: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Protect {
    Gmac,
    Cmac,
    Encrypted,
}

/// The [`Calls`] on the command line.
#[derive(Clone, Copy, ValueEnum)]
enum Client {
    /// One compound for each operation
    Compound,
    /// The calls of the crate smb2
    Smb2,
    /// No compounds
    Single,
}

impl From<Client> for Calls {
    fn from(client: Client) -> Calls {
        match client {
            Client::Compound => Calls::Compound,
            Client::Smb2 => Calls::Smb2,
            Client::Single => Calls::Single,
        }
    }
}

#[derive(Args)]
struct WorkArgs {
    /// create, read, stat, rename, delete, list, random-read, stream-write, stream-read
    work: Vec<String>,
    #[arg(long)]
    to: SocketAddr,
    #[arg(long)]
    share: String,
    #[arg(long)]
    user: String,
    #[arg(long)]
    password: String,
    #[arg(long, default_value = "gmac")]
    protect: Protect,
    /// How the client sends the requests of an operation
    #[arg(long, default_value = "compound")]
    calls: Client,
    /// Process id of the server, to account for its processor time
    #[arg(long)]
    pid: Option<u32>,
    #[command(flatten)]
    size: Size,
}

fn work(name: &str) -> Result<Work> {
    let found = Work::ALL.into_iter().find(|w| w.name() == name);
    found.ok_or_else(|| Error(format!("no workload {name}")))
}

fn run(args: &WorkArgs) -> Result<()> {
    let guard = match args.protect {
        Protect::Gmac => Guard::Gmac,
        Protect::Cmac => Guard::Cmac,
        Protect::Encrypted => Guard::Encrypted,
    };
    let target = Target {
        address: args.to,
        share: args.share.clone(),
        user: args.user.clone(),
        password: args.password.clone(),
    };
    let calls = args.calls.into();
    let bench =
        Bench { target: &target, protection: guard.protection(), server: args.pid, amount: args.size.amount(), calls };
    for name in &args.work {
        let work = work(name)?;
        bench::show(small::Row { calls, guard, work }, "server", &bench.run(work)?);
    }
    Ok(())
}

/// The parts with these names. The name of a workload selects its row alone, of the small part where no other part is named.
fn chosen(only: &[String]) -> Result<(Vec<Part>, Vec<Work>)> {
    let (mut parts, mut works) = (Vec::new(), Vec::new());
    for name in only {
        match (Part::from_str(name, false), work(name)) {
            (Ok(part), _) => parts.push(part),
            (_, Ok(work)) => works.push(work),
            _ => {
                let all: Vec<String> = Part::value_variants().iter().map(|p| format!("{p:?}").to_lowercase()).collect();
                fail!("no part or workload {name}; the parts: {}", all.join(", "));
            }
        }
    }
    if !works.is_empty() && !parts.iter().any(|p| matches!(p, Part::Small | Part::Clients)) {
        parts.insert(0, Part::Small);
    }
    if parts.is_empty() {
        parts = Part::value_variants().to_vec();
    }
    Ok((parts, works))
}

fn compare(args: &BenchArgs) -> Result<()> {
    let (mut parts, works) = chosen(&args.only)?;
    if args.sessions == 0 {
        parts.retain(|p| *p != Part::Memory);
    }
    let amount = args.size.amount();
    let whole = works.is_empty() && !args.quick && args.samba.is_some();
    let wanted = |rows: Vec<small::Row>| -> Vec<small::Row> {
        rows.into_iter().filter(|r| works.is_empty() || works.contains(&r.work)).collect()
    };
    let plan = Plan {
        parts,
        rows: wanted(small::rows()),
        client_rows: wanted(small::clients()),
        arden: args.arden.clone(),
        samba: args.samba.clone(),
        modes: args.modes.clone(),
        rounds: if args.quick { 1 } else { args.rounds },
        amount: if args.quick { amount.fifth() } else { amount },
        sessions: args.sessions,
        stream_bytes: if args.quick { 64 << 20 } else { 1 << 30 },
        growth_files: args.growth_files.unwrap_or(if args.quick { 20_000 } else { 1_000_000 }),
        scale: args.scale.unwrap_or(if args.quick { 64 } else { 4 }),
        limit: duration(&args.limit)?,
        dir: args.dir.clone(),
        commit: args.commit.clone(),
        pages: match &args.page {
            Some(page) => vec![page.clone()],
            None if whole => vec![bench::lines::PAGE.into()],
            None => Vec::new(),
        },
    };
    bench::run(&plan)
}

fn bench_space(args: &SpacesArgs) -> Result<()> {
    use arden_lab::spaces::{bench as real, models, page, readers};
    let plan = real::Plan {
        dir: args.dir.clone(),
        btrfs: args.btrfs.clone(),
        rounds: if args.quick { 1 } else { args.rounds },
        seconds: if args.quick { 1.0 } else { args.seconds },
        disk_bytes: if args.quick { 512 << 20 } else { 1 << 30 },
        file_bytes: if args.quick { 512 << 20 } else { 1 << 30 },
    };
    let wanted = |part: &str| args.only.is_empty() || args.only.iter().any(|o| o == part);
    let mut lines = Vec::new();
    if wanted("simple") {
        lines.extend(real::simple(&plan)?);
    }
    if wanted("readers") {
        lines.extend(readers::readers(&plan)?);
    }
    if wanted("durable") {
        lines.extend(real::durable(&plan)?);
    }
    if wanted("btrfs") {
        lines.extend(real::against_btrfs(&plan)?);
    }
    if !lines.is_empty() {
        lines.push(real::memory()?);
    }
    if wanted("models") {
        lines.extend(models::all(args.quick)?);
    }
    let text = page::tables(&lines);
    println!("{text}\n{}", page::summary(&lines));
    let whole = args.only.is_empty() && !args.quick && args.btrfs.is_some();
    if let Some(path) = args.page.clone().or(whole.then(|| PathBuf::from("docs/bench-space.md")))
        && let Some(new) = replace_section(&fs::read_to_string(&path)?, "bench-space", &text)
    {
        fs::write(path, new)?;
    }
    Ok(())
}

fn main() {
    let result = match Cli::parse().verb {
        Verb::Bench(args) => compare(&args),
        Verb::BenchSpace(args) => bench_space(&args),
        Verb::Reader { place, seed, seconds } => arden_lab::spaces::readers::reader_process(&place, seed, seconds),
        Verb::Work(args) => run(&args),
        Verb::Lab(verb) => cli::run(&verb, &daemon::default_home(), false),
    };
    if let Err(e) = result {
        eprintln!("arden-lab: {e}");
        std::process::exit(1);
    }
}
