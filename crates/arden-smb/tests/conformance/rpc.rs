//! RPC over TCP: it has the admission, the logons and the throttle of SMB. Sockets on the loopback, with time-outs made short.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use arden_auth::{Attempt, Attempter, initiator::Initiator};
use arden_rpc::tcp::{Called, Caller, Reply, TcpInterface, TcpService};
use arden_wire::rpc::{self, Bind, ContextElement, Header, Request, Syntax, Trailer, auth_level, auth_type};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::client::*;

const SYNTAX: Syntax = Syntax { uuid: [7; 16], version: 1 };
const TRAILER: Trailer = Trailer { auth_type: auth_type::NTLM, level: auth_level::INTEGRITY, pad: 0, context: 0 };

/// Says who calls.
struct WhoAmI;

impl TcpInterface for WhoAmI {
    fn syntax(&self) -> Syntax {
        SYNTAX
    }
    fn needs_logon(&self) -> bool {
        true
    }
    fn call(&self, caller: &Caller, _: u16, _: &[u8], _: Reply, _: Instant) -> Called {
        Called::Done(Ok(caller.user.as_ref().map_or_else(Vec::new, |u| u.user_name.clone().into_bytes())))
    }
    fn cancel(&self, _: u64) {}
    fn group_ended(&self, _: u32) {}
}

fn with_server(change: impl FnOnce(&mut Setup), test: impl AsyncFnOnce(&Lab, SocketAddr)) {
    let lab = Lab::with(change);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (server, service) = (lab.server.clone(), TcpService::new(vec![Arc::new(WhoAmI)]));
        let task =
            tokio::spawn(async move { arden_smb::serve_rpc(server, listener, service, std::future::pending()).await });
        test(&lab, address).await;
        task.abort();
    });
}

async fn receive(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut pdu = vec![0; 16];
    let read = async {
        stream.read_exact(&mut pdu).await.ok()?;
        let length = usize::from(Header::parse(&pdu).unwrap().frag_length);
        pdu.resize(length, 0);
        stream.read_exact(&mut pdu[16..]).await.ok()
    };
    tokio::time::timeout(Duration::from_secs(10), read).await.expect("neither an answer nor an end")?;
    Some(pdu)
}

/// Whether the server ends the connection.
async fn closes(stream: &mut TcpStream, within: Duration) -> bool {
    let mut rest = Vec::new();
    tokio::time::timeout(within, stream.read_to_end(&mut rest)).await.is_ok()
}

fn bind(initiator: &mut Initiator) -> Vec<u8> {
    initiator.spnego = false;
    let contexts = vec![ContextElement { id: 0, interface: SYNTAX, transfer: vec![rpc::NDR32] }];
    let mut pdu = Bind { max_xmit: 5840, max_recv: 5840, group: 0, contexts }.encode(rpc::BIND, 1);
    TRAILER.append_token(&mut pdu, &initiator.first());
    pdu
}

/// Logs on and calls. The last answer.
async fn call(stream: &mut TcpStream, user: &str, password: &str) -> Option<Vec<u8>> {
    let mut initiator = Initiator::new(user, "LAB", password);
    stream.write_all(&bind(&mut initiator)).await.ok()?;
    let ack = receive(stream).await?;
    let (_, _, at) = Trailer::split(&Header::parse(&ack).unwrap(), &ack).unwrap();
    let token = initiator.second(&ack[at + rpc::TRAILER_BYTES..], [3; 24]).unwrap();
    let mut last = rpc::encode_auth3(2);
    TRAILER.append_token(&mut last, &token);
    let mut pdu = Request { context: 0, opnum: 0, stub: &[0; 16] }.encode(3, 3);
    let token = TRAILER.append(&mut pdu, 24, 16, 16);
    let signature = initiator.message_security().unwrap().sign(&pdu[24..token - rpc::TRAILER_BYTES]);
    pdu[token..].copy_from_slice(&signature);
    stream.write_all(&[last, pdu].concat()).await.ok()?;
    receive(stream).await
}

fn says(answer: &Option<Vec<u8>>, name: &str) -> bool {
    answer.as_ref().is_some_and(|a| a[2] == rpc::RESPONSE && a[24..].starts_with(name.as_bytes()))
}

