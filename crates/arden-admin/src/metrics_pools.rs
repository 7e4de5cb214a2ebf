//! The samples of `/metrics` about pools, their disks, spaces and jobs, and about volumes.

use crate::{model::Metric, storage::PoolInfo, volume::VolumeInfo};

type Labels = Vec<(&'static str, String)>;

/// Adds one sample of a gauge with these labels.
fn gauge(out: &mut Vec<Metric>, name: &'static str, help: &'static str, labels: &Labels, value: f64) {
    out.push(Metric { name, help, counter: false, labels: labels.clone(), value });
}

fn counter(out: &mut Vec<Metric>, name: &'static str, help: &'static str, labels: &Labels, value: u64) {
    out.push(Metric { name, help, counter: true, labels: labels.clone(), value: value as f64 });
}

/// The health as a number: 0 whole, 1 degraded, 2 offline.
fn health(text: &str) -> f64 {
    match text {
        "whole" => 0.0,
        "degraded" => 1.0,
        _ => 2.0,
    }
}

/// The samples of all pools. `None`: the pools did not answer in time, which is a sample of its own. At a node of a cluster a closed pool
/// is one of another node: that says nothing of its health.
pub fn samples(pools: Option<&[PoolInfo]>, is_node: bool) -> Vec<Metric> {
    let mut out = Vec::new();
    gauge(&mut out, "pools_answer", "1 when the pools answered in time", &Vec::new(), f64::from(pools.is_some()));
    for p in pools.unwrap_or_default() {
        let labels = vec![("pool", p.name.clone())];
        gauge(&mut out, "pool_open", "1 when the pool is open", &labels, f64::from(p.state == "open"));
        if is_node && p.state != "open" {
            continue;
        }
        gauge(&mut out, "pool_health", "0 whole, 1 degraded, 2 offline", &labels, health(&p.health));
        gauge(&mut out, "pool_size_bytes", "Raw bytes of the disks in use", &labels, p.total_bytes as f64);
        gauge(&mut out, "pool_free_bytes", "Raw bytes that no space holds", &labels, p.free_bytes as f64);
        disks(&mut out, p);
        spaces(&mut out, p);
        for w in &p.work {
            let labels = vec![("pool", p.name.clone()), ("work", w.what.clone())];
            gauge(&mut out, "pool_work_done", "Steps done of long work, as a repair", &labels, w.done as f64);
            gauge(&mut out, "pool_work_steps", "Steps of long work; 0: not known", &labels, w.total as f64);
        }
    }
    out
}

/// The samples of volumes; at a node of a cluster of those that are open there.
pub fn volumes(volumes: &[VolumeInfo], is_node: bool) -> Vec<Metric> {
    let mut out = Vec::new();
    for v in volumes {
        let (labels, is_open) = (vec![("volume", v.name.clone())], v.closed_because.is_empty());
        if is_open || !is_node {
            gauge(&mut out, "volume_open", "1 when the volume is open", &labels, f64::from(is_open));
        }
        if is_open {
            gauge(&mut out, "volume_size_bytes", "Size of the volume", &labels, v.total_bytes as f64);
            gauge(&mut out, "volume_free_bytes", "Bytes that are free for files", &labels, v.free_bytes as f64);
        }
        if let Some(s) = v.last_scrub.filter(|_| is_open) {
            let when = "When the last scrub of everything ended, in seconds since 1970";
            gauge(&mut out, "volume_scrub_ended_seconds", when, &labels, s.ended as f64);
            let lost = "Blocks that the last scrub of everything found lost";
            gauge(&mut out, "volume_scrub_lost_blocks", lost, &labels, s.damaged_blocks as f64);
        }
    }
    out
}

fn disks(out: &mut Vec<Metric>, p: &PoolInfo) {
    for d in &p.disks {
        let labels = vec![("pool", p.name.clone()), ("disk", d.index.to_string()), ("path", d.path.clone())];
        let used = u64::from(d.slabs - d.slabs_free.min(d.slabs)) * p.slab_bytes;
        gauge(out, "disk_size_bytes", "Size of the disk", &labels, d.size_bytes as f64);
        gauge(out, "disk_used_bytes", "Bytes of the disk that spaces hold", &labels, used as f64);
        gauge(out, "disk_missing", "1 when the disk is away", &labels, f64::from(d.state == "missing"));
        gauge(out, "disk_slow", "1 when it answers far slower than its peers", &labels, f64::from(d.slow));
        gauge(out, "disk_read_seconds", "Smoothed latency of reads", &labels, d.latency_us as f64 / 1e6);
        counter(out, "disk_read_errors_total", "Reads that failed since the disk joined", &labels, d.read_errors);
        counter(out, "disk_write_errors_total", "Writes that failed since the disk joined", &labels, d.write_errors);
        let wrong = "Blocks that were not what was written there, since the disk joined";
        counter(out, "disk_wrong_blocks_total", wrong, &labels, d.wrong_blocks);
    }
}

fn spaces(out: &mut Vec<Metric>, p: &PoolInfo) {
    for s in &p.spaces {
        let labels = vec![("pool", p.name.clone()), ("space", s.name.clone()), ("layout", s.layout.clone())];
        let current = f64::from(s.up_to_date_percent) / 100.0;
        gauge(out, "space_size_bytes", "Size of the space", &labels, s.size_bytes as f64);
        gauge(out, "space_allocated_bytes", "Raw bytes that the space holds", &labels, s.allocated_bytes as f64);
        gauge(out, "space_health", "0 whole, 1 degraded, 2 offline", &labels, health(&s.health));
        gauge(out, "space_up_to_date_ratio", "Part of its columns that is here and current", &labels, current);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::storage_fake::{pool, volume};

    fn has(samples: &[Metric], name: &str) -> bool {
        samples.iter().any(|m| m.name == name)
    }

    #[test]
    fn a_pool_or_volume_of_another_node_has_no_health_here() {
        let closed = PoolInfo { state: "closed".to_string(), ..pool() };
        let (alone, node) =
            (samples(Some(std::slice::from_ref(&closed)), false), samples(Some(std::slice::from_ref(&closed)), true));
        assert!(has(&alone, "pool_health") && has(&node, "pool_open") && !has(&node, "pool_health"));
        assert!(has(&samples(Some(&[pool()]), true), "pool_health"));
        let closed = VolumeInfo { closed_because: "elsewhere".to_string(), ..volume() };
        assert!(has(&volumes(&[volume()], true), "volume_free_bytes"));
        let (alone, node) =
            (volumes(std::slice::from_ref(&closed), false), volumes(std::slice::from_ref(&closed), true));
        assert!(has(&alone, "volume_open") && !has(&alone, "volume_free_bytes") && node.is_empty());
    }

    #[test]
    fn names_are_as_prometheus_wants_them() {
        let all = samples(Some(&[pool()]), false).into_iter().chain(volumes(&[volume()], false));
        for m in all {
            assert_eq!(m.counter, m.name.ends_with("_total"), "{}", m.name);
        }
    }
}
