//! Requests that wait, of each kind: how they end when they are woken, cancelled, or have lost their session, their tree
//! connect or what their share allowed meanwhile. What a request did before it waited is not done again.

use std::{net::SocketAddr, sync::Arc};

use arden_smb::{
    conn::Connection,
    sessions::{
        Peer,
        work::{BlockingWork, Parked, Ran, Without},
    },
    time::Time,
};
use arden_wire::smb2::flags;

use crate::{client::*, quotas};

/// What a request waits for, and who ends that.
struct Waiting {
    lab: Lab,
    waiter: Client,
    other: Client,
    /// Of the request, and of its interim response.
    id: u64,
    async_id: u64,
    /// The share's name; None: not one that an administrator changes.
    share: Option<&'static str>,
    wake: Wake,
    /// Whether what was asked for has happened, as the other client sees it. None: nothing happens but an answer.
    happened: Option<Happened>,
}

type Wake = Box<dyn Fn(&mut Client, &mut Client)>;
type Happened = fn(&Lab, &mut Client) -> bool;

impl Waiting {
    fn new(
        (lab, mut waiter, other): (Lab, Client, Client),
        share: Option<&'static str>,
        request: &Req,
        happened: Option<Happened>,
        wake: impl Fn(&mut Client, &mut Client) + 'static,
    ) -> Waiting {
        let id = waiter.send(request);
        let async_id = waiter.interim(id);
        assert!(waiter.waits(id));
        Waiting { lab, waiter, other, id, async_id, share, wake: Box::new(wake), happened }
    }

    fn wake(&mut self) {
        (self.wake)(&mut self.waiter, &mut self.other);
    }

    fn has_happened(&mut self) -> Option<bool> {
        self.happened.map(|happened| happened(&self.lab, &mut self.other))
    }
}

fn two() -> (Lab, Client, Client) {
    let lab = Lab::new();
    let (waiter, other) = (lab.client(), lab.client());
    (lab, waiter, other)
}

fn of_create() -> Waiting {
    let (lab, waiter, mut other) = two();
    let held = other.open(want("file").oplock(oplock::BATCH)).id;
    let request = want("file").existing().share(0).req();
    let happened: Happened = |_, other| other.try_open(&want("file")).is_err_and(|e| e == NtStatus::SHARING_VIOLATION);
    Waiting::new((lab, waiter, other), Some(SHARE), &request, Some(happened), move |_, other| {
        other.try_close(held);
    })
}

/// Of a request that others' handle leases hold up, on a handle of the waiting client.
fn of_handle_lease(open: Want, happened: Happened, request: impl Fn(FileId) -> Req) -> Waiting {
    let (lab, mut waiter, mut other) = two();
    waiter.put("file", b"x");
    let file = waiter.open(open).id;
    other.open(want("file").existing().lease(7, "RH"));
    Waiting::new((lab, waiter, other), Some(SHARE), &request(file), Some(happened), |_, other| {
        other.status(&lease_ack(7, "R"));
    })
}

fn set(file: FileId, class: u8, data: &[u8]) -> Req {
    set_info(file, info_type::FILE, class, 0, data)
}

fn of_rename() -> Waiting {
    let request = |f| set(f, file_class::RENAME, &name_change("renamed", false));
    of_handle_lease(want("file").existing(), |lab, _| lab.host("renamed").exists(), request)
}

fn of_link() -> Waiting {
    let request = |f| set(f, file_class::LINK, &name_change("linked", false));
    of_handle_lease(want("file").existing(), |lab, _| lab.host("linked").exists(), request)
}

fn is_to_be_deleted(_: &Lab, other: &mut Client) -> bool {
    other.try_open(&want("file").existing()).is_err_and(|e| e == NtStatus::DELETE_PENDING)
}

fn of_disposition() -> Waiting {
    of_handle_lease(want("file").existing(), is_to_be_deleted, |f| set(f, file_class::DISPOSITION, &[1]))
}

fn of_close() -> Waiting {
    of_handle_lease(want("file").existing().delete_on_close(), is_to_be_deleted, close)
}

