//! Making a pool, finding one by its labels, and opening it: choosing the newest map, telling
//! a disk that was away from one that went its own way, replaying the journal, and starting
//! a new epoch.

use std::collections::BTreeMap;
use std::rc::Rc;

use arden_block::sync::join_all;
use arden_block::{BLOCK_BYTES, BlockDevice, Rt};

use crate::base::error::{SpaceError, SpaceResult};
use crate::disk::label::{DiskHeader, HeaderReads, Label, read_map};
use crate::disk::open_disk::DiskRt;
use crate::log::journal::read_log;
use crate::log::record::Record;
use crate::map::pool_map::{DiskRec, DiskState, Group, JournalRec, LINEAGE_MAX, PoolMap, UNWRITTEN};
use crate::pool::open_pool::{GroupRt, Inner, Pool, PoolConfig};
use crate::state::map::{GroupChange, MapChange};
use crate::state::patches::{Patch, Patches};
use crate::upkeep::members::{forget_labels, header_within, make_disk};
use crate::upkeep::old_images::{check_old_images, is_old_image};

/// How a new pool is laid out.
#[derive(Debug, Clone, Default)]
pub struct CreateOptions {
    /// 256 MiB, smaller on small disks, when `None`.
    pub slab_bytes: Option<u64>,
    pub config: PoolConfig,
}

#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    pub config: PoolConfig,
    /// Disks (by id) whose separate history may be thrown away.
    pub discard: Vec<u128>,
}

/// By what right a node of a cluster opens a pool (`docs/cluster.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownership {
    /// The epoch that this opening gives the pool. Nobody else was ever given it.
    pub epoch: u64,
    /// The newest epoch that a label may bear before this opening.
    pub written: u64,
    /// The cluster, which labels name from then on; not 0.
    pub cluster: u128,
}

/// By what right a pool is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// By a daemon that stands alone: the pool is of no cluster.
    Alone,
    /// By a node of the pool's cluster.
    Owner(Ownership),
    /// By a daemon that stands alone and takes it from its cluster, of which no node runs any more.
    FromCluster,
}

impl Ownership {
    /// Whether the pool may be opened by this right: a newer label is that of an owner which the cluster has forgotten, and an
    /// absent disk may have a newer state than the ones that are here.
    fn check(&self, found: &[(Rc<dyn BlockDevice>, DiskHeader)], map: &PoolMap, cluster: u128) -> SpaceResult<()> {
        if self.cluster == 0 {
            return Err(SpaceError::Refused("an owner of no cluster".into()));
        }
        if cluster != 0 && cluster != self.cluster {
            return Err(SpaceError::OfCluster(cluster));
        }
        let newest = found.iter().map(|f| f.1.label.epoch).max().unwrap_or(0);
        if newest > self.written || self.epoch <= newest {
            return Err(SpaceError::LaterEpoch(newest));
        }
        // Where an old image is, the disk of today is absent.
        let here = |r: &DiskRec| found.iter().any(|f| f.1.disk_id == r.id && !is_old_image(map, r, &f.1));
        match map.disks.iter().find(|(_, r)| r.state != DiskState::Missing && !here(r)) {
            None => Ok(()),
            Some((i, r)) => Err(SpaceError::NotFound(format!(
                "disk {i} ({}) is in use and was not found, or only an old image of it",
                r.name
            ))),
        }
    }
}

impl Right {
    fn cluster(&self) -> u128 {
        match self {
            Right::Owner(o) => o.cluster,
            Right::Alone | Right::FromCluster => 0,
        }
    }

    /// The epoch that this opening gives the pool.
    fn epoch_after(&self, epoch: u64) -> u64 {
        match self {
            Right::Owner(o) => o.epoch,
            Right::Alone | Right::FromCluster => epoch + 1,
        }
    }
}

fn slab_for(sizes: &[u64]) -> u64 {
    let smallest = sizes.iter().copied().min().unwrap_or(0);
    let mut slab: u64 = 256 << 20;
    while slab > 1 << 20 && smallest / slab < 64 {
        slab /= 2;
    }
    slab
}

