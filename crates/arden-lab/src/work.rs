//! The workloads. Each runs a fixed number of operations and says how long they took, and what the server spent.

use std::{
    collections::VecDeque,
    sync::{Barrier, Mutex},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use smb2::{msg::create::CreateDisposition, types::Command};

use crate::{
    Result,
    client::{Call, Client, Protection, Target, requests as r},
    cpu, fail,
    load::smb::persistent_where_it_can_be,
};

pub const SMALL_BYTES: usize = 16 * 1024;
pub const LIST_FILES: usize = 2000;
pub const BLOCK_BYTES: usize = 4096;
pub const RANDOM_IN_FLIGHT: usize = 32;
const STREAM_BYTES: usize = 256 << 20;
const STREAM_IO_BYTES: usize = 1 << 20;
const STREAM_IN_FLIGHT: usize = 4;
const RANDOM_FILE: &str = "random.bin";
const STREAM_FILE: &str = "stream.bin";
const LIST_DIRECTORY: &str = "list";

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
    /// In an order in which each finds what it needs.
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

    pub fn is_small(self) -> bool {
        !self.is_stream() && self != Work::RandomRead
    }

    /// As it is called on the command line.
    pub fn name(self) -> String {
        serde_json::to_value(self).ok().and_then(|v| v.as_str().map(String::from)).unwrap_or_default()
    }

    pub fn is_stream(self) -> bool {
        matches!(self, Work::StreamWrite | Work::StreamRead)
    }
}

/// How much work.
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
    pub fn fifth(self) -> Amount {
        Amount {
            files: (self.files / 5).max(1),
            lists: (self.lists / 5).max(1),
            random_reads: (self.random_reads / 5).max(1),
            ..self
        }
    }
}

/// What one run gave.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sample {
    /// Operations, or MiB of the streams.
    pub operations: u64,
    pub seconds: f64,
    pub server_cpu_seconds: f64,
    pub client_cpu_seconds: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
}

impl Sample {
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds
    }
    pub fn server_us(&self) -> f64 {
        self.server_cpu_seconds * 1e6 / self.operations as f64
    }
    pub fn client_us(&self) -> f64 {
        self.client_cpu_seconds * 1e6 / self.operations as f64
    }
}

type Latencies = Histogram<u64>;

fn latencies() -> Latencies {
    Histogram::new_with_bounds(100, 60_000_000_000, 3).expect("bounds are valid")
}

/// Where and how one work runs.
pub struct Bench<'a> {
    pub target: &'a Target,
    pub protection: Protection,
    /// The server's process, or none when it is on another machine.
    pub server: Option<u32>,
    pub amount: Amount,
}

impl Bench<'_> {
    fn connect(&self) -> Result<Client> {
        Client::connect(self.target, self.protection)
    }

    pub fn run(&self, work: Work) -> Result<Sample> {
        match work {
            Work::Create | Work::Read | Work::Stat | Work::Rename | Work::Delete => {
                self.measure(self.amount.connections, |i| Small::new(self, work, i))
            }
            Work::List => self.measure(1, |_| Listing::new(self)),
            Work::RandomRead => self.measure(1, |_| RandomReads::new(self)),
            Work::StreamWrite | Work::StreamRead => self.measure(1, |_| Stream::new(self, work)),
        }
    }

    /// Prepares on every connection, starts all at once, and takes what the server and this process spent meanwhile.
    fn measure<J: Job + Send>(&self, threads: usize, make: impl Fn(usize) -> Result<J>) -> Result<Sample> {
        let jobs = (0..threads).map(make).collect::<Result<Vec<J>>>()?;
        let ready = Barrier::new(threads + 1);
        let all = Mutex::new((latencies(), 0u64));
        let (mut server, mut client, mut elapsed) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        std::thread::scope(|scope| -> Result<()> {
            let mut running = Vec::new();
            for mut job in jobs {
                let (ready, all) = (&ready, &all);
                running.push(scope.spawn(move || -> Result<()> {
                    let mut seen = latencies();
                    ready.wait();
                    let done = job.run(&mut seen)?;
                    let mut all = all.lock().expect("no panic");
                    all.0.add(&seen).expect("same bounds");
                    all.1 += done;
                    drop(all);
                    // The connection ends after the clock: its end is no part of the work.
                    drop(job);
                    Ok(())
                }));
            }
            let spent = || self.server.map_or(Duration::ZERO, cpu::spent);
            let (server_before, client_before) = (spent(), cpu::own());
            ready.wait();
            let started = Instant::now();
            for thread in running {
                match thread.join() {
                    Ok(result) => result?,
                    Err(_) => fail!("a thread of the load generator panicked"),
                }
            }
            elapsed = started.elapsed();
            (server, client) = (spent() - server_before, cpu::own() - client_before);
            Ok(())
        })?;
        let (seen, operations) = all.into_inner().expect("no panic");
        let us = |q: f64| seen.value_at_quantile(q) as f64 / 1e3;
        Ok(Sample {
            operations,
            seconds: elapsed.as_secs_f64(),
            server_cpu_seconds: server.as_secs_f64(),
            client_cpu_seconds: client.as_secs_f64(),
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
        })
    }

    /// Removes what the workloads leave behind, but directories.
    pub fn clean(&self) -> Result<()> {
        let mut client = self.connect()?;
        for name in [RANDOM_FILE, STREAM_FILE] {
            let _ = client.delete(name);
        }
        Ok(())
    }
}

