//! Multichannel: binding, what channels share, what they do not.

use std::time::Duration;

use crate::client::*;

/// A second connection of this client, bound to its session.
pub fn second_channel(lab: &Lab, main: &Client) -> Client {
    let mut c = lab.connect_as(main.guid);
    c.negotiate(&Offer::up_to(main.dialect));
    c.logon(&logon(USER).bind(main.session.as_ref().unwrap()));
    c.tree = main.tree;
    c
}

/// Who looks for the connections of a client, to tell it of a break, finds those with a session of it and no others.
#[test]
fn connections_of_a_client_are_known_while_they_have_a_session_of_it() {
    if has_two_nodes() {
        // The connections are another node's.
        return;
    }
    let lab = Lab::new();
    let known = || lab.server.client_connections();
    let (mut one, mut two) = (lab.client(), lab.client());
    let mut second = second_channel(&lab, &one);
    assert_eq!(known(), 3);
    let session = two.session_id();
    two.call(&Req::new(Command::Logoff, vec![4, 0, 0, 0])).ok();
    assert!(lab.server.session(session).is_none());
    assert_eq!(known(), 2);
    one.disconnect();
    assert_eq!(known(), 1);
    second.disconnect();
    assert_eq!(known(), 0);
}

/// `BVT_MultipleChannel_NicRedundantOnBoth`, `MultipleChannel_NicRedundantOnClient`,
/// `MultipleChannel_NicRedundantOnServer`, `MultipleChannel_MultiChannelOnSameNic`
#[test]
fn bvt_multiple_channel() {
    let lab = Lab::new();
    for dialect in [Dialect::Smb300, Dialect::Smb302, Dialect::Smb311] {
        let mut main = lab.client_with(dialect);
        let f = main.open(want("file"));
        main.write(f.id, 0, b"written here");
        let mut other = second_channel(&lab, &main);
        assert_eq!(other.session_id(), main.session_id());
        assert_eq!(other.read(f.id, 0, 100), b"written here");
        main.disconnect();
        other.write(f.id, 0, b"alone");
        other.close(f.id);
    }
}

fn negative(dialect: Dialect) {
    let lab = Lab::new();
    let main = lab.client_with(dialect);
    let mut c = lab.connect_as(main.guid);
    c.negotiate(&Offer::up_to(dialect));
    let refused = c.try_logon(&logon(USER).bind(main.session.as_ref().unwrap()));
    assert_eq!(refused.err(), Some(NtStatus::REQUEST_NOT_ACCEPTED));
}

/// `MultipleChannel_Negative_SMB21`
#[test]
fn multiple_channel_negative_smb21() {
    negative(Dialect::Smb210);
}
/// `MultipleChannel_Negative_SMB2002`
#[test]
fn multiple_channel_negative_smb2002() {
    negative(Dialect::Smb202);
}

/// `MultipleChannel_SecondChannelSessionSetupFailAtFirstTime`
#[test]
fn multiple_channel_second_channel_session_setup_fail_at_first_time() {
    let lab = Lab::new();
    let mut main = lab.client();
    let f = main.open(want("file"));
    main.write(f.id, 0, b"data");
    let mut c = lab.connect_as(main.guid);
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    let session = main.session.clone().unwrap();
    c.session = Some(SessionKeys { signing: session.session_signing.clone(), ..session.clone() });
    let nonsense = session_setup(1, 1, 0, &[0x60, 1, 2, 3]).session(session.id).signed(true);
    let id = c.send(&nonsense);
    let reply = c.poll(id).unwrap();
    assert_eq!(reply.status(), NtStatus::INVALID_PARAMETER);
    c.session = None;
    c.logon(&logon(USER).bind(&session));
    c.tree = main.tree;
    assert_eq!(c.read(f.id, 0, 10), b"data");
}

