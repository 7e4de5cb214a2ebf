//! What somebody learns and gets who does not hold a session's key: nothing signed, and the same for every session id.

use std::{collections::HashSet, sync::Arc};

use arden_smb::crypto::SigningKey;
use arden_wire::smb2::{flags, negotiate::SigningAlgorithm};

use crate::client::*;

/// A client that can sign with AES-GMAC only.
fn gmac_only() -> Offer {
    Offer::up_to(Dialect::Smb311).contexts(&[preauth_context(&[1]), encryption_context(&[2]), signing_context(&[2])])
}

fn on_gmac(lab: &Lab) -> Client {
    let mut c = lab.connect();
    c.negotiate(&gmac_only());
    c.logon(&logon(USER));
    c.connect(SHARE);
    c
}

/// Keys that a stranger makes up.
fn made_up(id: u64, algorithm: SigningAlgorithm) -> SessionKeys {
    let signing = Arc::new(SigningKey::new(algorithm, &[9; 16]));
    SessionKeys { id, session_signing: signing.clone(), signing, ciphers: None, flags: 0 }
}

/// The answer, without what is the request's own: ids.
fn anonymized(reply: &Reply) -> Vec<u8> {
    let mut bytes = reply.message.clone();
    bytes[24..32].fill(0);
    bytes[40..48].fill(0);
    bytes
}

#[test]
fn a_stranger_cannot_tell_sessions_that_exist_and_gets_nothing_signed() {
    let lab = Lab::new();
    let victims = [
        on_gmac(&lab),
        lab.client(),
        lab.client_with(Dialect::Smb302),
        lab.client_with(Dialect::Smb210),
        lab.client_with(Dialect::Smb202),
    ];
    let offers =
        [gmac_only(), Offer::up_to(Dialect::Smb311), Offer::up_to(Dialect::Smb300), Offer::up_to(Dialect::Smb210)];
    let token = arden_auth::initiator::Initiator::new(USER, "", PASSWORD).first();
    let mut requests = Vec::new();
    for token in [&token[..], &[], &[0x60, 4, 6, 2, 1, 1]] {
        for binding in [0, 1] {
            requests.push(session_setup(binding, 1, 0, token));
        }
    }
    let mut cut = session_setup(1, 1, 0, &token);
    cut.body.truncate(20);
    requests.push(cut);
    requests.extend([echo(), want("x").req(), Req::empty(Command::Logoff), Req::empty(Command::TreeDisconnect)]);
    for (offer, signed) in offers.iter().flat_map(|o| [(o, true), (o, false)]) {
        for request in &requests {
            let ask = |id: u64| {
                let mut c = lab.connect();
                c.strict = false;
                c.negotiate(offer);
                c.session = Some(made_up(id, c.signing));
                let message = c.send(&request.clone().signed(signed));
                let reply = c.receive(message);
                assert_eq!(reply.header.signature, [0; 16], "{request:?}");
                anonymized(&reply)
            };
            let unknown = ask(0x4711_4711);
            for victim in &victims {
                assert_eq!(ask(victim.session_id()), unknown, "{request:?} signed: {signed}, {offer:?}");
            }
        }
    }
}

/// [MS-SMB2] 3.1.4.1: with AES-GMAC the MessageId is the nonce.
#[test]
fn no_message_id_is_used_twice_with_one_gmac_key() {
    let lab = Lab::new();
    let mut main = on_gmac(&lab);
    let session = main.session.clone().unwrap();
    // The answer that made the session.
    let mut seen = HashSet::from([2]);
    let mut note = |c: &mut Client, id: u64| {
        let reply = c.receive(id);
        let mut message = reply.message.clone();
        if session.session_signing.verify(&mut message) {
            assert!(seen.insert(reply.header.message_id), "{:?}", reply.header);
        }
        reply.status()
    };
    // All that the first connection signs.
    for _ in 0..5 {
        let id = main.send(&echo());
        note(&mut main, id);
    }
    let mut statuses = HashSet::new();
    for round in 0..6 {
        let mut c = lab.connect_as(main.guid);
        c.negotiate(&gmac_only());
        c.session = Some(session.clone());
        for _ in 0..round {
            // So that the ids of the setups differ.
            let id = c.send(&echo().session(0).signed(false));
            c.receive(id);
        }
        let token = match round % 2 {
            0 => arden_auth::initiator::Initiator::new(USER, "", PASSWORD).first(),
            _ => vec![0x60, 1, 2, 3],
        };
        let id = c.send(&session_setup(1, 1, 0, &token).session(session.id).signed(true));
        statuses.insert(note(&mut c, id).0);
        let id = c.send(&session_setup(1, 1, 0, &[1]).session(session.id).signed(true));
        note(&mut c, id);
    }
    assert!(statuses.contains(&NtStatus::MORE_PROCESSING_REQUIRED.0), "the first is let in");
    assert!(statuses.contains(&NtStatus::NOT_SUPPORTED.0), "others are not");
}

