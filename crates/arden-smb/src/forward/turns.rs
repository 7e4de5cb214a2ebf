//! Frames that wait to be written, each in the lane of its user. Lanes take turns by bytes (deficit round robin), and one that had nothing
//! to write goes before those that have been writing: a short answer waits for no more of another user's long ones than is being
//! written. Within a lane frames keep their order. Nobody's answers take all the room: a lane has at most half of what is free.

use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
};

use arden_wire::dtyp::Sid;

/// A lane writes so much in its turn. Who writes a longer frame misses turns for it, though short ones of others go between its pieces.
const TURN_BYTES: usize = 64 << 10;
/// Lanes that are kept though they are empty.
const EMPTY_LANES_MAX: usize = 64;

/// Whose frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lane(u64);

impl Lane {
    /// The connection itself.
    pub const NODE: Lane = Lane(0);

    /// All sessions of a user share one.
    pub fn of(user: &Sid) -> Lane {
        let mut hasher = DefaultHasher::new();
        user.hash(&mut hasher);
        Lane(hasher.finish())
    }

    #[cfg(test)]
    pub fn test(n: u64) -> Lane {
        Lane(n)
    }
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<Vec<u8>>,
    /// Bytes of `frames`, and of answers that are still to come.
    load: usize,
    /// What it wrote beyond its turns.
    debt: usize,
    /// It is in `fresh` or in `others`.
    has_turn: bool,
}

/// What waits to be written.
#[derive(Default)]
pub struct Turns {
    lanes: HashMap<Lane, Queue>,
    /// Lanes that had nothing to write, and have had no turn since.
    fresh: VecDeque<Lane>,
    others: VecDeque<Lane>,
    /// Bytes of all frames.
    unsent: usize,
    /// Bytes of all frames, and of answers that are still to come.
    load: usize,
}

impl Turns {
    /// True: nothing waited before it.
    pub fn push(&mut self, lane: Lane, frame: Vec<u8>) -> bool {
        let was_empty = self.unsent == 0;
        let queue = self.lanes.entry(lane).or_default();
        if !queue.has_turn {
            queue.has_turn = true;
            self.fresh.push_back(lane);
        }
        self.unsent += frame.len();
        self.load += frame.len();
        queue.load += frame.len();
        queue.frames.push_back(frame);
        was_empty
    }

    /// The next frames, up to so many bytes and that which goes beyond, each with its lane.
    pub fn take(&mut self, bytes_max: usize, into: &mut Vec<(Lane, Vec<u8>)>) {
        let mut taken = 0;
        while taken < bytes_max && self.unsent > 0 {
            let Some(lane) = self.fresh.pop_front().or_else(|| self.others.pop_front()) else { return };
            let Some(queue) = self.lanes.get_mut(&lane) else { continue };
            queue.debt = queue.debt.saturating_sub(TURN_BYTES);
            if queue.debt >= TURN_BYTES {
                self.others.push_back(lane);
                continue;
            }
            if queue.frames.is_empty() {
                // It has waited for a turn since it wrote.
                (queue.has_turn, queue.debt) = (false, 0);
                self.forget(lane);
                continue;
            }
            taken += self.take_of(lane, bytes_max - taken, usize::MAX, into);
            self.others.push_back(lane);
        }
    }

    /// Short frames of other lanes than this one, which is writing a long one.
    pub fn take_beside(&mut self, lane: Lane, bytes_max: usize, into: &mut Vec<(Lane, Vec<u8>)>) {
        let others = self.fresh.iter().chain(&self.others).copied().filter(|other| *other != lane);
        let mut taken = 0;
        for other in others.collect::<Vec<_>>() {
            taken += self.take_of(other, bytes_max.saturating_sub(taken), TURN_BYTES, into);
        }
    }

    /// Frames of a lane for what is left of its turn, up to so many bytes and that which goes beyond, but none longer than that. Their bytes.
    fn take_of(&mut self, lane: Lane, bytes_max: usize, frame_max: usize, into: &mut Vec<(Lane, Vec<u8>)>) -> usize {
        let Some(queue) = self.lanes.get_mut(&lane) else { return 0 };
        let mut taken = 0;
        while taken < bytes_max
            && queue.debt < TURN_BYTES
            && queue.frames.front().is_some_and(|frame| frame.len() <= frame_max)
            && let Some(frame) = queue.frames.pop_front()
        {
            taken += frame.len();
            queue.debt += frame.len();
            into.push((lane, frame));
        }
        queue.load -= taken;
        self.load -= taken;
        self.unsent -= taken;
        taken
    }

    /// Room for an answer of so many bytes, of `total` for all. False: it has to wait until its user has less.
    pub fn reserve(&mut self, lane: Lane, bytes: usize, total: usize) -> bool {
        let has = self.lanes.get(&lane).map_or(0, |queue| queue.load);
        if has > total.saturating_sub(self.load) / 2 {
            return false;
        }
        if bytes > 0 {
            self.lanes.entry(lane).or_default().load += bytes;
            self.load += bytes;
        }
        true
    }

    /// The answer has come, or will not.
    pub fn release(&mut self, lane: Lane, bytes: usize) {
        if let Some(queue) = self.lanes.get_mut(&lane) {
            queue.load -= bytes;
            self.load -= bytes;
            self.forget(lane);
        }
    }

