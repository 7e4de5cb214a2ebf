//! Connections between nodes: those that are not made, those that one end has given up and the other has not, and users who share one.

use crate::{client::*, nodes::begin};

/// The node of the clients makes a new connection; to the owner the older one looks alive. What the clients have open is theirs again at
/// once, and what is not durable is closed.
#[test]
fn what_the_owner_has_of_a_connection_that_was_lost_ends_with_the_next() {
    let lab = Lab::new();
    let front = lab.front.as_ref().expect("two nodes");
    let file = || want("file").share(0).lease(1, "RWH");
    let (mut c, mut other) = (lab.ca_client(), lab.client());
    let f = c.open(file().persistent(7, 0));
    other.open(want("other").share(0));
    c.write(f.id, 0, b"kept");
    for _ in 0..3 {
        front.lose_connections();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        for lost in [&mut c, &mut other] {
            lost.behind = None;
            while !lost.is_closed() {
                assert!(std::time::Instant::now() < end, "the node does not notice");
            }
        }
        assert_eq!(lab.server.trees.opens().len(), 2, "the owner does not know yet");
        c = lab.ca_again(c.guid);
        let again = c.open(file().reconnect_persistent(f.id, 7));
        assert_eq!((again.id, &c.read(f.id, 0, 10)[..]), (f.id, &b"kept"[..]));
        other = lab.client();
        other.open(want("other").share(0));
    }
    drop(other);
    assert_eq!(lab.opens_left(1), 1);
    c.close(f.id);
}

/// A dial takes up to 5 s, and each that fails is one step of the wait: time decides, not steps.
#[test]
fn an_owner_that_is_not_reached_is_not_waited_for_longer_than_one_that_is_not_there() {
    let lab = Lab::new();
    lab.front.as_ref().expect("two nodes").knows_silent(OWNER);
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.logon(&logon(USER));
    begin(&mut c, &tree_connect(&format!(r"\\LAB\{SHARE}")));
    lab.pass(std::time::Duration::from_secs(21));
    assert!(c.is_closed(), "it waits on");
}
