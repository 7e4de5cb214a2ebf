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
    /// Breaks that want an answer began: when the first has to be there.
    pub deadline: Option<Instant>,
}

impl Effects {
    pub fn is_due(&mut self, at: Instant) {
        self.deadline = Some(self.deadline.map_or(at, |before| before.min(at)));
    }
    pub fn resume(&mut self, wait: WaitId) {
        self.list.push(Effect::Resume(wait));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Of several breaks at once some have longer than others.
    #[test]
    fn the_first_answer_that_is_due_counts() {
        let (now, mut fx) = (Instant::now(), Effects::default());
        for seconds in [180, 35, 60] {
            fx.is_due(now + Duration::from_secs(seconds));
        }
        assert_eq!(fx.deadline, Some(now + Duration::from_secs(35)));
    }
}
