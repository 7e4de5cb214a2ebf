//! Delays after wrong passwords: a policy without clock or sleep. The caller delays the answers.
//!
//! - A right password is accepted at once. Only wrong answers are delayed.
//! - A delay alone does not slow a client that guesses on many connections at once, or that takes a late answer for
//!   a no. The wrong answers of one user name from one network that wait at the same time are therefore limited
//!   ([`ThrottlePolicy::waiting_max`]). Above the limit an attempt is refused whatever its password is, with a status
//!   of its own. A wait is counted to its end even when the connection closes.
//! - The limit is per user name and network ([`network`](crate::network)). Other users of the network, and the same
//!   user elsewhere, are not refused. The network's own count only delays wrong answers.
//! - A client that logged this user on before, known by its ClientGuid, or that holds a session of this user, has a
//!   count of its own. Guesses of its neighbours do not lock it out.
//! - A user whose failures have no room any more keeps in few bytes how many there were and how many answers wait, so
//!   that other names do not give a name new guesses. To refuse names without room would lock out honest users instead.
//! - Memory is limited by `networks_max`, `users_per_network_max`, `users_max` and `known_clients_per_user_max`, and given
//!   back when failures are over ([`LogonThrottle::tick`]).

use std::{collections::HashMap, hash::BuildHasher, net::IpAddr, time::Duration};

use crate::{crypto::upper, network};

/// Limits and delays of failed logons.
#[derive(Debug, Clone)]
pub struct ThrottlePolicy {
    /// Wrong passwords of one user from one network that are answered without delay.
    pub free_failures: u32,
    /// Wrong passwords of all users from one network before its wrong answers are delayed.
    pub free_failures_network: u32,
    /// The delay after the first failure that is not free. It doubles with each further failure.
    pub first_delay: Duration,
    /// The longest delay by the count of one user from one network.
    pub delay_max: Duration,
    /// The longest delay by the count of one network.
    pub delay_max_network: Duration,
    /// Wrong answers of one user from one network that may wait at the same time; further attempts are refused.
    pub waiting_max: usize,
    /// The delay of a refusal.
    pub refusal_delay: Duration,
    /// The time after the last failure after which failures are forgotten.
    pub forget_after: Duration,
    /// Networks whose failures are remembered.
    pub networks_max: usize,
    /// Users whose failures are remembered for each network.
    pub users_per_network_max: usize,
    /// Users whose failures are remembered for all networks together.
    pub users_max: usize,
    /// Clients (ClientGuid) that are remembered for each user who logged on.
    pub known_clients_per_user_max: usize,
}

impl Default for ThrottlePolicy {
    fn default() -> ThrottlePolicy {
        ThrottlePolicy {
            free_failures: 3,
            free_failures_network: 20,
            first_delay: Duration::from_millis(500),
            delay_max: Duration::from_secs(30),
            delay_max_network: Duration::from_secs(4),
            waiting_max: 32,
            refusal_delay: Duration::from_secs(1),
            forget_after: Duration::from_secs(15 * 60),
            networks_max: 4096,
            users_per_network_max: 256,
            users_max: 65_536,
            known_clients_per_user_max: 16,
        }
    }
}

/// Characters of a name that are compared. Account names are shorter; longer names with the same beginning share a
/// count.
const NAME_CHARS_MAX: usize = 64;

/// How often failures that are over are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The account and the client of a logon attempt.
#[derive(Debug, Clone, Copy)]
pub struct Attempter<'a> {
    /// The account name without a domain, in any case.
    pub account: &'a str,
    pub address: IpAddr,
    /// ClientGuid, [MS-SMB2] 2.2.3; 0 for none.
    pub client_guid: u128,
    /// The client holds a session of this account: it binds a channel or reauthenticates.
    pub has_session: bool,
}

/// The decision on an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// The password is right: the answer is sent at once.
    Accepted,
    /// The password is wrong: the answer is sent after `delay`. `failures` is the network's count.
    Wrong { delay: Duration, failures: u32 },
    /// Too many answers of this user wait: the answer must not depend on the password.
    Refused { delay: Duration, failures: u32 },
}

/// What one host or household is assigned, as [`network`] has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Network(u128);

