//! A pipe as SMB sees it: a byte channel in message mode with an RPC server behind it, [MS-RPCE] 3.3. A request has at
//! most [`REQUEST_MAX`] bytes and is processed when all of its fragments have arrived. Security trailers are refused: a
//! bind with authentication is answered with bind_nak, because SMB has authenticated the user.

use crate::{
    PipeContext,
    call::{Fault, Interface},
    dssetup,
    handles::{Group, join_group},
    lsarpc, samr, srvsvc, wkssvc,
};
use arden_wire::{
    NtStatus,
    rpc::{self, Bind, ContextElement, ContextResult, Header, Request},
};
use std::collections::{BTreeMap, VecDeque};

/// The result of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipeRead {
    pub data: Vec<u8>,
    /// The message is longer than the read: STATUS_BUFFER_OVERFLOW, and the next read returns the rest.
    pub more: bool,
}

/// The server end of a named pipe.
pub trait Pipe: Send {
    /// Processes bytes of the client. The answers can be read when this returns.
    ///
    /// # Errors
    /// PIPE_DISCONNECTED after a protocol error.
    fn write(&mut self, bytes: &[u8]) -> Result<(), NtStatus>;

    /// Reads at most `max` bytes of one message.
    ///
    /// # Errors
    /// PIPE_EMPTY when there is no message (a blocking read waits for the client's next write), PIPE_DISCONNECTED after
    /// a protocol error.
    fn read(&mut self, max: usize) -> Result<PipeRead, NtStatus>;

    /// Writes, then reads: FSCTL_PIPE_TRANSCEIVE, [MS-FSCC] 2.3.47.
    ///
    /// # Errors
    /// PIPE_BUSY when there are unread bytes, else as [`write`](Pipe::write) and [`read`](Pipe::read).
    fn transceive(&mut self, bytes: &[u8], max: usize) -> Result<PipeRead, NtStatus> {
        if self.available() > 0 {
            return Err(NtStatus::PIPE_BUSY);
        }
        self.write(bytes)?;
        self.read(max)
    }

    /// Unread bytes of all messages, for FSCTL_PIPE_PEEK, [MS-FSCC] 2.3.45, and FilePipeLocalInformation, [MS-FSCC]
    /// 2.4.38.
    fn available(&self) -> usize;

    /// Bytes that it keeps: these, and calls that are not complete yet.
    fn held_bytes(&self) -> usize;
}

/// Limit of a request in bytes, all fragments together.
pub const REQUEST_MAX: usize = 1 << 20;
/// Largest fragment in bytes in either direction, as Windows has it on pipes.
const FRAG_MAX: u16 = 4280;
/// The fragment size in bytes that every implementation has to accept, [C706] 12.6.3.1.
const FRAG_MIN: u16 = 1432;
/// Presentation contexts of one pipe; further ones are refused.
const CONTEXTS_MAX: usize = 64;
/// Limit of unread answers in bytes. A client that exceeds it only writes, and its pipe is ended.
const UNREAD_MAX: usize = 2 << 20;
/// Likewise in messages: so many calls a write has at most, and nothing else of the pipe is done before they have run.
const UNREAD_MESSAGES_MAX: usize = 4096;
/// The supported feature of bind time feature negotiation, [MS-RPCE] 2.2.2.14: an orphaned call does not end the
/// connection.
const KEEP_CONNECTION_ON_ORPHAN: u16 = 2;

/// The group of interfaces that a pipe offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// srvsvc and wkssvc.
    Server,
    /// lsarpc, samr and dssetup. One process serves them on Windows, and each of their pipes offers all of them.
    Security,
}

impl Service {
    fn interfaces(self) -> &'static [Interface] {
        match self {
            Service::Server => &[srvsvc::INTERFACE, wkssvc::INTERFACE],
            Service::Security => &[lsarpc::INTERFACE, samr::INTERFACE, dssetup::INTERFACE],
        }
    }
}

/// A request whose fragments are not complete.
struct Partial {
    call_id: u32,
    context: u16,
    opnum: u16,
    stub: Vec<u8>,
}

pub(crate) struct RpcPipe {
    name: String,
    service: Service,
    context: PipeContext,
    /// The association group, once the pipe is bound.
    group: Option<(u32, Group)>,
    /// Bytes of a PDU that is not complete.
    input: Vec<u8>,
    output: VecDeque<Vec<u8>>,
    /// Bytes of the first message that were read.
    read_offset: usize,
    unread: usize,
    /// Presentation contexts, as index into the interfaces of the service.
    bound: BTreeMap<u16, usize>,
    partial: Option<Partial>,
    /// The largest fragment in bytes that the client accepts.
    frag_max: usize,
    was_bound: bool,
    broken: bool,
}