async fn open(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

#[test]
fn a_user_of_smb_is_one_of_rpc() {
    with_server(
        |_| {},
        async |lab, address| {
            let mut stream = open(address).await;
            assert!(says(&call(&mut stream, USER, PASSWORD).await, USER));
            assert_eq!(lab.server.trees.metrics.logons.load(std::sync::atomic::Ordering::Relaxed), 1);
        },
    );
}

#[test]
fn wrong_passwords_are_counted_and_delayed_with_those_of_smb() {
    with_server(
        |_| {},
        async |lab, address| {
            for _ in 0..3 {
                assert!(!says(&call(&mut open(address).await, USER, "wrong").await, USER));
            }
            let began = Instant::now();
            assert!(!says(&call(&mut open(address).await, USER, "wrong").await, USER));
            assert!(began.elapsed() >= Duration::from_millis(500), "the fourth is delayed");
            let who = Attempter { account: USER, address: address.ip(), client_guid: 0, has_session: false };
            let now = lab.server.trees.time().now - lab.server.trees.started;
            let next = lab.server.throttle.lock().attempt(&who, now, false);
            assert_eq!(next, Attempt::Wrong { delay: Duration::from_secs(1), failures: 5 });
            assert!(says(&call(&mut open(address).await, USER, PASSWORD).await, USER), "a right one is not");
        },
    );
}

#[test]
fn a_bind_that_does_not_finish_ends() {
    with_server(
        |s| s.limits.handshake_timeout = Duration::from_secs(3),
        async |_, address| {
            let pdu = bind(&mut Initiator::new(USER, "LAB", PASSWORD));
            let (mut silent, mut half, mut asks) = (open(address).await, open(address).await, open(address).await);
            half.write_all(&pdu[..20]).await.unwrap();
            asks.write_all(&pdu).await.unwrap();
            receive(&mut asks).await.unwrap();
            let mut user = open(address).await;
            assert!(says(&call(&mut user, USER, PASSWORD).await, USER));
            for stream in [&mut silent, &mut half, &mut asks] {
                assert!(closes(stream, Duration::from_secs(30)).await);
            }
            assert!(!closes(&mut user, Duration::from_millis(500)).await, "who is logged on stays");
            // Half a call has the same time.
            user.write_all(&Request { context: 0, opnum: 0, stub: &[0; 16] }.encode(3, 3)[..20]).await.unwrap();
            assert!(closes(&mut user, Duration::from_secs(30)).await);
        },
    );
}

#[test]
fn connections_and_logons_are_bounded() {
    with_server(
        |s| {
            (s.limits.connections_max, s.limits.rpc_logons_per_user_max) = (4, 2);
            s.limits.connections_reserved = 0;
            // The oldest ends because of others, and not by itself.
            s.limits.handshake_timeout = Duration::from_secs(600);
        },
        async |_, address| {
            let mut user = open(address).await;
            assert!(says(&call(&mut user, USER, PASSWORD).await, USER));
            let mut silent = open(address).await;
            for _ in 0..50 {
                drop(open(address).await);
            }
            let others = [open(address).await, open(address).await, open(address).await];
            assert!(closes(&mut silent, Duration::from_secs(30)).await, "the oldest without a logon makes room");
            drop(others);
            assert!(!closes(&mut user, Duration::from_millis(100)).await);
            let mut second = open(address).await;
            assert!(says(&call(&mut second, USER, PASSWORD).await, USER));
            let mut third = open(address).await;
            assert!(!says(&call(&mut third, USER, PASSWORD).await, USER), "rpc_logons_per_user_max");
            drop(second);
            let began = Instant::now();
            while !says(&call(&mut open(address).await, USER, PASSWORD).await, USER) {
                assert!(began.elapsed() < Duration::from_secs(30), "one that ended is counted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        },
    );
}

#[test]
fn a_user_who_is_disabled_is_cut_off() {
    with_server(
        |_| {},
        async |lab, address| {
            let mut stream = open(address).await;
            assert!(says(&call(&mut stream, USER, PASSWORD).await, USER));
            lab.users.remove_user(USER);
            assert!(closes(&mut stream, Duration::from_secs(30)).await);
        },
    );
}
