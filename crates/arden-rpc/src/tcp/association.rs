//! Association groups of TCP connections, [MS-RPCE] 3.3.1.1.1: connections of one client process that share context
//! handles. A group belongs to the user who made it.

use std::collections::BTreeMap;

use arden_wire::dtyp::Sid;
use parking_lot::Mutex;

/// The groups of one service, with the number of connections in each.
#[derive(Default)]
pub struct Associations(Mutex<BTreeMap<u32, (Sid, usize)>>);

impl Associations {
    /// Joins a group of `user`. A group that the client named has to exist, one that it did not name must not. False: it
    /// may not join, and is not told why.
    pub(crate) fn join(&self, group: u32, named: bool, user: &Sid) -> bool {
        let mut groups = self.0.lock();
        match groups.get_mut(&group) {
            Some((owner, connections)) if named && owner == user => *connections += 1,
            None if !named => drop(groups.insert(group, (user.clone(), 1))),
            _ => return false,
        }
        true
    }

    /// A connection has left the group. True: it was the last.
    pub(crate) fn leave(&self, group: u32) -> bool {
        let mut groups = self.0.lock();
        let Some((_, connections)) = groups.get_mut(&group) else { return false };
        *connections -= 1;
        *connections == 0 && groups.remove(&group).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_of_one_user() {
        let groups = Associations::default();
        let user = |n| Sid::new(5, &[21, 1, 2, 3, n]);
        assert!(!groups.join(7, true, &user(1)), "there is none");
        assert!(groups.join(7, false, &user(1)));
        assert!(!groups.join(7, false, &user(1)), "a new one with a number that is taken");
        assert!(!groups.join(7, true, &user(2)), "another user's");
        assert!(groups.join(7, true, &user(1)));
        assert_eq!((groups.leave(7), groups.leave(7), groups.leave(7)), (false, true, false));
        assert!(groups.0.lock().is_empty());
    }
}
