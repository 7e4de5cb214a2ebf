//! Opaque state that whoever opens files wants back after a crash, in the volume and by the same group commit as the
//! files themselves. Refuses to know what it means.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arden_lock::{Mutex, ranks};
use arden_store::{
    commit::ScopeId,
    error::StoreError,
    handles::{Committed, HandleChange, HandleStore, NotKept, VALUE_BYTES_MAX},
    store::Result,
};

use crate::{
    disk::{
        error::{VolError, VolResult},
        keys,
    },
    engine::view::View,
    facade::volume::Volume,
};

/// A value has at most this many bytes.
pub const HANDLE_BYTES_MAX: usize = VALUE_BYTES_MAX;
const KEY_BYTES_MAX: usize = 128;
const PIECE_BYTES: usize = 4096;

fn key(of: &[u8], piece: u16) -> Vec<u8> {
    let mut k = vec![keys::HANDLE, of.len() as u8];
    k.extend_from_slice(of);
    k.extend_from_slice(&piece.to_be_bytes());
    k
}

impl Volume {
    fn change_handles<'a>(&self, changes: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>) -> VolResult<u64> {
        self.engine.make_room()?;
        let mut t = self.engine.begin_beside();
        for (of, value) in changes {
            if of.len() > KEY_BYTES_MAX || value.is_some_and(|v| v.len() > HANDLE_BYTES_MAX) {
                return Err(VolError::Refused("a handle's state is too large"));
            }
            for (k, _) in t.collect(&key(of, 0), &key(of, u16::MAX), usize::MAX)? {
                t.delete(k);
            }
            let Some(value) = value else { continue };
            t.put(key(of, 0), &value[..value.len().min(PIECE_BYTES)]);
            for (i, piece) in value.chunks(PIECE_BYTES).enumerate().skip(1) {
                t.put(key(of, i as u16), piece);
            }
        }
        t.commit()
    }

    fn change_handle(&self, of: &[u8], value: Option<&[u8]>) -> VolResult<u64> {
        self.change_handles(std::iter::once((of, value)))
    }

    /// Durable once it returns.
    pub fn put_handle(&self, of: &[u8], value: &[u8]) -> VolResult<()> {
        let seq = self.change_handle(of, Some(value))?;
        self.engine.commit_to(seq)
    }

    /// Durable once it returns.
    pub fn remove_handle(&self, of: &[u8]) -> VolResult<()> {
        let seq = self.change_handle(of, None)?;
        self.engine.commit_to(seq)
    }

    pub fn load_handles(&self) -> VolResult<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut out: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        self.engine.reading().scan(&[keys::HANDLE], &[keys::HANDLE + 1], &mut |k, v| {
            let of = k.get(2..k.len().saturating_sub(2)).unwrap_or(&[]);
            match out.last_mut() {
                Some((last, value)) if last == of => value.extend_from_slice(v),
                _ => out.push((of.to_vec(), v.to_vec())),
            }
            true
        })?;
        Ok(out)
    }
}

/// What was put under a key that the volume does not have.
struct Fresh {
    value: Vec<u8>,
    /// Whose message put it, and commits it unless it is removed before. Other scopes leave it to that one.
    scope: ScopeId,
}

#[derive(Default)]
struct Uncommitted {
    /// Since the last commit: what is removed before the next one, like an open that is closed in the same message, never
    /// gets to the volume, and nobody has to wait for it.
    fresh: BTreeMap<Vec<u8>, Fresh>,
    not_kept: NotKept,
}

/// The handles of a volume as the store of persistent opens.
pub struct VolumeHandles {
    vol: Arc<Volume>,
    state: Mutex<Uncommitted, ranks::HandleChanges>,
    /// The last operation that changed something here.
    last: AtomicU64,
}

impl VolumeHandles {
    pub fn new(vol: Arc<Volume>) -> Arc<VolumeHandles> {
        Arc::new(VolumeHandles { vol, state: Mutex::default(), last: AtomicU64::new(0) })
    }

