//! Oplocks and leases of one stream, [MS-FSA] 2.1.4.12 and 2.1.5.18, [MS-SMB2] 3.3.1.4. Pure: time comes in,
//! breaks go out as effects.
//!
//! Both kinds are grants of read, handle and write caching. An oplock belongs to one open; level II is R,
//! exclusive RW, batch RWH. A lease belongs to a client's key and is shared by its opens. A lease stays
//! while it has opens, even with nothing granted: later opens with its key may raise it.
//!
//! A key belongs to a client, [MS-SMB2] 3.3.1.4, whereas [MS-FSA] 2.1.4.12.2 compares keys alone. Therefore an open by another
//! client under the same key does not break write caching by itself, but before it works on data ([`Caches::break_beside`]);
//! until then it caches nothing. So nobody sees data that another has still to write back.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::{
    effects::{Effect, Effects},
    room::give_back,
    share::is_lease_stat_open,
};
use crate::{
    error::StoreError,
    fs::{CacheGrant, CacheRequest, ClientId, LeaseBreak, LeaseRequest, OpenId, OplockLevel, Owner, lease_state},
    handles::KeptBreak,
    store::Result,
};

const R: u32 = lease_state::READ;
const H: u32 = lease_state::HANDLE;
const W: u32 = lease_state::WRITE;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LeaseId {
    pub client: ClientId,
    pub key: u128,
}

impl LeaseId {
    /// Another client has a lease under the same key.
    fn is_beside(self, other: Option<LeaseId>) -> bool {
        other.is_some_and(|o| o.key == self.key && o.client != self.client)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Holder {
    Oplock(OpenId),
    Lease(LeaseId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Breaking {
    /// What the holder was told; it may keep any part of it.
    offered: u32,
    /// What has to be left in the end. Less than `offered` when something else conflicted meanwhile.
    required: u32,
    /// Others wait for this break, and so does whoever conflicts while it lasts.
    awaited: bool,
    deadline: Instant,
    /// The holder came back to it once, and had his time anew.
    is_told_again: bool,
}

/// What outlives the server of one grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept {
    pub state: u32,
    pub epoch: u16,
    pub version: u8,
    pub parent_key: Option<u128>,
    pub breaking: Option<KeptBreak>,
    /// Of a directory's lease, 0 of others: the directory's change time when the state was last raised.
    pub changed_at: u64,
}

#[derive(Debug)]
struct Grant {
    holder: Holder,
    /// Who is told of its breaks: the owner of the open that it began with.
    owner: Owner,
    state: u32,
    breaking: Option<Breaking>,
    epoch: u16,
    version: u8,
    parent_key: Option<u128>,
    opens: Vec<OpenId>,
    /// Opens that are more than stat opens.
    real_opens: u32,
    /// The holder may be away and come back: it has longer to answer a break.
    patient: bool,
    /// As `Kept::changed_at`.
    changed_at: u64,
}

/// Who does something that may break others' caching.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Actor {
    pub open: OpenId,
    pub lease: Option<LeaseId>,
}

/// A conflicting open, as far as caching cares.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conflict {
    pub lease: Option<LeaseId>,
    pub access: u32,
    pub overwrite: bool,
    pub sharing_violation: bool,
}

/// What bounds a new grant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GrantContext<'a> {
    pub open: OpenId,
    pub owner: &'a Owner,
    pub client: ClientId,
    pub directory: bool,
    /// Nothing more than a stat open was asked for; an overwrite is more.
    pub stat_open: bool,
    /// The open itself has more than the rights of a stat open.
    pub real: bool,
    /// A stat open of a file that was there before: it gets leases, but no oplock.
    pub existed: bool,
    /// Opens of the stream that are more than stat opens, this one not counted.
    pub other_real_opens: u32,
    pub has_locks: bool,
    /// Of a directory: its change time, read before the open entered the table.
    pub changed_at: u64,
}

#[derive(Debug)]
pub(crate) struct Caches {
    grants: Vec<Grant>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub now: Instant,
    pub timeout: Duration,
    /// For holders that may come back to their opens, [MS-SMB2] 3.3.4.7.
    pub patient_timeout: Duration,
}

fn level_of(state: u32) -> OplockLevel {
    if state & W != 0 {
        if state & H != 0 { OplockLevel::Batch } else { OplockLevel::Exclusive }
    } else if state & R != 0 {
        OplockLevel::LevelII
    } else {
        OplockLevel::None
    }
}

fn state_of(level: OplockLevel) -> u32 {
    match level {
        OplockLevel::None => 0,
        OplockLevel::LevelII => R,
        OplockLevel::Exclusive => R | W,
        OplockLevel::Batch => R | W | H,
    }
}

