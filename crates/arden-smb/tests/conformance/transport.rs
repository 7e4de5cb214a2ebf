//! The tokio shell: what it closes, and when. Sockets on the loopback, with time-outs made short.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use arden_smb::{
    Server,
    run::{Here, InFlight, RequestEngine},
    seam::{Answer, VerifiedRequest},
};

use crate::client::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Runs `test` against a server that listens.
fn with_server(change: impl FnOnce(&mut Setup), test: impl AsyncFnOnce(SocketAddr)) {
    let lab = Lab::with(change);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = lab.server.clone();
        let task = tokio::spawn(async move { server.serve(listener, std::future::pending()).await });
        test(address).await;
        task.abort();
    });
}

async fn open(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

/// Does the server close within a moment?
async fn closes(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(15), stream.read_to_end(&mut rest)).await;
    read.is_ok()
}

fn negotiate() -> Vec<u8> {
    let lab = Lab::new();
    let mut c = lab.connect();
    let (_, message) = c.encode(&Offer::up_to(Dialect::Smb311).req(1), false);
    [&(message.len() as u32).to_be_bytes()[..], &message].concat()
}

async fn answers(stream: &mut TcpStream) -> bool {
    answers_to(stream, &negotiate()).await
}

async fn answers_to(stream: &mut TcpStream, message: &[u8]) -> bool {
    stream.write_all(message).await.unwrap();
    let mut head = [0; 8];
    let read = tokio::time::timeout(Duration::from_secs(30), stream.read_exact(&mut head)).await;
    matches!(read, Ok(Ok(_))) && head[4..] == [0xFE, b'S', b'M', b'B']
}

#[test]
fn connections_max() {
    with_server(
        |s| s.limits.connections_max = 2,
        async |address| {
            let (mut one, mut two) = (open(address).await, open(address).await);
            assert!(answers(&mut one).await && answers(&mut two).await);
            // Nobody has logged on: the oldest makes room.
            let mut three = open(address).await;
            assert!(answers(&mut three).await);
            assert!(closes(&mut one).await);
            assert!(!closes_soon(&mut two).await);
        },
    );
}

/// An address that the machine gives up: connections there end, no further ones are taken, and others go on.
#[test]
fn an_address_that_is_given_up() {
    let lab = Lab::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("[::]:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), port);
        let server = lab.server.clone();
        let task = tokio::spawn(async move { server.serve(listener, std::future::pending()).await });
        let leaves = |local: SocketAddr| local.ip().to_canonical() == at("127.0.0.2").ip();
        let (mut there, mut elsewhere) = (open(at("127.0.0.2")).await, open(at("127.0.0.3")).await);
        assert!(answers(&mut there).await && answers(&mut elsewhere).await);
        assert_eq!(lab.server.disconnect_at(leaves), 1);
        assert!(closes(&mut there).await && !closes_soon(&mut elsewhere).await);
        assert_eq!(lab.server.disconnect_at(leaves), 0);
        let left = at("127.0.0.2").ip();
        lab.server.admit_at(Box::new(move |local| local.ip().to_canonical() != left));
        assert!(closes(&mut open(at("127.0.0.2")).await).await);
        assert!(answers(&mut open(at("127.0.0.3")).await).await);
        task.abort();
    });
}

async fn closes_soon(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    tokio::time::timeout(Duration::from_millis(200), stream.read_to_end(&mut rest)).await.is_ok()
}

/// Many connections that say nothing, or half of something, keep nobody out: not who is logged on, and not who comes.
#[test]
fn silent_connections_make_room_for_others() {
    let lab = Lab::with(|s| {
        (s.limits.connections_max, s.limits.connections_waiting_per_address_max) = (12, 6);
        // They end because of others, and not by themselves.
        s.limits.handshake_timeout = Duration::from_secs(600);
    });
    let (runtime, address) = lab.listen();
    let on = || {
        let mut c = lab.dial(address);
        c.begin(Dialect::Smb311);
        c
    };
    let mut clients: Vec<Client> = (0..3).map(|_| on()).collect();
    let mut silent: Vec<std::net::TcpStream> = Vec::new();
    for i in 0..60 {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        if i % 2 == 0 {
            let _ = std::io::Write::write_all(&mut stream, &[0, 0, 1, 0, 0xFE]);
        }
        silent.push(stream);
    }
    let begun = std::time::Instant::now();
    while lab.server.peers().len() > 3 + 6 {
        assert!(begun.elapsed() < Duration::from_secs(30), "{} connections", lab.server.peers().len());
        std::thread::sleep(Duration::from_millis(20));
    }
    clients.push(on());
    for c in &mut clients {
        c.call(&echo()).ok();
    }
    runtime.shutdown_background();
}

