//! Which disks belong to an open pool: those that an opening finds or misses, those that are added and those that return.

use std::collections::BTreeMap;
use std::rc::Rc;

use arden_block::{BlockDevice, Buf, LocalFuture, Media, Rt};

use crate::base::error::{SpaceError, SpaceResult};
use crate::disk::label::{Areas, DiskHeader, HeaderReads, LABEL_AT, LABEL_BYTES, header};
use crate::disk::open_disk::{DiskRt, LONG};
use crate::map::pool_map::{DiskRec, DiskState, Group, ROTATING};
use crate::pool::open_pool::Pool;
use crate::state::map::{GroupChange, MapChange};
use crate::upkeep::old_images::{check_old_images, is_old_image};

impl Pool {
    /// Marks who is away; gives those who returned, which are read and written from now on. Disks that went on without this pool are
    /// among `forget`. Others that were in use then (`given_up`) may hold parts of the same history: what is absent of them is brought
    /// up to date as a whole, as nobody will see that it went on when one of those is in use.
    pub(crate) fn reconcile_members(&self, forget: &[u16], apart: &[u16], given_up: &[u16]) -> Vec<Rc<DiskRt>> {
        let all: Vec<(u16, DiskState)> = self.0.map.read().disks.iter().map(|(&i, d)| (i, d.state)).collect();
        let mut back = Vec::new();
        for (i, state) in all {
            let disk = self.disk(i);
            let here = disk.is_some();
            if !here && state != DiskState::Missing {
                self.event(format!("disk {i} is missing"));
                self.mark_missing(i);
            } else if !here {
                let now = self.0.rt.now_ns();
                self.0.departures.note_absent(i, now);
            } else if state == DiskState::Missing {
                self.event(format!("disk {i} is back"));
                back.extend(disk);
            }
        }
        forget.iter().for_each(|&i| self.distrust(i, false));
        apart.iter().for_each(|&i| self.distrust(i, true));
        given_up.iter().filter(|&&i| !self.online(i)).for_each(|&i| self.distrust(i, true));
        self.outdate_absent();
        back
    }

    /// The map says of disks that returned that they are in use. A map before it, which did not
    /// say so yet, has to be on them: whoever is in use and has a label older than what every disk
    /// in use had is an old image that was put back, and all of it is out of date. A disk that is
    /// behind because a crash came before its label was written must not look like one.
    pub(crate) async fn take_into_use(&self, back: &[Rc<DiskRt>]) -> SpaceResult<()> {
        for d in back {
            let stayed = d.online.get() && self.disk(d.index).is_some_and(|now| Rc::ptr_eq(&now, d));
            if stayed {
                self.0.map.apply(MapChange::DiskBack(d.index));
            }
        }
        self.commit().await
    }

    /// Everything on the disk is out of date; with `keep_last` what it alone has is not: then
    /// it is not behind, it only holds, here and there, writes that nobody was told of.
    pub(crate) fn distrust(&self, index: u16, keep_last: bool) {
        self.event(format!("disk {index} holds what nobody recorded: it is brought up to date as a whole"));
        let map = self.0.map.read();
        let mut outdated = Vec::new();
        for s in map.spaces.values().filter(|s| s.layout.tolerance() > 0) {
            let shape = s.shape(map.slab_bytes);
            let groups = s.groups.iter().enumerate().filter_map(|(gi, g)| Some((gi, g.as_ref()?)));
            for (gi, g) in groups {
                let held: Vec<usize> = (0..g.columns.len()).filter(|&c| g.columns[c].disk == index).collect();
                if held.is_empty() {
                    continue;
                }
                let mut without = Group::clone(g);
                for &c in &held {
                    let was = std::mem::replace(&mut without.columns[c].stale, true);
                    without.columns[c].stale = was || !keep_last || self.group_usable(&shape, &without);
                }
                let columns: Vec<usize> = held.into_iter().filter(|&c| without.columns[c].stale).collect();
                without.dirty.set_all();
                outdated.push((s.id, gi, columns, without.dirty));
            }
        }
        drop(map);
        for (space, gi, columns, marks) in outdated {
            let change = GroupChange::Outdated { columns: &columns, marks: &marks };
            self.0.map.apply_to(space, gi, &change);
            // Not only what was written since it left.
            if let Some(rt) = self.space_rt(space).and_then(|s| s.group_rt(gi)) {
                rt.regions.forget_missed();
            }
        }
    }

    /// Adds a disk to the open pool.
    pub async fn add_disk(&self, dev: Rc<dyn BlockDevice>, spare: bool) -> SpaceResult<u16> {
        // It may be the disk that is leaving: that is still a member until a map without it is durable, and then loses its label.
        drop(self.0.removal.lock().await);
        self.alive()?;
        let state = if spare { DiskState::Spare } else { DiskState::Active };
        let slab_bytes = self.0.map.read().slab_bytes;
        let (areas, _) = areas_for(&*dev, slab_bytes)?;
        self.map_has_room_for_disk(&dev.info().name, areas)?;
        forget_labels(&*dev).await?;
        // The record enters the map before the first await, so that no index is given twice.
        let timeout_ms = self.0.cfg.io_timeout_ms;
        let index = self.0.map.read().next_disk;
        let (disk, rec) = make_disk(&self.0.rt, (index, slab_bytes), dev, state, timeout_ms)?;
        self.map_has_room_for_disk(&rec.name, disk.areas)?;
        let slabs = rec.slabs;
        self.0.map.apply(MapChange::DiskJoined(rec));
        self.0.disks.borrow_mut().insert(index, Rc::new(disk));
        self.0.alloc.borrow_mut().add_disk(index, slabs);
        self.commit().await?;
        self.0.background.wake();
        Ok(index)
    }

