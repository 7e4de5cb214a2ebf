//! Registrations, what is news for each, and the calls that wait: [MS-SWN] 3.1.1, 3.1.5 and 3.1.6. One lock guards all of it,
//! and answers are sent under it: a call that was cancelled is not answered any more.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use arden_wire::dtyp::Sid;

use super::{
    ClusterState, NOT_FOUND, REGISTRATIONS_MAX, REGISTRATIONS_PER_USER_MAX, TIMEOUT, UNUSED_TIMEOUT,
    messages::{self, Notification, null_response},
};
use crate::tcp::{Caller, Reply};

type Key = [u8; 16];

/// The newest news of each kind.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// By interface group: one entry for each node at most.
    resources: BTreeMap<String, bool>,
    client_move: Option<u16>,
    share_move: Option<u16>,
    addresses: BTreeMap<IpAddr, bool>,
}

impl Pending {
    /// What a new registration is told: the node that its client should be at, if any, once.
    pub(super) fn moves(client_move: Option<u16>, share_move: Option<u16>) -> Pending {
        let share_move = share_move.filter(|to| client_move != Some(*to));
        Pending { client_move, share_move, ..Pending::default() }
    }

    /// Takes the news that are told next.
    pub(super) fn next(&mut self) -> Option<Notification> {
        if !self.resources.is_empty() {
            return Some(Notification::Resources(std::mem::take(&mut self.resources).into_iter().collect()));
        }
        if let Some(node) = self.client_move.take() {
            return Some(Notification::ClientMove(node));
        }
        if let Some(node) = self.share_move.take() {
            return Some(Notification::ShareMove(node));
        }
        if self.addresses.is_empty() {
            return None;
        }
        Some(Notification::Addresses(std::mem::take(&mut self.addresses).into_iter().collect()))
    }
}

/// WitnessRegistration, [MS-SWN] 3.1.1.3.
pub(super) struct Registration {
    pub user: Sid,
    pub group: u32,
    /// Where the registration came from.
    pub from: IpAddr,
    pub client: String,
    /// The address that the client is connected to.
    pub address: IpAddr,
    /// In lower case. Only version 2 has it.
    pub share: Option<String>,
    pub wants_ip_changes: bool,
    /// `None` in version 1: a client waits for ever.
    pub keep_alive: Option<Duration>,
    pub last_use: Instant,
    /// The call that waits.
    pub wait: Option<u64>,
    pub pending: Pending,
}

/// A call that waits.
pub(super) enum Wait {
    Notify { key: Key, reply: Reply },
    Interfaces { reply: Reply },
}

#[derive(Default)]
pub(super) struct State {
    pub registrations: HashMap<Key, Registration>,
    of_user: HashMap<Sid, usize>,
    waits: BTreeMap<u64, Wait>,
    last_wait: u64,
    /// The cluster, as clients have been told.
    pub known: Arc<ClusterState>,
}

impl State {
    /// Nobody has registered, and the cluster is so.
    pub(super) fn knowing(known: Arc<ClusterState>) -> State {
        State { known, ..State::default() }
    }

    pub(super) fn has_room(&self, user: &Sid) -> bool {
        let of_user = self.of_user.get(user).copied().unwrap_or(0);
        of_user < REGISTRATIONS_PER_USER_MAX && self.registrations.len() < REGISTRATIONS_MAX
    }

    /// Adds a registration; `None` when the key is taken.
    pub(super) fn add(&mut self, key: Key, registration: Registration) -> Option<()> {
        if self.registrations.contains_key(&key) {
            return None;
        }
        *self.of_user.entry(registration.user.clone()).or_default() += 1;
        self.registrations.insert(key, registration);
        Some(())
    }

    /// Whether the registration is the caller's.
    pub(super) fn is_of(&self, key: &Key, caller: &Caller) -> bool {
        let user = caller.user.as_ref().map(|u| &u.user);
        self.registrations.get(key).is_some_and(|r| Some(&r.user) == user && r.group == caller.group)
    }

    /// Ends a registration. The call that waits is answered with `status`.
    pub(super) fn remove(&mut self, key: &Key, status: u32) {
        let Some(registration) = self.registrations.remove(key) else { return };
        if let Some(count) = self.of_user.get_mut(&registration.user) {
            *count -= 1;
            if *count == 0 {
                self.of_user.remove(&registration.user);
            }
        }
        if let Some(wait) = registration.wait {
            self.end_wait(wait, status);
        }
    }

