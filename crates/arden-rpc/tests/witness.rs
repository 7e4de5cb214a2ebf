//! The witness: what is told to whom, [MS-SWN] 3.1.

mod common;

use arden_rpc::{tcp::Flow, witness::*};
use arden_wire::rpc;
use common::tcp::*;
use std::{net::IpAddr, time::Duration};

const NOT_FOUND: u32 = 0x490;
const INVALID_PARAMETER: u32 = 87;
const INVALID_STATE: u32 = 0x139F;
const REVISION_MISMATCH: u32 = 0x51A;
const NO_SYSTEM_RESOURCES: u32 = 0x5AA;
const TIMEOUT: u32 = 1460;

/// `data` has this owner from now on.
fn own(cluster: &mut ClusterState, owner: Option<u16>) {
    cluster.shares.insert("data".into(), owner);
}

fn words(stub: &[u8]) -> Vec<u32> {
    stub.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
}

/// Type of the message, and its buffer.
fn message(got: &[Got], call: u32) -> (u32, Vec<u8>) {
    let [Got::Stub(id, stub)] = got else { panic!("{got:?}") };
    assert_eq!(*id, call);
    let length = words(stub)[2] as usize;
    (words(stub)[1], stub[24..24 + length].to_vec())
}

/// The status of a notification without a message.
fn status(got: &[Got]) -> u32 {
    match got {
        [Got::Stub(_, stub)] if stub.len() == 8 => words(stub)[1],
        other => panic!("{other:?}"),
    }
}

fn addresses(buffer: &[u8]) -> Vec<(u32, [u8; 4])> {
    assert_eq!(words(buffer)[0] as usize, buffer.len());
    buffer[12..].chunks(24).map(|c| (words(c)[0], c[4..8].try_into().unwrap())).collect()
}

#[test]
fn a_registration_has_to_make_sense() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    let cases = [
        (DATA, 0),
        (VERSION_1, 0),
        (Registering { net_name: Some("Files"), ..DATA }, 0),
        (Registering { share: None, ..DATA }, 0),
        (Registering { share: Some("other"), address: Some("10.0.0.2"), ..DATA }, 0),
        (Registering { version: 0x0001_0001, ..DATA }, REVISION_MISMATCH),
        (Registering { version: 0x0002_0000, ..VERSION_1 }, REVISION_MISMATCH),
        (Registering { version: 0, net_name: None, ..DATA }, REVISION_MISMATCH),
        (Registering { net_name: None, ..DATA }, INVALID_PARAMETER),
        (Registering { address: None, ..DATA }, INVALID_PARAMETER),
        (Registering { client: None, ..DATA }, INVALID_PARAMETER),
        (Registering { net_name: Some(""), address: Some(""), client: Some(""), ..DATA }, INVALID_PARAMETER),
        (Registering { net_name: Some("FILESERVER"), ..DATA }, INVALID_PARAMETER),
        (Registering { net_name: Some("other.example.org"), ..DATA }, INVALID_PARAMETER),
        (Registering { address: Some("10.0.0"), ..DATA }, INVALID_PARAMETER),
        (Registering { address: Some("10.0.0.9"), ..DATA }, INVALID_STATE),
        (Registering { address: Some("255.255.255.255"), ..DATA }, INVALID_STATE),
        (Registering { address: Some("255.255.255.255"), ..VERSION_1 }, INVALID_STATE),
        (Registering { share: Some("nothing"), ..DATA }, INVALID_STATE),
        (Registering { share: Some("secret"), ..DATA }, INVALID_STATE),
    ];
    for (case, expected) in &cases {
        let (status, handle) = client.register(case);
        assert_eq!((status, handle == [0; 20]), (*expected, *expected != 0), "{case:?}");
    }
    let mut root = Client::of(&world, "root", SEAL);
    assert_eq!(root.register(&Registering { share: Some("secret"), ..DATA }).0, 0);
    let long: &'static str = Box::leak("x".repeat(260).into_boxed_str());
    assert_eq!(client.register(&Registering { client: Some(long), ..DATA }).0, INVALID_PARAMETER);
    assert!(matches!(client.call(1, &[1, 2, 3]), Got::Fault(_, 1783)));
    assert!(matches!(client.call(6, &[]), Got::Fault(_, 0x1C01_0002)));
}

/// The state of the cluster lists all shares: a look makes it, and no client can have it made.
#[test]
fn calls_use_what_the_last_look_has_found() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    let before = *world.cluster.1.lock();
    for _ in 0..10 {
        assert_eq!(client.register(&DATA).0, 0);
        assert_eq!(client.register(&Registering { share: Some("nothing"), ..DATA }).0, INVALID_STATE);
        assert!(!client.stub(0, &[]).is_empty());
    }
    assert_eq!(*world.cluster.1.lock(), before);
    world.change(|c| c.shares.extend([("nothing".to_owned(), Some(1))]), 1);
    assert_eq!(client.register(&Registering { share: Some("nothing"), ..DATA }).0, 0);
    assert_eq!(*world.cluster.1.lock(), before + 1);
}

