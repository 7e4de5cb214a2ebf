//! Runs verified requests: the interface that the sessions' side asks, and this node's engine behind it. From command to handler.

use std::{any::Any, collections::VecDeque, sync::Arc, time::Instant};

use arden_lock::{Mutex, ranks};
use arden_store::commit::CommitScope;
use arden_wire::{
    NtStatus,
    dtyp::Sid,
    smb2::{Command, Header, flags},
};

use crate::{
    handlers::{
        breaks, create, data, directory, ioctl, locks, query,
        request::{Continuation, Fail, Handled, Request},
        set, tree,
    },
    model::{
        SessionTables, SmbOpen, Tree, Working,
        seam::{Answer, Following, Outcome, Related, VerifiedRequest},
        share::Gates,
    },
    trees::{Trees, endings::Then},
};

/// Why a connection ends whose client asks for what this node may not serve any more, or not yet: an answer would be an error.
pub(crate) const NOT_SERVED: &str = "the share is not served by this node at the moment";

/// What runs verified requests: this node's trees, or what hands them to those of another node.
pub trait RequestEngine: Send + Sync {
    /// Appends the body of a response to `out`, behind its header. A request that answered `Outcome::Pending` or
    /// `Outcome::Block` comes again with what it left in flight.
    fn run(&self, request: &VerifiedRequest<'_>, here: &mut Here<'_>, out: &mut Vec<u8>) -> Answer;

    /// The request with this header is answered, or its wait was cancelled: nothing of it is left in flight.
    fn end(&self, header: &Header, in_flight: &mut InFlight);

    /// A session is gone on this side, by its serial number. What it has in this node's trees is taken down by others.
    fn session_ended(&self, serial: u64, keep_durable: bool) {
        let _ = (serial, keep_durable);
    }

    /// Whether sessions of this user have ended, and it is not known that everything is closed that they had open.
    fn has_endings(&self, user: &Sid) -> bool {
        let _ = user;
        false
    }

    /// Calls `then` when everything is closed that this user's sessions had open which have ended, or enough time has passed. `previous`:
    /// one of them may be another node's, by its id; it is ended there.
    ///
    /// # Errors
    /// There is nothing to wait for: `then` is given back.
    fn after_endings(&self, user: &Sid, previous: Option<u64>, then: Then) -> Result<(), Then> {
        let _ = (user, previous);
        Err(then)
    }
}

/// What requests of a message may weigh that run one after the other where nothing may block: so that others have their turn.
pub const INLINE_WEIGHT_MAX: usize = 64;

/// How long a request may take at most where nothing may block, beside the others: that of one by a handle is 1. What depends on its
/// file is added where it is known, by `RequestScope::weigh`.
pub fn weight(command: u16) -> usize {
    match Command::from_u16(command) {
        Some(Command::QueryDirectory) => 16,
        Some(Command::Create) => 4,
        _ => 1,
    }
}

/// How a request goes on whose answer is there. `here`: on the thread that says so, which may send what comes of it.
pub type GoOn = Box<dyn FnOnce(bool) + Send>;

/// A request that was handed to another engine.
pub trait Elsewhere: Any + Send + Sync {
    /// Calls `go_on` when there is an answer: now and not here, or by whoever brings it.
    fn when_answered(&self, go_on: GoOn);

    /// Bytes that the request and its answer may keep until then.
    fn bytes(&self) -> usize;

    /// Whether the user has so much there that the connection begins no more before something was answered.
    fn is_much(&self) -> bool {
        false
    }

    /// Whether it is not there yet: the connection begins no more before it is.
    fn is_held(&self) -> bool {
        false
    }
}

/// What comes behind a request in its compound.
pub trait Behind {
    /// The `n`th behind it, from 0, where it and all before it are related and were verified as the request itself was, need nothing of
    /// their connection, and have room for all that they may answer.
    fn related(&self, n: usize) -> Option<Following<'_>>;
}

/// Where and when a request runs.
pub struct Here<'a> {
    pub now: Instant,
    pub may_block: bool,
    /// What the message changes: its answers wait for it.
    pub scope: &'a CommitScope,
    /// The buffer of the last large answer, to be used again.
    pub large: &'a Mutex<Vec<u8>, ranks::LargeBuffer>,
    /// What the message's answers have to pass.
    pub gates: &'a mut Gates,
    pub in_flight: &'a mut InFlight,
    /// For an engine that asks another for several requests at once.
    pub behind: Option<&'a dyn Behind>,
    /// The request's tree connect is known, though it is not one of these trees.
    pub tree_elsewhere: bool,
}

