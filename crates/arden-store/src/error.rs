//! Why a call of a store failed, named by blame and cause. Owns the text of each error, for logs and administrators. Refuses
//! protocols: each protocol has one table of its own from these errors to its statuses.
//!
//! A call that would have to wait has not failed: it is [`NotDone::WouldBlock`], not an error.

use std::fmt;

use arden_auth::AccessError;

/// What a call of a store answers. Calls that never have to wait say so: `Result<T, StoreError>`.
pub type Result<T, E = NotDone> = std::result::Result<T, E>;

/// Why a call of a store has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotDone {
    /// It would have to wait and must not (`Wait::No`, `RequestScope::must_not_wait`). Nothing has changed; the caller makes
    /// the call again where it may wait.
    WouldBlock,
    Failed(StoreError),
}

/// Whose doing an error is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The request is wrong in itself and fails whenever it is made again.
    Request,
    /// The caller is not allowed to.
    Caller,
    /// The state of the file, or another user of it, stands in the way.
    State,
    /// There is no room for more.
    Limit,
    /// The store is at fault.
    Store,
}

macro_rules! store_errors {
    ($($blame:ident: { $($(#[doc = $doc:literal])+ $name:ident => $text:literal,)+ })+) => {
        /// An error of a store. A new one goes into the group of its blame, with its text, and into the table of each protocol
        /// (`arden-smb/src/base/status.rs`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum StoreError {
            $($($(#[doc = $doc])+ $name,)+)+
        }

        impl StoreError {
            pub const ALL: &[StoreError] = &[$($(StoreError::$name,)+)+];

            pub fn blame(self) -> Blame {
                match self {
                    $($(StoreError::$name)|+ => Blame::$blame,)+
                }
            }

            /// For a log or an administrator; begins with a small letter.
            pub fn text(self) -> &'static str {
                match self {
                    $($(StoreError::$name => $text,)+)+
                }
            }
        }
    };
}

store_errors! {
    Request: {
        /// A number, flag or range of the request has no meaning here.
        InvalidParameter => "a parameter of the request is not valid",
        /// A name has characters that names must not have, or is too long.
        InvalidName => "the name is not valid",
        /// `..` leads above the root.
        PathAboveRoot => "the path leads above the root",
        /// The path has more names than a store of this kind goes down.
        PathTooDeep => "the path has too many names",
        /// This store, or what it stands on, does not offer the operation.
        NotSupported => "the store does not support this",
        /// The operation is for another kind of object: data of a directory, a directory's on a file.
        WrongObject => "the operation is not for this kind of object",
        /// A directory was asked for, or is needed, and the file is none.
        NotADirectory => "not a directory",
        /// Data was asked for, or is needed, and the file is a directory.
        IsADirectory => "is a directory",
        /// A directory is not moved into what lies below it.
        IntoItself => "a directory cannot be moved into itself",
        /// Both files of the operation have to be in one store and are not.
        NotSameVolume => "the files are not on the same volume",
        /// Too much would have to be counted to another quota at once.
        AcrossQuotas => "too much lies below to be moved between folders with quotas; copy it",
        /// A read begins at or behind the end of the file.
        EndOfFile => "the end of the file is reached",
        /// An offload write begins behind the valid data of the source.
        BeyondValidData => "behind the valid data of the file",
        /// One of several copies of the data was asked for, and there are no several.
        NotRedundant => "the volume keeps one copy of its data only",
        /// The file can have no offload read: it is encrypted or in another way special.
        OffloadReadUnsupported => "the file does not support offload reads",
        /// The same of offload writes.
        OffloadWriteUnsupported => "the file does not support offload writes",
        /// The token stands for nothing that its user may have: unknown, over, or another user's.
        InvalidToken => "the offload token is not valid",
        /// The store keeps no 8.3 names.
        ShortNamesDisabled => "the store keeps no 8.3 names",
        /// The tag is reserved or may not be set.
        InvalidReparseTag => "the reparse tag is not valid",
        /// The file has a reparse point with another tag.
        ReparseTagMismatch => "the reparse point has another tag",
        /// The file has a reparse point with the same tag and another owner's GUID.
        ReparseGuidMismatch => "the reparse point has another GUID",
        /// The reparse data is malformed or too long.
        InvalidReparseData => "the reparse data is not valid",
        /// An open came upon a reparse point whose tag nobody here follows.
        UnknownReparseTag => "nobody handles this reparse point",
        /// What has a reparse point takes no extended attributes.
        EasNotSupported => "a reparse point takes no extended attributes",
        /// An extended attribute has a name that such names must not be.
        InvalidEaName => "the name of an extended attribute is not valid",
        /// The range to lock goes over the end of all offsets.
        InvalidLockRange => "the range to lock is not valid",
        /// The open holds no such lock.
        NotLocked => "the range is not locked",
        /// The answer to a break takes a level that the break does not allow.
        InvalidBreakAck => "the answer to the break is not valid",
        /// The answer to a break of a lease asks for more than the break leaves.
        AckExceedsBreak => "the answer to the break asks for more than it leaves",
        /// A break is answered that nobody asked for.
        NoBreakUnderWay => "no break is under way",
        /// The open was closed.
        Closed => "the open is closed",
        /// A descriptor has to name a group and names none.
        InvalidDescriptor => "the security descriptor is not valid",
        /// An access list is longer than can be stored.
        InvalidAcl => "the access list is too long",
    }
    Caller: {
        /// The descriptor, the share or the open does not grant it to this caller.
        AccessDenied => "access denied",
        /// The file has the read-only attribute, which keeps it from being written or replaced.
        ReadOnlyFile => "the file is read-only",
        /// The root of a store is neither renamed nor deleted nor replaced.
        RootStays => "the root is not renamed, replaced or deleted",
        /// The store keeps files of its own under such names.
        ReservedName => "the name is reserved by the store",
        /// A device, a socket or a pipe: a store has none for its callers.
        SpecialFile => "neither a file nor a directory",
        /// Only a privilege allows it.
        PrivilegeNotHeld => "the user lacks the privilege for this",
        /// The descriptor names an owner that the caller may not give the file to.
        InvalidOwner => "the user may not give the file to this owner",
        /// The file is read-only, a root or of another kind that is not deleted.
        CannotDelete => "the file cannot be deleted",
        /// The volume, or its state of the past, is not changed by anybody.
        ReadOnly => "the volume is read-only",
    }
    State: {
        /// The last component of the path does not exist.
        NotFound => "not found",
        /// A directory on the way does not exist.
        PathNotFound => "a directory of the path is not found",
        /// The name is taken.
        NameCollision => "the name exists already",
        /// A directory does not make way for another name, nor does another file for a directory's.
        DirectoryInTheWay => "a directory is not replaced, and replaces nothing",
        /// The file whose name is to be taken over is open.
        TargetInUse => "the file to be replaced is in use",
        /// A directory is not renamed while something in it is open.
        OpensBelow => "something in the directory is in use",
        /// Another open does not share what is asked for.
        SharingViolation => "another open does not share the file",
        /// A lock of another open covers the range that is read or written.
        LockConflict => "a part of the range is locked",
        /// A lock is asked for at once that another one excludes.
        LockNotGranted => "the lock conflicts with another",
        /// The file goes with its last open, and is not opened until then.
        DeletePending => "the file is being deleted",
        /// The name or the file that the open had is gone.
        Deleted => "the file was deleted",
        /// There is something in the directory.
        DirectoryNotEmpty => "the directory is not empty",
        /// A persistent or durable open of a client that is away has the file.
        HeldByAbsentOwner => "an open of a client that is away keeps the file",
        /// No entry of the directory matches the pattern.
        NoMatchingEntry => "no name matches the pattern",
        /// The enumeration is at its end.
        NoMoreEntries => "no more entries",
        /// More changed than the watch holds, or than the reply has room for: the watcher enumerates again.
        ChangesLost => "more changed than could be kept",
        /// The watch ended with its open.
        WatchEnded => "the watch has ended",
        /// The file does not have what the operation is about.
        NoAttribute => "the file has no such attribute",
        /// The file has no reparse point.
        NotAReparsePoint => "not a reparse point",
        /// The user has no quota of their own.
        NoQuotaEntry => "the user has no quota",
        /// The volume keeps no change journal.
        NoChangeJournal => "the volume has no change journal",
        /// The change journal begins later.
        ChangesExpired => "the change journal does not reach back that far",
        /// The snapshot was deleted while somebody used it.
        SnapshotDeleted => "the snapshot was deleted",
    }
    Limit: {
        /// No space is left.
        DiskFull => "no room left on the volume",
        /// A quota leaves no room.
        QuotaExceeded => "a quota leaves no room",
        /// Descriptors, opens or handles are used up.
        TooManyOpens => "too many open files",
        /// The file has as many names as it can have.
        TooManyLinks => "the file has too many names",
        /// The file has as many streams as it can have.
        TooManyStreams => "the file has too many streams",
        /// Extended attributes are longer than can be stored.
        EaTooLarge => "the extended attributes are too large",
        /// Memory or another bounded resource is used up.
        InsufficientResources => "not enough resources",
    }
    Store: {
        /// The device could not read or write.
        DataError => "the device could not read or write data",
        /// What the store keeps about a file contradicts itself.
        Inconsistent => "what is stored about the file is damaged",
        /// Checksums tell that data is not what was written.
        Corrupt => "the data on the volume is damaged",
        /// The device does not answer, or failed.
        DeviceFailed => "the device failed",
        /// The volume stopped after a failed write.
        Stopped => "the volume stopped after a failed write; open it again",
        /// What lies on the device is no volume that this version reads.
        NotAVolume => "the device has no volume that can be read",
        /// What is kept of opens beyond the end of the daemon could not be read or written.
        HandlesFailed => "the handle store failed",
        /// The operating system failed in a way that has no name here.
        SystemError => "the operating system failed",
        /// State of Arden's own is not as it has to be.
        Internal => "internal error",
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for StoreError {}

impl fmt::Display for NotDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotDone::WouldBlock => f.write_str("the call would have to wait"),
            NotDone::Failed(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for NotDone {}

impl From<StoreError> for NotDone {
    fn from(e: StoreError) -> NotDone {
        NotDone::Failed(e)
    }
}

/// Whether it failed, and by this error.
impl PartialEq<StoreError> for NotDone {
    fn eq(&self, e: &StoreError) -> bool {
        *self == NotDone::Failed(*e)
    }
}

impl From<AccessError> for StoreError {
    fn from(e: AccessError) -> StoreError {
        match e {
            AccessError::AccessDenied => StoreError::AccessDenied,
            AccessError::PrivilegeNotHeld => StoreError::PrivilegeNotHeld,
            AccessError::InvalidOwner => StoreError::InvalidOwner,
            AccessError::NoGroup => StoreError::InvalidDescriptor,
            AccessError::AclTooLong => StoreError::InvalidAcl,
        }
    }
}

impl From<AccessError> for NotDone {
    fn from(e: AccessError) -> NotDone {
        StoreError::from(e).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_texts_of_their_own() {
        for (i, e) in StoreError::ALL.iter().enumerate() {
            assert!(e.text().starts_with(char::is_lowercase) && !e.text().ends_with('.'), "{e:?}");
            assert!(StoreError::ALL[..i].iter().all(|other| other.text() != e.text()), "{e:?}");
        }
    }
}