trait Job {
    /// Does the work; how many operations were done.
    fn run(&mut self, seen: &mut Latencies) -> Result<u64>;
}

fn record(seen: &mut Latencies, since: Instant) {
    seen.saturating_record(since.elapsed().as_nanos() as u64);
}

/// Compounds on many small files, `depth` in flight.
struct Small {
    client: Client,
    work: Work,
    connection: usize,
    files: usize,
    depth: usize,
    data: Vec<u8>,
}

impl Small {
    fn new(bench: &Bench<'_>, work: Work, connection: usize) -> Result<Small> {
        let mut client = bench.connect()?;
        client.make_directory(&format!("c{connection}"))?;
        let data = (0..SMALL_BYTES).map(|i| (i * 7 + connection) as u8).collect();
        Ok(Small { client, work, connection, files: bench.amount.files, depth: bench.amount.depth.max(1), data })
    }

    fn queue(&mut self, i: usize) {
        const SENTINEL: smb2::types::FileId = smb2::types::FileId::SENTINEL;
        let name = format!("c{}\\file-{i:06}.dat", self.connection);
        let renamed = format!("c{}\\renamed-{i:06}.dat", self.connection);
        use CreateDisposition::{FileCreate, FileOpen};
        let close = r::close();
        let end = Call { command: Command::Close, body: &close, charge: 1 };
        match self.work {
            Work::Create => {
                let mut open = r::create(&name, 0x0012_0116, FileCreate, r::NON_DIRECTORY_FILE);
                persistent_where_it_can_be(&self.client, &mut open);
                let body = r::write(SENTINEL, self.data.clone());
                self.three(&open, Call { command: Command::Write, body: &body, charge: 1 }, end);
            }
            Work::Read => {
                let mut open = r::create(&name, 0x0012_0089, FileOpen, r::NON_DIRECTORY_FILE);
                persistent_where_it_can_be(&self.client, &mut open);
                let body = r::read(SENTINEL, SMALL_BYTES as u32);
                self.three(&open, Call { command: Command::Read, body: &body, charge: 1 }, end);
            }
            Work::Stat => {
                let open = r::create(&name, 0x0010_0080, FileOpen, 0);
                self.three(&open, Call { command: Command::QueryInfo, body: &r::stat(), charge: 1 }, end);
            }
            Work::Rename => {
                let open = r::create(&name, 0x0011_0080, FileOpen, 0);
                let body = r::rename(&renamed);
                self.three(&open, Call { command: Command::SetInfo, body: &body, charge: 1 }, end);
            }
            _ => {
                let open = r::create(&renamed, 0x0001_0000, FileOpen, r::DELETE_ON_CLOSE);
                self.client.queue(&[Call { command: Command::Create, body: &open, charge: 1 }, end]);
            }
        }
    }

    fn three(&mut self, open: &smb2::msg::create::CreateRequest, middle: Call<'_>, end: Call<'_>) {
        self.client.queue(&[Call { command: Command::Create, body: open, charge: 1 }, middle, end]);
    }
}