    fn forget(&mut self, lane: Lane) {
        let is_over = self.lanes.get(&lane).is_some_and(|queue| !queue.has_turn && queue.load == 0);
        if is_over && self.lanes.len() > EMPTY_LANES_MAX {
            self.lanes.remove(&lane);
        }
    }

    /// Bytes of all frames.
    pub fn unsent(&self) -> usize {
        self.unsent
    }

    /// Bytes of all frames, and of answers that are still to come.
    pub fn load(&self) -> usize {
        self.load
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: usize = 8 << 20;

    fn frame(lane: u64, bytes: usize) -> Vec<u8> {
        vec![lane as u8; bytes]
    }

    /// The lanes of what is written next, one write each.
    fn next(turns: &mut Turns) -> Vec<u8> {
        let mut taken = Vec::new();
        turns.take(TURN_BYTES, &mut taken);
        taken.iter().map(|(_, frame)| frame[0]).collect()
    }

    #[test]
    fn who_had_nothing_to_write_goes_first() {
        let mut turns = Turns::default();
        assert!(turns.push(Lane(1), frame(1, LONG)));
        (0..9).for_each(|_| assert!(!turns.push(Lane(1), frame(1, LONG))));
        assert_eq!(next(&mut turns), [1]);
        turns.push(Lane(2), frame(2, 100));
        turns.push(Lane(3), frame(3, 100));
        assert_eq!(next(&mut turns), [2, 3, 1], "both before the next long one");
        for _ in 0..5 {
            turns.push(Lane(2), frame(2, 100));
            assert_eq!(next(&mut turns)[0], 2);
        }
    }

    /// A user who has always only one long frame waiting seems to be new each time, and is not.
    #[test]
    fn who_writes_long_frames_one_by_one_owes_them() {
        let mut turns = Turns::default();
        turns.push(Lane(1), frame(1, LONG));
        (0..200).for_each(|_| _ = turns.push(Lane(2), frame(2, TURN_BYTES)));
        assert_eq!(next(&mut turns), [1]);
        turns.push(Lane(1), frame(1, LONG));
        let others = (0..).take_while(|_| next(&mut turns) == [2]).count();
        assert!((LONG / TURN_BYTES - 2..=LONG / TURN_BYTES + 2).contains(&others), "{others}");
    }

    #[test]
    fn bytes_are_shared_equally_and_order_is_kept() {
        let mut turns = Turns::default();
        for n in 0..100u8 {
            turns.push(Lane(1), [vec![1, n], frame(1, 300_000)].concat());
            turns.push(Lane(2), [vec![2, n], frame(2, 20_000)].concat());
        }
        let (mut written, mut last) = ([0; 3], [0; 3]);
        while written[2] < 1_900_000 {
            let mut taken = Vec::new();
            turns.take(TURN_BYTES, &mut taken);
            for (_, frame) in taken {
                let of = usize::from(frame[0]);
                assert!(frame[1] == 0 || frame[1] == last[of] + 1);
                (last[of], written[of]) = (frame[1], written[of] + frame.len());
            }
        }
        let more = written[1].abs_diff(written[2]);
        assert!(more < 500_000, "{written:?}");
    }

    #[test]
    fn short_frames_of_others_go_beside_a_long_one() {
        let mut turns = Turns::default();
        turns.push(Lane(1), frame(1, LONG));
        assert_eq!(next(&mut turns), [1]);
        turns.push(Lane(1), frame(1, 10));
        turns.push(Lane(2), frame(2, 10));
        turns.push(Lane(2), frame(2, LONG));
        turns.push(Lane(2), frame(2, 20));
        turns.push(Lane(3), frame(3, 30));
        let mut beside = Vec::new();
        turns.take_beside(Lane(1), TURN_BYTES, &mut beside);
        let lengths: Vec<_> = beside.iter().map(|(lane, frame)| (lane.0, frame.len())).collect();
        assert_eq!(lengths, [(2, 10), (3, 30)], "in order, and nothing of the lane that is writing");
        let mut rest = Vec::new();
        while turns.unsent() > 0 {
            rest.extend(next(&mut turns));
        }
        rest.sort_unstable();
        assert_eq!(rest, [1, 2, 2]);
        (0..9).for_each(|_| drop(next(&mut turns)));
        assert_eq!((turns.load(), turns.fresh.len()), (0, 0));
    }

    #[test]
    fn nobody_takes_all_the_room_and_nothing_is_left_behind() {
        let (mut turns, total) = (Turns::default(), 64 << 20);
        let room = |turns: &mut Turns, lane| (0..).take_while(|_| turns.reserve(Lane(lane), 1 << 20, total)).count();
        let first = room(&mut turns, 1);
        assert!((20..=24).contains(&first), "{first}");
        assert!(room(&mut turns, 2) >= 10);
        (3..40).for_each(|lane| assert!(turns.reserve(Lane(lane), 1 << 20, total), "{lane}"));
        for lane in 1..1000 {
            let mine = turns.lanes.get(&Lane(lane)).map_or(0, |queue| queue.load);
            turns.release(Lane(lane), mine);
            turns.push(Lane(lane), frame(lane, 10));
        }
        while turns.unsent() > 0 {
            next(&mut turns);
        }
        turns.push(Lane::NODE, vec![0]);
        (0..3).for_each(|_| drop(next(&mut turns)));
        assert_eq!(turns.load(), 0);
        assert!(turns.others.len() <= 1000 && turns.lanes.len() <= 1000);
    }
}
