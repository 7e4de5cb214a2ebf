//! What clients can make the server hold has bounds; each is met here.

use std::time::Duration;

use arden_smb::usage::{Bound, Kind};

use crate::client::*;

#[test]
fn sessions_max() {
    let lab = Lab::with(|s| s.limits.sessions_max = 3);
    let clients: Vec<_> = (0..3).map(|_| lab.client()).collect();
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    assert_eq!(c.try_logon(&logon(USER)).err(), Some(NtStatus::INSUFFICIENT_RESOURCES));
    drop(clients);
    c.logon(&logon(USER));
}

#[test]
fn sessions_per_connection_max() {
    let lab = Lab::with(|s| s.limits.sessions_per_connection_max = 2);
    let mut c = lab.client();
    c.session = None;
    c.logon(&logon(USER));
    c.session = None;
    assert_eq!(c.try_logon(&logon(USER)).err(), Some(NtStatus::INSUFFICIENT_RESOURCES));
    // Half-finished ones count.
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    let token = || arden_auth::initiator::Initiator::new(USER, "", PASSWORD).first();
    for expected in [true, true, false] {
        let status = c.status(&session_setup(0, 1, 0, &token()).session(0));
        assert_eq!(status == NtStatus::MORE_PROCESSING_REQUIRED, expected, "{status}");
    }
}

fn begins(c: &mut Client) -> NtStatus {
    let token = arden_auth::initiator::Initiator::new(USER, "", PASSWORD).first();
    c.status(&session_setup(0, 1, 0, &token).session(0))
}

fn negotiated(lab: &Lab) -> Client {
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c
}

#[test]
fn setups_per_connection_max() {
    let lab = Lab::with(|s| s.limits.setups_per_connection_max = 3);
    let mut c = negotiated(&lab);
    for _ in 0..3 {
        assert_eq!(begins(&mut c), NtStatus::MORE_PROCESSING_REQUIRED);
    }
    assert_eq!(begins(&mut c), NtStatus::INSUFFICIENT_RESOURCES);
    // Another connection has its own, and after a time they are forgotten.
    negotiated(&lab).logon(&logon(USER));
    lab.pass(Duration::from_secs(31));
    c.logon(&logon(USER));
}

#[test]
fn setups_of_an_address_and_of_all() {
    for whole in [false, true] {
        let lab = Lab::with(|s| if whole { s.limits.setups_max = 5 } else { s.limits.setups_per_address_max = 5 });
        let mut clients: Vec<Client> = (0..5).map(|_| negotiated(&lab)).collect();
        for c in &mut clients {
            assert_eq!(begins(c), NtStatus::MORE_PROCESSING_REQUIRED);
        }
        let mut late = negotiated(&lab);
        assert_eq!(begins(&mut late), NtStatus::INSUFFICIENT_RESOURCES);
        clients.pop();
        late.logon(&logon(USER));
    }
}

#[test]
fn a_logon_keeps_no_more_than_a_little() {
    let lab = Lab::new();
    let mut c = negotiated(&lab);
    let mut token = arden_auth::initiator::Initiator::new(USER, "", PASSWORD);
    token.spnego = false;
    let mut token = token.first();
    token.resize(60_000, 0);
    let status = c.status(&session_setup(0, 1, 0, &token).session(0));
    assert_eq!(status, NtStatus::INVALID_PARAMETER);
    c.logon(&logon(USER));
}

#[test]
fn sessions_per_user_max() {
    let lab = Lab::with(|s| s.limits.sessions_per_user_max = 2);
    let clients = [lab.client(), lab.client()];
    let mut c = negotiated(&lab);
    assert_eq!(c.try_logon(&logon(USER)).err(), Some(NtStatus::INSUFFICIENT_RESOURCES));
    c.logon(&logon(OTHER));
    drop(clients);
    c.session = None;
    c.logon(&logon(USER));
}

#[test]
fn sessions_per_address_max() {
    let lab = Lab::with(|s| s.limits.sessions_per_address_max = 2);
    let _clients = [lab.client(), lab.client()];
    assert_eq!(negotiated(&lab).try_logon(&logon(OTHER)).err(), Some(NtStatus::INSUFFICIENT_RESOURCES));
}

#[test]
fn sessions_reserved() {
    let lab = Lab::with(|s| (s.limits.sessions_max, s.limits.sessions_reserved) = (8, 1));
    let mut clients: Vec<Client> = (0..8).map(|_| negotiated(&lab)).collect();
    for c in &mut clients[..7] {
        c.logon(&logon(OTHER));
    }
    assert_eq!(clients[7].try_logon(&logon(OTHER)).err(), Some(NtStatus::INSUFFICIENT_RESOURCES));
    clients[7].logon(&logon(USER));
}

