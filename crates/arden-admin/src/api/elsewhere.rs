//! Requests about what another node of the cluster owns. The node that is asked has them handled by the owner, whose answer it gives, so
//! that an administrator need not know which node that is. Lists are those of all nodes: each tells of what it owns.

use std::sync::Arc;

use axum::{
    body::{Body, to_bytes},
    extract::{MatchedPath, RawPathParams, Request, State, rejection::RawPathParamsRejection},
    http::{Method, StatusCode, header::CONTENT_TYPE},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde_json::Value;
use tower::ServiceExt;

use super::{Api, BODY_BYTES_MAX, not_what_it_takes, router, which_pool::Having};
use crate::{
    cluster::{NodeRequest, NodeResponse, OtherNode, PoolKey},
    error::{AdminError, ErrorKind, Result},
    names::key,
    storage::PoolRecord,
};

/// Jobs of other nodes have the number of the node in front of their own, from this bit on.
const NODE_OF_JOB: u32 = 32;

/// A request that another node passed on. It goes no further, and has to be about what a node owns.
#[derive(Clone, Copy)]
pub(super) struct FromNode;

/// Who handles a request.
enum Target {
    Here,
    Node(OtherNode),
    /// Whoever finds what it names.
    Finder,
    /// Everybody: it asks for a list.
    All,
}

/// What a request is about, which decides who handles it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    /// This node, or what all nodes share. A node does not pass it on, and does not handle it for another.
    AnyNode,
    Pool,
    NewSpace,
    Volume,
    /// A volume to be made or attached.
    NewVolume,
    Share,
    Job,
    List,
}

impl About {
    fn of(method: &Method, route: &str) -> About {
        match route {
            // Not the list of pools: each node says how far it has come with owning them.
            "/v1/spaces" | "/v1/jobs" | "/v1/volumes" if method == Method::GET => About::List,
            "/v1/pools/{name}/owner" | "/v1/pools/{name}/take" | "/v1/pools/{name}/fence" => About::AnyNode,
            "/v1/jobs/{id}" => About::Job,
            "/v1/volumes" => About::NewVolume,
            "/v1/pools/{name}/spaces" if method == Method::POST => About::NewSpace,
            "/v1/shares" if method == Method::POST => About::Share,
            "/v1/shares/{name}" if method == Method::PATCH => About::Share,
            route if route.starts_with("/v1/pools/{name}") => About::Pool,
            route if route.starts_with("/v1/volumes/{name}") => About::Volume,
            _ => About::AnyNode,
        }
    }
}

/// A request that may be for another node.
struct Asked<'a> {
    method: &'a Method,
    route: &'a str,
    about: About,
    names: &'a [String],
    body: &'a Value,
}

