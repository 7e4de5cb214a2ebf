//! Registrations, what is news for each, and the calls that wait: [MS-SWN] 3.1.1, 3.1.5 and 3.1.6. One lock guards all of it,
//! and answers are sent under it: a call that was cancelled is not answered any more.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
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
    pub known: ClusterState,
}

impl State {
    /// Nobody has registered, and the cluster is so.
    pub(super) fn knowing(known: ClusterState) -> State {
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

    /// Notes what has changed since the last look, [MS-SWN] 3.1.6.1, 3.1.6.3 and 3.1.6.4.
    pub(super) fn compare(&mut self, current: ClusterState) {
        let before = std::mem::replace(&mut self.known, current);
        let (current, registrations) = (&self.known, &mut self.registrations);
        if before == *current {
            return;
        }
        for node in &current.nodes {
            let was_alive = before.node(node.number).is_some_and(|n| n.alive);
            let none = Vec::new();
            let had = before.node(node.number).map_or(&none, |n| &n.addresses);
            let has = |a: &IpAddr| node.alive && node.addresses.contains(a);
            let had_alive = |a: &IpAddr| was_alive && had.contains(a);
            let all = had.iter().chain(node.addresses.iter().filter(|a| !had.contains(a)));
            let changed: Vec<(IpAddr, bool)> = all.filter(|a| has(a) != had_alive(a)).map(|a| (*a, has(a))).collect();
            if changed.is_empty() {
                continue;
            }
            for registration in registrations.values_mut() {
                if let Some((_, there)) = changed.iter().find(|(a, _)| *a == registration.address) {
                    registration.pending.resources.insert(node.name.clone(), *there);
                }
                if registration.wants_ip_changes {
                    registration.pending.addresses.extend(changed.iter().copied());
                }
            }
        }
        for registration in registrations.values_mut() {
            let (client, share, address) = (&registration.client, registration.share.as_deref(), registration.address);
            if let Some(to) = current.leaves_to(client, share, address)
                && before.leaves_to(client, share, address).is_none()
            {
                registration.pending.client_move = Some(to);
            }
        }
        // For who is connected there, the node that had the address is gone, and another one has come.
        for registration in registrations.values_mut() {
            let Some(now) = current.floating.get(&registration.address) else { continue };
            let was = before.floating.get(&registration.address).copied().flatten();
            if was == *now {
                continue;
            }
            let names = [(was, false), (*now, true)];
            let names = names.iter().filter_map(|(n, there)| Some((current.node((*n)?)?.name.clone(), *there)));
            registration.pending.resources.extend(names);
        }
        for (share, owner) in &current.shares {
            if owner.is_none() || before.shares.get(share).is_none_or(|was| was == owner) {
                continue;
            }
            for registration in registrations.values_mut().filter(|r| r.share.as_ref() == Some(share)) {
                registration.pending.share_move = current.better_node(share, registration.address);
            }
        }
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
