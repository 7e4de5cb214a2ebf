//! The driver for machines where the kernel refuses io_uring: blocking calls on a few threads.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::buf::Buf;
use crate::file::{Descriptor, Op, Outcome};
use crate::sync::Oneshot;

/// Threads that serve one runtime.
const THREADS: usize = 8;
/// Those of a socket: one for each direction.
const DIRECTIONS: usize = 2;

struct Work {
    id: u64,
    fd: Arc<Descriptor>,
    op: Op,
}

#[derive(Default)]
struct Done {
    results: VecDeque<(u64, Outcome)>,
    kicked: bool,
}

#[derive(Default)]
struct State {
    done: Mutex<Done>,
    cond: Condvar,
}

pub(crate) struct Threads {
    queues: Vec<Sender<Work>>,
    /// The queues are those of a socket.
    of_socket: bool,
    next: Cell<u64>,
    waiting: RefCell<HashMap<u64, Oneshot<Outcome>>>,
    state: Arc<State>,
}

impl Threads {
    pub(crate) fn new() -> Threads {
        Threads::sized(THREADS, false)
    }

    /// They drive nothing but one socket.
    pub(crate) fn for_socket() -> Threads {
        Threads::sized(DIRECTIONS, true)
    }

    fn sized(threads: usize, of_socket: bool) -> Threads {
        let state: Arc<State> = Arc::default();
        let queues = (0..threads)
            .map(|i| {
                let (tx, rx) = channel::<Work>();
                let state = state.clone();
                let spawned = std::thread::Builder::new().name(format!("arden-io-{i}")).spawn(move || {
                    while let Ok(w) = rx.recv() {
                        let outcome = run(&w.fd, w.op);
                        state.done.lock().results.push_back((w.id, outcome));
                        state.cond.notify_one();
                    }
                });
                drop(spawned);
                tx
            })
            .collect();
        Threads { queues, of_socket, next: Cell::new(0), waiting: RefCell::default(), state }
    }

    /// The queue of an operation. One that waits for a socket would keep whatever is behind it from the disks.
    fn queue(&self, id: u64, op: &Op) -> Option<&Sender<Work>> {
        match op {
            Op::Ready { write } => self.queues.get(usize::from(*write)).filter(|_| self.of_socket),
            _ if self.of_socket => None,
            _ => self.queues.get((id % self.queues.len() as u64) as usize),
        }
    }

    pub(crate) fn submit(&self, fd: Arc<Descriptor>, op: Op) -> Oneshot<Outcome> {
        let id = self.next.get();
        self.next.set(id + 1);
        let out = Oneshot::new();
        let Some(queue) = self.queue(id, &op) else {
            out.set(Err(Errno::OPNOTSUPP));
            return out;
        };
        self.waiting.borrow_mut().insert(id, out.clone());
        if queue.send(Work { id, fd, op }).is_err() {
            out.set(Err(Errno::IO));
        }
        out
    }

    pub(crate) fn turn(&self, wait: Option<Duration>, awake: &dyn Fn()) {
        let deadline = wait.map(|w| Instant::now() + w);
        let ready = {
            let mut g = self.state.done.lock();
            while g.results.is_empty() && !g.kicked {
                match deadline {
                    Some(d) if self.state.cond.wait_until(&mut g, d).timed_out() => break,
                    Some(_) => {}
                    None => self.state.cond.wait(&mut g),
                }
            }
            g.kicked = false;
            std::mem::take(&mut g.results)
        };
        awake();
        for (id, outcome) in ready {
            let out = self.waiting.borrow_mut().remove(&id);
            if let Some(out) = out {
                out.set(outcome);
            }
        }
    }

    pub(crate) fn unparker(&self) -> Arc<dyn Fn() + Send + Sync> {
        let state = self.state.clone();
        Arc::new(move || {
            state.done.lock().kicked = true;
            state.cond.notify_one();
        })
    }
}

fn run(fd: &Descriptor, op: Op) -> Outcome {
    match op {
        Op::Read { offset, len } => {
            let mut buf = Buf::new(len);
            let mut done = 0;
            while done < len {
                match rustix::io::pread(fd, &mut buf[done..], offset + done as u64) {
                    Ok(0) => return Err(Errno::IO),
                    Ok(n) => done += n,
                    Err(Errno::INTR) => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(Some(buf))
        }
        Op::Write { offset, data, durable } => {
            let mut done = 0;
            while done < data.len() {
                match rustix::io::pwrite(fd, &data[done..], offset + done as u64) {
                    Ok(0) => return Err(Errno::IO),
                    Ok(n) => done += n,
                    Err(Errno::INTR) => {}
                    Err(e) => return Err(e),
                }
            }
            if durable {
                rustix::fs::fdatasync(fd)?;
            }
            Ok(None)
        }
        Op::Flush => rustix::fs::fdatasync(fd).map(|()| None),
        Op::Allocate { mode, offset, len } => {
            rustix::fs::fallocate(fd, FallocateFlags::from_bits_retain(mode), offset, len).map(|()| None)
        }
        Op::Ready { write } => {
            let mut polled = [PollFd::new(fd, if write { PollFlags::OUT } else { PollFlags::IN })];
            loop {
                match poll(&mut polled, None) {
                    Err(Errno::INTR) => {}
                    other => return other.map(|_| None),
                }
            }
        }
    }
}
