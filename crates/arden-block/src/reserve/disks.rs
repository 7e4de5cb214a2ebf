//! The disks of one pool, as an owner of a cluster enters them and keeps former owners away: every disk that is named, or an error.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{Absent, DiskPath, Key, ReserveError, ReserveResult};

/// A disk by the name that people know it by.
pub struct Disk {
    pub name: String,
    pub path: Box<dyn DiskPath>,
}

/// Why the disk cannot be used.
fn at(disk: &Disk, e: &dyn std::fmt::Display) -> String {
    format!("{}: {e}", disk.name)
}

/// Splits keys of a disk from those that no node of the cluster can have registered.
fn known(raw: &[u64], cluster: u16) -> ReserveResult<Vec<Key>> {
    let key = |k: &u64| Key::of(*k, cluster).ok_or(*k);
    raw.iter().map(key).collect::<Result<Vec<Key>, u64>>().map_err(|foreign| {
        ReserveError::Failed(format!("it has the key {foreign:#018x}, which is of another cluster or program"))
    })
}

/// The keys on a disk that can be used, before `mine` is registered with it. Changes nothing, so the keys are known whatever becomes of the
/// registration.
///
/// # Errors
/// Why the disk cannot be used: it has a key of another cluster, too.
pub fn look(disk: &Disk, mine: Key) -> Result<Vec<Key>, String> {
    let look = || {
        disk.path.check()?;
        known(&disk.path.keys()?, mine.cluster())
    };
    look().map_err(|e: ReserveError| at(disk, &e))
}

/// Registers `mine` with a disk that was looked at, and makes sure that only registered paths can write. It may be done again where it is not
/// known whether it was done.
///
/// # Errors
/// Why the disk cannot be used. `mine` may be registered all the same.
pub fn register(disk: &Disk, mine: Key) -> Result<(), String> {
    let register = || {
        disk.path.register(mine.raw())?;
        disk.path.protect(mine.raw())
    };
    register().map(drop).map_err(|e: ReserveError| at(disk, &e))
}

/// Both. Gives all keys that were there right before.
///
/// # Errors
/// Why the disk cannot be used.
pub fn enter(disk: &Disk, mine: Key) -> Result<Vec<Key>, String> {
    let before = look(disk, mine)?;
    register(disk, mine)?;
    Ok(before)
}

/// Takes `victim` from a disk on which `mine` has been entered, and confirms that its key is gone and its commands have ended.
///
/// # Errors
/// Why `victim` may still write.
pub fn fence(disk: &Disk, mine: Key, victim: Key, absent: Absent) -> Result<(), String> {
    disk.path.fence(mine.raw(), victim.raw(), absent).map_err(|e| at(disk, &e))
}

/// The keys on the disk besides `mine`.
///
/// # Errors
/// Those of the disk, and a key of another cluster.
pub fn others(disk: &Disk, mine: Key) -> Result<Vec<Key>, String> {
    let all = disk.path.keys().and_then(|keys| known(&keys, mine.cluster())).map_err(|e| at(disk, &e))?;
    Ok(all.into_iter().filter(|k| *k != mine).collect())
}

/// Makes a name by which disks know this machine this node's alone, or says why it is not.
pub type Claim<'a> = &'a dyn Fn(&str) -> Result<(), String>;

/// The names by which the disk knows this machine have to be this node's. Where the disk cannot tell they are burned in.
fn claim_name(disk: &Disk, claim: Claim<'_>) -> Result<(), String> {
    let names = disk.path.known_as().map_err(|e| at(disk, &e))?;
    names.iter().try_for_each(|name| claim(name).map_err(|why| at(disk, &why)))
}

/// Whether this node alone can write to a disk that was entered.
///
/// # Errors
/// Why the disk cannot be used.
pub fn confirm(disk: &Disk, mine: Key, claim: Claim<'_>) -> Result<(), String> {
    claim_name(disk, claim)?;
    disk.path.confirm(mine.raw()).map_err(|e| at(disk, &e))
}

