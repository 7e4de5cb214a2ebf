//! A network block device as a target: an exported space, or another server's export. The fixed newstyle handshake with
//! GO, simple replies, and one connection with many requests in flight.

use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::TcpStream,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use arden_block::{Buf, SharedBuf};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, SendFlags},
};

use super::target::{Done, Kind, Op, Target};
use crate::{Context, Result, fail};

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454F_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
/// Client flags FIXED_NEWSTYLE and NO_ZEROES.
const CLIENT_FLAGS: u32 = 3;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
/// The type NBD_INFO_EXPORT of an information reply: size and flags of the export.
const INFO_EXPORT: u16 = 0;
/// Limit of an option reply in bytes.
const OPTION_BYTES_MAX: u32 = 64 << 10;
/// Transmission flags: the export is read-only; it supports FUA.
const FLAG_READ_ONLY: u16 = 2;
const FLAG_FUA: u16 = 8;
const COMMAND_FUA: u16 = 1;
const REPLY_BYTES: usize = 16;
const INPUT_BYTES: usize = 256 << 10;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects to `unix:PATH` or `HOST:PORT`.
    fn connect(place: &str) -> io::Result<Socket> {
        if let Some(path) = place.strip_prefix("unix:") {
            let s = UnixStream::connect(path)?;
            s.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
            return Ok(Socket::Unix(s));
        }
        let s = TcpStream::connect(place)?;
        s.set_nodelay(true)?;
        s.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
        Ok(Socket::Tcp(s))
    }

    fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        match self {
            Socket::Tcp(s) => s.read_exact(bytes),
            Socket::Unix(s) => s.read_exact(bytes),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Socket::Tcp(s) => s.write_all(bytes),
            Socket::Unix(s) => s.write_all(bytes),
        }
    }

    fn u16(&mut self) -> io::Result<u16> {
        let mut b = [0; 2];
        self.read_exact(&mut b)?;
        Ok(u16::from_be_bytes(b))
    }

    fn u32(&mut self) -> io::Result<u32> {
        let mut b = [0; 4];
        self.read_exact(&mut b)?;
        Ok(u32::from_be_bytes(b))
    }

    fn u64(&mut self) -> io::Result<u64> {
        let mut b = [0; 8];
        self.read_exact(&mut b)?;
        Ok(u64::from_be_bytes(b))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(s) => s.as_fd(),
            Socket::Unix(s) => s.as_fd(),
        }
    }
}

#[derive(Clone, Copy)]
struct Waiting {
    tag: u32,
    kind: Kind,
    bytes: u32,
    want_data: bool,
}

/// A connection to an export.
pub struct NbdTarget {
    began: Instant,
    socket: Socket,
    size_bytes: u64,
    flags: u16,
    out: Vec<u8>,
    input: Vec<u8>,
    /// Bytes of `input` that are filled, and those of them that are processed.
    filled: usize,
    used: usize,
    /// Requests in flight, by cookie.
    in_flight: HashMap<u64, Waiting>,
    next_cookie: u64,
}

/// Negotiates the export; returns its size in bytes and its flags.
fn handshake(s: &mut Socket, export: &str) -> Result<(u64, u16)> {
    if s.u64()? != MAGIC || s.u64()? != OPTION_MAGIC {
        fail!("what listens there does not speak NBD");
    }
    let _ = s.u16()?;
    let mut ask = CLIENT_FLAGS.to_be_bytes().to_vec();
    ask.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    ask.extend_from_slice(&OPTION_GO.to_be_bytes());
    ask.extend_from_slice(&(export.len() as u32 + 6).to_be_bytes());
    ask.extend_from_slice(&(export.len() as u32).to_be_bytes());
    ask.extend_from_slice(export.as_bytes());
    ask.extend_from_slice(&0u16.to_be_bytes());
    s.write_all(&ask)?;
    let mut found = None;
    loop {
        if s.u64()? != OPTION_REPLY_MAGIC || s.u32()? != OPTION_GO {
            fail!("the NBD server answers something else than what was asked");
        }
        let (kind, len) = (s.u32()?, s.u32()?);
        if len > OPTION_BYTES_MAX {
            fail!("the NBD server's answer is too long");
        }
        let mut data = vec![0; len as usize];
        s.read_exact(&mut data)?;
        match kind {
            REPLY_ACK => break,
            REPLY_INFO => {
                if let (Some(&[a, b]), Some(size), Some(&[c, d])) = (
                    data.first_chunk::<2>(),
                    data.get(2..10).and_then(|s| s.try_into().ok()).map(u64::from_be_bytes),
                    data.get(10..12).and_then(|f| f.first_chunk::<2>()),
                ) && u16::from_be_bytes([a, b]) == INFO_EXPORT
                {
                    found = Some((size, u16::from_be_bytes([c, d])));
                }
            }
            _ => fail!("the NBD server has no export {export:?}"),
        }
    }
    match found {
        Some(found) => Ok(found),
        None => fail!("the NBD server does not say how large {export:?} is"),
    }
}

