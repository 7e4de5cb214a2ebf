//! What only two nodes can show: another epoch, a lease that ends, connections between nodes that break, an owner that is awaited.

use std::{
    io::{Read, Write},
    sync::atomic::Ordering,
};

use arden_smb::{
    Gate, Share, ShareAce,
    conn::Verdict,
    time::Time,
    usage::{Bound, Kind},
    wire::Version,
};

use crate::client::*;

fn ownership(lab: &Lab) -> &Ownership {
    &lab.front.as_ref().expect("two nodes").ownership
}

#[test]
fn the_trees_are_the_owners() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    c.write(f.id, 0, b"over");
    assert_eq!(lab.server.trees.opens().len(), 1);
    assert!(lab.front().trees.opens().is_empty());
    c.disconnect();
    assert!(lab.server.trees.opens().is_empty(), "a lost client's opens are closed at the owner");
}

#[test]
fn a_request_for_another_epoch_is_not_executed() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    c.write(f.id, 0, b"before");
    // The node lost the pool and has it again, and its trees of before are still there.
    ownership(&lab).epoch.store(3, Ordering::Relaxed);
    let id = c.send(&write(f.id, 0, b"behind"));
    assert!(c.is_closed() && c.poll(id).is_none(), "no answer, not even an error");
    assert_eq!(std::fs::read(lab.host("file")).unwrap(), b"before");
}

#[test]
fn what_was_done_is_not_answered_when_the_lease_has_ended() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    ownership(&lab).may_answer.store(false, Ordering::Relaxed);
    let id = c.send(&write(f.id, 0, b"late"));
    assert!(c.is_closed() && c.poll(id).is_none());
}

#[test]
fn a_tree_connect_waits_for_an_owner() {
    let lab = Lab::new();
    ownership(&lab).believed.store(0, Ordering::Relaxed);
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.logon(&logon(USER));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(150));
            ownership(&lab).believed.store(1, Ordering::Relaxed);
        });
        c.connect(SHARE);
    });
    let f = c.open(want("file"));
    c.write(f.id, 0, b"served");
}

/// What the owner serves, as if it were not there but for its name.
fn take_away(lab: &Lab, gate: Option<std::sync::Arc<dyn Gate>>) -> Vec<Share> {
    let served: Vec<Share> =
        lab.server.trees.shares().iter().filter(|s| s.fs.is_some()).map(|s| (**s).clone()).collect();
    let closed = served.iter().map(|s| Share { fs: None, gate: gate.clone(), ..s.clone() }).collect();
    lab.server.trees.set_shares_elsewhere(closed);
    lab.server.trees.set_shares(Vec::new());
    served
}

#[test]
fn a_tree_connect_waits_for_a_share_that_its_owner_opens() {
    let lab = Lab::new();
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.logon(&logon(USER));
    let served = take_away(&lab, None);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(250));
            lab.server.trees.set_shares(served);
        });
        c.connect(SHARE);
    });
    let f = c.open(want("file"));
    c.write(f.id, 0, b"served");
}

#[test]
fn a_share_that_its_owner_cannot_open_is_not_waited_for() {
    let lab = Lab::new();
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.logon(&logon(USER));
    take_away(&lab, Some(lab.front.as_ref().expect("two nodes").ownership.clone()));
    assert_eq!(c.try_connect(SHARE).unwrap_err(), NtStatus::BAD_NETWORK_NAME);
}

#[test]
fn a_connection_between_nodes_that_breaks_ends_its_clients_and_their_opens() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.open(want("file"));
    lab.front.as_ref().unwrap().break_connections();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while !c.is_closed() {
        assert!(std::time::Instant::now() < end);
    }
    while !lab.server.trees.opens().is_empty() {
        assert!(std::time::Instant::now() < end, "an open of a client that was lost");
        let_nodes_talk();
    }
    let mut again = lab.client();
    again.open(want("other"));
}

#[test]
fn an_owner_that_changed_ends_the_clients() {
    let lab = Lab::new();
    let mut c = lab.client();
    let front = lab.front.as_ref().unwrap();
    front.forwarder.places_changed();
    assert!(!c.is_closed());
    ownership(&lab).believed.store(2, Ordering::Relaxed);
    front.forwarder.places_changed();
    assert!(c.is_closed());
}

