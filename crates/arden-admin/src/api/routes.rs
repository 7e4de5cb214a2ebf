//! The API's routes as one table. Each row has its path, its types and its handler: the router and the OpenAPI document
//! are made from the same rows.

use std::sync::Arc;

use axum::{
    handler::Handler,
    http::Method,
    routing::{MethodFilter, MethodRouter, on},
};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::{Api, address, cluster, handlers, snapshot as snapshots, storage as pools, volume as volumes};
use crate::{
    address::{AddressInfo, NewAddress},
    cluster::{
        ClientMove, ClusterInfo, ClusterToken, FeatureLevel, FoundCluster, NodeChange, NodeInfo, NodeLink, PoolFence,
        PoolMove, PoolOwnership, PoolTake,
    },
    model::{
        GroupInfo, NewGroup, NewUser, OpenInfo, SessionInfo, SessionsClosed, Settings, SettingsChange, Share,
        ShareChange, StatusInfo, UserChange, UserInfo,
    },
    snapshot::{NewSnapshot, SnapshotInfo, SnapshotSchedule, StreamSnapshotInfo, StreamSnapshotQuery},
    storage::{
        AddDisk, DiskInfo, DiskLabel, DiskQuery, DiskWipe, GroupMap, JobChange, JobInfo, NewExport, NewJob, NewPool,
        NewSpace, PoolChange, PoolDiskChange, PoolImport, PoolInfo, SpaceChange, SpaceDelete, SpaceInfo,
    },
    volume::{
        IntegrityInfo, IntegrityQuery, NewCheck, NewIntegrity, NewQuota, NewRepair, NewScrub, NewVolume, QuotaInfo,
        QuotaSubject, VolumeChange, VolumeCheck, VolumeDelete, VolumeInfo, VolumeRecord, VolumeRepair, VolumeScrub,
    },
};

/// Makes the schema of a type and of all types that it refers to.
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// The body of a successful answer.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    One(SchemaOf),
    List(SchemaOf),
    /// No content, status 204.
    Nothing,
    Text,
    /// The OpenAPI document.
    Document,
}

use Answer::{Document, Nothing, Text};

fn one<T: JsonSchema>() -> Answer {
    Answer::One(|g| g.subschema_for::<T>())
}

fn list<T: JsonSchema>() -> Answer {
    Answer::List(|g| g.subschema_for::<T>())
}

#[allow(clippy::unnecessary_wraps, reason = "a column of the table: other rows have None")]
fn body<T: JsonSchema>() -> Option<SchemaOf> {
    Some(|g| g.subschema_for::<T>())
}

pub(crate) struct Route {
    pub method: Method,
    pub path: &'static str,
    /// The operationId in the OpenAPI document.
    pub operation: &'static str,
    pub summary: &'static str,
    /// Schema of the request's body.
    pub body: Option<SchemaOf>,
    pub answer: Answer,
    /// Statuses of the operation's errors. Every operation may also fail with 500.
    pub errors: &'static [u16],
    pub router: MethodRouter<Arc<Api>>,
}

impl Route {
    /// The status of a successful answer.
    pub fn success(&self) -> u16 {
        match self.answer {
            Nothing => 204,
            Answer::One(_) if self.method == Method::POST => 201,
            _ => 200,
        }
    }
}

fn get<H: Handler<T, Arc<Api>>, T: 'static>(
    path: &'static str,
    operation: &'static str,
    summary: &'static str,
    answer: Answer,
    errors: &'static [u16],
    handler: H,
) -> Route {
    change(Method::GET, path, operation, summary, None, answer, errors, handler)
}

#[allow(clippy::too_many_arguments, reason = "columns of the table")]
fn change<H: Handler<T, Arc<Api>>, T: 'static>(
    method: Method,
    path: &'static str,
    operation: &'static str,
    summary: &'static str,
    body: Option<SchemaOf>,
    answer: Answer,
    errors: &'static [u16],
    handler: H,
) -> Route {
    // Every method of the table is one that a filter exists for.
    let filter = MethodFilter::try_from(method.clone()).unwrap_or(MethodFilter::GET);
    Route { method, path, operation, summary, body, answer, errors, router: on(filter, handler) }
}

