//! What files leave to be done when no lock is held: taking away what has no name and no user any more, in as many operations
//! as it needs, and giving blocks their places.

use crate::{
    disk::{
        error::{VolError, VolResult},
        inode::{Stream, StreamSnapshot},
        keys,
    },
    engine::{deferred::Deferred, view::View},
    files::{EXTENTS_AN_OPERATION, extents::Removal, inodes::load_inode, owner::Files, txn::FileTxn},
};

/// What the record of one step has room for at least: then it takes one extent away, or a stream that has none.
const STEP_BYTES_MIN: usize = 16 << 10;

impl FileTxn<'_> {
    /// Takes extents of a stream's snapshots away, as many as there is room; true when none is left.
    fn delete_snapshots(&mut self, set: u64, removal: &mut Removal) -> VolResult<bool> {
        if set == 0 {
            return Ok(true);
        }
        let (from, to) = (keys::one(keys::STREAM_SNAPSHOT, set), keys::end_of(keys::STREAM_SNAPSHOT, set));
        for (key, value) in self.collect(&from, &to, usize::MAX)? {
            let has_room = removal.room > 0 && self.has_room(STEP_BYTES_MIN);
            if !has_room || !self.unmap_some(StreamSnapshot::decode(&value)?.data.sid, removal)? {
                return Ok(false);
            }
            removal.room = removal.room.saturating_sub(1);
            self.delete(key);
        }
        Ok(true)
    }
}

impl Files {
    /// Takes a file or stream without a name away, in as many operations as it needs and up to so many extents. False: there are
    /// more, or the rest needs a checkpoint first.
    fn delete_orphan(&self, ino: u64, extents_left: &mut usize) -> VolResult<bool> {
        let mut removal = Removal::new(EXTENTS_AN_OPERATION);
        while *extents_left > 0 && self.engine.may_reclaim() {
            let mut t = self.begin_beside();
            t.unlimited = true;
            if !t.has_room(STEP_BYTES_MIN) {
                return Ok(false);
            }
            if t.get(&keys::one(keys::ORPHAN, ino))?.is_none() {
                return Ok(true);
            }
            let mut inode = load_inode(&t, ino)?;
            if inode.links > 0 {
                return Err(VolError::Corrupt("a file to be deleted has a name"));
            }
            let room = EXTENTS_AN_OPERATION.min(*extents_left);
            removal.room = room;
            let promised = inode.data.promised();
            let mut done = t.unmap_some(inode.data.sid, &mut removal)?
                && t.delete_snapshots(inode.data.snapshots.id, &mut removal)?;
            let (streams_of, end) = (keys::one(keys::STREAM, ino), keys::end_of(keys::STREAM, ino));
            let streams = t.collect(&removal.from(streams_of.clone()), &end, 64)?;
            for (key, value) in &streams {
                let stream = Stream::decode(value)?;
                done = done
                    && t.has_room(STEP_BYTES_MIN)
                    && t.unmap_some(stream.data.sid, &mut removal)?
                    && t.delete_snapshots(stream.data.snapshots.id, &mut removal)?;
                if done {
                    t.changes.counters.promised -= stream.data.promised();
                    if t.core.dirty.contains_key(&stream.data.sid) {
                        t.changes.dirty.push((stream.data.sid, None));
                    }
                    t.delete(key.clone());
                    removal.goes_on_at(streams_of.clone(), key.clone());
                }
            }
            *extents_left -= (room - removal.room).max(1);
            if done && streams.len() < 64 {
                t.changes.counters.promised -= promised;
                if t.core.dirty.contains_key(&inode.data.sid) {
                    t.changes.dirty.push((inode.data.sid, None));
                }
                if inode.sd != 0 {
                    t.drop_descriptor(inode.sd)?;
                }
                t.delete_pieces(keys::EAS, ino)?;
                t.delete_pieces(keys::REPARSE, ino)?;
                t.delete(keys::one(keys::INODE, ino));
                t.delete(keys::one(keys::ORPHAN, ino));
                t.commit()?;
                return Ok(true);
            }
            // The sums of what is left stay right: sizes no longer matter.
            t.changes.counters.promised -= promised;
            (inode.data.eof, inode.data.reserved, inode.data.sparse) = (0, 0, true);
            t.put_inode(ino, &inode);
            t.commit()?;
        }
        Ok(false)
    }

    /// Takes away what has no name and no user any more, also what an earlier opening left.
    pub fn collect_orphans(&self) -> VolResult<()> {
        let orphans = self.engine.reading().collect(&[keys::ORPHAN], &[keys::ORPHAN + 1], usize::MAX)?;
        let unused = orphans.iter().map(|(k, _)| keys::first(k)).filter(|ino| self.open.in_use(*ino).is_none());
        self.open.reap_all_later(unused);
        match self.engine.reclaim_all() {
            Err(VolError::Full) => Ok(()),
            other => other,
        }
    }
}

impl Deferred for Files {
    fn reclaim(&self, extents_max: usize) -> bool {
        let mut left = extents_max;
        while let Some(ino) = self.open.next_unnamed() {
            match self.delete_orphan(ino, &mut left) {
                Ok(true) => {}
                Ok(false) => {
                    self.open.reap_later(ino);
                    return false;
                }
                Err(e) => tracing::warn!("a deleted file keeps its room until the volume is opened again: {e}"),
            }
        }
        true
    }

    fn before_checkpoint(&self) -> VolResult<()> {
        self.allocate_delayed()
    }
}