#[test]
fn a_cancelled_lock_is_not_taken() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    let f = one.open(want("file"));
    let g = two.open(want("file").existing());
    one.call(&lock(f.id, 0, &[(0, 10, lock_flags::EXCLUSIVE)])).ok();
    let waiting = two.send(&lock(g.id, 0, &[(0, 10, lock_flags::EXCLUSIVE)]));
    let async_id = two.interim(waiting);
    two.cancel(async_id);
    assert_eq!(two.receive(waiting).status(), NtStatus::CANCELLED);
    one.call(&lock(f.id, 0, &[(0, 10, lock_flags::UNLOCK)])).ok();
    one.call(&lock(f.id, 0, &[(0, 10, lock_flags::EXCLUSIVE)])).ok();
}

#[test]
fn the_owner_forgets_sessions_that_ended() {
    let lab = Lab::new();
    let forgotten = |lab: &Lab| {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while lab.server.forwarded_sessions() > 0 {
            assert!(std::time::Instant::now() < end, "the owner keeps a session");
            let_nodes_talk();
        }
    };
    let mut c = lab.client();
    assert_eq!(lab.server.forwarded_sessions(), 1);
    c.status(&Req::empty(Command::TreeDisconnect));
    c.status(&Req::empty(Command::Logoff));
    forgotten(&lab);
    // One whose tree connect was refused.
    change_share(&lab, SHARE, |share| share.users_max = Some(0));
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.logon(&logon(USER));
    assert_eq!(c.try_connect(SHARE).unwrap_err(), NtStatus::REQUEST_NOT_ACCEPTED);
    c.disconnect();
    forgotten(&lab);
}

#[test]
fn a_break_reaches_the_client_over_its_node() {
    let lab = Lab::new();
    let (mut one, mut two) = (lab.client(), lab.client());
    one.open(want("file").lease(5, "RWH"));
    let create = two.starts(want("file").existing());
    assert_eq!(one.lease_break(), ("RWH".to_owned(), "RH".to_owned(), true));
    one.call(&lease_ack(5, "RH")).ok();
    two.opened(create);
}

/// The client does not know the lease before it has the answer to its CREATE: a break that came before would be passed over.
#[test]
fn a_break_comes_behind_the_answer_that_grants_what_it_takes() {
    let lab = Lab::new();
    let front = lab.front.as_ref().expect("two nodes");
    let (mut one, mut two) = (lab.client(), lab.connect_to_owner_as(0xC11E));
    two.begin(Dialect::Smb311);
    front.hold_answers(true);
    let first = begin(&mut one, &want("file").lease(5, "RWH").req());
    until(|| lab.server.trees.opens().len() == 1, "the owner has not granted it");
    let second = two.starts(want("file").existing());
    front.hold_answers(false);
    let come = |c: &mut Client| {
        c.pump();
        (c.inbox.len() == 2).then_some(())
    };
    one.comes(come).expect("the answer and the break do not come");
    let order: Vec<_> = one.inbox.iter().map(|r| r.header.command).collect();
    assert_eq!(order, [Command::Create as u16, Command::OplockBreak as u16]);
    one.opened(first);
    assert_eq!(one.lease_break(), ("RWH".to_owned(), "RH".to_owned(), true));
    one.call(&lease_ack(5, "RH")).ok();
    two.opened(second);
}

#[test]
fn what_the_owner_answers_is_durable() {
    let lab = Lab::new();
    let mut c = lab.ca_client();
    let f = c.open(want("file").share(0).lease(1, "RWH").persistent(7, 0));
    assert!(lab.handles_are_committed());
    c.write(f.id, 0, b"kept");
    assert!(lab.is_committed(CA));
}