    /// Whether the volume has the key, or nobody can tell.
    fn has(&self, of: &[u8]) -> bool {
        self.vol.engine.reading().get(&key(of, 0)).map_or(true, |v| v.is_some())
    }

    /// One operation with what is fresh, of any scope, and `changes` of `scope` after it. Where it cannot be kept, one for
    /// each scope: only those fail whose own changes cannot be.
    fn change(
        &self,
        state: &mut Uncommitted,
        fresh: BTreeMap<Vec<u8>, Fresh>,
        scope: ScopeId,
        changes: &[HandleChange],
    ) {
        let mut scopes: BTreeSet<ScopeId> = fresh.values().map(|f| f.scope).collect();
        if !changes.is_empty() {
            scopes.insert(scope);
        }
        let of = |scopes: &[ScopeId]| {
            let first = fresh.iter().filter(|(_, f)| scopes.contains(&f.scope));
            let first = first.map(|(k, f)| (k.as_slice(), Some(f.value.as_slice())));
            let then = changes.iter().filter(|_| scopes.contains(&scope)).map(|c| match c {
                HandleChange::Put { key, value } => (key.as_slice(), Some(value.as_slice())),
                HandleChange::Remove { key } => (key.as_slice(), None),
            });
            let seq = self.vol.change_handles(first.chain(then))?;
            self.last.fetch_max(seq, Ordering::AcqRel);
            VolResult::Ok(())
        };
        // `scope` last, as its changes may be of keys that others put.
        let mut each: Vec<ScopeId> = scopes.iter().copied().filter(|s| *s != scope).collect();
        each.extend(scopes.get(&scope));
        let Err(e) = of(&each) else { return };
        let alone = each.len() == 1;
        for one in each {
            if let Err(e) = if alone { Err(e) } else { of(&[one]) } {
                tracing::error!("the state of open handles is not kept: {e}");
                state.not_kept.note(one);
            }
        }
    }

    /// Takes what is fresh to the volume: of the scope, or of all.
    fn write_fresh(&self, state: &mut Uncommitted, scope: ScopeId, all: bool) {
        let fresh = std::mem::take(&mut state.fresh);
        let (now, later) = fresh.into_iter().partition::<BTreeMap<_, _>, _>(|(_, f)| all || f.scope == scope);
        state.fresh = later;
        if !now.is_empty() {
            self.change(state, now, scope, &[]);
        }
    }
}

