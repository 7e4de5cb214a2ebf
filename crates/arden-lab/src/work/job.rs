//! The part of a work that one thread does, and compounds that are kept in flight.

use std::{collections::VecDeque, time::Instant};

use arden_measure::{
    Result,
    client::{Call, Client},
    fail,
    load::Latencies,
};
use smb2::{msg::close::CloseRequest, types::Command};

pub(super) trait Job {
    /// Does the work and returns the number of operations.
    fn run(&mut self, seen: &mut Latencies) -> Result<u64>;
}

pub(super) fn record(seen: &mut Latencies, since: Instant) {
    seen.record(since.elapsed().as_nanos() as u64);
}

/// The CLOSE at the end of a compound.
pub(super) fn end(close: &CloseRequest) -> Call<'_> {
    Call { command: Command::Close, body: close, charge: 1 }
}

/// Sends `count` compounds, which `queue` makes by their number, `depth` in flight. Each has this many answers.
///
/// # Errors
/// A lost connection, or the first response that is not a success.
pub(super) fn compounds(
    client: &mut Client,
    count: usize,
    depth: usize,
    answers: usize,
    mut queue: impl FnMut(&mut Client, usize),
    seen: &mut Latencies,
) -> Result<u64> {
    let mut started = VecDeque::new();
    let (mut sent, mut got) = (0, 0);
    let mut bad = None;
    for done in 0..count {
        while sent < count && sent - done < depth {
            queue(client, sent);
            started.push_back(Instant::now());
            sent += 1;
        }
        client.flush()?;
        while got < answers {
            client.receive(|reply| {
                got += 1;
                if reply.status != 0 {
                    bad.get_or_insert((got, reply.status));
                }
            })?;
        }
        got -= answers;
        if let Some((n, status)) = bad {
            fail!("file {done}, request {n}: status 0x{status:08X}");
        }
        record(seen, started.pop_front().expect("one for each"));
    }
    Ok(count as u64)
}
