//! Ids of opens: unique over restarts, and over the nodes of a cluster. Each node has 2^52 of its own, and each of its starts begins
//! 2^36 after the one before; the 2^16th begins again. A server that is no node has them all.
//!
//! An id that was kept by another node and is restored here stays that node's: this one goes on in its own range.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use crate::fs::OpenId;

const START_BITS: u32 = 36;
const NODE_BITS: u32 = 52;
/// Ids are positive for clients that take them for signed numbers.
const NODE_MAX: u16 = 0x7ff;

/// Those of one server.
pub(crate) struct OpenIds {
    /// Within the range; what is beyond its end begins at its start.
    next: AtomicU64,
    /// The bits that all ids of this server have in common, and those that count.
    range: OnceLock<(u64, u64)>,
}

impl Default for OpenIds {
    fn default() -> OpenIds {
        OpenIds { next: AtomicU64::new(1), range: OnceLock::new() }
    }
}

impl OpenIds {
    fn range(&self) -> (u64, u64) {
        self.range.get().copied().unwrap_or((0, u64::MAX))
    }

    /// This server was started so often.
    pub fn start(&self, starts: u64, node: Option<u16>) {
        let counts = (1 << NODE_BITS) - 1;
        if let Some(node) = node {
            let _ = self.range.set((u64::from(node & NODE_MAX) << NODE_BITS, counts));
        }
        let (_, counts) = self.range();
        self.next.fetch_max((starts << START_BITS | 1) & counts, Ordering::Relaxed);
    }

    pub fn take(&self) -> OpenId {
        let (common, counts) = self.range();
        OpenId(common | (self.next.fetch_add(1, Ordering::Relaxed) & counts))
    }

    /// There is an open with this id, which was not taken here: it is not given again.
    pub fn saw(&self, id: OpenId) {
        let (common, counts) = self.range();
        if id.0 & !counts == common {
            self.next.fetch_max((id.0 & counts).saturating_add(1), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(starts: u64, node: Option<u16>) -> OpenIds {
        let ids = OpenIds::default();
        ids.start(starts, node);
        ids
    }

    #[test]
    fn ids_of_other_nodes_do_not_move_a_node_into_their_range() {
        let (one, two) = (of(5, Some(1)), of(9, Some(2)));
        for _ in 0..10 {
            let (from_one, from_two) = (one.take(), two.take());
            one.saw(from_two);
            two.saw(from_one);
            assert_eq!((from_one.0 >> NODE_BITS, from_two.0 >> NODE_BITS), (1, 2));
        }
        assert_eq!(one.take().0, 1 << NODE_BITS | 5 << START_BITS | 11);
        // A server that was none before.
        one.saw(OpenId(1 << 40));
        assert_eq!(one.take().0, 1 << NODE_BITS | 5 << START_BITS | 12);
    }

    #[test]
    fn ids_that_were_kept_are_not_given_again() {
        // Of an earlier start, and of a later one than the server knows of.
        for node in [None, Some(3)] {
            let (now, earlier, later) = (of(5, node), of(4, node).take(), of(6, node).take());
            now.saw(earlier);
            assert_eq!(now.take(), of(5, node).take());
            now.saw(later);
            assert_eq!(now.take().0, later.0 + 1);
        }
        let alone = of(1, None);
        alone.saw(OpenId(7 << NODE_BITS | 5));
        assert_eq!(alone.take(), OpenId(7 << NODE_BITS | 6), "all ids are its own");
    }

    #[test]
    fn a_range_has_an_end() {
        let last = OpenId((4 << NODE_BITS) - 1);
        let ids = of(1 << 16, Some(3));
        assert_eq!(ids.take(), OpenId(3 << NODE_BITS | 1), "starts begin again");
        ids.saw(last);
        assert_eq!(ids.take(), OpenId(3 << NODE_BITS));
        assert_eq!(of(u64::MAX, Some(u16::MAX)).take().0 >> 63, 0);
    }
}
