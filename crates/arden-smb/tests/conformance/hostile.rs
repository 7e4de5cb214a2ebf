//! Malformed, truncated, out-of-order, over-long and replayed messages: the specified error or a closed
//! connection, and nothing left behind.

use crate::client::*;
use arden_wire::smb2::flags;

/// One good request of every command, on these files.
fn every_request(file: FileId, dir: FileId) -> Vec<Req> {
    vec![
        tree_connect("\\\\LAB\\share"),
        want("new").lease(1, "RWH").durable_v2(9, 0).context(tag::EA_BUFFER, eas(&[("A", b"b")])).req(),
        want("other").context(tag::MAXIMAL_ACCESS, vec![]).app_instance(4).app_version(1, 2).req(),
        close_flags(file, 1),
        flush(file),
        read(file, 0, 64),
        write(file, 0, &[7; 200]),
        lock(file, 0x11, &[(0, 1, lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY), (5, 1, 17)]),
        ioctl(file, fsctl::SET_ZERO_DATA, &pair(0, 1), 0),
        ioctl(file, fsctl::SRV_COPYCHUNK, &copy_chunks(&[0; 24], &[(0, 0, 1)]), 12),
        ioctl(FileId::RELATED, fsctl::VALIDATE_NEGOTIATE_INFO, &validate(0, 0, 1, &[0x311]), 24),
        echo(),
        query_directory(dir, file_class::ID_BOTH_DIRECTORY, 1, "*", 4096),
        notify(dir, 1, 0xFFF, 4096),
        query_info(file, info_type::FILE, file_class::ALL, 0, &[], 4096),
        query_info(file, info_type::SECURITY, 0, 7, &[], 4096),
        set_info(file, info_type::FILE, file_class::BASIC, 0, &basic(0, 0, 0, 0, 0)),
        set_info(file, info_type::FILE, file_class::RENAME, 0, &name_change("renamed", true)),
        set_info(file, info_type::FILE, file_class::FULL_EA, 0, &eas(&[("N", b"v"), ("M", b"w")])),
        oplock_ack(file, 0),
        lease_ack(1, "RH"),
        Req::empty(Command::TreeDisconnect),
        Req::empty(Command::Logoff),
        session_setup(0, 1, 0, &[0x60, 0x10, 6, 6]),
    ]
}

fn prepared(lab: &Lab) -> (Client, FileId, FileId) {
    let mut c = lab.client();
    let dir = c.open(want("dir").directory()).id;
    let file = c.open(want("dir\\file")).id;
    c.write(file, 0, b"content");
    (c, file, dir)
}

/// Every message cut at every length: an error, a success that needs no more, or the end of the connection.
#[test]
fn truncated_requests() {
    let lab = Lab::new();
    let count = every_request(FileId::RELATED, FileId::RELATED).len();
    for i in 0..count {
        let (mut c, mut file, mut dir) = prepared(&lab);
        let full = every_request(file, dir)[i].body.len();
        for len in (0..full).rev() {
            let mut req = every_request(file, dir).remove(i);
            req.body.truncate(len);
            let id = c.send(&req);
            let reply = c.poll(id);
            if len + 1 < full.min(24) && len < 2 {
                let status = reply.as_ref().map(Reply::status);
                assert_ne!(status, Some(NtStatus::SUCCESS), "request {i} cut to {len}");
            }
            let gone = matches!(req.command, c if c == Command::Close as u16
                || c == Command::Logoff as u16 || c == Command::TreeDisconnect as u16);
            if c.is_closed() || gone || reply.is_none() {
                (c, file, dir) = prepared(&lab);
            }
        }
    }
    drop(lab.client());
    assert!(lab.front().sessions().is_empty());
}

