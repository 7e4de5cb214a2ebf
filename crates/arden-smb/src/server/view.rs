//! The server as the RPC interfaces and administration see it.

use std::{collections::HashMap, sync::Arc, time::Instant};

use arden_auth::{ServerIdentity, UserDb};
use arden_rpc::{ConnectionView, OpenView, ServerView, SessionView, ShareView, share_type};
use arden_store::fs::{CacheGrant, OpenId};
use arden_wire::{
    FileTime, NtStatus,
    dtyp::{Ace, Acl, SecurityDescriptor, well_known},
};

use crate::{
    base::status,
    model::{SmbOpen, share::Share},
    server::Server,
    sessions::Session,
};

pub struct View {
    server: Arc<Server>,
}

impl View {
    pub fn new(server: Arc<Server>) -> View {
        View { server }
    }
}

/// SHI1005_FLAGS, [MS-SRVS] 2.2.4.29.
const SHI1005_ACCESS_BASED_DIRECTORY_ENUM: u32 = 0x0800;
const SHI1005_ENCRYPT_DATA: u32 = 0x8000;

fn share_view(share: &Share) -> ShareView {
    let mut flags = 0;
    if share.access_based_enumeration {
        flags |= SHI1005_ACCESS_BASED_DIRECTORY_ENUM;
    }
    if share.encrypt {
        flags |= SHI1005_ENCRYPT_DATA;
    }
    let mut kind = if share.is_pipe() { share_type::IPC } else { share_type::DISKTREE };
    if share.is_scale_out() {
        kind |= share_type::CLUSTER_SOFS;
    }
    if share.hidden {
        kind |= share_type::SPECIAL;
    }
    ShareView {
        name: share.name.clone(),
        comment: share.comment.clone(),
        kind,
        path: share.path.clone(),
        max_users: share.users_max,
        current_users: 0,
        flags,
        security: Some(share_security(share)),
        server_name: String::new(),
    }
}

/// The share's access list as a descriptor.
fn share_security(share: &Share) -> SecurityDescriptor {
    let aces = if share.access.is_empty() {
        vec![Ace::allow(&well_known::AUTHENTICATED_USERS, arden_wire::access::FILE_ALL_ACCESS, 0)]
    } else {
        let (deny, allow): (Vec<_>, Vec<_>) = share.access.iter().partition(|a| !a.allow);
        let deny = deny.into_iter().map(|a| Ace::deny(&a.sid, a.mask, 0));
        deny.chain(allow.into_iter().map(|a| Ace::allow(&a.sid, a.mask, 0))).collect()
    };
    let admins = &*well_known::BUILTIN_ADMINISTRATORS;
    SecurityDescriptor::with_dacl(admins, admins, Acl::new(aces))
}

fn client_address(session: &Session) -> String {
    session.live_peer().map_or_else(String::new, |p| p.ip.to_string())
}

fn session_view(session: &Session, now: Instant) -> SessionView {
    SessionView {
        id: session.id,
        client: client_address(session),
        user: session.token().user_name.clone(),
        opens: session.tables.opens.read().len() as u32,
        seconds: now.saturating_duration_since(session.created).as_secs() as u32,
        idle_seconds: session.idle(now).as_secs() as u32,
        guest: session.anonymous,
    }
}

/// The tree connects of a session. One pass over its opens: a client may have thousands of both.
fn connection_views(session: &Session, now: Instant) -> Vec<ConnectionView> {
    let mut opens: HashMap<u32, u32> = HashMap::new();
    for open in session.tables.opens.read().values() {
        *opens.entry(open.state.lock().tree_id).or_default() += 1;
    }
    let (user, client) = (session.token().user_name.clone(), client_address(session));
    let seconds = now.saturating_duration_since(session.created).as_secs() as u32;
    let trees = session.tables.trees.read();
    let view = |(share, id): (&str, u32)| ConnectionView {
        id,
        kind: if share == "IPC$" { share_type::IPC } else { share_type::DISKTREE },
        opens: opens.get(&id).copied().unwrap_or(0),
        users: 1,
        seconds,
        user: user.clone(),
        client: client.clone(),
        share: share.to_owned(),
    };
    trees.values().map(|t| view((&t.share.name, t.id))).collect()
}

