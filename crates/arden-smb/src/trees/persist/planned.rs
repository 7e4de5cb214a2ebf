//! Durable opens that are not persistent, [MS-SMB2] 3.3.5.9.6 and 3.3.5.9.10: they outlive a planned stop or move, and no crash. Nothing is
//! kept of them before. Who leaves the files writes all that belongs to one under one key, and who serves them next takes it up and
//! removes it before anybody may connect. So none comes back after others had its file.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use arden_auth::Token;
use arden_store::{
    commit::CommitScope,
    handles::{HandleChange, HandleStore, KeptCache, KeptLease, VALUE_BYTES_MAX},
    table::Open,
};
use arden_wire::{
    Malformed,
    cursor::{Put, Reader},
    dtyp::Sid,
    names::name_units,
};

use super::{Found, Kept, State, Usage, decode, encode, handles, path_units, put};
use crate::{
    base::time::Time,
    model::{
        Durability, OpenState, SmbOpen, caches_handle,
        kept::{DURABLE, durable_key},
        share::Share,
    },
    trees::Trees,
};

const VERSION: u8 = 1;
/// Units of a FILETIME.
const TICKS_PER_MS: u64 = 10_000;

/// What was kept of one open.
struct Planned {
    kept: Kept,
    /// Its locks, their sequences, and its lease.
    below: Found,
    is_v2: bool,
    replay_eligible: bool,
    /// When it was kept, as a FILETIME.
    at: u64,
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32(bytes.len() as u32);
    out.extend_from_slice(bytes);
}

fn bytes<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let len = r.u32()? as usize;
    r.bytes(len)
}

impl Planned {
    fn parse(value: &[u8]) -> Result<Planned, Malformed> {
        let r = &mut Reader::new(value);
        if r.u8()? != VERSION {
            return Err(Malformed("version of a kept durable handle"));
        }
        let (is_v2, replay_eligible, at) = (r.u8()? != 0, r.u8()? != 0, r.u64()?);
        let kept = decode(bytes(r)?)?;
        let id = kept.open.id.0;
        let mut below = Found::default();
        let lease = bytes(r)?;
        if !lease.is_empty() {
            let lease = KeptLease::parse(lease)?;
            below.leases.insert((lease.client.0, lease.key), lease);
        }
        let mut held = BTreeMap::new();
        for _ in 0..r.u32()? {
            let range = (r.u64()?, r.u64()?, r.u8()? != 0);
            held.insert(range, r.u32()?);
        }
        below.locks.insert(id, held);
        let numbers = (0..r.u8()?).map(|_| Ok((usize::from(r.u8()?), r.u8()?))).collect::<Result<_, Malformed>>()?;
        below.sequences.insert(id, numbers);
        Ok(Planned { kept, below, is_v2, replay_eligible, at })
    }

    fn state(&self, time: Time) -> OpenState {
        let timeout = self.kept.timeout;
        let durability = if self.is_v2 { Durability::V2 { timeout } } else { Durability::V1 { timeout } };
        OpenState { replay_eligible: self.replay_eligible, ..OpenState::disconnected(durability, time.now) }
    }

    /// Its time was over before anybody took it up. The clocks of two nodes may differ a little.
    fn is_over(&self, time: Time) -> bool {
        Duration::from_millis(time.wall.0.saturating_sub(self.at) / TICKS_PER_MS) > self.kept.timeout
    }
}

/// What has to be kept of the open, and how many locks that are. None: it does not outlive what its server does.
fn keep(state: &State, open: &SmbOpen, file: &Arc<Open>, time: Time) -> Option<(Vec<u8>, usize)> {
    let fs = file.fs();
    let (is_v2, replay_eligible, numbers) = {
        let state = open.state.lock();
        let is_v2 = match state.durability {
            Durability::V1 { .. } => false,
            Durability::V2 { .. } => true,
            _ => return None,
        };
        let ends = state.given_up || state.breaking || state.expires.is_some_and(|at| at <= time.now);
        let numbers = state.lock_sequence.iter().flat_map(|all| all.iter().enumerate());
        let numbers: Vec<_> = numbers.filter_map(|(bucket, n)| Some((bucket as u8, (*n)?))).collect();
        (!ends).then_some((is_v2, state.replay_eligible, numbers))?
    };
    // What leads to the past is not kept, as of persistent ones.
    if file.is_closed() || fs.is_read_only() || !caches_handle(fs.cache(file)) {
        return None;
    }
    let kept = fs.keep(file);
    let lease = fs.keep_lease(file);
    let breaking = match kept.cache {
        KeptCache::Oplock { breaking, .. } => breaking.is_some(),
        KeptCache::Lease { .. } => lease.is_none_or(|l| l.breaking.is_some()),
    };
    let units = path_units(&kept.path).max(name_units(&open.name));
    if breaking || kept.delete_on_close || kept.delete_pending.is_some() || units > state.path_units_max {
        return None;
    }
    let mut held = BTreeMap::<(u64, u64, bool), u32>::new();
    let locks = fs.locks_of(file);
    locks.iter().for_each(|r| *held.entry((r.offset, r.len, r.exclusive)).or_default() += 1);
    let mut out = vec![VERSION, u8::from(is_v2), u8::from(replay_eligible)];
    out.put_u64(time.wall.0);
    put_bytes(&mut out, &encode(open, &kept));
    put_bytes(&mut out, &lease.map_or_else(Vec::new, |l| l.encode()));
    out.put_u32(held.len() as u32);
    for ((offset, len, exclusive), count) in held {
        out.put_u64(offset);
        out.put_u64(len);
        out.put_u8(u8::from(exclusive));
        out.put_u32(count);
    }
    out.put_u8(numbers.len() as u8);
    for (bucket, number) in numbers {
        out.extend_from_slice(&[bucket, number]);
    }
    (out.len() <= VALUE_BYTES_MAX).then_some((out, locks.len()))
}

