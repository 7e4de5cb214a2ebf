//! One connection of RPC over TCP: PDUs, its logon, the protection of each PDU, and the calls under way.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use arden_auth::{MessageSecurity, SIGNATURE_BYTES, Token};
use arden_wire::rpc::{
    self, Bind, ContextElement, ContextResult, Header, RESPONSE_HEADER_BYTES, Request, TRAILER_BYTES, Trailer,
    auth_level, auth_type,
};
use parking_lot::Mutex;

use super::{Called, Caller, Host, Logon, LogonStep, Reply, Standing, TcpService};
use crate::call::Fault;

/// Largest fragment in bytes in either direction, as Windows has it on TCP.
pub const FRAG_MAX: u16 = 5840;
/// The fragment size in bytes that every implementation has to accept, [C706] 12.6.3.1.
const FRAG_MIN: u16 = 1432;
/// Limit of a call in bytes, all fragments together.
pub const CALL_BYTES_MAX: usize = 64 << 10;
/// Presentation contexts of one connection.
pub const CONTEXTS_MAX: usize = 8;
/// Calls of one connection that wait for their answers; more get the fault *server too busy*.
pub const CALLS_MAX: usize = 32;
/// PDUs that are processed in one turn, and bytes of answers behind which it ends.
const TURN_PDUS_MAX: usize = 16;
const TURN_BYTES_MAX: usize = 64 << 10;
/// The first part of the fragments of a request, in bytes: header, allocation hint, context and operation.
const REQUEST_HEADER_BYTES: usize = 24;
const OBJECT_BYTES: usize = 16;
/// Stubs of protected PDUs are padded to this.
const PROTECTED_ALIGN: usize = 16;
/// The supported feature of bind time feature negotiation, [MS-RPCE] 2.2.2.14: an orphaned call does not end the
/// connection.
const KEEP_CONNECTION_ON_ORPHAN: u16 = 2;

/// What to do after input was processed. There may be output in any case, which comes first, except after a delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    Go,
    /// There is more input to be processed. First the output is sent, and others have their turn.
    More,
    /// Nothing is sent or read for this time.
    Pause(Duration),
    /// After this time the output is sent and the connection closed.
    Close(Duration),
}

const CLOSE: Flow = Flow::Close(Duration::ZERO);

/// Answers of calls that waited, on their way to the connection.
pub struct Outbox {
    answers: Mutex<Vec<(u32, Result<Vec<u8>, u32>)>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Outbox {
    pub(super) fn push(&self, call_id: u32, answer: Result<Vec<u8>, u32>) {
        self.answers.lock().push((call_id, answer));
        (self.wake)();
    }
}

/// A logon at one of the levels.
struct Secured {
    user: Arc<Token>,
    trailer: Trailer,
    /// `None`: the level is below packet integrity.
    security: Option<MessageSecurity>,
    standing: Box<dyn Standing>,
    group: u32,
}

enum Auth {
    None,
    UnderWay { logon: Box<dyn Logon>, trailer: Trailer },
    Secured(Box<Secured>),
    Failed,
}

/// A request whose fragments are not complete.
struct Partial {
    call_id: u32,
    context: u16,
    opnum: u16,
    stub: Vec<u8>,
}

/// A call that waits for its answer.
struct Waiting {
    context: u16,
    interface: usize,
    wait: u64,
}

/// The server's end of a connection.
pub struct Connection {
    service: Arc<TcpService>,
    host: Arc<dyn Host>,
    outbox: Arc<Outbox>,
    address: IpAddr,
    local: IpAddr,
    port: String,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Presentation contexts, as index into the interfaces of the service.
    bound: BTreeMap<u16, usize>,
    was_bound: bool,
    /// The group that the client named, or a new one.
    group: u32,
    group_named: bool,
    frag_max: usize,
    signs_headers: bool,
    auth: Auth,
    partial: Option<Partial>,
    calls: BTreeMap<u32, Waiting>,
}

impl Connection {
    /// A connection from `address` to the port `local`. `wake` is called, from any thread, when [`answers`](Self::answers)
    /// has something to do.
    pub fn new(
        service: Arc<TcpService>,
        host: Arc<dyn Host>,
        address: IpAddr,
        local: std::net::SocketAddr,
        wake: Box<dyn Fn() + Send + Sync>,
    ) -> Connection {
        Connection {
            service,
            host,
            outbox: Arc::new(Outbox { answers: Mutex::default(), wake }),
            address,
            local: local.ip(),
            port: local.port().to_string(),
            input: Vec::new(),
            output: Vec::new(),
            bound: BTreeMap::new(),
            was_bound: false,
            group: 0,
            group_named: false,
            frag_max: usize::from(FRAG_MAX),
            signs_headers: false,
            auth: Auth::None,
            partial: None,
            calls: BTreeMap::new(),
        }
    }

