//! Room that lists of the table keep: who had many entries in one and has a few left keeps the memory of a few.

use std::collections::VecDeque;

/// So much room stays whether it is used or not.
const KEPT_MIN: usize = 16;

fn is_too_much(capacity: usize, len: usize) -> bool {
    capacity > KEPT_MIN && len < capacity / 8
}

/// After something was taken out of `list`.
pub fn give_back<T>(list: &mut Vec<T>) {
    if is_too_much(list.capacity(), list.len()) {
        list.shrink_to(2 * list.len());
    }
}

/// The same.
pub fn give_back_queue<T>(queue: &mut VecDeque<T>) {
    if is_too_much(queue.capacity(), queue.len()) {
        queue.shrink_to(2 * queue.len());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        commit::CommitScope,
        fs::{LeaseBreak, OpenId, OpenOwner, OplockLevel, Owner, WaitId},
        table::{OpenTable, TableLimits},
    };

    struct Nobody;

    impl OpenOwner for Nobody {
        fn oplock_break(&self, _: &CommitScope, _: OpenId, _: OplockLevel, _: bool) {}
        fn lease_break(&self, _: &CommitScope, _: &LeaseBreak) {}
        fn resume(&self, _: WaitId) {}
    }

    #[test]
    fn waits_that_were_taken_back_leave_nothing_with_the_file() {
        let table = OpenTable::new(TableLimits::default());
        let owner = Owner::new(Arc::new(Nobody));
        let mut waiters = Vec::new();
        let stays = table.wait_among(&mut waiters, &owner).unwrap();
        for _ in 0..10_000 {
            let wait = table.wait_among(&mut waiters, &owner).unwrap();
            table.cancel_wait(wait);
        }
        assert!(waiters.contains(&stays));
        assert!(waiters.capacity() < 100, "{}", waiters.capacity());
    }

    #[test]
    fn who_had_many_keeps_room_for_a_few() {
        let mut list: Vec<u64> = (0..10_000).collect();
        let mut queue: VecDeque<u64> = (0..10_000).collect();
        while list.len() > 3 {
            list.remove(0);
            queue.pop_back();
            give_back(&mut list);
            give_back_queue(&mut queue);
            for capacity in [list.capacity(), queue.capacity()] {
                assert!(capacity <= KEPT_MIN || capacity / 8 <= list.len());
            }
        }
        assert!(list.capacity() <= 32 && queue.capacity() <= 32, "{} {}", list.capacity(), queue.capacity());
        assert_eq!((list, queue), (vec![9997, 9998, 9999], VecDeque::from([0, 1, 2])));
    }
}
