//! Persistent reservations of a disk, of SCSI (SPC-4, Reservations) or NVMe (NVM Express Base Specification, Reservations): who may
//! write to it. Owns the commands, what their answers mean, and the steps by which a new owner keeps a former one from the disk, which
//! are the same for both ([`DiskPath`]). Refuses to decide who that is.
//!
//! # Why "write exclusive, registrants only"
//! * Its one holder is known by its key, so that reading the reservation proves who has the disk. Of the types "all registrants" every
//!   registered path is a holder, and SCSI tells no key.
//! * What ends it is that the holder releases it or unregisters, and CLEAR. A holder that is preempted is followed by the path
//!   that preempts it, in the same step: there is no moment in which the disk is open to all. So an owner never
//!   unregisters at a hand-over: its successor preempts its key. A reservation of the types "all registrants" would outlive the
//!   holder too, but only while another path is registered, which at a hand-over is none.
//! * All may read. So a label is read, and the disk known to be the right one, before anything is changed on it, and every node can
//!   find disks and their state. The types "exclusive access" would refuse that.
//!
//! A reservation is asked to persist through a loss of power. Without that a former owner's commands would be let in by a disk that came back empty.

mod codec;
pub mod disks;
mod key;
#[cfg(test)]
mod model;
mod multipath;
pub mod nvme;
mod scsi;
mod sg;

use std::fmt;
use std::path::Path;

pub use codec::{
    Capabilities, Change, Keys, Kind, Query, Reservation, Sense, UnitNames, capabilities, keys, reservation, sense,
    unit_names,
};
pub use key::Key;
pub use multipath::Multipath;
pub use scsi::{Reply, Reservations, Target};
pub use sg::SgDisk;

/// The data of a command.
pub enum Data<'a> {
    None,
    Out(&'a [u8]),
    In(&'a mut [u8]),
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

/// The commands by which a disk is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Scsi,
    /// `volatile`: a namespace that forgets reservations when its power fails is taken too.
    Nvme {
        volatile: bool,
    },
}

/// Opens a path to a disk.
///
/// # Errors
/// Unsupported, when the path is no whole disk of that kind; unreachable, when it cannot be opened.
pub fn open(path: &Path, protocol: Protocol) -> ReserveResult<Box<dyn DiskPath>> {
    Ok(match protocol {
        Protocol::Scsi => match multipath::paths_of(path) {
            Some(paths) => Box::new(Multipath::open(&paths)?),
            None => Box::new(Reservations::open(path)?),
        },
        Protocol::Nvme { volatile } => Box::new(nvme::NamespacePath::open(path, volatile)?),
    })
}

/// What it means that a key which is to be taken away is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// It never was, or it was taken away and everything has ended: there are no commands.
    Ended,
    /// It may have been preempted by somebody who did not hear that this was done. The commands may be under way.
    InDoubt,
}

/// A path to a disk with reservations: what SCSI calls an I_T nexus, or several of those to one disk ([`Multipath`]), and NVMe a host with
/// its controllers. All calls block.
pub trait DiskPath {
    /// Refuses a disk that cannot keep a former owner away through everything.
    ///
    /// # Errors
    /// Unsupported, with what is missing.
    fn check(&self) -> ReserveResult<()>;

    /// The names by which the disk knows this machine and tells it from others. Empty: it cannot be told.
    ///
    /// # Errors
    /// Those of the disk.
    fn known_as(&self) -> ReserveResult<Vec<String>>;

    /// Every registered key, once for each path that has it.
    ///
    /// # Errors
    /// Those of the disk. Keys are told all or not at all.
    fn keys(&self) -> ReserveResult<Vec<u64>>;

    /// The reservation, if there is one.
    ///
    /// # Errors
    /// Those of the disk.
    fn reservation(&self) -> ReserveResult<Option<Reservation>>;

    /// Registers `key` for this path, whatever key it has now; a reservation that it holds stays. It persists through a loss of power where the disk can.
    ///
    /// # Errors
    /// Those of the disk.
    fn register(&self, key: u64) -> ReserveResult<()>;

    /// Takes the key of this path away. A reservation that it holds ends.
    ///
    /// # Errors
    /// Conflict, when this path does not have the key.
    fn unregister(&self, key: u64) -> ReserveResult<()>;

    /// Makes this path the holder of the reservation.
    ///
    /// # Errors
    /// Conflict, when this path does not have `key`, or another one holds a reservation.
    fn reserve(&self, key: u64) -> ReserveResult<()>;

    /// Ends the reservation of this path; keys stay.
    ///
    /// # Errors
    /// Conflict, when this path does not have `key`.
    fn release(&self, key: u64) -> ReserveResult<()>;

    /// Takes away the reservation and all keys.
    ///
    /// # Errors
    /// Conflict, when this path does not have `key`.
    fn clear(&self, key: u64) -> ReserveResult<()>;

    /// Takes the key `victim` away from every path that has it, and ends the commands of those paths before it returns. If `victim`
    /// held the reservation, this path does from then on.
    ///
    /// # Errors
    /// Conflict, when this path does not have `key`, or nobody has `victim`.
    fn preempt_and_abort(&self, key: u64, victim: u64) -> ReserveResult<()>;

    /// Returns when no command of a path without a key is under way on the disk any more. `key` has to be registered for this path, whose own commands may
    /// end with an error.
    ///
    /// # Errors
    /// Those of the disk, and that it has no way to tell.
    fn settle(&self, key: u64) -> ReserveResult<()>;

    /// Ends the reservation of another type that a preempting of several steps leaves where it was cut off. `key` has to be registered for this
    /// path, and other keys of the cluster that are older may be taken away with it. Where it cannot be ended it stays.
    ///
    /// # Errors
    /// Those of the disk.
    fn mend(&self, _key: u64) -> ReserveResult<()> {
        Ok(())
    }

    /// Keeps `victim` from writing, and makes sure that its key is gone and its commands have ended. `key` has to be registered for this
    /// path.
    ///
    /// # Errors
    /// Why `victim` may still write.
    fn fence(&self, key: u64, victim: u64, absent: Absent) -> ReserveResult<()> {
        if key == victim {
            return Err(failed("a path cannot fence itself"));
        }
        let before = self.keys()?;
        if !before.contains(&key) {
            return Err(ReserveError::Conflict);
        }
        // A preempting takes the key away before it has ended the commands.
        match before.contains(&victim).then(|| self.preempt_and_abort(key, victim)) {
            Some(Ok(())) => {}
            // Sent again after it had happened, or another path did it meanwhile.
            Some(Err(ReserveError::Conflict)) => self.settle(key)?,
            Some(Err(e)) => return Err(e),
            None if absent == Absent::InDoubt => self.settle(key)?,
            None => {}
        }
        self.mend(key)?;
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
    fn protect(&self, key: u64) -> ReserveResult<u64> {
        self.mend(key)?;
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
    fn confirm(&self, key: u64) -> ReserveResult<()> {
        only_key(self, key)
    }
}

fn only_key(path: &(impl DiskPath + ?Sized), key: u64) -> ReserveResult<()> {
    let held = Reservation { key, kind: Kind::WriteExclusiveRegistrantsOnly };
    match (path.keys()?.iter().all(|k| *k == key), path.reservation()? == Some(held)) {
        (true, true) => Ok(()),
        _ => Err(ReserveError::Conflict),
    }
}

#[cfg(test)]
mod tests;
