//! `arden-lab`: command line of the load generator.
#![forbid(unsafe_code)]

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use arden_lab::{
    Result,
    bench::{self, Guard, Results, Row},
    client::Target,
    daemon, memory, report, servers,
    work::{Amount, Bench, Sample, Work},
};
use clap::{Args, Parser, Subcommand, ValueEnum};

#[derive(Parser)]
#[command(name = "arden-lab", version, about = "Measures SMB servers")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Arden against Samba in interleaved rounds, as `make bench` does
    Bench(BenchArgs),
    /// Spaces against fio and btrfs, and on simulated disks, as `make bench-space` does
    BenchSpace(SpacesArgs),
    /// One workload of small files against a server that runs already
    #[command(
        after_help = "Example:\n  arden-lab work stat --to 127.0.0.1:4450 --share demo --user demo --password pw"
    )]
    Work(WorkArgs),
    #[command(flatten)]
    Lab(arden_lab::cli::Lab),
}

/// Spaces, real and simulated.
#[derive(Args)]
struct SpacesArgs {
    /// Where the file disks are made; nothing is removed from it
    #[arg(long)]
    dir: PathBuf,
    /// Script that sets up btrfs on loop devices; without it those rows are left out
    #[arg(long)]
    btrfs: Option<PathBuf>,
    /// One short round
    #[arg(long)]
    quick: bool,
    /// Only these parts: simple, btrfs, durable, models
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Length of one run
    #[arg(long, default_value_t = 1.2)]
    seconds: f64,
    /// Page whose tables are written anew; only when given, or when nothing is left out
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
    /// A fifth of the work, once
    #[arg(long)]
    quick: bool,
    /// Only these workloads
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Where the servers keep their files and state; nothing is removed from it
    #[arg(long)]
    dir: PathBuf,
    /// Sessions of the memory measurement; 0: leave it out
    #[arg(long, default_value_t = 1000)]
    sessions: usize,
    #[command(flatten)]
    size: Size,
    /// Named in the report
    #[arg(long, default_value = "unknown")]
    commit: String,
    /// Page to write; only when given, or when nothing is left out
    #[arg(long)]
    page: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Protect {
    Gmac,
    Cmac,
    Encrypted,
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
    /// The server's process, to account for what it spends
    #[arg(long)]
    pid: Option<u32>,
    #[command(flatten)]
    size: Size,
}

fn work(name: &str) -> Result<Work> {
    let found = Work::ALL.into_iter().find(|w| work_name(*w) == name);
    found.ok_or_else(|| arden_lab::LabError(format!("no workload {name}")))
}

fn work_name(work: Work) -> String {
    serde_json::to_value(work).ok().and_then(|v| v.as_str().map(String::from)).unwrap_or_default()
}

fn show(row: Row, server: &str, s: &Sample) {
    eprintln!(
        "{:<12} {:<34} {:<10} {:>10.0}/s  server {:>8.1} us  client {:>8.1} us  p50 {:>8.0} p99 {:>8.0} us",
        server,
        row.work.title(),
        format!("{:?}", row.guard),
        s.rate(),
        s.server_us(),
        s.client_us(),
        s.p50_us,
        s.p99_us
    );
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
    let bench = Bench { target: &target, protection: guard.protection(), server: args.pid, amount: args.size.amount() };
    for name in &args.work {
        let work = work(name)?;
        show(Row { guard, work }, "server", &bench.run(work)?);
    }
    Ok(())
}

fn compare(args: &BenchArgs) -> Result<()> {
    let (mut amount, mut rounds) = (args.size.amount(), args.rounds);
    if args.quick {
        rounds = 1;
        amount = amount.fifth();
    }
    let only = args.only.iter().map(|n| work(n)).collect::<Result<Vec<Work>>>()?;
    let rows: Vec<Row> = bench::rows().into_iter().filter(|r| only.is_empty() || only.contains(&r.work)).collect();
    let mut results = Results::default();
    let arden = servers::arden(&args.arden, &args.dir.join("arden"))?;
    if args.sessions > 0 {
        results.memory = Some(memory::measure(&arden, args.sessions)?);
    }
    let mut peers = Vec::new();
    if let Some(script) = &args.samba {
        for mode in &args.modes {
            peers.push(servers::samba(script, mode, &args.dir.join(mode))?);
        }
    }
    let mut all = vec![(&arden, true)];
    all.extend(peers.iter().enumerate().map(|(i, p)| (p, i == 0)));
    bench::run(&rows, &all, rounds, amount, &mut results, |_, row, server, sample| show(row, server, sample))?;

    let names: Vec<String> = all.iter().map(|(r, _)| r.name.clone()).collect();
    let (main, memory) = (report::main_table(&results), report::memory_table(&results));
    println!("{main}\n{memory}\n{}", report::servers_table(&results, &names));
    let whole = only.is_empty() && !args.quick && args.samba.is_some();
    let page = args.page.clone().or(whole.then(|| PathBuf::from("docs/bench.md")));
    if let Some(page) = page {
        write_pages(&page, args, rounds, amount, &results, &names)?;
    }
    Ok(())
}

fn write_pages(
    page: &Path,
    args: &BenchArgs,
    rounds: usize,
    amount: Amount,
    results: &Results,
    names: &[String],
) -> Result<()> {
    let (main, memory) = (report::main_table(results), report::memory_table(results));
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let files = amount.files * amount.connections;
    let text = format!(
        "# Speed and size\n\n\
         Written by `make bench` at commit {}: {rounds} interleaved rounds, medians, {cores} cores, {files} files over \
         {} connections with {} compound in flight on each.\n\
         Client and server share the cores: where the client takes most of the time, rates cannot differ much, and the \
         server's CPU for each operation (user and system, all its processes, from /proc) is what counts. \
         Bold: the aim is met.\n\n\
         ## Arden's directory store against Samba `plain`\n\n{main}\n{memory}\n\
         ## All servers\n\n\
         `nt` keeps NT ACLs and alternate streams as Arden does; `durable` acknowledges nothing before it is on disk. \
         Rate, CPU of the server, CPU of the client.\n\n{}",
        args.commit,
        amount.connections,
        amount.depth,
        report::servers_table(results, names)
    );
    if let Some(parent) = page.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(page, text)?;
    if let Ok(readme) = fs::read_to_string("README.md")
        && let Some(new) = report::replace_section(&readme, "bench", &format!("{main}\n{memory}"))
    {
        fs::write("README.md", new)?;
    }
    Ok(())
}

fn bench_space(args: &SpacesArgs) -> Result<()> {
    use arden_lab::spaces::{bench as real, models, page};
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
    for (path, table) in [
        (args.page.clone().or(whole.then(|| PathBuf::from("docs/bench-space.md"))), &text),
        (whole.then(|| PathBuf::from("README.md")), &page::summary(&lines)),
    ] {
        let Some(path) = path else { continue };
        if let Some(new) = report::replace_section(&fs::read_to_string(&path)?, "bench-space", table) {
            fs::write(path, new)?;
        }
    }
    Ok(())
}

fn main() {
    let result = match Cli::parse().verb {
        Verb::Bench(args) => compare(&args),
        Verb::BenchSpace(args) => bench_space(&args),
        Verb::Work(args) => run(&args),
        Verb::Lab(verb) => arden_lab::cli::run(&verb, &daemon::default_home(), false),
    };
    if let Err(e) = result {
        eprintln!("arden-lab: {e}");
        std::process::exit(1);
    }
}