impl Pool {
    /// Makes a pool of `disks`; `spares` stand by. Whatever lay on them is gone.
    pub async fn create(
        rt: &Rt,
        name: &str,
        disks: Vec<Rc<dyn BlockDevice>>,
        spares: Vec<Rc<dyn BlockDevice>>,
        options: CreateOptions,
    ) -> SpaceResult<Pool> {
        if disks.is_empty() {
            return Err(SpaceError::Refused("a pool needs at least one disk".into()));
        }
        if name.is_empty() || name.len() > 64 {
            return Err(SpaceError::Refused("a pool's name has 1 to 64 bytes".into()));
        }
        let sizes: Vec<u64> = disks.iter().chain(&spares).map(|d| d.info().size_bytes).collect();
        let slab_bytes = options.slab_bytes.unwrap_or_else(|| slab_for(&sizes));
        if !slab_bytes.is_power_of_two() || slab_bytes < 64 << 10 {
            return Err(SpaceError::Refused("a slab is a power of two of at least 64k".into()));
        }
        let mut map = PoolMap {
            pool_id: rt.random_u128(),
            name: name.to_string(),
            epoch: 1,
            seq: 0,
            slab_bytes,
            next_incarnation: 1,
            next_space: 1,
            next_disk: 0,
            lineage: vec![(1, rt.random_u64())],
            warn_percent: [70, 80, 90],
            replicated_seq: 0,
            served_epoch: 1,
            flip_floor: 0,
            moved: Vec::new(),
            journal: JournalRec::default(),
            disks: BTreeMap::new(),
            spaces: BTreeMap::new(),
        };
        let mut open = BTreeMap::new();
        let spare_from = disks.len();
        for (n, dev) in disks.into_iter().chain(spares).enumerate() {
            let state = if n < spare_from { DiskState::Active } else { DiskState::Spare };
            let place = (map.next_disk, map.slab_bytes);
            let (disk, rec) = make_disk(rt, place, dev, state, options.config.io_timeout_ms)?;
            open.insert(map.add_disk(rec), Rc::new(disk));
        }
        for d in open.values() {
            forget_labels(&*d.dev).await?;
        }
        let pool = Pool::assemble(rt, map, open, options.config);
        pool.switch_journal(pool.choose_journal(None));
        pool.commit().await?;
        pool.start_background();
        Ok(pool)
    }

    /// Opens the pool that the most disks among `devices` belong to (or that `pool_id` names).
    ///
    /// # Errors
    /// [`SpaceError::OfCluster`] for one of a cluster, before anything was written; others as they come.
    pub async fn open(
        rt: &Rt,
        devices: Vec<Rc<dyn BlockDevice>>,
        pool_id: Option<u128>,
        options: OpenOptions,
    ) -> SpaceResult<Pool> {
        Pool::open_as(rt, devices, pool_id, options, Right::Alone).await
    }