/// `FileServerFailover_ScaleOutFileServer_ReconnectWithoutFailover`. The node that the client was connected to has not noticed that
/// it has gone.
#[test]
fn a_client_that_comes_by_another_node_has_its_persistent_handles() {
    let lab = Lab::new();
    let at_owner = |guid| {
        let mut c = lab.connect_to_owner_as(guid);
        c.begin(Dialect::Smb311);
        c.connect(CA);
        c
    };
    let file = |n: usize| want(&format!("file{n}")).share(0).lease(n as u128, "RWH");
    for (n, from_owner) in [(1, false), (2, true)] {
        let mut before = lab.ca_client();
        if from_owner {
            before = at_owner(before.guid);
        }
        let f = before.open(file(n).persistent(n as u128, 0));
        before.write(f.id, 0, b"kept");
        before.call(&lock(f.id, 0, &[(0, 4, lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY)])).ok();
        let mut c = if from_owner { lab.ca_again(before.guid) } else { at_owner(before.guid) };
        let again = c.open(file(n).reconnect_persistent(f.id, n as u128));
        assert_eq!(c.read(again.id, 0, 4), b"kept");
        // There it is not known any more, neither for what is late nor at the end of that connection.
        assert_eq!(before.call(&write(f.id, 0, b"late")).status(), NtStatus::FILE_CLOSED);
        before.disconnect();
        let_nodes_talk();
        c.write(again.id, 4, b"more");
        assert_eq!(c.read(again.id, 0, 8), b"keptmore");
        // An open that was never answered is made again in the same way.
        let create = |c: &mut Client, replay: bool| {
            let mut how = want(&format!("replayed{n}")).persistent(n as u128 + 10, 0);
            how.replay = replay;
            c.open(how)
        };
        let made = create(&mut c, false);
        let mut other = if from_owner { at_owner(c.guid) } else { lab.ca_again(c.guid) };
        assert_eq!(create(&mut other, true).id, made.id);
        other.write(made.id, 0, b"x");
    }
}

/// A break goes to where the client has its opens by now, not to a connection that it has left.
#[test]
fn a_client_that_comes_by_another_node_hears_of_breaks_there() {
    let lab = Lab::new();
    let at_owner = |guid| {
        let mut c = lab.connect_to_owner_as(guid);
        c.begin(Dialect::Smb311);
        c.connect(CA);
        c
    };
    for (n, from_owner) in [(1, false), (2, true)] {
        let mut before = lab.ca_client();
        if from_owner {
            before = at_owner(before.guid);
        }
        let file = || want(&format!("file{n}")).lease(n, "RWH");
        let f = before.open(file().persistent(n, 0));
        let mut c = if from_owner { lab.ca_again(before.guid) } else { at_owner(before.guid) };
        c.open(file().reconnect_persistent(f.id, n));
        let mut other = lab.ca_client();
        let create = other.starts(want(&format!("file{n}")).existing());
        assert_eq!(c.lease_break(), ("RWH".to_owned(), "RH".to_owned(), true));
        c.call(&lease_ack(n, "RH")).ok();
        other.opened(create);
    }
}

/// Another session of the same node does not have what its client has open elsewhere in that node.
#[test]
fn a_second_session_of_the_same_node_takes_nothing() {
    let lab = Lab::new();
    let mut c = lab.ca_client();
    let f = c.open(want("file").share(0).lease(1, "RWH").persistent(7, 0));
    let mut second = lab.ca_again(c.guid);
    let status = second.try_open(&want("file").share(0).lease(1, "RWH").reconnect_persistent(f.id, 7)).unwrap_err();
    assert_eq!(status, NtStatus::OBJECT_NAME_NOT_FOUND);
    c.write(f.id, 0, b"mine");
}

/// A TREE_CONNECT with SMB2_TREE_CONNECT_FLAG_REDIRECT_TO_OWNER.
fn redirectable(path: &str) -> Req {
    let mut request = tree_connect(path);
    request.body[2..4].copy_from_slice(&2u16.to_le_bytes());
    request
}

