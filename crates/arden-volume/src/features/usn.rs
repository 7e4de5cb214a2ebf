//! The change journal: what happened to files, in order, as records of the transactions that did it. Reasons are told
//! from what a transaction changes; those of one file add up until nobody has it open any more. Kept to a size by
//! taking the oldest records away. A USN is an offset in the stream of all records ever written and is never given twice:
//! nobody is told one that a crash could take back.

use std::{cmp::Ordering, collections::BTreeMap};

use arden_store::usn::{JournalInfo, Record, reason};
use arden_wire::{
    FileTime,
    cursor::{Put, Reader},
};
use parking_lot::Mutex;

use crate::{
    disk::{
        device::BLOCK,
        error::{VolError, VolResult},
        inode::{Data, Inode, Stream},
        keys::{self, JOURNAL},
        superblock::feature,
    },
    engine::{
        kv::{CoreView, Txn, View},
        tree::Key,
        volume::Volume,
    },
    files::subject::now,
};

const SETTINGS: u8 = 0;
const RECORD: u8 = 1;
const LAST: u8 = 2;
const HIGH: u8 = 3;
/// Sizes of USN_RECORD_V2: what a record counts as, whatever it takes here.
const RECORD_HEADER: usize = 60;
/// Records that one transaction takes away; more than it adds.
const TRIMMED_AT_ONCE: usize = 64;
const MAX_BYTES_MIN: u64 = 64 << 10;
const DEFAULT_BYTES: u64 = 32 << 20;

fn settings_key() -> Key {
    vec![JOURNAL, SETTINGS]
}

pub fn is_settings(key: &[u8]) -> bool {
    *key == [JOURNAL, SETTINGS]
}

fn record_key(usn: u64) -> Key {
    [&[JOURNAL, RECORD][..], &usn.to_be_bytes()].concat()
}

/// The last USN of a file.
fn last_key(ino: u64) -> Key {
    [&[JOURNAL, LAST][..], &ino.to_be_bytes()].concat()
}

/// Where the USNs of a journal that was deleted ended.
fn high_key() -> Key {
    vec![JOURNAL, HIGH]
}

fn number(key: &[u8]) -> u64 {
    key.get(2..10).and_then(|b| b.try_into().ok()).map_or(0, u64::from_be_bytes)
}

fn record_bytes(name: &str) -> u64 {
    (RECORD_HEADER + name.encode_utf16().count() * 2).next_multiple_of(8) as u64
}

fn encode_info(j: &JournalInfo) -> Vec<u8> {
    let mut out = Vec::with_capacity(40);
    [j.id, j.first, j.next, j.max_bytes, j.delta_bytes].iter().for_each(|n| out.put_u64(*n));
    out
}

pub fn info_of(view: &dyn View) -> VolResult<Option<JournalInfo>> {
    let Some(value) = view.get(&settings_key())? else { return Ok(None) };
    let mut r = Reader::new(&value);
    let (id, first, next, max_bytes, delta_bytes) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?, r.u64()?);
    Ok(Some(JournalInfo { id, first, next, max_bytes, delta_bytes }))
}

/// Of the settings: where the journal ends.
pub fn end_of(value: &[u8]) -> Option<u64> {
    value.get(16..24).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes)
}

fn encode(r: &Record) -> Vec<u8> {
    let mut out = Vec::with_capacity(40 + r.name.len());
    [r.file, r.parent, r.time.0].iter().for_each(|n| out.put_u64(*n));
    out.put_u32(r.reason);
    out.put_u32(r.attributes);
    out.extend_from_slice(r.name.as_bytes());
    out
}

fn decode(usn: u64, value: &[u8]) -> VolResult<Record> {
    let mut r = Reader::new(value);
    let (file, parent, time) = (r.u64()?, r.u64()?, FileTime(r.u64()?));
    let (reason, attributes) = (r.u32()?, r.u32()?);
    let name = String::from_utf8(r.rest().to_vec()).map_err(|_| VolError::Corrupt("a record of the change journal"))?;
    Ok(Record { usn, file, parent, time, reason, attributes, name })
}

/// Reasons of files that are open, and files that nobody has open any more.
#[derive(Default)]
pub struct Unclosed {
    reasons: Mutex<BTreeMap<u64, u32>>,
    closed: Mutex<Vec<u64>>,
}

