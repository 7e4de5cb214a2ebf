//! What an operation on a file or one of its streams works on: the inode, and the stream where it is one. Owns keeping
//! the sums of promised blocks right when sizes change.

use arden_store::{error::StoreError, open_stream::StreamRef};

use crate::{
    disk::{
        inode::{Data, Inode, Stream},
        keys::{self, Key},
    },
    engine::view::View,
    files::{
        access::LastAccess,
        inodes::{load_inode, load_stream, now},
        open::OpenFile,
        txn::FileTxn,
    },
};

#[derive(Debug, Clone)]
pub struct Subject {
    pub ino: u64,
    pub inode: Inode,
    pub stream: Option<(Key, Stream)>,
    promised_before: i64,
    touched: bool,
}

impl Subject {
    pub fn load(view: &dyn View, file: &OpenFile, stream: Option<&StreamRef>) -> Result<Subject, StoreError> {
        let inode = load_inode(view, file.ino)?;
        let stream = match stream.filter(|s| !s.is_unnamed()) {
            None if inode.directory => return Err(StoreError::WrongObject),
            None => None,
            Some(s) => {
                let name = s.name()?;
                Some(load_stream(view, file.ino, &name)?.ok_or(StoreError::Deleted)?)
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

    pub fn save(mut self, t: &mut FileTxn<'_>) {
        t.changes.counters.promised += self.data().promised() - self.promised_before;
        if self.touched && t.files.last_access() == LastAccess::Always {
            self.inode.last_access = self.inode.last_write;
        }
        t.put(keys::one(keys::INODE, self.ino), self.inode.encode());
        if let Some((key, stream)) = self.stream {
            t.put(key, stream.encode());
        }
    }
}
