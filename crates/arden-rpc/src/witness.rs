//! The witness service, [MS-SWN] versions 1 and 2: clients of a cluster register at one node for what happens to another,
//! and are told of it at once.
//!
//! - **Who may**: a user with a logon at packet integrity or privacy. He registers for the name of the cluster, an address
//!   of one of its nodes, and a share that he may use. A registration is his and that of the association group that made
//!   it; to others its handle is one that does not exist. The name that a client gives itself is not verified, and decides
//!   only which registrations an administrator's move reaches.
//! - **Cost**: [`REGISTRATIONS_PER_USER_MAX`] and [`REGISTRATIONS_MAX`]; a registration keeps the newest news of each kind. One
//!   that nobody waits on ends after [`UNUSED_TIMEOUT`], and with the last connection of its group.
//!
//! What is told when: a node that is not alive any more, or is again, is a RESOURCE_CHANGE to registrations for an address of
//! it, and an IP_CHANGE to those that asked for that; another owner of a share is a SHARE_MOVE to registrations of version 2
//! for it that have not its address, and so is the owner to a registration that begins at another node; an administrator's move is a
//! CLIENT_MOVE, and so is a node for those that are connected to one that is drained.

mod messages;
mod registrations;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use arden_auth::Token;
use arden_wire::{
    Malformed,
    ndr::{NdrReader, NdrWriter},
    rpc::{Syntax, uuid},
};
use parking_lot::Mutex;

use crate::{
    call::{Fault, win32},
    tcp::{Called, Caller, Reply, TcpInterface},
};
use messages::{Handle, Notification, null_response};
use registrations::{Pending, Registration, State, Wait};

/// The interface of the witness, version 1.1, [MS-SWN] 1.9.
pub const SYNTAX: Syntax = Syntax {
    uuid: uuid(0xCCD8_C074, 0xD0E5, 0x4A40, [0x92, 0xB4, 0xD0, 0x74, 0xFA, 0xA6, 0xBA, 0x28]),
    version: 0x0001_0001,
};

/// Registrations of one user; more are refused with ERROR_NO_SYSTEM_RESOURCES.
pub const REGISTRATIONS_PER_USER_MAX: usize = 256;
/// Registrations of all users.
pub const REGISTRATIONS_MAX: usize = 16_384;
/// A registration that nobody waits on ends after this time, [MS-SWN] 3.1.5.1.
pub const UNUSED_TIMEOUT: Duration = Duration::from_secs(30);
/// Interfaces in a list; more are left out.
const INTERFACES_MAX: usize = 256;
/// UTF-16 units of a name, as an interface's group has at most.
const NAME_UNITS_MAX: usize = 260;

const VERSION_1: u32 = 0x0001_0001;
const VERSION_2: u32 = 0x0002_0000;
/// WITNESS_REGISTER_IP_NOTIFICATION.
const IP_NOTIFICATION: u32 = 1;

const INVALID_PARAMETER: u32 = win32::INVALID_PARAMETER;
const NOT_FOUND: u32 = 0x490;
const INVALID_STATE: u32 = 0x139F;
const NO_SYSTEM_RESOURCES: u32 = 0x5AA;
const REVISION_MISMATCH: u32 = 0x51A;
const NO_MORE_ITEMS: u32 = 0x103;
const TIMEOUT: u32 = 1460;

/// A node of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeState {
    pub number: u16,
    /// The interface group of its addresses.
    pub name: String,
    /// Its lease is good.
    pub alive: bool,
    /// It is to own nothing, and its clients are to leave it.
    pub drained: bool,
    /// Where clients connect to it, or did while it was alive.
    pub addresses: Vec<IpAddr>,
}

/// What the witness has to know of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterState {
    /// The name by which clients know the server: ServerGlobalName, [MS-SWN] 3.1.1.1.
    pub name: String,
    /// The number of this node.
    pub here: u16,
    pub nodes: Vec<NodeState>,
    /// Shares, by their names in lower case, with the node that owns each.
    pub shares: BTreeMap<String, Option<u16>>,
    /// Floating addresses, with the node that is to have each. They are no addresses of that node: clients are not sent there.
    pub floating: BTreeMap<IpAddr, Option<u16>>,
}