    /// Takes back a disk of this pool that had gone.
    ///
    /// # Errors
    /// Before anything was written: [`SpaceError::NotFound`] for what is no member, [`SpaceError::Diverged`] for what was written in an
    /// opening that this pool does not know, or is an old image with the only content of some space, [`SpaceError::Refused`] for others.
    pub async fn return_disk(&self, dev: Rc<dyn BlockDevice>) -> SpaceResult<u16> {
        self.alive()?;
        let timeout_ms = self.0.cfg.io_timeout_ms;
        let header = header_within(&self.0.rt, dev.clone(), timeout_ms).await?;
        let Some(h) = header.filter(|h| h.pool_id == self.0.map.read().pool_id) else {
            return Err(SpaceError::NotFound("not a disk of this pool, or one that hangs or cannot be flushed".into()));
        };
        let index = h.label.index;
        if self.online(index) {
            return Err(SpaceError::Refused(format!("disk {index} is in use already")));
        }
        let waiting = self.disk(index).map_or(0, |d| d.watch.in_flight());
        if waiting > 0 {
            // What it was asked to do before it left may still happen, over what it is given now.
            return Err(SpaceError::Refused(format!("disk {index} has not answered {waiting} operations yet")));
        }
        let (apart, old, map_seq);
        {
            let map = self.0.map.read();
            let Some(rec) = map.disks.get(&index).filter(|d| d.id == h.disk_id) else {
                return Err(SpaceError::NotFound(format!("disk {index} is no member of this pool any more")));
            };
            let ancestor = map.lineage.contains(&(h.label.epoch, h.label.nonce));
            apart = !ancestor && map.knows_served(&h.map);
            if !(ancestor || apart) || map.left_behind(index, h.label.seq, &h.map) {
                return Err(SpaceError::Diverged(format!("disk {index} has a history of its own")));
            }
            if dev.info().size_bytes < rec.size_bytes {
                return Err(SpaceError::Refused(format!("disk {index} is smaller than it was")));
            }
            (old, map_seq) = (is_old_image(&map, rec, &h), map.seq);
            if old {
                check_old_images(&map, &BTreeMap::from([(index, dev.info().name.clone())]), |d| self.online(d))?;
            }
        }
        let disk = Rc::new(DiskRt::found(&self.0.rt, dev, &h.label, map_seq, timeout_ms));
        self.0.disks.borrow_mut().insert(index, disk.clone());
        self.0.departures.disk_is_back(index);
        if old || apart {
            self.distrust(index, !old);
        }
        self.outdate_absent();
        self.event(format!("disk {index} is back"));
        self.commit().await?;
        self.take_into_use(&[disk]).await?;
        self.0.background.wake();
        Ok(index)
    }
}

/// What a disk says of itself, made durable: whoever goes on from it writes over the label and the map before. Where the last
/// process ended and the disk kept its power, what it was writing may be in the disk's cache only. A disk that hangs, or that
/// cannot flush that, counts as not there.
pub(crate) fn header_within(
    rt: &Rt,
    dev: Rc<dyn BlockDevice>,
    timeout_ms: u64,
) -> LocalFuture<SpaceResult<Option<DiskHeader>>> {
    let rt = rt.clone();
    Box::pin(async move {
        let found = header(&HeaderReads::within(&rt, &*dev, timeout_ms)).await?;
        if found.is_none() {
            return Ok(None);
        }
        let flushed = rt.timeout_ns(timeout_ms.saturating_mul(LONG * 1_000_000), dev.flush()).await;
        if flushed != Some(Ok(())) {
            tracing::warn!("{} is left out: what its label says could not be flushed", dev.info().name);
            return Ok(None);
        }
        Ok(found)
    })
}

fn areas_for(dev: &dyn BlockDevice, slab_bytes: u64) -> SpaceResult<(Areas, u32)> {
    let info = dev.info();
    let areas = Areas::for_disk(info.size_bytes, slab_bytes);
    let slabs = areas.slabs(info.size_bytes, slab_bytes);
    if slabs < 4 {
        return Err(SpaceError::Refused(format!(
            "{} is too small: {} bytes hold {slabs} slabs of {slab_bytes} bytes, at least 4 are needed",
            info.name, info.size_bytes
        )));
    }
    Ok((areas, slabs))
}

/// A new disk and its record, which the map does not have yet.
pub(crate) fn make_disk(
    rt: &Rt,
    (index, slab_bytes): (u16, u64),
    dev: Rc<dyn BlockDevice>,
    state: DiskState,
    timeout_ms: u64,
) -> SpaceResult<(DiskRt, DiskRec)> {
    let info = dev.info().clone();
    let (areas, slabs) = areas_for(&*dev, slab_bytes)?;
    let rec = DiskRec {
        id: rt.random_u128(),
        size_bytes: info.size_bytes,
        slabs,
        state,
        retire: false,
        media: media_code(info.media),
        name: info.name.clone(),
        label_seq_min: 0,
        left_unserved: false,
    };
    let disk = DiskRt::new(rt, index, dev, areas, 1, timeout_ms);
    disk.labelled.set(false);
    Ok((disk, rec))
}

/// A label of an earlier pool may be newer than the first of ours: it goes before.
pub(crate) async fn forget_labels(dev: &dyn BlockDevice) -> SpaceResult<()> {
    for at in LABEL_AT {
        dev.write(at, Buf::zeroed(LABEL_BYTES).share(), true).await?;
    }
    Ok(())
}

fn media_code(m: Media) -> u8 {
    match m {
        Media::Unknown => 0,
        Media::Rotating => ROTATING,
        Media::Ssd => 2,
        Media::Nvme => 3,
    }
}
