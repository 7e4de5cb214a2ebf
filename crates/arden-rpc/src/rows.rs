//! Encoding of information levels in srvsvc and wkssvc: a row describes one structure, for the enumeration and for the
//! single structure.

use crate::call::win32;
use arden_wire::{
    Malformed,
    ndr::{NdrReader, NdrWriter},
};

/// A member of a structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Field {
    U32(u32),
    /// `[string] wchar_t *`.
    Text(Option<String>),
    /// A length in bytes, and a pointer to that many bytes.
    Bytes(Option<Vec<u8>>),
}

pub(crate) type Row = Vec<Field>;

pub(crate) fn text(s: &str) -> Field {
    Field::Text(Some(s.to_string()))
}

fn put_fixed(w: &mut NdrWriter, row: &Row) {
    for field in row {
        match field {
            Field::U32(v) => w.u32(*v),
            Field::Text(t) => w.pointer(t.is_some()),
            Field::Bytes(b) => {
                w.u32(b.as_ref().map_or(0, |b| b.len() as u32));
                w.pointer(b.is_some());
            }
        }
    }
}

fn put_deferred(w: &mut NdrWriter, row: &Row) {
    for field in row {
        match field {
            Field::Text(Some(t)) => w.string(t),
            Field::Bytes(Some(b)) => {
                w.u32(b.len() as u32);
                w.bytes(b);
            }
            _ => {}
        }
    }
}

/// Approximate bytes of a row in the client's memory, which PreferedMaximumLength limits.
fn size(row: &Row) -> usize {
    row.iter()
        .map(|field| match field {
            Field::U32(_) => 4,
            Field::Text(t) => 8 + t.as_ref().map_or(0, |t| 2 * (t.encode_utf16().count() + 1)),
            Field::Bytes(b) => 12 + b.as_ref().map_or(0, Vec::len),
        })
        .sum()
}

/// The stub of a GetInfo call: an `LPXXX_INFO` union with its level, and the status. `has_arm`: the union has an arm
/// for this level.
pub(crate) fn single(level: u32, has_arm: bool, row: Result<Row, u32>) -> Vec<u8> {
    let mut w = NdrWriter::new();
    w.u32(level);
    match row {
        Ok(row) => {
            w.pointer(true);
            put_fixed(&mut w, &row);
            put_deferred(&mut w, &row);
            w.u32(win32::SUCCESS);
        }
        Err(error) => {
            // Without an arm there is no pointer that could be null.
            if has_arm {
                w.pointer(false);
            }
            w.u32(error);
        }
    }
    w.finish()
}

/// The arguments that all enumerations have: the level, the preferred maximum length of the rows in bytes, and the
/// resume handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EnumArgs {
    pub level: u32,
    pub preferred_max: u32,
    pub resume: Option<u32>,
}

impl EnumArgs {
    /// Reads the in-out structure with its empty container, the preferred length and the resume handle.
    pub(crate) fn read(r: &mut NdrReader<'_>) -> Result<EnumArgs, Malformed> {
        let level = r.u32()?;
        if r.u32()? != level {
            return Err(Malformed("union discriminant"));
        }
        if r.pointer()? {
            let _entries = r.u32()?;
            // Clients send no rows, and [MS-SRVS] 3.1.4.8 does not define a meaning for them.
            if r.pointer()? && r.u32()? != 0 {
                return Err(Malformed("rows in a request"));
            }
        }
        let preferred_max = r.u32()?;
        let resume = if r.pointer()? { Some(r.u32()?) } else { None };
        Ok(EnumArgs { level, preferred_max, resume })
    }

    /// The stub of the response: the rows that fit, or an error without rows.
    pub(crate) fn answer(&self, rows: Result<Vec<Row>, u32>) -> Vec<u8> {
        let start = self.resume.unwrap_or(0) as usize;
        let (rows, error) = match rows {
            Ok(rows) => (rows, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let total = rows.len().saturating_sub(start);
        let mut budget = self.preferred_max as usize;
        let mut page: Vec<&Row> = Vec::new();
        for row in rows.iter().skip(start) {
            let cost = size(row);
            // At least one row is returned, so that every call makes progress.
            if !page.is_empty() && cost > budget {
                break;
            }
            budget = budget.saturating_sub(cost);
            page.push(row);
        }
        let complete = page.len() == total;
        let resume = if complete { 0 } else { (start + page.len()) as u32 };

        let mut w = NdrWriter::new();
        w.u32(self.level);
        w.u32(self.level);
        if error == Some(win32::INVALID_LEVEL) {
            w.pointer(false);
        } else {
            w.pointer(true);
            w.u32(page.len() as u32);
            w.pointer(!page.is_empty());
            if !page.is_empty() {
                w.u32(page.len() as u32);
                page.iter().for_each(|row| put_fixed(&mut w, row));
                page.iter().for_each(|row| put_deferred(&mut w, row));
            }
        }
        w.u32(total as u32);
        w.pointer(self.resume.is_some());
        if self.resume.is_some() {
            w.u32(resume);
        }
        w.u32(error.unwrap_or(if complete { win32::SUCCESS } else { win32::MORE_DATA }));
        w.finish()
    }
}
