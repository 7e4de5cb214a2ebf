//! The SMB server as a whole: a sequence of frames on an authenticated connection. Nothing may be left of a client
//! that has gone, whatever it sent.

use std::{cell::RefCell, time::Duration};

use arden_wire::{
    cursor::Put,
    smb2::{Command, Dialect, FileId, HEADER_BYTES, Header, flags, header::offset},
};

use crate::client::*;

/// How a frame is sent; without any, as it is.
mod mode {
    /// Message ids, session and tree are the connection's.
    pub const FIX: u8 = 1;
    pub const SIGN: u8 = 2;
    pub const SEAL: u8 = 4;
    /// The tree is IPC$.
    pub const PIPES: u8 = 8;
}

/// A FileId in a corpus stands for the nth open of the client.
const PLACEHOLDER: u64 = 0xF11E_F11E_0000_0000;

fn nth(n: u64) -> FileId {
    FileId { persistent: PLACEHOLDER + n, volatile: PLACEHOLDER + n }
}

/// Inputs of one server: its directory fills up.
const RUNS_MAX: u32 = 300;

thread_local! {
    static WORLD: RefCell<Option<(Lab, u32)>> = const { RefCell::new(None) };
}

/// Small bounds, so that they are met.
fn world() -> Lab {
    Lab::with(|s| {
        s.signing_required = false;
        s.limits.sessions_per_connection_max = 4;
        s.limits.trees_per_session_max = 8;
        s.limits.opens_per_session_max = 32;
        s.limits.pending_per_connection_max = 8;
        s.limits.chain_max = 16;
        s.limits.io_bytes_max = 1 << 20;
        s.table.opens_max = 64;
        s.table.locks_per_open_max = 32;
        s.table.waits_max = 16;
        s.table.notify_buffer_bytes_max = 1024;
    })
}

/// Frames: a mode, a 16-bit length, the message.
pub fn connection(data: &[u8]) {
    let (lab, runs) = WORLD.take().unwrap_or_else(|| (world(), 0));
    let mut client = lab.client();
    // Sessions that end under way answer without a key.
    client.strict = false;
    let ids = opens(&mut client);
    let disk = client.tree;
    client.connect("IPC$");
    let pipes = client.tree;
    let mut rest = data;
    while let [how, low, high, tail @ ..] = rest {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(tail.len());
        let (message, more) = tail.split_at(len);
        client.tree = if how & mode::PIPES != 0 { pipes } else { disk };
        send(&mut client, *how, message.to_vec(), &ids);
        if client.is_closed() {
            break;
        }
        rest = more;
    }
    client.disconnect();
    lab.pass(Duration::from_secs(3600));
    assert!(lab.server.sessions().is_empty(), "a session is left");
    assert!(lab.server.trees.opens().is_empty(), "an open is left");
    assert_eq!(lab.server.trees.table.open_count(), 0, "an open is left in the table");
    assert!(lab.server.peers().is_empty(), "a connection is left");
    if runs < RUNS_MAX {
        WORLD.set(Some((lab, runs + 1)));
    }
}

/// A file, a directory, a stream, a file under a lease, a durable handle.
fn opens(c: &mut Client) -> Vec<FileId> {
    let wanted = [
        want("file"),
        want("dir").directory(),
        want("file:stream"),
        want("leased").lease(7, "RWH"),
        want("durable").oplock(oplock::BATCH).durable_v2(9, 0),
    ];
    // What an earlier input left may refuse: another name is as good.
    let fresh = |w: &Want| Want { name: format!("{}{}", w.name, w.oplock), ..w.clone() };
    wanted.iter().filter_map(|w| c.try_open(w).or_else(|_| c.try_open(&fresh(w))).ok()).map(|f| f.id).collect()
}

