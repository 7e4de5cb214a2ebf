//! CREATE, [MS-SMB2] 3.3.5.9: from the request's bytes to an open of the store, and its response.
//! Durable handles are in `durable`.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64},
    },
};

use arden_lock::Mutex;
use arden_store::{
    error::{NotDone, StoreError},
    fs::{
        CacheGrant, CacheRequest, CreateAction, Disposition, Fs, LeaseRequest, OpenError, OpenRequest, Opened,
        OplockLevel, Step, lease_state,
    },
    name::NtPath,
    store::{Ea, Node, Stat},
};
use arden_wire::{
    FileTime, Malformed, NtStatus, access,
    cursor::{Put, Reader},
    dtyp::SecurityDescriptor,
    fscc,
    smb2::{
        Dialect, FileId,
        create::{
            CreateRequest, CreateResponse, LEASE_FLAG_BREAK_IN_PROGRESS, LEASE_FLAG_PARENT_KEY_SET, LeaseContext,
            oplock, tag,
        },
    },
};

use crate::{
    base::{
        status,
        usage::{Kind, OpenUsage, open_cost},
    },
    handlers::{
        durable::{self, Wanted},
        request::{Continuation, Fail, Handled, Request, waiting},
    },
    model::{Durability, Object, OpenState, SmbOpen, Tree, Work, caches_handle, share::Share, wire_level},
    trees::{breaks::Opening, creates::PendingCreate},
};

const BAD_IMPERSONATION_LEVEL: NtStatus = NtStatus(0xC000_00A5);
const FILE_FORCED_CLOSED: NtStatus = NtStatus(0xC000_00B6);

/// [MS-SMB2] 2.2.13: what the fields may hold.
const DESIRED_ACCESS_INVALID: u32 = 0x0CE0_FE00;
const OPTIONS_INVALID: u32 = 0xFF00_0000;
const OPTIONS_UNSUPPORTED: u32 = 0x0010_0080;
const ATTRIBUTES_INVALID: u32 = 0xFFFF_8048;

/// What a create asks for: its fields, and its contexts.
pub(crate) struct Asked {
    pub name: Result<String, Malformed>,
    pub desired_access: u32,
    pub share_access: u32,
    pub options: u32,
    disposition: u32,
    attributes: u32,
    oplock_level: u8,
    pub lease: Option<LeaseContext>,
    pub wanted: Wanted,
    pub app_instance: Option<(u128, Option<(u64, u64)>)>,
    eas: Vec<Ea>,
    security: Option<SecurityDescriptor>,
    allocation: Option<u64>,
    max_access: bool,
    disk_id: bool,
    /// [MS-SMB2] 2.2.13.2.7.
    past: Option<FileTime>,
    /// A context is longer than a descriptor or attributes that are set at once.
    has_long_context: bool,
    /// FILE_OPEN_BY_FILE_ID.
    pub by_id: Option<u64>,
}

/// A create that found out what to open and where, and waits for others to give up what they cache of it.
struct CreateAfterBreak {
    asked: Asked,
    /// The present or a snapshot. The share's files stay the same for as long as the tree connect lives.
    fs: Arc<Fs>,
    path: NtPath,
    by_id: Option<u64>,
    name: String,
    /// Noted from the first wait on.
    pending: Option<PendingCreate>,
}

pub fn create(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    let tree = request.tree()?.clone();
    let parsed = CreateRequest::parse(request.verified.message)?;
    let asked = ask(request, &parsed)?;
    let Some(fs) = tree.share.fs.clone() else {
        return crate::handlers::pipes::create(request, &tree, &parsed, out);
    };
    if let Some(open) = durable::reconnect(request, &tree, &asked)? {
        return respond_existing(request, &open, &asked, out);
    }
    if let Some(open) = durable::replayed(request, &tree, &asked, false)? {
        return respond_existing(request, &open, &asked, out);
    }
    let by_id = asked.by_id;
    let (name, mut path) = match by_id {
        Some(_) => (String::new(), NtPath::default()),
        None => {
            let name = asked.name.clone().map_err(|_| NtStatus::OBJECT_NAME_INVALID)?;
            if name.starts_with('\\') {
                return Err(NtStatus::INVALID_PARAMETER.into());
            }
            // The root stands for it: quotas are asked of any file of the volume.
            let is_index = crate::handlers::quota::is_quota_index(&fs, &name);
            let path = if is_index { NtPath::default() } else { NtPath::parse(&name)? };
            (name, path)
        }
    };
    // [MS-SMB2] 3.3.5.9.4.
    let fs = match path.take_gmt_token().or(asked.past) {
        Some(time) => fs.as_of(time)?,
        None => fs,
    };
    if !request.may_block && may_take_long(&asked, &path) {
        return Err(Fail::Block);
    }
    if let Some(instance) = asked.app_instance {
        fail_over(request, &tree, (&name, by_id), instance)?;
    }
    let mut create = CreateAfterBreak { asked, fs, path, by_id, name, pending: None };
    let handled = create.open(request, &tree, out);
    waiting(handled, create)
}