fn of_lock() -> Waiting {
    let (lab, mut waiter, mut other) = two();
    let held = other.open(want("file")).id;
    other.call(&lock(held, 0, &[(0, 10, lock_flags::EXCLUSIVE)])).ok();
    let file = waiter.open(want("file")).id;
    let request = lock(file, 1 << 4 | 1, &[(5, 10, lock_flags::EXCLUSIVE)]);
    let happened: Happened = |_, other| {
        let Ok(open) = other.try_open(&want("file")) else { return false };
        let now = lock_flags::SHARED | lock_flags::FAIL_IMMEDIATELY;
        other.status(&lock(open.id, 0, &[(12, 1, now)])) == NtStatus::LOCK_NOT_GRANTED
    };
    Waiting::new((lab, waiter, other), Some(SHARE), &request, Some(happened), move |_, other| {
        other.status(&lock(held, 0, &[(0, 10, lock_flags::UNLOCK)]));
    })
}

fn of_notify() -> Waiting {
    let (lab, mut waiter, other) = two();
    let directory = waiter.open(want("dir").directory()).id;
    let request = notify(directory, 0, 1, 4096);
    Waiting::new((lab, waiter, other), Some(SHARE), &request, None, |_, other| {
        drop(other.try_open(&want("dir\\new")));
    })
}

fn of_pipe() -> Waiting {
    let (lab, mut waiter, other) = two();
    waiter.connect("IPC$");
    let pipe = waiter.open(want("srvsvc").existing().options(OPT_NON_DIRECTORY_FILE)).id;
    Waiting::new((lab, waiter, other), None, &read(pipe, 0, 4096), None, move |waiter, _| {
        waiter.send(&write(pipe, 0, &crate::pipes::bind()));
    })
}

fn of_journal() -> Waiting {
    let (lab, _) = quotas::lab();
    let (mut waiter, other) = (quotas::client(&lab, USER), quotas::client(&lab, USER));
    let root = waiter.open(want("").directory()).id;
    waiter.fsctl(root, fsctl::CREATE_USN_JOURNAL, &[0; 16], 0);
    let info = waiter.fsctl(root, fsctl::QUERY_USN_JOURNAL, &[], 80);
    let input = crate::usn::waiting(le_u64(&info, 16), u32::MAX, le_u64(&info, 0), 1, 0);
    let request = ioctl(root, fsctl::READ_USN_JOURNAL, &input, 4096);
    Waiting::new((lab, waiter, other), Some("volume"), &request, None, |_, other| {
        drop(other.try_open(&want("new")));
    })
}

type Begin = fn() -> Waiting;

/// Each kind of wait, and its answer when its handle or tree connect is gone, and when the share no longer allows it.
const KINDS: [(&str, Begin, NtStatus, NtStatus); 9] = [
    ("create", of_create, NtStatus::NETWORK_NAME_DELETED, NtStatus::ACCESS_DENIED),
    ("rename", of_rename, NtStatus::NETWORK_NAME_DELETED, NtStatus::FILE_CLOSED),
    ("link", of_link, NtStatus::NETWORK_NAME_DELETED, NtStatus::FILE_CLOSED),
    ("disposition", of_disposition, NtStatus::NETWORK_NAME_DELETED, NtStatus::FILE_CLOSED),
    ("close", of_close, NtStatus::NETWORK_NAME_DELETED, NtStatus::FILE_CLOSED),
    ("lock", of_lock, NtStatus::RANGE_NOT_LOCKED, NtStatus::RANGE_NOT_LOCKED),
    ("notify", of_notify, NtStatus::NOTIFY_CLEANUP, NtStatus::NOTIFY_CLEANUP),
    ("pipe", of_pipe, NtStatus::NETWORK_NAME_DELETED, NtStatus::NETWORK_NAME_DELETED),
    ("journal", of_journal, NtStatus::CANCELLED, NtStatus::CANCELLED),
];

#[test]
fn a_wait_that_is_over_is_answered_once_and_what_was_asked_for_has_happened() {
    for (kind, begin, ..) in KINDS {
        let mut w = begin();
        w.wake();
        assert_eq!(w.waiter.receive(w.id).status(), NtStatus::SUCCESS, "{kind}");
        assert_ne!(w.has_happened(), Some(false), "{kind}");
        assert!(w.waiter.poll(w.id).is_none(), "{kind}");
    }
}