impl Network {
    fn of(address: IpAddr) -> Network {
        match network(address) {
            IpAddr::V4(v4) => Network(v4.to_ipv6_mapped().to_bits()),
            IpAddr::V6(v6) => Network(v6.to_bits()),
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Failures {
    count: u32,
    last: Duration,
    /// Times at which the waiting answers are sent; at most `waiting_max`.
    waiting: Vec<Duration>,
}

impl Failures {
    fn expire(&mut self, now: Duration, policy: &ThrottlePolicy) {
        if now.saturating_sub(self.last) >= policy.forget_after {
            self.count = 0;
        }
        self.waiting.retain(|at| *at > now);
    }

    fn note(&mut self, now: Duration) {
        self.count = self.count.saturating_add(1);
        self.last = now;
    }
}

/// The key of a count: an account, or a known client of an account.
type Counted = (String, Option<u128>);

#[derive(Debug, Default)]
struct NetworkFailures {
    all: Failures,
    by_user: HashMap<Counted, Failures>,
    /// What is kept of users that were evicted, by a hash of the name; empty before the first. Users with the same hash
    /// share the highest figures. Known clients have places of their own behind those of all others: who only guesses
    /// does not fill them.
    evicted: Vec<Evicted>,
}

/// Places for evicted users of one network, and as many for its known clients.
const EVICTED_PLACES: usize = 1024;

/// Answers that wait until one moment.
#[derive(Debug, Clone, Copy, Default)]
struct Waits {
    count: usize,
    until: Duration,
}

impl Waits {
    fn at(self, now: Duration) -> Waits {
        if self.until > now { self } else { Waits::default() }
    }

    /// The higher figures of both.
    fn or(self, count: usize, until: Duration) -> Waits {
        Waits { count: self.count.max(count), until: self.until.max(until) }
    }
}

/// What is kept of the failures of an evicted user.
#[derive(Debug, Clone, Copy, Default)]
struct Evicted {
    count: u32,
    /// Answers that wait, each as if until the last of its part is sent. Those of the first part end, whatever comes behind them.
    first: Waits,
    others: Waits,
}

impl Evicted {
    fn note(&mut self, failures: &Failures, now: Duration) {
        self.count = self.count.max(failures.count);
        (self.first, self.others) = (self.first.at(now), self.others.at(now));
        if self.first.count == 0 {
            self.first = std::mem::take(&mut self.others);
        }
        let last = failures.waiting.iter().max().copied().unwrap_or_default();
        if self.first.count == 0 {
            self.first = Waits { count: failures.waiting.len(), until: last };
            return;
        }
        let later = failures.waiting.iter().filter(|at| **at > self.first.until).count();
        self.first.count = self.first.count.max(failures.waiting.len() - later);
        if later > 0 {
            self.others = self.others.or(later, last);
        }
    }

    /// When each of the answers that wait is sent at the latest.
    fn waiting(&self, now: Duration) -> Vec<Duration> {
        [self.first.at(now), self.others.at(now)].iter().flat_map(|w| vec![w.until; w.count]).collect()
    }
}

/// Counts wrong passwords by user and network. Times are durations since any fixed moment of a clock that does not go
/// back.
#[derive(Debug)]
pub struct LogonThrottle {
    policy: ThrottlePolicy,
    networks: HashMap<Network, NetworkFailures>,
    /// The sum of their `by_user`.
    users: usize,
    /// When failures that are over were looked for.
    looked: Duration,
    /// Clients that logged a user on, with the time of the last logon. Only existing accounts have an entry.
    known_clients: HashMap<String, Vec<(u128, Duration)>>,
}

impl LogonThrottle {
    /// A throttle without failures.
    pub fn new(policy: ThrottlePolicy) -> LogonThrottle {
        LogonThrottle {
            policy,
            networks: HashMap::new(),
            users: 0,
            looked: Duration::ZERO,
            known_clients: HashMap::new(),
        }
    }

    /// Gives back the memory of failures that are over. To be called every now and then; it looks once a minute.
    pub fn tick(&mut self, now: Duration) {
        if now.saturating_sub(self.looked) >= LOOK_EVERY {
            self.looked = now;
            self.forget_over(now);
        }
    }

    /// Networks whose failures are remembered.
    pub fn networks(&self) -> usize {
        self.networks.len()
    }

    /// Records an attempt whose password was `right` or wrong, and decides how it is answered.
    pub fn attempt(&mut self, who: &Attempter<'_>, now: Duration, right: bool) -> Attempt {
        let name = upper(&who.account.chars().take(NAME_CHARS_MAX).collect::<String>());
        let known = self.known_client(&name, who);
        let counted = (name, known);
        let network = Network::of(who.address);
        if right {
            return self.right(who, network, counted, now);
        }
        self.make_room(network, &counted, now);
        let policy = &self.policy;
        let failures = self.networks.entry(network).or_default();
        failures.all.expire(now, policy);
        if failures.all.count == 0 {
            failures.evicted = Vec::new();
        }
        failures.all.note(now);
        let all = failures.all.count;
        self.users += usize::from(failures.grows_by(&counted, policy));
        let user = failures.user(counted, now, policy);
        if user.waiting.len() >= policy.waiting_max {
            user.last = now;
            return Attempt::Refused { delay: policy.refusal_delay, failures: all };
        }
        user.note(now);
        let delay = policy.delay(user.count, policy.free_failures, policy.delay_max).max(policy.delay(
            all,
            policy.free_failures_network,
            policy.delay_max_network,
        ));
        if delay > Duration::ZERO {
            user.waiting.push(now + delay);
        }
        Attempt::Wrong { delay, failures: all }
    }

    fn right(&mut self, who: &Attempter<'_>, network: Network, counted: Counted, now: Duration) -> Attempt {
        let policy = &self.policy;
        if let Some(failures) = self.networks.get_mut(&network) {
            let waiting = match failures.by_user.get_mut(&counted) {
                Some(user) => {
                    user.expire(now, policy);
                    user.waiting.len()
                }
                None => failures.of_evicted(&counted).waiting(now).len(),
            };
            if waiting >= policy.waiting_max {
                return Attempt::Refused { delay: policy.refusal_delay, failures: failures.all.count };
            }
            if let Some(user) = failures.by_user.get_mut(&counted) {
                // The answers that wait still count.
                user.count = 0;
            }
        }
        if who.client_guid != 0 {
            let known = self.known_clients.entry(counted.0).or_default();
            known.retain(|(guid, _)| *guid != who.client_guid);
            if known.len() >= policy.known_clients_per_user_max {
                known.remove(0);
            }
            known.push((who.client_guid, now));
        }
        Attempt::Accepted
    }

    /// The client, if this account logged on from it before or has a session there.
    fn known_client(&self, name: &str, who: &Attempter<'_>) -> Option<u128> {
        let known = || self.known_clients.get(name);
        let is_known = who.has_session || known().is_some_and(|k| k.iter().any(|(guid, _)| *guid == who.client_guid));
        is_known.then_some(who.client_guid)
    }

    /// Makes room for a user of `network`. Where a bound is met, networks are removed whose failures are over, or else
    /// those that failed longest ago, until an eighth of it is free: the search is then rare also under a flood of
    /// addresses. The network of the attempt stays: it does not make room for itself by more failures.
    fn make_room(&mut self, network: Network, counted: &Counted, now: Duration) {
        let (networks_max, users_max) = (self.policy.networks_max, self.policy.users_max);
        let failures = self.networks.get(&network);
        let adds_network = failures.is_none() && self.networks.len() >= networks_max;
        let adds_user = self.users >= users_max && failures.is_none_or(|n| n.grows_by(counted, &self.policy));
        if !adds_network && !adds_user {
            return;
        }
        self.forget_over(now);
        if self.networks.len() < networks_max && self.users < users_max {
            return;
        }
        let mut ages: Vec<(Duration, Network)> = self.networks.iter().map(|(key, n)| (n.all.last, *key)).collect();
        ages.sort_unstable_by_key(|(last, _)| *last);
        for (_, key) in ages.into_iter().filter(|(_, key)| *key != network) {
            if self.networks.len() <= networks_max / 8 * 7 && self.users <= users_max / 8 * 7 {
                break;
            }
            self.users -= self.networks.remove(&key).map_or(0, |n| n.by_user.len());
        }
    }

    fn forget_over(&mut self, now: Duration) {
        let forget_after = self.policy.forget_after;
        self.networks.retain(|_, n| now.saturating_sub(n.all.last) < forget_after);
        self.networks.shrink_to(2 * self.networks.len());
        self.users = self.networks.values().map(|n| n.by_user.len()).sum();
    }
}

impl NetworkFailures {
    /// The failures of a user from this network. The user with the fewest failures is evicted for a new one, and keeps
    /// its count and its waiting answers when it comes back: neither new names nor names with more failures give a name
    /// new guesses.
    fn user(&mut self, counted: Counted, now: Duration, policy: &ThrottlePolicy) -> &mut Failures {
        let before = self.of_evicted(&counted);
        if !self.by_user.contains_key(&counted) && self.by_user.len() >= policy.users_per_network_max {
            let fewest = self.by_user.iter().min_by_key(|(_, f)| (f.count, f.last)).map(|(k, _)| k.clone());
            if let Some(key) = fewest
                && let Some(mut goes) = self.by_user.remove(&key)
            {
                goes.expire(now, policy);
                let place = self.place(&key);
                self.evicted.resize(2 * EVICTED_PLACES, Evicted::default());
                self.evicted[place].note(&goes, now);
            }
        }
        let user = self.by_user.entry(counted).or_insert_with(|| Failures {
            count: before.count,
            last: now,
            waiting: before.waiting(now),
        });
        user.expire(now, policy);
        user
    }

    /// Whether failures of this user are one more to remember.
    fn grows_by(&self, counted: &Counted, policy: &ThrottlePolicy) -> bool {
        self.by_user.len() < policy.users_per_network_max && !self.by_user.contains_key(counted)
    }

    /// What is kept of a user in case that it was evicted.
    fn of_evicted(&self, counted: &Counted) -> Evicted {
        self.evicted.get(self.place(counted)).copied().unwrap_or_default()
    }

    fn place(&self, counted: &Counted) -> usize {
        let place = self.by_user.hasher().hash_one(counted) as usize % EVICTED_PLACES;
        if counted.1.is_some() { EVICTED_PLACES + place } else { place }
    }
}

impl ThrottlePolicy {
    /// The delay of the wrong answer with number `count`.
    fn delay(&self, count: u32, free: u32, max: Duration) -> Duration {
        if count <= free {
            return Duration::ZERO;
        }
        let doublings = (count - free - 1).min(20);
        self.first_delay.saturating_mul(1 << doublings).min(max)
    }
}

#[cfg(test)]
#[path = "tests/throttle.rs"]
mod tests;