#[test]
fn an_unregistered_handle_is_one_that_does_not_exist() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    let (_, handle) = client.register(&DATA);
    assert_eq!(client.stub(5, &handle), [0; 24], "the handle comes back as none");
    assert_eq!(words(&client.stub(5, &handle))[5], INVALID_PARAMETER);
    assert_eq!(client.stub(2, &handle), INVALID_PARAMETER.to_le_bytes());
    assert_eq!(client.stub(2, &[0; 20]), INVALID_PARAMETER.to_le_bytes());
    assert_eq!(words(&client.stub(3, &handle)), [0, NOT_FOUND]);
}

#[test]
fn a_handle_of_another_user_or_group_does_not_exist() {
    let world = World::new();
    let mut alice = Client::of(&world, "alice", SEAL);
    let (_, handle) = alice.register(&DATA);
    for user in ["root", "alice"] {
        let mut other = Client::of(&world, user, SEAL);
        assert_eq!(words(&other.stub(3, &handle)), [0, NOT_FOUND], "{user}");
        assert_eq!(other.stub(2, &handle), INVALID_PARAMETER.to_le_bytes(), "{user}");
    }
    let call = alice.wait(&handle);
    world.change(|c| c.nodes[0].alive = false, 1);
    assert_eq!(message(&alice.read(), call).0, 1);
}

#[test]
fn a_node_that_fails_is_a_resource_change() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    let (_, handle) = client.register(&VERSION_1);
    let (_, elsewhere) = client.register(&Registering { address: Some("10.0.0.2"), ..VERSION_1 });
    let call = client.wait(&handle);
    let other = client.wait(&elsewhere);
    world.change(|c| c.nodes[0].alive = false, 1);
    let (kind, buffer) = message(&client.read(), call);
    assert_eq!((kind, words(&buffer[..8])), (1, vec![14, 0xFF]));
    assert_eq!(buffer[8..], [b'N', 0, b'1', 0, 0, 0]);
    // The next call waits for what comes next.
    let call = client.wait(&handle);
    world.change(|_| {}, 2);
    assert_eq!(client.read(), []);
    world.change(|c| c.nodes[0].alive = true, 3);
    assert_eq!(words(&message(&client.read(), call).1[..8]), [14, 1]);
    assert_ne!(other, call, "the registration for another node heard of nothing");
}

#[test]
fn who_is_connected_to_a_floating_address_hears_where_it_goes() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    let floats: IpAddr = "10.0.0.50".parse().unwrap();
    let at_it = Registering { address: Some("10.0.0.50"), ..DATA };
    assert_eq!(client.register(&at_it).0, INVALID_STATE);
    let put = |node| move |c: &mut ClusterState| c.floating.extend([(floats, node)]);
    world.change(put(None), 1);
    assert_eq!(client.register(&at_it).0, 0, "also while no node has it");
    world.change(put(Some(1)), 2);
    let (_, handle) = client.register(&at_it);
    let call = client.wait(&handle);
    world.change(
        |c| {
            c.floating.insert(floats, Some(2));
            own(c, Some(2));
        },
        3,
    );
    let (kind, buffer) = message(&client.read(), call);
    let name = |n: u8| vec![b'N', 0, n, 0, 0, 0];
    assert_eq!((kind, words(&buffer[..8]), &buffer[8..14]), (1, vec![14, 0xFF], &name(b'1')[..]));
    assert_eq!((words(&buffer[14..22]), &buffer[22..28]), (vec![14, 1], &name(b'2')[..]));
    // The share's owner has the address: nobody has to move.
    client.wait(&handle);
    world.change(|_| {}, 4);
    assert_eq!(client.read(), []);
}

#[test]
fn news_wait_for_a_client_that_does_not_ask() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    let (_, handle) = client.register(&DATA);
    world.change(|c| c.nodes[0].alive = false, 1);
    world.change(|c| own(c, None), 2);
    world.change(|c| own(c, Some(2)), 3);
    let first = client.stub(3, &handle);
    assert_eq!(words(&first)[1], 1, "first that the node is gone");
    let second = client.stub(3, &handle);
    assert_eq!(words(&second)[1], 3, "then where the share is");
    client.wait(&handle);
}