impl RpcPipe {
    pub(crate) fn new(name: &str, service: Service, context: PipeContext) -> RpcPipe {
        RpcPipe {
            name: name.to_string(),
            service,
            context,
            group: None,
            input: Vec::new(),
            output: VecDeque::new(),
            read_offset: 0,
            unread: 0,
            bound: BTreeMap::new(),
            partial: None,
            frag_max: usize::from(FRAG_MAX),
            was_bound: false,
            broken: false,
        }
    }

    fn push(&mut self, message: Vec<u8>) {
        self.unread += message.len();
        self.output.push_back(message);
    }

    /// Answers a protocol error with a fault, and ends the pipe.
    fn fail(&mut self, call_id: u32, fault: Fault) {
        self.push(rpc::encode_fault(call_id, 0, fault.0, false));
        self.broken = true;
    }

    fn pdu(&mut self, header: &Header, pdu: &[u8]) {
        let body = &pdu[rpc::HEADER_BYTES..];
        match header.kind {
            rpc::BIND if !self.was_bound => self.bind(header, body, rpc::BIND_ACK),
            rpc::ALTER_CONTEXT if self.was_bound => self.bind(header, body, rpc::ALTER_CONTEXT_RESP),
            rpc::REQUEST if self.was_bound => self.request(header, body),
            // The call is dropped, the connection stays.
            rpc::CO_CANCEL | rpc::ORPHANED => {
                if self.partial.as_ref().is_some_and(|p| p.call_id == header.call_id) {
                    self.partial = None;
                }
            }
            _ => self.fail(header.call_id, Fault::PROTOCOL_ERROR),
        }
    }

    /// Answers bind or alter_context, [MS-RPCE] 3.3.1.5.2 and 3.3.1.5.3.
    fn bind(&mut self, header: &Header, body: &[u8], answer: u8) {
        if header.auth_length != 0 {
            // The SMB session has authenticated the user: RPC authentication is refused.
            self.push(rpc::encode_bind_nak(header.call_id, rpc::NAK_AUTH_TYPE_NOT_RECOGNIZED));
            return;
        }
        let Ok(bind) = Bind::parse(body) else { return self.fail(header.call_id, Fault::PROTOCOL_ERROR) };
        let group = match &self.group {
            Some((number, _)) => *number,
            None => match join_group(bind.group, &self.context.caller.user) {
                Some(joined) => self.group.insert(joined).0,
                None => return self.push(rpc::encode_bind_nak(header.call_id, rpc::NAK_NOT_SPECIFIED)),
            },
        };
        if bind.contexts.iter().any(|c| self.changes_meaning(c)) {
            return self.fail(header.call_id, Fault::PROTOCOL_ERROR);
        }
        let results: Vec<ContextResult> = bind.contexts.iter().map(|c| self.propose(c)).collect();
        if self.bound.len() > CONTEXTS_MAX {
            self.push(rpc::encode_bind_nak(header.call_id, rpc::NAK_LOCAL_LIMIT));
            self.broken = true;
            return;
        }
        let first = answer == rpc::BIND_ACK;
        if first {
            self.was_bound = true;
            self.frag_max = usize::from(bind.max_recv.clamp(FRAG_MIN, FRAG_MAX));
        }
        let address = if first { format!("\\PIPE\\{}", self.name) } else { String::new() };
        let frag_max = self.frag_max as u16;
        self.push(rpc::encode_bind_ack(answer, header.call_id, frag_max, group, &address, &results));
    }

    /// Whether the context would change the interface of its id. A context keeps its interface while the pipe is open.
    fn changes_meaning(&self, context: &ContextElement) -> bool {
        let interface = self.bound.get(&context.id).map(|i| &self.service.interfaces()[*i]);
        interface.is_some_and(|i| i.syntax != context.interface)
    }

