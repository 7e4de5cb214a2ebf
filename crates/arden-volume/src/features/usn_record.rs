//! What the change journal takes part in: every transaction ([`Recorder`]), and the end of each file's use. Reasons are told
//! from what a transaction changes; those of one file add up until nobody has it open any more. Kept to a size by taking the
//! oldest records away.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{self, AtomicBool},
    },
};

use arden_lock::{Mutex, ranks};
use arden_store::usn::{JournalInfo, Record, reason};
use arden_wire::access::ATTR_NOT_CONTENT_INDEXED;

use crate::{
    disk::{
        device::BLOCK,
        error::VolResult,
        inode::{Data, Inode, NameEntry, Stream},
        keys::{self, JOURNAL, Val},
    },
    engine::{
        deferred::Deferrals,
        txn::{Txn, TxnHook},
        view::View,
    },
    features::{
        usn_format::{
            RECORD, encode, encode_info, end_of, info_of, is_settings, last_key, number, record_bytes, record_key,
            settings_key,
        },
        usnwatch::Watchers,
    },
    files::{
        inodes::now,
        open::{LastUse, OpenFiles},
    },
};

/// Records that one transaction takes away; more than it adds.
const TRIMMED_AT_ONCE: usize = 64;

/// Reasons of files that are open, and files that nobody has open any more.
///
/// | lock | protects | taken |
/// |---|---|---|
/// | `reasons` | what was told of files that are still open | alone, written under the engine's state |
/// | `closed` | files of those whose last user went | alone |
pub struct Unclosed {
    reasons: Mutex<BTreeMap<u64, u32>, ranks::UnclosedReasons>,
    closed: Mutex<Vec<u64>, ranks::ClosedFiles>,
    pub watchers: Arc<Watchers>,
    deferrals: Arc<Deferrals>,
}

impl Unclosed {
    pub fn new(deferrals: Arc<Deferrals>) -> Arc<Unclosed> {
        let (reasons, closed, watchers) = (Mutex::default(), Mutex::default(), Arc::default());
        Arc::new(Unclosed { reasons, closed, watchers, deferrals })
    }

    /// What was told of this file since somebody opened it.
    pub fn said(&self, ino: u64) -> Option<u32> {
        self.reasons.lock().get(&ino).copied()
    }

    fn say(&self, ino: u64, reasons: u32) {
        self.reasons.lock().insert(ino, reasons);
    }

    pub fn forget(&self, ino: u64) {
        self.reasons.lock().remove(&ino);
    }

    pub fn forget_all(&self) {
        self.reasons.lock().clear();
    }

    /// Files whose last user went since this was last asked.
    pub fn take_closed(&self) -> Vec<u64> {
        std::mem::take(&mut *self.closed.lock())
    }
}

impl LastUse for Unclosed {
    fn ended(&self, ino: u64) {
        if self.reasons.lock().contains_key(&ino) {
            self.closed.lock().push(ino);
            self.deferrals.leave();
            self.watchers.may_move();
        }
    }
}

/// Records what transactions do to files, while there is a journal.
pub struct Recorder {
    /// Changed under the engine's state alone.
    on: AtomicBool,
    pub open: Arc<OpenFiles>,
    pub unclosed: Arc<Unclosed>,
}

impl Recorder {
    /// As the state says at opening.
    pub fn load(view: &dyn View, open: Arc<OpenFiles>, unclosed: Arc<Unclosed>) -> VolResult<Arc<Recorder>> {
        Ok(Arc::new(Recorder { on: AtomicBool::new(info_of(view)?.is_some()), open, unclosed }))
    }

    pub fn is_on(&self) -> bool {
        self.on.load(atomic::Ordering::Acquire)
    }

