//! The change journal: what happened to files, in order, as records of the transactions that did it (`usn_record`). Nobody is
//! told of a USN that a crash could take back.

use std::sync::Arc;

use arden_store::{
    store::WatchGuard,
    usn::{JournalInfo, Record, reason},
};
use arden_wire::FileTime;

use crate::{
    disk::{
        error::{VolError, VolResult},
        keys::JOURNAL,
        superblock::feature,
    },
    engine::{deferred::Deferred, owner::Engine, view::View},
    features::{
        usn_format::{
            LAST, RECORD, decode, encode_info, high_key, info_of, last_key, number, record_key, settings_key,
        },
        usn_record::{Recorder, append},
        usnwatch::Wake,
    },
    files::inodes::{load_inode, now},
};

const MAX_BYTES_MIN: u64 = 64 << 10;
const DEFAULT_BYTES: u64 = 32 << 20;

/// The volume's change journal, as it is asked for and read.
pub struct ChangeJournal {
    engine: Arc<Engine>,
    recorder: Arc<Recorder>,
}

impl ChangeJournal {
    pub fn new(engine: Arc<Engine>, recorder: Arc<Recorder>) -> Arc<ChangeJournal> {
        Arc::new(ChangeJournal { engine, recorder })
    }

    fn journal(&self) -> VolResult<JournalInfo> {
        info_of(&self.engine.reading())?.ok_or(VolError::NoJournal)
    }

    /// Nobody is told of a USN that a crash could take back: all that is told is durable.
    pub fn info(&self) -> VolResult<JournalInfo> {
        self.write_close_records()?;
        let j = self.journal()?;
        self.engine.sync()?;
        Ok(j)
    }

    /// Begins a journal, or changes the size of the one there is.
    pub fn create(&self, max_bytes: u64, delta_bytes: u64) -> VolResult<()> {
        self.engine.use_feature(feature::CHANGE_JOURNAL)?;
        let max_bytes = if max_bytes == 0 { DEFAULT_BYTES } else { max_bytes.max(MAX_BYTES_MIN) };
        let delta_bytes = if delta_bytes == 0 { max_bytes / 4 } else { delta_bytes.min(max_bytes) };
        if info_of(&self.engine.reading())?.is_none() {
            // A crash may have cut the deletion of the one before short.
            self.forget_records()?;
        }
        let mut t = self.engine.begin();
        let j = match info_of(&t)? {
            Some(j) => JournalInfo { max_bytes, delta_bytes, ..j },
            // Of a journal before this one nothing is left but where its USNs ended.
            None => {
                let first = t.get(&high_key())?.and_then(|v| (*v).try_into().ok()).map_or(8, u64::from_le_bytes);
                JournalInfo { id: now().0, first, next: first, max_bytes, delta_bytes }
            }
        };
        t.put(settings_key(), encode_info(&j));
        let seq = t.commit()?;
        self.engine.commit_to(seq)
    }

    /// `id` is the journal's.
    pub fn delete(&self, id: u64) -> VolResult<()> {
        let j = self.journal()?;
        if j.id != id {
            return Err(VolError::NoRecord);
        }
        self.engine.make_room_for_less()?;
        // First no more records, then those that are there.
        let mut t = self.engine.begin();
        t.delete(settings_key());
        t.put(high_key(), j.next.to_le_bytes());
        t.commit()?;
        self.recorder.unclosed.forget_all();
        match self.forget_records() {
            // The journal is deleted all the same. What is left of it goes when there is room, before the next begins.
            Err(VolError::Full) => {}
            done => done?,
        }
        self.engine.sync()
    }

    /// Takes away the records of a journal that is deleted, in as many operations as it takes.
    fn forget_records(&self) -> VolResult<()> {
        loop {
            self.engine.make_room_for_less()?;
            let mut t = self.engine.begin();
            let some = t.collect(&[JOURNAL, RECORD], &[JOURNAL, LAST + 1], 2000)?;
            if some.is_empty() {
                return Ok(());
            }
            some.into_iter().for_each(|(key, _)| t.delete(key));
            t.commit()?;
        }
    }

    /// Records from `from` on (0: from the oldest) as long as `take` takes them; where to go on.
    pub fn read(&self, from: u64, take: &mut dyn FnMut(&Record) -> bool) -> VolResult<u64> {
        let j = self.info()?;
        if from != 0 && from < j.first {
            return Err(VolError::NoRecord);
        }
        let (mut next, mut result) = (j.next, Ok(()));
        self.engine.reading().scan(&record_key(from.max(j.first)), &record_key(j.next), &mut |key, value| {
            match decode(number(key), value) {
                Ok(record) if take(&record) => return true,
                Ok(record) => next = record.usn,
                Err(e) => result = Err(e),
            }
            false
        })?;
        result.map(|()| next)
    }