impl Asked<'_> {
    async fn target(&self, api: &Arc<Api>) -> Result<Target> {
        let name = self.names.first().map_or("", String::as_str);
        Ok(match self.about {
            About::List => Target::All,
            About::Pool => at(api.cluster.owner_elsewhere(PoolKey::Name(name))),
            About::NewSpace => {
                self.check_new_space(api, name).await?;
                at(api.cluster.owner_elsewhere(PoolKey::Name(name)))
            }
            About::Volume => self.at_volume(api, name)?,
            About::NewVolume => self.at_new_volume(api).await?,
            About::Share => {
                let snapshot = api.state.snapshot();
                let has = snapshot.shares.get(&key(name)).and_then(|share| share.volume.as_deref());
                match self.in_body("volume").or(has) {
                    Some(volume) => self.at_volume(api, volume)?,
                    None => Target::Here,
                }
            }
            About::Job => at(node_of_job(api, name)),
            About::AnyNode => Target::Here,
        })
    }

    fn in_body(&self, field: &str) -> Option<&str> {
        self.body.get(field).and_then(Value::as_str)
    }

    /// A volume that is shown or closed needs no owner, nor does a schedule.
    fn needs_owner(&self) -> bool {
        let is_record = self.route == "/v1/volumes/{name}" && self.method != Method::PATCH;
        !is_record && !self.route.starts_with("/v1/volumes/{name}/snapshot-schedules")
    }

    fn at_volume(&self, api: &Api, volume: &str) -> Result<Target> {
        if let Some(node) = owner_of_volume(api, volume) {
            return Ok(Target::Node(node));
        }
        // Of a record of an earlier version the owner alone knows the pool, and of a new one, where it comes first.
        let Some(pool) = pool_of_volume(api, volume) else { return Ok(Target::Finder) };
        at_owner_of(api, &pool, self.needs_owner().then(|| format!("the pool {:?} of volume {volume:?}", pool.name)))
    }

    /// The node that owns the only pool with such a space, or the pool that is named.
    async fn at_new_volume(&self, api: &Arc<Api>) -> Result<Target> {
        let Some(space) = self.in_body("space") else { return Ok(Target::Here) };
        let pool = match self.in_body("pool") {
            Some(pool) => Some(pool.to_owned()),
            None => Having::of(api, space).await.only(space)?,
        };
        let snapshot = api.state.snapshot();
        match pool.and_then(|pool| snapshot.pool_named(&pool)) {
            Some(pool) => at_owner_of(api, pool, Some(format!("the pool {:?}", pool.name))),
            None => Ok(Target::Here),
        }
    }

    /// The owner of the pool looks at its own pools.
    async fn check_new_space(&self, api: &Arc<Api>, pool: &str) -> Result<()> {
        let Some(space) = self.in_body("name") else { return Ok(()) };
        let having = Having::of(api, space).await;
        match having.pools.iter().find(|other| key(other) != key(pool)) {
            Some(other) => {
                Err(AdminError::exists("space", space, format!("pool {other:?} has it: choose another name")))
            }
            None => Ok(()),
        }
    }

    /// The node that owns what an item of this list describes, if it is not this one.
    fn owner_of(&self, api: &Api, item: &Value) -> Option<OtherNode> {
        let field = |name: &str| item.get(name).and_then(Value::as_str);
        match self.route {
            "/v1/volumes" => owner_of_volume(api, field("name")?),
            _ => api.cluster.owner_elsewhere(PoolKey::Name(field("pool")?)),
        }
    }
}

fn at(owner: Option<OtherNode>) -> Target {
    owner.map_or(Target::Here, Target::Node)
}

/// Where a pool is. `needed`: what is refused while no node owns it.
fn at_owner_of(api: &Api, pool: &PoolRecord, needed: Option<String>) -> Result<Target> {
    if let Some(node) = api.cluster.owner_elsewhere(PoolKey::Name(&pool.name)) {
        return Ok(Target::Node(node));
    }
    let is_here = |owner: &str| owner == api.cluster.node_name();
    match (needed, api.cluster.ownerships().into_iter().find(|o| key(&o.pool) == key(&pool.name))) {
        (Some(what), Some(ownership)) if !is_here(&ownership.owner) => Err(AdminError::new(
            ErrorKind::Conflict,
            format!("no node that is alive owns {what} now"),
            "`arden pool list` shows why, and when a node has it",
        )),
        _ => Ok(Target::Here),
    }
}

/// The pool of a volume that is known with it.
fn pool_of_volume(api: &Api, volume: &str) -> Option<PoolRecord> {
    let snapshot = api.state.snapshot();
    let pool = snapshot.volumes.get(&key(volume))?.pool.as_deref()?;
    snapshot.pools.values().find(|known| known.id == pool).cloned()
}

fn owner_of_volume(api: &Api, volume: &str) -> Option<OtherNode> {
    let snapshot = api.state.snapshot();
    let pool = snapshot.volumes.get(&key(volume))?.pool.as_deref()?;
    api.cluster.owner_elsewhere(PoolKey::Id(u128::from_str_radix(pool, 16).ok()?))
}

fn node_of_job(api: &Api, id: &str) -> Option<OtherNode> {
    let number = id.parse::<u64>().ok()? >> NODE_OF_JOB;
    api.cluster.others().into_iter().find(|node| u64::from(node.number) == number)
}

