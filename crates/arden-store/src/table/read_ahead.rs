//! Names that directory listings have read ahead: how many bytes each user and everybody may keep between two requests.
//! Refuses to know directories.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use arden_lock::{Mutex, ranks};
use arden_wire::dtyp::Sid;

/// What all listings keep.
#[derive(Default)]
pub(crate) struct ReadAhead {
    whole: Arc<AtomicUsize>,
    users: Mutex<HashMap<Sid, Weak<AtomicUsize>>, ranks::ReadAhead>,
}

/// What one listing keeps.
pub(crate) struct Kept {
    whole: Arc<AtomicUsize>,
    user: Arc<AtomicUsize>,
    bytes: usize,
}

impl ReadAhead {
    /// For a listing of `user`, which keeps nothing yet.
    pub fn of(&self, user: &Sid) -> Kept {
        let mut users = self.users.lock();
        let found = users.get(user).and_then(Weak::upgrade);
        let user = found.unwrap_or_else(|| {
            users.retain(|_, kept| kept.strong_count() > 0);
            let kept = Arc::default();
            users.insert(user.clone(), Arc::downgrade(&kept));
            kept
        });
        Kept { whole: self.whole.clone(), user, bytes: 0 }
    }
}

impl Kept {
    /// The listing keeps so many bytes from now on. False: it may keep nothing, as that is more than `user_max` for the user,
    /// or more than `whole_max` for all.
    pub fn keep(&mut self, bytes: usize, user_max: usize, whole_max: usize) -> bool {
        let fits = [(&self.user, user_max), (&self.whole, whole_max)].map(|(kept, max)| {
            let before = kept.fetch_add(bytes, Ordering::Relaxed);
            kept.fetch_sub(self.bytes, Ordering::Relaxed);
            before + bytes - self.bytes <= max
        });
        self.bytes = bytes;
        let fits = fits == [true, true];
        if !fits {
            self.give_up();
        }
        fits
    }

    fn give_up(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.user.fetch_sub(bytes, Ordering::Relaxed);
        self.whole.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_the_whole_are_bound() {
        let all = ReadAhead::default();
        let (a, b) = (Sid::new(5, &[1]), Sid::new(5, &[2]));
        let (mut one, mut two, mut three) = (all.of(&a), all.of(&a), all.of(&b));
        assert!(one.keep(60, 100, 150) && one.keep(70, 100, 150));
        assert!(!two.keep(40, 100, 150), "the user");
        assert!(two.keep(30, 100, 150));
        assert!(!three.keep(60, 100, 150), "the whole");
        assert!(one.keep(0, 100, 150) && three.keep(60, 100, 150));
        drop((one, two, three));
        assert_eq!(all.whole.load(Ordering::Relaxed), 0);
    }
}
