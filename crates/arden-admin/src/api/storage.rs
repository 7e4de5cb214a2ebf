//! Handlers of disks, pools, spaces and jobs: they decode the request and call [`Storage`](crate::storage::Storage) on
//! a thread that may wait for disks.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::Response,
};

use super::{Api, Body, cluster::with_owners, elsewhere::own_job, handlers::created};
use crate::{
    error::{AdminError, Result},
    storage::{
        AddDisk, DiskInfo, DiskLabel, DiskQuery, DiskWipe, GroupMap, JobChange, JobInfo, NewExport, NewJob, NewPool,
        NewSpace, PoolChange, PoolDiskChange, PoolImport, PoolInfo, SpaceChange, SpaceDelete, SpaceInfo,
    },
};

type Ctx = State<Arc<Api>>;
type Answer<T> = Result<Json<T>>;
type Two = Path<(String, String)>;

fn number<T: std::str::FromStr>(what: &str, text: &str) -> Result<T> {
    let hint = "lists show the numbers";
    text.parse().map_err(|_| AdminError::invalid(format!("{text:?} is not the number of a {what}"), hint))
}

pub(super) async fn disks(State(api): Ctx) -> Answer<Vec<DiskInfo>> {
    api.blocking(|api| api.storage.disks(&DiskQuery::default())).await.map(Json)
}

pub(super) async fn look_at_disks(State(api): Ctx, Body(query): Body<DiskQuery>) -> Answer<Vec<DiskInfo>> {
    api.blocking(move |api| api.storage.disks(&query)).await.map(Json)
}

pub(super) async fn label_disk(State(api): Ctx, Body(label): Body<DiskLabel>) -> Answer<DiskInfo> {
    api.blocking(move |api| api.storage.label_disk(&label)).await.map(Json)
}

