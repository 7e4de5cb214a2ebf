//! Opening and creating, [MS-FSA] 2.1.5.1.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use arden_auth::{Token, creator_descriptor, new_descriptor};
use arden_lock::Mutex;
use arden_wire::{
    access::*,
    dtyp::{Acl, SecurityDescriptor},
    names::name_units,
};

use super::{
    CacheGrant, CacheRequest, CreateAction, Disposition, Fs, Open, OpenError, OpenRequest, Opened, Step, SymlinkError,
    WaitId, access::desired, access::grant_new, data::OFFSET_MAX, freed::check_may_free, info::NEED_EA,
    info::streams_of, notify_filter,
};
use crate::{
    commit::{Cause, ChangedBy},
    error::{NotDone, StoreError},
    name::PathWants,
    store::{BasicUpdate, ChangeKind, Lookup, NewFile, NodeRef, Result, Stat},
    table::{ANY_COPY, Admission, Admitted, Entered, HeldTimes, share::is_stat_open},
};

type OpenResult<T> = std::result::Result<T, OpenError>;

/// Options that go with FILE_DIRECTORY_FILE, [MS-FSA] 2.1.5.1.
const DIRECTORY_OPTIONS: u32 = OPT_DIRECTORY_FILE
    | OPT_WRITE_THROUGH
    | OPT_SYNCHRONOUS_IO_ALERT
    | OPT_SYNCHRONOUS_IO_NONALERT
    | OPT_OPEN_REMOTE_INSTANCE
    | OPT_COMPLETE_IF_OPLOCKED
    | OPT_OPEN_FOR_BACKUP_INTENT
    | OPT_DELETE_ON_CLOSE
    | OPT_OPEN_FOR_FREE_SPACE_QUERY
    | OPT_OPEN_BY_FILE_ID
    | OPT_NO_COMPRESSION
    | OPT_OPEN_REPARSE_POINT
    | OPT_OPEN_REQUIRING_OPLOCK;
const OPT_SYNCHRONOUS_IO_ALERT: u32 = 0x10;
const OPT_SYNCHRONOUS_IO_NONALERT: u32 = 0x20;
const OPT_OPEN_REMOTE_INSTANCE: u32 = 0x400;
const OPT_OPEN_FOR_FREE_SPACE_QUERY: u32 = 0x80_0000;

/// Streams of one file, the unnamed one included: all of them are listed, and go with their file, in one go.
const STREAMS_MAX: usize = 1024;
/// How often an open starts again because the name changed under it.
const RACES_MAX: usize = 32;

fn check_room(r: &OpenRequest<'_>, node: &NodeRef, itself: bool) -> Result<()> {
    match r.keeps {
        Some(keeps) if !keeps(&**node, itself) => Err(StoreError::TooManyOpens.into()),
        _ => Ok(()),
    }
}

/// What a create has made.
struct Made<'a> {
    node: &'a NodeRef,
    /// What goes where it is taken back: the stream, or its file too.
    name: &'a NodeRef,
    by: ChangedBy,
    changed_at: u64,
}

enum Outcome {
    Done(Opened),
    Wait(WaitId),
    /// The name means something else by now.
    Again,
}