/// Who may want several channels signs with AES-CMAC, where a nonce is not needed.
#[test]
fn gmac_is_for_connections_alone() {
    let lab = Lab::new();
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    assert_eq!(c.signing, SigningAlgorithm::AesCmac);
    let mut c = lab.connect();
    let alone = ALL_CAPABILITIES & !arden_wire::smb2::negotiate::capability::MULTI_CHANNEL;
    c.negotiate(&Offer { capabilities: alone, ..Offer::up_to(Dialect::Smb311) });
    assert_eq!(c.signing, SigningAlgorithm::AesGmac);
    let lab = Lab::with(|s| s.multichannel = false);
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    assert_eq!(c.signing, SigningAlgorithm::AesGmac);
}

#[test]
fn the_second_request_of_a_binding_has_to_be_signed() {
    let lab = Lab::new();
    let main = lab.client();
    let session = main.session.clone().unwrap();
    let mut c = lab.connect_as(main.guid);
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    let refused = c.try_logon(&logon(USER).bind(&session).second_unsigned());
    assert_eq!(refused.err(), Some(NtStatus::INVALID_PARAMETER));
    assert_eq!(lab.front().session(session.id).unwrap().channels.lock().len(), 1);
}

#[test]
fn the_second_request_of_a_reauthentication_has_to_be_signed() {
    let lab = Lab::new();
    for dialect in [Dialect::Smb202, Dialect::Smb210, Dialect::Smb302, Dialect::Smb311] {
        let mut c = lab.client_with(dialect);
        let f = c.open(want("mine"));
        let id = c.session_id();
        let mut initiator = arden_auth::initiator::Initiator::new(USER, "LAB", PASSWORD);
        let first = c.call(&session_setup(0, 1, 0, &initiator.first()).session(id).signed(true));
        assert_eq!(first.status(), NtStatus::MORE_PROCESSING_REQUIRED);
        let token = first.slice(first.u16(4).into(), first.u16(6).into()).to_vec();
        let second = initiator.second(&token, [7; 24]).unwrap();
        for token in [&second[..], &[1, 2, 3]] {
            let status = c.status(&session_setup(0, 1, 0, token).session(id).signed(false));
            assert_eq!(status, NtStatus::ACCESS_DENIED);
        }
        // Whoever sent that does not end the session, nor the authentication that is under way.
        c.write(f.id, 0, b"mine");
        assert_eq!(c.status(&session_setup(0, 1, 0, &second).session(id).signed(true)), NtStatus::SUCCESS);
        c.close(f.id);
    }
}

#[test]
fn a_session_keeps_its_user() {
    let lab = Lab::new();
    for encrypt in [false, true] {
        let mut c = lab.client();
        c.encrypt = encrypt;
        let f = c.open(want("mine"));
        let refused = c.try_logon(&logon(OTHER).again());
        assert_eq!(refused.err(), Some(NtStatus::ACCESS_DENIED));
        assert_eq!(lab.front().session(c.session_id()).unwrap().token().user_name, USER);
        c.write(f.id, 0, b"mine");
        c.logon(&logon(USER).again());
        c.close(f.id);
    }
}

/// One session of a connection does not speak for another.
#[test]
fn a_setup_is_encrypted_by_its_own_session() {
    let lab = Lab::new();
    let mut c = lab.client();
    let first = c.session.clone().unwrap();
    let f = c.open(want("mine"));
    c.session = None;
    let second = c.logon(&logon(OTHER));
    c.encrypt = true;
    let token = arden_auth::initiator::Initiator::new(OTHER, "", PASSWORD).first();
    let request = session_setup(0, 1, 0, &token).session(first.id).signed(false);
    let (id, message) = c.encode(&request, false);
    let frame = c.seal(&message);
    c.send_bytes(frame);
    assert_eq!(c.receive(id).status(), NtStatus::ACCESS_DENIED);
    assert_ne!(first.id, second.id);
    c.encrypt = false;
    c.session = Some(first);
    c.write(f.id, 0, b"mine");
}