impl HandleStore for VolumeHandles {
    fn load(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>, StoreError> {
        let mut all = self.vol.load_handles()?;
        // Keys lie sorted by their length first.
        all.sort();
        Ok(all)
    }

    fn put(&self, scope: ScopeId, changes: Vec<HandleChange>) {
        let mut state = self.state.lock();
        // What another scope put and this one changes goes to the volume with all that belongs to it.
        let stays_here = |c: &HandleChange| {
            let (HandleChange::Put { key, .. } | HandleChange::Remove { key }) = c;
            match (state.fresh.get(key), c) {
                (Some(f), _) => f.scope == scope,
                (None, HandleChange::Put { key, value }) => {
                    value.len() <= HANDLE_BYTES_MAX && key.len() <= KEY_BYTES_MAX && !self.has(key)
                }
                (None, HandleChange::Remove { .. }) => false,
            }
        };
        if !changes.iter().all(stays_here) {
            let fresh = std::mem::take(&mut state.fresh);
            return self.change(&mut state, fresh, scope, &changes);
        }
        for change in changes {
            match change {
                HandleChange::Put { key, value } => state.fresh.insert(key, Fresh { value, scope }),
                HandleChange::Remove { key } => state.fresh.remove(&key),
            };
        }
    }

    fn has_uncommitted(&self, scope: ScopeId) -> bool {
        let state = self.state.lock();
        state.fresh.values().any(|f| f.scope == scope)
            || self.last.load(Ordering::Acquire) > self.vol.progress().1
            || state.not_kept.concerns(scope)
    }

    fn commit(&self, scope: ScopeId) -> Result<(), StoreError> {
        {
            let mut state = self.state.lock();
            self.write_fresh(&mut state, scope, true);
            state.not_kept.check(scope)?;
        }
        Ok(self.vol.commit_to(self.last.load(Ordering::Acquire))?)
    }

    fn end_scope(&self, scope: ScopeId) {
        let mut state = self.state.lock();
        self.write_fresh(&mut state, scope, false);
        state.not_kept.end(scope);
    }

    fn commits_later(&self) -> bool {
        self.vol.commits_later()
    }

    fn commit_later(&self, scope: ScopeId, files: bool, done: Committed) {
        let kept = {
            let mut state = self.state.lock();
            self.write_fresh(&mut state, scope, false);
            state.not_kept.check(scope)
        };
        if let Err(e) = kept {
            return done(Err(e));
        }
        let seq = if files { self.vol.progress().0 } else { self.last.load(Ordering::Acquire) };
        self.vol.commit_later(seq, Box::new(move |r| done(r.map_err(StoreError::from))));
    }
}

#[cfg(test)]
mod tests {
    use arden_store::{
        commit::CommitScope,
        store::{FileStore as _, NewFile, Wait},
    };

    use super::*;
    use crate::testing::{Files, volume, volume_on};

    fn put(key: &[u8], value: &[u8]) -> HandleChange {
        HandleChange::Put { key: key.into(), value: value.into() }
    }

    fn remove(key: &[u8]) -> HandleChange {
        HandleChange::Remove { key: key.into() }
    }

    #[test]
    fn what_is_removed_before_the_next_commit_never_gets_to_the_volume() {
        let (_, vol) = volume(8 << 20);
        let handles = VolumeHandles::new(vol.clone());
        let scope = CommitScope::begin();
        let before = vol.progress().0;
        handles.put(scope.id(), vec![put(b"o1", b"open")]);
        handles.put(scope.id(), vec![put(b"l1", b"lease"), put(b"o1", b"changed")]);
        assert!(handles.has_uncommitted(scope.id()), "whoever is told of it has to wait");
        handles.put(scope.id(), vec![remove(b"o1"), remove(b"l1")]);
        assert!(!handles.has_uncommitted(scope.id()) && vol.progress().0 == before);
        handles.commit(scope.id()).unwrap();
        assert!(handles.load().unwrap().is_empty());
    }

    #[test]
    fn what_was_committed_is_changed_at_once_and_in_order() {
        let (_, vol) = volume(8 << 20);
        let handles = VolumeHandles::new(vol.clone());
        let scope = CommitScope::begin();
        handles.put(scope.id(), vec![put(b"o1", b"open")]);
        handles.commit(scope.id()).unwrap();
        assert!(!handles.has_uncommitted(scope.id()));
        assert_eq!(handles.load().unwrap(), [(b"o1".to_vec(), b"open".to_vec())]);
        handles.put(scope.id(), vec![put(b"o2", b"two")]);
        // One operation with what was put before.
        let before = vol.progress().0;
        handles.put(scope.id(), vec![put(b"o1", b"broken"), put(b"o3", b"three")]);
        assert_eq!(vol.progress().0, before + 1);
        let all = |n: &[(&[u8], &[u8])]| n.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect::<Vec<_>>();
        assert_eq!(handles.load().unwrap(), all(&[(b"o1", b"broken"), (b"o2", b"two"), (b"o3", b"three")]));
        handles.put(scope.id(), vec![remove(b"o1"), remove(b"o2")]);
        assert!(handles.has_uncommitted(scope.id()), "the volume has it, so that it is gone is a change");
        handles.commit(scope.id()).unwrap();
        assert_eq!(handles.load().unwrap(), all(&[(b"o3", b"three")]));
        assert_eq!(VolumeHandles::new(vol).load().unwrap(), all(&[(b"o3", b"three")]));
    }