impl CreateAfterBreak {
    /// Access, sharing and what the name stands for are looked at in the moment in which the open is made.
    fn open(&mut self, request: &mut Request<'_>, tree: &Arc<Tree>, out: &mut Vec<u8>) -> Handled {
        let (trees, verified) = (request.trees, request.verified);
        let charge = |kind, cost| {
            let charged = trees.usage.charge(kind, &verified.user, Some(verified.ip), cost);
            charged.map_err(|_| NtStatus::TOO_MANY_OPENED_FILES)
        };
        let mut usage = OpenUsage::of(charge(Kind::Opens, open_cost(&self.name))?);
        if self.fs.store().takes_descriptors() {
            usage.descriptors = Some(charge(Kind::DescriptorOpens, 1)?);
        }
        let directories = Cell::new(None);
        let keeps = |node: &dyn Node, itself| {
            let Some(open) = &usage.descriptors else { return true };
            let kept = trees.usage.directories.keep(open, node, itself, false);
            kept.is_ok_and(|kept| {
                directories.set(kept);
                true
            })
        };
        let opened = open_file(request, tree, self, &keeps);
        usage.directories = directories.take();
        if let (Err(Fail::Wait(..)), Some(guid), None) = (&opened, self.asked.wanted.create_guid(), &self.pending) {
            self.pending = Some(trees.note_pending_create(verified.client.0, guid));
        }
        let opened = opened?;
        if let Some(open) = usage.descriptors.as_ref().filter(|_| self.asked.options & access::OPT_DELETE_ON_CLOSE != 0)
        {
            // The name waits for the last user of the file, who may have it open by another one.
            trees.usage.directories.stay(open, &**opened.0.open.node());
        }
        finish(request, tree, &self.asked, opened, (self.name.clone(), usage), out)
    }
}

impl Continuation for CreateAfterBreak {
    fn resume(&mut self, request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
        let tree = request.tree()?.clone();
        // Another with its CreateGuid may have been done meanwhile.
        if let Some(open) = durable::replayed(request, &tree, &self.asked, true)? {
            return respond_existing(request, &open, &self.asked, out);
        }
        if !request.may_block && may_take_long(&self.asked, &self.path) {
            return Err(Fail::Block);
        }
        self.open(request, &tree, out)
    }
}

/// Longer paths are looked up where that may take its time.
const INLINE_COMPONENTS_MAX: usize = 64;
/// Likewise descriptors and extended attributes.
const INLINE_CONTEXT_BYTES_MAX: usize = 4 * 1024;
/// Likewise space that a new file reserves.
const INLINE_ALLOCATION_BYTES_MAX: u64 = 16 << 20;

/// Whether the create may keep a thread for milliseconds.
fn may_take_long(asked: &Asked, path: &NtPath) -> bool {
    // The way up from an id may be long.
    asked.by_id.is_some()
        || path.components.len() > INLINE_COMPONENTS_MAX
        || asked.app_instance.is_some()
        || asked.allocation.is_some_and(|bytes| bytes > INLINE_ALLOCATION_BYTES_MAX)
        || asked.has_long_context
}

fn ask(request: &Request<'_>, parsed: &CreateRequest<'_>) -> Result<Asked, Fail> {
    let is_pipe = request.tree()?.share.is_pipe();
    let wanted = durable::wanted(parsed, request.verified.dialect())?;
    // A reconnect names an open that has its parameters already; what else the request says does not count.
    if !wanted.is_reconnect() {
        if parsed.impersonation > 3 {
            return Err(BAD_IMPERSONATION_LEVEL.into());
        }
        if !is_pipe {
            check_fields(parsed)?;
        } else if parsed.desired_access == 0 || parsed.desired_access & DESIRED_ACCESS_INVALID != 0 {
            // [MS-FSA] 2.1.5.1 phase 1 holds for pipes too.
            return Err(NtStatus::ACCESS_DENIED.into());
        }
    }
    let mut asked = Asked {
        name: parsed.name.clone(),
        desired_access: parsed.desired_access,
        share_access: parsed.share_access,
        options: parsed.options,
        disposition: parsed.disposition,
        attributes: parsed.attributes,
        oplock_level: parsed.oplock_level,
        lease: None,
        wanted,
        app_instance: None,
        eas: Vec::new(),
        security: None,
        allocation: None,
        max_access: false,
        disk_id: false,
        past: None,
        has_long_context: parsed.contexts.iter().any(|c| c.data.len() > INLINE_CONTEXT_BYTES_MAX),
        by_id: by_file_id(parsed).or_else(|refused| if wanted.is_reconnect() { Ok(None) } else { Err(refused) })?,
    };
    contexts(request, parsed, &mut asked)?;
    Ok(asked)
}

