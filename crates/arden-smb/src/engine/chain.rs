//! Runs the requests of one transport message in order and builds the answer: compounds ([MS-SMB2] 3.3.5.2.7),
//! interim responses ([MS-SMB2] 3.3.4.2), signing and encryption of what leaves. Knows requests only by command.

use std::sync::{Arc, atomic::Ordering};

use arden_store::{error::StoreError, fs::WaitId, scope::RequestScope};
use arden_wire::{
    NtStatus,
    cursor::Put,
    smb2::{Command, HEADER_BYTES, Header, flags, header::offset, transform::TRANSFORM_BYTES},
};

use crate::{
    base::{
        buffers::is_too_large,
        grants::Granting,
        status,
        time::Time,
        usage::{Charge, Kind, Refused},
    },
    engine::{commits::Commits, logons},
    handlers::run::{Here, INLINE_WEIGHT_MAX, InFlight, NOT_SERVED, weight},
    model::{
        seam::{Answer, Outcome, Related, VerifiedRequest},
        share::Gates,
    },
    server::Server,
    sessions::{
        Channel, Peer, Session, SessionState,
        frame::{put_frame_length, seal_frame},
        signer::{Proof, Signer, answer_signer},
        work::{BlockingWork, Parked, Ran, Without},
    },
};

mod aside;
mod compound;
mod elsewhere;
mod finished;
mod granting;
mod job;

use aside::put_aside;
use compound::Compound;
use elsewhere::run_when_answered;
use finished::Finished;
use job::ChainJob;

/// Bytes of the answers of a compound that are made at once on the reactor; the others follow elsewhere.
const INLINE_ANSWER_BYTES_MAX: usize = 1 << 20;
/// What a later request of the message needs at least: a header, an error and its padding.
const ERROR_BYTES: usize = 80;
/// Room for what encryption and error contexts add.
const FRAME_EXTRA_BYTES: usize = 4096;

/// One request of the message, accepted: its ids are in the window, its signature was looked at.
#[derive(Clone)]
pub struct Element {
    pub header: Header,
    pub start: usize,
    pub len: usize,
    pub credits: u16,
    pub proof: Proof,
    pub channel: Option<Arc<Channel>>,
    /// The acceptance already failed; this is the answer.
    pub refused: Option<NtStatus>,
}

/// The bytes of a message: borrowed while it runs at once, owned once it has to be kept.
pub enum Bytes<'a> {
    Borrowed(&'a [u8]),
    /// Taken when it has to be kept, else left to its owner for the next message.
    Lent(&'a mut Vec<u8>),
    Owned(Vec<u8>),
}

impl Bytes<'_> {
    fn get(&self) -> &[u8] {
        match self {
            Bytes::Borrowed(b) => b,
            Bytes::Lent(v) => v,
            Bytes::Owned(v) => v,
        }
    }
    fn into_owned(self) -> Vec<u8> {
        match self {
            Bytes::Borrowed(b) => b.to_vec(),
            // Its buffer may be that of a larger message before it.
            Bytes::Lent(v) if is_too_large(v.capacity(), v.len()) => v.as_slice().to_vec(),
            Bytes::Lent(v) => std::mem::take(v),
            Bytes::Owned(v) => v,
        }
    }
}

/// A message in progress that can be put aside.
struct Chain {
    message: Vec<u8>,
    state: State,
}

struct State {
    server: Arc<Server>,
    peer: Arc<Peer>,
    elements: Vec<Element>,
    next: usize,
    related: Related,
    /// The request came encrypted: so goes the answer.
    encrypted: Option<Arc<Session>>,
    frame: Frame,
    /// The current request has been answered with STATUS_PENDING under this AsyncId.
    async_id: Option<u64>,
    /// What the current request has on the trees' side.
    in_flight: InFlight,
    /// What the current request costs while it waits.
    waiting: Option<[Charge; 2]>,
    commits: Commits,
    gates: Gates,
    /// What it grants is not told yet.
    granting: Vec<Granting>,
    /// It runs on a thread that may not block, and not at its connection.
    beside: bool,
}

