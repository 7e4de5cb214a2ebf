//! What a session has on the trees' side: Session.TreeConnectTable and Session.OpenTable of [MS-SMB2] 3.3.1.8, and whose they
//! are. Knows neither keys nor connections.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use arden_auth::Token;
use arden_lock::{RwLock, ranks};
use arden_store::fs::ClientId;

use crate::{
    base::grants::Grants,
    model::{SmbOpen, TreeConnects},
};

/// The tables of one session.
pub struct SessionTables {
    /// What it is known by on this side: SessionIds are used again, and a request that waits may outlive its session.
    pub serial: u64,
    /// SessionId.
    pub id: u64,
    /// Who its leases, create GUIDs and durable handles belong to: the client, as this session's user.
    pub client: ClientId,
    /// What that client may not know yet to have.
    pub grants: Arc<Grants>,
    /// The same user as long as the session lives; a re-authentication may bring other groups.
    pub user: RwLock<Arc<Token>, ranks::SessionUser>,
    /// Every request of it is encrypted.
    pub encrypts: bool,
    /// The node that its client is connected to. None: this one.
    pub node: Option<u16>,
    ended: AtomicBool,
    told_unencrypted: AtomicBool,
    pub trees: RwLock<TreeConnects, ranks::SessionTrees>,
    pub opens: RwLock<HashMap<u64, Arc<SmbOpen>>, ranks::SessionOpens>,
    next_tree: AtomicU32,
}

impl SessionTables {
    pub fn new(
        (serial, id): (u64, u64),
        (client, grants): (ClientId, Arc<Grants>),
        user: Arc<Token>,
        encrypts: bool,
    ) -> SessionTables {
        SessionTables {
            serial,
            id,
            client,
            grants,
            user: RwLock::new(user),
            encrypts,
            node: None,
            ended: AtomicBool::new(false),
            told_unencrypted: AtomicBool::new(false),
            trees: RwLock::default(),
            opens: RwLock::new(HashMap::new()),
            next_tree: AtomicU32::new(1),
        }
    }
    /// Its client is connected to another node.
    #[must_use]
    pub fn of_node(self, node: u16) -> SessionTables {
        SessionTables { node: Some(node), ..self }
    }
    pub fn token(&self) -> Arc<Token> {
        self.user.read().clone()
    }
    pub fn next_tree_id(&self) -> u32 {
        self.next_tree.fetch_add(1, Ordering::Relaxed)
    }
    /// From now on nothing is added for good.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
    /// Whether the log should say that a request was not encrypted though its share wants that: once for each session.
    pub fn tell_unencrypted(&self) -> bool {
        !self.told_unencrypted.swap(true, Ordering::Relaxed)
    }
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}
