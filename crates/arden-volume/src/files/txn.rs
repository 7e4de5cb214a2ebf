//! A transaction as files need it: the engine's, and the files that it is about. Owns what each change of an inode keeps true.

use std::ops::{Deref, DerefMut};

use crate::{
    disk::{
        error::VolResult,
        inode::{Data, Inode},
        keys::{self, Val},
    },
    engine::{
        txn::Txn,
        view::{Take, View},
    },
    files::owner::Files,
};

/// There is one at a time, as of [`Txn`].
pub struct FileTxn<'a> {
    txn: Txn<'a>,
    pub files: &'a Files,
}

impl<'a> Deref for FileTxn<'a> {
    type Target = Txn<'a>;
    fn deref(&self) -> &Txn<'a> {
        &self.txn
    }
}

impl<'a> DerefMut for FileTxn<'a> {
    fn deref_mut(&mut self) -> &mut Txn<'a> {
        &mut self.txn
    }
}

impl View for FileTxn<'_> {
    fn get(&self, key: &[u8]) -> VolResult<Option<Val>> {
        self.txn.get(key)
    }
    fn scan(&self, start: &[u8], end: &[u8], take: &mut Take<'_>) -> VolResult<()> {
        self.txn.scan(start, end, take)
    }
}

impl Files {
    pub fn begin(&self) -> FileTxn<'_> {
        FileTxn { txn: self.engine.begin(), files: self }
    }

    /// See [`Txn::beside`].
    pub fn begin_beside(&self) -> FileTxn<'_> {
        FileTxn { txn: self.engine.begin_beside(), files: self }
    }
}

impl FileTxn<'_> {
    /// As [`Txn::commit`].
    pub fn commit(self) -> VolResult<u64> {
        let (files, freed) = (self.files, self.changes.frees.clone());
        let seq = self.txn.commit()?;
        files.blocks.forget(&freed);
        Ok(seq)
    }

    /// As [`Txn::commit_mended`].
    pub fn commit_mended(self) -> VolResult<u64> {
        self.txn.commit_mended()
    }

    pub fn put_inode(&mut self, ino: u64, inode: &Inode) {
        self.put(keys::one(keys::INODE, ino), inode.encode());
    }

    /// What `data` holds is to be taken away, later and in parts. Answers the id under which it waits.
    pub fn orphan_data(&mut self, data: &Data) -> u64 {
        let sid = data.sid;
        // Promises nothing any more.
        let left = Data { eof: 0, reserved: 0, sparse: true, ..data.clone() };
        self.changes.counters.promised -= data.promised();
        self.put_inode(sid, &Inode { data: left, ..Inode::default() });
        self.put(keys::one(keys::ORPHAN, sid), []);
        if self.core.dirty.contains_key(&sid) {
            self.changes.dirty.push((sid, None));
        }
        sid
    }
}
