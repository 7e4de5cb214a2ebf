//! LOCK, [MS-SMB2] 3.3.5.14.

use arden_store::fs::{LockRange, Step};
use arden_store::handles::HandleChange;
use arden_wire::{
    NtStatus,
    smb2::io::{LockElement, LockRequest, lock_flags},
    smb2::session::put_empty,
};

use crate::{
    model::{Durability, SmbOpen},
    request::{Fail, Handled, Request},
};

pub fn lock(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    let parsed = LockRequest::parse(request.message)?;
    let open = request.open(parsed.file_id)?;
    let file = open.file().ok_or(NtStatus::INVALID_DEVICE_REQUEST)?;
    let unlock = parsed.locks[0].flags & lock_flags::UNLOCK != 0;
    let bucket = sequence_bucket(request, &open, parsed.sequence);
    if let (Some((index, number)), false) = (bucket, request.resumed) {
        if was_done(&open, index, number) {
            put_empty(out);
            return Ok(NtStatus::SUCCESS);
        }
    }
    // A persistent open's locks are kept in the order in which the table gave them.
    let mut kept = open.is_persistent().then(|| open.kept_locks.lock());
    let mut keep = |ranges: &[LockRange], unlock| {
        if let Some(kept) = &mut kept {
            put(&open, crate::persist::lock_changes(open.id.persistent, kept, ranges, unlock));
        }
    };
    if unlock {
        // [MS-SMB2] 3.3.5.14.1: one after another; what was unlocked before a failure stays unlocked.
        for l in &parsed.locks {
            if l.flags != lock_flags::UNLOCK {
                return Err(NtStatus::INVALID_PARAMETER.into());
            }
            let range = [LockRange { offset: l.offset, len: l.length, exclusive: false }];
            file.fs().unlock(file, &range)?;
            keep(&range, true);
        }
    } else {
        let (ranges, fail_immediately) = lock_ranges(&parsed.locks)?;
        match file.fs().lock(file, &ranges, fail_immediately, request.now)? {
            Step::Done(()) => keep(&ranges, false),
            Step::Wait(wait) => return Err(Fail::Wait(wait)),
        }
    }
    if let Some((index, number)) = bucket {
        remember(&open, index, number);
        if kept.is_some() {
            put(&open, vec![crate::persist::sequence_change(open.id.persistent, index, Some(number))]);
        }
    }
    put_empty(out);
    Ok(NtStatus::SUCCESS)
}

fn put(open: &SmbOpen, changes: Vec<HandleChange>) {
    if let Some(handles) = open.share.fs.as_ref().and_then(|fs| fs.handles()) {
        handles.put(changes);
    }
}

fn lock_ranges(locks: &[LockElement]) -> Result<(Vec<LockRange>, bool), Fail> {
    let mut ranges = Vec::with_capacity(locks.len());
    let mut fail_immediately = true;
    for l in locks {
        let immediate = l.flags & lock_flags::FAIL_IMMEDIATELY != 0;
        let exclusive = match l.flags & !lock_flags::FAIL_IMMEDIATELY {
            lock_flags::SHARED => false,
            lock_flags::EXCLUSIVE => true,
            _ => return Err(NtStatus::INVALID_PARAMETER.into()),
        };
        if !immediate && locks.len() > 1 {
            // Several locks at once may not wait, [MS-SMB2] 3.3.5.14.2.
            return Err(NtStatus::INVALID_PARAMETER.into());
        }
        fail_immediately &= immediate;
        ranges.push(LockRange { offset: l.offset, len: l.length, exclusive });
    }
    Ok((ranges, fail_immediately))
}

/// Index and number of LockSequence where it is to be checked.
fn sequence_bucket(request: &Request<'_>, open: &SmbOpen, sequence: u32) -> Option<(usize, u8)> {
    let checked = request.peer.dialect().is_smb3() || open.state.lock().durability != Durability::None;
    let index = (sequence >> 4) as usize;
    (checked && (1..=64).contains(&index)).then_some((index, (sequence & 0xF) as u8))
}

/// The same request came before and was done; otherwise the bucket is emptied until this one is.
fn was_done(open: &SmbOpen, index: usize, number: u8) -> bool {
    let mut state = open.state.lock();
    let Some(buckets) = &mut state.lock_sequence else { return false };
    if buckets[index] == Some(number) {
        return true;
    }
    buckets[index] = None;
    false
}

fn remember(open: &SmbOpen, index: usize, number: u8) {
    let mut state = open.state.lock();
    state.lock_sequence.get_or_insert_with(|| Box::new([None; 65]))[index] = Some(number);
}