#[test]
fn a_cancelled_request_does_nothing_when_its_wait_would_be_over() {
    for (kind, begin, ..) in KINDS {
        let mut w = begin();
        w.waiter.cancel(w.async_id);
        assert_eq!(w.waiter.receive(w.id).status(), NtStatus::CANCELLED, "{kind}");
        w.wake();
        assert!(w.waiter.poll(w.id).is_none(), "{kind}");
        assert_ne!(w.has_happened(), Some(true), "{kind}");
    }
}

/// The request ends with `expected`, now or when its wait is over, and does nothing.
fn ends(kind: &str, mut w: Waiting, expected: NtStatus, end: impl FnOnce(&mut Waiting)) {
    end(&mut w);
    let answer = w.waiter.poll(w.id).or_else(|| {
        w.wake();
        w.waiter.poll(w.id)
    });
    assert_eq!(answer.map(|r| r.status()), Some(expected), "{kind}");
    w.wake();
    assert!(w.waiter.poll(w.id).is_none(), "{kind}");
    // A handle that is gone with its session is closed all the same.
    if kind != "close" {
        assert_ne!(w.has_happened(), Some(true), "{kind}");
    }
}

#[test]
fn a_request_whose_session_ends_while_it_waits() {
    for (kind, begin, gone, _) in KINDS {
        ends(kind, begin(), gone, |w| {
            assert_eq!(w.waiter.status(&Req::empty(Command::Logoff)), NtStatus::SUCCESS);
        });
        ends(kind, begin(), gone, |w| assert!(w.lab.front().close_session(w.waiter.session_id())));
    }
}

#[test]
fn a_request_whose_tree_connect_ends_while_it_waits() {
    for (kind, begin, gone, _) in KINDS {
        ends(kind, begin(), gone, |w| {
            assert_eq!(w.waiter.status(&Req::empty(Command::TreeDisconnect)), NtStatus::SUCCESS);
        });
    }
}

#[test]
fn a_request_whose_share_allows_less_or_is_gone_when_it_has_waited() {
    for (kind, begin, gone, refused) in KINDS {
        let Some(name) = begin().share else { continue };
        ends(kind, begin(), refused, |w| change_share(&w.lab, name, |s| s.read_only = true));
        ends(kind, begin(), gone, |w| w.lab.server.trees.set_shares(Vec::new()));
    }
}

/// A connection that ends has nobody to tell; what the others wait for is not held up by it.
#[test]
fn a_request_whose_connection_ends_while_it_waits_is_forgotten() {
    for (kind, begin, ..) in KINDS {
        let mut w = begin();
        w.waiter.disconnect();
        w.wake();
        w.other.disconnect();
        assert_eq!(w.lab.opens_left(0), 0, "{kind}");
    }
}

#[test]
fn a_create_in_the_middle_of_a_compound_waits_and_the_rest_follows() {
    let compound = [
        query_info(FileId::RELATED, info_type::FILE, file_class::STANDARD, 0, &[], 64).related(),
        close(FileId::RELATED).related(),
    ];
    for cancels in [false, true] {
        let (lab, mut waiter, mut other) = two();
        let held = other.open(want("file").oplock(oplock::BATCH)).id;
        let first = want("other").req();
        let mut requests = vec![first, want("file").existing().req()];
        requests.extend(compound.clone());
        let ids = waiter.send_all(&requests);
        let async_id = waiter.interim(ids[1]);
        waiter.receive(ids[0]).ok();
        if cancels {
            waiter.cancel(async_id);
        } else {
            other.close(held);
        }
        let expected = if cancels { NtStatus::CANCELLED } else { NtStatus::SUCCESS };
        for id in &ids[1..] {
            assert_eq!(waiter.receive(*id).status(), expected);
        }
        // That of the first request, and that of the other client which nobody asked to end.
        assert_eq!(lab.server.trees.opens().len(), 1 + usize::from(cancels));
    }
}

