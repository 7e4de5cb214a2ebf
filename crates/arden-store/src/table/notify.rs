//! Watched directories and the changes below them, [MS-FSA] 2.1.4.1 and 2.1.5.11. Pure: paths come in, and the
//! waits that are over go out.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use arden_lock::{Mutex, ranks};
use arden_wire::names::name_units;

use super::room::give_back_queue;
use crate::{
    error::StoreError,
    fs::{Change, HeldBytes, OpenId, WaitId},
    scope::RequestScope,
    store::{ChangeKind, FileId, Named, Result, WatchGuard},
};

/// So many watches take as long to be told of a change as a request by a handle.
const TOLD_PER_WEIGHT: usize = 32;

/// A directory that an open watches, from its first query to its close.
pub(crate) struct Watch {
    open: OpenId,
    filter: u32,
    recursive: bool,
    buffer_max: usize,
    /// Who counts the bytes of its changes, and bounds them.
    held: Arc<dyn HeldBytes>,
    /// The store listens for changes from outside here while this is kept.
    pub outside: OnceLock<WatchGuard>,
    directory: FileId,
    /// `Fs::identity` of the root it was opened through.
    root: usize,
    state: Mutex<WatchState, ranks::Watch>,
}

#[derive(Default)]
struct WatchState {
    changes: VecDeque<Change>,
    bytes: usize,
    overflow: bool,
    /// Queries that wait, oldest first.
    pending: VecDeque<WaitId>,
    /// What was there when a wait ended, for the call made again, and the bytes that are held for it until then.
    ready: VecDeque<(Result<Vec<Change>, StoreError>, usize)>,
    ended: Option<StoreError>,
}

/// Name bytes and header of one entry in a reply, [MS-FSCC] 2.7.1.
fn wire_bytes(name: &str) -> usize {
    (12 + name_units(name) * 2).next_multiple_of(4)
}

impl Watch {
    /// Beyond `buffer_max` bytes, or what `held` allows, it forgets what it has, and its next query is answered with
    /// `ChangesLost`.
    pub fn new(
        open: OpenId,
        (root, directory): (usize, FileId),
        filter: u32,
        recursive: bool,
        buffer_max: usize,
        held: Arc<dyn HeldBytes>,
    ) -> Watch {
        Watch {
            open,
            directory,
            root,
            filter,
            recursive,
            buffer_max,
            held,
            outside: OnceLock::new(),
            state: Mutex::default(),
        }
    }

    /// A store that tells of changes from outside tells of those through its other roots, too.
    fn hears_from(&self, root: usize) -> bool {
        self.root == root || self.outside.get().is_none()
    }

    /// The changes so far, or None: `wait` was queued.
    pub fn query(
        &self,
        max_bytes: usize,
        wait: impl FnOnce() -> Result<WaitId, StoreError>,
    ) -> Result<Option<Vec<Change>>, StoreError> {
        let mut s = self.state.lock();
        if let Some((ready, bytes)) = s.ready.pop_front() {
            self.held.release(bytes);
            give_back_queue(&mut s.ready);
            let changes = ready?;
            return if fits(&changes, max_bytes) { Ok(Some(changes)) } else { Err(StoreError::ChangesLost) };
        }
        if let Some(error) = s.ended {
            return Err(error);
        }
        if s.overflow || !s.changes.is_empty() {
            let (changes, bytes) = s.take();
            self.held.release(bytes);
            let changes = changes?;
            return if fits(&changes, max_bytes) { Ok(Some(changes)) } else { Err(StoreError::ChangesLost) };
        }
        let id = wait()?;
        s.pending.push_back(id);
        Ok(None)
    }

    pub fn cancel(&self, wait: WaitId) {
        let mut s = self.state.lock();
        s.pending.retain(|w| *w != wait);
        give_back_queue(&mut s.pending);
    }

    /// Ends all queries, now and later, with `error`.
    pub fn end(&self, error: StoreError, woken: &mut Vec<WaitId>) {
        let mut s = self.state.lock();
        s.ended.get_or_insert(error);
        woken.extend(s.pending.drain(..));
    }

    /// Ends the queries that wait, with `error`; later ones wait again.
    pub fn interrupt(&self, error: StoreError, woken: &mut Vec<WaitId>) {
        let mut s = self.state.lock();
        while let Some(w) = s.pending.pop_front() {
            s.ready.push_back((Err(error), 0));
            woken.push(w);
        }
    }

