//! Snapshots of streams, [MS-FSA] 2.1.5.10.29: a snapshot is data of its own that shares the stream's blocks, as a clone does. A
//! stream knows the set that its snapshots are in, so that renaming or emptying it leaves them alone. Owns how one is made,
//! compared with the stream and reverted to; what becomes of the set of a stream that is deleted is `files::reap`'s.

use std::sync::{Arc, atomic::Ordering};

use arden_store::{
    error::StoreError,
    name::{check_stream_name, fold},
    store::{DeltaPlace, Result, StreamDelta},
};
use arden_wire::FileTime;

use crate::{
    disk::{
        device::BLOCK,
        error::VolResult,
        inode::{Data, EXTENT_BLOCKS_MAX, Extent, Inode, SnapshotSet, StreamSnapshot},
        keys::{self, Key},
        superblock::feature,
    },
    engine::view::View,
    files::{
        data::Target,
        extents::{mapped_bytes, shared_bytes_max},
        inodes::now,
        open::OpenFile,
        txn::FileTxn,
    },
};

/// Of one stream. Reverting takes all of them away in one operation, which a record of the smallest log has to hold.
pub const STREAM_SNAPSHOTS_MAX: usize = 128;
/// Extents that one operation shares.
const EXTENTS_AN_OPERATION: usize = 375;
/// Extents of each side, and blocks in the tree, that are compared at once.
const COMPARED_AT_ONCE: usize = 512;

fn key_of(set: u64, name: &str) -> Key {
    keys::named(keys::STREAM_SNAPSHOT, set, &fold(name))
}

/// The snapshots of a stream with their keys, oldest first.
pub fn list(view: &dyn View, set: SnapshotSet) -> VolResult<Vec<(Key, StreamSnapshot)>> {
    if set.id == 0 {
        return Ok(Vec::new());
    }
    let (from, to) = (keys::one(keys::STREAM_SNAPSHOT, set.id), keys::end_of(keys::STREAM_SNAPSHOT, set.id));
    let found = view.collect(&from, &to, usize::MAX)?;
    let mut out =
        found.into_iter().map(|(k, v)| Ok((k, StreamSnapshot::decode(&v)?))).collect::<VolResult<Vec<_>>>()?;
    out.sort_by_key(|(_, s)| s.created);
    Ok(out)
}

/// # Errors
/// `NotFound`.
pub fn find(view: &dyn View, set: SnapshotSet, name: &str) -> Result<StreamSnapshot> {
    let value = if set.id == 0 { None } else { view.get(&key_of(set.id, name))? };
    Ok(StreamSnapshot::decode(&value.ok_or(StoreError::NotFound)?)?)
}

/// When a snapshot `name` that is made now is made: later than all others.
fn admit(view: &dyn View, set: SnapshotSet, name: &str) -> Result<FileTime> {
    let all = list(view, set)?;
    if all.iter().any(|(_, s)| fold(&s.name) == fold(name)) {
        return Err(StoreError::NameCollision.into());
    }
    if all.len() >= STREAM_SNAPSHOTS_MAX {
        return Err(StoreError::InsufficientResources.into());
    }
    let after_last = all.last().map_or(0, |(_, s)| s.created.0.saturating_add(1));
    Ok(FileTime(now().0.max(after_last)))
}

/// Keeps the stream as it is now.
///
/// # Errors
/// `InvalidName`, `NameCollision`, `InsufficientResources` when the stream has [`STREAM_SNAPSHOTS_MAX`] or is in so many parts
/// that the journal or memory has no room for them at once; nothing is left then.
pub fn create(target: &Target<'_>, name: &str) -> Result<u64> {
    check_stream_name(name)?;
    let engine = &target.files.engine;
    engine.use_feature(feature::STREAM_SNAPSHOTS)?;
    engine.make_room()?;
    if let Some(seq) = share_all(target, name)? {
        return Ok(seq);
    }
    // Once more with all the room that there can be.
    engine.reclaim_all()?;
    engine.checkpoint()?;
    share_all(target, name)?.ok_or(StoreError::InsufficientResources.into())
}

