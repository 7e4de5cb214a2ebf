//! What the change journal has to say: from every operation, told from what the model was before and after it, records
//! with certain names and reasons within certain USNs.

use std::{collections::BTreeMap, rc::Rc};

use arden_store::{
    error::StoreError,
    store::FileStore,
    usn::{JournalInfo, Record, reason::*},
};

use arden_wire::access::ATTR_NOT_CONTENT_INDEXED;

use super::model::{File, Model};

/// A record of this file with at least these reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Expected {
    /// None: one of several names, or one that is not known.
    name: Option<String>,
    reasons: u32,
}

/// Operations whose records lie between two places of the journal at which every file was closed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Window {
    from: u64,
    /// None: nobody has asked yet.
    to: Option<u64>,
    expected: Vec<Expected>,
}

/// A change journal since somebody began it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journal {
    /// None: power was lost before anybody was told.
    pub id: Option<u64>,
    windows: Vec<Window>,
}

impl Journal {
    pub fn begun(id: u64, at: u64) -> Journal {
        Journal { id: Some(id), windows: vec![Window { from: at, to: Some(at), expected: Vec::new() }] }
    }

    pub fn unknown() -> Journal {
        Journal { id: None, windows: Vec::new() }
    }

    /// What it is after an opening, or a look at all of it: every file is closed.
    pub fn found(&mut self, info: &JournalInfo) {
        if self.id.is_none() {
            *self = Journal::begun(info.id, info.next);
        }
        self.windows.retain(|w| w.from < info.next);
        match self.windows.last_mut() {
            Some(w) => w.to = Some(info.next),
            None => *self = Journal::begun(info.id, info.next),
        }
    }

    fn expect(&mut self, mut more: Vec<Expected>) {
        match self.windows.last_mut() {
            Some(Window { to: None, expected, .. }) => expected.append(&mut more),
            last => {
                let from = last.and_then(|w| w.to).unwrap_or(0);
                self.windows.push(Window { from, to: None, expected: more });
            }
        }
    }

    /// Every file is closed, and the journal ends here.
    pub fn closed_at(&mut self, end: u64) {
        match self.windows.last_mut() {
            Some(Window { to: to @ None, .. }) => *to = Some(end),
            last => {
                let from = last.and_then(|w| w.to).unwrap_or(end);
                if from < end {
                    self.windows.push(Window { from, to: Some(end), expected: Vec::new() });
                }
            }
        }
    }

    /// Says what does not fit: these are all records that there are.
    pub fn difference(&self, info: &JournalInfo, records: &[Record]) -> Option<String> {
        let id = self.id?;
        if info.id != id {
            return Some(format!("the journal is {:x}, not {id:x}", info.id));
        }
        let mut at = info.first;
        for r in records {
            if r.usn != at {
                return Some(format!("a record at {}, not {at}", r.usn));
            }
            // USN_RECORD_V2: 60 bytes and the name, in units of 8.
            at += (60 + 2 * r.name.encode_utf16().count() as u64).next_multiple_of(8);
        }
        if at != info.next {
            return Some(format!("records end at {at}, the journal at {}", info.next));
        }
        let kept = info.next - info.first;
        if kept > info.max_bytes + info.delta_bytes + 1024 {
            return Some(format!("{kept} bytes of records are kept, of {} at most", info.max_bytes + info.delta_bytes));
        }
        // Nothing goes before the journal is full.
        if info.first > self.windows[0].from && kept + 1024 < info.max_bytes {
            return Some(format!("only {kept} bytes of records are kept, of {}", info.max_bytes));
        }
        self.windows.iter().filter(|w| w.from >= info.first).find_map(|w| w.difference(info, records))
    }
}

impl Window {
    fn difference(&self, info: &JournalInfo, records: &[Record]) -> Option<String> {
        let to = self.to.unwrap_or(info.next).min(info.next);
        let here: Vec<&Record> = records.iter().filter(|r| r.usn >= self.from && r.usn < to).collect();
        let fits = |e: &Expected, r: &Record| {
            r.reason & e.reasons == e.reasons && e.name.as_ref().is_none_or(|name| *name == r.name)
        };
        if let Some(missing) = self.expected.iter().find(|e| !here.iter().any(|r| fits(e, r))) {
            return Some(format!("no record of {missing:?} among {here:?}, {}..{to}", self.from));
        }
        // Where a file was closed in between, its record says the same again.
        for event in [FILE_CREATE, FILE_DELETE, RENAME_NEW_NAME] {
            let wanted = self.expected.iter().filter(|e| e.reasons & event != 0).count();
            let mut found: BTreeMap<u64, usize> = BTreeMap::new();
            here.iter().filter(|r| r.reason & event != 0).for_each(|r| *found.entry(r.file).or_default() += 1);
            if found.len() > wanted {
                return Some(format!("{wanted} times {event:x} happened, records {here:?}, {}..{to}", self.from));
            }
        }
        None
    }
}

/// The one name of a file, where it has one.
fn name_of(model: &Model, id: u64) -> Option<String> {
    let mut names = model.names.values().filter(|(_, i)| *i == id);
    names.next().filter(|_| names.next().is_none()).map(|(name, _)| name.clone())
}

