//! Request bodies.

use arden_wire::{
    cursor::Put,
    fscc::file_class,
    smb2::{
        Command, FileId,
        create::{LEASE_FLAG_PARENT_KEY_SET, LeaseContext, oplock, tag},
        flags,
        info::info_type,
    },
};

use super::{ALL_ACCESS, state_bits};

/// One request; what is None comes from the client.
#[derive(Debug, Clone)]
pub struct Req {
    pub command: u16,
    pub body: Vec<u8>,
    pub flags: u32,
    pub charge: u16,
    pub credits: u16,
    pub tree: Option<u32>,
    pub session: Option<u64>,
    pub message_id: Option<u64>,
    pub async_id: Option<u64>,
    pub sign: Option<bool>,
    pub channel_sequence: Option<u16>,
}

impl Req {
    pub fn new(command: Command, body: Vec<u8>) -> Req {
        Req {
            command: command as u16,
            body,
            flags: 0,
            charge: 1,
            credits: 16,
            tree: None,
            session: None,
            message_id: None,
            async_id: None,
            sign: None,
            channel_sequence: None,
        }
    }
    /// A request whose body is a StructureSize and nothing.
    pub fn empty(command: Command) -> Req {
        Req::new(command, vec![4, 0, 0, 0])
    }
    pub fn related(mut self) -> Req {
        self.flags |= flags::RELATED_OPERATIONS;
        self
    }
    pub fn replay(mut self) -> Req {
        self.flags |= flags::REPLAY_OPERATION;
        self
    }
    pub fn charge(mut self, charge: u16) -> Req {
        self.charge = charge;
        self
    }
    pub fn credits(mut self, credits: u16) -> Req {
        self.credits = credits;
        self
    }
    pub fn tree(mut self, tree: u32) -> Req {
        self.tree = Some(tree);
        self
    }
    pub fn session(mut self, id: u64) -> Req {
        self.session = Some(id);
        self
    }
    pub fn id(mut self, id: u64) -> Req {
        self.message_id = Some(id);
        self
    }
    pub fn signed(mut self, sign: bool) -> Req {
        self.sign = Some(sign);
        self
    }
    pub fn sequence(mut self, channel_sequence: u16) -> Req {
        self.channel_sequence = Some(channel_sequence);
        self
    }
}

pub const SUPERSEDE: u32 = 0;
pub const OPEN: u32 = 1;
pub const CREATE: u32 = 2;
pub const OPEN_IF: u32 = 3;
pub const OVERWRITE: u32 = 4;
pub const OVERWRITE_IF: u32 = 5;

/// What a create asks for; built up from [`want`].
#[derive(Debug, Clone)]
pub struct Want {
    pub name: String,
    pub oplock: u8,
    pub impersonation: u32,
    pub access: u32,
    pub attributes: u32,
    pub share: u32,
    pub disposition: u32,
    pub options: u32,
    pub contexts: Vec<(Vec<u8>, Vec<u8>)>,
    pub replay: bool,
}

/// Open or create with full access, everything shared.
pub fn want(name: &str) -> Want {
    Want {
        name: name.into(),
        oplock: 0,
        impersonation: 2,
        access: ALL_ACCESS,
        attributes: 0,
        share: 7,
        disposition: OPEN_IF,
        options: 0,
        contexts: Vec::new(),
        replay: false,
    }
}

