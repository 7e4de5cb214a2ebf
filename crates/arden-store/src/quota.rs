//! Quotas in NT terms, for stores that keep them: what [MS-FSA] 2.1.1.1 calls QuotaInformation, the allocation of all
//! files by the owner of their descriptors, with a threshold that is logged and a limit that is not passed.

use arden_wire::{FileTime, dtyp::Sid};

use crate::changed_by::ChangedBy;
use crate::error::StoreError;
use crate::store::Result;

/// No threshold, or no limit.
pub const NONE: u64 = u64::MAX;

/// FILE_VC_* of [MS-FSCC] 2.5.2.
pub mod control {
    pub const TRACK: u32 = 0x1;
    pub const ENFORCE: u32 = 0x2;
    pub const CONTENT_INDEX_DISABLED: u32 = 0x8;
    pub const LOG_THRESHOLD: u32 = 0x10;
    pub const LOG_LIMIT: u32 = 0x20;
    pub const LOG_VOLUME_THRESHOLD: u32 = 0x40;
    pub const LOG_VOLUME_LIMIT: u32 = 0x80;
    /// What is kept when it is set; the others say how far counting is.
    pub const SETTABLE: u32 =
        TRACK | ENFORCE | CONTENT_INDEX_DISABLED | LOG_THRESHOLD | LOG_LIMIT | LOG_VOLUME_THRESHOLD | LOG_VOLUME_LIMIT;
}

/// DefaultQuotaThreshold, DefaultQuotaLimit and VolumeQuotaState.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaControl {
    pub threshold: u64,
    pub limit: u64,
    /// [`control`] bits.
    pub flags: u32,
}

impl Default for QuotaControl {
    fn default() -> Self {
        QuotaControl { threshold: NONE, limit: NONE, flags: 0 }
    }
}

impl QuotaControl {
    /// [MS-FSCC] 2.5.2: tracking alone goes before enforcing.
    pub fn enforces(&self) -> bool {
        self.flags & (control::TRACK | control::ENFORCE) == control::ENFORCE
    }
}

/// What an account, or a folder, has and may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    pub changed: FileTime,
    pub used_bytes: u64,
    pub threshold: u64,
    pub limit: u64,
}

impl Default for Quota {
    fn default() -> Self {
        Quota { changed: FileTime(0), used_bytes: 0, threshold: NONE, limit: NONE }
    }
}

/// Ordered by the bytes of the SIDs, so that an enumeration in parts has a place.
pub trait QuotaStore: Send + Sync {
    fn control(&self) -> Result<QuotaControl, StoreError>;
    fn set_control(&self, by: ChangedBy, control: &QuotaControl) -> Result<(), StoreError>;
    fn users(&self) -> Result<Vec<(Sid, Quota)>, StoreError>;
    fn user(&self, sid: &Sid) -> Result<Option<Quota>, StoreError>;
    /// Threshold and limit; what is used is counted.
    fn set_user(&self, by: ChangedBy, sid: &Sid, threshold: u64, limit: u64) -> Result<(), StoreError>;
    /// `NoQuotaEntry` when there is none. One who owns files keeps an entry without a limit.
    fn remove_user(&self, by: ChangedBy, sid: &Sid) -> Result<(), StoreError>;
}