/// Where it takes several operations, what they share is of a file without a name until the last one makes it the snapshot; the
/// stream must not change between them, so no checkpoint makes room. None: there is not enough.
fn share_all(target: &Target<'_>, name: &str) -> Result<Option<u64>> {
    let files = target.files;
    let _lock = target.file.change_data();
    let (source, created) = {
        let view = files.engine.reading();
        let source = target.load(&view)?.data().clone();
        let created = admit(&view, source.snapshots, name)?;
        (source, created)
    };
    // Blocks are shared by their places.
    if !files.allocate_stream(source.sid, true)? {
        return Ok(None);
    }
    let mut copy = Data { eof: source.eof, sparse: true, ..Data::default() };
    let mut staged: Option<Arc<OpenFile>> = None;
    let mut next = 0;
    loop {
        if staged.is_some() && !files.engine.may_go_on()? {
            return Ok(None);
        }
        let (from, to) = (keys::two(keys::EXTENT, source.sid, next), keys::end_of(keys::EXTENT, source.sid));
        let found = files.engine.reading().collect(&from, &to, EXTENTS_AN_OPERATION + 1)?;
        let mut t = files.begin();
        if copy.sid == 0 {
            copy.sid = t.new_id();
        }
        let mut left = None;
        for (i, (key, value)) in found.iter().enumerate() {
            let extent = Extent::decode(keys::second(key), value)?;
            let bytes = shared_bytes_max(extent.len()) + mapped_bytes(extent.len());
            if i == EXTENTS_AN_OPERATION || !t.goes_on(bytes) {
                if i == 0 {
                    return Ok(None);
                }
                left = Some(extent.file_block);
                break;
            }
            t.share(&extent)?;
            t.map(copy.sid, &extent);
            copy.blocks += extent.len();
        }
        let Some(block) = left else {
            if staged.is_some() {
                t.delete(keys::one(keys::INODE, copy.sid));
                t.delete(keys::one(keys::ORPHAN, copy.sid));
            }
            return enter(t, target, StreamSnapshot { created, data: copy, name: name.to_owned() }).map(Some);
        };
        next = block;
        t.put_inode(copy.sid, &Inode { data: Data { eof: 0, ..copy.clone() }, ..Inode::default() });
        t.put(keys::one(keys::ORPHAN, copy.sid), []);
        // In use, so that nobody takes it away before its time; it goes with this call.
        let file = staged.get_or_insert_with(|| files.open.file(copy.sid, false));
        t.commit()?;
        file.orphan.store(true, Ordering::Release);
    }
}

/// The last step: the stream has the snapshot.
fn enter(mut t: FileTxn<'_>, target: &Target<'_>, snapshot: StreamSnapshot) -> Result<u64> {
    let mut s = target.load(&t)?;
    let set = match s.data().snapshots.id {
        0 => t.new_id(),
        id => id,
    };
    let snapshots = &mut s.data_mut().snapshots;
    *snapshots = SnapshotSet { id: set, blocks: snapshots.blocks + snapshot.data.blocks };
    t.put(key_of(set, &snapshot.name), snapshot.encode());
    s.inode.change = now();
    s.save(&mut t);
    Ok(t.commit()?)
}

/// The stream's data becomes the snapshot's. That one and all later ones go, [MS-FSA] 2.1.5.10.29.4.
///
/// # Errors
/// `NotFound`.
pub fn revert(target: &Target<'_>, name: &str) -> Result<u64> {
    let files = target.files;
    files.engine.make_room()?;
    let _lock = target.file.change_data();
    let mut t = files.begin();
    let mut s = target.load(&t)?;
    let old = s.data().clone();
    let wanted = find(&t, old.snapshots, name)?;
    // `orphan_data` took the promise away, and so will `save`.
    let mut orphans = vec![t.orphan_data(&Data { snapshots: SnapshotSet::default(), ..old.clone() })];
    t.changes.counters.promised += old.promised();
    let mut left = SnapshotSet::default();
    for (key, snapshot) in list(&t, old.snapshots)? {
        if snapshot.created < wanted.created {
            left = SnapshotSet { id: old.snapshots.id, blocks: left.blocks + snapshot.data.blocks };
            continue;
        }
        t.delete(key);
        if snapshot.created > wanted.created {
            orphans.push(t.orphan_data(&snapshot.data));
        }
    }
    let d = s.data_mut();
    (d.sid, d.eof, d.blocks, d.reserved) = (wanted.data.sid, wanted.data.eof, wanted.data.blocks, 0);
    d.snapshots = left;
    s.touch();
    s.save(&mut t);
    let seq = t.commit()?;
    files.open.reap_all_later(orphans);
    Ok(seq)
}

/// Where a stream differs from its snapshot, from some block on: as many parts as were asked for, and one more where there is one.
pub struct Deltas {
    pub found: Vec<StreamDelta>,
    max: usize,
    /// The block that was not compared yet.
    at: u64,
}

