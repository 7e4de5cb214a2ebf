//! What a message may grant that others can break before its answer is on its way.

use std::sync::Arc;

use super::State;
use crate::{
    base::grants::{Granting, Grants},
    model::seam::asks_for_cache,
    sessions::Session,
};

impl State {
    /// Before the current request is run: breaks of what it is granted are held.
    pub(super) fn begin_granting(&mut self, session: &Session, message: &[u8]) {
        let (grants, element) = (&session.tables.grants, &self.elements[self.next]);
        if asks_for_cache(&element.header, &message[element.start..]) && !self.granting.iter().any(|g| g.is_of(grants))
        {
            self.granting.push(grants.begin());
        }
    }

    /// The current request waits for others: breaks are sent until it goes on with `grant_again`.
    pub(super) fn pause_granting(&mut self) -> Vec<Arc<Grants>> {
        self.granting.drain(..).map(|granting| granting.grants().clone()).collect()
    }

    /// Its answer is here, and what it may grant can be broken from now on.
    pub(super) fn grant_again(&mut self, paused: &[Arc<Grants>]) {
        self.granting.extend(paused.iter().map(Grants::begin));
    }

    pub(super) fn take_granting(&mut self) -> Vec<Granting> {
        std::mem::take(&mut self.granting)
    }
}
