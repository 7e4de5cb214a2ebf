//! The disks of one pool, as an owner of a cluster enters them and keeps former owners away: every disk that is named, or an error.

use super::{DiskPath, Key, ReserveError, ReserveResult};

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

/// Registers `mine` with the disk and makes sure that only registered paths can write. Gives all keys that were there right before.
/// Nothing is changed on a disk with a key of another cluster.
///
/// # Errors
/// Why the disk cannot be used.
pub fn enter(disk: &Disk, mine: Key) -> Result<Vec<Key>, String> {
    let enter = || {
        disk.path.check()?;
        let before = known(&disk.path.keys()?, mine.cluster())?;
        disk.path.register(mine.raw())?;
        disk.path.protect(mine.raw())?;
        Ok(before)
    };
    enter().map_err(|e: ReserveError| at(disk, &e))
}

/// Takes `victim` from every disk, on which `mine` has been entered, and confirms on each that its key is gone.
///
/// # Errors
/// On which disk `victim` may still write, and why.
pub fn fence_all(disks: &[Disk], mine: Key, victim: Key) -> Result<(), String> {
    for disk in disks {
        disk.path.fence(mine.raw(), victim.raw()).map_err(|e| at(disk, &e))?;
    }
    Ok(())
}

/// The keys on the disk besides `mine`.
///
/// # Errors
/// Those of the disk, and a key of another cluster.
pub fn others(disk: &Disk, mine: Key) -> Result<Vec<Key>, String> {
    let all = disk.path.keys().and_then(|keys| known(&keys, mine.cluster())).map_err(|e| at(disk, &e))?;
    Ok(all.into_iter().filter(|k| *k != mine).collect())
}

/// Enters a disk that joins or returns while the pool is owned, before the first write to it. All older keys are fenced. Where a newer
/// owner has been, `mine` is taken back: either this looks at the keys after that owner has registered, or that owner finds `mine`.
///
/// # Errors
/// Why the disk cannot be used.
pub fn admit(disk: &Disk, mine: Key) -> Result<(), String> {
    let newer = |keys: &[Key]| keys.iter().find(|k| k.epoch() > mine.epoch()).copied();
    let superseded = |k: Key| at(disk, &format!("it is owned under a newer key, {k}"));
    let before = enter_unless(disk, mine, newer)?;
    for victim in before.into_iter().filter(|k| *k != mine) {
        disk.path.fence(mine.raw(), victim.raw()).map_err(|e| at(disk, &e))?;
    }
    let after = disk.path.keys().and_then(|keys| known(&keys, mine.cluster())).map_err(|e| at(disk, &e))?;
    if let Some(k) = newer(&after) {
        disk.path.unregister(mine.raw()).map_err(|e| at(disk, &e))?;
        return Err(superseded(k));
    }
    disk.path.confirm(mine.raw()).map_err(|e| at(disk, &e))
}

/// As [`enter`], but nothing is changed on a disk that has a newer key.
fn enter_unless(disk: &Disk, mine: Key, newer: impl Fn(&[Key]) -> Option<Key>) -> Result<Vec<Key>, String> {
    let before = disk.path.keys().and_then(|keys| known(&keys, mine.cluster())).map_err(|e| at(disk, &e))?;
    match newer(&before) {
        Some(k) => Err(at(disk, &format!("it is owned under a newer key, {k}"))),
        None => enter(disk, mine),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reservations;
    use super::super::model::{Path, paths};
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

    #[test]
    fn a_former_owner_is_kept_from_every_disk() {
        let (paths, [a, b]) = pool();
        let (old, new) = (key(1, 5), key(2, 6));
        a.iter().for_each(|d| assert_eq!(enter(d, old), Ok(vec![])));
        assert!(paths.iter().all(|p| p[0].write() && !p[1].write()));
        b.iter().for_each(|d| assert_eq!(enter(d, new), Ok(vec![old])));
        assert_eq!(fence_all(&b, new, old), Ok(()));
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
            let why = fence_all(&b, new, old).unwrap_err();
            assert!(why.starts_with(&format!("disk {broken}: ")), "{why}");
        }
    }

    #[test]
    fn a_disk_of_somebody_else_is_left_alone() {
        let (paths, [_, b]) = pool();
        paths[0][0].disk.borrow_mut().keys[0] = 0x1234;
        let why = enter(&b[0], key(2, 6)).unwrap_err();
        assert!(why.contains("0x0000000000001234") && why.contains("another cluster"), "{why}");
        assert!(admit(&b[0], key(2, 6)).is_err());
        assert_eq!(paths[0][0].disk.borrow().keys, [0x1234, 0, 0]);
    }

    #[test]
    fn a_disk_that_returns_is_entered_and_older_keys_are_fenced() {
        let (paths, [a, b]) = pool();
        enter(&a[0], key(1, 5)).unwrap();
        assert!(paths[0][0].write());
        assert_eq!(admit(&b[0], key(2, 7)), Ok(()));
        assert_eq!(admit(&b[0], key(2, 7)), Ok(()), "once more");
        assert!(!paths[0][0].write() && paths[0][1].write());
        assert_eq!(admit(&b[1], key(2, 7)), Ok(()), "one without keys");
    }

    #[test]
    fn a_disk_of_a_newer_owner_is_left_alone() {
        let (paths, [a, b]) = pool();
        enter(&b[0], key(2, 9)).unwrap();
        let why = admit(&a[0], key(1, 8)).unwrap_err();
        assert!(why.contains("newer key"), "{why}");
        assert!(paths[0][0].disk.borrow().changes == [6, 1] && paths[0][1].write());
    }
}
