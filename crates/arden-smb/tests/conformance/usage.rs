//! What one user can take of the server, and that others and administrators still have theirs.

use std::time::{Duration, Instant};

use arden_rpc::ServerView;
use arden_smb::{
    conn::{Connection, Verdict},
    server::view::View,
    time::Time,
    usage::{Bound, Kind},
};
use arden_store::{
    dir::{DirOptions, DirStore},
    fs::Fs,
};

use super::client::*;

/// Somebody who is no administrator.
fn other(lab: &Lab) -> Client {
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.logon(&logon(OTHER));
    c.connect(SHARE);
    c
}

/// A client that has asked for all the credits there are.
fn rich(mut c: Client) -> Client {
    for _ in 0..3 {
        c.call(&echo().credits(8000)).ok();
    }
    assert!(c.credits > 7000, "{}", c.credits);
    c
}

fn bound(user: usize, address: usize, whole: usize) -> Bound {
    Bound { user, address, whole }
}

/// What this thread has run so far.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel counts what threads run");
    Duration::from_nanos(stat.split(' ').next().and_then(|n| n.parse().ok()).expect("nanoseconds"))
}

/// What the connection does with a request itself, what that takes of the thread, and the buffer of its answer.
fn handle(c: &mut Client, req: &Req) -> (bool, Duration, Vec<u8>) {
    let (_, mut message) = c.encode(req, false);
    let mut out = Vec::new();
    let connection = c.connection.as_mut().unwrap();
    let (began, on_cpu) = (Instant::now(), cpu_time());
    let verdict = connection.handle_message(&mut message, Time::read(), &mut out);
    // What other processes take of the machine meanwhile does not count; a wait for a disk or a lock would be longer.
    let waited = began.elapsed().checked_sub(Duration::from_millis(500)).unwrap_or_default();
    let took = cpu_time() - on_cpu + waited;
    let moved = match verdict {
        Verdict::Job(job) => {
            job.run();
            true
        }
        _ => false,
    };
    c.pump();
    (moved, took, out)
}

/// 64 reads of 8 MiB in one message ask for 512 MiB, where the transport's length has 24 bits.
#[test]
fn the_answers_to_a_compound_fit_one_frame() {
    let lab = Lab::new();
    let mut c = rich(lab.client());
    let f = c.open(want("large"));
    assert_eq!(c.set(f.id, file_class::END_OF_FILE, &(8u64 << 20).to_le_bytes()), NtStatus::SUCCESS);
    let reads: Vec<_> = (0..50).map(|_| read(f.id, 0, 8 << 20)).collect();
    let replies = c.compound(&reads);
    assert_eq!(replies[0].read_data().len(), 8 << 20);
    assert!(replies[1..].iter().all(|r| r.status() == NtStatus::INSUFFICIENT_RESOURCES));
    assert!(replies.iter().map(|r| r.message.len()).sum::<usize>() < 1 << 24);
    // Smaller ones: as many as fit, and what asks for less than is left still has it.
    let mut reads: Vec<_> = (0..20).map(|_| read(f.id, 0, 1 << 20)).collect();
    reads.push(read(f.id, 0, 4096));
    let replies = c.compound(&reads);
    let good = replies.iter().filter(|r| r.status() == NtStatus::SUCCESS).count();
    assert_eq!(good, 15 + 1, "{:?}", replies.iter().map(Reply::status).collect::<Vec<_>>());
}

/// A Go client sends as many in one message as it has credits.
#[test]
fn a_compound_of_what_credits_allow_is_served() {
    let lab = Lab::new();
    let mut c = rich(lab.client());
    let f = c.open(want("file"));
    c.write(f.id, 0, b"content");
    for count in [126, 3000] {
        let replies = c.compound(&(0..count).map(|_| read(f.id, 0, 7)).collect::<Vec<_>>());
        assert_eq!(replies.len(), count);
        assert!(replies.iter().all(|r| r.read_data() == b"content"));
    }
}

/// What a read costs follows what there is, not what is asked for.
#[test]
fn the_largest_read_of_a_small_file_is_a_small_one() {
    let lab = Lab::new();
    let mut c = rich(lab.client());
    let f = c.open(want("file"));
    c.write(f.id, 0, &[7; 16 * 1024]);
    let (moved, _, out) = handle(&mut c, &read(f.id, 0, 8 << 20));
    assert!(!moved && out.len() > 16 * 1024 && out.capacity() < 128 * 1024, "{moved} {}", out.capacity());
    assert_eq!(c.read(f.id, 16_000, 8 << 20), vec![7; 384]);
    assert_eq!(c.try_read(f.id, 16 * 1024, 8 << 20), Err(NtStatus::END_OF_FILE));
    // Locks behind the end still count.
    let mut two = lab.client();
    let g = two.open(want("file"));
    two.call(&lock(g.id, 0, &[(1 << 20, 1, lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY)])).ok();
    assert_eq!(c.try_read(f.id, 0, 8 << 20), Err(NtStatus::FILE_LOCK_CONFLICT));
}

