//! Ends of sessions that are under way, by user: sessions that are gone, and what they had open is not closed yet. An answer that says that they are gone
//! waits for that.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use arden_lock::{Mutex, ranks};
use arden_wire::dtyp::Sid;

/// What goes on when ends are over: at once, or by whoever ends the last of them. It has to be short, and waits for nothing.
pub type Then = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub struct Endings(Mutex<State, ranks::Endings>);

#[derive(Default)]
struct State {
    next: u64,
    under_way: HashMap<u64, Sid>,
    waiting: Vec<Waiting>,
}

struct Waiting {
    left: HashSet<u64>,
    then: Then,
}

impl Endings {
    /// A session of this user is about to end. Its number, for [`Endings::end`].
    pub fn begin(&self, user: &Sid) -> u64 {
        let mut state = self.0.lock();
        state.next += 1;
        let number = state.next;
        state.under_way.insert(number, user.clone());
        number
    }

    /// What it had open is closed. Nothing where it is not under way.
    pub fn end(&self, number: u64) {
        let mut state = self.0.lock();
        if state.under_way.remove(&number).is_none() {
            return;
        }
        state.waiting.iter_mut().for_each(|waiting| _ = waiting.left.remove(&number));
        let over: Vec<_> = state.waiting.extract_if(.., |waiting| waiting.left.is_empty()).collect();
        drop(state);
        over.into_iter().for_each(|waiting| (waiting.then)());
    }

    /// None of them is heard of any more.
    pub fn end_all(&self) {
        let waiting = {
            let mut state = self.0.lock();
            state.under_way.clear();
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(|waiting| (waiting.then)());
    }

    pub fn has(&self, user: &Sid) -> bool {
        self.0.lock().under_way.values().any(|of| of == user)
    }

    /// Calls `then` when those of this user are over that are under way now.
    ///
    /// # Errors
    /// There are none: `then` is given back.
    pub fn after(&self, user: &Sid, then: Then) -> Result<(), Then> {
        let mut state = self.0.lock();
        let left: HashSet<u64> = state.under_way.iter().filter(|(_, of)| *of == user).map(|(n, _)| *n).collect();
        if left.is_empty() {
            return Err(then);
        }
        state.waiting.push(Waiting { left, then });
        Ok(())
    }
}

/// One of them, until it is dropped.
pub struct UnderWay {
    endings: Arc<Endings>,
    number: u64,
}

impl UnderWay {
    pub fn begin(endings: &Arc<Endings>, user: &Sid) -> UnderWay {
        UnderWay { endings: endings.clone(), number: endings.begin(user) }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.endings.end(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn those_of_one_user_that_were_under_way_are_awaited() {
        let (endings, count) = (Arc::<Endings>::default(), Arc::<AtomicUsize>::default());
        let then = || {
            let count = count.clone();
            Box::new(move || _ = count.fetch_add(1, Ordering::Relaxed)) as Then
        };
        let (one, two) = (Sid::new(5, &[21, 1]), Sid::new(5, &[21, 2]));
        assert!(endings.after(&one, then()).is_err());
        let (first, second) = (UnderWay::begin(&endings, &one), UnderWay::begin(&endings, &one));
        assert!(endings.has(&one) && !endings.has(&two));
        assert!(endings.after(&two, then()).is_err() && endings.after(&one, then()).is_ok());
        let _later = UnderWay::begin(&endings, &one);
        drop(first);
        assert_eq!(count.load(Ordering::Relaxed), 0);
        drop(second);
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert!(endings.after(&one, then()).is_ok());
        endings.end_all();
        assert_eq!(count.load(Ordering::Relaxed), 2);
        assert!(!endings.has(&one));
    }
}
