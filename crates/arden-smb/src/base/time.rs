//! The time as the protocol gets it: from outside, with each message and each tick. Only the shell reads clocks.

use std::time::Instant;

use arden_wire::FileTime;

/// One moment, on the clock that only goes forward and on the one that people read.
#[derive(Debug, Clone, Copy)]
pub struct Time {
    pub now: Instant,
    pub wall: FileTime,
}

impl Time {
    /// What the machine's clocks say: for those who drive a server, not for the server.
    pub fn read() -> Time {
        Time { now: Instant::now(), wall: FileTime::from_system(std::time::SystemTime::now()) }
    }
}
