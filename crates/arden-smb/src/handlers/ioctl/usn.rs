//! The change journal over SMB: FSCTL_READ_FILE_USN_DATA and FSCTL_WRITE_USN_CLOSE_RECORD, [MS-FSA] 2.1.5.10.27 and
//! 2.1.5.10.42, and the controls of the whole journal with the public Win32 structures (USN_JOURNAL_DATA,
//! CREATE_USN_JOURNAL_DATA, READ_USN_JOURNAL_DATA, DELETE_USN_JOURNAL_DATA), for who manages the volume. On a store
//! without a journal all are INVALID_DEVICE_REQUEST. A read that waits for records to come is put aside by `usnwait`.

use std::sync::Arc;

use arden_auth::privilege;
use arden_store::{
    fs::Operation,
    table::Open,
    usn::{ChangeJournal, Record, reason},
};
use arden_wire::{
    NtStatus,
    access::{FILE_APPEND_DATA, FILE_WRITE_DATA},
    cursor::{Put, Reader},
    fscc::fsctl,
    names::{name_units, put_name_units},
    smb2::{FileId, io::IoctlRequest},
};

use crate::{
    handlers::{
        ioctl::respond,
        request::{Continuation, Fail, Handled, Request, waiting},
    },
    model::SmbOpen,
    trees::usn_waits::{self, Until, UsnWait},
};

type Output = Result<(NtStatus, Vec<u8>), Fail>;

/// USN_DELETE_FLAG_DELETE.
const DELETE: u32 = 1;

/// The fixed part of USN_RECORD_V2 and USN_RECORD_V3, [MS-FSCC] 2.3.62.2 and 2.3.62.3.
fn header_bytes(version: u16) -> usize {
    if version == 3 { 76 } else { 60 }
}

fn put_record(out: &mut Vec<u8>, version: u16, r: &Record) {
    let start = out.len();
    let name_bytes = name_units(&r.name) * 2;
    let header = header_bytes(version);
    out.put_u32((header + name_bytes).next_multiple_of(8) as u32);
    out.put_u16(version);
    out.put_u16(0);
    for id in [r.file, r.parent] {
        if version == 3 {
            out.put_u128(u128::from(id));
        } else {
            out.put_u64(id);
        }
    }
    out.put_u64(r.usn);
    out.put_u64(r.time.0);
    out.put_u32(r.reason);
    // SourceInfo, SecurityId.
    out.put_u64(0);
    out.put_u32(r.attributes);
    out.put_u16(name_bytes as u16);
    out.put_u16(header as u16);
    put_name_units(out, &r.name);
    out.resize(start + (out.len() - start).next_multiple_of(8), 0);
}

