//! The clock of leases: it neither jumps nor stops while the machine runs or sleeps.

use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_BOOTTIME` in nanoseconds.
pub fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Boottime);
    (t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec as u64)
}
