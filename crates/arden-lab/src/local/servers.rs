//! Measured servers: Arden, started here, and Samba, started by a script. Dropping the value stops the server.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use arden_measure::{Context, Result, base::process, client::Target, fail};

/// The user of the servers that are started here.
pub const USER: &str = "tester";
/// The password of [`USER`].
pub const PASSWORD: &str = "pw";
/// Time within which a daemon has to answer, on a machine with other work.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A server that was started here. Dropping the value stops it.
pub struct Running {
    pub name: String,
    pub target: Target,
    pub pid: u32,
    stop: Stop,
}

enum Stop {
    Child(Child),
    Script { script: PathBuf, work: PathBuf },
}

impl Drop for Running {
    fn drop(&mut self) {
        match &mut self.stop {
            Stop::Child(child) => {
                // One that was waited for has no process any more.
                if matches!(child.try_wait(), Ok(Some(_))) {
                    return;
                }
                if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                }
                let _ = child.wait();
            }
            Stop::Script { script, work } => {
                let _ = Command::new(script).arg("down").arg(work).status();
                // Children may outlive their parent briefly; their directories are removed next.
                let deadline = Instant::now() + Duration::from_secs(5);
                while process::tree(self.pid).len() > 1 && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }
}

/// Changes settings of an Arden that was started here.
///
/// # Errors
/// The command fails; the error holds its output.
pub fn settings(program: &Path, work: &Path, options: &[&str]) -> Result<()> {
    run(Command::new(program).arg("--state").arg(work.join("state")).args(["settings", "set"]).args(options))
}

/// A TCP port of the loopback interface on which nothing listens, below those that the kernel gives to outgoing connections: one of
/// these would have it while a server is started again.
///
/// # Errors
/// There is none.
pub fn free_port() -> Result<u16> {
    const FIRST: u16 = 10_000;
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let low = range.split_whitespace().next().and_then(|low| low.parse().ok()).unwrap_or(32_768);
    let choice = low.max(FIRST + 1_000) - FIRST;
    let start = RandomState::new().hash_one(std::process::id());
    for n in 0..choice {
        #[allow(clippy::cast_possible_truncation, reason = "a remainder of a 16-bit number")]
        let port = FIRST + (start.wrapping_add(u64::from(n)) % u64::from(choice)) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    fail!("no TCP port is free")
}

fn target(port: u16) -> Target {
    Target {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        share: "test".to_string(),
        user: USER.to_string(),
        password: PASSWORD.to_string(),
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    if !output.status.success() {
        fail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Starts `program` with its state and a share under `work`.
///
/// # Errors
/// As in [`arden_with`].
pub fn arden(program: &Path, work: &Path) -> Result<Running> {
    arden_with(program, work, &[("test", "share", None)])
}

/// Starts `program` on a state directory, with its output in `log`, and does not wait for it.
fn spawn(program: &Path, state: &Path, log: &Path) -> Result<Running> {
    let port = free_port()?;
    let out = fs::File::create(log)?;
    let child = Command::new(program)
        .arg("--state")
        .arg(state)
        .args(["serve", "--log", "warn", "--listen", &format!("127.0.0.1:{port}")])
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()
        .context(program.display())?;
    Ok(Running { name: "arden".to_string(), target: target(port), pid: child.id(), stop: Stop::Child(child) })
}

/// Waits until `answers`, with this pause between the tries.
fn wait(
    running: &mut Running,
    program: &Path,
    log: &Path,
    pause: Duration,
    answers: impl Fn(&Target) -> bool,
) -> Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    while !answers(&running.target) {
        let ended = match &mut running.stop {
            Stop::Child(child) => child.try_wait()?.is_some(),
            Stop::Script { .. } => false,
        };
        if ended || Instant::now() > deadline {
            fail!("{} does not start: {}", program.display(), fs::read_to_string(log)?.trim());
        }
        std::thread::sleep(pause);
    }
    Ok(())
}

/// Starts `program` on a state directory, with its output in `log`. The daemon answers when this returns.
///
/// # Errors
/// The daemon ends or does not answer; the error holds its log.
pub fn daemon(program: &Path, state: &Path, log: &Path) -> Result<Running> {
    let mut running = spawn(program, state, log)?;
    wait(&mut running, program, log, Duration::from_millis(50), |_| {
        run(Command::new(program).arg("--state").arg(state).arg("status")).is_ok()
    })?;
    Ok(running)
}

/// Kills the daemon that runs under `work`, so that it can end nothing that it has begun, and starts it again. Returns the new one
/// when `answers` says that a client gets an answer, and the time in seconds from its start until then.
///
/// # Errors
/// As in [`daemon`].
pub fn restart_killed(
    program: &Path,
    work: &Path,
    mut old: Running,
    answers: impl Fn(&Target) -> bool,
) -> Result<(Running, f64)> {
    if let Stop::Child(child) = &mut old.stop {
        child.kill()?;
        child.wait()?;
    }
    let (began, log) = (Instant::now(), work.join("log"));
    let mut running = spawn(program, &work.join("state"), &log)?;
    wait(&mut running, program, &log, Duration::from_millis(5), answers)?;
    Ok((running, began.elapsed().as_secs_f64()))
}

/// Starts `program` with shares: name, directory under `work`, and an option of `arden share add`.
///
/// # Errors
/// The daemon does not start, or a command fails.
pub fn arden_with(program: &Path, work: &Path, shares: &[(&str, &str, Option<&str>)]) -> Result<Running> {
    let state = work.join("state");
    fs::create_dir_all(&state)?;
    let running = daemon(program, &state, &work.join("log"))?;
    run(Command::new(program).arg("--state").arg(&state).args(["user", "add", USER, "--password", PASSWORD]))?;
    for (name, dir, option) in shares {
        let dir = work.join(dir);
        fs::create_dir_all(&dir)?;
        let mut add = Command::new(program);
        add.arg("--state").arg(&state).args(["share", "add", name, "--dir"]).arg(&dir).args(option);
        run(&mut add)?;
    }
    Ok(running)
}

/// Starts `program` with a volume on a mirror of two disk files of `disk_bytes`, and with shares of the volume: name,
/// and an option of `arden share add`.
///
/// # Errors
/// The daemon does not start, or a command fails.
pub fn arden_on_volume(
    program: &Path,
    work: &Path,
    disk_bytes: u64,
    shares: &[(&str, Option<&str>)],
) -> Result<Running> {
    let running = arden_with(program, work, &[])?;
    let disks: Vec<PathBuf> = ["disk0", "disk1"].iter().map(|d| work.join(d)).collect();
    for disk in &disks {
        fs::File::create(disk)?.set_len(disk_bytes)?;
    }
    let state = work.join("state");
    let arden = || {
        let mut command = Command::new(program);
        command.arg("--state").arg(&state);
        command
    };
    let size = (disk_bytes / 10 * 9 / (1 << 20) * (1 << 20)).to_string();
    run(arden().args(["pool", "create", "tank"]).args(&disks))?;
    run(arden().args(["space", "create", "mirror", "--pool", "tank", "--layout", "mirror2", "--size", &size]))?;
    run(arden().args(["volume", "create", "files", "--space", "mirror"]))?;
    for (name, option) in shares {
        run(arden().args(["share", "add", name, "--volume", "files"]).args(option))?;
    }
    Ok(running)
}

/// Runs a command line of an Arden that was started under `work`.
fn command(program: &Path, work: &Path, arguments: &[&str]) -> Result<()> {
    run(Command::new(program).arg("--state").arg(work.join("state")).args(arguments))
}

/// Adds a share on a directory of the volume of [`arden_on_volume`].
///
/// # Errors
/// The command fails; the error holds its output.
pub fn volume_share(program: &Path, work: &Path, name: &str, directory: &str, option: &str) -> Result<()> {
    command(program, work, &["share", "add", name, "--volume", "files", "--path", directory, option])
}

/// Makes another mirror in the pool of [`arden_on_volume`].
///
/// # Errors
/// The command fails; the error holds its output.
pub fn mirror(program: &Path, work: &Path, name: &str, bytes: u64) -> Result<()> {
    let size = bytes.to_string();
    command(program, work, &["space", "create", name, "--pool", "tank", "--layout", "mirror2", "--size", &size])
}

/// Starts Samba in one of the modes of `script`.
///
/// # Errors
/// The script fails; the error holds its output.
pub fn samba(script: &Path, mode: &str, work: &Path) -> Result<Running> {
    let port = free_port()?;
    fs::create_dir_all(work)?;
    run(Command::new(script)
        .arg("up")
        .arg(work)
        .args([&port.to_string(), mode])
        .arg(format!("test={}", work.join("share").display())))?;
    let pid = fs::read_to_string(work.join("samba/run/smbd.pid"))?;
    let Ok(pid) = pid.trim().parse() else { fail!("smbd.pid holds {pid:?}") };
    let stop = Stop::Script { script: script.to_path_buf(), work: work.to_path_buf() };
    Ok(Running { name: format!("samba-{mode}"), target: target(port), pid, stop })
}

/// The program of the daemon: this one, or `arden` in the same directory.
pub fn own_program() -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    let arden = this.with_file_name("arden");
    arden.exists().then_some(arden)
}