/// Responses of one transport frame under construction in a buffer.
#[derive(Default)]
struct Frame {
    /// Where the 4-byte length is; None: nothing yet.
    start: Option<usize>,
    /// Start of each response and who signs it.
    responses: Vec<(usize, Option<Signer>)>,
}

/// What is left of a message that has to run on a thread that may block; None: nothing, or it waits.
pub type Rest = Option<Box<dyn BlockingWork>>;

impl Parked for Chain {
    fn peer(&self) -> &Arc<Peer> {
        &self.state.peer
    }

    fn without(&self, peer_id: u64) -> Without {
        let Some(element) = self.state.elements.get(self.state.next) else { return Without::Forgotten };
        let is_other = |channel: &Arc<Channel>| channel.session.live_peer().is_some_and(|p| p.id != peer_id);
        match element.channel.as_ref().is_some_and(is_other) {
            false => Without::Forgotten,
            true if element.header.command == Command::Create as u16 => Without::GoesOn,
            true => Without::Cancelled,
        }
    }

    fn run(self: Box<Self>, out: &mut Vec<u8>, may_block: bool) -> Ran {
        run(Bytes::Owned(self.message), self.state, out, may_block)
    }

    fn run_beside(mut self: Box<Self>, out: &mut Vec<u8>) -> Ran {
        self.state.beside = true;
        self.run(out, false)
    }

    fn abort(mut self: Box<Self>, status: NtStatus, out: &mut Vec<u8>) -> Ran {
        let i = self.state.next;
        self.state.elements[i].refused = Some(status);
        self.run(out, false)
    }

    fn detach(self: Box<Self>) -> Box<dyn BlockingWork> {
        self.state.peer.pending.lock().begin_job();
        Box::new(ChainJob { chain: *self, out: Vec::new() })
    }
}

/// Starts an accepted message.
pub fn start(
    server: &Arc<Server>,
    peer: &Arc<Peer>,
    message: Bytes<'_>,
    elements: Vec<Element>,
    encrypted: Option<Arc<Session>>,
    out: &mut Vec<u8>,
    may_block: bool,
) -> Ran {
    let state = State {
        server: server.clone(),
        peer: peer.clone(),
        elements,
        next: 0,
        related: Related::default(),
        encrypted,
        frame: Frame::default(),
        async_id: None,
        in_flight: InFlight::default(),
        waiting: None,
        commits: Commits::default(),
        gates: Gates::default(),
        granting: Vec::new(),
        beside: false,
    };
    run(message, state, out, may_block)
}

fn run(mut message: Bytes<'_>, mut state: State, out: &mut Vec<u8>, may_block: bool) -> Ran {
    // What the store saw for one request of a compound holds for the next.
    let _scope = if may_block { RequestScope::begin() } else { RequestScope::begin_without_waiting() };
    let mut done = 0;
    while state.next < state.elements.len() {
        if !may_block && state.has_done_enough(out, done) {
            return ChainJob::of_begun(message, state, out);
        }
        let base = state.begin_response(out);
        match state.dispatch(message.get(), out, base, may_block) {
            Outcome::Done(status) => state.end_response(out, base, status),
            Outcome::Error(status, data, contexts) => {
                out.truncate(base + HEADER_BYTES);
                put_error(out, &data, contexts);
                state.end_response(out, base, status);
            }
            Outcome::Close(reason) => {
                state.drop_frame(out, base);
                state.close_connection(reason);
                return Ran::default();
            }
            Outcome::Block => {
                state.drop_response(out, base);
                if state.elements[state.next].header.command != Command::Close as u16 {
                    state.in_flight.begin_work();
                }
                return ChainJob::of_begun(message, state, out);
            }
            Outcome::After => {
                state.drop_response(out, base);
                let begun = state.frame.start.map_or(0, |at| out.len() - at);
                if state.charge_wait(message.get().len() + begun) {
                    let out = state.begun_frame(out);
                    return run_after(message, state, out);
                }
                state.elements[state.next].refused = Some(NtStatus::INSUFFICIENT_RESOURCES);
                continue;
            }
            Outcome::Elsewhere => {
                state.drop_response(out, base);
                run_when_answered(message, state, out);
                return Ran::default();
            }
            Outcome::Pending(wait) => {
                state.drop_response(out, base);
                match put_aside(message, state, wait, out, may_block) {
                    Ok(refused) => (message, state) = refused,
                    Err(ran) => return ran,
                }
                continue;
            }
        }
        done += state.pass_on();
    }
    if !may_block && state.commits.scope.is_due() {
        let out = state.begun_frame(out);
        if let Some(commit) = state.commits.scope.later() {
            // The connection goes on meanwhile.
            Finished::commit(commit, state, out);
            return Ran::default();
        }
        return ChainJob::rest(message, state, out).into();
    }
    // Where this thread may not block, nothing that it did is due: all of it began here and ends here.
    if may_block {
        let _ = state.commit(out);
    }
    state.finish_frame(out);
    Ran { rest: None, granting: state.take_granting() }
}

