//! Writing the pool map: to every disk the map, a flush of everything, then to every disk the
//! label that names it. And the flush of the disks.

use std::rc::Rc;

use arden_block::sync::join_all;
use arden_block::{BLOCK_BYTES, Buf, LocalFuture};

use crate::base::error::{SpaceError, SpaceResult};
use crate::disk::label::{
    LABEL_AT, LABEL_VERSION, LABEL_VERSION_CLUSTER, LABEL_VERSION_MISSING, LABEL_VERSION_PATCHES,
    LABEL_VERSION_UNSERVED, Label,
};
use crate::disk::open_disk::DiskRt;
use crate::map::mapcode::Encoder;
use crate::map::pool_map::Group;
use crate::pool::open_pool::{GroupRt, Pool};
use crate::state::map::MapChange;

/// What a commit makes durable besides the map's own content.
struct Captured {
    flip: u64,
    departures: u64,
    away: Vec<u16>,
    journal: Vec<u16>,
    in_use: Vec<u16>,
    start: (u64, u64),
    /// The group, how often it was cleaned, and its dirty bits.
    dirty: Vec<(Rc<GroupRt>, u64, Vec<usize>)>,
}

/// Gives the disks that failed.
async fn write_labels<'a>(labels: impl Iterator<Item = (&'a Rc<DiskRt>, &'a Label)>) -> Vec<Rc<DiskRt>> {
    let (mut disks, mut writes) = (Vec::new(), Vec::<LocalFuture<bool>>::new());
    for (disk, label) in labels {
        let (d, at, bytes) = (disk.clone(), LABEL_AT[usize::from(label.map_slot)], label.encode().share());
        writes.push(Box::pin(async move { d.write(at, bytes, true).await.is_ok() }));
        disks.push(disk.clone());
    }
    let ok = join_all(writes).await;
    disks.into_iter().zip(ok).filter(|(_, ok)| !ok).map(|(d, _)| d).collect()
}

impl Pool {
    /// Makes the map as it is now durable on every disk that answers.
    pub(crate) async fn commit(&self) -> SpaceResult<()> {
        let p = &self.0;
        let Some(round) = p.commits.next().await else { return Ok(()) };
        loop {
            self.alive()?;
            let asked = round.asked();
            let disks: Vec<Rc<DiskRt>> = p.disks.borrow().values().filter(|d| d.online.get()).cloned().collect();
            if disks.is_empty() {
                self.event("no disk left".into());
                p.life.close();
                return Err(SpaceError::Closed);
            }
            // Only disks that returned since are left: another node that sees the others alone would take them for all.
            if p.cluster.get() != 0 && !p.departures.follows(disks.iter().map(|d| d.index)) {
                self.event("no disk is left that was in use by the last map".into());
                p.life.close();
                p.departures.all_left();
                return Err(SpaceError::Closed);
            }
            let (labels, bytes, captured) = self.encode_map(&disks)?;
            let seq = labels.first().map_or(0, |l| l.seq);
            let failed = self.commit_round(&disks, labels, bytes).await;
            if failed.is_empty() {
                round.done(asked);
                disks.iter().for_each(|d| d.map_is_committed(seq));
                // A disk that left with the log is behind from now on, and its log is still the one that counts.
                if self.has_log() {
                    p.map.apply(MapChange::Replicated(seq));
                }
                tracing::trace!("map {seq} is durable");
                self.committed(captured);
                return Ok(());
            }
            for d in failed {
                self.note_failed(&d, "write of the pool map failed");
            }
            self.keep_a_log();
        }
    }

    /// A new log whose disks have all left before a map named it is nothing: the one before counts.
    fn keep_a_log(&self) {
        if !self.has_log()
            && let Some(former) = self.0.journal.undo_switch(|d| self.online(d))
        {
            self.0.map.apply(MapChange::Log(former));
        }
    }