impl Grant {
    fn deadline(&self, clock: Clock) -> Instant {
        clock.now + if self.patient { clock.patient_timeout } else { clock.timeout }
    }

    fn is_lease(&self) -> bool {
        matches!(self.holder, Holder::Lease(_))
    }

    fn belongs_to(&self, a: &Actor) -> bool {
        match self.holder {
            Holder::Oplock(open) => open == a.open,
            Holder::Lease(id) => Some(id) == a.lease,
        }
    }

    fn describe(&self) -> CacheGrant {
        match self.holder {
            Holder::Oplock(_) => CacheGrant::Oplock(level_of(self.state)),
            Holder::Lease(id) => CacheGrant::Lease {
                key: id.key,
                state: self.state,
                parent_key: self.parent_key,
                epoch: self.epoch,
                version: self.version,
                breaking: self.breaking.is_some(),
            },
        }
    }

    fn tell(&self, from: u32, to: u32, ack: bool, fx: &mut Effects) {
        fx.list.push(match self.holder {
            Holder::Oplock(open) => Effect::OplockBreak { owner: self.owner.clone(), open, to: level_of(to), ack },
            Holder::Lease(id) => {
                let b = LeaseBreak {
                    client: id.client,
                    key: id.key,
                    from,
                    to,
                    ack,
                    epoch: if self.version >= 2 { self.epoch } else { 0 },
                    version: self.version,
                    opens: self.opens.clone(),
                };
                Effect::LeaseBreak(self.owner.clone(), b)
            }
        });
    }

    /// Takes the grant down to `to`. Does not tell twice: a break under way is only made to go further.
    fn start_break(&mut self, to: u32, awaited: bool, clock: Clock, fx: &mut Effects) {
        let mut to = to & self.state;
        if !self.is_lease() {
            // Oplocks know read caching alone below exclusive.
            to &= R;
        }
        if let Some(b) = &mut self.breaking {
            b.awaited |= awaited;
            if b.required & !to != 0 {
                b.required &= to;
                // The holder is told after its answer, which may be to another server.
                fx.list.push(Effect::CacheChanged(self.owner.clone(), self.opens.clone()));
            }
            return;
        }
        if to == self.state {
            return;
        }
        let from = self.state;
        self.epoch = self.epoch.wrapping_add(1);
        if from == R {
            // Nothing to write back and no handle to close: nobody has to answer.
            self.state = 0;
            self.tell(from, 0, false, fx);
            return;
        }
        let deadline = self.deadline(clock);
        self.breaking = Some(Breaking { offered: to, required: to, awaited, deadline, is_told_again: false });
        fx.is_due(deadline);
        self.tell(from, to, true, fx);
    }

    /// The holder keeps `state`, a part of what it was offered.
    fn acknowledged(&mut self, state: u32, clock: Clock, fx: &mut Effects) {
        let Some(b) = self.breaking.take() else { return };
        self.state = state;
        if state & !b.required == 0 {
            return;
        }
        if state & (W | H) == 0 {
            self.state = 0;
            self.tell(state, 0, false, fx);
            return;
        }
        // In steps: handles first, then the rest.
        let offered = (b.required | R) & state;
        let deadline = self.deadline(clock);
        self.breaking = Some(Breaking { offered, deadline, is_told_again: false, ..b });
        fx.is_due(deadline);
        self.tell(state, offered, true, fx);
    }
}

impl Caches {
    pub const fn new() -> Caches {
        Caches { grants: Vec::new() }
    }

    /// Oplocks and leases, those of which nothing is left too.
    pub fn len(&self) -> usize {
        self.grants.len()
    }

    /// Whether anybody may cache reads without being alone: then writes have to look.
    pub fn any_caching(&self) -> bool {
        self.grants.iter().any(|g| g.state != 0)
    }

    /// Breaks what a new open conflicts with. True: it has to wait and come again. Write caching under the same key of another
    /// client is left for [`Caches::break_beside`], unless the open itself would spoil what is cached.
    pub fn conflict(&mut self, c: &Conflict, clock: Clock, fx: &mut Effects) -> bool {
        let delay_mask = if c.sharing_violation { H } else { W };
        let to_none = c.overwrite && !c.sharing_violation;
        let mut wait = false;
        for g in &mut self.grants {
            match g.holder {
                Holder::Lease(id) if Some(id) == c.lease || is_lease_stat_open(c.access) => continue,
                Holder::Lease(id)
                    if id.is_beside(c.lease) && g.breaking.is_none() && !c.overwrite && !c.sharing_violation =>
                {
                    continue;
                }
                _ => {}
            }
            if g.breaking.is_some_and(|b| b.awaited) {
                wait = true;
            }
            let keep = if to_none { 0 } else { g.state & !delay_mask };
            if keep == g.state {
                continue;
            }
            let awaited = g.state & delay_mask != 0;
            wait |= awaited;
            g.start_break(keep, awaited, clock, fx);
        }
        self.drop_empty_oplocks();
        wait
    }

