//! Metadata through an open: basic information, security, EAs, streams, reparse points, object ids. Each with
//! the access it takes, [MS-FSA] 2.1.5.10, 2.1.5.12, 2.1.5.14, 2.1.5.15 and 2.1.5.17.

use std::sync::{Arc, atomic::Ordering};

use arden_auth::{access_for_change, change_descriptor};
use arden_wire::{FileTime, access::*, dtyp::SecurityDescriptor, fscc::reparse_guid_bytes};

use super::{BasicInformation, Fs, Open, OpenStat, Operation, notify_filter};
use crate::{
    commit::{Cause, CommitScope},
    error::StoreError,
    scope::RequestScope,
    store::{BasicUpdate, ChangeKind, Ea, Node, Result, StreamEntry},
    table::effects::Effects,
};

/// FILE_NEED_EA, [MS-FSCC] 2.4.16: who does not know of extended attributes may not open the file.
pub(super) const NEED_EA: u8 = 0x80;
/// So many streams or EAs take as long to be listed as a request by a handle.
const LISTED_PER_WEIGHT: usize = 16;
/// Likewise entries of a descriptor.
const ACES_PER_WEIGHT: usize = 64;
/// Likewise bytes of EAs that are stored.
const EA_BYTES_PER_WEIGHT: usize = 4096;

impl Fs {
    /// The store's answer, and what a pending delete changes in it.
    pub fn stat(&self, open: &Arc<Open>) -> Result<OpenStat> {
        let mut stat = open.node.stat()?;
        self.show_write_time(open, &mut stat);
        let mut delete_pending = false;
        if self.table.deletes_pending.load(Ordering::Acquire) > 0 {
            let inner = open.file.lock();
            // [MS-FSA] 2.1.5.12.27: of the stream, or of the name that it was opened by.
            delete_pending = inner.is_to_go(open);
            let to_go = inner.deletes.iter().filter(|d| d.going.is_none()).count();
            stat.links = stat.links.saturating_sub(to_go as u32);
        }
        Ok(OpenStat { stat, delete_pending })
    }

    /// Room as the opener sees it, [MS-FSA] 2.1.5.13.7.
    pub fn space(&self, open: &Arc<Open>) -> Result<crate::store::SpaceInfo> {
        self.store.space_for(&open.who.user, &*open.node)
    }

    /// [`Fs::path`] for who may know it: an id leads to a file without its directories, and only FILE_TRAVERSE
    /// tells them, [MS-FSA] 2.1.5.12.30.
    pub fn path_told(&self, open: &Arc<Open>) -> Result<String> {
        if !self.may_know_name(open) {
            return Err(StoreError::AccessDenied.into());
        }
        Ok(self.path(open))
    }

    /// Whether the opener may know where the file is, and by what name.
    pub fn may_know_name(&self, open: &Open) -> bool {
        open.options & OPT_OPEN_BY_FILE_ID == 0 || open.has(FILE_TRAVERSE)
    }

    /// Relative to the share's root with backslashes, the stream included.
    pub fn path(&self, open: &Arc<Open>) -> String {
        let mut path = crate::table::notify::join(&open.node.path());
        if open.stream().is_some() {
            path.push(':');
            path.push_str(open.file.lock().at(open.stream_no).name.as_deref().unwrap_or_default());
        }
        path
    }

    /// FileBasicInformation, [MS-FSA] 2.1.5.15.2.
    pub fn set_basic(&self, open: &Arc<Open>, info: &BasicInformation, cause: Cause<'_>) -> Result<()> {
        self.table.saw(cause.now);
        open.check(Operation::SetBasic)?;
        let times = [info.creation, info.last_access, info.last_write, info.change];
        if times.iter().any(|t| *t < -2) {
            return Err(StoreError::InvalidParameter.into());
        }
        self.settle_write_time(cause.scope, open);
        let current = open.node.stat()?;
        let mut update = BasicUpdate::default();
        let mut filter = 0;
        if info.attributes != 0 {
            let directory = info.attributes & ATTR_DIRECTORY != 0;
            if (directory && !current.directory) || (current.directory && info.attributes & ATTR_TEMPORARY != 0) {
                return Err(StoreError::InvalidParameter.into());
            }
            // The root of a volume is neither hidden nor the system's, unless it has been.
            let kept = if open.node.path().is_empty() { ATTR_HIDDEN | ATTR_SYSTEM } else { 0 };
            update.attributes = Some(info.attributes & ATTR_SETTABLE & !kept | current.attributes & kept);
            filter |= notify_filter::ATTRIBUTES;
        }
        let given = |t: i64| (t > 0).then_some(FileTime(t as u64));
        update.creation = given(info.creation);
        update.last_access = given(info.last_access);
        update.last_write = given(info.last_write);
        update.change = given(info.change);
        filter |= if update.creation.is_some() { notify_filter::CREATION } else { 0 };
        filter |= if update.last_access.is_some() { notify_filter::LAST_ACCESS } else { 0 };
        filter |= if update.last_write.is_some() { notify_filter::LAST_WRITE } else { 0 };
        {
            let mut held = open.times.lock();
            hold(&mut held.last_write, info.last_write);
            held.last_write_moves |= info.last_write == -2;
            hold(&mut held.last_access, info.last_access);
            hold(&mut held.change, info.change);
            if update != BasicUpdate::default() && update.change.is_none() && held.change {
                update.change = Some(current.change);
            }
        }
        if update == BasicUpdate::default() {
            return Ok(());
        }
        open.node.set_basic(cause.scope.changes(open), &update)?;
        if update.attributes.is_some() {
            open.wrote.store(false, Ordering::Relaxed);
        }
        // No filter is of a change time; who caches the directory hears of it all the same.
        if filter != 0 || given(info.change).is_some() {
            self.report_open(cause.scope, open, ChangeKind::Modified, filter);
        }
        Ok(())
    }

