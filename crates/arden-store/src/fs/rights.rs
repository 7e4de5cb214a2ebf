//! What an open may be used for: one table of the operations and the access that each takes, by [MS-FSA] 2.1.5 and
//! [MS-SMB2] 3.3.5.20 and 3.3.5.21. All operations of `fs` ask it, so that none can forget the share's permissions: an open
//! is granted nothing that the share withholds, and what an operation does to other files asks the share again.

use std::sync::atomic::Ordering;

use arden_auth::{access_for_change, access_for_query};
use arden_wire::access::*;

use super::Open;
use crate::error::StoreError;
use crate::store::Result;

/// What a client asks an open to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Data, 2.1.5.3; also as the source of a copy.
    Read,
    /// Data anywhere, 2.1.5.4; also as the target of a copy. Either right is enough, [MS-SMB2] 3.3.5.13 <364>.
    Write,
    /// Data that is there: zeros, shared blocks, sizes, 2.1.5.10.4, 2.1.5.10.21, 2.1.5.10.39, 2.1.5.15.1, 2.1.5.15.5.
    WriteOver,
    /// 2.1.5.7.
    Flush,
    /// 2.1.5.8 asks for nothing; here for what reads or writes.
    Lock,
    /// Allocated ranges, 2.1.5.10.22, and a token for data, 2.1.5.10.20.
    ReadData,
    /// 2.1.5.10.38. The right to append is enough, as peers have it.
    SetSparse,
    /// 2.1.5.10.33 and 2.1.5.10.34, which ask for nothing but what the control code says. A reader depends on it, so who sets it
    /// has to be allowed to change data or attributes.
    SetIntegrity,
    /// Snapshots of the stream and where it differs from one, 2.1.5.10.29.
    ListStreamSnapshots,
    /// 2.1.5.10.29.1.
    CreateStreamSnapshot,
    /// 2.1.5.10.29.4.
    RevertStream,
    /// Enumerating, 2.1.5.6.3, and watching, 2.1.5.11.
    List,
    /// 2.1.5.12.12.
    ReadEas,
    /// 2.1.5.15.6.
    WriteEas,
    /// 2.1.5.15.2.
    SetBasic,
    /// 2.1.5.15.14, and DELETE by [MS-SMB2] 3.3.5.21.1.
    SetShortName,
    /// 2.1.5.10.37 and 2.1.5.10.3; an object id, where 2.1.5.10.1 asks for nothing.
    SetReparse,
    /// 2.1.5.15.3 and 2.1.5.15.4.
    Delete,
    /// 2.1.5.15.12. The new name takes [`Operation::AddFile`] or [`Operation::AddDirectory`] too.
    Rename,
    /// 2.1.5.15.7: any open will do, its user has to be allowed FILE_WRITE_ATTRIBUTES by the descriptor.
    Link,
    /// A new name in another directory.
    AddFile,
    AddDirectory,
    /// Another file's name goes away.
    Replace,
    /// And that although it is read-only.
    ReplaceReadOnly,
    /// 2.1.5.14, of these parts.
    ReadSecurity(u32),
    /// 2.1.5.17, of these parts.
    ChangeSecurity(u32),
    /// Quotas and the change journal: a privilege decides, and the share.
    ManageVolume,
    /// FileFsControlInformation, [MS-SMB2] 3.3.5.21.2.
    SetVolumeControl,
}

/// Access that an operation takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Needs {
    /// One of these has to be granted; 0: none.
    any: u32,
    /// And all of these.
    all: u32,
    /// The share has to permit all of these.
    share: u32,
    /// Refused where nothing can be changed.
    changes: bool,
}

