//! Requests that are about to wait while what was changed before in their message is on its way to stable storage: nothing is
//! answered before it is there, the interim response neither, and the connection is free for others.

use arden_smb::usage::Kind;
use arden_wire::smb2::{Command, FileId};

use crate::{channels::second_channel, client::*};

const GUID: u128 = 0x7008;
const EXCLUSIVE: u32 = lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY;

/// A lock that another client has; and a client of the available share that is about to wait for it.
struct Held {
    lab: Lab,
    other: Client,
    lock: FileId,
    c: Client,
}

impl Held {
    fn new() -> Held {
        let lab = Lab::new();
        // The same directory, and nobody asked for durability: what it does commits nothing.
        let (mut other, c) = (lab.client(), lab.ca_client());
        let lock = other.open(want("file")).id;
        other.call(&self::lock(lock, 0, &[(0, 10, EXCLUSIVE)])).ok();
        Held { lab, other, lock, c }
    }

    /// Opens a persistent handle and waits for the lock, in one message.
    fn send(&mut self) -> Vec<u64> {
        let create = want("file").persistent(GUID, 0).req();
        self.c.send_all(&[create, lock(FileId::RELATED, 0, &[(0, 10, lock_flags::EXCLUSIVE)]).related()])
    }

    /// The same, and its commit is held.
    fn send_held(&mut self) -> Vec<u64> {
        self.lab.handles.hold_commits();
        let ids = self.send();
        assert_eq!(self.lab.handles.held_commits(), 1);
        ids
    }

    /// The lock is free and nobody's.
    #[track_caller]
    fn is_free(&mut self) {
        self.other.call(&lock(self.lock, 0, &[(0, 10, lock_flags::UNLOCK)])).ok();
        self.other.call(&lock(self.lock, 0, &[(0, 10, EXCLUSIVE)])).ok();
    }
}

/// Nothing was answered to these, and others are answered.
#[track_caller]
fn is_unanswered(c: &mut Client, ids: &[u64]) {
    c.call(&echo()).ok();
    c.pump();
    assert!(c.inbox.iter().all(|r| !ids.contains(&r.header.message_id)), "{:?}", c.inbox);
}

fn cancel_message(id: u64) -> Req {
    let mut req = Req::empty(Command::Cancel);
    req.message_id = Some(id);
    req
}

#[test]
fn a_message_that_is_about_to_wait_for_a_lock_keeps_nobody_waiting_for_its_commit() {
    let mut h = Held::new();
    let ids = h.send_held();
    is_unanswered(&mut h.c, &ids);
    assert!(!h.lab.handles_are_committed());
    h.lab.handles.release_commits();
    h.c.receive(ids[0]).ok();
    h.c.interim(ids[1]);
    assert!(h.c.waits(ids[1]) && h.lab.handles_are_committed());
    h.other.close(h.lock);
    h.c.receive(ids[1]).ok();
}

#[test]
fn a_message_that_is_about_to_wait_for_changes_keeps_nobody_waiting_for_its_commit() {
    let lab = Lab::new();
    let mut c = lab.ca_client();
    lab.handles.hold_commits();
    let all = [want("dir").directory().disposition(CREATE).req(), notify(FileId::RELATED, 0, 1, 1000).related()];
    let ids = c.send_all(&all);
    assert_eq!(lab.handles.held_commits(), 1);
    is_unanswered(&mut c, &ids);
    lab.handles.release_commits();
    c.receive(ids[0]).ok();
    c.interim(ids[1]);
    assert!(c.waits(ids[1]));
    lab.client().put("dir\\new", b"");
    c.receive(ids[1]).ok();
}

/// Answers that wait for a commit are paid for until they leave.
#[test]
fn answers_that_wait_for_their_commit_are_paid_for() {
    let lab = Lab::new();
    lab.client().put("large", &[7; 100_000]);
    let mut c = lab.ca_client();
    lab.handles.hold_commits();
    let create = want("large").existing().persistent(GUID, 0).req();
    // A request of nobody at the end of the message does not make it nobody's.
    let strange = read(FileId::RELATED, 0, 1).session(0x7777).signed(false);
    let ids = c.send_all(&[create, read(FileId::RELATED, 0, 50_000).related(), strange]);
    assert_eq!(lab.handles.held_commits(), 1);
    is_unanswered(&mut c, &ids);
    assert!(lab.server.buffer_bytes() >= 50_000, "{} bytes are paid for", lab.server.buffer_bytes());
    lab.handles.release_commits();
    c.receive(ids[0]).ok();
    assert_eq!(c.receive(ids[1]).read_data().len(), 50_000);
    assert_eq!(lab.server.buffer_bytes(), 0);
}

