//! SCSI-3 persistent reservations of a disk (SPC-4, Reservations): who may write to it. Owns the commands, what their answers mean, and the
//! steps by which a new owner keeps a former one from the disk. Refuses to decide who that is.
//!
//! # Why SG_IO
//! The kernel has ioctls of its own for reservations (`linux/pr.h`), which disks of other kinds understand too. In the kernels of
//! Debian 12 and 13 they cannot read keys, and a fence counts only when the keys have been read. Nor do they tell what a disk can do.
//!
//! # Why "write exclusive, registrants only" (type 5)
//! * Its one holder is known by its key, so that READ RESERVATION proves who has the disk. Of the types "all registrants" every
//!   registered path is a holder, and the key that is read is zero.
//! * What ends it is the holder's RELEASE, its unregistering, and CLEAR. A holder that is preempted is followed by the path
//!   that preempts it, in the same step: there is no moment in which the disk is open to all. So an owner never
//!   unregisters at a hand-over: its successor preempts its key. A reservation of the types "all registrants" would outlive the
//!   holder too, but only while another path is registered, which at a hand-over is none.
//! * All may read. So a label is read, and the disk known to be the right one, before anything is changed on it, and every node can
//!   find disks and their state. The types "exclusive access" would refuse that.
//!
//! A reservation is asked to persist through a loss of power (APTPL). Without that a former owner's commands would be let in by a disk that came back empty.

mod codec;
pub mod disks;
mod key;
#[cfg(test)]
mod model;
mod sg;

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

pub use codec::{Capabilities, Change, Keys, Kind, Query, Reservation, Sense, capabilities, keys, reservation, sense};
pub use key::Key;
pub use sg::SgDisk;

use codec::{ANSWER_BYTES_MAX, change, parameters, query};

/// A command that was not executed is sent again so often: each path is told once of each event before.
const TRIES: usize = 8;
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// Room for 127 keys; more are asked for when there are.
const KEYS_ROOM: u16 = 1024;

const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;
const BUSY: u8 = 0x08;
const RESERVATION_CONFLICT: u8 = 0x18;
const TASK_SET_FULL: u8 = 0x28;
const TASK_ABORTED: u8 = 0x40;

/// The data of a command.
pub enum Data<'a> {
    None,
    Out(&'a [u8]),
    In(&'a mut [u8]),
}

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
    fn command(&self, cdb: &[u8; 10], data: Data<'_>) -> io::Result<Reply>;
}

/// Why something is not done on a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReserveError {
    /// The key of this path is not registered: it was fenced, or another path has the reservation.
    Conflict,
    /// The disk, or the way to it, has no persistent reservations; why.
    Unsupported(String),
    /// The disk does not answer; why. What was asked may have happened.
    Unreachable(String),
    /// The disk refused, or its answer makes no sense.
    Failed(String),
}

impl fmt::Display for ReserveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReserveError::Conflict => f.write_str("reservation conflict"),
            ReserveError::Unsupported(why) => write!(f, "no persistent reservations: {why}"),
            ReserveError::Unreachable(why) => write!(f, "not reachable: {why}"),
            ReserveError::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ReserveError {}

pub type ReserveResult<T> = Result<T, ReserveError>;

fn failed(why: impl Into<String>) -> ReserveError {
    ReserveError::Failed(why.into())
}

/// One path to a disk. All calls block.
pub struct Reservations<T> {
    target: T,
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

    /// Refuses a disk that cannot keep a former owner away through everything.
    ///
    /// # Errors
    /// Unsupported, with what is missing.
    pub fn check(&self) -> ReserveResult<()> {
        let can = self.capabilities()?;
        let missing = |what: &str| Err(ReserveError::Unsupported(what.to_string()));
        match can {
            Capabilities { registrants_only: false, .. } => missing("the disk has no type \"registrants only\""),
            Capabilities { persists: false, .. } => missing("the disk forgets reservations when its power fails"),
            _ => self.keys().map(drop),
        }
    }

    /// Every registered key, once for each path that has it.
    ///
    /// # Errors
    /// Those of the disk. Keys are told all or not at all.
    pub fn keys(&self) -> ReserveResult<Vec<u64>> {
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

    /// The reservation, if there is one.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn reservation(&self) -> ReserveResult<Option<Reservation>> {
        let data = self.ask(Query::ReadReservation, 24)?;
        reservation(&data).ok_or_else(|| failed("READ RESERVATION was answered with something else"))
    }

