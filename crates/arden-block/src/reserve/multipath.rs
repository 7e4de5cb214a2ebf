//! A disk that this machine reaches by several paths, of which the kernel's multipath makes one device. For the disk each path is a
//! registrant of its own (SPC-4, Registering): commands go by any of them, so each is registered with the same key, and a fence, which takes
//! a key away from all who have it, takes it from each.
//!
//! # Paths that lead elsewhere
//! An array may map another disk to a port than before, and the kernel does not look which disk a path leads to. So each is asked before it is
//! registered, and once more before the disk is written to. Paths to different disks are refused. One that does not say gets no key, like
//! one that does not answer; where it answers otherwise, the disk is not written to, as commands go by it. A fence goes by paths that have the
//! key, so they were asked.
//!
//! # Paths that do not answer
//! * One that does not answer a question, or by an error (a port at which the disk is not, one that is not available), is passed over, and has
//!   no key: a command that goes by it later is refused with a reservation conflict. It is never registered under an ownership that has
//!   begun, as that could undo a successor's fence.
//! * One whose registration was not answered may be registered at any time. Until that is heard, nothing is registered for this machine by the
//!   other paths: else a fence could come before it, and writes by this path after that. The process remembers such paths, whatever the
//!   ownership; one that does not end before the kernel has given the command up, so that another process does not need to.
//! * One that hangs costs a question the time until the kernel gives that up. So what one path can do goes by those first that answered last
//!   time, and a path that does not say where it leads, as it does not answer, is not asked again whether the disk is there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::scsi::{Reservations, Target};
use super::sg::SgDisk;
use super::{DiskPath, Reservation, ReserveError, ReserveResult, failed, only_key};
use crate::identify;

/// What this process remembers of paths, by their names.
#[derive(Default)]
pub(super) struct Memory {
    /// Their registration was sent and not answered.
    unheard: Mutex<BTreeSet<String>>,
    /// They did not answer the last time.
    silent: Mutex<BTreeSet<String>>,
}

impl Memory {
    fn is_unheard(&self, path: &str) -> bool {
        self.unheard.lock().contains(path)
    }

    fn set_unheard(&self, path: &str, is_unheard: bool) {
        Memory::set(&self.unheard, path, is_unheard);
    }

    fn set(of: &Mutex<BTreeSet<String>>, path: &str, is_in: bool) {
        let mut all = of.lock();
        if !is_in {
            all.remove(path);
        } else if !all.contains(path) {
            all.insert(path.to_string());
        }
    }
}

static MEMORY: std::sync::LazyLock<Arc<Memory>> = std::sync::LazyLock::new(Arc::default);

struct OnePath<T> {
    name: String,
    /// Or why it cannot be opened: the kernel refuses a path that it has given up.
    path: Result<Reservations<T>, String>,
}

impl<T: Target> OnePath<T> {
    fn ask<R>(&self, ask: impl Fn(&Reservations<T>) -> ReserveResult<R>) -> ReserveResult<R> {
        self.path.as_ref().map_err(|why| ReserveError::Unreachable(why.clone())).and_then(ask)
    }
}

/// Why no path did what was asked for.
#[derive(Default)]
struct Failures {
    /// Of paths that do not answer.
    silent: Vec<String>,
    /// The first of one that answers. A conflict counts more than any other.
    answered: Option<ReserveError>,
}

impl Failures {
    fn note(&mut self, path: &str, error: ReserveError) {
        match error {
            ReserveError::Unreachable(e) => self.silent.push(format!("{path}: {e}")),
            ReserveError::Conflict => self.answered = Some(ReserveError::Conflict),
            e => _ = self.answered.get_or_insert(e),
        }
    }

    fn into_error(self) -> ReserveError {
        self.answered.unwrap_or_else(|| ReserveError::Unreachable(self.silent.join(", ")))
    }
}

/// All paths of this machine to one disk.
pub struct Multipath<T> {
    paths: Vec<OnePath<T>>,
    memory: Arc<Memory>,
}

/// The paths of a device, if it is one of the kernel's multipath.
pub(super) fn paths_of(device: &Path) -> Option<Vec<PathBuf>> {
    let dir = identify::sys_dir_of(device)?;
    let uuid = fs::read_to_string(dir.join("dm/uuid")).ok()?;
    let slaves = uuid.starts_with(identify::MULTIPATH_UUID).then(|| fs::read_dir(dir.join("slaves")))?.ok()?;
    let mut names: Vec<PathBuf> = slaves.flatten().map(|e| Path::new("/dev").join(e.file_name())).collect();
    names.sort();
    Some(names)
}

