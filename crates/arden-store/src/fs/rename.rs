//! Renaming and linking, [MS-FSA] 2.1.5.15.12 and 2.1.5.15.7, and setting 8.3 names, 2.1.5.15.14.

use std::sync::{Arc, atomic::Ordering};

use arden_auth::{maximum_access, privilege};
use arden_wire::access::*;

use super::{
    Fs, NameChange, Open, Operation, Owner, Step, WaitId,
    freed::check_may_free,
    info::{descriptor_of, streams_of},
    notify_filter,
};
use crate::{
    commit::{Cause, CommitScope},
    error::{NotDone, StoreError},
    name::{NtPath, PathWants, eq_fold, is_short},
    store::{ChangeKind, Lookup, Named, NodeRef, Replace, Result},
    table::{
        Shut,
        effects::Effects,
        file::{FileState, NameState},
        notify::Told,
    },
};

/// Where a name is to be, and what is there now.
struct Target {
    parent: NodeRef,
    name: String,
    existing: Option<NodeRef>,
}

/// What stood at the new name of a file.
enum Stood {
    Nothing,
    OtherFile,
    /// Another name of the file itself, as it was.
    OtherName(Vec<Named>),
}

impl Target {
    /// Another name of the file itself stands there.
    fn other_name(&self, open: &Open) -> Option<&NodeRef> {
        self.existing.as_ref().filter(|node| node.id() == open.node.id() && node.place() != open.node.place())
    }

    /// What was looked at, and nothing else: another file may have come to the name since. Other names of the file itself
    /// (`same_file`) make way for it without being asked, [MS-FSA] 2.1.5.15.12.
    fn replaceable(&self, how: NameChange, same_file: bool) -> Replace {
        let existing = self.existing.as_ref().filter(|_| how.replace || same_file);
        existing.map_or(Replace::Nothing, |node| Replace::Only(node.id()))
    }
}

/// How often a name is looked at anew that another file has by then.
const RACES_MAX: usize = 32;

/// A name that may be replaced and was given to another file in the meantime is looked at again: who may replace one file may not
/// replace another, [MS-FSA] 2.1.5.15.12 and 2.1.5.15.7.
fn raced<T>(how: NameChange, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..RACES_MAX {
        match attempt() {
            Err(NotDone::Failed(StoreError::NameCollision)) if how.replace => {}
            result => return result,
        }
    }
    attempt()
}

/// Either done checking, or a break to wait for.
type Checked = Result<Option<WaitId>>;
/// The same of what makes way for the name: nobody opens it until the change is made.
type MakesWay<'a> = Result<Step<Option<Shut<'a>>>>;

impl Fs {
    /// `to` is the whole new path below the root, or a stream alone for the stream that is open.
    pub fn rename(&self, open: &Arc<Open>, to: &NtPath, how: NameChange, cause: Cause<'_>) -> Result<Step<()>> {
        self.table.saw(cause.now);
        open.check(Operation::Rename)?;
        if open.stream().is_some() || to.stream.is_some() || is_data_alone(to) {
            return self.rename_stream(open, to, how, cause);
        }
        let from = open.node.path();
        if from.is_empty() {
            return Err(StoreError::RootStays.into());
        }
        if open.file.lock().name_of(open) != NameState::Stays {
            return Err(StoreError::AccessDenied.into());
        }
        raced(how, || self.rename_to(open, &from, to, how, cause))
    }

