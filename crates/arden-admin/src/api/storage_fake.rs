//! A [`Storage`] with one disk, pool, space, job and volume, for the tests of the router.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use super::Api;
use crate::{
    cluster::*,
    error::{AdminError, ErrorKind, Result},
    model::{Id, OpenInfo, SessionInfo},
    snapshot::*,
    storage::*,
    volume::*,
};

#[derive(Default)]
pub(super) struct FakeStorage {
    /// The API of the other node, which catches up when it is asked.
    pub other: OnceLock<Arc<Api>>,
    /// The watch of etcd is late.
    pub deaf: AtomicBool,
}

fn disk() -> DiskInfo {
    let text = String::new;
    let media = "ssd".to_string();
    DiskInfo {
        path: "/d".into(),
        size_bytes: 1 << 30,
        media,
        model: text(),
        serial: text(),
        content: text(),
        in_use: text(),
        pool: text(),
    }
}

fn space() -> SpaceInfo {
    SpaceInfo {
        pool: "tank".into(),
        name: "vm".into(),
        id: 1,
        layout: "parity".into(),
        columns: 3,
        interleave_bytes: 256 << 10,
        size_bytes: 1 << 30,
        provision: "thin".into(),
        health: "degraded".into(),
        groups: 2,
        groups_allocated: 1,
        groups_degraded: 1,
        groups_offline: 0,
        allocated_bytes: 3 << 20,
        up_to_date_percent: 66,
        missing: vec![2],
        nbd: String::new(),
        used_by: String::new(),
    }
}

pub fn pool() -> PoolInfo {
    let disk = PoolDiskInfo {
        index: 0,
        path: "/d".into(),
        state: "active".into(),
        size_bytes: 1 << 30,
        slabs: 64,
        slabs_free: 60,
        read_errors: 0,
        wrong_blocks: 0,
        write_errors: 0,
        latency_us: 80,
        slow: false,
    };
    PoolInfo {
        name: "tank".into(),
        id: "0".repeat(32),
        state: "open".into(),
        reason: String::new(),
        epoch: 1,
        slab_bytes: 1 << 20,
        total_bytes: 1 << 30,
        free_bytes: 1 << 29,
        warning_percent: 0,
        warn_percent: [70, 80, 90],
        grace_seconds: 300,
        health: "degraded".into(),
        disks: vec![disk],
        spaces: vec![space()],
        work: vec![WorkInfo { what: "repair".into(), done: 1, total: 2 }],
        events: vec!["disk 2 is missing".into()],
        ownership: None,
    }
}

fn job() -> JobInfo {
    let (kind, state) = (JobKind::RemoveDisk, JobState::Running);
    JobInfo { id: 1, pool: "tank".into(), kind, disk: Some(1), state, done: 0, total: 0, result: String::new() }
}

impl Storage for FakeStorage {
    fn disks(&self, _: &DiskQuery) -> Result<Vec<DiskInfo>> {
        Ok(vec![disk()])
    }
    fn label_disk(&self, _: &DiskLabel) -> Result<DiskInfo> {
        Ok(disk())
    }
    fn wipe_disk(&self, _: &DiskWipe) -> Result<()> {
        Ok(())
    }
    fn pools(&self) -> Result<Vec<PoolInfo>> {
        Ok(vec![pool()])
    }
    fn pool(&self, name: &str) -> Result<PoolInfo> {
        if name == "tank" { Ok(pool()) } else { Err(AdminError::not_found("pool", name)) }
    }
    fn create_pool(&self, _: &NewPool) -> Result<PoolInfo> {
        Ok(pool())
    }
    fn import_pool(&self, _: &PoolImport) -> Result<PoolInfo> {
        Ok(pool())
    }
    fn change_pool(&self, _: &str, _: &PoolChange) -> Result<PoolInfo> {
        Ok(pool())
    }
    fn forget_pool(&self, _: &str) -> Result<()> {
        Ok(())
    }
    fn add_disk(&self, _: &str, _: &AddDisk) -> Result<PoolInfo> {
        Ok(pool())
    }
    fn change_disk(&self, _: &str, _: u16, _: &PoolDiskChange) -> Result<PoolInfo> {
        Ok(pool())
    }
    fn start_job(&self, _: &str, _: &NewJob) -> Result<JobInfo> {
        Ok(job())
    }
    fn jobs(&self) -> Result<Vec<JobInfo>> {
        Ok(vec![job()])
    }
    fn job(&self, id: u64) -> Result<JobInfo> {
        Ok(JobInfo { id, ..job() })
    }
    fn change_job(&self, _: u64, _: &JobChange) -> Result<JobInfo> {
        Ok(job())
    }
    fn cancel_job(&self, _: u64) -> Result<()> {
        Ok(())
    }
    fn spaces(&self) -> Result<Vec<SpaceInfo>> {
        Ok(vec![space()])
    }
    fn create_space(&self, _: &str, _: &NewSpace) -> Result<SpaceInfo> {
        Ok(space())
    }
    fn space(&self, _: &str, _: &str) -> Result<SpaceInfo> {
        Ok(space())
    }
    fn space_map(&self, _: &str, _: &str) -> Result<Vec<GroupMap>> {
        let column = ColumnInfo { disk: 0, slab: 3, state: "whole".into(), moving_to: None };
        Ok(vec![GroupMap { group: 0, columns: vec![column] }])
    }
    fn grow_space(&self, _: &str, _: &str, _: &SpaceChange) -> Result<SpaceInfo> {
        Ok(space())
    }
    fn delete_space(&self, _: &str, _: &str, _: &SpaceDelete) -> Result<()> {
        Ok(())
    }
    fn export_space(&self, _: &str, _: &str, _: &NewExport) -> Result<SpaceInfo> {
        Ok(space())
    }
    fn unexport_space(&self, _: &str, _: &str) -> Result<SpaceInfo> {
        Ok(space())
    }
}