    fn add(&self, changes: &[(ChangeKind, String)], woken: &mut Vec<WaitId>) {
        let mut s = self.state.lock();
        for (kind, name) in changes {
            let repeated = s.changes.back().is_some_and(|c| {
                c.kind == *kind && matches!(kind, ChangeKind::Modified | ChangeKind::ModifiedStream) && c.name == *name
            });
            if s.overflow || repeated {
                continue;
            }
            let more = wire_bytes(name);
            if s.bytes + more > self.buffer_max || !self.held.hold(more) {
                s.lose(&*self.held);
            } else {
                s.bytes += more;
                s.changes.push_back(Change { kind: *kind, name: name.clone() });
            }
        }
        s.deliver(woken);
    }

    /// Changes were lost: the next query says so.
    pub fn overflow(&self, woken: &mut Vec<WaitId>) {
        let mut s = self.state.lock();
        s.lose(&*self.held);
        s.deliver(woken);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        state.lose(&*self.held);
        self.held.release(state.ready.iter().map(|(_, bytes)| bytes).sum());
    }
}

fn fits(changes: &[Change], max_bytes: usize) -> bool {
    changes.iter().map(|c| wire_bytes(&c.name)).sum::<usize>() <= max_bytes
}

impl WatchState {
    fn lose(&mut self, held: &dyn HeldBytes) {
        self.overflow = true;
        self.changes = VecDeque::new();
        held.release(std::mem::take(&mut self.bytes));
    }
    /// The changes, and the bytes that were held for them.
    fn take(&mut self) -> (Result<Vec<Change>, StoreError>, usize) {
        let bytes = std::mem::take(&mut self.bytes);
        // Together with the room that they took.
        let changes = std::mem::take(&mut self.changes).into_iter().collect();
        (if std::mem::take(&mut self.overflow) { Err(StoreError::ChangesLost) } else { Ok(changes) }, bytes)
    }
    fn deliver(&mut self, woken: &mut Vec<WaitId>) {
        if !self.overflow && self.changes.is_empty() {
            return;
        }
        if let Some(w) = self.pending.pop_front() {
            let taken = self.take();
            self.ready.push_back(taken);
            woken.push(w);
            give_back_queue(&mut self.pending);
        }
    }
}

/// All watches of a store, through whatever root, by their directory.
#[derive(Default)]
pub(crate) struct Watches {
    count: AtomicUsize,
    by_directory: Mutex<HashMap<FileId, Vec<Arc<Watch>>>, ranks::Watches>,
}

/// What happened, to what the trail leads to, or to this stream of it.
pub(crate) type Told<'a> = (ChangeKind, &'a [Named], Option<&'a str>);

/// With backslashes; "" is the root.
pub(crate) fn join(path: &[String]) -> String {
    path.join("\\")
}