impl Fs {
    /// [MS-FSA] 2.1.5.1. `Step::Wait`: make the same call again after `OpenOwner::resume`.
    pub fn open(self: &Arc<Self>, r: &OpenRequest<'_>) -> OpenResult<Step<Opened>> {
        self.table.saw(r.cause.now);
        validate(r)?;
        // Phase 2.
        if !matches!(r.disposition, Disposition::Open | Disposition::OpenIf) {
            self.check_writable()?;
        }
        let desired = desired(r)?;
        let reads = desired & (FILE_READ_DATA | FILE_EXECUTE) != 0 && r.options & OPT_DIRECTORY_FILE == 0;
        for _ in 0..RACES_MAX {
            let seen = self.table.unlinks.load(Ordering::Acquire);
            let lookup = match r.by_id {
                Some(id) => Lookup::Found(self.store.lookup_id(id)?),
                None => match reads {
                    true => self.store.lookup_to_read(r.path),
                    false => self.store.lookup(r.path),
                }
                .map_err(|e| match e {
                    // A directory by the name of its data, asked for as a directory.
                    NotDone::Failed(StoreError::IsADirectory) if r.options & OPT_DIRECTORY_FILE != 0 => {
                        StoreError::NotADirectory.into()
                    }
                    e => e,
                })?,
            };
            let outcome = match lookup {
                Lookup::Found(node) => self.open_existing(r, desired, node, seen)?,
                Lookup::Missing { parent, base } => self.create(r, desired, (parent, base), seen)?,
                Lookup::Symlink { link, unparsed_components } => return Err(symlink(r, &link, unparsed_components)?),
            };
            match outcome {
                Outcome::Done(opened) => {
                    r.cause.scope.relies_on(&opened.open);
                    let looks = opened.action == CreateAction::Opened && is_stat_open(opened.open.granted);
                    if self.is_available() && !looks {
                        // No kept open is in the way any more: what closed those is durable before this is answered. None
                        // is ever in the way of who only looks at attributes.
                        r.cause.scope.join(self, false);
                    }
                    return Ok(Step::Done(opened));
                }
                Outcome::Wait(wait) => return Ok(Step::Wait(wait)),
                Outcome::Again => {}
            }
        }
        Err(StoreError::SharingViolation.into())
    }

    fn open_existing(
        self: &Arc<Self>,
        r: &OpenRequest<'_>,
        desired: u32,
        node: NodeRef,
        seen: u64,
    ) -> OpenResult<Outcome> {
        let stat = node.stat()?;
        let stream = node.stream().is_some();
        // Before anything else: the client follows it and asks again for what it leads to.
        if stat.attributes & ATTR_REPARSE_POINT != 0 && r.options & OPT_OPEN_REPARSE_POINT == 0 && !stream {
            return Err(symlink(r, &node, 0)?);
        }
        check_kind(r, stat.directory && !stream)?;
        check_needs_no_eas(r, &node, &stat)?;
        let made_before = self.made_before(r, &node);
        if r.disposition == Disposition::Create && !made_before {
            return Err(StoreError::NameCollision.into());
        }
        let overwrite =
            matches!(r.disposition, Disposition::Supersede | Disposition::Overwrite | Disposition::OverwriteIf);
        let (effect, also) = if overwrite { check_overwrite(r, &node, &stat)? } else { (0, 0) };
        let granted = self.grant_existing(r, &node, &stat, desired, also)?;
        check_delete_on_close(r, granted)?;
        check_room(r, &node, false)?;
        if overwrite {
            check_may_free(&node, &stat)?;
            self.check_telling(&*node)?;
        }
        let admission = Admission {
            id: r.id,
            owner: r.owner,
            node: &node,
            who: r.who,
            client: r.client,
            granted,
            effective: granted | effect,
            share: self.effective_share(r, &node)?,
            overwrite,
            cache: r.cache,
            existed: true,
            changed_at: if stat.directory && !stream { stat.change.0 } else { 0 },
            cause: r.cause,
        };
        let (cache, open) = match self.table.admit(&admission)? {
            Admitted::Wait(wait) | Admitted::ShutOut(wait) => return Ok(Outcome::Wait(wait)),
            Admitted::In(e) => (e.cache, self.new_open(r, e, granted, &node, true)),
        };
        if let Some(outcome) = self.moved_meanwhile(r, &node, seen).inspect_err(|_| self.abandon(r, &open))? {
            self.abandon(r, &open);
            return Ok(outcome);
        }
        let (action, stat) = if overwrite {
            let action = if r.disposition == Disposition::Supersede {
                CreateAction::Superseded
            } else {
                CreateAction::Overwritten
            };
            (action, self.overwrite(r, &open).inspect_err(|_| self.abandon(r, &open))?)
        } else {
            let mut stat = stat;
            self.show_write_time(&open, &mut stat);
            (if made_before { CreateAction::Created } else { CreateAction::Opened }, stat)
        };
        Ok(Outcome::Done(Opened { open, action, cache, stat }))
    }

    /// The file was made by this very create, whose answer never arrived.
    fn made_before(&self, r: &OpenRequest<'_>, node: &NodeRef) -> bool {
        let Some(mark) = r.mark.filter(|m| m.replay) else { return false };
        matches!(node.create_mark(), Ok(Some(id)) if id == mark.id)
    }

