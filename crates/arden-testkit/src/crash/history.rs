//! What a volume may be after a crash: the model after each operation since the last one that promised to be durable. Asks
//! the volume nothing about that: what it says of its own progress may be wrong.

use std::sync::Arc;

use arden_volume::{Durability, Volume, VolumeStore};

use super::{
    model::{Dump, Model},
    ops::Outcome,
};

pub struct History {
    seed: u64,
    states: Vec<Model>,
}

impl History {
    pub fn new(seed: u64) -> History {
        History { seed, states: vec![Model::new()] }
    }

    /// The newest state, to be changed by the next operation.
    pub fn next(&self) -> Model {
        self.states[self.states.len() - 1].clone()
    }

    /// After an operation. `through`: what is done is durable when it is acknowledged.
    pub fn note(&mut self, outcome: &Outcome, model: Model, through: bool) {
        match outcome {
            Outcome::Refused => return,
            // Some operations change nothing.
            Outcome::Done | Outcome::Durable if self.states.last().is_some_and(|m| *m == model) => {}
            Outcome::Done | Outcome::Durable | Outcome::Unknown => self.states.push(model),
        }
        if *outcome == Outcome::Durable || through && *outcome == Outcome::Done {
            self.durable();
        }
    }

    /// Everything that was done is durable: nothing before it can be any more.
    pub fn durable(&mut self) {
        let last = self.states.len() - 1;
        self.states.drain(..last);
    }

    /// In memory it has to be the last one.
    pub fn check_now(&mut self, vol: &Arc<Volume>) {
        let last = self.states.len() - 1;
        let before: Vec<_> = self.states.drain(..last).collect();
        let now = self.states[0].clone();
        self.check_opened(vol);
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
        let found = self.states.iter().rposition(|m| m.dump() == dump);
        let Some(found) = found else {
            let (first, last) = (&self.states[0], &self.states[self.states.len() - 1]);
            panic!(
                "seed {seed}: none of {} states. From the last: {}\nFrom the first: {}",
                self.states.len(),
                last.dump().difference(&dump),
                first.dump().difference(&dump)
            );
        };
        let model = self.states.swap_remove(found);
        self.states = vec![model];
    }
}
