//! Handlers of floating addresses, and what all nodes say of them.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::Response,
};

use super::{Api, Body, handlers::created};
use crate::{
    address::{self, AddressAtNode, AddressInfo, AddressRecord, NewAddress},
    cluster::{Feature, NodeAnswer, NodeQuestion},
    error::Result,
};

type Ctx = State<Arc<Api>>;

/// What every node that answers says of the addresses of its pools, with the node's name.
fn said(api: &Api) -> Vec<(String, AddressAtNode)> {
    let here = (api.cluster.node_name(), NodeQuestion::Addresses.answer(&*api.control));
    let answers = std::iter::once(here).chain(api.cluster.ask_nodes(&NodeQuestion::Addresses));
    let of = |(node, answer)| match answer {
        NodeAnswer::Addresses(all) => all.into_iter().map(|a| (String::clone(&node), a)).collect(),
        _ => Vec::new(),
    };
    answers.flat_map(of).collect()
}

fn shown(api: &Api, records: &[AddressRecord]) -> Vec<AddressInfo> {
    let (snapshot, said, ownerships) = (api.state.snapshot(), said(api), api.cluster.ownerships());
    let show = |record: &AddressRecord| {
        let pool = snapshot.pool_of_address(record);
        let owner = ownerships.iter().find(|o| o.pool == pool).map_or("", |o| o.owner.as_str());
        address::shown(record, pool.clone(), owner, &said)
    };
    records.iter().map(show).collect()
}

pub(super) async fn addresses(State(api): Ctx) -> Result<Json<Vec<AddressInfo>>> {
    api.blocking(|api| {
        api.cluster.check_is_cluster()?;
        let records: Vec<AddressRecord> = api.state.snapshot().addresses.values().cloned().collect();
        Ok(Json(shown(api, &records)))
    })
    .await
}

pub(super) async fn add_address(State(api): Ctx, Body(new): Body<NewAddress>) -> Result<Response> {
    let added = api.blocking(move |api| {
        api.cluster.check_is_cluster()?;
        let (ip, _) = address::parse(&new.address)?;
        let cluster = api.cluster.cluster()?;
        cluster.check_has(Feature::FloatingAddresses)?;
        address::check_is_no_nodes(ip, &cluster.nodes)?;
        let record = api.state.change(|s| s.add_address(&new))?;
        api.control.addresses_changed();
        Ok(shown(api, &[record]))
    });
    let added = added.await?.remove(0);
    tracing::info!(address = added.address, interface = added.interface, pool = added.pool, "floating address added");
    Ok(created(added))
}

pub(super) async fn remove_address(State(api): Ctx, Path(text): Path<String>) -> Result<StatusCode> {
    let removed = text.clone();
    api.blocking(move |api| {
        api.cluster.check_is_cluster()?;
        let ip = address::key_of(&text)?;
        api.state.change(|s| s.remove_address(ip))?;
        api.control.addresses_changed();
        Ok(())
    })
    .await?;
    tracing::info!(address = removed, "floating address removed");
    Ok(StatusCode::NO_CONTENT)
}
