//! The change journal's records on the device. A USN is an offset in the stream of all records ever written and is never
//! given twice.

use arden_store::usn::{JournalInfo, Record};
use arden_wire::{
    FileTime,
    cursor::{Put, Reader},
    names::name_units,
};

use crate::{
    disk::{
        error::{VolError, VolResult},
        keys::{JOURNAL, Key},
    },
    engine::view::View,
};

pub const SETTINGS: u8 = 0;
pub const RECORD: u8 = 1;
pub const LAST: u8 = 2;
pub const HIGH: u8 = 3;
/// Sizes of USN_RECORD_V2: what a record counts as, whatever it takes here.
pub const RECORD_HEADER: usize = 60;

pub fn settings_key() -> Key {
    vec![JOURNAL, SETTINGS]
}

pub fn is_settings(key: &[u8]) -> bool {
    *key == [JOURNAL, SETTINGS]
}

pub fn record_key(usn: u64) -> Key {
    [&[JOURNAL, RECORD][..], &usn.to_be_bytes()].concat()
}

/// The last USN of a file.
pub fn last_key(ino: u64) -> Key {
    [&[JOURNAL, LAST][..], &ino.to_be_bytes()].concat()
}

/// Where the USNs of a journal that was deleted ended.
pub fn high_key() -> Key {
    vec![JOURNAL, HIGH]
}

pub fn number(key: &[u8]) -> u64 {
    key.get(2..10).and_then(|b| b.try_into().ok()).map_or(0, u64::from_be_bytes)
}

pub fn record_bytes(name: &str) -> u64 {
    (RECORD_HEADER + name_units(name) * 2).next_multiple_of(8) as u64
}

pub fn encode_info(j: &JournalInfo) -> Vec<u8> {
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

pub fn encode(r: &Record) -> Vec<u8> {
    let mut out = Vec::with_capacity(40 + r.name.len());
    [r.file, r.parent, r.time.0].iter().for_each(|n| out.put_u64(*n));
    out.put_u32(r.reason);
    out.put_u32(r.attributes);
    out.extend_from_slice(r.name.as_bytes());
    out
}

pub fn decode(usn: u64, value: &[u8]) -> VolResult<Record> {
    let mut r = Reader::new(value);
    let (file, parent, time) = (r.u64()?, r.u64()?, FileTime(r.u64()?));
    let (reason, attributes) = (r.u32()?, r.u32()?);
    let name = String::from_utf8(r.rest().to_vec()).map_err(|_| VolError::Corrupt("a record of the change journal"))?;
    Ok(Record { usn, file, parent, time, reason, attributes, name })
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