    fn end_wait(&mut self, wait: u64, status: u32) {
        if let Some(Wait::Notify { reply, .. }) = self.waits.remove(&wait) {
            reply.send(Ok(null_response(status)));
        }
    }

    pub(super) fn wait(&mut self, wait: Wait) -> u64 {
        self.last_wait += 1;
        self.waits.insert(self.last_wait, wait);
        self.last_wait
    }

    pub(super) fn cancel(&mut self, wait: u64) {
        if let Some(Wait::Notify { key, .. }) = self.waits.remove(&wait)
            && let Some(registration) = self.registrations.get_mut(&key)
        {
            registration.wait = None;
        }
    }

    /// [MS-SWN] 3.1.6.5.
    pub(super) fn end_group(&mut self, group: u32) {
        let of_group = |(key, r): (&Key, &Registration)| (r.group == group).then_some(*key);
        let ended: Vec<Key> = self.registrations.iter().filter_map(of_group).collect();
        ended.iter().for_each(|key| self.remove(key, NOT_FOUND));
    }

    /// Notes what has changed since the last look, [MS-SWN] 3.1.6.1, 3.1.6.3 and 3.1.6.4. Each registration is looked at once,
    /// whatever has changed, and none is where nothing has. Returns how many were.
    pub(super) fn compare(&mut self, current: ClusterState) -> usize {
        if *self.known == current {
            return 0;
        }
        let before = std::mem::replace(&mut self.known, Arc::new(current));
        let changes = Changes::between(&before, &self.known);
        let mut looked_at = 0;
        for registration in self.registrations.values_mut() {
            changes.note(registration);
            looked_at += 1;
        }
        looked_at
    }

    /// [MS-SWN] 3.1.6.2.
    pub(super) fn move_clients(&mut self, client: &str, to: u16) -> usize {
        let (name, address) = (client.to_lowercase(), client.parse::<IpAddr>().ok().map(|a| a.to_canonical()));
        let named = |r: &&mut Registration| r.client.to_lowercase() == name || address == Some(r.from);
        let mut told = 0;
        for registration in self.registrations.values_mut().filter(named) {
            registration.pending.client_move = Some(to);
            told += 1;
        }
        told
    }

    /// Answers calls for which there are news.
    pub(super) fn answer(&mut self, now: Instant) {
        for registration in self.registrations.values_mut() {
            let Some(wait) = registration.wait else { continue };
            let Some(notification) = registration.pending.next() else { continue };
            (registration.wait, registration.last_use) = (None, now);
            if let Some(Wait::Notify { reply, .. }) = self.waits.remove(&wait) {
                reply.send(Ok(messages::response(&notification, &self.known)));
            }
        }
        if let Some(list) = messages::interface_list(&self.known) {
            let waits: Vec<u64> = self.waits.iter().filter(|(_, w)| w.is_for_interfaces()).map(|(id, _)| *id).collect();
            for wait in waits {
                if let Some(Wait::Interfaces { reply }) = self.waits.remove(&wait) {
                    reply.send(Ok(list.clone()));
                }
            }
        }
    }

    /// [MS-SWN] 3.1.5: registrations that nobody uses, and calls whose time is over.
    pub(super) fn expire(&mut self, now: Instant) {
        let mut unused = Vec::new();
        let mut over = Vec::new();
        for (key, registration) in &mut self.registrations {
            let age = now.saturating_duration_since(registration.last_use);
            match registration.wait {
                None if age > UNUSED_TIMEOUT => unused.push(*key),
                Some(wait) if registration.keep_alive.is_some_and(|time| age > time) => {
                    (registration.wait, registration.last_use) = (None, now);
                    over.push(wait);
                }
                _ => {}
            }
        }
        unused.iter().for_each(|key| self.remove(key, NOT_FOUND));
        over.into_iter().for_each(|wait| self.end_wait(wait, TIMEOUT));
    }
}

impl Wait {
    fn is_for_interfaces(&self) -> bool {
        matches!(self, Wait::Interfaces { .. })
    }
}

