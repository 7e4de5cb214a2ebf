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
    fn slot(id: u64) -> (usize, u64) {
        let bit = id % CREDITS_MAX;
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    /// Takes `charge` ids from `id` on; false when any of them is not available: the connection has to end.
    #[must_use]
    pub fn take(&mut self, id: u64, charge: u16) -> bool {
        let charge = u64::from(charge.max(1));
        let Some(end) = id.checked_add(charge) else { return false };
        if id < self.low || end > self.high {
            return false;
        }
        for i in id..end {
            let (word, bit) = Self::slot(i);
            if self.used[word] & bit != 0 {
                return false;
            }
        }
        for i in id..end {
            let (word, bit) = Self::slot(i);
            self.used[word] |= bit;
        }
        self.used_count += charge;
        while self.low < self.high {
            let (word, bit) = Self::slot(self.low);
            if self.used[word] & bit == 0 {
                break;
            }
            self.used[word] &= !bit;
            self.used_count -= 1;
            self.low += 1;
        }
        true
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
}