impl Trees {
    /// The files of these shares are about to be left in order: durable opens of them are kept for whoever serves them next. To be called
    /// while their stores can still be written, and when nothing is asked of them any more. Opens that cannot be kept are lost.
    pub fn keep_durable(&self, of: impl Fn(&Share) -> bool) {
        let (time, scope, mut count) = (self.time(), CommitScope::begin(), 0);
        let opens = self.opens();
        {
            let state = self.persistence();
            let mut users: HashMap<Sid, Usage> = HashMap::new();
            for open in opens.iter().filter(|o| of(&o.share) && handles(o).is_some()) {
                let Some((value, locks)) = open.file().and_then(|file| keep(&state, open, file, time)) else {
                    continue;
                };
                if self.counts_another(&state, &mut users, &open.owner, locks) {
                    put(&scope, open, vec![HandleChange::Put { key: durable_key(open.id.persistent), value }]);
                    count += 1;
                }
            }
        }
        if count == 0 {
            return;
        }
        match scope.commit() {
            Ok(()) => tracing::info!(handles = count, "durable handles are kept for who serves their files next"),
            Err(error) => tracing::error!(%error, "durable handles are not kept"),
        }
    }

    /// Within what a user may have of persistent opens.
    fn counts_another(&self, state: &State, users: &mut HashMap<Sid, Usage>, who: &Token, locks: usize) -> bool {
        let limits = &self.config.limits;
        let usage =
            users.entry(who.user.clone()).or_insert_with(|| state.users.get(&who.user).copied().unwrap_or_default());
        let fits = usage.opens < limits.persistent_opens_per_user_max
            && usage.locks.saturating_add(locks) <= limits.persistent_locks_per_user_max;
        if fits {
            usage.opens += 1;
            usage.locks += locks;
        } else {
            tracing::debug!(user = %who.user, "a durable handle is not kept: its user has as many as are kept");
        }
        fits
    }

    /// Shares whose handles were not looked at yet.
    pub(in crate::trees) fn not_restored(&self, shares: &HashMap<String, Arc<Share>>) -> Vec<Arc<Share>> {
        let state = self.persistence();
        shares.iter().filter(|(name, _)| !state.restored.contains(*name)).map(|(_, share)| share.clone()).collect()
    }

    /// Takes up the durable opens that are kept where `new` shares lie, of all `shares`, and keeps none any more: later others may have
    /// changed their files. To be called before anybody may connect to these shares.
    pub(in crate::trees) fn restore_durable(
        self: &Arc<Trees>,
        new: &[Arc<Share>],
        shares: &HashMap<String, Arc<Share>>,
        time: Time,
    ) {
        let mut done: Vec<&Arc<dyn HandleStore>> = Vec::new();
        for share in new {
            let Some((fs, store)) = share.fs.as_ref().and_then(|fs| Some((fs, fs.handles()?))) else { continue };
            if done.iter().any(|other| Arc::ptr_eq(other, store)) {
                continue;
            }
            done.push(store);
            let all = match store.load() {
                Ok(all) => all,
                Err(error) => {
                    tracing::error!(share = %share.name, %error, "kept durable handles cannot be read");
                    continue;
                }
            };
            let scope = CommitScope::begin();
            let (mut gone, mut restored) = (Vec::new(), 0);
            for (key, value) in all.into_iter().filter(|(key, _)| key.first() == Some(&DURABLE)) {
                gone.push(HandleChange::Remove { key });
                restored += usize::from(self.restore_planned(&scope, store, shares, &value, time));
            }
            if gone.is_empty() {
                continue;
            }
            let lost = gone.len() - restored;
            scope.put(fs, gone);
            if let Err(error) = scope.commit() {
                tracing::error!(share = %share.name, %error, "durable handles may come back after a crash");
            }
            tracing::info!(restored, lost, "durable handles wait for their clients");
        }
    }

    /// False: it is given up.
    fn restore_planned(
        self: &Arc<Trees>,
        scope: &CommitScope,
        store: &Arc<dyn HandleStore>,
        shares: &HashMap<String, Arc<Share>>,
        value: &[u8],
        time: Time,
    ) -> bool {
        let planned = match Planned::parse(value) {
            Ok(planned) => planned,
            Err(e) => {
                tracing::error!("what was kept of a durable handle is not understood: {e:?}");
                return false;
            }
        };
        let kept = &planned.kept;
        let given_up = |why: &dyn std::fmt::Display| {
            tracing::warn!(share = %kept.share, file = %kept.name, %why, "a durable handle is given up");
            false
        };
        let is_here =
            |s: &&Arc<Share>| s.fs.as_ref().and_then(|fs| fs.handles()).is_some_and(|h| Arc::ptr_eq(h, store));
        let Some(share) = shares.get(&kept.share.to_lowercase()).filter(is_here) else {
            return given_up(&"its share is not there");
        };
        if planned.is_over(time) {
            return given_up(&"its time is over");
        }
        if self.open(kept.open.id.0).is_some() {
            return given_up(&"another open has its id");
        }
        let restored = self.restore_open(share, kept, &planned.below, planned.state(time), scope.at(time.now));
        restored.map_or_else(|error| given_up(&error), |()| true)
    }
}
