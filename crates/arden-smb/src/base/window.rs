//! Credits and the window of message ids that a client may use, [MS-SMB2] 3.3.1.1 and 3.3.1.2.

/// Message ids that one connection may hold at once, and so requests in flight.
pub const CREDITS_MAX: u64 = 8192;

/// Ids `low..high` are granted; some of them are used already.
#[derive(Debug)]
pub struct Window {
    low: u64,
    high: u64,
    used: Vec<u64>,
    used_count: u64,
}

impl Default for Window {
    fn default() -> Window {
        Window { low: 0, high: 1, used: vec![0; (CREDITS_MAX / 64) as usize], used_count: 0 }
    }
}

impl Window {
    /// Ids `from..to`, at most [`CREDITS_MAX`], by word: the word's number and the bits of its ids.
    fn words(from: u64, to: u64) -> impl Iterator<Item = (usize, u64)> {
        let mut at = from;
        std::iter::from_fn(move || {
            let (word, shift) = ((at % CREDITS_MAX / 64) as usize, at % 64);
            let n = (to - at).min(64 - shift);
            at += n;
            (n > 0).then(|| (word, (u64::MAX >> (64 - n)) << shift))
        })
    }

    /// Takes `charge` ids from `id` on; false when any of them is not available: the connection has to end.
    #[must_use]
    pub fn take(&mut self, id: u64, charge: u16) -> bool {
        let charge = u64::from(charge.max(1));
        let Some(end) = id.checked_add(charge) else { return false };
        if id < self.low || end > self.high {
            return false;
        }
        if Self::words(id, end).any(|(word, bits)| self.used[word] & bits != 0) {
            return false;
        }
        Self::words(id, end).for_each(|(word, bits)| self.used[word] |= bits);
        self.used_count += charge;
        self.advance();
        true
    }

    /// The window begins behind the leading ids that are used.
    fn advance(&mut self) {
        while self.low < self.high {
            let (word, shift) = ((self.low % CREDITS_MAX / 64) as usize, self.low % 64);
            let n = u64::from((self.used[word] >> shift).trailing_ones()).min(self.high - self.low);
            if n == 0 {
                break;
            }
            self.used[word] &= !((u64::MAX >> (64 - n)) << shift);
            self.used_count -= n;
            self.low += n;
        }
    }

    /// How many of the requested credits the client gets; they are granted by this call.
    pub fn grant(&mut self, requested: u16) -> u16 {
        let range = self.high - self.low;
        let free = range - self.used_count;
        let wanted = u64::from(requested).max(u64::from(free == 0));
        let granted = wanted.min(CREDITS_MAX - range);
        self.high += granted;
        granted as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_taken_once_and_in_the_window_only() {
        let mut w = Window::default();
        assert!(!w.take(1, 1));
        assert!(w.take(0, 1));
        assert!(!w.take(0, 1));
        assert_eq!(w.grant(10), 10);
        assert!(w.take(3, 4));
        assert!(!w.take(6, 1));
        assert!(!w.take(8, 4));
        assert!(w.take(1, 2));
        assert!(w.take(7, 4));
        assert!(!w.take(11, 1));
        assert_eq!(w.grant(0), 1, "a client is never left without any");
        assert!(w.take(11, 1));
    }

    #[test]
    fn a_hole_stops_the_window_from_growing() {
        let mut w = Window::default();
        assert!(w.take(0, 1));
        assert_eq!(u64::from(w.grant(u16::MAX)), CREDITS_MAX);
        for id in 2..=CREDITS_MAX {
            assert!(w.take(id, 1));
            assert_eq!(w.grant(1), 0, "id 1 is still missing");
        }
        assert!(w.take(1, 1));
        assert_eq!(u64::from(w.grant(u16::MAX)), CREDITS_MAX);
    }

    /// Beside a set of ids.
    #[test]
    fn ranges_of_any_length_are_taken_as_one_by_one() {
        let mut rng = arden_block::rng::Rng::new(1);
        let (mut w, mut free) = (Window::default(), std::collections::BTreeSet::from([0u64]));
        let mut high = 1;
        for _ in 0..20_000 {
            let granted = w.grant(rng.below(400) as u16);
            free.extend(high..high + u64::from(granted));
            high += u64::from(granted);
            // Mostly the oldest, so that the window goes on, else any.
            let oldest = free.first().copied().unwrap_or(high);
            let id = if rng.below(3) == 0 { oldest + rng.below(300) } else { oldest };
            let charge = if rng.below(2) == 0 { 1 } else { 1 + rng.below(200) };
            let ids = id..id + charge;
            let there = ids.clone().all(|i| free.contains(&i));
            assert_eq!(w.take(id, charge as u16), there, "{ids:?}");
            if there {
                free.retain(|i| !ids.contains(i));
            }
        }
        assert!(high > 2 * CREDITS_MAX, "{high}");
    }
}
