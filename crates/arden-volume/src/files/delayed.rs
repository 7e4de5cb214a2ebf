//! Giving blocks that lie in the tree a place on the device, many at once: before a checkpoint, and before blocks are
//! shared. Owns which stay in the tree.

use arden_block::{BLOCK_BYTES, IoError};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    disk::{
        device::BLOCK,
        error::{VolError, VolResult},
        inode::{EXTENT_BLOCKS_MAX, Extent},
        keys::{self, Val},
    },
    engine::{alloc::Reserved, checkpoint::STREAMS_ALLOCATED_EARLY, view::View},
    files::{DIRECT_BYTES_MIN, extents::entered_bytes, owner::Files},
};

const B: u64 = BLOCK_BYTES;
/// A stream whose only block is this small stays in the tree.
const STAYS_BYTES_MAX: usize = 1024;
/// Blocks given a place in one operation.
const ALLOCATE_BLOCKS_MAX: usize = 1024;
/// Streams that share one operation, and blocks that such a stream has at most.
const STREAMS_TOGETHER: usize = STREAMS_ALLOCATED_EARLY / 4;
const BLOCKS_TOGETHER: usize = ALLOCATE_BLOCKS_MAX / STREAMS_TOGETHER;

/// Blocks of one stream that get a place.
struct DelayedBlocks {
    sid: u64,
    /// As they are in the tree.
    found: Vec<(Vec<u8>, Val)>,
    /// The stream has none in the tree afterwards, but what stays there.
    last: bool,
}

impl Files {
    /// Gives blocks that lie in the tree a place on the device, those of all streams. What is written meanwhile too, as
    /// long as it becomes less: whatever is left is written with the tree, and read and written once more later.
    pub fn allocate_delayed(&self) -> VolResult<()> {
        let mut before = usize::MAX;
        loop {
            let dirty: Vec<(u64, u64)> = self.engine.state.core.read().dirty.iter().map(|(s, i)| (*s, *i)).collect();
            if dirty.is_empty() || dirty.len() > before / 2 {
                return Ok(());
            }
            before = dirty.len();
            for some in dirty.chunks(STREAMS_TOGETHER) {
                let allocated = self.allocate_small(some).and_then(|left| self.allocate_each(&left));
                match allocated {
                    Ok(()) => {}
                    // Where there is no room, they stay where they are.
                    Err(VolError::Full | VolError::Io(IoError::NoSpace)) => return Ok(()),
                    Err(e) => return Err(e),
                }
            }
        }
    }

    /// Small streams together: to the device one write is much cheaper than one for each. Gives those that are left: large
    /// ones, and those that somebody uses right now.
    fn allocate_small(&self, streams: &[(u64, u64)]) -> VolResult<Vec<(u64, u64)>> {
        let files: Vec<_> = streams.iter().map(|(_, ino)| self.open.file(*ino, false)).collect();
        // Never waits with locks in hand.
        let locks: Vec<_> = files.iter().map(|file| file.try_change_data()).collect();
        let (mut small, mut left) = (Vec::new(), Vec::new());
        let view = self.engine.reading();
        for (stream, lock) in streams.iter().zip(&locks) {
            let found = match lock {
                Some(_) => Some(delayed_blocks(&view, stream.0, false, BLOCKS_TOGETHER + 1)?),
                None => None,
            };
            match found {
                Some(found) if found.found.len() <= BLOCKS_TOGETHER => small.push(found),
                _ => left.push(*stream),
            }
        }
        drop(view);
        let blocks = small.iter().map(|s| s.found.len()).sum();
        if self.allocate_some(&small)? != Some(blocks) {
            return Ok(streams.to_vec());
        }
        Ok(left)
    }

    fn allocate_each(&self, streams: &[(u64, u64)]) -> VolResult<()> {
        for (sid, ino) in streams {
            let file = self.open.file(*ino, false);
            let _lock = file.change_data();
            if !self.allocate_stream(*sid, false)? {
                // They stay in the tree.
                return Err(VolError::Full);
            }
        }
        Ok(())
    }

    /// The same for one stream; the caller has its data locked. False: the log has no room for more just now.
    pub fn allocate_stream(&self, sid: u64, all: bool) -> VolResult<bool> {
        loop {
            let found = delayed_blocks(&self.engine.reading(), sid, all, ALLOCATE_BLOCKS_MAX)?;
            let (blocks, last) = (found.found.len(), found.last);
            match self.allocate_some(&[found])? {
                Some(0) if blocks > 0 => return Ok(false),
                Some(placed) if placed < blocks || !last => {}
                _ => return Ok(true),
            }
        }
    }

