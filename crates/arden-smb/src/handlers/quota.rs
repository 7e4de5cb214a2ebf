//! Quotas over SMB: SMB2_0_INFO_QUOTA of QUERY_INFO and SET_INFO, [MS-SMB2] 3.3.5.20.4 and 3.3.5.21.4, and
//! FileFsControlInformation, [MS-FSA] 2.1.5.13.6 and 2.1.5.16.6. On a store that keeps none, the first are
//! NOT_SUPPORTED and the last is VOLUME_NOT_UPGRADED, as those sections have it.

use std::sync::{Arc, atomic::Ordering};

use arden_auth::privilege;
use arden_store::{
    commit::CommitScope,
    fs::{Fs, Operation},
    quota::{NONE, Quota, QuotaControl, QuotaStore},
    table::Open,
};
use arden_wire::{
    NtStatus,
    cursor::{Put, Reader},
    dtyp::{Sid, well_known},
    smb2::info::QueryInfoRequest,
};

use crate::{
    handlers::request::{Fail, Handled},
    model::SmbOpen,
};

/// FILE_QUOTA_INFORMATION without its SID, [MS-FSCC] 2.4.41.
const ENTRY_BYTES: usize = 40;
/// QuotaLimit: the entry is to be deleted.
const DELETED: u64 = u64::MAX - 1;

/// The file over which clients of NTFS reach the quotas of a volume.
const QUOTA_INDEX: &str = "$Extend\\$Quota:$Q:$INDEX_ALLOCATION";

/// Whether a name is that of the quotas' file, on a store that has quotas.
pub fn is_quota_index(fs: &Fs, name: &str) -> bool {
    name.eq_ignore_ascii_case(QUOTA_INDEX) && fs.store().quotas().is_some()
}

fn supported(file: &Open) -> Result<&dyn QuotaStore, Fail> {
    file.fs().store().quotas().ok_or(Fail::Status(NtStatus::NOT_SUPPORTED))
}

fn bad<E>(_: E) -> Fail {
    Fail::Status(NtStatus::INVALID_PARAMETER)
}

/// SMB2_QUERY_QUOTA_INFO, [MS-SMB2] 2.2.37.1.
struct Query {
    single: bool,
    restart: bool,
    sids: Option<Vec<Sid>>,
    start: Option<Sid>,
}

fn parse(input: &[u8]) -> Result<Query, Fail> {
    let mut r = Reader::new(input);
    let (single, restart) = (r.u8().map_err(bad)? != 0, r.u8().map_err(bad)? != 0);
    r.skip(2).map_err(bad)?;
    let (list, start_len, start_at) =
        (r.u32().map_err(bad)? as usize, r.u32().map_err(bad)? as usize, r.u32().map_err(bad)? as usize);
    let buffer = r.rest();
    let part = |at: usize, len: usize| at.checked_add(len).and_then(|end| buffer.get(at..end)).ok_or(());
    if list > 0 {
        let list = part(0, list).map_err(bad)?;
        return Ok(Query { single, restart, sids: Some(parse_list(list)?), start: None });
    }
    let start = match start_len {
        0 => None,
        n => Some(Sid::parse(part(start_at, n).map_err(bad)?).map_err(bad)?),
    };
    Ok(Query { single, restart, sids: None, start })
}

/// A list of FILE_GET_QUOTA_INFORMATION.
fn parse_list(list: &[u8]) -> Result<Vec<Sid>, Fail> {
    if list.len() % 4 != 0 {
        return Err(bad(()));
    }
    let (mut out, mut at) = (Vec::new(), 0);
    loop {
        let mut r = Reader::new(list.get(at..).ok_or(()).map_err(bad)?);
        let (next, len) = (r.u32().map_err(bad)? as usize, r.u32().map_err(bad)? as usize);
        out.push(Sid::parse(r.bytes(len).map_err(bad)?).map_err(bad)?);
        match next {
            0 => return Ok(out),
            n if n < 8 || n % 4 != 0 => return Err(bad(())),
            n => at += n,
        }
    }
}

/// Appends an entry to those since `start`; false when it does not fit into `max`.
fn put_entry(out: &mut Vec<u8>, start: usize, last: &mut Option<usize>, max: usize, sid: &Sid, q: &Quota) -> bool {
    let sid = sid.encode();
    let at = (out.len() - start).next_multiple_of(8);
    if at + ENTRY_BYTES + sid.len() > max {
        return false;
    }
    out.resize(start + at, 0);
    if let Some(last) = last.replace(start + at) {
        out.patch_u32(last, (start + at - last) as u32);
    }
    out.put_u32(0);
    out.put_u32(sid.len() as u32);
    out.put_u64(q.changed.0);
    out.put_u64(q.used_bytes);
    out.put_u64(q.threshold);
    out.put_u64(q.limit);
    out.extend_from_slice(&sid);
    true
}

