//! What a change of accounts or groups does to sessions that exist; `trees` looks after their tree connects and opens.

use std::sync::Arc;

use arden_auth::{Token, users::same_name};
use arden_store::commit::CommitScope;

use crate::{server::Server, trees::Standing};

impl Server {
    /// Ends all sessions of a user, by account name in any case, and closes his opens that wait for their client. Returns
    /// the number of sessions.
    pub fn end_sessions_of(self: &Arc<Server>, user: &str) -> usize {
        // A logon that looked at the account before the change has added its session after this.
        drop(self.accounts.write());
        let of_user = |token: &Token| same_name(&token.user_name, user);
        let mut count = 0;
        for session in self.sessions().into_iter().filter(|s| of_user(&s.token())) {
            tracing::info!(session = session.id, user, "session closed by an administrator");
            self.end_session(&CommitScope::begin(), &session, false, self.trees.time().now);
            count += 1;
        }
        self.trees.close_waiting(|open| of_user(&open.owner));
        count
    }

    /// Accounts or groups have changed: sessions, tree connects and opens are what the accounts allow now.
    pub fn accounts_changed(self: &Arc<Server>) {
        drop(self.accounts.write());
        for session in self.sessions() {
            let token = session.token();
            match self.trees.standing(&token) {
                Standing::Same => {}
                Standing::Gained(now) => {
                    *session.tables.user.write() = now;
                    self.trees.recheck_trees(&session.tables);
                }
                Standing::Lost => {
                    tracing::info!(session = session.id, user = %token.user_name,
                        "session ended: the account is gone, disabled, or has lost a group");
                    self.end_session(&CommitScope::begin(), &session, false, self.trees.time().now);
                }
            }
        }
        self.trees.close_waiting(|open| !self.trees.is_allowed(open));
    }
}