impl Want {
    pub fn access(mut self, access: u32) -> Want {
        self.access = access;
        self
    }
    pub fn share(mut self, share: u32) -> Want {
        self.share = share;
        self
    }
    pub fn disposition(mut self, disposition: u32) -> Want {
        self.disposition = disposition;
        self
    }
    pub fn existing(self) -> Want {
        self.disposition(OPEN)
    }
    pub fn options(mut self, options: u32) -> Want {
        self.options |= options;
        self
    }
    pub fn directory(self) -> Want {
        self.options(arden_wire::access::OPT_DIRECTORY_FILE)
    }
    pub fn attributes(mut self, attributes: u32) -> Want {
        self.attributes = attributes;
        self
    }
    pub fn delete_on_close(self) -> Want {
        self.options(arden_wire::access::OPT_DELETE_ON_CLOSE)
    }
    pub fn oplock(mut self, level: u8) -> Want {
        self.oplock = level;
        self
    }
    pub fn context(mut self, name: &[u8], data: Vec<u8>) -> Want {
        self.contexts.push((name.to_vec(), data));
        self
    }
    fn lease_request(mut self, lease: &LeaseContext) -> Want {
        self.oplock = oplock::LEASE;
        self.context(tag::LEASE, lease.encode())
    }
    /// A lease of version 2, as "RWH".
    pub fn lease(self, key: u128, state: &str) -> Want {
        let state = state_bits(state);
        self.lease_request(&LeaseContext { key, state, flags: 0, parent_key: 0, epoch: 0, version: 2 })
    }
    pub fn lease_v1(self, key: u128, state: &str) -> Want {
        let state = state_bits(state);
        self.lease_request(&LeaseContext { key, state, flags: 0, parent_key: 0, epoch: 0, version: 1 })
    }
    pub fn lease_under(self, key: u128, state: &str, parent_key: u128) -> Want {
        let flags = LEASE_FLAG_PARENT_KEY_SET;
        let state = state_bits(state);
        self.lease_request(&LeaseContext { key, state, flags, parent_key, epoch: 0, version: 2 })
    }
    pub fn durable(self) -> Want {
        self.context(tag::DURABLE_REQUEST, vec![0; 16])
    }
    pub fn reconnect(self, id: FileId) -> Want {
        let mut data = Vec::new();
        id.put(&mut data);
        self.context(tag::DURABLE_RECONNECT, data)
    }
    pub fn durable_v2(self, guid: u128, timeout_ms: u32) -> Want {
        self.durable_v2_flags(guid, timeout_ms, 0)
    }
    pub fn durable_v2_flags(self, guid: u128, timeout_ms: u32, flags: u32) -> Want {
        let mut data = Vec::new();
        data.put_u32(timeout_ms);
        data.put_u32(flags);
        data.put_u64(0);
        data.put_u128(guid);
        self.context(tag::DURABLE_REQUEST_V2, data)
    }
    /// DH2Q with SMB2_DHANDLE_FLAG_PERSISTENT.
    pub fn persistent(self, guid: u128, timeout_ms: u32) -> Want {
        self.durable_v2_flags(guid, timeout_ms, 2)
    }
    pub fn reconnect_v2(self, id: FileId, guid: u128) -> Want {
        self.reconnect_v2_flags(id, guid, 0)
    }
    pub fn reconnect_persistent(self, id: FileId, guid: u128) -> Want {
        self.reconnect_v2_flags(id, guid, 2)
    }
    fn reconnect_v2_flags(self, id: FileId, guid: u128, flags: u32) -> Want {
        let mut data = Vec::new();
        id.put(&mut data);
        data.put_u128(guid);
        data.put_u32(flags);
        self.context(tag::DURABLE_RECONNECT_V2, data)
    }
    pub fn app_instance(self, id: u128) -> Want {
        let mut data = Vec::new();
        data.put_u16(20);
        data.put_u16(0);
        data.put_u128(id);
        self.context(&tag::APP_INSTANCE_ID, data)
    }
    pub fn app_version(self, high: u64, low: u64) -> Want {
        let mut data = Vec::new();
        data.put_u16(24);
        data.put_u16(0);
        data.put_u32(0);
        data.put_u64(high);
        data.put_u64(low);
        self.context(&tag::APP_INSTANCE_VERSION, data)
    }
    pub fn replayed(mut self) -> Want {
        self.replay = true;
        self
    }

    pub fn req(&self) -> Req {
        let mut name = Vec::new();
        arden_wire::names::put_name_units(&mut name, &self.name);
        self.req_named(&name)
    }