/// The same where the last request is about to wait.
#[test]
fn answers_before_a_wait_that_wait_for_their_commit_are_paid_for() {
    let mut h = Held::new();
    h.other.put("large", &[7; 100_000]);
    let bytes = |h: &Held| h.lab.server.trees.usage.total(Kind::WaitBytes);
    let large = h.c.open(want("large").existing()).id;
    let create = want("new").persistent(GUID, 0).req();
    let waits = lock(large, 0, &[(0, 10, lock_flags::EXCLUSIVE)]);
    let theirs = h.other.open(want("large").existing()).id;
    h.other.call(&lock(theirs, 0, &[(0, 10, EXCLUSIVE)])).ok();
    h.lab.handles.hold_commits();
    let ids = h.c.send_all(&[create, read(large, 100, 50_000), waits]);
    assert_eq!(h.lab.handles.held_commits(), 1);
    assert!(bytes(&h) >= 50_000, "{} bytes are paid for", bytes(&h));
    h.lab.handles.release_commits();
    assert_eq!(h.c.receive(ids[1]).read_data().len(), 50_000);
    h.c.interim(ids[2]);
    assert!((1..10_000).contains(&bytes(&h)), "{} bytes for what waits", bytes(&h));
    h.other.close(theirs);
    h.c.receive(ids[2]).ok();
    assert_eq!(bytes(&h), 0);
}

/// Where no store tells of a commit, a thread waits for it that may, and the request does not run again there.
#[test]
fn a_commit_that_has_to_be_waited_for_is_not_waited_for_at_the_connection() {
    let mut h = Held::new();
    h.c.held = Some(Vec::new());
    let ids = h.send();
    is_unanswered(&mut h.c, &ids);
    assert!(!h.lab.handles_are_committed());
    assert_eq!(h.c.run_held(), 1);
    h.c.receive(ids[0]).ok();
    h.c.interim(ids[1]);
    assert!(h.c.waits(ids[1]) && h.lab.handles_are_committed());
    h.other.close(h.lock);
    h.c.receive(ids[1]).ok();
}

#[test]
fn a_wait_that_is_over_before_the_commit_is_not_forgotten() {
    let mut h = Held::new();
    let ids = h.send_held();
    h.other.close(h.lock);
    is_unanswered(&mut h.c, &ids);
    h.lab.handles.release_commits();
    h.c.receive(ids[0]).ok();
    h.c.interim(ids[1]);
    h.c.receive(ids[1]).ok();
    let mut free = h.lab.client();
    let f = free.open(want("file"));
    assert_eq!(free.status(&lock(f.id, 0, &[(0, 10, EXCLUSIVE)])), NtStatus::LOCK_NOT_GRANTED, "it has the lock");
}

#[test]
fn a_request_is_cancelled_before_and_after_the_commit() {
    for before in [true, false] {
        let mut h = Held::new();
        let ids = h.send_held();
        if before {
            h.c.send(&cancel_message(ids[1]));
            is_unanswered(&mut h.c, &ids);
        }
        h.lab.handles.release_commits();
        h.c.receive(ids[0]).ok();
        let async_id = h.c.interim(ids[1]);
        if !before {
            assert!(h.c.waits(ids[1]));
            h.c.cancel(async_id);
        }
        assert_eq!(h.c.receive(ids[1]).status(), NtStatus::CANCELLED, "before {before}");
        h.is_free();
    }
}

#[test]
fn a_request_whose_commit_fails_does_not_wait() {
    let mut h = Held::new();
    let ids = h.send_held();
    h.lab.handles.fail_commits(1);
    h.lab.handles.release_commits();
    for id in ids {
        assert_eq!(h.c.receive(id).status(), NtStatus::DISK_FULL);
    }
    h.is_free();
}

/// What was to go on at a channel that is lost is cancelled like what waited there: nothing counts it as outstanding any more,
/// [MS-SMB2] 3.3.5.2.10, and no lock is granted to it.
#[test]
fn what_was_to_go_on_at_a_lost_channel_is_cancelled() {
    for before_wait in [true, false] {
        let mut h = Held::new();
        let mine = h.c.open(want("file")).id;
        let mut second = second_channel(&h.lab, &h.c);
        let request = lock(mine, 0, &[(0, 10, lock_flags::EXCLUSIVE)]);
        if before_wait {
            h.lab.handles.hold_commits();
            second.send_all(&[want("new").persistent(GUID, 0).req(), request]);
            assert_eq!(h.lab.handles.held_commits(), 1);
            h.lab.handles.release_commits();
        } else {
            let id = second.send(&request);
            second.interim(id);
            h.other.call(&lock(h.lock, 0, &[(0, 10, lock_flags::UNLOCK)])).ok();
        }
        second.disconnect();
        if !before_wait {
            h.other.call(&lock(h.lock, 0, &[(0, 10, EXCLUSIVE)])).ok();
        }
        h.c.channel_sequence += 1;
        assert_eq!(h.c.status(&write(mine, 20, b"goes on").replay()), NtStatus::SUCCESS, "{before_wait}");
        h.is_free();
    }
}

/// Nobody gets the lock for a connection that is gone, whenever it went.
#[test]
fn a_connection_ends_while_the_commit_is_under_way() {
    for (released, channels) in [(false, 1), (true, 1), (false, 2), (true, 2)] {
        let mut h = Held::new();
        let mut main = None;
        if channels == 2 {
            let mut second = second_channel(&h.lab, &h.c);
            std::mem::swap(&mut h.c, &mut second);
            main = Some(second);
        }
        h.send_held();
        if released {
            h.lab.handles.release_commits();
        }
        h.c.disconnect();
        h.lab.handles.release_commits();
        h.lab.server.trees.run_deferred();
        h.is_free();
        if let Some(main) = &mut main {
            main.call(&echo()).ok();
        }
        assert_eq!(h.lab.server.trees.usage.total(arden_smb::usage::Kind::Waits), 0, "{released} {channels}");
    }
}
