//! One user who wants the threads that may block for himself: requests that wait for each other there, and long ones
//! where everybody's breaks and time-outs are seen to.

use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arden_smb::usage::Kind;

use super::{channels::second_channel, client::*};

/// A request that keeps a thread waiting for a while: a handle in use is reconnected.
fn slow(f: FileId) -> Req {
    want("slow").reconnect(f).req()
}

/// A CLOSE comes after the work on its handle. Were it to wait on a thread, many would take them all, and the work would
/// have none.
#[test]
fn closes_that_wait_keep_no_threads() {
    let lab = Lab::with(|s| s.limits.usage.jobs.user = 2);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).max_blocking_threads(8).enable_all().build().unwrap();
    let address = lab.listen_on(&runtime);
    let (mut quiet, mut hostile) = (lab.dial_as(address, USER), lab.dial_as(address, OTHER));
    let mine = quiet.open(want("mine")).id;
    let held = hostile.open(want("slow").oplock(oplock::BATCH).durable()).id;
    let f = hostile.open(want("file")).id;
    let mut bytes = Vec::new();
    let closes = (0..40).map(|_| close(f));
    for req in [slow(held), slow(held), flush(f)].into_iter().chain(closes) {
        let (_, message) = hostile.encode(&req, false);
        bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&message);
    }
    hostile.socket.as_mut().unwrap().write_all(&bytes).unwrap();
    // The CLOSEs wait by now, on any machine that is not so slow that the work on the handle was over before they came.
    let asked = Instant::now();
    while lab.server.trees.usage.total(Kind::Waits) < 39 && asked.elapsed() < Duration::from_secs(2) {
        std::thread::yield_now();
    }
    let id = quiet.send(&flush(mine));
    if quiet.poll(id).is_none() {
        // Its threads would be waited for.
        runtime.shutdown_background();
        panic!("another user's FLUSH finds no thread: {:?}", quiet.closed);
    }
    // The work is done, the first CLOSE is, and the others find no handle.
    // Each ECHO reads one answer, which need not be its own.
    let of = |c: &Client, command: Command| c.inbox.iter().filter(|r| r.header.command == command as u16).count();
    while of(&hostile, Command::Close) < 40 || of(&hostile, Command::Flush) < 1 {
        assert!(hostile.closed.is_none() && hostile.credits > 0, "{:?}", hostile.closed);
        hostile.send(&echo());
    }
    let closes = hostile.inbox.iter().filter(|r| r.header.command == Command::Close as u16);
    let statuses: Vec<_> = closes.map(Reply::status).collect();
    assert_eq!(statuses.iter().filter(|s| **s == NtStatus::SUCCESS).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|s| **s == NtStatus::FILE_CLOSED).count(), 39, "{statuses:?}");
    let flushed = hostile.inbox.iter().find(|r| r.header.command == Command::Flush as u16).expect("an answer");
    assert_eq!(flushed.status(), NtStatus::SUCCESS);
    runtime.shutdown_background();
}

/// What is left of a message whose connection is gone runs in its user's turn, and not where time-outs of others' breaks are
/// seen to: it may be as long as a message can be.
#[test]
fn messages_without_their_connection_keep_nobodys_breaks() {
    let lab = Lab::new();
    let mut main = lab.client();
    let mut channel = second_channel(&lab, &main);
    let mut other = lab.client();
    let g = other.open(want("file").oplock(oplock::BATCH));
    let f = main.open(want("data"));
    main.write(f.id, 0, &[1; 1000]);
    let trim = [&0u32.to_le_bytes()[..], &1u32.to_le_bytes(), &pair(0, 4096)].concat();
    let waits = channel.send_all(&[want("file").req(), ioctl(f.id, fsctl::FILE_LEVEL_TRIM, &trim, 4)])[0];
    assert!(channel.waits(waits));
    let ran = Arc::new(AtomicUsize::new(0));
    let count = ran.clone();
    lab.server.on_detached(Box::new(move |message| {
        assert!(message.user().is_some());
        count.fetch_add(1, Ordering::Relaxed);
        message.run();
    }));
    channel.disconnect();
    assert_eq!(ran.load(Ordering::Relaxed), 0);
    other.close(g.id);
    lab.server.trees.run_deferred();
    assert_eq!(ran.load(Ordering::Relaxed), 1);
    assert_eq!(main.read(f.id, 0, 1000), vec![0; 1000], "what was asked for happens");
}