fn send(c: &mut Client, how: u8, mut message: Vec<u8>, ids: &[FileId]) {
    if how & mode::FIX != 0 {
        let mut at = 0;
        while let Some(rest) = message.get_mut(at..).filter(|m| m.len() >= HEADER_BYTES) {
            let next = u32::from_le_bytes(rest[20..24].try_into().expect("four bytes")) as usize;
            let len = if next == 0 { rest.len() } else { next.min(rest.len()) };
            fix(c, how, &mut rest[..len], ids);
            if next < HEADER_BYTES {
                break;
            }
            at += next;
        }
    }
    tame(&mut message);
    if how & mode::SEAL != 0 && c.session.is_some() {
        message = c.seal(&message);
    }
    c.send_bytes(message);
}

fn fix(c: &mut Client, how: u8, message: &mut [u8], ids: &[FileId]) {
    if message.len() < HEADER_BYTES {
        return;
    }
    let charge = u64::from(u16::from_le_bytes([message[6], message[7]]).max(1));
    let cancels = message[12..14] == (Command::Cancel as u16).to_le_bytes();
    message[24..32].copy_from_slice(&c.next_id.to_le_bytes());
    if !cancels {
        c.next_id = c.next_id.wrapping_add(charge);
    }
    let asynchronous = message[offset::FLAGS] & flags::ASYNC_COMMAND as u8 != 0;
    if !asynchronous && message[12] != Command::TreeConnect as u8 {
        message[36..40].copy_from_slice(&c.tree.to_le_bytes());
    }
    if message[12] != Command::SessionSetup as u8 {
        message[40..48].copy_from_slice(&c.session_id().to_le_bytes());
    }
    for at in HEADER_BYTES..message.len().saturating_sub(15) {
        let word: [u8; 8] = message[at..at + 8].try_into().expect("eight bytes");
        let n = u64::from_le_bytes(word) ^ PLACEHOLDER;
        if let Some(id) = (n < 256).then(|| ids.get(n as usize % ids.len().max(1))).flatten() {
            message[at..at + 8].copy_from_slice(&id.persistent.to_le_bytes());
            message[at + 8..at + 16].copy_from_slice(&id.volatile.to_le_bytes());
        }
    }
    if let (true, Some(session)) = (how & mode::SIGN != 0, &c.session) {
        message[offset::FLAGS] |= flags::SIGNED as u8;
        session.signing.sign_in_place(message);
    }
}

/// Fuzzing is not to fill the disk: sizes stay small. Signed messages are left alone when they are small already.
fn tame(message: &mut [u8]) {
    const BODY: usize = HEADER_BYTES;
    let clamp = |m: &mut [u8], at: usize| {
        if let Some(upper) = m.get_mut(at + 4..at + 8) {
            upper.fill(0);
        }
    };
    if message.len() < BODY + 40 {
        return;
    }
    match u16::from_le_bytes([message[12], message[13]]) {
        c if c == Command::Write as u16 => clamp(message, BODY + 8),
        c if c == Command::SetInfo as u16 && matches!(message[BODY + 3], 19 | 20) => {
            let at = usize::from(u16::from_le_bytes([message[BODY + 8], message[BODY + 9]]));
            clamp(message, at);
        }
        c if c == Command::Ioctl as u16 => {
            for at in (BODY + 56 + 24..message.len()).step_by(4) {
                clamp(message, at);
            }
        }
        c if c == Command::Create as u16 => {
            for at in BODY..message.len() - 4 {
                if message[at..at + 4] == *b"AlSi" {
                    message[at] = b'x';
                }
            }
        }
        _ => {}
    }
}