    /// Gives them places, from the first one on, as far as an operation and the log have room; how many. None when something
    /// took blocks away meanwhile.
    fn allocate_some(&self, streams: &[DelayedBlocks]) -> VolResult<Option<usize>> {
        let blocks: usize = streams.iter().map(|s| s.found.len()).sum();
        let mut bytes = Vec::with_capacity(blocks * BLOCK);
        for (_, value) in streams.iter().flat_map(|s| &s.found) {
            bytes.extend_from_slice(value);
            bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        }
        let write = |reserved: &Reserved<'_>| {
            let mut places = Vec::with_capacity(blocks);
            let mut rest = bytes.as_slice();
            for run in &reserved.runs {
                let (part, after) = rest.split_at((run.len * B) as usize);
                self.engine.device.write(run.start * B, part)?;
                places.extend(run.start..run.start + run.len);
                rest = after;
            }
            Ok(places)
        };
        let (mut held, places) = self.engine.place(blocks as u64, write)?;
        let fresh = self.extents_of(streams, &places, &bytes);
        let mut t = self.begin();
        for (key, value) in streams.iter().flat_map(|s| &s.found) {
            if t.get(key)?.as_deref() != Some(&**value) {
                return Ok(None);
            }
        }
        let mut placed = 0;
        for (sid, e) in &fresh {
            // It may cut pieces out of extents that are large.
            let Some(_) = t.unmap(*sid, e.file_block, e.end(), entered_bytes(e.len()))? else { break };
            t.map_fresh(*sid, e);
            placed += e.sums.len();
        }
        let (entered, left) = held.split(placed as u64);
        entered.into_iter().for_each(|r| t.enter(r));
        t.data = placed > 0;
        // Of those that are placed in part, the next operation says so.
        for s in streams.iter().filter(|s| s.last && placed == blocks) {
            if s.found.is_empty() {
                // Nothing durable changes.
                t.core.dirty.remove(&s.sid);
            } else {
                t.changes.dirty.push((s.sid, None));
            }
        }
        if placed == 0 {
            return Ok(Some(0));
        }
        t.commit()?;
        held.runs = left;
        Ok(Some(placed))
    }

    /// What lies where: neighbours in the file that are neighbours on the device are one extent. Blocks of small files, that
    /// are maybe soon read, stay in memory.
    fn extents_of(&self, streams: &[DelayedBlocks], places: &[u64], bytes: &[u8]) -> Vec<(u64, Extent)> {
        let mut out: Vec<(u64, Extent)> = Vec::new();
        let blocks = streams.iter().flat_map(|s| s.found.iter().map(move |(key, _)| (s.sid, keys::second(key))));
        for (((sid, block), place), content) in blocks.zip(places).zip(bytes.chunks_exact(BLOCK)) {
            let sum = xxh3_64(content);
            match out.last_mut() {
                Some((last, e))
                    if *last == sid
                        && e.end() == block
                        && e.dev_block + e.len() == *place
                        && e.len() < EXTENT_BLOCKS_MAX =>
                {
                    e.sums.push(sum);
                }
                _ => out.push((sid, Extent { file_block: block, dev_block: *place, birth: 0, sums: vec![sum] })),
            }
        }
        let mut rest = bytes;
        for (_, e) in &out {
            let (content, after) = rest.split_at(e.sums.len() * BLOCK);
            if content.len() < DIRECT_BYTES_MIN {
                self.blocks.keep(e, content);
            }
            rest = after;
        }
        out
    }
}

/// The first `max` blocks of a stream; `all`: also what may stay.
fn delayed_blocks(view: &dyn View, sid: u64, all: bool, max: usize) -> VolResult<DelayedBlocks> {
    let found = view.collect(&keys::two(keys::BLOCK, sid, 0), &keys::end_of(keys::BLOCK, sid), max)?;
    let stays = !all && found.len() == 1 && found[0].1.len() <= STAYS_BYTES_MAX && keys::second(&found[0].0) == 0;
    let last = stays || found.len() < max;
    Ok(DelayedBlocks { sid, found: if stays { Vec::new() } else { found }, last })
}

#[cfg(test)]
mod tests {
    use std::{
        ops::Range,
        sync::Arc,
        time::{Duration, Instant},
    };

    use arden_store::store::{Node, Wait};
    use parking_lot::Mutex;

    use super::*;
    use crate::{
        disk::device::MemDevice,
        files::inodes::load_inode,
        testing::{Files, Volume, VolumeOptions, Watched, options, volume},
    };

