//! Which locks this thread holds. Nothing in release builds.

#[cfg(debug_assertions)]
mod checked {
    use std::cell::RefCell;

    use crate::Rank;

    thread_local! {
        static HELD: RefCell<Vec<(u16, &'static str)>> = const { RefCell::new(Vec::new()) };
    }

    /// Does nothing where the thread is at its end and has no list any more: what it still drops may take locks.
    fn with_held(change: impl FnOnce(&mut Vec<(u16, &'static str)>)) {
        let _ = HELD.try_with(|held| change(&mut held.borrow_mut()));
    }

    /// The note that the thread holds a lock; nothing in release builds.
    pub struct Held(u16);

    impl Held {
        /// Notes a lock of rank `R` that was taken without waiting.
        pub fn note<R: Rank>() -> Held {
            with_held(|held| held.push((R::LEVEL, R::NAME)));
            Held(R::LEVEL)
        }

        /// Checks the order, then notes a lock of rank `R`.
        #[track_caller]
        pub fn check<R: Rank>() -> Held {
            Held::check_above::<R>(R::LEVEL)
        }

        /// The same where the thread may hold other locks of this rank.
        #[track_caller]
        pub fn check_next<R: Rank>() -> Held {
            Held::check_above::<R>(R::LEVEL + 1)
        }

        #[track_caller]
        fn check_above<R: Rank>(too_high: u16) -> Held {
            with_held(|held| {
                if let Some((level, name)) = held.iter().max().filter(|(level, _)| *level >= too_high) {
                    panic!("{} (rank {}) is taken while {name} (rank {level}) is held", R::NAME, R::LEVEL);
                }
                held.push((R::LEVEL, R::NAME));
            });
            Held(R::LEVEL)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            with_held(|held| {
                if let Some(at) = held.iter().rposition(|(level, _)| *level == self.0) {
                    held.remove(at);
                }
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod checked {
    use crate::Rank;

    pub struct Held;

    impl Held {
        pub fn note<R: Rank>() -> Held {
            Held
        }
        pub fn check<R: Rank>() -> Held {
            Held
        }
        pub fn check_next<R: Rank>() -> Held {
            Held
        }
    }
}

pub use checked::Held;
