//! Persistent reservations by SCSI commands (SPC-4, Reservations). Owns what the commands' answers mean.
//!
//! # Why SG_IO
//! The kernel has ioctls of its own for reservations (`linux/pr.h`), which disks of other kinds understand too. In the kernels of
//! Debian 12 and 13 they cannot read keys, and a fence counts only when the keys have been read. Nor do they tell what a disk can do.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::codec::{
    ANSWER_BYTES_MAX, Capabilities, Change, Keys, Query, Sense, capabilities, change, inquiry, keys, parameters, query,
    reservation, unit_names,
};
use super::sg::SgDisk;
use super::{Data, DiskPath, Kind, Reservation, ReserveError, ReserveResult, failed};

/// A command that was not executed is sent again so often: each path is told once of each event before.
const TRIES: usize = 8;
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// Room for 127 keys; more are asked for when there are.
const KEYS_ROOM: u16 = 1024;
/// Room for the names of a logical unit that a disk of any age understands; more is asked for when there are no names in it.
const NAMES_ROOM: u16 = 252;

pub(super) const GOOD: u8 = 0x00;
pub(super) const CHECK_CONDITION: u8 = 0x02;
const BUSY: u8 = 0x08;
const RESERVATION_CONFLICT: u8 = 0x18;
const TASK_SET_FULL: u8 = 0x28;
const TASK_ABORTED: u8 = 0x40;

/// How a command ended.
#[derive(Debug, Clone, Copy)]
pub struct Reply {
    /// Of SCSI (SAM-5, Status codes).
    pub status: u8,
    /// Of the machine's adapter: zero when the disk answered.
    pub host_status: u16,
    pub sense: Option<Sense>,
    /// Bytes of data that were moved.
    pub transferred: usize,
}

/// Whatever executes commands.
pub trait Target {
    /// # Errors
    /// That of the system, when the command was not sent.
    fn command(&self, cdb: &[u8], data: Data<'_>) -> io::Result<Reply>;

    /// LOGICAL UNIT RESET (SAM-5, Task management functions): ends all commands, of all paths. Registrations and the reservation stay.
    ///
    /// # Errors
    /// That of the system: it may not have happened.
    fn reset(&self) -> io::Result<()>;

    /// The name of this machine's port. None: it is not known.
    fn initiator(&self) -> Option<String> {
        None
    }
}

/// One path to a disk. All calls block.
pub struct Reservations<T> {
    pub(super) target: T,
}

impl Reservations<SgDisk> {
    /// # Errors
    /// Unsupported, when the path is no whole SCSI disk; unreachable, when it cannot be opened.
    pub fn open(path: &Path) -> ReserveResult<Reservations<SgDisk>> {
        let at = |why: &dyn fmt::Display| format!("{}: {why}", path.display());
        match SgDisk::open(path) {
            Ok(target) => Ok(Reservations { target }),
            Err(e) if e.kind() == io::ErrorKind::Unsupported => Err(ReserveError::Unsupported(at(&e))),
            Err(e) => Err(ReserveError::Unreachable(at(&e))),
        }
    }
}

impl<T: Target> Reservations<T> {
    pub fn new(target: T) -> Reservations<T> {
        Reservations { target }
    }

    /// What the disk can do.
    ///
    /// # Errors
    /// Unsupported, when it does not know the question.
    pub fn capabilities(&self) -> ReserveResult<Capabilities> {
        let data = self.ask(Query::ReportCapabilities, 8)?;
        capabilities(&data).ok_or_else(|| failed("REPORT CAPABILITIES was answered with something else"))
    }

    /// Whether this path reaches a disk that answers, and whether that keeps reservations.
    pub(super) fn persists(&self) -> ReserveResult<bool> {
        self.keys()?;
        Ok(self.capabilities()?.persists)
    }

    /// Registers this path. `persists`: the disk keeps keys and reservation over a loss of its power.
    pub(super) fn register_so(&self, key: u64, persists: bool) -> ReserveResult<()> {
        self.order(Change::RegisterAndIgnoreExistingKey, 0, key, persists)
    }

    /// The names of the disk that this path leads to, which no other disk has.
    pub(super) fn unit(&self) -> ReserveResult<BTreeSet<Vec<u8>>> {
        let mut room = NAMES_ROOM;
        loop {
            let mut data = vec![0; usize::from(room)];
            let cdb = inquiry(room);
            let moved = self.run(&cdb, |target| target.command(&cdb, Data::In(&mut data)))?;
            match unit_names(&data[..moved]) {
                Some(told) if !told.names.is_empty() => return Ok(told.names),
                Some(told) if told.bytes > usize::from(room) && told.bytes <= ANSWER_BYTES_MAX => {
                    room = told.bytes as u16;
                }
                _ => {
                    let why = "it does not say which disk it leads to (INQUIRY, page 83h)";
                    return Err(ReserveError::Unsupported(why.to_string()));
                }
            }
        }
    }

    fn ask(&self, action: Query, room: u16) -> ReserveResult<Vec<u8>> {
        let mut data = vec![0; usize::from(room)];
        let cdb = query(action, room);
        let moved = self.run(&cdb, |target| target.command(&cdb, Data::In(&mut data)))?;
        data.truncate(moved);
        Ok(data)
    }

