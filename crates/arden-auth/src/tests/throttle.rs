//! The throttle: mistyped passwords, other users of a network, and attackers on many connections.

use super::*;
use std::net::Ipv4Addr;

const S: fn(u64) -> Duration = Duration::from_secs;
const BOB: &str = "bob";

fn from(account: &str, n: u32) -> Attempter<'_> {
    Attempter { account, address: Ipv4Addr::from(n).into(), client_guid: 0, has_session: false }
}

fn throttle() -> LogonThrottle {
    LogonThrottle::new(ThrottlePolicy::default())
}

fn delay(attempt: Attempt) -> Duration {
    match attempt {
        Attempt::Wrong { delay, .. } => delay,
        other => panic!("{other:?}"),
    }
}

fn is_refused(attempt: Attempt) -> bool {
    matches!(attempt, Attempt::Refused { .. })
}

#[test]
fn delays_double_up_to_a_maximum_and_are_forgotten() {
    let mut t = throttle();
    let mut wrong = |name, n, at| delay(t.attempt(&from(name, n), at, false));
    let delays: Vec<u128> = (0..12).map(|i| wrong(["Bob", "bOb"][i % 2], 1, S(60 * i as u64)).as_millis()).collect();
    assert_eq!(delays, [0, 0, 0, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]);
    assert_eq!(wrong(BOB, 2, S(660)), S(0), "another address");
    assert_eq!(wrong("carol", 1, S(660)), S(0), "another user");
    assert_eq!(wrong(BOB, 1, S(660 + 15 * 60)), S(0), "after a quiet time");
}

/// A host chooses any address of its /64; the link-local /64 is that of all hosts of a link.
#[test]
fn addresses_of_one_host_are_one_network_and_those_of_a_link_are_not() {
    let mut t = throttle();
    let mut wrong = |address: String| {
        let from = Attempter { address: address.parse().unwrap(), ..from(BOB, 0) };
        delay(t.attempt(&from, S(0), false))
    };
    let delays = |of: &mut dyn FnMut(u32) -> Duration| (0..6).map(|n| of(n).as_millis()).collect::<Vec<_>>();
    assert_eq!(delays(&mut |n| wrong(format!("2001:db8::{n}"))), [0, 0, 0, 500, 1000, 2000]);
    assert_eq!(delays(&mut |_| wrong("fe80::1".into())), [0, 0, 0, 500, 1000, 2000]);
    assert_eq!(delays(&mut |n| wrong(format!("fe80::{:x}", n + 2))), [0; 6], "each is another machine");
}

#[test]
fn a_right_password_is_accepted_at_once() {
    let mut t = throttle();
    for i in 0..40 {
        t.attempt(&from(BOB, 1), S(i * 31), false);
        assert_eq!(t.attempt(&from(BOB, 1), S(i * 31 + 1), true), Attempt::Accepted);
    }
    // The same while wrong answers wait.
    for _ in 0..20 {
        t.attempt(&from(BOB, 1), S(5000), false);
    }
    assert_eq!(t.attempt(&from(BOB, 1), S(5000), true), Attempt::Accepted);
}

#[test]
fn guesses_on_many_connections_are_few_and_lock_out_neither_neighbours_nor_known_clients() {
    let mut t = throttle();
    let home = Attempter { client_guid: 77, ..from(BOB, 1) };
    assert_eq!(t.attempt(&home, S(0), true), Attempt::Accepted);
    // Ten thousand guesses a minute for ten minutes, on as many connections, from the address that Bob has too.
    let mut looked_at = 0;
    for i in 0..100_000u64 {
        let now = S(1) + Duration::from_millis(i * 6);
        looked_at += usize::from(!is_refused(t.attempt(&from(BOB, 1), now, false)));
        if i % 10_000 == 9_999 {
            // A right guess is answered as a wrong one.
            assert!(is_refused(t.attempt(&from(BOB, 1), now, true)));
            assert_eq!(t.attempt(&from("carol", 1), now, true), Attempt::Accepted, "a neighbour");
            assert_eq!(t.attempt(&from(BOB, 2), now, true), Attempt::Accepted, "elsewhere");
            assert_eq!(t.attempt(&home, now, true), Attempt::Accepted, "a client that was here before");
            let session = Attempter { has_session: true, ..from(BOB, 1) };
            assert_eq!(t.attempt(&session, now, true), Attempt::Accepted, "a client that holds a session");
        }
    }
    assert!(looked_at < 720, "{looked_at} guesses were looked at in ten minutes");
}

