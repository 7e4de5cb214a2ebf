//! A disk file of a mirror is overwritten with noise while clients read and write a volume on it, over SMB: no byte that
//! is returned is wrong, what was acknowledged is there after kill -9, and a scrub leaves nothing behind.

mod daemon;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use arden_lab::client::{Call, Client, Protection, Target, requests as r};
use daemon::{Daemon, nbd::Random, noise};
use smb2::{
    msg::create::CreateDisposition,
    types::{Command, FileId},
};

const BLOCK: usize = 4096;
const FILES: usize = 6;
const FILE_BLOCKS: u64 = 192;
const READ_WRITE: u32 = 0x0012_019F;

/// A block says whose it is, where, and which version.
fn block(owner: u64, file: u64, at: u64, version: u64) -> Vec<u8> {
    let words = [owner, file, at, version];
    (0..BLOCK / 8).flat_map(|i| (words[i % 4] ^ (i as u64 / 4) << 48).to_le_bytes()).collect()
}

/// One client with files of its own, and what it was told is in them: 0 is a block never written.
struct Worker {
    client: Client,
    owner: u64,
    random: Random,
    files: Vec<FileId>,
    versions: BTreeMap<(u64, u64), u64>,
    version: u64,
}

impl Worker {
    fn connect(d: &Daemon, owner: u64, disposition: CreateDisposition) -> Worker {
        let address = d.json(&["status"])["listen"][0].as_str().expect("an address").parse().expect("an address");
        let (share, user, password) = ("ca".into(), "tester".into(), "secret pass".into());
        let target = Target { address, share, user, password };
        let mut client = Client::connect(&target, Protection::GMAC).expect("a session");
        assert!(client.terms().continuously_available);
        let files = (0..FILES)
            .map(|i| client.open(&format!("w{owner}-{i}"), READ_WRITE, disposition, r::NON_DIRECTORY_FILE))
            .collect::<Result<_, _>>()
            .expect("files");
        Worker { client, owner, random: Random(owner + 5), files, versions: BTreeMap::new(), version: 0 }
    }

    fn write(&mut self, file: u64, at: u64, blocks: u64) {
        self.version += 1;
        let data: Vec<u8> = (at..at + blocks).flat_map(|b| block(self.owner, file, b, self.version)).collect();
        let charge = r::charge(data.len());
        let mut body = r::write(self.files[file as usize], data);
        body.offset = at * BLOCK as u64;
        self.client.call(&[Call { command: Command::Write, body: &body, charge }]).expect("a write");
        (at..at + blocks).for_each(|b| {
            self.versions.insert((file, b), self.version);
        });
    }

    fn read(&mut self, file: u64, at: u64, blocks: u64) {
        let mut body = r::read(self.files[file as usize], (blocks as usize * BLOCK) as u32);
        body.offset = at * BLOCK as u64;
        let charge = r::charge(blocks as usize * BLOCK);
        let (status, answer) =
            self.client.ask(Call { command: Command::Read, body: &body, charge }).expect("an answer");
        // [MS-SMB2] 2.2.20: the data begins at 16 of the body; STATUS_END_OF_FILE where nothing was written yet.
        let data = if status == 0xC000_0011 { &[] } else { &answer[16..] };
        assert!(status == 0 || data.is_empty(), "a read: {status:08x}");
        for (i, b) in (at..at + blocks).enumerate() {
            let want = match self.versions.get(&(file, b)) {
                Some(version) => block(self.owner, file, b, *version),
                None => vec![0; BLOCK],
            };
            let got = data.get(i * BLOCK..(i + 1) * BLOCK);
            let written = self.versions.contains_key(&(file, b));
            assert!(got.map_or(!written, |g| g == want), "client {}: file {file}, block {b} is wrong", self.owner);
        }
    }

    fn step(&mut self) {
        let file = self.random.below(FILES as u64);
        let blocks = [1, 2, 3, 17, 40][self.random.below(5) as usize];
        let at = self.random.below(FILE_BLOCKS - blocks);
        if self.random.below(5) < 2 { self.write(file, at, blocks) } else { self.read(file, at, blocks) }
    }

    fn verify(&mut self) {
        for file in 0..FILES as u64 {
            (0..FILE_BLOCKS).step_by(16).for_each(|at| self.read(file, at, 16));
        }
    }
}

fn load(workers: &mut [Worker], while_running: impl FnOnce()) {
    let (stop, steps) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        for w in workers.iter_mut() {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    w.step();
                    steps.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Some work before, some after, however fast the machine is.
        let more = |n: u64| {
            let (from, begun) = (steps.load(Ordering::Relaxed), Instant::now());
            while steps.load(Ordering::Relaxed) < from + n && begun.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(steps.load(Ordering::Relaxed) >= from + n, "the clients went on");
        };
        more(200);
        while_running();
        more(400);
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn noise_over_a_disk_of_the_mirror_never_reaches_a_client() {
    let mut d = Daemon::start("volume-noise", 2, 96);
    d.done(&["pool", "create", "tank", "d0", "d1"]);
    d.done(&["space", "create", "s", "--pool", "tank", "--layout", "mirror2", "--size", "48m"]);
    d.done(&["volume", "create", "v", "--space", "s"]);
    d.done(&["user", "add", "tester", "--password", "secret pass"]);
    d.done(&["share", "add", "ca", "--volume", "v", "--ca"]);
    let mut workers: Vec<Worker> = (1..=3).map(|i| Worker::connect(&d, i, CreateDisposition::FileCreate)).collect();

    let victim = d.disk(1);
    // Labels and map as well: they are known by their own checksums.
    load(&mut workers, || noise(Path::new(&victim), 0));
    workers.iter_mut().for_each(Worker::verify);
    let check = d.json(&["volume", "check", "v", "--data"]);
    assert_eq!(check["errors"], serde_json::json!([]), "{check}");
    // What nobody reads is healed by looking at everything.
    let said = d.done(&["pool", "scrub", "tank"]);
    assert!(said.contains("0 lost"), "{said}");
    load(&mut workers, || ());

    d.kill();
    let known: Vec<_> = workers.into_iter().map(|w| (w.owner, w.versions, w.version)).collect();
    d.launch();
    for (owner, versions, version) in known {
        let mut w = Worker::connect(&d, owner, CreateDisposition::FileOpen);
        (w.versions, w.version) = (versions, version);
        w.verify();
    }
    d.stop();
}
