//! A break of what a client does not know yet to have comes behind the answer that grants it, [MS-SMB2] 3.3.4.6 and 3.3.4.7: the client
//! ignores one that comes before, and who waits for its acknowledgment waits until it times out.

use crate::{channels::second_channel, client::*};

/// Where in `c.inbox` the answer to `id` is, and where a break.
fn order(c: &mut Client, id: u64) -> (Option<usize>, Option<usize>) {
    c.pump();
    let place = |id| c.inbox.iter().position(|reply| reply.header.message_id == id);
    (place(id), place(u64::MAX))
}

/// The break comes, and the answer to `id` before it.
fn is_behind(c: &mut Client, id: u64) {
    assert!(c.comes(|c| order(c, id).1).is_some(), "no break came");
    let (answer, told) = order(c, id);
    assert!(answer.is_some() && answer < told, "{answer:?} {told:?}");
}

/// Another client opens the file, and waits: its interim response may wait for a commit, too.
fn other(lab: &Lab) -> (Client, u64) {
    let mut other = lab.ca_client();
    let waits = other.send(&want("file").req());
    other.pump();
    (other, waits)
}

#[test]
fn a_break_waits_for_the_answer_that_waits_for_its_commit() {
    let lab = Lab::new();
    let mut c = lab.ca_client();
    lab.handles.hold_commits();
    let id = c.send(&want("file").lease(7, "RWH").persistent(0x6A1, 0).req());
    let (mut other, waits) = other(&lab);
    assert_eq!(order(&mut c, id), (None, None));
    lab.handles.release_commits();
    is_behind(&mut c, id);
    c.opened(id);
    assert_eq!(c.lease_break(), ("RWH".into(), "RH".into(), true));
    c.call(&lease_ack(7, "RH")).ok();
    other.interim(waits);
    other.opened(waits);
}

/// The client has its breaks over its first connection, whatever the one is over which it opens.
#[test]
fn a_break_waits_for_the_answer_over_another_channel() {
    let lab = Lab::new();
    let mut first = lab.ca_client();
    let mut second = second_channel(&lab, &first);
    lab.handles.hold_commits();
    let id = second.send(&want("file").lease(7, "RWH").persistent(0x6A2, 0).req());
    let (mut other, waits) = other(&lab);
    assert!(first.breaks().is_empty() && second.poll(id).is_none());
    lab.handles.release_commits();
    second.opened(id);
    assert_eq!(first.lease_break(), ("RWH".into(), "RH".into(), true));
    first.call(&lease_ack(7, "RH")).ok();
    other.interim(waits);
    other.opened(waits);
}

/// Where a thread waits for the commit.
#[test]
fn a_break_is_behind_the_answer_of_a_thread_that_blocks() {
    let lab = Lab::new();
    let mut c = lab.ca_client();
    c.held = Some(Vec::new());
    let id = c.send(&want("file").lease(7, "RWH").persistent(0x6A3, 0).req());
    let (mut other, waits) = other(&lab);
    c.run_held();
    is_behind(&mut c, id);
    c.opened(id);
    c.one_break();
    c.call(&lease_ack(7, "RH")).ok();
    other.interim(waits);
    other.opened(waits);
}

/// What is asked for without an oplock or a lease grants nothing: breaks of what the client has are not held for it.
#[test]
fn a_create_without_a_cache_holds_no_breaks() {
    let lab = Lab::new();
    let mut c = lab.ca_client();
    c.open(want("file").lease(7, "RWH").persistent(0x6A4, 0));
    lab.handles.hold_commits();
    let id = c.send(&want("other").req());
    let (mut other, waits) = other(&lab);
    assert!(c.poll(id).is_none(), "its file is not durable yet");
    assert_eq!(c.lease_break(), ("RWH".into(), "RH".into(), true));
    lab.handles.release_commits();
    c.opened(id);
    c.call(&lease_ack(7, "RH")).ok();
    other.interim(waits);
    other.opened(waits);
}