impl Unclosed {
    /// The last user of this file went; whether there is anything to be said of that.
    pub fn closed(&self, ino: u64) -> bool {
        let said = self.reasons.lock().contains_key(&ino);
        if said {
            self.closed.lock().push(ino);
        }
        said
    }
}

/// Reasons from one stream's data before and after; `written`: blocks of it were put, the lowest one.
fn data_reasons(old: &Data, new: &Data, written: Option<u64>) -> u32 {
    match new.eof.cmp(&old.eof) {
        Ordering::Less => reason::DATA_TRUNCATION,
        Ordering::Equal if written.is_some() => reason::DATA_OVERWRITE,
        Ordering::Equal => 0,
        // What goes on in the last block is no overwriting.
        Ordering::Greater if written.is_some_and(|b| b < old.eof / BLOCK as u64) => {
            reason::DATA_EXTEND | reason::DATA_OVERWRITE
        }
        Ordering::Greater => reason::DATA_EXTEND,
    }
}

/// A transaction's inode: before, after.
type Pair = (Option<Inode>, Option<Inode>);

impl Txn<'_> {
    fn inode_before_and_after(&self, ino: u64) -> VolResult<Pair> {
        let key = keys::one(keys::INODE, ino);
        let old = CoreView { core: &self.core, tree: &self.vol.tree }.get(&key)?;
        let decode = |v: Option<crate::engine::tree::Val>| v.map(|v| Inode::decode(&v)).transpose();
        Ok((decode(old)?, decode(self.get(&key)?)?))
    }

    fn stream_reasons(&self, ino: u64) -> VolResult<u32> {
        let old = CoreView { core: &self.core, tree: &self.vol.tree };
        let mut r = 0;
        for key in self.changed_streams(ino) {
            match (old.get(&key)?, self.get(&key)?) {
                (Some(a), Some(b)) => {
                    let (a, b) = (Stream::decode(&a)?, Stream::decode(&b)?);
                    if a.name != b.name {
                        r |= reason::STREAM_CHANGE;
                    }
                    // The bits of named data are those of the unnamed, moved.
                    r |= data_reasons(&a.data, &b.data, self.lowest_written(b.data.sid)) << 4;
                }
                _ => r |= reason::STREAM_CHANGE,
            }
        }
        Ok(r)
    }

    fn reasons(&self, ino: u64, old: &Inode, new: &Inode) -> VolResult<u32> {
        let mut r = self.stream_reasons(ino)?;
        if !new.directory {
            r |= data_reasons(&old.data, &new.data, self.lowest_written(new.data.sid));
        }
        let data = r != 0;
        let same_place = (old.parent, &old.name) == (new.parent, &new.name);
        if old.links != new.links {
            r |= reason::HARD_LINK_CHANGE;
        }
        let basic = old.attributes != new.attributes
            || old.creation != new.creation
            || old.data.sparse != new.data.sparse
            || (!new.directory && !data && same_place && old.links == new.links && old.last_write != new.last_write);
        for (bit, holds) in [
            (reason::BASIC_INFO_CHANGE, basic),
            (reason::SECURITY_CHANGE, old.sd != new.sd),
            (reason::OBJECT_ID_CHANGE, old.object_id != new.object_id),
            (reason::EA_CHANGE, self.changes_any(keys::EAS, ino)),
            (reason::REPARSE_POINT_CHANGE, self.changes_any(keys::REPARSE, ino)),
        ] {
            r |= if holds { bit } else { 0 };
        }
        Ok(r)
    }

    /// Records what this transaction does to files. Last of all, before it is encoded.
    pub fn journal_changes(&mut self) -> VolResult<()> {
        if !self.core.journal {
            return Ok(());
        }
        let mut records: Vec<(Inode, u64, u32)> = Vec::new();
        for (ino, _) in self.changed_files() {
            match self.inode_before_and_after(ino)? {
                // What waits to be taken away under a stream's number was never a file.
                (None, Some(new)) if new.links > 0 => records.push((new, ino, reason::FILE_CREATE)),
                (Some(old), Some(new)) if old.links > 0 && new.links == 0 => {
                    records.push((old, ino, reason::FILE_DELETE | reason::CLOSE));
                }
                (Some(_), None) => self.delete(last_key(ino)),
                (Some(old), Some(new)) if new.links > 0 => {
                    let r = self.reasons(ino, &old, &new)?;
                    if old.links == new.links && (old.parent, &old.name) != (new.parent, &new.name) {
                        records.push((old.clone(), ino, r | reason::RENAME_OLD_NAME));
                        records.push((new, ino, r | reason::RENAME_NEW_NAME));
                    } else if r != 0 {
                        records.push((new, ino, r));
                    }
                }
                _ => {}
            }
        }
        for (inode, ino, reasons) in records {
            self.note(ino, &inode, reasons)?;
        }
        Ok(())
    }

    /// Adds a record when it tells anything new of this open of the file.
    fn note(&mut self, ino: u64, inode: &Inode, reasons: u32) -> VolResult<()> {
        let open = &self.vol.unclosed.reasons;
        let before = open.lock().get(&ino).copied().unwrap_or(0);
        let names = reason::RENAME_OLD_NAME | reason::RENAME_NEW_NAME;
        // A name is news each time, and the old one does not stay among the reasons.
        let stay = if reasons & reason::RENAME_OLD_NAME != 0 { !names } else { !reason::RENAME_OLD_NAME };
        // Nobody will close what nobody has open.
        let unused = reasons & reason::FILE_CREATE == 0 && self.vol.file_in_use(ino).is_none();
        let reasons = if unused { reasons | reason::CLOSE } else { reasons };
        let all = before & stay | reasons;
        if all == before && reasons & names == 0 {
            return Ok(());
        }
        self.append(ino, inode, all)?;
        if reasons & reason::CLOSE != 0 {
            self.forgets.push(ino);
        } else {
            self.reasons.insert(ino, all & !reason::RENAME_OLD_NAME);
        }
        Ok(())
    }

    fn append(&mut self, ino: u64, inode: &Inode, reasons: u32) -> VolResult<u64> {
        let Some(mut j) = info_of(self)? else { return Ok(0) };
        let record = Record {
            usn: j.next,
            file: ino,
            parent: inode.parent,
            time: now(),
            reason: reasons,
            attributes: inode.shown_attributes(inode.data.sparse),
            name: inode.name.clone(),
        };
        self.put(record_key(record.usn), encode(&record));
        self.put(last_key(ino), record.usn.to_le_bytes());
        j.next += record_bytes(&record.name);
        if j.next - j.first > j.max_bytes + j.delta_bytes {
            self.trim(&mut j)?;
        }
        self.put(settings_key(), encode_info(&j));
        Ok(record.usn)
    }

    fn trim(&mut self, j: &mut JournalInfo) -> VolResult<()> {
        let oldest = self.collect(&record_key(j.first), &[JOURNAL, RECORD + 1], TRIMMED_AT_ONCE + 1)?;
        for (key, _) in oldest.iter().take(TRIMMED_AT_ONCE) {
            if j.next - number(key) <= j.max_bytes {
                break;
            }
            self.delete(key.clone());
            j.first = oldest.iter().map(|(k, _)| number(k)).find(|n| *n > number(key)).unwrap_or(j.next);
        }
        Ok(())
    }
}

