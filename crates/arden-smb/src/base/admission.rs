//! Who may connect, begin a logon and hold a session: counts by address and by user, and which connection makes room
//! when there are too many. Pure: no sockets, no clock; connections are numbers with a function that closes them.
//!
//! Nobody who has not logged on can shut others out: connections without a session make room for newer ones, oldest
//! first, those of the address with the most of them before others'. The last connections and sessions of the server
//! are for members of Administrators.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use arden_auth::network;
use arden_lock::{Mutex, ranks};
use arden_wire::dtyp::Sid;

use crate::base::config::Limits;

type Close = Box<dyn Fn() + Send + Sync>;

/// A transport connection that was let in.
struct Entry {
    network: IpAddr,
    close: Close,
    /// Logons under way.
    setups: usize,
    /// It has been told to close, and is not counted any more.
    closing: bool,
}

/// What one address has.
#[derive(Default)]
struct Address {
    connections: usize,
    /// Connections without a session, oldest first.
    waiting: BTreeSet<u64>,
    setups: usize,
    sessions: usize,
}

impl Address {
    fn is_unused(&self) -> bool {
        self.connections == 0 && self.setups == 0 && self.sessions == 0
    }
}

#[derive(Default)]
struct State {
    entries: HashMap<u64, Entry>,
    addresses: HashMap<IpAddr, Address>,
    /// Connections that count: those that were not told to close.
    connections: usize,
    waiting: usize,
    setups: usize,
    sessions: usize,
    users: HashMap<Sid, usize>,
}

/// Counts what [`Limits`] bounds before and at logon.
#[derive(Default)]
pub(crate) struct Admission(Mutex<State, ranks::Admission>);

/// The limit that was met: its name and value, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Met {
    pub limit: &'static str,
    pub value: usize,
}

const fn met(limit: &'static str, value: usize) -> Option<Met> {
    Some(Met { limit, value })
}

/// How many of `max` one may take who is an administrator, or is not. Small servers reserve less.
fn left(max: usize, reserved: usize, administrator: bool) -> usize {
    max - if administrator { 0 } else { reserved.min(max / 8) }
}

impl State {
    /// What refuses connection `id` a user, while the connections that are left are not for this one. Those without a session
    /// do not count: they make room.
    fn refuses_connection(&self, limits: &Limits, id: u64, administrator: bool) -> Option<Met> {
        let entry = self.entries.get(&id);
        let has_session =
            entry.is_some_and(|e| self.addresses.get(&e.network).is_some_and(|a| !a.waiting.contains(&id)));
        let taken = self.connections - self.waiting + 1;
        // One that has a session takes no more.
        if !has_session && taken > left(limits.connections_max, limits.connections_reserved, administrator) {
            met("connections_reserved", limits.connections_reserved)
        } else {
            None
        }
    }

    fn change(&mut self, network: IpAddr, change: impl FnOnce(&mut Address)) {
        let address = self.addresses.entry(network).or_default();
        change(address);
        if address.is_unused() {
            self.addresses.remove(&network);
        }
    }

    fn address(&self, network: IpAddr) -> (usize, usize) {
        self.addresses.get(&network).map_or((0, 0), |a| (a.connections, a.waiting.len()))
    }

    /// Takes connection `id` out of the counts; its entry stays until it has ended.
    fn uncount(&mut self, id: u64) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if std::mem::replace(&mut entry.closing, true) {
            return;
        }
        let network = entry.network;
        self.connections -= 1;
        let mut waited = false;
        self.change(network, |a| {
            a.connections -= 1;
            waited = a.waiting.remove(&id);
        });
        self.waiting -= usize::from(waited);
    }

    /// Closes the oldest connection without a session of `network`. False: there is none.
    fn close_waiting(&mut self, network: IpAddr) -> bool {
        let oldest = self.addresses.get(&network).and_then(|a| a.waiting.first().copied());
        let Some(id) = oldest else { return false };
        self.close(id);
        true
    }

    fn close(&mut self, id: u64) {
        self.uncount(id);
        if let Some(entry) = self.entries.get(&id) {
            (entry.close)();
        }
    }

    /// Closes the connection without a session of `network` that has most logons under way; of several, the oldest. False:
    /// none has any.
    fn close_beginner(&mut self, network: IpAddr) -> bool {
        let setups = |id: &u64| self.entries.get(id).map_or(0, |e| e.setups);
        let waiting = self.addresses.get(&network).into_iter().flat_map(|a| &a.waiting).copied();
        let most = waiting.filter(|id| setups(id) > 0).max_by_key(|id| (setups(id), std::cmp::Reverse(*id)));
        let Some(id) = most else { return false };
        self.close(id);
        true
    }

    fn change_setups(&mut self, id: u64, change: impl FnOnce(&mut usize)) {
        if let Some(entry) = self.entries.get_mut(&id) {
            change(&mut entry.setups);
        }
    }

    /// The same of the address that has most of them; of several, the one whose first is the oldest.
    fn close_some_waiting(&mut self) -> bool {
        let waiting = self.addresses.iter().filter(|(_, a)| !a.waiting.is_empty());
        let most = waiting.max_by_key(|(_, a)| (a.waiting.len(), std::cmp::Reverse(a.waiting.first().copied())));
        match most.map(|(network, _)| *network) {
            Some(network) => self.close_waiting(network),
            None => false,
        }
    }
}