#[test]
fn a_neighbour_who_mistypes_waits_seconds_at_most() {
    let mut t = throttle();
    for i in 0..2000 {
        t.attempt(&from(&format!("user{i}"), 1), S(1), false);
    }
    assert_eq!(delay(t.attempt(&from("carol", 1), S(1), false)), S(4));
    assert_eq!(t.attempt(&from("carol", 1), S(1), true), Attempt::Accepted);
    assert_eq!(delay(t.attempt(&from("carol", 2), S(1), false)), S(0));
}

#[test]
fn addresses_of_one_ipv6_prefix_are_one_network() {
    let mut t = throttle();
    let at = |address: &str| Attempter { address: address.parse().unwrap(), ..from(BOB, 0) };
    for i in 0..9 {
        t.attempt(&at(&format!("2001:db8::{i}")), S(0), false);
    }
    assert!(delay(t.attempt(&at("2001:db8::ffff:1"), S(0), false)) > S(1));
    assert_eq!(delay(t.attempt(&at("2001:db8:0:1::1"), S(0), false)), S(0));
    for _ in 0..9 {
        t.attempt(&at("192.0.2.1"), S(0), false);
    }
    assert!(delay(t.attempt(&at("::ffff:192.0.2.1"), S(0), false)) > S(1));
    assert_eq!(delay(t.attempt(&at("::ffff:192.0.2.2"), S(0), false)), S(0));
}

#[test]
fn fresh_names_do_not_wash_away_the_count_of_a_name() {
    let mut t = throttle();
    for _ in 0..9 {
        t.attempt(&from(BOB, 1), S(0), false);
    }
    for i in 0..5000 {
        t.attempt(&from(&format!("nobody{i}"), 1), S(1), false);
    }
    assert!(delay(t.attempt(&from(BOB, 1), S(2), false)) >= S(16));
}

/// Names with more failures do not evict the name that is guessed at either, whose count would begin anew.
#[test]
fn busier_names_do_not_wash_away_the_count_of_a_name() {
    let mut t = throttle();
    let now = S(1);
    for n in 0..ThrottlePolicy::default().users_per_network_max {
        for _ in 0..6 {
            t.attempt(&from(&format!("decoy {n}"), 1), now, false);
        }
    }
    let mut free = 0;
    for round in 0..100 {
        for _ in 0..3 {
            let attempt = t.attempt(&from(BOB, 1), now, false);
            free += usize::from(!is_refused(attempt) && delay(attempt) < S(5));
        }
        t.attempt(&from(&format!("fresh {round}"), 1), now, false);
    }
    assert!(free < 20, "{free} of 300 guesses are delayed by the network's count alone");
}

/// An attacker keeps all places but one busy, and lets bob and names that he invents take the last one from each other.
#[test]
fn evicted_names_keep_the_answers_that_wait() {
    let mut t = throttle();
    let home = Attempter { client_guid: 77, ..from(BOB, 1) };
    assert_eq!(t.attempt(&home, S(0), true), Attempt::Accepted);
    let hot: Vec<String> = (1..ThrottlePolicy::default().users_per_network_max).map(|n| format!("hot {n}")).collect();
    for round in 0..12 {
        for name in hot.iter().flat_map(|name| [name; 32]) {
            t.attempt(&from(name, 1), S(31 * round), false);
        }
    }
    // A minute of ten rounds a second.
    let mut looked_at = 0;
    for round in 0..600u64 {
        let now = S(31 * 12) + Duration::from_millis(100 * round);
        let guesses: Vec<Attempt> = (0..32).map(|_| t.attempt(&from(BOB, 1), now, false)).collect();
        looked_at += guesses.iter().filter(|guess| !is_refused(**guess)).count();
        t.attempt(&from(&format!("fresh {round}"), 1), now, false);
        // Bob was evicted. A right guess is answered as a wrong one, and who is nobody's aim logs on.
        assert!(is_refused(t.attempt(&from(BOB, 1), now, true)), "{round}");
        assert_eq!(t.attempt(&from("carol", 1), now, true), Attempt::Accepted, "a neighbour");
        assert_eq!(t.attempt(&from(BOB, 2), now, true), Attempt::Accepted, "elsewhere");
        assert_eq!(t.attempt(&home, now, true), Attempt::Accepted, "a client that was here before");
    }
    assert!(looked_at <= 4 * 32, "{looked_at} guesses were looked at in a minute");
}