    /// Whether a user is logged on.
    pub fn user(&self) -> Option<&Arc<Token>> {
        match &self.auth {
            Auth::Secured(s) => Some(&s.user),
            _ => None,
        }
    }

    /// Whether calls wait for their answers.
    pub fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Whether the user may go on. True without a logon.
    pub fn is_good(&self) -> bool {
        match &self.auth {
            Auth::Secured(s) => s.standing.is_good(),
            _ => true,
        }
    }

    /// Bytes for the client.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Bytes of a PDU that is not complete.
    pub fn has_partial_input(&self) -> bool {
        !self.input.is_empty() || self.partial.is_some()
    }

    /// Processes bytes of the client. After [`Flow::Pause`] and [`Flow::More`] it has to be called again, without bytes if there are none.
    pub fn receive(&mut self, bytes: &[u8], now: Instant) -> Flow {
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(bytes);
        let (mut done, mut pdus) = (0, 0);
        let mut flow = Flow::Go;
        while flow == Flow::Go {
            let rest = &mut input[done..];
            if rest.len() < rpc::HEADER_BYTES {
                break;
            }
            let Ok(header) = Header::parse(rest) else { return self.fail(0, Fault::PROTOCOL_ERROR) };
            if header.frag_length > FRAG_MAX {
                return self.fail(header.call_id, Fault::PROTOCOL_ERROR);
            }
            let length = usize::from(header.frag_length);
            if rest.len() < length {
                break;
            }
            if pdus >= TURN_PDUS_MAX || self.output.len() >= TURN_BYTES_MAX {
                flow = Flow::More;
                break;
            }
            flow = self.pdu(&header, &mut rest[..length], now);
            done += length;
            pdus += 1;
        }
        // Copied: in its place it would keep the allocator from using the space of all that came before it as a whole.
        self.input = input[done..].to_vec();
        flow
    }

    /// Turns the answers of calls that waited into output.
    pub fn answers(&mut self) {
        let answers = std::mem::take(&mut *self.outbox.answers.lock());
        for (call_id, answer) in answers {
            // A call that was cancelled has its answer, or needs none.
            if let Some(waiting) = self.calls.remove(&call_id) {
                self.respond(call_id, waiting.context, answer);
            }
        }
    }

    /// Answers a protocol error with a fault; the connection ends.
    fn fail(&mut self, call_id: u32, fault: Fault) -> Flow {
        self.fault(call_id, 0, fault);
        CLOSE
    }

    fn fault(&mut self, call_id: u32, context: u16, fault: Fault) {
        self.output.extend(rpc::encode_fault(call_id, context, fault.0, false));
    }

