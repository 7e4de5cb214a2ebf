//! A file on an SMB server as a target, over one or several connections of one session, with as many requests in flight
//! as the server grants credits for.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use arden_block::{Buf, SharedBuf};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smb2::{
    msg::create::{
        CreateDisposition::{self, FileCreate, FileOpen, FileOverwriteIf},
        CreateRequest,
    },
    types::{Command, FileId, OplockLevel},
};

use super::target::{Done, Kind, Op, Target};
use crate::{
    Result,
    client::{self, Call, Client, Protection, Template, requests as r},
    fail,
};

/// Read, write and DELETE access: DELETE allows a rename.
const READ_WRITE: u32 = 0x0013_019F;
const READ_ONLY: u32 = 0x0012_0089;
const WRITE_THROUGH: u32 = 0x2;
/// A flag of WRITE, [MS-SMB2] 2.2.21.
const WRITEFLAG_WRITE_THROUGH: u32 = 1;

/// A file on a share, with the protection and the number of its connections.
#[derive(Debug, Clone)]
pub struct SmbFile {
    pub target: client::Target,
    /// Path from the root of the share, with backslashes.
    pub path: String,
    pub protection: Protection,
    pub channels: usize,
}

/// The use for which a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Reads an existing file.
    Read,
    Write,
    /// Makes a file that does not exist.
    Create,
    /// Makes a file, or empties an existing one.
    Overwrite,
}

impl SmbFile {
    /// Connects to the share and logs on.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect(&self) -> Result<Client> {
        Client::connect(&self.target, self.protection)
    }

    /// Opens the file on a connection as Windows does: with a persistent handle where the share is continuously
    /// available.
    ///
    /// # Errors
    /// A lost connection. A refusal is the inner status.
    pub fn open(
        &self,
        client: &mut Client,
        how: How,
        write_through: bool,
    ) -> Result<std::result::Result<r::Open, u32>> {
        open_file(client, &self.path, how, write_through)
    }
}

/// Opens a file as Windows does: with an oplock, and with a persistent handle where the share is continuously
/// available.
///
/// # Errors
/// A lost connection. A refusal is the inner status.
pub fn open_file(
    client: &mut Client,
    path: &str,
    how: How,
    write_through: bool,
) -> Result<std::result::Result<r::Open, u32>> {
    let (access, disposition): (u32, CreateDisposition) = match how {
        How::Read => (READ_ONLY, FileOpen),
        How::Write => (READ_WRITE, FileOpen),
        How::Create => (READ_WRITE, FileCreate),
        How::Overwrite => (READ_WRITE, FileOverwriteIf),
    };
    let options = r::NON_DIRECTORY_FILE | if write_through { WRITE_THROUGH } else { 0 };
    let mut body = r::create(path, access, disposition, options);
    persistent_where_it_can_be(client, &mut body);
    client.try_open(&body)
}

/// Adds the context for a persistent handle when the share is continuously available, as Windows and Linux clients do.
pub fn persistent_where_it_can_be(client: &Client, body: &mut CreateRequest) {
    if client.terms().continuously_available {
        body.create_contexts = r::persistent(create_guid());
        body.requested_oplock_level = OplockLevel::Batch;
    }
}

fn create_guid() -> u128 {
    let mut bytes = [0; 16];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u128::from_le_bytes(bytes) | 1
}

struct Channel {
    client: Client,
    /// Tags of requests in flight, by MessageId.
    in_flight: HashMap<u64, u32>,
    read: Option<(u32, Template)>,
    write: Option<(bool, Template)>,
}

/// An open file as a target.
pub struct SmbTarget {
    began: Instant,
    id: FileId,
    channels: Vec<Channel>,
    turn: usize,
    /// Requests that wait for credits.
    waiting: VecDeque<(Op, Option<SharedBuf>)>,
    /// Requests in flight by tag: kind, length in bytes, and whether the data is wanted.
    wanted: HashMap<u32, (Kind, u32, bool)>,
    in_flight: usize,
}

impl SmbTarget {
    /// Opens the file and the connections of its session.
    ///
    /// # Errors
    /// A connection fails, or the server refuses.
    pub fn open(file: &SmbFile, how: How, write_through: bool) -> Result<SmbTarget> {
        let mut client = file.connect()?;
        let open = match file.open(&mut client, how, write_through)? {
            Ok(open) => open,
            Err(status) => fail!("{}: {}", file.path, r::status_name(status)),
        };
        let mut clients = vec![client];
        for channel in 1..file.channels.max(1) {
            let joined = clients[0].join(&file.target, file.protection, channel as u16);
            match joined {
                Ok(client) => clients.push(client),
                Err(e) => fail!("connection {} of the session: {e}", channel + 1),
            }
        }
        Ok(SmbTarget::over(clients, open.id))
    }

    /// A target on an open file, over connections of its session.
    pub fn over(clients: Vec<Client>, id: FileId) -> SmbTarget {
        let channel = |client| Channel { client, in_flight: HashMap::new(), read: None, write: None };
        SmbTarget {
            began: Instant::now(),
            id,
            channels: clients.into_iter().map(channel).collect(),
            turn: 0,
            waiting: VecDeque::new(),
            wanted: HashMap::new(),
            in_flight: 0,
        }
    }

    /// The first connection of the session.
    pub fn client(&mut self) -> &mut Client {
        &mut self.channels[0].client
    }