    fn propose(&mut self, context: &ContextElement) -> ContextResult {
        if let Some(features) = context.transfer.iter().find_map(|t| t.features()) {
            return ContextResult::Features(features & KEEP_CONNECTION_ON_ORPHAN);
        }
        let found = self.service.interfaces().iter().position(|i| {
            // The client's minor version may be lower than the server's, which is 0 for every interface.
            i.syntax.uuid == context.interface.uuid && i.syntax.version == context.interface.version
        });
        let Some(index) = found else { return ContextResult::AbstractSyntaxNotSupported };
        if !context.transfer.contains(&rpc::NDR32) {
            return ContextResult::TransferSyntaxesNotSupported;
        }
        self.bound.insert(context.id, index);
        ContextResult::Accepted
    }

    fn request(&mut self, header: &Header, body: &[u8]) {
        if header.auth_length != 0 {
            return self.fail(header.call_id, Fault::ACCESS_DENIED);
        }
        let Ok(fragment) = Request::parse(header, body) else {
            return self.fail(header.call_id, Fault::PROTOCOL_ERROR);
        };
        let mut partial = match (header.is_first(), self.partial.take()) {
            (true, None) => {
                Partial { call_id: header.call_id, context: fragment.context, opnum: fragment.opnum, stub: Vec::new() }
            }
            (false, Some(p)) if p.call_id == header.call_id && p.context == fragment.context => p,
            _ => return self.fail(header.call_id, Fault::PROTOCOL_ERROR),
        };
        if partial.stub.len() + fragment.stub.len() > REQUEST_MAX {
            return self.fail(header.call_id, Fault::PROTOCOL_ERROR);
        }
        partial.stub.extend_from_slice(fragment.stub);
        if header.is_last() {
            self.dispatch(partial);
        } else {
            self.partial = Some(partial);
        }
    }

    fn dispatch(&mut self, call: Partial) {
        let Some(interface) = self.bound.get(&call.context).map(|i| &self.service.interfaces()[*i]) else {
            return self.push(rpc::encode_fault(call.call_id, call.context, Fault::UNKNOWN_INTERFACE.0, false));
        };
        let Some((_, group)) = &self.group else { return self.fail(call.call_id, Fault::PROTOCOL_ERROR) };
        let answer = (interface.call)(&self.context, &mut group.lock(), call.opnum, &call.stub);
        match answer {
            Ok(stub) => {
                for fragment in rpc::encode_response(call.call_id, call.context, &stub, self.frag_max) {
                    self.push(fragment);
                }
            }
            Err(fault) => {
                let executed = fault != Fault::OPNUM_RANGE;
                self.push(rpc::encode_fault(call.call_id, call.context, fault.0, executed));
            }
        }
    }
}

impl Pipe for RpcPipe {
    fn write(&mut self, bytes: &[u8]) -> Result<(), NtStatus> {
        if self.broken {
            return Err(NtStatus::PIPE_DISCONNECTED);
        }
        // Writes have no boundaries: a PDU may come in several, and one may hold several.
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(bytes);
        let mut done = 0;
        loop {
            if self.unread > UNREAD_MAX || self.output.len() > UNREAD_MESSAGES_MAX {
                self.broken = true;
            }
            let rest = &input[done..];
            if self.broken || rest.len() < rpc::HEADER_BYTES {
                break;
            }
            let Ok(header) = Header::parse(rest) else {
                self.fail(0, Fault::PROTOCOL_ERROR);
                break;
            };
            let length = usize::from(header.frag_length);
            if rest.len() < length {
                break;
            }
            self.pdu(&header, &rest[..length]);
            done += length;
        }
        // Once for all PDUs: the cost of a write is proportional to its length. A write may be much longer than what is left of
        // it, which in its place would keep the allocator from using the space of the whole again.
        self.input = input[done..].to_vec();
        if self.broken {
            self.input = Vec::new();
        }
        Ok(())
    }

    fn read(&mut self, max: usize) -> Result<PipeRead, NtStatus> {
        let Some(message) = self.output.front() else {
            return Err(if self.broken { NtStatus::PIPE_DISCONNECTED } else { NtStatus::PIPE_EMPTY });
        };
        let rest = &message[self.read_offset..];
        let data = rest[..rest.len().min(max)].to_vec();
        let more = data.len() < rest.len();
        self.unread -= data.len();
        if more {
            self.read_offset += data.len();
        } else {
            self.read_offset = 0;
            self.output.pop_front();
        }
        Ok(PipeRead { data, more })
    }

    fn available(&self) -> usize {
        self.unread
    }

    fn held_bytes(&self) -> usize {
        self.unread + self.input.capacity() + self.partial.as_ref().map_or(0, |p| p.stub.capacity())
    }
}
