//! What a change of accounts or groups does to sessions that exist; `trees` looks after their tree connects and opens.

use std::sync::Arc;

use arden_auth::users::same_name;
use arden_store::commit::CommitScope;

use crate::{
    model::SmbOpen,
    server::Server,
    trees::{Standing, Trees, ending::Ending},
};

/// Sessions have ended, and nobody can use any more what they had open. It is left to be closed, which may wait for a disk.
#[must_use]
pub struct Revoked {
    trees: Arc<Trees>,
    endings: Vec<Ending>,
    /// Opens that waited for their client, who does not get them any more.
    waiting: Vec<Arc<SmbOpen>>,
}

impl Revoked {
    /// How many sessions have ended.
    pub fn sessions(&self) -> usize {
        self.endings.len()
    }

    pub fn close(self) {
        // First, as answers wait for these.
        self.endings.into_iter().for_each(|ending| ending.finish(&CommitScope::begin()));
        self.waiting.iter().for_each(|open| _ = self.trees.close_open(&CommitScope::begin(), open));
    }
}

impl Server {
    /// Ends all sessions of a user, by account name in any case; his opens that wait for their client are to be closed too.
    pub fn end_sessions_of(self: &Arc<Server>, user: &str) -> Revoked {
        // A logon that looked at the account before the change has added its session after this.
        drop(self.accounts.write());
        let mut endings = Vec::new();
        for session in self.sessions().into_iter().filter(|s| same_name(&s.token().user_name, user)) {
            tracing::info!(session = %format_args!("{:x}", session.id), user, "session closed by an administrator");
            endings.extend(self.take_session_down(&session, false, self.trees.time().now));
        }
        let waiting = self.trees.give_up_waiting(|open| same_name(&open.owner.user_name, user));
        Revoked { trees: self.trees.clone(), endings, waiting }
    }

    /// Accounts or groups have changed: sessions, tree connects and opens are what the accounts allow now.
    pub fn accounts_changed(self: &Arc<Server>) -> Revoked {
        drop(self.accounts.write());
        let mut endings = Vec::new();
        for session in self.sessions() {
            let token = session.token();
            match self.trees.standing(&token) {
                Standing::Same => {}
                Standing::Gained(now) => {
                    *session.tables.user.write() = now;
                    self.trees.recheck_trees(&session.tables);
                }
                Standing::Lost => {
                    tracing::info!(session = %format_args!("{:x}", session.id), user = %token.user_name,
                        "session ended: the account is gone, disabled, or has lost a group");
                    endings.extend(self.take_session_down(&session, false, self.trees.time().now));
                }
            }
        }
        let waiting = self.trees.give_up_waiting(|open| !self.trees.is_allowed(open));
        Revoked { trees: self.trees.clone(), endings, waiting }
    }
}
