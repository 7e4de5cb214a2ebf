//! A connection's buffer, and what its user pays for it. It is kept for the next message where its user has room, and where
//! nobody is known to pay, who is bounded by the number of connections without a session.

use std::sync::Arc;

use crate::base::buffers::{Paid, Payer};

/// What an idle connection keeps, and nobody pays for.
pub const IDLE_BUFFER_BYTES: usize = 4 * 1024;

#[derive(Default)]
pub struct Buffer {
    pub bytes: Vec<u8>,
    paid: Option<Paid>,
    /// It was found that there is room to keep it.
    kept: bool,
}

impl Buffer {
    /// Room for `capacity` bytes.
    pub fn new(capacity: usize, paid: Option<Paid>) -> Buffer {
        Buffer { bytes: Vec::with_capacity(capacity), paid, kept: false }
    }

    /// Can it take up to `capacity` bytes without further payment?
    pub fn is_paid_for(&self, capacity: usize) -> bool {
        let needed = capacity.max(self.bytes.capacity());
        needed <= IDLE_BUFFER_BYTES || self.paid.as_ref().is_some_and(|p| p.bytes() >= needed)
    }

    /// Whether it has to be found out who pays, before it is emptied.
    pub fn is_settled(&self) -> bool {
        self.bytes.capacity() <= IDLE_BUFFER_BYTES || self.kept && self.is_paid_for(0)
    }

    pub fn pay(&mut self, paid: Paid, kept: bool) {
        self.paid = Some(paid);
        self.kept = kept;
    }

    /// Nothing in it is needed any more. What it has beyond an idle connection's is kept where `payer` has room for it.
    pub fn empty(&mut self, payer: Option<Arc<Payer>>) {
        self.bytes.clear();
        if self.is_settled() {
            return;
        }
        let Some(payer) = payer else { return };
        match payer.keep(self.bytes.capacity()) {
            Some(paid) => self.pay(paid, true),
            None => *self = Buffer::default(),
        }
    }

    /// Gives up what is kept where there is no room for it any more.
    pub fn give_way(&mut self) {
        if self.bytes.is_empty() && self.paid.as_ref().is_some_and(|p| !p.has_room()) {
            *self = Buffer::default();
        }
    }

    /// Who took its bytes along pays from now on.
    pub fn take_paid(&mut self) -> Option<Paid> {
        self.kept = false;
        self.paid.take()
    }
}