impl Deltas {
    pub fn new(from: u64, max: usize) -> Deltas {
        Deltas { found: Vec::new(), max, at: from }
    }

    /// Compares some of what is left as `view` has it; true when that was all. What changes between two calls is told of in
    /// the parts that come after.
    pub fn compare(&mut self, view: &dyn View, stream: &Data, snapshot: &Data) -> VolResult<bool> {
        let mut end = stream.eof.div_ceil(BLOCK as u64);
        if self.at >= end || self.found.len() > self.max {
            return Ok(true);
        }
        let all = end;
        let now = some_extents(view, stream.sid, self.at, &mut end)?;
        let then = some_extents(view, snapshot.sid, self.at, &mut end)?;
        let in_tree = some_in_tree(view, stream.sid, self.at, &mut end)?;
        let (mut now, mut then, mut in_tree) = (now.as_slice(), then.as_slice(), in_tree.as_slice());
        while self.at < end && self.found.len() <= self.max {
            now = &now[now.partition_point(|e| e.end() <= self.at)..];
            then = &then[then.partition_point(|e| e.end() <= self.at)..];
            in_tree = &in_tree[in_tree.partition_point(|b| *b < self.at)..];
            let (mut place, mut until) = place_at(now, self.at, end);
            match in_tree.first() {
                Some(block) if *block == self.at => (place, until) = (Some(DeltaPlace::Unplaced), self.at + 1),
                Some(block) => until = until.min(*block),
                None => {}
            }
            let (before, other) = place_at(then, self.at, end);
            let until = until.min(other);
            if place != before {
                self.add(until, place.unwrap_or(DeltaPlace::Hole));
            }
            self.at = until;
        }
        Ok(self.at >= all || self.found.len() > self.max)
    }

    /// All blocks up to `until` differ, and lie there.
    fn add(&mut self, until: u64, place: DeltaPlace) {
        let blocks = until - self.at;
        if let Some(last) = self.found.last_mut().filter(|last| last.from + last.blocks == self.at) {
            let goes_on = match (last.place, place) {
                (DeltaPlace::At(a), DeltaPlace::At(b)) => a + last.blocks == b,
                (a, b) => a == b,
            };
            if goes_on {
                last.blocks += blocks;
                return;
            }
        }
        self.found.push(StreamDelta { from: self.at, blocks, place });
    }
}

/// Where the block lies, and up to which one that goes on; `extents` begin with the first that does not end before it.
fn place_at(extents: &[Extent], block: u64, end: u64) -> (Option<DeltaPlace>, u64) {
    match extents.first() {
        Some(e) if e.file_block <= block => {
            (Some(DeltaPlace::At(e.dev_block + (block - e.file_block))), e.end().min(end))
        }
        Some(e) => (None, e.file_block.min(end)),
        None => (None, end),
    }
}

/// Extents with blocks from `from` on. Where there are too many at once, `end` becomes the block up to which they are known.
fn some_extents(view: &dyn View, sid: u64, from: u64, end: &mut u64) -> VolResult<Vec<Extent>> {
    let start = from.saturating_sub(EXTENT_BLOCKS_MAX - 1);
    let mut out: Vec<Extent> = Vec::new();
    let mut result = Ok(());
    view.scan(&keys::two(keys::EXTENT, sid, start), &keys::two(keys::EXTENT, sid, *end), &mut |k, v| {
        match Extent::decode(keys::second(k), v) {
            Ok(e) if e.end() > from => out.push(e),
            Ok(_) => {}
            Err(e) => result = Err(e),
        }
        result.is_ok() && out.len() < COMPARED_AT_ONCE
    })?;
    result?;
    if out.len() == COMPARED_AT_ONCE {
        *end = out.last().map_or(*end, |e| e.end().min(*end));
    }
    Ok(out)
}

/// The same for blocks that lie in the tree.
fn some_in_tree(view: &dyn View, sid: u64, from: u64, end: &mut u64) -> VolResult<Vec<u64>> {
    let mut out = Vec::new();
    view.scan(&keys::two(keys::BLOCK, sid, from), &keys::two(keys::BLOCK, sid, *end), &mut |k, _| {
        out.push(keys::second(k));
        out.len() < COMPARED_AT_ONCE
    })?;
    if out.len() == COMPARED_AT_ONCE {
        *end = out.last().map_or(*end, |b| (b + 1).min(*end));
    }
    Ok(out)
}