    fn rename_to(
        &self,
        open: &Arc<Open>,
        from: &[String],
        to: &NtPath,
        how: NameChange,
        cause: Cause<'_>,
    ) -> Result<Step<()>> {
        let target = self.target(to)?;
        let same_file = target.existing.as_ref().is_some_and(|t| t.id() == open.node.id());
        let stays = from.len() == target_depth(&target) && target.parent.path() == from[..from.len() - 1];
        if stays && from.last() == Some(&target.name) {
            // [MS-FSA] 2.1.5.15.12 breaks before it finds that nothing changes.
            if let Some(wait) = self.break_handles(open, false, cause)? {
                return Ok(Step::Wait(wait));
            }
            cause.scope.relies_on(open);
            return Ok(Step::Done(()));
        }
        let moves_to = &*target.parent;
        if open.directory && (moves_to.id() == open.node.id() || open.node.is_above(moves_to)?) {
            return Err(StoreError::InvalidParameter.into());
        }
        self.check_telling(&*open.node)?;
        self.table.check_crowded_directory(target.parent.id())?;
        let shut = match self.check_rename(open, &target, same_file, how, cause)? {
            Step::Done(shut) => shut,
            Step::Wait(wait) => return Ok(Step::Wait(wait)),
        };
        let replaced = target.existing.is_some() && !same_file;
        let before = open.node.trail();
        let stood = match target.other_name(open) {
            Some(name) => Stood::OtherName(name.trail()),
            None if replaced => Stood::OtherFile,
            None => Stood::Nothing,
        };
        let replace = target.replaceable(how, same_file);
        open.node.rename_replacing(cause.scope.changes(open), &*target.parent, &target.name, replace)?;
        if replaced {
            self.table.unlinks.fetch_add(1, Ordering::AcqRel);
        }
        drop(shut);
        self.after_rename(cause.scope, open, &before, stays, &stood);
        Ok(Step::Done(()))
    }

    fn target(&self, to: &NtPath) -> Result<Target> {
        let name = to.components.last().ok_or(StoreError::InvalidName)?.clone();
        let (parent, existing) = match self.store.lookup(to)? {
            Lookup::Found(node) => {
                let parent = self.parent_of(&to.components).ok_or(StoreError::PathNotFound)?;
                (parent, Some(node))
            }
            Lookup::Missing { parent, .. } => (parent, None),
            Lookup::Symlink { .. } => return Err(StoreError::PathNotFound.into()),
        };
        Ok(Target { parent, name, existing })
    }

