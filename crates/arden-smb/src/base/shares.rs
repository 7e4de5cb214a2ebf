//! What users share and wait for: threads that may block, and memory for messages. A user and an address have so much at once,
//! administrators have a part for themselves, and any other user who has something gets no more than a part of what is left: so
//! there is room for who comes anew while others take what they can. Each user is served in order, and users in turn. Refuses
//! to know threads and buffers.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::atomic::{AtomicUsize, Ordering},
};

use arden_auth::{Token, network};
use arden_lock::{Mutex, Rank};
use arden_wire::dtyp::Sid;

use crate::base::usage::{Bound, RESERVED_PART};

/// A user who has something gets at most one in so many of what is left.
const PART_OF_WHAT_IS_LEFT: usize = 4;

/// Who shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    pub user: Sid,
    administrator: bool,
    /// None for administrators, who are not bound by it.
    address: Option<IpAddr>,
}

impl Who {
    pub fn new(token: &Token, ip: IpAddr) -> Who {
        let administrator = token.is_administrator();
        let address = (!administrator).then(|| network(ip));
        Who { user: token.user.clone(), administrator, address }
    }
}

/// So much of what is shared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// Threads, where they are what is shared.
    pub slots: usize,
    pub bytes: usize,
}

impl Amount {
    const NOTHING: Amount = Amount { slots: 0, bytes: 0 };

    pub fn bytes(bytes: usize) -> Amount {
        Amount { slots: 0, bytes }
    }

    fn add(&mut self, other: Amount) {
        self.slots += other.slots;
        self.bytes += other.bytes;
    }

    fn take(&mut self, other: Amount) {
        self.slots -= other.slots;
        self.bytes -= other.bytes;
    }
}

/// What bounds the sharing of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub slots: Bound,
    pub bytes: Bound,
}

impl Bounds {
    const NONE: Bound = Bound { user: usize::MAX, address: usize::MAX, whole: usize::MAX };

    /// Nothing but bytes is shared.
    pub fn of_bytes(bytes: Bound) -> Bounds {
        Bounds { slots: Bounds::NONE, bytes }
    }

    /// Nothing but threads.
    pub fn of_slots(slots: Bound) -> Bounds {
        Bounds { slots, bytes: Bounds::NONE }
    }
}

struct User<T> {
    held: Amount,
    waiting: VecDeque<(Who, Amount, T)>,
}

struct State<T> {
    bounds: Bounds,
    whole: Amount,
    users: HashMap<Sid, User<T>>,
    addresses: HashMap<IpAddr, Amount>,
    /// Users with something that waits.
    turn: VecDeque<Sid>,
    /// How many users and addresses, and the whole, have more bytes than their bound.
    over: usize,
}

/// What is shared. `T` stands for what goes on with it.
pub struct Shares<T, R: Rank> {
    state: Mutex<State<T>, R>,
    /// That of the state, to be looked at without its lock.
    over: AtomicUsize,
}

impl<T> State<T> {
    fn held(&self, who: &Who) -> Amount {
        self.users.get(&who.user).map_or(Amount::NOTHING, |u| u.held)
    }

    fn held_there(&self, who: &Who) -> Amount {
        who.address.and_then(|a| self.addresses.get(&a).copied()).unwrap_or_default()
    }

    fn fits(&self, who: &Who, amount: Amount) -> bool {
        if self.whole == Amount::NOTHING {
            // One goes whatever it takes.
            return true;
        }
        let (held, there) = (self.held(who), self.held_there(who));
        let (first, first_there) = (held == Amount::NOTHING, there == Amount::NOTHING);
        let fits = |bound: Bound, amount: usize, [whole, held, there]: [usize; 3]| {
            let left = |reserved: usize| (bound.whole - reserved).saturating_sub(whole);
            let (left, own_max) = match who.administrator {
                true => (left(0), bound.user),
                false => {
                    let left = left(bound.whole / RESERVED_PART);
                    (left, bound.user.min(left / PART_OF_WHAT_IS_LEFT))
                }
            };
            amount <= left
                && (first || held + amount <= own_max)
                && (who.address.is_none() || first_there || there + amount <= bound.address)
        };
        fits(self.bounds.slots, amount.slots, [self.whole.slots, held.slots, there.slots])
            && fits(self.bounds.bytes, amount.bytes, [self.whole.bytes, held.bytes, there.bytes])
    }

    /// Has `who`, its address or the whole more bytes than one in `part` of the bound?
    fn exceeds(&self, who: &Who, part: usize) -> bool {
        let Bound { user, address, whole } = self.bounds.bytes;
        self.held(who).bytes > user / part
            || self.held_there(who).bytes > address / part
            || self.whole.bytes > whole / part
    }

    fn user(&mut self, user: &Sid) -> &mut User<T> {
        self.users.entry(user.clone()).or_insert_with(|| User { held: Amount::NOTHING, waiting: VecDeque::new() })
    }

