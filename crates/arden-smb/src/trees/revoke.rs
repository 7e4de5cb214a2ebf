//! What a change of shares, accounts or groups does to sessions, tree connects and opens that exist.
//!
//! - A user who is removed or disabled has no sessions, nor durable opens that wait for him.
//! - A user who loses a group or privilege loses his sessions: clients log on again by themselves, with the new token.
//!   A user who only gains one keeps them, with the new token; open files keep the access that they were granted.
//! - A tree connect has the share as it is now. It ends when the share is gone, is another directory, lets its user do
//!   nothing any more, or has to be encrypted and the client was not told so. Otherwise its MaximalAccess is computed
//!   again, and opens with more than that are closed.
//!
//! Whoever adds a session, a tree connect or an open calls `recheck_*` afterwards, so that one of the two sees the other.

use std::sync::Arc;

use arden_auth::{Token, token_for};
use arden_store::commit::CommitScope;
use arden_wire::access::ACCESS_SYSTEM_SECURITY;

use crate::{
    model::{SessionTables, SmbOpen, Tree, share::Share},
    trees::Trees,
};

/// What became of a user's token.
pub(crate) enum Standing {
    Same,
    /// Has more than before.
    Gained(Arc<Token>),
    /// Is gone, disabled, or has less.
    Lost,
}

impl Trees {
    /// The shares have changed: so do tree connects and opens.
    pub(crate) fn recheck_shares(&self) {
        let sessions: Vec<_> = self.sessions.read().values().cloned().collect();
        sessions.iter().for_each(|session| self.recheck_trees(session));
        self.close_waiting(|open| !self.is_allowed(open));
    }

    pub(crate) fn recheck_trees(&self, session: &Arc<SessionTables>) {
        let ids: Vec<u32> = session.trees.read().keys().copied().collect();
        for id in ids {
            self.recheck_tree(&CommitScope::begin(), session, id);
        }
    }

    /// Makes a tree connect what its share is by now. False: it has ended.
    pub(crate) fn recheck_tree(&self, scope: &CommitScope, session: &Arc<SessionTables>, id: u32) -> bool {
        loop {
            let Some(tree) = session.trees.read().get(&id).cloned() else { return false };
            let Some(share) = self.share(&tree.share.name).filter(|share| still_serves(share, &tree, session)) else {
                self.disconnect_tree(scope, session, id);
                return false;
            };
            let maximal_access = share.ceiling(&session.token());
            if Arc::ptr_eq(&share, &tree.share) && maximal_access == tree.maximal_access {
                return true;
            }
            if maximal_access == 0 {
                self.disconnect_tree(scope, session, id);
                return false;
            }
            let (session_id, created, usage) = (tree.session_id, tree.created, tree.usage.clone());
            let now = Tree { id, session_id, share, maximal_access, created, usage };
            let replaced = {
                let mut trees = session.trees.write();
                let same = trees.get(&id).is_some_and(|t| Arc::ptr_eq(t, &tree));
                same.then(|| trees.insert(Arc::new(now))).is_some()
            };
            if replaced {
                let opens: Vec<_> = session.opens.read().values().cloned().collect();
                let of_tree = opens.into_iter().filter(|o| o.state.lock().tree_id == id);
                for open in of_tree {
                    if within(&open, maximal_access) {
                        open.file().into_iter().for_each(|f| f.set_share_permits(maximal_access));
                        continue;
                    }
                    tracing::info!(share = %open.share.name, file = %open.name, user = %open.owner.user_name,
                        "open closed: the share no longer allows its access");
                    self.close_open(scope, &open);
                }
            }
        }
    }

    /// Closes an open that was added while its session or tree connect ended, or lost the access it has. False: it did.
    pub(crate) fn recheck_open(&self, scope: &CommitScope, session: &SessionTables, open: &Arc<SmbOpen>) -> bool {
        let id = open.state.lock().tree_id;
        let allows = |tree: &Arc<Tree>| within(open, tree.maximal_access);
        let may = !session.has_ended() && session.trees.read().get(&id).is_some_and(allows);
        if !may {
            self.close_open(scope, open);
        }
        may
    }

    /// Takes opens away from clients who might come back to them: nobody gets these any more, and the caller closes them.
    pub(crate) fn give_up_waiting(&self, which: impl Fn(&SmbOpen) -> bool) -> Vec<Arc<SmbOpen>> {
        let chosen = self.opens().into_iter().filter(|open| open.session().is_none() && which(open));
        let waits = |open: &Arc<SmbOpen>| {
            let mut state = open.state.lock();
            let waits = state.session.is_none();
            state.given_up |= waits;
            waits
        };
        chosen.filter(waits).collect()
    }

    pub(crate) fn close_waiting(&self, ends: impl Fn(&SmbOpen) -> bool) {
        for open in self.give_up_waiting(ends) {
            self.close_open(&CommitScope::begin(), &open);
        }
    }

    /// Would the share as it is now grant its owner as he is now this open's access?
    pub(crate) fn is_allowed(&self, open: &SmbOpen) -> bool {
        let Some(share) = self.share(&open.share.name).filter(|share| same_files(share, &open.share)) else {
            return false;
        };
        let token = match self.standing(&open.owner) {
            Standing::Same => open.owner.clone(),
            Standing::Gained(token) => token,
            Standing::Lost => return false,
        };
        within(open, share.ceiling(&token))
    }

    pub(crate) fn standing(&self, token: &Token) -> Standing {
        let users = &self.config.users;
        let Some(rid) = token.user.rid_in(&users.machine_sid()) else { return Standing::Same };
        let Some(user) = users.user_by_rid(rid).filter(|u| !u.disabled) else { return Standing::Lost };
        let now = token_for(&**users, &user);
        if now == *token {
            return Standing::Same;
        }
        if keeps_all(token, &now) { Standing::Gained(Arc::new(now)) } else { Standing::Lost }
    }
}

fn still_serves(share: &Share, tree: &Tree, session: &SessionTables) -> bool {
    // The client learns from a new tree connect that it has to encrypt.
    let must_tell = share.encrypt && !tree.share.encrypt && !session.encrypts;
    same_files(share, &tree.share) && !must_tell
}

/// Whether a user has all groups and privileges that he had.
pub(crate) fn keeps_all(before: &Token, now: &Token) -> bool {
    before.groups.iter().all(|g| now.groups.contains(g)) && before.privileges & !now.privileges == 0
}

/// IPC$ has no files.
pub(crate) fn same_files(a: &Share, b: &Share) -> bool {
    match (&a.fs, &b.fs) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (None, None) => true,
        _ => false,
    }
}

/// SeSecurityPrivilege's own right is no share's to give.
fn within(open: &SmbOpen, maximal_access: u32) -> bool {
    open.file().is_none_or(|f| f.granted_access() & !(maximal_access | ACCESS_SYSTEM_SECURITY) == 0)
}