    /// With a name that is given as bytes.
    pub fn req_named(&self, name: &[u8]) -> Req {
        let mut b = Vec::new();
        b.put_u16(57);
        b.put_u8(0);
        b.put_u8(self.oplock);
        b.put_u32(self.impersonation);
        b.put_zeros(16);
        for v in [self.access, self.attributes, self.share, self.disposition, self.options] {
            b.put_u32(v);
        }
        b.put_u16(64 + 56);
        b.put_u16(name.len() as u16);
        let at = b.len();
        b.put_u64(0);
        b.extend_from_slice(name);
        b.pad_to(0, 8);
        if self.contexts.is_empty() {
            if name.is_empty() {
                b.put_u64(0);
            }
        } else {
            let start = b.len();
            for (i, (name, data)) in self.contexts.iter().enumerate() {
                put_context(&mut b, name, data, i + 1 < self.contexts.len());
            }
            b.patch_u32(at, 64 + start as u32);
            let len = (b.len() - start) as u32;
            b.patch_u32(at + 4, len);
        }
        let req = Req::new(Command::Create, b);
        if self.replay { req.replay() } else { req }
    }
}

fn put_context(b: &mut Vec<u8>, name: &[u8], data: &[u8], more: bool) {
    let at = b.len();
    b.put_u32(0);
    b.put_u16(16);
    b.put_u16(name.len() as u16);
    b.put_u16(0);
    b.put_u16(if data.is_empty() { 0 } else { (16 + name.len()).next_multiple_of(8) as u16 });
    b.put_u32(data.len() as u32);
    b.extend_from_slice(name);
    if !data.is_empty() {
        b.pad_to(at, 8);
        b.extend_from_slice(data);
    }
    b.pad_to(at, 8);
    if more {
        let len = (b.len() - at) as u32;
        b.patch_u32(at, len);
    }
}

fn charge(bytes: usize) -> u16 {
    (bytes.saturating_sub(1) / 65536 + 1) as u16
}

