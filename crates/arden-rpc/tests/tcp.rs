//! RPC over TCP: who is let in, at which level, and what becomes of PDUs that are not what the client sent next.

mod common;

use arden_rpc::{endpoint_mapper, tcp::*, witness};
use arden_wire::rpc::{self, Header, Trailer, auth_level};
use common::tcp::*;
use std::time::Duration;

const ACCESS_DENIED: u32 = 5;
const PROTOCOL_ERROR: u32 = 0x1C01_000B;

#[test]
fn every_way_to_log_on_serves_calls() {
    let world = World::new();
    for level in [auth_level::INTEGRITY, auth_level::PRIVACY] {
        for bits in 0..8 {
            let (spnego, signs_headers, auth3) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
            let how = How { level, spnego, signs_headers, auth3, group: 0 };
            let mut client = Client::of(&world, "alice", how);
            for _ in 0..3 {
                let (status, handle) = client.register(&DATA);
                assert_eq!(status, 0, "{how:?}");
                assert_eq!(client.stub(2, &handle), [0; 4]);
            }
            // An answer of several fragments.
            world.change(|c| c.nodes[0].addresses = (1..40).map(|n| [10, 0, 0, n].into()).collect(), 0);
            assert!(client.stub(0, &[]).len() > 3 * usize::from(FRAG_MAX), "{how:?}");
            world.change(|c| *c = cluster(), 0);
        }
    }
}

#[test]
fn without_packet_integrity_access_is_denied() {
    let world = World::new();
    let mut client = Client::plain(&world, witness::SYNTAX);
    assert!(matches!(client.call(0, &[]), Got::Fault(_, ACCESS_DENIED)));
    for level in [auth_level::CONNECT, 3, 4] {
        let mut client = Client::of(&world, "alice", How { level, ..SEAL });
        assert!(matches!(client.call(0, &[]), Got::Fault(_, ACCESS_DENIED)), "signed all the same");
        client.security = None;
        assert!(matches!(client.call(0, &[]), Got::Fault(_, ACCESS_DENIED)));
    }
    assert_eq!(world.witness.registrations(), 0);
}

#[test]
fn the_endpoint_mapper_needs_no_logon() {
    let world = World::new();
    let mut client = Client::plain(&world, endpoint_mapper::SYNTAX);
    assert!(matches!(client.call(4, &[0; 20]), Got::Stub(..)));
    assert!(matches!(client.call(2, &[0; 20]), Got::Fault(_, 0x1C01_0002)));
}

#[test]
fn a_wrong_password_is_told_after_its_delay_and_nothing_is_served() {
    let world = World::new();
    for auth3 in [true, false] {
        for (user, password) in [("alice", "wrong"), ("nobody", "a")] {
            let (mut client, flow) = Client::log_on(&world, user, password, How { auth3, ..SEAL });
            if !auth3 {
                assert_eq!(flow, Flow::Close(DELAY));
                continue;
            }
            assert_eq!(flow, Flow::Pause(DELAY), "auth3 has no answer");
            let pdu = client.request(0, &[]);
            let (flow, got) = client.send(&pdu);
            assert!(matches!(got[..], [Got::Fault(_, ACCESS_DENIED)]) && matches!(flow, Flow::Close(_)), "{got:?}");
        }
    }
}

#[test]
fn a_request_before_the_logon_is_over_is_refused() {
    let world = World::new();
    let mut connection = world.connection();
    let mut pdu = bind(witness::SYNTAX, 0).encode(rpc::BIND, 1);
    let trailer = Trailer { auth_type: 10, level: 5, pad: 0, context: 0 };
    let mut initiator = arden_auth::initiator::Initiator::new("a", "", "b");
    initiator.spnego = false;
    trailer.append_token(&mut pdu, &initiator.first());
    assert_eq!(connection.receive(&pdu, world.began), Flow::Go);
    connection.take_output();
    let request = rpc::Request { context: 0, opnum: 0, stub: &[] }.encode(3, 2);
    assert_eq!(connection.receive(&request, world.began), Flow::Close(Duration::ZERO));
}

#[test]
fn other_kinds_of_authentication_are_not_recognized() {
    let world = World::new();
    for auth_type in [0, 16, 68, 255] {
        let mut connection = world.connection();
        let mut pdu = bind(witness::SYNTAX, 0).encode(rpc::BIND, 1);
        Trailer { auth_type, level: 5, pad: 0, context: 0 }.append_token(&mut pdu, b"token");
        assert_eq!(connection.receive(&pdu, world.began), Flow::Close(Duration::ZERO));
        let nak = connection.take_output();
        assert_eq!((nak[2], nak[16]), (rpc::BIND_NAK, rpc::NAK_AUTH_TYPE_NOT_RECOGNIZED as u8));
    }
}

