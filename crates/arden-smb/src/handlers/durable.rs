//! Durable handles: which are asked for, granted, reconnected and replayed, [MS-SMB2] 3.3.5.9.6, .7, .10 and .12.

use std::{sync::Arc, time::Duration};

use arden_store::fs::{CacheGrant, CreateMark, Opened, OplockLevel};
use arden_wire::{
    NtStatus,
    cursor::{Put, Reader},
    smb2::{
        Dialect, FileId,
        create::{CreateRequest, DurableV2, ReconnectV2, tag},
        flags,
        negotiate::capability,
    },
};

use crate::{
    handlers::{
        create::Asked,
        request::{Fail, Request},
    },
    model::{Durability, Negotiated, OpenState, SmbOpen, Tree, caches_handle},
    trees::{keeps_all, persist::is_named, same_files},
};

const CONTEXT_MISMATCH: NtStatus = NtStatus(0xC000_0719);
/// SMB2_DHANDLE_FLAG_PERSISTENT, [MS-SMB2] 2.2.14.2.12.
const DHANDLE_FLAG_PERSISTENT: u32 = 2;

/// What the contexts say about durability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Nothing,
    V1,
    V2(DurableV2),
    ReconnectV1(FileId),
    ReconnectV2(ReconnectV2),
}

impl Wanted {
    pub fn is_reconnect(&self) -> bool {
        matches!(self, Wanted::ReconnectV1(_) | Wanted::ReconnectV2(_))
    }
    pub fn create_guid(&self) -> Option<u128> {
        match self {
            Wanted::V2(v2) => Some(v2.create_guid),
            _ => None,
        }
    }
}

