//! The REST API: HTTP on a Unix socket that only the daemon's own user can open. Every route is a row of the table in
//! `routes`. Holds no rules: `state` decides what may be stored, [`Control`] what the servers do with it.

mod address;
mod cluster;
mod elsewhere;
mod everywhere;
mod handlers;
pub(crate) mod routes;
mod snapshot;
mod storage;
mod volume;
mod which_pool;

use std::{
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, FromRequest, Request},
    http::StatusCode,
    middleware,
    response::{IntoResponse, Response},
};
use serde::de::DeserializeOwned;

use crate::{
    cluster::ClusterAdmin,
    control::Control,
    error::{AdminError, ErrorKind},
    follow::Follower,
    state::State,
    storage::Storage,
    volume::VolumeAdmin,
};

pub use elsewhere::handle_for_node;
pub use everywhere::answer_node;

/// Limit of a request's body. The bodies that the command line sends are much smaller.
pub const BODY_BYTES_MAX: usize = 256 * 1024;

/// The state and the services that the handlers show and change.
pub struct Api {
    pub state: Arc<State>,
    pub control: Arc<dyn Control>,
    pub storage: Arc<dyn Storage>,
    pub volumes: Arc<dyn VolumeAdmin>,
    pub cluster: Arc<dyn ClusterAdmin>,
    pub started: Instant,
    follower: Follower,
}

impl Api {
    /// The API over these services; its start is now.
    pub fn new(
        state: Arc<State>,
        control: Arc<dyn Control>,
        storage: Arc<dyn Storage>,
        volumes: Arc<dyn VolumeAdmin>,
        cluster: Arc<dyn ClusterAdmin>,
    ) -> Arc<Api> {
        let follower = Follower::new(state.clone(), control.clone());
        Arc::new(Api { state, control, storage, volumes, cluster, started: Instant::now(), follower })
    }

    /// Runs `work` on a thread that may wait for the disk.
    async fn blocking<T: Send + 'static>(
        self: &Arc<Api>,
        f: impl FnOnce(&Api) -> crate::error::Result<T> + Send + 'static,
    ) -> crate::error::Result<T> {
        let api = self.clone();
        let joined = tokio::task::spawn_blocking(move || f(&api)).await;
        joined.unwrap_or_else(|e| {
            Err(AdminError::failed(format!("the request failed inside: {e}"), "see the daemon's log"))
        })
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self)).into_response()
    }
}

/// A JSON body. A malformed one is answered with an [`AdminError`].
struct Body<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = AdminError;
    async fn from_request(request: Request, state: &S) -> Result<Self, AdminError> {
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|e| AdminError::invalid(format!("the body cannot be read: {e}"), "send a JSON object"))?;
        serde_json::from_slice(&bytes).map(Body).map_err(|e| not_what_it_takes(&e.to_string()))
    }
}

fn not_what_it_takes(error: &str) -> AdminError {
    AdminError::invalid(format!("the body is not what this request takes: {error}"), "see /v1/openapi.json")
}

/// The router of all routes.
pub fn router(api: Arc<Api>) -> Router {
    let mut router = Router::new();
    for route in routes::routes() {
        router = router.route(route.path, route.router);
    }
    router
        .fallback(|request: Request| async move {
            let error = format!("there is no {} {}", request.method(), request.uri().path());
            AdminError::new(ErrorKind::NotFound, error, "see /v1/openapi.json")
        })
        .method_not_allowed_fallback(|request: Request| async move {
            let error = format!("{} does not take {}", request.uri().path(), request.method());
            let body = AdminError::new(ErrorKind::Invalid, error, "see /v1/openapi.json");
            (StatusCode::METHOD_NOT_ALLOWED, Json(body))
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(api.clone(), elsewhere::at_owner))
        .layer(middleware::from_fn_with_state(api.clone(), everywhere::at_all_nodes))
        .with_state(api)
}

/// Binds the Unix socket with mode 0600, replacing one that a killed daemon left. The caller holds the lock of the
/// state directory.
///
/// # Errors
/// Failed, when the socket cannot be made.
pub fn bind(path: &Path) -> crate::error::Result<tokio::net::UnixListener> {
    let failed = |e: std::io::Error| {
        let hint = "a Unix socket's path may have at most 107 bytes: choose a shorter --state directory";
        let hint = if path.as_os_str().len() > 107 { hint } else { "" };
        AdminError::failed(format!("cannot listen on {}: {e}", path.display()), hint)
    };
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    let listener = tokio::net::UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// Serves until `shutdown` resolves. Requests in progress then have one second to end.
///
/// # Errors
/// The error of the operating system, when the socket fails.
pub async fn serve(
    listener: tokio::net::UnixListener,
    api: Arc<Api>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let (stopping, stopped) = tokio::sync::oneshot::channel();
    let server = axum::serve(listener, router(api)).with_graceful_shutdown(async move {
        shutdown.await;
        let _ = stopping.send(());
    });
    let late = async {
        let _ = stopped.await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    tokio::select! {
        result = server => result,
        () = late => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod storage_fake;
#[cfg(test)]
mod tests;
