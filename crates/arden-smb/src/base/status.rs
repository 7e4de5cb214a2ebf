//! The status that a client sees for each error of a store: one table, [MS-ERREF] 2.3.1. Owns no error of its own.

use arden_store::error::{NotDone, StoreError};
use arden_wire::NtStatus;

/// [MS-FSCC] and [MS-FSA] name these for offload only.
const OFFLOAD_READ_FILE_NOT_SUPPORTED: NtStatus = NtStatus(0xC000_A2A3);
const OFFLOAD_WRITE_FILE_NOT_SUPPORTED: NtStatus = NtStatus(0xC000_A2A4);
const BEYOND_VDL: NtStatus = NtStatus(0xC000_0432);
const INVALID_TOKEN: NtStatus = NtStatus(0xC000_0465);
/// [MS-FSA] 2.1.5.15.14.
const SHORT_NAMES_NOT_ENABLED_ON_VOLUME: NtStatus = NtStatus(0xC000_019F);

/// The table: no other place makes a status of an error of a store.
pub fn of_error(e: StoreError) -> NtStatus {
    match e {
        StoreError::InvalidParameter => NtStatus::INVALID_PARAMETER,
        StoreError::InvalidName => NtStatus::OBJECT_NAME_INVALID,
        StoreError::PathAboveRoot => NtStatus::OBJECT_PATH_SYNTAX_BAD,
        StoreError::PathTooDeep => NtStatus::NAME_TOO_LONG,
        StoreError::NotSupported => NtStatus::NOT_SUPPORTED,
        StoreError::WrongObject => NtStatus::INVALID_DEVICE_REQUEST,
        StoreError::NotADirectory => NtStatus::NOT_A_DIRECTORY,
        StoreError::IsADirectory => NtStatus::FILE_IS_A_DIRECTORY,
        StoreError::NotSameVolume | StoreError::AcrossQuotas => NtStatus::NOT_SAME_DEVICE,
        StoreError::EndOfFile => NtStatus::END_OF_FILE,
        StoreError::BeyondValidData => BEYOND_VDL,
        StoreError::NotRedundant => NtStatus::NOT_REDUNDANT_STORAGE,
        StoreError::OffloadReadUnsupported => OFFLOAD_READ_FILE_NOT_SUPPORTED,
        StoreError::InvalidToken => INVALID_TOKEN,
        StoreError::ShortNamesDisabled => SHORT_NAMES_NOT_ENABLED_ON_VOLUME,
        StoreError::OffloadWriteUnsupported => OFFLOAD_WRITE_FILE_NOT_SUPPORTED,
        StoreError::InvalidReparseTag => NtStatus::IO_REPARSE_TAG_INVALID,
        StoreError::ReparseTagMismatch => NtStatus::IO_REPARSE_TAG_MISMATCH,
        StoreError::ReparseGuidMismatch => NtStatus::REPARSE_ATTRIBUTE_CONFLICT,
        StoreError::InvalidReparseData => NtStatus::IO_REPARSE_DATA_INVALID,
        StoreError::UnknownReparseTag => NtStatus::IO_REPARSE_TAG_NOT_HANDLED,
        StoreError::EasNotSupported => NtStatus::EAS_NOT_SUPPORTED,
        StoreError::InvalidEaName => NtStatus::INVALID_EA_NAME,
        StoreError::InvalidLockRange => NtStatus::INVALID_LOCK_RANGE,
        StoreError::NotLocked => NtStatus::RANGE_NOT_LOCKED,
        StoreError::InvalidBreakAck => NtStatus::INVALID_OPLOCK_PROTOCOL,
        StoreError::AckExceedsBreak => NtStatus::REQUEST_NOT_ACCEPTED,
        StoreError::Closed => NtStatus::FILE_CLOSED,
        StoreError::InvalidDescriptor => NtStatus::INVALID_SECURITY_DESCR,
        StoreError::InvalidAcl => NtStatus::INVALID_ACL,
        StoreError::AccessDenied
        | StoreError::ReadOnlyFile
        | StoreError::RootStays
        | StoreError::ReservedName
        | StoreError::SpecialFile
        | StoreError::IntoItself
        | StoreError::DirectoryInTheWay
        | StoreError::TargetInUse
        | StoreError::OpensBelow => NtStatus::ACCESS_DENIED,
        StoreError::PrivilegeNotHeld => NtStatus::PRIVILEGE_NOT_HELD,
        StoreError::InvalidOwner => NtStatus::INVALID_OWNER,
        StoreError::CannotDelete => NtStatus::CANNOT_DELETE,
        StoreError::ReadOnly => NtStatus::MEDIA_WRITE_PROTECTED,
        StoreError::NotFound => NtStatus::OBJECT_NAME_NOT_FOUND,
        StoreError::PathNotFound => NtStatus::OBJECT_PATH_NOT_FOUND,
        StoreError::NameCollision => NtStatus::OBJECT_NAME_COLLISION,
        StoreError::SharingViolation => NtStatus::SHARING_VIOLATION,
        StoreError::LockConflict => NtStatus::FILE_LOCK_CONFLICT,
        StoreError::LockNotGranted => NtStatus::LOCK_NOT_GRANTED,
        StoreError::DeletePending => NtStatus::DELETE_PENDING,
        StoreError::Deleted => NtStatus::FILE_DELETED,
        StoreError::DirectoryNotEmpty => NtStatus::DIRECTORY_NOT_EMPTY,
        StoreError::HeldByAbsentOwner => NtStatus::FILE_NOT_AVAILABLE,
        StoreError::NoMatchingEntry => NtStatus::NO_SUCH_FILE,
        StoreError::NoMoreEntries => NtStatus::NO_MORE_FILES,
        StoreError::ChangesLost => NtStatus::NOTIFY_ENUM_DIR,
        StoreError::WatchEnded => NtStatus::NOTIFY_CLEANUP,
        StoreError::NoAttribute => NtStatus::NOT_FOUND,
        StoreError::NotAReparsePoint => NtStatus::NOT_A_REPARSE_POINT,
        StoreError::NoQuotaEntry => NtStatus::NO_MATCH,
        StoreError::NoChangeJournal => NtStatus::JOURNAL_NOT_ACTIVE,
        StoreError::ChangesExpired => NtStatus::JOURNAL_ENTRY_DELETED,
        StoreError::SnapshotDeleted => NtStatus::VOLUME_DISMOUNTED,
        StoreError::DiskFull | StoreError::QuotaExceeded => NtStatus::DISK_FULL,
        StoreError::TooManyOpens => NtStatus::TOO_MANY_OPENED_FILES,
        StoreError::TooManyLinks => NtStatus::TOO_MANY_LINKS,
        StoreError::TooManyStreams => NtStatus::FILE_SYSTEM_LIMITATION,
        StoreError::EaTooLarge => NtStatus::EA_TOO_LARGE,
        StoreError::InsufficientResources => NtStatus::INSUFFICIENT_RESOURCES,
        StoreError::DataError | StoreError::Inconsistent => NtStatus::DATA_ERROR,
        StoreError::Corrupt => NtStatus::CRC_ERROR,
        StoreError::DeviceFailed | StoreError::Stopped | StoreError::NotAVolume => NtStatus::INVALID_DEVICE_STATE,
        StoreError::HandlesFailed | StoreError::SystemError | StoreError::NoBreakUnderWay => NtStatus::UNSUCCESSFUL,
        StoreError::Internal => NtStatus::INTERNAL_ERROR,
    }
}