pub fn volume() -> VolumeInfo {
    VolumeInfo {
        name: "docs".into(),
        device: "space vm".into(),
        closed_because: String::new(),
        id: "1".into(),
        total_bytes: 2,
        free_bytes: 1,
        last_access: AccessPolicy::Relative,
        short_names: ShortNamePolicy::Kept,
        scrub_days: 28,
        last_scrub: Some(LastScrub { ended: 1, healed_blocks: 2, damaged_blocks: 3 }),
        shares: vec!["s".into()],
    }
}

fn snapshot() -> SnapshotInfo {
    SnapshotInfo { time: "@GMT-2026.05.31-12.00.00".into(), label: "x".into(), only_bytes: 4096 }
}

impl SnapshotAdmin for FakeStorage {
    fn snapshots(&self, _: &str) -> Result<Vec<SnapshotInfo>> {
        Ok(vec![snapshot()])
    }
    fn create_snapshot(&self, _: &str, _: &NewSnapshot) -> Result<SnapshotInfo> {
        Ok(snapshot())
    }
    fn stream_snapshots(&self, _: &str, of: &StreamSnapshotQuery) -> Result<Vec<StreamSnapshotInfo>> {
        let (path, name, created) = (of.path.clone(), "before".into(), snapshot().time);
        Ok(vec![StreamSnapshotInfo { path, name, created, size_bytes: 5, allocation_bytes: 4096 }])
    }
    fn delete_snapshot(&self, _: &str, time: &str) -> Result<()> {
        if time == snapshot().time { Ok(()) } else { Err(AdminError::not_found("snapshot", time)) }
    }
    fn schedules(&self, _: &str) -> Result<Vec<SnapshotSchedule>> {
        Ok(vec![SnapshotSchedule { name: "hourly".into(), every_seconds: 3600, keep: 24 }])
    }
    fn set_schedule(&self, _: &str, schedule: &SnapshotSchedule) -> Result<SnapshotSchedule> {
        Ok(schedule.clone())
    }
    fn remove_schedule(&self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }
}