impl Watches {
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub fn add(&self, watch: Arc<Watch>) {
        self.by_directory.lock().entry(watch.directory).or_default().push(watch);
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    pub fn remove(&self, watch: &Arc<Watch>) {
        let mut map = self.by_directory.lock();
        let Some(list) = map.get_mut(&watch.directory) else { return };
        let before = list.len();
        list.retain(|w| !Arc::ptr_eq(w, watch));
        if list.len() < before {
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
        if list.is_empty() {
            map.remove(&watch.directory);
        }
    }

    /// Tells whoever watches above the trails of what was done through `root`. Several changes belong together: the two
    /// of a rename.
    pub fn report(&self, root: usize, filter: u32, changes: &[Told<'_>], woken: &mut Vec<WaitId>) {
        if self.is_empty() {
            return;
        }
        let mut told = 0;
        let map = self.by_directory.lock();
        for (i, (_, trail, _)) in changes.iter().enumerate() {
            for Named { directory, .. } in *trail {
                // A directory above both names of a rename hears of both at once.
                if changes[..i].iter().any(|(_, other, _)| other.iter().any(|named| named.directory == *directory)) {
                    continue;
                }
                let Some(list) = map.get(directory) else { continue };
                // Watches of one directory hear the same, but for how deep they look.
                let names = [false, true].map(|recursive| names_below(changes, *directory, recursive));
                for w in list.iter().filter(|w| w.filter & filter != 0 && w.hears_from(root)) {
                    let names = &names[usize::from(w.recursive)];
                    if !names.is_empty() {
                        w.add(names, woken);
                        told += 1;
                    }
                }
            }
        }
        RequestScope::weigh(told / TOLD_PER_WEIGHT);
    }

    /// Ends the queries that wait on this directory.
    pub fn interrupt(&self, directory: FileId, error: StoreError, woken: &mut Vec<WaitId>) {
        if let Some(list) = self.by_directory.lock().get(&directory) {
            for w in list {
                w.interrupt(error, woken);
            }
        }
    }

    /// Outside changes were lost.
    pub fn overflow(&self, woken: &mut Vec<WaitId>) {
        for w in self.by_directory.lock().values().flatten() {
            w.overflow(woken);
        }
    }
}

/// The changes below `directory`, directly or with `recursive` at any depth, as a watch of it is told.
fn names_below(changes: &[Told<'_>], directory: FileId, recursive: bool) -> Vec<(ChangeKind, String)> {
    let below = |(kind, trail, stream): &Told<'_>| {
        let at = trail.iter().position(|named| named.directory == directory)?;
        (recursive || at + 1 == trail.len()).then(|| (*kind, name_below(&trail[at..], *stream)))
    };
    changes.iter().filter_map(below).collect()
}

fn name_below(trail: &[Named], stream: Option<&str>) -> String {
    let mut name = trail.iter().map(|named| named.name.as_str()).collect::<Vec<_>>().join("\\");
    if let Some(s) = stream {
        name.push(':');
        name.push_str(s);
    }
    name
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("open", &self.open).field("filter", &self.filter).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts, and bounds, as an owner of opens does.
    struct Counted {
        max: usize,
        held: AtomicUsize,
        most: AtomicUsize,
    }

    impl Counted {
        fn up_to(max: usize) -> Arc<Counted> {
            Arc::new(Counted { max, held: AtomicUsize::new(0), most: AtomicUsize::new(0) })
        }
    }

    impl HeldBytes for Counted {
        fn hold(&self, bytes: usize) -> bool {
            let held = self.held.load(Ordering::Relaxed) + bytes;
            if held > self.max {
                return false;
            }
            self.held.store(held, Ordering::Relaxed);
            self.most.fetch_max(held, Ordering::Relaxed);
            true
        }
        fn release(&self, bytes: usize) {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn id(file: u64) -> FileId {
        FileId { volume: 1, file }
    }

    /// Directories by the hash of their paths.
    fn directory(path: &str) -> FileId {
        id(path.bytes().fold(7, |h, b| h * 31 + u64::from(b)))
    }

    fn trail(path: &str) -> Vec<Named> {
        let mut above = String::new();
        let named = |name: &str| {
            let directory = directory(&above);
            above = if above.is_empty() { name.to_owned() } else { format!("{above}\\{name}") };
            Named { directory, name: name.to_owned() }
        };
        path.split('\\').map(named).collect()
    }

    fn watch(open: u64, at: &str, recursive: bool, buffer_max: usize, held: Arc<dyn HeldBytes>) -> Arc<Watch> {
        Arc::new(Watch::new(OpenId(open), (0, directory(at)), 1, recursive, buffer_max, held))
    }
    fn change(kind: ChangeKind, name: &str) -> Change {
        Change { kind, name: name.to_owned() }
    }

    #[test]
    fn direct_and_recursive_watches() {
        let watches = Watches::default();
        let flat = watch(1, "a", false, 1000, Counted::up_to(1 << 20));
        let deep = watch(2, "", true, 1000, Counted::up_to(1 << 20));
        watches.add(flat.clone());
        watches.add(deep.clone());
        let mut woken = Vec::new();
        assert_eq!(flat.query(1000, || Ok(WaitId(7))).unwrap(), None);
        watches.report(0, 1, &[(ChangeKind::Added, &trail("a\\b\\c"), None)], &mut woken);
        assert!(woken.is_empty());
        watches.report(0, 2, &[(ChangeKind::Added, &trail("a\\d"), None)], &mut woken);
        assert!(woken.is_empty(), "another filter");
        watches.report(0, 1, &[(ChangeKind::Added, &trail("a\\d"), None)], &mut woken);
        assert_eq!(woken, [WaitId(7)]);
        // What comes after the wait ended is for the next call.
        watches.report(0, 1, &[(ChangeKind::Removed, &trail("a\\d"), None)], &mut woken);
        let first = flat.query(1000, || unreachable!()).unwrap().unwrap();
        assert_eq!(first, [change(ChangeKind::Added, "d")]);
        let second = flat.query(1000, || unreachable!()).unwrap().unwrap();
        assert_eq!(second, [change(ChangeKind::Removed, "d")]);
        let all = deep.query(1000, || unreachable!()).unwrap().unwrap();
        assert_eq!(all.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["a\\b\\c", "a\\d", "a\\d"]);
    }

    #[test]
    fn renames_stay_together_and_watches_stay_with_their_directory() {
        let watches = Watches::default();
        let w = watch(1, "x", false, 1000, Counted::up_to(1 << 20));
        watches.add(w.clone());
        let (old, new) = (trail("x\\old"), trail("x\\new"));
        let mut woken = Vec::new();
        watches.report(0, 1, &[(ChangeKind::RenamedOld, &old, None), (ChangeKind::RenamedNew, &new, None)], &mut woken);
        assert_eq!(
            w.query(1000, || unreachable!()).unwrap().unwrap(),
            [change(ChangeKind::RenamedOld, "old"), change(ChangeKind::RenamedNew, "new")]
        );
        let moved = [&trail("y\\z")[..], &[Named { directory: directory("x"), name: "q".into() }]].concat();
        watches.report(0, 1, &[(ChangeKind::Added, &moved, Some("s"))], &mut woken);
        assert_eq!(w.query(1000, || unreachable!()).unwrap().unwrap(), [change(ChangeKind::Added, "q:s")]);
        watches.remove(&w);
        assert!(watches.is_empty());
    }

    #[test]
    fn too_much_is_an_overflow_once() {
        let watches = Watches::default();
        let w = watch(1, "", false, 100, Counted::up_to(1 << 20));
        watches.add(w.clone());
        for i in 0..20 {
            watches.report(0, 1, &[(ChangeKind::Added, &trail(&format!("file{i}")), None)], &mut Vec::new());
        }
        assert_eq!(w.query(1000, || unreachable!()), Err(StoreError::ChangesLost));
        assert_eq!(w.query(1000, || Ok(WaitId(1))), Ok(None));
        watches.report(0, 1, &[(ChangeKind::Added, &trail("a"), None)], &mut Vec::new());
        assert_eq!(w.query(4, || unreachable!()), Err(StoreError::ChangesLost), "reply too small");
        let mut woken = Vec::new();
        assert_eq!(w.query(4, || Ok(WaitId(2))), Ok(None));
        w.end(StoreError::WatchEnded, &mut woken);
        assert_eq!(woken, [WaitId(2)]);
        assert_eq!(w.query(4, || unreachable!()), Err(StoreError::WatchEnded));
    }

    /// Watches that one count bounds hold no more than that together, and give back what they held.
    #[test]
    fn watches_are_bounded_together() {
        let watches = Watches::default();
        let (mine, other) = (Counted::up_to(1 << 20), Counted::up_to(1 << 20));
        let many: Vec<_> = (0..200).map(|i| watch(i, "", false, 1 << 16, mine.clone())).collect();
        many.iter().for_each(|w| watches.add(w.clone()));
        let theirs = watch(999, "", false, 1 << 16, other.clone());
        watches.add(theirs.clone());
        for i in 0..1500 {
            watches.report(0, 1, &[(ChangeKind::Added, &trail(&format!("file{i:06}")), None)], &mut Vec::new());
        }
        assert_eq!(mine.most.load(Ordering::Relaxed), 1 << 20, "as much as allowed, and no more");
        let answers = many.iter().map(|w| w.query(1 << 16, || unreachable!()));
        let (whole, lost): (Vec<_>, Vec<_>) = answers.partition(Result::is_ok);
        assert!(!whole.is_empty() && whole.len() * 1500 * 32 <= 1 << 20, "{}", whole.len());
        assert!(lost.iter().all(|answer| *answer == Err(StoreError::ChangesLost)));
        assert_eq!(theirs.query(1 << 16, || unreachable!()).unwrap().unwrap().len(), 1500);
        assert_eq!(other.held.load(Ordering::Relaxed), 0);
        many.iter().for_each(|w| watches.remove(w));
        drop(many);
        assert_eq!(mine.held.load(Ordering::Relaxed), 0);
    }

    /// What a query was woken for is held until it has fetched it, or the watch goes.
    #[test]
    fn changes_are_held_until_they_are_fetched() {
        let watches = Watches::default();
        let mine = Counted::up_to(10_000);
        let watch = watch(1, "a", true, 10_000, mine.clone());
        watches.add(watch.clone());
        let held = || mine.held.load(Ordering::Relaxed);
        let add = |name: &str| {
            let path = trail(&format!("a\\{name}"));
            watches.report(0, 1, &[(ChangeKind::Added, &path, None)], &mut Vec::new());
        };
        for wait in 0..3 {
            assert_eq!(watch.query(1000, || Ok(WaitId(wait))), Ok(None));
        }
        add("one");
        add("second");
        assert_eq!(held(), wire_bytes("one") + wire_bytes("second"));
        assert_eq!(watch.query(1000, || unreachable!()), Ok(Some(vec![change(ChangeKind::Added, "one")])));
        assert_eq!(held(), wire_bytes("second"));
        // The other's client is gone, and the watch with it.
        watches.remove(&watch);
        drop(watch);
        assert_eq!(held(), 0);
    }
}