/// What a request has here from its first run until it is answered.
#[derive(Default)]
pub struct InFlight {
    /// The open whose outstanding count it is part of, [MS-SMB2] 3.3.5.2.10.
    counted: Option<Arc<SmbOpen>>,
    /// The open that it works on.
    used: Option<Arc<SmbOpen>>,
    /// `used` is not closed before it is done.
    working: Option<Working>,
    /// The open on which the work of others has to end first.
    after: Option<Arc<SmbOpen>>,
    /// How it goes on, once it waited.
    continuation: Option<Box<dyn Continuation>>,
    /// After `Outcome::Elsewhere`, until the engine that set it takes it: the request as the other engine has it. Dropped, nobody
    /// waits for its answer any more.
    pub elsewhere: Option<Arc<dyn Elsewhere>>,
    /// The same of the requests behind it that were handed over with it, in order.
    pub ahead: VecDeque<Arc<dyn Elsewhere>>,
}

impl InFlight {
    /// It goes on elsewhere: a close of its handle has to wait for it.
    pub(crate) fn begin_work(&mut self) {
        self.working = self.used.as_ref().map(Working::on);
    }

    /// A close need not wait for it any more.
    pub(crate) fn end_work(&mut self) {
        self.working = None;
    }

    /// After `Outcome::After`. None: not an open of this node.
    pub(crate) fn take_after(&mut self) -> Option<Arc<SmbOpen>> {
        self.after.take()
    }

    /// Bytes that another engine may keep of it, and of those behind it.
    pub(crate) fn bytes_elsewhere(&self) -> usize {
        self.elsewhere.iter().chain(&self.ahead).map(|asked| asked.bytes()).sum()
    }

    /// It is answered, and what comes next is in flight; it came with this ChannelSequence.
    fn end(&mut self, channel_sequence: u16) {
        self.continuation = None;
        self.elsewhere = self.ahead.pop_front();
        if let Some(open) = self.counted.take() {
            let mut s = open.state.lock();
            // [MS-SMB2] 3.3.4.1: the request was counted under the sequence it came with.
            if s.channel_sequence == channel_sequence {
                s.outstanding = s.outstanding.saturating_sub(1);
            } else {
                s.outstanding_before = s.outstanding_before.saturating_sub(1);
            }
        }
        self.end_work();
        self.used = None;
    }
}

/// This node's trees.
pub struct LocalEngine(pub Arc<Trees>);

impl RequestEngine for LocalEngine {
    fn run(&self, request: &VerifiedRequest<'_>, here: &mut Here<'_>, out: &mut Vec<u8>) -> Answer {
        let mut related = request.related;
        let start = out.len();
        let handled = match Command::from_u16(request.header.command) {
            Some(command) => {
                let handled = self.handle(command, request, &mut related, here, out);
                // A request that waited while its session ended is answered all the same.
                let handled =
                    handled.map_err(|e| if request.async_id.is_some() { closed_meanwhile(command, e) } else { e });
                match handled {
                    Err(Fail::Status(status)) if command == Command::ChangeNotify && !status.is_error() => {
                        out.truncate(start);
                        directory::put_no_changes(out);
                        Ok(status)
                    }
                    handled => handled,
                }
            }
            None => Err(NtStatus::INVALID_PARAMETER.into()),
        };
        let outcome = match handled {
            Ok(status) => Outcome::Done(status),
            Err(Fail::Status(status)) => Outcome::from(status),
            Err(Fail::Data(status, data, contexts)) => Outcome::Error(status, data, contexts),
            Err(Fail::Block) => Outcome::Block,
            Err(Fail::After(open)) => {
                here.in_flight.after = Some(open);
                Outcome::After
            }
            Err(Fail::Wait(wait, continuation)) => {
                here.in_flight.continuation = continuation.or(here.in_flight.continuation.take());
                Outcome::Pending(wait)
            }
            Err(Fail::Close(reason)) => Outcome::Close(reason),
        };
        Answer { outcome, related }
    }

    fn end(&self, header: &Header, in_flight: &mut InFlight) {
        in_flight.end(header.channel_sequence());
    }

    fn has_endings(&self, user: &Sid) -> bool {
        self.0.endings.has(user)
    }

    fn after_endings(&self, user: &Sid, _previous: Option<u64>, then: Then) -> Result<(), Then> {
        self.0.endings.after(user, then)
    }
}

