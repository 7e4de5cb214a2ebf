//! SESSION_SETUP and LOGOFF: new sessions, reauthentication, replaced sessions, failures.

use std::time::Duration;

use crate::client::*;

/// `BVT_SessionMgmt_NewSession`
#[test]
fn bvt_session_mgmt_new_session() {
    let lab = Lab::new();
    for dialect in [Dialect::Smb202, Dialect::Smb210, Dialect::Smb300, Dialect::Smb302, Dialect::Smb311] {
        let mut c = lab.connect();
        c.negotiate(&Offer::up_to(dialect));
        let session = c.logon(&logon(USER));
        assert_ne!(session.id, 0);
        c.connect(SHARE);
        let f = c.open(want("file"));
        c.write(f.id, 0, b"as everybody does");
        assert_eq!(c.read(f.id, 0, 100), b"as everybody does");
        c.close(f.id);
        assert_eq!(c.status(&Req::empty(Command::TreeDisconnect)), NtStatus::SUCCESS);
        assert_eq!(c.status(&Req::empty(Command::Logoff).tree(0)), NtStatus::SUCCESS);
        assert_eq!(c.status(&tree_connect("\\\\LAB\\share").signed(false)), NtStatus::USER_SESSION_DELETED);
    }
}

#[test]
fn raw_ntlmssp_is_taken_without_spnego() {
    let lab = Lab::new();
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.logon(&logon(USER).raw());
    c.connect(SHARE);
}

/// `BVT_SessionMgmt_Reauthentication`
#[test]
fn bvt_session_mgmt_reauthentication() {
    let lab = Lab::new();
    for dialect in [Dialect::Smb202, Dialect::Smb210, Dialect::Smb300, Dialect::Smb311] {
        let mut c = lab.client_with(dialect);
        let f = c.open(want("kept"));
        let id = c.session_id();
        let session = c.logon(&logon(USER).again());
        assert_eq!(session.id, id);
        c.write(f.id, 0, b"still mine");
        c.close(f.id);
    }
}

/// [MS-SMB2] 3.3.6.3 and 3.3.5.2.9: an expired session answers nothing but what ends things, until it is renewed.
#[test]
fn a_session_past_its_lifetime_has_to_authenticate_again() {
    let lab = Lab::new();
    let mut c = lab.client();
    let (kept, closed) = (c.open(want("kept")), c.open(want("closed")));
    lab.pass(Duration::from_secs(100_000));
    c.write(kept.id, 0, b"there is no lifetime");
    lab.front().trees.config.policy.set_session_lifetime(3600);
    c.logon(&logon(USER).again());
    lab.pass(Duration::from_secs(3000));
    c.write(kept.id, 0, b"not yet");
    lab.pass(Duration::from_secs(1000));
    assert_eq!(c.try_write(kept.id, 0, b"too late"), Err(NtStatus::NETWORK_SESSION_EXPIRED));
    c.close(closed.id);
    c.logon(&logon(USER).again());
    c.write(kept.id, 0, b"still mine");
    lab.pass(Duration::from_secs(3000));
    c.write(kept.id, 0, b"the renewal counts");
}

#[test]
fn reauthentication_over_an_encrypted_session() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.encrypt = true;
    let f = c.open(want("kept"));
    c.logon(&logon(USER).again());
    c.write(f.id, 0, b"still mine");
}

/// `BVT_SessionMgmt_ReconnectSessionSetup`
#[test]
fn bvt_session_mgmt_reconnect_session_setup() {
    let lab = Lab::new();
    let mut first = lab.client();
    let f = first.open(want("open").share(0));
    let old = first.session_id();
    let mut second = lab.connect_as(first.guid);
    second.negotiate(&Offer::up_to(Dialect::Smb311));
    second.logon(&logon(USER).previous(old));
    second.connect(SHARE);
    // The old session is gone, and its opens with it.
    second.open(want("open").share(0));
    assert_eq!(first.status(&close(f.id).signed(false)), NtStatus::USER_SESSION_DELETED);
}

/// `SessionMgmt_ReconnectWithDifferentDialect`
#[test]
fn session_mgmt_reconnect_with_different_dialect() {
    let lab = Lab::new();
    let first = lab.client();
    let mut second = lab.connect_as(first.guid);
    second.negotiate(&Offer::up_to(Dialect::Smb302));
    let refused = second.try_logon(&logon(USER).previous(first.session_id()));
    assert_eq!(refused.err(), Some(NtStatus::USER_SESSION_DELETED));
}

#[test]
fn another_user_does_not_replace_a_session() {
    let lab = Lab::new();
    let mut first = lab.client();
    let mut second = lab.connect();
    second.negotiate(&Offer::up_to(Dialect::Smb311));
    second.logon(&logon(OTHER).previous(first.session_id()));
    first.put("alive", b"1");
}