/// Everybody may ask for his own entry; all of them are for who manages the volume.
pub fn query(open: &SmbOpen, file: &Arc<Open>, query: &QueryInfoRequest<'_>, out: &mut Vec<u8>) -> Handled {
    let quotas = supported(file)?;
    let (asked, max, start) = (parse(query.input)?, query.output_length as usize, out.len());
    let manages = file.who().has_privilege(privilege::MANAGE_VOLUME);
    let mut last = None;
    let mut put = |sid: &Sid, q: &Quota| put_entry(out, start, &mut last, max, sid, q);
    if let Some(sids) = &asked.sids {
        if !manages && sids.iter().any(|sid| *sid != file.who().user) {
            return Err(NtStatus::ACCESS_DENIED.into());
        }
        let unknown = Quota { threshold: 0, limit: 0, ..Quota::default() };
        for sid in &sids[..if asked.single { 1 } else { sids.len() }] {
            if !put(sid, &quotas.user(sid)?.unwrap_or(unknown)) {
                break;
            }
        }
        return if last.is_some() { Ok(NtStatus::SUCCESS) } else { Err(NtStatus::BUFFER_TOO_SMALL.into()) };
    }
    let all: Vec<(Sid, Quota)> =
        quotas.users()?.into_iter().filter(|(sid, _)| manages || *sid == file.who().user).collect();
    let from = match &asked.start {
        // [MS-FSA] 2.1.5.21: it has to be there, and is the first that is returned.
        Some(sid) => all.iter().position(|(s, _)| s == sid).ok_or(()).map_err(bad)?,
        None if asked.restart => 0,
        None => open.quota_index.load(Ordering::Relaxed) as usize,
    };
    let mut given = 0;
    for (sid, q) in all.get(from..).unwrap_or(&[]) {
        if asked.single && given == 1 || !put(sid, q) {
            break;
        }
        given += 1;
    }
    if given == 0 {
        let status = if from < all.len() { NtStatus::BUFFER_TOO_SMALL } else { NtStatus::NO_MORE_ENTRIES };
        return Err(status.into());
    }
    open.quota_index.store((from + given) as u64, Ordering::Relaxed);
    Ok(NtStatus::SUCCESS)
}

fn managing(file: &Open) -> Result<(), Fail> {
    if file.who().has_privilege(privilege::MANAGE_VOLUME) { Ok(()) } else { Err(NtStatus::ACCESS_DENIED.into()) }
}

/// A list of FILE_QUOTA_INFORMATION, [MS-FSA] 2.1.5.22.
pub fn set(scope: &CommitScope, file: &Arc<Open>, buffer: &[u8]) -> Result<(), Fail> {
    let quotas = supported(file)?;
    file.check(Operation::ManageVolume)?;
    managing(file)?;
    let by = scope.changes(file);
    let mut at = 0;
    loop {
        let mut r = Reader::new(buffer.get(at..).ok_or(()).map_err(bad)?);
        let (next, len) = (r.u32().map_err(bad)? as usize, r.u32().map_err(bad)? as usize);
        // ChangeTime and QuotaUsed are ignored.
        r.skip(16).map_err(bad)?;
        let (threshold, limit) = (r.u64().map_err(bad)?, r.u64().map_err(bad)?);
        let sid = Sid::parse(r.bytes(len).map_err(bad)?).map_err(bad)?;
        if sid == *well_known::BUILTIN_ADMINISTRATORS && limit != NONE {
            return Err(NtStatus::ACCESS_DENIED.into());
        }
        let negative = |n: u64| n > i64::MAX as u64 && n != NONE;
        match limit {
            DELETED => quotas.remove_user(by, &sid)?,
            limit if negative(limit) || negative(threshold) => return Err(bad(())),
            limit => quotas.set_user(by, &sid, threshold, limit)?,
        }
        match next {
            0 => return Ok(()),
            n if n < ENTRY_BYTES || n % 8 != 0 => return Err(bad(())),
            n => at += n,
        }
    }
}

/// FILE_FS_CONTROL_INFORMATION, [MS-FSCC] 2.5.2.
pub fn put_control(quotas: Option<&dyn QuotaStore>, out: &mut Vec<u8>) -> Result<(), Fail> {
    let control = quotas.ok_or(Fail::Status(NtStatus::VOLUME_NOT_UPGRADED))?.control()?;
    out.put_zeros(24);
    out.put_u64(control.threshold);
    out.put_u64(control.limit);
    out.put_u32(control.flags);
    out.put_u32(0);
    Ok(())
}

pub fn set_control(scope: &CommitScope, file: &Arc<Open>, buffer: &[u8]) -> Result<(), Fail> {
    if buffer.len() < 48 {
        return Err(NtStatus::INFO_LENGTH_MISMATCH.into());
    }
    let quotas = file.fs().store().quotas().ok_or(Fail::Status(NtStatus::VOLUME_NOT_UPGRADED))?;
    file.check(Operation::SetVolumeControl)?;
    managing(file)?;
    let mut r = Reader::new(&buffer[24..]);
    let (threshold, limit, flags) = (r.u64().map_err(bad)?, r.u64().map_err(bad)?, r.u32().map_err(bad)?);
    quotas.set_control(scope.changes(file), &QuotaControl { threshold, limit, flags })?;
    Ok(())
}