/// What differs between two states of the cluster, by what registrations are for.
struct Changes<'a> {
    before: &'a ClusterState,
    current: &'a ClusterState,
    /// By address: nodes at which it has come or gone.
    nodes_at: HashMap<IpAddr, Vec<(&'a str, bool)>>,
    /// All of these, as those who asked for them are told.
    addresses: BTreeMap<IpAddr, bool>,
    /// Clients of some node are to leave it.
    leaves: bool,
}

impl<'a> Changes<'a> {
    fn between(before: &'a ClusterState, current: &'a ClusterState) -> Changes<'a> {
        let leaves = current.nodes.iter().any(|n| n.drained && n.alive);
        let mut changes = Changes { before, current, nodes_at: HashMap::new(), addresses: BTreeMap::new(), leaves };
        for node in &current.nodes {
            let was_alive = before.node(node.number).is_some_and(|n| n.alive);
            let had = before.node(node.number).map_or(&[][..], |n| &n.addresses);
            let has = |a: &IpAddr| node.alive && node.addresses.contains(a);
            let had_alive = |a: &IpAddr| was_alive && had.contains(a);
            let all = had.iter().chain(node.addresses.iter().filter(|a| !had.contains(a)));
            for address in all.filter(|a| has(a) != had_alive(a)) {
                let there = has(address);
                changes.nodes_at.entry(*address).or_default().push((&node.name, there));
                changes.addresses.insert(*address, there);
            }
        }
        changes
    }

    /// Adds to what a registration is to be told.
    fn note(&self, registration: &mut Registration) {
        let (before, current) = (self.before, self.current);
        let (share, address) = (registration.share.as_deref(), registration.address);
        let pending = &mut registration.pending;
        for (node, there) in self.nodes_at.get(&address).into_iter().flatten() {
            pending.resources.insert((*node).to_owned(), *there);
        }
        if registration.wants_ip_changes {
            pending.addresses.extend(self.addresses.iter().map(|(a, there)| (*a, *there)));
        }
        if self.leaves
            && let Some(to) = current.leaves_to(&registration.client, share, address)
            && before.leaves_to(&registration.client, share, address).is_none()
        {
            pending.client_move = Some(to);
        }
        // For who is connected there, the node that had the address is gone, and another one has come.
        let was = before.floating.get(&address).copied().flatten();
        if let Some(now) = current.floating.get(&address)
            && was != *now
        {
            let names = [(was, false), (*now, true)];
            let names = names.iter().filter_map(|(n, there)| Some((current.node((*n)?)?.name.clone(), *there)));
            pending.resources.extend(names);
        }
        if let Some(share) = share
            && let Some(owner @ Some(_)) = current.shares.get(share)
            && before.shares.get(share).is_some_and(|was| was != owner)
        {
            pending.share_move = current.better_node(share, address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::NodeState, *};

    fn cluster(owner: u16) -> ClusterState {
        let node = |number: u16| NodeState {
            number,
            name: format!("N{number}"),
            alive: true,
            drained: false,
            addresses: vec![IpAddr::from([10, 0, 0, number as u8])],
        };
        let shares = (0..100).map(|n| (format!("share{n}"), Some(owner))).collect();
        ClusterState { here: 1, nodes: vec![node(1), node(2), node(3)], shares, ..ClusterState::default() }
    }

    /// A pool that goes to another node takes many shares along, and the lock is held while all are told.
    #[test]
    fn a_registration_is_looked_at_once_for_any_number_of_changes() {
        let mut state = State::knowing(Arc::new(cluster(1)));
        for n in 0..50_u8 {
            let registration = Registration {
                user: arden_wire::dtyp::well_known::EVERYONE.clone(),
                group: 1,
                from: IpAddr::from([10, 0, 1, n]),
                client: format!("client{n}"),
                address: IpAddr::from([10, 0, 0, 1]),
                share: Some(format!("share{n}")),
                wants_ip_changes: false,
                keep_alive: None,
                last_use: Instant::now(),
                wait: None,
                pending: Pending::default(),
            };
            state.add([n; 16], registration).expect("a key of its own");
        }
        assert_eq!(state.compare(cluster(1)), 0, "nothing has changed");
        assert_eq!(state.compare(cluster(2)), 50);
        for registration in state.registrations.values_mut() {
            assert!(matches!(registration.pending.next(), Some(Notification::ShareMove(2))));
            assert!(registration.pending.next().is_none());
        }
    }
}
