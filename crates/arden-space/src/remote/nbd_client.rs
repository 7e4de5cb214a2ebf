//! The requests of one NBD client. One thread serves it, with a runtime of its own that waits for the socket and for disks at once:
//! reads that can be done beside the pool are done here ([`RemoteSpace`]), everything else on the pool's thread, many at once. Answers
//! that are ready together leave together. Refuses to know how the connection came to be.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io::{self, IoSlice},
    os::fd::OwnedFd,
    rc::Rc,
    sync::Arc,
};

use arden_block::{
    BLOCK_BYTES, Buf, IoError, Rt, SharedBuf, file::Descriptor, sync::Mutex as LocalMutex, sync::Notify,
};
use rustix::{
    io::Errno,
    net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown},
};

use super::nbd::REQUEST_BYTES_MAX;
use crate::{
    base::error::{SpaceError, SpaceResult},
    remote::remote_space::RemoteSpace,
    space::open_space::Space,
};

/// Requests of one connection that may run at once.
const IN_FLIGHT_MAX: usize = 128;
/// Answers that are sent at once.
const BATCH_MAX: usize = 64;
/// What is received at once; more than that goes straight to where it belongs.
const INPUT_BYTES: usize = 64 << 10;
const REQUEST_BYTES: usize = 28;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const ANSWER_MAGIC: u32 = 0x6744_6698;
/// Of a request to write: it is durable when it is answered.
const FUA: u16 = 1;
/// Of a request to write zeros: what is zeroed keeps its room.
const NO_HOLE: u16 = 2;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;

/// A client, until it disconnects and everything that it asked is answered, or its connection breaks.
pub(super) fn serve(rt: &Rt, socket: OwnedFd, space: RemoteSpace) {
    let socket = Arc::new(Descriptor::of_socket(socket));
    let client = Rc::new(Client {
        rt: rt.clone(),
        socket: socket.clone(),
        space,
        in_flight: Cell::new(0),
        answers: RefCell::default(),
        told: Notify::new(),
        sent: Notify::new(),
        broken: Cell::new(false),
    });
    let sender = client.clone();
    rt.spawn(async move { sender.send_answers().await });
    rt.block_on(async move {
        let mut input = Input::new(&client);
        // However it ends: what was asked before is answered.
        let _ = client.requests(&mut input).await;
        while client.in_flight.get() > 0 && !client.broken.get() {
            client.sent.wait().await;
        }
    });
    // Whatever still waits for the socket waits no more.
    let _ = rustix::net::shutdown(&socket, Shutdown::Both);
}

struct Request {
    flags: u16,
    kind: u16,
    cookie: u64,
    offset: u64,
    len: u32,
}

impl Request {
    fn parse(h: &[u8; REQUEST_BYTES]) -> io::Result<Request> {
        let word = |at: usize| u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let (flags, kind) = (u16::from_be_bytes([h[4], h[5]]), u16::from_be_bytes([h[6], h[7]]));
        let r = Request { flags, kind, cookie: long(8), offset: long(16), len: word(24) };
        match r.kind {
            _ if word(0) != REQUEST_MAGIC => Err(io::Error::new(io::ErrorKind::InvalidData, "not a request")),
            READ | WRITE if r.len > REQUEST_BYTES_MAX => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "request too large"))
            }
            _ => Ok(r),
        }
    }
}

/// An answer on its way to the client.
struct Answer {
    cookie: u64,
    result: SpaceResult<Option<Buf>>,
}

impl Answer {
    fn head(&self) -> [u8; 16] {
        let mut head = [0; 16];
        head[..4].copy_from_slice(&ANSWER_MAGIC.to_be_bytes());
        head[4..8].copy_from_slice(&self.result.as_ref().err().map_or(0, error_number).to_be_bytes());
        head[8..].copy_from_slice(&self.cookie.to_be_bytes());
        head
    }

    fn body(&self) -> &[u8] {
        self.result.as_ref().ok().and_then(Option::as_ref).map_or(&[], |b| b)
    }
}