    fn pdu(&mut self, header: &Header, pdu: &mut [u8], now: Instant) -> Flow {
        match header.kind {
            rpc::BIND if !self.was_bound => self.bind(header, pdu, rpc::BIND_ACK),
            rpc::ALTER_CONTEXT if self.was_bound => self.bind(header, pdu, rpc::ALTER_CONTEXT_RESP),
            rpc::AUTH3 if self.was_bound => self.auth3(header, pdu),
            rpc::REQUEST if self.was_bound => self.request(header, pdu, now),
            // They may come without a signature: what cuts a connection can as well end its calls.
            rpc::CO_CANCEL | rpc::ORPHANED if self.was_bound => {
                if header.auth_length != 0 && self.unprotect(header, pdu, rpc::HEADER_BYTES).is_none() {
                    return self.fail(header.call_id, Fault::ACCESS_DENIED);
                }
                self.end_call(header.call_id, header.kind == rpc::CO_CANCEL);
                Flow::Go
            }
            _ => self.fail(header.call_id, Fault::PROTOCOL_ERROR),
        }
    }

    /// bind and alter_context, [MS-RPCE] 3.3.1.5.2.1.
    fn bind(&mut self, header: &Header, pdu: &[u8], answer: u8) -> Flow {
        let first = answer == rpc::BIND_ACK;
        let (end, security) = match header.auth_length {
            0 => (pdu.len(), None),
            _ => match Trailer::split(header, pdu) {
                Ok((trailer, end, at)) => (end, Some((trailer, &pdu[at + TRAILER_BYTES..]))),
                Err(_) => return self.fail(header.call_id, Fault::PROTOCOL_ERROR),
            },
        };
        let Ok(bind) = Bind::parse(&pdu[rpc::HEADER_BYTES..end]) else {
            return self.fail(header.call_id, Fault::PROTOCOL_ERROR);
        };
        if bind.contexts.iter().any(|c| self.changes_meaning(c)) {
            return self.fail(header.call_id, Fault::PROTOCOL_ERROR);
        }
        let results: Vec<ContextResult> = bind.contexts.iter().map(|c| self.propose(c)).collect();
        if self.bound.len() > CONTEXTS_MAX {
            return self.refuse_bind(header, answer, rpc::NAK_LOCAL_LIMIT, Duration::ZERO);
        }
        if first {
            self.was_bound = true;
            self.frag_max = usize::from(bind.max_recv.clamp(FRAG_MIN, FRAG_MAX));
            self.group_named = bind.group != 0;
            self.group = if self.group_named { bind.group } else { self.new_group() };
        }
        let token = match security.map(|(trailer, token)| (trailer, self.authenticate(header, trailer, token))) {
            None => None,
            Some((trailer, Ok(token))) => Some((trailer, token)),
            Some((trailer, Err(delay))) => {
                let known = matches!(trailer.auth_type, auth_type::NTLM | auth_type::SPNEGO);
                let reason = if known { rpc::NAK_NOT_SPECIFIED } else { rpc::NAK_AUTH_TYPE_NOT_RECOGNIZED };
                return self.refuse_bind(header, answer, reason, delay);
            }
        };
        let port = if first { self.port.as_str() } else { "" };
        let mut ack = rpc::encode_bind_ack(answer, header.call_id, self.frag_max as u16, self.group, port, &results);
        // Calls beside each other on one connection.
        let mut flags = if first { header.flags & rpc::PFC_CONC_MPX } else { 0 };
        if let Some((trailer, token)) = token {
            if self.signs_headers {
                flags |= rpc::PFC_SUPPORT_HEADER_SIGN;
            }
            Trailer { pad: 0, ..trailer }.append_token(&mut ack, &token);
        }
        rpc::add_flags(&mut ack, flags);
        self.output.extend(ack);
        Flow::Go
    }

    fn refuse_bind(&mut self, header: &Header, answer: u8, reason: u16, delay: Duration) -> Flow {
        match answer {
            rpc::BIND_ACK => self.output.extend(rpc::encode_bind_nak(header.call_id, reason)),
            _ => self.fault(header.call_id, 0, Fault::ACCESS_DENIED),
        }
        Flow::Close(delay)
    }

