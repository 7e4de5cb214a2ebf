//! What an administrator is told of a pool: events in words, and how far long work has come.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

/// Older ones are forgotten.
const EVENTS_MAX: usize = 200;

#[derive(Default)]
pub(crate) struct Events {
    count: Cell<u64>,
    list: RefCell<VecDeque<String>>,
    /// By name: parts done, and parts in all or 0 when nobody knows.
    progress: RefCell<BTreeMap<&'static str, (u64, u64)>>,
    /// By id: the name of the device as which a disk was here last.
    names: RefCell<BTreeMap<u128, String>>,
}

impl Events {
    pub(crate) fn add(&self, text: String) {
        self.count.set(self.count.get() + 1);
        let mut list = self.list.borrow_mut();
        if list.len() >= EVENTS_MAX {
            list.pop_front();
        }
        list.push_back(text);
    }

    /// How many there were, with those that are forgotten.
    pub(crate) fn count(&self) -> u64 {
        self.count.get()
    }

    pub(crate) fn list(&self) -> Vec<String> {
        self.list.borrow().iter().cloned().collect()
    }

    /// What a disk is called: as it is here, or was when this was asked before, or else when it `joined`.
    pub(crate) fn name(&self, disk: u128, here: Option<&str>, joined: &str) -> String {
        let mut names = self.names.borrow_mut();
        if let Some(name) = here
            && names.get(&disk).is_none_or(|known| known != name)
        {
            names.insert(disk, name.to_string());
        }
        names.get(&disk).map_or(joined, String::as_str).to_string()
    }

    pub(crate) fn progress(&self, work: &'static str, done: u64, total: u64) {
        self.progress.borrow_mut().insert(work, (done, total));
    }

    pub(crate) fn finished(&self, work: &str) {
        self.progress.borrow_mut().remove(work);
    }

    pub(crate) fn all_progress(&self) -> Vec<(String, u64, u64)> {
        self.progress.borrow().iter().map(|(k, v)| (k.to_string(), v.0, v.1)).collect()
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        match self.progress.borrow().iter().find(|(_, p)| p.1 > 0 && p.0 > p.1) {
            Some((work, p)) => Err(format!("{work}: {} parts of {} are done", p.0, p.1)),
            None => Ok(()),
        }
    }
}
