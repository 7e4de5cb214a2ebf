//! The io_uring driver: one ring for a runtime, a batch of submissions a turn. Beside `memory` the only
//! file with `unsafe`. The rule that makes it sound: the kernel sees only memory and descriptors
//! that a slot of `slots` owns, a slot is freed only by its completion, and a driver that is
//! dropped with completions outstanding waits for them.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::io::Errno;

use crate::buf::Buf;
use crate::file::{Descriptor, Op, Outcome};
use crate::sync::Oneshot;

const ENTRIES: u32 = 512;
const WAKE_TOKEN: u64 = u64::MAX;
const TICK_TOKEN: u64 = u64::MAX - 1;
/// While I/O is under way, waits that may last longer end with a tick, which one timer gives for all of them: to set up
/// and take down a timer for each is time that every operation would pay.
const TICK: Duration = Duration::from_millis(500);
static TICK_SPEC: types::Timespec = types::Timespec::new().nsec(TICK.subsec_nanos());
const RWF_DSYNC: i32 = 2;
/// Run what completions are pending, even when none is waited for.
const ENTER_GETEVENTS: u32 = 1;

struct Slot {
    fd: Arc<Descriptor>,
    op: Op,
    /// The target of a read, owned here while the kernel writes to it.
    buf: Option<Buf>,
    done: usize,
    out: Oneshot<Outcome>,
}

pub(crate) struct Uring {
    ring: RefCell<IoUring>,
    slots: RefCell<Vec<Option<Slot>>>,
    free: RefCell<Vec<usize>>,
    /// Slots whose entry did not fit into the submission queue yet.
    backlog: RefCell<VecDeque<usize>>,
    wake: Arc<OwnedFd>,
    wake_armed: Cell<bool>,
    tick_armed: Cell<bool>,
    in_flight: Cell<usize>,
    /// Completions being handled; kept for its memory.
    batch: RefCell<Vec<(u64, i32)>>,
}

impl Uring {
    /// `None` where the kernel refuses (old, or forbidden by policy).
    pub(crate) fn new() -> Option<Uring> {
        Uring::sized(ENTRIES)
    }