    /// A disk is here that has the log which the map names.
    fn has_log(&self) -> bool {
        self.0.map.read().journal.disks.iter().any(|&d| self.online(d))
    }

    /// The oldest batch that anything in memory needs: sequence and position.
    pub(crate) fn oldest_needed(&self) -> Option<(u64, u64)> {
        let oldest = self.0.spaces.borrow().values().filter_map(|s| s.overlay.borrow().oldest_needed()).min();
        oldest.into_iter().chain(self.0.patches.oldest_log()).min()
    }

    fn encode_map(&self, disks: &[Rc<DiskRt>]) -> SpaceResult<(Vec<Label>, Encoder, Captured)> {
        let p = &self.0;
        let away = self.away_in_memory();
        let head = p.journal.head();
        let oldest = self.oldest_needed();
        let start = match p.life.is_opening() {
            // The log of the last opening counts whole until the map names another.
            true => p.map.read().journal.start(),
            false => oldest.map_or(head, |o| o.min(head)),
        };
        let (flip_floor, moved) = (p.flips.next_id(), p.flips.superseded_since(start.0));
        p.map.apply(MapChange::Numbered { log_start: start, flip_floor, moved });
        let map = p.map.read();
        let mut dirty = Vec::new();
        for s in map.spaces.values() {
            for (gi, g) in s.groups.iter().enumerate() {
                if let Some(g) = g
                    && g.dirty.any()
                    && let Some(rt) = self.space_rt(s.id).and_then(|s| s.group_rt(gi))
                {
                    dirty.push((rt.clone(), rt.regions.forgotten(), g.dirty.ones()));
                }
            }
        }
        let journal = map.journal.disks.clone();
        let in_use = map.in_use();
        let captured =
            Captured { flip: p.flips.next_id(), departures: p.departures.count(), away, journal, in_use, start, dirty };
        tracing::trace!("{}", map.outline());
        let (len, sum) = Encoder::measure(&map);
        let parity = map.spaces.values().any(|s| s.layout.parity() > 0);
        let cluster = p.cluster.get();
        let version = match (cluster, parity) {
            _ if map.has_unserved_departures() => LABEL_VERSION_UNSERVED,
            _ if map.bounds_missing_disks() => LABEL_VERSION_MISSING,
            (0, false) => LABEL_VERSION,
            (0, true) => LABEL_VERSION_PATCHES,
            _ => LABEL_VERSION_CLUSTER,
        };
        let mut labels = Vec::new();
        for d in disks {
            if len > d.areas.map_slot_bytes {
                return Err(SpaceError::Refused(format!(
                    "the pool map needs {len} bytes and disk {} has room for {}",
                    d.index, d.areas.map_slot_bytes
                )));
            }
            labels.push(Label {
                version,
                pool_id: map.pool_id,
                disk_id: map.disks.get(&d.index).map_or(0, |r| r.id),
                index: d.index,
                epoch: map.epoch,
                nonce: map.nonce(),
                seq: map.seq,
                slab_bytes: map.slab_bytes,
                areas: d.areas,
                // Never over the map that this disk's label names now, whatever became of
                // attempts in between.
                map_slot: 1 - d.copy.get(),
                map_len: len,
                map_checksum: sum,
                pool_name: map.name.clone(),
                cluster,
            });
        }
        Ok((labels, Encoder::new(&map), captured))
    }