    #[test]
    fn what_is_written_meanwhile_does_not_get_into_the_tree_either() {
        let (memory, vol) = volume(128 << 20);
        drop(vol);
        // What somebody does while the device writes.
        let meanwhile: Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>> = Arc::default();
        let acts = meanwhile.clone();
        let before_write = move |_: u64, _: &[u8]| {
            let act = acts.lock().take();
            act.into_iter().for_each(|act| std::thread::spawn(act).join().unwrap());
        };
        let device = Arc::new(Watched { memory, before_write });
        let vol = Volume::open(device, options()).unwrap();
        let put = |vol: &Arc<Volume>, names: Range<u32>| {
            let files = Files::new(vol);
            names.for_each(|i| drop(files.write(&format!("f{i}"), &[i as u8; 9000])));
        };
        put(&vol, 0..100);
        let other = vol.clone();
        *meanwhile.lock() = Some(Box::new(move || put(&other, 100..130)));
        vol.checkpoint().unwrap();
        assert!(meanwhile.lock().is_none());
        let left = {
            let core = vol.engine.state.core.read();
            (core.dirty.len(), core.counters.resident)
        };
        assert_eq!(left, (0, 0));
        let files = Files::new(&vol);
        assert!((0..130u32).all(|i| files.read(&format!("f{i}")) == [i as u8; 9000]));
    }

    #[test]
    fn many_small_files_get_their_place_long_before_a_checkpoint() {
        let (memory, vol) = volume(256 << 20);
        drop(vol);
        let options = VolumeOptions { background: true, ..VolumeOptions::default() };
        let vol = Volume::open(Arc::new(MemDevice::holding(memory.content())), options).unwrap();
        let generation = vol.superblock().generation;
        let files = Files::new(&vol);
        let many = 2 * STREAMS_ALLOCATED_EARLY;
        (0..many).for_each(|i| drop(files.write(&format!("f{i}"), &[i as u8; 5000])));
        let began = Instant::now();
        while vol.engine.state.core.read().dirty.len() >= STREAMS_ALLOCATED_EARLY {
            assert!(began.elapsed() < Duration::from_secs(120), "{} wait", vol.engine.state.core.read().dirty.len());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(vol.superblock().generation, generation, "no checkpoint was needed for that");
        assert!((0..many).all(|i| files.read(&format!("f{i}")) == [i as u8; 5000]));
    }

    /// Each small write into the middle of an extent leaves two parts of it, with their sums: together those of a journal full of
    /// such writes are more than a record holds, and here more than the journal has room for.
    #[test]
    fn blocks_out_of_many_large_extents_get_their_places_as_far_as_the_journal_has_room() {
        const EXTENT: u64 = 1 << 20;
        let (memory, vol) = volume(16 << 20);
        let node = Files::new(&vol).make("f", false).unwrap();
        node.set_sparse(None, true).unwrap();
        node.write_at(None, 0, &[1; EXTENT as usize], Wait::Yes).unwrap();
        let extents = 512;
        for done in (0..9).map(|i| 1 << i) {
            Node::clone_from(&*node, None, &*node, 0, done * EXTENT, done * EXTENT).unwrap();
            vol.checkpoint().unwrap();
        }
        drop((node, vol));
        let background = VolumeOptions { background: true, ..VolumeOptions::default() };
        let vol = Volume::open(Arc::new(MemDevice::holding(memory.content())), background).unwrap();
        let node = Files::new(&vol).find("f").unwrap();
        let changed = |extent: u64| extent * EXTENT + (100 + extent % 50) * B;
        // Nobody makes a checkpoint meanwhile.
        let guard = vol.engine.lock_checkpoint();
        let mut written = 0;
        while vol.engine.state.wal.fullness() < 600 {
            node.write_at(None, changed(written), &[2; BLOCK], Wait::Yes).unwrap();
            written += 1;
        }
        let inode = load_inode(&vol.engine.reading(), node.id().file).unwrap();
        while vol.engine.state.wal.fullness() < 860 {
            let mut t = vol.files.begin();
            t.put_inode(node.id().file, &inode);
            t.commit().unwrap();
        }
        let left = || vol.engine.state.core.read().counters.resident;
        vol.files.allocate_delayed().unwrap();
        assert!((1..written as i64).contains(&left()), "{} of {written} blocks have no place", left());
        drop(guard);
        vol.sync().unwrap();
        // The volume's thread does the same beside this, and takes room in the journal.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while left() > 0 {
            assert!(std::time::Instant::now() < end, "{} blocks have no place", left());
            vol.checkpoint().unwrap();
            vol.files.allocate_delayed().unwrap();
        }
        vol.checkpoint().unwrap();
        for extent in 0..extents {
            let mut found = vec![0; 2 * BLOCK];
            node.read_at(changed(extent), &mut found, Wait::Yes).unwrap();
            let value = if extent < written { 2 } else { 1 };
            assert!(found[..BLOCK] == [value; BLOCK] && found[BLOCK..] == [1; BLOCK], "extent {extent}");
        }
        let report = vol.check(true).unwrap();
        assert!(report.is_clean() && report.unaccounted_blocks == 0, "{:?}", report.errors);
    }
}