#[test]
fn handshake_timeout() {
    with_server(
        |s| s.limits.handshake_timeout = Duration::from_secs(2),
        async |address| {
            let message = negotiate();
            let (mut silent, mut half) = (open(address).await, open(address).await);
            assert!(answers_to(&mut half, &message).await);
            assert!(closes(&mut silent).await);
            assert!(closes(&mut half).await, "a negotiation is no logon");
        },
    );
}

/// The time counts for everything before the first session: a message that is never complete does not stop it.
#[test]
fn a_client_that_always_sends_half_a_message_has_no_more_time() {
    with_server(
        |s| s.limits.handshake_timeout = Duration::from_millis(400),
        async |address| {
            let mut half = open(address).await;
            let message = negotiate();
            let begun = std::time::Instant::now();
            let mut rest = Vec::new();
            // Always the end of one message and the beginning of the next.
            for byte in [&message[..], &[0, 0, 4, 0], &[0xFE; 1020]].concat() {
                if half.write_all(&[byte]).await.is_err() || begun.elapsed() > Duration::from_secs(4) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            let _ = tokio::time::timeout(Duration::from_secs(1), half.read_to_end(&mut rest)).await;
            assert!(begun.elapsed() < Duration::from_secs(3), "still there after {:?}", begun.elapsed());
        },
    );
}

#[test]
fn lengths_out_of_bounds() {
    with_server(
        |_| {},
        async |address| {
            for head in [[0xFF; 4], [0, 0xFF, 0xFF, 0xFF], [0x81, 0, 0, 4], [0, 0, 0, 0], [0, 0, 0, 3], [0, 2, 0, 0]] {
                let mut stream = open(address).await;
                stream.write_all(&head).await.unwrap();
                assert!(closes(&mut stream).await, "{head:?}");
            }
        },
    );
}

#[test]
fn a_message_in_pieces_is_a_message() {
    with_server(
        |_| {},
        async |address| {
            let mut stream = open(address).await;
            for byte in negotiate() {
                stream.write_all(&[byte]).await.unwrap();
                stream.flush().await.unwrap();
            }
            let mut head = [0; 8];
            stream.read_exact(&mut head).await.unwrap();
            assert_eq!(head[4..], [0xFE, b'S', b'M', b'B']);
        },
    );
}

#[test]
fn rubbish_ends_its_connection_only() {
    with_server(
        |_| {},
        async |address| {
            let mut good = open(address).await;
            for seed in 0..20u8 {
                let mut bad = open(address).await;
                let junk: Vec<u8> = (0..200u8).map(|i| i.wrapping_mul(seed).wrapping_add(seed)).collect();
                bad.write_all(&[0, 0, 0, 200]).await.unwrap();
                bad.write_all(&junk).await.unwrap();
                assert!(closes(&mut bad).await);
            }
            assert!(answers(&mut good).await);
        },
    );
}

/// [MS-SMB2] 3.2.7.1: a client of a persistent handle repeats what was not answered on another connection, but an error is
/// an answer.
#[test]
fn a_server_that_stops_tells_nobody_that_its_session_is_gone() {
    let lab = Lab::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let server = lab.server.clone();
    let serving = runtime.spawn(async move { server.serve(listener, async { drop(stopped.await) }).await });
    let all_done: Arc<Vec<AtomicU32>> = Arc::new((0..6).map(|_| AtomicU32::new(0)).collect());
    let clients: Vec<_> = (0..6)
        .map(|n| {
            let mut c = lab.dial(address);
            c.begin(Dialect::Smb311);
            c.connect(CA);
            let all_done = all_done.clone();
            let f = c.open(want(&format!("file {n}")).persistent(n, 0));
            let work = move || {
                for done in 0u32.. {
                    let unlock = lock_flags::UNLOCK;
                    let bits =
                        if done % 2 == 0 { lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY } else { unlock };
                    let id = c.send(&lock(f.id, (1 << 4) | (done % 16), &[(0, 10, bits)]));
                    match c.poll(id) {
                        Some(reply) => reply.ok(),
                        None => return c.closed,
                    };
                    all_done[n as usize].store(done, Ordering::Relaxed);
                }
                unreachable!()
            };
            std::thread::spawn(work)
        })
        .collect();
    let begun = std::time::Instant::now();
    while !all_done.iter().all(|done| done.load(Ordering::Relaxed) > 10) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{all_done:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    stop.send(()).unwrap();
    runtime.block_on(serving).unwrap().unwrap();
    lab.server.stop(std::time::Instant::now());
    runtime.shutdown_background();
    for client in clients {
        assert_eq!(client.join().expect("no answer was an error"), Some("the socket ended"));
    }
}

/// Users share a connection: what one mistypes must not hold up the others.
#[test]
fn a_delayed_answer_does_not_hold_up_the_connection() {
    let lab = Lab::new();
    let (runtime, address) = lab.listen();
    let mut c = lab.dial(address);
    c.begin(Dialect::Smb311);
    let session = c.session.clone();
    let wrong = |c: &mut Client| {
        c.session = None;
        assert!(c.try_logon(&logon("nobody").password("wrong")).is_err());
        c.session.clone_from(&session);
    };
    (0..3).for_each(|_| wrong(&mut c));
    // The next wrong answer comes after half a second.
    let mut initiator = arden_auth::initiator::Initiator::new("nobody", "LAB", "wrong");
    let reply = c.call(&session_setup(0, 1, 0, &initiator.first()).session(0));
    let challenge = reply.slice(reply.u16(4).into(), reply.u16(6).into()).to_vec();
    let token = initiator.second(&challenge, [7; 24]).unwrap();
    let mut req = session_setup(0, 1, 0, &token).session(reply.header.session_id);
    req.sign = Some(false);
    let (_, message) = c.encode(&req, false);
    let framed = [&(message.len() as u32).to_be_bytes()[..], &message].concat();
    std::io::Write::write_all(c.socket.as_mut().unwrap(), &framed).unwrap();
    c.call(&echo()).ok();
    let late =
        |c: &Client| c.inbox.iter().find(|r| r.header.command == Command::SessionSetup as u16).map(Reply::status);
    assert_eq!(late(&c), None, "the answer to what came later comes first");
    let begun = std::time::Instant::now();
    while late(&c).is_none() && begun.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(50));
        // Takes the next answer, whichever that is.
        c.send(&echo());
    }
    assert_eq!(late(&c), Some(NtStatus::LOGON_FAILURE));
    runtime.shutdown_background();
}

