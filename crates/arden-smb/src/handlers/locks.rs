//! LOCK, [MS-SMB2] 3.3.5.14.

use std::sync::Arc;

use arden_store::{
    commit::Cause,
    fs::{LockRange, Open, Step},
};
use arden_wire::{
    NtStatus,
    smb2::io::{LockElement, LockRequest, lock_flags},
    smb2::session::put_empty,
};

use crate::{
    base::usage::Kind,
    handlers::request::{Continuation, Fail, Handled, Request, waiting},
    model::{Durability, SmbOpen},
};

/// More ranges are locked or unlocked where that may take its time.
const INLINE_LOCKS_MAX: usize = 64;

pub fn lock(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    let parsed = LockRequest::parse(request.verified.message)?;
    let open = request.open(parsed.file_id)?;
    if open.file().is_none() {
        return Err(NtStatus::INVALID_DEVICE_REQUEST.into());
    }
    let bucket = sequence_bucket(request, &open, parsed.sequence);
    if let Some((index, number)) = bucket {
        if was_done(&open, index, number) {
            put_empty(out);
            return Ok(NtStatus::SUCCESS);
        }
    }
    if parsed.locks.len() > INLINE_LOCKS_MAX && !request.may_block {
        return Err(Fail::Block);
    }
    let lock = LockWait { open, locks: parsed.locks, bucket };
    let handled = lock.take(request, false, out);
    waiting(handled, lock)
}

/// A LOCK; one of a single range may wait for others to unlock.
struct LockWait {
    open: Arc<SmbOpen>,
    locks: Vec<LockElement>,
    bucket: Option<(usize, u8)>,
}

impl Continuation for LockWait {
    fn resume(&mut self, request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
        request.check_still_open(&self.open)?;
        self.take(request, true, out)
    }
}

impl LockWait {
    /// `waited`: the table may have given the lock already, so that no limit may refuse it any more.
    fn take(&self, request: &Request<'_>, waited: bool, out: &mut Vec<u8>) -> Handled {
        let LockWait { open, locks, bucket } = self;
        let file = open.file().ok_or(NtStatus::INVALID_DEVICE_REQUEST)?;
        let trees = request.trees;
        let account = || trees.usage.account(Kind::Locks, &open.owner, Some(request.verified.ip));
        let usage = open.usage.locks.get_or_init(account);
        let takes = locks.first().is_some_and(|l| l.flags & lock_flags::UNLOCK == 0);
        let count = if takes { locks.len() } else { 0 };
        if waited {
            usage.force(count);
        } else {
            usage.add(count).map_err(|_| NtStatus::INSUFFICIENT_RESOURCES)?;
        }
        let mut unlocked = 0;
        // A persistent open's locks are kept in the order in which the table gave them, and with their sequence.
        let id = open.id.persistent;
        let mut kept = open.is_persistent().then(|| open.kept_locks.lock());
        let mut changes = Vec::new();
        let user = &open.owner.user;
        let (mut reserved, mut held) = (0, 0);
        if let Some(kept) = &kept
            && takes
        {
            (reserved, held) = (locks.len(), kept.held_count());
            trees.reserve_locks(user, reserved, waited).inspect_err(|_| usage.release(count))?;
        } else if let Some(kept) = &kept {
            held = kept.held_count();
        }
        let done = apply(file, locks, request.cause(), |ranges, unlock| {
            unlocked += if unlock { ranges.len() } else { 0 };
            if let Some(kept) = &mut kept {
                kept.change(id, ranges, unlock, &mut changes);
            }
        });
        usage.release(if done.is_err() { count + unlocked } else { unlocked });
        if let (Ok(()), Some((index, number))) = (&done, *bucket) {
            remember(open, index, number);
            changes.extend(kept.as_mut().map(|kept| kept.sequence(id, index, number)));
        } else if let Some((index, _)) = *bucket {
            changes.extend(kept.as_mut().and_then(|kept| kept.forget_sequence(id, index)));
        }
        if let Some(kept) = &kept {
            trees.release_locks(user, held + reserved - kept.held_count());
        }
        crate::trees::persist::put(request.scope, open, changes);
        done?;
        put_empty(out);
        Ok(NtStatus::SUCCESS)
    }
}

/// Asks the table, and tells what it did: part of it too, where the rest failed.
fn apply(
    file: &Arc<Open>,
    locks: &[LockElement],
    cause: Cause<'_>,
    mut did: impl FnMut(&[LockRange], bool),
) -> Result<(), Fail> {
    if locks[0].flags & lock_flags::UNLOCK == 0 {
        let (ranges, fail_immediately) = lock_ranges(locks)?;
        return match file.fs().lock(file, &ranges, fail_immediately, cause)? {
            Step::Done(()) => {
                did(&ranges, false);
                Ok(())
            }
            Step::Wait(wait) => Err(Fail::Wait(wait, None)),
        };
    }
    // [MS-SMB2] 3.3.5.14.1: one after another; what was unlocked before a failure stays unlocked.
    let unlocks = locks.iter().take_while(|l| l.flags == lock_flags::UNLOCK);
    let ranges: Vec<_> = unlocks.map(|l| LockRange { offset: l.offset, len: l.length, exclusive: false }).collect();
    let (gone, result) = file.fs().unlock(file, &ranges);
    did(&ranges[..gone], true);
    result?;
    if ranges.len() < locks.len() { Err(NtStatus::INVALID_PARAMETER.into()) } else { Ok(()) }
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
    let checked = request.verified.dialect().is_smb3() || open.state.lock().durability != Durability::None;
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
