//! A connection's buffer, and what its user pays for it. It is kept for the next message where its user has room, and where
//! nobody is known to pay, who is bounded by the number of connections without a session.

use std::sync::Arc;

use arden_lock::{Mutex, ranks};

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

/// What a connection keeps of them at most.
const RETURNED_BYTES_MAX: usize = 8 << 20;

/// Buffers of large messages that ran on other threads: their memory is there already for the messages that follow.
#[derive(Default)]
pub struct Returned(Mutex<Vec<Buffer>, ranks::LargeBuffer>);

impl Returned {
    /// Kept where `payer` has room for it.
    pub fn put(&self, bytes: Vec<u8>, payer: &Arc<Payer>) {
        let Some(paid) = payer.keep(bytes.capacity()) else { return };
        let mut buffer = Buffer { bytes, paid: Some(paid), kept: true };
        buffer.bytes.clear();
        let mut all = self.0.lock();
        let held: usize = all.iter().map(|b| b.bytes.capacity()).sum();
        if held + buffer.bytes.capacity() <= RETURNED_BYTES_MAX {
            all.push(buffer);
        }
    }

    /// The smallest that has room for `len` bytes.
    pub fn take(&self, len: usize) -> Option<Buffer> {
        let mut all = self.0.lock();
        let fits = all.iter().enumerate().filter(|(_, b)| b.bytes.capacity() >= len && b.is_paid_for(len));
        let at = fits.min_by_key(|(_, b)| b.bytes.capacity())?.0;
        Some(all.swap_remove(at))
    }

    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        drop(all);
    }

    /// As [`Buffer::give_way`].
    pub fn give_way(&self) {
        let first = self.0.lock().first().and_then(|b| b.paid.as_ref()).map(|paid| paid.payer().clone());
        if first.is_some_and(|payer| !payer.has_room()) {
            self.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use arden_auth::Token;

    use super::*;
    use crate::base::{buffers::Buffers, usage::Bound};

    #[test]
    fn what_is_returned_is_paid_for_and_bounded() {
        let room = 64 << 20;
        let buffers = Buffers::new(Bound { user: room, address: room, whole: room });
        let payer = buffers.payer(&Token::anonymous(), IpAddr::from([192, 0, 2, 1]));
        let (returned, mib) = (Returned::default(), 1 << 20);
        for _ in 0..20 {
            returned.put(vec![1; mib], &payer);
        }
        let kept: Vec<_> = std::iter::from_fn(|| returned.take(mib)).collect();
        assert_eq!(kept.len(), RETURNED_BYTES_MAX / mib);
        assert!(kept.iter().all(|b| b.bytes.is_empty() && b.is_settled() && b.is_paid_for(mib)));
        drop(kept);

        returned.put(vec![1; 4 * mib], &payer);
        returned.put(vec![1; 2 * mib], &payer);
        assert!(returned.take(5 * mib).is_none());
        assert_eq!(returned.take(mib).map(|b| b.bytes.capacity()), Some(2 * mib), "the smallest");
        // Where its user has used half, it makes room.
        let owed = payer.owe(room / 2);
        returned.put(vec![1; mib], &payer);
        returned.give_way();
        assert!(returned.take(1).is_none());
        drop(owed);
        assert!(payer.keep(room / 2).is_some(), "nothing is owed any more");
    }
}
