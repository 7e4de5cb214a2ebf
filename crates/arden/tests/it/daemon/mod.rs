//! A daemon in a directory of its own, with disk files, and the command line to use it.

pub mod nbd;

use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

static NUMBER: AtomicU32 = AtomicU32::new(0);

pub struct Daemon {
    pub dir: PathBuf,
    child: Option<Child>,
}

pub fn has(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

impl Daemon {
    /// A directory with `disks` files of `mib` MiB, named d0, d1 ..., and a running daemon.
    pub fn start(name: &str, disks: usize, mib: u64) -> Daemon {
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let dir = std::env::temp_dir().join(format!("arden-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        for i in 0..disks {
            let f = std::fs::File::create(dir.join(format!("d{i}"))).expect("a disk");
            f.set_len(mib << 20).expect("room");
        }
        let mut d = Daemon { dir, child: None };
        d.launch();
        d
    }

    pub fn launch(&mut self) {
        let log = std::fs::File::options().create(true).append(true).open(self.dir.join("log")).expect("a log");
        let mut c = self.command(&["serve", "--listen", "127.0.0.1:0"]);
        c.env("ARDEN_TEST_DELAYS", self.delays());
        c.stdout(log.try_clone().expect("a log")).stderr(log);
        self.child = Some(c.spawn().expect("arden starts"));
        let begun = Instant::now();
        while !self.ok(&["status"]) {
            assert!(begun.elapsed() < Duration::from_secs(60), "no answer: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut c = Command::new(env!("CARGO_BIN_EXE_arden"));
        c.current_dir(&self.dir).args(["--state", "state"]).args(args).stdin(Stdio::null());
        c
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("arden runs")
    }

    pub fn ok(&self, args: &[&str]) -> bool {
        self.run(args).status.success()
    }

    /// Runs a command that has to succeed, and returns its output.
    pub fn done(&self, args: &[&str]) -> String {
        let out = self.run(args);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{args:?}: {text}{}\n{}", String::from_utf8_lossy(&out.stderr), self.log());
        text
    }

    /// Runs a command that has to be refused with this exit code, and returns its output.
    pub fn refused(&self, code: i32, args: &[&str]) -> String {
        let out = self.run(args);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(code), "{args:?}: {text}");
        text
    }

    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        let all: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        serde_json::from_str(&self.done(&all)).expect("JSON")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    pub fn kill(&mut self) {
        if let Some(mut c) = self.child.take() {
            c.kill().expect("SIGKILL");
            c.wait().expect("it ends");
        }
    }

    /// Sends SIGTERM; the daemon has to stop without an error.
    pub fn stop(&mut self) {
        if let Some(mut c) = self.child.take() {
            let pid = c.id().to_string();
            assert!(Command::new("kill").arg(&pid).status().is_ok_and(|s| s.success()));
            assert!(c.wait().is_ok_and(|s| s.success()), "{}", self.log());
        }
    }

    /// Runs qemu-io commands on the export behind the socket `s`, and returns the output.
    pub fn qemu_io_output(&self, commands: &[String]) -> String {
        let mut c = Command::new("qemu-io");
        c.current_dir(&self.dir).args(["-f", "raw", "nbd+unix:///?socket=s"]);
        commands.iter().for_each(|x| {
            c.args(["-c", x]);
        });
        let out = c.output().expect("qemu-io runs");
        let text = String::from_utf8_lossy(&out.stdout).to_string() + &String::from_utf8_lossy(&out.stderr);
        if out.status.success() { text } else { format!("{text}failed") }
    }

    pub fn qemu_io(&self, commands: &[String]) {
        let text = self.qemu_io_output(commands);
        assert!(!text.contains("failed") && !text.contains("error"), "{commands:?}: {text}\n{}", self.log());
    }

    /// Waits until `what` holds.
    pub fn wait(&self, seconds: u64, what: &str, mut holds: impl FnMut(&Daemon) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < Duration::from_secs(seconds), "not within {seconds} s: {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The directory `ARDEN_TEST_DELAYS`, in which a test sets the time of reads of a disk before the disk is opened.
    pub fn delays(&self) -> PathBuf {
        self.dir.join("delays")
    }

    pub fn disk(&self, i: usize) -> PathBuf {
        self.dir.join(format!("d{i}"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut c) = self.child.take() {
            let _ = c.kill();
            let _ = c.wait();
        }
        if !std::thread::panicking() {
            assert!(!self.log().contains("panicked at"), "{}", self.log());
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

pub fn exists(path: &Path) -> bool {
    path.exists()
}

const MIB: u64 = 1 << 20;

/// Overwrites a part of a disk with noise. It is written past the page cache, as the daemon writes: pages that its
/// direct writes cannot push out would make its next flush fail, and a disk that cannot flush leaves the pool.
pub fn noise(path: &Path, from: u64) {
    const O_DIRECT: i32 = 0o40000;
    let open = |flags| std::fs::File::options().write(true).custom_flags(flags).open(path);
    let f = open(O_DIRECT).or_else(|_| open(0)).expect("the disk");
    let len = f.metadata().expect("its size").len();
    let mut r = nbd::Random(99);
    let mut memory = vec![0u8; MIB as usize + 4096];
    let start = memory.as_ptr().align_offset(4096);
    let block = &mut memory[start..][..MIB as usize];
    for at in (from..len).step_by(MIB as usize) {
        block.chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&r.next().to_le_bytes()));
        let n = MIB.min(len - at) as usize;
        f.write_all_at(&block[..n], at).expect("noise");
    }
    f.sync_all().expect("synced");
}
