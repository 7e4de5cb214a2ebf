//! How long the commands of a simulated disk take: by chance, or by a timing model with a queue, a write cache and an arm.

use super::*;
use crate::timing::{Rotating, Ssd};

/// The command queue of a timed disk.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Vec<Command>,
    busy: usize,
    head: u64,
    last_end: u64,
    last_was_write: bool,
    bus_free_ns: u64,
    cached_bytes: u64,
    destages: u64,
    drain: Vec<Oneshot<()>>,
    room: Vec<Oneshot<()>>,
}

struct Command {
    /// When the disk has understood it.
    ready_ns: u64,
    offset: u64,
    len: u64,
    write: bool,
    /// A destage of the write cache: nobody waits for it but a flush.
    background: bool,
    done: Option<Oneshot<()>>,
}

/// Waits as long as the operation takes on this disk.
pub(super) async fn service(
    disk: SimDisk,
    rt: Rt,
    queue: Rc<RefCell<Queue>>,
    offset: u64,
    len: u64,
    write: bool,
    fua: bool,
) {
    match disk.model.as_deref() {
        None => {
            let ns = {
                let mut s = disk.state.borrow_mut();
                let (lo, hi) = (s.faults.latency_min_ns, s.faults.latency_max_ns);
                let (ppm, stall_ns) = (s.faults.stall_ppm, s.faults.stall_ns);
                let stalls = ppm > 0 && s.rng.ppm(ppm);
                s.counters.stalled += u64::from(stalls);
                let stall = if stalls { stall_ns } else { 0 };
                s.rng.range(lo, hi.max(lo)) + stall
            };
            rt.sleep_ns(ns).await;
        }
        Some(Model::Ssd(m)) => {
            let until = {
                let mut q = queue.borrow_mut();
                let now = rt.now_ns();
                let bus = (u128::from(len) * 1_000_000_000 / u128::from(m.bus_bytes_s)) as u64;
                q.bus_free_ns = q.bus_free_ns.max(now) + bus;
                q.bus_free_ns
            };
            ssd_channel(&rt, &queue, m, if write { m.write_ns } else { m.read_ns }).await;
            rt.sleep_until_ns(until.max(rt.now_ns())).await;
        }
        Some(Model::Rotating(m)) => {
            let out = Oneshot::new();
            if write && m.write_cache && !fua {
                rt.sleep_ns(m.overhead_ns).await;
                while queue.borrow().cached_bytes + len > m.cache_bytes && queue.borrow().cached_bytes > 0 {
                    let wait = Oneshot::new();
                    queue.borrow_mut().room.push(wait.clone());
                    wait.await;
                }
                let mut q = queue.borrow_mut();
                q.cached_bytes += len;
                q.destages += 1;
                q.waiting.push(Command { ready_ns: 0, offset, len, write, background: true, done: None });
                drop(q);
                pump(&disk, &rt, &queue);
                return;
            }
            let ready_ns = rt.now_ns() + m.overhead_ns;
            let c = Command { ready_ns, offset, len, write, background: false, done: Some(out.clone()) };
            queue.borrow_mut().waiting.push(c);
            pump(&disk, &rt, &queue);
            out.await;
        }
    }
}

async fn ssd_channel(rt: &Rt, queue: &Rc<RefCell<Queue>>, m: &Ssd, ns: u64) {
    while queue.borrow().busy >= m.channels {
        let wait = Oneshot::new();
        queue.borrow_mut().room.push(wait.clone());
        wait.await;
    }
    queue.borrow_mut().busy += 1;
    rt.sleep_ns(ns).await;
    let next = {
        let mut q = queue.borrow_mut();
        q.busy -= 1;
        if q.room.is_empty() { None } else { Some(q.room.remove(0)) }
    };
    if let Some(n) = next {
        n.set(());
    }
}

/// Which command the arm serves next: the one it reaches first, among the oldest; the cache's
/// own writes stand back while somebody waits, unless the cache is nearly full.
fn choose(q: &Queue, m: &Rotating, now: u64) -> Option<(usize, u64)> {
    let pressed = q.cached_bytes * 4 > m.cache_bytes * 3;
    let foreground = q.waiting.iter().any(|c| !c.background);
    let mut best: Option<(usize, u64)> = None;
    let mut seen = 0;
    for (i, c) in q.waiting.iter().enumerate() {
        if foreground && c.background && !pressed {
            continue;
        }
        // The cache is not bound by the command queue: it sorts all it holds.
        if !c.background {
            seen += 1;
            if seen > m.queue_max {
                continue;
            }
        }
        // Reading on is free (read-ahead), and so is a write that continues the last one and was
        // known before that ended: from the cache, or because it waited in the queue.
        let known = !c.write || c.background || c.ready_ns <= now;
        let follows = c.offset == q.last_end && c.write == q.last_was_write && known;
        // Understanding a command goes on while the arm serves the one before.
        let decode = c.ready_ns.saturating_sub(now);
        let t = if follows { 0 } else { decode + m.position_ns(now + decode, q.head, c.offset) };
        if best.is_none_or(|(_, b)| t < b) {
            best = Some((i, t));
        }
    }
    best
}

fn pump(disk: &SimDisk, rt: &Rt, queue: &Rc<RefCell<Queue>>) {
    let Some(Model::Rotating(m)) = disk.model.as_deref() else { return };
    let (command, busy_ns) = {
        let mut q = queue.borrow_mut();
        if q.busy > 0 {
            return;
        }
        let Some((i, position)) = choose(&q, m, rt.now_ns()) else { return };
        let c = q.waiting.remove(i);
        q.busy = 1;
        q.head = c.offset + c.len;
        q.last_end = q.head;
        q.last_was_write = c.write;
        let t = position + m.transfer_ns(c.offset, c.len);
        (c, t)
    };
    let (disk2, rt2, queue2) = (disk.clone(), rt.clone(), queue.clone());
    rt.spawn(async move {
        rt2.sleep_ns(busy_ns).await;
        let mut wake = Vec::new();
        {
            let mut q = queue2.borrow_mut();
            q.busy = 0;
            if command.background {
                q.cached_bytes -= command.len;
                q.destages -= 1;
                wake.append(&mut q.room);
                if q.destages == 0 {
                    wake.append(&mut q.drain);
                }
            }
        }
        wake.extend(command.done);
        for w in wake {
            w.set(());
        }
        pump(&disk2, &rt2, &queue2);
    });
}

/// A flush waits until the write cache is empty.
pub(super) async fn service_flush(disk: SimDisk, rt: Rt, queue: Rc<RefCell<Queue>>) {
    match disk.model.as_deref() {
        None => service(disk, rt, queue, 0, 0, true, true).await,
        Some(Model::Ssd(m)) => rt.sleep_ns(m.flush_ns).await,
        Some(Model::Rotating(_)) => {
            if queue.borrow().destages > 0 {
                let wait = Oneshot::new();
                queue.borrow_mut().drain.push(wait.clone());
                wait.await;
            }
        }
    }
}
