//! Operations in flight on one disk, and giving up on those that never end. A hung disk must
//! not hang its pool; but what it was asked to write may still reach it, so operations that
//! were given up count as in flight until the device answers.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use arden_block::{IoError, IoResult, LocalFuture, Rt};

struct Slot {
    deadline_ns: u64,
    waker: Option<Waker>,
}

#[derive(Default)]
pub(crate) struct Watch {
    slots: RefCell<Vec<Option<Slot>>>,
    free: RefCell<Vec<usize>>,
    in_flight: Cell<usize>,
    looking: Cell<bool>,
    hung: Cell<bool>,
    /// For readers on other threads: nothing that the disk answers counts any more.
    gone: Arc<AtomicBool>,
}

/// Counts an operation for as long as it lives.
struct InFlight {
    watch: Rc<Watch>,
    id: usize,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let w = &self.watch;
        w.slots.borrow_mut()[self.id] = None;
        w.free.borrow_mut().push(self.id);
        w.in_flight.set(w.in_flight.get() - 1);
    }
}

impl Watch {
    pub(crate) fn new(gone: Arc<AtomicBool>) -> Watch {
        Watch { gone, ..Watch::default() }
    }

    /// Comes before anything that depends on the disk's departure.
    pub(crate) fn answers_count_no_more(&self) {
        self.gone.store(true, Ordering::SeqCst);
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    fn enter(self: &Rc<Self>, deadline_ns: u64) -> InFlight {
        let slot = Some(Slot { deadline_ns, waker: None });
        let mut slots = self.slots.borrow_mut();
        let id = match self.free.borrow_mut().pop() {
            Some(id) => {
                slots[id] = slot;
                id
            }
            None => {
                slots.push(slot);
                slots.len() - 1
            }
        };
        self.in_flight.set(self.in_flight.get() + 1);
        InFlight { watch: self.clone(), id }
    }

    /// The operation's answer, or `Gone` when the disk as a whole was given up: when any of its
    /// operations took longer than its limit (`times` the usual one). A device may begin with an
    /// operation as soon as it is asked, so one that was given up is asked no more: nobody would
    /// wait for that answer, and the disk could return before the write has happened.
    pub(crate) async fn run<T: 'static>(
        self: &Rc<Self>,
        rt: &Rt,
        limit_ns: u64,
        times: u64,
        ask: impl FnOnce() -> LocalFuture<IoResult<T>>,
    ) -> IoResult<T> {
        if self.hung.get() {
            return Err(IoError::Gone);
        }
        let mut op = ask();
        let guard = self.enter(rt.now_ns().saturating_add(limit_ns.saturating_mul(times)));
        self.look(rt, limit_ns);
        let answer = std::future::poll_fn(|cx| {
            if let Poll::Ready(v) = op.as_mut().poll(cx) {
                return Poll::Ready(Some(v));
            }
            if self.hung.get() {
                return Poll::Ready(None);
            }
            if let Some(slot) = &mut self.slots.borrow_mut()[guard.id] {
                match &mut slot.waker {
                    Some(w) => w.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
            }
            Poll::Pending
        })
        .await;
        match answer {
            Some(v) => v,
            None => {
                rt.spawn(async move {
                    let _ = op.await;
                    drop(guard);
                });
                Err(IoError::Gone)
            }
        }
    }

    /// Looks, a few times in each limit, whether anything is overdue, while anything runs.
    fn look(self: &Rc<Self>, rt: &Rt, limit_ns: u64) {
        if self.looking.replace(true) {
            return;
        }
        let (me, clock, pause) = (self.clone(), rt.clone(), (limit_ns / 4).max(1));
        rt.spawn(async move {
            while me.in_flight.get() > 0 && !me.hung.get() {
                clock.sleep_ns(pause).await;
                let now = clock.now_ns();
                if me.slots.borrow().iter().flatten().any(|s| s.deadline_ns <= now) {
                    me.give_up();
                }
            }
            me.looking.set(false);
        });
    }

    pub(crate) fn has_given_up(&self) -> bool {
        self.hung.get()
    }

    /// Operations in flight end with `Gone`, and the disk is asked nothing more.
    pub(crate) fn give_up(&self) {
        self.answers_count_no_more();
        self.hung.set(true);
        let wakers: Vec<Waker> = self.slots.borrow_mut().iter_mut().flatten().filter_map(|s| s.waker.take()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use arden_block::sync::Oneshot;

    use super::*;

    #[test]
    fn a_disk_that_was_given_up_is_asked_nothing_more() {
        let rt = Rt::virtual_clock(1);
        let clock = rt.clone();
        rt.block_on(async move {
            let gone = Arc::<AtomicBool>::default();
            let (watch, limit_ns) = (Rc::new(Watch::new(gone.clone())), 1_000_000);
            let never: Oneshot<IoResult<()>> = Oneshot::new();
            let waits = never.clone();
            let hung = watch.run(&clock, limit_ns, 1, move || Box::pin(waits)).await;
            assert_eq!(hung, Err(IoError::Gone));
            assert!(gone.load(Ordering::SeqCst), "readers on other threads know it before anybody acts on it");
            let asked = Rc::new(Cell::new(false));
            let told = asked.clone();
            let more = watch.run(&clock, limit_ns, 1, move || {
                told.set(true);
                Box::pin(std::future::ready(Ok(())))
            });
            assert_eq!(more.await, Err(IoError::Gone));
            assert!(!asked.get(), "nobody would wait for what the disk does with it");
            assert_eq!(watch.in_flight(), 1, "the first may still happen");
            never.set(Ok(()));
            clock.sleep_ns(1).await;
            assert_eq!(watch.in_flight(), 0);
        })
        .unwrap();
    }
}
