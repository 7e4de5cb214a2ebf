//! Sweeps: loads one after the other on one source, by one or several clients. A sweep opens the targets, runs the
//! clients in step, adds their figures, and accounts for processor time.

pub mod view;

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant},
};

use self::view::View;
use crate::{
    Result,
    base::{process, units::size},
    fail,
    load::{Content, Figures, Live, Load, Measured, Recorder, Window, content::UNIT_BYTES, drive},
    source::{Prepared, Source},
};

const TICK: Duration = Duration::from_millis(250);

/// A load and its window.
#[derive(Debug, Clone)]
pub struct TimedLoad {
    /// Title in the progress display.
    pub title: String,
    /// The load of all clients together: each gets a part of the file and of the rate.
    pub load: Load,
    pub window: Window,
}

/// The clients of a sweep.
#[derive(Debug, Clone, Copy)]
pub struct Clients {
    pub count: usize,
    pub writes: bool,
    /// Files are opened for write-through.
    pub write_through: bool,
    /// The seed of the contents, when read data is compared.
    pub verify: Option<u64>,
}

/// The division of the file into one part for each client. It is the same for all loads: a client never writes to
/// blocks whose contents another one knows.
#[derive(Debug, Clone, Copy)]
struct Parts {
    clients: usize,
    /// Parts begin at multiples of this number of bytes, into which every block of every load fits.
    whole_bytes: u64,
    /// A common divisor, in bytes, of all offsets and lengths.
    grain_bytes: u32,
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

impl Parts {
    fn of(loads: &[TimedLoad], clients: usize) -> Parts {
        let blocks = || loads.iter().map(|s| u64::from(s.load.block_bytes).max(1));
        let grain_bytes = blocks().fold(0, common_divisor).max(1);
        let whole_bytes = blocks().max().unwrap_or(1).max(1 << 20).next_multiple_of(grain_bytes);
        Parts { clients, whole_bytes, grain_bytes: grain_bytes as u32 }
    }

