//! What holds of an open pool between any two awaits. The simulator asks after every operation of a client; a daemon never
//! does, for it takes time in proportion to all that the pool holds.

use std::rc::Weak;

use crate::map::pool_map::{DiskState, Group};
use crate::pool::open_pool::{GroupRt, Pool, SpaceRt};

impl Pool {
    /// # Errors
    /// The first invariant that does not hold, in words.
    pub fn check_invariants(&self) -> Result<(), String> {
        let p = &self.0;
        let map = p.map.read();
        map.check()?;
        p.commits.check("commits")?;
        p.flushes.check("flushes")?;
        p.departures.check(|d| map.disks.get(&d).is_none_or(|r| r.state == DiskState::Missing))?;
        p.alloc.borrow().check(&map)?;
        p.slab_users.check(&p.alloc.borrow())?;
        p.journal.check(&map.journal)?;
        p.events.check()?;
        let version = p.version();
        p.flips.check(version, |f, slot| {
            let same = map.group(f.space, f.group as usize).is_some_and(|g| g.incarnation == f.incarnation);
            let rt = self.space_rt(f.space).and_then(|s| s.group_rt(f.group as usize));
            !same || rt.is_none_or(|g| g.slots.is_taken(slot))
        })?;
        let spaces = p.spaces.borrow();
        let deleted: Vec<_> = p.deleted.borrow().iter().filter_map(Weak::upgrade).collect();
        p.patches.check(spaces.values().chain(&deleted).map(|s| s.patching.count()).sum())?;
        for s in spaces.values() {
            s.overlay.borrow().check(version).map_err(|e| format!("space {}: {e}", s.id))?;
            for (gi, rt) in s.groups.all() {
                let Some(g) = map.group(s.id, gi) else {
                    return Err(format!("group {gi} of space {} is open and not in the map", s.id));
                };
                rt.check(s, g).map_err(|e| format!("group {gi} of space {}: {e}", s.id))?;
            }
        }
        Ok(())
    }
}

impl GroupRt {
    fn check(&self, space: &SpaceRt, group: &Group) -> Result<(), String> {
        match space.shape.is_parity() {
            true => self.slots.check(group.stripes.iter()),
            false => self.regions.check(|bit| group.dirty.get(bit)),
        }
    }
}