    /// Whether another client caches writes, or is giving that up, under the same key.
    pub fn is_beside_writer(&self, lease: LeaseId) -> bool {
        self.grants
            .iter()
            .any(|g| matches!(g.holder, Holder::Lease(id) if id.is_beside(Some(lease))) && g.state & W != 0)
    }

    /// An open of `lease` is about to work on data: other clients' write caching under the same key ends first. True: wait.
    pub fn break_beside(&mut self, lease: LeaseId, clock: Clock, fx: &mut Effects) -> bool {
        let mut wait = false;
        for g in &mut self.grants {
            if matches!(g.holder, Holder::Lease(id) if id.is_beside(Some(lease))) && g.state & W != 0 {
                wait = true;
                g.start_break(g.state & !W, true, clock, fx);
            }
        }
        wait
    }

    /// Data or size changes: read caching of others ends. Nobody waits.
    pub fn break_reads(&mut self, by: &Actor, clock: Clock, fx: &mut Effects) {
        for g in &mut self.grants {
            // A level II oplock does not even outlive its owner's changes.
            let own = g.belongs_to(by) && (g.is_lease() || g.state & W != 0);
            if g.state & R != 0 && !own {
                g.start_break(0, false, clock, fx);
            }
        }
        self.drop_empty_oplocks();
    }

    /// A child of this directory changed, by an open whose parent lease key is `parent_key`.
    pub fn break_directory(&mut self, parent_key: Option<u128>, clock: Clock, fx: &mut Effects) {
        for g in &mut self.grants {
            match g.holder {
                Holder::Lease(id) if Some(id.key) != parent_key && g.state & (R | H) != 0 => {
                    g.start_break(0, false, clock, fx);
                }
                _ => {}
            }
        }
    }

    /// Rename, deletion: handle caching of others ends first. True: wait. `oplocks` too: batch oplocks as well.
    pub fn break_handles(&mut self, by: Option<&Actor>, oplocks: bool, clock: Clock, fx: &mut Effects) -> bool {
        let mut wait = false;
        for g in &mut self.grants {
            if by.is_some_and(|a| g.belongs_to(a)) || (!g.is_lease() && !oplocks) || g.state & H == 0 {
                continue;
            }
            wait = true;
            g.start_break(g.state & !H, true, clock, fx);
        }
        wait
    }

    /// What a new open is granted; it joins the lease it names.
    pub fn grant(&mut self, request: &CacheRequest, cx: &GrantContext<'_>) -> CacheGrant {
        match request {
            CacheRequest::None => CacheGrant::Oplock(OplockLevel::None),
            CacheRequest::Oplock(level) => CacheGrant::Oplock(self.grant_oplock(*level, cx)),
            CacheRequest::Lease(l) => self.grant_lease(l, cx),
        }
    }

    fn grant_oplock(&mut self, level: OplockLevel, cx: &GrantContext<'_>) -> OplockLevel {
        if level == OplockLevel::None || cx.directory || (cx.stat_open && cx.existed) {
            return OplockLevel::None;
        }
        let mut state = state_of(level);
        if cx.has_locks || self.grants.iter().any(|g| g.state & H != 0) {
            return OplockLevel::None;
        }
        if cx.other_real_opens > 0 || !self.grants.is_empty() {
            state &= !W;
        }
        let level = level_of(state);
        self.grants.push(Grant {
            holder: Holder::Oplock(cx.open),
            owner: cx.owner.clone(),
            state: state_of(level),
            breaking: None,
            epoch: 0,
            version: 0,
            parent_key: None,
            opens: vec![cx.open],
            real_opens: 1,
            patient: false,
            changed_at: 0,
        });
        level
    }