/// Runs the message on when nobody works any more on the open that its current request comes after. No thread is kept for it
/// meanwhile: the work itself may wait for one.
fn run_after(message: Bytes<'_>, mut state: State, out: Vec<u8>) -> Ran {
    state.granting.clear();
    let (peer, after) = (state.peer.clone(), state.in_flight.take_after());
    let Some(job) = ChainJob::rest(message, state, out) else { return Ran::default() };
    let go_on: Box<dyn FnOnce() + Send> = Box::new(move || peer.run(job));
    match after {
        Some(open) => open.after_work(go_on),
        None => go_on(),
    }
    Ran::default()
}

/// The body of an ERROR response, [MS-SMB2] 2.2.2.
pub(crate) fn put_error(out: &mut Vec<u8>, data: &[u8], contexts: u8) {
    out.put_u16(9);
    out.put_u8(contexts);
    out.put_u8(0);
    out.put_u32(data.len() as u32);
    if data.is_empty() {
        // One byte of ErrorData is always there.
        out.put_u8(0);
    } else {
        out.extend_from_slice(data);
    }
}

impl State {
    fn begin_response(&mut self, out: &mut Vec<u8>) -> usize {
        if self.frame.start.is_none() {
            self.frame.start = Some(out.len());
            out.put_u32(0);
            if self.encrypted.is_some() {
                out.put_zeros(TRANSFORM_BYTES);
            }
        } else if let Some((last, _)) = self.frame.responses.last() {
            out.pad_to(*last, 8);
        }
        let base = out.len();
        let element = &self.elements[self.next];
        let request = &element.header;
        let mut header = Header {
            credit_charge: request.credit_charge,
            status: 0,
            command: request.command,
            credits: element.credits,
            flags: flags::SERVER_TO_REDIR | (request.flags & (flags::RELATED_OPERATIONS | flags::PRIORITY_MASK)),
            next_command: 0,
            message_id: request.message_id,
            async_or_tree: request.async_or_tree,
            session_id: request.session_id,
            signature: [0; 16],
        };
        if request.is(flags::REPLAY_OPERATION) {
            header.flags |= flags::REPLAY_OPERATION;
        }
        if let Some(id) = self.async_id {
            header.flags |= flags::ASYNC_COMMAND;
            header.async_or_tree = id;
            header.credits = 0;
        }
        if request.is(flags::RELATED_OPERATIONS) {
            if let Some(channel) = &element.channel {
                header.session_id = channel.session.id;
            }
            if self.async_id.is_none() {
                header.async_or_tree = u64::from(self.related.tree_id) << 32;
            }
        }
        header.put(out);
        base
    }

