//! Messages on threads that may block: when it is their user's turn, and what they keep in memory until they are answered.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use arden_lock::ranks;
use tokio::runtime::Handle;

use crate::{
    base::{
        buffers::{Paid, Payer, fitted},
        flat,
        shares::{Amount, Shares, Who},
        time::Time,
    },
    server::{Server, Work},
    sessions::work::{Answered, BlockingWork},
    transport::{buffer::Returned, socket::Wake},
};

/// What a connection knows of its messages on other threads.
#[derive(Clone)]
pub struct OfConnection {
    /// Bytes that they keep.
    pub bytes: Arc<AtomicUsize>,
    pub wake: Arc<Wake>,
    /// Where their buffers go that were as large as this at least.
    pub returned: (usize, Arc<Returned>),
}

/// Runs a message on a thread that may block when it is its user's turn. `paid` is what is paid for it until then. From then on
/// its bytes count until its answer was sent, for the user and for the connection.
pub fn begin(
    server: &Arc<Server>,
    runtime: &Handle,
    job: Box<dyn BlockingWork>,
    paid: Option<Paid>,
    of: Option<OfConnection>,
) {
    let who = job.user().map(|user| Who::new(&user, job.peer().ip));
    let bytes = job.bytes();
    let held = Held { server: server.clone(), who: who.clone(), bytes, of };
    let work = Box::new(move || {
        let payer = paid.map(|paid| paid.payer().clone());
        run(job, held, payer);
    });
    match who {
        Some(who) => begin_for(server, |s| &s.jobs, runtime, (who, bytes), work),
        None => drop(runtime.spawn_blocking(work)),
    }
}

/// Runs work of another node's request where it may block, in its user's turn. Its bytes count until it has run.
pub fn begin_forwarded(
    server: &Arc<Server>,
    runtime: &Handle,
    (who, bytes): (Who, usize),
    work: impl FnOnce() + Send + 'static,
) {
    let held = Held { server: server.clone(), who: Some(who.clone()), bytes, of: None };
    let work = move || {
        work();
        drop(held);
    };
    begin_for(server, |s| &s.jobs, runtime, (who, bytes), work);
}

/// Which threads.
type Threads = fn(&Server) -> &Shares<Work, ranks::Jobs>;

/// Ends a connection on a thread that may block. It does not wait behind its user's messages: these may wait for what it frees.
pub fn begin_end(server: &Arc<Server>, runtime: &Handle, who: Who, work: impl FnOnce() + Send + 'static) {
    begin_for(server, |s| &s.endings, runtime, (who, 0), work);
}

/// Runs `work` where it may block, in its user's turn. Who gives it answers for the release of its bytes.
fn begin_for(
    server: &Arc<Server>,
    threads: Threads,
    runtime: &Handle,
    (who, bytes): (Who, usize),
    work: impl FnOnce() + Send + 'static,
) {
    let (runtime, running) = (runtime.clone(), Running { server: server.clone(), threads, who: who.clone() });
    let begin = Box::new(move || {
        runtime.spawn_blocking(move || {
            // Dropped also when the work panics: others of the user are not to wait for ever.
            let _running = running;
            work();
        });
    });
    if let Some(begin) = threads(server).admit(&who, Amount { slots: 1, bytes }, begin) {
        begin();
    }
}

fn run(job: Box<dyn BlockingWork>, mut held: Held, payer: Option<Arc<Payer>>) {
    held.server.trees.set_time(Time::read());
    let (peer, mut spent) = (job.peer().clone(), Vec::new());
    let Answered { frame, granting } = job.answer(&mut spent);
    if let (Some(payer), Some(of)) = (payer, &held.of)
        && spent.capacity() >= of.returned.0
    {
        of.returned.1.put(spent, &payer);
    }
    // More may have been asked for than came of it.
    let frame = fitted(frame);
    held.keep(frame.capacity());
    if !frame.is_empty() {
        peer.send_holding(frame, Box::new(held));
    }
    drop(granting);
}

/// A runtime that stops drops what is begun, and that releases what the next one waits for.
fn begin_all(works: Vec<Work>) {
    works.into_iter().for_each(flat::run);
}

/// What a message keeps in memory, or the answer to it.
struct Held {
    server: Arc<Server>,
    who: Option<Who>,
    bytes: usize,
    of: Option<OfConnection>,
}

impl Held {
    /// Gives back what is more than `bytes`.
    fn keep(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.bytes -= less;
        if let Some(of) = &self.of {
            of.bytes.fetch_sub(less, Ordering::Relaxed);
            of.wake.wake();
        }
        if let Some(who) = &self.who {
            begin_all(self.server.jobs.release(who, Amount::bytes(less)));
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keep(0);
    }
}

/// Work that runs.
struct Running {
    server: Arc<Server>,
    threads: Threads,
    who: Who,
}

impl Drop for Running {
    fn drop(&mut self) {
        begin_all((self.threads)(&self.server).release(&self.who, Amount { slots: 1, bytes: 0 }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of many that wait: dropped, it releases what the next one waits for.
    struct Waiting(u32, Arc<AtomicUsize>);

    impl Drop for Waiting {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
            if let Some(left) = self.0.checked_sub(1) {
                let next = Waiting(left, self.1.clone());
                begin_all(vec![Box::new(move || drop(next))]);
            }
        }
    }

    #[test]
    fn messages_that_wait_when_the_runtime_stops_need_no_stack() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let first = Waiting(100_000, dropped.clone());
        std::thread::Builder::new().stack_size(128 << 10).spawn(move || drop(first)).unwrap().join().unwrap();
        assert_eq!(dropped.load(Ordering::Relaxed), 100_001);
    }
}
