//! What has to be told to a protocol once no lock is held.

use std::time::Instant;

use crate::fs::{LeaseBreak, OpenId, OplockLevel, Owner, WaitId};

/// Breaks name whom to tell; a wait has its owner in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    OplockBreak {
        owner: Owner,
        open: OpenId,
        to: OplockLevel,
        ack: bool,
    },
    LeaseBreak(Owner, LeaseBreak),
    /// These opens, of one holder, did not answer a break in time and cache no more, or their break goes further.
    CacheChanged(Owner, Vec<OpenId>),
    Resume(WaitId),
}

/// Collected under a lock, run by `OpenTable::run` after it.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub list: Vec<Effect>,
    /// A break that wants an answer began: until when.
    pub deadline: Option<Instant>,
}

impl Effects {
    pub fn resume(&mut self, wait: WaitId) {
        self.list.push(Effect::Resume(wait));
    }
}
