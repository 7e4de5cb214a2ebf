//! Slowing failed logons: a policy without clock or sleep. The shell asks for a delay before it answers.
//! Bounded in memory: when it is full, whoever failed longest ago is forgotten.
//!
//! A delay alone would slow nobody who asks on many connections at once, or who takes a slow answer for a no.
//! So attempts queue: each failure moves the time of the next answer on, right answers wait as wrong ones
//! do, and when the queue is full nothing is answered by what the password is.

use std::{collections::HashMap, hash::Hash, net::IpAddr, time::Duration};

use crate::crypto::upper;

/// How failed logons are slowed.
#[derive(Debug, Clone)]
pub struct ThrottlePolicy {
    /// Failures of one user from one address that cost nothing: people mistype.
    pub free_failures: u32,
    /// Failures from one address, whatever the user, that cost nothing.
    pub free_failures_address: u32,
    /// The delay after the first failure that costs; it doubles with each further one.
    pub first_delay: Duration,
    pub delay_max: Duration,
    /// When answers have to wait for longer than this, attempts are refused unseen.
    pub queue_max: Duration,
    /// A quiet time after which failures are forgotten.
    pub forget_after: Duration,
    /// Entries kept at most, each for users and for addresses.
    pub entries_max: usize,
}

impl Default for ThrottlePolicy {
    fn default() -> ThrottlePolicy {
        ThrottlePolicy {
            free_failures: 3,
            free_failures_address: 20,
            first_delay: Duration::from_millis(500),
            delay_max: Duration::from_secs(30),
            queue_max: Duration::from_secs(60),
            forget_after: Duration::from_secs(15 * 60),
            entries_max: 4096,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    last: Duration,
    /// When the next answer may go.
    next: Duration,
}

/// What becomes of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// Whether the logon holds. A right password does not help when the queue is full.
    pub accepted: bool,
    /// How long the answer has to wait.
    pub delay: Duration,
}

/// Counts failures by user and address, and by address alone. Times are durations since any fixed moment,
/// on a clock that does not go back.
#[derive(Debug)]
pub struct LogonThrottle {
    policy: ThrottlePolicy,
    by_user: HashMap<(String, IpAddr), Failures>,
    by_address: HashMap<IpAddr, Failures>,
}

impl LogonThrottle {
    pub fn new(policy: ThrottlePolicy) -> LogonThrottle {
        LogonThrottle { policy, by_user: HashMap::new(), by_address: HashMap::new() }
    }

    /// Takes the outcome of an attempt, `right` or not, and says what to answer when.
    pub fn attempt(&mut self, user: &str, address: IpAddr, now: Duration, right: bool) -> Attempt {
        let wait = self.delay(user, address, now);
        if wait > self.policy.queue_max {
            return Attempt { accepted: false, delay: Duration::ZERO };
        }
        if right {
            self.succeeded(user, address);
            return Attempt { accepted: true, delay: wait };
        }
        Attempt { accepted: false, delay: self.failed(user, address, now) }
    }

    /// How long the answer to this user's next attempt from this address has to wait.
    pub fn delay(&self, user: &str, address: IpAddr, now: Duration) -> Duration {
        let wait = |f: Option<&Failures>| f.map_or(Duration::ZERO, |f| f.next.saturating_sub(now));
        wait(self.by_user.get(&(upper(user), address))).max(wait(self.by_address.get(&address)))
    }

    /// Notes a failure, and returns the delay for its answer.
    pub fn failed(&mut self, user: &str, address: IpAddr, now: Duration) -> Duration {
        let policy = &self.policy;
        note(&mut self.by_user, (upper(user), address), now, policy, policy.free_failures);
        note(&mut self.by_address, address, now, policy, policy.free_failures_address);
        self.delay(user, address, now)
    }

