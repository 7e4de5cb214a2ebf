//! What can go wrong with a pool, by blame.

use std::fmt;

use arden_block::IoError;

/// The answer of a pool or space.
pub type SpaceResult<T> = Result<T, SpaceError>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpaceError {
    /// The caller asked for something that a rule forbids; the text says which and how to meet it.
    Refused(String),
    /// Offset or length is not a multiple of 4096 or past the end.
    BadRange,
    /// No slab is free on enough disks, or the pool map has no room for another group.
    OutOfSpace,
    /// More disks are away than the layout tolerates; nothing was changed.
    Offline,
    /// The data cannot be read from any copy, or no copy satisfies the verifier.
    Unreadable,
    /// A device answered with this and the layout has no redundancy.
    Device(IoError),
    /// No label of a pool was found, or too few disks of it.
    NotFound(String),
    /// A structure on disk is damaged or of a newer version.
    Corrupt(String),
    /// Two parts of the pool were opened apart; merging needs a decision.
    Diverged(String),
    /// A label bears this epoch, which nobody who may open the pool was given: another owner wrote. Nothing was written.
    LaterEpoch(u64),
    /// The labels name this cluster, and who wants to open the pool is no node of it. Nothing was written.
    OfCluster(u128),
    /// The pool was closed, or lost its last disk.
    Closed,
    /// A long piece of work was stopped by the caller.
    Cancelled,
}

impl fmt::Display for SpaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpaceError::Refused(s) => write!(f, "{s}"),
            SpaceError::BadRange => f.write_str("offset or length is not a multiple of 4096, or past the end"),
            SpaceError::OutOfSpace => {
                f.write_str("the pool has no free slabs on enough disks, or no room in its map for more")
            }
            SpaceError::Offline => f.write_str("more disks are missing than the layout tolerates"),
            SpaceError::Unreadable => f.write_str("no copy could be read"),
            SpaceError::Device(e) => write!(f, "device: {e}"),
            SpaceError::NotFound(s) | SpaceError::Corrupt(s) | SpaceError::Diverged(s) => f.write_str(s),
            SpaceError::LaterEpoch(e) => write!(f, "a label of the pool has epoch {e}, of an owner that is not known"),
            SpaceError::OfCluster(id) => {
                write!(f, "the pool belongs to the cluster {id:032x}, whose nodes may write to it")
            }
            SpaceError::Closed => f.write_str("the pool is closed"),
            SpaceError::Cancelled => f.write_str("stopped"),
        }
    }
}

impl std::error::Error for SpaceError {}

impl From<IoError> for SpaceError {
    fn from(e: IoError) -> SpaceError {
        match e {
            IoError::Misaligned | IoError::OutOfRange => SpaceError::BadRange,
            other => SpaceError::Device(other),
        }
    }
}

/// What a space answers where it stands for a device.
impl From<SpaceError> for IoError {
    fn from(e: SpaceError) -> IoError {
        match e {
            SpaceError::BadRange => IoError::OutOfRange,
            SpaceError::OutOfSpace => IoError::NoSpace,
            SpaceError::Device(e) => e,
            SpaceError::Closed | SpaceError::Offline | SpaceError::NotFound(_) => IoError::Gone,
            _ => IoError::Media,
        }
    }
}