impl Multipath<SgDisk> {
    /// # Errors
    /// Unsupported, when one is no SCSI disk; unreachable, when there is none.
    pub(super) fn open(paths: &[PathBuf]) -> ReserveResult<Multipath<SgDisk>> {
        let one = |path: &PathBuf| {
            let mut opened = match Reservations::open(path) {
                Err(ReserveError::Unreachable(why)) => Err(why),
                opened => Ok(opened?),
            };
            if let Ok(path) = &mut opened
                && paths.len() > 1
            {
                path.target.is_one_of_several();
            }
            Ok((path.display().to_string(), opened))
        };
        let opened = paths.iter().map(one).collect::<ReserveResult<Vec<_>>>()?;
        if opened.is_empty() {
            return Err(ReserveError::Unreachable("the multipath device has no path".to_string()));
        }
        Ok(Multipath::new(opened, MEMORY.clone()))
    }
}

impl<T: Target> Multipath<T> {
    pub(super) fn new(paths: Vec<(String, Result<Reservations<T>, String>)>, memory: Arc<Memory>) -> Multipath<T> {
        Multipath { paths: paths.into_iter().map(|(name, path)| OnePath { name, path }).collect(), memory }
    }

    fn ask<R>(&self, path: &OnePath<T>, ask: impl Fn(&Reservations<T>) -> ReserveResult<R>) -> ReserveResult<R> {
        let answer = path.ask(ask);
        Memory::set(&self.memory.silent, &path.name, matches!(answer, Err(ReserveError::Unreachable(_))));
        answer
    }

    /// Whether commands go by a path that said this of the disk to which it leads.
    fn reaches(&self, path: &OnePath<T>, said: &ReserveResult<()>) -> bool {
        !matches!(said, Err(ReserveError::Unreachable(_))) && self.ask(path, Reservations::keys).is_ok()
    }

    /// The paths, each with why it does not say which disk it leads to, if so.
    ///
    /// # Errors
    /// Failed, when they lead to different disks.
    fn asked(&self) -> ReserveResult<Vec<(&OnePath<T>, ReserveResult<()>)>> {
        let mut first: Option<(&str, BTreeSet<Vec<u8>>)> = None;
        let mut all = Vec::with_capacity(self.paths.len());
        for path in &self.paths {
            let unit = self.ask(path, Reservations::unit);
            if let Ok(unit) = &unit {
                let (other, names) = first.get_or_insert_with(|| (&path.name, unit.clone()));
                if names.is_disjoint(unit) {
                    let (name, why) = (&path.name, "the paths of one device lead to different disks");
                    return Err(failed(format!("{why}: {other} and {name}")));
                }
            }
            all.push((path, unit.map(drop)));
        }
        Ok(all)
    }

    /// What the first path says that reaches the disk, or that may change something and does; else why none does. Conflict, when one was refused:
    /// then another, or the same before its answer was lost, may have made the change.
    fn any<R>(&self, ask: impl Fn(&Reservations<T>) -> ReserveResult<R>) -> ReserveResult<R> {
        let mut failures = Failures::default();
        let silent = self.memory.silent.lock().clone();
        let (last, first): (Vec<_>, Vec<_>) = self.paths.iter().partition(|path| silent.contains(&path.name));
        for path in first.into_iter().chain(last) {
            match self.ask(path, &ask) {
                Ok(answer) => return Ok(answer),
                Err(e) => failures.note(&path.name, e),
            }
        }
        Err(failures.into_error())
    }
}

impl<T: Target> DiskPath for Multipath<T> {
    fn check(&self) -> ReserveResult<()> {
        self.any(Reservations::check)
    }

    fn known_as(&self) -> ReserveResult<Vec<String>> {
        let opened = self.paths.iter().filter_map(|p| p.path.as_ref().ok());
        let all = opened.map(Reservations::known_as).collect::<ReserveResult<Vec<_>>>()?;
        Ok(all.into_iter().flatten().collect::<BTreeSet<_>>().into_iter().collect())
    }

    fn keys(&self) -> ReserveResult<Vec<u64>> {
        self.any(Reservations::keys)
    }

