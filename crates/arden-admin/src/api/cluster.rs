//! Handlers of the cluster: they decode the request and call [`ClusterAdmin`](crate::cluster::ClusterAdmin) on a thread that may wait
//! for etcd.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::Response,
};

use super::{Api, Body, handlers::created};
use crate::{
    cluster::{
        ClientMove, ClusterInfo, Feature, FeatureLevel, FoundCluster, NodeChange, NodeInfo, NodeLink, PoolFence,
        PoolMove, PoolOwnership, PoolTake,
    },
    error::Result,
    storage::PoolInfo,
};

type Ctx = State<Arc<Api>>;
type Answer<T> = Result<Json<T>>;

/// Adds to each pool who owns it.
pub(super) fn with_owners(api: &Api, pools: &mut [PoolInfo]) {
    for ownership in api.cluster.ownerships() {
        if let Some(pool) = pools.iter_mut().find(|p| p.name == ownership.pool) {
            pool.ownership = Some(ownership);
        }
    }
}

pub(super) async fn cluster(State(api): Ctx) -> Answer<ClusterInfo> {
    api.blocking(|api| api.cluster.cluster()).await.map(Json)
}

/// The answer comes before the daemon begins anew.
pub(super) async fn found(State(api): Ctx, Body(new): Body<FoundCluster>) -> Result<StatusCode> {
    tracing::info!(cluster = new.name, node = new.node, "a cluster is to be made of this daemon");
    api.blocking(move |api| api.cluster.found(&new)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn new_token(State(api): Ctx) -> Result<Response> {
    let token = api.blocking(|api| api.cluster.new_token()).await?;
    tracing::info!(seconds = token.seconds, "token for a new node made");
    Ok(created(token))
}

pub(super) async fn raise_level(State(api): Ctx) -> Answer<FeatureLevel> {
    let raised = api.blocking(|api| api.cluster.raise_level()).await?;
    tracing::info!(level = raised.level, before = raised.before, "feature level of the cluster raised");
    Ok(Json(raised))
}

pub(super) async fn check_nodes(State(api): Ctx) -> Answer<Vec<NodeLink>> {
    api.blocking(|api| api.cluster.check_nodes()).await.map(Json)
}

pub(super) async fn change_node(
    State(api): Ctx,
    Path(name): Path<String>,
    Body(change): Body<NodeChange>,
) -> Answer<NodeInfo> {
    tracing::info!(node = name, drained = change.drained, "node is to be changed");
    api.blocking(move |api| api.cluster.change_node(&name, &change)).await.map(Json)
}

pub(super) async fn remove_node(State(api): Ctx, Path(name): Path<String>) -> Result<StatusCode> {
    let node = name.clone();
    api.blocking(move |api| api.cluster.remove_node(&name)).await?;
    tracing::info!(node, "node removed from the cluster");
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn move_pool(
    State(api): Ctx,
    Path(name): Path<String>,
    Body(to): Body<PoolMove>,
) -> Answer<PoolOwnership> {
    api.blocking(move |api| {
        api.cluster.check_is_cluster()?;
        tracing::info!(pool = name, to = to.to, "pool is to be moved");
        api.cluster.move_pool(&name, &to)
    })
    .await
    .map(Json)
}

pub(super) async fn move_client(State(api): Ctx, Body(order): Body<ClientMove>) -> Answer<ClientMove> {
    let order = api.blocking(move |api| api.cluster.move_client(&order)).await?;
    tracing::info!(client = order.client, to = order.to, "client is to be moved");
    Ok(Json(order))
}

pub(super) async fn take_pool(
    State(api): Ctx,
    Path(name): Path<String>,
    Body(take): Body<PoolTake>,
) -> Answer<PoolOwnership> {
    api.blocking(move |api| api.cluster.take_pool(&name, &take)).await.map(Json)
}

pub(super) async fn set_fence(
    State(api): Ctx,
    Path(name): Path<String>,
    Body(fence): Body<PoolFence>,
) -> Answer<PoolOwnership> {
    let set = move |api: &Api| {
        if fence.fence == "nvme" {
            api.cluster.cluster()?.check_has(Feature::NvmeFence)?;
        }
        api.cluster.set_fence(&name, &fence)
    };
    let owned = api.blocking(set).await?;
    tracing::info!(pool = owned.pool, fence = owned.fence, "fence of the pool changed");
    Ok(Json(owned))
}
