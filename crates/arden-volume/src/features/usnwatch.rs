//! Who waits for the change journal to grow. Each is told once, and only that it is worth asking where the journal ends.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use arden_lock::{Mutex, ranks};
use arden_store::store::WatchGuard;

pub type Wake = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Waiting {
    last: u64,
    /// By number: the USN that is waited for.
    by_number: BTreeMap<u64, (u64, Wake)>,
}

/// Its lock protects the list, and is taken alone, also under the engine's state; nobody is woken under it.
#[derive(Default)]
pub struct Watchers(Mutex<Waiting, ranks::JournalWatchers>);

impl Watchers {
    /// Calls `wake` once, when the journal ends at `usn` or behind it, until the guard is dropped.
    pub fn add(self: &Arc<Self>, usn: u64, wake: Wake) -> WatchGuard {
        let mut s = self.0.lock();
        s.last += 1;
        let number = s.last;
        s.by_number.insert(number, (usn, wake));
        drop(s);
        Box::new(Watch { watchers: Arc::downgrade(self), number })
    }

    /// The journal ends here now; None: it is gone.
    pub fn moved(&self, end: Option<u64>) {
        let mut s = self.0.lock();
        if s.by_number.is_empty() {
            return;
        }
        let all = std::mem::take(&mut s.by_number).into_iter();
        let (reached, left): (BTreeMap<_, _>, _) = all.partition(|(_, (usn, _))| end.is_none_or(|end| *usn <= end));
        s.by_number = left;
        drop(s);
        reached.into_values().for_each(|(_, wake)| wake());
    }

    /// There is something to be written into the journal, as who asks for its end will do.
    pub fn may_move(&self) {
        self.moved(None);
    }
}

struct Watch {
    watchers: Weak<Watchers>,
    number: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(watchers) = self.watchers.upgrade() {
            let gone = watchers.0.lock().by_number.remove(&self.number);
            drop(gone);
        }
    }
}