impl VolumeAdmin for FakeStorage {
    fn cache(&self) -> CacheInfo {
        CacheInfo { bytes: 5, bytes_max: 6 }
    }
    fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        Ok(vec![volume()])
    }
    fn volume(&self, name: &str) -> Result<VolumeInfo> {
        if name == "docs" { Ok(volume()) } else { Err(AdminError::not_found("volume", name)) }
    }
    fn create_volume(&self, _: &NewVolume) -> Result<VolumeInfo> {
        Ok(volume())
    }
    fn check_volume(&self, _: &str, _: &NewCheck) -> Result<VolumeCheck> {
        let errors = vec!["one".into()];
        let (files, directories, streams, extents) = (1, 2, 3, 4);
        Ok(VolumeCheck { errors, files, directories, streams, extents, data_bytes: 5, shared_bytes: 6, tree_bytes: 7 })
    }
    fn forget_volume(&self, _: &str) -> Result<()> {
        Ok(())
    }
    fn change_volume(&self, _: &str, _: &VolumeChange) -> Result<VolumeInfo> {
        Ok(volume())
    }
    fn repair_volume(&self, _: &str, _: &NewRepair) -> Result<VolumeRepair> {
        Ok(VolumeRepair { done: vec!["one".into()], left: vec!["two".into()] })
    }
    fn start_scrub(&self, name: &str, _: &NewScrub) -> Result<VolumeScrub> {
        self.scrub(name)
    }
    fn scrub(&self, _: &str) -> Result<VolumeScrub> {
        let damage = vec![DamageInfo { path: "a".into(), offset: 0, len: 4096 }];
        let (state, error) = (ScrubState::Done, String::new());
        Ok(VolumeScrub { state, done_bytes: 1, total_bytes: 2, healed_blocks: 3, damaged_blocks: 1, damage, error })
    }
    fn quotas(&self, _: &str) -> Result<Vec<QuotaInfo>> {
        let (kind, name) = (QuotaKind::User, "alice".to_string());
        Ok(vec![QuotaInfo { kind, name, used_bytes: 5, soft_bytes: Some(1), hard_bytes: None }])
    }
    fn integrity(&self, _: &str, of: &IntegrityQuery) -> Result<Vec<IntegrityInfo>> {
        let (state, checksum) = (IntegrityState::On, "xxh3-64".into());
        Ok(vec![IntegrityInfo { path: of.path.clone(), state, checksum, block_bytes: 4096, changed: 0 }])
    }
    fn set_integrity(&self, name: &str, new: &NewIntegrity) -> Result<IntegrityInfo> {
        self.integrity(name, &IntegrityQuery { path: new.path.clone() }).map(|mut all| all.remove(0))
    }
    fn set_quota(&self, name: &str, _: &NewQuota) -> Result<QuotaInfo> {
        self.quotas(name).map(|mut all| all.remove(0))
    }
    fn remove_quota(&self, _: &str, _: &QuotaSubject) -> Result<()> {
        Ok(())
    }
    fn stop_scrub(&self, _: &str) -> Result<()> {
        Ok(())
    }
    fn delete_volume(&self, _: &str) -> Result<()> {
        Ok(())
    }
    fn attach_volume(&self, _: &VolumeRecord) -> Result<VolumeInfo> {
        Ok(volume())
    }
}

fn ownership() -> PoolOwnership {
    PoolOwnership {
        pool: "tank".into(),
        owner: "n1".into(),
        epoch: 7,
        written: 7,
        state: "owned".into(),
        reason: String::new(),
        holders: vec!["a:7".into()],
        fence: "agent:/f".into(),
        fence_options: vec!["ip".into()],
    }
}

fn node() -> NodeInfo {
    NodeInfo {
        number: 1,
        name: "a".into(),
        alive: true,
        drained: false,
        feature_level: 2,
        run: "r".into(),
        addresses: vec!["h:445".into()],
        node_addresses: vec!["h:7445".into()],
    }
}