#[test]
fn a_user_has_so_many_opens_and_administrators_have_some_left() {
    let lab = Lab::with(|s| s.limits.usage.opens = bound(20, 100, 32));
    let mut c = other(&lab);
    let held: Vec<_> = (0..20).map(|i| c.open(want(&format!("f{i}"))).id).collect();
    assert_eq!(c.fails(want("more")), NtStatus::TOO_MANY_OPENED_FILES);
    let mut again = other(&lab);
    assert_eq!(again.fails(want("more")), NtStatus::TOO_MANY_OPENED_FILES, "another session of the same user");
    let mut root = lab.client();
    (0..12).for_each(|i| drop(root.open(want(&format!("r{i}")))));
    c.close(held[0]);
    assert_eq!(c.fails(want("more")), NtStatus::TOO_MANY_OPENED_FILES, "the last two are for administrators");
    root.open(want("r"));
    drop((c, root));
    other(&lab).open(want("more"));
}

/// The name of an open stays in memory as it was sent, so that one with a long name counts as several.
#[test]
fn long_names_count_as_several_opens() {
    let lab = Lab::with(|s| s.limits.usage.opens = bound(10, 100, 100));
    let total = || lab.server.trees.usage.total(Kind::Opens);
    let long = vec!["d".repeat(200); 15].join("\\");
    std::fs::create_dir_all(lab.host(&long.replace('\\', "/"))).unwrap();
    let mut c = other(&lab);
    let one = c.open(want(&format!("{}\\{}", &long[..1004], "f".repeat(19)))).id;
    assert_eq!(total(), 1, "1,024 bytes");
    let two = c.open(want(&format!("{long}\\f"))).id;
    assert_eq!(total(), 4, "3,016 bytes");
    c.open(want(&format!("{long}\\g")));
    c.open(want(&format!("{long}\\h")));
    assert_eq!(c.fails(want("more")), NtStatus::TOO_MANY_OPENED_FILES);
    c.close(one);
    assert_eq!(c.fails(want(&format!("{long}\\i"))), NtStatus::TOO_MANY_OPENED_FILES);
    c.close(two);
    c.open(want(&format!("{long}\\i")));
}

/// The directories above what is open take descriptors too: each counts once for a user, however much is open below it.
#[test]
fn directories_above_opens_count_as_opens_on_shared_directories() {
    let lab = Lab::with(|s| s.limits.usage.descriptor_opens = bound(40, 200, 200));
    let total = || lab.server.trees.usage.total(Kind::DescriptorOpens);
    let chain = |n: usize| (0..10).map(|level| format!("chain{n}-{level}")).collect::<Vec<_>>().join("\\");
    for n in 0..12 {
        std::fs::create_dir_all(lab.host(&chain(n).replace('\\', "/"))).unwrap();
    }
    let mut c = other(&lab);
    let held: Vec<_> = (0..3).map(|n| c.open(want(&format!("{}\\f", chain(n)))).id).collect();
    assert_eq!(total(), 33);
    let more = format!("{}\\f", chain(3));
    assert_eq!(c.fails(want(&more)), NtStatus::TOO_MANY_OPENED_FILES);
    assert!(!lab.host(&more.replace('\\', "/")).exists(), "nothing is made before there is room");
    let beside = c.open(want(&format!("{}\\g", chain(2)))).id;
    assert_eq!(total(), 34, "its directories are in use already");
    let mut d = rich(lab.client());
    d.open(want(&format!("{}\\h", chain(2))));
    assert_eq!(total(), 45, "each user pays for what they use");
    c.close(held[2]);
    assert_eq!(total(), 44, "another file is open in its directory");
    c.close(beside);
    assert_eq!(total(), 33);
    drop((c, d));
    assert_eq!(total(), 0);
}

