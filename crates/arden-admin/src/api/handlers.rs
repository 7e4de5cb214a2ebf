//! One handler for each route of accounts, shares, settings, sessions and opens. A handler decodes the request, changes
//! the state, informs the servers and answers.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Json,
    extract::{Path, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{Api, Body, routes::routes};
use crate::{
    cluster::{Feature, NodeAnswer, NodeQuestion},
    error::{AdminError, ErrorKind, Result},
    metrics, metrics_pools,
    model::{
        GroupInfo, Id, NewGroup, NewUser, OpenInfo, SessionInfo, SessionsClosed, Settings, SettingsChange, Share,
        ShareChange, StatusInfo, UserChange, UserInfo,
    },
    openapi,
    state::Snapshot,
};

type Ctx = State<Arc<Api>>;
type Answer<T> = Result<Json<T>>;

pub(super) fn created<T: Serialize>(value: T) -> Response {
    (StatusCode::CREATED, Json(value)).into_response()
}

pub(super) async fn status(State(api): Ctx) -> Json<StatusInfo> {
    let s = api.state.snapshot();
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let cache = api.volumes.cache();
    Json(StatusInfo {
        version: env!("CARGO_PKG_VERSION").to_string(),
        pid: std::process::id(),
        uptime_seconds: api.started.elapsed().as_secs(),
        listen: api.control.listen(),
        server_name: s.server_name(),
        server_guid: s.server_guid_text(),
        machine_sid: s.machine_sid.clone(),
        shares: count(s.shares.len()),
        share_problems: api.control.share_problems(),
        users: count(s.users.len()),
        sessions: count(api.control.session_count()),
        opens: count(api.control.open_count()),
        memory_bytes: metrics::resident_bytes(),
        volume_cache_bytes: cache.bytes,
        volume_cache_bytes_max: cache.bytes_max,
    })
}

pub(super) async fn settings(State(api): Ctx) -> Json<Settings> {
    Json(api.state.snapshot().settings_shown())
}

pub(super) async fn change_settings(State(api): Ctx, Body(change): Body<SettingsChange>) -> Answer<Settings> {
    let settings = api.blocking(move |api| api.state.change(|s| s.change_settings(&change))).await?;
    api.control.settings_changed();
    tracing::info!("settings changed");
    Ok(Json(settings))
}

pub(super) async fn users(State(api): Ctx) -> Json<Vec<UserInfo>> {
    let s = api.state.snapshot();
    Json(s.users.values().map(|u| s.user_info(u)).collect())
}

pub(super) async fn add_user(State(api): Ctx, Body(new): Body<NewUser>) -> Result<Response> {
    let user = api.blocking(move |api| api.state.change(|s| s.add_user(&new))).await?;
    tracing::info!(user = user.name, "user added");
    Ok(created(user))
}

pub(super) async fn user(State(api): Ctx, Path(name): Path<String>) -> Answer<UserInfo> {
    let s = api.state.snapshot();
    Ok(Json(s.user_info(s.user(&name)?)))
}

pub(super) async fn change_user(
    State(api): Ctx,
    Path(name): Path<String>,
    Body(change): Body<UserChange>,
) -> Answer<UserInfo> {
    let (new_password, disabled) = (change.password.is_some(), change.disabled == Some(true));
    let user = api
        .blocking(move |api| {
            let user = api.state.change(|s| s.change_user(&name, &change))?;
            if new_password {
                closed_anywhere(api, &NodeQuestion::CloseUserSessions(user.name.clone()));
            } else if disabled {
                api.control.accounts_changed();
            }
            Ok(user)
        })
        .await?;
    tracing::info!(user = user.name, disabled = user.disabled, new_password, "user changed");
    Ok(Json(user))
}

/// Changes accounts, and ends the sessions that the change no longer allows.
async fn change_accounts<T: Send + 'static>(
    api: &Arc<Api>,
    change: impl FnMut(&mut Snapshot) -> Result<T> + Send + 'static,
) -> Result<T> {
    api.blocking(move |api| {
        let changed = api.state.change(change)?;
        api.control.accounts_changed();
        Ok(changed)
    })
    .await
}

