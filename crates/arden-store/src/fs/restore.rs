//! Persistent opens: what has to be kept of them, how they come back after a restart, and what happens when their client
//! does. [MS-SMB2] 3.3.5.9.12 is one protocol's way of asking for it.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use arden_lock::Mutex;

use super::{Fs, LockRange, Open, Owner, lease_state};
use crate::{
    commit::Cause,
    error::StoreError,
    handles::{KeptBreak, KeptCache, KeptLease, KeptOpen},
    name::{NtPath, PathWants},
    store::{Lookup, NodeRef, Result},
    table::{ANY_COPY, HeldTimes, Restored, effects::Effects, file::NameState},
};

/// An open as it was kept, with what it shares and holds.
pub struct RestoreOpen<'a> {
    pub open: &'a KeptOpen,
    pub lease: Option<&'a KeptLease>,
    pub locks: &'a [LockRange],
    pub owner: &'a Owner,
    pub cause: Cause<'a>,
    /// Its answers wait for stable storage.
    pub durable: bool,
    /// It outlives a crash, and keeps others out while its client is away. Else it outlived a planned stop, and comes back where no other
    /// open is in its way.
    pub persistent: bool,
}

impl Fs {
    /// Puts a kept open back, with its share modes, locks, caching and pending deletion. `NotFound` when its
    /// file is gone.
    pub fn restore(self: &Arc<Self>, r: &RestoreOpen<'_>) -> Result<Arc<Open>> {
        self.table.saw(r.cause.now);
        let kept = r.open;
        let node = self.find_kept(kept)?;
        let who = Arc::new(kept.who.clone());
        let lease = self.restored_lease(&node, r.lease)?;
        let entered = self.table.restore(&Restored {
            node: &node,
            who: &who,
            open: kept,
            lease: lease.as_ref(),
            locks: r.locks,
            owner: r.owner,
            cause: r.cause,
            persistent: r.persistent,
        })?;
        Ok(Arc::new(Open {
            id: kept.id,
            owner: r.owner.clone(),
            fs: self.clone(),
            file: entered.file,
            stream_no: entered.stream_no,
            granted: kept.granted,
            // Until its client takes it up again by a share.
            share_permits: AtomicU32::new(kept.granted),
            share: kept.share,
            options: kept.options,
            mode: AtomicU32::new(kept.options & super::MODE_BITS),
            who,
            client: kept.client,
            lease: entered.lease,
            beside_writer: AtomicBool::new(entered.beside_writer),
            parent_key: kept.parent_key,
            directory: node.is_directory() && node.stream().is_none(),
            node,
            closed: AtomicBool::new(false),
            delete_on_close: AtomicBool::new(kept.delete_on_close),
            wrote: AtomicBool::new(false),
            delays_write_time: AtomicBool::new(false),
            created_at: OnceLock::new(),
            pending_filter: AtomicU32::new(0),
            position: AtomicU64::new(0),
            read_copy: AtomicU32::new(ANY_COPY),
            locks: AtomicUsize::new(r.locks.len()),
            times: Mutex::new(HeldTimes::default()),
            listing: Mutex::new(None),
            watch: OnceLock::new(),
            durable: AtomicBool::new(r.durable),
            restored: true,
        }))
    }

    /// The lease as it was kept. That of a directory which changed meanwhile, or whose change came before its break was
    /// kept, breaks to nothing: the client is told when it is back.
    fn restored_lease(&self, node: &NodeRef, kept: Option<&KeptLease>) -> Result<Option<KeptLease>> {
        let Some(lease) = kept else { return Ok(None) };
        let directory = node.is_directory() && node.stream().is_none();
        if !directory || lease.state == 0 || node.stat()?.change.0 == lease.changed_at {
            return Ok(Some(*lease));
        }
        let mut lease = *lease;
        if lease.breaking.is_none() {
            lease.epoch = lease.epoch.wrapping_add(1);
        }
        if lease.state == lease_state::READ {
            // Such a break wants no answer: the reconnect says what is left.
            lease.state = 0;
        } else {
            let offered = lease.breaking.map_or(0, |b| b.offered);
            lease.breaking = Some(KeptBreak { offered, required: 0 });
        }
        Ok(Some(lease))
    }

