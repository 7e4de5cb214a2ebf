//! What a handler sees of the request that it answers, and how it says that there is no ordinary answer. Owns how a
//! request finds its file: by id, by relation, and within its channel sequence.

use std::{sync::Arc, time::Instant};

use arden_lock::{Mutex, ranks};
use arden_store::{
    commit::{Cause, CommitScope},
    error::{NotDone, StoreError},
    fs::{Step, WaitId},
};
use arden_wire::{
    Malformed, NtStatus,
    cursor::Put,
    smb2::{Command, Dialect, FileId, flags},
};

use crate::{
    base::status,
    model::{
        SessionTables, SmbOpen, Tree,
        seam::{Related, VerifiedRequest},
        share::Gates,
    },
    trees::Trees,
};

/// Why a request has no ordinary response now.
pub enum Fail {
    Status(NtStatus),
    /// An error with ErrorData and the number of error contexts in it, [MS-SMB2] 2.2.2.
    Data(NtStatus, Vec<u8>, u8),
    /// Not here: the same call is made again where it may block. Nothing has been done yet.
    Block,
    /// Run it again when no other request works on this open, where it may block.
    After(Arc<SmbOpen>),
    /// It waits for somebody else, and goes on from there; None: a continuation that went on waits once more, as it stands.
    Wait(WaitId, Option<Box<dyn Continuation>>),
    /// The client is not to be trusted any more: the connection ends without an answer.
    Close(&'static str),
}

impl Fail {
    /// With ErrorData; 3.1.1 wraps it in an error context, [MS-SMB2] 2.2.2.1. Nothing follows that context: section
    /// 3.3.5.20.3 wants a ByteCount of 12 for data of 4 bytes.
    pub fn with_data(status: NtStatus, data: &[u8], dialect: Dialect) -> Fail {
        if dialect != Dialect::Smb311 {
            return Fail::Data(status, data.to_vec(), 0);
        }
        let mut wrapped = Vec::with_capacity(8 + data.len());
        wrapped.put_u32(data.len() as u32);
        wrapped.put_u32(0);
        wrapped.extend_from_slice(data);
        Fail::Data(status, wrapped, 1)
    }
}

impl From<NtStatus> for Fail {
    fn from(status: NtStatus) -> Fail {
        Fail::Status(status)
    }
}
impl From<StoreError> for Fail {
    fn from(e: StoreError) -> Fail {
        Fail::Status(status::of_error(e))
    }
}
impl From<NotDone> for Fail {
    fn from(e: NotDone) -> Fail {
        match e {
            NotDone::WouldBlock => Fail::Block,
            NotDone::Failed(e) => e.into(),
        }
    }
}
impl From<Malformed> for Fail {
    fn from(_: Malformed) -> Fail {
        Fail::Status(NtStatus::INVALID_PARAMETER)
    }
}

/// Handlers append the response body and answer its status.
pub type Handled = Result<NtStatus, Fail>;

/// A request that waits, with what it has worked out so far: what is parsed and checked, and what was done once, is not
/// parsed, checked and done again.
///
/// Session, tree connect and protection are checked anew by the caller. What else may have changed during the wait is looked
/// at anew by `resume`: the handle ([`Request::check_still_open`]), sharing, access, and what a name stands for by now.
pub trait Continuation: Send {
    /// The wait is over: goes on, and appends the response body. With `Fail::Block`, and with `Fail::Wait` without
    /// another continuation, it is called again: where it may block, after that wait.
    fn resume(&mut self, request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled;
}

/// What came of a handler whose work is a continuation from the start: boxed only if it waits.
pub fn waiting<T>(done: Result<T, Fail>, continuation: impl Continuation + 'static) -> Result<T, Fail> {
    match done {
        Err(Fail::Wait(wait, None)) => Err(Fail::Wait(wait, Some(Box::new(continuation)))),
        done => done,
    }
}

/// A request that has done nothing yet: after its wait it is run from its start, and all is looked at anew.
struct FromTheStart;

impl Continuation for FromTheStart {
    fn resume(&mut self, request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
        super::run::again(request, out)
    }
}

/// Requests for which a client has to have written back what it caches: all that work on a handle's data, its size or its locks.
fn works_on_data(command: u16) -> bool {
    matches!(
        Command::from_u16(command),
        Some(Command::Read | Command::Write | Command::Lock | Command::Ioctl | Command::SetInfo)
    )
}

/// Everything a handler sees.
pub struct Request<'a> {
    pub trees: &'a Arc<Trees>,
    pub verified: &'a VerifiedRequest<'a>,
    pub session: &'a Arc<SessionTables>,
    pub tree: Option<Arc<Tree>>,
    pub related: &'a mut Related,
    pub now: Instant,
    pub may_block: bool,
    /// What the message changes: its answers wait for it.
    pub scope: &'a CommitScope,
    /// The buffer of the last large answer.
    pub large: &'a Mutex<Vec<u8>, ranks::LargeBuffer>,
    /// What the message's answers have to pass.
    pub gates: &'a mut Gates,
    pub(crate) counted: &'a mut Option<Arc<SmbOpen>>,
    pub(crate) used: &'a mut Option<Arc<SmbOpen>>,
}

impl Request<'_> {
    /// The file that the request names, directly or by relation, [MS-SMB2] 3.3.5.2.7.2 and 3.3.5.2.10.
    pub fn open(&mut self, id: FileId) -> Result<Arc<SmbOpen>, Fail> {
        let related = self.verified.header.is(flags::RELATED_OPERATIONS);
        let id = match (related, self.related.file) {
            (true, Some(file)) => file,
            (true, None) => match self.related.failed {
                Some(status) => return Err(Fail::Status(status)),
                None if id == FileId::RELATED => return Err(NtStatus::FILE_CLOSED.into()),
                None => id,
            },
            (false, _) => id,
        };
        let open = self.session.opens.read().get(&id.volatile).cloned();
        let open = open.filter(|o| o.id == id).ok_or(NtStatus::FILE_CLOSED)?;
        let tree_id = self.tree.as_ref().map_or(0, |t| t.id);
        {
            let mut state = open.state.lock();
            if state.tree_id != tree_id {
                return Err(NtStatus::FILE_CLOSED.into());
            }
            state.replay_eligible = false;
        }
        self.related.file = Some(id);
        if self.used.is_none() {
            *self.used = Some(open.clone());
        }
        if self.counted.is_none() {
            self.check_channel_sequence(&open)?;
        }
        if works_on_data(self.verified.header.command) {
            self.begin_work(&open)?;
        }
        Ok(open)
    }

