//! What one logged-on user can make the server keep in memory for messages and answers, over many connections.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::{MESSAGE_BYTES, alone, client::*, resident_bytes, resident_bytes_with_freed};

/// What a user's messages and buffers may take, with what the measurement adds.
const HELD_MAX: usize = 128 << 20;

/// A server that listens.
pub struct Listening {
    pub lab: Lab,
    pub address: SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Listening {
    pub fn new(change: impl FnOnce(&mut Setup)) -> Listening {
        // Signatures take long in a build with checks.
        let lab = Lab::with(|s| {
            s.signing_required = false;
            change(s);
        });
        let (runtime, address) = lab.listen();
        Listening { lab, address, runtime: Some(runtime) }
    }

    pub fn client(&self, user: &str) -> Client {
        let mut c = self.lab.dial_as(self.address, user);
        c.sign = false;
        c
    }

    pub fn clients(&self, user: &str, count: usize) -> Vec<Client> {
        (0..count).map(|_| self.client(user)).collect()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A request as it goes over the wire.
fn framed(c: &mut Client, req: &Req) -> Vec<u8> {
    let (_, message) = c.encode(req, false);
    [&(message.len() as u32).to_be_bytes()[..], &message].concat()
}

/// The most that the process has more than `before` within `time`.
fn most_held(before: usize, time: Duration) -> usize {
    most_held_of(resident_bytes, before, time)
}

fn most_held_of(resident_bytes: fn() -> usize, before: usize, time: Duration) -> usize {
    let mut most = 0;
    for _ in 0..time.as_millis() / 10 {
        std::thread::sleep(Duration::from_millis(10));
        most = most.max(resident_bytes());
    }
    let held = most.saturating_sub(before);
    println!("{} MiB held", held >> 20);
    held
}

/// Reads one frame.
fn frame(socket: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut head = [0; 4];
    socket.read_exact(&mut head)?;
    let mut frame = vec![0; u32::from_be_bytes(head) as usize];
    socket.read_exact(&mut frame)?;
    Ok(frame)
}

/// Messages that come only half: a user's connections wait for each other, and all of them are served once the messages come.
#[test]
fn half_sent_messages() {
    let _alone = alone();
    let server = Listening::new(|_| {});
    let mut quiet = server.client(USER);
    let mine = quiet.open(want("mine")).id;
    let nowhere = FileId { persistent: 1, volatile: 1 };
    let data = vec![7; MESSAGE_BYTES];
    let mut clients = server.clients(OTHER, 40);
    let message = framed(&mut clients[0], &write(nowhere, 0, &data));
    let (half, rest) = message.split_at(message.len() - 1000);
    // The session and the message id are each connection's own; the data are the same.
    let heads: Vec<Vec<u8>> = clients.iter_mut().skip(1).map(|c| framed(c, &write(nowhere, 0, &data))).collect();
    let heads: Vec<Vec<u8>> = heads.iter().map(|m| m[..200].to_vec()).collect();
    let before = resident_bytes();
    let go_on = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut sending = Vec::new();
        for (i, c) in clients.iter_mut().enumerate() {
            let head = if i == 0 { &half[..200] } else { &heads[i - 1][..] };
            let (half, rest, go_on) = (&half[200..], rest, &go_on);
            let socket = c.socket.as_mut().unwrap();
            sending.push(scope.spawn(move || {
                socket.write_all(head)?;
                socket.write_all(half)?;
                while !go_on.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                socket.write_all(rest)?;
                frame(socket)
            }));
        }
        let held = most_held(before, Duration::from_secs(2));
        // Others' large messages come through.
        quiet.write(mine, 0, &data[..4 << 20]);
        quiet.call(&echo()).ok();
        go_on.store(true, Ordering::Release);
        let answered = sending.into_iter().map(|s| s.join().unwrap());
        let statuses: Vec<_> =
            answered.map(|a| a.map(|f| NtStatus(u32::from_le_bytes(f[8..12].try_into().unwrap())))).collect();
        assert!(statuses.iter().all(|s| matches!(s, Ok(NtStatus::FILE_CLOSED))), "{statuses:?}");
        assert!(held < HELD_MAX, "{} MiB of messages that are not complete", held >> 20);
    });
}

/// Messages that wait for their user's turn: here behind answers that nobody reads.
#[test]
fn messages_that_wait_for_their_turn() {
    let _alone = alone();
    let server = Listening::new(|s| (s.limits.usage.jobs.user, s.limits.usage.job_bytes.user) = (2, 24 << 20));
    let (mut readers, mut writers) = (server.clients(OTHER, 6), server.clients(OTHER, 10));
    let f = readers[0].open(want("large")).id;
    readers[0].set(f, file_class::END_OF_FILE, &(8u64 << 20).to_le_bytes());
    for c in &mut readers {
        let f = c.open(want("large")).id;
        let bytes = framed(c, &read(f, 0, 8 << 20));
        c.socket.as_mut().unwrap().write_all(&bytes).unwrap();
    }
    std::thread::sleep(Duration::from_millis(300));
    let data = vec![7; MESSAGE_BYTES];
    let opened: Vec<_> = writers.iter_mut().map(|c| c.open(want("written")).id).collect();
    let message = framed(&mut writers[0], &write(opened[0], 0, &data));
    let sockets: Vec<_> = writers.iter().map(|c| c.socket.as_ref().unwrap().try_clone().unwrap()).collect();
    let before = resident_bytes();
    std::thread::scope(|scope| {
        for (c, f) in writers.iter_mut().zip(opened) {
            let heads: Vec<_> = (0..5).map(|_| framed(c, &write(f, 0, &data))[..200].to_vec()).collect();
            c.sent.clear();
            let mut socket = c.socket.as_ref().unwrap().try_clone().unwrap();
            let message = &message;
            scope.spawn(move || {
                for head in heads {
                    // It may end in the middle, when the test does.
                    let _ = socket.write_all(&head).and_then(|()| socket.write_all(&message[200..]));
                }
            });
        }
        let held = most_held(before, Duration::from_secs(2));
        for c in &sockets {
            let _ = c.shutdown(std::net::Shutdown::Both);
        }
        assert!(held < HELD_MAX, "{} MiB of messages that wait", held >> 20);
    });
}

/// Buffers of connections that are never idle.
#[test]
fn buffers_that_are_kept() {
    let _alone = alone();
    let server = Listening::new(|_| {});
    let nowhere = FileId { persistent: 1, volatile: 1 };
    let mut clients = server.clients(OTHER, 60);
    let f = clients[0].open(want("large")).id;
    clients[0].write(f, 0, &vec![7; 1 << 20]);
    let data = vec![7; MESSAGE_BYTES / 2];
    let before = resident_bytes();
    for c in &mut clients {
        assert_eq!(c.status(&write(nowhere, 0, &data)), NtStatus::FILE_CLOSED);
        let f = c.open(want("large")).id;
        drop(c.read(f, 0, 1 << 20));
        c.sent.clear();
    }
    for c in &mut clients {
        c.call(&echo()).ok();
    }
    let held = most_held(before, Duration::from_millis(200));
    assert!(held < HELD_MAX, "{} MiB kept by connections that have nothing to do", held >> 20);
}

/// Errors that stand in buffers as large as what was asked for, behind answers that nobody reads.
#[test]
fn unread_errors_of_large_reads() {
    let _alone = alone();
    let server = Listening::new(|_| {});
    let held = held_by_unread_errors(&server, resident_bytes);
    assert!(held < HELD_MAX + (64 << 20), "{} MiB for answers that nobody reads", held >> 20);
}

/// The same errors do not stay where these buffers were: the allocator could use the space between them for nothing as large. In a process
/// with one arena, where what threads keep for themselves is not counted.
#[test]
fn unread_errors_do_not_divide_what_was_freed() {
    let _alone = alone();
    if std::env::var_os(ONE_ARENA).is_none() {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "held::unread_errors_do_not_divide_what_was_freed"]);
        let done = again.env("MALLOC_ARENA_MAX", "1").env(ONE_ARENA, "").output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let held = held_by_unread_errors(&Listening::new(|_| {}), resident_bytes_with_freed);
    assert!(held < HELD_MAX + (64 << 20), "{} MiB for answers that nobody reads", held >> 20);
}