/// A session does not take the last connections by being bound to them.
#[test]
fn connections_reserved() {
    let lab = Lab::with(|s| (s.limits.connections_max, s.limits.connections_reserved) = (8, 1));
    let (_runtime, address) = lab.listen();
    let dial = |guid: Option<u128>| {
        let mut c = lab.dial(address);
        c.guid = guid.unwrap_or(c.guid);
        c.negotiate(&Offer::up_to(Dialect::Smb311));
        c
    };
    let mut main = dial(None);
    let session = main.logon(&logon(OTHER));
    let bind = logon(OTHER).bind(&session);
    let mut bound: Vec<Client> = (0..7).map(|_| dial(Some(main.guid))).collect();
    for c in &mut bound[..6] {
        c.logon(&bind);
    }
    assert_eq!(bound[6].try_logon(&bind).err(), Some(NtStatus::INSUFFICIENT_RESOURCES));
    bound[6].session = None;
    bound[6].logon(&logon(USER));
}

#[test]
fn dialects_of_a_negotiation() {
    let lab = Lab::new();
    let mut c = lab.connect();
    let many: Vec<u16> = (0..20_000).map(|i| 0x0210 + i % 2).collect();
    assert_eq!(c.try_negotiate(&Offer::of(&many)).err(), Some(NtStatus::INVALID_PARAMETER));
}

#[test]
fn trees_per_session_max() {
    let lab = Lab::with(|s| s.limits.trees_per_session_max = 2);
    let mut c = lab.client();
    c.connect(SHARE);
    assert_eq!(c.try_connect(SHARE).unwrap_err(), NtStatus::INSUFFICIENT_RESOURCES);
    assert_eq!(c.status(&Req::empty(Command::TreeDisconnect)), NtStatus::SUCCESS);
    c.connect(SHARE);
}

#[test]
fn opens_per_session_max() {
    let lab = Lab::with(|s| s.limits.opens_per_session_max = 3);
    let mut c = lab.client();
    let first = c.open(want("1"));
    c.open(want("2"));
    c.open(want("3"));
    assert_eq!(c.fails(want("4")), NtStatus::TOO_MANY_OPENED_FILES);
    assert!(!lab.host("4").exists());
    c.close(first.id);
    c.open(want("4"));
}

#[test]
fn opens_of_the_whole_server() {
    let lab = Lab::with(|s| s.table.opens_max = 3);
    let (mut one, mut two) = (lab.client(), lab.client());
    one.open(want("1"));
    one.open(want("2"));
    let third = two.open(want("3"));
    assert!(matches!(two.fails(want("4")), NtStatus::TOO_MANY_OPENED_FILES | NtStatus::INSUFFICIENT_RESOURCES));
    two.close(third.id);
    two.open(want("3"));
}

#[test]
fn pending_per_connection_max() {
    let lab = Lab::with(|s| s.limits.pending_per_connection_max = 2);
    let mut c = lab.client();
    let dirs: Vec<_> = (0..3).map(|i| c.open(want(&format!("d{i}")).directory()).id).collect();
    let first = c.send(&notify(dirs[0], 0, 1, 100));
    let async_id = c.interim(first);
    let second = c.send(&notify(dirs[1], 0, 1, 100));
    c.interim(second);
    assert_eq!(c.status(&notify(dirs[2], 0, 1, 100)), NtStatus::INSUFFICIENT_RESOURCES);
    c.cancel(async_id);
    let third = c.send(&notify(dirs[2], 0, 1, 100));
    c.interim(third);
}

#[test]
fn channels_per_session_max() {
    let lab = Lab::with(|s| s.limits.channels_per_session_max = 2);
    let main = lab.client();
    let second = super::channels::second_channel(&lab, &main);
    let mut third = lab.connect_as(main.guid);
    third.negotiate(&Offer::up_to(Dialect::Smb311));
    let bind = logon(USER).bind(main.session.as_ref().unwrap());
    assert_eq!(third.try_logon(&bind).err(), Some(NtStatus::INSUFFICIENT_RESOURCES));
    drop(second);
    third.logon(&bind);
}

#[test]
fn chain_max() {
    let lab = Lab::with(|s| s.limits.chain_max = 4);
    let mut c = lab.client();
    let four: Vec<_> = (0..4).map(|_| echo()).collect();
    assert!(c.compound(&four).iter().all(|r| r.status() == NtStatus::SUCCESS));
    let five: Vec<_> = (0..5).map(|_| echo()).collect();
    c.send_all(&five);
    assert!(c.is_closed());
}

/// Who has not logged on gets no thread by sending many requests at once.
#[test]
fn chain_before_logon_max() {
    let lab = Lab::new();
    let max = lab.server.trees.config.limits.chain_before_logon_max;
    let echoes = |count| (0..count).map(|_| echo().session(0).signed(false)).collect::<Vec<_>>();
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.call(&echo().credits(1000)).ok();
    for count in [2, 3, max] {
        assert_eq!(c.compound(&echoes(count)).len(), count);
    }
    let long = || Req::empty(Command::QueryDirectory).session(0).signed(false);
    c.held = Some(Vec::new());
    assert_eq!(c.compound(&(0..max).map(|_| long()).collect::<Vec<_>>()).len(), max);
    assert_eq!(c.run_held(), 0, "what is refused takes no time");
    c.send_all(&echoes(max + 1));
    assert!(c.is_closed());
    // With a session there may be more, of whatever session they are.
    let mut c = lab.client();
    assert_eq!(c.compound(&echoes(max + 1)).len(), max + 1);
}