    /// What becomes of an open that was admitted while its name, or one above it, went or goes to something else.
    fn moved_meanwhile(&self, r: &OpenRequest<'_>, node: &NodeRef, seen: u64) -> Result<Option<Outcome>> {
        if let Some(wait) = self.table.wait_for_move(r.owner, &**node, false)? {
            return Ok(Some(Outcome::Wait(wait)));
        }
        let looks_again = self.table.unlinks.load(Ordering::Acquire) != seen && r.by_id.is_none();
        Ok((looks_again && !self.still_there(r, node)).then_some(Outcome::Again))
    }

    fn still_there(&self, r: &OpenRequest<'_>, node: &NodeRef) -> bool {
        matches!(self.store.lookup(r.path), Ok(Lookup::Found(n)) if n.id() == node.id())
    }

    /// Closes an open that its caller never gets to see.
    fn abandon(&self, r: &OpenRequest<'_>, open: &Arc<Open>) {
        open.delete_on_close.store(false, Ordering::Release);
        self.close(r.cause.scope, open);
    }

    /// Empties the stream; of the unnamed one, also attributes, EAs and the named streams.
    fn overwrite(&self, r: &OpenRequest<'_>, open: &Arc<Open>) -> Result<Stat> {
        let (node, scope) = (&open.node, r.cause.scope);
        self.settle_write_time(scope, open);
        let by = scope.changes(open);
        node.set_end_of_file(by, 0)?;
        open.cut_to(0);
        if let Some(size) = r.allocation.filter(|s| *s > 0) {
            node.set_allocation(by, size)?;
            open.note_promised();
        }
        if open.stream().is_none() {
            let attributes = (r.attributes & ATTR_SETTABLE & !ATTR_NOT_CONTENT_INDEXED) | ATTR_ARCHIVE;
            node.set_basic(by, &BasicUpdate { attributes: Some(attributes), ..BasicUpdate::default() })?;
            if !r.eas.is_empty() {
                node.set_eas(by, r.eas)?;
            }
            self.delete_streams(by, open);
            let filter = notify_filter::ATTRIBUTES | notify_filter::SIZE | notify_filter::LAST_WRITE;
            self.report_open(scope, open, ChangeKind::Modified, filter);
        } else {
            let filter = notify_filter::STREAM_SIZE | notify_filter::STREAM_WRITE;
            self.report_open(scope, open, ChangeKind::ModifiedStream, filter);
        }
        node.stat()
    }

    fn delete_streams(&self, by: ChangedBy, open: &Open) {
        for s in open.node.streams().unwrap_or_default().into_iter().filter(|s| !s.name.is_empty()) {
            if let Ok(Some(stream)) = open.node.named_stream(&s.name)
                && stream.unlink(by).is_ok()
            {
                open.file.lock().stream_deleted(&s.name);
            }
        }
    }