pub(super) async fn wipe_disk(State(api): Ctx, Body(wipe): Body<DiskWipe>) -> Result<StatusCode> {
    let disk = wipe.disk.display().to_string();
    api.blocking(move |api| api.storage.wipe_disk(&wipe)).await?;
    tracing::info!(disk, "disk wiped");
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn pools(State(api): Ctx) -> Answer<Vec<PoolInfo>> {
    let all = |api: &Api| {
        let mut pools = api.storage.pools()?;
        with_owners(api, &mut pools);
        Ok(pools)
    };
    api.blocking(all).await.map(Json)
}

pub(super) async fn pool(State(api): Ctx, Path(name): Path<String>) -> Answer<PoolInfo> {
    let one = move |api: &Api| {
        let mut pool = api.storage.pool(&name)?;
        with_owners(api, std::slice::from_mut(&mut pool));
        Ok(pool)
    };
    api.blocking(one).await.map(Json)
}

pub(super) async fn create_pool(State(api): Ctx, Body(new): Body<NewPool>) -> Result<Response> {
    let pool = api.blocking(move |api| api.storage.create_pool(&new)).await?;
    tracing::info!(pool = pool.name, disks = pool.disks.len(), "pool created");
    Ok(created(pool))
}

pub(super) async fn import_pool(State(api): Ctx, Body(import): Body<PoolImport>) -> Answer<PoolInfo> {
    let pool = api.blocking(move |api| api.storage.import_pool(&import)).await?;
    tracing::info!(pool = pool.name, "pool imported");
    Ok(Json(pool))
}

pub(super) async fn change_pool(
    State(api): Ctx,
    Path(name): Path<String>,
    Body(change): Body<PoolChange>,
) -> Answer<PoolInfo> {
    api.blocking(move |api| api.storage.change_pool(&name, &change)).await.map(Json)
}

pub(super) async fn forget_pool(State(api): Ctx, Path(name): Path<String>) -> Result<StatusCode> {
    let pool = name.clone();
    api.blocking(move |api| api.storage.forget_pool(&name)).await?;
    tracing::info!(pool, "pool closed and forgotten");
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn add_disk(State(api): Ctx, Path(name): Path<String>, Body(add): Body<AddDisk>) -> Result<Response> {
    let disk = add.disk.display().to_string();
    let pool = api.blocking(move |api| api.storage.add_disk(&name, &add)).await?;
    tracing::info!(pool = pool.name, disk, "disk added");
    Ok(created(pool))
}

pub(super) async fn change_disk(
    State(api): Ctx,
    Path((name, disk)): Two,
    Body(change): Body<PoolDiskChange>,
) -> Answer<PoolInfo> {
    let disk = number("disk", &disk)?;
    api.blocking(move |api| api.storage.change_disk(&name, disk, &change)).await.map(Json)
}

pub(super) async fn start_job(State(api): Ctx, Path(name): Path<String>, Body(new): Body<NewJob>) -> Result<Response> {
    let job = api.blocking(move |api| api.storage.start_job(&name, &new)).await?;
    tracing::info!(job = job.id, pool = job.pool, kind = %job.kind, "job started");
    Ok(created(job))
}

pub(super) async fn jobs(State(api): Ctx) -> Answer<Vec<JobInfo>> {
    api.blocking(|api| api.storage.jobs()).await.map(Json)
}

pub(super) async fn job(State(api): Ctx, Path(id): Path<String>) -> Answer<JobInfo> {
    let id = own_job(&api, number("job", &id)?);
    api.blocking(move |api| api.storage.job(id)).await.map(Json)
}

pub(super) async fn change_job(
    State(api): Ctx,
    Path(id): Path<String>,
    Body(change): Body<JobChange>,
) -> Answer<JobInfo> {
    let id = own_job(&api, number("job", &id)?);
    api.blocking(move |api| api.storage.change_job(id, &change)).await.map(Json)
}

pub(super) async fn cancel_job(State(api): Ctx, Path(id): Path<String>) -> Result<StatusCode> {
    let id = own_job(&api, number("job", &id)?);
    api.blocking(move |api| api.storage.cancel_job(id)).await?;
    tracing::info!(job = id, "job cancelled");
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn spaces(State(api): Ctx) -> Answer<Vec<SpaceInfo>> {
    api.blocking(|api| api.storage.spaces()).await.map(Json)
}

pub(super) async fn create_space(
    State(api): Ctx,
    Path(pool): Path<String>,
    Body(new): Body<NewSpace>,
) -> Result<Response> {
    let space = api.blocking(move |api| api.storage.create_space(&pool, &new)).await?;
    tracing::info!(pool = space.pool, space = space.name, "space created");
    Ok(created(space))
}

pub(super) async fn space(State(api): Ctx, Path((pool, name)): Two) -> Answer<SpaceInfo> {
    api.blocking(move |api| api.storage.space(&pool, &name)).await.map(Json)
}

pub(super) async fn space_map(State(api): Ctx, Path((pool, name)): Two) -> Answer<Vec<GroupMap>> {
    api.blocking(move |api| api.storage.space_map(&pool, &name)).await.map(Json)
}

pub(super) async fn grow_space(
    State(api): Ctx,
    Path((pool, name)): Two,
    Body(change): Body<SpaceChange>,
) -> Answer<SpaceInfo> {
    api.blocking(move |api| api.storage.grow_space(&pool, &name, &change)).await.map(Json)
}

pub(super) async fn delete_space(state: Ctx, names: Two) -> Result<StatusCode> {
    discard_space(state, names, Body(SpaceDelete::default())).await
}

pub(super) async fn discard_space(
    State(api): Ctx,
    Path((pool, name)): Two,
    Body(delete): Body<SpaceDelete>,
) -> Result<StatusCode> {
    let space = name.clone();
    api.blocking(move |api| api.storage.delete_space(&pool, &name, &delete)).await?;
    tracing::info!(space, "space deleted");
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn export_space(
    State(api): Ctx,
    Path((pool, name)): Two,
    Body(new): Body<NewExport>,
) -> Answer<SpaceInfo> {
    let space = api.blocking(move |api| api.storage.export_space(&pool, &name, &new)).await?;
    tracing::info!(space = space.name, nbd = space.nbd, "space exported");
    Ok(Json(space))
}

pub(super) async fn unexport_space(State(api): Ctx, Path((pool, name)): Two) -> Answer<SpaceInfo> {
    let space = api.blocking(move |api| api.storage.unexport_space(&pool, &name)).await?;
    tracing::info!(space = space.name, "export ended");
    Ok(Json(space))
}
