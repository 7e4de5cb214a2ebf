//! What a volume may be after a crash: the model after each operation since the last one that promised to be durable. Asks
//! the volume nothing about that: what it says of its own progress may be wrong.

use std::{rc::Rc, sync::Arc};

use arden_block::rng::Rng;
use arden_store::{
    store::FileStore,
    usn::{JournalInfo, Record},
};
use arden_volume::{Durability, Volume, VolumeStore};

use super::{
    model::{Dump, Model},
    ops::{Outcome, step},
    usn,
};

pub struct History {
    seed: u64,
    states: Vec<Model>,
    /// The change journal as somebody was told of it last, and the highest USN that anybody was told.
    told: Option<(JournalInfo, Vec<Record>)>,
    told_next: u64,
    /// How often records that were told were looked for, and how often limits.
    pub journals_read: u64,
    pub limits_read: u64,
}

impl History {
    pub fn new(seed: u64) -> History {
        History { seed, states: vec![Model::new()], told: None, told_next: 0, journals_read: 0, limits_read: 0 }
    }

    /// Makes one operation and notes what came of it. `through`: what is done is durable when it is acknowledged.
    pub fn step(&mut self, rng: &mut Rng, vol: &Volume, store: &dyn FileStore, through: bool) -> Outcome {
        if rng.one_in(2) {
            self.close_files(store);
        }
        let mut model = self.states[self.states.len() - 1].clone();
        let outcome = step(rng, vol, store, &mut model, self.seed);
        self.note(&outcome, model, through);
        outcome
    }

    /// After an operation.
    fn note(&mut self, outcome: &Outcome, mut model: Model, through: bool) {
        let last = self.states.len() - 1;
        match outcome {
            Outcome::Refused => return,
            // Some operations change nothing.
            Outcome::Done | Outcome::Durable if self.states[last] == model => {}
            Outcome::Done | Outcome::Durable | Outcome::Unknown => {
                model.expect_records(&self.states[last]);
                self.states.push(model);
            }
        }
        if *outcome == Outcome::Durable || through && *outcome == Outcome::Done {
            self.durable();
        }
    }

    /// The change journal says that all files are closed: what comes next has records of its own.
    fn close_files(&mut self, store: &dyn FileStore) {
        let newest = self.states.last_mut().and_then(|m| m.journal.as_mut());
        if let (Some(journal), Some(code)) = (newest, store.change_journal())
            && let Ok(end) = code.end()
        {
            Rc::make_mut(journal).closed_at(end);
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
        let told = self.check_opened(vol);
        if !told {
            self.states.splice(..0, before);
        }
    }

    /// Finds out which state it is; from now on it is that one. Whether the change journal told that this is durable.
    pub fn check_opened(&mut self, vol: &Arc<Volume>) -> bool {
        let seed = self.seed;
        let report = vol.check(true).unwrap();
        assert!(report.is_clean(), "seed {seed}: {:#?}", report.errors);
        assert_eq!(report.unaccounted_blocks, 0, "seed {seed}");
        let store = VolumeStore::new(vol.clone(), Durability::Plain);
        let dump = Dump::of(vol, &*store);
        let read = usn::read_all(&*store);
        let like: Vec<usize> = (0..self.states.len()).rev().filter(|&i| self.states[i].dump() == dump).collect();
        let Some(newest) = like.first() else {
            let (first, last) = (&self.states[0], &self.states[self.states.len() - 1]);
            panic!(
                "seed {seed}: none of {} states. From the last: {}\nFrom the first: {}",
                self.states.len(),
                last.dump().difference(&dump),
                first.dump().difference(&dump)
            );
        };
        // Power may be lost while the journal is read: then nothing was told.
        let Ok(read) = read else {
            self.states = vec![self.states.swap_remove(*newest)];
            return false;
        };
        let wrong = |i: &usize| usn::difference(self.states[*i].journal.as_deref(), &read);
        let Some(found) = like.iter().find(|i| wrong(i).is_none()) else {
            panic!("seed {seed}: change journal: {}", wrong(newest).unwrap_or_default());
        };
        let mut model = self.states.swap_remove(*found);
        match (&mut model.journal, &read) {
            (Some(journal), Some((info, _))) => Rc::make_mut(journal).found(info),
            (journal, _) => *journal = None,
        }
        model.learn_shorts(&dump);
        self.limits_read += u64::from(!model.limits.is_empty());
        self.states = vec![model];
        self.tell(read)
    }

    /// What somebody was told of the change journal stays.
    fn tell(&mut self, read: Option<(JournalInfo, Vec<Record>)>) -> bool {
        let seed = self.seed;
        let Some((info, records)) = read else {
            self.told = None;
            return false;
        };
        let (next, told) = (info.next, self.told_next);
        assert!(next >= told, "seed {seed}: the change journal went back from {told} to {next}");
        if let Some((_, before)) = self.told.take().filter(|(before, _)| before.id == info.id) {
            let kept = before.iter().filter(|r| r.usn >= info.first);
            let gone = kept.filter(|r| records.binary_search_by_key(&r.usn, |r| r.usn).map(|i| &records[i]) != Ok(*r));
            let gone: Vec<_> = gone.collect();
            assert!(gone.is_empty(), "seed {seed}: records of the change journal changed or went: {gone:?}");
            self.journals_read += 1;
        }
        self.told_next = next;
        self.told = Some((info, records));
        true
    }
}