/// What is moved has the directories above its new name in use from then on, whoever has it open.
#[test]
fn directories_above_a_new_name_count_while_it_is_in_use() {
    let lab = Lab::with(|s| s.limits.usage.descriptor_opens = bound(20, 200, 200));
    let total = || lab.server.trees.usage.total(Kind::DescriptorOpens);
    for n in 0..2 {
        std::fs::create_dir_all(lab.host(&format!("{n}/a/b/c/d/e/f/g/h/i/j/k"))).unwrap();
    }
    let mut c = other(&lab);
    (0..2).for_each(|n| c.make_directory(&format!("moved{n}")));
    let (one, two) = (c.open(want("moved0").existing().directory()), c.open(want("moved1").existing().directory()));
    let mut d = other(&lab);
    let kept = d.open(want("moved0").existing().directory());
    assert_eq!(total(), 3);
    assert_eq!(c.rename(one.id, "0\\a\\b\\c\\d\\e\\f\\g\\h\\i\\j\\k\\moved", false), NtStatus::SUCCESS);
    assert_eq!(total(), 15);
    c.close(one.id);
    assert_eq!(total(), 14, "it is open");
    let to = "1\\a\\b\\c\\d\\e\\f\\g\\h\\i\\j\\k\\moved";
    assert_eq!(c.rename(two.id, to, false), NtStatus::TOO_MANY_OPENED_FILES);
    assert!(lab.host("moved1").exists());
    d.close(kept.id);
    assert_eq!(total(), 1);
    assert_eq!(c.rename(two.id, to, false), NtStatus::SUCCESS);
    drop((c, d));
    assert_eq!(total(), 0);
}

/// A name that is to be deleted waits for its own last user, and the directories above it with it; for no user of another name.
#[test]
fn directories_above_a_name_that_is_to_be_deleted_count_until_it_is() {
    let lab = Lab::with(|s| s.limits.usage.descriptor_opens = bound(40, 200, 200));
    let total = || lab.server.trees.usage.total(Kind::DescriptorOpens);
    std::fs::create_dir_all(lab.host("a/b/c/d/e")).unwrap();
    let mut c = other(&lab);
    let f = c.open(want("f")).id;
    let deletes = |name: &str| {
        std::fs::hard_link(lab.host("f"), lab.host(&name.replace('\\', "/"))).unwrap();
        want(name).existing()
    };
    let by_open = c.open(deletes("a\\b\\c\\d\\e\\one").options(OPT_DELETE_ON_CLOSE)).id;
    let by_request = c.open(deletes("a\\b\\two")).id;
    let again = c.open(want("a\\b\\c\\d\\e\\one").existing()).id;
    assert_eq!(total(), 9);
    assert_eq!(c.delete(by_request), NtStatus::SUCCESS);
    c.close(by_request);
    c.close(by_open);
    assert_eq!(total(), 7);
    assert!(lab.host("a/b/c/d/e/one").exists() && !lab.host("a/b/two").exists());
    c.close(again);
    assert_eq!(total(), 1);
    assert!(!lab.host("a/b/c/d/e/one").exists());
    c.close(f);
    assert_eq!(total(), 0);
}

#[test]
fn pipes_watches_and_locks_of_a_user_are_bound() {
    let lab = Lab::with(|s| {
        s.limits.usage.pipes = bound(3, 10, 100);
        s.limits.usage.watches = bound(2, 10, 100);
        s.limits.usage.locks = bound(10, 100, 100);
    });
    let mut c = other(&lab);
    let dirs: Vec<_> = (0..3).map(|i| c.open(want(&format!("d{i}")).directory()).id).collect();
    let first = c.send(&notify(dirs[0], 0, 1, 100));
    c.interim(first);
    let second = c.send(&notify(dirs[1], 0, 1, 100));
    c.interim(second);
    assert_eq!(c.status(&notify(dirs[2], 0, 1, 100)), NtStatus::INSUFFICIENT_RESOURCES);
    c.close(dirs[0]);
    let third = c.send(&notify(dirs[2], 0, 1, 100));
    c.interim(third);

    let f = c.open(want("file"));
    let exclusive = lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY;
    let ten: Vec<_> = (0..10).map(|i| (i, 1, exclusive)).collect();
    c.call(&lock(f.id, 0, &ten)).ok();
    let g = c.open(want("second"));
    assert_eq!(c.status(&lock(g.id, 0, &[(0, 1, exclusive)])), NtStatus::INSUFFICIENT_RESOURCES);
    assert_eq!(c.status(&lock(f.id, 0, &[(0, 1, exclusive)])), NtStatus::INSUFFICIENT_RESOURCES);
    c.call(&lock(f.id, 0, &[(0, 1, lock_flags::UNLOCK), (1, 1, lock_flags::UNLOCK)])).ok();
    c.call(&lock(g.id, 0, &[(0, 1, exclusive)])).ok();
    assert_eq!(c.status(&lock(g.id, 0, &[(0, 1, exclusive)])), NtStatus::LOCK_NOT_GRANTED);
    c.call(&lock(g.id, 0, &[(1, 1, exclusive)])).ok();
    c.close(f.id);
    c.call(&lock(g.id, 0, &(2..10).map(|i| (i, 1, exclusive)).collect::<Vec<_>>())).ok();

    c.connect("IPC$");
    (0..3).for_each(|_| drop(c.open(want("srvsvc"))));
    assert_eq!(c.fails(want("srvsvc")), NtStatus::INSUFFICIENT_RESOURCES);
    drop(c);
    assert_eq!(lab.server.trees.usage.total(Kind::Pipes), 0);
    assert_eq!(lab.server.trees.usage.total(Kind::Locks), 0);
    assert_eq!(lab.server.trees.usage.total(Kind::Watches), 0);
}