/// From MinMajorVersion and MaxMajorVersion: 2 and 3 are known.
fn version(min: u16, max: u16) -> Result<u16, Fail> {
    if min > max || min > 3 || max < 2 {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    Ok(if max >= 3 { 3 } else { 2 })
}

pub fn ioctl(request: &mut Request<'_>, open: &Arc<SmbOpen>, file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    let store = file.fs().store();
    let journal = store.change_journal().ok_or(Fail::Status(NtStatus::INVALID_DEVICE_REQUEST))?;
    match ioctl.ctl_code {
        fsctl::READ_FILE_USN_DATA => return file_data(journal, file, ioctl),
        fsctl::WRITE_USN_CLOSE_RECORD => return close_record(request, journal, file, ioctl),
        _ => {}
    }
    if !file.who().has_privilege(privilege::MANAGE_VOLUME) {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    // What is told has to be durable first.
    if !request.may_block {
        return Err(Fail::Block);
    }
    let mut r = Reader::new(ioctl.input);
    match ioctl.ctl_code {
        fsctl::CREATE_USN_JOURNAL => {
            file.check(Operation::ManageVolume)?;
            journal.create(request.scope.changes(file), r.u64()?, r.u64()?)?;
            Ok((NtStatus::SUCCESS, Vec::new()))
        }
        fsctl::DELETE_USN_JOURNAL => {
            file.check(Operation::ManageVolume)?;
            let (id, flags) = (r.u64()?, r.u32()?);
            if flags & DELETE == 0 || journal.info()?.id != id {
                return Err(NtStatus::INVALID_PARAMETER.into());
            }
            journal.delete(request.scope.changes(file), id)?;
            Ok((NtStatus::SUCCESS, Vec::new()))
        }
        fsctl::QUERY_USN_JOURNAL => query(journal, ioctl.max_output_response as usize),
        _ => {
            let mut read = JournalRead::parse(open, ioctl)?;
            let output = read.read(request);
            waiting(output, read)
        }
    }
}

/// USN_JOURNAL_DATA_V1, or V0 where only that fits.
fn query(journal: &dyn ChangeJournal, max: usize) -> Output {
    if max < 56 {
        return Err(NtStatus::BUFFER_TOO_SMALL.into());
    }
    let j = journal.info()?;
    let mut out = Vec::with_capacity(64);
    // LowestValidUsn is where this journal began to be kept; MaxUsn is never reached.
    for n in [j.id, j.first, j.next, j.first, i64::MAX as u64, j.max_bytes, j.delta_bytes] {
        out.put_u64(n);
    }
    if max >= 64 {
        out.put_u16(2);
        out.put_u16(3);
        out.put_u32(0);
    }
    Ok((NtStatus::SUCCESS, out))
}

/// READ_USN_JOURNAL_DATA_V0 or V1; the answer is where to go on, and records. With BytesToWaitFor, when the end is reached
/// and there is nothing to return, it waits until the journal is that much longer or Timeout seconds are over, and looks
/// again, for as long as it takes.
struct JournalRead {
    open: Arc<SmbOpen>,
    file_id: FileId,
    /// Where to begin: behind what it has looked at.
    from: u64,
    mask: u32,
    only_closed: bool,
    timeout_s: u64,
    bytes_to_wait_for: u64,
    journal_id: u64,
    version: u16,
    max: usize,
    waited: Option<UsnWait>,
}

impl Continuation for JournalRead {
    fn resume(&mut self, request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
        request.check_still_open(&self.open)?;
        if !request.may_block {
            return Err(Fail::Block);
        }
        let output = self.read(request)?;
        respond(fsctl::READ_USN_JOURNAL, self.file_id, self.max, output, out)
    }
}

impl JournalRead {
    fn parse(open: &Arc<SmbOpen>, ioctl: &IoctlRequest<'_>) -> Result<JournalRead, Fail> {
        let mut r = Reader::new(ioctl.input);
        let (from, mask, only_closed) = (r.u64()?, r.u32()?, r.u32()? != 0);
        let (timeout_s, bytes_to_wait_for) = (r.u64()?, r.u64()?);
        let journal_id = r.u64()?;
        let version = if r.remaining() >= 4 { version(r.u16()?, r.u16()?)? } else { 2 };
        let max = ioctl.max_output_response as usize;
        if max < 8 {
            return Err(NtStatus::BUFFER_TOO_SMALL.into());
        }
        if from > i64::MAX as u64 {
            return Err(NtStatus::INVALID_PARAMETER.into());
        }
        let (open, file_id) = (open.clone(), ioctl.file_id);
        Ok(JournalRead {
            open,
            file_id,
            from,
            mask,
            only_closed,
            timeout_s,
            bytes_to_wait_for,
            journal_id,
            version,
            max,
            waited: None,
        })
    }

    fn read(&mut self, request: &Request<'_>) -> Output {
        let open = self.open.clone();
        let file = open.file().ok_or(NtStatus::INVALID_DEVICE_REQUEST)?;
        let store = file.fs().store();
        let journal = store.change_journal().ok_or(NtStatus::INVALID_DEVICE_REQUEST)?;
        if let Some(waited) = self.waited.take() {
            if !waited.is_over(request.now, journal.end()?) {
                return Err(self.wait(request, journal, waited.again()));
            }
            self.from = waited.from();
        }
        if journal.info()?.id != self.journal_id {
            return Err(NtStatus::INVALID_PARAMETER.into());
        }
        let mut out = vec![0; 8];
        let mut full = false;
        let next = journal.read(self.from, &mut |record| {
            if record.reason & self.mask == 0 || self.only_closed && record.reason & reason::CLOSE == 0 {
                return true;
            }
            let before = out.len();
            put_record(&mut out, self.version, record);
            if out.len() > self.max {
                out.truncate(before);
                full = true;
            }
            !full
        })?;
        if out.len() == 8 && !full && self.bytes_to_wait_for != 0 {
            let until = Until::new(next, self.bytes_to_wait_for, request.now, self.timeout_s);
            return Err(self.wait(request, journal, until));
        }
        out[..8].copy_from_slice(&next.to_le_bytes());
        Ok((NtStatus::SUCCESS, out))
    }

    fn wait(&mut self, request: &Request<'_>, journal: &dyn ChangeJournal, until: Until) -> Fail {
        match usn_waits::wait(request.trees, &self.open, journal, until) {
            Ok((wait, waited)) => {
                self.waited = Some(waited);
                Fail::Wait(wait, None)
            }
            Err(e) => e.into(),
        }
    }
}

fn file_data(journal: &dyn ChangeJournal, file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    let mut r = Reader::new(ioctl.input);
    let version = if r.remaining() >= 4 { version(r.u16()?, r.u16()?)? } else { 2 };
    let max = ioctl.max_output_response as usize;
    if max < header_bytes(version) {
        return Err(NtStatus::BUFFER_TOO_SMALL.into());
    }
    let mut record = journal.of_file(&**file.node())?;
    if !file.fs().may_know_name(file) {
        (record.parent, record.name) = Default::default();
    }
    let mut out = Vec::new();
    put_record(&mut out, version, &record);
    if out.len() > max {
        return Err(NtStatus::BUFFER_TOO_SMALL.into());
    }
    Ok((NtStatus::SUCCESS, out))
}

fn close_record(
    request: &Request<'_>,
    journal: &dyn ChangeJournal,
    file: &Arc<Open>,
    ioctl: &IoctlRequest<'_>,
) -> Output {
    if ioctl.max_output_response < 8 {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    // A change of the volume: not for who may only read.
    if file.granted_access() & (FILE_WRITE_DATA | FILE_APPEND_DATA) == 0 {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    let usn = journal.close_record(request.scope.changes(file), &**file.node())?;
    Ok((NtStatus::SUCCESS, usn.to_le_bytes().to_vec()))
}
