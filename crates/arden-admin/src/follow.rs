//! What other daemons change in the state, as this daemon comes to have it: read, and applied to its servers.

use std::sync::Arc;

use crate::{
    control::Control,
    error::{AdminError, Result},
    state::{Revision, State},
};

/// The revision that the servers were told of. Held while they are told, so that who waits for it finds it in force.
type Applied = Arc<tokio::sync::Mutex<Option<Revision>>>;

/// Follows the state.
pub struct Follower {
    state: Arc<State>,
    control: Arc<dyn Control>,
    accounts: Applied,
    /// Taken after the other was given back, never while it is held: shares may wait for a disk, and accounts do not wait for shares.
    shares: Applied,
}

impl Follower {
    pub fn new(state: Arc<State>, control: Arc<dyn Control>) -> Follower {
        Follower { state, control, accounts: Applied::default(), shares: Applied::default() }
    }

    /// Returns when what any daemon committed before the call is in force here.
    ///
    /// # Errors
    /// Failed, when the store cannot be read; all is as it was then.
    pub async fn catch_up(&self) -> Result<()> {
        let revision = self.catch_up_with_accounts().await?;
        self.tell(
            &self.shares,
            move |_| Ok(revision),
            |control| {
                control.shares_changed();
                control.addresses_changed();
            },
        )
        .await
        .map(drop)
    }

    /// The same for users, groups and settings alone. Gives the revision.
    ///
    /// # Errors
    /// As [`Follower::catch_up`].
    pub async fn catch_up_with_accounts(&self) -> Result<Revision> {
        self.tell(&self.accounts, State::refreshed, |control| {
            control.accounts_changed();
            control.settings_changed();
        })
        .await
    }

    /// Tells the servers of a revision that they were not told of.
    async fn tell(
        &self,
        applied: &Applied,
        revision: impl FnOnce(&State) -> Result<Revision> + Send + 'static,
        tell: impl FnOnce(&dyn Control) + Send + 'static,
    ) -> Result<Revision> {
        let mut applied = applied.clone().lock_owned().await;
        let (state, control) = (self.state.clone(), self.control.clone());
        // Behind who waits no longer the work goes on, and keeps the next one waiting: there is one thread for it at most.
        let work = tokio::task::spawn_blocking(move || {
            let revision = revision(&state)?;
            if *applied != Some(revision) {
                tell(&*control);
                *applied = Some(revision);
            }
            Ok(revision)
        });
        work.await.unwrap_or_else(|e| {
            Err(AdminError::failed(format!("changes of the state were not applied: {e}"), "see the daemon's log"))
        })
    }
}