    fn may_wait(&self) -> bool {
        // A rename waits for the break of handle leases; the Linux client sends it between CREATE and CLOSE.
        let command = self.elements[self.next].header.command;
        let waits_anywhere = [Command::Create as u16, Command::SetInfo as u16].contains(&command);
        self.next + 1 == self.elements.len() || waits_anywhere
    }

    /// Goes on with the next request. What this one weighs.
    fn pass_on(&mut self) -> usize {
        self.next += 1;
        let element = &self.elements[self.next - 1];
        // Without a session it was refused, whatever it asks for.
        if element.channel.is_some() { weight(element.header.command) } else { 1 }
    }

    /// Whether the rest of a compound is for a thread that may block, when it has done so much here.
    fn has_done_enough(&self, out: &[u8], weight: usize) -> bool {
        let weight = weight + RequestScope::weight();
        let bytes = self.frame.start.map_or(0, |at| out.len() - at);
        weight >= INLINE_WEIGHT_MAX || weight > 0 && bytes > INLINE_ANSWER_BYTES_MAX
    }

    /// Bytes that the current request may answer, so that the frame holds at least an error for each that follows.
    fn room(&self, out: &[u8]) -> usize {
        let later = self.elements.len() - self.next;
        let used = self.frame.start.map_or(0, |at| out.len() - at) + later * ERROR_BYTES + FRAME_EXTRA_BYTES;
        self.server.trees.config.limits.answer_bytes_max.saturating_sub(used)
    }

    fn drop_response(&mut self, out: &mut Vec<u8>, base: usize) {
        out.truncate(base);
        if self.frame.responses.is_empty() {
            out.truncate(self.frame.start.take().unwrap_or(base));
        }
    }

    /// Nothing is answered: neither the response that begins at `base` nor those before it in its frame.
    fn drop_frame(&mut self, out: &mut Vec<u8>, base: usize) {
        out.truncate(self.frame.start.take().unwrap_or(base));
        self.frame.responses.clear();
    }

    fn end_response(&mut self, out: &mut Vec<u8>, base: usize, status: NtStatus) {
        self.link_response(out, base, status);
        let element = &self.elements[self.next];
        self.server.trees.metrics.answered(element.header.command, status);
        tracing::trace!(client = %self.peer.address, message_id = element.header.message_id,
            command = ?Command::from_u16(element.header.command), %status, "answered");
        let signer = answer_signer(&element.proof, None, &element.header);
        if signer.is_none() && self.encrypted.is_none() && element.header.is(flags::SIGNED) {
            // Clients that asked for a signature look at the flag first.
            out[base + offset::FLAGS] |= flags::SIGNED as u8;
        }
        self.frame.responses.push((base, signer));
        self.related = self.related.behind(status);
        self.waiting = None;
        if let Some(id) = self.async_id.take() {
            self.peer.pending.lock().remove(id);
        }
        self.server.engine.end(&element.header, &mut self.in_flight);
    }

    /// Brings what was changed to stable storage before what speaks of it leaves.
    fn commit(&mut self, out: &mut Vec<u8>) -> Result<(), StoreError> {
        let committed = self.commits.scope.commit();
        drop(self.committed(out, committed));
        committed
    }

    /// Where it could not be made durable, what was answered since the first change becomes an error. Gives back what was
    /// committed, to be freed.
    fn committed(&mut self, out: &mut Vec<u8>, committed: Result<(), StoreError>) -> Commits {
        let commits = std::mem::take(&mut self.commits);
        if let (Err(error), Some(response)) = (committed, commits.first()) {
            self.take_back(out, response, error);
        }
        commits
    }