    fn new_group(&self) -> u32 {
        let random = self.host.random();
        u32::from_le_bytes([random[0], random[1], random[2], random[3]]).max(1)
    }

    /// Whether the context would change the interface of its id.
    fn changes_meaning(&self, context: &ContextElement) -> bool {
        let interface = self.bound.get(&context.id).and_then(|i| self.service.interfaces.get(*i));
        interface.is_some_and(|i| !accepts(&i.syntax(), context))
    }

    fn propose(&mut self, context: &ContextElement) -> ContextResult {
        if let Some(features) = context.transfer.iter().find_map(|t| t.features()) {
            return ContextResult::Features(features & KEEP_CONNECTION_ON_ORPHAN);
        }
        let found = self.service.interfaces.iter().position(|i| accepts(&i.syntax(), context));
        let Some(index) = found else { return ContextResult::AbstractSyntaxNotSupported };
        if !context.transfer.contains(&rpc::NDR32) {
            return ContextResult::TransferSyntaxesNotSupported;
        }
        self.bound.insert(context.id, index);
        ContextResult::Accepted
    }

    /// One token of the logon.
    ///
    /// # Errors
    /// The logon is refused; the client hears of it after this time.
    fn authenticate(&mut self, header: &Header, trailer: Trailer, token: &[u8]) -> Result<Vec<u8>, Duration> {
        let known = matches!(trailer.auth_type, auth_type::NTLM | auth_type::SPNEGO);
        let trailer = Trailer { pad: 0, ..trailer };
        if self.user().is_some() {
            // Each connection has one logon, which stays as it is.
            return Err(Duration::ZERO);
        }
        let (mut logon, kept) = match std::mem::replace(&mut self.auth, Auth::Failed) {
            Auth::None if known && (auth_level::CONNECT..=auth_level::PRIVACY).contains(&trailer.level) => {
                self.signs_headers = header.flags & rpc::PFC_SUPPORT_HEADER_SIGN != 0;
                (self.host.begin_logon().ok_or(Duration::ZERO)?, trailer)
            }
            Auth::UnderWay { logon, trailer: kept } if kept == trailer => (logon, kept),
            _ => return Err(Duration::ZERO),
        };
        match logon.step(token) {
            LogonStep::Continue(reply) => {
                self.auth = Auth::UnderWay { logon, trailer: kept };
                Ok(reply)
            }
            LogonStep::Refused { delay } => Err(delay),
            LogonStep::Done { reply, logon } => {
                let security = logon.security.filter(|s| match kept.level {
                    auth_level::INTEGRITY => true,
                    auth_level::PRIVACY => s.can_seal(),
                    _ => false,
                });
                if !self.service.associations.join(self.group, self.group_named, &logon.user.user) {
                    return Err(Duration::ZERO);
                }
                self.auth = Auth::Secured(Box::new(Secured {
                    user: logon.user,
                    trailer: kept,
                    security,
                    standing: logon.standing,
                    group: self.group,
                }));
                Ok(reply)
            }
        }
    }

    /// rpc_auth_3, [MS-RPCE] 2.2.2.5: the last token of the client, which has no answer.
    fn auth3(&mut self, header: &Header, pdu: &[u8]) -> Flow {
        let Ok((trailer, _, at)) = Trailer::split(header, pdu) else {
            return self.fail(header.call_id, Fault::PROTOCOL_ERROR);
        };
        match self.authenticate(header, trailer, &pdu[at + TRAILER_BYTES..]) {
            // A logon that goes on after it cannot: the token is lost.
            Ok(_) if self.user().is_none() => {
                self.auth = Auth::Failed;
                Flow::Go
            }
            Ok(_) => Flow::Go,
            // The next request is told.
            Err(delay) => Flow::Pause(delay),
        }
    }