    /// Adds a record when it tells anything new of this open of the file.
    fn note(&self, t: &mut Txn<'_>, ino: u64, inode: &Inode, reasons: u32) -> VolResult<()> {
        let before = self.unclosed.said(ino).unwrap_or(0);
        let names = reason::RENAME_OLD_NAME | reason::RENAME_NEW_NAME;
        // A name is news each time, and the old one does not stay among the reasons.
        let stay = if reasons & reason::RENAME_OLD_NAME != 0 { !names } else { !reason::RENAME_OLD_NAME };
        // Nobody will close what nobody has open.
        let unused = reasons & reason::FILE_CREATE == 0 && self.open.in_use(ino).is_none();
        let reasons = if unused { reasons | reason::CLOSE } else { reasons };
        let all = before & stay | reasons;
        if all == before && reasons & (names | reason::HARD_LINK_CHANGE) == 0 {
            return Ok(());
        }
        append(t, ino, inode, all)?;
        let unclosed = self.unclosed.clone();
        if reasons & reason::CLOSE != 0 {
            t.on_applied(move || unclosed.forget(ino));
        } else {
            t.on_applied(move || unclosed.say(ino, all & !reason::RENAME_OLD_NAME));
        }
        Ok(())
    }
}

impl TxnHook for Recorder {
    fn record(&self, t: &mut Txn<'_>) -> VolResult<()> {
        if !self.is_on() {
            return Ok(());
        }
        let mut records: Vec<(Inode, u64, u32)> = Vec::new();
        for (ino, _) in t.changed_files() {
            match inode_before_and_after(t, ino)? {
                // What waits to be taken away under a stream's number was never a file.
                (None, Some(new)) if new.links > 0 => records.push((new, ino, reason::FILE_CREATE)),
                (Some(old), Some(new)) if old.links > 0 && new.links == 0 => {
                    records.push((old, ino, reason::FILE_DELETE | reason::CLOSE));
                }
                (Some(_), None) => t.delete(last_key(ino)),
                (Some(old), Some(new)) if new.links > 0 => {
                    let r = reasons(t, ino, &old, &new)?;
                    let moved = (old.parent, &old.name) != (new.parent, &new.name);
                    let has_others = old.links.max(new.links) > 1;
                    let (from, to) = if has_others { changed_names(t, ino, &new)? } else { (None, None) };
                    match (old.links.cmp(&new.links), from, to) {
                        (Ordering::Equal, Some(from), Some(to)) if !moved => {
                            records.push((from, ino, r | reason::RENAME_OLD_NAME));
                            records.push((to, ino, r | reason::RENAME_NEW_NAME));
                        }
                        (Ordering::Equal, ..) if moved => {
                            records.push((old.clone(), ino, r | reason::RENAME_OLD_NAME));
                            records.push((new, ino, r | reason::RENAME_NEW_NAME));
                        }
                        _ if r == 0 => {}
                        // The name that came or went, [MS-FSA] 2.1.5.5 and 2.1.5.15.7.
                        (Ordering::Less, _, Some(named)) | (Ordering::Greater, Some(named), _) => {
                            records.push((named, ino, r));
                        }
                        _ => records.push((new, ino, r)),
                    }
                }
                _ => {}
            }
        }
        for (inode, ino, reasons) in records {
            self.note(t, ino, &inode, reasons)?;
        }
        Ok(())
    }

    fn applied(&self, key: &[u8], value: Option<&[u8]>) {
        if is_settings(key) {
            self.on.store(value.is_some(), atomic::Ordering::Release);
            self.unclosed.watchers.moved(value.and_then(end_of));
        }
    }
}

