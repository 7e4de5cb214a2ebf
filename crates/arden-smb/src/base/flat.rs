//! Work that begins other work while it runs or is dropped, thousands of times one after the other, without a deep stack.

use std::{cell::RefCell, collections::VecDeque};

type Next = Box<dyn FnOnce()>;

thread_local! {
    /// What begins next on this thread. None: nothing runs on it.
    static NEXT: RefCell<Option<VecDeque<Next>>> = const { RefCell::new(None) };
}

/// Runs `work` now, or behind what runs on this thread already, where that begins it.
pub fn run(work: impl FnOnce() + 'static) {
    let is_behind = NEXT.with_borrow_mut(|next| match next {
        Some(_) => true,
        None => {
            *next = Some(VecDeque::new());
            false
        }
    });
    if is_behind {
        return NEXT.with_borrow_mut(|next| next.get_or_insert_default().push_back(Box::new(work)));
    }
    // Also where the work panics, and then what is behind it is dropped.
    let _rest = Rest;
    work();
    while let Some(work) = NEXT.with_borrow_mut(|next| next.as_mut().and_then(VecDeque::pop_front)) {
        work();
    }
}

struct Rest;

impl Drop for Rest {
    fn drop(&mut self) {
        drop(NEXT.take());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Begins the next one when it is dropped, as work does that a runtime drops while it stops.
    struct Begins(u32, mpsc::Sender<u32>);

    impl Drop for Begins {
        fn drop(&mut self) {
            if let Some(left) = self.0.checked_sub(1) {
                let next = Begins(left, self.1.clone());
                run(move || drop(next));
            }
            self.1.send(self.0).unwrap();
        }
    }

    #[test]
    fn what_begins_the_next_one_nests_in_nothing() {
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::Builder::new().stack_size(128 << 10);
        thread.spawn(move || run(move || drop(Begins(100_000, sender)))).unwrap().join().unwrap();
        assert!(receiver.iter().eq((0..=100_000).rev()));
    }

    #[test]
    fn after_a_panic_a_thread_runs_what_comes_then() {
        let panics = std::panic::catch_unwind(|| {
            run(|| {
                run(|| unreachable!("what is behind a panic is dropped"));
                panic!("of the test")
            })
        });
        assert!(panics.is_err());
        let (sender, receiver) = mpsc::channel();
        run(move || sender.send(1).unwrap());
        assert_eq!(receiver.recv(), Ok(1));
    }
}
