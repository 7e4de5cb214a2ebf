//! A kept open whose id is that of another open here. Nodes of before gave ids in each other's ranges, so the same one may be kept in two
//! pools. The open is taken up by a new id: its file stays protected, and its client, which names its CreateGuid too, finds it.

use std::{collections::HashMap, sync::Arc};

use arden_store::{commit::CommitScope, handles::HandleChange};

use super::{Found, Kept, put};
use crate::{
    model::kept::{lock_key, sequence_key},
    trees::Trees,
};

/// What was kept by the id of before, and what is kept by the new one beside the open itself.
pub(super) struct Renumbered {
    gone: Vec<HandleChange>,
    new: Vec<HandleChange>,
}

impl Trees {
    /// Whether the kept open is one of this run: its share became continuously available while it was in use.
    pub(super) fn is_open(&self, kept: &Kept) -> bool {
        let is_same = |file: u64| file == kept.open.file;
        self.open(kept.open.id.0).is_some_and(|open| {
            open.client == kept.open.client
                && open.create_guid == Some(kept.create_guid)
                && open.file().is_some_and(|file| is_same(file.file_id().file))
        })
    }

    /// New ids for those whose ids others have. By the new id.
    pub(super) fn renumber_taken(&self, found: &mut Found) -> HashMap<u64, Renumbered> {
        let mut renumbered = HashMap::new();
        for at in 0..found.opens.len() {
            let before = found.opens[at].open.id.0;
            if self.open(before).is_none() {
                continue;
            }
            let id = loop {
                let id = self.table.reserve_open();
                if self.open(id.0).is_none() && found.opens.iter().all(|kept| kept.open.id != id) {
                    break id;
                }
            };
            let kept = &mut found.opens[at];
            kept.open.id = id;
            tracing::error!(share = %kept.share, file = %kept.name, id = before, new_id = id.0,
                "a persistent handle has the id of another open, and gets a new one");
            renumbered.insert(id.0, found.renumber(before, id.0));
        }
        renumbered
    }

    /// The open was taken up: it is kept by its new id alone.
    pub(super) fn keep_renumbered(&self, scope: &CommitScope, id: u64, renumbered: &mut HashMap<u64, Renumbered>) {
        let Some(Renumbered { gone, new }) = renumbered.remove(&id) else { return };
        let state = self.persistence();
        let Some(open) = state.opens.get(&id).map(Arc::as_ref) else { return };
        put(scope, open, gone.into_iter().chain(new).chain(state.open_change(open)).collect());
    }
}

impl Found {
    fn renumber(&mut self, before: u64, id: u64) -> Renumbered {
        let mut changed = Renumbered { gone: self.removal(before), new: Vec::new() };
        if let Some(held) = self.locks.remove(&before) {
            let kept = |(range, count): (&_, &u32)| (lock_key(id, *range), count.to_le_bytes().to_vec());
            changed.new.extend(held.iter().map(kept).map(|(key, value)| HandleChange::Put { key, value }));
            self.locks.insert(id, held);
        }
        if let Some(numbers) = self.sequences.remove(&before) {
            let kept = |(bucket, number): &(usize, u8)| (sequence_key(id, *bucket), vec![*number]);
            changed.new.extend(numbers.iter().map(kept).map(|(key, value)| HandleChange::Put { key, value }));
            self.sequences.insert(id, numbers);
        }
        changed
    }
}

impl Renumbered {
    /// It is not taken up: nothing of it is kept any more.
    pub fn given_up(self) -> Vec<HandleChange> {
        self.gone
    }
}