/// `MultipleChannel_EncryptionOnBothChannels`
#[test]
fn multiple_channel_encryption_on_both_channels() {
    let lab = Lab::new();
    let mut main = lab.client();
    main.encrypt = true;
    main.connect(SEALED);
    let f = main.open(want("file"));
    main.write(f.id, 0, b"sealed");
    let mut other = second_channel(&lab, &main);
    other.encrypt = true;
    assert_eq!(other.read(f.id, 0, 10), b"sealed");
}
/// `MultipleChannel_Negative_EncryptionOnMainChannel`
#[test]
fn multiple_channel_negative_encryption_on_main_channel() {
    let lab = Lab::new();
    let mut main = lab.client();
    main.encrypt = true;
    main.connect(SEALED);
    let f = main.open(want("file"));
    let mut other = second_channel(&lab, &main);
    assert_eq!(other.try_read(f.id, 0, 10).unwrap_err(), NtStatus::ACCESS_DENIED);
}
/// `MultipleChannel_Negative_EncryptionOnAlternativeChannel`
#[test]
fn multiple_channel_negative_encryption_on_alternative_channel() {
    let lab = Lab::new();
    let mut main = lab.client();
    main.connect(SEALED);
    assert_eq!(main.fails(want("file")), NtStatus::ACCESS_DENIED);
    let mut other = second_channel(&lab, &main);
    other.encrypt = true;
    let nothing = FileId { persistent: 0, volatile: 0 };
    assert_eq!(other.try_read(nothing, 0, 10).unwrap_err(), NtStatus::FILE_CLOSED);
}

/// `MultipleChannel_FileLease`
#[test]
fn multiple_channel_file_lease() {
    let lab = Lab::new();
    let mut main = lab.client();
    let f = main.open(want("file").lease(7, "RWH"));
    let mut other = second_channel(&lab, &main);
    let mut third = lab.client();
    let waiting = third.starts(want("file"));
    assert_eq!(main.lease_break(), ("RWH".into(), "RH".into(), true));
    assert!(other.breaks().is_empty());
    // Acknowledged over the other channel.
    other.call(&lease_ack(7, "RH")).ok();
    third.opened(waiting);
    other.close(f.id);
}

#[test]
fn a_break_goes_over_the_channel_that_is_left() {
    let lab = Lab::new();
    let mut main = lab.client();
    main.open(want("file").lease(7, "RWH"));
    let mut other = second_channel(&lab, &main);
    main.disconnect();
    let mut third = lab.client();
    third.starts(want("file"));
    assert_eq!(other.lease_break(), ("RWH".into(), "RH".into(), true));
}

/// Nobody may have read it there: it is told over another one, each lease once, until it is acknowledged.
#[test]
fn a_break_that_went_over_a_lost_channel_is_told_again() {
    for lease in [true, false] {
        let lab = Lab::new();
        let mut main = lab.client();
        let want_it = || if lease { want("file").lease(7, "RWH") } else { want("file").oplock(oplock::BATCH) };
        let id = main.open(want_it()).id;
        if lease {
            main.open(want_it());
        }
        main.open(want("beside").lease(8, "RWH"));
        let mut other = second_channel(&lab, &main);
        let mut last = second_channel(&lab, &main);
        let mut third = lab.client();
        let waiting = third.starts(want("file"));
        assert!(other.breaks().is_empty(), "it went over the first one");
        main.disconnect();
        assert_eq!((other.breaks().len(), last.breaks().len()), (1, 0), "lease: {lease}");
        other.disconnect();
        assert_eq!(last.breaks().len(), 1, "lease: {lease}");
        last.call(&if lease { lease_ack(7, "RH") } else { oplock_ack(id, oplock::LEVEL_II) }).ok();
        third.opened(waiting);
    }
}

/// Neither one that was acknowledged, over whichever channel, nor one whose time is long over.
#[test]
fn a_break_that_is_over_is_not_told_again() {
    for acknowledged in [true, false] {
        let lab = Lab::new();
        let mut main = lab.client();
        main.open(want("file").lease(7, "RWH"));
        let mut other = second_channel(&lab, &main);
        let mut third = lab.client();
        let waiting = third.starts(want("file"));
        if acknowledged {
            other.call(&lease_ack(7, "RH")).ok();
        } else {
            lab.pass(Duration::from_secs(181));
            // It is still there.
            other.call(&echo()).ok();
        }
        third.opened(waiting);
        main.disconnect();
        assert!(other.breaks().is_empty(), "acknowledged: {acknowledged}");
    }
}

