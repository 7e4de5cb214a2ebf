//! The work of the daemon on its pools once a second: it logs events, retries pools that could not be opened, takes back
//! disks that are there again, and records finished jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak, atomic::Ordering};
use std::time::{Duration, Instant};

use arden_admin::names::key;
use arden_space::{DiskState, PoolStatus};

use super::{OpenPool, Pools, devices, jobs::Finished, reserve};

const EVERY: Duration = Duration::from_secs(1);
/// How often closed pools and missing disks are looked for.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(3);
/// A disk that keeps failing is taken back ever more rarely, up to this.
const RETURN_WAIT_MAX: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(super) struct Seen {
    events: u64,
    warning: u8,
    slow: Vec<u16>,
    /// Disks whose labels were not theirs when last looked at.
    foreign: Vec<u16>,
    /// Disks taken back: when next, and how long it was waited.
    returns: BTreeMap<u16, (Instant, Duration)>,
}

#[cfg(test)]
impl Seen {
    /// How long each disk that was taken back is left alone.
    pub(super) fn waits(&self) -> Vec<Duration> {
        self.returns.values().map(|r| r.1).collect()
    }
}

/// Runs until the daemon stops.
pub fn run(pools: &Weak<Pools>, finished: &Receiver<Finished>) {
    let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
    let (mut looked, mut turned) = (Instant::now(), Instant::now());
    loop {
        let event = finished.recv_timeout(Duration::from_millis(200));
        let Some(pools) = pools.upgrade() else { return };
        if pools.stopping.load(Ordering::SeqCst) || event.as_ref().is_err_and(|e| *e == RecvTimeoutError::Disconnected)
        {
            return;
        }
        if let Ok(f) = event {
            pools.job_finished(f);
        }
        if turned.elapsed() < EVERY {
            continue;
        }
        turned = Instant::now();
        let look = looked.elapsed() >= LOOK_EVERY;
        if look {
            looked = Instant::now();
            open_closed(&pools);
            pools.remember_scrubs();
        }
        for (name, open) in pools.open_pools() {
            let seen = seen.entry(name.clone()).or_default();
            let asked = open.ask(|p| async move { Ok((p.status(), p.event_count())) });
            let Ok((status, events)) = asked else { continue };
            report(&status, events, seen);
            if look {
                look_at_labels(&open, seen);
                take_back(&pools, &name, &open, &status, seen);
            }
        }
    }
}

/// Log lines for what a person should know.
fn report(s: &PoolStatus, events: u64, seen: &mut Seen) {
    let new = events.saturating_sub(seen.events) as usize;
    for text in s.events.iter().skip(s.events.len().saturating_sub(new)) {
        tracing::warn!(pool = s.name, "{text}");
    }
    seen.events = events;
    let warning = s.warning.unwrap_or(0);
    if warning > seen.warning {
        tracing::warn!(pool = s.name, free_bytes = s.free_bytes, "more than {warning} % of the pool is used");
    }
    seen.warning = warning;
    let slow: Vec<u16> = s.disks.iter().filter(|d| d.slow).map(|d| d.index).collect();
    for d in s.disks.iter().filter(|d| d.slow && !seen.slow.contains(&d.index)) {
        tracing::warn!(
            pool = s.name,
            disk = d.index,
            latency_us = d.latency_us,
            "far slower than its peers: {}",
            d.name
        );
    }
    seen.slow = slow;
}

fn open_closed(pools: &Arc<Pools>) {
    let closed: Vec<String> =
        pools.pools.lock().iter().filter(|(_, s)| s.open.is_none()).map(|(k, _)| k.clone()).collect();
    for name in closed {
        let Some(_one) = pools.changing.try_lock() else { return };
        if let Ok(record) = pools.record(&name) {
            pools.open_known(&record);
        }
    }
}

/// A disk whose label somebody else has overwritten holds nothing that can be trusted. Seen twice, because a disk
/// that joins has none for a moment. Reading the labels also finds disks that are gone while nobody uses them.
fn look_at_labels(open: &OpenPool, seen: &mut Seen) {
    let before = std::mem::take(&mut seen.foreign);
    let looked = open.ask(move |p| async move {
        let foreign = p.foreign_disks().await;
        for &d in foreign.iter().filter(|d| before.contains(d)) {
            p.fail(d, "its label was overwritten").await?;
        }
        Ok(foreign)
    });
    seen.foreign = looked.unwrap_or_default();
}

/// Attaches missing disks whose label is found again.
pub(super) fn take_back(pools: &Pools, name: &str, open: &OpenPool, status: &PoolStatus, seen: &mut Seen) {
    let away = |d: &&arden_space::DiskStatus| d.state == DiskState::Missing || !d.online;
    let now = Instant::now();
    let missing: Vec<(u16, u128)> = status
        .disks
        .iter()
        .filter(away)
        .filter(|d| seen.returns.get(&d.index).is_none_or(|r| now >= r.0))
        .map(|d| (d.index, d.id))
        .collect();
    if missing.is_empty() {
        return;
    }
    let Ok(record) = pools.record(name) else { return };
    // Its known names come first, so that no other name of a disk is remembered beside them.
    let mut paths: Vec<PathBuf> = record.devices;
    paths.extend(devices::candidates(&[]));
    let mut tried = BTreeSet::new();
    for found in devices::scan(&paths) {
        let Some(&(index, _)) = missing.iter().find(|m| m.1 == found.disk_id && found.pool_id == status.id) else {
            continue;
        };
        // By one path: each would need a key.
        if !tried.insert(index) {
            continue;
        }
        let wait = seen.returns.get(&index).map_or(LOOK_EVERY * 2, |r| (r.1 * 2).min(RETURN_WAIT_MAX));
        seen.returns.insert(index, (now + wait, wait));
        let (path, labels) = (found.path.clone(), pools.labels());
        let guard = open.guard.clone();
        let back = open.ask(move |p| async move {
            p.release_device(index);
            let dev = reserve::open_device(p.rt(), &path, &labels, guard.as_ref()).await?;
            p.return_disk(dev).await
        });
        match back {
            Ok(_) => {
                let path = found.path.clone();
                let known = pools.change_record(&key(name), |r| {
                    if !r.devices.contains(&path) {
                        r.devices.push(path.clone());
                    }
                });
                if let Err(e) = known {
                    tracing::error!(pool = name, "{e}");
                }
            }
            Err(e) => tracing::warn!(pool = name, disk = index, "not taken back: {e}"),
        }
    }
}
