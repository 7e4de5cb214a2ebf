//! What an operation on a file or one of its streams works on: the inode, and the stream where it is one. Owns keeping
//! the sums of promised blocks right when sizes change.

use std::time::SystemTime;

use arden_store::name::fold;
use arden_wire::{FileTime, NtStatus};

use crate::{
    disk::{
        error::{VolError, VolResult},
        inode::{Data, Inode, Stream},
        keys,
    },
    engine::{
        kv::{Txn, View},
        tree::Key,
    },
    files::{
        access::LastAccess,
        open::{OpenFile, StreamRef},
    },
};

pub fn now() -> FileTime {
    FileTime::from_system(SystemTime::now())
}

pub fn load_inode(view: &dyn View, ino: u64) -> VolResult<Inode> {
    let value = view.get(&keys::one(keys::INODE, ino))?.ok_or(VolError::Corrupt("an inode is missing"))?;
    Inode::decode(&value)
}

pub fn load_stream(view: &dyn View, ino: u64, name: &str) -> VolResult<Option<(Key, Stream)>> {
    let key = keys::named(keys::STREAM, ino, &fold(name));
    match view.get(&key)? {
        Some(value) => Ok(Some((key, Stream::decode(&value)?))),
        None => Ok(None),
    }
}

#[derive(Debug, Clone)]
pub struct Subject {
    pub ino: u64,
    pub inode: Inode,
    pub stream: Option<(Key, Stream)>,
    promised_before: i64,
    touched: bool,
}

impl Subject {
    pub fn load(view: &dyn View, file: &OpenFile, stream: Option<&StreamRef>) -> Result<Subject, NtStatus> {
        let inode = load_inode(view, file.ino)?;
        let stream = match stream.filter(|s| !s.is_unnamed()) {
            None if inode.directory => return Err(NtStatus::INVALID_DEVICE_REQUEST),
            None => None,
            Some(s) => {
                let state = s.state.lock().clone();
                if state.gone {
                    return Err(NtStatus::FILE_DELETED);
                }
                Some(load_stream(view, file.ino, &state.name)?.ok_or(NtStatus::FILE_DELETED)?)
            }
        };
        let mut s = Subject { ino: file.ino, inode, stream, promised_before: 0, touched: false };
        s.promised_before = s.data().promised();
        Ok(s)
    }

    pub fn data(&self) -> &Data {
        self.stream.as_ref().map_or(&self.inode.data, |(_, s)| &s.data)
    }

    pub fn data_mut(&mut self) -> &mut Data {
        match &mut self.stream {
            Some((_, s)) => &mut s.data,
            None => &mut self.inode.data,
        }
    }

    /// The data changed now.
    pub fn touch(&mut self) {
        let now = now();
        self.inode.last_write = now;
        self.inode.change = now;
        self.touched = true;
    }

    pub fn save(mut self, t: &mut Txn<'_>) {
        t.counters.promised += self.data().promised() - self.promised_before;
        if self.touched && t.vol.last_access() == LastAccess::Always {
            self.inode.last_access = self.inode.last_write;
        }
        t.put(keys::one(keys::INODE, self.ino), self.inode.encode());
        if let Some((key, stream)) = self.stream {
            t.put(key, stream.encode());
        }
    }
}

impl Txn<'_> {
    pub fn put_inode(&mut self, ino: u64, inode: &Inode) {
        self.put(keys::one(keys::INODE, ino), inode.encode());
    }

    /// What `data` holds is to be taken away, later and in parts. Answers the id under which it waits.
    pub fn orphan_data(&mut self, data: &Data) -> u64 {
        let sid = data.sid;
        // Promises nothing any more.
        let left = Data { eof: 0, reserved: 0, sparse: true, ..data.clone() };
        self.counters.promised -= data.promised();
        self.put_inode(sid, &Inode { data: left, ..Inode::default() });
        self.put(keys::one(keys::ORPHAN, sid), []);
        if self.core.dirty.contains_key(&sid) {
            self.dirty.push((sid, None));
        }
        sid
    }
}