fn place_of(model: &Model, id: u64) -> Option<(u64, String)> {
    let mut names = model.names.iter().filter(|(_, (_, i))| *i == id);
    names.next().filter(|_| names.next().is_none()).map(|((parent, _), (name, _))| (*parent, name.clone()))
}

fn data_reasons(before: &[u8], after: &[u8]) -> u32 {
    match after.len().cmp(&before.len()) {
        std::cmp::Ordering::Less => DATA_TRUNCATION,
        std::cmp::Ordering::Greater => DATA_EXTEND,
        std::cmp::Ordering::Equal if before != after => DATA_OVERWRITE,
        std::cmp::Ordering::Equal => 0,
    }
}

fn file_reasons(a: &File, b: &File) -> u32 {
    let same_data = Rc::ptr_eq(&a.data, &b.data);
    let mut reasons = if same_data { 0 } else { data_reasons(&a.data, &b.data) };
    let streams = |f: &File| f.streams.values().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    if streams(a) != streams(b) {
        reasons |= STREAM_CHANGE;
    } else {
        for (key, (_, data)) in &b.streams {
            reasons |= data_reasons(&a.streams[key].1, data) << 4;
            reasons |= if a.integrity(key) == b.integrity(key) { 0 } else { INTEGRITY_CHANGE };
        }
    }
    for (bit, changed) in [
        (BASIC_INFO_CHANGE, a.attributes != b.attributes || a.sparse != b.sparse),
        (INDEXABLE_CHANGE, (a.attributes ^ b.attributes) & ATTR_NOT_CONTENT_INDEXED != 0),
        (INTEGRITY_CHANGE, a.integrity("") != b.integrity("")),
        (EA_CHANGE, a.eas != b.eas),
        (SECURITY_CHANGE, a.descriptor != b.descriptor),
        (REPARSE_POINT_CHANGE, a.reparse != b.reparse),
        (OBJECT_ID_CHANGE, a.object_id != b.object_id),
    ] {
        reasons |= if changed { bit } else { 0 };
    }
    reasons
}

/// What has to be told of the step from one model to the next.
fn events(before: &Model, after: &Model) -> Vec<Expected> {
    let mut out = Vec::new();
    for (&id, file) in &after.files {
        let Some(old) = before.files.get(&id) else {
            out.push(Expected { name: name_of(after, id), reasons: FILE_CREATE });
            continue;
        };
        let mut reasons = if Rc::ptr_eq(old, file) { 0 } else { file_reasons(old, file) };
        let (was, is) = (place_of(before, id), place_of(after, id));
        if before.links(id) != after.links(id) {
            reasons |= HARD_LINK_CHANGE;
        } else if was.is_some() && is.is_some() && was != is {
            out.push(Expected { name: name_of(after, id), reasons: RENAME_NEW_NAME });
        } else if was.is_none() {
            // One of several names may have become another.
            let new = |(key, value): &(&(u64, String), &(String, u64))| {
                value.1 == id && before.names.get(*key) != Some(*value)
            };
            let new = after.names.iter().filter(new).map(|(_, (name, _))| name.clone());
            out.extend(new.map(|name| Expected { name: Some(name), reasons: RENAME_NEW_NAME }));
        }
        if reasons != 0 {
            out.push(Expected { name: name_of(after, id).filter(|_| before.links(id) < 2), reasons });
        }
    }
    for &id in before.files.keys().filter(|id| !after.files.contains_key(id)) {
        out.push(Expected { name: name_of(before, id), reasons: FILE_DELETE });
    }
    out
}

impl Model {
    /// Notes what the change journal has to say of the step to this model from the one before.
    pub fn expect_records(&mut self, before: &Model) {
        let same = self.journal.as_ref().map(|j| j.id) == before.journal.as_ref().map(|j| j.id);
        if self.journal.is_none() || !same {
            return;
        }
        let more = events(before, self);
        if let Some(journal) = self.journal.as_mut().filter(|_| !more.is_empty()) {
            Rc::make_mut(journal).expect(more);
        }
    }
}

/// Says how what was read differs from what has to be there.
pub fn difference(journal: Option<&Journal>, read: &Option<(JournalInfo, Vec<Record>)>) -> Option<String> {
    match (journal, read) {
        (None, None) => None,
        (Some(journal), Some((info, records))) => journal.difference(info, records),
        // Whether it was begun nobody knows.
        (Some(Journal { id: None, .. }), None) => None,
        (journal, read) => Some(format!("{journal:?}, and there is {:?}", read.as_ref().map(|r| r.0))),
    }
}

/// The whole journal, as a program that follows it sees it: what is told here is durable.
pub fn read_all(store: &dyn FileStore) -> Result<Option<(JournalInfo, Vec<Record>)>, StoreError> {
    let Some(journal) = store.change_journal() else { return Ok(None) };
    let info = match journal.info() {
        Err(StoreError::NoChangeJournal) => return Ok(None),
        info => info?,
    };
    let mut records = Vec::new();
    journal.read(0, &mut |r| {
        records.push(r.clone());
        true
    })?;
    Ok(Some((info, records)))
}
