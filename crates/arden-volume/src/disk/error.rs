//! What goes wrong in a volume, by blame. Becomes a `StoreError` once, where a caller of the store sees it.

use std::fmt;

use arden_block::IoError;
use arden_store::error::{NotDone, StoreError};
use arden_wire::Malformed;

pub type VolResult<T> = Result<T, VolError>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolError {
    /// The device failed.
    Io(IoError),
    /// What lies on the device is not what was written there.
    Corrupt(&'static str),
    /// No room left.
    Full,
    /// An earlier write failed: what is in memory is ahead of the device, so nothing more is changed.
    Failed,
    /// Not a volume.
    Unknown(&'static str),
    /// A volume of a later version, or with features of one.
    Later,
    /// There is no change journal.
    NoJournal,
    /// The change journal does not have this any more.
    NoRecord,
    /// A quota leaves no room.
    OverQuota,
    /// Too much would have to be moved at once between folders with quotas.
    TooFar,
    /// More directories above it than anybody goes up.
    TooDeep,
    /// The caller asked for what a volume cannot hold.
    Refused(&'static str),
}

impl fmt::Display for VolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VolError::Io(e) => write!(f, "{e}"),
            VolError::Corrupt(what) => write!(f, "damaged: {what}"),
            VolError::Full => f.write_str("no room left on the volume"),
            VolError::Later => f.write_str("a volume of a later version of arden"),
            VolError::NoJournal => f.write_str("the volume has no change journal"),
            VolError::NoRecord => f.write_str("the change journal does not reach back that far"),
            VolError::OverQuota => f.write_str("a quota leaves no room"),
            VolError::TooFar => f.write_str("too much lies below to be moved between folders with quotas; copy it"),
            VolError::TooDeep => f.write_str("too many directories above it; move some of them up"),
            VolError::Failed => f.write_str("the volume stopped after a failed write; open it again"),
            VolError::Unknown(what) | VolError::Refused(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for VolError {}

/// The error that the log was told of last by a thread that tries again and again. A pool that has ended, or a volume without room, may stay
/// so until the volume is closed.
#[derive(Default)]
pub struct LastError(Option<VolError>);

impl LastError {
    /// Takes what came of another try, `None` being success. Whether the log is to be told: it is another error than the last time.
    pub fn is_new(&mut self, now: Option<VolError>) -> bool {
        std::mem::replace(&mut self.0, now) != now && now.is_some()
    }
}

impl From<IoError> for VolError {
    fn from(e: IoError) -> VolError {
        VolError::Io(e)
    }
}

impl From<Malformed> for VolError {
    fn from(e: Malformed) -> VolError {
        VolError::Corrupt(e.0)
    }
}

impl From<VolError> for StoreError {
    fn from(e: VolError) -> StoreError {
        match e {
            VolError::Full | VolError::Io(IoError::NoSpace) => StoreError::DiskFull,
            VolError::OverQuota => StoreError::QuotaExceeded,
            VolError::NoJournal => StoreError::NoChangeJournal,
            VolError::NoRecord => StoreError::ChangesExpired,
            VolError::TooFar => StoreError::AcrossQuotas,
            VolError::TooDeep => StoreError::PathTooDeep,
            VolError::Io(IoError::Media) => StoreError::DataError,
            VolError::Corrupt(what) => {
                tracing::error!("volume: {what}");
                StoreError::Corrupt
            }
            VolError::Io(IoError::ReadOnly) => StoreError::ReadOnly,
            VolError::Refused(_) => StoreError::InvalidParameter,
            VolError::Io(_) => StoreError::DeviceFailed,
            VolError::Failed => StoreError::Stopped,
            VolError::Unknown(_) | VolError::Later => StoreError::NotAVolume,
        }
    }
}

impl From<VolError> for NotDone {
    fn from(e: VolError) -> NotDone {
        StoreError::from(e).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_stays_is_told_of_once() {
        let (mut last, gone, full) = (LastError::default(), Some(VolError::Io(IoError::Gone)), Some(VolError::Full));
        let told = [None, gone, gone, full, gone, None, gone].map(|now| last.is_new(now));
        assert_eq!(told, [false, true, false, true, true, false, true]);
    }
}
