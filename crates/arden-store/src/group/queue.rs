//! Callbacks that wait for the thread of `GroupCommit::serve`. Owns when it sleeps; refuses to commit.

use super::{
    commit::Told,
    sync::{Condvar, Mutex, ranks},
};

struct Asked<E> {
    /// By the number that has to be durable.
    list: Vec<(u64, Told<E>)>,
    /// There is a thread that takes them.
    serves: bool,
}

pub struct CommitQueue<E> {
    asked: Mutex<Asked<E>, ranks::CommitQueue>,
    wakeup: Condvar,
}

impl<E> CommitQueue<E> {
    pub fn new() -> CommitQueue<E> {
        CommitQueue { asked: Mutex::new(Asked { list: Vec::new(), serves: false }), wakeup: Condvar::new() }
    }

    pub fn start(&self) {
        self.asked.lock().serves = true;
    }

    /// No more is taken; what was asked is still done.
    pub fn stop(&self) {
        self.asked.lock().serves = false;
        self.wakeup.notify_all();
    }

    /// Has the thread commit for `done`; gives it back where there is none.
    pub fn ask(&self, target: u64, done: Told<E>) -> Result<(), Told<E>> {
        let mut asked = self.asked.lock();
        if !asked.serves {
            return Err(done);
        }
        asked.list.push((target, done));
        if asked.list.len() == 1 {
            self.wakeup.notify_one();
        }
        Ok(())
    }

    /// The next round's. None when the thread is to end.
    pub fn wait(&self) -> Option<Vec<(u64, Told<E>)>> {
        let mut asked = self.asked.lock();
        while asked.list.is_empty() && asked.serves {
            self.wakeup.wait(&mut asked);
        }
        if asked.list.is_empty() { None } else { Some(std::mem::take(&mut asked.list)) }
    }
}
