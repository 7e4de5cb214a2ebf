//! One connection to an SMB 3.1.1 server, with many requests in flight from one thread. It uses no tasks and channels,
//! to keep the cost of the client low. Message formats and the logon are those of the crate `smb2`.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    net::SendFlags,
};

use smb2::{
    crypto::signing::SigningAlgorithm,
    msg::header::Header,
    pack::{Pack, WriteCursor},
    types::{Command, CreditCharge, FileId, MessageId, SessionId, TreeId, flags::HeaderFlags},
};

use super::{
    keys::{Sealer, Signer, TRANSFORM_BYTES},
    requests,
};
use crate::{Result, fail};

const HEADER_BYTES: usize = 64;
/// Offset of the data in a WRITE.
const WRITE_HEAD_BYTES: usize = 112;
const STATUS_PENDING: u32 = 0x103;
/// The first responses are verified, then one of this number. Real clients verify all, but this client shares the
/// processors with the measured server.
const CHECK_EVERY: u64 = 16;
/// Credits are requested until this number is granted.
const CREDITS_WANTED: u32 = 1024;

/// Protection of the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    Sign(SigningAlgorithm),
    /// Encrypted with AES-128-GCM.
    Encrypt,
    /// Neither signed nor encrypted, unless the server requires it.
    Plain,
}

impl Protection {
    /// Signed with AES-GMAC.
    pub const GMAC: Protection = Protection::Sign(SigningAlgorithm::AesGmac);
    /// Signed with AES-CMAC.
    pub const CMAC: Protection = Protection::Sign(SigningAlgorithm::AesCmac);
}

/// The server, the share, and the account of a connection.
#[derive(Debug, Clone)]
pub struct Target {
    pub address: std::net::SocketAddr,
    pub share: String,
    pub user: String,
    pub password: String,
}

/// Limits and requirements of the server and the share.
#[derive(Debug, Clone, Copy, Default)]
pub struct Terms {
    pub read_bytes_max: u32,
    pub write_bytes_max: u32,
    pub signing_required: bool,
    /// The session or the share has to be encrypted.
    pub encryption_required: bool,
    /// Opens of the share may be persistent.
    pub continuously_available: bool,
    pub signed: bool,
    pub sealed: bool,
}

/// One request of a compound.
pub struct Call<'a> {
    pub command: Command,
    pub body: &'a dyn Pack,
    pub charge: u16,
}

/// A READ or WRITE that is sent repeatedly, with another offset or other data. Room for the frame's length precedes it.
pub struct Template {
    bytes: Vec<u8>,
    charge: u16,
}

/// A response.
pub struct Reply<'a> {
    pub status: u32,
    pub message_id: u64,
    pub body: &'a [u8],
}

/// A connection with a session and a tree connect. Dropping it closes the socket without logging off.
pub struct Client {
    pub(super) socket: TcpStream,
    pub(super) signer: Option<Signer>,
    pub(super) sealer: Option<Sealer>,
    pub(super) session_id: u64,
    pub(super) tree_id: u32,
    pub(super) next_id: u64,
    pub(super) credits: u32,
    pub(super) out: Vec<u8>,
    pub(super) input: Vec<u8>,
    /// Bytes of `input` that are filled, and those of them that are processed.
    pub(super) filled: usize,
    pub(super) used: usize,
    pub(super) received: u64,
    pub(super) terms: Terms,
    /// Keys of the session for signing, encryption and decryption, for connections that join it.
    pub(super) keys: [Vec<u8>; 3],
    pub(super) client_guid: u128,
    /// The connection is joining a session: the answers are signed with keys that it does not have yet.
    pub(super) joining: bool,
}

/// Signs a message unless it is encrypted.
fn sign(signer: &Option<Signer>, sealer: &Option<Sealer>, message: &mut [u8]) {
    if let (Some(signer), None) = (signer, sealer) {
        signer.sign(message);
    }
}