    /// As [`Pool::open`], by this right. A node of a cluster needs all disks that are in use.
    ///
    /// # Errors
    /// Before anything was written: [`SpaceError::OfCluster`] when the pool is of a cluster that the right is not for; for an owner
    /// [`SpaceError::LaterEpoch`] when a label is newer than it knows, and [`SpaceError::NotFound`] without a disk that is in use.
    pub async fn open_as(
        rt: &Rt,
        devices: Vec<Rc<dyn BlockDevice>>,
        pool_id: Option<u128>,
        options: OpenOptions,
        right: Right,
    ) -> SpaceResult<Pool> {
        let timeout_ms = options.config.io_timeout_ms;
        let mut found: Vec<(Rc<dyn BlockDevice>, DiskHeader)> = Vec::new();
        let headers = devices.iter().map(|d| header_within(rt, d.clone(), timeout_ms));
        for (dev, h) in devices.iter().zip(join_all(headers.collect()).await) {
            if let Some(h) = h?
                && pool_id.is_none_or(|id| id == h.pool_id)
            {
                found.push((dev.clone(), h));
            }
        }
        if found.is_empty() {
            return Err(SpaceError::NotFound("no disk of a pool was found".into()));
        }
        // What was served counts before what is merely newer.
        let age = |h: &DiskHeader| (h.map.served_epoch, h.label.epoch, h.label.seq);
        let keep = found.iter().filter(|f| !options.discard.contains(&f.1.disk_id));
        let Some(best) = keep.max_by_key(|f| age(&f.1)) else {
            return Err(SpaceError::NotFound("every disk found is to be discarded".into()));
        };
        let (mut map, age_kept) = (best.1.map.clone(), age(&best.1));
        if !best.1.whole {
            map = whole_map(rt, &found, &best.1.label, timeout_ms).await?;
        }
        if found.iter().any(|f| f.1.pool_id != map.pool_id) {
            return Err(SpaceError::Refused("disks of several pools were found; say which pool to open".into()));
        }
        let (before, cluster) = (best.1.label.cluster, right.cluster());
        match &right {
            Right::Alone if before != 0 => return Err(SpaceError::OfCluster(before)),
            Right::Alone | Right::FromCluster => {}
            Right::Owner(o) => o.check(&found, &map, before)?,
        }
        let mut disks = BTreeMap::new();
        let mut journal_disks = Vec::new();
        let (mut forget, mut apart, mut given_up) = (Vec::new(), Vec::new(), Vec::new());
        let mut cut_off = Vec::new();
        // The names of old images that are not to be discarded.
        let mut old = BTreeMap::new();
        for (dev, h) in found {
            let Some(rec) = map.disks.get(&h.label.index).filter(|r| r.id == h.disk_id) else { continue };
            if dev.info().size_bytes < rec.size_bytes {
                // Cut off: what lay behind its end is gone, so it counts as missing.
                cut_off.push(h.label.index);
                continue;
            }
            let ancestor = map.lineage.iter().any(|&(e, n)| (e, n) == (h.label.epoch, h.label.nonce));
            // Only openings that came to nothing set it apart.
            let is_apart = !ancestor && map.knows_served(&h.map);
            // What went on from the map that is kept, and is to be discarded.
            let is_passed_over = age(&h) > age_kept;
            if !ancestor && !is_apart || is_passed_over || map.left_behind(h.label.index, h.label.seq, &h.map) {
                if !options.discard.contains(&h.disk_id) {
                    return Err(SpaceError::Diverged(format!(
                        "disk {} ({}) was written in an opening of this pool that the others know nothing of, or after they had left; \
                         leave it out, or discard what it holds",
                        h.label.index,
                        dev.info().name
                    )));
                }
                forget.push(h.label.index);
                let is_same = |d: &(u16, u128)| map.disks.get(&d.0).is_some_and(|r| r.id == d.1);
                given_up.extend(h.map.in_use_when_served().filter(is_same).map(|d| d.0));
            } else if is_old_image(&map, rec, &h) {
                forget.push(h.label.index);
                if !options.discard.contains(&h.disk_id) {
                    old.insert(h.label.index, dev.info().name.clone());
                }
            } else if is_apart {
                apart.push(h.label.index);
            } else if rec.state == DiskState::Missing {
                // The last disk of the log left, and no other has taken it since.
                if map.journal.disks.contains(&h.label.index) && h.label.seq >= map.replicated_seq {
                    journal_disks.push(h.label.index);
                }
            } else {
                journal_disks.push(h.label.index);
            }
            let d = Rc::new(DiskRt::found(rt, dev, &h.label, map.seq, timeout_ms));
            if disks.insert(h.label.index, d).is_some() {
                return Err(SpaceError::Refused(format!("disk {} was found twice", h.label.index)));
            }
        }
        check_old_images(&map, &old, |d| disks.contains_key(&d) && !forget.contains(&d))?;
        let in_use = map.in_use();
        map.epoch = right.epoch_after(map.epoch);
        let nonce = rt.random_u64();
        let epoch = map.epoch;
        map.lineage.push((epoch, nonce));
        let surplus = map.lineage.len().saturating_sub(LINEAGE_MAX);
        map.lineage.drain(..surplus);
        let old_journal = map.journal.clone();
        let copies: Vec<Rc<DiskRt>> = old_journal
            .disks
            .iter()
            .filter(|d| journal_disks.contains(d))
            .filter_map(|d| disks.get(d).cloned())
            .collect();
        if copies.is_empty() {
            return Err(SpaceError::NotFound("no disk with an up-to-date journal was found".into()));
        }
        tracing::trace!(
            "opened with {}, log from {:?}, behind {forget:?}, apart {apart:?}",
            map.outline(),
            old_journal.disks
        );
        let (log, end) = read_log(&old_journal, &copies).await?;
        let pool = Pool::assemble(rt, map, disks, options.config);
        pool.0.cluster.set(cluster);
        pool.0.departures.found_in_use(in_use);
        let patches = pool.replay(log)?;
        pool.register_patches(&patches);
        cut_off.iter().for_each(|i| pool.event(format!("disk {i} is smaller than it was: it is left out")));
        let back = pool.reconcile_members(&forget, &apart, &given_up);
        pool.rebuild_runtime();
        pool.register_patches(&patches);
        pool.put_log_in_place(&old_journal, end, &back).await?;
        pool.start_background();
        Ok(pool)
    }