/// Contexts that exclude each other are INVALID_PARAMETER.
pub(crate) fn wanted(r: &CreateRequest<'_>, dialect: Dialect) -> Result<Wanted, Fail> {
    let v1 = r.context(tag::DURABLE_REQUEST);
    let v1_again = r.context(tag::DURABLE_RECONNECT);
    // [MS-SMB2] 3.3.5.9.7: in every dialect, also where a v2 context alone is unknown.
    let has_v2 = |tag| r.context(tag).is_some();
    if v1_again.is_some() && (has_v2(tag::DURABLE_REQUEST_V2) || has_v2(tag::DURABLE_RECONNECT_V2)) {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let smb3 = |data| if dialect.is_smb3() { data } else { None };
    let v2 = smb3(r.context(tag::DURABLE_REQUEST_V2));
    let v2_again = smb3(r.context(tag::DURABLE_RECONNECT_V2));
    let invalid = Err(NtStatus::INVALID_PARAMETER.into());
    match (v1, v1_again, v2, v2_again) {
        (_, Some(data), None, None) => {
            Ok(Wanted::ReconnectV1(FileId::read(&mut Reader::new(data)).map_err(Fail::from)?))
        }
        (None, None, None, Some(data)) => Ok(Wanted::ReconnectV2(ReconnectV2::parse(data)?)),
        (None, None, Some(data), None) => Ok(Wanted::V2(DurableV2::parse(data)?)),
        (Some(_), None, None, None) => Ok(Wanted::V1),
        (None, None, None, None) => Ok(Wanted::Nothing),
        _ => invalid,
    }
}

/// Does the request ask for persistence where it can be had, [MS-SMB2] 3.3.5.9.10?
pub(crate) fn may_persist(request: &Request<'_>, tree: &Tree, persistent: bool) -> bool {
    let knows = |n: &Negotiated| n.server_capabilities & capability::PERSISTENT_HANDLES != 0;
    persistent && tree.share.keeps_handles() && knows(request.verified.negotiated)
}

/// What the file that a persistent create makes is known by, should its answer be lost.
pub(crate) fn create_mark(request: &Request<'_>, tree: &Tree, wanted: &Wanted) -> Option<CreateMark> {
    match wanted {
        Wanted::V2(v2) if may_persist(request, tree, v2.persistent) => {
            Some(CreateMark { id: v2.create_guid, replay: request.verified.header.is(flags::REPLAY_OPERATION) })
        }
        _ => None,
    }
}

/// What a fresh open gets. Persistence needs nothing cached.
pub(crate) fn grant(request: &Request<'_>, tree: &Tree, wanted: &Wanted, opened: &Opened, name: &str) -> Durability {
    let limits = &request.trees.config.limits;
    // What is kept of a persistent open leads to the present.
    let lasts = !opened.open.fs().is_read_only();
    let persistent = lasts
        && matches!(wanted, Wanted::V2(v2) if may_persist(request, tree, v2.persistent))
        && request.trees.may_keep_another(&opened.open.who().user, name, &opened.open);
    // Directories are not durable, [MS-SMB2] 3.3.5.9.6 and 3.3.5.9.10, but where they can persist they do, as files.
    if !persistent && (opened.open.is_directory() || !caches_handle(opened.cache)) {
        return Durability::None;
    }
    match wanted {
        Wanted::V1 => Durability::V1 { timeout: limits.durable_timeout_default },
        Wanted::V2(v2) => {
            let asked = Duration::from_millis(u64::from(v2.timeout_ms));
            let timeout = if asked.is_zero() { limits.durable_timeout_default } else { asked };
            let timeout = timeout.min(limits.durable_timeout_max);
            if persistent { Durability::Persistent { timeout } } else { Durability::V2 { timeout } }
        }
        _ => Durability::None,
    }
}

/// The context that tells the client what it got.
pub(crate) fn response_context(open: &SmbOpen, wanted: &Wanted) -> Option<(&'static [u8], Vec<u8>)> {
    match (wanted, open.state.lock().durability) {
        (Wanted::V1, Durability::V1 { .. }) => Some((tag::DURABLE_REQUEST, vec![0; 8])),
        (Wanted::V2(_), durability @ (Durability::V2 { timeout } | Durability::Persistent { timeout })) => {
            let mut data = Vec::with_capacity(8);
            data.put_u32(timeout.as_millis() as u32);
            data.put_u32(if matches!(durability, Durability::V2 { .. }) { 0 } else { DHANDLE_FLAG_PERSISTENT });
            Some((tag::DURABLE_REQUEST_V2, data))
        }
        _ => None,
    }
}

/// DHnC and DH2C. None: the request asks for no reconnect.
pub(crate) fn reconnect(request: &Request<'_>, tree: &Arc<Tree>, asked: &Asked) -> Result<Option<Arc<SmbOpen>>, Fail> {
    let (id, guid, asks_persistent) = match asked.wanted {
        Wanted::ReconnectV1(id) => (id, None, false),
        Wanted::ReconnectV2(v2) => (v2.file_id, Some(v2.create_guid), v2.persistent),
        _ => return Ok(None),
    };
    let not_found = || Fail::Status(NtStatus::OBJECT_NAME_NOT_FOUND);
    // It may have got another id, where its own was also that of another open.
    let same = |open: &Arc<SmbOpen>| guid.is_none_or(|g| g == open.create_guid.unwrap_or(0));
    let open = request.trees.open(id.persistent).filter(same).or_else(|| {
        let may = may_persist(request, tree, asks_persistent);
        request.trees.open_by_create_guid(request.verified.client.0, guid.filter(|_| may)?)
    });
    let Some(open) = open else {
        tracing::debug!(client = %request.verified.address, id = id.persistent, "no such open to reconnect");
        return Err(not_found());
    };
    let file = open.file().ok_or_else(not_found)?.clone();
    let cache = file.fs().cache(&file);
    let persistent = open.is_persistent();
    // A share of the same name may have come to be another directory meanwhile.
    if !same(&open) || open.share.name != tree.share.name || !same_files(&open.share, &tree.share) {
        return Err(not_found());
    }
    if open.owner.user != request.verified.user.user {
        // [MS-SMB2] 3.3.5.9.7 and .12. A handle that is in use is nobody else's business.
        let state = open.state.lock();
        let waits = state.durability != Durability::None && state.session.is_none();
        return Err(if waits { NtStatus::ACCESS_DENIED.into() } else { not_found() });
    }
    // A user who has lost a group does not get back what that gave him; whoever took it away closes the open.
    if !keeps_all(&open.owner, &request.verified.user) {
        return Err(not_found());
    }
    // What outlives the server goes to no other client, and only to one that says what it takes up.
    if persistent && (!asks_persistent || open.client != request.verified.client) {
        return Err(not_found());
    }
    check_lease(request, &open, cache, asked)?;
    if asks_persistent && !persistent {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    if persistent {
        take_from_other_node(request, &open)?;
    }
    wait_for_disconnect(request, &open)?;
    wait_for_work(&open)?;
    let state = open.state.lock();
    let resilient = matches!(state.durability, Durability::Resilient { .. });
    // Either reconnect context may claim either kind of handle: the id, and with DH2C the guid, identify it.
    let durable = state.durability != Durability::None;
    tracing::debug!(file = %open.name, durability = ?state.durability, connected = state.session.is_some(), ?cache, "reconnect");
    if !durable || state.session.is_some() || (!resilient && !persistent && !caches_handle(cache)) {
        return Err(not_found());
    }
    drop(state);
    if !attach(request, tree, &open) {
        return Err(not_found());
    }
    if !request.trees.recheck_open(request.scope, request.session, &open) {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    if persistent {
        resume_lease(request, &open, asked);
    }
    tracing::info!(share = %open.share.name, file = %open.name, client = %request.verified.address, persistent, "durable handle reclaimed");
    Ok(Some(open))
}

/// The client of a persistent open is back: its lease goes on, and it is told of a break that began while it was away,
/// [MS-SMB2] 3.3.4.7. Owed by everything that takes an absent open up.
fn resume_lease(request: &Request<'_>, open: &Arc<SmbOpen>, asked: &Asked) {
    if let (Some(file), Some(lease)) = (open.file(), asked.lease) {
        file.fs().catch_up(file, lease.epoch);
        request.trees.keep_lease(request.scope, open.client, lease.key);
    }
    request.trees.tell_break_later(open);
}

/// A disconnected open belongs to this session from now on. False: another has it already, or it is about to be closed.
fn attach(request: &Request<'_>, tree: &Tree, open: &Arc<SmbOpen>) -> bool {
    {
        let mut state = open.state.lock();
        if state.session.is_some() || state.given_up {
            return false;
        }
        state.session = Some(Arc::downgrade(request.session));
        if let (Durability::Persistent { .. }, Some(file)) = (state.durability, open.file()) {
            file.fs().set_owner_absent(file, false);
        }
        state.tree_id = tree.id;
        state.expires = None;
        state.channel_sequence = request.verified.header.channel_sequence();
        state.outstanding = 0;
        state.outstanding_before = 0;
    }
    if let Some(file) = open.file() {
        file.set_share_permits(tree.ceiling(&request.verified.user));
        file.set_durable(tree.share.is_durable());
    }
    request.session.opens.write().insert(open.id.volatile, open.clone());
    true
}

/// A client that takes its persistent open up by another node than before has left that one, which may not have noticed: for that
/// node's sessions the open is not there any more. For the server that the client asks, [MS-SMB2] 3.3.5.9.12, Open.Session is NULL:
/// every node is one.
fn take_from_other_node(request: &Request<'_>, open: &Arc<SmbOpen>) -> Result<(), Fail> {
    let Some(before) = open.session().filter(|before| before.node != request.session.node) else { return Ok(()) };
    if open.has_work() {
        return Err(Fail::After(open.clone()));
    }
    tracing::info!(share = %open.share.name, file = %open.name, client = %request.verified.address, "a client comes by another node");
    request.trees.detach(&before, open, request.now);
    Ok(())
}

/// What the client asked for over the connection that it lost is done, or is not, before it asks again over another: it may replay it,
/// or write something newer. No request begins on an open that has no session.
fn wait_for_work(open: &Arc<SmbOpen>) -> Result<(), Fail> {
    let is_absent = open.state.lock().session.is_none();
    if is_absent && open.has_work() { Err(Fail::After(open.clone())) } else { Ok(()) }
}

/// How long a reconnect waits for the end of the connection that it replaces: a client may be back before the
/// server has noticed that it was gone.
const DISCONNECT_PATIENCE: Duration = Duration::from_millis(100);

fn wait_for_disconnect(request: &Request<'_>, open: &SmbOpen) -> Result<(), Fail> {
    let connected = || open.state.lock().session.is_some();
    if connected() && !request.may_block {
        return Err(Fail::Block);
    }
    let step = DISCONNECT_PATIENCE / 10;
    for _ in 0..10 {
        if !connected() {
            break;
        }
        std::thread::sleep(step);
    }
    Ok(())
}

/// The lease that the request names has to be the one that the open has.
fn check_lease(request: &Request<'_>, open: &SmbOpen, cache: CacheGrant, asked: &Asked) -> Result<(), Fail> {
    let not_found = Err(Fail::Status(NtStatus::OBJECT_NAME_NOT_FOUND));
    match (cache, asked.lease) {
        (CacheGrant::Lease { key, version, .. }, Some(lease)) => {
            if open.client != request.verified.client || lease.key != key || lease.version != version {
                return not_found;
            }
            let same = match asked.by_id {
                Some(id) => open.file().is_some_and(|file| file.file_id().file == id),
                None => asked.name.as_ref().is_ok_and(|n| is_named(open, &n.to_lowercase())),
            };
            if same { Ok(()) } else { Err(NtStatus::INVALID_PARAMETER.into()) }
        }
        (CacheGrant::Lease { .. }, None) | (CacheGrant::Oplock(_), Some(_)) => not_found,
        (CacheGrant::Oplock(OplockLevel::Batch), None) => Ok(()),
        (CacheGrant::Oplock(_), None) if open.is_persistent() => Ok(()),
        (CacheGrant::Oplock(_), None) if matches!(open.state.lock().durability, Durability::Resilient { .. }) => Ok(()),
        (CacheGrant::Oplock(_), None) => not_found,
    }
}

/// A create that was done before, [MS-SMB2] 3.3.5.9.10. `waited`: it is itself the one with its CreateGuid that was pending.
pub(crate) fn replayed(
    request: &Request<'_>,
    tree: &Tree,
    asked: &Asked,
    waited: bool,
) -> Result<Option<Arc<SmbOpen>>, Fail> {
    let Wanted::V2(v2) = asked.wanted else { return Ok(None) };
    let client = request.verified.client.0;
    let Some(open) = request.trees.open_by_create_guid(client, v2.create_guid) else {
        if !waited && request.trees.create_is_pending(client, v2.create_guid) {
            return Err(NtStatus::FILE_NOT_AVAILABLE.into());
        }
        return Ok(None);
    };
    let persistent = open.is_persistent() && may_persist(request, tree, v2.persistent);
    let again = persistent && request.verified.header.is(flags::REPLAY_OPERATION);
    if !again && !open.state.lock().replay_eligible {
        return Ok(None);
    }
    if !request.verified.header.is(flags::REPLAY_OPERATION) {
        return Err(NtStatus::DUPLICATE_OBJECTID.into());
    }
    // The parameters have to be those of the first time; the lease decides, [MS-SMB2] 3.3.5.9.
    if open.lease_key != asked.lease.map(|l| l.key) && (open.lease_key.is_some() || asked.lease.is_some()) {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    if open.is_persistent() {
        replayed_persistent(request, tree, asked, &open, v2.persistent)?;
    } else if !is_of_session(&open.state.lock(), request) {
        return Err(NtStatus::DUPLICATE_OBJECTID.into());
    }
    Ok(Some(open))
}

fn is_of_session(state: &OpenState, request: &Request<'_>) -> bool {
    state.session.as_ref().is_some_and(|s| std::ptr::eq(s.as_ptr(), Arc::as_ptr(request.session)))
}

/// The replay may come over a new connection, and after a restart: the client never heard of its handle.
fn replayed_persistent(
    request: &Request<'_>,
    tree: &Tree,
    asked: &Asked,
    open: &Arc<SmbOpen>,
    asks_persistent: bool,
) -> Result<(), Fail> {
    if !asks_persistent {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    if open.share.name != tree.share.name {
        return Err(NtStatus::DUPLICATE_OBJECTID.into());
    }
    {
        let state = open.state.lock();
        if is_of_session(&state, request) {
            // Answered again; but once the handle was used, the client has heard of it.
            return if state.replay_eligible { Ok(()) } else { Err(NtStatus::FILE_NOT_AVAILABLE.into()) };
        }
    }
    let share = open.file().map_or(0, |f| f.share_access());
    if (asked.options, asked.desired_access, asked.share_access) != (open.create_options, open.desired_access, share) {
        return Err(CONTEXT_MISMATCH.into());
    }
    take_from_other_node(request, open)?;
    wait_for_disconnect(request, open)?;
    wait_for_work(open)?;
    if !attach(request, tree, open) {
        return Err(NtStatus::FILE_NOT_AVAILABLE.into());
    }
    if !request.trees.recheck_open(request.scope, request.session, open) {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    resume_lease(request, open, asked);
    Ok(())
}