impl Admission {
    /// Lets connection `id` in, or says which limit refuses it. Ids have to rise with time. `close` is called when the
    /// connection has to make room; it must not call back.
    pub fn connect(&self, limits: &Limits, ip: IpAddr, id: u64, close: Close) -> Result<(), Met> {
        let network = network(ip);
        let mut s = self.0.lock();
        if s.address(network).1 >= limits.connections_waiting_per_address_max {
            s.close_waiting(network);
        } else if s.waiting >= limits.connections_waiting_max {
            s.close_some_waiting();
        }
        let of_address = s.address(network).0;
        if !network.is_loopback() && of_address >= limits.connections_per_address_max && !s.close_waiting(network) {
            return Err(Met { limit: "connections_per_address_max", value: limits.connections_per_address_max });
        }
        if s.connections >= limits.connections_max && !s.close_some_waiting() {
            return Err(Met { limit: "connections_max", value: limits.connections_max });
        }
        s.entries.insert(id, Entry { network, close, setups: 0, closing: false });
        s.connections += 1;
        s.waiting += 1;
        s.change(network, |a| {
            a.connections += 1;
            a.waiting.insert(id);
        });
        Ok(())
    }

    /// The transport of connection `id` is gone.
    pub fn disconnected(&self, id: u64) {
        let mut s = self.0.lock();
        s.uncount(id);
        s.entries.remove(&id);
    }

    /// Makes room where descriptors have run out. False: every connection has a session.
    pub fn make_room(&self) -> bool {
        self.0.lock().close_some_waiting()
    }

    /// Whether connection `id` has a session.
    pub fn set_logged_on(&self, id: u64, logged_on: bool) {
        let mut s = self.0.lock();
        let Some(network) = s.entries.get(&id).filter(|e| !e.closing).map(|e| e.network) else { return };
        let mut changed = false;
        s.change(network, |a| changed = if logged_on { a.waiting.remove(&id) } else { a.waiting.insert(id) });
        match (changed, logged_on) {
            (true, true) => s.waiting -= 1,
            (true, false) => s.waiting += 1,
            (false, _) => {}
        }
    }

    /// Counts a logon under way on connection `id`, unless there are too many; `of_connection` are there already on its
    /// connection. With too many of its address or in all, a connection without a session is closed for it.
    pub fn begin_setup(&self, limits: &Limits, (ip, id): (IpAddr, u64), of_connection: usize) -> Result<(), Met> {
        let network = network(ip);
        let mut s = self.0.lock();
        let of_address = s.addresses.get(&network).map_or(0, |a| a.setups);
        let refused = if of_connection >= limits.setups_per_connection_max {
            met("setups_per_connection_max", limits.setups_per_connection_max)
        } else if of_address >= limits.setups_per_address_max && !s.close_beginner(network) {
            met("setups_per_address_max", limits.setups_per_address_max)
        } else if s.setups >= limits.setups_max && !s.close_some_waiting() {
            met("setups_max", limits.setups_max)
        } else {
            None
        };
        if let Some(refused) = refused {
            return Err(refused);
        }
        s.setups += 1;
        s.change(network, |a| a.setups += 1);
        s.change_setups(id, |setups| *setups += 1);
        Ok(())
    }

    pub fn end_setup(&self, ip: IpAddr, id: u64) {
        let mut s = self.0.lock();
        s.setups -= 1;
        s.change_setups(id, |setups| *setups -= 1);
        s.change(network(ip), |a| a.setups -= 1);
    }

