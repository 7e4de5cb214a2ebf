//! The disks that one ownership of a pool has entered with its key, and what it has heard from each of them. Whom to fence is
//! decided elsewhere, and how a disk is opened too.

use std::collections::{BTreeMap, BTreeSet};

use arden_block::reserve::disks::{self, Disk};
use arden_block::reserve::{Absent, Key};
use arden_lock::{Mutex, ranks};

/// A key of a former owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    pub key: Key,
    /// Another may have begun to take it away.
    pub contested: bool,
}

/// A disk of a pool that is reached.
pub(super) struct Reached {
    /// Of its label.
    pub id: u128,
    pub disk: Disk,
    /// Waits until no command of before, of this process or one that was killed, is on its way to it.
    pub wait: Box<dyn Fn() -> Result<(), String>>,
}

/// By pool: the disks that its present ownership has entered.
pub(super) type Entries = Mutex<BTreeMap<u128, Entered>, ranks::PoolKeys>;

/// The disks that one ownership of a pool has entered.
#[derive(Default)]
pub(super) struct Entered {
    key: Option<Key>,
    /// Fenced on each disk that was reached then.
    fenced: BTreeSet<Key>,
    /// By the id in the label.
    disks: BTreeMap<u128, EnteredDisk>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct EnteredDisk {
    /// The keys that were there before this ownership's came, and those of victims that came late. None: they have not been read.
    before: Option<Vec<Key>>,
    /// The disk has confirmed that this ownership's key is registered.
    registered: bool,
    /// It was reached when the keys of all disks were told.
    told: bool,
    /// The disk has confirmed that these are gone, and that their commands have ended.
    fenced: BTreeSet<Key>,
}

impl EnteredDisk {
    /// Keys that were read before `mine` is registered. Where they are read once more, `mine` may have come without an answer: then it is this
    /// ownership's. The first time it is one's that has the same epoch, which etcd has forgotten.
    fn note_keys(&mut self, keys: Vec<Key>, mine: Key) {
        match &mut self.before {
            None => self.before = Some(keys),
            Some(before) => before.extend(keys.into_iter().filter(|k| *k != mine)),
        }
    }

    /// The key is there: whatever was before, it is to be fenced.
    fn note_victim(&mut self, key: Key) {
        self.fenced.remove(&key);
        self.before.get_or_insert_default().push(key);
    }

    fn had(&self, key: Key) -> bool {
        self.before.as_ref().is_some_and(|keys| keys.contains(&key))
    }

    /// What it means when the victim's key is not there. One that was there before was taken away by somebody, perhaps by this ownership, and it was
    /// not heard that this was done.
    fn absent(&self, victim: Victim) -> Absent {
        let may_go_on = victim.contested || self.had(victim.key);
        if may_go_on && !self.fenced.contains(&victim.key) { Absent::InDoubt } else { Absent::Ended }
    }
}

/// An ownership at its disks. What is asked of them for one pool is asked by one thread at a time.
pub(super) struct Entering<'a> {
    pub all: &'a Entries,
    pub pool: u128,
    pub mine: Key,
}