    #[test]
    fn what_another_scope_put_and_has_not_committed_is_left_to_it() {
        let (_, vol) = volume(8 << 20);
        let handles = VolumeHandles::new(vol.clone());
        let (one, other) = (CommitScope::begin(), CommitScope::begin());
        let before = vol.progress().0;
        handles.put(other.id(), vec![put(b"o1", b"other")]);
        handles.put(one.id(), vec![put(b"o2", b"own")]);
        assert!(handles.has_uncommitted(one.id()));
        handles.put(one.id(), vec![remove(b"o2")]);
        assert!(!handles.has_uncommitted(one.id()));
        handles.put(one.id(), vec![put(b"o3", b"own")]);
        handles.commit_later(one.id(), false, Box::new(|r| r.unwrap()));
        assert_eq!(vol.progress().0, before + 1);
        assert_eq!(handles.load().unwrap(), [(b"o3".to_vec(), b"own".to_vec())]);
        assert!(handles.has_uncommitted(other.id()) && !handles.has_uncommitted(one.id()));
        // It ends, and nobody commits it: so does the next one.
        handles.end_scope(other.id());
        assert!(handles.has_uncommitted(one.id()));
        handles.commit_later(one.id(), false, Box::new(|r| r.unwrap()));
        assert!(!handles.has_uncommitted(one.id()) && handles.load().unwrap().len() == 2);
        handles.put(other.id(), vec![put(b"o4", b"other")]);
        handles.commit(one.id()).unwrap();
        assert_eq!(handles.load().unwrap().len(), 3, "whoever waits waits for everything");
    }

    /// A message may go on where it may block: what it put before is still its own.
    #[test]
    fn a_scope_that_goes_to_another_thread_takes_its_changes_along() {
        let (_, vol) = volume(8 << 20);
        let handles = VolumeHandles::new(vol.clone());
        let scope = CommitScope::begin().id();
        handles.put(scope, vec![put(b"o1", b"open")]);
        let committed = std::thread::scope(|s| {
            let moved = s.spawn(|| {
                let due = handles.has_uncommitted(scope);
                handles.commit_later(scope, false, Box::new(|r| r.unwrap()));
                due
            });
            moved.join().unwrap()
        });
        assert!(committed, "its answer has to wait");
        assert_eq!(handles.load().unwrap(), [(b"o1".to_vec(), b"open".to_vec())]);
    }

    /// Another message's batch may take a create along before the handle is put: the mark tells the create asked for again.
    #[test]
    fn a_create_without_its_handle_has_its_mark() {
        let (device, vol) = volume(8 << 20);
        let files = Files::new(&vol);
        let new = |directory| NewFile { directory, attributes: 0, security: None, eas: &[], allocation: None };
        let root = files.store.root();
        let file = root.create_child_marked(None, "f", &new(false), 7).unwrap();
        file.create_stream_marked(None, "s", 8).unwrap();
        file.create_stream(None, "t").unwrap();
        root.create_child_marked(None, "d", &new(true), 9).unwrap();
        root.create_child(None, "g", &new(false)).unwrap();
        vol.commit_to(vol.progress().0).unwrap();
        drop((file, root, files));
        let again = Files::new(&volume_on(device));
        let mark = |path: &str| again.find(path).unwrap().create_mark().unwrap();
        assert_eq!(
            [mark("f"), mark("f:s"), mark("f:t"), mark("d"), mark("g")],
            [Some(7), Some(8), None, Some(9), None]
        );
        // What is written, moved or given a new size keeps it.
        let f = again.find("f").unwrap();
        f.write_at(None, 0, &[1; 70_000], Wait::Yes).unwrap();
        f.set_end_of_file(None, 5).unwrap();
        f.set_sparse(None, true).unwrap();
        f.rename(None, &*again.find("d").unwrap(), "moved", false).unwrap();
        assert_eq!((mark("d\\moved"), mark("d\\moved:s")), (Some(7), Some(8)));
    }