#[test]
fn locks_per_open_max() {
    let lab = Lab::with(|s| s.table.locks_per_open_max = 2);
    let mut c = lab.client();
    let f = c.open(want("file"));
    let take = |offset| lock(f.id, 0, &[(offset, 1, lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY)]);
    c.call(&take(0)).ok();
    c.call(&take(10)).ok();
    assert_eq!(c.status(&take(20)), NtStatus::INSUFFICIENT_RESOURCES);
    c.call(&lock(f.id, 0, &[(0, 1, lock_flags::UNLOCK)])).ok();
    c.call(&take(20)).ok();
}

/// A lock that is refused is not charged.
#[test]
fn persistent_locks_per_user_max() {
    let lab = Lab::with(|s| s.limits.persistent_locks_per_user_max = 1);
    let mut c = lab.ca_client();
    let f = c.open(want("file").lease(1, "RWH").persistent(1, 0));
    let take = |offset| lock(f.id, 0, &[(offset, 1, lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY)]);
    c.call(&take(0)).ok();
    for offset in [10, 20, 30] {
        assert_eq!(c.status(&take(offset)), NtStatus::INSUFFICIENT_RESOURCES);
    }
    assert_eq!(lab.server.trees.usage.total(Kind::Locks), 1);
}

#[test]
fn waits_max() {
    let lab = Lab::with(|s| s.table.waits_max = 1);
    let mut c = lab.client();
    let dirs: Vec<_> = (0..2).map(|i| c.open(want(&format!("d{i}")).directory()).id).collect();
    let first = c.send(&notify(dirs[0], 0, 1, 100));
    c.interim(first);
    assert_eq!(c.status(&notify(dirs[1], 0, 1, 100)), NtStatus::INSUFFICIENT_RESOURCES);
}

#[test]
fn a_notification_holds_no_more_than_its_bound() {
    let lab = Lab::with(|s| s.table.notify_buffer_bytes_max = 512);
    let (mut watcher, mut changer) = (lab.client(), lab.client());
    changer.make_directory("dir");
    let d = watcher.open(want("dir").existing().directory());
    let id = watcher.send(&notify(d.id, 0, 1, 65536));
    watcher.interim(id);
    for i in 0..100 {
        changer.put(&format!("dir\\a-file-of-some-length-{i}"), b"");
    }
    watcher.receive(id).ok();
    assert_eq!(watcher.status(&notify(d.id, 0, 1, 65536)), NtStatus::NOTIFY_ENUM_DIR);
}

#[test]
fn durable_handles_end() {
    let lab = Lab::with(|s| s.limits.durable_timeout_max = Duration::from_secs(10));
    let mut c = lab.client();
    let f = c.open(want("file").oplock(oplock::BATCH).durable_v2(1, 3_600_000));
    assert_eq!(f.durable_v2(), Some(10_000));
    c.disconnect();
    lab.pass(Duration::from_secs(11));
    assert!(lab.server.trees.opens().is_empty());
}

/// What waits takes no more of this than it counts for, whichever node has it, and keeps nobody from giving up what they have.
#[test]
fn waits_of_a_user() {
    const WAITS: usize = 6;
    let waits = Bound { user: WAITS, address: 100, whole: 100 };
    // Room for two at another node.
    let forwarded_bytes = Bound { user: 150 << 10, address: 1 << 30, whole: 1 << 30 };
    let lab = Lab::with(|s| (s.limits.usage.waits, s.limits.usage.forwarded_bytes) = (waits, forwarded_bytes));
    let (mut holder, mut c) = (lab.client(), lab.client());
    let (held, f) = (holder.open(want("file")).id, c.open(want("file").existing()).id);
    let take = |id, n: usize| lock(id, 0, &[(n as u64, 1, lock_flags::EXCLUSIVE)]);
    (0..=WAITS).for_each(|n| drop(holder.call(&take(held, n)).ok()));
    let waiting: Vec<_> = (0..WAITS).map(|n| c.send(&take(f, n))).collect();
    waiting.iter().for_each(|id| _ = c.interim(*id));
    assert_eq!(c.status(&take(f, WAITS)), NtStatus::INSUFFICIENT_RESOURCES);
    assert_eq!(lab.front().trees.usage.total(Kind::ForwardedBytes), 0, "nothing else is kept for them");
    c.write(f, 100, b"goes on");
    let other = c.open(want("other")).id;
    c.call(&lock(other, 0, &[(0, 1, lock_flags::EXCLUSIVE)])).ok();
    c.call(&lock(other, 0, &[(0, 1, lock_flags::UNLOCK)])).ok();
    c.close(other);
    holder.close(held);
    for id in waiting {
        c.receive(id).ok();
    }
    c.close(f);
    let of = |kind| [&lab.server, lab.front()].map(|server| server.trees.usage.total(kind));
    assert_eq!((of(Kind::Waits), of(Kind::ForwardedBytes)), ([0; 2], [0; 2]));
}