impl ClusterState {
    fn node(&self, number: u16) -> Option<&NodeState> {
        self.nodes.iter().find(|n| n.number == number)
    }

    /// The node that has an address. Of several one that is alive.
    fn node_at(&self, address: IpAddr) -> Option<&NodeState> {
        if let Some(node) = self.floating.get(&address) {
            return node.and_then(|number| self.node(number));
        }
        let has = |n: &&NodeState| n.addresses.contains(&address);
        self.nodes.iter().filter(has).max_by_key(|n| n.alive)
    }

    /// Where a client goes that is connected to a drained node at this address: to the owner of its share, or else to any node that can
    /// be reached, by the client's name. `None`: it is at no such node, or at a floating address, which moves by itself; or no other
    /// node can be reached.
    fn leaves_to(&self, client: &str, share: Option<&str>, address: IpAddr) -> Option<u16> {
        let at = self.node_at(address).filter(|n| n.drained && n.alive && !self.floating.contains_key(&address))?;
        let fits = |n: &&NodeState| n.alive && !n.drained && !n.addresses.is_empty() && n.number != at.number;
        let nodes: Vec<u16> = self.nodes.iter().filter(fits).map(|n| n.number).collect();
        let owner = share.and_then(|share| *self.shares.get(share)?);
        let spread = client.bytes().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        owner.filter(|owner| nodes.contains(owner)).or_else(|| nodes.get(spread.checked_rem(nodes.len())?).copied())
    }

    /// The node that owns a share, where clients at this address are at another one and can go there.
    fn better_node(&self, share: &str, address: IpAddr) -> Option<u16> {
        let owner = self.node((*self.shares.get(share)?)?)?;
        let reachable = owner.alive && !owner.addresses.is_empty();
        let there = self.node_at(address).is_some_and(|n| n.number == owner.number);
        (reachable && !there).then_some(owner.number)
    }
}

/// The cluster, as the witness looks at it.
pub trait Cluster: Send + Sync {
    /// What is known now. Asked with each look, and by no call of a client.
    fn state(&self) -> ClusterState;
    /// Whether a user may use a share. False for one that does not exist.
    fn may_use(&self, user: &Token, share: &str) -> bool;
}

/// The service. Times are those of the caller's clock.
pub struct Witness {
    cluster: Arc<dyn Cluster>,
    random: Box<dyn Fn() -> [u8; 16] + Send + Sync>,
    state: Mutex<State>,
}

fn lower(name: &str) -> String {
    name.to_lowercase()
}

impl Witness {
    /// A witness without registrations. `random` makes the keys of registrations.
    pub fn new(cluster: Arc<dyn Cluster>, random: Box<dyn Fn() -> [u8; 16] + Send + Sync>) -> Arc<Witness> {
        let state = State::knowing(Arc::new(cluster.state()));
        Arc::new(Witness { cluster, random, state: Mutex::new(state) })
    }

    /// Looks at the cluster, tells what has changed, and ends what is over. To be called when something may have changed,
    /// and every second.
    pub fn look(&self, now: Instant) {
        let current = self.cluster.state();
        let mut state = self.state.lock();
        state.compare(current);
        state.answer(now);
        state.expire(now);
    }

    /// Moves the clients of this name, or of this address, to a node: CLIENT_MOVE. Returns the number of registrations that
    /// were told.
    pub fn move_clients(&self, client: &str, to: u16, now: Instant) -> usize {
        let mut state = self.state.lock();
        let told = state.move_clients(client, to);
        state.answer(now);
        told
    }

    /// The number of registrations.
    pub fn registrations(&self) -> usize {
        self.state.lock().registrations.len()
    }

    /// The cluster as it was at the last look. What has changed since is told by the next one, also to those who registered
    /// meanwhile.
    fn known(&self) -> Arc<ClusterState> {
        self.state.lock().known.clone()
    }