/// Set in the process that has one arena.
const ONE_ARENA: &str = "ARDEN_TEST_ONE_ARENA";

fn held_by_unread_errors(server: &Listening, resident_bytes: fn() -> usize) -> usize {
    let mut clients = server.clients(OTHER, 7);
    let f = clients[0].open(want("large")).id;
    clients[0].set(f, file_class::END_OF_FILE, &(8u64 << 20).to_le_bytes());
    let before = resident_bytes();
    for c in &mut clients {
        let f = c.open(want("large")).id;
        // More than there is has to be read: END_OF_FILE.
        let mut fails = read(f, 1, 8 << 20);
        fails.body.patch_u32(32, 8 << 20);
        let mut bytes = framed(c, &read(f, 0, 8 << 20));
        (0..7).for_each(|_| bytes.extend(framed(c, &fails)));
        c.socket.as_mut().unwrap().write_all(&bytes).unwrap();
    }
    most_held_of(resident_bytes, before, Duration::from_secs(2))
}

/// Answers that are made at once, on connections that read none.
#[test]
fn unread_answers_that_were_made_at_once() {
    let _alone = alone();
    let server = Listening::new(|_| {});
    let mut clients = server.clients(OTHER, 350);
    let f = clients[0].open(want("large")).id;
    clients[0].write(f, 0, &vec![7; 2 << 20]);
    // Opened first: once so much is unread, nothing of the user's is begun.
    let opened: Vec<_> = clients.iter_mut().map(|c| c.open(want("large")).id).collect();
    let before = resident_bytes();
    for (c, f) in clients.iter_mut().zip(opened) {
        let bytes: Vec<u8> = (0..12).flat_map(|_| framed(c, &read(f, 0, 1 << 20))).collect();
        c.socket.as_mut().unwrap().write_all(&bytes).unwrap();
    }
    let held = most_held(before, Duration::from_secs(2));
    // Those that had to wait for the disk count as work that is not finished.
    assert!(held < HELD_MAX + (96 << 20), "{} MiB for answers that nobody reads", held >> 20);
}

