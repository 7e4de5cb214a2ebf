//! A pool's status in the words of the API.

use arden_admin::storage::{PoolDiskInfo, PoolInfo, PoolRecord, SpaceInfo, WorkInfo};
use arden_space::{DiskState, DiskStatus, PoolStatus, Provision, SpaceStatus};

use super::OpenPool;

/// The state of a disk in the words of the API.
pub fn state_name(s: DiskState) -> &'static str {
    match s {
        DiskState::Active => "active",
        DiskState::Spare => "spare",
        DiskState::Retiring => "retiring",
        DiskState::Missing => "missing",
    }
}

fn disk(d: &DiskStatus) -> PoolDiskInfo {
    PoolDiskInfo {
        index: d.index,
        path: d.name.clone(),
        state: if d.online { state_name(d.state) } else { "missing" }.to_string(),
        size_bytes: d.size_bytes,
        slabs: d.slabs,
        slabs_free: d.slabs_free,
        read_errors: d.read_errors,
        wrong_blocks: d.wrong_blocks,
        write_errors: d.write_errors,
        latency_us: d.latency_us,
        slow: d.slow,
    }
}

/// A space as the API shows it.
pub fn space(pool: &str, open: &OpenPool, s: &SpaceStatus) -> SpaceInfo {
    let health = match (s.groups_offline, s.groups_degraded) {
        (0, 0) => "whole",
        (0, _) => "degraded",
        _ => "offline",
    };
    let whole = s.columns_held - s.columns_away;
    SpaceInfo {
        pool: pool.to_string(),
        name: s.name.clone(),
        id: s.id,
        layout: s.layout.name().to_string(),
        columns: s.columns,
        interleave_bytes: s.interleave,
        size_bytes: s.size_bytes,
        provision: if s.provision == Provision::Fixed { "fixed" } else { "thin" }.to_string(),
        health: health.to_string(),
        groups: s.groups as u64,
        groups_allocated: s.groups_allocated as u64,
        groups_degraded: s.groups_degraded as u64,
        groups_offline: s.groups_offline as u64,
        allocated_bytes: s.allocated_bytes,
        up_to_date_percent: (whole * 100).checked_div(s.columns_held).unwrap_or(100) as u8,
        missing: s.missing.clone(),
        nbd: open.exports.lock().get(&s.name).map_or_else(String::new, |e| e.place().to_string()),
        used_by: open.uses.lock().get(&s.name).cloned().unwrap_or_default(),
    }
}

/// An open pool as the API shows it.
pub fn pool(record: &PoolRecord, open: &OpenPool, s: &PoolStatus, warn_percent: [u8; 3]) -> PoolInfo {
    let spaces: Vec<SpaceInfo> = s.spaces.iter().map(|x| space(&record.name, open, x)).collect();
    let worst = ["offline", "degraded"].into_iter().find(|h| spaces.iter().any(|x| x.health == *h));
    PoolInfo {
        name: record.name.clone(),
        id: record.id.clone(),
        state: "open".to_string(),
        reason: String::new(),
        epoch: s.epoch,
        slab_bytes: s.slab_bytes,
        total_bytes: s.total_bytes,
        free_bytes: s.free_bytes,
        warning_percent: s.warning.unwrap_or(0),
        warn_percent,
        grace_seconds: record.grace_seconds,
        health: worst.unwrap_or("whole").to_string(),
        disks: s.disks.iter().map(disk).collect(),
        spaces,
        work: s.progress.iter().map(|(w, d, t)| WorkInfo { what: w.clone(), done: *d, total: *t }).collect(),
        events: s.events.clone(),
        ownership: None,
    }
}

/// All that is known of a pool that is not open.
pub fn closed(record: &PoolRecord, reason: &str) -> PoolInfo {
    PoolInfo {
        name: record.name.clone(),
        id: record.id.clone(),
        state: "closed".to_string(),
        reason: reason.to_string(),
        epoch: 0,
        slab_bytes: 0,
        total_bytes: 0,
        free_bytes: 0,
        warning_percent: 0,
        warn_percent: [70, 80, 90],
        grace_seconds: record.grace_seconds,
        health: "offline".to_string(),
        disks: Vec::new(),
        spaces: Vec::new(),
        work: Vec::new(),
        events: Vec::new(),
        ownership: None,
    }
}