impl NbdTarget {
    /// Connects to `place`, `unix:PATH` or `HOST:PORT`. An empty name selects the server's default export.
    ///
    /// # Errors
    /// The place cannot be reached, or the server does not offer the export.
    pub fn connect(place: &str, export: &str) -> Result<NbdTarget> {
        let mut socket = Socket::connect(place).context(format_args!("{place} cannot be reached"))?;
        let (size_bytes, flags) = handshake(&mut socket, export).context(place)?;
        Ok(NbdTarget {
            began: Instant::now(),
            socket,
            size_bytes,
            flags,
            out: Vec::new(),
            input: vec![0; INPUT_BYTES],
            filled: 0,
            used: 0,
            in_flight: HashMap::new(),
            next_cookie: 1,
        })
    }

    /// The size of the export in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Sends as much as the socket takes without waiting.
    fn send(&mut self) -> Result<()> {
        let mut sent = 0;
        while sent < self.out.len() {
            match rustix::net::send(&self.socket, &self.out[sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(e) => fail!("the connection is gone: {e}"),
            }
        }
        self.out.drain(..sent);
        Ok(())
    }

    /// Reads bytes that have arrived; whether there may be more.
    fn receive(&mut self) -> Result<bool> {
        if self.used == self.filled {
            (self.used, self.filled) = (0, 0);
        } else if self.filled == self.input.len() {
            self.input.copy_within(self.used..self.filled, 0);
            self.filled -= self.used;
            self.used = 0;
            if self.filled == self.input.len() {
                self.input.resize(self.filled * 2, 0);
            }
        }
        let room = self.input.len() - self.filled;
        match rustix::net::recv(&self.socket, &mut self.input[self.filled..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => fail!("the server closed the connection"),
            Ok((_, n)) => {
                self.filled += n;
                Ok(n == room)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(e) => fail!("the connection is gone: {e}"),
        }
    }

    /// Completes the requests whose replies are complete.
    fn replies(&mut self, done: &mut Vec<Done>) -> Result<()> {
        loop {
            let rest = &self.input[self.used..self.filled];
            let Some(head) = rest.first_chunk::<REPLY_BYTES>() else { return Ok(()) };
            let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
            let cookie = u64::from(word(8)) << 32 | u64::from(word(12));
            let (error, waiting) = (word(4), self.in_flight.get(&cookie).copied());
            let (REPLY_MAGIC, Some(w)) = (word(0), waiting) else { fail!("an answer to nothing that was asked") };
            let bytes = if w.kind == Kind::Read && error == 0 { w.bytes as usize } else { 0 };
            let Some(body) = rest.get(REPLY_BYTES..REPLY_BYTES + bytes) else { return Ok(()) };
            let data = (w.want_data && bytes > 0).then(|| Buf::copy_of(body));
            let error = (error != 0).then(|| Errno::from_raw_os_error(error as i32).to_string());
            self.used += REPLY_BYTES + bytes;
            self.in_flight.remove(&cookie);
            done.push(Done { tag: w.tag, at_ns: self.began.elapsed().as_nanos() as u64, data, error });
        }
    }
}

impl Target for NbdTarget {
    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn start(&mut self, op: Op, data: Option<&SharedBuf>) -> Result<()> {
        let kind: u16 = match op.kind {
            Kind::Read => 0,
            Kind::Write if self.flags & FLAG_READ_ONLY != 0 => fail!("this export is read-only"),
            Kind::Write if op.durable && self.flags & FLAG_FUA == 0 => fail!("this export knows no write-through"),
            Kind::Write => 1,
            Kind::Flush => 3,
        };
        let flags = if op.durable && op.kind == Kind::Write { COMMAND_FUA } else { 0 };
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.out.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
        self.out.extend_from_slice(&flags.to_be_bytes());
        self.out.extend_from_slice(&kind.to_be_bytes());
        self.out.extend_from_slice(&cookie.to_be_bytes());
        self.out.extend_from_slice(&op.offset.to_be_bytes());
        self.out.extend_from_slice(&op.bytes.to_be_bytes());
        if op.kind == Kind::Write {
            match data {
                Some(data) => self.out.extend_from_slice(&data[..op.bytes as usize]),
                None => fail!("a write without data"),
            }
        }
        let waiting = Waiting { tag: op.tag, kind: op.kind, bytes: op.bytes, want_data: op.want_data };
        self.in_flight.insert(cookie, waiting);
        Ok(())
    }

    fn wait(&mut self, until_ns: Option<u64>, done: &mut Vec<Done>) -> Result<()> {
        let before = done.len();
        loop {
            self.send()?;
            loop {
                let more = self.receive()?;
                self.replies(done)?;
                if !more {
                    break;
                }
            }
            if done.len() > before || until_ns.is_some_and(|at| self.now_ns() >= at) {
                return Ok(());
            }
            // A server that cannot send may not read either: both directions are polled.
            let room = if self.out.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            let left = until_ns.map(|at| Duration::from_nanos(at.saturating_sub(self.now_ns())));
            let timeout = left.map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) });
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN | room)], timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => fail!("poll: {e}"),
            }
        }
    }

    fn granule_bytes(&self) -> u32 {
        512
    }
}
