//! Handlers of snapshots and their schedules: they decode the request and call
//! [`SnapshotAdmin`](crate::snapshot::SnapshotAdmin) on a thread that may wait for disks.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::Response,
};

use super::{Api, Body, handlers::created};
use crate::{
    error::Result,
    snapshot::{NewSnapshot, SnapshotInfo, SnapshotSchedule, StreamSnapshotInfo, StreamSnapshotQuery},
};

type Ctx = State<Arc<Api>>;
type Answer<T> = Result<Json<T>>;

pub(super) async fn snapshots(State(api): Ctx, Path(volume): Path<String>) -> Answer<Vec<SnapshotInfo>> {
    api.blocking(move |api| api.volumes.snapshots(&volume)).await.map(Json)
}

pub(super) async fn create_snapshot(
    State(api): Ctx,
    Path(volume): Path<String>,
    Body(new): Body<NewSnapshot>,
) -> Result<Response> {
    let of = volume.clone();
    let snapshot = api.blocking(move |api| api.volumes.create_snapshot(&volume, &new)).await?;
    tracing::info!(volume = of, snapshot = snapshot.time, "snapshot made");
    Ok(created(snapshot))
}

pub(super) async fn delete_snapshot(
    State(api): Ctx,
    Path((volume, time)): Path<(String, String)>,
) -> Result<StatusCode> {
    let (of, snapshot) = (volume.clone(), time.clone());
    api.blocking(move |api| api.volumes.delete_snapshot(&volume, &time)).await?;
    tracing::info!(volume = of, snapshot, "snapshot deleted");
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn stream_snapshots(
    State(api): Ctx,
    Path(volume): Path<String>,
    Body(of): Body<StreamSnapshotQuery>,
) -> Answer<Vec<StreamSnapshotInfo>> {
    api.blocking(move |api| api.volumes.stream_snapshots(&volume, &of)).await.map(Json)
}

pub(super) async fn schedules(State(api): Ctx, Path(volume): Path<String>) -> Answer<Vec<SnapshotSchedule>> {
    api.blocking(move |api| api.volumes.schedules(&volume)).await.map(Json)
}

pub(super) async fn set_schedule(
    State(api): Ctx,
    Path(volume): Path<String>,
    Body(schedule): Body<SnapshotSchedule>,
) -> Answer<SnapshotSchedule> {
    api.blocking(move |api| api.volumes.set_schedule(&volume, &schedule)).await.map(Json)
}

pub(super) async fn remove_schedule(
    State(api): Ctx,
    Path((volume, name)): Path<(String, String)>,
) -> Result<StatusCode> {
    api.blocking(move |api| api.volumes.remove_schedule(&volume, &name)).await?;
    Ok(StatusCode::NO_CONTENT)
}