    /// Data of `open` are read or changed next: what another client has cached under the same lease key is written back first.
    pub fn begin_work(&self, open: &SmbOpen) -> Result<(), Fail> {
        let Some(file) = open.file() else { return Ok(()) };
        match file.fs().begin_work(file, self.cause())? {
            Step::Done(()) => Ok(()),
            Step::Wait(wait) => Err(Fail::Wait(wait, Some(Box::new(FromTheStart)))),
        }
    }

    /// After a wait: the handle is still one of this session and of this tree connect.
    pub fn check_still_open(&self, open: &Arc<SmbOpen>) -> Result<(), Fail> {
        let is_here = self.session.opens.read().get(&open.id.volatile).is_some_and(|o| Arc::ptr_eq(o, open));
        let tree_id = self.tree.as_ref().map_or(0, |t| t.id);
        if !is_here || open.state.lock().tree_id != tree_id {
            return Err(NtStatus::FILE_CLOSED.into());
        }
        Ok(())
    }

    /// [MS-SMB2] 3.3.5.2.10.
    fn check_channel_sequence(&mut self, open: &Arc<SmbOpen>) -> Result<(), Fail> {
        if !self.verified.dialect().is_smb3() {
            return Ok(());
        }
        let sequence = self.verified.header.channel_sequence();
        let modifies = matches!(
            Command::from_u16(self.verified.header.command),
            Some(Command::Write | Command::SetInfo | Command::Ioctl)
        );
        let refused = Err(Fail::Status(NtStatus::FILE_NOT_AVAILABLE));
        let mut s = open.state.lock();
        let ahead = sequence.wrapping_sub(s.channel_sequence);
        if ahead > 0x7FFF {
            return if modifies { refused } else { Ok(()) };
        }
        if self.verified.header.is(flags::REPLAY_OPERATION) {
            if ahead != 0 {
                s.outstanding_before += s.outstanding;
                s.channel_sequence = sequence;
                s.outstanding = 0;
            }
            if s.outstanding_before != 0 {
                return if modifies { refused } else { Ok(()) };
            }
            s.outstanding += 1;
        } else {
            if ahead != 0 {
                s.outstanding_before += s.outstanding;
                s.outstanding = 0;
                s.channel_sequence = sequence;
            }
            s.outstanding += 1;
        }
        drop(s);
        *self.counted = Some(open.clone());
        Ok(())
    }

    /// What calls of a store are made for.
    pub fn cause(&self) -> Cause<'_> {
        self.scope.at(self.now)
    }

    pub fn tree(&self) -> Result<&Arc<Tree>, Fail> {
        self.tree.as_ref().ok_or(Fail::Status(NtStatus::NETWORK_NAME_DELETED))
    }

    /// [MS-SMB2] 3.3.5.2.5: the charge has to cover the larger of what is sent and what may come back.
    pub fn check_charge(&self, bytes: usize) -> Result<(), Fail> {
        if !self.verified.negotiated.multi_credit() {
            return if bytes > 65536 { Err(NtStatus::INVALID_PARAMETER.into()) } else { Ok(()) };
        }
        let charge = usize::from(self.verified.header.credit_charge.max(1));
        if bytes > 0 && (bytes - 1) / 65536 + 1 > charge { Err(NtStatus::INVALID_PARAMETER.into()) } else { Ok(()) }
    }
}