    /// Makes errors of the answers from `response` on, whose changes are not durable.
    fn take_back(&mut self, out: &mut Vec<u8>, response: usize, error: StoreError) {
        tracing::error!(client = %self.peer.address, %error, "a change could not be made durable");
        // None: the change is that of a request which is about to wait, and nothing speaks of it yet.
        let Some(base) = self.frame.responses.get(response).map(|(base, _)| *base) else { return };
        // Each keeps its header: it may be the final response to a request that waited, [MS-SMB2] 3.3.4.4.
        let answered = self.frame.responses.split_off(response);
        let headers: Vec<Vec<u8>> = answered.iter().map(|(at, _)| out[*at..*at + HEADER_BYTES].to_vec()).collect();
        out.truncate(base);
        for (header, (_, signer)) in headers.iter().zip(answered) {
            if let Some((last, _)) = self.frame.responses.last() {
                out.pad_to(*last, 8);
            }
            let base = out.len();
            out.extend_from_slice(header);
            out.patch_u32(base + offset::NEXT_COMMAND, 0);
            put_error(out, &[], 0);
            self.link_response(out, base, status::of_error(error));
            self.frame.responses.push((base, signer));
        }
    }

    /// Gives a response its status and its place behind the one before.
    fn link_response(&self, out: &mut Vec<u8>, base: usize, status: NtStatus) {
        out.patch_u32(base + offset::STATUS, status.0);
        if let Some((last, _)) = self.frame.responses.last() {
            out.patch_u32(last + offset::NEXT_COMMAND, (base - last) as u32);
        }
    }

    /// The client is told nothing more.
    fn close_connection(&self, reason: &str) {
        tracing::warn!(client = %self.peer.address, reason, "connection is closed");
        self.peer.closed.store(true, Ordering::Release);
        (self.peer.wake)();
    }

    /// Signs, encrypts and frames what was answered, unless it may not be answered any more.
    fn finish_frame(&mut self, out: &mut Vec<u8>) {
        let Some(start) = self.frame.start.take() else { return };
        let responses = std::mem::take(&mut self.frame.responses);
        if !self.gates.may_answer() {
            out.truncate(start);
            return self.close_connection(NOT_SERVED);
        }
        if let [_, .., (last, _)] = responses[..] {
            // [MS-SMB2] 3.3.4.1.3: the last of several is padded like the others.
            out.pad_to(last, 8);
        }
        for (i, (base, signer)) in responses.iter().enumerate() {
            let Some(signer) = signer else { continue };
            let end = responses.get(i + 1).map_or(out.len(), |(next, _)| *next);
            let at = base + offset::FLAGS;
            out[at] |= flags::SIGNED as u8;
            signer.key().sign_in_place(&mut out[*base..end]);
        }
        if let Some(session) = &self.encrypted {
            seal_frame(session, &mut out[start + 4..]);
        }
        put_frame_length(out, start);
    }

    /// Moves what was answered so far into a buffer of its own.
    fn begun_frame(&mut self, out: &mut Vec<u8>) -> Vec<u8> {
        self.frame.start.map_or_else(Vec::new, |at| self.move_frame(out, at))
    }

    /// Appends a frame that was begun in a buffer of its own.
    fn restore_frame(&mut self, out: &mut Vec<u8>, begun: &[u8]) {
        let Some(start) = &mut self.frame.start else { return };
        let at = out.len();
        *start += at;
        for (base, _) in &mut self.frame.responses {
            *base += at;
        }
        out.extend_from_slice(begun);
    }

    /// Moves the unfinished frame into a buffer of its own.
    fn move_frame(&mut self, out: &mut Vec<u8>, at: usize) -> Vec<u8> {
        let moved = out.split_off(at);
        self.frame.start = Some(0);
        for (base, _) in &mut self.frame.responses {
            *base -= at;
        }
        moved
    }

    /// Sends what was answered before and an interim response for the current request, [MS-SMB2] 3.3.4.2.
    fn go_async(&mut self, out: &mut Vec<u8>, wait: WaitId, message_bytes: usize) -> bool {
        let limit = self.server.trees.config.limits.pending_per_connection_max;
        if self.peer.pending.lock().len() >= limit {
            tracing::warn!(client = %self.peer.address, limit, ?wait, "pending_per_connection_max reached");
            return false;
        }
        if !self.pays_for_wait(message_bytes) {
            return false;
        }
        let id = self.server.trees.next_id();
        self.async_id = Some(id);
        let base = self.begin_response(out);
        let credits = self.elements[self.next].credits;
        out.patch_u16(base + offset::CREDITS, credits);
        put_error(out, &[], 0);
        self.link_response(out, base, NtStatus::PENDING);
        self.frame.responses.push((base, None));
        self.finish_frame(out);
        true
    }