impl Job for Small {
    fn run(&mut self, seen: &mut Latencies) -> Result<u64> {
        let answers = if self.work == Work::Delete { 2 } else { 3 };
        let mut started = VecDeque::new();
        let mut sent = 0;
        let mut got = 0;
        let mut bad = None;
        for done in 0..self.files {
            while sent < self.files && sent - done < self.depth {
                self.queue(sent);
                started.push_back(Instant::now());
                sent += 1;
            }
            self.client.flush()?;
            while got < answers {
                self.client.receive(|reply| {
                    got += 1;
                    if reply.status != 0 {
                        bad.get_or_insert((got, reply.status));
                    }
                })?;
            }
            got -= answers;
            if let Some((n, status)) = bad {
                fail!("{:?}, file {done}, request {n}: status 0x{status:08X}", self.work);
            }
            record(seen, started.pop_front().expect("one for each"));
        }
        Ok(self.files as u64)
    }
}

/// Whole listings of one directory.
struct Listing {
    client: Client,
    lists: usize,
}

impl Listing {
    fn new(bench: &Bench<'_>) -> Result<Listing> {
        let mut client = bench.connect()?;
        client.make_directory(LIST_DIRECTORY)?;
        for i in 0..LIST_FILES {
            let name = format!("{LIST_DIRECTORY}\\entry with a name of some length {i:05}.txt");
            let open = r::create(&name, 0x0012_0116, CreateDisposition::FileOpenIf, r::NON_DIRECTORY_FILE);
            client.call(&[
                Call { command: Command::Create, body: &open, charge: 1 },
                Call { command: Command::Close, body: &r::close(), charge: 1 },
            ])?;
        }
        Ok(Listing { client, lists: bench.amount.lists })
    }

    fn once(&mut self) -> Result<usize> {
        let id = self.client.open(LIST_DIRECTORY, 0x0010_0081, CreateDisposition::FileOpen, r::DIRECTORY_FILE)?;
        let mut entries = 0;
        loop {
            let body = r::list(id, entries == 0);
            self.client.queue(&[Call { command: Command::QueryDirectory, body: &body, charge: 1 }]);
            self.client.flush()?;
            let mut status = 0;
            self.client.receive(|reply| {
                status = reply.status;
                if status == 0 {
                    entries += count_entries(reply.body);
                }
            })?;
            match status {
                0 => {}
                r::NO_MORE_FILES => break,
                _ => fail!("query directory: status 0x{status:08X}"),
            }
        }
        self.client.close(id)?;
        Ok(entries)
    }
}

/// Entries of a QUERY_DIRECTORY response: they are linked by NextEntryOffset.
fn count_entries(body: &[u8]) -> usize {
    let mut at = 8;
    let mut n = 0;
    while let Some(next) = body.get(at..at + 4) {
        n += 1;
        let next = u32::from_le_bytes(next.try_into().expect("four bytes")) as usize;
        if next == 0 {
            break;
        }
        at += next;
    }
    n
}

impl Job for Listing {
    fn run(&mut self, seen: &mut Latencies) -> Result<u64> {
        for _ in 0..self.lists {
            let started = Instant::now();
            let entries = self.once()?;
            // With or without `.` and `..`.
            if !(LIST_FILES..=LIST_FILES + 2).contains(&entries) {
                fail!("a listing has {entries} entries");
            }
            record(seen, started);
        }
        Ok(self.lists as u64)
    }
}

fn write_stream(client: &mut Client, name: &str, seen: Option<&mut Latencies>) -> Result<()> {
    let id = client.open(name, 0x0012_0116, CreateDisposition::FileOverwriteIf, r::NON_DIRECTORY_FILE)?;
    let data = (0..STREAM_IO_BYTES).map(|i| (i * 13 + i / 4096) as u8).collect();
    let body = r::write(id, data);
    let mut template =
        client.template(&Call { command: Command::Write, body: &body, charge: r::charge(STREAM_IO_BYTES) });
    let mut unused = latencies();
    let seen = seen.unwrap_or(&mut unused);
    let total = STREAM_BYTES / STREAM_IO_BYTES;
    let mut started = VecDeque::new();
    let mut sent = 0;
    for done in 0..total {
        while sent < total && sent - done < STREAM_IN_FLIGHT {
            started.push_back(Instant::now());
            client.send_at(&mut template, (sent * STREAM_IO_BYTES) as u64)?;
            sent += 1;
        }
        let mut status = 0;
        client.receive(|reply| status = reply.status)?;
        if status != 0 {
            fail!("write: status 0x{status:08X}");
        }
        record(seen, started.pop_front().expect("one for each"));
    }
    client.close(id)
}

