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
const RANDOM_FILE: &str = "random.bin";
const STREAM_FILE: &str = "stream.bin";

fn write_stream(client: &mut Client, name: &str, seen: Option<&mut Latencies>) -> Result<()> {
    let id = client.open(name, 0x0012_0116, CreateDisposition::FileOverwriteIf, r::NON_DIRECTORY_FILE)?;
    let data = (0..STREAM_IO_BYTES).map(|i| (i * 13 + i / 4096) as u8).collect();
    let body = r::write(id, data);
    let mut template =
        client.template(&Call { command: Command::Write, body: &body, charge: r::charge(STREAM_IO_BYTES) });
    let mut unused = Latencies::default();
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

/// Reads every byte of a file that `write_stream` wrote, once.
fn read_stream(client: &mut Client, name: &str, seen: &mut Latencies) -> Result<()> {
    let id = client.open(name, 0x0012_0089, CreateDisposition::FileOpen, r::NON_DIRECTORY_FILE)?;
    let mut offsets = (0..STREAM_BYTES as u64).step_by(STREAM_IO_BYTES);
    read_all(client, id, STREAM_IO_BYTES, STREAM_IN_FLIGHT, || offsets.next(), seen)?;
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
}

impl RandomReads {
    pub(super) fn new(bench: &Bench<'_>) -> Result<RandomReads> {
        let mut client = bench.connect()?;
        // The file is read once: a server that caches reads then has it in memory.
        if client.open(RANDOM_FILE, 0x80, CreateDisposition::FileOpen, 0).is_err() {
            write_stream(&mut client, RANDOM_FILE, None)?;
            read_stream(&mut client, RANDOM_FILE, &mut Latencies::default())?;
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

/// One file, written or read once.
pub(super) struct Stream {
    client: Client,
    work: Work,
}

impl Stream {
    pub(super) fn new(bench: &Bench<'_>, work: Work) -> Result<Stream> {
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