#[test]
fn another_owner_of_a_share_is_a_share_move() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    let (_, data) = client.register(&DATA);
    let (_, other) = client.register(&Registering { share: Some("other"), address: Some("10.0.0.2"), ..DATA });
    let (_, there) = client.register(&Registering { address: Some("10.0.0.2"), ..DATA });
    assert_eq!(words(&client.stub(3, &there))[1], 3, "it is not at the owner yet");
    let (_, old) = client.register(&VERSION_1);
    let call = client.wait(&data);
    for handle in [&other, &there, &old] {
        client.wait(handle);
    }
    world.change(|c| own(c, Some(2)), 1);
    let (kind, buffer) = message(&client.read(), call);
    assert_eq!((kind, addresses(&buffer)), (3, vec![(1, [10, 0, 0, 2])]), "one of four is told");
}

/// Where an asymmetric share is reached by another node than its owner, the client is told where that is.
#[test]
fn a_client_at_another_node_than_the_owner_is_moved_at_once() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    let (_, handle) = client.register(&Registering { share: Some("other"), ..DATA });
    let told = client.stub(3, &handle);
    assert_eq!((words(&told)[1], words(&told)[3]), (3, 1), "a SHARE_MOVE, one message");
    assert_eq!(addresses(&told[24..24 + words(&told)[2] as usize]), [(1, [10, 0, 0, 2])]);
    client.wait(&handle);
    world.change(|_| {}, 1);
    assert_eq!(client.read(), [], "once");
    // Not where the owner cannot be reached, nor a client of version 1.
    world.change(|c| c.nodes[1].alive = false, 2);
    let (_, gone) = client.register(&Registering { share: Some("other"), ..DATA });
    client.wait(&gone);
    let (_, old) = client.register(&VERSION_1);
    client.wait(&old);
    assert_eq!(client.read(), []);
}

#[test]
fn an_administrator_moves_a_client() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    let (_, newer) = client.register(&Registering { share: None, ..DATA });
    let call = client.wait(&newer);
    assert_eq!(world.witness.move_clients("client.EXAMPLE.org", 2, world.began), 1);
    let (kind, buffer) = message(&client.read(), call);
    assert_eq!((kind, addresses(&buffer)), (2, vec![(9, [10, 0, 0, 2])]));
    assert_eq!(client.stub(2, &newer), [0; 4]);
    let (_, handle) = client.register(&VERSION_1);
    let call = client.wait(&handle);
    assert_eq!(world.witness.move_clients("other", 2, world.began), 0);
    assert_eq!(world.witness.move_clients("client.EXAMPLE.org", 2, world.began), 1);
    let (kind, buffer) = message(&client.read(), call);
    assert_eq!((kind, addresses(&buffer)), (2, vec![(9, [10, 0, 0, 2])]));
    let call = client.wait(&handle);
    assert_eq!(world.witness.move_clients("10.0.1.1", 1, world.began), 1, "by its address");
    assert_eq!(addresses(&message(&client.read(), call).1), [(9, [10, 0, 0, 1])]);
}

#[test]
fn clients_of_a_drained_node_are_moved_to_another() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    let (_, old) = client.register(&VERSION_1);
    let (_, there) = client.register(&Registering { address: Some("10.0.0.2"), ..VERSION_1 });
    let call = client.wait(&old);
    client.wait(&there);
    world.change(|c| c.nodes[0].drained = true, 1);
    let (kind, buffer) = message(&client.read(), call);
    assert_eq!((kind, addresses(&buffer)), (2, vec![(9, [10, 0, 0, 2])]), "one of two is told");
    client.wait(&old);
    world.change(|_| {}, 2);
    assert_eq!(client.read(), [], "once");
    // Who comes to the drained node is told at once: of the owner of its share, and of that once.
    let (_, late) = client.register(&Registering { share: Some("other"), ..DATA });
    assert_eq!(words(&client.stub(3, &late))[1], 2);
    client.wait(&late);
    assert_eq!(client.read(), []);
    world.change(|c| c.nodes[0].drained = false, 3);
    assert_eq!(client.read(), []);
}

#[test]
fn clients_of_a_drained_node_stay_while_there_is_no_other() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    let floats: IpAddr = "10.0.0.50".parse().unwrap();
    world.change(
        |c| {
            c.floating.insert(floats, Some(1));
            c.nodes[1].alive = false;
        },
        1,
    );
    let (_, handle) = client.register(&VERSION_1);
    // The address goes with its pool.
    let (_, floating) = client.register(&Registering { address: Some("10.0.0.50"), ..VERSION_1 });
    let call = client.wait(&handle);
    client.wait(&floating);
    world.change(|c| c.nodes[0].drained = true, 2);
    assert_eq!(client.read(), []);
    world.change(|c| (c.nodes[1].alive, c.nodes[1].drained) = (true, true), 3);
    assert_eq!(client.read(), [], "the other one is drained too");
    world.change(|c| c.nodes[1].drained = false, 4);
    let (kind, buffer) = message(&client.read(), call);
    assert_eq!((kind, addresses(&buffer)), (2, vec![(9, [10, 0, 0, 2])]));
}