    /// Counts a session of `user` on connection `id`, unless there are too many. The last `sessions_reserved` sessions, and
    /// logons while only `connections_reserved` connections are left, are for administrators.
    pub fn open_session(
        &self,
        limits: &Limits,
        (ip, id): (IpAddr, u64),
        user: &Sid,
        administrator: bool,
    ) -> Result<(), Met> {
        let network = network(ip);
        let mut s = self.0.lock();
        let of_address = s.addresses.get(&network).map_or(0, |a| a.sessions);
        let of_user = s.users.get(user).copied().unwrap_or(0);
        let refused = if s.sessions >= limits.sessions_max {
            met("sessions_max", limits.sessions_max)
        } else if s.sessions >= left(limits.sessions_max, limits.sessions_reserved, administrator) {
            met("sessions_reserved", limits.sessions_reserved)
        } else if let Some(refused) = s.refuses_connection(limits, id, administrator) {
            Some(refused)
        } else if of_user >= limits.sessions_per_user_max {
            met("sessions_per_user_max", limits.sessions_per_user_max)
        } else if !network.is_loopback() && of_address >= limits.sessions_per_address_max {
            met("sessions_per_address_max", limits.sessions_per_address_max)
        } else {
            None
        };
        if let Some(refused) = refused {
            return Err(refused);
        }
        s.sessions += 1;
        *s.users.entry(user.clone()).or_default() += 1;
        s.change(network, |a| a.sessions += 1);
        Ok(())
    }

    /// Whether connection `id` may be bound to a session that is there: the last ones are for administrators then too.
    pub fn bind(&self, limits: &Limits, id: u64, administrator: bool) -> Result<(), Met> {
        self.0.lock().refuses_connection(limits, id, administrator).map_or(Ok(()), Err)
    }

