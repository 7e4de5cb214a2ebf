//! Where the stripes of a parity group lie: a slot for each, or none yet. In memory a pool has very many of them, and most
//! lie in the slot that bears their own number: one bit says that. Once a stripe has moved elsewhere every stripe of its
//! group takes as many bits as the number of a slot needs.

use crate::base::bitmap::Bitmap;
use crate::map::pool_map::UNWRITTEN;

#[derive(Debug, Clone)]
pub(crate) struct Stripes {
    /// Stripes in their own slot, as long as no other is anywhere else.
    home: Bitmap,
    /// Otherwise: a slot and one, or zero, for each stripe.
    packed: Box<[u64]>,
    bits: u8,
}

impl Stripes {
    /// `stripes` that were never written, in a group of `slots`.
    pub(crate) fn new(stripes: usize, slots: usize) -> Stripes {
        Stripes {
            home: Bitmap::new(stripes),
            packed: Box::default(),
            bits: (usize::BITS - slots.leading_zeros()) as u8,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.home.len()
    }

    /// The slot of a stripe, `UNWRITTEN` when it has none; `None` past the last stripe.
    pub(crate) fn get(&self, stripe: usize) -> Option<u16> {
        if stripe >= self.len() {
            return None;
        }
        if self.packed.is_empty() {
            return Some(if self.home.get(stripe) { stripe as u16 } else { UNWRITTEN });
        }
        let (word, shift) = self.place(stripe);
        let mut v = self.packed[word] >> shift;
        if shift + u32::from(self.bits) > u64::BITS {
            v |= self.packed[word + 1] << (u64::BITS - shift);
        }
        Some(((v & self.mask()) as u16).wrapping_sub(1))
    }

    /// Gives a stripe a slot; the one that it had.
    pub(crate) fn set(&mut self, stripe: usize, slot: u16) -> u16 {
        let Some(old) = self.get(stripe) else { return UNWRITTEN };
        if self.packed.is_empty() {
            match slot {
                UNWRITTEN => self.home.clear(stripe),
                s if usize::from(s) == stripe => self.home.set(stripe),
                _ => {
                    self.pack();
                    self.put(stripe, slot);
                }
            }
        } else {
            self.put(stripe, slot);
        }
        old
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u16> {
        (0..self.len()).filter_map(|i| self.get(i))
    }

    /// The stripe that lies in `slot`.
    pub(crate) fn find(&self, slot: u16) -> Option<usize> {
        if self.packed.is_empty() {
            return (slot != UNWRITTEN && self.home.get(usize::from(slot))).then_some(usize::from(slot));
        }
        self.iter().position(|s| s == slot)
    }

    fn pack(&mut self) {
        let empty = Bitmap::new(self.len());
        let home = std::mem::replace(&mut self.home, empty);
        self.packed = vec![0; (self.len() * usize::from(self.bits)).div_ceil(64)].into();
        home.ones().into_iter().for_each(|i| self.put(i, i as u16));
    }

    fn put(&mut self, stripe: usize, slot: u16) {
        let v = u64::from(slot.wrapping_add(1)) & self.mask();
        let (word, shift) = self.place(stripe);
        self.packed[word] = self.packed[word] & !(self.mask() << shift) | v << shift;
        if shift + u32::from(self.bits) > u64::BITS {
            let left = u64::BITS - shift;
            self.packed[word + 1] = self.packed[word + 1] & !(self.mask() >> left) | v >> left;
        }
    }

    fn mask(&self) -> u64 {
        (1 << self.bits) - 1
    }

    fn place(&self, stripe: usize) -> (usize, u32) {
        let at = stripe * usize::from(self.bits);
        (at / 64, (at % 64) as u32)
    }
}

#[cfg(test)]
mod tests {
    use arden_block::rng::Rng;

    use super::*;

    #[test]
    fn a_plain_list_says_the_same() {
        let mut r = Rng::new(1);
        for (stripes, slots) in [(1, 2), (30, 32), (62, 64), (992, 1024), (3968, 4096), (65000, 65534)] {
            let (mut s, mut list) = (Stripes::new(stripes, slots), vec![UNWRITTEN; stripes]);
            for step in 0..2000 {
                let i = r.below(stripes as u64) as usize;
                let slot = match r.below(if step < 1000 { 2 } else { 4 }) {
                    0 => UNWRITTEN,
                    1 => i as u16,
                    _ => r.below(slots as u64) as u16,
                };
                assert_eq!(s.set(i, slot), std::mem::replace(&mut list[i], slot));
                assert_eq!(s.get(i), Some(slot));
            }
            assert!(s.iter().eq(list.iter().copied()) && s.get(stripes).is_none());
            for i in 0..slots.min(2000) as u16 {
                assert_eq!(s.find(i), list.iter().position(|&x| x == i));
            }
        }
    }

    #[test]
    fn what_lies_in_its_own_slot_takes_a_bit() {
        let mut s = Stripes::new(992, 1024);
        (0..992).for_each(|i| assert_eq!(s.set(i, i as u16), UNWRITTEN));
        assert!(s.packed.is_empty() && s.iter().eq(0..992));
        s.set(5, 1000);
        assert_eq!(s.packed.len() * 8, 1368, "eleven bits each");
        assert!(s.iter().eq((0..992).map(|i| if i == 5 { 1000 } else { i })));
    }
}