#[rustfmt::skip]
pub(crate) fn routes() -> Vec<Route> {
    vec![
        get("/v1/status", "status", "The daemon and its server at a glance", one::<StatusInfo>(), &[], handlers::status),
        get("/v1/settings", "settings", "What holds for the whole server", one::<Settings>(), &[], handlers::settings),
        change(Method::PATCH, "/v1/settings", "changeSettings", "Change settings; absent fields stay", body::<SettingsChange>(), one::<Settings>(), &[400, 409], handlers::change_settings),
        get("/v1/users", "users", "All users", list::<UserInfo>(), &[], handlers::users),
        change(Method::POST, "/v1/users", "addUser", "Add a user", body::<NewUser>(), one::<UserInfo>(), &[400, 404, 409], handlers::add_user),
        get("/v1/users/{name}", "user", "One user", one::<UserInfo>(), &[404], handlers::user),
        change(Method::PATCH, "/v1/users/{name}", "changeUser", "Change password, full name or whether the user is disabled; a new password or disabling ends his sessions", body::<UserChange>(), one::<UserInfo>(), &[400, 404], handlers::change_user),
        change(Method::DELETE, "/v1/users/{name}", "removeUser", "Remove a user and end his sessions", None, Nothing, &[404], handlers::remove_user),
        change(Method::DELETE, "/v1/users/{name}/sessions", "closeUserSessions", "End all sessions of a user and what they have open", None, one::<SessionsClosed>(), &[404], handlers::close_user_sessions),
        get("/v1/groups", "groups", "All groups with their members", list::<GroupInfo>(), &[], handlers::groups),
        change(Method::POST, "/v1/groups", "addGroup", "Add a group", body::<NewGroup>(), one::<GroupInfo>(), &[400, 409], handlers::add_group),
        get("/v1/groups/{name}", "group", "One group", one::<GroupInfo>(), &[404], handlers::group),
        change(Method::DELETE, "/v1/groups/{name}", "removeGroup", "Remove a group and end its members' sessions", None, Nothing, &[404, 409], handlers::remove_group),
        change(Method::PUT, "/v1/groups/{name}/members/{user}", "addMember", "Make a user a member; his sessions go on with the group", None, one::<GroupInfo>(), &[404], handlers::add_member),
        change(Method::DELETE, "/v1/groups/{name}/members/{user}", "removeMember", "Take a member out and end his sessions", None, one::<GroupInfo>(), &[404], handlers::remove_member),
        get("/v1/shares", "shares", "All shares", list::<Share>(), &[], handlers::shares),
        change(Method::POST, "/v1/shares", "addShare", "Add a share; a directory of the system or of Arden needs force", body::<Share>(), one::<Share>(), &[400, 409], handlers::add_share),
        get("/v1/shares/{name}", "share", "One share", one::<Share>(), &[404], handlers::share),
        change(Method::PATCH, "/v1/shares/{name}", "changeShare", "Change a share; absent fields stay. What clients have open becomes what the share allows by then", body::<ShareChange>(), one::<Share>(), &[400, 404, 409], handlers::change_share),
        change(Method::DELETE, "/v1/shares/{name}", "removeShare", "Remove a share and disconnect its users; the files stay", None, Nothing, &[404], handlers::remove_share),
        get("/v1/sessions", "sessions", "Authenticated sessions", list::<SessionInfo>(), &[], handlers::sessions),
        change(Method::DELETE, "/v1/sessions/{id}", "closeSession", "End a session and everything it has open", None, Nothing, &[400, 404], handlers::close_session),
        get("/v1/opens", "opens", "Open files and directories", list::<OpenInfo>(), &[], handlers::opens),
        change(Method::DELETE, "/v1/opens/{id}", "closeOpen", "Close an open against its client's will", None, Nothing, &[400, 404], handlers::close_open),
        get("/v1/disks", "disks", "Block devices, and the disks of known pools", list::<DiskInfo>(), &[], pools::disks),
        change(Method::POST, "/v1/disks/look", "lookAtDisks", "What is known of certain files or block devices", body::<DiskQuery>(), list::<DiskInfo>(), &[400], pools::look_at_disks),
        change(Method::PATCH, "/v1/disks", "labelDisk", "Set model, serial or media of a disk by hand", body::<DiskLabel>(), one::<DiskInfo>(), &[400], pools::label_disk),
        change(Method::POST, "/v1/disks/wipe", "wipeDisk", "Take a disk's label away", body::<DiskWipe>(), Nothing, &[400, 409], pools::wipe_disk),
        get("/v1/pools", "pools", "All pools with their disks and spaces", list::<PoolInfo>(), &[], pools::pools),
        change(Method::POST, "/v1/pools", "createPool", "Make a pool of disks", body::<NewPool>(), one::<PoolInfo>(), &[400, 409], pools::create_pool),
        change(Method::PUT, "/v1/pools", "importPool", "Find a pool by the labels of its disks", body::<PoolImport>(), one::<PoolInfo>(), &[400, 404, 409], pools::import_pool),
        get("/v1/pools/{name}", "pool", "One pool", one::<PoolInfo>(), &[404], pools::pool),
        change(Method::PATCH, "/v1/pools/{name}", "changePool", "Rename a pool, or change its grace time or warning levels", body::<PoolChange>(), one::<PoolInfo>(), &[400, 404, 409], pools::change_pool),
        change(Method::DELETE, "/v1/pools/{name}", "forgetPool", "Close a pool and forget it; its disks stay as they are", None, Nothing, &[404, 409], pools::forget_pool),
        change(Method::POST, "/v1/pools/{name}/disks", "addDisk", "Add a disk", body::<AddDisk>(), one::<PoolInfo>(), &[400, 404, 409], pools::add_disk),
        change(Method::PATCH, "/v1/pools/{name}/disks/{disk}", "changeDisk", "Mark a disk for emptying, or keep it", body::<PoolDiskChange>(), one::<PoolInfo>(), &[400, 404, 409], pools::change_disk),
        change(Method::POST, "/v1/pools/{name}/jobs", "startJob", "Scrub, repair, rebalance, or empty a disk and take it out", body::<NewJob>(), one::<JobInfo>(), &[400, 404, 409], pools::start_job),
        get("/v1/jobs", "jobs", "Long work, finished work of late included", list::<JobInfo>(), &[], pools::jobs),
        get("/v1/jobs/{id}", "job", "One job", one::<JobInfo>(), &[400, 404], pools::job),
        change(Method::PATCH, "/v1/jobs/{id}", "changeJob", "Pause or go on; it holds for all background work of the pool", body::<JobChange>(), one::<JobInfo>(), &[400, 404, 409], pools::change_job),
        change(Method::DELETE, "/v1/jobs/{id}", "cancelJob", "Stop a job for good", None, Nothing, &[400, 404, 409], pools::cancel_job),
        get("/v1/spaces", "spaces", "The spaces of all open pools", list::<SpaceInfo>(), &[], pools::spaces),
        change(Method::POST, "/v1/pools/{name}/spaces", "createSpace", "Cut a space from a pool", body::<NewSpace>(), one::<SpaceInfo>(), &[400, 404, 409], pools::create_space),
        get("/v1/pools/{name}/spaces/{space}", "space", "One space", one::<SpaceInfo>(), &[404], pools::space),
        get("/v1/pools/{name}/spaces/{space}/map", "spaceMap", "On which slabs a space lies", list::<GroupMap>(), &[404], pools::space_map),
        change(Method::PATCH, "/v1/pools/{name}/spaces/{space}", "growSpace", "Make a space larger, in use", body::<SpaceChange>(), one::<SpaceInfo>(), &[400, 404, 409], pools::grow_space),
        change(Method::DELETE, "/v1/pools/{name}/spaces/{space}", "deleteSpace", "Delete a space and what is on it, unless that is a volume", None, Nothing, &[404, 409], pools::delete_space),
        change(Method::POST, "/v1/pools/{name}/spaces/{space}/delete", "discardSpace", "Delete a space and what is on it; a volume needs force", body::<SpaceDelete>(), Nothing, &[400, 404, 409], pools::discard_space),
        change(Method::PUT, "/v1/pools/{name}/spaces/{space}/export", "exportSpace", "Serve a space as an NBD disk, after restarts too", body::<NewExport>(), one::<SpaceInfo>(), &[400, 404, 409], pools::export_space),
        change(Method::DELETE, "/v1/pools/{name}/spaces/{space}/export", "unexportSpace", "End an export and hang up on its clients", None, one::<SpaceInfo>(), &[404], pools::unexport_space),
        get("/v1/cluster", "cluster", "The cluster with its nodes, and who owns each pool", one::<ClusterInfo>(), &[409], cluster::cluster),
        change(Method::POST, "/v1/cluster", "foundCluster", "Have this daemon begin anew as the first node of a cluster, with its users, shares and pools", body::<FoundCluster>(), Nothing, &[400, 409], cluster::found),
        change(Method::POST, "/v1/cluster/tokens", "newToken", "Make a token with which one node joins within an hour", None, one::<ClusterToken>(), &[409], cluster::new_token),
        change(Method::PUT, "/v1/cluster/client-moves", "moveClient", "Tell a client by the witness service to go to another node", body::<ClientMove>(), one::<ClientMove>(), &[400, 404, 409], cluster::move_client),
        change(Method::PUT, "/v1/cluster/level", "raiseLevel", "Raise the cluster's feature level to the newest that all nodes know", None, one::<FeatureLevel>(), &[409], cluster::raise_level),
        get("/v1/cluster/links", "nodeLinks", "Connect to every other node, and say how that went", list::<NodeLink>(), &[409], cluster::check_nodes),
        change(Method::PATCH, "/v1/cluster/nodes/{name}", "changeNode", "Let a node give up its pools, or own pools again", body::<NodeChange>(), one::<NodeInfo>(), &[400, 404, 409], cluster::change_node),
        change(Method::DELETE, "/v1/cluster/nodes/{name}", "removeNode", "Take a node out of the cluster that is not alive and cannot write to disks any more", None, Nothing, &[404, 409], cluster::remove_node),
        change(Method::PUT, "/v1/pools/{name}/owner", "movePool", "Hand a pool over to another node of the cluster", body::<PoolMove>(), one::<PoolOwnership>(), &[400, 404, 409], cluster::move_pool),
        change(Method::PUT, "/v1/pools/{name}/take", "takePool", "Take a pool over without a fence: an administrator is sure that no holder writes any more", body::<PoolTake>(), one::<PoolOwnership>(), &[400, 404, 409], cluster::take_pool),
        change(Method::PUT, "/v1/pools/{name}/fence", "setFence", "Say how nodes that may still write to a pool are cut off", body::<PoolFence>(), one::<PoolOwnership>(), &[400, 404, 409], cluster::set_fence),
        get("/v1/addresses", "addresses", "Floating addresses, and the node that has each now", list::<AddressInfo>(), &[409], address::addresses),
        change(Method::POST, "/v1/addresses", "addAddress", "Add an address that the owner of a pool has", body::<NewAddress>(), one::<AddressInfo>(), &[400, 404, 409], address::add_address),
        change(Method::DELETE, "/v1/addresses/{address}", "removeAddress", "Remove a floating address from the cluster and from the node that has it", None, Nothing, &[404, 409], address::remove_address),
        get("/v1/volumes", "volumes", "Volumes that this daemon opens", list::<VolumeInfo>(), &[], volumes::volumes),
        change(Method::POST, "/v1/volumes", "createVolume", "Format a space or a file", body::<NewVolume>(), one::<VolumeInfo>(), &[400, 404, 409], volumes::create_volume),
        change(Method::PUT, "/v1/volumes", "attachVolume", "Open a volume that exists", body::<VolumeRecord>(), one::<VolumeInfo>(), &[400, 404, 409], volumes::attach_volume),
        get("/v1/volumes/{name}", "volume", "One volume", one::<VolumeInfo>(), &[404], volumes::volume),
        change(Method::DELETE, "/v1/volumes/{name}", "forgetVolume", "Close a volume and forget it; what is on it stays", None, Nothing, &[404, 409], volumes::forget_volume),
        change(Method::PUT, "/v1/volumes/{name}/check", "checkVolume", "Look at every structure and count", body::<NewCheck>(), one::<VolumeCheck>(), &[400, 404, 409], volumes::check_volume),
        change(Method::PATCH, "/v1/volumes/{name}", "changeVolume", "Grow to the device's new size in use, or say when reading moves times", body::<VolumeChange>(), one::<VolumeInfo>(), &[400, 404, 409], volumes::change_volume),
        change(Method::POST, "/v1/volumes/{name}/delete", "deleteVolume", "Forget a volume and overwrite what leads to its content", body::<VolumeDelete>(), Nothing, &[400, 404, 409], volumes::delete_volume),
        change(Method::PUT, "/v1/volumes/{name}/repair", "repairVolume", "Mend what is safe to mend, or say what that would be", body::<NewRepair>(), one::<VolumeRepair>(), &[400, 404, 409], volumes::repair_volume),
        change(Method::PUT, "/v1/volumes/{name}/scrub", "startVolumeScrub", "Begin to read every copy of everything and heal it", body::<NewScrub>(), one::<VolumeScrub>(), &[400, 404, 409], volumes::start_scrub),
        get("/v1/volumes/{name}/scrub", "volumeScrub", "How far the scrub is, or what the last one found", one::<VolumeScrub>(), &[404], volumes::scrub),
        change(Method::DELETE, "/v1/volumes/{name}/scrub", "stopVolumeScrub", "End the scrub", None, Nothing, &[404], volumes::stop_scrub),
        get("/v1/volumes/{name}/quotas", "quotas", "What users and folders of a volume have and may have", list::<QuotaInfo>(), &[404], volumes::quotas),
        change(Method::PUT, "/v1/volumes/{name}/quotas", "setQuota", "Limit a user, a folder, or all users without a limit of their own", body::<NewQuota>(), one::<QuotaInfo>(), &[400, 404, 409], volumes::set_quota),
        change(Method::POST, "/v1/volumes/{name}/quotas/remove", "removeQuota", "Take a limit away", body::<QuotaSubject>(), Nothing, &[400, 404], volumes::remove_quota),
        change(Method::POST, "/v1/volumes/{name}/integrity/look", "lookAtIntegrity", "How reads of a file or directory, and of its streams, are checked", body::<IntegrityQuery>(), list::<IntegrityInfo>(), &[400, 404, 409], volumes::integrity),
        change(Method::PUT, "/v1/volumes/{name}/integrity", "setIntegrity", "Say how reads of a file, a directory or a tree are checked", body::<NewIntegrity>(), one::<IntegrityInfo>(), &[400, 404, 409], volumes::set_integrity),
        get("/v1/volumes/{name}/snapshots", "snapshots", "Snapshots of a volume, oldest first", list::<SnapshotInfo>(), &[404, 409], snapshots::snapshots),
        change(Method::POST, "/v1/volumes/{name}/snapshots", "createSnapshot", "Keep a volume as it is now", body::<NewSnapshot>(), one::<SnapshotInfo>(), &[400, 404, 409], snapshots::create_snapshot),
        change(Method::DELETE, "/v1/volumes/{name}/snapshots/{time}", "deleteSnapshot", "Take a snapshot away and free what only it held", None, Nothing, &[404, 409], snapshots::delete_snapshot),
        change(Method::POST, "/v1/volumes/{name}/stream-snapshots/look", "lookAtStreamSnapshots", "Snapshots of the streams of a file, oldest first", body::<StreamSnapshotQuery>(), list::<StreamSnapshotInfo>(), &[400, 404, 409], snapshots::stream_snapshots),
        get("/v1/volumes/{name}/snapshot-schedules", "snapshotSchedules", "When snapshots are made, and how many are kept", list::<SnapshotSchedule>(), &[404], snapshots::schedules),
        change(Method::PUT, "/v1/volumes/{name}/snapshot-schedules", "setSnapshotSchedule", "Add or change a schedule", body::<SnapshotSchedule>(), one::<SnapshotSchedule>(), &[400, 404], snapshots::set_schedule),
        change(Method::DELETE, "/v1/volumes/{name}/snapshot-schedules/{schedule}", "removeSnapshotSchedule", "Make no more of these; those that there are stay", None, Nothing, &[404], snapshots::remove_schedule),
        get("/v1/metrics", "metrics", "Metrics as Prometheus text", Text, &[], handlers::metrics_text),
        get("/metrics", "prometheus", "The same where Prometheus looks for it", Text, &[], handlers::metrics_text),
        get("/v1/openapi.json", "openapi", "This document", Document, &[], handlers::document),
    ]
}