/// Has a request handled where what it is about is.
pub(super) async fn at_owner(
    State(api): State<Arc<Api>>,
    route: Option<MatchedPath>,
    names: std::result::Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
    next: Next,
) -> Response {
    let is_from_node = request.extensions().get::<FromNode>().is_some();
    let Some(route) = route.filter(|_| api.cluster.check_is_cluster().is_ok()) else {
        return next.run(request).await;
    };
    let about = About::of(request.method(), route.as_str());
    match (about, is_from_node) {
        (About::AnyNode, true) => {
            let error = format!("a node does not pass {} {} on", request.method(), route.as_str());
            return AdminError::invalid(error, "ask the node itself").into_response();
        }
        (About::AnyNode, false) | (_, true) => return next.run(request).await,
        _ => {}
    }
    let (parts, body) = request.into_parts();
    let bytes = match to_bytes(body, BODY_BYTES_MAX).await {
        Ok(bytes) => bytes,
        Err(e) => return AdminError::invalid(format!("the body cannot be read: {e}"), "").into_response(),
    };
    let names = names.iter().flatten().map(|(_, value)| value.to_owned()).collect::<Vec<_>>();
    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let asked = Asked { method: &parts.method, route: route.as_str(), about, names: &names, body: &body };
    let path = parts.uri.path_and_query().map_or_else(|| parts.uri.path(), |path| path.as_str());
    let target = match asked.target(&api).await {
        Ok(target) => target,
        Err(e) => return e.into_response(),
    };
    let text = std::str::from_utf8(&bytes).map(str::to_owned);
    let here = Request::from_parts(parts.clone(), Body::from(bytes.clone()));
    if matches!(target, Target::Here) {
        return next.run(here).await;
    }
    // Another node gets it as a string of JSON.
    let Ok(body) = text else { return no_utf8(&bytes).into_response() };
    let passed_on = NodeRequest { method: parts.method.to_string(), path: path.to_owned(), body };
    match target {
        Target::Here => next.run(here).await,
        Target::Node(node) => at_node(&api, node, &asked, passed_on).await.unwrap_or_else(IntoResponse::into_response),
        Target::Finder => {
            let response = next.run(here).await;
            if response.status() != StatusCode::NOT_FOUND {
                return response;
            }
            elsewhere(&api, &asked, &passed_on).await.unwrap_or(response)
        }
        Target::All => {
            let response = next.run(here).await;
            if response.status() != StatusCode::OK {
                return response;
            }
            match to_bytes(response.into_body(), usize::MAX).await.map(|bytes| serde_json::from_slice(&bytes)) {
                Ok(Ok(items)) => axum::Json(of_all(&api, &asked, &passed_on, items).await).into_response(),
                _ => AdminError::failed("a list could not be made", "see the daemon's log").into_response(),
            }
        }
    }
}

/// The answer of the other node that knows what is asked about; of a node that does not answer, where no other knows it.
async fn elsewhere(api: &Arc<Api>, asked: &Asked<'_>, request: &NodeRequest) -> Option<Response> {
    let mut silent = Vec::new();
    for node in api.cluster.others() {
        match at_node(api, node, asked, request.clone()).await {
            Ok(found) if found.status() != StatusCode::NOT_FOUND => return Some(found),
            Ok(_) => {}
            Err(e) => silent.push(e),
        }
    }
    silent.pop().map(|e| {
        let error = format!("the nodes that answer do not have it; {}", e.error);
        AdminError::new(e.kind, error, e.hint).into_response()
    })
}

/// The error that a handler has for such a body.
fn no_utf8(body: &[u8]) -> AdminError {
    let error = serde_json::from_slice::<Value>(body).err().map(|e| e.to_string()).unwrap_or_default();
    not_what_it_takes(&error)
}

/// What this node lists, with what the owners say of what is theirs. A node that does not answer is in the log.
async fn of_all(api: &Arc<Api>, asked: &Asked<'_>, request: &NodeRequest, mut items: Vec<Value>) -> Vec<Value> {
    for node in api.cluster.others() {
        let Ok(response) = handled_by(api, &node, request.clone()).await.inspect_err(|e| tracing::warn!("{}", e.error))
        else {
            continue;
        };
        let theirs: Vec<Value> = serde_json::from_str(&response.body).unwrap_or_default();
        for mut item in theirs.into_iter().filter(|item| asked.owner_of(api, item).as_ref() == Some(&node)) {
            number_job(asked, &node, &mut item);
            let named = |other: &&mut Value| asked.route != "/v1/jobs" && same(other, &item);
            match items.iter_mut().find(named) {
                Some(mine) => *mine = item,
                None => items.push(item),
            }
        }
    }
    items
}

