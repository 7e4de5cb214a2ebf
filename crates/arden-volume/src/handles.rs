//! Opaque state that whoever opens files wants back after a crash, in the volume and by the same group commit as the
//! files themselves. Refuses to know what it means.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use arden_store::{
    handles::{Committed, HandleChange, HandleStore, VALUE_BYTES_MAX},
    store::Result,
};
use arden_wire::NtStatus;

use crate::{
    error::{VolError, VolResult},
    keys,
    kv::View,
    volume::Volume,
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
        self.make_room()?;
        let mut t = self.begin();
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
        self.commit_to(seq)
    }

    /// Durable once it returns.
    pub fn remove_handle(&self, of: &[u8]) -> VolResult<()> {
        let seq = self.change_handle(of, None)?;
        self.commit_to(seq)
    }

    pub fn load_handles(&self) -> VolResult<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut out: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        self.reading().scan(&[keys::HANDLE], &[keys::HANDLE + 1], &mut |k, v| {
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

/// The handles of a volume as the store of persistent opens.
pub struct VolumeHandles {
    vol: Arc<Volume>,
    /// The last operation that changed something here.
    last: AtomicU64,
    /// Something could not be put: the next commit fails.
    failed: AtomicBool,
}

impl VolumeHandles {
    pub fn new(vol: Arc<Volume>) -> Arc<VolumeHandles> {
        Arc::new(VolumeHandles { vol, last: AtomicU64::new(0), failed: AtomicBool::new(false) })
    }
}

impl VolumeHandles {
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
        let done = self.vol.change_handles(changes.iter().map(|c| match c {
            HandleChange::Put { key, value } => (key.as_slice(), Some(value.as_slice())),
            HandleChange::Remove { key } => (key.as_slice(), None),
        }));
        match done {
            Ok(seq) => {
                self.last.fetch_max(seq, Ordering::AcqRel);
            }
            Err(e) => {
                tracing::error!("the state of open handles is not kept: {e}");
                self.failed.store(true, Ordering::Release);
            }
        }
    }

    fn has_uncommitted(&self) -> bool {
        self.last.load(Ordering::Acquire) > self.vol.progress().1 || self.failed.load(Ordering::Acquire)
    }

    fn commit(&self) -> Result<()> {
        self.check_kept()?;
        Ok(self.vol.commit_to(self.last.load(Ordering::Acquire))?)
    }

    fn commits_later(&self) -> bool {
        self.vol.commits_later()
    }

    fn commit_later(&self, files: bool, done: Committed) {
        if let Err(e) = self.check_kept() {
            return done(Err(e));
        }
        let seq = if files { self.vol.progress().0 } else { self.last.load(Ordering::Acquire) };
        self.vol.commit_later(seq, Box::new(move |r| done(r.map_err(NtStatus::from))));
    }
}
