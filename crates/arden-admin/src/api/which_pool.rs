//! Which pools of a cluster have a space of a name, as their owners say it. A pool without an answer is a doubt, not a no.

use std::sync::Arc;

use axum::http::Method;

use super::Api;
use crate::{
    client::segment,
    cluster::{NodeRequest, PoolKey},
    error::{AdminError, ErrorKind, Result},
    storage::PoolInfo,
};

/// The pools with a space of a name, and why that is not known of others.
pub(super) struct Having {
    pub pools: Vec<String>,
    doubts: Vec<String>,
}

impl Having {
    /// Asks the owner of each pool.
    pub(super) async fn of(api: &Arc<Api>, space: &str) -> Having {
        let names: Vec<String> = api.state.snapshot().pools.values().map(|pool| pool.name.clone()).collect();
        let (mut pools, mut doubts) = (Vec::new(), Vec::new());
        for name in names {
            match pool_at_owner(api, &name).await {
                Ok(pool) if pool.state != "open" => doubts.push(format!("pool {name:?} is closed: {}", pool.reason)),
                Ok(pool) if pool.spaces.iter().any(|s| s.name == space) => pools.push(name),
                Ok(_) => {}
                Err(e) => doubts.push(format!("pool {name:?}: {}", e.error)),
            }
        }
        Having { pools, doubts }
    }

    /// The only pool; None, when no pool has such a space.
    ///
    /// # Errors
    /// Conflict, when several pools have one, or others than the one that was found may have one.
    pub(super) fn only(mut self, space: &str) -> Result<Option<String>> {
        if self.pools.len() > 1 {
            return Err(AdminError::several_pools(space, &self.pools));
        }
        let (pool, doubts) = (self.pools.pop(), self.doubts.join("; "));
        let error = match &pool {
            _ if doubts.is_empty() => return Ok(pool),
            Some(pool) => format!("pool {pool:?} has a space {space:?}, and another pool may have one: {doubts}"),
            None => format!("no space {space:?} was found, but not every pool is open: {doubts}"),
        };
        Err(AdminError::new(ErrorKind::Conflict, error, "say which with --pool"))
    }
}

async fn pool_at_owner(api: &Arc<Api>, name: &str) -> Result<PoolInfo> {
    let name = name.to_owned();
    let ask = move |api: &Api| {
        let Some(node) = api.cluster.owner_elsewhere(PoolKey::Name(&name)) else { return api.storage.pool(&name) };
        let path = format!("/v1/pools/{}", segment(&name));
        let request = NodeRequest { method: Method::GET.to_string(), path, body: String::new() };
        let response = api.cluster.handled_by(&node, &request)?;
        serde_json::from_str(&response.body).map_err(|_| {
            let error = format!("node {} answered {}", node.name, response.status);
            AdminError::failed(error, "see its log")
        })
    };
    api.blocking(ask).await
}