/// Watches that nobody asks gather changes: together no more than their user, their address and the whole may.
#[test]
fn changes_that_watches_keep_are_bound_by_address() {
    let lab = Lab::with(|s| s.limits.usage.watch_bytes = bound(10_000, 200, 10_000));
    let mut there = lab.connect();
    let (address, local) = ("192.0.2.77:40000".parse().unwrap(), "192.0.2.1:445".parse().unwrap());
    there.connection = Some(Connection::new(&lab.server, address, local, Box::new(|| {})));
    there.negotiate(&Offer::up_to(Dialect::Smb311));
    there.logon(&logon(OTHER));
    there.connect(SHARE);
    let mut watchers = [other(&lab), other(&lab), there];
    let mut changer = other(&lab);
    let dirs: Vec<_> = watchers.iter_mut().map(|c| c.open(want("dir").directory()).id).collect();
    let waiting: Vec<_> = watchers.iter_mut().zip(&dirs).map(|(c, d)| c.send(&notify(*d, 0, 1, 1000))).collect();
    changer.open(want("dir\\first"));
    for (c, id) in watchers.iter_mut().zip(waiting) {
        c.interim(id);
        c.receive(id).ok();
    }
    // Of 24 bytes each: enough for one of the two at one address, not for both.
    (0..8).for_each(|i| drop(changer.open(want(&format!("dir\\file-{i}")))));
    let told: Vec<_> = watchers.iter_mut().zip(&dirs).map(|(c, d)| c.status(&notify(*d, 0, 1, 1000))).collect();
    assert!(told[..2].contains(&NtStatus::NOTIFY_ENUM_DIR), "{told:?}");
    assert_eq!(told[2], NtStatus::SUCCESS, "another address");
    // What was told, or forgotten, is given back.
    assert_eq!(lab.server.trees.usage.total(Kind::WatchBytes), 0);
    (0..4).for_each(|i| drop(changer.open(want(&format!("dir\\more-{i}")))));
    assert!(watchers.iter_mut().zip(&dirs).all(|(c, d)| c.status(&notify(*d, 0, 1, 1000)) == NtStatus::SUCCESS));
    changer.open(want("dir\\last"));
    assert!(lab.server.trees.usage.total(Kind::WatchBytes) > 0);
    drop(watchers);
    assert_eq!(lab.server.trees.usage.total(Kind::WatchBytes), 0);
}

/// NetrConnectionEnum and NetrShareEnum: each tree connect and each open is looked at once, however many of both there are.
#[test]
fn what_clients_have_is_counted_in_one_pass() {
    let lab = Lab::new();
    let mut c = lab.client();
    (0..1000).for_each(|_| drop(c.connect(SHARE)));
    (0..2000).for_each(|_| drop(c.open(want("file"))));
    let last = c.tree;
    let view = View::new(lab.server.clone());
    let all = view.connections();
    assert_eq!(all.len(), 1001);
    assert!(all.iter().all(|t| t.opens == if t.id == last { 2000 } else { 0 }));
    assert_eq!(view.share_uses()[SHARE], 1001);
    let fastest = |of: &dyn Fn() -> usize| {
        let took = (0..5).map(|_| {
            let began = Instant::now();
            assert!(of() > 0);
            began.elapsed()
        });
        took.min().unwrap()
    };
    let (opens, trees) = (fastest(&|| view.opens().len()), fastest(&|| view.connections().len()));
    assert!(trees < opens * 5, "{trees:?} for tree connects, {opens:?} for opens");
}