    pub fn close_session(&self, ip: IpAddr, user: &Sid) {
        let mut s = self.0.lock();
        s.sessions -= 1;
        s.change(network(ip), |a| a.sessions -= 1);
        if let Some(count) = s.users.get_mut(user) {
            *count -= 1;
            if *count == 0 {
                s.users.remove(user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Lab {
        admission: Admission,
        limits: Limits,
        closed: Arc<parking_lot::Mutex<Vec<u64>>>,
    }

    impl Lab {
        fn new(change: impl FnOnce(&mut Limits)) -> Lab {
            let mut limits = Limits::default();
            change(&mut limits);
            Lab { admission: Admission::default(), limits, closed: Arc::default() }
        }
        fn connect(&self, id: u64, ip: &str) -> Result<(), &'static str> {
            let closed = self.closed.clone();
            let close = Box::new(move || closed.lock().push(id));
            self.admission.connect(&self.limits, ip.parse().unwrap(), id, close).map_err(|m| m.limit)
        }
        fn closed(&self) -> Vec<u64> {
            std::mem::take(&mut self.closed.lock())
        }
    }

    fn user(n: u32) -> Sid {
        Sid::new(5, &[21, 1, 2, 3, n])
    }

    #[test]
    fn an_address_is_a_host_or_a_64() {
        let of = |a: &str| network(a.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), of("2001:db8:1:2::1"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert!(of("::1").is_loopback() && of("::ffff:127.0.0.1").is_loopback());
        assert_ne!(of("fe80::1"), of("fe80::2"));
        assert_ne!(of("192.0.2.2"), of("192.0.2.1"));
    }

    #[test]
    fn silent_connections_of_an_address_push_each_other_out() {
        let lab = Lab::new(|l| l.connections_waiting_per_address_max = 3);
        lab.connect(1, "192.0.2.1").unwrap();
        lab.admission.set_logged_on(1, true);
        for id in 2..=1000 {
            lab.connect(id, "2001:db8::1").unwrap();
            lab.connect(id + 10_000, &format!("2001:db8::{id:x}")).unwrap();
        }
        assert_eq!(lab.admission.0.lock().waiting, 3, "one /64 is one address");
        assert!(!lab.closed().contains(&1));
        lab.connect(2000, "192.0.2.1").unwrap();
        assert_eq!(lab.closed(), [], "another address has its own");
    }

    #[test]
    fn the_address_with_most_silent_connections_makes_room() {
        let lab = Lab::new(|l| (l.connections_max, l.connections_waiting_max) = (6, 100));
        for (id, ip) in [(1, "192.0.2.1"), (2, "192.0.2.1"), (3, "192.0.2.2"), (4, "192.0.2.3")] {
            lab.connect(id, ip).unwrap();
        }
        lab.admission.set_logged_on(1, true);
        for id in 5..=6 {
            lab.connect(id, "192.0.2.9").unwrap();
        }
        lab.connect(7, "192.0.2.4").unwrap();
        assert_eq!(lab.closed(), [5]);
        lab.admission.disconnected(5);
        for id in [2, 3, 4, 6, 7] {
            lab.admission.set_logged_on(id, true);
        }
        assert_eq!(lab.connect(8, "192.0.2.9"), Err("connections_max"));
        lab.admission.disconnected(3);
        lab.connect(9, "192.0.2.9").unwrap();
        assert!(lab.admission.make_room());
        assert_eq!(lab.closed(), [9]);
        assert!(!lab.admission.make_room(), "nobody who is logged on is closed");
    }

    #[test]
    fn all_silent_connections_together_are_bounded() {
        let lab = Lab::new(|l| l.connections_waiting_max = 10);
        for id in 1..=50u64 {
            lab.connect(id, &format!("192.0.2.{id}")).unwrap();
        }
        assert_eq!(lab.closed().len(), 40);
    }

    #[test]
    fn connections_of_an_address_are_bounded_with_sessions_too() {
        let lab = Lab::new(|l| l.connections_per_address_max = 2);
        for id in 1..=2 {
            lab.connect(id, "192.0.2.1").unwrap();
            lab.admission.set_logged_on(id, true);
        }
        assert_eq!(lab.connect(3, "192.0.2.1"), Err("connections_per_address_max"));
        lab.connect(4, "192.0.2.2").unwrap();
        // Without its last session a connection makes room.
        lab.admission.set_logged_on(1, false);
        lab.connect(5, "192.0.2.1").unwrap();
        assert_eq!(lab.closed(), [1]);
        // A proxy on the server itself brings everybody.
        for id in 10..20 {
            lab.connect(id, "127.0.0.1").unwrap();
            lab.admission.set_logged_on(id, true);
        }
    }

    /// Strangers from many addresses cannot use all logons up.
    #[test]
    fn logons_under_way_make_room_too() {
        let lab = Lab::new(|l| (l.setups_max, l.setups_per_address_max) = (8, 4));
        let begin = |ip: &str, of_connection| {
            lab.admission.begin_setup(&lab.limits, (ip.parse().unwrap(), 0), of_connection).map_err(|m| m.limit)
        };
        assert_eq!(begin("192.0.2.1", lab.limits.setups_per_connection_max), Err("setups_per_connection_max"));
        for id in 1..=8 {
            let ip = format!("192.0.2.{id}");
            lab.connect(id, &ip).unwrap();
            begin(&ip, 0).unwrap();
        }
        lab.connect(9, "192.0.2.9").unwrap();
        begin("192.0.2.9", 0).unwrap();
        assert_eq!(lab.closed(), [1], "the oldest");
        for id in 1..=9 {
            lab.admission.set_logged_on(id, true);
        }
        assert_eq!(begin("192.0.2.9", 0), Err("setups_max"));
    }

    /// Who has begun all logons of an address does not keep others behind it from theirs.
    #[test]
    fn logons_of_an_address_make_room_for_each_other() {
        let lab = Lab::new(|l| l.setups_per_address_max = 8);
        let ip = "192.0.2.1";
        let begin = |id| {
            let at = (ip.parse().unwrap(), id);
            lab.admission.begin_setup(&lab.limits, at, 0).map_err(|m| m.limit)
        };
        for id in 1..=4 {
            lab.connect(id, ip).unwrap();
        }
        lab.admission.set_logged_on(1, true);
        // The oldest that waits has none, and would give none back.
        for id in [1, 1, 3, 3, 3, 3, 4, 4] {
            begin(id).unwrap();
        }
        lab.connect(5, ip).unwrap();
        begin(5).unwrap();
        assert_eq!(lab.closed(), [3], "the one with most of them");
        (0..4).for_each(|_| lab.admission.end_setup(ip.parse().unwrap(), 3));
        lab.admission.disconnected(3);
        (0..3).for_each(|_| begin(5).unwrap());
        assert_eq!(lab.closed(), []);
        for id in [4, 5] {
            lab.admission.set_logged_on(id, true);
        }
        assert_eq!(begin(2), Err("setups_per_address_max"), "who has logged on is not closed");
        assert_eq!(lab.closed(), []);
    }

    #[test]
    fn sessions_are_bounded_by_user_address_and_whole_and_administrators_get_the_last() {
        let lab = Lab::new(|l| {
            (l.sessions_max, l.sessions_reserved) = (16, 2);
            (l.sessions_per_user_max, l.sessions_per_address_max) = (5, 8);
        });
        let open = |ip: &str, n, administrator| {
            let ip = ip.parse().unwrap();
            lab.admission.open_session(&lab.limits, (ip, 0), &user(n), administrator).map_err(|m| m.limit)
        };
        for _ in 0..5 {
            open("192.0.2.1", 1, false).unwrap();
        }
        assert_eq!(open("192.0.2.2", 1, false), Err("sessions_per_user_max"));
        for _ in 0..3 {
            open("192.0.2.1", 2, false).unwrap();
        }
        assert_eq!(open("192.0.2.1", 3, false), Err("sessions_per_address_max"));
        for n in 4..10 {
            open("192.0.2.3", n, false).unwrap();
        }
        assert_eq!(open("192.0.2.4", 11, false), Err("sessions_reserved"));
        open("192.0.2.4", 500, true).unwrap();
        open("192.0.2.4", 500, true).unwrap();
        assert_eq!(open("192.0.2.4", 500, true), Err("sessions_max"));
        for n in 4..10 {
            lab.admission.close_session("192.0.2.3".parse().unwrap(), &user(n));
        }
        open("192.0.2.4", 11, false).unwrap();
    }

    #[test]
    fn the_last_connections_are_for_administrators() {
        let lab = Lab::new(|l| (l.connections_max, l.connections_reserved) = (8, 1));
        for id in 1..=8u64 {
            lab.connect(id, &format!("192.0.2.{id}")).unwrap();
            lab.admission.set_logged_on(id, id < 8);
        }
        let open = |id, administrator| {
            let at = (format!("192.0.2.{id}").parse().unwrap(), id);
            lab.admission.open_session(&lab.limits, at, &user(1), administrator).map_err(|m| m.limit)
        };
        let bind = |id, administrator| lab.admission.bind(&lab.limits, id, administrator).map_err(|m| m.limit);
        assert_eq!(open(8, false), Err("connections_reserved"));
        assert_eq!(bind(8, false), Err("connections_reserved"), "a session that is there takes none of them either");
        bind(8, true).unwrap();
        open(8, true).unwrap();
        open(7, false).expect("one more on a connection takes none");
        lab.admission.disconnected(1);
        open(8, false).unwrap();
        bind(8, false).unwrap();
    }

    /// Strangers at a few addresses do not keep users from logging on.
    #[test]
    fn silent_connections_do_not_count_against_the_last() {
        let lab = Lab::new(|l| (l.connections_max, l.connections_reserved) = (8, 1));
        for id in 1..=100u64 {
            lab.connect(id, &format!("192.0.2.{}", id % 4)).unwrap();
        }
        let at = |id: u64| (format!("192.0.2.{id}").parse().unwrap(), id);
        for id in 101..=107u64 {
            lab.connect(id, &format!("192.0.2.{id}")).unwrap();
            lab.admission.open_session(&lab.limits, at(id), &user(1), false).expect("strangers make room");
            lab.admission.set_logged_on(id, true);
        }
        lab.connect(108, "192.0.2.108").unwrap();
        let last = |administrator| lab.admission.open_session(&lab.limits, at(108), &user(1), administrator);
        assert_eq!(last(false).map_err(|m| m.limit), Err("connections_reserved"));
        last(true).unwrap();
    }

    #[test]
    fn nothing_is_left_of_what_ended() {
        let lab = Lab::new(|l| l.connections_waiting_per_address_max = 2);
        let ip: IpAddr = "192.0.2.1".parse().unwrap();
        for id in 1..=20 {
            lab.connect(id, "192.0.2.1").unwrap();
            lab.admission.begin_setup(&lab.limits, (ip, id), 0).unwrap();
            lab.admission.open_session(&lab.limits, (ip, id), &user(1), false).unwrap();
        }
        for id in 1..=20 {
            lab.admission.set_logged_on(id, true);
            lab.admission.end_setup(ip, id);
            lab.admission.close_session(ip, &user(1));
            lab.admission.set_logged_on(id, false);
            lab.admission.disconnected(id);
            lab.admission.disconnected(id);
        }
        let s = lab.admission.0.lock();
        assert!(s.entries.is_empty() && s.addresses.is_empty() && s.users.is_empty());
        assert_eq!((s.connections, s.waiting, s.setups, s.sessions), (0, 0, 0, 0));
    }
}
