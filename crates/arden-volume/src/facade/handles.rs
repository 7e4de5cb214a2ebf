//! Opaque state that whoever opens files wants back after a crash, in the volume and by the same group commit as the
//! files themselves. Refuses to know what it means.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use arden_store::{
    handles::{Committed, HandleChange, HandleStore, VALUE_BYTES_MAX},
    store::Result,
};
use arden_wire::NtStatus;
use parking_lot::Mutex;

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
        let mut t = self.engine.begin();
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

/// After so long, what somebody put concerns everybody who commits.
const OWN_FOR: Duration = Duration::from_millis(20);

/// What was put under a key that the volume does not have.
struct Fresh {
    value: Vec<u8>,
    /// Who put it, and commits it unless it is removed before. The others leave it to them, for a while: whoever works on
    /// another message has told nobody of it.
    by: ThreadId,
    at: Instant,
}

impl Fresh {
    /// `now`: one moment for all, so that what was put at once is due at once.
    fn is_due(&self, now: Instant) -> bool {
        self.by == thread::current().id() || now.saturating_duration_since(self.at) > OWN_FOR
    }
}

/// The handles of a volume as the store of persistent opens.
pub struct VolumeHandles {
    vol: Arc<Volume>,
    /// Since the last commit: what is removed before the next one, like an open that is closed in the same message, never
    /// gets to the volume, and nobody has to wait for it.
    fresh: Mutex<BTreeMap<Vec<u8>, Fresh>>,
    /// The last operation that changed something here.
    last: AtomicU64,
    /// Something could not be put: the next commit fails.
    failed: AtomicBool,
}

impl VolumeHandles {
    pub fn new(vol: Arc<Volume>) -> Arc<VolumeHandles> {
        Arc::new(VolumeHandles {
            vol,
            fresh: Mutex::default(),
            last: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        })
    }

    /// Whether the volume has the key, or nobody can tell.
    fn has(&self, of: &[u8]) -> bool {
        self.vol.engine.reading().get(&key(of, 0)).map_or(true, |v| v.is_some())
    }

    /// One operation with what is fresh and what comes after it.
    fn change(&self, fresh: BTreeMap<Vec<u8>, Fresh>, changes: &[HandleChange]) {
        let first = fresh.iter().map(|(k, f)| (k.as_slice(), Some(f.value.as_slice())));
        let then = changes.iter().map(|c| match c {
            HandleChange::Put { key, value } => (key.as_slice(), Some(value.as_slice())),
            HandleChange::Remove { key } => (key.as_slice(), None),
        });
        match self.vol.change_handles(first.chain(then)) {
            Ok(seq) => {
                self.last.fetch_max(seq, Ordering::AcqRel);
            }
            Err(e) => {
                tracing::error!("the state of open handles is not kept: {e}");
                self.failed.store(true, Ordering::Release);
            }
        }
    }

    fn write_fresh(&self, which: impl Fn(&Fresh) -> bool) {
        let mut fresh = self.fresh.lock();
        let (now, later) = std::mem::take(&mut *fresh).into_iter().partition::<BTreeMap<_, _>, _>(|(_, f)| which(f));
        *fresh = later;
        if !now.is_empty() {
            self.change(now, &[]);
        }
    }

    fn check_kept(&self) -> Result<()> {
        if self.failed.swap(false, Ordering::AcqRel) { Err(NtStatus::INSUFFICIENT_RESOURCES) } else { Ok(()) }
    }
}

impl HandleStore for VolumeHandles {
    fn load(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut all = self.vol.load_handles()?;
        // Keys lie sorted by their length first.
        all.sort();
        Ok(all)
    }

    fn put(&self, changes: Vec<HandleChange>) {
        let mut fresh = self.fresh.lock();
        let by = thread::current().id();
        let mut at = Instant::now();
        // What another thread put and this one changes goes to the volume with all that belongs to it.
        let mut stays_here = |c: &HandleChange| {
            let (HandleChange::Put { key, .. } | HandleChange::Remove { key }) = c;
            match (fresh.get(key), c) {
                (Some(f), _) => {
                    at = at.min(f.at);
                    f.by == by
                }
                (None, HandleChange::Put { key, value }) => {
                    value.len() <= HANDLE_BYTES_MAX && key.len() <= KEY_BYTES_MAX && !self.has(key)
                }
                (None, HandleChange::Remove { .. }) => false,
            }
        };
        if !changes.iter().all(&mut stays_here) {
            return self.change(std::mem::take(&mut fresh), &changes);
        }
        for change in changes {
            match change {
                HandleChange::Put { key, value } => fresh.insert(key, Fresh { value, by, at }),
                HandleChange::Remove { key } => fresh.remove(&key),
            };
        }
    }

    fn has_uncommitted(&self) -> bool {
        let now = Instant::now();
        self.fresh.lock().values().any(|f| f.is_due(now))
            || self.last.load(Ordering::Acquire) > self.vol.progress().1
            || self.failed.load(Ordering::Acquire)
    }

    fn commit(&self) -> Result<()> {
        self.write_fresh(|_| true);
        self.check_kept()?;
        Ok(self.vol.commit_to(self.last.load(Ordering::Acquire))?)
    }

    fn commits_later(&self) -> bool {
        self.vol.commits_later()
    }

