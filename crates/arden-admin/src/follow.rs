//! What other daemons change in the state, as this daemon comes to have it: read, and applied to its servers.

use std::sync::Arc;

use crate::{
    control::Control,
    error::{AdminError, Result},
    state::{Revision, State},
};

/// Follows the state.
pub struct Follower {
    state: Arc<State>,
    control: Arc<dyn Control>,
    /// The revision that the servers were told of. Held while they are told, so that who waits for it finds it in force.
    applied: Arc<tokio::sync::Mutex<Option<Revision>>>,
}

impl Follower {
    pub fn new(state: Arc<State>, control: Arc<dyn Control>) -> Follower {
        Follower { state, control, applied: Arc::default() }
    }

    /// Returns when what any daemon committed before the call is in force here.
    ///
    /// # Errors
    /// Failed, when the store cannot be read; all is as it was then.
    pub async fn catch_up(&self) -> Result<()> {
        let mut applied = self.applied.clone().lock_owned().await;
        let (state, control) = (self.state.clone(), self.control.clone());
        // Behind who waits no longer the work goes on, and keeps the next one waiting: there is one thread for it at most.
        let work = tokio::task::spawn_blocking(move || {
            let revision = state.refreshed()?;
            if *applied != Some(revision) {
                control.accounts_changed();
                control.settings_changed();
                control.shares_changed();
                control.addresses_changed();
                *applied = Some(revision);
            }
            Ok(())
        });
        work.await.unwrap_or_else(|e| {
            Err(AdminError::failed(format!("changes of the state were not applied: {e}"), "see the daemon's log"))
        })
    }
}