    /// Changes what `who` holds.
    fn change(&mut self, who: &Who, change: impl Fn(&mut Amount)) {
        let bound = self.bounds.bytes;
        let mut over = self.over;
        let mut apply = |held: &mut Amount, bound: usize| {
            over -= usize::from(held.bytes > bound);
            change(held);
            over += usize::from(held.bytes > bound);
        };
        apply(&mut self.whole, bound.whole);
        if let Some(address) = who.address {
            let held = self.addresses.entry(address).or_default();
            apply(held, bound.address);
            if *held == Amount::NOTHING {
                self.addresses.remove(&address);
            }
        }
        let user = self.users.entry(who.user.clone());
        let user = user.or_insert_with(|| User { held: Amount::NOTHING, waiting: VecDeque::new() });
        apply(&mut user.held, bound.user);
        if user.held == Amount::NOTHING && user.waiting.is_empty() {
            self.users.remove(&who.user);
        }
        self.over = over;
    }

    /// What may go on now, counted; of each user in order.
    fn next(&mut self) -> Vec<T> {
        let (mut next, mut passed) = (Vec::new(), 0);
        while passed < self.turn.len() {
            let Some(sid) = self.turn.pop_front() else { break };
            let first = self.users.get(&sid).and_then(|u| u.waiting.front());
            let Some((who, amount)) = first.map(|(who, amount, _)| (who.clone(), *amount)) else { continue };
            if !self.fits(&who, amount) {
                self.turn.push_back(sid);
                passed += 1;
                continue;
            }
            passed = 0;
            self.change(&who, |held| held.add(amount));
            let user = self.user(&sid);
            next.extend(user.waiting.pop_front().map(|(_, _, item)| item));
            if !user.waiting.is_empty() {
                self.turn.push_back(sid);
            }
        }
        next
    }
}

impl<T, R: Rank> Shares<T, R> {
    pub fn new(bounds: Bounds) -> Shares<T, R> {
        let state = State {
            bounds,
            whole: Amount::NOTHING,
            users: HashMap::new(),
            addresses: HashMap::new(),
            turn: VecDeque::new(),
            over: 0,
        };
        Shares { state: Mutex::new(state), over: AtomicUsize::new(0) }
    }

    fn with<A>(&self, change: impl FnOnce(&mut State<T>) -> A) -> A {
        let mut state = self.state.lock();
        let answer = change(&mut state);
        self.over.store(state.over, Ordering::Relaxed);
        answer
    }

    /// Given back where `who` may have so much now; else it waits. [`Shares::release`] has to follow in both cases.
    pub fn admit(&self, who: &Who, amount: Amount, item: T) -> Option<T> {
        self.with(|s| {
            let waits = s.users.get(&who.user).is_some_and(|u| !u.waiting.is_empty());
            if waits || !s.fits(who, amount) {
                s.user(&who.user).waiting.push_back((who.clone(), amount, item));
                if !waits {
                    s.turn.push_back(who.user.clone());
                }
                return None;
            }
            s.change(who, |held| held.add(amount));
            Some(item)
        })
    }

    /// Counts what `who` has already, whatever the bounds say.
    pub fn force(&self, who: &Who, amount: Amount) {
        self.with(|s| s.change(who, |held| held.add(amount)));
    }

    /// `who` has so much less. What may go on now.
    #[must_use]
    pub fn release(&self, who: &Who, amount: Amount) -> Vec<T> {
        self.with(|s| {
            s.change(who, |held| held.take(amount));
            s.next()
        })
    }

    /// Do the bytes of anybody exceed a bound, because they were not asked for?
    pub fn are_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) > 0
    }

    /// Do those of `who`?
    pub fn is_over(&self, who: &Who) -> bool {
        self.are_over() && self.state.lock().exceeds(who, 1)
    }

    /// Is half of what `who` may have left?
    pub fn has_room(&self, who: &Who) -> bool {
        !self.state.lock().exceeds(who, 2)
    }

    /// What all hold.
    pub fn whole_bytes(&self) -> usize {
        self.state.lock().whole.bytes
    }

    #[cfg(test)]
    fn is_unused(&self) -> bool {
        let s = self.state.lock();
        s.whole == Amount::NOTHING && s.users.is_empty() && s.addresses.is_empty() && s.turn.is_empty() && s.over == 0
    }
}

#[cfg(test)]
mod tests {
    use arden_lock::ranks;

    use super::*;

    fn who(n: u32, host: u8) -> Who {
        let token = Token { user: Sid::new(5, &[21, n]), ..Token::anonymous() };
        Who::new(&token, IpAddr::from([192, 0, 2, host]))
    }

    fn root() -> Who {
        Who::new(&Token::system(), IpAddr::from([192, 0, 2, 1]))
    }