    fn order(&self, action: Change, key: u64, about: u64, persists: bool) -> ReserveResult<()> {
        let (cdb, list) = (change(action, Kind::WriteExclusiveRegistrantsOnly), parameters(key, about, persists));
        self.run(&cdb, |target| target.command(&cdb, Data::Out(&list))).map(drop)
    }

    /// Sends a command until it was executed. Gives how many bytes were moved.
    fn run(&self, cdb: &[u8], mut send: impl FnMut(&T) -> io::Result<Reply>) -> ReserveResult<usize> {
        let mut last = String::new();
        for _ in 0..TRIES {
            let reply = send(&self.target).map_err(|e| ReserveError::Unreachable(e.to_string()))?;
            match (reply.status, reply.host_status, reply.sense) {
                // Some kernels report a conflict as an error of the adapter beside it.
                (RESERVATION_CONFLICT, ..) => return Err(ReserveError::Conflict),
                (GOOD, 0, _) => return Ok(reply.transferred),
                (CHECK_CONDITION, _, Some(sense)) if sense.is_unit_attention() => last = format!("{sense:?}"),
                (CHECK_CONDITION, _, Some(sense)) if sense.is_illegal_request() => {
                    let why = format!("the disk does not know {:02x} {:02x}: {sense:?}", cdb[0], cdb[1]);
                    return Err(ReserveError::Unsupported(why));
                }
                (CHECK_CONDITION, _, sense) => {
                    return Err(failed(format!("{:02x} {:02x} ended with {sense:?}", cdb[0], cdb[1])));
                }
                (BUSY | TASK_SET_FULL | TASK_ABORTED, ..) => {
                    last = format!("status {:02x}", reply.status);
                    std::thread::sleep(BUSY_PAUSE);
                }
                (status, host, _) => {
                    return Err(ReserveError::Unreachable(format!("status {status:02x} {host:02x}")));
                }
            }
        }
        Err(ReserveError::Unreachable(format!("it was not executed {TRIES} times: {last}")))
    }
}

impl<T: Target> DiskPath for Reservations<T> {
    fn check(&self) -> ReserveResult<()> {
        let can = self.capabilities()?;
        let missing = |what: &str| Err(ReserveError::Unsupported(what.to_string()));
        match can {
            Capabilities { registrants_only: false, .. } => missing("the disk has no type \"registrants only\""),
            Capabilities { persists: false, .. } => missing("the disk forgets reservations when its power fails"),
            _ => self.keys().map(drop),
        }
    }

    fn known_as(&self) -> ReserveResult<Vec<String>> {
        Ok(self.target.initiator().into_iter().collect())
    }

    fn keys(&self) -> ReserveResult<Vec<u64>> {
        let mut room = KEYS_ROOM;
        loop {
            match keys(&self.ask(Query::ReadKeys, room)?) {
                Some(Keys::All(all)) => return Ok(all),
                Some(Keys::Longer(bytes)) if bytes > usize::from(room) && bytes <= ANSWER_BYTES_MAX => {
                    room = bytes as u16;
                }
                Some(Keys::Longer(bytes)) => {
                    return Err(failed(format!("READ KEYS was cut off: it has {bytes} bytes")));
                }
                None => return Err(failed("READ KEYS was answered with something else")),
            }
        }
    }

    fn reservation(&self) -> ReserveResult<Option<Reservation>> {
        let data = self.ask(Query::ReadReservation, 24)?;
        reservation(&data).ok_or_else(|| failed("READ RESERVATION was answered with something else"))
    }

    fn register(&self, key: u64) -> ReserveResult<()> {
        let persists = self.capabilities()?.persists;
        self.register_so(key, persists)
    }

    /// The last registration of any path says whether the disk keeps all keys over a loss of its power (SPC-4, APTPL): this one, too.
    fn unregister(&self, key: u64) -> ReserveResult<()> {
        let persists = self.capabilities()?.persists;
        self.order(Change::Register, key, 0, persists)
    }

    fn reserve(&self, key: u64) -> ReserveResult<()> {
        self.order(Change::Reserve, key, 0, false)
    }

    fn release(&self, key: u64) -> ReserveResult<()> {
        self.order(Change::Release, key, 0, false)
    }

    fn clear(&self, key: u64) -> ReserveResult<()> {
        self.order(Change::Clear, key, 0, false)
    }

    fn preempt_and_abort(&self, key: u64, victim: u64) -> ReserveResult<()> {
        self.order(Change::PreemptAndAbort, key, victim, false)
    }

    /// PREEMPT AND ABORT of a key that is gone is refused, so nothing but a reset ends the commands that had it, or waits for those that are being
    /// ended (SPC-4, Preempting).
    fn settle(&self, key: u64) -> ReserveResult<()> {
        self.target.reset().map_err(|e| {
            failed(format!(
                "commands of a former owner may be under way, and the disk is not reset (LOGICAL UNIT RESET, which needs CAP_SYS_ADMIN and \
                 CAP_SYS_RAWIO): {e}"
            ))
        })?;
        // The first answer behind it is that of a disk that was reset.
        if self.keys()?.contains(&key) { Ok(()) } else { Err(ReserveError::Conflict) }
    }
}