    /// What the log held goes to its place, or to the new log, before the map forgets the old
    /// one; a crash until then replays the old log once more. `back` are disks that returned.
    async fn put_log_in_place(&self, old: &JournalRec, end: u64, back: &[Rc<DiskRt>]) -> SpaceResult<()> {
        self.0.journal.reset(old);
        self.0.life.begin_opening();
        // Nothing is written before every disk that is here knows of this opening and of what
        // it is about to do. The newest map may have been on one disk only, and so may the end
        // of the log: an opening without that disk would take free what we are to fill, and
        // call equal what we leave half done.
        self.mark_logged();
        self.commit().await?;
        if !back.is_empty() {
            self.take_into_use(back).await?;
        }
        let applied = self.apply_all().await;
        self.forget_patches();
        self.carry_over(old, end, applied).await?;
        self.0.life.serve();
        self.know_what_is_missed();
        self.0.flips.forget_superseded();
        self.0.map.apply(MapChange::Served);
        self.commit().await
    }

    /// Mirrors: marks the regions that the log will be put into.
    fn mark_logged(&self) {
        for s in self.0.spaces.borrow().values().filter(|s| s.shape.layout.copies() > 1) {
            for block in s.logged.within(0..u64::MAX) {
                let at = block * BLOCK_BYTES;
                let bit = (at % s.shape.group_bytes / s.shape.region_bytes) as u32;
                self.0.map.apply_to(s.id, (at / s.shape.group_bytes) as usize, &GroupChange::Dirty(&[bit]));
            }
        }
    }

    fn assemble(rt: &Rt, map: PoolMap, disks: BTreeMap<u16, Rc<DiskRt>>, cfg: PoolConfig) -> Pool {
        let pool = Pool(Rc::new(Inner::new(rt, map, disks, cfg, Pool::empty_log_alone)));
        pool.rebuild_runtime();
        pool
    }

    /// The in-memory side of every group, from the map.
    fn rebuild_runtime(&self) {
        let map = self.0.map.read();
        for s in self.0.spaces.borrow().values() {
            s.groups.clear();
            let Some(rec) = map.spaces.get(&s.id) else { continue };
            for (gi, g) in rec.groups.iter().enumerate() {
                if let Some(g) = g {
                    s.groups.insert(gi, GroupRt::new(&s.shape, g, s.views.gate(gi), self.0.missed_room.clone(), true));
                }
            }
        }
    }