    /// The parts that `info` ([`super::security_info`]) names; the others are None.
    pub fn security(&self, open: &Arc<Open>, info: u32) -> Result<Arc<SecurityDescriptor>> {
        open.check(Operation::ReadSecurity(info))?;
        Ok(Arc::new(descriptor_of(&*open.node)?.select(info)))
    }

    /// [MS-FSA] 2.1.5.17.
    pub fn set_security(&self, open: &Arc<Open>, info: u32, sd: &SecurityDescriptor, cause: Cause<'_>) -> Result<()> {
        self.table.saw(cause.now);
        open.check(Operation::ChangeSecurity(info))?;
        if access_for_change(info) == 0 {
            return Ok(());
        }
        let changed = change_descriptor(&*descriptor_of(&*open.node)?, sd, info, &open.who)?;
        open.node.set_security(cause.scope.changes(open), &changed)?;
        self.set_archive(cause.scope, open, false);
        self.report_open(cause.scope, open, ChangeKind::Modified, notify_filter::SECURITY);
        Ok(())
    }

    /// What a backup looks for, after a change that sets it: of files, or of directories too. Best effort, as the change is done.
    pub(super) fn set_archive(&self, scope: &CommitScope, open: &Open, directories: bool) {
        if let Ok(stat) = open.node.stat()
            && stat.attributes & ATTR_ARCHIVE == 0
            && (directories || !stat.directory)
        {
            let attributes = Some(stat.attributes & ATTR_SETTABLE | ATTR_ARCHIVE);
            let update = BasicUpdate { attributes, ..BasicUpdate::default() };
            let _ = open.node.set_basic(scope.changes(open), &update);
        }
    }

    pub fn eas(&self, open: &Arc<Open>) -> Result<Vec<Ea>> {
        open.check(Operation::ReadEas)?;
        weighed(open.node.eas()?)
    }

    pub fn set_eas(&self, scope: &CommitScope, open: &Arc<Open>, eas: &[Ea]) -> Result<()> {
        open.check(Operation::WriteEas)?;
        // [MS-FSA] 2.1.5.15.6.
        if open.node.stat()?.attributes & ATTR_REPARSE_POINT != 0 {
            return Err(StoreError::EasNotSupported.into());
        }
        if eas.iter().any(|ea| !matches!(ea.flags, 0 | NEED_EA)) {
            return Err(StoreError::InvalidEaName.into());
        }
        // They are changed as one list.
        RequestScope::weigh(open.node.stat()?.ea_size as usize / EA_BYTES_PER_WEIGHT);
        open.node.set_eas(scope.changes(open), eas)?;
        self.set_archive(scope, open, true);
        self.report_open(scope, open, ChangeKind::Modified, notify_filter::EA | notify_filter::ATTRIBUTES);
        Ok(())
    }

    /// FileAlternateNameInformation, [MS-FSA] 2.1.5.12.4.
    ///
    /// # Errors
    /// `NotFound` where the name has no 8.3 name.
    pub fn short_name(&self, open: &Arc<Open>) -> Result<String> {
        Ok(open.node.short_name()?.ok_or(StoreError::NotFound)?)
    }

    pub fn streams(&self, open: &Arc<Open>) -> Result<Vec<StreamEntry>> {
        streams_of(&*open.node)
    }

    /// The tag of a reparse point, and what follows the header of its buffer: for the tags of other vendors their GUID first,
    /// [MS-FSCC] 2.1.2.3.
    pub fn reparse(&self, open: &Arc<Open>) -> Result<(u32, Vec<u8>)> {
        open.node.reparse()
    }