#[test]
fn a_client_that_understands_it_is_told_where_the_owner_is() {
    let lab = Lab::new();
    let front = lab.front();
    let served = lab.server.trees.shares().into_iter().filter(|s| s.name != "IPC$");
    front.trees.set_shares_elsewhere(served.map(|s| Share { fs: None, gate: None, ..Share::clone(&s) }).collect());
    let path = format!(r"\\LAB\{SHARE}");
    let logged_on = |dialect| {
        let mut c = lab.connect();
        c.negotiate(&Offer::up_to(dialect));
        c.logon(&logon(USER));
        c
    };
    let mut c = logged_on(Dialect::Smb311);
    c.call(&redirectable(&path)).ok();
    let addresses = ["192.0.2.7", "2001:db8::7"].map(|a| a.parse::<std::net::IpAddr>().unwrap());
    ownership(&lab).addresses.lock().extend(addresses);
    // [MS-SMB2] 2.2.2.2.2, byte for byte.
    let mut context = vec![0x53, 0x52, 0x64, 0x72, 48, 0, 0, 0, 3, 0, 0, 0, 72, 0, 0, 0];
    let name: Vec<u8> = path.encode_utf16().flat_map(u16::to_le_bytes).collect();
    context.extend([name.len() as u8, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
    context.extend([1, 0, 0, 0, 0, 0, 0, 0, 192, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    context.extend([2, 0, 0, 0, 0, 0, 0, 0, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    context.extend(&name);
    context.resize(4 + (72 + name.len()).next_multiple_of(8), 0);
    let mut c = logged_on(Dialect::Smb311);
    let reply = c.call(&redirectable(&path));
    assert_eq!(reply.status(), NtStatus::BAD_NETWORK_NAME);
    let mut wanted = (context.len() as u32 - 4).to_le_bytes().to_vec();
    wanted.extend(&context);
    assert_eq!(reply.body()[2], 1, "one context");
    assert_eq!(reply.body()[8..], wanted, "behind the fixed part of the error");
    // Who did not ask, who speaks an older dialect, and who may not use the share are not told.
    assert!(c.try_connect(SHARE).is_ok());
    logged_on(Dialect::Smb302).call(&redirectable(&path)).ok();
    let everyone = arden_wire::dtyp::well_known::EVERYONE.clone();
    let none = ShareAce { sid: everyone, allow: false, mask: u32::MAX };
    change_share(&lab, SHARE, |share| share.access = vec![none.clone()]);
    let shares = lab.server.trees.shares().into_iter().filter(|s| s.name != "IPC$");
    lab.front()
        .trees
        .set_shares_elsewhere(shares.map(|s| Share { fs: None, gate: None, ..Share::clone(&s) }).collect());
    assert_eq!(logged_on(Dialect::Smb311).call(&redirectable(&path)).status(), NtStatus::ACCESS_DENIED);
}

/// A node whose partner knows the first version alone: requests go one by one, with who asks.
#[test]
fn a_node_of_the_first_version_is_served() {
    let lab = Lab::new();
    *ownership(&lab).version.lock() = Version::One;
    let (mut one, mut two) = (lab.client(), lab.client());
    let compound = [want("file").req(), write(FileId::RELATED, 0, b"over").related(), close(FileId::RELATED).related()];
    one.compound(&compound).into_iter().for_each(|r| drop(r.ok()));
    assert_eq!(std::fs::read(lab.host("file")).unwrap(), b"over");
    // A break, and a create that waits for it.
    let f = one.open(want("file").existing().lease(5, "RWH"));
    let create = two.starts(want("file").existing());
    assert_eq!(one.lease_break(), ("RWH".to_owned(), "RH".to_owned(), true));
    one.call(&lease_ack(5, "RH")).ok();
    let g = two.opened(create);
    // A lock that waits, and one that is cancelled.
    one.call(&lock(f.id, 0, &[(0, 10, lock_flags::EXCLUSIVE)])).ok();
    let waiting = two.send(&lock(g.id, 0, &[(5, 10, lock_flags::EXCLUSIVE)]));
    two.interim(waiting);
    one.call(&lock(f.id, 0, &[(0, 10, lock_flags::UNLOCK)])).ok();
    two.receive(waiting).ok();
    let cancelled = one.send(&lock(f.id, 0, &[(5, 1, lock_flags::SHARED)]));
    let async_id = one.interim(cancelled);
    one.cancel(async_id);
    assert_eq!(one.receive(cancelled).status(), NtStatus::CANCELLED);
    // A compound whose middle waits.
    let first = want("other").req();
    let behind =
        [lock(FileId::RELATED, 0, &[(0, 1, lock_flags::EXCLUSIVE)]).related(), close(FileId::RELATED).related()];
    one.compound(&[&[first], &behind[..]].concat()).into_iter().for_each(|r| drop(r.ok()));
    [&mut one, &mut two].into_iter().for_each(Client::disconnect);
    assert_eq!(lab.opens_left(0), 0);
    assert_eq!(lab.server.forwarded_sessions(), 0);
}

/// A client over TCP with many credits, who signs nothing after its logon.
fn on_socket(lab: &Lab, address: std::net::SocketAddr) -> Client {
    let mut c = lab.dial_as(address, OTHER);
    c.sign = false;
    c
}

/// A request as it goes over TCP.
fn framed(c: &mut Client, req: &Req) -> Vec<u8> {
    let (_, message) = c.encode(req, false);
    [&(message.len() as u32).to_be_bytes()[..], &message].concat()
}

/// A thread of its own would have to be woken for each answer of the owner.
#[test]
fn a_connection_with_requests_at_another_node_has_no_thread() {
    let lab = Lab::with(|s| s.signing_required = false);
    let (runtime, address) = lab.listen();
    let mut c = on_socket(&lab, address);
    let threads = || lab.front().trees.metrics.connection_threads.load(std::sync::atomic::Ordering::Relaxed);
    let f = c.open(want("file")).id;
    for _ in 0..400 {
        c.call(&read(f, 0, 1));
    }
    assert!(threads() <= 1, "{} times", threads());
    let before = threads();
    (0..400).for_each(|_| drop(c.call(&echo()).ok()));
    assert!(threads() > before, "what is answered here is as busy");
    runtime.shutdown_background();
}

/// Large answers that come from the owner together are many times what a connection keeps: the user is served afterwards.
#[test]
fn answers_that_come_together_keep_nobody_out() {
    const READ_BYTES: usize = 8 << 20;
    let lab = Lab::with(|s| s.signing_required = false);
    let (runtime, address) = lab.listen();
    let on = || on_socket(&lab, address);
    let mut clients: Vec<Client> = (0..2).map(|_| on()).collect();
    for c in &mut clients {
        let f = c.open(want("large")).id;
        c.set(f, file_class::END_OF_FILE, &(READ_BYTES as u64).to_le_bytes());
        // Nobody reads the first answer before the owner has made the others.
        let asked: Vec<u8> = (0..9).flat_map(|_| framed(c, &read(f, 0, READ_BYTES as u32))).collect();
        let socket = c.socket.as_mut().unwrap();
        socket.write_all(&asked).unwrap();
        std::thread::sleep(std::time::Duration::from_secs(2));
        for _ in 0..9 {
            let mut head = [0; 4];
            socket.read_exact(&mut head).unwrap();
            let mut answer = vec![0; u32::from_be_bytes(head) as usize];
            socket.read_exact(&mut answer).unwrap();
            assert!(answer.len() > READ_BYTES, "all of it is read");
        }
        let echoed = c.send(&echo());
        assert!(c.poll(echoed).is_some(), "it is served on");
    }
    let mut newcomer = on();
    newcomer.open(want("large"));
    runtime.shutdown_background();
}

/// What a user reads is long, and the answers to another come before most of it.
#[test]
fn one_users_long_answers_leave_others_their_turn() {
    const READS: usize = 24;
    const LENGTH: u32 = 8 << 20;
    // All of them wait at the owner.
    let bound = Bound { user: 1 << 30, address: 1 << 30, whole: 1 << 30 };
    let lab = Lab::with(|s| s.limits.usage.forwarded_bytes = bound);
    let front = lab.front.as_ref().expect("two nodes");
    let mut c = lab.client();
    c.put("long", &vec![7; LENGTH as usize]);
    let begun = std::time::Instant::now();
    for mut reader in (0..READS).map(|_| lab.client()) {
        let f = reader.open(want("long").existing());
        assert_eq!(reader.read(f.id, 0, LENGTH).len(), LENGTH as usize);
    }
    let one_by_one = begun.elapsed();
    let mut other = lab.connect();
    other.negotiate(&Offer::up_to(Dialect::Smb311));
    other.logon(&logon(OTHER));
    other.connect(SHARE);
    let readers: Vec<_> = (0..READS).map(|_| lab.client()).collect();
    let readers: Vec<_> = readers
        .into_iter()
        .map(|mut reader| {
            let f = reader.open(want("long").existing());
            (reader, f.id)
        })
        .collect();
    front.hold_answers(true);
    let before = front.answer_bytes();
    std::thread::scope(|scope| {
        let read = |(mut reader, id): (Client, FileId)| {
            scope.spawn(move || {
                let what = reader.read(id, 0, LENGTH);
                assert!(what.len() == LENGTH as usize && what.iter().all(|b| *b == 7));
                reader
            })
        };
        let reads: Vec<_> = readers.into_iter().map(read).collect();
        until(|| forwarded_bytes(&lab) >= READS * LENGTH as usize, "the reads are not at the owner");
        let asked = forwarded_bytes(&lab);
        let asks = scope.spawn(|| {
            let f = other.open(want("small"));
            other.close(f.id);
            front.answer_bytes() - before
        });
        until(|| forwarded_bytes(&lab) > asked, "the other's request is not at the owner");
        front.hold_answers(false);
        let released = std::time::Instant::now();
        let bytes = asks.join().unwrap();
        assert!(bytes < 5 * u64::from(LENGTH), "{bytes} bytes of the first user went before the second's two answers");
        // Nobody leaves before all have read: what is held goes on when there is room, and not only with the next frame, such as the end
        // of a session or the ping that comes every 2 s.
        let _all = reads.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>();
        let took = released.elapsed();
        let most = 2 * one_by_one + std::time::Duration::from_secs(5);
        assert!(took < most, "the reads waited for frames: {took:?}, one by one {one_by_one:?}");
    });
    assert!(front.answer_bytes() - before > READS as u64 * u64::from(LENGTH), "all came");
}

/// Clients of one user, each with an open of its own file.
fn writers(lab: &Lab, many: usize) -> Vec<(Client, FileId)> {
    let new = |n| {
        let mut c = lab.client();
        let f = c.open(want(&format!("file{n}"))).id;
        (c, f)
    };
    (0..many).map(new).collect()
}

/// A user may have 512 KiB of requests at another node.
fn small_lab() -> Lab {
    let bound = |user| Bound { user, address: 1 << 30, whole: 1 << 30 };
    Lab::with(|s| s.limits.usage.forwarded_bytes = bound(512 << 10))
}

/// Hands a request to the node, which has no answer at once.
pub(crate) fn begin(c: &mut Client, req: &Req) -> u64 {
    let (id, mut message) = c.encode(req, false);
    let mut out = Vec::new();
    let connection = c.connection.as_mut().expect("it is connected");
    let verdict = connection.handle_message(&mut message, Time::read(), &mut out);
    assert!(matches!(verdict, Verdict::Go) && out.is_empty(), "it is refused");
    id
}

/// Waits until it is so.
pub(crate) fn until(is_so: impl Fn() -> bool, not: &str) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_so() {
        assert!(std::time::Instant::now() < end, "{not}");
        let_nodes_talk();
    }
}

fn forwarded_bytes(lab: &Lab) -> usize {
    lab.front().trees.usage.total(Kind::ForwardedBytes)
}

/// Each of the user's connections sends at once what all together may not have: what is too much waits, and nobody else for it.
#[test]
fn what_a_user_has_too_much_waits_until_there_is_room() {
    const LENGTH: usize = 60 << 10;
    let (lab, written) = (small_lab(), vec![7; LENGTH]);
    let front = lab.front.as_ref().expect("two nodes");
    let mut all = writers(&lab, 30);
    let mut other = lab.connect();
    other.negotiate(&Offer::up_to(Dialect::Smb311));
    other.logon(&logon(OTHER));
    other.connect(SHARE);
    let other_file = other.open(want("other"));
    for _ in 0..3 {
        front.hold_answers(true);
        let sent: Vec<_> = all.iter_mut().map(|(c, f)| begin(c, &write(*f, 0, &written))).collect();
        let held = forwarded_bytes(&lab);
        assert!(held > 384 << 10 && held <= 512 << 10, "{held} bytes are at the owner");
        let asked = begin(&mut other, &write(other_file.id, 0, &written));
        assert!(forwarded_bytes(&lab) - held >= LENGTH, "another user's goes there at once");
        front.hold_answers(false);
        other.receive(asked).ok();
        for ((c, _), id) in all.iter_mut().zip(sent) {
            c.receive(id).ok();
        }
    }
    assert_eq!(forwarded_bytes(&lab), 0);
}

/// [MS-SMB2] 3.3.5.2.5: CreditCharge 0 is as good as 1.
#[test]
fn what_is_read_without_a_credit_charge_counts() {
    const LENGTH: u32 = 60 << 10;
    let lab = small_lab();
    let front = lab.front.as_ref().expect("two nodes");
    let mut all = writers(&lab, 5);
    all.iter_mut().for_each(|(c, f)| c.write(*f, 0, &[7; LENGTH as usize]));
    front.hold_answers(true);
    let sent: Vec<_> = all.iter_mut().map(|(c, f)| begin(c, &read(*f, 0, LENGTH).charge(0))).collect();
    assert!(forwarded_bytes(&lab) >= all.len() * LENGTH as usize, "{} bytes", forwarded_bytes(&lab));
    front.hold_answers(false);
    for ((c, _), id) in all.iter_mut().zip(sent) {
        c.receive(id).ok();
    }
    assert_eq!(forwarded_bytes(&lab), 0);
}

/// Clients that are gone, or that cancel, keep nobody from the room that they waited for.
#[test]
fn who_waits_for_room_may_go() {
    let (lab, written) = (small_lab(), vec![7; 60 << 10]);
    let front = lab.front.as_ref().expect("two nodes");
    let mut all = writers(&lab, 30);
    front.hold_answers(true);
    let sent: Vec<_> = all.iter_mut().map(|(c, f)| begin(c, &write(*f, 0, &written))).collect();
    for (c, _) in &mut all[5..25] {
        let mut connection = c.connection.take().expect("it is connected");
        connection.closed(std::time::Instant::now());
    }
    front.hold_answers(false);
    for (n, ((c, _), id)) in all.iter_mut().zip(sent).enumerate() {
        if !(5..25).contains(&n) {
            c.receive(id).ok();
        }
    }
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while forwarded_bytes(&lab) > 0 {
        assert!(std::time::Instant::now() < end, "{} bytes are left", forwarded_bytes(&lab));
        let_nodes_talk();
    }
}

/// Who waits for room when the owner is lost waits no more.
#[test]
fn a_wait_for_room_ends_with_the_owner() {
    let (lab, written) = (small_lab(), vec![7; 60 << 10]);
    let front = lab.front.as_ref().expect("two nodes");
    let mut all = writers(&lab, 30);
    front.hold_answers(true);
    all.iter_mut().for_each(|(c, f)| _ = begin(c, &write(*f, 0, &written)));
    front.break_connections();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !all.iter_mut().all(|(c, _)| c.is_closed()) || forwarded_bytes(&lab) > 0 {
        assert!(std::time::Instant::now() < end, "{} bytes are left", forwarded_bytes(&lab));
        let_nodes_talk();
    }
    front.hold_answers(false);
    let mut again = lab.client();
    again.put("again", &written);
}

/// Connections of one user that send more than the user may have, each without waiting for answers: none is refused.
#[test]
fn connections_take_turns_for_the_room_of_their_user() {
    const WRITES: usize = 10;
    const LENGTH: usize = 300 << 10;
    let bound = |user| Bound { user, address: 1 << 30, whole: 1 << 30 };
    let lab = Lab::with(|s| {
        s.signing_required = false;
        s.limits.usage.forwarded_bytes = bound(2 << 20);
    });
    let (runtime, address) = lab.listen();
    let written = vec![7; LENGTH];
    let all = std::sync::Barrier::new(16);
    std::thread::scope(|scope| {
        for n in 0..16 {
            let (mut c, all, written) = (on_socket(&lab, address), &all, &written);
            scope.spawn(move || {
                let f = c.open(want(&format!("file{n}"))).id;
                let asked: Vec<u8> = (0..WRITES).flat_map(|_| framed(&mut c, &write(f, 0, written))).collect();
                let mut socket = c.socket.as_ref().unwrap().try_clone().unwrap();
                let mut output = socket.try_clone().unwrap();
                all.wait();
                let sends = std::thread::spawn(move || output.write_all(&asked).unwrap());
                for _ in 0..WRITES {
                    let mut head = [0; 4];
                    socket.read_exact(&mut head).unwrap();
                    let mut answer = vec![0; u32::from_be_bytes(head) as usize];
                    socket.read_exact(&mut answer).unwrap();
                    assert_eq!(answer[8..12], [0; 4], "connection {n} is refused");
                }
                sends.join().unwrap();
            });
        }
    });
    assert_eq!(forwarded_bytes(&lab), 0);
    runtime.shutdown_background();
}
