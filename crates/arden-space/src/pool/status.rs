//! What an administrator sees of a pool, its disks and its spaces.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::map::layout::{Layout, Provision};
use crate::map::pool_map::{DiskState, Group, PoolMap};
use crate::pool::open_pool::Pool;

#[derive(Debug, Clone)]
pub struct DiskStatus {
    pub index: u16,
    pub id: u128,
    /// Of the device as which the disk is here, or was here last. Of one that was not here since the pool was opened it is that of the
    /// device that joined.
    pub name: String,
    pub state: DiskState,
    pub online: bool,
    pub size_bytes: u64,
    pub slabs: u32,
    pub slabs_free: u32,
    pub read_errors: u64,
    pub write_errors: u64,
    /// Blocks that it returned without an error and that failed a checksum above the pool.
    pub wrong_blocks: u64,
    pub latency_us: u64,
    /// Answers far slower than its peers; avoided for reads.
    pub slow: bool,
}

#[derive(Debug, Clone)]
pub struct SpaceStatus {
    pub id: u32,
    pub name: String,
    pub layout: Layout,
    pub columns: u16,
    pub interleave: u64,
    pub size_bytes: u64,
    pub provision: Provision,
    pub groups: usize,
    pub groups_allocated: usize,
    pub groups_degraded: usize,
    pub groups_offline: usize,
    /// Columns in all, and those that are missing or out of date.
    pub columns_held: usize,
    pub columns_away: usize,
    /// Disks that the space lies on and that are away.
    pub missing: Vec<u16>,
    /// Raw bytes of slabs held.
    pub allocated_bytes: u64,
}

#[derive(Debug, Clone)]
pub struct PoolStatus {
    pub id: u128,
    pub name: String,
    pub epoch: u64,
    pub slab_bytes: u64,
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// The highest warning level reached, in percent.
    pub warning: Option<u8>,
    pub disks: Vec<DiskStatus>,
    pub spaces: Vec<SpaceStatus>,
    /// Long work: name, done, total.
    pub progress: Vec<(String, u64, u64)>,
    /// Parity stripes changed in place since the pool was opened.
    pub stripes_patched: u64,
    pub events: Vec<String>,
}

impl Pool {
    pub fn status(&self) -> PoolStatus {
        let map = self.0.map.read();
        let alloc = self.0.alloc.borrow();
        let slow = self.slow_disks();
        let disks: Vec<DiskStatus> = map
            .disks
            .iter()
            .map(|(&index, d)| {
                let rt = self.disk(index);
                DiskStatus {
                    index,
                    id: d.id,
                    name: self.0.events.name(d.id, rt.as_ref().map(|r| r.dev.info().name.as_str()), &d.name),
                    state: d.state,
                    online: rt.as_ref().is_some_and(|r| r.online.get()),
                    size_bytes: d.size_bytes,
                    slabs: d.slabs,
                    slabs_free: alloc.free(index) as u32,
                    read_errors: rt.as_ref().map_or(0, |r| r.read_errors.get()),
                    write_errors: rt.as_ref().map_or(0, |r| r.write_errors.get()),
                    wrong_blocks: rt.as_ref().map_or(0, |r| r.wrong_blocks()),
                    latency_us: rt.as_ref().map_or(0, |r| r.reads.latency_ns() / 1000),
                    slow: slow.contains(&index),
                }
            })
            .collect();
        let usable = |d: &&DiskStatus| matches!(d.state, DiskState::Active) && d.online;
        let total: u64 = disks.iter().filter(usable).map(|d| u64::from(d.slabs)).sum();
        let free: u64 = disks.iter().filter(usable).map(|d| u64::from(d.slabs_free)).sum();
        let used_percent = ((total - free) * 100).checked_div(total).unwrap_or(0);
        let warning = map.warn_percent.iter().copied().filter(|&w| used_percent >= u64::from(w)).max();
        PoolStatus {
            id: map.pool_id,
            name: map.name.clone(),
            epoch: map.epoch,
            slab_bytes: map.slab_bytes,
            total_bytes: total * map.slab_bytes,
            free_bytes: free * map.slab_bytes,
            warning,
            disks,
            spaces: map.spaces.values().map(|s| self.space_status(&map, s)).collect(),
            progress: self.0.events.all_progress(),
            stripes_patched: self.0.patches.finished(),
            events: self.0.events.list(),
        }
    }

    fn space_status(&self, map: &PoolMap, s: &crate::map::pool_map::SpaceRec) -> SpaceStatus {
        let shape = s.shape(map.slab_bytes);
        let groups: Vec<&Arc<Group>> = s.groups.iter().flatten().collect();
        let away = |c: &crate::map::pool_map::Column| c.stale || !self.online(c.disk);
        let degraded = |g: &&&Arc<Group>| g.columns.iter().any(away);
        let columns = groups.iter().flat_map(|g| &g.columns);
        let missing: BTreeSet<u16> = columns.map(|c| c.disk).filter(|&d| !self.online(d)).collect();
        SpaceStatus {
            id: s.id,
            name: s.name.clone(),
            layout: s.layout,
            columns: s.columns,
            interleave: s.interleave,
            size_bytes: s.size_bytes,
            provision: s.provision,
            groups: s.groups.len(),
            groups_allocated: groups.len(),
            groups_degraded: groups.iter().filter(degraded).count(),
            groups_offline: groups.iter().filter(|g| !self.group_usable(&shape, g)).count(),
            columns_held: groups.iter().map(|g| g.columns.len()).sum(),
            columns_away: groups.iter().flat_map(|g| &g.columns).filter(|c| away(c)).count(),
            missing: missing.into_iter().collect(),
            allocated_bytes: groups.len() as u64 * shape.width() as u64 * map.slab_bytes,
        }
    }
}