impl Entering<'_> {
    /// What is known of this ownership. What was known of another one is forgotten.
    fn with<T>(&self, change: impl FnOnce(&mut Entered) -> T) -> T {
        let mut all = self.all.lock();
        let entered = all.entry(self.pool).or_default();
        if entered.key != Some(self.mine) {
            *entered = Entered { key: Some(self.mine), ..Entered::default() };
        }
        change(entered)
    }

    fn on<T>(&self, disk: u128, change: impl FnOnce(&mut EnteredDisk) -> T) -> T {
        self.with(|e| change(e.disks.entry(disk).or_default()))
    }

    /// Registers `mine` with each disk, until it is heard that this was done, and never again then: a registration after the owner key was
    /// read could undo a successor's fence.
    fn enter(&self, reached: &[Reached]) -> Result<(), String> {
        for r in reached {
            if self.on(r.id, |d| d.registered) {
                continue;
            }
            (r.wait)()?;
            let keys = disks::look(&r.disk, self.mine)?;
            self.on(r.id, |d| d.note_keys(keys, self.mine));
            disks::register(&r.disk, self.mine)?;
            self.on(r.id, |d| d.registered = true);
        }
        Ok(())
    }

    /// Keeps `victim` from every disk that is reached.
    ///
    /// # Errors
    /// Why `victim` may still write to one.
    pub fn fence(&self, reached: &[Reached], victim: Victim) -> Result<(), String> {
        self.enter(reached)?;
        reached.iter().try_for_each(|r| self.fence_on(r, victim))?;
        self.with(|e| _ = e.fenced.insert(victim.key));
        Ok(())
    }

    fn fence_on(&self, r: &Reached, victim: Victim) -> Result<(), String> {
        if disks::others(&r.disk, self.mine)?.contains(&victim.key) {
            self.on(r.id, |d| d.note_victim(victim.key));
        }
        let absent = self.on(r.id, |d| d.absent(victim));
        disks::fence(&r.disk, self.mine, victim.key, absent)?;
        self.on(r.id, |d| _ = d.fenced.insert(victim.key));
        Ok(())
    }

    /// Enters every disk that is reached. `fenced` have been fenced, and are where a disk was not reached then. Gives the other keys that
    /// were there before.
    ///
    /// # Errors
    /// Why a disk cannot be used.
    pub fn register(&self, reached: &[Reached], fenced: &[Victim]) -> Result<Vec<Key>, String> {
        self.enter(reached)?;
        let victims: Vec<&Victim> = fenced.iter().filter(|v| v.key != self.mine).collect();
        self.with(|e| {
            e.fenced.extend(victims.iter().map(|v| v.key));
            e.disks.values_mut().for_each(|d| d.told = false);
        });
        let mut others = BTreeSet::new();
        for r in reached {
            victims.iter().try_for_each(|victim| self.fence_on(r, **victim))?;
            others.extend(disks::others(&r.disk, self.mine)?);
            let before = self.on(r.id, |d| d.before.clone().unwrap_or_default());
            others.extend(before.into_iter().filter(|k| !fenced.iter().any(|v| v.key == *k)));
            self.on(r.id, |d| d.told = true);
        }
        Ok(others.into_iter().collect())
    }

    /// The disks that may be opened: those that have told their keys, and have confirmed each fence. One that was gone meanwhile may look as if
    /// it had: the victim's key is gone from it, and its commands may go on.
    pub fn may_open(&self) -> BTreeSet<u128> {
        self.with(|e| {
            let may_open = |d: &EnteredDisk| d.registered && d.told && e.fenced.is_subset(&d.fenced);
            e.disks.iter().filter(|(_, d)| may_open(d)).map(|(id, _)| *id).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use arden_block::reserve::{DiskPath, Kind, Reservation, ReserveError, ReserveResult};

    use super::*;

    /// Whose answer is lost, once, after it was done.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Step {
        Register,
        Preempt,
    }

    #[derive(Default)]
    struct Model {
        keys: BTreeSet<u64>,
        holder: Option<u64>,
        loses: Option<Step>,
        /// Keys that were taken away, and whose commands may go on.
        in_doubt: BTreeSet<u64>,
    }

    /// A disk, by the path of the node that enters it.
    #[derive(Clone, Default)]
    struct ModelDisk(Rc<RefCell<Model>>);

    impl ModelDisk {
        fn answer(&self, step: Step) -> ReserveResult<()> {
            let lost = self.0.borrow_mut().loses.take_if(|s| *s == step).is_some();
            if lost { Err(ReserveError::Unreachable("no answer".into())) } else { Ok(()) }
        }
    }

    impl DiskPath for ModelDisk {
        fn check(&self) -> ReserveResult<()> {
            Ok(())
        }
        fn known_as(&self) -> ReserveResult<Vec<String>> {
            Ok(Vec::new())
        }
        fn keys(&self) -> ReserveResult<Vec<u64>> {
            Ok(self.0.borrow().keys.iter().copied().collect())
        }
        fn reservation(&self) -> ReserveResult<Option<Reservation>> {
            let kind = Kind::WriteExclusiveRegistrantsOnly;
            Ok(self.0.borrow().holder.map(|key| Reservation { key, kind }))
        }
        fn register(&self, key: u64) -> ReserveResult<()> {
            self.0.borrow_mut().keys.insert(key);
            self.answer(Step::Register)
        }
        fn unregister(&self, key: u64) -> ReserveResult<()> {
            self.0.borrow_mut().keys.remove(&key);
            Ok(())
        }
        fn reserve(&self, key: u64) -> ReserveResult<()> {
            self.0.borrow_mut().holder.get_or_insert(key);
            Ok(())
        }
        fn release(&self, _: u64) -> ReserveResult<()> {
            Err(ReserveError::Failed("nobody releases a disk".into()))
        }
        fn clear(&self, _: u64) -> ReserveResult<()> {
            Err(ReserveError::Failed("nobody clears a disk".into()))
        }
        fn preempt_and_abort(&self, key: u64, victim: u64) -> ReserveResult<()> {
            let mut d = self.0.borrow_mut();
            if !d.keys.remove(&victim) {
                return Err(ReserveError::Conflict);
            }
            d.holder = Some(key);
            d.in_doubt.insert(victim);
            drop(d);
            self.answer(Step::Preempt)?;
            self.settle(key)
        }
        fn settle(&self, _: u64) -> ReserveResult<()> {
            self.0.borrow_mut().in_doubt.clear();
            Ok(())
        }
    }

    fn key(node: u16, epoch: u64) -> Key {
        Key::new(1, node, epoch).unwrap()
    }

    fn victim(epoch: u64, contested: bool) -> Victim {
        Victim { key: key(1, epoch), contested }
    }

    /// A disk of the owner with epoch 5.
    fn owned() -> ModelDisk {
        let disk = ModelDisk::default();
        *disk.0.borrow_mut() =
            Model { keys: [key(1, 5).raw()].into(), holder: Some(key(1, 5).raw()), ..Model::default() };
        disk
    }

    fn reached<'a>(disks: impl IntoIterator<Item = &'a ModelDisk>) -> Vec<Reached> {
        let one = |(id, disk): (usize, &ModelDisk)| Reached {
            id: id as u128,
            disk: Disk { name: format!("disk {id}"), path: Box::new(disk.clone()) },
            wait: Box::new(|| Ok(())),
        };
        disks.into_iter().enumerate().map(one).collect()
    }

    #[test]
    fn a_key_that_is_gone_is_in_doubt_until_the_disk_has_answered() {
        let mut disk = EnteredDisk { before: Some(vec![key(1, 5)]), ..EnteredDisk::default() };
        assert_eq!(disk.absent(victim(4, false)), Absent::Ended, "it never was there");
        assert_eq!(disk.absent(victim(4, true)), Absent::InDoubt, "another may have begun");
        assert_eq!(disk.absent(victim(5, false)), Absent::InDoubt, "this one began");
        disk.fenced.extend([key(1, 4), key(1, 5)]);
        assert_eq!([disk.absent(victim(4, true)), disk.absent(victim(5, false))], [Absent::Ended; 2]);
    }

    /// Its own key would be taken for that of an owner which etcd has forgotten, and block the pool.
    #[test]
    fn a_registration_whose_answer_was_lost_is_not_taken_for_anothers() {
        for step in [Step::Register, Step::Preempt] {
            let (all, disk) = (Entries::default(), owned());
            let entering = Entering { all: &all, pool: 1, mine: key(2, 6) };
            disk.0.borrow_mut().loses = Some(step);
            assert!(entering.fence(&reached([&disk]), victim(5, false)).is_err());
            assert_eq!(entering.fence(&reached([&disk]), victim(5, false)), Ok(()));
            assert_eq!(entering.register(&reached([&disk]), &[victim(5, false)]), Ok(vec![]), "{step:?}");
            assert_eq!(disk.keys(), Ok(vec![key(2, 6).raw()]));
            assert!(disk.0.borrow().in_doubt.is_empty(), "commands of before have ended");
        }
    }

    /// An older state of etcd gives an epoch once more.
    #[test]
    fn the_same_key_of_an_owner_that_etcd_has_forgotten_is_told() {
        for loses in [None, Some(Step::Register)] {
            let (all, disk) = (Entries::default(), owned());
            disk.0.borrow_mut().keys.insert(key(2, 6).raw());
            disk.0.borrow_mut().loses = loses;
            let entering = Entering { all: &all, pool: 1, mine: key(2, 6) };
            let first = entering.fence(&reached([&disk]), victim(5, false));
            assert_eq!(first.is_err(), loses.is_some());
            assert_eq!(entering.fence(&reached([&disk]), victim(5, false)), Ok(()));
            assert_eq!(entering.register(&reached([&disk]), &[victim(5, false)]), Ok(vec![key(2, 6)]));
        }
    }

    /// The key of the former owner comes late, while the registration is tried again.
    #[test]
    fn a_key_that_comes_before_a_registration_is_heard_of_counts_as_there() {
        let (all, disk) = (Entries::default(), owned());
        disk.0.borrow_mut().keys.clear();
        disk.0.borrow_mut().loses = Some(Step::Register);
        let entering = Entering { all: &all, pool: 1, mine: key(2, 6) };
        assert!(entering.fence(&reached([&disk]), victim(5, false)).is_err());
        disk.0.borrow_mut().keys.insert(key(1, 5).raw());
        disk.0.borrow_mut().loses = Some(Step::Preempt);
        assert!(entering.fence(&reached([&disk]), victim(5, false)).is_err());
        assert_eq!(entering.fence(&reached([&disk]), victim(5, false)), Ok(()));
        assert!(disk.0.borrow().in_doubt.is_empty(), "its commands have ended");
    }

    /// A disk is there, gone when it is to be fenced once more or registered, and back at the import.
    #[test]
    fn a_disk_that_was_gone_since_its_fence_failed_is_not_opened() {
        let (all, disks) = (Entries::default(), [owned(), owned()]);
        let entering = Entering { all: &all, pool: 1, mine: key(2, 6) };
        disks[1].0.borrow_mut().loses = Some(Step::Preempt);
        assert!(entering.fence(&reached(&disks), victim(5, false)).is_err());
        assert_eq!(entering.fence(&reached(&disks[..1]), victim(5, false)), Ok(()));
        assert_eq!(entering.register(&reached(&disks[..1]), &[victim(5, false)]), Ok(vec![]));
        assert_eq!(disks[1].keys(), Ok(vec![key(2, 6).raw()]), "it looks as if it were fenced");
        assert!(!disks[1].0.borrow().in_doubt.is_empty());
        assert_eq!(entering.may_open(), [0].into());
        assert_eq!(entering.register(&reached(&disks), &[victim(5, false)]), Ok(vec![]), "one that was there in time");
        assert!(disks[1].0.borrow().in_doubt.is_empty());
        assert_eq!(entering.may_open(), [0, 1].into());
    }

    /// Of a key that was found, or may be under way to another disk.
    #[test]
    fn a_disk_that_was_gone_at_a_later_fence_is_not_opened() {
        for contested in [false, true] {
            let (all, disks) = (Entries::default(), [owned(), owned()]);
            let entering = Entering { all: &all, pool: 1, mine: key(2, 6) };
            disks[1].0.borrow_mut().keys.insert(key(1, 4).raw());
            assert_eq!(entering.fence(&reached(&disks), victim(5, false)), Ok(()));
            assert_eq!(entering.register(&reached(&disks), &[victim(5, false)]), Ok(vec![key(1, 4)]));
            assert_eq!(entering.may_open(), [0, 1].into());
            disks[1].0.borrow_mut().loses = Some(Step::Preempt);
            assert!(entering.fence(&reached(&disks), victim(4, contested)).is_err());
            assert_eq!(entering.fence(&reached(&disks[..1]), victim(4, contested)), Ok(()));
            assert_eq!(entering.may_open(), [0].into());
        }
    }

    /// What the disk told is not known: another one failed behind it.
    #[test]
    fn a_disk_that_was_gone_when_the_keys_were_told_is_not_opened() {
        let (all, disks) = (Entries::default(), [owned(), owned()]);
        let entering = Entering { all: &all, pool: 1, mine: key(2, 6) };
        disks[1].0.borrow_mut().loses = Some(Step::Preempt);
        assert!(entering.register(&reached(&disks), &[victim(5, false)]).is_err());
        assert_eq!(entering.register(&reached(&disks)[1..], &[victim(5, false)]), Ok(vec![]));
        assert_eq!(entering.may_open(), [1].into());
    }

    /// It was not there when the disk was entered, or comes again after its fence.
    #[test]
    fn a_late_key_whose_fence_had_no_answer_is_in_doubt() {
        for late in [4, 5] {
            let (all, disk) = (Entries::default(), owned());
            let entering = Entering { all: &all, pool: 1, mine: key(2, 6) };
            assert_eq!(entering.fence(&reached([&disk]), victim(5, false)), Ok(()));
            disk.0.borrow_mut().keys.insert(key(1, late).raw());
            disk.0.borrow_mut().loses = Some(Step::Preempt);
            assert!(entering.fence(&reached([&disk]), victim(late, false)).is_err());
            assert!(entering.may_open().is_empty());
            assert_eq!(entering.fence(&reached([&disk]), victim(late, false)), Ok(()));
            assert!(disk.0.borrow().in_doubt.is_empty(), "{late}: its commands have ended");
        }
    }
}