    /// Notes a success. What the address failed at with other names is kept.
    pub fn succeeded(&mut self, user: &str, address: IpAddr) {
        self.by_user.remove(&(upper(user), address));
    }
}

impl ThrottlePolicy {
    /// What a failure costs that is the `count`th.
    fn cost(&self, count: u32, free: u32) -> Duration {
        if count <= free {
            return Duration::ZERO;
        }
        let doublings = (count - free - 1).min(20);
        self.first_delay.saturating_mul(1 << doublings).min(self.delay_max)
    }
}

fn note<K: Hash + Eq>(map: &mut HashMap<K, Failures>, key: K, now: Duration, policy: &ThrottlePolicy, free: u32) {
    if !map.contains_key(&key) && map.len() >= policy.entries_max {
        make_room(map, now, policy);
    }
    let entry = map.entry(key).or_insert(Failures { count: 0, last: now, next: now });
    if now.saturating_sub(entry.last) >= policy.forget_after {
        entry.count = 0;
    }
    entry.count = entry.count.saturating_add(1);
    entry.last = now;
    entry.next = entry.next.max(now) + policy.cost(entry.count, free);
}

/// Forgets what is forgotten anyway, or else the oldest eighth, so that a flood of names does not cost a search each.
fn make_room<K: Hash + Eq>(map: &mut HashMap<K, Failures>, now: Duration, policy: &ThrottlePolicy) {
    map.retain(|_, f| now.saturating_sub(f.last) < policy.forget_after);
    if map.len() < policy.entries_max || map.is_empty() {
        return;
    }
    let mut ages: Vec<Duration> = map.values().map(|f| f.last).collect();
    let nth = ages.len() / 8;
    let (_, cut, _) = ages.select_nth_unstable(nth);
    let cut = *cut;
    let mut allowance = nth + 1;
    map.retain(|_, f| {
        let goes = f.last <= cut && allowance > 0;
        allowance -= usize::from(goes);
        !goes
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn address(n: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from(n))
    }

    #[test]
    fn doubles_up_to_a_maximum_and_is_forgotten() {
        let mut t = LogonThrottle::new(ThrottlePolicy::default());
        let minute = |i: u64| S(60 * i);
        let delays: Vec<u128> = (0..12).map(|i| t.failed("Bob", address(1), minute(i)).as_millis()).collect();
        assert_eq!(delays, [0, 0, 0, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]);
        assert_eq!(t.delay("bob", address(1), minute(11) + S(20)), S(10));
        assert_eq!(t.delay("bob", address(2), minute(11)), S(0));
        assert_eq!(t.delay("bob", address(1), minute(12)), S(0));
        assert_eq!(t.failed("bob", address(1), minute(12 + 15)), S(0));
    }

    #[test]
    fn parallel_attempts_queue_and_a_full_queue_looks_at_no_password() {
        let mut t = LogonThrottle::new(ThrottlePolicy::default());
        let mut answered = 0;
        // A thousand guesses in one second, on as many connections.
        for _ in 0..1000 {
            let attempt = t.attempt("bob", address(1), S(1), false);
            assert!(!attempt.accepted && attempt.delay <= S(120));
            answered += usize::from(attempt.delay > S(0));
        }
        assert!(answered < 12, "{answered} guesses got through");
        assert_eq!(t.attempt("bob", address(1), S(1), true), Attempt { accepted: false, delay: S(0) });
        // Others are not held up, and Bob gets in when the queue has drained.
        assert!(t.attempt("bob", address(2), S(1), true).accepted);
        assert!(t.attempt("bob", address(1), S(90), true).accepted);
    }

    #[test]
    fn a_right_answer_waits_like_a_wrong_one() {
        let mut t = LogonThrottle::new(ThrottlePolicy::default());
        for _ in 0..6 {
            t.attempt("bob", address(1), S(0), false);
        }
        // 0.5, 1 and 2 seconds are queued.
        assert_eq!(
            t.attempt("bob", address(1), S(0), true),
            Attempt { accepted: true, delay: Duration::from_millis(3500) }
        );
        assert_eq!(t.attempt("bob", address(1), S(0), false).delay, S(0));
    }

    #[test]
    fn success_clears_the_user_but_spraying_is_slowed_by_address() {
        let mut t = LogonThrottle::new(ThrottlePolicy::default());
        for _ in 0..6 {
            t.failed("bob", address(1), S(0));
        }
        t.succeeded("BOB", address(1));
        assert_eq!(t.delay("bob", address(1), S(0)), S(0));
        for i in 0..30 {
            t.failed(&format!("user{i}"), address(1), S(1));
        }
        assert!(t.delay("fresh", address(1), S(1)) >= S(10));
        assert_eq!(t.delay("fresh", address(2), S(1)), S(0));
    }

    #[test]
    fn memory_is_bounded() {
        let mut t = LogonThrottle::new(ThrottlePolicy { entries_max: 64, ..Default::default() });
        for i in 0..10_000u32 {
            t.failed(&format!("u{i}"), address(i), S(u64::from(i) / 100));
            assert!(t.by_user.len() <= 64 && t.by_address.len() <= 64);
        }
        // The latest is still known.
        assert!(t.by_user.contains_key(&("U9999".to_string(), address(9999))));
    }
}