    /// The last record of a file as [MS-FSA] 2.1.5.10.27 has it.
    pub fn of_file(&self, ino: u64) -> VolResult<Record> {
        let view = self.engine.reading();
        let inode = load_inode(&view, ino)?;
        let usn = view.get(&last_key(ino))?.and_then(|v| (*v).try_into().ok()).map_or(0, u64::from_le_bytes);
        let attributes = inode.shown_attributes(&inode.data);
        let (parent, name) = (inode.parent, inode.name);
        Ok(Record { usn, file: ino, parent, time: FileTime(0), reason: 0, attributes, name })
    }

    /// A record that the file was closed, whoever still has it open.
    pub fn write_close_record(&self, ino: u64) -> VolResult<u64> {
        self.engine.make_room()?;
        let mut t = self.engine.begin();
        if !self.recorder.is_on() {
            return Err(VolError::NoJournal);
        }
        let inode = load_inode(&t, ino)?;
        let before = self.recorder.unclosed.said(ino).unwrap_or(0);
        let usn = append(&mut t, ino, &inode, before | reason::CLOSE)?;
        let unclosed = self.recorder.unclosed.clone();
        t.on_applied(move || unclosed.forget(ino));
        t.commit()?;
        Ok(usn)
    }

    /// For files that nobody has open any more.
    fn write_close_records(&self) -> VolResult<()> {
        let closed = self.recorder.unclosed.take_closed();
        if closed.is_empty() {
            return Ok(());
        }
        let mut t = self.engine.begin();
        if !self.recorder.is_on() {
            return Ok(());
        }
        for ino in closed {
            // Opened again meanwhile, or gone.
            if self.recorder.open.in_use(ino).is_some() {
                continue;
            }
            let Some(reasons) = self.recorder.unclosed.said(ino) else { continue };
            let unclosed = self.recorder.unclosed.clone();
            t.on_applied(move || unclosed.forget(ino));
            if let Ok(inode) = load_inode(&t, ino) {
                append(&mut t, ino, &inode, reasons | reason::CLOSE)?;
            }
        }
        t.commit().map(|_| ())
    }

    /// Calls `wake` once, until the guard is dropped: when the journal ends at `usn` or behind it, is deleted, or has to be
    /// asked where it ends. May do so with the volume locked.
    pub fn watch(&self, usn: u64, wake: Wake) -> VolResult<WatchGuard> {
        let watchers = &self.recorder.unclosed.watchers;
        let guard = watchers.add(usn, wake);
        // What came before it was on the list nobody tells it.
        watchers.moved(Some(self.end()?));
        Ok(guard)
    }

    /// Where the journal ends, also while that is not durable.
    pub fn end(&self) -> VolResult<u64> {
        self.write_close_records()?;
        Ok(self.journal()?.next)
    }
}

impl Deferred for ChangeJournal {
    fn before_change(&self) -> VolResult<()> {
        self.write_close_records()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    };

    use super::*;
    use crate::{
        disk::device::MemDevice,
        testing::{Files, Volume, Watched, volume, volume_on},
    };

    #[test]
    fn an_end_that_is_told_while_others_write_is_there_after_a_crash() {
        let (memory, vol) = volume(16 << 20);
        vol.create_journal(0, 0).unwrap();
        vol.close().unwrap();
        drop(vol);
        let (held, armed): (Arc<OnceLock<Arc<Volume>>>, Arc<AtomicBool>) = Default::default();
        let (other, writes) = (held.clone(), armed.clone());
        // While what is asked for is being made durable somebody else changes a file.
        let before_write = move |_: u64, _: &[u8]| {
            if let Some(vol) = other.get().filter(|_| writes.swap(false, Ordering::SeqCst)) {
                let vol = vol.clone();
                std::thread::spawn(move || drop(Files::new(&vol).write("later", b"later"))).join().unwrap();
            }
        };
        let vol = volume_on(Arc::new(Watched { memory: memory.clone(), before_write }));
        assert!(held.set(vol.clone()).is_ok());
        Files::new(&vol).write("first", b"first");
        armed.store(true, Ordering::SeqCst);
        let told = vol.journal_info().unwrap();
        assert!(!armed.load(Ordering::SeqCst) && vol.journal.end().unwrap() > told.next, "nothing came between");
        let after = volume_on(Arc::new(MemDevice::holding(memory.content())));
        assert!(after.journal_info().unwrap().next >= told.next);
    }
}
