//! Handlers of volumes: take the request apart and ask `VolumeAdmin`, on a thread that may wait for disks.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::Response,
    routing::{MethodFilter, MethodRouter, on},
};

use super::{Api, Body, handlers::created};
use crate::{
    error::Result,
    volume::{NewCheck, NewVolume, VolumeCheck, VolumeInfo, VolumeRecord},
};

type Ctx = State<Arc<Api>>;
type Answer<T> = Result<Json<T>>;

pub(super) fn for_operation(operation: &str, method: MethodFilter) -> Option<MethodRouter<Arc<Api>>> {
    Some(match operation {
        "volumes" => on(method, volumes),
        "createVolume" => on(method, create_volume),
        "attachVolume" => on(method, attach_volume),
        "volume" => on(method, volume),
        "forgetVolume" => on(method, forget_volume),
        "checkVolume" => on(method, check_volume),
        _ => return None,
    })
}

async fn volumes(State(api): Ctx) -> Answer<Vec<VolumeInfo>> {
    api.blocking(|api| api.volumes.volumes()).await.map(Json)
}

async fn volume(State(api): Ctx, Path(name): Path<String>) -> Answer<VolumeInfo> {
    api.blocking(move |api| api.volumes.volume(&name)).await.map(Json)
}

async fn create_volume(State(api): Ctx, Body(new): Body<NewVolume>) -> Result<Response> {
    let volume = api.blocking(move |api| api.volumes.create_volume(&new)).await?;
    tracing::info!(volume = volume.name, device = volume.device, "volume created");
    Ok(created(volume))
}

async fn attach_volume(State(api): Ctx, Body(record): Body<VolumeRecord>) -> Answer<VolumeInfo> {
    let volume = api.blocking(move |api| api.volumes.attach_volume(&record)).await?;
    tracing::info!(volume = volume.name, device = volume.device, "volume attached");
    Ok(Json(volume))
}

async fn forget_volume(State(api): Ctx, Path(name): Path<String>) -> Result<StatusCode> {
    let volume = name.clone();
    api.blocking(move |api| api.volumes.forget_volume(&name)).await?;
    tracing::info!(volume, "volume closed and forgotten");
    Ok(StatusCode::NO_CONTENT)
}

async fn check_volume(State(api): Ctx, Path(name): Path<String>, Body(check): Body<NewCheck>) -> Answer<VolumeCheck> {
    api.blocking(move |api| api.volumes.check_volume(&name, &check)).await.map(Json)
}