    /// Sends the requests for which there are credits.
    fn send(&mut self) -> Result<()> {
        while let Some((op, _)) = self.waiting.front() {
            let charge = if op.kind == Kind::Flush { 1 } else { r::charge(op.bytes as usize) };
            let n = self.channels.len();
            let Some(i) = (0..n).map(|k| (self.turn + k) % n).find(|i| {
                let c = &self.channels[*i];
                // The last credit is kept: without one no further credits can be asked for.
                c.client.credits() >= u32::from(charge)
            }) else {
                if self.in_flight == 0 {
                    fail!("the server gives too few credits for requests of {} bytes", op.bytes);
                }
                break;
            };
            self.turn = (i + 1) % n;
            let Some((op, data)) = self.waiting.pop_front() else { break };
            self.channels[i].queue(self.id, op, data.as_ref())?;
            self.in_flight += 1;
        }
        for channel in &mut self.channels {
            channel.client.flush()?;
        }
        Ok(())
    }

    /// The channels that have data to read; empty when the time is over.
    fn ready(&self, until_ns: Option<u64>) -> Result<Vec<usize>> {
        let buffered: Vec<usize> = (0..self.channels.len()).filter(|i| self.channels[*i].client.buffered()).collect();
        if !buffered.is_empty() {
            return Ok(buffered);
        }
        if until_ns.is_none() && self.channels.len() == 1 {
            return Ok(vec![0]);
        }
        let mut fds: Vec<PollFd<'_>> =
            self.channels.iter().map(|c| PollFd::new(c.client.socket(), PollFlags::IN)).collect();
        let left = until_ns.map(|at| Duration::from_nanos(at.saturating_sub(self.now_ns())));
        let timeout = left.map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => fail!("poll: {e}"),
        }
        Ok((0..fds.len()).filter(|i| !fds[*i].revents().is_empty()).collect())
    }
}

impl Channel {
    fn queue(&mut self, id: FileId, op: Op, data: Option<&SharedBuf>) -> Result<()> {
        let message_id = self.client.next_id();
        match (op.kind, data) {
            (Kind::Flush, _) => {
                let body = smb2::msg::flush::FlushRequest { file_id: id };
                self.client.queue(&[Call { command: Command::Flush, body: &body, charge: 1 }]);
            }
            (Kind::Read, _) => {
                let (_, template) = match &mut self.read {
                    Some(read) if read.0 == op.bytes => read,
                    slot => {
                        let body = r::read(id, op.bytes);
                        let call = Call { command: Command::Read, body: &body, charge: r::charge(op.bytes as usize) };
                        slot.insert((op.bytes, self.client.template(&call)))
                    }
                };
                self.client.queue_at(template, op.offset);
            }
            (Kind::Write, Some(data)) => {
                let data = &data[..op.bytes as usize];
                let (_, template) = match &mut self.write {
                    Some(write) if write.0 == op.durable => write,
                    slot => {
                        let flags = if op.durable { WRITEFLAG_WRITE_THROUGH } else { 0 };
                        slot.insert((op.durable, self.client.write_template(id, flags)))
                    }
                };
                self.client.queue_write_at(template, op.offset, data);
            }
            (Kind::Write, None) => fail!("a write without data"),
        }
        self.in_flight.insert(message_id, op.tag);
        Ok(())
    }
}

impl Target for SmbTarget {
    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn start(&mut self, op: Op, data: Option<&SharedBuf>) -> Result<()> {
        let terms = self.channels[0].client.terms();
        let most = if op.kind == Kind::Read { terms.read_bytes_max } else { terms.write_bytes_max };
        if op.bytes > most {
            fail!("the server takes at most {most} bytes in one request, not {}", op.bytes);
        }
        self.wanted.insert(op.tag, (op.kind, op.bytes, op.want_data));
        self.waiting.push_back((op, data.cloned()));
        Ok(())
    }

    /// Closes the open. A persistent open whose connection is only dropped blocks the file until its timeout.
    fn close(&mut self) -> Result<()> {
        let id = self.id;
        self.client().close(id)
    }

    fn wait(&mut self, until_ns: Option<u64>, done: &mut Vec<Done>) -> Result<()> {
        loop {
            self.send()?;
            if self.in_flight == 0 {
                if let Some(until) = until_ns {
                    std::thread::sleep(Duration::from_nanos(until.saturating_sub(self.now_ns())));
                }
                return Ok(());
            }
            let before = done.len();
            for i in self.ready(until_ns)? {
                let began = self.began;
                let channel = &mut self.channels[i];
                loop {
                    channel.client.receive(|reply| {
                        let Some(tag) = channel.in_flight.remove(&reply.message_id) else { return };
                        let (kind, bytes, want) = self.wanted.remove(&tag).unwrap_or((Kind::Flush, 0, false));
                        let at_ns = began.elapsed().as_nanos() as u64;
                        let (data, error) = answer(kind, bytes, want, reply.status, reply.body);
                        done.push(Done { tag, at_ns, data, error });
                        self.in_flight -= 1;
                    })?;
                    if !channel.client.buffered() {
                        break;
                    }
                }
            }
            if done.len() > before || until_ns.is_some_and(|at| self.now_ns() >= at) {
                return Ok(());
            }
        }
    }
}

fn answer(kind: Kind, bytes: u32, want: bool, status: u32, body: &[u8]) -> (Option<Buf>, Option<String>) {
    if status != 0 {
        return (None, Some(r::status_name(status)));
    }
    // READ response, [MS-SMB2] 2.2.20: DataOffset at 2, from the header, DataLength at 4. WRITE response: Count at 4.
    let count = body.get(4..8).map_or(0, |l| u32::from_le_bytes(l.try_into().expect("four bytes")));
    if kind != Kind::Flush && count != bytes {
        return (None, Some(format!("{count} bytes instead of {bytes}")));
    }
    if !want {
        return (None, None);
    }
    let at = usize::from(body.get(2).copied().unwrap_or(0)).saturating_sub(64);
    match body.get(at..at + bytes as usize) {
        Some(data) => (Some(Buf::copy_of(data)), None),
        None => (None, Some("a truncated answer".to_string())),
    }
}