    /// WitnessrGetInterfaceList, [MS-SWN] 3.1.4.1.
    fn interface_list(&self, reply: Reply) -> Called {
        let current = self.known();
        if let Some(answer) = messages::interface_list(&current) {
            return Called::Done(Ok(answer));
        }
        if current.nodes.iter().all(|n| n.addresses.is_empty()) {
            let mut w = NdrWriter::new();
            w.pointer(false);
            w.u32(NO_MORE_ITEMS);
            return Called::Done(Ok(w.finish()));
        }
        // No interface is available: the client waits for one.
        Called::Waits(self.state.lock().wait(Wait::Interfaces { reply }))
    }

    /// WitnessrRegister and WitnessrRegisterEx, [MS-SWN] 3.1.4.2 and 3.1.4.5.
    fn register(&self, caller: &Caller, stub: &[u8], extended: bool, now: Instant) -> Result<Vec<u8>, Malformed> {
        let mut r = NdrReader::new(stub);
        let version = r.u32()?;
        let net_name = r.unique_string()?;
        let share = if extended { r.unique_string()? } else { None };
        let address = r.unique_string()?;
        let client = r.unique_string()?;
        let (flags, keep_alive) = if extended { (r.u32()?, Some(r.u32()?)) } else { (0, None) };
        let made = self.make(caller, version, extended, (net_name, address, client), share, flags, keep_alive, now);
        let (handle, status) = match made {
            Ok(handle) => (handle, win32::SUCCESS),
            Err(status) => ([0; 20], status),
        };
        let mut w = NdrWriter::new();
        w.handle(&handle);
        w.u32(status);
        Ok(w.finish())
    }

    #[allow(clippy::too_many_arguments)]
    fn make(
        &self,
        caller: &Caller,
        version: u32,
        extended: bool,
        (net_name, address, client): (Option<String>, Option<String>, Option<String>),
        share: Option<String>,
        flags: u32,
        keep_alive: Option<u32>,
        now: Instant,
    ) -> Result<Handle, u32> {
        let user = caller.user.as_ref().ok_or(win32::ACCESS_DENIED)?;
        if version != if extended { VERSION_2 } else { VERSION_1 } {
            return Err(REVISION_MISMATCH);
        }
        let (Some(net_name), Some(address), Some(client)) = (net_name, address, client) else {
            return Err(INVALID_PARAMETER);
        };
        let too_long = |name: &str| name.encode_utf16().count() >= NAME_UNITS_MAX;
        if client.is_empty() || [&net_name, &address, &client].into_iter().chain(&share).any(|name| too_long(name)) {
            return Err(INVALID_PARAMETER);
        }
        let current = self.known();
        // The name alone, or with a domain.
        let (asked, own) = (lower(&net_name), lower(&current.name));
        let is_own = asked.strip_prefix(&own).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        if !is_own {
            return Err(INVALID_PARAMETER);
        }
        let address: IpAddr = address.parse().map_err(|_| INVALID_PARAMETER)?;
        let address = address.to_canonical();
        if current.node_at(address).is_none() && !current.floating.contains_key(&address) {
            return Err(INVALID_STATE);
        }
        // An empty name is none.
        let share = share.filter(|s| !s.is_empty()).map(|s| lower(&s));
        if let Some(share) = &share
            && !(current.shares.contains_key(share) && self.cluster.may_use(user, share))
        {
            return Err(INVALID_STATE);
        }
        // [MS-SMB2] 3.3.5.7, an asymmetric share: a client at another node than the owner is told of it at once.
        let share_move = share.as_ref().and_then(|share| current.better_node(share, address));
        let client_move = current.leaves_to(&client, share.as_deref(), address);
        let mut state = self.state.lock();
        if !state.has_room(&user.user) {
            return Err(NO_SYSTEM_RESOURCES);
        }
        let registration = Registration {
            user: user.user.clone(),
            group: caller.group,
            from: caller.address.to_canonical(),
            client,
            address,
            share,
            wants_ip_changes: flags & IP_NOTIFICATION != 0,
            keep_alive: keep_alive.map(|seconds| Duration::from_secs(u64::from(seconds))),
            last_use: now,
            wait: None,
            pending: Pending::moves(client_move, share_move),
        };
        let key = (self.random)();
        state.add(key, registration).ok_or(NO_SYSTEM_RESOURCES)?;
        let mut handle = [0; 20];
        handle[4..].copy_from_slice(&key);
        Ok(handle)
    }