    /// After an opening has moved the stripes of all patches that it could. A stripe of which the log has no data
    /// was in place before the crash, for what a patch needs leaves the log as one; the others wait for their disks.
    fn forget_patches(&self) {
        let map = self.0.map.read();
        for s in self.0.spaces.borrow().values() {
            let overlay = s.overlay.borrow();
            for (gi, rt) in s.groups.all() {
                let usable = map.group(s.id, gi).is_none_or(|g| self.group_usable(&s.shape, g));
                rt.slots.retain_patches(|p| {
                    let (first, end) = s.shape.stripe_blocks(gi, p.stripe as usize);
                    !usable && overlay.count(first, end) > 0
                });
            }
        }
    }

    /// Until its stripe has moved, what is read of a slot is what the log says of it.
    fn register_patches(&self, list: &Patches) {
        for (&(space, group, stripe), said) in &list.slots {
            let Some(s) = self.space_rt(space) else { continue };
            let is_stale = |g: &Group| g.columns.iter().any(|c| c.stale);
            let degraded = self.0.map.read().group(space, group as usize).map(is_stale);
            let (Some(rt), Some(degraded)) = (s.group_rt(group as usize), degraded) else { continue };
            if degraded {
                self.0.map.apply_to(space, group as usize, &GroupChange::Dirty(&[u32::from(said.slot)]));
            }
            let (first, _) = s.shape.stripe_blocks(group as usize, stripe as usize);
            rt.slots.note_patched(said.slot, 0);
            rt.slots.begin_patch(said.slot, Rc::new(Patch::replayed(&s.shape, stripe, first, said)));
        }
    }

    /// Applies log records: changes of the map to the map, data to the overlay.
    fn replay(&self, log: Vec<crate::log::record::Batch>) -> SpaceResult<Patches> {
        let mut patches = Patches::default();
        let map = &self.0.map;
        let mut upto: BTreeMap<(u32, u32, u32), u64> =
            map.read().moved.iter().map(|m| ((m.0, m.1, m.3), m.4)).collect();
        let floor = map.read().flip_floor;
        map.apply(MapChange::MovedTaken);
        let (mut version, mut next_flip) = (upto.values().copied().max().unwrap_or(0), floor);
        for batch in log {
            tracing::trace!("replay of batch {}: {}", batch.seq, crate::log::record::outline(&batch.records));
            let mut next = 0;
            for r in &batch.records {
                match *r {
                    Record::Dirty { space, group, incarnation, bit } => {
                        if map.read().group_of(space, group as usize, incarnation).is_some() {
                            map.apply_to(space, group as usize, &GroupChange::Dirty(&[bit]));
                        }
                    }
                    Record::Flip { space, group, incarnation, stripe, slot, upto: v, id, degraded } => {
                        next_flip = next_flip.max(id + 1);
                        if id < floor {
                            continue;
                        }
                        self.replay_flip((space, group, incarnation), (stripe, slot, v), degraded);
                        upto.insert((space, group, stripe), v);
                        version = version.max(v);
                        patches.stripe_moved((space, group, stripe), v);
                    }
                    Record::Patch { space, group, incarnation, upto: v, stripe, slot, row, rows, parities } => {
                        let at = next * BLOCK_BYTES as usize;
                        next += rows as usize * usize::from(parities);
                        // What is written from now on is newer, also where the log has no data of it.
                        version = version.max(v);
                        let Some(rt) = self.space_rt(space) else { continue };
                        let map = map.read();
                        let Some(g) = map.group_of(space, group as usize, incarnation) else { continue };
                        let here = g.stripes.get(stripe as usize) == Some(slot) && slot != UNWRITTEN;
                        let unit = (rt.shape.interleave / BLOCK_BYTES) as u32;
                        let sane = row.checked_add(rows).is_some_and(|end| end <= unit);
                        let void = upto.get(&(space, group, stripe)).is_some_and(|&u| v <= u);
                        if here && sane && !void && usize::from(parities) == rt.shape.layout.parity() {
                            let payload =
                                |i: usize| batch.payload.slice(at + i * BLOCK_BYTES as usize, BLOCK_BYTES as usize);
                            patches.add(&rt.shape, (space, group, stripe), slot, v, row..row + rows, payload);
                        }
                    }
                    Record::Data { space, group, incarnation, version: v, block, count } => {
                        let at = next * BLOCK_BYTES as usize;
                        next += count as usize;
                        version = version.max(v);
                        let Some(rt) = self.space_rt(space) else { continue };
                        if map.read().group_of(space, group as usize, incarnation).is_none() {
                            continue;
                        }
                        let per = rt.shape.group_bytes / BLOCK_BYTES;
                        let stripe_blocks = rt.shape.stripe_bytes / BLOCK_BYTES;
                        for i in 0..u64::from(count) {
                            let stripe = ((block + i) / stripe_blocks) as u32;
                            if rt.shape.is_parity() && upto.get(&(space, group, stripe)).is_some_and(|&u| v <= u) {
                                continue;
                            }
                            let data = batch.payload.slice(at + (i * BLOCK_BYTES) as usize, BLOCK_BYTES as usize);
                            if rt.shape.is_parity() {
                                patches.note((space, group, stripe), (block + i) % stripe_blocks, v, &data);
                            }
                            let at = u64::from(group) * per + block + i;
                            rt.logged.note(at, 0);
                            // A patch logs what it covers, though newer may have come to the log before.
                            if rt.overlay.borrow().get(at).is_none_or(|e| e.version <= v) {
                                rt.overlay.borrow_mut().put(at, &data, v);
                            }
                        }
                    }
                }
            }
        }
        self.restore_version(version);
        self.0.flips.restore_next_id(next_flip);
        // A commit in the middle of this opening skips these moves at the next replay: what the
        // log holds from before them stays void until the log is given up.
        for ((space, group, stripe), v) in upto {
            let incarnation = map.read().group(space, group as usize).map_or(0, |g| g.incarnation);
            self.0.flips.supersede((space, group, stripe), incarnation, v, u64::MAX);
        }
        Ok(patches)
    }