    /// [MS-FSA] 2.1.5.1.1, and the creation of a stream in an existing file.
    fn create(
        self: &Arc<Self>,
        r: &OpenRequest<'_>,
        desired: u32,
        (parent, base): (NodeRef, Option<NodeRef>),
        seen: u64,
    ) -> OpenResult<Outcome> {
        if matches!(r.disposition, Disposition::Open | Disposition::Overwrite) {
            return Err(StoreError::NotFound.into());
        }
        self.check_writable()?;
        let Some(name) = r.path.components.last() else { return Err(StoreError::InvalidName.into()) };
        let directory =
            (r.options & OPT_DIRECTORY_FILE != 0 || r.path.wants == PathWants::Directory) && r.path.stream.is_none();
        self.table.check_lease_unused(r.client, &r.cache)?;
        let granted = match &base {
            // A stream of a file that is there gives what the file gives.
            Some(base) => self.grant_existing(r, base, &base.stat()?, desired, FILE_WRITE_DATA)?,
            None => grant_new(r, desired)?,
        };
        // Nothing may be left behind by a create that fails.
        check_delete_on_close(r, granted)?;
        check_room(r, &parent, true)?;
        if let Some(wait) = self.table.wait_for_move(r.owner, &*parent, true)? {
            return Ok(Outcome::Wait(wait));
        }
        self.table.check_crowded_directory(parent.id())?;
        let created_base = base.is_none();
        let by = r.cause.scope.changes_in(self, r.durable);
        let Some((node, base)) = self.create_nodes(by, r, (&parent, name), base, directory)? else {
            return Ok(Outcome::Again);
        };
        let changed_at = if directory { node.stat()?.change.0 } else { 0 };
        let made = Made { name: if created_base { &base } else { &node }, node: &node, by, changed_at };
        let (cache, open) = match self.enter_created(r, granted, &made, seen)? {
            Ok(entered) => entered,
            Err(outcome) => return Ok(outcome),
        };
        if created_base && r.allocation.is_some() {
            open.note_promised();
        }
        if !created_base {
            // The file was there, and says nothing yet of what is written through this open.
            open.wrote.store(false, Ordering::Relaxed);
            self.set_archive(r.cause.scope, &open, true);
        }
        self.report_created(r, &open, &base, created_base, directory);
        let stat = node.stat().inspect_err(|_| self.abandon(r, &open))?;
        let _ = open.created_at.set(stat.last_write);
        Ok(Outcome::Done(Opened { open, action: CreateAction::Created, cache, stat }))
    }

    /// The open of what it has made. Err: what becomes of it instead; nothing is left behind then, nor where it fails.
    fn enter_created(
        self: &Arc<Self>,
        r: &OpenRequest<'_>,
        granted: u32,
        made: &Made<'_>,
        seen: u64,
    ) -> OpenResult<std::result::Result<(CacheGrant, Arc<Open>), Outcome>> {
        let node = made.node;
        let admission = Admission {
            id: r.id,
            owner: r.owner,
            node,
            who: r.who,
            client: r.client,
            granted,
            effective: granted,
            share: r.share_access,
            overwrite: false,
            cache: r.cache,
            existed: false,
            changed_at: made.changed_at,
            cause: r.cause,
        };
        let take_back = || {
            let _ = made.name.unlink(made.by);
            self.table.unlinks.fetch_add(1, Ordering::AcqRel);
        };
        let (cache, open) = match self.table.admit(&admission).inspect_err(|_| take_back())? {
            // Somebody opened the new file before its creator did.
            Admitted::Wait(wait) => {
                self.table.cancel_wait(wait);
                return Ok(Err(Outcome::Again));
            }
            // It is created anew, perhaps in another file that has the name by then.
            Admitted::ShutOut(wait) => {
                take_back();
                return Ok(Err(Outcome::Wait(wait)));
            }
            Admitted::In(e) => (e.cache, self.new_open(r, e, granted, node, false)),
        };
        let back_out = || {
            self.abandon(r, &open);
            take_back();
        };
        if let Some(outcome) = self.moved_meanwhile(r, node, seen).inspect_err(|_| back_out())? {
            back_out();
            return Ok(Err(outcome));
        }
        Ok(Ok((cache, open)))
    }

    /// The new file or stream, and its file. None: somebody else has made it meanwhile, which is as good.
    fn create_nodes(
        &self,
        by: ChangedBy,
        r: &OpenRequest<'_>,
        (parent, name): (&NodeRef, &str),
        base: Option<NodeRef>,
        directory: bool,
    ) -> Result<Option<(NodeRef, NodeRef)>> {
        let file = base.map_or_else(|| self.create_file(by, r, parent, name, directory), Ok);
        let made = file.and_then(|base| {
            if r.path.stream.is_some() && streams_of(&*base)?.len() >= STREAMS_MAX {
                return Err(StoreError::TooManyStreams.into());
            }
            let create = |stream| match r.mark {
                Some(mark) => base.create_stream_marked(by, stream, mark.id),
                None => base.create_stream(by, stream),
            };
            let stream = r.path.stream.as_deref().map(create).transpose()?;
            Ok((stream.unwrap_or_else(|| base.clone()), base))
        });
        match made {
            Err(NotDone::Failed(StoreError::NameCollision)) if r.disposition != Disposition::Create => Ok(None),
            made => made.map(Some),
        }
    }