    fn reservation(&self) -> ReserveResult<Option<Reservation>> {
        self.any(Reservations::reservation)
    }

    /// For each path that reaches the disk.
    fn register(&self, key: u64) -> ReserveResult<()> {
        let (mut registered, mut failures) = (false, Failures::default());
        let (first, others) = self.asked()?.into_iter().partition::<Vec<_>, _>(|p| self.memory.is_unheard(&p.0.name));
        for (path, said) in first.into_iter().chain(others) {
            let (name, is_unheard) = (&path.name, self.memory.is_unheard(&path.name));
            let unknown = |e: &str| {
                let why = "whether this path is registered is not known, so none is used before it answers";
                Err(ReserveError::Unreachable(format!("{name}: {e}; {why}")))
            };
            let persists = match said.and_then(|()| path.ask(Reservations::persists)) {
                Ok(persists) => persists,
                Err(ReserveError::Unreachable(e)) if is_unheard => return unknown(&e),
                Err(e) if is_unheard => return unknown(&e.to_string()),
                Err(e) => {
                    failures.note(name, e);
                    continue;
                }
            };
            self.memory.set_unheard(name, true);
            match path.ask(|path| path.register_so(key, persists)) {
                Err(ReserveError::Unreachable(e)) => return unknown(&e),
                answer => {
                    self.memory.set_unheard(name, false);
                    registered |= answer.is_ok();
                    answer.unwrap_or_else(|e| failures.note(name, e));
                }
            }
        }
        if registered { Ok(()) } else { Err(failures.into_error()) }
    }

    fn unregister(&self, key: u64) -> ReserveResult<()> {
        let done = self.paths.iter().map(|p| p.ask(|path| path.unregister(key))).filter(|done| done.is_ok()).count();
        match self.keys()?.contains(&key) {
            true => Err(failed("a path has the key still")),
            false if done == 0 => Err(ReserveError::Conflict),
            false => Ok(()),
        }
    }

    fn reserve(&self, key: u64) -> ReserveResult<()> {
        self.any(|path| path.reserve(key))
    }

    /// The reservation is of one path, and the others are not told which.
    fn release(&self, key: u64) -> ReserveResult<()> {
        let done = self.paths.iter().map(|p| p.ask(|path| path.release(key))).filter(|done| done.is_ok()).count();
        match self.reservation()? {
            Some(held) if held.key == key => Err(failed("the path that has the reservation does not answer")),
            _ if done == 0 => Err(ReserveError::Conflict),
            _ => Ok(()),
        }
    }

    fn clear(&self, key: u64) -> ReserveResult<()> {
        self.any(|path| path.clear(key))
    }

    /// By a path that has `key`. Where the answer of one is lost, another finds the victim gone: a conflict, after which nobody relies on it.
    fn preempt_and_abort(&self, key: u64, victim: u64) -> ReserveResult<()> {
        self.any(|path| path.preempt_and_abort(key, victim))
    }

    /// A reset of the disk ends the commands of all its paths.
    fn settle(&self, key: u64) -> ReserveResult<()> {
        let mut last = failed("no path");
        for path in &self.paths {
            match path.ask(|path| path.settle(key)) {
                Err(ReserveError::Conflict) => return Err(ReserveError::Conflict),
                Err(e) => last = failed(format!("{}: {e}", path.name)),
                Ok(()) => return Ok(()),
            }
        }
        Err(last)
    }

