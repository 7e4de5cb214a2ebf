//! Memory that connections hold for messages and answers: what is on its way, what waits for its user's turn, what nobody reads,
//! and buffers that are kept for the next message. Each user pays for its own, and waits before it takes more than its share.
//! Refuses to know sockets.

use std::{net::IpAddr, sync::Arc};

use arden_auth::Token;
use arden_lock::ranks;
use tokio::sync::oneshot;

use crate::base::{
    shares::{Amount, Bounds, Shares, Who},
    usage::Bound,
};

/// Whether so many bytes that are kept are to be copied out of a buffer of that capacity, which costs whoever keeps it as much as if it were
/// full.
pub fn is_too_large(capacity: usize, bytes: usize) -> bool {
    capacity / 2 > bytes
}

/// `bytes` in a buffer of about their size. One that is too large is not shortened where it is: a few bytes that stay in its place keep the
/// allocator from using the space behind them for another as large.
pub fn fitted(bytes: Vec<u8>) -> Vec<u8> {
    if is_too_large(bytes.capacity(), bytes.len()) { bytes.as_slice().to_vec() } else { bytes }
}

/// Buffers of all users.
pub struct Buffers(Shares<Waiting, ranks::Buffers>);

/// Who waits until it may pay.
struct Waiting {
    paid: oneshot::Sender<Paid>,
    payer: Arc<Payer>,
    bytes: usize,
}

/// A user at an address.
pub struct Payer {
    buffers: Arc<Buffers>,
    who: Who,
}

/// Bytes that somebody pays for until it is dropped.
pub struct Paid {
    payer: Arc<Payer>,
    bytes: usize,
}

impl Buffers {
    pub fn new(bound: Bound) -> Arc<Buffers> {
        Arc::new(Buffers(Shares::new(Bounds::of_bytes(bound))))
    }

    pub fn payer(self: &Arc<Buffers>, token: &Token, ip: IpAddr) -> Arc<Payer> {
        Arc::new(Payer { buffers: self.clone(), who: Who::new(token, ip) })
    }

    /// What all pay for.
    pub fn paid_bytes(&self) -> usize {
        self.0.whole_bytes()
    }

    /// Does anybody owe more than it may?
    pub fn are_over(&self) -> bool {
        self.0.are_over()
    }
}

impl Payer {
    pub fn who(&self) -> &Who {
        &self.who
    }

    /// Pays for `bytes`, at least 1, that are about to be taken.
    ///
    /// # Errors
    /// What is told when the user may pay; who drops it waits no more.
    pub fn pay(self: &Arc<Payer>, bytes: usize) -> Result<Paid, oneshot::Receiver<Paid>> {
        let (paid, waits) = oneshot::channel();
        let waiting = Waiting { paid, payer: self.clone(), bytes };
        match self.buffers.0.admit(&self.who, Amount::bytes(bytes), waiting) {
            Some(_) => Ok(Paid { payer: self.clone(), bytes }),
            None => Err(waits),
        }
    }

    /// Pays for what is there already, whatever the bounds say.
    pub fn owe(self: &Arc<Payer>, bytes: usize) -> Paid {
        self.buffers.0.force(&self.who, Amount::bytes(bytes));
        Paid { payer: self.clone(), bytes }
    }

    /// Pays for `bytes` that are kept only because they may be of use: where half of all is left with them. What is kept never makes its user
    /// owe more than it may.
    pub fn keep(self: &Arc<Payer>, bytes: usize) -> Option<Paid> {
        let paid = self.owe(bytes);
        self.has_room().then_some(paid)
    }

    pub fn has_room(&self) -> bool {
        self.buffers.0.has_room(&self.who)
    }

    /// Is so much owed that nothing more may be begun?
    pub fn is_over(&self) -> bool {
        self.buffers.0.is_over(&self.who)
    }
}

impl Paid {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn has_room(&self) -> bool {
        self.payer.has_room()
    }

    pub fn payer(&self) -> &Arc<Payer> {
        &self.payer
    }
}

impl Drop for Paid {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut returned = vec![(self.payer.clone(), self.bytes)];
        while let Some((payer, bytes)) = returned.pop() {
            for Waiting { paid, payer, bytes } in payer.buffers.0.release(&payer.who, Amount::bytes(bytes)) {
                // Where nobody waits any more, it is given back at once: here, as there may be many.
                if let Err(mut unwanted) = paid.send(Paid { payer, bytes }) {
                    returned.push((unwanted.payer.clone(), std::mem::take(&mut unwanted.bytes)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_told_and_who_gave_up_takes_nothing() {
        let buffers = Buffers::new(Bound { user: 100, address: 1000, whole: 1000 });
        let payer = buffers.payer(&Token::anonymous(), IpAddr::from([192, 0, 2, 1]));
        let first = payer.pay(80).ok().expect("room");
        let (gone, mut waits) = (payer.pay(50).err().unwrap(), payer.pay(60).err().unwrap());
        drop(gone);
        assert!(waits.try_recv().is_err());
        drop(first);
        let paid = waits.try_recv().expect("its turn");
        assert_eq!(paid.bytes(), 60);
        assert!(!payer.is_over() && !payer.has_room());
        let owed = payer.owe(50);
        assert!(payer.is_over() && payer.keep(1).is_none());
        drop((paid, owed));
        assert!(!payer.is_over() && payer.keep(1).is_some());
        assert!(payer.keep(101).is_none() && payer.keep(51).is_none(), "half is left without it, not with it");
        assert!(!payer.is_over() && payer.keep(50).is_some());
    }
}