#[test]
fn addresses_that_come_and_go_are_told_to_those_who_asked() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    let elsewhere = Registering { address: Some("10.0.0.2"), flags: 1, share: None, ..DATA };
    let (_, asked) = client.register(&elsewhere);
    let (_, not) = client.register(&Registering { flags: 0, ..elsewhere });
    let call = client.wait(&asked);
    client.wait(&not);
    world.change(|c| c.nodes[0].addresses = vec![IpAddr::from([10, 0, 0, 7])], 1);
    let (kind, buffer) = message(&client.read(), call);
    assert_eq!((kind, addresses(&buffer)), (4, vec![(0x11, [10, 0, 0, 1]), (9, [10, 0, 0, 7])]));
}

#[test]
fn a_call_that_waits_has_a_time_and_an_unused_registration_too() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    let (_, handle) = client.register(&Registering { keep_alive: 20, ..DATA });
    let (_, old) = client.register(&VERSION_1);
    client.wait(&handle);
    client.wait(&old);
    world.change(|_| {}, 20);
    assert_eq!(client.read(), []);
    world.change(|_| {}, 21);
    assert_eq!(status(&client.read()), TIMEOUT, "version 1 waits on");
    client.now = world.began + Duration::from_secs(50);
    client.wait(&handle);
    world.change(|_| {}, 60);
    assert_eq!((client.read(), world.witness.registrations()), (vec![], 2));
    world.change(|_| {}, 71);
    assert_eq!(status(&client.read()), TIMEOUT);
    world.change(|_| {}, 102);
    assert_eq!(world.witness.registrations(), 1, "nobody waited on it");
    assert_eq!(words(&client.stub(3, &handle)), [0, NOT_FOUND]);
}

#[test]
fn a_call_is_cancelled_and_the_registration_stays() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    let (_, handle) = client.register(&DATA);
    let call = client.wait(&handle);
    assert_eq!(words(&client.stub(3, &handle)), [0, INVALID_STATE], "one call waits for each registration");
    let (flow, got) = client.send(&rpc::encode_cancel(call));
    assert_eq!((flow, got), (Flow::Go, vec![Got::Fault(call, 0x1C00_000D)]));
    let call = client.wait(&handle);
    world.change(|c| c.nodes[0].alive = false, 1);
    assert_eq!(message(&client.read(), call).0, 1);
    // A call of an unknown number is not there to be cancelled.
    assert_eq!(client.send(&rpc::encode_cancel(4711)), (Flow::Go, vec![]));
    // Unregistered by another connection of the group, it is answered.
    let call = client.wait(&handle);
    let mut second = Client::of(&world, "alice", How { group: client.group, ..SEAL });
    assert_eq!(second.stub(2, &handle), [0; 4]);
    let got = client.read();
    assert!(matches!(got[..], [Got::Stub(id, _)] if id == call));
    assert_eq!(status(&got), NOT_FOUND);
}

#[test]
fn a_hundred_thousand_registrations_are_no_more_than_the_limit() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    let mut made = 0;
    for _ in 0..100_000 {
        match client.register(&DATA).0 {
            0 => made += 1,
            status => assert_eq!(status, NO_SYSTEM_RESOURCES),
        }
    }
    assert_eq!((made, world.witness.registrations()), (REGISTRATIONS_PER_USER_MAX, REGISTRATIONS_PER_USER_MAX));
    assert_eq!(Client::of(&world, "alice", SEAL).register(&DATA).0, NO_SYSTEM_RESOURCES, "on any connection");
    assert_eq!(Client::of(&world, "root", SEAL).register(&DATA).0, 0, "another user has room");
    drop(client);
    assert_eq!(Client::of(&world, "alice", SEAL).register(&DATA).0, 0);
}

#[test]
fn a_list_without_interfaces_waits_for_one() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    world.change(|c| c.nodes.iter_mut().for_each(|n| n.alive = false), 1);
    let pdu = client.request(0, &[]);
    assert_eq!(client.send(&pdu), (Flow::Go, vec![]));
    world.change(|c| c.nodes[1].alive = true, 2);
    let got = client.read();
    let [Got::Stub(_, list)] = &got[..] else { panic!("{got:?}") };
    assert_eq!(words(list)[1], 2, "both, one of them unavailable");
    world.change(|c| c.nodes.clear(), 3);
    assert_eq!(words(&client.stub(0, &[])), [0, 0x103]);
}