    /// Whether the user pays for a request that waits, and for its message: since before, perhaps.
    fn pays_for_wait(&mut self, message_bytes: usize) -> bool {
        self.waiting.is_some() || self.charge_wait(message_bytes)
    }

    /// The user pays for a request that waits, and for so many bytes that it keeps. False: it is too much.
    fn charge_wait(&mut self, bytes: usize) -> bool {
        let bytes = bytes + self.elements.capacity() * size_of::<Element>();
        let Some(wait) = self.charge(Kind::Waits, 1) else { return true };
        self.waiting = wait.ok().and_then(|wait| Some([wait, self.charge(Kind::WaitBytes, bytes)?.ok()?]));
        self.waiting.is_some()
    }

    /// The user pays for answers that leave now, until they are sent: nobody knows when they are read.
    fn charge_answers(&self, bytes: usize) -> Result<Option<Charge>, Refused> {
        if bytes > 0 { self.charge(Kind::WaitBytes, bytes).transpose() } else { Ok(None) }
    }

    /// Charges whom the current request is of. None: nobody is known.
    fn charge(&self, kind: Kind, amount: usize) -> Option<Result<Charge, Refused>> {
        let channel = self.elements[self.next].channel.as_ref()?;
        Some(self.server.trees.usage.charge(kind, &channel.session.token(), Some(self.peer.ip), amount))
    }

    /// Verifies the current request, and has it run.
    fn dispatch(&mut self, message: &[u8], out: &mut Vec<u8>, base: usize, may_block: bool) -> Outcome {
        let element = &self.elements[self.next];
        if let Some(status) = element.refused {
            return status.into();
        }
        let Some(command) = Command::from_u16(element.header.command) else {
            return NtStatus::INVALID_PARAMETER.into();
        };
        let (whole, message) = (message, &message[element.start..element.start + element.len]);
        match command {
            Command::Echo => return logons::echo(message, out),
            // It is logged off, and this was awaited.
            Command::Logoff if self.in_flight.elsewhere.take().is_some() => return logons::done(out),
            _ => {}
        }
        let Some(channel) = element.channel.clone() else {
            // [MS-SMB2] 3.3.5.2.7.2: the session to inherit was not valid.
            let related = element.header.is(flags::RELATED_OPERATIONS);
            return if related { NtStatus::INVALID_PARAMETER } else { NtStatus::USER_SESSION_DELETED }.into();
        };
        let session = &channel.session;
        if let Err(status) = self.check_session(command, session, element) {
            return status.into();
        }
        let time = self.server.trees.time();
        session.touch(time.now);
        let room = self.room(out);
        let outcome = match command {
            Command::Logoff => self.log_off(session, message, may_block, out),
            _ => self.run_verified(session, whole, (time, may_block, room), out),
        };
        self.commits.noted(self.frame.responses.len());
        if matches!(outcome, Outcome::Done(_)) && out.len() - base > room + HEADER_BYTES + ERROR_BYTES {
            return NtStatus::INSUFFICIENT_RESOURCES.into();
        }
        if command == Command::TreeConnect && matches!(outcome, Outcome::Done(_)) {
            // The response's header carries the new TreeId.
            out.patch_u32(base + offset::TREE_ID, self.related.tree_id);
        }
        outcome
    }

