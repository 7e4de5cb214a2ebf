//! Enumerating a directory, in the order of the folded names.

use std::{collections::VecDeque, sync::Arc};

use arden_store::store::{DirCursor, DirEntry, Result};

use crate::{
    disk::{
        inode::{Inode, NameEntry},
        keys::{self, Key},
    },
    engine::view::View,
    facade::shared::Shared,
    files::{names::name_key, open::OpenFile},
};

/// Names read ahead.
const BATCH: usize = 128;

pub struct Cursor {
    shared: Arc<Shared>,
    directory: Arc<OpenFile>,
    batch: VecDeque<NameEntry>,
    next: Key,
    finished: bool,
    peeked: Option<DirEntry>,
}

impl Cursor {
    pub fn new(shared: Arc<Shared>, directory: Arc<OpenFile>) -> Cursor {
        let next = keys::one(keys::NAME, directory.ino);
        Cursor { shared, directory, batch: VecDeque::new(), next, finished: false, peeked: None }
    }

    fn fill(&mut self) -> Result<()> {
        let end = keys::end_of(keys::NAME, self.directory.ino);
        let found = self.shared.view()?.collect(&self.next, &end, BATCH)?;
        self.finished = found.len() < BATCH;
        if let Some((last, _)) = found.last() {
            self.next.clone_from(last);
            self.next.push(0);
        }
        for (_, value) in &found {
            self.batch.push_back(NameEntry::decode(value)?);
        }
        Ok(())
    }

    /// None when it is gone by now.
    fn stat(&self, entry: &NameEntry) -> Result<Option<DirEntry>> {
        let Some(value) = self.shared.view()?.get(&keys::one(keys::INODE, entry.ino))? else { return Ok(None) };
        let inode = Inode::decode(&value)?;
        let stat = self.shared.stat(entry.ino, &inode, None);
        Ok(Some(DirEntry { name: entry.name.clone(), stat }))
    }
}

impl DirCursor for Cursor {
    fn rewind(&mut self) -> Result<()> {
        self.next = keys::one(keys::NAME, self.directory.ino);
        self.batch.clear();
        self.finished = false;
        self.peeked = None;
        Ok(())
    }

    fn peek(&mut self, accept: &dyn Fn(&str) -> bool) -> Result<Option<DirEntry>> {
        if let Some(entry) = self.peeked.as_ref().filter(|e| accept(&e.name)) {
            return Ok(Some(entry.clone()));
        }
        self.peeked = None;
        loop {
            while let Some(entry) = self.batch.pop_front() {
                if !accept(&entry.name) {
                    continue;
                }
                if let Some(found) = self.stat(&entry)? {
                    self.peeked = Some(found.clone());
                    return Ok(Some(found));
                }
            }
            if self.finished {
                return Ok(None);
            }
            self.fill()?;
        }
    }

    fn advance(&mut self) {
        self.peeked = None;
    }

    fn read_ahead_bytes(&self) -> usize {
        let names: usize = self.batch.iter().map(|e| e.name.capacity()).sum();
        names + self.batch.capacity() * size_of::<NameEntry>()
    }

    fn forget_read_ahead(&mut self) -> Result<()> {
        let first = self.peeked.as_ref().map(|e| &e.name).or(self.batch.front().map(|e| &e.name));
        if let Some(name) = first {
            self.next = name_key(self.directory.ino, name);
            self.finished = false;
        }
        (self.batch, self.peeked) = (VecDeque::new(), None);
        Ok(())
    }
}