#[test]
fn wrong_passwords_and_unknown_users_look_the_same_and_are_slowed_down() {
    let lab = Lab::new();
    let mut delays = Vec::new();
    for (user, password) in [(USER, "wrong"), ("nobody", PASSWORD)] {
        for _ in 0..12 {
            let mut c = lab.connect();
            c.negotiate(&Offer::up_to(Dialect::Smb311));
            let refused = c.try_logon(&logon(user).password(password));
            assert_eq!(refused.err(), Some(NtStatus::LOGON_FAILURE));
            delays.push(c.delayed);
        }
    }
    assert_eq!(delays[0], Duration::ZERO);
    assert!(delays[4] > Duration::ZERO && delays[4] < delays[6], "{delays:?}");
    assert!(delays[11] > delays[6], "{delays:?}");
    // A right password is let in at once, and so is a neighbour's.
    for user in [USER, OTHER] {
        let mut c = lab.connect();
        c.negotiate(&Offer::up_to(Dialect::Smb311));
        assert!(c.try_logon(&logon(user)).is_ok() && c.delayed == Duration::ZERO);
    }
}

/// Failures that are over take no memory, whether or not anybody fails again.
#[test]
fn failed_logons_that_are_over_are_given_back() {
    if has_two_nodes() {
        return;
    }
    let lab = Lab::new();
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    assert_eq!(c.try_logon(&logon(USER).password("wrong")).err(), Some(NtStatus::LOGON_FAILURE));
    lab.pass(Duration::from_secs(60));
    assert_eq!(lab.server.throttle.lock().networks(), 1);
    lab.pass(Duration::from_secs(15 * 60));
    assert_eq!(lab.server.throttle.lock().networks(), 0);
}

#[test]
fn guesses_on_many_connections_learn_nothing_and_lock_nobody_else_out() {
    let lab = Lab::new();
    let mut home = lab.client();
    let guess = |user: &str, password: &str| {
        let mut c = lab.connect();
        c.negotiate(&Offer::up_to(Dialect::Smb311));
        c.try_logon(&logon(user).password(password)).err()
    };
    // The name in all of its forms is one account.
    let forms = [USER, "X\\user", "USER@example", "y\\User@z"];
    let refused = Some(NtStatus::REQUEST_NOT_ACCEPTED);
    // Each further one waits for half a minute, whatever this machine does meanwhile.
    (0..10).for_each(|i| _ = guess(forms[i % 4], "wrong"));
    lab.pass(Duration::from_secs(31));
    let looked_at = (0..100).filter(|i| guess(forms[i % 4], "wrong") != refused).count();
    assert_eq!(looked_at, 32);
    assert_eq!((guess(USER, "wrong"), guess(USER, PASSWORD)), (refused, refused));
    assert_eq!(guess(OTHER, PASSWORD), None);
    // A client that was here before gets in, and so does a session that authenticates again or gets a channel.
    let mut again = lab.connect_as(home.guid);
    again.negotiate(&Offer::up_to(Dialect::Smb311));
    assert!(again.try_logon(&logon(USER)).is_ok());
    let session = home.session.clone().unwrap();
    assert!(home.try_logon(&logon(USER).again()).is_ok());
    let mut channel = lab.connect_as(home.guid);
    channel.negotiate(&Offer::up_to(Dialect::Smb311));
    assert!(channel.try_logon(&logon(USER).bind(&session)).is_ok());
    lab.pass(Duration::from_secs(31));
    assert_eq!(guess(USER, PASSWORD), None);
}

#[test]
fn setups_of_sessions_that_do_not_exist() {
    let lab = Lab::new();
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    let status = c.status(&session_setup(0, 1, 0, &[1, 2, 3]).session(0x1234));
    assert_eq!(status, NtStatus::USER_SESSION_DELETED);
    assert_eq!(c.status(&echo()), NtStatus::SUCCESS);
}

#[test]
fn requests_need_a_session_and_a_negotiation() {
    let lab = Lab::new();
    let mut c = lab.connect();
    c.send(&session_setup(0, 1, 0, &[]));
    assert!(c.is_closed());
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    assert_eq!(c.status(&want("x").req().session(77)), NtStatus::USER_SESSION_DELETED);
    assert_eq!(c.status(&want("x").req()), NtStatus::USER_SESSION_DELETED);
}

#[test]
fn a_session_of_another_connection_is_not_usable() {
    let lab = Lab::new();
    let first = lab.client();
    let mut thief = lab.connect();
    thief.negotiate(&Offer::up_to(Dialect::Smb311));
    let status = thief.status(&want("x").req().session(first.session_id()).tree(first.tree));
    assert_eq!(status, NtStatus::USER_SESSION_DELETED);
}

#[test]
fn several_sessions_share_a_connection() {
    let lab = Lab::new();
    let mut c = lab.client();
    let (first, first_tree) = (c.session.clone(), c.tree);
    let f = c.open(want("first"));
    c.session = None;
    c.logon(&logon(OTHER));
    c.connect(SHARE);
    assert_eq!(c.try_read(f.id, 0, 1).unwrap_err(), NtStatus::FILE_CLOSED, "handles belong to their session");
    assert_eq!(c.status(&Req::empty(Command::Logoff)), NtStatus::SUCCESS);
    c.session = first;
    c.tree = first_tree;
    c.write(f.id, 0, b"unimpressed");
}

#[test]
fn logoff_closes_what_is_not_durable() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.open(want("plain").share(0));
    let f = c.open(want("durable").share(0).oplock(oplock::BATCH).durable());
    assert_eq!(c.status(&Req::empty(Command::Logoff)), NtStatus::SUCCESS);
    assert_eq!(lab.server.trees.opens().len(), 1);
    let mut again = lab.client_again(c.guid, Dialect::Smb311);
    again.open(want("plain").share(0));
    again.open(want("durable").oplock(oplock::BATCH).reconnect(f.id));
}