    fn check_rename(
        &self,
        open: &Open,
        target: &Target,
        same_file: bool,
        how: NameChange,
        cause: Cause<'_>,
    ) -> MakesWay<'_> {
        // Also where the name stays in its directory.
        self.check_new_name(open, target)?;
        let shut = match target.existing.as_ref().filter(|_| !same_file) {
            Some(existing) => match self.check_replace(open, target, existing, how, cause)? {
                Step::Done(shut) => shut,
                wait => return Ok(wait),
            },
            None => None,
        };
        if let Some(name) = target.other_name(open) {
            // What is renamed would go with it.
            open.file.lock().check_not_deleted(name)?;
        }
        if let Some(wait) = self.check_target_parent(open, &target.parent, cause)? {
            return Ok(Step::Wait(wait));
        }
        if let Some(wait) = self.break_handles(open, false, cause)? {
            return Ok(Step::Wait(wait));
        }
        if !open.directory {
            return Ok(Step::Done(shut));
        }
        let shut = self.table.shut_below(&open.file);
        Ok(self.check_nothing_open_below(open, cause)?.map_or(Step::Done(Some(shut)), Step::Wait))
    }

    /// The directory of the new name is opened for adding, [MS-FSA] 2.1.5.15.12 and 2.1.5.15.7.
    fn check_new_name(&self, open: &Open, target: &Target) -> Result<()> {
        open.check(if open.directory { Operation::AddDirectory } else { Operation::AddFile })?;
        self.check_parent_lives(&target.parent)?;
        self.check_add(&*target.parent, &open.who, open.directory, false)
    }

    /// Replacing a name takes what deleting the file takes, of the file or of its directory; of a read-only one also the
    /// right to its attributes.
    fn check_may_replace(&self, open: &Open, target: &Target, existing: &NodeRef, read_only: bool) -> Result<()> {
        open.check(if read_only { Operation::ReplaceReadOnly } else { Operation::Replace })?;
        let by_file = maximum_access(&*existing.security()?, &open.who);
        if read_only && by_file & FILE_WRITE_ATTRIBUTES == 0 {
            return Err(StoreError::AccessDenied.into());
        }
        if by_file & DELETE == 0 && maximum_access(&*target.parent.security()?, &open.who) & FILE_DELETE_CHILD == 0 {
            return Err(StoreError::AccessDenied.into());
        }
        Ok(())
    }

    /// What stands at the new name has to make way.
    fn check_replace(
        &self,
        open: &Open,
        target: &Target,
        existing: &NodeRef,
        how: NameChange,
        cause: Cause<'_>,
    ) -> MakesWay<'_> {
        if !how.replace {
            return Err(StoreError::NameCollision.into());
        }
        let stat = existing.stat()?;
        if stat.directory || open.directory {
            return Err(StoreError::DirectoryInTheWay.into());
        }
        let read_only = stat.attributes & ATTR_READONLY != 0;
        if read_only && !how.ignore_readonly {
            return Err(StoreError::ReadOnlyFile.into());
        }
        // Before anybody's caching is broken for it.
        self.check_may_replace(open, target, existing, read_only)?;
        check_may_free(existing, &stat)?;
        // A file system may begin to write what takes its place to the disk, as ext4 does.
        check_may_free(&open.node, &open.node.stat()?)?;
        if how.posix {
            // Opens of it go on without a name.
            if let Some(file) = self.table.find(existing.id()) {
                let mut inner = file.lock();
                inner.check_not_deleted(existing)?;
                if inner.has_absent_owner(None) {
                    return Err(StoreError::HeldByAbsentOwner.into());
                }
            }
            return Ok(Step::Done(None));
        }
        match self.table.shut_unused(existing) {
            Ok(shut) => Ok(Step::Done(Some(shut))),
            Err(file) => {
                let mut inner = file.lock();
                inner.check_not_deleted(existing)?;
                let wait = self.break_all_handles(&open.owner, &file, inner, cause)?;
                Ok(Step::Wait(wait.ok_or(StoreError::TargetInUse)?))
            }
        }
    }

    /// Handle caching, of batch oplocks too, ends on the file. None: there was none.
    fn break_all_handles(
        &self,
        owner: &Owner,
        file: &Arc<FileState>,
        mut inner: crate::table::file::FileGuard<'_>,
        cause: Cause<'_>,
    ) -> Checked {
        file.check_crowd()?;
        let mut fx = Effects::default();
        let mut waits = Ok(None);
        if inner.break_handles(None, true, self.table.clock(cause.now), &mut fx) {
            waits = self.table.wait_among(&mut inner.waiters, owner).map(Some);
        }
        file.publish(&inner);
        drop(inner);
        self.table.run(cause.scope, file, fx);
        // Also where it may not wait: the breaks have begun.
        Ok(waits?)
    }

    /// A rename opens the directory that it moves to for adding. Directories share it with everyone; files keep out who
    /// has DELETE there, as Windows has done up to Server 2022 ([MS-FSA] 2.1.5.15.12, <185>).
    fn check_target_parent(&self, open: &Open, parent: &NodeRef, cause: Cause<'_>) -> Checked {
        let Some(file) = self.table.find(parent.id()) else { return Ok(None) };
        let mut inner = file.lock();
        inner.check_not_deleted(parent)?;
        let (access, share) = if open.directory {
            (FILE_ADD_SUBDIRECTORY, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE)
        } else {
            (FILE_ADD_FILE, FILE_SHARE_READ | FILE_SHARE_WRITE)
        };
        if !inner.sharing_violation(None, access, share) {
            return Ok(None);
        }
        match self.break_all_handles(&open.owner, &file, inner, cause)? {
            Some(wait) => Ok(Some(wait)),
            None => Err(StoreError::SharingViolation.into()),
        }
    }

    /// [MS-FSA] 2.1.4.2: handles below a directory are cached handles that go, or forbid its rename, whichever root they were
    /// opened through. States of the past are volumes of their own.
    fn check_nothing_open_below(&self, open: &Open, cause: Cause<'_>) -> Checked {
        let mut waits = None;
        let checked = self.break_all_below(open, cause, &mut waits);
        if checked.is_err()
            && let Some(wait) = waits.take()
        {
            self.table.cancel_wait(wait);
        }
        if checked? && waits.is_none() {
            return Err(StoreError::OpensBelow.into());
        }
        Ok(waits)
    }

    /// Handle caching of all files below a directory ends; whether one of them is open without any. One of those that have to be waited
    /// for is in `waits` then, also after an error.
    fn break_all_below(&self, open: &Open, cause: Cause<'_>, waits: &mut Option<WaitId>) -> Result<bool> {
        let mut in_use = false;
        for file in self.table.files() {
            if file.id.volume != open.file.id.volume || file.id == open.file.id {
                continue;
            }
            let nodes: Vec<NodeRef> = {
                let inner = file.lock();
                inner.streams().flat_map(|s| &s.opens).map(|o| o.node.clone()).collect()
            };
            let mut below = false;
            for node in &nodes {
                below = below || open.node.is_above(&**node)?;
            }
            if below {
                let inner = file.lock();
                if inner.open_count() == 0 {
                    continue;
                }
                match self.break_all_handles(&open.owner, &file, inner, cause)? {
                    Some(wait) if waits.is_none() => *waits = Some(wait),
                    Some(wait) => self.table.cancel_wait(wait),
                    None => in_use = true,
                }
            }
        }
        Ok(in_use)
    }

    /// Attributes, notifications and directory leases that follow a rename.
    fn after_rename(&self, scope: &CommitScope, open: &Open, from: &[Named], stays: bool, stood: &Stood) {
        self.set_archive(scope, open, false);
        if !self.is_anybody_watching() {
            return;
        }
        let to = open.node.trail();
        let filter = if open.directory { notify_filter::DIR_NAME } else { notify_filter::FILE_NAME };
        let mut woken = Vec::new();
        let mut tell = |changes: &[Told<'_>]| self.watches.report(self.identity(), filter, changes, &mut woken);
        // A name of the file that is spelt so already stays as it is: the old one goes, and none comes.
        let joins = matches!(stood, Stood::OtherName(name) if *name == to);
        match stood {
            Stood::OtherFile => tell(&[(ChangeKind::Removed, &to, None)]),
            Stood::OtherName(name) if !joins => tell(&[(ChangeKind::Removed, name, None)]),
            Stood::OtherName(_) | Stood::Nothing => {}
        }
        if joins {
            tell(&[(ChangeKind::Removed, from, None)]);
        } else if stays {
            tell(&[(ChangeKind::RenamedOld, from, None), (ChangeKind::RenamedNew, &to, None)]);
        } else {
            tell(&[(ChangeKind::Removed, from, None)]);
            tell(&[(ChangeKind::Added, &to, None)]);
        }
        if !open.directory {
            open.pending_filter.fetch_or(notify_filter::ATTRIBUTES | notify_filter::CREATION, Ordering::Relaxed);
        }
        self.table.resume(woken);
        self.break_parent(scope, from, open.parent_key);
        if !stays {
            self.break_parent(scope, &to, open.parent_key);
        }
    }

    /// FileShortNameInformation, [MS-FSA] 2.1.5.15.14; an empty name takes the 8.3 name away.
    ///
    /// # Errors
    /// In the order of that section; `ShortNamesDisabled` where a store keeps no 8.3 names, or no new ones.
    pub fn set_short_name(&self, open: &Arc<Open>, name: &str, cause: Cause<'_>) -> Result<Step<()>> {
        self.table.saw(cause.now);
        self.check_writable()?;
        if open.node.path().is_empty() {
            return Err(StoreError::InvalidParameter.into());
        }
        if open.stream().is_some() || !(name.is_empty() || is_short(name)) {
            return Err(StoreError::InvalidParameter.into());
        }
        open.check(Operation::SetShortName)?;
        if open.delete_on_close.load(Ordering::Acquire) || self.stat(open)?.delete_pending {
            return Err(StoreError::AccessDenied.into());
        }
        if open.options & OPT_OPEN_FOR_BACKUP_INTENT == 0 || !open.who.has_privilege(privilege::RESTORE) {
            return Err(StoreError::PrivilegeNotHeld.into());
        }
        if !self.store.generates_short_names() {
            return Err(StoreError::ShortNamesDisabled.into());
        }
        let _shut = open.directory.then(|| self.table.shut_below(&open.file));
        if open.directory
            && let Some(wait) = self.check_nothing_open_below(open, cause)?
        {
            return Ok(Step::Wait(wait));
        }
        let old = open.node.short_name()?;
        if old.as_deref().unwrap_or_default() == name {
            cause.scope.relies_on(open);
            return Ok(Step::Done(()));
        }
        open.node.set_short_name(cause.scope.changes(open), name)?;
        if !name.is_empty() {
            self.set_archive(cause.scope, open, false);
        }
        self.after_short_name(cause.scope, open, (old.as_deref(), name));
        Ok(Step::Done(()))
    }

    /// Notifications of a changed 8.3 name, and the directory leases that end with it.
    fn after_short_name(&self, scope: &CommitScope, open: &Open, (old, new): (Option<&str>, &str)) {
        let trail = open.node.trail();
        let Some((last, above)) = trail.split_last() else { return };
        let in_parent = |name: &str| [above, &[Named { name: name.to_owned(), ..last.clone() }]].concat();
        let old = old.filter(|old| *old != last.name).map(in_parent);
        let new = in_parent(new);
        let filter = if open.directory { notify_filter::DIR_NAME } else { notify_filter::FILE_NAME };
        let gone = new.last().is_none_or(|named| named.name.is_empty());
        let (before, after) = if gone { (ChangeKind::Removed, None) } else { (ChangeKind::RenamedOld, Some(&new)) };
        let before = old.iter().map(|old| (before, &old[..], None));
        let after = after.into_iter().map(|new| (ChangeKind::RenamedNew, &new[..], None));
        let mut woken = Vec::new();
        self.watches.report(self.identity(), filter, &before.chain(after).collect::<Vec<_>>(), &mut woken);
        self.table.resume(woken);
        self.break_parent(scope, &trail, open.parent_key);
    }

    /// [MS-FSA] 2.1.5.15.12.1. `to` without a name is the unnamed stream.
    fn rename_stream(&self, open: &Arc<Open>, to: &NtPath, how: NameChange, cause: Cause<'_>) -> Result<Step<()>> {
        let here = open.node.path();
        if !to.components.is_empty() && open.stream().is_some() {
            // A whole path to a stream: its file would have to be opened as the directory to move to.
            return Err(StoreError::SharingViolation.into());
        }
        let same_file = to.components.is_empty() || same_path(&to.components, &here);
        let name = to.stream.as_deref();
        let named_as_data = name.is_some() || to.wants == PathWants::Data;
        // A directory has no unnamed stream, neither to give nor to take.
        let directory = open.directory || name.is_none() && open.node.stat()?.directory;
        if !same_file || !named_as_data || directory {
            return Err(StoreError::InvalidParameter.into());
        }
        match (name, open.file.lock().at(open.stream_no).name.as_deref()) {
            (None, None) => return Ok(Step::Done(())),
            (Some(new), Some(own)) if eq_fold(own, new) => return Ok(Step::Done(())),
            _ => {}
        }
        let _shut = self.table.shut(&open.file);
        self.check_stream_target(open, name, how)?;
        if let Some(wait) = self.break_handles(open, false, cause)? {
            return Ok(Step::Wait(wait));
        }
        open.node.rename_stream(cause.scope.changes(open), name, how.replace)?;
        open.file.lock().rename_stream(open.stream_no, name, &open.node);
        match name {
            Some(name) => {
                let told = (ChangeKind::AddedStream, &*open.node.trail(), Some(name));
                self.report(cause.scope, told, notify_filter::STREAM_NAME, open.parent_key);
            }
            None => self.report_open(
                cause.scope,
                open,
                ChangeKind::Modified,
                notify_filter::SIZE | notify_filter::LAST_WRITE,
            ),
        }
        Ok(Step::Done(()))
    }

    /// What has the new name makes way: nobody may have it open, and it has to be empty. Other opens of data that becomes
    /// a named stream would have to follow it, which no store lets them.
    fn check_stream_target(&self, open: &Open, name: Option<&str>, how: NameChange) -> Result<()> {
        let existing = streams_of(&*open.node)?.into_iter().find(|s| eq_fold(&s.name, name.unwrap_or_default()));
        if let Some(existing) = existing {
            if !how.replace {
                return Err(StoreError::NameCollision.into());
            }
            let in_use = !open.file.lock().stream(name).opens.is_empty();
            if in_use || existing.size != 0 {
                return Err(StoreError::InvalidParameter.into());
            }
        }
        let inner = open.file.lock();
        if inner.is_main(open.stream_no) && inner.main.opens.len() > 1 {
            return Err(StoreError::SharingViolation.into());
        }
        Ok(())
    }

    /// Whether what is open can have another name, whatever that is: `InvalidParameter` for a stream, `IsADirectory`.
    pub fn check_linkable(&self, open: &Open) -> Result<(), StoreError> {
        open.check(Operation::Link)?;
        if open.stream().is_some() {
            return Err(StoreError::InvalidParameter);
        }
        if open.directory { Err(StoreError::IsADirectory) } else { Ok(()) }
    }

    /// [MS-FSA] 2.1.5.15.7.
    pub fn link(&self, open: &Arc<Open>, to: &NtPath, how: NameChange, cause: Cause<'_>) -> Result<Step<()>> {
        self.table.saw(cause.now);
        self.check_linkable(open)?;
        if to.stream.is_some() {
            return Err(StoreError::InvalidParameter.into());
        }
        if open.file.lock().name_of(open) != NameState::Stays {
            return Err(StoreError::AccessDenied.into());
        }
        // A link keeps the file, and has the rights that its directory gives: not for who may only look at it. Peers open
        // the file for this right; clients on Linux open it for less.
        if maximum_access(&*descriptor_of(&*open.node)?, &open.who) & FILE_WRITE_ATTRIBUTES == 0 {
            return Err(StoreError::AccessDenied.into());
        }
        raced(how, || self.link_to(open, to, how, cause))
    }

    fn link_to(&self, open: &Arc<Open>, to: &NtPath, how: NameChange, cause: Cause<'_>) -> Result<Step<()>> {
        let target = self.target(to)?;
        self.check_new_name(open, &target)?;
        let same_file = target.existing.as_ref().is_some_and(|t| t.id() == open.node.id());
        if let Some(name) = target.existing.as_ref().filter(|_| same_file && how.replace) {
            open.file.lock().check_not_deleted(name)?;
            cause.scope.relies_on(open);
            return Ok(Step::Done(()));
        }
        self.table.check_crowded_directory(target.parent.id())?;
        let shut = match &target.existing {
            None => None,
            Some(_) if same_file => return Err(StoreError::NameCollision.into()),
            Some(existing) => match self.check_replace(open, &target, existing, how, cause)? {
                Step::Done(shut) => shut,
                Step::Wait(wait) => return Ok(Step::Wait(wait)),
            },
        };
        if let Some(wait) = self.break_handles(open, false, cause)? {
            return Ok(Step::Wait(wait));
        }
        let replace = target.replaceable(how, false);
        open.node.link_replacing(cause.scope.changes(open), &*target.parent, &target.name, replace)?;
        if target.existing.is_some() {
            self.table.unlinks.fetch_add(1, Ordering::AcqRel);
        }
        drop(shut);
        self.set_archive(cause.scope, open, false);
        let mut trail = target.parent.trail();
        trail.push(Named { directory: target.parent.id(), name: target.name });
        let told = (ChangeKind::Added, &*trail, None);
        self.report(cause.scope, told, notify_filter::FILE_NAME, open.parent_key);
        Ok(Step::Done(()))
    }
}