    /// WitnessrUnRegister and WitnessrUnRegisterEx, [MS-SWN] 3.1.4.3 and 3.1.4.6.
    fn unregister(&self, caller: &Caller, stub: &[u8], extended: bool) -> Result<Vec<u8>, Malformed> {
        let handle = NdrReader::new(stub).handle()?;
        let mut state = self.state.lock();
        let found = key_of(&handle).filter(|key| state.is_of(key, caller));
        let mut w = NdrWriter::new();
        let status = match found {
            Some(key) => {
                state.remove(&key, NOT_FOUND);
                if extended {
                    w.handle(&[0; 20]);
                }
                win32::SUCCESS
            }
            None => {
                if extended {
                    w.handle(&handle);
                }
                INVALID_PARAMETER
            }
        };
        w.u32(status);
        Ok(w.finish())
    }

    /// WitnessrAsyncNotify, [MS-SWN] 3.1.4.4.
    fn notify(&self, caller: &Caller, stub: &[u8], reply: Reply, now: Instant) -> Result<Called, Malformed> {
        let handle = NdrReader::new(stub).handle()?;
        let mut state = self.state.lock();
        let Some(key) = key_of(&handle).filter(|key| state.is_of(key, caller)) else {
            return Ok(Called::Done(Ok(null_response(NOT_FOUND))));
        };
        let Some(registration) = state.registrations.get_mut(&key) else {
            return Ok(Called::Done(Ok(null_response(NOT_FOUND))));
        };
        if registration.wait.is_some() {
            // A client has one request for each registration, [MS-SWN] 3.2.4.2.
            return Ok(Called::Done(Ok(null_response(INVALID_STATE))));
        }
        registration.last_use = now;
        if let Some(notification) = registration.pending.next() {
            return Ok(Called::Done(Ok(self.told(&state, &notification))));
        }
        let wait = state.wait(Wait::Notify { key, reply });
        if let Some(registration) = state.registrations.get_mut(&key) {
            registration.wait = Some(wait);
        }
        Ok(Called::Waits(wait))
    }

    fn told(&self, state: &State, notification: &Notification) -> Vec<u8> {
        messages::response(notification, &state.known)
    }
}

/// The key in a context handle; `None` for the null handle, and for one that is not of this server.
fn key_of(handle: &Handle) -> Option<[u8; 16]> {
    let (kind, key) = handle.split_first_chunk::<4>()?;
    let key = <[u8; 16]>::try_from(key).ok()?;
    (*kind == [0; 4] && key != [0; 16]).then_some(key)
}

impl TcpInterface for Witness {
    fn syntax(&self) -> Syntax {
        SYNTAX
    }
    fn needs_logon(&self) -> bool {
        true
    }
    fn call(&self, caller: &Caller, opnum: u16, stub: &[u8], reply: Reply, now: Instant) -> Called {
        let answer = match opnum {
            0 => return self.interface_list(reply),
            1 => self.register(caller, stub, false, now),
            2 => self.unregister(caller, stub, false),
            3 => match self.notify(caller, stub, reply, now) {
                Ok(called) => return called,
                Err(e) => Err(e),
            },
            4 => self.register(caller, stub, true, now),
            5 => self.unregister(caller, stub, true),
            _ => return Called::fault(Fault::OPNUM_RANGE),
        };
        Called::Done(answer.map_err(|_| Fault::BAD_STUB.0))
    }
    fn cancel(&self, wait: u64) {
        self.state.lock().cancel(wait);
    }
    fn group_ended(&self, group: u32) {
        self.state.lock().end_group(group);
    }
}