/// A channel whose network is gone is not noticed at once: what a client says over another one tells which to use.
#[test]
fn a_break_goes_over_a_channel_that_is_heard_from() {
    for lease in [true, false] {
        let lab = Lab::new();
        let mut main = lab.client();
        main.open(if lease { want("file").lease(7, "RWH") } else { want("file").oplock(oplock::BATCH) });
        let mut other = second_channel(&lab, &main);
        lab.pass(Duration::from_secs(15));
        other.call(&echo()).ok();
        let mut third = lab.client();
        third.starts(want("file"));
        assert_eq!((main.breaks().len(), other.breaks().len()), (0, 1), "lease: {lease}");
    }
}

/// `MultipleChannel_LockUnlockOnDiffChannel`
#[test]
fn multiple_channel_lock_unlock_on_diff_channel() {
    lock_and_unlock(true);
}
/// `MultipleChannel_LockUnlockOnSameChannel`
#[test]
fn multiple_channel_lock_unlock_on_same_channel() {
    lock_and_unlock(false);
}

fn lock_and_unlock(elsewhere: bool) {
    let lab = Lab::new();
    let mut main = lab.client();
    let f = main.open(want("file"));
    main.write(f.id, 0, &[1; 100]);
    let mut other = second_channel(&lab, &main);
    let exclusive = lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY;
    main.call(&lock(f.id, 0, &[(0, 100, exclusive)])).ok();
    let mut third = lab.client();
    let g = third.open(want("file"));
    assert_eq!(third.try_write(g.id, 0, b"x").unwrap_err(), NtStatus::FILE_LOCK_CONFLICT);
    other.write(f.id, 0, b"of the same open");
    let unlock = lock(f.id, 0, &[(0, 100, lock_flags::UNLOCK)]);
    if elsewhere {
        other.call(&unlock).ok()
    } else {
        main.call(&unlock).ok()
    };
    third.write(g.id, 0, b"x");
}

#[test]
fn binding_is_refused_without_a_signature_or_with_a_wrong_one() {
    let lab = Lab::new();
    let main = lab.client();
    let session = main.session.clone().unwrap();
    let refused = |how: Logon| {
        let mut c = lab.connect_as(main.guid);
        c.negotiate(&Offer::up_to(Dialect::Smb311));
        c.try_logon(&how).err().unwrap()
    };
    assert_eq!(refused(logon(USER).bind(&session).unsigned()), NtStatus::INVALID_PARAMETER);
    let spoiled = Logon { spoil: true, ..logon(USER).bind(&session) };
    // As of a session that does not exist: who does not hold the key learns of none.
    assert_eq!(refused(spoiled), NtStatus::USER_SESSION_DELETED);
    assert_eq!(refused(logon(OTHER).bind(&session)), NtStatus::ACCESS_DENIED, "another user");
    assert_eq!(refused(logon(USER).bind(&session).password("wrong")), NtStatus::LOGON_FAILURE);
    let nobody = SessionKeys { id: 0x4711, ..session.clone() };
    assert_eq!(refused(logon(USER).bind(&nobody)), NtStatus::USER_SESSION_DELETED);
}

#[test]
fn binding_twice_on_one_connection_is_refused() {
    let lab = Lab::new();
    let mut main = lab.client();
    let session = main.session.clone().unwrap();
    let again = main.try_logon(&logon(USER).bind(&session));
    assert_eq!(again.err(), Some(NtStatus::REQUEST_NOT_ACCEPTED));
}

#[test]
fn binding_from_another_dialect_is_refused() {
    let lab = Lab::new();
    let refused = |first: &Offer, second| {
        let mut main = lab.connect();
        main.negotiate(first);
        main.logon(&logon(USER));
        let mut c = lab.connect_as(main.guid);
        c.negotiate(&Offer::up_to(second));
        c.try_logon(&logon(USER).bind(main.session.as_ref().unwrap())).err()
    };
    let invalid = Some(NtStatus::INVALID_PARAMETER);
    assert_eq!(refused(&Offer::up_to(Dialect::Smb300), Dialect::Smb302), invalid);
    assert_eq!(refused(&Offer::up_to(Dialect::Smb311), Dialect::Smb302), invalid);
    // STATUS_REQUEST_OUT_OF_SEQUENCE: AES-GMAC's keys are for nothing else.
    let gmac = Offer::up_to(Dialect::Smb311).contexts(&[preauth_context(&[1]), signing_context(&[2])]);
    assert_eq!(refused(&gmac, Dialect::Smb302), Some(NtStatus(0xC000_042A)));
}

