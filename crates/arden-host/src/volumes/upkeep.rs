//! Operations on a volume as a whole: growing, repairing, deleting.

use arden_admin::{
    AdminError, ErrorKind,
    error::Result,
    volume::{AccessPolicy, NewRepair, ShortNamePolicy, VolumeChange, VolumeInfo, VolumeRepair},
};
use arden_volume::{FileDevice, LastAccess, ShortNames, Superblock};

use super::{Volumes, no_file, refusal};

/// Ten years.
const SCRUB_DAYS_MAX: u32 = 3650;

pub(super) fn policy(of: LastAccess) -> AccessPolicy {
    match of {
        LastAccess::Never => AccessPolicy::Never,
        LastAccess::Relative => AccessPolicy::Relative,
        LastAccess::Always => AccessPolicy::Always,
    }
}

pub(super) fn short_policy(of: ShortNames) -> ShortNamePolicy {
    match of {
        ShortNames::Made => ShortNamePolicy::Made,
        ShortNames::Kept => ShortNamePolicy::Kept,
        ShortNames::Off => ShortNamePolicy::Off,
    }
}

impl Volumes {
    pub(super) fn check_unshared(&self, name: &str) -> Result<()> {
        match self.shares_of(name).first() {
            None => Ok(()),
            Some(share) => Err(AdminError::new(
                ErrorKind::Conflict,
                format!("share {share:?} is on volume {name:?}"),
                format!("`arden share remove {share}` first"),
            )),
        }
    }

    pub(super) fn change(&self, name: &str, change: &VolumeChange) -> Result<VolumeInfo> {
        let record = self.record(name)?;
        let (volume, _) = Volumes::volume(self, name)?;
        if change.size_bytes.is_some() && (!change.grow || record.file.is_none()) {
            return Err(AdminError::invalid(
                "a size is for growing a volume on a file",
                "`arden space grow` makes a space larger; then `arden volume grow` without --size",
            ));
        }
        if change.scrub_days.is_some_and(|days| days > SCRUB_DAYS_MAX) {
            return Err(AdminError::invalid(
                format!("volumes are scrubbed at least every {SCRUB_DAYS_MAX} days, or not at all"),
                "say a number of days; 0 for none",
            ));
        }
        if change.grow {
            if let (Some(size), Some(path)) = (change.size_bytes, &record.file) {
                if size < volume.superblock().size_blocks * arden_block::BLOCK_BYTES {
                    return Err(AdminError::invalid(
                        format!("volume {name:?} is larger than that already"),
                        "a volume is never made smaller",
                    ));
                }
                FileDevice::lengthen(path, size).map_err(|e| no_file(path, e))?;
            }
            volume.grow().map_err(|e| refusal(&record.device(), e))?;
        }
        let wanted = change.last_access.map(|p| match p {
            AccessPolicy::Never => LastAccess::Never,
            AccessPolicy::Relative => LastAccess::Relative,
            AccessPolicy::Always => LastAccess::Always,
        });
        if let Some(wanted) = wanted {
            volume.set_last_access(wanted).map_err(|e| refusal(&record.device(), e))?;
        }
        let wanted = change.short_names.map(|p| match p {
            ShortNamePolicy::Made => ShortNames::Made,
            ShortNamePolicy::Kept => ShortNames::Kept,
            ShortNamePolicy::Off => ShortNames::Off,
        });
        if let Some(wanted) = wanted {
            volume.set_short_names(wanted).map_err(|e| refusal(&record.device(), e))?;
        }
        if let Some(days) = change.scrub_days {
            self.set_scrub_days(name, days)?;
        }
        Ok(self.info(&self.record(name)?))
    }

    pub(super) fn repair(&self, name: &str, repair: &NewRepair) -> Result<VolumeRepair> {
        let (volume, _) = Volumes::volume(self, name)?;
        let report = volume.repair(repair.dry_run).map_err(|e| refusal(name, e))?;
        Ok(VolumeRepair { done: report.done, left: report.left })
    }

    /// Deletes a volume, also one that can no longer be opened.
    pub(super) fn delete(&self, name: &str) -> Result<()> {
        let record = self.record(name)?;
        self.check_unshared(name)?;
        let (opened, leaving) = self.take_out(name)?;
        self.end_scrub(name);
        match opened {
            Some(open) => open.volume.destroy(),
            None => {
                let (device, pool) = self.device_and_pool(&record, None)?;
                self.check_own(&record, pool, &*device)?;
                Superblock::wipe(&*device)
            }
        }
        .map_err(|e| refusal(&record.device(), e))?;
        self.forget_record(&leaving, name)
    }
}