    #[test]
    fn what_was_put_at_once_gets_to_the_volume_at_once() {
        let (_, vol) = volume(8 << 20);
        let handles = VolumeHandles::new(vol.clone());
        let (one, other) = (CommitScope::begin(), CommitScope::begin());
        handles.put(other.id(), vec![put(b"k1", b"lock"), put(b"s1", b"1")]);
        handles.put(one.id(), vec![put(b"s1", b"2")]);
        assert!(handles.state.lock().fresh.is_empty(), "another's, and changed");
        assert_eq!(handles.load().unwrap().len(), 2);
    }

    #[test]
    fn the_commit_of_whoever_put_what_is_not_kept_fails_and_no_other() {
        let (_, vol) = volume(8 << 20);
        let handles = VolumeHandles::new(vol);
        let (one, other) = (CommitScope::begin(), CommitScope::begin());
        handles.put(one.id(), vec![put(b"o1", &vec![0; HANDLE_BYTES_MAX + 1])]);
        assert!(!handles.has_uncommitted(other.id()));
        assert!(handles.commit(other.id()).is_ok(), "it is another's");
        assert!(handles.has_uncommitted(one.id()) && handles.commit(one.id()).is_err());
        assert!(handles.commit(one.id()).is_ok());
        // Nobody commits the scope: somebody has to be told.
        handles.put(one.id(), vec![put(b"o1", &vec![0; HANDLE_BYTES_MAX + 1])]);
        handles.end_scope(one.id());
        assert!(handles.commit(other.id()).is_err() && handles.commit(other.id()).is_ok());
    }

    #[test]
    fn what_cannot_be_kept_of_one_scope_fails_no_other() {
        let (_, vol) = volume(8 << 20);
        let handles = VolumeHandles::new(vol);
        let (one, other, third) = (CommitScope::begin(), CommitScope::begin(), CommitScope::begin());
        handles.put(other.id(), vec![put(b"o2", b"other")]);
        handles.put(third.id(), vec![put(b"o3", b"third")]);
        // With all that is fresh.
        handles.put(one.id(), vec![put(b"o2", b"changed"), put(b"o1", &vec![0; HANDLE_BYTES_MAX + 1])]);
        assert!(handles.commit(other.id()).is_ok() && handles.commit(third.id()).is_ok());
        let all = [(b"o2".to_vec(), b"other".to_vec()), (b"o3".to_vec(), b"third".to_vec())];
        assert_eq!(handles.load().unwrap(), all);
        assert!(handles.commit(one.id()).is_err() && handles.commit(one.id()).is_ok());
        // Each value is small enough, and all of one scope are not.
        handles.put(other.id(), vec![put(b"p2", b"other")]);
        for i in 0..64u8 {
            handles.put(one.id(), vec![put(&[b'q', i], &vec![i; HANDLE_BYTES_MAX])]);
        }
        assert!(handles.commit(other.id()).is_ok());
        assert!(handles.load().unwrap().contains(&(b"p2".to_vec(), b"other".to_vec())));
        assert!(handles.commit(one.id()).is_err());
    }

    #[test]
    fn what_cannot_be_kept_fails_the_commit() {
        let (_, vol) = volume(8 << 20);
        let handles = VolumeHandles::new(vol);
        let scope = CommitScope::begin();
        handles.put(scope.id(), vec![put(b"o1", &vec![0; HANDLE_BYTES_MAX + 1])]);
        assert!(handles.has_uncommitted(scope.id()) && handles.commit(scope.id()).is_err());
        assert!(handles.commit(scope.id()).is_ok() && handles.load().unwrap().is_empty());
    }
}
