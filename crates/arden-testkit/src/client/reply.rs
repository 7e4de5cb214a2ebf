//! What the server said, and how tests look into it.

pub use arden_store::fs::lease_state::{letters as state_text, of_letters as state_bits};
use arden_wire::{
    FileTime, NtStatus,
    cursor::Reader,
    smb2::{FileId, Header, create::LeaseContext, create::tag},
};

#[derive(Debug, Clone)]
pub struct Reply {
    pub header: Header,
    /// From the header on.
    pub message: Vec<u8>,
    pub signed: bool,
    pub encrypted: bool,
}

impl Reply {
    pub fn status(&self) -> NtStatus {
        NtStatus(self.header.status)
    }
    pub fn body(&self) -> &[u8] {
        &self.message[64..]
    }
    pub fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.body()[at..at + 2].try_into().unwrap())
    }
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.body()[at..at + 4].try_into().unwrap())
    }
    pub fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.body()[at..at + 8].try_into().unwrap())
    }
    pub fn slice(&self, offset: usize, len: usize) -> &[u8] {
        if len == 0 { &[] } else { &self.message[offset..offset + len] }
    }
    /// QUERY_INFO, QUERY_DIRECTORY and CHANGE_NOTIFY.
    pub fn buffer(&self) -> &[u8] {
        self.slice(self.u16(2).into(), self.u32(4) as usize)
    }
    /// IOCTL.
    pub fn ioctl_output(&self) -> &[u8] {
        self.slice(self.u32(32) as usize, self.u32(36) as usize)
    }
    /// READ.
    pub fn read_data(&self) -> &[u8] {
        self.slice(self.body()[2].into(), self.u32(4) as usize)
    }
    /// Success or the error.
    pub fn result(self) -> Result<Reply, NtStatus> {
        if self.status() == NtStatus::SUCCESS { Ok(self) } else { Err(self.status()) }
    }
    #[track_caller]
    pub fn ok(self) -> Reply {
        assert_eq!(self.status(), NtStatus::SUCCESS);
        self
    }
}

/// A CREATE response.
#[derive(Debug, Clone)]
pub struct Created {
    pub id: FileId,
    pub oplock: u8,
    pub action: u32,
    pub creation: FileTime,
    pub last_access: FileTime,
    pub last_write: FileTime,
    pub change: FileTime,
    pub allocation: u64,
    pub size: u64,
    pub attributes: u32,
    pub contexts: Vec<(Vec<u8>, Vec<u8>)>,
}

pub const SUPERSEDED: u32 = 0;
pub const OPENED: u32 = 1;
pub const CREATED: u32 = 2;
pub const OVERWRITTEN: u32 = 3;

impl Created {
    pub fn parse(reply: &Reply) -> Created {
        let mut r = Reader::new(reply.body());
        assert_eq!(r.u16().unwrap(), 89);
        let oplock = r.u8().unwrap();
        r.skip(1).unwrap();
        let action = r.u32().unwrap();
        let mut time = || FileTime(r.u64().unwrap());
        let (creation, last_access, last_write, change) = (time(), time(), time(), time());
        let (allocation, size, attributes) = (r.u64().unwrap(), r.u64().unwrap(), r.u32().unwrap());
        r.skip(4).unwrap();
        let id = FileId::read(&mut r).unwrap();
        let (offset, len) = (r.u32().unwrap() as usize, r.u32().unwrap() as usize);
        let contexts = match len {
            0 => Vec::new(),
            _ => arden_wire::smb2::create::parse_contexts(reply.slice(offset, len))
                .unwrap()
                .into_iter()
                .map(|c| (c.name.to_vec(), c.data.to_vec()))
                .collect(),
        };
        Created {
            id,
            oplock,
            action,
            creation,
            last_access,
            last_write,
            change,
            allocation,
            size,
            attributes,
            contexts,
        }
    }

    pub fn context(&self, name: &[u8]) -> Option<&[u8]> {
        self.contexts.iter().find(|(n, _)| n == name).map(|(_, d)| &d[..])
    }
    /// "RWH" as granted; "" without a lease.
    pub fn lease(&self) -> String {
        self.lease_context().map_or_else(String::new, |l| state_text(l.state))
    }
    pub fn lease_context(&self) -> Option<LeaseContext> {
        self.context(tag::LEASE).map(|d| LeaseContext::parse(d).unwrap())
    }
    pub fn is_durable(&self) -> bool {
        self.context(tag::DURABLE_REQUEST).is_some()
    }
    /// The time-out of a durable v2 handle.
    pub fn durable_v2(&self) -> Option<u32> {
        self.context(tag::DURABLE_REQUEST_V2).map(|d| u32::from_le_bytes(d[..4].try_into().unwrap()))
    }
}

/// A break notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Break {
    Oplock { id: FileId, level: u8 },
    Lease { key: u128, from: String, to: String, ack: bool, epoch: u16 },
}

impl Break {
    pub fn parse(reply: &Reply) -> Break {
        let mut r = Reader::new(reply.body());
        if r.u16().unwrap() == 24 {
            let level = r.u8().unwrap();
            r.skip(5).unwrap();
            return Break::Oplock { id: FileId::read(&mut r).unwrap(), level };
        }
        let epoch = r.u16().unwrap();
        let ack = r.u32().unwrap() & 1 != 0;
        let key = r.u128().unwrap();
        let (from, to) = (state_text(r.u32().unwrap()), state_text(r.u32().unwrap()));
        Break::Lease { key, from, to, ack, epoch }
    }
}