pub fn close(id: FileId) -> Req {
    close_flags(id, 0)
}
pub fn close_flags(id: FileId, flags: u16) -> Req {
    let mut b = Vec::new();
    b.put_u16(24);
    b.put_u16(flags);
    b.put_u32(0);
    id.put(&mut b);
    Req::new(Command::Close, b)
}
pub fn flush(id: FileId) -> Req {
    let mut b = Vec::new();
    b.put_u16(24);
    b.put_zeros(6);
    id.put(&mut b);
    Req::new(Command::Flush, b)
}
pub fn read(id: FileId, offset: u64, len: u32) -> Req {
    let mut b = Vec::new();
    b.put_u16(49);
    b.put_u8(0x50);
    b.put_u8(0);
    b.put_u32(len);
    b.put_u64(offset);
    id.put(&mut b);
    b.put_zeros(17);
    Req::new(Command::Read, b).charge(charge(len as usize))
}
pub fn write(id: FileId, offset: u64, data: &[u8]) -> Req {
    let mut b = Vec::new();
    b.put_u16(49);
    b.put_u16(64 + 48);
    b.put_u32(data.len() as u32);
    b.put_u64(offset);
    id.put(&mut b);
    b.put_zeros(16);
    b.extend_from_slice(data);
    if data.is_empty() {
        b.put_u8(0);
    }
    Req::new(Command::Write, b).charge(charge(data.len()))
}
/// Offset, length and flags of each lock.
pub fn lock(id: FileId, sequence: u32, locks: &[(u64, u64, u32)]) -> Req {
    let mut b = Vec::new();
    b.put_u16(48);
    b.put_u16(locks.len() as u16);
    b.put_u32(sequence);
    id.put(&mut b);
    for (offset, len, flags) in locks {
        b.put_u64(*offset);
        b.put_u64(*len);
        b.put_u32(*flags);
        b.put_u32(0);
    }
    Req::new(Command::Lock, b)
}
pub fn ioctl(id: FileId, code: u32, input: &[u8], max_output: u32) -> Req {
    let mut b = Vec::new();
    b.put_u16(57);
    b.put_u16(0);
    b.put_u32(code);
    id.put(&mut b);
    b.put_u32(64 + 56);
    b.put_u32(input.len() as u32);
    b.put_u32(0);
    b.put_u32(0);
    b.put_u32(0);
    b.put_u32(max_output);
    b.put_u32(1);
    b.put_u32(0);
    b.extend_from_slice(input);
    if input.is_empty() {
        b.put_u8(0);
    }
    Req::new(Command::Ioctl, b).charge(charge(input.len().max(max_output as usize)))
}
pub fn query_directory(id: FileId, class: u8, flags: u8, pattern: &str, max: u32) -> Req {
    let mut b = Vec::new();
    b.put_u16(33);
    b.put_u8(class);
    b.put_u8(flags);
    b.put_u32(0);
    id.put(&mut b);
    b.put_u16(64 + 32);
    b.put_u16((arden_wire::names::name_units(pattern) * 2) as u16);
    b.put_u32(max);
    arden_wire::names::put_name_units(&mut b, pattern);
    if pattern.is_empty() {
        b.put_u8(0);
    }
    Req::new(Command::QueryDirectory, b).charge(charge(max as usize))
}
pub fn notify(id: FileId, flags: u16, filter: u32, max: u32) -> Req {
    let mut b = Vec::new();
    b.put_u16(32);
    b.put_u16(flags);
    b.put_u32(max);
    id.put(&mut b);
    b.put_u32(filter);
    b.put_u32(0);
    Req::new(Command::ChangeNotify, b).charge(charge(max as usize))
}
pub fn query_info(id: FileId, kind: u8, class: u8, additional: u32, input: &[u8], max: u32) -> Req {
    query_info_flagged(id, (kind, class), (additional, 0), input, max)
}
/// A scan of extended attributes: the flags of [`ea_scan`](arden_wire::smb2::info::ea_scan), and where it begins.
pub fn query_eas(id: FileId, flags: u32, index: u32, input: &[u8], max: u32) -> Req {
    query_info_flagged(id, (info_type::FILE, file_class::FULL_EA), (index, flags), input, max)
}
fn query_info_flagged(
    id: FileId,
    (kind, class): (u8, u8),
    (additional, flags): (u32, u32),
    input: &[u8],
    max: u32,
) -> Req {
    let mut b = Vec::new();
    b.put_u16(41);
    b.put_u8(kind);
    b.put_u8(class);
    b.put_u32(max);
    b.put_u16(if input.is_empty() { 0 } else { 64 + 40 });
    b.put_u16(0);
    b.put_u32(input.len() as u32);
    b.put_u32(additional);
    b.put_u32(flags);
    id.put(&mut b);
    b.extend_from_slice(input);
    if input.is_empty() {
        b.put_u8(0);
    }
    Req::new(Command::QueryInfo, b).charge(charge(max as usize))
}
pub fn set_info(id: FileId, kind: u8, class: u8, additional: u32, data: &[u8]) -> Req {
    let mut b = Vec::new();
    b.put_u16(33);
    b.put_u8(kind);
    b.put_u8(class);
    b.put_u32(data.len() as u32);
    b.put_u16(64 + 32);
    b.put_u16(0);
    b.put_u32(additional);
    id.put(&mut b);
    b.extend_from_slice(data);
    if data.is_empty() {
        b.put_u8(0);
    }
    Req::new(Command::SetInfo, b).charge(charge(data.len()))
}
pub fn oplock_ack(id: FileId, level: u8) -> Req {
    let mut b = Vec::new();
    b.put_u16(24);
    b.put_u8(level);
    b.put_zeros(5);
    id.put(&mut b);
    Req::new(Command::OplockBreak, b)
}
pub fn lease_ack(key: u128, state: &str) -> Req {
    let mut b = Vec::new();
    b.put_u16(36);
    b.put_zeros(6);
    b.put_u128(key);
    b.put_u32(state_bits(state));
    b.put_u64(0);
    Req::new(Command::OplockBreak, b)
}
pub fn tree_connect(path: &str) -> Req {
    let mut b = Vec::new();
    b.put_u16(9);
    b.put_u16(0);
    b.put_u16(64 + 8);
    b.put_u16((path.encode_utf16().count() * 2) as u16);
    b.put_utf16(path);
    Req::new(Command::TreeConnect, b).tree(0)
}
pub fn echo() -> Req {
    Req::empty(Command::Echo).tree(0)
}
pub fn session_setup(flags: u8, mode: u8, previous: u64, token: &[u8]) -> Req {
    let mut b = Vec::new();
    b.put_u16(25);
    b.put_u8(flags);
    b.put_u8(mode);
    b.put_u32(1);
    b.put_u32(0);
    b.put_u16(64 + 24);
    b.put_u16(token.len() as u16);
    b.put_u64(previous);
    b.extend_from_slice(token);
    Req::new(Command::SessionSetup, b).tree(0).credits(64)
}