/// First corpora: what clients send, by the builders and the captures of the test client.
pub fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut out = Vec::new();
    for (name, requests) in conversations() {
        let mut frames = Vec::new();
        for (how, req) in &requests {
            let message = plain(req);
            frames.push(*how);
            frames.put_u16(message.len() as u16);
            frames.extend_from_slice(&message);
        }
        out.push(("connection", name.to_string(), frames));
        for (i, (_, req)) in requests.iter().enumerate() {
            let target = if req.command == Command::Create as u16 { "create" } else { "smb2" };
            out.push((target, format!("{name}-{i}"), plain(req)));
        }
    }
    let lab = world();
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    c.logon(&logon(USER));
    let captured = std::mem::take(&mut c.sent);
    for (i, message) in captured.iter().enumerate() {
        let mut frames = vec![0];
        frames.put_u16(message.len() as u16);
        frames.extend_from_slice(message);
        out.push(("connection", format!("logon-{i}"), frames));
        out.push((if i == 0 { "negotiate" } else { "smb2" }, format!("logon-{i}"), message.clone()));
    }
    let two = Offer::of(&[0x0202, 0x0210]).req(1);
    out.push(("negotiate", "old".into(), plain(&two)));
    c.encrypt = true;
    c.call(&echo());
    out.push(("transform", "echo".into(), c.sent.pop().expect("what was sent")));
    out
}

/// A request as bytes, header and all, nothing of a connection in it.
fn plain(req: &Req) -> Vec<u8> {
    let mut message = Vec::new();
    Header {
        credit_charge: req.charge,
        status: 0,
        command: req.command,
        credits: req.credits,
        flags: req.flags,
        next_command: 0,
        message_id: 0,
        async_or_tree: 0,
        session_id: 0,
        signature: [0; 16],
    }
    .put(&mut message);
    message.extend_from_slice(&req.body);
    message
}

type Conversation = Vec<(u8, Req)>;

/// How, and what with.
fn all(how: u8, list: Vec<Req>) -> Conversation {
    list.into_iter().map(|r| (how, r)).collect()
}

fn query(id: FileId, kind: u8, class: u8) -> Req {
    query_info(id, kind, class, 7, &[], 4096)
}

const F: u8 = mode::FIX;
const S: u8 = mode::FIX | mode::SIGN;
const E: u8 = mode::FIX | mode::SEAL;
const P: u8 = mode::FIX | mode::PIPES;

fn conversations() -> Vec<(&'static str, Conversation)> {
    [files(), changes_and_the_rest()].concat()
}

fn files() -> Vec<(&'static str, Conversation)> {
    let (file, dir, stream, durable) = (nth(0), nth(1), nth(2), nth(4));
    let now = lock_flags::EXCLUSIVE | lock_flags::FAIL_IMMEDIATELY;
    let contexts = want("new")
        .lease(8, "RWH")
        .durable_v2(5, 1000)
        .app_instance(3)
        .app_version(1, 2)
        .context(tag::MAXIMAL_ACCESS, vec![])
        .context(tag::QUERY_ON_DISK_ID, vec![])
        .context(tag::EA_BUFFER, eas(&[("NAME", b"value"), ("B", b"")]))
        .context(tag::TIMEWARP, vec![0; 8]);
    vec![
        ("data", all(F, vec![write(file, 0, b"content"), read(file, 0, 100), flush(file), close_flags(file, 1)])),
        ("creates", all(S, vec![contexts.req(), want("dir\\sub").directory().req(), want("file").existing().req()])),
        ("reconnect", all(F, vec![want("durable").oplock(9).reconnect_v2(durable, 9).req(), close(durable)])),
        ("reconnect-old", all(F, vec![want("x").oplock(9).durable().req(), want("x").reconnect(durable).req()])),
        ("locks", all(F, vec![lock(file, 0x11, &[(0, 9, now), (20, 9, now)]), lock(stream, 0, &[(0, 1, 2)])])),
        ("unlock", all(F, vec![lock(file, 0, &[(0, 9, now)]), lock(file, 0, &[(0, 9, lock_flags::UNLOCK)])])),
        ("list", all(F, vec![query_directory(dir, 37, 1, "*", 4096), query_directory(dir, 60, 0x12, "a<b", 200)])),
        ("notify", all(F, vec![notify(dir, 1, 0xFFF, 512), want("dir\\n").req(), Req::empty(Command::Cancel)])),
        ("query", all(F, [4, 5, 18, 22, 15, 34, 48, 59].iter().map(|c| query(file, info_type::FILE, *c)).collect())),
        ("file-system", all(E, (1..12).map(|c| query(file, info_type::FILE_SYSTEM, c)).collect())),
        ("security", all(F, vec![query(file, info_type::SECURITY, 0), set_info(file, 3, 0, 4, &[1, 0, 4, 0x80])])),
    ]
}