pub(super) async fn remove_user(State(api): Ctx, Path(name): Path<String>) -> Result<StatusCode> {
    let user = change_accounts(&api, move |s| s.remove_user(&name)).await?;
    tracing::info!(user = user.name, "user removed");
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn close_user_sessions(State(api): Ctx, Path(name): Path<String>) -> Answer<SessionsClosed> {
    let user = name.clone();
    let closed = api.blocking(move |api| Ok(closed_anywhere(api, &NodeQuestion::CloseUserSessions(name)))).await?;
    if closed == 0 {
        api.state.snapshot().user(&user)?;
    }
    tracing::info!(user, closed, "sessions closed by the administrator");
    Ok(Json(SessionsClosed { closed: u32::try_from(closed).unwrap_or(u32::MAX) }))
}

pub(super) async fn groups(State(api): Ctx) -> Json<Vec<GroupInfo>> {
    let s = api.state.snapshot();
    Json(s.groups.values().map(|g| s.group_info(g)).collect())
}

pub(super) async fn add_group(State(api): Ctx, Body(new): Body<NewGroup>) -> Result<Response> {
    let group = api.blocking(move |api| api.state.change(|s| s.add_group(&new))).await?;
    tracing::info!(group = group.name, "group added");
    Ok(created(group))
}

pub(super) async fn group(State(api): Ctx, Path(name): Path<String>) -> Answer<GroupInfo> {
    let s = api.state.snapshot();
    Ok(Json(s.group_info(s.group(&name)?)))
}

pub(super) async fn remove_group(State(api): Ctx, Path(name): Path<String>) -> Result<StatusCode> {
    let group = name.clone();
    change_accounts(&api, move |s| s.remove_group(&name)).await?;
    tracing::info!(group, "group removed");
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn add_member(State(api): Ctx, Path((group, user)): Path<(String, String)>) -> Answer<GroupInfo> {
    let group = change_accounts(&api, move |s| s.add_member(&group, &user)).await?;
    tracing::info!(group = group.name, members = group.members.len(), "group changed");
    Ok(Json(group))
}

pub(super) async fn remove_member(State(api): Ctx, Path((group, user)): Path<(String, String)>) -> Answer<GroupInfo> {
    let group = change_accounts(&api, move |s| s.remove_member(&group, &user)).await?;
    tracing::info!(group = group.name, members = group.members.len(), "group changed");
    Ok(Json(group))
}

pub(super) async fn shares(State(api): Ctx) -> Json<Vec<Share>> {
    let s = api.state.snapshot();
    Json(s.shares.values().map(|share| s.share_info(share)).collect())
}

pub(super) async fn share(State(api): Ctx, Path(name): Path<String>) -> Answer<Share> {
    let s = api.state.snapshot();
    Ok(Json(s.share_info(s.share(&name)?)))
}

/// The share that `edit` makes, after the servers have checked it. The check runs without the state's lock: it may open
/// a volume, which takes long and takes storage locks, whose holders change the state.
fn checked_share(api: &Api, edit: impl FnOnce(&mut Snapshot) -> Result<Share>, exposure_too: bool) -> Result<Share> {
    let share = edit(&mut Snapshot::clone(&api.state.snapshot()))?;
    api.control.check_share(&share)?;
    if exposure_too {
        api.control.check_exposure(&share)?;
    }
    Ok(share)
}

/// Older nodes do not understand the record of a scale-out share.
fn check_scale_out(api: &Api, scale_out: bool) -> Result<()> {
    if scale_out && api.cluster.check_is_cluster().is_ok() {
        api.cluster.cluster()?.check_has(Feature::ScaleOutShares)?;
    }
    Ok(())
}

pub(super) async fn add_share(State(api): Ctx, Body(new): Body<Share>) -> Result<Response> {
    let share = api
        .blocking(move |api| {
            check_scale_out(api, new.scale_out)?;
            checked_share(api, |s| s.add_share(&new), !new.force)?;
            api.state.change(|s| s.add_share(&new))
        })
        .await?;
    Ok(created(share_is_stored(&api, &share, "share added").await?))
}

pub(super) async fn change_share(
    State(api): Ctx,
    Path(name): Path<String>,
    Body(change): Body<ShareChange>,
) -> Answer<Share> {
    let share = api
        .blocking(move |api| {
            check_scale_out(api, change.scale_out == Some(true))?;
            let exposure_too = change.path.is_some() && !change.force;
            let checked = checked_share(api, |s| s.change_share(&name, &change), exposure_too)?;
            api.state.change(|s| {
                let share = s.change_share(&name, &change)?;
                if (&share.volume, &share.path) == (&checked.volume, &checked.path) {
                    return Ok(share);
                }
                Err(AdminError::new(
                    ErrorKind::Conflict,
                    format!("share {name:?} was moved at the same time"),
                    "look at what it is now, then try again",
                ))
            })
        })
        .await?;
    Ok(Json(share_is_stored(&api, &share, "share changed").await?))
}

async fn share_is_stored(api: &Arc<Api>, share: &Share, what: &str) -> Result<Share> {
    tell_shares(api).await?;
    tracing::info!(share = share.name, path = %share.path.display(), "{what}");
    Ok(api.state.snapshot().share_info(share))
}

/// Informs the servers of changed shares, on a thread that may wait: opening a share's directory reads the disk.
pub(super) async fn tell_shares(api: &Arc<Api>) -> Result<()> {
    api.blocking(|api| {
        api.control.shares_changed();
        Ok(())
    })
    .await
}

pub(super) async fn remove_share(State(api): Ctx, Path(name): Path<String>) -> Result<StatusCode> {
    let share = name.clone();
    api.blocking(move |api| api.state.change(|s| s.remove_share(&name))).await?;
    tell_shares(&api).await?;
    tracing::info!(share, "share removed");
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn sessions(State(api): Ctx) -> Answer<Vec<SessionInfo>> {
    api.blocking(|api| Ok(Json(all_sessions(api)))).await
}

/// The sessions of all nodes.
fn all_sessions(api: &Api) -> Vec<SessionInfo> {
    let here = (api.cluster.node_name(), NodeQuestion::Sessions.answer(&*api.control));
    let answers = api.cluster.ask_nodes(&NodeQuestion::Sessions);
    let mut all = Vec::new();
    for (node, answer) in std::iter::once(here).chain(answers) {
        if let NodeAnswer::Sessions(sessions) = answer {
            all.extend(sessions.into_iter().map(|s| SessionInfo { node: node.clone(), ..s }));
        }
    }
    all
}

/// What is open at all nodes. A client that is connected to another node than that of its share is known there.
fn all_opens(api: &Api) -> Vec<OpenInfo> {
    let here = (api.cluster.node_name(), NodeQuestion::Opens.answer(&*api.control));
    let answers = api.cluster.ask_nodes(&NodeQuestion::Opens);
    let mut all = Vec::new();
    for (node, answer) in std::iter::once(here).chain(answers) {
        if let NodeAnswer::Opens(opens) = answer {
            all.extend(opens.into_iter().map(|o| OpenInfo { node: node.clone(), ..o }));
        }
    }
    if all.iter().any(|o| o.session.is_some() && o.client.is_empty()) {
        let clients: HashMap<Id, String> = all_sessions(api).into_iter().map(|s| (s.id, s.client)).collect();
        for open in all.iter_mut().filter(|o| o.client.is_empty()) {
            open.client = open.session.and_then(|s| clients.get(&s).cloned()).unwrap_or_default();
        }
    }
    all
}

/// How many sessions or opens were closed, at this node and all others.
fn closed_anywhere(api: &Api, question: &NodeQuestion) -> usize {
    let here = question.answer(&*api.control);
    let is_one = matches!(question, NodeQuestion::CloseSession(_) | NodeQuestion::CloseOpen(_));
    if is_one && matches!(here, NodeAnswer::Closed(n) if n > 0) {
        return 1;
    }
    let answers = api.cluster.ask_nodes(question).into_iter().map(|(_, answer)| answer);
    let closed = |answer| if let NodeAnswer::Closed(n) = answer { n } else { 0 };
    std::iter::once(here).chain(answers).map(closed).sum()
}

fn parse_id(what: &str, id: &str) -> Result<Id> {
    let hint = format!("`arden {what} list` shows them");
    let article = if what == "open" { "an" } else { "a" };
    id.parse().map_err(|_| AdminError::invalid(format!("{id:?} is not the id of {article} {what}"), hint))
}

pub(super) async fn close_session(State(api): Ctx, Path(id): Path<String>) -> Result<StatusCode> {
    let parsed = parse_id("session", &id)?;
    // Closing the session's opens may wait for the disk.
    if !api.blocking(move |api| Ok(closed_anywhere(api, &NodeQuestion::CloseSession(parsed)) > 0)).await? {
        return Err(AdminError::not_found("session", &id));
    }
    tracing::info!(session = id, "session closed by the administrator");
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn opens(State(api): Ctx) -> Answer<Vec<OpenInfo>> {
    api.blocking(|api| Ok(Json(all_opens(api)))).await
}

pub(super) async fn close_open(State(api): Ctx, Path(id): Path<String>) -> Result<StatusCode> {
    let parsed = parse_id("open", &id)?;
    if !api.blocking(move |api| Ok(closed_anywhere(api, &NodeQuestion::CloseOpen(parsed)) > 0)).await? {
        return Err(AdminError::not_found("open", &id));
    }
    tracing::info!(open = id, "open closed by the administrator");
    Ok(StatusCode::NO_CONTENT)
}

/// Time after which the metrics leave out pools that do not answer.
const POOLS_WAIT: std::time::Duration = std::time::Duration::from_secs(3);

pub(super) async fn metrics_text(State(api): Ctx) -> Response {
    // A hanging disk must not hide the other metrics.
    let both = api.blocking(|api| Ok((api.storage.pools()?, api.volumes.volumes()?)));
    let asked = tokio::time::timeout(POOLS_WAIT, both).await.ok().and_then(std::result::Result::ok);
    let is_node = api.cluster.check_is_cluster().is_ok();
    let mut all = metrics::all(&api);
    all.extend(metrics_pools::samples(asked.as_ref().map(|(pools, _)| pools.as_slice()), is_node));
    all.extend(metrics_pools::volumes(asked.as_ref().map_or(&[], |(_, volumes)| volumes.as_slice()), is_node));
    let text = metrics::text(&all);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

pub(super) async fn document() -> Json<serde_json::Value> {
    Json(openapi::document(&routes()))
}