    fn grant_lease(&mut self, l: &LeaseRequest, cx: &GrantContext<'_>) -> CacheGrant {
        let id = LeaseId { client: cx.client, key: l.key };
        let own = self.grants.iter().position(|g| g.holder == Holder::Lease(id));
        let mut granted = l.state & (R | H | W);
        if cx.directory {
            granted &= !W;
        }
        if granted & R == 0 || cx.has_locks || self.is_beside_writer(id) {
            granted = 0;
        }
        let own_real = own.map_or(0, |i| self.grants[i].real_opens);
        let others = self.grants.len() > usize::from(own.is_some());
        if others || cx.other_real_opens > own_real {
            granted &= !W;
        }
        if self.grants.iter().any(|g| !g.is_lease()) {
            granted &= !H;
        }
        let index = own.unwrap_or_else(|| {
            self.grants.push(Grant {
                holder: Holder::Lease(id),
                owner: cx.owner.clone(),
                state: granted,
                breaking: None,
                epoch: l.epoch.wrapping_add(u16::from(granted != 0)),
                version: l.version,
                parent_key: l.parent_key,
                opens: Vec::with_capacity(1),
                real_opens: 0,
                patient: false,
                changed_at: cx.changed_at,
            });
            self.grants.len() - 1
        });
        let g = &mut self.grants[index];
        // Only ever upwards, only as a whole, and not while a break is under way.
        let wanted = l.state & (R | H | W);
        let wanted = if cx.directory { wanted & !W } else { wanted };
        if g.breaking.is_none() && g.state & wanted == g.state && granted != g.state && granted == wanted {
            g.state = granted;
            g.epoch = g.epoch.wrapping_add(1);
            g.changed_at = cx.changed_at;
        }
        g.opens.push(cx.open);
        g.real_opens += u32::from(cx.real);
        g.describe()
    }

    /// [MS-SMB2] 3.3.5.22.2. The state that the lease has now.
    pub fn ack_lease(&mut self, id: LeaseId, state: u32, clock: Clock, fx: &mut Effects) -> Result<u32, StoreError> {
        let g = self.grants.iter_mut().find(|g| g.holder == Holder::Lease(id)).ok_or(StoreError::NotFound)?;
        let b = g.breaking.ok_or(StoreError::NoBreakUnderWay)?;
        if state & !b.offered != 0 {
            return Err(StoreError::AckExceedsBreak);
        }
        g.acknowledged(state, clock, fx);
        Ok(state)
    }

    pub fn opens_of(&self, id: LeaseId) -> &[OpenId] {
        self.grants.iter().find(|g| g.holder == Holder::Lease(id)).map_or(&[], |g| &g.opens)
    }

    /// [MS-SMB2] 3.3.5.22.1. The level that the open has now.
    pub fn ack_oplock(
        &mut self,
        open: OpenId,
        to: OplockLevel,
        clock: Clock,
        fx: &mut Effects,
    ) -> Result<OplockLevel, StoreError> {
        let g = self
            .grants
            .iter_mut()
            .find(|g| g.holder == Holder::Oplock(open) && g.breaking.is_some())
            .ok_or(StoreError::InvalidBreakAck)?;
        let held = level_of(g.state);
        let legal = match held {
            OplockLevel::Batch => to != OplockLevel::Batch,
            OplockLevel::Exclusive => to <= OplockLevel::LevelII,
            _ => to == OplockLevel::None,
        };
        // Exclusive is a legal answer to a batch break, but leaves nothing.
        let offered = g.breaking.map_or(0, |b| b.offered);
        let state = if legal && to <= OplockLevel::LevelII { state_of(to) & offered } else { 0 };
        g.acknowledged(state, clock, fx);
        self.drop_empty_oplocks();
        if legal { Ok(level_of(state)) } else { Err(StoreError::InvalidBreakAck) }
    }

    /// Holders that did not answer in time lose everything. True when something ended.
    pub fn expire(&mut self, now: Instant, fx: &mut Effects) -> bool {
        let mut ended = false;
        for g in &mut self.grants {
            if g.breaking.is_some_and(|b| b.deadline <= now) {
                g.breaking = None;
                g.state = 0;
                fx.list.push(Effect::CacheChanged(g.owner.clone(), g.opens.clone()));
                ended = true;
            }
        }
        self.drop_empty_oplocks();
        ended
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.grants.iter().filter_map(|g| g.breaking.map(|b| b.deadline)).min()
    }

    /// The open is closed. The lease that ended with it, and whether waiters may go on.
    pub fn close(&mut self, open: OpenId, lease: Option<LeaseId>, stat_open: bool) -> (Option<LeaseId>, bool) {
        let held = match lease {
            Some(id) => Holder::Lease(id),
            None => Holder::Oplock(open),
        };
        let Some(i) = self.grants.iter().position(|g| g.holder == held) else { return (None, false) };
        let g = &mut self.grants[i];
        g.opens.retain(|o| *o != open);
        give_back(&mut g.opens);
        g.real_opens -= u32::from(!stat_open && g.real_opens > 0);
        if !g.opens.is_empty() {
            return (None, false);
        }
        let awaited = g.breaking.is_some();
        self.grants.remove(i);
        (lease, awaited)
    }