    /// Registers `key` for this path, whatever key it has now; a reservation that it holds stays. It persists through a loss of power where the disk can.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn register(&self, key: u64) -> ReserveResult<()> {
        let persists = self.capabilities().is_ok_and(|c| c.persists);
        self.order(Change::RegisterAndIgnoreExistingKey, 0, key, persists)
    }

    /// Takes the key of this path away. A reservation that it holds ends.
    ///
    /// # Errors
    /// Conflict, when this path does not have the key.
    pub fn unregister(&self, key: u64) -> ReserveResult<()> {
        self.order(Change::Register, key, 0, false)
    }

    /// Makes this path the holder of the reservation.
    ///
    /// # Errors
    /// Conflict, when this path does not have `key`, or another one holds a reservation.
    pub fn reserve(&self, key: u64) -> ReserveResult<()> {
        self.order(Change::Reserve, key, 0, false)
    }

    /// Ends the reservation of this path; keys stay.
    ///
    /// # Errors
    /// Conflict, when this path does not have `key`.
    pub fn release(&self, key: u64) -> ReserveResult<()> {
        self.order(Change::Release, key, 0, false)
    }

    /// Takes away the reservation and all keys.
    ///
    /// # Errors
    /// Conflict, when this path does not have `key`.
    pub fn clear(&self, key: u64) -> ReserveResult<()> {
        self.order(Change::Clear, key, 0, false)
    }

    /// Takes the key `victim` away from every path that has it, and ends the commands of those paths before it returns. If `victim`
    /// held the reservation, this path does from then on.
    ///
    /// # Errors
    /// Conflict, when this path does not have `key`, or nobody has `victim`.
    pub fn preempt_and_abort(&self, key: u64, victim: u64) -> ReserveResult<()> {
        self.order(Change::PreemptAndAbort, key, victim, false)
    }

    /// Keeps `victim` from writing, and makes sure that its key is gone. `key` has to be registered for this path. A key that is not
    /// there has no commands: it was fenced, or was never registered.
    ///
    /// # Errors
    /// Why `victim` may still write.
    pub fn fence(&self, key: u64, victim: u64) -> ReserveResult<()> {
        if key == victim {
            return Err(failed("a path cannot fence itself"));
        }
        let before = self.keys()?;
        if !before.contains(&key) {
            return Err(ReserveError::Conflict);
        }
        if before.contains(&victim) {
            match self.preempt_and_abort(key, victim) {
                // Sent again after it had happened: the keys tell.
                Ok(()) | Err(ReserveError::Conflict) => {}
                Err(e) => return Err(e),
            }
        }
        let after = self.keys()?;
        match (after.contains(&key), after.contains(&victim)) {
            (true, false) => Ok(()),
            (false, _) => Err(ReserveError::Conflict),
            (true, true) => Err(failed("the disk still has the key that was preempted")),
        }
    }

    /// Makes sure that only paths with a registered key can write, by a reservation that this path, or one whose key is yet to be
    /// fenced, holds. Gives its holder's key.
    ///
    /// # Errors
    /// Conflict, when `key` is not registered for this path; failed, when there is a reservation of another type.
    pub fn protect(&self, key: u64) -> ReserveResult<u64> {
        if self.reservation()?.is_none() {
            match self.reserve(key) {
                // Another path was quicker, or this path has been fenced.
                Ok(()) | Err(ReserveError::Conflict) => {}
                Err(e) => return Err(e),
            }
        }
        match self.reservation()? {
            Some(Reservation { key: holder, kind: Kind::WriteExclusiveRegistrantsOnly }) => Ok(holder),
            Some(r) => Err(failed(format!("the disk has a reservation of another type ({:?})", r.kind))),
            None => Err(ReserveError::Conflict),
        }
    }

    /// Whether `key` is the only one on the disk, and holds its reservation.
    ///
    /// # Errors
    /// Conflict, when it is not; those of the disk.
    pub fn confirm(&self, key: u64) -> ReserveResult<()> {
        let held = Reservation { key, kind: Kind::WriteExclusiveRegistrantsOnly };
        match (self.keys()?.iter().all(|k| *k == key), self.reservation()? == Some(held)) {
            (true, true) => Ok(()),
            _ => Err(ReserveError::Conflict),
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
    fn run(&self, cdb: &[u8; 10], mut send: impl FnMut(&T) -> io::Result<Reply>) -> ReserveResult<usize> {
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

#[cfg(test)]
mod tests;