fn same(one: &Value, other: &Value) -> bool {
    ["pool", "name"].iter().all(|field| one.get(field) == other.get(field))
}

/// A job of another node is told from this node's, also in errors.
fn number_job(asked: &Asked<'_>, node: &OtherNode, item: &mut Value) {
    if !asked.route.starts_with("/v1/jobs") && asked.route != "/v1/pools/{name}/jobs" {
        return;
    }
    if let Some(id) = item.get("id").and_then(Value::as_u64) {
        item["id"] = numbered(node, id).into();
    }
    for field in ["error", "hint"] {
        if let Some(text) = item.get(field).and_then(Value::as_str) {
            item[field] = number_text(node, text).into();
        }
    }
}

fn numbered(node: &OtherNode, id: u64) -> u64 {
    u64::from(node.number) << NODE_OF_JOB | id
}

/// The text with the numbers of jobs (`job 3`, `job "3"`, `job cancel 3`) as other nodes know them.
fn number_text(node: &OtherNode, text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("job ") {
        let after = &rest[at + "job ".len()..];
        let before_number = ["cancel ", "\""].iter().find(|s| after.starts_with(**s)).map_or(0, |s| s.len());
        let (before, after) = rest.split_at(at + "job ".len() + before_number);
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        let (number, after) = after.split_at(digits);
        out.push_str(before);
        out.push_str(&number.parse().map_or_else(|_| number.to_owned(), |id| numbered(node, id).to_string()));
        rest = after;
    }
    out + rest
}

/// A job by the number that its owner has for it: other nodes have this node's number in front.
pub(super) fn own_job(api: &Api, id: u64) -> u64 {
    let is_own = id >> NODE_OF_JOB == u64::from(api.cluster.node_number());
    if is_own { id & ((1 << NODE_OF_JOB) - 1) } else { id }
}

async fn at_node(api: &Arc<Api>, node: OtherNode, asked: &Asked<'_>, mut request: NodeRequest) -> Result<Response> {
    if let ("/v1/jobs/{id}", Some(id)) = (asked.route, asked.names.first()) {
        let theirs = id.parse::<u64>().unwrap_or(0) & ((1 << NODE_OF_JOB) - 1);
        request.path = format!("/v1/jobs/{theirs}");
    }
    let mut response = handled_by(api, &node, request).await?;
    if let Ok(mut item) = serde_json::from_str(&response.body) {
        number_job(asked, &node, &mut item);
        response.body = item.to_string();
    }
    let status = StatusCode::from_u16(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Ok(match response.body.is_empty() {
        true => status.into_response(),
        false => (status, [(CONTENT_TYPE, "application/json")], response.body).into_response(),
    })
}

async fn handled_by(api: &Arc<Api>, node: &OtherNode, request: NodeRequest) -> Result<NodeResponse> {
    let node = node.clone();
    api.blocking(move |api| api.cluster.handled_by(&node, &request)).await
}

/// Handles a request that another node passes on, for an administrator there.
pub async fn handle_for_node(api: Arc<Api>, request: NodeRequest) -> NodeResponse {
    let NodeRequest { method, path, body } = request;
    if method != Method::GET.as_str() {
        tracing::info!(method, path, "another node passes a request of an administrator on");
    }
    let asked = Request::builder().method(method.as_str()).uri(&path).extension(FromNode);
    let response = match asked.header(CONTENT_TYPE, "application/json").body(Body::from(body)) {
        Ok(request) => router(api).oneshot(request).await.unwrap_or_else(|never| match never {}),
        Err(e) => AdminError::invalid(format!("no request: {e}"), "").into_response(),
    };
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap_or_default();
    NodeResponse { status, body: String::from_utf8_lossy(&body).into_owned() }
}