#[test]
fn memory_is_bounded() {
    let policy = ThrottlePolicy { networks_max: 64, users_per_network_max: 8, ..Default::default() };
    let mut t = LogonThrottle::new(policy);
    let long = "x".repeat(500);
    for i in 0..4_000u32 {
        let name = format!("{long}{i}");
        t.attempt(&from(&name, i / 10), S(u64::from(i) / 100), false);
        t.attempt(&from(&format!("u{i}"), i / 10), S(u64::from(i) / 100), false);
        assert!(t.networks.len() <= 64);
    }
    let users = t.networks.values().flat_map(|n| n.by_user.iter());
    assert!(users.clone().count() <= 64 * 8);
    assert!(users.clone().all(|((name, _), f)| name.len() <= 64 && f.waiting.len() <= 32));
    for guid in 1..1000 {
        t.attempt(&Attempter { client_guid: guid, ..from(BOB, 1) }, S(300), true);
    }
    assert_eq!(t.known_clients["BOB"].len(), 16);
    // The latest is still known.
    assert!(t.networks.contains_key(&Network::of(Ipv4Addr::from(399).into())));
}

/// The names of all networks together are bounded too: those of the networks that failed longest ago go.
#[test]
fn names_of_all_networks_are_bounded_and_given_back() {
    let policy = ThrottlePolicy { networks_max: 64, users_per_network_max: 32, users_max: 80, ..Default::default() };
    let mut t = LogonThrottle::new(policy);
    let sum = |t: &LogonThrottle| t.networks.values().map(|n| n.by_user.len()).sum::<usize>();
    for i in 0..4_000u32 {
        t.attempt(&from(&format!("user {i}"), i / 10 % 40), Duration::from_millis(10 * u64::from(i)), false);
        assert!(sum(&t) <= 80, "{} names at {i}", sum(&t));
        assert_eq!(t.users, sum(&t));
    }
    // Those that failed last are left.
    let network = |n: u32| Network::of(Ipv4Addr::from(n).into());
    assert!(sum(&t) >= 60 && (35..40).all(|n| t.networks.contains_key(&network(n))));
    // Where a bound is met, a network does not get rid of its own failures.
    let last = S(40);
    let oldest =
        (0..40).filter(|n| t.networks.contains_key(&network(*n))).min_by_key(|n| t.networks[&network(*n)].all.last);
    let oldest = oldest.unwrap();
    for i in 0..80 - t.users {
        t.attempt(&from(&format!("more {i}"), 39), last, false);
    }
    assert_eq!(t.users, 80);
    t.attempt(&from(BOB, oldest), last, false);
    assert_eq!(t.networks[&network(oldest)].all.count, 11);
    assert!(t.users < 80);
    // What is over goes without another attempt, and not before.
    t.tick(last + S(15 * 60 - 1));
    assert!(t.networks() > 0);
    t.tick(last + S(15 * 60 + 60));
    assert_eq!((t.networks(), t.users), (0, 0));
}

/// One wrong answer after the other in a place does not keep those before it there.
#[test]
fn what_waits_of_an_evicted_name_ends_at_its_time() {
    let mut place = Evicted::default();
    let evicted = |waiting: Vec<Duration>, now| (Failures { count: 1, last: now, waiting }, now);
    let (failures, now) = evicted(vec![S(30); 31], S(0));
    place.note(&failures, now);
    assert_eq!(place.waiting(S(29)).len(), 31);
    // Each 20 s a name comes back with what waits, adds one, and is evicted again.
    for round in 1..10 {
        let now = S(20 * round);
        let mut waiting = place.waiting(now);
        waiting.push(now + S(30));
        let (failures, now) = evicted(waiting, now);
        place.note(&failures, now);
        assert!(place.waiting(now).contains(&(now + S(30))), "{round}");
    }
    assert!(place.waiting(S(190)).len() < 4, "{:?}", place.waiting(S(190)));
    assert!(place.waiting(S(240)).is_empty());
}