    /// Both phases; gives the disks that failed.
    async fn commit_round(&self, disks: &[Rc<DiskRt>], labels: Vec<Label>, mut bytes: Encoder) -> Vec<Rc<DiskRt>> {
        let (mut at, mut part) = (0, bytes.part());
        while let Some(data) = part {
            part = bytes.part();
            let is_last = part.is_none();
            let mut buf = Buf::zeroed(data.len().next_multiple_of(BLOCK_BYTES as usize));
            buf[..data.len()].copy_from_slice(&data);
            let buf = buf.share();
            let mut first: Vec<LocalFuture<bool>> = Vec::new();
            for (d, l) in disks.iter().zip(&labels) {
                let (d, buf, at) = (d.clone(), buf.clone(), d.areas.map_slot_at(usize::from(l.map_slot)) + at);
                first.push(Box::pin(async move {
                    d.write(at, buf, false).await.is_ok() && (!is_last || d.flush().await.is_ok())
                }));
            }
            at += data.len() as u64;
            let ok = join_all(first).await;
            let failed: Vec<_> = disks.iter().zip(&ok).filter(|(_, ok)| !**ok).map(|(d, _)| d.clone()).collect();
            if !failed.is_empty() {
                return failed;
            }
        }
        // A disk that joins is labelled before any other disk's label names a map in which it is a member: power lost
        // in between would leave the pool with a member that is missing for ever.
        let all = || disks.iter().zip(&labels);
        let failed = write_labels(all().filter(|(d, _)| !d.labelled.get())).await;
        if !failed.is_empty() {
            return failed;
        }
        write_labels(all().filter(|(d, _)| d.labelled.replace(true))).await
    }

    fn committed(&self, c: Captured) {
        let p = &self.0;
        p.journal.starts_at(c.start.1);
        p.departures.map_is_durable(c.departures, c.away, c.journal, c.in_use);
        // While the old log is being put in its place its sequence numbers mean nothing here.
        for s in p.spaces.borrow().values().filter(|_| !p.life.is_opening()) {
            s.logged.log_begins_at(c.start.0);
            s.groups.all().iter().for_each(|(_, g)| g.slots.log_begins_at(c.start.0));
        }
        for (g, forgotten, bits) in c.dirty {
            g.regions.map_is_durable(bits, forgotten);
        }
        self.retire_flips(c.flip);
    }

    /// The moves up to `id` are durable: the slots they left are free.
    pub(crate) fn retire_flips(&self, id: u64) {
        for f in self.0.flips.retire(id) {
            let Some(s) = self.space_rt(f.space) else { continue };
            let same =
                self.0.map.read().group(f.space, f.group as usize).is_some_and(|g| g.incarnation == f.incarnation);
            if let Some(g) = s.group_rt(f.group as usize).filter(|_| same) {
                g.slots.give_back(f.old);
            }
        }
    }

    /// Flushes every disk that has something to flush; one that cannot is taken out.
    pub(crate) async fn flush_disks(&self) -> SpaceResult<()> {
        let mut all: Vec<LocalFuture<Option<bool>>> = Vec::new();
        for d in self.unflushed_disks() {
            let me = self.clone();
            all.push(Box::pin(async move {
                if d.flush().await.is_ok() {
                    return None;
                }
                // Judged now: until the slowest disk has answered this one may be back, and others gone.
                let lost = me.holds_unprotected(d.index);
                me.note_failed(&d, "flush failed");
                Some(lost)
            }));
        }
        let failed: Vec<bool> = join_all(all).await.into_iter().flatten().collect();
        if !failed.is_empty() {
            self.commit().await?;
        }
        let lost = failed.contains(&true);
        self.wait_departures_durable().await?;
        if lost { Err(SpaceError::Offline) } else { Ok(()) }
    }

    /// True when a space without redundancy lies on the disk, or a group that has no other
    /// good copy: a failed flush then is an error to the writer.
    fn holds_unprotected(&self, disk: u16) -> bool {
        let map = self.0.map.read();
        let slab = map.slab_bytes;
        map.spaces.values().any(|s| {
            let shape = s.shape(slab);
            s.groups.iter().flatten().any(|g| {
                if !g.columns.iter().any(|c| c.disk == disk && !c.stale) {
                    return false;
                }
                let mut without = Group::clone(g);
                without.columns.iter_mut().filter(|c| c.disk == disk).for_each(|c| c.stale = true);
                !self.group_usable(&shape, &without)
            })
        })
    }
}