    /// Where it stood; or, when local processes renamed it, in the same directory, or wherever the store finds its id.
    fn find_kept(&self, kept: &KeptOpen) -> Result<NodeRef> {
        if let Some(node) = self.at_path(&kept.path, kept) {
            return Ok(node);
        }
        if let Some(parent) = self.parent_of(&kept.path) {
            let mut entries = parent.list()?;
            while let Some(entry) = entries.peek(&|_| true)? {
                if entry.stat.id.file == kept.file {
                    let mut path = parent.path();
                    path.push(entry.name);
                    if let Some(node) = self.at_path(&path, kept) {
                        return Ok(node);
                    }
                }
                entries.advance();
            }
        }
        match (self.store.lookup_id(kept.file), &kept.stream) {
            (Ok(node), None) if is_same(&node, kept) => Ok(node),
            (Ok(node), Some(_)) => self.at_path(&node.path(), kept).ok_or(StoreError::NotFound.into()),
            _ => Err(StoreError::NotFound.into()),
        }
    }

    fn at_path(&self, path: &[String], kept: &KeptOpen) -> Option<NodeRef> {
        let path = NtPath { components: path.to_vec(), stream: kept.stream.clone(), wants: PathWants::Any };
        match self.store.lookup(&path) {
            Ok(Lookup::Found(node)) if is_same(&node, kept) => Some(node),
            _ => None,
        }
    }

    /// What has to be kept of the open as it is now.
    pub fn keep(&self, open: &Arc<Open>) -> KeptOpen {
        let (delete_pending, cache) = {
            let mut inner = open.file.lock();
            let pending = match inner.name_of(open) {
                NameState::ToGo(at) => Some(inner.deletes[at].goes_with(open.id)),
                NameState::Stays | NameState::Gone => None,
            };
            let main = inner.is_main(open.stream_no);
            let s = inner.at(open.stream_no);
            let kept = s.caches.kept(open.id, open.lease);
            let cache = match open.lease {
                Some(lease) => KeptCache::Lease { key: lease.key },
                None => {
                    KeptCache::Oplock { state: kept.map_or(0, |k| k.state), breaking: kept.and_then(|k| k.breaking) }
                }
            };
            (if main { pending } else { s.delete.as_ref().map(|_| false) }, cache)
        };
        KeptOpen {
            id: open.id,
            file: open.file.id.file,
            born: open.node.born(),
            path: open.node.path(),
            stream: open.stream().map(str::to_owned),
            granted: open.granted,
            share: open.share,
            options: open.options,
            client: open.client,
            who: (*open.who).clone(),
            parent_key: open.parent_key,
            delete_on_close: open.delete_on_close.load(Ordering::Acquire),
            delete_pending,
            cache,
        }
    }

    /// The byte-range locks that the open holds, each as often as it does.
    pub fn locks_of(&self, open: &Arc<Open>) -> Vec<LockRange> {
        open.file.lock().at(open.stream_no).locks.held_by(open.id)
    }

    /// What has to be kept of the open's lease.
    pub fn keep_lease(&self, open: &Arc<Open>) -> Option<KeptLease> {
        let lease = open.lease?;
        let kept = open.file.lock().at(open.stream_no).caches.kept(open.id, Some(lease))?;
        Some(KeptLease {
            client: lease.client,
            key: lease.key,
            state: kept.state,
            epoch: kept.epoch,
            version: kept.version,
            parent_key: kept.parent_key,
            breaking: kept.breaking,
            changed_at: kept.changed_at,
        })
    }

    /// The client of a persistent open lost its connection (`absent`), or is back.
    pub fn set_owner_absent(&self, open: &Arc<Open>, absent: bool) {
        open.file.lock().set_owner_absent(open.stream_no, open.id, absent);
    }

    /// The open outlives its client's connection, and the server: its holder has longer to answer breaks.
    pub fn make_persistent(&self, open: &Arc<Open>) {
        open.file.lock().at(open.stream_no).caches.make_patient(open.id, open.lease);
    }

    /// The client took the open up again. `epoch` is the lease's as the client knows it.
    pub fn catch_up(&self, open: &Arc<Open>, epoch: u16) {
        if let Some(lease) = open.lease {
            open.file.lock().at(open.stream_no).caches.catch_up(open.id, lease, epoch);
        }
    }

    /// Tells the holder of a break that it may not know of, [MS-SMB2] 3.3.5.9.12.
    pub fn tell_break_again(&self, open: &Arc<Open>, cause: Cause<'_>) {
        let mut fx = Effects::default();
        let clock = self.table.clock(cause.now);
        open.file.lock().at(open.stream_no).caches.tell_again(open.id, open.lease, clock, &mut fx);
        self.table.run(cause.scope, &open.file, fx);
    }
}

/// Whether this is the file that was open: its number may have been given to another since, while nobody had it open.
fn is_same(node: &NodeRef, kept: &KeptOpen) -> bool {
    node.id().file == kept.file && (kept.born == 0 || [0, kept.born].contains(&node.born()))
}
