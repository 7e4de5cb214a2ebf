//! A change that is answered is in force at every node of the cluster: the next command, and the next client, may come by any of them.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    http::Method,
    middleware::Next,
    response::Response,
};
use tokio::time::timeout;

use super::{Api, elsewhere::FromNode};
use crate::{
    cluster::{NodeAnswer, NodeQuestion},
    error::Result,
};

/// An answer waits so long for other nodes. One that is slower has its copy of the state and its watch of etcd, and comes to know by them.
const CATCH_UP_WAIT: Duration = Duration::from_secs(5);

/// The state is read again so long after it could not be.
const READ_AGAIN: Duration = Duration::from_secs(1);

impl Api {
    /// Has what other nodes change come into force here, for as long as there is the API.
    pub fn follow(self: &Arc<Api>) {
        self.follow_with(|api| async move { api.follower.catch_up_with_accounts().await.map(drop) });
        self.follow_with(|api| async move { api.follower.catch_up().await });
    }

    /// Catches up whenever the state has changed, and each second while that fails.
    fn follow_with<F: Future<Output = Result<()>> + Send>(
        self: &Arc<Api>,
        catch_up: impl Fn(Arc<Api>) -> F + Send + 'static,
    ) {
        let (api, mut changes) = (Arc::downgrade(self), self.state.watch());
        changes.mark_changed();
        tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                let Some(api) = api.upgrade() else { return };
                if let Err(e) = catch_up(api).await {
                    tracing::error!("changes of the state are not read: {e}");
                    tokio::time::sleep(READ_AGAIN).await;
                    changes.mark_changed();
                }
            }
        });
    }

    /// Returns when what any node has changed before is in force here.
    ///
    /// # Errors
    /// Conflict without a cluster or a lease; failed, when etcd does not answer.
    pub async fn catch_up(self: &Arc<Api>) -> Result<()> {
        // A watch that is late keeps nobody from the state.
        let (pools, state) = tokio::join!(self.blocking(|api| api.cluster.hear_of_pools()), self.follower.catch_up());
        state.and(pools)
    }
}

/// Answers a request when what it changed is in force at all nodes. One that was passed on is answered to the node that waits for them.
pub(super) async fn at_all_nodes(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let may_change = request.method() != Method::GET && request.extensions().get::<FromNode>().is_none();
    let newest = || *api.state.watch().borrow();
    let before = newest();
    let response = next.run(request).await;
    // What failed may have made a part of its change.
    let changed = response.status().is_success() || newest() != before;
    if may_change && changed && api.cluster.check_is_cluster().is_ok() {
        let told = async {
            // Nodes that do not answer are in the log.
            let others = api.blocking(|api| Ok(api.cluster.ask_nodes(&NodeQuestion::CatchUp)));
            let (here, others) = tokio::join!(api.catch_up(), others);
            here.and(others.map(drop))
        };
        match timeout(CATCH_UP_WAIT, told).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => tracing::warn!("nodes may know of a change a moment later: {e}"),
            Err(_) => tracing::warn!("nodes may know of a change a moment later: not all have answered in time"),
        }
    }
    response
}

/// What this node answers to another.
///
/// # Errors
/// Those of [`Api::catch_up`].
pub async fn answer_node(api: &Arc<Api>, question: NodeQuestion) -> Result<NodeAnswer> {
    match &question {
        NodeQuestion::CatchUp => api.catch_up().await?,
        // With the password of before, whose sessions end could log on again at once.
        NodeQuestion::CloseUserSessions(user) => {
            match timeout(CATCH_UP_WAIT, api.follower.catch_up_with_accounts()).await {
                Ok(Ok(_)) => {}
                Ok(Err(e)) => tracing::warn!(user, "sessions end before this node has the change that ends them: {e}"),
                Err(_) => tracing::warn!(user, "sessions end before this node has the change that ends them"),
            }
        }
        _ => {}
    }
    api.blocking(move |api| Ok(question.answer(&*api.control))).await
}