/// Each byte of a protected request is changed in turn; none of them is served.
#[test]
fn what_was_changed_on_the_way_is_not_served() {
    let world = World::new();
    for (signs_headers, level) in
        [(true, auth_level::PRIVACY), (true, auth_level::INTEGRITY), (false, auth_level::PRIVACY)]
    {
        let how = How { level, signs_headers, ..SEAL };
        let length = Client::of(&world, "alice", how).request(4, &DATA.stub()).len();
        for place in 0..length {
            // Without header signing the headers are protected by nothing but their meaning.
            let unsigned = place < 24 || (length - 24..length - 16).contains(&place);
            if !signs_headers && unsigned {
                continue;
            }
            let mut client = Client::of(&world, "alice", how);
            let mut pdu = client.request(4, &DATA.stub());
            pdu[place] ^= 0x10;
            let (flow, got) = client.send(&pdu);
            let served = got.iter().any(|g| matches!(g, Got::Stub(..)));
            assert!(!served, "byte {place} of {length}, {how:?}");
            // A length that is too large has the server wait for the rest.
            assert!(flow != Flow::Go || client.connection.has_partial_input(), "byte {place}, {how:?}: {got:?}");
        }
    }
    assert_eq!(world.witness.registrations(), 0);
}

#[test]
fn what_is_repeated_left_out_or_of_another_connection_is_not_served() {
    let world = World::new();
    let denied = |(flow, got): (Flow, Vec<Got>)| {
        assert!(matches!(got[..], [Got::Fault(_, ACCESS_DENIED)]), "{got:?}");
        assert_eq!(flow, Flow::Close(Duration::ZERO));
    };
    let mut client = Client::of(&world, "alice", SEAL);
    let pdu = client.request(0, &[]);
    assert!(matches!(client.send(&pdu).1[..], [Got::Stub(..)]));
    denied(client.send(&pdu));
    let mut client = Client::of(&world, "alice", SEAL);
    let (_, second) = (client.request(0, &[]), client.request(0, &[]));
    denied(client.send(&second));
    let how = How { signs_headers: false, ..SEAL };
    let (mut a, mut b) = (Client::of(&world, "alice", how), Client::of(&world, "root", how));
    let pdu = a.request(0, &[]);
    denied(b.send(&pdu));
    let mut client = Client::of(&world, "alice", SEAL);
    client.security = None;
    let pdu = client.request(0, &[]);
    denied(client.send(&pdu));
}

#[test]
fn a_call_may_have_fragments_up_to_a_limit() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    let stub = DATA.stub();
    let (first, last) = stub.split_at(32);
    let pdu = client.fragment(4, first, rpc::PFC_FIRST_FRAG, true);
    assert_eq!(client.send(&pdu), (Flow::Go, vec![]));
    assert!(client.connection.has_partial_input());
    let pdu = client.fragment(4, last, rpc::PFC_LAST_FRAG, false);
    assert!(matches!(client.send(&pdu).1[..], [Got::Stub(..)]));

    let mut flags = rpc::PFC_FIRST_FRAG;
    let mut sent = 0;
    loop {
        let pdu = client.fragment(4, &[0; 4096], flags, flags != 0);
        let (flow, got) = client.send(&pdu);
        if flow != Flow::Go {
            assert!(matches!(got[..], [Got::Fault(_, PROTOCOL_ERROR)]), "{got:?}");
            break;
        }
        (flags, sent) = (0, sent + 4096);
        assert!(sent <= CALL_BYTES_MAX);
    }
    assert_eq!(sent, CALL_BYTES_MAX);
}

#[test]
fn pdus_may_come_in_pieces_and_together() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    let (one, two) = (client.request(0, &[]), client.request(0, &[]));
    let both = [one, two].concat();
    let mut got = Vec::new();
    for byte in &both {
        let (flow, more) = client.send(std::slice::from_ref(byte));
        assert_eq!(flow, Flow::Go);
        got.extend(more);
    }
    assert!(matches!(got[..], [Got::Stub(..), Got::Stub(..)]));
}

#[test]
fn limits_of_a_connection() {
    let world = World::new();
    // Presentation contexts.
    let mut connection = world.connection();
    let mut many = bind(witness::SYNTAX, 0);
    many.contexts =
        (0..=CONTEXTS_MAX as u16).map(|id| rpc::ContextElement { id, ..many.contexts[0].clone() }).collect();
    assert!(matches!(connection.receive(&many.encode(rpc::BIND, 1), world.began), Flow::Close(_)));
    // A fragment.
    let mut connection = world.connection();
    let mut pdu = vec![0; usize::from(FRAG_MAX) + 1];
    pdu[..16].copy_from_slice(&bind(witness::SYNTAX, 0).encode(rpc::BIND, 1)[..16]);
    pdu[8..10].copy_from_slice(&(FRAG_MAX + 1).to_le_bytes());
    assert!(matches!(connection.receive(&pdu, world.began), Flow::Close(_)));
    // Calls that wait.
    let mut client = Client::of(&world, "alice", SEAL);
    for _ in 0..CALLS_MAX {
        let (status, handle) = client.register(&DATA);
        assert_eq!(status, 0);
        client.wait(&handle);
    }
    assert!(matches!(client.call(0, &[]), Got::Fault(_, 0x1C01_0014)));
}