/// A request that waits keeps its message: large ones would keep any amount of memory.
#[test]
fn waiting_requests_keep_so_many_bytes() {
    let lab = Lab::with(|s| s.limits.usage.wait_bytes = bound(1 << 20, 1 << 21, 1 << 22));
    let mut c = rich(other(&lab));
    let d = c.open(want("d").directory()).id;
    let mut large = notify(d, 0, 1, 100);
    large.body.resize(400_000, 0);
    let ids: Vec<_> = (0..2).map(|_| c.send(&large)).collect();
    let ids: Vec<_> = ids.into_iter().map(|id| c.interim(id)).collect();
    assert_eq!(c.status(&large), NtStatus::INSUFFICIENT_RESOURCES);
    let small = c.send(&notify(d, 0, 1, 100));
    c.interim(small);
    c.cancel(ids[0]);
    let again = c.send(&large);
    c.interim(again);
    drop(c);
    assert_eq!(lab.server.trees.usage.total(Kind::WaitBytes), 0);
}

/// Each of these takes as long as its file, its input or its directory is large: none keeps a thread of the runtime.
#[test]
fn long_requests_leave_the_reactor() {
    let lab = Lab::new();
    for i in 0..6000 {
        std::fs::write(lab.host(&format!("name-{i:05}")), b"").unwrap();
    }
    let mut c = rich(lab.client());
    // Whether a name is there in another case is looked for among all names, once.
    assert!(handle(&mut c, &want("file").req()).0, "a missing name in a large directory");
    assert!(!handle(&mut c, &want("missing").existing().req()).0, "now they are known");
    let root = c.open(want("").existing().directory()).id;
    let f = c.open(want("file")).id;
    c.write(f, 0, &[1; 100_000]);
    let trims: Vec<u8> = (0..10_000u64).flat_map(|i| [(i * 8).to_le_bytes(), 1u64.to_le_bytes()].concat()).collect();
    let trim = [&0u32.to_le_bytes()[..], &10_000u32.to_le_bytes(), &trims].concat();
    assert!(handle(&mut c, &want("NABCDE~F").existing().req()).0, "a short name that nobody has");
    let flags = lock_flags::SHARED | lock_flags::FAIL_IMMEDIATELY;
    let many: Vec<_> = (0..3000).map(|_| (0, 10, flags)).collect();
    let unlock: Vec<_> = (0..3000).map(|_| (0, 10, lock_flags::UNLOCK)).collect();
    let deep = vec!["a"; 10_000].join("\\");
    let hostile = format!("{}c", "*e".repeat(127));
    let size = |n: u64| n.to_le_bytes();
    let class = file_class::ID_BOTH_DIRECTORY;
    for (name, req) in [
        ("a pattern without a match", query_directory(root, class, 1, "nothing*", 4096)),
        ("a hostile pattern", query_directory(root, class, 1, &hostile, 4096)),
        ("zeros", ioctl(f, fsctl::SET_ZERO_DATA, &pair(0, 1 << 40), 0)),
        ("trims", ioctl(f, fsctl::FILE_LEVEL_TRIM, &trim, 4)),
        ("ranges", ioctl(f, fsctl::QUERY_ALLOCATED_RANGES, &pair(0, 1 << 40), 4096)),
        ("growing", set_info(f, info_type::FILE, file_class::END_OF_FILE, 0, &size(1 << 40))),
        ("shrinking", set_info(f, info_type::FILE, file_class::END_OF_FILE, 0, &size(0))),
        ("locks", lock(f, 0, &many)),
        ("unlocks", lock(f, 0, &unlock)),
        ("a deep path", want(&deep).existing().req()),
    ] {
        let (moved, took, _) = handle(&mut c, &req);
        assert!(moved, "{name} runs where it came in");
        assert!(took < Duration::from_millis(200), "{name}: {took:?} before it leaves");
    }
    let units = "a".repeat(256);
    assert_eq!(c.status(&query_directory(root, class, 1, &units, 4096)), NtStatus::OBJECT_NAME_INVALID);
    assert_eq!(c.status(&query_directory(root, class, 1, &"*a".repeat(16_000), 4096)), NtStatus::OBJECT_NAME_INVALID);
    // What is found is found, on either side.
    let names = c.list_once(root, class, 1, "name-02999").unwrap();
    assert_eq!(names, ["name-02999"]);
    let mut all = c.list_once(root, class, 1, "name-02*9").unwrap();
    while let Ok(more) = c.list_once(root, class, 0, "name-02*9") {
        all.extend(more);
    }
    assert_eq!(all.len(), 100);
}

/// A directory in memory, whose files may end as far away as offsets go, in place of the share's; it goes with the guard.
struct InMemory(std::path::PathBuf);