    /// Checks the protection of a PDU and decrypts what is behind `from`. Where its body ends; `None`: it is not what the
    /// client sent next.
    fn unprotect(&mut self, header: &Header, pdu: &mut [u8], from: usize) -> Option<usize> {
        let Auth::Secured(secured) = &mut self.auth else { return None };
        let security = secured.security.as_mut()?;
        let (trailer, end, at) = Trailer::split(header, pdu).ok()?;
        if (Trailer { pad: 0, ..trailer }) != secured.trailer || end < from {
            return None;
        }
        let (signed, signature) = pdu.split_at_mut(at + TRAILER_BYTES);
        let (message, body) = match self.signs_headers {
            true => (signed, from..at),
            false => (&mut signed[from..at], 0..at - from),
        };
        let good = match trailer.level {
            auth_level::PRIVACY => security.unseal(message, body, signature),
            _ => security.verify(message, signature),
        };
        good.then_some(end)
    }

    fn request(&mut self, header: &Header, pdu: &mut [u8], now: Instant) -> Flow {
        if matches!(self.auth, Auth::Failed | Auth::UnderWay { .. }) {
            return self.fail(header.call_id, Fault::ACCESS_DENIED);
        }
        let object = if header.flags & rpc::PFC_OBJECT_UUID != 0 { OBJECT_BYTES } else { 0 };
        let from = REQUEST_HEADER_BYTES + object;
        if pdu.len() < from {
            return self.fail(header.call_id, Fault::PROTOCOL_ERROR);
        }
        let protects = matches!(&self.auth, Auth::Secured(s) if s.security.is_some());
        let end = if protects {
            match self.unprotect(header, pdu, from) {
                Some(end) => end,
                None => return self.fail(header.call_id, Fault::ACCESS_DENIED),
            }
        } else if header.auth_length != 0 {
            match Trailer::split(header, pdu) {
                Ok((_, end, _)) if end >= from => end,
                _ => return self.fail(header.call_id, Fault::PROTOCOL_ERROR),
            }
        } else {
            pdu.len()
        };
        let Ok(fragment) = Request::parse(header, &pdu[rpc::HEADER_BYTES..end]) else {
            return self.fail(header.call_id, Fault::PROTOCOL_ERROR);
        };
        let mut partial = match (header.is_first(), self.partial.take()) {
            (true, None) if !self.calls.contains_key(&header.call_id) => {
                Partial { call_id: header.call_id, context: fragment.context, opnum: fragment.opnum, stub: Vec::new() }
            }
            (false, Some(p))
                if p.call_id == header.call_id && p.context == fragment.context && p.opnum == fragment.opnum =>
            {
                p
            }
            _ => return self.fail(header.call_id, Fault::PROTOCOL_ERROR),
        };
        if partial.stub.len() + fragment.stub.len() > CALL_BYTES_MAX {
            return self.fail(header.call_id, Fault::PROTOCOL_ERROR);
        }
        partial.stub.extend_from_slice(fragment.stub);
        if !header.is_last() {
            self.partial = Some(partial);
            return Flow::Go;
        }
        self.dispatch(&partial, now)
    }

    fn dispatch(&mut self, call: &Partial, now: Instant) -> Flow {
        let index = self.bound.get(&call.context).copied();
        let Some((index, interface)) = index.and_then(|i| Some((i, self.service.interfaces.get(i)?.clone()))) else {
            self.fault(call.call_id, call.context, Fault::UNKNOWN_INTERFACE);
            return Flow::Go;
        };
        let secured = match &self.auth {
            Auth::Secured(s) => Some(s),
            _ => None,
        };
        if interface.needs_logon() {
            if secured.is_none_or(|s| s.security.is_none()) {
                self.fault(call.call_id, call.context, Fault::ACCESS_DENIED);
                return Flow::Go;
            }
            if !self.is_good() {
                return self.fail(call.call_id, Fault::ACCESS_DENIED);
            }
        }
        if self.calls.len() >= CALLS_MAX {
            self.fault(call.call_id, call.context, Fault::TOO_BUSY);
            return Flow::Go;
        }
        let caller = Caller {
            user: secured.map(|s| s.user.clone()),
            address: self.address,
            local: self.local,
            group: secured.map_or(0, |s| s.group),
        };
        let reply = Reply { outbox: self.outbox.clone(), call_id: call.call_id };
        match interface.call(&caller, call.opnum, &call.stub, reply, now) {
            Called::Done(answer) => self.respond(call.call_id, call.context, answer),
            Called::Waits(wait) => {
                self.calls.insert(call.call_id, Waiting { context: call.context, interface: index, wait });
            }
        }
        Flow::Go
    }