#[test]
fn what_comes_at_the_wrong_time_ends_the_connection() {
    let world = World::new();
    let bind = bind(witness::SYNTAX, 0).encode(rpc::BIND, 1);
    let request = rpc::Request { context: 0, opnum: 0, stub: &[] };
    let first = [request.encode(3, 1), rpc::encode_auth3(1), rpc::encode_cancel(1), vec![0; 16], vec![5; 40]];
    for pdu in first {
        assert!(matches!(world.connection().receive(&pdu, world.began), Flow::Close(_)), "{pdu:?}");
    }
    let middle = [bind.clone(), request.encode(rpc::PFC_LAST_FRAG, 1), rpc::encode_fault(1, 0, 5, true)];
    for pdu in middle {
        let mut connection = world.connection();
        assert_eq!(connection.receive(&bind, world.began), Flow::Go);
        assert!(matches!(connection.receive(&pdu, world.began), Flow::Close(_)), "{pdu:?}");
    }
}

#[test]
fn a_user_who_is_gone_is_not_served() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    assert!(matches!(client.call(0, &[]), Got::Stub(..)));
    *world.host.good.lock() = false;
    assert!(!client.connection.is_good());
    assert!(matches!(client.call(0, &[]), Got::Fault(_, ACCESS_DENIED)));
}

#[test]
fn one_connection_has_one_logon() {
    let world = World::new();
    let mut client = Client::of(&world, "alice", SEAL);
    let mut again = bind(witness::SYNTAX, 0).encode(rpc::ALTER_CONTEXT, 9);
    client.trailer().append_token(&mut again, b"NTLMSSP\0\x01\0\0\0");
    let (flow, got) = client.send(&again);
    assert!(matches!(got[..], [Got::Fault(9, ACCESS_DENIED)]) && matches!(flow, Flow::Close(_)), "{got:?}");
}

#[test]
fn a_group_is_joined_by_its_user_alone() {
    let world = World::new();
    let mut first = Client::of(&world, "alice", SEAL);
    let (_, handle) = first.register(&DATA);
    let how = How { group: first.group, ..SEAL };
    let (mut stranger, flow) = Client::log_on(&world, "root", "r", how);
    assert_eq!(flow, Flow::Pause(Duration::ZERO));
    assert!(matches!(stranger.call(0, &[]), Got::Fault(_, ACCESS_DENIED)));
    drop(stranger);
    // Another connection of the same client has the same handles, also when the first is gone.
    let mut second = Client::of(&world, "alice", how);
    drop(first);
    assert_eq!(second.stub(2, &handle), [0; 4]);
    let (status, _) = second.register(&DATA);
    assert_eq!((status, world.witness.registrations()), (0, 1));
    drop(second);
    assert_eq!(world.witness.registrations(), 0, "run down with the last connection of the group");
}

#[test]
fn answers_are_marked_as_calls_beside_each_other() {
    let world = World::new();
    let mut connection = world.connection();
    let mut pdu = bind(witness::SYNTAX, 0).encode(rpc::BIND, 1);
    rpc::add_flags(&mut pdu, rpc::PFC_CONC_MPX);
    assert_eq!(connection.receive(&pdu, world.began), Flow::Go);
    let ack = connection.take_output();
    assert_eq!(Header::parse(&ack).unwrap().flags, 3 | rpc::PFC_CONC_MPX);
}

/// Who sends many calls at once has their answers in portions, and others have their turn in between.
#[test]
fn many_calls_at_once_are_answered_in_turns() {
    let world = World::new();
    world.change(|c| c.nodes[0].addresses = (1..40).map(|n| [10, 0, 0, n].into()).collect(), 0);
    let mut client = Client::of(&world, "alice", SEAL);
    let calls: Vec<u8> = (0..100).flat_map(|_| client.request(0, &[])).collect();
    let (mut flow, mut bytes, mut turns) = (client.connection.receive(&calls, world.began), Vec::new(), 0);
    loop {
        let output = client.connection.take_output();
        assert!(output.len() < (64 << 10) + 30_000, "{}", output.len());
        bytes.extend(output);
        if flow == Flow::Go {
            break;
        }
        assert_eq!(flow, Flow::More);
        flow = client.connection.receive(&[], world.began);
        turns += 1;
    }
    let is_last = |header: &Header| header.kind == rpc::RESPONSE && header.is_last();
    let (mut rest, mut answers) = (&bytes[..], 0);
    while !rest.is_empty() {
        let header = Header::parse(rest).unwrap();
        answers += usize::from(is_last(&header));
        rest = &rest[usize::from(header.frag_length)..];
    }
    assert!(answers == 100 && turns >= 30, "{answers} {turns}");
    // Small answers: others wait for no more than some calls.
    let mut client = Client::of(&world, "alice", SEAL);
    let calls: Vec<u8> = (0..40).flat_map(|_| client.request(2, &[0; 20])).collect();
    let mut flows = vec![client.connection.receive(&calls, world.began)];
    while flows.last() == Some(&Flow::More) {
        flows.push(client.connection.receive(&[], world.began));
    }
    assert_eq!(flows, [Flow::More, Flow::More, Flow::Go]);
    assert_eq!(client.read().len(), 40);
}