    fn create_file(
        &self,
        by: ChangedBy,
        r: &OpenRequest<'_>,
        parent: &NodeRef,
        name: &str,
        directory: bool,
    ) -> Result<NodeRef> {
        if directory && r.attributes & ATTR_TEMPORARY != 0 {
            return Err(StoreError::InvalidParameter.into());
        }
        if r.attributes & ATTR_READONLY != 0 && r.options & OPT_DELETE_ON_CLOSE != 0 {
            return Err(StoreError::CannotDelete.into());
        }
        if r.access_ceiling & FILE_ADD_FILE == 0 {
            return Err(StoreError::AccessDenied.into());
        }
        self.check_parent_lives(parent)?;
        self.check_add(&**parent, r.who, directory, r.options & OPT_OPEN_FOR_BACKUP_INTENT != 0)?;
        let given = r.security.map(|sd| creator_descriptor(sd, r.who)).transpose()?;
        let parent_sd = parent.security()?;
        let sd = created_descriptor(&parent_sd, given.as_ref(), directory, r.who);
        // [MS-FSA] 2.1.5.1.1; a store without integrity leaves that one away.
        let mut attributes = r.attributes & (ATTR_SETTABLE | ATTR_INTEGRITY_STREAM) & !ATTR_NOT_CONTENT_INDEXED;
        attributes |= parent.stat()?.attributes & ATTR_NOT_CONTENT_INDEXED;
        attributes |= if directory { ATTR_DIRECTORY } else { ATTR_ARCHIVE };
        let allocation = r.allocation.filter(|s| *s > 0 && !directory && r.path.stream.is_none());
        if allocation.is_some_and(|s| s > OFFSET_MAX) {
            return Err(StoreError::DiskFull.into());
        }
        let new = NewFile { directory, attributes, security: Some(&sd), eas: r.eas, allocation };
        match r.mark {
            Some(mark) => parent.create_child_marked(by, name, &new, mark.id),
            None => parent.create_child(by, name, &new),
        }
    }

    /// Nothing is created in a directory that is to be deleted.
    pub(super) fn check_parent_lives(&self, parent: &NodeRef) -> Result<(), StoreError> {
        if self.table.deletes_pending.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        match self.table.find(parent.id()) {
            Some(file) => file.lock().check_not_deleted(parent),
            None => Ok(()),
        }
    }

    fn report_created(&self, r: &OpenRequest<'_>, open: &Open, base: &NodeRef, created_base: bool, directory: bool) {
        if !self.is_anybody_watching() {
            return;
        }
        let trail = base.trail();
        if created_base {
            let filter = if directory { notify_filter::DIR_NAME } else { notify_filter::FILE_NAME };
            self.report(r.cause.scope, (ChangeKind::Added, &trail, None), filter, open.parent_key);
        }
        if let Some(stream) = &r.path.stream {
            let told = (ChangeKind::AddedStream, &*trail, Some(&**stream));
            self.report(r.cause.scope, told, notify_filter::STREAM_NAME, open.parent_key);
        }
    }

    fn new_open(
        self: &Arc<Self>,
        r: &OpenRequest<'_>,
        entered: Entered,
        granted: u32,
        node: &NodeRef,
        existed: bool,
    ) -> Arc<Open> {
        let parent_key = match &r.cache {
            CacheRequest::Lease(l) => l.parent_key,
            _ => None,
        };
        Arc::new(Open {
            id: r.id,
            owner: r.owner.clone(),
            fs: self.clone(),
            node: node.clone(),
            file: entered.file,
            stream_no: entered.stream_no,
            granted,
            share_permits: AtomicU32::new(r.access_ceiling),
            share: r.share_access,
            options: r.options,
            mode: AtomicU32::new(r.options & super::MODE_BITS),
            who: r.who.clone(),
            client: r.client,
            lease: entered.lease,
            beside_writer: AtomicBool::new(entered.beside_writer),
            parent_key,
            directory: node.is_directory() && node.stream().is_none(),
            closed: AtomicBool::new(false),
            delete_on_close: AtomicBool::new(r.options & OPT_DELETE_ON_CLOSE != 0),
            wrote: AtomicBool::new(!existed),
            delays_write_time: AtomicBool::new(false),
            created_at: OnceLock::new(),
            pending_filter: AtomicU32::new(0),
            position: AtomicU64::new(0),
            read_copy: AtomicU32::new(ANY_COPY),
            locks: AtomicUsize::new(0),
            times: Mutex::new(HeldTimes::default()),
            listing: Mutex::new(None),
            watch: OnceLock::new(),
            durable: AtomicBool::new(r.durable),
            restored: false,
        })
    }