impl ClusterAdmin for FakeStorage {
    fn found(&self, _: &FoundCluster) -> Result<()> {
        Ok(())
    }
    fn cluster(&self) -> Result<ClusterInfo> {
        let node = node();
        Ok(ClusterInfo {
            name: "LAB".into(),
            id: "0".repeat(32),
            node: "a".into(),
            lease_seconds: 5,
            feature_level: 2,
            etcd: vec!["http://e:2379".into()],
            distrusts_etcd: String::new(),
            nodes: vec![node],
            pools: self.ownerships(),
        })
    }
    fn ownerships(&self) -> Vec<PoolOwnership> {
        let lost = PoolOwnership { pool: "lost".into(), owner: String::new(), ..ownership() };
        vec![ownership(), lost]
    }
    fn new_token(&self) -> Result<ClusterToken> {
        Ok(ClusterToken { token: "t".into(), seconds: 3600 })
    }
    fn raise_level(&self) -> Result<FeatureLevel> {
        Ok(FeatureLevel { level: 2, before: 1 })
    }
    fn node_name(&self) -> String {
        "n1".to_string()
    }
    fn node_number(&self) -> u16 {
        1
    }
    /// The pools `far` and `pond` are another node's.
    fn owner_elsewhere(&self, pool: PoolKey<'_>) -> Option<OtherNode> {
        matches!(pool, PoolKey::Name("far" | "pond") | PoolKey::Id(0xfa)).then(|| self.others().remove(0))
    }
    fn others(&self) -> Vec<OtherNode> {
        vec![OtherNode { number: 2, name: "n2".into() }]
    }
    /// Lists have one thing of its own and one that is not. Everything else answers with what was asked.
    fn handled_by(&self, node: &OtherNode, request: &NodeRequest) -> Result<NodeResponse> {
        assert_eq!(node.number, 2);
        let body = match (request.method.as_str(), request.path.as_str()) {
            (_, "/v1/volumes/silent") => {
                return Err(AdminError::failed("node n2 does not handle it: it is silent", ""));
            }
            ("DELETE", "/v1/jobs/4") => {
                let (error, hint) = ("job 4 is done", "`arden job cancel 4`; there is no job \"4\", and no job at 4");
                let body = serde_json::to_string(&AdminError::new(ErrorKind::Conflict, error, hint)).expect("JSON");
                return Ok(NodeResponse { status: 409, body });
            }
            ("GET", "/v1/pools/pond") => {
                let of_pond = |name: &str| SpaceInfo { pool: "pond".into(), name: name.into(), ..space() };
                let spaces = vec![of_pond("vm"), of_pond("p")];
                serde_json::to_string(&PoolInfo { name: "pond".into(), spaces, ..pool() })
            }
            ("GET", "/v1/jobs") => {
                let job = |pool: &str| JobInfo { pool: pool.into(), ..job() };
                serde_json::to_string(&[job("far"), job("p")])
            }
            ("GET", path) if path.matches('/').count() == 2 => Ok("[]".to_string()),
            _ => serde_json::to_string(request),
        };
        Ok(NodeResponse { status: 200, body: body.expect("JSON") })
    }
    fn hear_of_pools(&self) -> Result<()> {
        match self.deaf.load(Ordering::Relaxed) {
            true => Err(AdminError::failed("the watch of etcd is late", "wait")),
            false => Ok(()),
        }
    }
    fn ask_nodes(&self, question: &NodeQuestion) -> Vec<(String, NodeAnswer)> {
        let answer = match question {
            NodeQuestion::Sessions => NodeAnswer::Sessions(vec![session()]),
            NodeQuestion::Opens => NodeAnswer::Opens(vec![open()]),
            NodeQuestion::CloseSession(id) => NodeAnswer::Closed((*id == session().id).into()),
            NodeQuestion::CloseOpen(id) => NodeAnswer::Closed((*id == open().id).into()),
            NodeQuestion::CloseUserSessions(_) | NodeQuestion::CatchUp if self.other.get().is_some() => {
                let answer = super::answer_node(self.other.get().expect("looked at"), question.clone());
                tokio::runtime::Handle::current().block_on(answer).expect("the other node answers")
            }
            NodeQuestion::CloseUserSessions(_) => NodeAnswer::Closed(1),
            NodeQuestion::CatchUp => NodeAnswer::CaughtUp,
            NodeQuestion::Addresses => NodeAnswer::Addresses(Vec::new()),
        };
        vec![("n2".to_string(), answer)]
    }
    fn check_nodes(&self) -> Result<Vec<NodeLink>> {
        Ok(vec![NodeLink { node: "b".into(), connected: true, run: "r".into(), reason: String::new() }])
    }
    fn change_node(&self, _: &str, _: &NodeChange) -> Result<NodeInfo> {
        Ok(node())
    }
    fn remove_node(&self, _: &str) -> Result<()> {
        Ok(())
    }
    fn move_pool(&self, _: &str, _: &PoolMove) -> Result<PoolOwnership> {
        Ok(ownership())
    }
    fn move_client(&self, order: &ClientMove) -> Result<ClientMove> {
        Ok(order.clone())
    }
    fn take_pool(&self, _: &str, _: &PoolTake) -> Result<PoolOwnership> {
        Ok(ownership())
    }
    fn set_fence(&self, _: &str, _: &PoolFence) -> Result<PoolOwnership> {
        Ok(ownership())
    }
}

/// At the other node: a client that has something open there, and one of this node that has.
fn session() -> SessionInfo {
    SessionInfo {
        id: Id(0x77),
        user: "erin".into(),
        client: "127.0.0.1:9".into(),
        dialect: "3.1.1".into(),
        signing: String::new(),
        encryption: String::new(),
        channels: 1,
        opens: 0,
        age_seconds: 0,
        idle_seconds: 0,
        node: String::new(),
    }
}

fn open() -> OpenInfo {
    OpenInfo {
        id: Id(0x88),
        session: Some(Id(0xfedc_ba98_7654_3210)),
        user: "alice".into(),
        client: String::new(),
        share: "far".into(),
        path: "x".into(),
        access: 1,
        cache: String::new(),
        durable: false,
        locks: 0,
        node: String::new(),
    }
}
