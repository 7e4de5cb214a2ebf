//! Who waits for the change journal to grow. Each is told once, and only that it is worth asking where the journal ends.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use arden_store::store::WatchGuard;
use parking_lot::Mutex;

use crate::{disk::error::VolResult, engine::volume::Volume, features::usn::info_of};

type Wake = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Waiting {
    last: u64,
    /// By number: the USN that is waited for.
    by_number: BTreeMap<u64, (u64, Wake)>,
}

#[derive(Default)]
pub struct Watchers(Mutex<Waiting>);

impl Watchers {
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
    vol: Weak<Volume>,
    number: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(vol) = self.vol.upgrade() {
            let gone = vol.watchers.0.lock().by_number.remove(&self.number);
            drop(gone);
        }
    }
}

impl Volume {
    /// Calls `wake` once, until the guard is dropped: when the journal ends at `usn` or behind it, is deleted, or has to be
    /// asked where it ends. May do so with the volume locked.
    pub fn watch_journal(self: &Arc<Self>, usn: u64, wake: Wake) -> VolResult<WatchGuard> {
        let number = {
            let mut s = self.watchers.0.lock();
            s.last += 1;
            let number = s.last;
            s.by_number.insert(number, (usn, wake));
            number
        };
        let guard = Box::new(Watch { vol: Arc::downgrade(self), number });
        // What came before it was on the list nobody tells it.
        let end = self.journal_end()?;
        self.watchers.moved(Some(end));
        Ok(guard)
    }

    /// Where the journal ends, also while that is not durable.
    pub fn journal_end(&self) -> VolResult<u64> {
        self.write_close_records()?;
        Ok(info_of(&self.reading())?.ok_or(crate::disk::error::VolError::NoJournal)?.next)
    }
}
