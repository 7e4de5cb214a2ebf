//! TREE_CONNECT and TREE_DISCONNECT, [MS-SMB2] 3.3.5.7 and 3.3.5.8.

use std::sync::Arc;

use arden_auth::Token;
use arden_wire::{
    NtStatus,
    smb2::session::{
        TREE_CONNECT_REDIRECT_TO_OWNER, TreeConnectRequest, parse_empty, put_empty, put_tree_connect_response,
        share_capability, share_flags, share_type,
    },
    smb2::{Dialect, header::flags},
};

use crate::{
    base::{log_limit::Line, usage::Kind},
    handlers::{
        request::{Fail, Handled, Request},
        run::NOT_SERVED,
    },
    model::{Tree, share::Share},
    trees::ending::has_long_end,
};

/// Refuses who has no access to the share, who cannot encrypt for it, and one more than its users may be.
fn may_connect(request: &Request<'_>, share: &Share, token: &Token, maximal_access: u32) -> Result<(), Fail> {
    if maximal_access == 0 || (request.verified.anonymous && !share.is_pipe()) {
        if let Some(left_out) = request.trees.admit_line(Line::ShareDenied) {
            tracing::warn!(client = %request.verified.address, user = %token.user_name, share = %share.name, left_out,
                "share access denied");
        }
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    if share.encrypt && !request.verified.negotiated.client_encrypts() {
        if let Some(left_out) = request.trees.admit_line(Line::CannotEncrypt) {
            tracing::warn!(client = %request.verified.address, user = %token.user_name, share = %share.name,
                required_by = "the share's encryption", left_out, "a client that cannot encrypt is refused");
        }
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    if share.users_max.is_some_and(|max| share.users.count() >= max as usize) {
        if let Some(left_out) = request.trees.admit_line(Line::ShareFull) {
            tracing::warn!(client = %request.verified.address, share = %share.name, left_out,
                "users_max of the share reached");
        }
        return Err(NtStatus::REQUEST_NOT_ACCEPTED.into());
    }
    Ok(())
}

/// [MS-SMB2] 3.3.5.7.
pub fn connect(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    let dialect = request.verified.dialect();
    let parsed = TreeConnectRequest::parse(request.verified.message, dialect == Dialect::Smb311)?;
    if dialect == Dialect::Smb311
        && !request.verified.header.is(flags::SIGNED)
        && !request.verified.encrypted
        && !request.verified.anonymous
    {
        // [MS-SMB2] 3.3.5.7: an unsigned tree connect of 3.1.1 may come from the middle.
        return Err(Fail::Close("an unsigned tree connect of 3.1.1"));
    }
    if !parsed.path.starts_with("\\\\") {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let share = served(request, parsed.share_name())?;
    let token = request.verified.user.clone();
    let maximal_access = share.ceiling(&token);
    may_connect(request, &share, &token, maximal_access)?;
    let usage = request.trees.usage.charge(Kind::Trees, &token, Some(request.verified.ip), 1);
    let usage = Arc::new(usage.map_err(|_| NtStatus::INSUFFICIENT_RESOURCES)?);
    let id = request.session.next_tree_id();
    {
        let mut trees = request.session.trees.write();
        let limit = request.trees.config.limits.trees_per_session_max;
        if trees.len() >= limit {
            tracing::warn!(client = %request.verified.address, limit, "trees_per_session_max reached");
            return Err(NtStatus::INSUFFICIENT_RESOURCES.into());
        }
        let (session_id, created) = (request.session.id, request.now);
        let tree = Tree { id, session_id, share: share.clone(), maximal_access, created, usage };
        trees.insert(Arc::new(tree));
    }
    if !request.trees.recheck_tree(request.scope, request.session, id) {
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
    let capabilities = capabilities(request, &share, parsed.flags);
    put_tree_connect_response(out, kind, flags, capabilities, maximal_access);
    Ok(NtStatus::SUCCESS)
}

fn served(request: &mut Request<'_>, name: &str) -> Result<Arc<Share>, Fail> {
    let Some(share) = request.trees.share(name) else {
        if request.gates.are_of_owner() && !request.trees.is_broken_here(name) {
            // The node that asks knows of the share: it is being opened here, or is so new that this node has not heard of it.
            request.gates.refuse();
            return Err(Fail::Close(NOT_SERVED));
        }
        return Err(NtStatus::BAD_NETWORK_NAME.into());
    };
    if !request.gates.pass(&share) {
        return Err(Fail::Close(NOT_SERVED));
    }
    Ok(share)
}

/// Share capabilities, [MS-SMB2] 2.2.10.
fn capabilities(request: &Request<'_>, share: &Share, asked: u16) -> u32 {
    if !request.verified.dialect().is_smb3() {
        return 0;
    }
    let available = if share.keeps_handles() { share_capability::CONTINUOUS_AVAILABILITY } else { 0 };
    // Another node may serve it, and says so through the witness.
    let witnessed = share.gate.is_some() && request.trees.config.policy.has_witness();
    if !witnessed {
        return available;
    }
    let mut all = available | share_capability::CLUSTER;
    if share.is_scale_out() {
        all |= share_capability::SCALEOUT;
    }
    // Its pool may have another owner later.
    if request.verified.dialect() >= Dialect::Smb302 {
        all |= share_capability::ASYMMETRIC;
    }
    if asked & TREE_CONNECT_REDIRECT_TO_OWNER != 0 && request.verified.dialect() == Dialect::Smb311 {
        all |= share_capability::REDIRECT_TO_OWNER;
    }
    all
}

/// [MS-SMB2] 3.3.5.8.
pub fn disconnect(request: &mut Request<'_>, out: &mut Vec<u8>) -> Handled {
    parse_empty(request.verified.message)?;
    if !request.may_block && has_long_end(request.session) {
        return Err(Fail::Block);
    }
    let id = request.tree()?.id;
    if !request.trees.disconnect_tree(request.scope, request.session, id) {
        return Err(NtStatus::NETWORK_NAME_DELETED.into());
    }
    put_empty(out);
    Ok(NtStatus::SUCCESS)
}
