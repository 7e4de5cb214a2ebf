//! TREE_CONNECT, TREE_DISCONNECT, LOGOFF and ECHO, [MS-SMB2] 3.3.5.6 to 3.3.5.8 and 3.3.5.15.

use std::sync::Arc;

use arden_wire::{
    NtStatus,
    smb2::session::{
        TreeConnectRequest, parse_empty, put_empty, put_tree_connect_response, share_capability, share_flags,
        share_type,
    },
    smb2::{Dialect, header::flags},
};

use crate::{
    base::usage::Kind,
    handlers::request::{Fail, Handled, Request},
    model::Negotiated,
    model::Tree,
    server::ending::{INLINE_OPENS_MAX, closes_long},
};

pub fn echo(message: &[u8], out: &mut Vec<u8>) -> Handled {
    parse_empty(message)?;
    put_empty(out);
    Ok(NtStatus::SUCCESS)
}

/// [MS-SMB2] 3.3.5.6.
pub fn logoff(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    parse_empty(request.message)?;
    closes_many(request)?;
    // Durable handles outlive their session: the same user may reclaim them from the next one.
    request.server.end_session(request.scope, request.session, true, request.now);
    tracing::info!(client = %request.peer.address, user = %request.session.token().user_name, "logged off");
    put_empty(out);
    Ok(NtStatus::SUCCESS)
}

/// [MS-SMB2] 3.3.5.7.
pub fn connect(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    let dialect = request.peer.dialect();
    let parsed = TreeConnectRequest::parse(request.message, dialect == Dialect::Smb311)?;
    if dialect == Dialect::Smb311
        && !request.header.is(flags::SIGNED)
        && !request.encrypted
        && !request.session.anonymous
    {
        // [MS-SMB2] 3.3.5.7: an unsigned tree connect of 3.1.1 may come from the middle.
        return Err(Fail::Close("an unsigned tree connect of 3.1.1"));
    }
    if !parsed.path.starts_with("\\\\") {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let share = request.server.share(parsed.share_name()).ok_or(NtStatus::BAD_NETWORK_NAME)?;
    let token = request.session.token();
    let maximal_access = share.ceiling(&token);
    if maximal_access == 0 || (request.session.anonymous && !share.is_pipe()) {
        tracing::warn!(client = %request.peer.address, user = %token.user_name, share = %share.name, "share access denied");
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    if share.encrypt && !request.peer.negotiated.get().is_some_and(Negotiated::client_encrypts) {
        tracing::warn!(client = %request.peer.address, user = %token.user_name, share = %share.name,
            required_by = "the share's encryption", "a client that cannot encrypt is refused");
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    if share.users_max.is_some_and(|max| request.server.users_of(&share.name) >= max as usize) {
        tracing::warn!(client = %request.peer.address, share = %share.name, "users_max of the share reached");
        return Err(NtStatus::REQUEST_NOT_ACCEPTED.into());
    }
    let usage = request.server.usage.charge(Kind::Trees, &token, Some(request.peer.ip), 1);
    let usage = Arc::new(usage.map_err(|_| NtStatus::INSUFFICIENT_RESOURCES)?);
    let id = request.session.next_tree_id();
    {
        let mut trees = request.session.trees.write();
        let limit = request.server.config.limits.trees_per_session_max;
        if trees.len() >= limit {
            tracing::warn!(client = %request.peer.address, limit, "trees_per_session_max reached");
            return Err(NtStatus::INSUFFICIENT_RESOURCES.into());
        }
        let (session_id, created) = (request.session.id, request.now);
        let tree = Tree { id, session_id, share: share.clone(), maximal_access, created, usage };
        trees.insert(id, Arc::new(tree));
    }
    if !request.server.recheck_tree(request.scope, request.session, id) {
        // The share changed meanwhile.
        return Err(NtStatus::NETWORK_NAME_DELETED.into());
    }
    let mut flags = share_flags::MANUAL_CACHING;
    if share.encrypt && dialect.is_smb3() {
        flags |= share_flags::ENCRYPT_DATA;
    }
    if share.access_based_enumeration {
        flags |= share_flags::ACCESS_BASED_DIRECTORY_ENUM;
    }
    let kind = if share.is_pipe() {
        flags |= share_flags::NO_CACHING;
        share_type::PIPE
    } else {
        share_type::DISK
    };
    request.related.tree_id = id;
    patch_tree_id(out, request.base, id);
    let capabilities =
        if share.keeps_handles() && dialect.is_smb3() { share_capability::CONTINUOUS_AVAILABILITY } else { 0 };
    put_tree_connect_response(out, kind, flags, capabilities, maximal_access);
    Ok(NtStatus::SUCCESS)
}

/// The response's header carries the new TreeId.
fn patch_tree_id(out: &mut [u8], base: usize, id: u32) {
    out[base + 36..base + 40].copy_from_slice(&id.to_le_bytes());
}

/// What ends opens takes its time where that is much.
fn closes_many(request: &Request<'_>) -> Result<(), Fail> {
    if request.may_block {
        return Ok(());
    }
    let some: Vec<_> = request.session.opens.read().values().take(INLINE_OPENS_MAX + 1).cloned().collect();
    if closes_long(&some) { Err(Fail::Block) } else { Ok(()) }
}

/// [MS-SMB2] 3.3.5.8.
pub fn disconnect(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    parse_empty(request.message)?;
    closes_many(request)?;
    let id = request.tree()?.id;
    if !request.server.disconnect_tree(request.scope, request.session, id) {
        return Err(NtStatus::NETWORK_NAME_DELETED.into());
    }
    put_empty(out);
    Ok(NtStatus::SUCCESS)
}