    pub fn holds(&self, id: LeaseId) -> bool {
        self.grants.iter().any(|g| g.holder == Holder::Lease(id))
    }

    pub fn describe(&self, open: OpenId, lease: Option<LeaseId>) -> CacheGrant {
        let held = match lease {
            Some(id) => Holder::Lease(id),
            None => Holder::Oplock(open),
        };
        self.grants.iter().find(|g| g.holder == held).map_or(CacheGrant::Oplock(OplockLevel::None), Grant::describe)
    }

    fn held(&self, open: OpenId, lease: Option<LeaseId>) -> Option<&Grant> {
        let held = lease.map_or(Holder::Oplock(open), Holder::Lease);
        self.grants.iter().find(|g| g.holder == held)
    }

    fn held_mut(&mut self, open: OpenId, lease: Option<LeaseId>) -> Option<&mut Grant> {
        let held = lease.map_or(Holder::Oplock(open), Holder::Lease);
        self.grants.iter_mut().find(|g| g.holder == held)
    }

    /// What each open's own oplock, or its lease, permits now: for who asks for many.
    pub fn states(&self) -> impl Fn(OpenId, Option<LeaseId>) -> Option<u32> {
        let states: HashMap<Holder, u32> = self.grants.iter().map(|g| (g.holder, g.state)).collect();
        move |open, lease| states.get(&lease.map_or(Holder::Oplock(open), Holder::Lease)).copied()
    }

    /// What has to be kept of the open's own oplock, or of its lease.
    pub fn kept(&self, open: OpenId, lease: Option<LeaseId>) -> Option<Kept> {
        self.held(open, lease).map(|g| Kept {
            state: g.state,
            epoch: g.epoch,
            version: g.version,
            parent_key: g.parent_key,
            breaking: g.breaking.map(|b| KeptBreak { offered: b.offered, required: b.required }),
            changed_at: g.changed_at,
        })
    }

    /// The grant as it was kept, for an open that is restored; an open of a lease that is there joins it. `real`: it is more than a stat
    /// open. `patient`: it is persistent.
    pub fn restore(
        &mut self,
        (open, owner): (OpenId, &Owner),
        lease: Option<LeaseId>,
        kept: &Kept,
        (real, patient): (bool, bool),
        clock: Clock,
    ) {
        let real = u32::from(real);
        if let Some(g) = self.held_mut(open, lease) {
            g.opens.push(open);
            g.real_opens += real;
            g.patient |= patient;
            return;
        }
        if lease.is_none() && kept.state == 0 {
            return;
        }
        let deadline = clock.now + clock.patient_timeout;
        self.grants.push(Grant {
            holder: lease.map_or(Holder::Oplock(open), Holder::Lease),
            owner: owner.clone(),
            state: kept.state,
            // Whoever waited for it is gone with the server that it began in.
            breaking: kept.breaking.map(|b| Breaking {
                offered: b.offered,
                required: b.required,
                awaited: true,
                deadline,
                is_told_again: false,
            }),
            epoch: kept.epoch,
            version: kept.version,
            parent_key: kept.parent_key,
            opens: vec![open],
            real_opens: real,
            patient,
            changed_at: kept.changed_at,
        });
    }

    /// The holder may come back to its opens after it lost its connection.
    pub fn make_patient(&mut self, open: OpenId, lease: Option<LeaseId>) {
        if let Some(g) = self.held_mut(open, lease) {
            g.patient = true;
        }
    }

    /// The holder is back: a break that it was not told of, or did not answer, is told (again), and it has its time anew. Once: others
    /// wait, and it could come back for ever.
    pub fn tell_again(&mut self, open: OpenId, lease: Option<LeaseId>, clock: Clock, fx: &mut Effects) {
        let Some(g) = self.held_mut(open, lease) else { return };
        let deadline = g.deadline(clock);
        let Some(b) = &mut g.breaking else { return };
        if !std::mem::replace(&mut b.is_told_again, true) {
            b.deadline = deadline;
            fx.is_due(deadline);
        }
        let offered = b.offered;
        g.tell(g.state, offered, true, fx);
    }

    /// The client knows of a later epoch than this server, which was restarted meanwhile.
    pub fn catch_up(&mut self, open: OpenId, lease: LeaseId, epoch: u16) {
        if let Some(g) = self.held_mut(open, Some(lease))
            && epoch.wrapping_sub(g.epoch) < 0x8000
        {
            g.epoch = epoch;
        }
    }

    fn drop_empty_oplocks(&mut self) {
        self.grants.retain(|g| g.is_lease() || g.state != 0);
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