impl Volume {
    fn journal(&self) -> VolResult<JournalInfo> {
        info_of(&self.reading())?.ok_or(VolError::NoJournal)
    }

    /// Nobody is told of a USN that a crash could take back: all that is told is durable.
    pub fn journal_info(&self) -> VolResult<JournalInfo> {
        self.write_close_records()?;
        let j = self.journal()?;
        self.sync()?;
        Ok(j)
    }

    /// Begins a journal, or changes the size of the one there is.
    pub fn create_journal(&self, max_bytes: u64, delta_bytes: u64) -> VolResult<()> {
        self.use_feature(feature::CHANGE_JOURNAL)?;
        let max_bytes = if max_bytes == 0 { DEFAULT_BYTES } else { max_bytes.max(MAX_BYTES_MIN) };
        let delta_bytes = if delta_bytes == 0 { max_bytes / 4 } else { delta_bytes.min(max_bytes) };
        let mut t = self.begin();
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
        self.commit_to(seq)
    }

    /// `id` is the journal's.
    pub fn delete_journal(&self, id: u64) -> VolResult<()> {
        let j = self.journal()?;
        if j.id != id {
            return Err(VolError::NoRecord);
        }
        // First no more records, then those that are there, in as many operations as it takes.
        let mut t = self.begin();
        t.delete(settings_key());
        t.put(high_key(), j.next.to_le_bytes());
        t.commit()?;
        self.unclosed.reasons.lock().clear();
        loop {
            self.make_room()?;
            let mut t = self.begin();
            let some = t.collect(&[JOURNAL, RECORD], &[JOURNAL, LAST + 1], 2000)?;
            if some.is_empty() {
                break;
            }
            some.into_iter().for_each(|(key, _)| t.delete(key));
            t.commit()?;
        }
        self.sync()
    }