    /// FSCTL_SET_REPARSE_POINT, [MS-FSA] 2.1.5.10.37. `data` is as [`Fs::reparse`] tells it.
    pub fn set_reparse(&self, scope: &CommitScope, open: &Arc<Open>, tag: u32, data: &[u8]) -> Result<()> {
        open.check(Operation::SetReparse)?;
        let guid = reparse_owner(tag, data)?;
        if open.directory && !open.node.is_empty_directory()? {
            return Err(StoreError::DirectoryNotEmpty.into());
        }
        if let Ok(there) = open.node.reparse() {
            check_reparse_owner(&there, tag, guid)?;
        }
        open.node.set_reparse(scope.changes(open), tag, data)?;
        self.set_archive(scope, open, false);
        self.report_open(scope, open, ChangeKind::Modified, notify_filter::ATTRIBUTES);
        Ok(())
    }

    /// FSCTL_DELETE_REPARSE_POINT, [MS-FSA] 2.1.5.10.3. Of `data` the GUID counts.
    pub fn delete_reparse(&self, scope: &CommitScope, open: &Arc<Open>, tag: u32, data: &[u8]) -> Result<()> {
        open.check(Operation::SetReparse)?;
        let guid = reparse_owner(tag, data)?;
        check_reparse_owner(&open.node.reparse()?, tag, guid)?;
        open.node.delete_reparse(scope.changes(open), tag)?;
        self.set_archive(scope, open, false);
        self.report_open(scope, open, ChangeKind::Modified, notify_filter::ATTRIBUTES);
        Ok(())
    }

    pub fn object_id(&self, open: &Arc<Open>) -> Result<Option<u128>> {
        open.node.object_id()
    }

    pub fn set_object_id(&self, scope: &CommitScope, open: &Arc<Open>, id: u128) -> Result<()> {
        open.check(Operation::SetReparse)?;
        open.node.set_object_id(scope.changes(open), id)
    }

    /// Breaks the handle caching of all but `open`'s own lease, on the file that `open` has open.
    pub(super) fn break_handles(&self, open: &Open, oplocks: bool, cause: Cause<'_>) -> Result<Option<super::WaitId>> {
        open.file.check_crowd()?;
        let mut fx = Effects::default();
        let mut inner = open.file.lock();
        let mut waits = Ok(None);
        if inner.break_handles(Some(&open.actor()), oplocks, self.table.clock(cause.now), &mut fx) {
            waits = self.table.wait_among(&mut inner.waiters, &open.owner).map(Some);
        }
        open.file.publish(&inner);
        drop(inner);
        self.table.run(cause.scope, &open.file, fx);
        // Also where it may not wait: the breaks have begun.
        Ok(waits?)
    }
}

/// The GUID of a tag's owner, which the tags of other vendors have and which is not null. Reserved tags are refused.
fn reparse_owner(tag: u32, data: &[u8]) -> Result<&[u8]> {
    if tag <= 1 {
        return Err(StoreError::InvalidReparseTag.into());
    }
    match data.get(..reparse_guid_bytes(tag)) {
        Some(guid) if guid.is_empty() || guid.iter().any(|b| *b != 0) => Ok(guid),
        _ => Err(StoreError::InvalidReparseData.into()),
    }
}

/// Only who gives the tag and the GUID of a reparse point replaces or removes it.
fn check_reparse_owner(there: &(u32, Vec<u8>), tag: u32, guid: &[u8]) -> Result<()> {
    if there.0 != tag {
        return Err(StoreError::ReparseTagMismatch.into());
    }
    if !there.1.starts_with(guid) {
        return Err(StoreError::ReparseGuidMismatch.into());
    }
    Ok(())
}

/// All streams of the file.
pub(super) fn streams_of(node: &dyn Node) -> Result<Vec<StreamEntry>> {
    weighed(node.streams()?)
}

fn weighed<T>(read: Vec<T>) -> Result<Vec<T>> {
    RequestScope::weigh(read.len() / LISTED_PER_WEIGHT);
    Ok(read)
}

/// The file's descriptor, whole.
pub(super) fn descriptor_of(node: &dyn Node) -> Result<Arc<SecurityDescriptor>> {
    let sd = node.security()?;
    let aces = [&sd.dacl, &sd.sacl].into_iter().flatten().map(|acl| acl.aces.len()).sum::<usize>();
    RequestScope::weigh(aces / ACES_PER_WEIGHT);
    Ok(sd)
}

/// A time that the client gave stays, and so does one with -1; -2 lets operations change it again.
fn hold(held: &mut bool, given: i64) {
    match given {
        0 => {}
        -2 => *held = false,
        _ => *held = true,
    }
}
