//! What a message keeps while it waits, and who pays for that: answers that were made already, and the buffer that it came in.

use arden_smb::{
    conn::Verdict,
    time::Time,
    usage::{Bound, Kind},
};

use super::client::*;

const READ_BYTES: u32 = 1 << 20;

/// A client with a large file.
fn with_large(lab: &Lab) -> (Client, FileId) {
    let mut c = lab.client();
    for _ in 0..3 {
        c.call(&echo().credits(8000)).ok();
    }
    let f = c.open(want("large")).id;
    c.write(f, 0, &vec![7; READ_BYTES as usize]);
    (c, f)
}

fn begin(c: &mut Client, message: &mut [u8]) -> Verdict {
    let connection = c.connection.as_mut().expect("it is connected");
    connection.handle_message(message, Time::read(), &mut Vec::new())
}

fn compound(c: &mut Client, requests: &[Req]) -> Vec<u8> {
    let last = requests.len() - 1;
    requests.iter().enumerate().flat_map(|(i, req)| c.encode(req, i < last).1).collect()
}

fn wait_bytes(lab: &Lab) -> usize {
    lab.server.trees.usage.total(Kind::WaitBytes)
}

/// A CLOSE waits for the work on its handle. A user could have as many of these as may wait, each with 16 MiB before it.
#[test]
fn answers_before_a_close_that_waits_are_paid_for() {
    let lab = Lab::new();
    let (mut c, large) = with_large(&lab);
    let f = c.open(want("file")).id;
    let mut flushes = compound(&mut c, &[flush(f)]);
    let Verdict::Job(work) = begin(&mut c, &mut flushes) else { panic!("a flush runs where it came in") };
    let reads = || read(large, 0, READ_BYTES);
    let mut closes = compound(&mut c, &[reads(), reads(), close(f)]);
    let Verdict::Job(job) = begin(&mut c, &mut closes) else { panic!("all of it ran where it came in") };
    job.run();
    assert!(wait_bytes(&lab) >= 2 * READ_BYTES as usize, "{} bytes", wait_bytes(&lab));
    work.run();
    c.pump();
    assert_eq!(wait_bytes(&lab), 0, "it is over");
    assert!(c.inbox.iter().all(|r| r.status() == NtStatus::SUCCESS) && c.inbox.len() == 4, "{:?}", c.inbox);
}

/// They leave with the interim response, and nobody knows when that is read.
#[test]
fn answers_before_a_request_that_waits_are_paid_for_until_they_are_sent() {
    let lab = Lab::new();
    let (mut c, large) = with_large(&lab);
    let dir = c.open(want("dir").directory()).id;
    let mut waits = compound(&mut c, &[read(large, 0, READ_BYTES), notify(dir, 0, 0xFFF, 4096)]);
    let Verdict::Job(job) = begin(&mut c, &mut waits) else { panic!("all of it ran where it came in") };
    job.run();
    let unsent = wait_bytes(&lab);
    assert!(unsent >= READ_BYTES as usize, "{unsent} bytes");
    c.pump();
    let sent = wait_bytes(&lab);
    assert!(sent > 0 && sent < 64 << 10, "{sent} bytes: the request waits still");
    c.close(dir);
    assert_eq!(wait_bytes(&lab), 0);
}

/// Who may not pay for them is told so, and has the answers.
#[test]
fn who_may_not_pay_for_answers_does_not_wait() {
    let small = Bound { user: 1 << 19, address: 1 << 20, whole: 1 << 21 };
    let lab = Lab::with(|s| s.limits.usage.wait_bytes = small);
    let (mut c, large) = with_large(&lab);
    let dir = c.open(want("dir").directory()).id;
    let replies = c.compound(&[read(large, 0, READ_BYTES), notify(dir, 0, 0xFFF, 4096)]);
    let statuses = [NtStatus::SUCCESS, NtStatus::INSUFFICIENT_RESOURCES];
    assert_eq!(replies.iter().map(Reply::status).collect::<Vec<_>>(), statuses);
    assert_eq!(wait_bytes(&lab), 0);
    let waits = c.send(&notify(dir, 0, 0xFFF, 4096));
    c.interim(waits);
}

/// The buffer that a short message came in may be that of a long one before it.
#[test]
fn a_message_that_waits_leaves_a_large_buffer_to_its_connection() {
    let lab = Lab::new();
    let mut c = lab.client();
    let dir = c.open(want("dir").directory()).id;
    let mut waits = compound(&mut c, &[notify(dir, 0, 0xFFF, 4096)]);
    waits.reserve_exact(8 << 20);
    let connection = c.connection.as_mut().expect("it is connected");
    assert!(matches!(connection.handle_lent(&mut waits, Time::read(), &mut Vec::new()), Verdict::Go));
    assert!(waits.capacity() >= 8 << 20, "{} bytes are left", waits.capacity());
    assert!((1..64 << 10).contains(&wait_bytes(&lab)));
}

/// What a session had of opens it does not keep room for.
#[test]
fn a_session_that_had_many_opens_keeps_room_for_a_few() {
    let lab = Lab::new();
    let mut c = lab.client();
    let all: Vec<_> = (0..2000).map(|i| c.open(want(&format!("file {}", i % 50))).id).collect();
    let session = lab.server.trees.opens()[0].session().expect("it is there");
    assert!(session.opens.read().capacity() >= 2000);
    all[1..].iter().for_each(|f| c.close(*f));
    let room = session.opens.read().capacity();
    assert!(room < 512, "room for {room} opens");
    c.write(all[0], 0, b"is open");
}