/// Every byte of a file that `write_stream` wrote, once.
fn read_stream(client: &mut Client, name: &str, seen: &mut Latencies) -> Result<()> {
    let id = client.open(name, 0x0012_0089, CreateDisposition::FileOpen, r::NON_DIRECTORY_FILE)?;
    let mut offsets = (0..STREAM_BYTES as u64).step_by(STREAM_IO_BYTES);
    read_all(client, id, STREAM_IO_BYTES, STREAM_IN_FLIGHT, || offsets.next(), seen)?;
    client.close(id)
}

/// Reads with a constant number in flight; `next` gives offsets until it has none.
fn read_all(
    client: &mut Client,
    id: smb2::types::FileId,
    bytes: usize,
    in_flight: usize,
    mut next: impl FnMut() -> Option<u64>,
    seen: &mut Latencies,
) -> Result<u64> {
    let body = r::read(id, bytes as u32);
    let mut template = client.template(&Call { command: Command::Read, body: &body, charge: r::charge(bytes) });
    let mut started: Vec<(u64, Instant)> = Vec::with_capacity(in_flight);
    let (mut done, mut ended) = (0, false);
    loop {
        while !ended && started.len() < in_flight {
            match next() {
                Some(offset) => {
                    let id = client.next_id();
                    client.queue_at(&mut template, offset);
                    started.push((id, Instant::now()));
                }
                None => ended = true,
            }
        }
        client.flush()?;
        if started.is_empty() {
            return Ok(done);
        }
        // Everything that came with one read of the socket, then all the new requests with one write.
        let mut bad = None;
        loop {
            client.receive(|reply| {
                let length = reply.body.get(4..8).map_or(0, |l| u32::from_le_bytes(l.try_into().expect("four")));
                if reply.status != 0 || length as usize != bytes {
                    bad = Some(reply.status);
                }
                if let Some(i) = started.iter().position(|(id, _)| *id == reply.message_id) {
                    record(seen, started.swap_remove(i).1);
                    done += 1;
                }
            })?;
            if !client.buffered() || started.is_empty() {
                break;
            }
        }
        if let Some(status) = bad {
            fail!("read: status 0x{status:08X} or short");
        }
    }
}

struct RandomReads {
    client: Client,
    id: smb2::types::FileId,
    reads: usize,
}

impl RandomReads {
    fn new(bench: &Bench<'_>) -> Result<RandomReads> {
        let mut client = bench.connect()?;
        // Read once, so that a server that keeps what was read has it in memory.
        if client.open(RANDOM_FILE, 0x80, CreateDisposition::FileOpen, 0).is_err() {
            write_stream(&mut client, RANDOM_FILE, None)?;
            read_stream(&mut client, RANDOM_FILE, &mut latencies())?;
        }
        let id = client.open(RANDOM_FILE, 0x0012_0089, CreateDisposition::FileOpen, r::NON_DIRECTORY_FILE)?;
        Ok(RandomReads { client, id, reads: bench.amount.random_reads })
    }
}

impl Job for RandomReads {
    fn run(&mut self, seen: &mut Latencies) -> Result<u64> {
        let mut left = self.reads;
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let next = || {
            left = left.checked_sub(1)?;
            // xorshift64*
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            let block = state.wrapping_mul(0x2545_F491_4F6C_DD1D) % (STREAM_BYTES / BLOCK_BYTES) as u64;
            Some(block * BLOCK_BYTES as u64)
        };
        read_all(&mut self.client, self.id, BLOCK_BYTES, RANDOM_IN_FLIGHT, next, seen)
    }
}

struct Stream {
    client: Client,
    work: Work,
}

impl Stream {
    fn new(bench: &Bench<'_>, work: Work) -> Result<Stream> {
        let mut client = bench.connect()?;
        if work == Work::StreamRead && client.open(STREAM_FILE, 0x80, CreateDisposition::FileOpen, 0).is_err() {
            write_stream(&mut client, STREAM_FILE, None)?;
        }
        Ok(Stream { client, work })
    }
}

impl Job for Stream {
    fn run(&mut self, seen: &mut Latencies) -> Result<u64> {
        if self.work == Work::StreamWrite {
            write_stream(&mut self.client, STREAM_FILE, Some(seen))?;
        } else {
            read_stream(&mut self.client, STREAM_FILE, seen)?;
        }
        Ok((STREAM_BYTES >> 20) as u64)
    }
}