fn error_number(e: &SpaceError) -> u32 {
    match e {
        SpaceError::BadRange => 22,
        SpaceError::OutOfSpace | SpaceError::Device(IoError::NoSpace) => 28,
        SpaceError::Closed => 108,
        _ => 5,
    }
}

/// What has come in.
struct Input {
    rt: Rt,
    socket: Arc<Descriptor>,
    bytes: Vec<u8>,
    used: usize,
    filled: usize,
    /// The last time less came than there was room for.
    drained: bool,
}

impl Input {
    fn new(client: &Client) -> Input {
        let (rt, socket) = (client.rt.clone(), client.socket.clone());
        Input { rt, socket, bytes: vec![0; INPUT_BYTES], used: 0, filled: 0, drained: true }
    }

    async fn read_exact(&mut self, into: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            let there = &self.bytes[self.used..self.filled];
            if there.is_empty() {
                done += self.receive(&mut into[done..]).await?;
                continue;
            }
            let n = there.len().min(into.len() - done);
            into[done..done + n].copy_from_slice(&there[..n]);
            self.used += n;
            done += n;
        }
        Ok(())
    }

    /// Receives more, and says how much of it is in `into` already.
    async fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let in_place = into.len() >= self.bytes.len();
        loop {
            if self.drained {
                self.rt.ready(&self.socket, false).await.map_err(io::Error::other)?;
            }
            let target = if in_place { &mut *into } else { &mut self.bytes[..] };
            let room = target.len();
            match rustix::net::recv(&self.socket, target, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((_, n)) => {
                    self.drained = n < room;
                    if in_place {
                        return Ok(n);
                    }
                    (self.used, self.filled) = (0, n);
                    return Ok(0);
                }
                Err(Errno::AGAIN) => self.drained = true,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

struct Client {
    rt: Rt,
    socket: Arc<Descriptor>,
    space: RemoteSpace,
    /// Requests that are not answered.
    in_flight: Cell<usize>,
    answers: RefCell<VecDeque<Answer>>,
    /// There are answers.
    told: Notify,
    /// Some were sent, or cannot be.
    sent: Notify,
    broken: Cell<bool>,
}

impl Client {
    /// Takes requests until the client has no more.
    async fn requests(self: &Rc<Client>, input: &mut Input) -> io::Result<()> {
        loop {
            let mut head = [0; REQUEST_BYTES];
            input.read_exact(&mut head).await?;
            let request = Request::parse(&head)?;
            if request.kind == DISCONNECT {
                return Ok(());
            }
            let mut data = None;
            if request.kind == WRITE {
                let mut b = Buf::new(request.len as usize);
                input.read_exact(&mut b).await?;
                data = Some(b.share());
            }
            while self.in_flight.get() >= IN_FLIGHT_MAX {
                if self.broken.get() {
                    return Ok(());
                }
                self.sent.wait().await;
            }
            self.in_flight.set(self.in_flight.get() + 1);
            let me = self.clone();
            self.rt.spawn(async move {
                let cookie = request.cookie;
                let result = me.answer(request, data).await;
                me.answers.borrow_mut().push_back(Answer { cookie, result });
                me.told.notify_all();
            });
        }
    }

    async fn answer(&self, r: Request, data: Option<SharedBuf>) -> SpaceResult<Option<Buf>> {
        let (offset, len, fua) = (r.offset, u64::from(r.len), r.flags & FUA != 0);
        match (r.kind, data) {
            (READ, _) => return self.read(offset, r.len as usize).await.map(Some),
            (WRITE, Some(d)) => self.space.ask(move |s| async move { write_any(&s, offset, d, fua).await }).await?,
            (FLUSH, _) => self.space.ask(|s| async move { s.flush().await }).await?,
            (TRIM | WRITE_ZEROES, _) => {
                let all = r.kind == WRITE_ZEROES;
                let keep = all && r.flags & NO_HOLE != 0;
                let work = move |s: Space| async move {
                    zero_any(&s, offset, len, all, keep).await?;
                    if fua { s.flush().await } else { Ok(()) }
                };
                self.space.ask(work).await?;
            }
            _ => return Err(SpaceError::BadRange),
        }
        Ok(None)
    }

    async fn read(&self, offset: u64, len: usize) -> SpaceResult<Buf> {
        let (start, end) = outer(offset, len as u64)?;
        let whole = self.space.read_blocks(start, (end - start) as usize).await?;
        if whole.len() == len {
            return Ok(whole);
        }
        let from = (offset - start) as usize;
        Ok(Buf::copy_of(&whole[from..from + len]))
    }

    async fn send_answers(&self) {
        loop {
            let batch: Vec<Answer> = {
                let mut all = self.answers.borrow_mut();
                let n = all.len().min(BATCH_MAX);
                all.drain(..n).collect()
            };
            if batch.is_empty() {
                self.told.wait().await;
                continue;
            }
            if self.send(&batch).await.is_err() {
                self.broken.set(true);
                // Who waits for requests waits for none any more.
                let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
                self.sent.notify_all();
                return;
            }
            self.in_flight.set(self.in_flight.get() - batch.len());
            self.sent.notify_all();
        }
    }

    async fn send(&self, batch: &[Answer]) -> io::Result<()> {
        let heads: Vec<[u8; 16]> = batch.iter().map(Answer::head).collect();
        let parts = heads.iter().zip(batch).flat_map(|(head, a)| [IoSlice::new(head), IoSlice::new(a.body())]);
        let mut parts: Vec<IoSlice> = parts.collect();
        let mut rest = &mut parts[..];
        while !rest.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::sendmsg(&self.socket, rest, &mut SendAncillaryBuffer::default(), flags) {
                Ok(n) => IoSlice::advance_slices(&mut rest, n),
                Err(Errno::AGAIN) => self.rt.ready(&self.socket, true).await.map_err(io::Error::other)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

thread_local! {
    /// Writes of parts of blocks, one after another: two in one block would lose one.
    static PARTS: Rc<LocalMutex> = Rc::default();
}

/// The blocks that a range touches.
fn outer(offset: u64, len: u64) -> SpaceResult<(u64, u64)> {
    let end = offset.checked_add(len).and_then(|e| e.checked_next_multiple_of(BLOCK_BYTES));
    Ok((offset / BLOCK_BYTES * BLOCK_BYTES, end.ok_or(SpaceError::BadRange)?))
}

async fn write_any(s: &Space, offset: u64, data: SharedBuf, durable: bool) -> SpaceResult<()> {
    let (start, end) = outer(offset, data.len() as u64)?;
    if end - start == data.len() as u64 || data.is_empty() {
        return s.write(offset, data, durable).await;
    }
    let parts = PARTS.with(Rc::clone);
    let _one = parts.lock().await;
    let mut whole = s.read(start, (end - start) as usize).await?;
    let from = (offset - start) as usize;
    whole[from..from + data.len()].copy_from_slice(&data);
    s.write(start, whole.share(), durable).await
}

/// Forgets whole blocks, with their slabs unless they are to be kept; the rest is written as zeros when it has to be.
async fn zero_any(s: &Space, offset: u64, len: u64, all: bool, keep: bool) -> SpaceResult<()> {
    let end = offset.checked_add(len).filter(|&end| end <= s.size_bytes()).ok_or(SpaceError::BadRange)?;
    let first = offset.checked_next_multiple_of(BLOCK_BYTES).ok_or(SpaceError::BadRange)?;
    let last = end / BLOCK_BYTES * BLOCK_BYTES;
    if first < last {
        match keep {
            true => s.zero(first, last - first).await?,
            false => s.discard(first, last - first).await?,
        }
    }
    let edges = if first > last { vec![(offset, end)] } else { vec![(offset, first), (last, end)] };
    for (from, to) in edges.into_iter().filter(|(from, to)| all && from < to) {
        write_any(s, from, Buf::zeroed((to - from) as usize).share(), false).await?;
    }
    Ok(())
}
