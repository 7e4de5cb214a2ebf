//! Enumerating a directory, in the order of the folded names.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use arden_store::store::{DirCursor, DirEntry, EntryShort, Result};

use crate::{
    disk::{
        inode::{Inode, NameEntry},
        keys::{self, Key, Val},
    },
    engine::view::View,
    facade::shared::Shared,
    files::{
        names::{
            name_key,
            short_names::{self, ShortNames},
        },
        open::OpenFile,
    },
};

/// Names read ahead.
const BATCH: usize = 128;

/// A name that was read ahead.
struct Ahead {
    entry: NameEntry,
    short: EntryShort,
}

impl Ahead {
    fn accepted(&self, accept: &dyn Fn(&str) -> bool) -> bool {
        accept(&self.entry.name) || self.short.is_taken_by(accept)
    }

    fn name_bytes(&self) -> usize {
        self.entry.name.capacity() + if let EntryShort::Kept(Some(short)) = &self.short { short.capacity() } else { 0 }
    }
}

pub struct Cursor {
    shared: Arc<Shared>,
    directory: Arc<OpenFile>,
    batch: VecDeque<Ahead>,
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
        let view = self.shared.view()?;
        let found = view.collect(&self.next, &end, BATCH)?;
        let mut shorts = self.short_names(&view, &found)?;
        self.finished = found.len() < BATCH;
        if let Some((last, _)) = found.last() {
            self.next.clone_from(last);
            self.next.push(0);
        }
        for (key, value) in &found {
            let short = match &mut shorts {
                None => EntryShort::Made,
                Some(shorts) => EntryShort::Kept(shorts.remove(keys::text(key, 9))),
            };
            self.batch.push_back(Ahead { entry: NameEntry::decode(value)?, short });
        }
        Ok(())
    }

    /// The 8.3 names that are kept beside these names, by the folded name. None where they are made.
    fn short_names(&self, view: &dyn View, names: &[(Key, Val)]) -> Result<Option<HashMap<String, String>>> {
        if short_names::setting(view)? == ShortNames::Made {
            return Ok(None);
        }
        let (Some((first, _)), Some((last, _))) = (names.first(), names.last()) else {
            return Ok(Some(HashMap::new()));
        };
        let key = |name: &[u8]| keys::named(keys::SHORT_OF, self.directory.ino, keys::text(name, 9));
        let mut end = key(last);
        end.push(0);
        let found = view.collect(&key(first), &end, usize::MAX)?;
        let shorts = found.iter().map(|(key, value)| Ok((keys::text(key, 9).to_owned(), short_names::decode(value)?)));
        Ok(Some(shorts.collect::<Result<_>>()?))
    }

    /// None when it is gone by now.
    fn stat(&self, Ahead { entry, short }: &Ahead) -> Result<Option<DirEntry>> {
        let Some(value) = self.shared.view()?.get(&keys::one(keys::INODE, entry.ino))? else { return Ok(None) };
        let inode = Inode::decode(&value)?;
        let stat = self.shared.stat(entry.ino, &inode, None);
        Ok(Some(DirEntry { name: entry.name.clone(), short: short.clone(), stat }))
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
        if let Some(entry) = self.peeked.as_ref().filter(|e| e.matches(accept)) {
            return Ok(Some(entry.clone()));
        }
        self.peeked = None;
        loop {
            while let Some(ahead) = self.batch.pop_front() {
                if !ahead.accepted(accept) {
                    continue;
                }
                if let Some(found) = self.stat(&ahead)? {
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
        let names: usize = self.batch.iter().map(Ahead::name_bytes).sum();
        names + self.batch.capacity() * size_of::<Ahead>()
    }

    fn forget_read_ahead(&mut self) -> Result<()> {
        let first = self.peeked.as_ref().map(|e| &e.name).or(self.batch.front().map(|a| &a.entry.name));
        if let Some(name) = first {
            self.next = name_key(self.directory.ino, name);
            self.finished = false;
        }
        (self.batch, self.peeked) = (VecDeque::new(), None);
        Ok(())
    }
}