/// srvsvc has 32 bits for what has 64 here: ids count up from 1, so the low half tells opens apart.
fn open_view(open: &SmbOpen, locks: u32) -> OpenView {
    let access = open.file().map_or(open.desired_access, |f| f.granted_access());
    OpenView {
        id: open.id.persistent as u32,
        access,
        locks,
        path: format!("{}/{}", open.share.path, open.name.replace('\\', "/")),
        user: open.owner.user_name.clone(),
    }
}

impl ServerView for View {
    fn identity(&self) -> ServerIdentity {
        (*self.server.trees.config.identity).clone()
    }
    fn comment(&self) -> String {
        self.server.trees.config.comment.clone()
    }
    fn now(&self) -> FileTime {
        self.server.trees.time().wall
    }
    fn started(&self) -> FileTime {
        self.server.trees.started_at
    }
    fn users(&self) -> Arc<dyn UserDb> {
        self.server.trees.config.users.clone()
    }
    fn shares(&self) -> Vec<ShareView> {
        self.server.trees.listed_shares().iter().map(|s| share_view(s)).collect()
    }
    fn share_uses(&self) -> HashMap<String, u32> {
        let mut uses = HashMap::new();
        for session in self.server.sessions() {
            for tree in session.tables.trees.read().values() {
                *uses.entry(tree.share.name.clone()).or_default() += 1;
            }
        }
        uses
    }
    fn sessions(&self) -> Vec<SessionView> {
        self.server.sessions().iter().map(|s| session_view(s, self.server.trees.time().now)).collect()
    }
    fn opens(&self) -> Vec<OpenView> {
        let locks = self.server.trees.table.locks();
        let locks_of = |o: &SmbOpen| locks.get(&OpenId(o.id.persistent)).map_or(0, |n| *n as u32);
        self.server.trees.opens().iter().map(|o| open_view(o, locks_of(o))).collect()
    }
    fn connections(&self) -> Vec<ConnectionView> {
        let now = self.server.trees.time().now;
        self.server.sessions().iter().flat_map(|s| connection_views(s, now)).collect()
    }
    fn close_session(&self, id: u64) -> bool {
        self.server.close_session(id)
    }
    fn close_file(&self, id: u32) -> bool {
        let found = self.server.trees.opens().into_iter().find(|o| o.id.persistent as u32 == id);
        found.is_some_and(|o| self.server.trees.close_open_by_id(o.id.persistent))
    }
    fn file_security(&self, share: &str, path: &str, information: u32) -> Result<SecurityDescriptor, NtStatus> {
        use arden_store::{name::NtPath, store::Lookup};
        let share = self.server.trees.share(share).ok_or(NtStatus::BAD_NETWORK_NAME)?;
        let fs = share.fs.clone().ok_or(NtStatus::INVALID_PARAMETER)?;
        let path = NtPath::parse(path.trim_start_matches('\\')).map_err(status::of_error)?;
        match fs.store().lookup(&path).map_err(status::of)? {
            Lookup::Found(node) => Ok(node.security().map_err(status::of)?.select(information)),
            _ => Err(NtStatus::OBJECT_NAME_NOT_FOUND),
        }
    }
}

/// How a grant reads for people: `batch`, `lease rwh`, or nothing.
pub fn cache_name(cache: CacheGrant) -> String {
    use arden_store::fs::{OplockLevel, lease_state};
    match cache {
        CacheGrant::Oplock(OplockLevel::None) => String::new(),
        CacheGrant::Oplock(OplockLevel::LevelII) => "level2".into(),
        CacheGrant::Oplock(OplockLevel::Exclusive) => "exclusive".into(),
        CacheGrant::Oplock(OplockLevel::Batch) => "batch".into(),
        CacheGrant::Lease { state, .. } => {
            let set = lease_state::letters(state).to_lowercase();
            if set.is_empty() { String::new() } else { format!("lease {set}") }
        }
    }
}