fn check_fields(r: &CreateRequest<'_>) -> Result<(), Fail> {
    if r.desired_access == 0 || r.desired_access & DESIRED_ACCESS_INVALID != 0 {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    if r.options & OPTIONS_INVALID != 0
        || r.share_access > 7
        || r.disposition > 5
        || r.attributes & ATTRIBUTES_INVALID & !access::ATTR_INTEGRITY_STREAM & !access::ATTR_NO_SCRUB_DATA != 0
    {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    if r.options & OPTIONS_UNSUPPORTED != 0 {
        return Err(NtStatus::NOT_SUPPORTED.into());
    }
    Ok(())
}

fn contexts(request: &Request<'_>, parsed: &CreateRequest<'_>, asked: &mut Asked) -> Result<(), Fail> {
    let dialect = request.verified.dialect();
    let mut instance_id = None;
    let mut instance_version = None;
    for context in &parsed.contexts {
        match context.name {
            tag::EA_BUFFER => {
                let eas = fscc::parse_eas(context.data)?;
                asked.eas = eas.into_iter().map(|e| Ea { name: e.name, flags: e.flags, value: e.value }).collect();
            }
            tag::SD_BUFFER => asked.security = Some(SecurityDescriptor::parse(context.data)?),
            tag::ALLOCATION_SIZE => asked.allocation = Some(Reader::new(context.data).u64()?),
            tag::MAXIMAL_ACCESS if context.data.is_empty() || context.data.len() == 8 => asked.max_access = true,
            tag::MAXIMAL_ACCESS => return Err(NtStatus::INVALID_PARAMETER.into()),
            tag::QUERY_ON_DISK_ID => asked.disk_id = true,
            tag::TIMEWARP => asked.past = Some(FileTime(Reader::new(context.data).u64()?)).filter(|t| t.0 != 0),
            tag::LEASE
                if dialect >= Dialect::Smb210
                    && (asked.oplock_level == oplock::LEASE || asked.wanted.is_reconnect()) =>
            {
                let lease = LeaseContext::parse(context.data)?;
                if lease.version == 1 || dialect.is_smb3() {
                    asked.lease = Some(lease);
                }
            }
            name if name == tag::APP_INSTANCE_ID && dialect.is_smb3() => {
                let mut r = Reader::new(context.data);
                r.skip(4)?;
                instance_id = Some(r.u128()?);
            }
            name if name == tag::APP_INSTANCE_VERSION && dialect == Dialect::Smb311 => {
                let mut r = Reader::new(context.data);
                r.skip(8)?;
                instance_version = Some((r.u64()?, r.u64()?));
            }
            _ => {}
        }
    }
    asked.app_instance = instance_id.map(|id| (id, instance_version));
    Ok(())
}

/// FILE_OPEN_BY_FILE_ID: the name is the 64-bit id, or the 128-bit one whose upper half is 0.
fn by_file_id(r: &CreateRequest<'_>) -> Result<Option<u64>, Fail> {
    if r.options & access::OPT_OPEN_BY_FILE_ID == 0 {
        return Ok(None);
    }
    let mut reader = Reader::new(r.name_bytes);
    match r.name_bytes.len() {
        8 => Ok(Some(reader.u64()?)),
        16 => {
            let (low, high) = (reader.u64()?, reader.u64()?);
            if high == 0 { Ok(Some(low)) } else { Err(NtStatus::INVALID_PARAMETER.into()) }
        }
        _ => Err(NtStatus::NOT_SUPPORTED.into()),
    }
}

/// AppInstanceId, [MS-SMB2] 3.3.5.9.13: another node of the same application takes its file over. It has to be of the
/// same user, or an administrator: to be able to read a file is no right to close what others have open.
fn fail_over(
    request: &Request<'_>,
    tree: &Tree,
    (name, by_id): (&str, Option<u64>),
    (id, version): (u128, Option<(u64, u64)>),
) -> Result<(), Fail> {
    let client = request.verified.client;
    let token = request.verified.user.clone();
    let name_in_lower_case = name.to_lowercase();
    let found = request.trees.opens_of_app_instance(id).into_iter().find(|o| {
        o.client != client
            && (o.owner.user == token.user || token.is_administrator())
            && o.share.name == tree.share.name
            && match by_id {
                Some(id) => o.file().is_some_and(|f| f.file_id().file == id),
                None => o.name.to_lowercase() == name_in_lower_case,
            }
    });
    let Some(open) = found else { return Ok(()) };
    // Before 3.1.1 a request has no version, and so does not take over from one that has.
    match (open.app_instance.and_then(|(_, v)| v), version) {
        (Some(held), Some(new)) if held >= new => return Err(FILE_FORCED_CLOSED.into()),
        (Some(_), None) => return Err(FILE_FORCED_CLOSED.into()),
        _ => {}
    }
    if let Some(file) = open.file() {
        let readable = file.fs().maximal_access(file, &token)?;
        if readable & access::FILE_GENERIC_READ == access::FILE_GENERIC_READ {
            tracing::info!(share = %tree.share.name, file = %name, client = %request.verified.address,
                "application instance fails over: its earlier open is closed");
            request.trees.close_open(request.scope, &open);
        }
    }
    Ok(())
}

/// [MS-SMB2] 3.3.5.9, 3.3.5.9.8 and 3.3.5.9.11: on a scale-out share a client of SMB 3 caches neither writes nor handles.
fn caches_reads_only(request: &Request<'_>, share: &Share) -> bool {
    share.is_scale_out() && request.verified.dialect().is_smb3()
}

/// What is asked to be cached.
fn cache_request(asked: &Asked, reads_only: bool) -> CacheRequest {
    let leases = match reads_only {
        true => lease_state::READ,
        false => lease_state::READ | lease_state::HANDLE | lease_state::WRITE,
    };
    match (asked.oplock_level, asked.lease) {
        (oplock::LEASE, Some(lease)) => CacheRequest::Lease(LeaseRequest {
            key: lease.key,
            state: lease.state & leases,
            parent_key: (lease.version == 2 && lease.flags & LEASE_FLAG_PARENT_KEY_SET != 0)
                .then_some(lease.parent_key),
            epoch: lease.epoch,
            version: lease.version,
        }),
        (oplock::LEVEL_II, _) => CacheRequest::Oplock(OplockLevel::LevelII),
        (oplock::BATCH, _) if reads_only => CacheRequest::Oplock(OplockLevel::LevelII),
        (oplock::EXCLUSIVE, _) => CacheRequest::Oplock(OplockLevel::Exclusive),
        (oplock::BATCH, _) => CacheRequest::Oplock(OplockLevel::Batch),
        _ => CacheRequest::None,
    }
}

fn open_file<'a>(
    request: &Request<'a>,
    tree: &Tree,
    create: &CreateAfterBreak,
    keeps: &dyn Fn(&dyn Node, bool) -> bool,
) -> Result<(Opened, Opening<'a>), Fail> {
    let limit = request.trees.config.limits.opens_per_session_max;
    if request.session.opens.read().len() >= limit {
        tracing::warn!(client = %request.verified.address, limit, "opens_per_session_max reached");
        return Err(NtStatus::TOO_MANY_OPENED_FILES.into());
    }
    let asked = &create.asked;
    let disposition = match asked.disposition {
        0 => Disposition::Supersede,
        1 => Disposition::Open,
        2 => Disposition::Create,
        3 => Disposition::OpenIf,
        4 => Disposition::Overwrite,
        _ => Disposition::OverwriteIf,
    };
    let who = request.verified.user.clone();
    let opening = request.trees.begin_open(request.scope);
    let opened = create.fs.open(&OpenRequest {
        id: opening.id,
        owner: &request.trees.owner,
        path: &create.path,
        by_id: create.by_id,
        desired_access: asked.desired_access,
        share_access: asked.share_access,
        disposition,
        options: asked.options,
        attributes: asked.attributes,
        allocation: asked.allocation,
        security: asked.security.as_ref(),
        eas: &asked.eas,
        cache: cache_request(asked, caches_reads_only(request, &tree.share)),
        client: request.verified.client,
        mark: durable::create_mark(request, tree, &asked.wanted),
        who: &who,
        access_ceiling: tree.ceiling(&who),
        durable: tree.share.is_durable(),
        keeps: Some(keeps),
        cause: request.cause(),
    });
    match opened {
        Ok(Step::Done(opened)) => Ok((opened, opening)),
        Ok(Step::Wait(wait)) => Err(Fail::Wait(wait, None)),
        Err(OpenError::Symlink(link)) => {
            Err(Fail::with_data(NtStatus::STOPPED_ON_SYMLINK, &symlink_error(&link), request.verified.dialect()))
        }
        // The file waits for the client of a persistent open, [MS-SMB2] 3.3.5.9. Older clients do not know the status.
        Err(OpenError::NotDone(NotDone::Failed(StoreError::HeldByAbsentOwner)))
            if !request.verified.dialect().is_smb3() =>
        {
            Err(StoreError::SharingViolation.into())
        }
        Err(OpenError::NotDone(e)) => Err(e.into()),
    }
}

/// Symbolic Link Error Response, [MS-SMB2] 2.2.2.2.1, padded to a multiple of 8 bytes.
///
/// The padding is part of PathBuffer, so SymLinkLength and ErrorDataLength count it and nothing follows the last error context: go-smb2
/// refuses a context that ends between multiples of 8, smbprotocol takes bytes behind the last context for another one.
fn symlink_error(link: &arden_store::fs::SymlinkError) -> Vec<u8> {
    let length = (16 + link.data.len()).next_multiple_of(8);
    let mut out = Vec::with_capacity(length);
    out.put_u32((length - 4) as u32);
    out.put_u32(0x4C4D_5953);
    out.put_u32(link.tag);
    out.put_u16(link.data.len() as u16);
    out.put_u16(link.unparsed_path_bytes as u16);
    out.extend_from_slice(&link.data);
    out.resize(length, 0);
    out
}

fn finish(
    request: &mut Request<'_>,
    tree: &Arc<Tree>,
    asked: &Asked,
    (opened, opening): (Opened, Opening<'_>),
    (name, usage): (String, OpenUsage),
    out: &mut Vec<u8>,
) -> Handled {
    let id = opened.open.id().0;
    let id = FileId { persistent: id, volatile: id };
    let granted = durable::grant(request, tree, &asked.wanted, &opened, &name);
    let mut state = OpenState::new(request.session, tree.id, request.verified.header.channel_sequence());
    state.durability = granted;
    // [MS-SMB2] 3.3.5.9.10: directories where they persist.
    let replayable = !opened.stat.directory || matches!(granted, Durability::Persistent { .. });
    state.replay_eligible = asked.wanted.create_guid().is_some() && replayable;
    let lease_key = match opened.cache {
        CacheGrant::Lease { key, .. } => Some(key),
        CacheGrant::Oplock(_) => None,
    };
    let open = Arc::new(SmbOpen {
        id,
        object: Object::File(opened.open.clone()),
        share: tree.share.clone(),
        owner: request.verified.user.clone(),
        client: request.verified.client,
        create_guid: asked.wanted.create_guid(),
        lease_key,
        app_instance: asked.app_instance,
        action: opened.action,
        create_options: asked.options,
        name,
        desired_access: asked.desired_access,
        state: Mutex::new(state),
        position: AtomicU64::new(0),
        quota_index: AtomicU64::new(0),
        ea_index: AtomicU64::new(0),
        mode: AtomicU32::new(
            (asked.options | if tree.share.continuously_available { access::OPT_WRITE_THROUGH } else { 0 })
                & (access::OPT_WRITE_THROUGH | access::OPT_SEQUENTIAL_ONLY | access::OPT_NO_INTERMEDIATE_BUFFERING),
        ),
        kept_locks: Mutex::default(),
        work: Work::default(),
        usage,
    });
    if matches!(granted, Durability::Persistent { .. }) {
        request.trees.keep_new(request.scope, &open);
    } else if let Some(key) = lease_key {
        // Another open of the lease may be persistent, and this one may have raised the lease.
        request.trees.keep_lease(request.scope, open.client, key);
    }
    register(request, &open);
    drop(opening);
    request.related.file = Some(id);
    respond(request, &open, asked, opened.action, opened.cache, &opened.stat, out)
}

pub(crate) fn register(request: &Request<'_>, open: &Arc<SmbOpen>) {
    let (trees, session) = (request.trees, request.session);
    session.opens.write().insert(open.id.volatile, open.clone());
    trees.add_open(open);
    // While the file was being opened, its session may have ended: nobody would close it.
    trees.recheck_open(request.scope, session, open);
}

/// Reconnected or replayed: the open as it is now.
fn respond_existing(request: &mut Request<'_>, open: &Arc<SmbOpen>, asked: &Asked, out: &mut Vec<u8>) -> Handled {
    let file = open.file().ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?;
    let stat = file.fs().stat(file)?.stat;
    let cache = file.fs().cache(file);
    request.related.file = Some(open.id);
    // Who is told of it now may not be who made it: what is kept of it is durable with this answer.
    request.trees.keep_open(request.scope, open.id.persistent);
    request.scope.relies_on(file);
    // [MS-SMB2] 3.3.5.9.10: a replay is answered as the first time, a reconnect says that the file was there.
    let reconnect = asked.wanted.is_reconnect();
    let action = if reconnect { CreateAction::Opened } else { open.action };
    let cache = match (cache, cache_request(asked, caches_reads_only(request, &open.share))) {
        // The replay may ask for less than the open has; it is told what it asked for.
        (CacheGrant::Oplock(_), CacheRequest::None) if !reconnect => CacheGrant::Oplock(OplockLevel::None),
        (CacheGrant::Oplock(held), CacheRequest::Oplock(asked)) if !reconnect => CacheGrant::Oplock(held.min(asked)),
        _ => cache,
    };
    respond(request, open, asked, action, cache, &stat, out)
}

/// "Response Construction".
fn respond(
    request: &Request<'_>,
    open: &SmbOpen,
    asked: &Asked,
    action: CreateAction,
    cache: CacheGrant,
    stat: &Stat,
    out: &mut Vec<u8>,
) -> Handled {
    let mut contexts: Vec<(&[u8], Vec<u8>)> = Vec::new();
    if asked.max_access {
        contexts.push((tag::MAXIMAL_ACCESS, maximal_access(request, open)));
    }
    if let CacheGrant::Lease { .. } = cache {
        contexts.push((tag::LEASE, lease_context(cache)));
    }
    if caches_handle(cache) || open.is_persistent() {
        contexts.extend(durable::response_context(open, &asked.wanted));
    }
    if asked.disk_id {
        let mut data = Vec::with_capacity(32);
        data.put_u64(stat.id.file);
        data.put_u64(stat.id.volume);
        data.put_zeros(16);
        contexts.push((tag::QUERY_ON_DISK_ID, data));
    }
    CreateResponse {
        oplock_level: wire_oplock(cache),
        action: action as u32,
        creation: stat.creation,
        last_access: stat.last_access,
        last_write: stat.last_write,
        change: stat.change,
        allocation: stat.allocation,
        end_of_file: stat.end_of_file,
        attributes: stat.attributes,
        reparse: false,
        file_id: open.id,
    }
    .put(out, &contexts);
    Ok(NtStatus::SUCCESS)
}

/// SMB2_CREATE_QUERY_MAXIMAL_ACCESS_RESPONSE, [MS-SMB2] 2.2.14.2.5.
fn maximal_access(request: &Request<'_>, open: &SmbOpen) -> Vec<u8> {
    let who = request.verified.user.clone();
    let answer = match open.file() {
        Some(file) => file.fs().maximal_access(file, &who),
        None => Ok(access::FILE_ALL_ACCESS),
    };
    let ceiling = request.tree.as_ref().map_or(u32::MAX, |t| t.ceiling(&who));
    let mut data = Vec::with_capacity(8);
    data.put_u32(answer.err().map_or(NtStatus::SUCCESS, status::of).0);
    data.put_u32(answer.map_or(0, |a| a & ceiling));
    data
}

fn lease_context(cache: CacheGrant) -> Vec<u8> {
    let CacheGrant::Lease { key, state, parent_key, epoch, version, breaking } = cache else { return Vec::new() };
    let mut flags = 0;
    if breaking {
        flags |= LEASE_FLAG_BREAK_IN_PROGRESS;
    }
    if parent_key.is_some() {
        flags |= LEASE_FLAG_PARENT_KEY_SET;
    }
    LeaseContext { key, state, flags, parent_key: parent_key.unwrap_or(0), epoch, version }.encode()
}

pub(crate) fn wire_oplock(cache: CacheGrant) -> u8 {
    match cache {
        CacheGrant::Oplock(level) => wire_level(level),
        CacheGrant::Lease { .. } => oplock::LEASE,
    }
}