    /// Records from `from` on (0: from the oldest) as long as `take` takes them; where to go on.
    pub fn read_journal(&self, from: u64, take: &mut dyn FnMut(&Record) -> bool) -> VolResult<u64> {
        let j = self.journal_info()?;
        if from != 0 && from < j.first {
            return Err(VolError::NoRecord);
        }
        let (mut next, mut result) = (j.next, Ok(()));
        self.reading().scan(&record_key(from.max(j.first)), &record_key(j.next), &mut |key, value| {
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
    pub fn journal_of(&self, ino: u64) -> VolResult<Record> {
        let view = self.reading();
        let inode = crate::files::subject::load_inode(&view, ino)?;
        let usn = view.get(&last_key(ino))?.and_then(|v| (*v).try_into().ok()).map_or(0, u64::from_le_bytes);
        let attributes = inode.shown_attributes(inode.data.sparse);
        let (parent, name) = (inode.parent, inode.name);
        Ok(Record { usn, file: ino, parent, time: FileTime(0), reason: 0, attributes, name })
    }

    /// A record that the file was closed, whoever still has it open.
    pub fn write_close_record(&self, ino: u64) -> VolResult<u64> {
        self.make_room()?;
        let mut t = self.begin();
        if !t.core.journal {
            return Err(VolError::NoJournal);
        }
        let inode = crate::files::subject::load_inode(&t, ino)?;
        let before = self.unclosed.reasons.lock().get(&ino).copied().unwrap_or(0);
        let usn = t.append(ino, &inode, before | reason::CLOSE)?;
        t.forgets.push(ino);
        t.commit()?;
        Ok(usn)
    }

    /// For files that nobody has open any more.
    pub(crate) fn write_close_records(&self) -> VolResult<()> {
        if self.unclosed.closed.lock().is_empty() {
            return Ok(());
        }
        let closed = std::mem::take(&mut *self.unclosed.closed.lock());
        let mut t = self.begin();
        if !t.core.journal {
            return Ok(());
        }
        for ino in closed {
            // Opened again meanwhile, or gone.
            if self.file_in_use(ino).is_some() {
                continue;
            }
            let Some(reasons) = self.unclosed.reasons.lock().get(&ino).copied() else { continue };
            t.forgets.push(ino);
            if let Ok(inode) = crate::files::subject::load_inode(&t, ino) {
                t.append(ino, &inode, reasons | reason::CLOSE)?;
            }
        }
        t.commit().map(|_| ())
    }

    /// After a transaction of the journal took effect.
    pub(crate) fn reasons_noted(&self, reasons: BTreeMap<u64, u32>, forgets: &[u64]) {
        if reasons.is_empty() && forgets.is_empty() {
            return;
        }
        let mut open = self.unclosed.reasons.lock();
        open.extend(reasons);
        forgets.iter().for_each(|ino| {
            open.remove(ino);
        });
    }
}

/// What does not fit together: records out of their bounds.
pub fn faults(view: &dyn View) -> VolResult<Vec<String>> {
    let Some(j) = info_of(view)? else { return Ok(Vec::new()) };
    let mut out = Vec::new();
    let mut expected = j.first;
    view.scan(&[JOURNAL, RECORD], &[JOURNAL, RECORD + 1], &mut |key, value| {
        let usn = number(key);
        match decode(usn, value) {
            Ok(r) if usn == expected => expected = usn + record_bytes(&r.name),
            Ok(_) => out.push(format!("change journal: a record at {usn}, not {expected}")),
            Err(e) => out.push(format!("change journal: record {usn}: {e}")),
        }
        out.len() < 10
    })?;
    if out.is_empty() && expected != j.next {
        out.push(format!("change journal: ends at {expected}, not {}", j.next));
    }
    Ok(out)
}