/// A lab whose share `volume` lies on a volume.
fn on_volume() -> Lab {
    use arden_volume::{Durability, MemDevice, Volume, VolumeOptions, VolumeStore};
    let lab = Lab::new();
    let device = std::sync::Arc::new(MemDevice::new(64 << 20));
    Volume::format(&*device, "m", 3, arden_wire::FileTime(1)).unwrap();
    let vol = Volume::open(device, VolumeOptions { background: false, ..VolumeOptions::default() }).unwrap();
    let fs = arden_store::fs::Fs::new(VolumeStore::new(vol, Durability::Plain), lab.server.trees.table.clone());
    lab.server.trees.set_shares(vec![share(SHARE, &fs)]);
    lab
}

/// Listings that were begun and are not gone on with: each has read names ahead. They go on where they stand all the same.
#[test]
fn listings_that_were_begun() {
    let _alone = alone();
    for (store, lab) in [("directory", Lab::new()), ("volume", on_volume())] {
        let mut c = lab.client();
        c.make_directory("dir");
        let mut names: Vec<_> = (0..200).map(|i| format!("{}{i:05}", "n".repeat(200))).collect();
        names.iter().for_each(|name| c.put(&format!("dir\\{name}"), b""));
        let first = |c: &mut Client| {
            let dir = c.open(want("dir").existing().directory().share(7)).id;
            let mut given = c.list_once(dir, file_class::NAMES, 3, "n*").unwrap();
            given.extend(c.list_once(dir, file_class::NAMES, 2, "n*").unwrap());
            c.sent.clear();
            (dir, given)
        };
        first(&mut c);
        let before = resident_bytes();
        let begun: Vec<_> = (0..3000).map(|_| first(&mut c)).collect();
        let held = resident_bytes().saturating_sub(before);
        println!("{store}: {} MiB", held >> 20);
        names.sort();
        for at in [0, 100, 2999] {
            let (dir, mut given) = begun[at].clone();
            while let Ok(more) = c.list_once(dir, file_class::NAMES, 0, "n*") {
                given.extend(more);
            }
            given.sort();
            assert!(given == names, "listing {at} of the {store}: {} of 200 names", given.len());
        }
        assert!(held < 40 << 20, "{} MiB for listings of a {store}", held >> 20);
    }
}

/// Answers that nobody reads are the user's, on however many connections: small requests are not to fill the memory.
#[test]
fn unread_answers_of_large_reads() {
    let _alone = alone();
    let server = Listening::new(|_| {});
    let mut clients = server.clients(OTHER, 10);
    let f = clients[0].open(want("large")).id;
    clients[0].set(f, file_class::END_OF_FILE, &(8u64 << 20).to_le_bytes());
    let before = resident_bytes();
    for c in &mut clients {
        let f = c.open(want("large")).id;
        let bytes: Vec<u8> = (0..7).flat_map(|_| framed(c, &read(f, 0, 8 << 20))).collect();
        c.socket.as_mut().unwrap().write_all(&bytes).unwrap();
    }
    let held = most_held(before, Duration::from_secs(2));
    drop(clients);
    // The others of the user go on.
    let mut again = server.client(OTHER);
    let f = again.open(want("large")).id;
    let id = again.send(&read(f, 0, 8 << 20));
    assert!(again.poll(id).is_some(), "{:?}", again.closed);
    assert!(held < 256 << 20, "the server holds {} MiB more", held >> 20);
}
