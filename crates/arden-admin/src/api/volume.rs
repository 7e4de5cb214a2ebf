//! Handlers of volumes: they decode the request and call [`VolumeAdmin`](crate::volume::VolumeAdmin) on a thread that
//! may wait for disks.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::Response,
};

use super::{
    Api, Body,
    handlers::{created, tell_shares},
};
use crate::{
    error::{AdminError, Result},
    names::key,
    volume::{
        IntegrityInfo, IntegrityQuery, NewCheck, NewIntegrity, NewQuota, NewRepair, NewScrub, NewVolume, QuotaInfo,
        QuotaSubject, VolumeChange, VolumeCheck, VolumeDelete, VolumeInfo, VolumeRecord, VolumeRepair, VolumeScrub,
    },
};

type Ctx = State<Arc<Api>>;
type Answer<T> = Result<Json<T>>;

pub(super) async fn volumes(State(api): Ctx) -> Answer<Vec<VolumeInfo>> {
    api.blocking(|api| api.volumes.volumes()).await.map(Json)
}

pub(super) async fn volume(State(api): Ctx, Path(name): Path<String>) -> Answer<VolumeInfo> {
    api.blocking(move |api| api.volumes.volume(&name)).await.map(Json)
}

pub(super) async fn create_volume(State(api): Ctx, Body(new): Body<NewVolume>) -> Result<Response> {
    let volume = api.blocking(move |api| api.volumes.create_volume(&new)).await?;
    tracing::info!(volume = volume.name, device = volume.device, "volume created");
    Ok(created(volume))
}

pub(super) async fn attach_volume(State(api): Ctx, Body(record): Body<VolumeRecord>) -> Answer<VolumeInfo> {
    let volume = api.blocking(move |api| api.volumes.attach_volume(&record)).await?;
    tracing::info!(volume = volume.name, device = volume.device, "volume attached");
    Ok(Json(volume))
}

pub(super) async fn forget_volume(State(api): Ctx, Path(name): Path<String>) -> Result<StatusCode> {
    let volume = name.clone();
    api.blocking(move |api| api.volumes.forget_volume(&name)).await?;
    tracing::info!(volume, "volume closed and forgotten");
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn check_volume(
    State(api): Ctx,
    Path(name): Path<String>,
    Body(check): Body<NewCheck>,
) -> Answer<VolumeCheck> {
    api.blocking(move |api| api.volumes.check_volume(&name, &check)).await.map(Json)
}

pub(super) async fn change_volume(
    State(api): Ctx,
    Path(name): Path<String>,
    Body(change): Body<VolumeChange>,
) -> Answer<VolumeInfo> {
    let volume = api.blocking(move |api| api.volumes.change_volume(&name, &change)).await?;
    tracing::info!(volume = volume.name, bytes = volume.total_bytes, "volume changed");
    Ok(Json(volume))
}

pub(super) async fn delete_volume(
    State(api): Ctx,
    Path(name): Path<String>,
    Body(delete): Body<VolumeDelete>,
) -> Result<StatusCode> {
    if delete.force {
        // The volume's shares are removed first, which disconnects their clients.
        let on_it = name.clone();
        api.blocking(move |api| {
            api.volumes.volume(&on_it)?;
            api.state.change(|s| {
                s.shares.retain(|_, share| share.volume.as_ref().is_none_or(|v| key(v) != key(&on_it)));
                Ok(())
            })
        })
        .await?;
        tell_shares(&api).await?;
    }
    let volume = name.clone();
    api.blocking(move |api| api.volumes.delete_volume(&name)).await?;
    tracing::warn!(volume, "volume deleted");
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn repair_volume(
    State(api): Ctx,
    Path(name): Path<String>,
    Body(repair): Body<NewRepair>,
) -> Answer<VolumeRepair> {
    let volume = name.clone();
    let dry_run = repair.dry_run;
    let report = api.blocking(move |api| api.volumes.repair_volume(&name, &repair)).await?;
    if !dry_run {
        report.done.iter().for_each(|what| tracing::warn!(volume, "repaired: {what}"));
    }
    Ok(Json(report))
}

pub(super) async fn start_scrub(
    State(api): Ctx,
    Path(name): Path<String>,
    Body(scrub): Body<NewScrub>,
) -> Answer<VolumeScrub> {
    api.blocking(move |api| api.volumes.start_scrub(&name, &scrub)).await.map(Json)
}

pub(super) async fn scrub(State(api): Ctx, Path(name): Path<String>) -> Answer<VolumeScrub> {
    api.volumes.scrub(&name).map(Json)
}

pub(super) async fn stop_scrub(State(api): Ctx, Path(name): Path<String>) -> Result<StatusCode> {
    api.blocking(move |api| api.volumes.stop_scrub(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn quotas(State(api): Ctx, Path(name): Path<String>) -> Answer<Vec<QuotaInfo>> {
    api.blocking(move |api| api.volumes.quotas(&name)).await.map(Json)
}

pub(super) async fn set_quota(
    State(api): Ctx,
    Path(name): Path<String>,
    Body(quota): Body<NewQuota>,
) -> Answer<QuotaInfo> {
    let volume = name.clone();
    if let (Some(soft), Some(hard)) = (quota.soft_bytes, quota.hard_bytes)
        && soft > hard
    {
        let hint = "the soft limit warns before the hard one is reached: give it less";
        return Err(AdminError::invalid("the soft limit is above the hard one", hint));
    }
    let set = api.blocking(move |api| api.volumes.set_quota(&name, &quota)).await?;
    let (soft_bytes, hard_bytes) = (set.soft_bytes, set.hard_bytes);
    tracing::info!(volume, of = set.name, soft_bytes, hard_bytes, "quota set");
    Ok(Json(set))
}

pub(super) async fn integrity(
    State(api): Ctx,
    Path(name): Path<String>,
    Body(of): Body<IntegrityQuery>,
) -> Answer<Vec<IntegrityInfo>> {
    api.blocking(move |api| api.volumes.integrity(&name, &of)).await.map(Json)
}

pub(super) async fn set_integrity(
    State(api): Ctx,
    Path(name): Path<String>,
    Body(new): Body<NewIntegrity>,
) -> Answer<IntegrityInfo> {
    let volume = name.clone();
    let set = api.blocking(move |api| api.volumes.set_integrity(&name, &new)).await?;
    tracing::info!(volume, path = set.path, state = ?set.state, changed = set.changed, "integrity set");
    Ok(Json(set))
}

pub(super) async fn remove_quota(
    State(api): Ctx,
    Path(name): Path<String>,
    Body(of): Body<QuotaSubject>,
) -> Result<StatusCode> {
    let volume = name.clone();
    let what = of.clone();
    api.blocking(move |api| api.volumes.remove_quota(&name, &of)).await?;
    tracing::info!(volume, user = what.user, folder = what.folder, "quota removed");
    Ok(StatusCode::NO_CONTENT)
}