    /// What the open may cache now.
    pub fn cache(&self, open: &Arc<Open>) -> CacheGrant {
        let mut inner = open.file.lock();
        inner.at(open.stream_no).caches.describe(open.id, open.lease)
    }

    /// The level that the open has now, [MS-SMB2] 3.3.5.22.1.
    pub fn ack_oplock_break(
        &self,
        open: &Arc<Open>,
        to: super::OplockLevel,
        cause: Cause<'_>,
    ) -> Result<super::OplockLevel> {
        open.file.check_crowd()?;
        self.table.saw(cause.now);
        let mut fx = crate::table::effects::Effects::default();
        let mut inner = open.file.lock();
        let stream = inner.at(open.stream_no);
        let level = stream.caches.ack_oplock(open.id, to, self.table.clock(cause.now), &mut fx);
        inner.wake(&mut fx);
        open.file.publish(&inner);
        drop(inner);
        self.table.run(cause.scope, &open.file, fx);
        Ok(level?)
    }
}

/// [MS-FSA] 2.1.5.1 phase 1.
fn validate(r: &OpenRequest<'_>) -> Result<(), StoreError> {
    let o = r.options;
    let invalid = StoreError::InvalidParameter;
    if r.share_access & !(FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE) != 0 {
        return Err(invalid);
    }
    if o & OPT_DIRECTORY_FILE != 0 {
        if o & OPT_NON_DIRECTORY_FILE != 0 {
            return Err(invalid);
        }
        let disposed =
            matches!(r.disposition, Disposition::Supersede | Disposition::Overwrite | Disposition::OverwriteIf);
        if disposed || o & !DIRECTORY_OPTIONS & 0x00FF_FFFF & !(OPT_SEQUENTIAL_ONLY | OPT_RANDOM_ACCESS) != 0 {
            return Err(invalid);
        }
    }
    if o & OPT_DIRECTORY_FILE != 0 && r.path.wants == PathWants::Data {
        return Err(StoreError::NotADirectory);
    }
    if o & OPT_NON_DIRECTORY_FILE != 0 && r.path.wants == PathWants::Directory {
        return Err(StoreError::InvalidName);
    }
    // [MS-SMB2] 2.2.13.
    if o & OPT_NO_EA_KNOWLEDGE != 0 && !r.eas.is_empty() {
        return Err(StoreError::AccessDenied);
    }
    if o & OPT_NO_INTERMEDIATE_BUFFERING != 0
        && map_generic(r.desired_access) & (FILE_APPEND_DATA | FILE_WRITE_DATA) == FILE_APPEND_DATA
    {
        return Err(invalid);
    }
    Ok(())
}

/// [MS-FSA] 2.1.5.1.2: not for who does not know of extended attributes where one has to be known.
fn check_needs_no_eas(r: &OpenRequest<'_>, node: &NodeRef, stat: &Stat) -> Result<()> {
    if r.options & OPT_NO_EA_KNOWLEDGE == 0 || stat.ea_size == 0 || node.stream().is_some() {
        return Ok(());
    }
    match node.eas()?.iter().any(|ea| ea.flags & NEED_EA != 0) {
        true => Err(StoreError::AccessDenied.into()),
        false => Ok(()),
    }
}

/// What an overwrite does to the file, and the access that it takes.
fn check_overwrite(r: &OpenRequest<'_>, node: &NodeRef, stat: &Stat) -> Result<(u32, u32), StoreError> {
    let stream = node.stream().is_some();
    if stat.directory && !stream {
        let root = node.path().is_empty();
        return Err(if root { StoreError::RootStays } else { StoreError::NameCollision });
    }
    let kept = ATTR_HIDDEN | ATTR_SYSTEM;
    if !stream && stat.attributes & kept & !r.attributes != 0 {
        return Err(StoreError::AccessDenied);
    }
    if stat.attributes & ATTR_READONLY != 0 {
        return Err(StoreError::ReadOnlyFile);
    }
    let effect = if r.disposition == Disposition::Supersede { DELETE } else { FILE_WRITE_DATA };
    let also = effect | if stream { 0 } else { FILE_WRITE_EA | FILE_WRITE_ATTRIBUTES };
    Ok((effect, also))
}