impl InMemory {
    /// None, and a message, where that cannot be.
    fn serve(lab: &Lab) -> Option<InMemory> {
        let dir = std::path::Path::new("/dev/shm").join(format!("arden-usage-{}", std::process::id()));
        if let Err(e) = std::fs::create_dir(&dir) {
            println!("skipped: {}: {e}", dir.display());
            return None;
        }
        let store = DirStore::open(&dir, DirOptions::default()).unwrap();
        let fs = Fs::new(store, lab.server.trees.share(SHARE).unwrap().fs.as_ref().unwrap().table().clone());
        change_share(lab, SHARE, |s| s.fs = Some(fs.clone()));
        Some(InMemory(dir))
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a client only says is large takes no time: ends of files and offsets.
#[test]
fn empty_space_takes_no_time() {
    let lab = Lab::new();
    let Some(_dir) = InMemory::serve(&lab) else { return };
    let mut c = rich(lab.client());
    const END: u64 = i64::MAX as u64;
    for sparse in [false, true] {
        let f = c.open(want(&format!("f{sparse}"))).id;
        if sparse {
            c.fsctl(f, fsctl::SET_SPARSE, &[], 0);
        }
        c.write(f, 4096, &[1; 4096]);
        let requests = |end: u64| {
            [
                set_info(f, info_type::FILE, file_class::END_OF_FILE, 0, &end.to_le_bytes()),
                ioctl(f, fsctl::QUERY_ALLOCATED_RANGES, &pair(0, end), 160),
                ioctl(f, fsctl::QUERY_FILE_REGIONS, &[&pair(0, end)[..], &[1, 0, 0, 0, 0, 0, 0, 0]].concat(), 160),
                ioctl(f, fsctl::SET_ZERO_DATA, &pair(8192, end), 0),
                ioctl(f, fsctl::FILE_LEVEL_TRIM, &[&[0, 0, 0, 0, 1, 0, 0, 0][..], &pair(8192, end)].concat(), 4),
            ]
        };
        let mut took = |end: u64| {
            let all = requests(end).map(|req| {
                let began = cpu_time();
                let status = c.status(&req);
                assert_eq!(status, NtStatus::SUCCESS, "{end:#x}");
                cpu_time() - began
            });
            all.iter().sum::<Duration>()
        };
        // From far to farther, so that what depends on it is found before it takes hours.
        let small = took(1 << 20).max(Duration::from_millis(10));
        for end in [1 << 50, END] {
            let large = took(end);
            assert!(large < small * 20, "{large:?} where the file ends at {end:#x}, {small:?} where it ends near");
        }
        let ranges = c.fsctl(f, fsctl::QUERY_ALLOCATED_RANGES, &pair(0, END), 160);
        assert_eq!(ranges, if sparse { pair(4096, 4096) } else { pair(0, END) });
    }
}

/// What a session had open is closed when it ends, whatever ends it: much of it, or large files that go with it, elsewhere.
#[test]
fn the_end_of_a_session_leaves_the_reactor() {
    let lab = Lab::new();
    for (opens, moves) in [(300, true), (3, false)] {
        let mut c = lab.client();
        (0..opens).for_each(|i| drop(c.open(want(&format!("f{i}")).share(7))));
        let mut d = lab.connect();
        d.negotiate(&Offer::up_to(Dialect::Smb311));
        let mut initiator = arden_auth::initiator::Initiator::new(USER, "LAB", PASSWORD);
        let reply = d.call(&session_setup(0, 1, 0, &initiator.first()).session(0));
        let challenge = reply.slice(reply.u16(4).into(), reply.u16(6).into()).to_vec();
        let token = initiator.second(&challenge, [7; 24]).unwrap();
        let req = session_setup(0, 1, c.session_id(), &token).session(reply.header.session_id).signed(false);
        let (moved, _, _) = handle(&mut d, &req);
        assert_eq!(moved, moves, "PreviousSessionId, {opens} opens");
        assert!(lab.server.trees.opens().is_empty(), "before its answer");
        assert!(!moved || d.inbox.iter().any(|r| r.status() == NtStatus::SUCCESS));
        assert_eq!(lab.front().sessions().len(), 1);
    }
    // A failed authentication ends the session.
    let mut c = lab.client();
    (0..300).for_each(|i| drop(c.open(want(&format!("f{i}")).share(7))));
    let mut initiator = arden_auth::initiator::Initiator::new(USER, "LAB", "wrong");
    let reply = c.call(&session_setup(0, 1, 0, &initiator.first()));
    let challenge = reply.slice(reply.u16(4).into(), reply.u16(6).into()).to_vec();
    let (_, mut message) = c.encode(&session_setup(0, 1, 0, &initiator.second(&challenge, [7; 24]).unwrap()), false);
    let mut out = Vec::new();
    let connection = c.connection.as_mut().unwrap();
    connection.handle_message(&mut message, Time::read(), &mut out);
    assert_eq!(lab.server.trees.opens().len(), 300, "closed elsewhere");
    c.pump();
    assert!(lab.server.trees.opens().is_empty());
    // A few opens, one of which frees much.
    for end in [Command::TreeDisconnect, Command::Logoff] {
        let mut c = lab.client();
        let large = c.open(want("large").delete_on_close());
        (0..20u64).for_each(|i| c.write(large.id, i << 20, &vec![1; 1 << 20]));
        assert!(handle(&mut c, &Req::empty(end)).0, "{end:?}");
        assert!(lab.server.trees.opens().is_empty());
    }
}

/// Each tree connect takes memory: sessions times tree connects of one session are too many for one user.
#[test]
fn tree_connects_of_a_user_are_bound() {
    let lab = Lab::with(|s| s.limits.usage.trees = bound(5, 100, 100));
    let mut c = other(&lab);
    (0..3).for_each(|_| drop(c.connect(SHARE)));
    let mut d = other(&lab);
    assert_eq!(d.status(&tree_connect("\\\\LAB\\share")), NtStatus::INSUFFICIENT_RESOURCES);
    lab.client().connect(SECOND);
    assert_eq!(c.status(&Req::empty(Command::TreeDisconnect)), NtStatus::SUCCESS);
    d.connect(SHARE);
    drop((c, d));
    assert_eq!(lab.server.trees.usage.total(Kind::Trees), 0);
}

/// Answers of RPC that nobody reads are kept: in all pipes of a user together no more than so much.
#[test]
fn unread_answers_of_pipes_are_bound() {
    let lab = Lab::with(|s| s.limits.usage.pipe_bytes = bound(500, 4000, 10_000));
    let mut c = other(&lab);
    c.connect("IPC$");
    let pipes: Vec<_> = (0..20).map(|_| c.open(want("srvsvc").existing()).id).collect();
    let calls: Vec<u8> = (0..20).flat_map(|_| super::pipes::bind()).collect();
    let statuses: Vec<_> = pipes.iter().map(|p| c.status(&write(*p, 0, &calls))).collect();
    let good = statuses.iter().filter(|s| **s == NtStatus::SUCCESS).count();
    assert!((1..20).contains(&good), "{statuses:?}");
    assert_eq!(statuses[19], NtStatus::INSUFFICIENT_RESOURCES);
    // What is read makes room, and so does a pipe that is closed.
    pipes[..good].iter().for_each(|p| c.close(*p));
    assert_eq!(c.status(&write(pipes[19], 0, &super::pipes::bind())), NtStatus::SUCCESS);
    while c.try_read(pipes[19], 0, 4096).is_ok_and(|_| lab.server.trees.usage.total(Kind::PipeBytes) > 0) {}
    assert_eq!(lab.server.trees.usage.total(Kind::PipeBytes), 0);
}

/// A compound may have thousands of requests: most of them run elsewhere.
#[test]
fn the_rest_of_a_long_compound_leaves_the_reactor() {
    let lab = Lab::new();
    let mut c = rich(lab.client());
    let f = c.open(want("file"));
    c.write(f.id, 0, &[3; 100_000]);
    let mut message = Vec::new();
    for i in 0..1000 {
        message.extend_from_slice(&c.encode(&read(f.id, 0, 1000), i < 999).1);
    }
    let mut out = Vec::new();
    let verdict = c.connection.as_mut().unwrap().handle_message(&mut message, Time::read(), &mut out);
    let Verdict::Job(job) = verdict else { panic!("all of it ran where it came in") };
    job.run();
    c.pump();
    assert_eq!(c.inbox.len(), 1000);
    assert!(c.inbox.iter().all(|r| r.read_data().len() == 1000));
}

/// Previous versions are looked up in every snapshot that there is.
#[test]
fn previous_versions_are_looked_up_elsewhere() {
    let (_lab, volumes, mut c) = super::snapshots::on_volumes();
    let mut deep = String::new();
    for i in 0..20 {
        deep += &format!("{}directory{i}", if i == 0 { "" } else { "\\" });
        c.make_directory(&deep);
    }
    c.put(&format!("{deep}\\file"), b"content");
    for i in 0..200u64 {
        volumes[0].create_snapshot(arden_wire::FileTime(133_000_000_000_000_000 + i * 10_000_000), "").unwrap();
    }
    let f = c.open(want(&format!("{deep}\\file")).existing()).id;
    let (moved, took, _) = handle(&mut c, &ioctl(f, fsctl::SRV_ENUMERATE_SNAPSHOTS, &[], 16));
    assert!(moved && took < Duration::from_millis(50), "{took:?} where it came in");
    assert_eq!(le_u32(&c.fsctl(f, fsctl::SRV_ENUMERATE_SNAPSHOTS, &[], 16), 0), 200);
}

/// A call whose last fragment never comes is kept too.
#[test]
fn calls_that_are_never_complete_are_bound() {
    let lab = Lab::with(|s| s.limits.usage.pipe_bytes = bound(20_000, 40_000, 100_000));
    let mut c = other(&lab);
    c.connect("IPC$");
    let mut begun = vec![5, 0, 0, 1, 0x10, 0, 0, 0];
    [4000, 0].into_iter().for_each(|n| begun.put_u16(n));
    [7, 100_000, 0].into_iter().for_each(|n| begun.put_u32(n));
    begun.resize(4000, 0);
    let pipes: Vec<_> = (0..20).map(|_| c.open(want("srvsvc").existing()).id).collect();
    for p in &pipes {
        c.call(&write(*p, 0, &super::pipes::bind())).ok();
        c.try_read(*p, 0, 4096).unwrap();
    }
    let statuses = pipes.iter().map(|p| c.status(&write(*p, 0, &begun)));
    let taken = statuses.take_while(|s| *s == NtStatus::SUCCESS).count();
    assert!((3..10).contains(&taken), "{taken} pipes");
    pipes.iter().for_each(|p| c.close(*p));
    assert_eq!(lab.server.trees.usage.total(Kind::PipeBytes), 0);
}

/// A file has so many streams that they are listed in no time.
#[test]
fn streams_of_a_file_are_bound() {
    let (_lab, _volumes, mut on_volume) = super::snapshots::on_volumes();
    let lab = Lab::new();
    for c in [&mut on_volume, &mut lab.client()] {
        let f = c.open(want("file")).id;
        let one = |c: &mut Client, i: usize| {
            c.try_open(&want(&format!("file:{}{i:05}", "s".repeat(200)))).map(|s| c.close(s.id))
        };
        let made = (0..3000).take_while(|i| one(c, *i).is_ok()).count();
        let query = query_info(f, info_type::FILE, file_class::STREAM, 0, &[], 65536);
        let (moved, took, _) = handle(c, &query);
        println!("{made} streams: {took:?}, moved {moved}");
        assert!(made > 10);
        assert!(made < 3000 && (moved || took < Duration::from_millis(50)), "{made} streams, {took:?}");
    }
}

/// NetrShareCheck of a path that is not shared, as one PDU.
fn share_check() -> Vec<u8> {
    let mut stub = Vec::new();
    [0, 4, 0, 4].iter().for_each(|v| stub.put_u32(*v));
    "Q:\\\0".encode_utf16().for_each(|unit| stub.put_u16(unit));
    let mut pdu = vec![5, 0, 0, 3, 0x10, 0, 0, 0];
    pdu.put_u16(24 + stub.len() as u16);
    pdu.put_u16(0);
    pdu.put_u32(1);
    pdu.put_u32(stub.len() as u32);
    pdu.put_u16(0);
    pdu.put_u16(20);
    [pdu, stub].concat()
}

/// Calls that every user may make do not look at what all users hold, however many of them one write has.
#[test]
fn calls_about_shares_cost_the_same_however_many_are_connected() {
    let lab = Lab::new();
    let mut c = other(&lab);
    c.connect("IPC$");
    let pipe = want("srvsvc").existing().access(GENERIC_READ | GENERIC_WRITE);
    let mut cost = |calls: usize| {
        let f = c.open(pipe.clone()).id;
        c.write(f, 0, &super::pipes::bind());
        assert_eq!(c.read(f, 0, 4096)[2], 12);
        let before = cpu_time();
        c.write(f, 0, &share_check().repeat(calls));
        let took = cpu_time() - before;
        let answer = c.read(f, 0, 4096);
        assert_eq!((answer[2], le_u32(&answer, 28)), (2, 2311), "NERR_DeviceNotShared");
        c.close(f);
        took
    };
    let alone = (0..3).map(|_| cost(500)).min().unwrap();
    let mut many = lab.client();
    (0..4000).for_each(|_| drop(many.connect(SHARE)));
    let among_many = (0..3).map(|_| cost(500)).min().unwrap();
    assert!(among_many < alone * 3, "{among_many:?}, {alone:?} without them");
}