impl Operation {
    const fn needs(self) -> Needs {
        const WRITES: u32 = FILE_WRITE_DATA | FILE_APPEND_DATA;
        let read = Needs { any: 0, all: 0, share: 0, changes: false };
        let change = Needs { changes: true, ..read };
        match self {
            Operation::Read => Needs { any: FILE_READ_DATA | FILE_EXECUTE, ..read },
            Operation::Write => Needs { any: WRITES, ..change },
            Operation::WriteOver => Needs { any: FILE_WRITE_DATA, ..change },
            // What cannot be changed is refused after the access.
            Operation::Flush => Needs { any: WRITES, ..read },
            Operation::Lock => Needs { any: WRITES | FILE_READ_DATA | FILE_EXECUTE, ..read },
            Operation::ReadData => Needs { any: FILE_READ_DATA, ..read },
            Operation::SetSparse => Needs { any: WRITES | FILE_WRITE_ATTRIBUTES, ..change },
            Operation::ListStreamSnapshots => Needs { any: FILE_READ_ATTRIBUTES, ..read },
            Operation::CreateStreamSnapshot => Needs { any: FILE_WRITE_ATTRIBUTES, ..change },
            Operation::RevertStream => Needs { all: FILE_WRITE_ATTRIBUTES | FILE_WRITE_DATA, ..change },
            Operation::List => Needs { any: FILE_LIST_DIRECTORY, ..read },
            Operation::ReadEas => Needs { any: FILE_READ_EA, ..read },
            Operation::WriteEas => Needs { any: FILE_WRITE_EA, ..change },
            Operation::SetBasic => Needs { any: FILE_WRITE_ATTRIBUTES, ..change },
            Operation::SetShortName => Needs { any: FILE_WRITE_DATA | FILE_WRITE_ATTRIBUTES, all: DELETE, ..change },
            Operation::SetReparse | Operation::SetIntegrity => {
                Needs { any: FILE_WRITE_DATA | FILE_WRITE_ATTRIBUTES, ..change }
            }
            Operation::Delete | Operation::Rename => Needs { any: DELETE, ..change },
            Operation::Link => Needs { share: FILE_ADD_FILE | FILE_WRITE_ATTRIBUTES, ..change },
            Operation::AddFile => Needs { share: FILE_ADD_FILE, ..change },
            Operation::AddDirectory => Needs { share: FILE_ADD_SUBDIRECTORY, ..change },
            Operation::Replace => Needs { share: DELETE, ..change },
            Operation::ReplaceReadOnly => Needs { share: DELETE | FILE_WRITE_ATTRIBUTES, ..change },
            Operation::ReadSecurity(_) => read,
            Operation::ChangeSecurity(_) => change,
            Operation::ManageVolume => Needs { share: FILE_WRITE_DATA, ..change },
            Operation::SetVolumeControl => Needs { any: FILE_WRITE_DATA, share: FILE_WRITE_DATA, ..change },
        }
    }

    fn all_needs(self) -> Needs {
        let needs = self.needs();
        match self {
            Operation::ReadSecurity(parts) => Needs { all: access_for_query(parts), ..needs },
            // The privilege gives the right to the SACL; whether permissions may be changed is the share's to say.
            Operation::ChangeSecurity(parts) => {
                let all = access_for_change(parts);
                Needs { all, share: if all & ACCESS_SYSTEM_SECURITY != 0 { WRITE_DAC } else { 0 }, ..needs }
            }
            _ => needs,
        }
    }
}

impl Open {
    /// Whether this open may be used for it: `Closed`, `ReadOnly`, `AccessDenied`.
    pub fn check(&self, operation: Operation) -> Result<(), StoreError> {
        let needs = operation.all_needs();
        if needs.changes {
            self.fs.check_writable()?;
        }
        self.check_open()?;
        let granted = needs.any == 0 || self.granted & needs.any != 0;
        let permitted = self.share_permits() & needs.share == needs.share;
        if granted && self.granted & needs.all == needs.all && permitted {
            return Ok(());
        }
        Err(StoreError::AccessDenied)
    }

    /// The same for what only a data stream has; `WrongObject` for a directory.
    pub(super) fn check_data(&self, operation: Operation) -> Result<(), StoreError> {
        self.check_open()?;
        if self.directory {
            return Err(StoreError::WrongObject);
        }
        self.check(operation)
    }

    pub(super) fn check_open(&self) -> Result<(), StoreError> {
        if self.is_closed() { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// What the share that it was opened through lets its user have at most.
    pub fn share_permits(&self) -> u32 {
        self.share_permits.load(Ordering::Relaxed)
    }

    /// A client took the open up again, by a share that permits this.
    pub fn set_share_permits(&self, access: u32) {
        self.share_permits.store(access, Ordering::Relaxed);
    }
}