/// Directory or not, as asked for.
fn check_kind(r: &OpenRequest<'_>, directory: bool) -> Result<(), StoreError> {
    let wants_directory = r.options & OPT_DIRECTORY_FILE != 0 || r.path.wants == PathWants::Directory;
    if wants_directory && !directory {
        return Err(if r.disposition == Disposition::Create {
            StoreError::NameCollision
        } else {
            StoreError::NotADirectory
        });
    }
    let wants_file = r.options & OPT_NON_DIRECTORY_FILE != 0 || r.path.wants == PathWants::Data;
    if wants_file && directory {
        return Err(if r.disposition == Disposition::Create {
            StoreError::NameCollision
        } else {
            StoreError::IsADirectory
        });
    }
    Ok(())
}

fn check_delete_on_close(r: &OpenRequest<'_>, granted: u32) -> Result<(), StoreError> {
    if r.options & OPT_DELETE_ON_CLOSE != 0 && granted & DELETE == 0 {
        return Err(StoreError::AccessDenied);
    }
    Ok(())
}

/// ACLs that the creator gives stand as they are, flags and order included; what the parent hands down joins them
/// only where SE_DACL_AUTO_INHERIT_REQ (or its SACL kin) asks for it.
fn created_descriptor(
    parent: &SecurityDescriptor,
    explicit: Option<&SecurityDescriptor>,
    directory: bool,
    who: &Token,
) -> SecurityDescriptor {
    const DACL_PRESENT: u16 = 0x0004;
    const SACL_PRESENT: u16 = 0x0010;
    const DACL_AUTO_INHERIT_REQ: u16 = 0x0100;
    const SACL_AUTO_INHERIT_REQ: u16 = 0x0200;
    const DACL_STATE: u16 = 0x1400;
    const SACL_STATE: u16 = 0x2800;
    let mut sd = new_descriptor(Some(parent), explicit, directory, who);
    let Some(given) = explicit else { return sd };
    if let Some(acl) = given.dacl.as_ref().filter(|_| given.control & DACL_AUTO_INHERIT_REQ == 0) {
        sd.dacl = Some(mapped(acl));
        sd.control = sd.control & !DACL_STATE | DACL_PRESENT | given.control & DACL_STATE;
    }
    if let Some(acl) = given.sacl.as_ref().filter(|_| given.control & SACL_AUTO_INHERIT_REQ == 0) {
        sd.sacl = Some(mapped(acl));
        sd.control = sd.control & !SACL_STATE | SACL_PRESENT | given.control & SACL_STATE;
    }
    sd
}

/// Generic rights become those of files, but for the children they stay.
fn mapped(acl: &Acl) -> Acl {
    let mut acl = acl.clone();
    for ace in acl.aces.iter_mut().filter(|a| !a.is_inherit_only()) {
        ace.mask = map_generic(ace.mask);
    }
    acl
}

const IO_REPARSE_TAG_SYMLINK: u32 = 0xA000_000C;

/// The error for a reparse point in the way: a symbolic link goes to the client to follow.
fn symlink(r: &OpenRequest<'_>, link: &NodeRef, unparsed_components: usize) -> Result<OpenError> {
    let (tag, data) = link.reparse()?;
    if tag != IO_REPARSE_TAG_SYMLINK {
        return Ok(StoreError::UnknownReparseTag.into());
    }
    let first = r.path.components.len().saturating_sub(unparsed_components);
    let units: usize = r.path.components[first..].iter().map(|c| 1 + name_units(c)).sum();
    let stream = r.path.stream.as_ref().map_or(0, |s| 1 + name_units(s));
    let error = SymlinkError { tag, data, unparsed_path_bytes: (units + stream) * 2 };
    Ok(OpenError::Symlink(Box::new(error)))
}