impl Client {
    /// Limits and requirements of the server and the share.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// The number of requests with a CreditCharge of 1 that may be sent now.
    pub fn credits(&self) -> u32 {
        self.credits
    }

    /// The MessageId of the next request.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// The credits that a request of this charge asks for.
    fn wanted(&self, charge: u16) -> u16 {
        charge + if self.credits < CREDITS_WANTED { 64 } else { 0 }
    }

    fn header(&mut self, command: Command, charge: u16, related: bool) -> Header {
        let mut header = Header::new_request(command);
        header.credit_charge = CreditCharge(charge);
        header.credits = self.wanted(charge);
        header.message_id = MessageId(self.next_id);
        header.session_id = SessionId(self.session_id);
        header.tree_id = Some(TreeId(self.tree_id));
        let mut flags = 0;
        if related {
            flags |= HeaderFlags::RELATED_OPERATIONS;
        }
        if self.signer.is_some() && self.sealer.is_none() {
            flags |= HeaderFlags::SIGNED;
        }
        header.flags = HeaderFlags::new(flags);
        self.next_id += u64::from(charge.max(1));
        self.credits = self.credits.saturating_sub(u32::from(charge.max(1)));
        header
    }

    fn begin_frame(&mut self) -> usize {
        let start = self.out.len();
        self.out.extend_from_slice(&[0; 4]);
        if self.sealer.is_some() {
            self.out.extend_from_slice(&[0; TRANSFORM_BYTES]);
        }
        start
    }

    fn end_frame(&mut self, start: usize) {
        if let Some(sealer) = &mut self.sealer {
            sealer.seal(&mut self.out[start + 4..]);
        }
        let len = (self.out.len() - start - 4) as u32;
        self.out[start..start + 4].copy_from_slice(&len.to_be_bytes());
    }

