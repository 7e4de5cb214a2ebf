//! Large files: written and read from the first byte to the last, and read at random.

use std::{collections::VecDeque, time::Instant};

use arden_measure::{
    Result,
    client::{Call, Client, requests as r},
    fail,
    load::Latencies,
};
use smb2::{
    msg::create::CreateDisposition,
    types::{Command, FileId},
};

use super::{
    BLOCK_BYTES, Bench, RANDOM_IN_FLIGHT, Work,
    job::{Job, record},
};

const STREAM_BYTES: usize = 256 << 20;
const STREAM_IO_BYTES: usize = 1 << 20;
const STREAM_IN_FLIGHT: usize = 4;
/// In flight on each of several connections.
const STREAM_IN_FLIGHT_EACH: usize = 2;
const RANDOM_FILE: &str = "random.bin";

/// A large file that is written or read once.
struct Large {
    name: String,
    bytes: usize,
    in_flight: usize,
}

impl Large {
    /// The file of a connection: all connections together write or read [`STREAM_BYTES`].
    fn of(bench: &Bench<'_>, connection: usize) -> Large {
        match bench.large_connections() {
            1 => Large { name: "stream.bin".into(), bytes: STREAM_BYTES, in_flight: STREAM_IN_FLIGHT },
            n => Large {
                name: format!("stream-{connection}.bin"),
                bytes: (STREAM_BYTES / n).next_multiple_of(STREAM_IO_BYTES),
                in_flight: STREAM_IN_FLIGHT_EACH,
            },
        }
    }
}

fn write_stream(client: &mut Client, file: &Large, seen: Option<&mut Latencies>) -> Result<()> {
    let id = client.open(&file.name, 0x0012_0116, CreateDisposition::FileOverwriteIf, r::NON_DIRECTORY_FILE)?;
    let data = (0..STREAM_IO_BYTES).map(|i| (i * 13 + i / 4096) as u8).collect();
    let body = r::write(id, data);
    let mut template =
        client.template(&Call { command: Command::Write, body: &body, charge: r::charge(STREAM_IO_BYTES) });
    let mut unused = Latencies::default();
    let seen = seen.unwrap_or(&mut unused);
    let total = file.bytes / STREAM_IO_BYTES;
    let mut started = VecDeque::new();
    let mut sent = 0;
    for done in 0..total {
        while sent < total && sent - done < file.in_flight {
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

/// Reads every byte of a file that `write_stream` wrote, once.
fn read_stream(client: &mut Client, file: &Large, seen: &mut Latencies) -> Result<()> {
    let id = client.open(&file.name, 0x0012_0089, CreateDisposition::FileOpen, r::NON_DIRECTORY_FILE)?;
    let mut offsets = (0..file.bytes as u64).step_by(STREAM_IO_BYTES);
    read_all(client, id, STREAM_IO_BYTES, file.in_flight, || offsets.next(), seen)?;
    client.close(id)
}

/// Reads with a constant number in flight at the offsets that `next` returns.
fn read_all(
    client: &mut Client,
    id: FileId,
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
        // All answers of one read of the socket are taken, then all new requests are sent with one write.
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

/// Random reads of blocks of one file.
pub(super) struct RandomReads {
    client: Client,
    id: FileId,
    reads: usize,
    in_flight: usize,
    seed: u64,
}

impl RandomReads {
    pub(super) fn new(bench: &Bench<'_>, connection: usize) -> Result<RandomReads> {
        let mut client = bench.connect()?;
        // The file is read once: a server that caches reads then has it in memory.
        if client.open(RANDOM_FILE, 0x80, CreateDisposition::FileOpen, 0).is_err() {
            let file = Large { name: RANDOM_FILE.into(), bytes: STREAM_BYTES, in_flight: STREAM_IN_FLIGHT };
            write_stream(&mut client, &file, None)?;
            read_stream(&mut client, &file, &mut Latencies::default())?;
        }
        let id = client.open(RANDOM_FILE, 0x0012_0089, CreateDisposition::FileOpen, r::NON_DIRECTORY_FILE)?;
        let connections = bench.large_connections();
        Ok(RandomReads {
            client,
            id,
            reads: bench.amount.random_reads / connections,
            in_flight: (RANDOM_IN_FLIGHT / connections).max(1),
            seed: 0x9E37_79B9_7F4A_7C15 ^ connection as u64,
        })
    }
}

impl Job for RandomReads {
    fn run(&mut self, seen: &mut Latencies) -> Result<u64> {
        let mut left = self.reads;
        let mut state = self.seed;
        let next = || {
            left = left.checked_sub(1)?;
            // xorshift64*
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            let block = state.wrapping_mul(0x2545_F491_4F6C_DD1D) % (STREAM_BYTES / BLOCK_BYTES) as u64;
            Some(block * BLOCK_BYTES as u64)
        };
        read_all(&mut self.client, self.id, BLOCK_BYTES, self.in_flight, next, seen)
    }
}

/// One file, written or read once.
pub(super) struct Stream {
    client: Client,
    work: Work,
    file: Large,
}

impl Stream {
    pub(super) fn new(bench: &Bench<'_>, work: Work, connection: usize) -> Result<Stream> {
        let mut client = bench.connect()?;
        let file = Large::of(bench, connection);
        if work == Work::StreamRead && client.open(&file.name, 0x80, CreateDisposition::FileOpen, 0).is_err() {
            write_stream(&mut client, &file, None)?;
        }
        Ok(Stream { client, work, file })
    }
}

impl Job for Stream {
    fn run(&mut self, seen: &mut Latencies) -> Result<u64> {
        if self.work == Work::StreamWrite {
            write_stream(&mut self.client, &self.file, Some(seen))?;
        } else {
            read_stream(&mut self.client, &self.file, seen)?;
        }
        Ok((self.file.bytes >> 20) as u64)
    }
}