    /// co_cancel, to which a call that waits is answered, and orphaned, [C706] 12.6.4.
    fn end_call(&mut self, call_id: u32, tell: bool) {
        if self.partial.as_ref().is_some_and(|p| p.call_id == call_id) {
            self.partial = None;
        }
        let Some(call) = self.calls.remove(&call_id) else { return };
        if let Some(interface) = self.service.interfaces.get(call.interface) {
            interface.cancel(call.wait);
        }
        self.outbox.answers.lock().retain(|(id, _)| *id != call_id);
        if tell {
            self.respond(call_id, call.context, Err(Fault::CANCELLED.0));
        }
    }

    /// Faults are not signed: no client checks that of one, and it would take a number of the sequence.
    fn respond(&mut self, call_id: u32, context: u16, answer: Result<Vec<u8>, u32>) {
        let stub = match answer {
            Ok(stub) => stub,
            Err(status) => {
                let executed = status != Fault::OPNUM_RANGE.0;
                return self.output.extend(rpc::encode_fault(call_id, context, status, executed));
            }
        };
        let overhead = RESPONSE_HEADER_BYTES + TRAILER_BYTES + SIGNATURE_BYTES;
        let room = (self.frag_max - overhead) & !(PROTECTED_ALIGN - 1);
        for mut pdu in rpc::encode_response_parts(call_id, context, &stub, room) {
            if let Auth::Secured(secured) = &mut self.auth
                && let Some(security) = &mut secured.security
            {
                protect(&mut pdu, &secured.trailer, security, self.signs_headers);
            }
            self.output.extend(pdu);
        }
    }
}

/// Whether an interface is what a client asks for. The client's minor version may be lower than the server's, [C706]
/// 12.6.3.1.
fn accepts(own: &rpc::Syntax, context: &ContextElement) -> bool {
    let (major, minor) = (own.version & 0xFFFF, own.version >> 16);
    let asked = &context.interface;
    own.uuid == asked.uuid && asked.version & 0xFFFF == major && asked.version >> 16 <= minor
}

/// Pads a response, and signs or seals it, [MS-RPCE] 3.3.1.5.2.2.
fn protect(pdu: &mut Vec<u8>, trailer: &Trailer, security: &mut MessageSecurity, signs_headers: bool) {
    let from = RESPONSE_HEADER_BYTES;
    let token = trailer.append(pdu, from, PROTECTED_ALIGN, SIGNATURE_BYTES);
    let at = token - TRAILER_BYTES;
    let (signed, place) = pdu.split_at_mut(token);
    let (message, body) = match signs_headers {
        true => (signed, from..at),
        false => (&mut signed[from..at], 0..at - from),
    };
    let signature = match trailer.level {
        auth_level::PRIVACY => security.seal(message, body),
        _ => security.sign(message),
    };
    place.copy_from_slice(&signature);
}

impl Drop for Connection {
    fn drop(&mut self) {
        for call in std::mem::take(&mut self.calls).into_values() {
            if let Some(interface) = self.service.interfaces.get(call.interface) {
                interface.cancel(call.wait);
            }
        }
        if let Auth::Secured(secured) = &self.auth {
            self.service.leave(secured.group);
        }
    }
}
