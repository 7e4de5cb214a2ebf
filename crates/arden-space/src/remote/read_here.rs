//! Reads that the calling thread waits for, of disks of a pool that lives elsewhere: each thread has a small ring of its own, which it
//! makes with its first read.

use std::cell::OnceCell;

use arden_block::{Buf, IoError, IoResult, Rt};

use crate::space::direct::DirectRead;

thread_local! {
    static RT: OnceCell<Option<Rt>> = const { OnceCell::new() };
}

/// The disk's answer on the ring of the calling thread; `None` when it does not come in time.
pub fn read_here(read: &DirectRead) -> Option<IoResult<Buf>> {
    let ask = |rt: &OnceCell<Option<Rt>>| match rt.get_or_init(Rt::for_one_operation) {
        Some(rt) => rt.wait_for(read.read_on(rt), rt.now_ns().saturating_add(read.limit_ns())),
        None => Some(Err(IoError::Unsupported)),
    };
    RT.try_with(ask).unwrap_or(Some(Err(IoError::Unsupported)))
}