    fn shares(slots: Bound, bytes: Bound) -> Shares<u32, ranks::Jobs> {
        Shares::new(Bounds { slots, bytes })
    }

    const fn bound(user: usize, address: usize, whole: usize) -> Bound {
        Bound { user, address, whole }
    }

    fn job(bytes: usize) -> Amount {
        Amount { slots: 1, bytes }
    }

    #[test]
    fn each_user_has_so_much_at_once_in_order() {
        let jobs = shares(bound(2, 100, 1000), bound(100, 1000, 10_000));
        let (a, b) = (who(1, 1), who(2, 2));
        let ran = Amount { slots: 1, bytes: 0 };
        assert!(jobs.admit(&a, job(500), 0).is_some(), "one goes whatever it takes");
        assert!(jobs.admit(&a, job(1), 1).is_none());
        assert!(jobs.admit(&b, job(1), 2).is_some(), "others are not held up");
        assert!(jobs.admit(&a, job(60), 3).is_none());
        assert!(jobs.admit(&a, job(60), 4).is_none());
        assert!(jobs.release(&a, ran).is_empty(), "its answer is not sent");
        assert_eq!(jobs.release(&a, Amount::bytes(500)), [1, 3]);
        assert!(jobs.release(&a, job(1)).is_empty(), "60 and 60 are too many bytes");
        assert!(jobs.release(&a, ran).is_empty(), "60 are not sent");
        assert_eq!(jobs.release(&a, Amount::bytes(60)), [4]);
        assert!(jobs.release(&a, job(60)).is_empty());
        assert!(jobs.release(&b, job(1)).is_empty());
        assert!(jobs.is_unused());
    }

    /// Many users who take what they get leave something for the next, and for administrators when nothing else is left.
    #[test]
    fn who_comes_anew_finds_room() {
        let jobs = shares(bound(32, 1000, 448), bound(1 << 20, 1 << 30, 1 << 30));
        for n in 0..16 {
            for _ in 0..40 {
                jobs.admit(&who(n, 1), job(1), n);
            }
        }
        let newcomer = who(100, 2);
        assert!(jobs.admit(&newcomer, job(1), 100).is_some());
        let left = (0..448).take_while(|n| jobs.admit(&who(1000 + n, 3), job(1), 1000).is_some()).count();
        assert!(left > 10, "{left} more users found room");
        assert!(jobs.admit(&who(5000, 4), job(1), 5000).is_none(), "in the end there is none");
        for _ in 0..28 {
            assert!(jobs.admit(&root(), job(1), 9).is_some(), "for administrators there is");
        }
    }

    #[test]
    fn users_who_wait_take_turns() {
        let jobs = shares(bound(4, 100, 4), bound(1000, 1000, 1000));
        assert!((0..4).all(|n| jobs.admit(&who(n, 1), job(1), n).is_some()));
        for item in [10, 11, 12, 13] {
            assert!(jobs.admit(&who(10, 1), job(1), item).is_none());
        }
        assert!(jobs.admit(&who(20, 1), job(1), 20).is_none());
        let order: Vec<_> = (0..3).flat_map(|n| jobs.release(&who(n, 1), job(1))).collect();
        assert_eq!(order[..2], [10, 20], "not all of the one before any of the other");
    }

    #[test]
    fn an_address_is_bound_and_administrators_are_not() {
        let jobs = shares(bound(10, 3, 100), bound(1000, 1000, 1000));
        assert!((0..3).all(|n| jobs.admit(&who(n, 1), job(1), n).is_some()));
        assert!(jobs.admit(&who(3, 1), job(1), 3).is_none());
        assert!(jobs.admit(&who(4, 2), job(1), 4).is_some());
        assert!(jobs.admit(&root(), job(1), 5).is_some());
        assert_eq!(jobs.release(&who(0, 1), job(1)), [3]);
    }

    #[test]
    fn what_was_not_asked_for_counts() {
        let buffers: Shares<(), ranks::Jobs> = Shares::new(Bounds::of_bytes(bound(100, 1000, 10_000)));
        let (a, b) = (who(1, 1), who(2, 1));
        buffers.force(&a, Amount::bytes(50));
        assert!(buffers.has_room(&a) && !buffers.is_over(&a));
        buffers.force(&a, Amount::bytes(60));
        assert!(!buffers.has_room(&a) && buffers.is_over(&a));
        assert!(buffers.has_room(&b) && !buffers.is_over(&b));
        assert!(buffers.admit(&a, Amount::bytes(1), ()).is_none());
        assert_eq!(buffers.release(&a, Amount::bytes(20)).len(), 1);
        assert!(!buffers.is_over(&a));
        for bytes in [90, 1] {
            assert!(buffers.release(&a, Amount::bytes(bytes)).is_empty());
        }
        assert!(buffers.is_unused());
    }
}