    /// A path that came after the registration has no key, and commands go by it.
    fn confirm(&self, key: u64) -> ReserveResult<()> {
        let mut reach = 0;
        for (path, said) in self.asked()? {
            let reaches = self.reaches(path, &said);
            if let Err(why) = said
                && reaches
            {
                return Err(failed(format!("{}: {why}, and commands go by it", path.name)));
            }
            reach += usize::from(reaches);
        }
        only_key(self, key)?;
        let registered = self.keys()?.iter().filter(|k| **k == key).count();
        if registered < reach {
            return Err(failed(format!(
                "{reach} paths reach the disk, and {registered} have the key: one came meanwhile"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::codec::Sense;
    use super::super::model::{Path as ModelPath, paths};
    use super::super::{Absent, Reservations};
    use super::*;

    const A: u64 = 0x10;
    const B: u64 = 0x20;

    /// A disk, which one machine reaches by its first two paths, and another by the third.
    struct Two {
        paths: [ModelPath; 3],
        a: Multipath<ModelPath>,
        b: Reservations<ModelPath>,
    }

    fn on(path: &ModelPath) -> Reservations<ModelPath> {
        Reservations::new(path.clone())
    }

    fn opened(paths: &[ModelPath; 3], n: usize) -> (String, Result<Reservations<ModelPath>, String>) {
        (format!("path {n}"), Ok(on(&paths[n])))
    }

    fn both(paths: &[ModelPath; 3]) -> Multipath<ModelPath> {
        Multipath::new(vec![opened(paths, 0), opened(paths, 1)], Arc::default())
    }

    fn two() -> Two {
        let paths = paths();
        let (a, b) = (both(&paths), on(&paths[2]));
        Two { paths, a, b }
    }

    impl Two {
        fn owned_by_a() -> Two {
            let two = two();
            two.a.register(A).unwrap();
            assert_eq!((two.a.protect(A), two.a.confirm(A)), (Ok(A), Ok(())));
            two
        }

        /// Which paths a write is taken from.
        fn take(&self) -> [bool; 3] {
            [0, 1, 2].map(|n| self.paths[n].write())
        }

        fn silence(&self, path: usize, is_silent: bool) {
            self.paths[0].disk.borrow_mut().silent[path] = is_silent;
        }
    }

    #[test]
    fn all_paths_of_a_machine_write_and_are_fenced_together() {
        let two = Two::owned_by_a();
        assert_eq!(two.b.keys(), Ok(vec![A, A]));
        assert_eq!(two.take(), [true, true, false]);
        two.b.register(B).unwrap();
        assert_eq!(two.b.fence(B, A, Absent::Ended), Ok(()));
        two.paths.iter().for_each(ModelPath::execute);
        assert_eq!(two.paths[0].disk.borrow().executed, [0, 0, 0], "what was accepted by any path has ended");
        assert_eq!(two.take(), [false, false, true]);
        assert_eq!(two.a.confirm(A), Err(ReserveError::Conflict));
        assert_eq!(two.a.fence(A, B, Absent::Ended), Err(ReserveError::Conflict));
        two.a.register(A + 1).unwrap();
        assert_eq!(two.a.fence(A + 1, B, Absent::Ended), Ok(()));
        assert_eq!((two.a.protect(A + 1), two.a.confirm(A + 1)), (Ok(A + 1), Ok(())));
        assert_eq!(two.take(), [true, true, false], "and the other way round");
    }

    #[test]
    fn a_fence_goes_by_a_path_that_is_reached() {
        for silent in [0, 1] {
            let two = two();
            two.b.register(B).unwrap();
            assert_eq!(two.b.protect(B), Ok(B));
            two.a.register(A).unwrap();
            two.silence(silent, true);
            assert_eq!(two.a.fence(A, B, Absent::InDoubt), Ok(()));
            assert_eq!((two.a.protect(A), two.a.confirm(A)), (Ok(A), Ok(())));
            assert!(two.take() == [true, true, false], "it was registered before it was silent");
        }
        let two = two();
        [0, 1].into_iter().for_each(|path| two.silence(path, true));
        assert!(matches!(two.a.register(A), Err(ReserveError::Unreachable(_))));
        assert!(matches!(two.a.check(), Err(ReserveError::Unreachable(_))));
    }

    #[test]
    fn a_path_that_comes_later_has_no_key() {
        let two = two();
        two.silence(1, true);
        two.a.register(A).unwrap();
        assert_eq!((two.a.protect(A), two.a.confirm(A)), (Ok(A), Ok(())));
        two.silence(1, false);
        assert_eq!(two.take(), [true, false, false]);
        let why = two.a.confirm(A).unwrap_err().to_string();
        assert!(why.contains("2 paths reach the disk, and 1 have the key"), "{why}");
        two.a.register(A + 1).unwrap();
        assert_eq!((two.a.confirm(A + 1), two.take()), (Ok(()), [true, true, false]), "the next ownership has it");
    }

    /// The key of such a path would be on a disk that is not the pool's, and its writes go there.
    #[test]
    fn paths_to_different_disks_are_refused() {
        let two = two();
        let leads = |others| two.paths[0].disk.borrow_mut().others = others;
        leads([None, Some(1), None]);
        let why = two.a.register(A).unwrap_err();
        assert!(matches!(&why, ReserveError::Failed(why) if why.contains("path 0 and path 1")), "{why}");
        assert!(two.paths[0].disk.borrow().changes.is_empty());
        leads([Some(1); 3]);
        assert_eq!((two.a.register(A), two.a.protect(A), two.a.confirm(A)), (Ok(()), Ok(A), Ok(())), "one disk");
        leads([Some(1), None, None]);
        assert!(two.a.confirm(A).unwrap_err().to_string().contains("path 0 and path 1"), "it is mapped anew meanwhile");
    }

    /// It may lead anywhere.
    #[test]
    fn a_path_that_does_not_say_where_it_leads_gets_no_key() {
        for path in [0, 1] {
            let two = two();
            let names = |no| two.paths[0].disk.borrow_mut().nameless[path] = no;
            names(true);
            assert_eq!((two.a.register(A), two.a.protect(A), two.a.keys()), (Ok(()), Ok(A), Ok(vec![A])));
            assert_eq!(two.paths[0].disk.borrow().keys[path], 0);
            let why = two.a.confirm(A).unwrap_err().to_string();
            assert!(why.contains(&format!("path {path}")) && why.contains("commands go by it"), "{why}");
            two.silence(path, true);
            assert_eq!(two.a.confirm(A), Ok(()), "nothing goes by it");
            two.silence(path, false);
            names(false);
            assert!(two.a.confirm(A).unwrap_err().to_string().contains("one came meanwhile"));
        }
    }

    /// Who looks whether a key is gone has to know soon, and asks the first path that answers alone.
    #[test]
    fn keys_and_names_of_a_machine_are_told_without_asking_where_paths_lead() {
        let two = Two::owned_by_a();
        two.paths[0].disk.borrow_mut().name = Some("iscsi:a".to_string());
        two.paths[0].disk.borrow_mut().others = [None, Some(1), None];
        two.paths[0].disk.borrow_mut().inquiries = 0;
        two.silence(0, true);
        assert_eq!((two.a.keys(), two.a.known_as()), (Ok(vec![A, A]), Ok(vec!["iscsi:a".to_string()])));
        two.b.register(B).unwrap();
        two.silence(0, false);
        assert_eq!(two.a.fence(A, B, Absent::Ended), Ok(()));
        assert_eq!(two.paths[0].disk.borrow().inquiries, 0);
    }

    /// Each question to one that hangs takes until the kernel gives it up.
    #[test]
    fn a_path_that_hangs_is_asked_as_seldom_as_can_be() {
        let two = two();
        two.b.register(B).unwrap();
        assert_eq!(two.b.protect(B), Ok(B));
        two.silence(0, true);
        assert_eq!(two.a.check(), Ok(()));
        two.a.register(A).unwrap();
        assert_eq!((two.a.fence(A, B, Absent::InDoubt), two.a.protect(A)), (Ok(()), Ok(A)));
        assert_eq!(two.paths[0].disk.borrow().unanswered[0], 2, "first, and before paths are registered");
        assert_eq!(two.a.confirm(A), Ok(()));
        assert_eq!(two.paths[0].disk.borrow().unanswered[0], 3);
        two.silence(0, false);
        two.a.register(A + 1).unwrap();
        assert_eq!((two.a.protect(A + 1), two.a.confirm(A + 1)), (Ok(A + 1), Ok(())));
        assert_eq!(two.take(), [true, true, false]);
    }

    /// As the kernel does with one that it has given up.
    #[test]
    fn a_path_that_cannot_be_opened_is_one_that_does_not_answer() {
        let paths = paths();
        let (memory, gone) = (Arc::<Memory>::default(), || ("path 0".to_string(), Err("no such device".to_string())));
        let a = Multipath::new(vec![gone(), opened(&paths, 1)], memory.clone());
        a.register(A).unwrap();
        assert_eq!((a.protect(A), a.confirm(A), a.keys()), (Ok(A), Ok(()), Ok(vec![A])));
        on(&paths[2]).register(B).unwrap();
        assert_eq!((a.fence(A, B, Absent::Ended), a.settle(A), a.known_as()), (Ok(()), Ok(()), Ok(vec![])));
        memory.set_unheard("path 0", true);
        assert!(a.register(A + 1).unwrap_err().to_string().contains("path 0: no such device"));
        let none = Multipath::<ModelPath>::new(vec![gone()], Arc::default());
        assert!(matches!(none.check(), Err(ReserveError::Unreachable(_))));
        assert!(matches!(none.register(A), Err(ReserveError::Unreachable(_))));
    }

    /// It may happen at any time: also after a fence, by which the path's writes would pass.
    #[test]
    fn a_registration_that_was_not_answered_is_waited_for() {
        let two = two();
        two.paths[0].disk.borrow_mut().loses_registered = true;
        assert!(two.a.register(A).unwrap_err().to_string().contains("path 0"));
        two.silence(0, true);
        for key in [A, A + 1] {
            assert!(matches!(two.a.register(key), Err(ReserveError::Unreachable(_))), "it is not passed over");
        }
        assert_eq!(two.b.keys(), Ok(vec![A]), "nor is another one registered");
        two.silence(0, false);
        two.a.register(A + 1).unwrap();
        assert_eq!((two.a.keys(), two.a.protect(A + 1)), (Ok(vec![A + 1, A + 1]), Ok(A + 1)));
        two.silence(0, true);
        assert_eq!(two.a.register(A + 2), Ok(()), "what was heard is not waited for");
    }

    #[test]
    fn a_preempting_whose_answer_was_lost_is_settled_by_another_path() {
        let two = two();
        two.b.register(B).unwrap();
        assert_eq!(two.b.protect(B), Ok(B));
        assert!(two.paths[2].write());
        two.a.register(A).unwrap();
        two.paths[0].disk.borrow_mut().loses_answer = true;
        assert_eq!(two.a.fence(A, B, Absent::Ended), Ok(()));
        assert_eq!(two.paths[0].disk.borrow().resets, 1, "its commands may have been going on");
        two.paths[2].execute();
        assert_eq!(two.paths[0].disk.borrow().executed[2], 0);
    }

    /// A port of the disk that is not available, or at which it is not mapped any more, answers with an error.
    #[test]
    fn a_path_that_answers_with_an_error_is_passed_over() {
        for (path, sense) in [(0, (5, 0x25, 0)), (1, (5, 0x25, 0)), (0, (2, 4, 0x0C)), (1, (2, 4, 0x0C))] {
            let two = two();
            two.b.register(B).unwrap();
            assert_eq!(two.b.protect(B), Ok(B));
            let (key, code, qualifier) = sense;
            two.paths[0].disk.borrow_mut().errors[path] = Some(Sense { key, code, qualifier });
            two.a.register(A).unwrap();
            assert_eq!((two.a.check(), two.a.fence(A, B, Absent::Ended)), (Ok(()), Ok(())), "{path} {sense:?}");
            assert_eq!((two.a.protect(A), two.a.confirm(A), two.a.keys()), (Ok(A), Ok(()), Ok(vec![A])));
            two.paths[0].disk.borrow_mut().errors = [Some(Sense { key, code, qualifier }); 3];
            assert!(!matches!(two.a.register(A), Ok(()) | Err(ReserveError::Conflict | ReserveError::Unreachable(_))));
        }
    }

    /// One that is asked in vain what it can must not be registered otherwise than the rest: the last registration counts for all.
    #[test]
    fn a_disk_keeps_its_keys_over_a_loss_of_power_whatever_a_path_says() {
        for path in [0, 1] {
            let two = two();
            two.paths[0].disk.borrow_mut().cannot_say[path] = true;
            two.a.register(A).unwrap();
            assert!(two.paths[0].disk.borrow().keeps);
            two.paths[0].disk.borrow_mut().cannot_say = [true; 3];
            assert!(two.a.register(A + 1).is_err());
            assert!(two.paths[0].disk.borrow().keeps, "what is registered stays so");
        }
    }

    #[test]
    fn a_key_is_taken_back_from_all_paths() {
        let two = Two::owned_by_a();
        two.silence(1, true);
        assert!(matches!(two.a.unregister(A), Err(ReserveError::Failed(_))), "a path has it still");
        two.silence(1, false);
        assert_eq!((two.a.unregister(A), two.a.keys()), (Ok(()), Ok(vec![])));
        assert_eq!(two.a.unregister(A), Err(ReserveError::Conflict));
        let two = Two::owned_by_a();
        assert_eq!((two.a.release(A), two.a.reservation()), (Ok(()), Ok(None)));
        assert_eq!((two.a.protect(A), two.a.clear(A), two.a.keys()), (Ok(A), Ok(()), Ok(vec![])));
    }
}
