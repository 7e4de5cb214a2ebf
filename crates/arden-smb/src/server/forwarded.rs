//! Sessions of other nodes that have tree connects here, and how their clients are told of breaks: by the node that they are
//! connected to.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arden_lock::{RwLock, ranks};
use arden_store::fs::ClientId;
use arden_wire::dtyp::Sid;
use tokio::sync::watch;

use crate::model::{
    SessionTables,
    seam::{Notification, Recipient},
    share::Share,
};

/// The connection to a node whose sessions ask for this node's shares.
pub trait PeerNode: Send + Sync {
    /// The serial number of a session is the other node's.
    /// It is said to one of this user's sessions, behind the answers that they have by then.
    fn notify(&self, user: &Sid, to: Recipient, what: &Notification);
    /// The connections of this session's client have to end without an answer.
    fn leave(&self, serial: u64);
}

/// Connections that other nodes have made to this one: a node has one at a time. It makes a new one only when it has given the older up, and
/// this one may not have noticed: what the clients had over that is let go of before they come again.
#[derive(Default)]
pub(crate) struct NodeLinks {
    numbers: AtomicU64,
    /// Those that have not ended, by node, in the order in which they were made.
    open: watch::Sender<HashMap<u16, Vec<u64>>>,
}

/// The place of one of them. It has ended when this is dropped.
pub(crate) struct NodeLink<'a> {
    links: &'a NodeLinks,
    node: u16,
    number: u64,
}

impl NodeLinks {
    /// Those that the node made before end.
    pub fn begin(&self, node: u16) -> NodeLink<'_> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.open.send_modify(|open| open.entry(node).or_default().push(number));
        NodeLink { links: self, node, number }
    }
}

impl NodeLink<'_> {
    /// Until those before it have ended.
    pub async fn is_first(&self) {
        let is_first =
            |open: &HashMap<u16, Vec<u64>>| open.get(&self.node).and_then(|of| of.first()) == Some(&self.number);
        let _ = self.links.open.subscribe().wait_for(is_first).await;
    }

    /// Until the node has made another.
    pub async fn is_replaced(&self) {
        let is_old =
            |open: &HashMap<u16, Vec<u64>>| open.get(&self.node).and_then(|of| of.last()) != Some(&self.number);
        let _ = self.links.open.subscribe().wait_for(is_old).await;
    }
}

impl Drop for NodeLink<'_> {
    fn drop(&mut self) {
        self.links.open.send_modify(|open| {
            let Some(of) = open.get_mut(&self.node) else { return };
            of.retain(|number| *number != self.number);
            if of.is_empty() {
                open.remove(&self.node);
            }
        });
    }
}

struct Entry {
    tables: Arc<SessionTables>,
    /// The session's serial number at its node.
    serial: u64,
    node: Arc<dyn PeerNode>,
}

/// By serial number at this node.
#[derive(Default)]
pub(crate) struct Forwarded(RwLock<HashMap<u64, Entry>, ranks::ForwardedSessions>);

/// Behind the answers that grant what is broken.
fn notify(node: Arc<dyn PeerNode>, tables: &SessionTables, to: Recipient, what: &Notification) {
    let (user, what) = (tables.token(), what.clone());
    tables.grants.send_break(move || node.notify(&user.user, to, &what));
}

impl Forwarded {
    pub fn add(&self, tables: &Arc<SessionTables>, serial: u64, node: Arc<dyn PeerNode>) {
        self.0.write().insert(tables.serial, Entry { tables: tables.clone(), serial, node });
    }

    pub fn remove(&self, serial_here: u64) {
        self.0.write().remove(&serial_here);
    }

    pub fn len(&self) -> usize {
        self.0.read().len()
    }

    /// False: it is no session of another node.
    pub fn notify(&self, to: Recipient, what: &Notification) -> bool {
        let sessions = self.0.read();
        let found = match to {
            Recipient::Session { serial, .. } => sessions.get(&serial),
            // The newest: it may have left the others, of which nobody knows yet.
            Recipient::Client(client) => {
                sessions.values().filter(|e| e.tables.client == client).max_by_key(|e| e.tables.serial)
            }
        };
        let Some(entry) = found else { return false };
        let to = match to {
            Recipient::Session { id, .. } => Recipient::Session { id, serial: entry.serial },
            client => client,
        };
        let (node, tables) = (entry.node.clone(), entry.tables.clone());
        drop(sessions);
        notify(node, &tables, to, what);
        true
    }

    /// False: the client has no session of that node here.
    pub fn notify_client_at(&self, node: u16, client: ClientId, what: &Notification) -> bool {
        let is_of = |e: &&Entry| e.tables.client == client && e.tables.node == Some(node);
        // The newest: of a connection between the nodes that has ended, it may not be known yet.
        let of = |e: &Entry| (e.node.clone(), e.tables.clone());
        let found = self.0.read().values().filter(is_of).max_by_key(|e| e.tables.serial).map(of);
        let Some((node, tables)) = found else { return false };
        notify(node, &tables, Recipient::Client(client), what);
        true
    }

    /// Ends the clients with a tree connect to a share that `of` names. How many sessions there are.
    pub fn leave(&self, of: impl Fn(&Share) -> bool) -> usize {
        let uses = |e: &&Entry| e.tables.trees.read().values().any(|tree| of(&tree.share));
        let found: Vec<_> = self.0.read().values().filter(uses).map(|e| (e.node.clone(), e.serial)).collect();
        found.iter().for_each(|(node, serial)| node.leave(*serial));
        found.len()
    }
}