#[test]
fn a_session_that_ends_while_it_is_authenticated_again_stays_ended() {
    let lab = Lab::new();
    let mut c = lab.client();
    let id = c.session_id();
    let mut initiator = arden_auth::initiator::Initiator::new(USER, "LAB", PASSWORD);
    let first = c.call(&session_setup(0, 1, 0, &initiator.first()).session(id).signed(true));
    assert_eq!(first.status(), NtStatus::MORE_PROCESSING_REQUIRED);
    assert_eq!(c.status(&Req::empty(Command::Logoff).tree(0)), NtStatus::SUCCESS);
    let token = first.slice(first.u16(4).into(), first.u16(6).into()).to_vec();
    let second = initiator.second(&token, [7; 24]).unwrap();
    c.strict = false;
    let status = c.status(&session_setup(0, 1, 0, &second).session(id).signed(false));
    assert_eq!(status, NtStatus::USER_SESSION_DELETED);
    assert!(lab.front().sessions().is_empty());
}

#[test]
fn a_session_that_ends_while_it_is_bound_gets_no_channel() {
    let lab = Lab::new();
    let mut main = lab.client();
    let session = main.session.clone().unwrap();
    let mut c = lab.connect_as(main.guid);
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.session = Some(session.clone());
    let mut initiator = arden_auth::initiator::Initiator::new(USER, "LAB", PASSWORD);
    let first = c.call(&session_setup(1, 1, 0, &initiator.first()).session(session.id).signed(true));
    assert_eq!(first.status(), NtStatus::MORE_PROCESSING_REQUIRED);
    main.disconnect();
    let token = first.slice(first.u16(4).into(), first.u16(6).into()).to_vec();
    let second = initiator.second(&token, [7; 24]).unwrap();
    let status = c.status(&session_setup(1, 1, 0, &second).session(session.id).signed(true));
    assert_eq!(status, NtStatus::USER_SESSION_DELETED);
    assert!(lab.front().sessions().is_empty());
    assert!(!c.connection.as_ref().unwrap().has_session());
}

#[test]
fn answers_to_requests_that_prove_nothing_are_not_signed() {
    let lab = Lab::new();
    for mut c in [on_gmac(&lab), lab.client(), lab.client_with(Dialect::Smb210)] {
        for request in [echo(), want("x").req(), Req::empty(Command::Logoff)] {
            for spoil in [false, true] {
                let (id, mut message) = c.encode(&request.clone().signed(spoil), false);
                if spoil {
                    message[50] ^= 1;
                }
                c.send_bytes(message);
                let reply = c.receive(id);
                assert_eq!(reply.header.signature, [0; 16], "{request:?}");
                assert_eq!(reply.header.is(flags::SIGNED), spoil);
            }
        }
    }
    assert_eq!(lab.front().sessions().len(), 0, "all were dropped in turn");
}

#[test]
fn a_cancel_has_to_be_signed_where_requests_have_to_be() {
    let lab = Lab::new();
    let mut c = lab.client();
    let d = c.open(want("dir").directory());
    let waiting = c.send(&notify(d.id, 0, 1, 100));
    let async_id = c.interim(waiting);
    let cancel = |sign: bool| {
        let mut req = Req::empty(Command::Cancel).signed(sign);
        req.async_id = Some(async_id);
        req.flags |= flags::ASYNC_COMMAND;
        req
    };
    c.send(&cancel(false));
    assert!(c.waits(waiting));
    let (_, mut message) = c.encode(&cancel(true), false);
    message[50] ^= 1;
    c.send_bytes(message);
    assert!(c.waits(waiting));
    c.send(&cancel(true));
    assert_eq!(c.receive(waiting).status(), NtStatus::CANCELLED);
}

#[test]
fn a_negotiate_is_not_signed() {
    let lab = Lab::new();
    let mut c = lab.connect();
    c.strict = false;
    c.session = Some(made_up(0, SigningAlgorithm::HmacSha256));
    let req = Offer::up_to(Dialect::Smb311).req(1).signed(true);
    assert_eq!(c.status(&req), NtStatus::INVALID_PARAMETER);
}