    /// Queues one request or a related compound for the next `flush`.
    pub fn queue(&mut self, calls: &[Call<'_>]) {
        let start = self.begin_frame();
        for (i, call) in calls.iter().enumerate() {
            let header = self.header(call.command, call.charge, i > 0);
            let mut cursor = WriteCursor::with_capacity(256);
            header.pack(&mut cursor);
            call.body.pack(&mut cursor);
            let last = i + 1 == calls.len();
            if !last {
                cursor.align_to(8);
            }
            let mut message = cursor.into_inner();
            if !last {
                let len = message.len() as u32;
                message[20..24].copy_from_slice(&len.to_le_bytes());
            }
            sign(&self.signer, &self.sealer, &mut message);
            self.out.extend_from_slice(&message);
        }
        self.end_frame(start);
    }

    /// Prepares a request that [`Client::queue_at`] and [`Client::send_at`] send repeatedly.
    pub fn template(&mut self, call: &Call<'_>) -> Template {
        let header = self.header(call.command, call.charge, false);
        // The MessageIds that `header` took are returned: every use takes its own.
        self.next_id -= u64::from(call.charge);
        self.credits += u32::from(call.charge);
        let mut cursor = WriteCursor::new();
        cursor.write_zeros(4);
        header.pack(&mut cursor);
        call.body.pack(&mut cursor);
        Template { bytes: cursor.into_inner(), charge: call.charge }
    }

    /// Prepares a WRITE without its data, for [`Client::queue_write_at`].
    pub fn write_template(&mut self, id: FileId, flags: u32) -> Template {
        let mut body = requests::write(id, Vec::new());
        body.flags = flags;
        self.template(&Call { command: Command::Write, body: &body, charge: 1 })
    }

    fn stamp(&mut self, template: &mut Template, offset: u64) {
        let message = &mut template.bytes[4..];
        message[24..32].copy_from_slice(&self.next_id.to_le_bytes());
        // Offset is at the same position in READ and WRITE, [MS-SMB2] 2.2.19 and 2.2.21.
        message[HEADER_BYTES + 8..HEADER_BYTES + 16].copy_from_slice(&offset.to_le_bytes());
        self.next_id += u64::from(template.charge);
        self.credits = self.credits.saturating_sub(u32::from(template.charge));
    }

    /// Queues the template's request at `offset` bytes.
    pub fn queue_at(&mut self, template: &mut Template, offset: u64) {
        self.stamp(template, offset);
        sign(&self.signer, &self.sealer, &mut template.bytes[4..]);
        let start = self.begin_frame();
        self.out.extend_from_slice(&template.bytes[4..]);
        self.end_frame(start);
    }

    /// Queues a WRITE of `data` at `offset` bytes. The data is copied once on its way to the socket.
    pub fn queue_write_at(&mut self, template: &mut Template, offset: u64, data: &[u8]) {
        template.charge = requests::charge(data.len());
        let wanted = self.wanted(template.charge);
        template.bytes[4 + 6..4 + 8].copy_from_slice(&template.charge.to_le_bytes());
        template.bytes[4 + 14..4 + 16].copy_from_slice(&wanted.to_le_bytes());
        // Length, [MS-SMB2] 2.2.21.
        template.bytes[4 + HEADER_BYTES + 4..4 + HEADER_BYTES + 8].copy_from_slice(&(data.len() as u32).to_le_bytes());
        self.stamp(template, offset);
        let start = self.begin_frame();
        let message = self.out.len();
        self.out.extend_from_slice(&template.bytes[4..4 + WRITE_HEAD_BYTES]);
        self.out.extend_from_slice(data);
        sign(&self.signer, &self.sealer, &mut self.out[message..]);
        self.end_frame(start);
    }

    /// Sends a large request; it is not copied unless it is encrypted.
    ///
    /// # Errors
    /// A lost connection.
    pub fn send_at(&mut self, template: &mut Template, offset: u64) -> Result<()> {
        if self.sealer.is_some() {
            self.queue_at(template, offset);
            return self.flush();
        }
        self.flush()?;
        self.stamp(template, offset);
        sign(&self.signer, &self.sealer, &mut template.bytes[4..]);
        let len = (template.bytes.len() - 4) as u32;
        template.bytes[..4].copy_from_slice(&len.to_be_bytes());
        Ok(self.socket.write_all(&template.bytes)?)
    }

    /// Sends the queued requests. Reads answers meanwhile: a server that cannot send may not read either.
    ///
    /// # Errors
    /// A lost connection.
    pub fn flush(&mut self) -> Result<()> {
        let mut sent = 0;
        while sent < self.out.len() {
            match rustix::net::send(&self.socket, &self.out[sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait_for_room()?,
                Err(e) => fail!("the connection is gone: {e}"),
            }
        }
        self.out.clear();
        Ok(())
    }

    fn wait_for_room(&mut self) -> Result<()> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN | PollFlags::OUT)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => fail!("poll: {e}"),
        }
        if !fds[0].revents().contains(PollFlags::IN) {
            return Ok(());
        }
        if self.input.len() - self.filled < 64 * 1024 {
            self.input.copy_within(self.used..self.filled, 0);
            self.filled -= self.used;
            self.used = 0;
            self.input.resize(self.filled + 256 * 1024, 0);
        }
        match self.socket.read(&mut self.input[self.filled..])? {
            0 => fail!("the server closed the connection"),
            n => self.filled += n,
        }
        Ok(())
    }

    /// Whether another complete frame was read already.
    pub fn buffered(&self) -> bool {
        let rest = &self.input[self.used..self.filled];
        rest.len() >= 4 && rest.len() - 4 >= u32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize
    }

    /// The socket, for waiting on several connections at once.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    fn fill(&mut self, need: usize) -> Result<()> {
        if self.used == self.filled {
            (self.used, self.filled) = (0, 0);
        } else if self.used + need > self.input.len() {
            self.input.copy_within(self.used..self.filled, 0);
            self.filled -= self.used;
            self.used = 0;
        }
        if self.used + need > self.input.len() {
            self.input.resize(self.used + need + 64 * 1024, 0);
        }
        while self.filled - self.used < need {
            let n = self.socket.read(&mut self.input[self.filled..])?;
            if n == 0 {
                fail!("the server closed the connection");
            }
            self.filled += n;
        }
        Ok(())
    }

    /// Waits for one frame and passes every final response in it to `each`.
    ///
    /// # Errors
    /// A lost connection, or a response that is malformed or has a wrong signature.
    pub fn receive(&mut self, mut each: impl FnMut(Reply<'_>)) -> Result<()> {
        loop {
            self.fill(4)?;
            let at = self.used;
            let len = u32::from_be_bytes(self.input[at..at + 4].try_into().expect("four bytes")) as usize;
            self.fill(4 + len)?;
            let at = self.used;
            self.used += 4 + len;
            let mut frame = &mut self.input[at + 4..at + 4 + len];
            let sealed = frame.starts_with(&[0xFD, b'S', b'M', b'B']);
            if sealed {
                match &self.sealer {
                    Some(sealer) if sealer.open(frame) => {}
                    _ => fail!("a response that cannot be decrypted"),
                }
                frame = &mut frame[TRANSFORM_BYTES..];
            }
            self.received += 1;
            let check = self.received < 64 || self.received.is_multiple_of(CHECK_EVERY);
            let mut finals = 0;
            let mut start = 0;
            loop {
                if frame.len() < start + HEADER_BYTES {
                    fail!("a truncated response");
                }
                let u32_at = |i: usize| u32::from_le_bytes(frame[start + i..start + i + 4].try_into().expect("four"));
                let (status, next) = (u32_at(8), u32_at(20) as usize);
                let credits = u32::from(frame[start + 14]) | u32::from(frame[start + 15]) << 8;
                let message_id = u64::from(u32_at(24)) | u64::from(u32_at(28)) << 32;
                let end = if next == 0 { frame.len() } else { start + next };
                if end > frame.len() || end < start + HEADER_BYTES {
                    fail!("a malformed compound response");
                }
                self.credits += credits;
                if let (Some(signer), false, true) =
                    (&self.signer, sealed, check && status != STATUS_PENDING && !self.joining)
                    && !signer.verify(&mut frame[start..end])
                {
                    fail!("a response with a wrong signature (command {})", frame[start + 12]);
                }
                if status != STATUS_PENDING {
                    finals += 1;
                    each(Reply { status, message_id, body: &frame[start + HEADER_BYTES..end] });
                }
                if next == 0 {
                    break;
                }
                start = end;
            }
            if finals > 0 {
                return Ok(());
            }
        }
    }

    /// Sends one compound and waits for its responses.
    ///
    /// # Errors
    /// A lost connection, or the first response that is not a success.
    pub fn call(&mut self, calls: &[Call<'_>]) -> Result<()> {
        self.queue(calls);
        self.flush()?;
        let mut bad = None;
        let mut done = 0;
        // A server may answer a compound in several frames.
        while done < calls.len() {
            self.receive(|reply| {
                if reply.status != 0 && bad.is_none() {
                    bad = Some((done, reply.status));
                }
                done += 1;
            })?;
        }
        match bad {
            None => Ok(()),
            Some((i, status)) => fail!("{:?}: status 0x{status:08X}", calls[i].command),
        }
    }

    /// Sends one request and returns the response's status and body.
    ///
    /// # Errors
    /// A lost connection. A status is not an error.
    pub fn ask(&mut self, call: Call<'_>) -> Result<(u32, Vec<u8>)> {
        self.queue(&[call]);
        self.flush()?;
        let mut answer = (0, Vec::new());
        self.receive(|reply| answer = (reply.status, reply.body.to_vec()))?;
        Ok(answer)
    }
}
