//! What a volume may be after a crash: the model after each operation since the last one that was durable.

use std::sync::Arc;

use arden_volume::{Durability, Volume, VolumeStore};

use super::{
    model::{Dump, Model},
    ops::Outcome,
};

pub struct History {
    seed: u64,
    /// With the number of the last operation that each needs.
    states: Vec<(u64, Model)>,
}

impl History {
    pub fn new(seed: u64) -> History {
        History { seed, states: vec![(0, Model::new())] }
    }

    /// The volume was opened and compared.
    pub fn opened(&mut self, vol: &Volume) {
        self.states[0].0 = vol.progress().0;
    }

    /// The newest state, to be changed by the next operation.
    pub fn next(&self) -> Model {
        self.states[self.states.len() - 1].1.clone()
    }

    pub fn note(&mut self, vol: &Volume, outcome: &Outcome, model: Model) {
        let (seq, durable) = vol.progress();
        match outcome {
            // Some operations change nothing, and then nothing has to be durable.
            Outcome::Done if self.states.last().is_some_and(|(_, m)| *m == model) => {}
            Outcome::Done => self.states.push((seq, model)),
            Outcome::Unknown => self.states.push((u64::MAX, model)),
            Outcome::Refused => {}
        }
        // All before the last one that is durable cannot be any more.
        let keep = self.states.iter().rposition(|(s, _)| *s <= durable).unwrap_or(0);
        self.states.drain(..keep);
    }

    /// Everything that was done is durable.
    pub fn is_settled(&self) -> bool {
        self.states.len() == 1
    }

    /// In memory it has to be the last one.
    pub fn check_now(&mut self, vol: &Arc<Volume>) {
        let last = self.states.len() - 1;
        let before: Vec<_> = self.states.drain(..last).collect();
        let mut now = self.states[0].clone();
        self.check_opened(vol);
        now.0 = vol.progress().0;
        self.states = before;
        self.states.push(now);
    }

    /// Finds out which state it is; from now on it is that one.
    pub fn check_opened(&mut self, vol: &Arc<Volume>) {
        let seed = self.seed;
        let report = vol.check(true).unwrap();
        assert!(report.is_clean(), "seed {seed}: {:#?}", report.errors);
        assert_eq!(report.unaccounted_blocks, 0, "seed {seed}");
        let store = VolumeStore::new(vol.clone(), Durability::Plain);
        let dump = Dump::of(vol, &*store);
        let found = self.states.iter().rposition(|(_, m)| m.dump() == dump);
        let Some(found) = found else {
            let (first, last) = (&self.states[0].1, &self.states[self.states.len() - 1].1);
            panic!(
                "seed {seed}: none of {} states. From the last: {}\nFrom the first: {}",
                self.states.len(),
                last.dump().difference(&dump),
                first.dump().difference(&dump)
            );
        };
        let model = self.states.swap_remove(found).1;
        self.states = vec![(0, model)];
    }
}
