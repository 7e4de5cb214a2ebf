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
        let ahead = found.iter().map(|(key, value)| {
            let short = match &mut shorts {
                None => EntryShort::Made,
                Some(shorts) => EntryShort::Kept(shorts.remove(keys::text(key, 9))),
            };
            Ok(Ahead { entry: NameEntry::decode(value)?, short })
        });
        // All or nothing: whoever asks again after an error goes on where he was.
        self.batch = ahead.collect::<Result<_>>()?;
        self.finished = found.len() < BATCH;
        if let Some((last, _)) = found.last() {
            self.next.clone_from(last);
            self.next.push(0);
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
            while let Some(ahead) = self.batch.front() {
                // One that cannot be read stays: the next answer is that again, and not a directory without it.
                let found = if ahead.accepted(accept) { self.stat(ahead)? } else { None };
                self.batch.pop_front();
                if let Some(found) = found {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use arden_block::{Device, IoError, IoResult};
    use arden_store::store::FileStore;

    use super::*;
    use crate::{
        disk::device::MemDevice,
        testing::{Files, Volume, VolumeOptions, options, volume},
    };

    /// Memory, of which at times nothing can be read.
    struct Failing {
        memory: MemDevice,
        fails: AtomicBool,
    }

    impl Device for Failing {
        fn size_bytes(&self) -> u64 {
            self.memory.size_bytes()
        }
        fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
            if self.fails.load(Ordering::Relaxed) { Err(IoError::Media) } else { self.memory.read(offset, buf) }
        }
        fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
            self.memory.write(offset, data)
        }
        fn flush(&self) -> IoResult<()> {
            Ok(())
        }
        fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
            self.memory.discard(offset, len)
        }
    }

    #[test]
    fn whoever_asks_again_after_an_error_misses_no_name() {
        const NAMES: usize = 6000;
        let (memory, vol) = volume(64 << 20);
        let files = Files::new(&vol);
        let name = |i: usize| format!("{i:05} with a name that is long enough for many nodes of the tree");
        (0..NAMES).for_each(|i| drop(files.make(&name(i), false).unwrap()));
        vol.checkpoint().unwrap();
        let device = Arc::new(Failing { memory: MemDevice::holding(memory.content()), fails: AtomicBool::new(false) });
        let vol = Volume::open(device.clone(), VolumeOptions { cache_bytes: 0, ..options() }).unwrap();
        let mut cursor = Files::new(&vol).store.root().list().unwrap();
        let (mut found, mut errors) = (0, 0);
        loop {
            device.fails.store(true, Ordering::Relaxed);
            let mut next = cursor.peek(&|_| true);
            device.fails.store(false, Ordering::Relaxed);
            if next.is_err() {
                errors += 1;
                next = cursor.peek(&|_| true);
            }
            let Some(entry) = next.unwrap() else { break };
            assert_eq!(entry.name, name(found));
            cursor.advance();
            found += 1;
        }
        assert!(found == NAMES && errors > 5, "{found} names, {errors} errors");
    }
}