/// `::$DATA`: the unnamed stream of the file that is open.
fn is_data_alone(to: &NtPath) -> bool {
    to.components.is_empty() && to.wants == PathWants::Data
}

fn target_depth(t: &Target) -> usize {
    t.parent.path().len() + 1
}

fn same_path(a: &[String], b: &[String]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| eq_fold(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dir::{DirOptions, DirStore},
        store::FileStore,
    };

    #[test]
    fn only_what_was_looked_at_makes_way() {
        let path = std::env::temp_dir().join(format!("arden-replace-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("there"), "x").unwrap();
        let store = DirStore::open(&path, DirOptions::default()).unwrap();
        let Lookup::Found(there) = store.lookup(&NtPath::parse("there").unwrap()).unwrap() else {
            panic!("it is there")
        };
        let target = |existing| Target { parent: store.root(), name: "there".into(), existing };
        let [may, may_not] = [true, false].map(|replace| NameChange { replace, ..NameChange::default() });
        let id = there.id();
        assert_eq!(target(Some(there.clone())).replaceable(may, false), Replace::Only(id));
        assert_eq!(target(Some(there.clone())).replaceable(may_not, false), Replace::Nothing);
        assert_eq!(target(Some(there)).replaceable(may_not, true), Replace::Only(id));
        assert_eq!(target(None).replaceable(may, false), Replace::Nothing);
        // A name that is another's by now is looked at again, and not for ever.
        for (free, expected) in [(3, Ok(3)), (usize::MAX, Err(StoreError::NameCollision.into()))] {
            let mut looks = 0;
            let result: Result<usize> = raced(may, || {
                looks += 1;
                if looks < free { Err(StoreError::NameCollision.into()) } else { Ok(looks) }
            });
            assert_eq!((result, looks), (expected, free.min(RACES_MAX)));
        }
        std::fs::remove_dir_all(&path).unwrap();
    }
}