/// For a call that is not made again: one that would have to wait has the status of a request that waits.
pub fn of(e: NotDone) -> NtStatus {
    match e {
        NotDone::WouldBlock => NtStatus::PENDING,
        NotDone::Failed(e) => of_error(e),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Notifications have two that are success codes, and two that are warnings.
    const NOT_ERRORS: [StoreError; 4] =
        [StoreError::ChangesLost, StoreError::WatchEnded, StoreError::NoMoreEntries, StoreError::InvalidEaName];

    /// Errors that a client cannot tell apart.
    const SHARED: [&[StoreError]; 6] = [
        &[
            StoreError::AccessDenied,
            StoreError::ReadOnlyFile,
            StoreError::RootStays,
            StoreError::ReservedName,
            StoreError::SpecialFile,
            StoreError::IntoItself,
            StoreError::DirectoryInTheWay,
            StoreError::TargetInUse,
            StoreError::OpensBelow,
        ],
        &[StoreError::NotSameVolume, StoreError::AcrossQuotas],
        &[StoreError::DiskFull, StoreError::QuotaExceeded],
        &[StoreError::DataError, StoreError::Inconsistent],
        &[StoreError::DeviceFailed, StoreError::Stopped, StoreError::NotAVolume],
        &[StoreError::HandlesFailed, StoreError::SystemError, StoreError::NoBreakUnderWay],
    ];

    #[test]
    fn every_error_of_a_store_has_a_status_that_tells_it_from_the_others() {
        let mut seen: BTreeMap<u32, Vec<StoreError>> = BTreeMap::new();
        for &e in StoreError::ALL {
            let status = of_error(e);
            assert_eq!(status.is_error(), !NOT_ERRORS.contains(&e), "{e:?}");
            assert_ne!(status, NtStatus::SUCCESS, "{e:?}");
            assert_ne!(status, NtStatus::PENDING, "{e:?} is no wait");
            assert_eq!(of(NotDone::Failed(e)), status);
            seen.entry(status.0).or_default().push(e);
        }
        for same in seen.values().filter(|same| same.len() > 1) {
            let known = SHARED.iter().any(|s| s.len() == same.len() && s.iter().all(|e| same.contains(e)));
            assert!(known, "{same:?}");
        }
    }

    #[test]
    fn a_call_that_would_have_to_wait_has_not_failed() {
        assert_eq!(of(NotDone::WouldBlock), NtStatus::PENDING);
    }
}