impl LocalEngine {
    fn handle(
        &self,
        command: Command,
        verified: &VerifiedRequest<'_>,
        related: &mut Related,
        here: &mut Here<'_>,
        out: &mut Vec<u8>,
    ) -> Handled {
        let is_related = verified.header.is(flags::RELATED_OPERATIONS);
        if let (true, Some(status), None) = (is_related, related.failed, related.file) {
            return Err(Fail::Status(status));
        }
        let session = self.0.session_tables(verified.session_serial).ok_or(match verified.async_id {
            Some(_) => NtStatus::NETWORK_NAME_DELETED,
            None => NtStatus::USER_SESSION_DELETED,
        })?;
        let tree = if here.tree_elsewhere { None } else { find_tree(command, &session, verified)? };
        if tree.as_ref().is_some_and(|tree| !here.gates.pass(&tree.share)) {
            return Err(Fail::Close(NOT_SERVED));
        }
        if !is_related {
            *related = Related { tree_id: tree.as_ref().map_or(0, |t| t.id), ..Related::default() };
        }
        if let Some(tree) = tree.as_ref().filter(|_| verified.async_id.is_some() && changes(command)) {
            join(here.scope, tree);
        }
        let Here { now, may_block, scope, large, gates, in_flight, .. } = here;
        let mut request = Request {
            trees: &self.0,
            verified,
            session: &session,
            tree,
            related,
            now: *now,
            may_block: *may_block,
            scope,
            large,
            gates,
            counted: &mut in_flight.counted,
            used: &mut in_flight.used,
        };
        match &mut in_flight.continuation {
            Some(continuation) => continuation.resume(&mut request, out),
            None => handle(command, &mut request, out),
        }
    }
}

/// Runs a request that waited before it did anything.
pub(super) fn again(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    let command = Command::from_u16(request.verified.header.command).ok_or(NtStatus::INVALID_PARAMETER)?;
    handle(command, request, out)
}

fn handle(command: Command, request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    match command {
        Command::TreeConnect => tree::connect(request, out),
        Command::TreeDisconnect => tree::disconnect(request, out),
        Command::Create => create::create(request, out),
        Command::Close => data::close(request, out),
        Command::Flush => data::flush(request, out),
        Command::Read => data::read(request, out),
        Command::Write => data::write(request, out),
        Command::Lock => locks::lock(request, out),
        Command::Ioctl => ioctl::ioctl(request, out),
        Command::QueryDirectory => directory::query(request, out),
        Command::ChangeNotify => directory::notify(request, out),
        Command::QueryInfo => query::query_info(request, out),
        Command::SetInfo => set::set_info(request, out),
        Command::OplockBreak => breaks::acknowledge(request, out),
        // These never come here: they are the sessions' side's own.
        Command::Negotiate | Command::SessionSetup | Command::Logoff | Command::Cancel | Command::Echo => {
            Err(Fail::Status(NtStatus::INVALID_PARAMETER))
        }
    }
}

/// [MS-SMB2] 3.3.5.2.11.
fn find_tree(
    command: Command,
    session: &SessionTables,
    request: &VerifiedRequest<'_>,
) -> Result<Option<Arc<Tree>>, Fail> {
    if command == Command::TreeConnect {
        return Ok(None);
    }
    let header = &request.header;
    let id = if header.is(flags::RELATED_OPERATIONS) { request.related.tree_id } else { header.tree_id() };
    let tree = session.trees.read().get(&id).cloned();
    let Some(tree) = tree else {
        return if command == Command::OplockBreak { Ok(None) } else { Err(NtStatus::NETWORK_NAME_DELETED.into()) };
    };
    if tree.share.encrypt && !request.encrypted {
        if session.tell_unencrypted() {
            tracing::warn!(client = %request.address, user = %request.user.user_name, share = %tree.share.name,
                required_by = "the share's encryption", "a request that is not encrypted is refused");
        }
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    Ok(Some(tree))
}

/// The answer of a request that waited speaks of what ended its wait: that is durable before, whoever it was of. On shares that
/// are continuously available or write through, and every share of a root that keeps persistent handles.
fn join(scope: &CommitScope, tree: &Tree) {
    let share = &tree.share;
    if let Some(fs) = &share.fs
        && (share.is_durable() || fs.is_available())
    {
        scope.join(fs, share.is_durable());
    }
}

/// Commands that can change a file, or what is kept of an open.
fn changes(command: Command) -> bool {
    matches!(
        command,
        Command::Create
            | Command::Close
            | Command::Write
            | Command::SetInfo
            | Command::Ioctl
            | Command::Lock
            | Command::OplockBreak
    )
}

/// What a request answers that waited until its handle was gone.
fn closed_meanwhile(command: Command, fail: Fail) -> Fail {
    match (command, &fail) {
        (Command::Lock, Fail::Status(NtStatus::FILE_CLOSED | NtStatus::NETWORK_NAME_DELETED)) => {
            NtStatus::RANGE_NOT_LOCKED.into()
        }
        (Command::ChangeNotify, Fail::Status(NtStatus::FILE_CLOSED | NtStatus::NETWORK_NAME_DELETED)) => {
            NtStatus::NOTIFY_CLEANUP.into()
        }
        (Command::Ioctl, Fail::Status(NtStatus::FILE_CLOSED | NtStatus::NETWORK_NAME_DELETED)) => {
            NtStatus::CANCELLED.into()
        }
        _ => fail,
    }
}