/// Every 16-bit field of every message set to what hurts most.
#[test]
fn wild_fields() {
    // Two nodes take their time to talk.
    let values: &[u16] = if has_two_nodes() { &[0xFFFF] } else { &[0, 1, 0x7FFF, 0x8000, 0xFFFF] };
    let mut lab = Lab::new();
    let count = every_request(FileId::RELATED, FileId::RELATED).len();
    for i in 0..count {
        let (mut c, mut file, mut dir) = prepared(&lab);
        let full = every_request(file, dir)[i].body.len().min(120);
        for at in (0..full - 1).step_by(2) {
            for value in values.iter().copied() {
                let mut req = every_request(file, dir).remove(i);
                req.body.patch_u16(at, value);
                let id = c.send(&req);
                let usable = c.poll(id).is_some() && !c.is_closed() && c.credits >= 32;
                if !usable || c.status(&close(file)) != NtStatus::SUCCESS {
                    (c, file, dir) = prepared(&lab);
                } else {
                    // Rights and attributes may be what the last request made them.
                    match c.try_open(&want("dir\\file")) {
                        Ok(f) => file = f.id,
                        Err(_) => {
                            drop(c);
                            lab = Lab::new();
                            (c, file, dir) = prepared(&lab);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn headers_that_are_none_end_the_connection() {
    let lab = Lab::new();
    let good = |c: &mut Client| c.encode(&echo().signed(false), false).1;
    let changes: [fn(&mut Vec<u8>); 9] = [
        |m| m.truncate(3),
        |m| m.truncate(63),
        |m| m[0] = 0xFB,
        |m| m[4] = 63,
        |m| m[20..24].copy_from_slice(&7u32.to_le_bytes()),
        |m| m[20..24].copy_from_slice(&64_000u32.to_le_bytes()),
        |m| m[20..24].copy_from_slice(&u32::MAX.to_le_bytes()),
        |m| m[16] |= flags::SERVER_TO_REDIR as u8,
        |m| m.splice(..4, [0xFC, b'S', b'M', b'B']).for_each(drop),
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let mut c = lab.client();
        let mut message = good(&mut c);
        change(&mut message);
        c.send_bytes(message);
        assert!(c.is_closed(), "change {i}");
    }
    let mut c = lab.client();
    c.send_bytes(Vec::new());
    assert!(c.is_closed());
}

#[test]
fn transform_headers_that_are_wrong_end_the_connection() {
    let lab = Lab::new();
    for (at, value) in [(0, 0xFB), (4, 0xAA), (20, 0xAA), (36, 0xFF), (42, 2), (44, 0xAA)] {
        let mut c = lab.client();
        let (_, message) = c.encode(&echo().signed(false), false);
        let mut frame = c.seal(&message);
        frame[at] ^= value;
        c.send_bytes(frame);
        assert!(c.is_closed(), "byte {at}");
    }
    for len in [0, 4, 51, 52, 60, 115] {
        let mut c = lab.client();
        let (_, message) = c.encode(&echo().signed(false), false);
        let mut frame = c.seal(&message);
        frame.truncate(len);
        c.send_bytes(frame);
        assert!(c.is_closed(), "cut to {len}");
    }
    // Encrypted twice, and something else inside.
    let mut c = lab.client();
    let (_, message) = c.encode(&echo().signed(false), false);
    let once = c.seal(&message);
    let twice = c.seal(&once);
    c.send_bytes(twice);
    assert!(c.is_closed());
    // Before there is a session.
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    let mut frame = vec![0xFD, b'S', b'M', b'B'];
    frame.resize(200, 0);
    c.send_bytes(frame);
    assert!(c.is_closed());
}

#[test]
fn a_message_comes_twice() {
    let lab = Lab::new();
    let mut c = lab.client();
    let (id, message) = c.encode(&want("once").req(), false);
    c.send_bytes(message.clone());
    c.receive(id).ok();
    c.send_bytes(message);
    assert!(c.is_closed());
    assert!(lab.server.trees.opens().is_empty());
}

#[test]
fn a_sealed_message_comes_twice_or_on_another_connection() {
    let lab = Lab::new();
    let mut c = lab.client();
    let (id, message) = c.encode(&want("once").req().signed(false), false);
    let frame = c.seal(&message);
    c.send_bytes(frame.clone());
    c.receive(id).ok();
    let mut thief = lab.client();
    thief.send_bytes(frame.clone());
    assert!(thief.is_closed());
    c.send_bytes(frame);
    assert!(c.is_closed());
}

#[test]
fn commands_that_do_not_exist() {
    let lab = Lab::new();
    let mut c = lab.client();
    for command in [19, 0x20, 0xFFFF] {
        let mut req = echo();
        req.command = command;
        assert_eq!(c.status(&req), NtStatus::INVALID_PARAMETER);
    }
}

#[test]
fn setups_and_negotiates_inside_compounds() {
    let lab = Lab::new();
    let mut c = lab.client();
    let replies = c.compound(&[echo(), session_setup(0, 1, 0, &[1]).session(0).signed(false)]);
    assert!(replies[1].status().is_error());
    let mut c = lab.client();
    let second = Offer::up_to(Dialect::Smb311).req(1);
    c.send_all(&[echo(), second]);
    c.pump();
    let refused = c.inbox.iter().any(|r| r.header.command == 0 && r.status().is_error());
    assert!(c.is_closed() || refused);
}

#[test]
fn cancels_of_nothing_do_nothing() {
    let lab = Lab::new();
    let mut c = lab.client();
    for async_id in [0, 1, u64::MAX] {
        c.cancel(async_id);
    }
    c.send(&Req::empty(Command::Cancel).id(77));
    let mut short = Req::empty(Command::Cancel);
    short.body.clear();
    c.send(&short);
    assert!(c.inbox.is_empty());
    c.call(&echo()).ok();
}

#[test]
fn numbers_at_their_ends() {
    let lab = Lab::new();
    let (mut c, file, _) = prepared(&lab);
    let max = i64::MAX as u64;
    for offset in [max, max + 1, u64::MAX - 1] {
        assert!(c.try_read(file, offset, 100).is_err());
        assert!(c.try_write(file, offset, b"x").is_err(), "write at {offset:#x}");
    }
    let locks = [(u64::MAX, 0), (u64::MAX, 1), (0, u64::MAX), (u64::MAX, u64::MAX), (max, max)];
    for (offset, len) in locks {
        let req = lock(file, 0, &[(offset, len, lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY)]);
        if c.status(&req) == NtStatus::SUCCESS {
            c.call(&lock(file, 0, &[(offset, len, lock_flags::UNLOCK)])).ok();
        }
    }
    for size in [max, max + 1, u64::MAX] {
        let status = c.set(file, file_class::END_OF_FILE, &size.to_le_bytes());
        assert!(status.is_error(), "size {size:#x}: {status}");
        assert!(c.set(file, file_class::ALLOCATION, &size.to_le_bytes()).is_error());
    }
    assert_eq!(c.read(file, 0, 100), b"content");
}

#[test]
fn messages_are_bounded_by_who_sends_them() {
    let lab = Lab::new();
    let c = lab.connect();
    let before = c.connection.as_ref().unwrap().message_bytes_max();
    assert!(before <= 65536 + 64, "before a logon: {before}");
    let c = lab.client();
    let after = c.connection.as_ref().unwrap().message_bytes_max();
    assert!(((8 << 20) + 112..=(8 << 20) + 65536).contains(&after));
}

/// A client that only ever opens and goes leaves nothing.
#[test]
fn nothing_is_left_of_a_client_that_goes() {
    let lab = Lab::new();
    for _ in 0..20 {
        let (mut c, file, dir) = prepared(&lab);
        c.send(&notify(dir, 0, 1, 100));
        c.send(&lock(file, 0, &[(0, 10, lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY)]));
        let mut other = lab.client();
        let g = other.open(want("dir\\file"));
        other.send(&lock(g.id, 0, &[(0, 10, lock_flags::EXCLUSIVE)]));
        other.disconnect();
        c.disconnect();
    }
    assert!(lab.front().sessions().is_empty());
    assert!(lab.server.trees.opens().is_empty());
    assert_eq!(lab.server.trees.table.open_count(), 0);
    assert!(lab.server.peers().is_empty());
}