/// Enters a disk that joins or returns while the pool is owned, before the first write to it. All older keys are fenced. Where a newer
/// owner has been, `mine` is taken back: either this looks at the keys after that owner has registered, or that owner finds `mine`. Not
/// from the holder of the reservation, which would end with it: that owner takes both by its fence.
/// `in_doubt`: a key was preempted on such a disk, and the answer did not come. It is set here, and counts for all of them from then on: which it was is
/// not known by a name that stays.
///
/// # Errors
/// Why the disk cannot be used.
pub fn admit(disk: &Disk, mine: Key, in_doubt: &AtomicBool, claim: Claim<'_>) -> Result<(), String> {
    claim_name(disk, claim)?;
    let newer = |keys: &[Key]| keys.iter().find(|k| k.epoch() > mine.epoch()).copied();
    let superseded = |k: Key| at(disk, &format!("it is owned under a newer key, {k}"));
    // The keys that are fenced are those among which there is no newer one.
    let before = look(disk, mine)?;
    if let Some(k) = newer(&before) {
        return Err(superseded(k));
    }
    register(disk, mine)?;
    if in_doubt.load(Ordering::Acquire) {
        disk.path.settle(mine.raw()).map_err(|e| at(disk, &e))?;
    }
    for victim in before.into_iter().filter(|k| *k != mine) {
        fence(disk, mine, victim, Absent::InDoubt).inspect_err(|_| in_doubt.store(true, Ordering::Release))?;
    }
    let after = disk.path.keys().and_then(|keys| known(&keys, mine.cluster())).map_err(|e| at(disk, &e))?;
    if let Some(k) = newer(&after) {
        let held = disk.path.reservation().map_err(|e| at(disk, &e))?;
        if held.is_none_or(|held| held.key != mine.raw()) {
            disk.path.unregister(mine.raw()).map_err(|e| at(disk, &e))?;
        }
        return Err(superseded(k));
    }
    disk.path.confirm(mine.raw()).map_err(|e| at(disk, &e))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::super::model::{Path, paths};
    use super::super::{Reservation, Reservations};
    use super::*;

    const CLUSTER: u16 = 9;

    fn key(node: u16, epoch: u64) -> Key {
        Key::new(CLUSTER, node, epoch).unwrap()
    }

    /// Three disks; their paths of two nodes.
    fn pool() -> (Vec<[Path; 3]>, [Vec<Disk>; 2]) {
        let all: Vec<[Path; 3]> = (0..3).map(|_| paths()).collect();
        let of = |node: usize| {
            let disk = |(i, p): (usize, &[Path; 3])| Disk {
                name: format!("disk {i}"),
                path: Box::new(Reservations::new(p[node].clone())),
            };
            all.iter().enumerate().map(disk).collect()
        };
        let nodes = [of(0), of(1)];
        (all, nodes)
    }

    fn sure() -> AtomicBool {
        AtomicBool::new(false)
    }

    fn anybody(_: &str) -> Result<(), String> {
        Ok(())
    }

    /// Two nodes that the disk takes for one: the key of one lets the other write.
    #[test]
    fn nothing_is_changed_on_a_disk_that_knows_this_machine_by_the_name_of_another() {
        let (paths, [a, _]) = pool();
        let refuses = |name: &str| Err(format!("{name} is another's"));
        paths[0][0].disk.borrow_mut().name = Some("iscsi:a".to_string());
        let why = admit(&a[0], key(1, 5), &sure(), &refuses).unwrap_err();
        assert_eq!(why, "disk 0: iscsi:a is another's");
        assert!(paths[0][0].disk.borrow().changes.is_empty());
        admit(&a[0], key(1, 5), &sure(), &anybody).unwrap();
        assert_eq!(confirm(&a[0], key(1, 5), &anybody), Ok(()));
        assert!(confirm(&a[0], key(1, 5), &refuses).unwrap_err().contains("is another's"));
        assert_eq!(admit(&a[1], key(1, 5), &sure(), &refuses), Ok(()), "a name that is burned in is not told");
    }

    /// A disk returns, the answer to the preempting of an older key is lost, and it is tried again: the key is not seen any more.
    #[test]
    fn a_disk_that_returns_again_has_no_commands_of_before() {
        let (paths, [a, b]) = pool();
        enter(&a[0], key(1, 5)).unwrap();
        assert!(paths[0][0].write());
        paths[0][0].disk.borrow_mut().loses_answer = true;
        let in_doubt = sure();
        assert!(admit(&b[0], key(2, 7), &in_doubt, &anybody).is_err());
        assert_eq!(paths[0][0].disk.borrow().accepted[0], 1);
        assert_eq!(admit(&b[0], key(2, 7), &in_doubt, &anybody), Ok(()));
        paths[0][0].execute();
        assert_eq!(paths[0][0].disk.borrow().executed[0], 0);
    }

    #[test]
    fn a_former_owner_is_kept_from_every_disk() {
        let (paths, [a, b]) = pool();
        let (old, new) = (key(1, 5), key(2, 6));
        a.iter().for_each(|d| assert_eq!(enter(d, old), Ok(vec![])));
        assert!(paths.iter().all(|p| p[0].write() && !p[1].write()));
        b.iter().for_each(|d| assert_eq!(enter(d, new), Ok(vec![old])));
        b.iter().for_each(|d| assert_eq!(fence(d, new, old, Absent::InDoubt), Ok(())));
        for p in &paths {
            p[0].execute();
            assert!(!p[0].write() && p[1].write());
            assert_eq!(p[0].disk.borrow().executed[0], 0);
        }
        assert!(b.iter().all(|d| d.path.confirm(new.raw()).is_ok()));
    }

    #[test]
    fn a_fence_that_fails_on_one_disk_has_failed() {
        for broken in 0..3 {
            let (paths, [a, b]) = pool();
            let (old, new) = (key(1, 5), key(2, 6));
            a.iter().for_each(|d| drop(enter(d, old).unwrap()));
            b.iter().for_each(|d| drop(enter(d, new).unwrap()));
            paths[broken][0].disk.borrow_mut().lies = true;
            let all: Result<(), String> = b.iter().try_for_each(|d| fence(d, new, old, Absent::InDoubt));
            let why = all.unwrap_err();
            assert!(why.starts_with(&format!("disk {broken}: ")), "{why}");
        }
    }

    #[test]
    fn a_disk_of_somebody_else_is_left_alone() {
        let (paths, [_, b]) = pool();
        paths[0][0].disk.borrow_mut().keys[0] = 0x1234;
        let why = enter(&b[0], key(2, 6)).unwrap_err();
        assert!(why.contains("0x0000000000001234") && why.contains("another cluster"), "{why}");
        assert!(admit(&b[0], key(2, 6), &sure(), &anybody).is_err());
        assert_eq!(paths[0][0].disk.borrow().keys, [0x1234, 0, 0]);
    }

    #[test]
    fn a_disk_that_returns_is_entered_and_older_keys_are_fenced() {
        let (paths, [a, b]) = pool();
        enter(&a[0], key(1, 5)).unwrap();
        assert!(paths[0][0].write());
        assert_eq!(admit(&b[0], key(2, 7), &sure(), &anybody), Ok(()));
        assert_eq!(admit(&b[0], key(2, 7), &sure(), &anybody), Ok(()), "once more");
        assert!(!paths[0][0].write() && paths[0][1].write());
        assert_eq!(admit(&b[1], key(2, 7), &sure(), &anybody), Ok(()), "one without keys");
    }

    #[test]
    fn a_disk_of_a_newer_owner_is_left_alone() {
        let (paths, [a, b]) = pool();
        enter(&b[0], key(2, 9)).unwrap();
        let why = admit(&a[0], key(1, 8), &sure(), &anybody).unwrap_err();
        assert!(why.contains("newer key"), "{why}");
        assert!(paths[0][0].disk.borrow().changes == [6, 1] && paths[0][1].write());
    }

    /// A path at which a newer owner registers right before its keys are read for the last of some times.
    struct Overtaken {
        path: Reservations<Path>,
        by: Disk,
        reads_left: Rc<Cell<u32>>,
    }

    const NEWER: (u16, u64) = (3, 9);

    impl DiskPath for Overtaken {
        fn check(&self) -> ReserveResult<()> {
            self.path.check()
        }
        fn known_as(&self) -> ReserveResult<Vec<String>> {
            self.path.known_as()
        }
        fn keys(&self) -> ReserveResult<Vec<u64>> {
            let left = self.reads_left.get();
            self.reads_left.set(left.saturating_sub(1));
            if left == 1 {
                enter(&self.by, key(NEWER.0, NEWER.1)).unwrap();
            }
            self.path.keys()
        }
        fn reservation(&self) -> ReserveResult<Option<Reservation>> {
            self.path.reservation()
        }
        fn register(&self, key: u64) -> ReserveResult<()> {
            self.path.register(key)
        }
        fn unregister(&self, key: u64) -> ReserveResult<()> {
            self.path.unregister(key)
        }
        fn reserve(&self, key: u64) -> ReserveResult<()> {
            self.path.reserve(key)
        }
        fn release(&self, key: u64) -> ReserveResult<()> {
            self.path.release(key)
        }
        fn clear(&self, key: u64) -> ReserveResult<()> {
            self.path.clear(key)
        }
        fn preempt_and_abort(&self, key: u64, victim: u64) -> ReserveResult<()> {
            self.path.preempt_and_abort(key, victim)
        }
        fn settle(&self, key: u64) -> ReserveResult<()> {
            self.path.settle(key)
        }
    }

    /// It registers at any moment.
    #[test]
    fn a_newer_owner_that_comes_meanwhile_keeps_its_key() {
        let newer = key(NEWER.0, NEWER.1);
        for reads in 1..8 {
            let (paths, [old, _]) = pool();
            enter(&old[0], key(1, 5)).unwrap();
            let on = |node: usize| Reservations::new(paths[0][node].clone());
            let (by, reads_left) = (Disk { name: "disk 0".into(), path: Box::new(on(2)) }, Rc::new(Cell::new(reads)));
            let path = Overtaken { path: on(1), by, reads_left: reads_left.clone() };
            let entered = admit(&Disk { name: "disk 0".into(), path: Box::new(path) }, key(2, 7), &sure(), &anybody);
            let keys = on(2).keys().unwrap();
            let came = reads_left.get() == 0;
            assert!(came == keys.contains(&newer.raw()) && came == entered.is_err(), "at read {reads}: {keys:x?}");
            if reads < 5 {
                let (why, held) =
                    (entered.unwrap_err(), on(2).reservation().unwrap().expect("it is never open to all"));
                let is_left = keys.contains(&key(2, 7).raw());
                assert!(
                    why.contains("newer key") && is_left == (held.key == key(2, 7).raw()),
                    "at read {reads}: {why}"
                );
                assert!(!paths[0][0].write() || reads < 3, "at read {reads}: a fenced node writes");
                assert!(paths[0][0].disk.borrow().keeps, "over a loss of power, too");
            }
        }
    }
}