/// Reasons from one stream's data before and after; `written`: blocks of it changed, the lowest one.
fn data_reasons(old: &Data, new: &Data, written: Option<u64>) -> u32 {
    // Other data took its place, from the first block on.
    let replaced = old.sid != new.sid && old.eof > 0;
    let written = if replaced { Some(0) } else { written };
    match new.eof.cmp(&old.eof) {
        Ordering::Less => reason::DATA_TRUNCATION,
        // Behind the end of the file only its allocation changes.
        Ordering::Equal if written.is_some_and(|b| b * (BLOCK as u64) < old.eof) => reason::DATA_OVERWRITE,
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

fn inode_before_and_after(t: &Txn<'_>, ino: u64) -> VolResult<Pair> {
    let key = keys::one(keys::INODE, ino);
    let old = t.before().get(&key)?;
    let decode = |v: Option<Val>| v.map(|v| Inode::decode(&v)).transpose();
    Ok((decode(old)?, decode(t.get(&key)?)?))
}

/// The inode under a name that goes, and under one that comes.
fn changed_names(t: &Txn<'_>, ino: u64, inode: &Inode) -> VolResult<(Option<Inode>, Option<Inode>)> {
    let (before, mut from, mut to) = (t.before(), None, None);
    for key in t.changed_names() {
        for (view, name) in [(&before as &dyn View, &mut from), (t, &mut to)] {
            let entry = view.get(&key)?.map(|v| NameEntry::decode(&v)).transpose()?;
            if let Some(entry) = entry.filter(|e| e.ino == ino) {
                *name = Some(Inode { parent: keys::first(&key), name: entry.name, ..inode.clone() });
            }
        }
    }
    Ok((from, to))
}

fn stream_reasons(t: &Txn<'_>, ino: u64) -> VolResult<u32> {
    let old = t.before();
    let mut r = 0;
    for key in t.changed_streams(ino) {
        match (old.get(&key)?, t.get(&key)?) {
            (Some(a), Some(b)) => {
                let (a, b) = (Stream::decode(&a)?, Stream::decode(&b)?);
                if a.name != b.name {
                    r |= reason::STREAM_CHANGE;
                }
                // The bits of named data are those of the unnamed, moved.
                r |= data_reasons(&a.data, &b.data, t.lowest_changed(b.data.sid)) << 4;
                if a.data.integrity != b.data.integrity {
                    r |= reason::INTEGRITY_CHANGE;
                }
            }
            _ => r |= reason::STREAM_CHANGE,
        }
    }
    Ok(r)
}

fn reasons(t: &Txn<'_>, ino: u64, old: &Inode, new: &Inode) -> VolResult<u32> {
    let mut r = stream_reasons(t, ino)?;
    if !new.directory {
        r |= data_reasons(&old.data, &new.data, t.lowest_changed(new.data.sid));
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
        (reason::INDEXABLE_CHANGE, (old.attributes ^ new.attributes) & ATTR_NOT_CONTENT_INDEXED != 0),
        (reason::SECURITY_CHANGE, old.sd != new.sd),
        (reason::INTEGRITY_CHANGE, old.data.integrity != new.data.integrity),
        (reason::OBJECT_ID_CHANGE, old.object_id != new.object_id),
        (reason::EA_CHANGE, t.changes_any(keys::EAS, ino)),
        (reason::REPARSE_POINT_CHANGE, t.changes_any(keys::REPARSE, ino)),
    ] {
        r |= if holds { bit } else { 0 };
    }
    Ok(r)
}

pub fn append(t: &mut Txn<'_>, ino: u64, inode: &Inode, reasons: u32) -> VolResult<u64> {
    let Some(mut j) = info_of(t)? else { return Ok(0) };
    let record = Record {
        usn: j.next,
        file: ino,
        parent: inode.parent,
        time: now(),
        reason: reasons,
        attributes: inode.shown_attributes(&inode.data),
        name: inode.name.clone(),
    };
    t.put(record_key(record.usn), encode(&record));
    t.put(last_key(ino), record.usn.to_le_bytes());
    j.next += record_bytes(&record.name);
    if j.next - j.first > j.max_bytes + j.delta_bytes {
        trim(t, &mut j)?;
    }
    t.put(settings_key(), encode_info(&j));
    Ok(record.usn)
}

fn trim(t: &mut Txn<'_>, j: &mut JournalInfo) -> VolResult<()> {
    let oldest = t.collect(&record_key(j.first), &[JOURNAL, RECORD + 1], TRIMMED_AT_ONCE + 1)?;
    for (key, _) in oldest.iter().take(TRIMMED_AT_ONCE) {
        if j.next - number(key) <= j.max_bytes {
            break;
        }
        t.delete(key.clone());
        j.first = oldest.iter().map(|(k, _)| number(k)).find(|n| *n > number(key)).unwrap_or(j.next);
    }
    Ok(())
}