    fn load(&self, load: &Load, i: usize) -> Result<Load> {
        if self.clients == 1 {
            return Ok(load.clone());
        }
        let each = (load.file_bytes / self.clients as u64) / self.whole_bytes * self.whole_bytes;
        if each == 0 {
            let least = size(self.whole_bytes * self.clients as u64);
            fail!("the file is too small for {} clients: {} of at least {least}", self.clients, size(load.file_bytes));
        }
        Ok(Load {
            base_bytes: load.base_bytes + each * i as u64,
            file_bytes: each,
            rate: load.rate.map(|r| r / self.clients as f64),
            seed: load.seed.wrapping_add(1000 * i as u64),
            ..load.clone()
        })
    }
}

/// The thread of one client: opens a target and runs the loads that it receives.
#[allow(clippy::too_many_arguments)]
fn client(
    source: &dyn Source,
    how: Clients,
    prepared: Prepared,
    grain_bytes: u32,
    loads: mpsc::Receiver<(Load, Window)>,
    opened: mpsc::Sender<Result<bool>>,
    answers: mpsc::Sender<Measured>,
    live: &Live,
) {
    let mut target = match source.open(how.writes, how.write_through) {
        Ok(target) => target,
        Err(e) => return drop(opened.send(Err(e))),
    };
    let _ = opened.send(Ok(target.is_real()));
    drop(opened);
    let mut content = match how.verify {
        None => Content::plain(1),
        Some(seed) => Content::verified(seed, prepared.file_bytes, grain_bytes, prepared.filled),
    };
    let mut failed = false;
    for (load, window) in loads {
        let measured = drive(target.as_mut(), &load, window, &mut content, live);
        failed = measured.problem.is_some();
        if answers.send(measured).is_err() {
            break;
        }
    }
    // After a problem a request may still be in flight, and may never be answered.
    if !failed {
        let _ = target.close();
    }
}

/// Runs all loads. `each` takes the number of a load, its figures and its problem.
///
/// # Errors
/// The first problem of a client, of opening a target, or of `each`. It ends the sweep.
pub fn run(
    source: &dyn Source,
    how: Clients,
    prepared: Prepared,
    loads: &[TimedLoad],
    live: &Live,
    view: &mut View,
    mut each: impl FnMut(usize, Figures, Option<&str>) -> Result<()>,
) -> Result<()> {
    if how.count == 0 || how.count > 1 && !source.many() {
        fail!("{} takes one client at a time; --outstanding says how much it is asked at once", source.name());
    }
    let parts = Parts::of(loads, how.count);
    if how.verify.is_some() && parts.grain_bytes as usize % UNIT_BYTES != 0 {
        fail!("only blocks that are multiples of {UNIT_BYTES} bytes can be verified");
    }
    std::thread::scope(|scope| {
        let (answer, answers) = mpsc::channel();
        let (opened, opens) = mpsc::channel();
        let mut clients = Vec::new();
        for _ in 0..how.count {
            let (send, loads) = mpsc::channel();
            let (opened, answer) = (opened.clone(), answer.clone());
            scope.spawn(move || client(source, how, prepared, parts.grain_bytes, loads, opened, answer, live));
            clients.push(send);
        }
        drop((opened, answer));
        let mut real = true;
        for _ in 0..how.count {
            match opens.recv() {
                Ok(opened) => real = opened?,
                Err(_) => fail!("a client ended before it began"),
            }
        }
        for (i, timed) in loads.iter().enumerate() {
            for (c, client) in clients.iter().enumerate() {
                let _ = client.send((parts.load(&timed.load, c)?, timed.window));
            }
            let (figures, problem) = collect(source, how.count, timed, &answers, live, view, real)?;
            each(i, figures, problem.as_deref())?;
            if let Some(problem) = problem {
                fail!("{problem}");
            }
        }
        Ok(())
    })
}

/// Waits for all clients' answers to one load.
fn collect(
    source: &dyn Source,
    clients: usize,
    timed: &TimedLoad,
    answers: &mpsc::Receiver<Measured>,
    live: &Live,
    view: &mut View,
    real: bool,
) -> Result<(Figures, Option<String>)> {
    let began = Instant::now();
    let warm_up = Duration::from_nanos(timed.window.warm_up_ns);
    let total = warm_up + Duration::from_nanos(timed.window.measure_ns);
    let spent = || (process::own(), source.server().map(process::spent));
    let (mut before, mut warm) = (spent(), real && !warm_up.is_zero());
    let mut all: Option<Recorder> = None;
    let (mut got, mut problem) = (0, None);
    while got < clients {
        let tick = if warm { TICK.min(warm_up.saturating_sub(began.elapsed())) } else { TICK };
        match answers.recv_timeout(tick) {
            Ok(measured) => {
                got += 1;
                problem = problem.or(measured.problem);
                match &mut all {
                    None => all = Some(measured.recorder),
                    Some(all) => all.add(&measured.recorder),
                }
            }
            Err(RecvTimeoutError::Timeout) => view.tick(&timed.title, live, began.elapsed(), total),
            Err(RecvTimeoutError::Disconnected) => fail!("a thread of the load generator ended early"),
        }
        if warm && began.elapsed() >= warm_up {
            (before, warm) = (spent(), false);
        }
    }
    let after = spent();
    let Some(all) = all else { fail!("no client answered") };
    let mut figures = all.figures();
    let answers = (figures.reads + figures.writes) as f64;
    if real && answers > 0.0 {
        let us = |d: Duration| d.as_secs_f64() * 1e6 / answers;
        figures.client_cpu_us = Some(us(after.0.saturating_sub(before.0)));
        if let (Some(a), Some(b)) = (after.1, before.1) {
            figures.server_cpu_us = Some(us(a.saturating_sub(b)));
        }
    }
    Ok((figures, problem))
}
