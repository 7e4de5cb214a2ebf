//! Runs one work: prepares on every connection, starts all at once, and accounts for processor time.

use std::{
    sync::{Barrier, Mutex},
    time::{Duration, Instant},
};

use arden_measure::{Result, base::process, fail, load::Latencies};

use super::{
    Bench, Calls, Sample, Work,
    job::Job,
    listing::Listing,
    small::Small,
    steps::Steps,
    stream::{RandomReads, Stream},
};

/// From the last answer until the server's processor time is read.
const SERVER_REST: Duration = Duration::from_millis(300);

impl Bench<'_> {
    /// Runs one work.
    ///
    /// # Errors
    /// A lost connection, or the first response that is not a success.
    pub fn run(&self, work: Work) -> Result<Sample> {
        let connections = self.large_connections();
        match work {
            Work::Create | Work::Read | Work::Stat | Work::Rename | Work::Delete if self.calls != Calls::Compound => {
                self.measure(self.amount.connections, |i| Steps::new(self, work, i))
            }
            Work::Create | Work::Read | Work::Stat | Work::Rename | Work::Delete => {
                self.measure(self.amount.connections, |i| Small::new(self, work, i))
            }
            Work::List => self.measure(connections, |_| Listing::new(self)),
            Work::RandomRead => self.measure(connections, |i| RandomReads::new(self, i)),
            Work::StreamWrite | Work::StreamRead => self.measure(connections, |i| Stream::new(self, work, i)),
        }
    }

    /// Prepares on every connection, starts all at once, and measures the processor time of the server and of this
    /// process.
    pub(super) fn measure<J: Job + Send>(&self, threads: usize, make: impl Fn(usize) -> Result<J>) -> Result<Sample> {
        let jobs = (0..threads).map(make).collect::<Result<Vec<J>>>()?;
        let ready = Barrier::new(threads + 1);
        let all = Mutex::new((Latencies::default(), 0u64));
        let (mut server, mut client, mut elapsed) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        std::thread::scope(|scope| -> Result<()> {
            let mut running = Vec::new();
            for mut job in jobs {
                let (ready, all) = (&ready, &all);
                running.push(scope.spawn(move || -> Result<()> {
                    let mut seen = Latencies::default();
                    ready.wait();
                    let done = job.run(&mut seen)?;
                    let mut all = all.lock().expect("no panic");
                    all.0.add(&seen);
                    all.1 += done;
                    drop(all);
                    // The connection is closed after the clock stops: closing is not part of the work.
                    drop(job);
                    Ok(())
                }));
            }
            let spent = || self.server.map_or(Duration::ZERO, process::spent);
            let (server_before, client_before) = (spent(), process::own());
            ready.wait();
            let started = Instant::now();
            for thread in running {
                match thread.join() {
                    Ok(result) => result?,
                    Err(_) => fail!("a thread of the load generator panicked"),
                }
            }
            elapsed = started.elapsed();
            client = process::own() - client_before;
            // What the server does behind its answers counts, too: it closes and commits.
            std::thread::sleep(SERVER_REST);
            server = spent() - server_before;
            Ok(())
        })?;
        let (seen, operations) = all.into_inner().expect("no panic");
        let us = |q: f64| seen.quantile_us(q);
        Ok(Sample {
            operations,
            seconds: elapsed.as_secs_f64(),
            server_cpu_seconds: server.as_secs_f64(),
            client_cpu_seconds: client.as_secs_f64(),
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
        })
    }
}