    /// A ring that takes so many operations at a time.
    pub(crate) fn sized(entries: u32) -> Option<Uring> {
        let ring = Self::build(entries)?;
        if !ring.params().is_feature_ext_arg() {
            return None;
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        Some(Uring {
            ring: RefCell::new(ring),
            slots: RefCell::default(),
            free: RefCell::default(),
            backlog: RefCell::default(),
            wake: Arc::new(wake),
            wake_armed: Cell::new(false),
            tick_armed: Cell::new(false),
            in_flight: Cell::new(0),
            batch: RefCell::default(),
        })
    }

    /// Completions are handled by us when we ask for them (Linux 6.1), not by interrupting
    /// whatever runs; older kernels get a plain ring.
    fn build(entries: u32) -> Option<IoUring> {
        let mut quiet = IoUring::builder();
        quiet.setup_cqsize(entries * 8).setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        quiet.build(entries).or_else(|_| IoUring::builder().setup_cqsize(entries * 8).build(entries)).ok()
    }

    pub(crate) fn submit(&self, fd: Arc<Descriptor>, op: Op) -> Oneshot<Outcome> {
        let out = Oneshot::new();
        let buf = match &op {
            Op::Read { len, .. } => Some(Buf::new(*len)),
            _ => None,
        };
        let slot = Slot { fd, op, buf, done: 0, out: out.clone() };
        let id = match self.free.borrow_mut().pop() {
            Some(id) => id,
            None => {
                let mut s = self.slots.borrow_mut();
                s.push(None);
                s.len() - 1
            }
        };
        self.slots.borrow_mut()[id] = Some(slot);
        self.backlog.borrow_mut().push_back(id);
        out
    }

    fn entry(slot: &mut Slot) -> squeue::Entry {
        let fd = types::Fd(slot.fd.as_raw_fd());
        match &slot.op {
            Op::Read { offset, len } => {
                let done = slot.done;
                let ptr = slot.buf.as_mut().map_or(std::ptr::null_mut(), |b| b[done..].as_mut_ptr());
                opcode::Read::new(fd, ptr, (len - done) as u32).offset(offset + done as u64).build()
            }
            Op::Write { offset, data, durable } => {
                let done = slot.done;
                opcode::Write::new(fd, data[done..].as_ptr(), (data.len() - done) as u32)
                    .offset(offset + done as u64)
                    .rw_flags(if *durable { RWF_DSYNC } else { 0 })
                    .build()
            }
            Op::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            Op::Allocate { mode, offset, len } => {
                opcode::Fallocate::new(fd, *len).offset(*offset).mode(*mode as i32).build()
            }
            Op::Ready { write } => {
                let events = if *write { PollFlags::OUT } else { PollFlags::IN };
                opcode::PollAdd::new(fd, u32::from(events.bits())).build()
            }
        }
    }

    /// Moves the backlog into the submission queue as far as it goes.
    fn push(&self) {
        let mut ring = self.ring.borrow_mut();
        let mut slots = self.slots.borrow_mut();
        let mut backlog = self.backlog.borrow_mut();
        let mut sq = ring.submission();
        if !self.wake_armed.get() && !sq.is_full() {
            let e = opcode::PollAdd::new(types::Fd(self.wake.as_raw_fd()), 1).build().user_data(WAKE_TOKEN);
            // SAFETY: the entry refers to no memory; the eventfd lives as long as the ring.
            if unsafe { sq.push(&e) }.is_ok() {
                self.wake_armed.set(true);
            }
        }
        while !sq.is_full() {
            let Some(id) = backlog.pop_front() else { break };
            let Some(slot) = slots[id].as_mut() else { continue };
            let e = Self::entry(slot).user_data(id as u64);
            // SAFETY: the entry points into buffers that `slots[id]` owns (heap memory that
            // does not move with the slot) and names a descriptor it holds; the slot is
            // emptied only by `complete`, after the kernel has posted its completion.
            if unsafe { sq.push(&e) }.is_err() {
                backlog.push_front(id);
                break;
            }
            self.in_flight.set(self.in_flight.get() + 1);
        }
    }

    /// Sees to it that a tick ends a wait as long as this one.
    fn arm_tick(&self, wait: Option<Duration>) -> bool {
        if wait.is_none_or(|w| w < TICK) || self.in_flight.get() == 0 {
            return false;
        }
        if !self.tick_armed.get() {
            let e = opcode::Timeout::new(&TICK_SPEC).build().user_data(TICK_TOKEN);
            // SAFETY: what the entry refers to is static.
            self.tick_armed.set(unsafe { self.ring.borrow_mut().submission().push(&e) }.is_ok());
        }
        self.tick_armed.get()
    }

    fn enter(&self, wait: Option<Duration>) {
        let wait = if self.arm_tick(wait) { None } else { wait };
        let queued = self.ring.borrow_mut().submission().len() as u32;
        let ring = self.ring.borrow();
        let submitter = ring.submitter();
        let _ = match wait {
            // SAFETY: no argument is passed; what the queued entries point to is kept as `push` says.
            Some(Duration::ZERO) => unsafe { submitter.enter::<()>(queued, 0, ENTER_GETEVENTS, None) },
            Some(w) => {
                let ts = types::Timespec::new().sec(w.as_secs()).nsec(w.subsec_nanos());
                submitter.submit_with_args(1, &types::SubmitArgs::new().timespec(&ts))
            }
            None => submitter.submit_and_wait(1),
        };
    }

    fn reap(&self) {
        let mut batch = self.batch.take();
        loop {
            batch.extend(self.ring.borrow_mut().completion().take(256).map(|c| (c.user_data(), c.result())));
            if batch.is_empty() {
                self.batch.replace(batch);
                return;
            }
            for (token, result) in batch.drain(..) {
                if token == WAKE_TOKEN {
                    self.wake_armed.set(false);
                    let mut b = [0u8; 8];
                    let _ = rustix::io::read(&*self.wake, &mut b);
                } else if token == TICK_TOKEN {
                    self.tick_armed.set(false);
                } else {
                    self.in_flight.set(self.in_flight.get() - 1);
                    self.complete(token as usize, result);
                }
            }
        }
    }

    fn complete(&self, id: usize, result: i32) {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots[id].as_mut() else { return };
        let want = match &slot.op {
            Op::Read { len, .. } => *len,
            Op::Write { data, .. } => data.len(),
            Op::Flush | Op::Allocate { .. } | Op::Ready { .. } => 0,
        };
        let outcome = if result == -Errno::INTR.raw_os_error() || result == -Errno::AGAIN.raw_os_error() {
            None
        } else if result < 0 {
            Some(Err(Errno::from_raw_os_error(-result)))
        } else {
            slot.done += result as usize;
            if slot.done >= want {
                Some(Ok(()))
            } else if result == 0 {
                Some(Err(Errno::IO))
            } else {
                None
            }
        };
        match outcome {
            None => self.backlog.borrow_mut().push_back(id),
            Some(o) => {
                let slot = slots[id].take();
                drop(slots);
                self.free.borrow_mut().push(id);
                if let Some(mut s) = slot {
                    s.out.set(o.map(|()| s.buf.take()));
                }
            }
        }
    }

    /// Hands over what is queued, when that is at least `at_once` operations.
    pub(crate) fn submit_early(&self, at_once: usize) {
        if self.backlog.borrow().len() >= at_once {
            self.push();
            let queued = self.ring.borrow_mut().submission().len() as u32;
            // SAFETY: no argument is passed; what the queued entries point to is kept as `push` says.
            let _ = unsafe { self.ring.borrow().submitter().enter::<()>(queued, 0, 0, None) };
        }
    }

    /// One system call at most: it hands over what is queued and waits, both at once. `awake`
    /// is called between the wait and the first completion.
    pub(crate) fn turn(&self, wait: Option<Duration>, awake: &dyn Fn()) {
        self.push();
        let (ready, work) = {
            let mut ring = self.ring.borrow_mut();
            let ready = !ring.completion().is_empty();
            let sq = ring.submission();
            (ready, !sq.is_empty() || sq.taskrun() || sq.cq_overflow())
        };
        let wait = if ready || !self.backlog.borrow().is_empty() { Some(Duration::ZERO) } else { wait };
        if work || wait != Some(Duration::ZERO) {
            self.enter(wait);
        }
        awake();
        self.reap();
    }

    pub(crate) fn unparker(&self) -> Arc<dyn Fn() + Send + Sync> {
        let wake = self.wake.clone();
        Arc::new(move || {
            let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
        })
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // The kernel may still write into our buffers: wait for it before they go.
        self.backlog.borrow_mut().clear();
        while self.in_flight.get() > 0 {
            self.enter(Some(Duration::from_secs(1)));
            self.reap();
            self.backlog.borrow_mut().clear();
        }
    }
}