fn changes_and_the_rest() -> Vec<(&'static str, Conversation)> {
    let (file, dir, stream, leased) = (nth(0), nth(1), nth(2), nth(3));
    let info = |id, class, data: &[u8]| set_info(id, info_type::FILE, class, 0, data);
    vec![
        (
            "set",
            all(
                F,
                vec![
                    info(file, file_class::BASIC, &basic(0, 0, u64::MAX, 1 << 56, ATTR_HIDDEN)),
                    info(file, file_class::RENAME, &name_change("renamed", true)),
                    info(stream, file_class::RENAME, &name_change(":other:$DATA", false)),
                    info(file, file_class::LINK, &name_change("link", false)),
                    info(file, file_class::FULL_EA, &eas(&[("N", b"v")])),
                    info(file, file_class::END_OF_FILE, &100u64.to_le_bytes()),
                    info(file, file_class::ALLOCATION, &100u64.to_le_bytes()),
                    info(file, file_class::POSITION, &100u64.to_le_bytes()),
                    info(file, file_class::MODE, &2u32.to_le_bytes()),
                    info(file, file_class::DISPOSITION, &[1]),
                    info(dir, file_class::DISPOSITION_EX, &3u32.to_le_bytes()),
                ],
            ),
        ),
        (
            "controls",
            all(
                F,
                vec![
                    ioctl(file, fsctl::SET_SPARSE, &[], 0),
                    ioctl(file, fsctl::SET_ZERO_DATA, &pair(0, 10), 0),
                    ioctl(file, fsctl::QUERY_ALLOCATED_RANGES, &pair(0, 100), 64),
                    ioctl(file, fsctl::SRV_REQUEST_RESUME_KEY, &[], 32),
                    ioctl(file, fsctl::CREATE_OR_GET_OBJECT_ID, &[], 64),
                    ioctl(file, fsctl::GET_COMPRESSION, &[], 2),
                    ioctl(file, fsctl::LMR_REQUEST_RESILIENCY, &resiliency(1000), 0),
                    ioctl(file, fsctl::FILE_LEVEL_TRIM, &[&[0, 0, 0, 0, 1, 0, 0, 0][..], &pair(0, 9)].concat(), 4),
                    ioctl(file, fsctl::GET_REPARSE_POINT, &[], 4096),
                    ioctl(FileId::RELATED, fsctl::QUERY_NETWORK_INTERFACE_INFO, &[], 4096),
                ],
            ),
        ),
        ("copy", all(F, vec![write(file, 0, &[7; 99]), ioctl(stream, fsctl::SRV_COPYCHUNK, &copy(file), 12)])),
        (
            "breaks",
            all(F, vec![oplock_ack(file, 1), lease_ack(7, "RH"), want("leased").oplock(9).req(), close(leased)]),
        ),
        ("trees", all(S, vec![tree_connect("\\\\LAB\\share"), Req::empty(Command::TreeDisconnect), echo()])),
        ("logoff", all(S, vec![echo(), Req::empty(Command::Logoff), echo()])),
        ("setup", all(0, vec![session_setup(1, 1, 7, &[0x60, 4, 6, 2, 1, 1]), session_setup(0, 3, 0, b"NTLMSSP\0")])),
        (
            "pipe",
            all(P, vec![want("srvsvc").req(), want("lsarpc").options(0x40).req(), query(nth(0), info_type::FILE, 5)]),
        ),
    ]
}

/// SRV_COPYCHUNK_COPY with a resume key that names the open.
fn copy(source: FileId) -> Vec<u8> {
    let mut key = Vec::new();
    source.put(&mut key);
    key.put_zeros(8);
    copy_chunks(&key, &[(0, 0, 50), (50, 60, 10)])
}