    fn commit_later(&self, files: bool, done: Committed) {
        let now = Instant::now();
        self.write_fresh(|f| f.is_due(now));
        if let Err(e) = self.check_kept() {
            return done(Err(e));
        }
        let seq = if files { self.vol.progress().0 } else { self.last.load(Ordering::Acquire) };
        self.vol.commit_later(seq, Box::new(move |r| done(r.map_err(NtStatus::from))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::volume;

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
        let before = vol.progress().0;
        handles.put(vec![put(b"o1", b"open")]);
        handles.put(vec![put(b"l1", b"lease"), put(b"o1", b"changed")]);
        assert!(handles.has_uncommitted(), "whoever is told of it has to wait");
        handles.put(vec![remove(b"o1"), remove(b"l1")]);
        assert!(!handles.has_uncommitted() && vol.progress().0 == before);
        handles.commit().unwrap();
        assert!(handles.load().unwrap().is_empty());
    }

    #[test]
    fn what_was_committed_is_changed_at_once_and_in_order() {
        let (_, vol) = volume(8 << 20);
        let handles = VolumeHandles::new(vol.clone());
        handles.put(vec![put(b"o1", b"open")]);
        handles.commit().unwrap();
        assert!(!handles.has_uncommitted());
        assert_eq!(handles.load().unwrap(), [(b"o1".to_vec(), b"open".to_vec())]);
        handles.put(vec![put(b"o2", b"two")]);
        // One operation with what was put before.
        let before = vol.progress().0;
        handles.put(vec![put(b"o1", b"broken"), put(b"o3", b"three")]);
        assert_eq!(vol.progress().0, before + 1);
        let all = |n: &[(&[u8], &[u8])]| n.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect::<Vec<_>>();
        assert_eq!(handles.load().unwrap(), all(&[(b"o1", b"broken"), (b"o2", b"two"), (b"o3", b"three")]));
        handles.put(vec![remove(b"o1"), remove(b"o2")]);
        assert!(handles.has_uncommitted(), "the volume has it, so that it is gone is a change");
        handles.commit().unwrap();
        assert_eq!(handles.load().unwrap(), all(&[(b"o3", b"three")]));
        assert_eq!(VolumeHandles::new(vol).load().unwrap(), all(&[(b"o3", b"three")]));
    }

    #[test]
    fn what_another_thread_put_and_told_nobody_of_is_left_to_it() {
        let (_, vol) = volume(8 << 20);
        let handles = VolumeHandles::new(vol.clone());
        let before = vol.progress().0;
        thread::scope(|s| s.spawn(|| handles.put(vec![put(b"o1", b"other")])).join().unwrap());
        let began = handles.fresh.lock().values().next().unwrap().at;
        handles.put(vec![put(b"o2", b"own")]);
        assert!(handles.has_uncommitted());
        handles.put(vec![remove(b"o2")]);
        // As far as that could be seen in time.
        assert!(!handles.has_uncommitted() || began.elapsed() > OWN_FOR);
        handles.put(vec![put(b"o3", b"own")]);
        handles.commit_later(false, Box::new(|r| r.unwrap()));
        assert_eq!(vol.progress().0, before + 1);
        let kept = handles.load().unwrap();
        assert!(kept == [(b"o3".to_vec(), b"own".to_vec())] || kept.len() == 2 && began.elapsed() > OWN_FOR);
        // Whoever put it may have forgotten it.
        thread::sleep(2 * OWN_FOR);
        assert!(handles.has_uncommitted() || kept.len() == 2);
        handles.commit_later(false, Box::new(|r| r.unwrap()));
        assert!(!handles.has_uncommitted() && handles.load().unwrap().len() == 2);
        thread::scope(|s| s.spawn(|| handles.put(vec![put(b"o4", b"other")])).join().unwrap());
        handles.commit().unwrap();
        assert_eq!(handles.load().unwrap().len(), 3, "whoever waits waits for everything");
    }

    #[test]
    fn what_was_put_at_once_gets_to_the_volume_at_once() {
        let (_, vol) = volume(8 << 20);
        let handles = VolumeHandles::new(vol.clone());
        thread::scope(|s| s.spawn(|| handles.put(vec![put(b"k1", b"lock"), put(b"s1", b"1")])).join().unwrap());
        handles.put(vec![put(b"s1", b"2")]);
        assert!(handles.fresh.lock().is_empty(), "another's, and changed");
        handles.put(vec![put(b"k2", b"lock")]);
        handles.fresh.lock().get_mut(b"k2".as_slice()).unwrap().at -= OWN_FOR;
        handles.put(vec![put(b"k2", b"again"), put(b"s2", b"1")]);
        thread::scope(|s| s.spawn(|| handles.commit_later(false, Box::new(|r| r.unwrap()))).join().unwrap());
        assert_eq!(handles.load().unwrap().len(), 4);
    }

    #[test]
    fn what_cannot_be_kept_fails_the_commit() {
        let (_, vol) = volume(8 << 20);
        let handles = VolumeHandles::new(vol);
        handles.put(vec![put(b"o1", &vec![0; HANDLE_BYTES_MAX + 1])]);
        assert!(handles.has_uncommitted() && handles.commit().is_err());
        assert!(handles.commit().is_ok() && handles.load().unwrap().is_empty());
    }
}