/// AppInstanceId, [MS-SMB2] 3.3.5.9.13: the create closes the other node's open before it waits for a third client, and no
/// open that the other node has by the time at which it goes on.
#[test]
fn a_create_that_waits_fails_over_once() {
    const APP: u128 = 0xA99_0002;
    let lab = Lab::new();
    let (mut one, mut two, mut three) = (lab.client(), lab.client(), lab.client());
    let of_app = |access| want("file").existing().access(access).app_instance(APP);
    three.put("file", b"content");
    let before = one.open(of_app(FILE_GENERIC_READ)).id;
    let held = three.open(want("file").existing().access(FILE_GENERIC_READ).share(1).lease(3, "RH")).id;
    let writing = of_app(FILE_GENERIC_READ | FILE_GENERIC_WRITE);
    let [first, second] = [&mut one, &mut two].map(|c| c.starts(writing.clone()));
    let closed_by_fail_over = usize::from(one.try_read(before, 0, 7) == Err(NtStatus::FILE_CLOSED));
    three.close(held);
    let meanwhile = one.opened(first).id;
    two.opened(second);
    let closed_later = usize::from(one.try_read(meanwhile, 0, 7).is_err());
    assert_eq!((closed_by_fail_over, closed_later), (1, 0));
}

/// A request that waits, and goes on at its connection with this answer.
struct GoesOn(Arc<Peer>);

impl Parked for GoesOn {
    fn peer(&self) -> &Arc<Peer> {
        &self.0
    }
    fn without(&self, _peer_id: u64) -> Without {
        Without::Forgotten
    }
    fn run(self: Box<Self>, out: &mut Vec<u8>, _may_block: bool) -> Ran {
        out.extend_from_slice(b" final");
        self.0.send(b" later".to_vec());
        Ran::default()
    }
    fn run_beside(self: Box<Self>, out: &mut Vec<u8>) -> Ran {
        self.run(out, false)
    }
    fn abort(self: Box<Self>, _status: NtStatus, out: &mut Vec<u8>) -> Ran {
        self.run(out, false)
    }
    fn detach(self: Box<Self>) -> Box<dyn BlockingWork> {
        unreachable!("the connection is there")
    }
}

/// [MS-SMB2] 3.3.4.2: a client takes a response for a forgery that comes after the last one of its request. So the interim response
/// that another thread has left goes before the answer of the request, which a CANCEL may have let go on at once.
#[test]
fn an_interim_response_goes_before_the_answer() {
    let lab = Lab::new();
    let address = SocketAddr::from(([127, 0, 0, 1], 445));
    let mut connection = Connection::new(&lab.server, address, address, Box::new(|| {}));
    let peer = connection.peer().clone();
    peer.send(b" interim".to_vec());
    peer.resume(Box::new(GoesOn(peer.clone())));
    assert_eq!(String::from_utf8(drained(&mut connection, b"before".to_vec())).unwrap(), "before interim final later");
}

/// The same where the CANCEL finds the request waiting, and is what answers it.
#[test]
fn an_interim_response_goes_before_the_answer_of_a_cancel() {
    let lab = Lab::new();
    let mut c = lab.client();
    let dir = c.open(want("dir").directory()).id;
    let id = c.send(&notify(dir, 0, 1, 1000));
    let mut cancel = Req::empty(Command::Cancel).id(0);
    (cancel.async_id, cancel.flags) = (Some(c.interim(id)), flags::ASYNC_COMMAND);
    let (_, mut cancel) = c.encode(&cancel, false);
    let connection = c.connection.as_mut().unwrap();
    connection.peer().send(b"interim".to_vec());
    let mut sent = Vec::new();
    connection.handle_message(&mut cancel, Time::read(), &mut sent);
    let sent = drained(connection, sent);
    assert!(sent.starts_with(b"interim") && sent.len() > 4 + 64, "{sent:?}");
}

/// `sent`, and what the connection sends then.
fn drained(connection: &mut Connection, mut sent: Vec<u8>) -> Vec<u8> {
    let (mut frames, mut jobs) = (Vec::new(), Vec::new());
    assert!(connection.drain_mailbox(&mut sent, usize::MAX, &mut frames, &mut jobs));
    frames.iter().for_each(|unsent| sent.extend_from_slice(&unsent.frame));
    sent
}