#[test]
fn a_logoff_on_one_channel_ends_the_session_on_all() {
    let lab = Lab::new();
    let mut main = lab.client();
    let mut other = second_channel(&lab, &main);
    assert_eq!(other.status(&Req::empty(Command::Logoff)), NtStatus::SUCCESS);
    assert_eq!(main.status(&want("x").req().signed(false)), NtStatus::USER_SESSION_DELETED);
}

#[test]
fn without_multichannel_nobody_binds() {
    let lab = Lab::with(|s| s.multichannel = false);
    let main = lab.client();
    let mut c = lab.connect_as(main.guid);
    let n = c.negotiate(&Offer::up_to(Dialect::Smb311));
    assert_eq!(n.capabilities & 8, 0);
    let refused = c.try_logon(&logon(USER).bind(main.session.as_ref().unwrap()));
    assert_eq!(refused.err(), Some(NtStatus::REQUEST_NOT_ACCEPTED));
}

/// [MS-SMB2] 3.3.7.1: the requests of a channel that is lost are cancelled, where the session has another. The client asks again there.
#[test]
fn a_lock_that_waits_on_a_lost_channel_is_not_granted() {
    let lab = Lab::new();
    let mut main = lab.client();
    let f = main.open(want("file"));
    let mut other = second_channel(&lab, &main);
    let mut third = lab.client();
    let g = third.open(want("file"));
    third.call(&lock(g.id, 0, &[(0, 10, lock_flags::EXCLUSIVE)])).ok();
    let whole = lock(f.id, 0, &[(0, 10, lock_flags::EXCLUSIVE)]);
    let lost = main.send(&whole);
    main.interim(lost);
    main.disconnect();
    let again = other.send(&whole);
    other.interim(again);
    third.call(&lock(g.id, 0, &[(0, 10, lock_flags::UNLOCK)])).ok();
    assert_eq!(other.receive(again).status(), NtStatus::SUCCESS);
    // It is held once.
    other.call(&lock(f.id, 0, &[(0, 10, lock_flags::UNLOCK)])).ok();
    let at_once = lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY;
    third.call(&lock(g.id, 0, &[(0, 10, at_once)])).ok();
    // And a change may be replayed: nothing is outstanding.
    let replayed = write(f.id, 20, b"x").replay().sequence(1);
    assert_eq!(other.status(&replayed), NtStatus::SUCCESS);
}

#[test]
fn a_watch_on_a_lost_channel_takes_no_change_from_the_next() {
    let lab = Lab::new();
    let mut main = lab.client();
    main.make_directory("dir");
    let dir = main.open(want("dir").directory().access(FILE_GENERIC_READ)).id;
    let mut other = second_channel(&lab, &main);
    let watch = notify(dir, 0, 1, 4096);
    let lost = main.send(&watch);
    main.interim(lost);
    main.disconnect();
    let again = other.send(&watch);
    other.interim(again);
    lab.client().put("dir\\new", b"x");
    assert_eq!(other.receive(again).status(), NtStatus::SUCCESS);
}

/// A CREATE goes on: the client replays it, and finds its handle.
#[test]
fn a_create_that_waits_on_a_lost_channel_is_found_by_its_replay() {
    let lab = Lab::new();
    let mut third = lab.client();
    let held = third.open(want("file").oplock(oplock::BATCH)).id;
    let mut main = lab.client();
    let mut other = second_channel(&lab, &main);
    let how = || want("file").existing().oplock(oplock::BATCH).durable_v2(0x5EA_1001, 0);
    main.starts(how());
    main.disconnect();
    assert_eq!(other.fails(how().replayed()), NtStatus::FILE_NOT_AVAILABLE);
    third.close(held);
    lab.opens_left(1);
    let f = other.open(how().replayed());
    other.write(f.id, 0, b"found");
    assert_eq!(lab.server.trees.opens().len(), 1);
}
