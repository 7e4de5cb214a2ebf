//! The end of a session over several nodes: a client that comes by another node does not meet what it had open itself, and LOGOFF is answered
//! when everything is closed. [MS-SMB2] 3.3.5.5.3, 3.3.5.6.

use std::time::{Duration, Instant};

use arden_smb::wire::Version;
use arden_testkit::client::Front;

use crate::client::*;

/// Closing so many takes its time, and is done beside the connection between the nodes.
const MANY: usize = 60;

fn open_many(c: &mut Client) {
    open_so_many(c, MANY);
}

fn open_so_many(c: &mut Client, many: usize) {
    (0..many).for_each(|n| drop(c.open(want(&format!("file{n}")).share(0))));
}

/// As a client does that has lost its connection: it takes no time to think.
fn comes_again(c: &mut Client, user: &str, previous: u64) {
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.logon(&logon(user).previous(previous));
    c.connect(SHARE);
}

/// Two nodes of clients, which know each other.
fn fronts(lab: &Lab) -> (&Front, Front) {
    let (a, b) = (lab.front.as_ref().expect("two nodes"), lab.another_front());
    a.is_known_to(&b, 3);
    b.is_known_to(a, 4);
    (a, b)
}

#[test]
fn a_session_of_another_node_is_replaced() {
    let lab = Lab::new();
    let (_, b) = fronts(&lab);
    for from_owner in [false, true] {
        let mut before = if from_owner { lab.connect_to_owner_as(lab.connect().guid) } else { lab.connect() };
        before.begin(Dialect::Smb311);
        open_many(&mut before);
        let mut c = lab.connect_to(&b, before.guid);
        comes_again(&mut c, USER, before.session_id());
        assert!(lab.server.trees.opens().is_empty(), "what it had open is closed before the answer");
        open_many(&mut c);
        let late = before.status(&Req::empty(Command::TreeDisconnect).signed(false));
        assert_eq!(late, NtStatus::USER_SESSION_DELETED);
        c.disconnect();
        assert_eq!(lab.opens_left(0), 0);
    }
}

/// The same where its connection was lost, and what it had open is just being closed.
#[test]
fn a_lost_session_of_another_node_has_ended_when_its_client_comes_again() {
    let lab = Lab::new();
    let (_, b) = fronts(&lab);
    for to_another in [true, false] {
        let mut before = lab.client();
        open_many(&mut before);
        let (guid, id) = (before.guid, before.session_id());
        before.behind = None;
        before.disconnect();
        let mut c = if to_another { lab.connect_to(&b, guid) } else { lab.connect_as(guid) };
        comes_again(&mut c, USER, id);
        assert!(lab.server.trees.opens().is_empty());
        open_many(&mut c);
        c.disconnect();
        assert_eq!(lab.opens_left(0), 0);
    }
}

#[test]
fn a_session_of_another_user_at_another_node_is_not_replaced() {
    let lab = Lab::new();
    let (_, b) = fronts(&lab);
    let mut first = lab.client();
    let f = first.open(want("file").share(0));
    let mut second = lab.connect_to(&b, first.guid);
    comes_again(&mut second, OTHER, first.session_id());
    first.write(f.id, 0, b"alive");
    // Nor by one that does not exist.
    let mut third = lab.connect_to(&b, first.guid);
    comes_again(&mut third, USER, first.session_id() ^ 1);
    first.write(f.id, 0, b"alive");
}

#[test]
fn durable_handles_of_a_replaced_session_are_kept() {
    let lab = Lab::new();
    let (_, b) = fronts(&lab);
    let mut before = lab.ca_client();
    let file = || want("file").share(0).lease(1, "RWH");
    let f = before.open(file().persistent(7, 0));
    before.write(f.id, 0, b"kept");
    let mut c = lab.connect_to(&b, before.guid);
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.logon(&logon(USER).previous(before.session_id()));
    c.connect(CA);
    let again = c.open(file().reconnect_persistent(f.id, 7));
    assert_eq!(c.read(again.id, 0, 4), b"kept");
}

#[test]
fn a_logoff_is_answered_when_the_owner_has_closed_everything() {
    let lab = Lab::new();
    for _ in 0..2 {
        let mut c = lab.client();
        // Longer than it takes to say so.
        open_so_many(&mut c, 15 * MANY);
        assert_eq!(c.status(&Req::empty(Command::Logoff).tree(0)), NtStatus::SUCCESS);
        assert!(lab.server.trees.opens().is_empty());
    }
    // An encrypted one, too: its answer is sealed with the key of a session that is gone.
    let mut c = lab.client();
    c.encrypt = true;
    open_many(&mut c);
    assert_eq!(c.status(&Req::empty(Command::Logoff).tree(0)), NtStatus::SUCCESS);
    assert!(lab.server.trees.opens().is_empty());
}

/// A node that does not answer holds up one logon for a second, and those behind it not at all. One that does not know the message is not
/// asked.
#[test]
fn a_node_that_is_not_reached_does_not_keep_clients_from_logging_on() {
    let lab = Lab::new();
    let front = lab.front.as_ref().expect("two nodes");
    front.knows_silent(9);
    let takes = |id| {
        let begun = Instant::now();
        let mut c = lab.connect();
        comes_again(&mut c, USER, id);
        begun.elapsed()
    };
    assert!((Duration::from_millis(900)..Duration::from_secs(4)).contains(&takes(1)));
    // This machine may be busy with something else: the quickest counts.
    for id in [2, 0] {
        assert!((0..5).any(|_| takes(id) < Duration::from_millis(900)));
    }
    let lab = Lab::new();
    *lab.front.as_ref().expect("two nodes").ownership.version.lock() = Version::Two;
    let mut first = lab.connect_to_owner_as(1);
    first.begin(Dialect::Smb311);
    let f = first.open(want("file").share(0));
    let mut c = lab.connect_as(1);
    comes_again(&mut c, USER, first.session_id());
    first.write(f.id, 0, b"alive");
}