    fn replay_flip(&self, g: (u32, u32, u64), f: (u32, u16, u64), degraded: bool) {
        let (space, group, incarnation) = g;
        let (stripe, slot, version) = f;
        let Some(rt) = self.space_rt(space) else { return };
        let is_in = |g: &Group| (stripe as usize) < g.stripes.len();
        let known = self.0.map.read().group_of(space, group as usize, incarnation).is_some_and(is_in);
        if !known || slot != UNWRITTEN && usize::from(slot) >= rt.shape.slots {
            return;
        }
        let change = GroupChange::StripeMoved { stripe: stripe as usize, slot, degraded };
        self.0.map.apply_to(space, group as usize, &change);
        let first = (u64::from(group) * rt.shape.group_bytes + u64::from(stripe) * rt.shape.stripe_bytes) / BLOCK_BYTES;
        rt.overlay.borrow_mut().remove_upto(first, first + rt.shape.stripe_bytes / BLOCK_BYTES, version);
    }
}

/// The map of which `label` speaks, from any disk that has the same.
async fn whole_map(
    rt: &Rt,
    found: &[(Rc<dyn BlockDevice>, DiskHeader)],
    label: &Label,
    timeout_ms: u64,
) -> SpaceResult<PoolMap> {
    let same = |l: &Label| (l.epoch, l.seq, l.map_checksum) == (label.epoch, label.seq, label.map_checksum);
    for (dev, h) in found.iter().filter(|f| same(&f.1.label)) {
        let reads = HeaderReads::within(rt, &**dev, timeout_ms);
        if let Ok(Some(map)) = read_map(&reads, &h.label, false).await {
            return Ok(map);
        }
    }
    Err(SpaceError::NotFound("the newest map of the pool could not be read from any disk".into()))
}