    /// The request is as its client made it, and its client is who it says: it goes over to the trees' side.
    fn run_verified(
        &mut self,
        session: &Session,
        whole: &[u8],
        (time, may_block, room): (Time, bool, usize),
        out: &mut Vec<u8>,
    ) -> Outcome {
        self.begin_granting(session, whole);
        let Some(negotiated) = self.peer.negotiated.get() else { return NtStatus::INVALID_PARAMETER.into() };
        let element = &self.elements[self.next];
        if element.header.command == Command::OplockBreak as u16 {
            self.server.acknowledged(session.client, &whole[element.start..element.start + element.len]);
        }
        let encrypted = self.encrypted.is_some();
        let behind = Compound { elements: &self.elements[self.next..], whole, session, encrypted, room };
        let request = VerifiedRequest {
            header: element.header,
            message: &whole[element.start..element.start + element.len],
            session_serial: session.tables.serial,
            user: session.token(),
            client: session.client,
            anonymous: session.anonymous,
            negotiated,
            ip: self.peer.ip,
            address: &self.peer.address,
            encrypted,
            async_id: self.async_id,
            related: self.related,
            room,
        };
        let mut here = Here {
            now: time.now,
            may_block,
            scope: &self.commits.scope,
            large: &self.peer.large,
            gates: &mut self.gates,
            in_flight: &mut self.in_flight,
            behind: Some(&behind),
            tree_elsewhere: false,
        };
        let Answer { outcome, related } = self.server.engine.run(&request, &mut here, out);
        self.related = related;
        outcome
    }

    fn log_off(&mut self, session: &Arc<Session>, message: &[u8], may_block: bool, out: &mut Vec<u8>) -> Outcome {
        let header = &self.elements[self.next].header;
        if header.is(flags::RELATED_OPERATIONS) {
            if let (Some(status), None) = (self.related.failed, self.related.file) {
                return status.into();
            }
        } else {
            self.related = Related::default();
        }
        let outcome = logons::log_off(&self.server, session, &self.commits.scope, message, may_block, out);
        if matches!(outcome, Outcome::Done(_)) {
            tracing::info!(client = %self.peer.address, user = %session.token().user_name, "logged off");
            if let Some(ending) = logons::Ending::of(&self.server, session) {
                self.in_flight.elsewhere = Some(ending);
                return Outcome::Elsewhere;
            }
        }
        outcome
    }

    /// [MS-SMB2] 3.3.5.2.9.
    fn check_session(&self, command: Command, session: &Session, element: &Element) -> Result<(), NtStatus> {
        match session.state() {
            SessionState::Valid => {}
            SessionState::Expired if matches!(command, Command::Logoff | Command::Close | Command::Lock) => {}
            SessionState::Expired => return Err(NtStatus::NETWORK_SESSION_EXPIRED),
            // A request that waited while its session ended is answered all the same.
            SessionState::Deleted if self.async_id.is_some() => {}
            SessionState::Deleted => return Err(NtStatus::USER_SESSION_DELETED),
        }
        if !is_protected(session, element, self.encrypted.is_some()) {
            tell_unprotected(&self.server, &self.peer, session);
            return Err(NtStatus::ACCESS_DENIED);
        }
        Ok(())
    }
}

/// Whether a request has the protection that its session asks for.
fn is_protected(session: &Session, element: &Element, encrypted: bool) -> bool {
    let signed = encrypted || element.proof.holds_session() || session.anonymous;
    (encrypted || !session.encrypt_data) && (signed || !session.signing_required)
}

/// The log names once for each session who sends requests without the protection that it has to have, and why.
pub(crate) fn tell_unprotected(server: &Server, peer: &Peer, session: &Session) {
    if !session.tell_unprotected() {
        return;
    }
    let policy = &server.trees.config.policy;
    let why = match session.encrypt_data {
        true => "setting encryption_required",
        false if policy.requires_signing() => "setting signing_required",
        false => "the client itself, SMB2_NEGOTIATE_SIGNING_REQUIRED",
    };
    tracing::warn!(client = %peer.address, user = %session.token().user_name, required_by = why,
        "a request that is not {} is refused", if session.encrypt_data { "encrypted" } else { "signed" });
}