/// An engine with a fault that a FLUSH meets.
struct Faulty(Arc<dyn RequestEngine>);

impl RequestEngine for Faulty {
    fn run(&self, request: &VerifiedRequest<'_>, here: &mut Here<'_>, out: &mut Vec<u8>) -> Answer {
        assert_ne!(request.header.command, Command::Flush as u16, "the fault");
        self.0.run(request, here, out)
    }
    fn end(&self, header: &arden_wire::smb2::Header, in_flight: &mut InFlight) {
        self.0.end(header, in_flight);
    }
}

fn soon(mut is_so: impl FnMut() -> bool) -> bool {
    (0..1000).any(|_| {
        is_so() || {
            std::thread::sleep(Duration::from_millis(10));
            false
        }
    })
}

#[test]
fn a_message_that_panics_leaves_nothing_of_its_connection() {
    if has_two_nodes() {
        // The opens are another node's.
        return;
    }
    let faulty = |config, table, time| Server::with_engine(config, table, time, |engine| Arc::new(Faulty(engine)));
    let lab = Lab::with(|s| s.server = faulty);
    let (_runtime, address) = lab.listen();
    let mut c = lab.dial_as(address, USER);
    let file = c.open(want("file")).id;
    assert_eq!((lab.server.sessions().len(), lab.server.trees.opens().len()), (1, 1));
    c.send(&flush(file));
    assert!(c.closed.is_some());
    assert!(soon(|| lab.server.sessions().is_empty() && lab.server.trees.opens().is_empty()));
    assert!(soon(|| lab.server.peers().is_empty()));
}

/// Nothing is open on it that would take time to close.
#[test]
fn a_connection_without_a_session_ends_without_a_thread() {
    if has_two_nodes() {
        return;
    }
    let lab = Lab::new();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).max_blocking_threads(1).enable_all().build().unwrap();
    let address = lab.listen_on(&runtime);
    let (go_on, gone) = std::sync::mpsc::channel::<()>();
    let _taken = runtime.spawn_blocking(move || gone.recv());
    let mut c = lab.dial(address);
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    assert_eq!(lab.server.peers().len(), 1);
    c.socket = None;
    let ended = soon(|| lab.server.peers().is_empty());
    drop(go_on);
    assert!(ended);
}
