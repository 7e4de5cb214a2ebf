//! Synchronisation between tasks of one runtime: an asynchronous mutex, a notification, a one-shot value, and joins.
//! Everything stays on one thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::LocalFuture;

/// Wakes everybody who waits. A waiter sees every `notify_all` that follows its creation.
#[derive(Default)]
pub struct Notify {
    generation: Cell<u64>,
    waiters: RefCell<Vec<Waker>>,
}

impl Notify {
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Wakes all tasks that wait.
    pub fn notify_all(&self) {
        self.generation.set(self.generation.get() + 1);
        let waiters = std::mem::take(&mut *self.waiters.borrow_mut());
        for w in waiters {
            w.wake();
        }
    }

    /// Completes at the first `notify_all` after this call (not after the first poll).
    pub fn wait(&self) -> NotifyWait<'_> {
        NotifyWait { notify: self, generation: self.generation.get() }
    }
}

/// The future of [`Notify::wait`].
pub struct NotifyWait<'a> {
    notify: &'a Notify,
    generation: u64,
}

impl Future for NotifyWait<'_> {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.notify.generation.get() != self.generation {
            return Poll::Ready(());
        }
        self.notify.waiters.borrow_mut().push(cx.waker().clone());
        Poll::Pending
    }
}

/// A fair mutex whose holder may wait.
#[derive(Default)]
pub struct Mutex {
    held: Cell<bool>,
    queue: RefCell<VecDeque<Rc<Ticket>>>,
}

#[derive(Default)]
struct Ticket {
    granted: Cell<bool>,
    abandoned: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Mutex {
    pub fn new() -> Mutex {
        Mutex::default()
    }

    /// Waits for the mutex; waiters get it in the order in which they asked.
    pub fn lock(&self) -> MutexLock<'_> {
        MutexLock { mutex: self, ticket: None }
    }

    /// Whether the mutex is held.
    pub fn is_locked(&self) -> bool {
        self.held.get()
    }

    fn release(&self) {
        loop {
            let next = self.queue.borrow_mut().pop_front();
            match next {
                None => {
                    self.held.set(false);
                    return;
                }
                Some(t) if t.abandoned.get() => {}
                Some(t) => {
                    t.granted.set(true);
                    let w = t.waker.borrow_mut().take();
                    if let Some(w) = w {
                        w.wake();
                    }
                    return;
                }
            }
        }
    }
}

/// The future of [`Mutex::lock`].
pub struct MutexLock<'a> {
    mutex: &'a Mutex,
    ticket: Option<Rc<Ticket>>,
}

impl<'a> Future for MutexLock<'a> {
    type Output = MutexGuard<'a>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<MutexGuard<'a>> {
        let mutex = self.mutex;
        if let Some(t) = &self.ticket {
            if t.granted.get() {
                self.ticket = None;
                return Poll::Ready(MutexGuard { mutex });
            }
            *t.waker.borrow_mut() = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if !mutex.held.get() {
            mutex.held.set(true);
            return Poll::Ready(MutexGuard { mutex });
        }
        let t = Rc::new(Ticket::default());
        *t.waker.borrow_mut() = Some(cx.waker().clone());
        mutex.queue.borrow_mut().push_back(t.clone());
        self.ticket = Some(t);
        Poll::Pending
    }
}

impl Drop for MutexLock<'_> {
    fn drop(&mut self) {
        if let Some(t) = self.ticket.take() {
            t.abandoned.set(true);
            if t.granted.get() {
                self.mutex.release();
            }
        }
    }
}

/// A held [`Mutex`].
pub struct MutexGuard<'a> {
    mutex: &'a Mutex,
}

impl Drop for MutexGuard<'_> {
    fn drop(&mut self) {
        self.mutex.release();
    }
}

/// The two ends of a value that comes later.
pub struct Oneshot<T> {
    state: Rc<OneshotState<T>>,
}

struct OneshotState<T> {
    value: RefCell<Option<T>>,
    waker: RefCell<Option<Waker>>,
}

impl<T> Clone for Oneshot<T> {
    fn clone(&self) -> Self {
        Oneshot { state: self.state.clone() }
    }
}

impl<T> Default for Oneshot<T> {
    fn default() -> Self {
        Oneshot { state: Rc::new(OneshotState { value: RefCell::new(None), waker: RefCell::new(None) }) }
    }
}

impl<T> Oneshot<T> {
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the value and wakes its receiver.
    pub fn set(&self, value: T) {
        *self.state.value.borrow_mut() = Some(value);
        let w = self.state.waker.borrow_mut().take();
        if let Some(w) = w {
            w.wake();
        }
    }
}

impl<T> Future for Oneshot<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        if let Some(v) = self.state.value.borrow_mut().take() {
            return Poll::Ready(v);
        }
        *self.state.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Runs all futures at once and gives their answers in order.
pub fn join_all<T: 'static>(futures: Vec<LocalFuture<T>>) -> JoinAll<T> {
    JoinAll { slots: futures.into_iter().map(Slot::Running).collect() }
}

enum Slot<T> {
    Running(LocalFuture<T>),
    Done(T),
}

/// The future of [`join_all`].
pub struct JoinAll<T> {
    slots: Vec<Slot<T>>,
}

impl<T> Unpin for JoinAll<T> {}

impl<T: 'static> Future for JoinAll<T> {
    type Output = Vec<T>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Vec<T>> {
        let mut pending = false;
        for slot in &mut self.slots {
            if let Slot::Running(f) = slot {
                match f.as_mut().poll(cx) {
                    Poll::Ready(v) => *slot = Slot::Done(v),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending {
            return Poll::Pending;
        }
        let slots = std::mem::take(&mut self.slots);
        Poll::Ready(
            slots
                .into_iter()
                .filter_map(|s| match s {
                    Slot::Done(v) => Some(v),
                    Slot::Running(_) => None,
                })
                .collect(),
        )
    }
}
