//! Scrub: reads every copy of everything that the volume holds and compares it with its checksum, while the volume is in
//! use, at a bounded rate. What does not pass is healed from another copy; what no copy holds is reported by file. Reading
//! takes no lock; healing holds off changes for the length of one extent, so that nothing old is ever written over new.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arden_block::BLOCK_BYTES;
use arden_store::name::gmt_token;

use crate::{
    disk::{
        device::{BLOCK, BlockCheck, copies_pass, heal},
        error::VolResult,
        inode::{Data, Extent, Inode, ROOT_INO, Stream, StreamSnapshot},
        keys::{self, Key, Val},
        treenode::{NODE_BLOCKS, NODE_BYTES, Ptr},
    },
    engine::{
        kept::{Snapshot, visit_nodes},
        owner::Engine,
        view::View,
    },
    features::{
        check_past::fingerprint,
        grow::heal_superblock,
        parity_check::{has_parity, recompute_parity},
    },
    files::{inodes::load_inode, names},
};

/// Extents looked up at once.
const BATCH: usize = 64;
/// Damage beyond this is counted and not listed.
const DAMAGE_MAX: usize = 10_000;

/// How to scrub, how far it is, and how to end it before its time.
#[derive(Debug, Default)]
pub struct ScrubSettings {
    /// 0: as fast as it goes.
    pub bytes_per_second: u64,
    pub done_bytes: AtomicU64,
    pub total_bytes: AtomicU64,
    pub stop: AtomicBool,
}

/// A part of a file that no copy holds as it was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Damage {
    /// From the volume's root, with backslashes, the stream behind a colon; empty: not of a file but of the metadata.
    pub path: String,
    pub offset: u64,
    pub len: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubReport {
    pub read_bytes: u64,
    pub healed_blocks: u64,
    pub damaged_blocks: u64,
    pub damage: Vec<Damage>,
    /// It was ended before all was read.
    pub stopped: bool,
}

struct Scrub<'a> {
    engine: &'a Engine,
    settings: &'a ScrubSettings,
    started: Instant,
    report: ScrubReport,
    /// By stream: first block and length.
    damage: Vec<(u64, u64, u64)>,
    has_snapshots: bool,
    /// Extents that were read: what several states have is read once.
    looked_at: HashSet<u64>,
}

/// Reads every copy of everything, and heals what can be.
pub fn scrub(engine: &Engine, settings: &ScrubSettings) -> VolResult<ScrubReport> {
    let mut s = Scrub {
        engine,
        settings,
        started: Instant::now(),
        report: ScrubReport::default(),
        damage: Vec::new(),
        has_snapshots: false,
        looked_at: HashSet::new(),
    };
    let nodes = engine.nodes()?;
    let blocks = nodes.len() as u64 * NODE_BLOCKS + engine.state.alloc.lock().data.count();
    // What lies on parity is read again with its parity, which makes it a little more than twice.
    let times = if has_parity(engine) { 2 } else { 1 };
    settings.total_bytes.store(blocks * BLOCK_BYTES * times, Ordering::Relaxed);
    s.report.healed_blocks += heal_superblock(engine)?;
    s.tree(&nodes)?;
    let snapshots = engine.reading().core.snapshots.clone();
    s.has_snapshots = !snapshots.is_empty();
    for past in std::iter::once(None).chain(snapshots.iter().map(|p| Some(&**p))) {
        s.data(past)?;
        s.name_damage(past)?;
    }
    if !s.report.stopped {
        s.report.healed_blocks += recompute_parity(engine, &mut |bytes| {
            settings.total_bytes.fetch_max(s.report.read_bytes + bytes, Ordering::Relaxed);
            s.go_on(bytes)
        })?;
    }
    if s.report.healed_blocks > 0 {
        engine.device.flush()?;
    }
    if !s.report.stopped {
        settings.total_bytes.store(s.report.read_bytes, Ordering::Relaxed);
    }
    Ok(s.report)
}

impl Scrub<'_> {
    /// False when it is to stop.
    fn go_on(&mut self, bytes: u64) -> bool {
        self.report.read_bytes += bytes;
        self.settings.done_bytes.store(self.report.read_bytes, Ordering::Relaxed);
        let stops = || self.settings.stop.load(Ordering::Relaxed);
        if self.settings.bytes_per_second > 0 {
            let due = Duration::from_secs_f64(self.report.read_bytes as f64 / self.settings.bytes_per_second as f64);
            while let Some(rest) = due.checked_sub(self.started.elapsed()).filter(|r| !r.is_zero() && !stops()) {
                std::thread::sleep(rest.min(Duration::from_millis(100)));
            }
        }
        self.report.stopped |= stops();
        !self.report.stopped
    }

    fn tree(&mut self, nodes: &[Ptr]) -> VolResult<()> {
        for ptr in nodes {
            let at = ptr.block * BLOCK_BYTES;
            if !copies_pass(&*self.engine.device, at, NODE_BYTES, &ptr.check()) {
                self.heal_node(ptr)?;
            }
            if !self.go_on(NODE_BYTES as u64) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn heal_node(&mut self, ptr: &Ptr) -> VolResult<()> {
        let _guard = self.engine.lock_checkpoint();
        let mut still = false;
        {
            let core = self.engine.state.core.read();
            visit_nodes(&core.snapshots, &core.root, &self.engine.state.tree, &mut |p| {
                still |= p == ptr;
                Ok(())
            })?;
        }
        if !still {
            return Ok(());
        }
        match heal(&*self.engine.device, ptr.block * BLOCK_BYTES, NODE_BYTES, &ptr.check()) {
            Ok(n) => self.report.healed_blocks += n,
            Err(_) => {
                self.report.damaged_blocks += NODE_BLOCKS;
                let offset = ptr.block * BLOCK_BYTES;
                self.report.damage.push(Damage { path: String::new(), offset, len: NODE_BYTES as u64 });
            }
        }
        Ok(())
    }

    /// The data of the present, or of a snapshot.
    fn data(&mut self, past: Option<&Snapshot>) -> VolResult<()> {
        let mut next: Key = vec![keys::EXTENT];
        while !self.report.stopped {
            // One that is gone by now has nothing that could be damaged.
            let Some(view) = self.engine.state.reading_at(past) else { return Ok(()) };
            let batch = view.collect(&next, &[keys::EXTENT + 1], BATCH)?;
            drop(view);
            let Some((last, _)) = batch.last() else { return Ok(()) };
            next.clone_from(last);
            next.push(0);
            for (key, value) in &batch {
                let Ok(e) = Extent::decode(keys::second(key), value) else { continue };
                if self.has_snapshots && !self.looked_at.insert(fingerprint(&e)) {
                    continue;
                }
                let check = BlockCheck::Sums(Arc::from(e.sums.as_slice()));
                if !copies_pass(&*self.engine.device, e.dev_block * BLOCK_BYTES, e.sums.len() * BLOCK, &check) {
                    self.heal_extent(past, (key, value), &e, &check)?;
                }
                if !self.go_on(e.len() * BLOCK_BYTES) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn heal_extent(
        &mut self,
        past: Option<&Snapshot>,
        (key, value): (&Key, &Val),
        e: &Extent,
        check: &BlockCheck,
    ) -> VolResult<()> {
        let Some(view) = self.engine.state.reading_at(past) else { return Ok(()) };
        // Changed meanwhile: the blocks may be somebody else's.
        if view.get(key)?.as_ref() != Some(value) {
            return Ok(());
        }
        match heal(&*self.engine.device, e.dev_block * BLOCK_BYTES, e.sums.len() * BLOCK, check) {
            Ok(n) => self.report.healed_blocks += n,
            Err(_) => {
                for (i, sum) in e.sums.iter().enumerate() {
                    let one = BlockCheck::Sums(Arc::from([*sum].as_slice()));
                    match heal(&*self.engine.device, (e.dev_block + i as u64) * BLOCK_BYTES, BLOCK, &one) {
                        Ok(n) => self.report.healed_blocks += n,
                        Err(_) => self.damaged(keys::first(key), e.file_block + i as u64),
                    }
                }
            }
        }
        Ok(())
    }

    fn damaged(&mut self, sid: u64, block: u64) {
        self.report.damaged_blocks += 1;
        let listed = self.damage.len();
        match self.damage.last_mut() {
            Some((s, first, len)) if *s == sid && *first + *len == block => *len += 1,
            _ if listed < DAMAGE_MAX => self.damage.push((sid, block, 1)),
            _ => {}
        }
    }

    /// Finds the files that damaged streams are of.
    fn name_damage(&mut self, past: Option<&Snapshot>) -> VolResult<()> {
        let damage = std::mem::take(&mut self.damage);
        let Some(view) = self.engine.state.reading_at(past).filter(|_| !damage.is_empty()) else { return Ok(()) };
        let wanted: HashSet<u64> = damage.iter().map(|(sid, ..)| *sid).collect();
        let mut found = Vec::new();
        // By set: data of its snapshots, and what those are called.
        let mut snapshots: HashMap<u64, Vec<(u64, String)>> = HashMap::new();
        view.scan(&[keys::STREAM_SNAPSHOT], &[keys::STREAM_SNAPSHOT + 1], &mut |key, value| {
            if let Ok(s) = StreamSnapshot::decode(value)
                && wanted.contains(&s.data.sid)
            {
                snapshots.entry(keys::first(key)).or_default().push((s.data.sid, s.name));
            }
            true
        })?;
        let mut look = |data: &Data, ino: u64, stream: &str| {
            if wanted.contains(&data.sid) {
                found.push((data.sid, ino, stream.to_owned()));
            }
            for (sid, name) in snapshots.get(&data.snapshots.id).into_iter().flatten() {
                found.push((*sid, ino, format!("{stream} (snapshot {name:?})")));
            }
        };
        view.scan(&[keys::INODE], &[keys::INODE + 1], &mut |key, value| {
            if let Ok(inode) = Inode::decode(value) {
                look(&inode.data, keys::first(key), "");
            }
            true
        })?;
        view.scan(&[keys::STREAM], &[keys::STREAM + 1], &mut |key, value| {
            if let Ok(s) = Stream::decode(value) {
                look(&s.data, keys::first(key), &format!(":{}", s.name));
            }
            true
        })?;
        let mut paths: HashMap<u64, String> = HashMap::new();
        for (sid, ino, stream) in found {
            let inode = load_inode(&view, ino)?;
            let path = names::path(&view, ROOT_INO, inode.parent, &inode.name)?.map_or(inode.name, |p| p.join("\\"));
            paths.insert(sid, path + &stream);
        }
        let of = past.map_or(String::new(), |s| format!("{}\\", gmt_token(s.time)));
        for (sid, first, len) in damage {
            let path = of.clone() + paths.get(&sid).map_or("(deleted)", String::as_str);
            self.report.damage.push(Damage { path, offset: first * BLOCK_BYTES, len: len * BLOCK_BYTES });
        }
        self.report.damage.sort();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arden_block::Device;

    use super::*;
    use crate::{
        disk::device::MemDevice,
        testing::{Files, Volume, volume},
    };

    /// Where the only extent of a file begins.
    fn place(vol: &Arc<Volume>, name: &str) -> u64 {
        let files = Files::new(vol);
        let ino = files.find(name).unwrap().id().file;
        let view = vol.engine.reading();
        let sid = load_inode(&view, ino).unwrap().data.sid;
        crate::files::places::extents(&view, sid, 0, 1).unwrap()[0].dev_block
    }

    fn damage(device: &MemDevice, block: u64) {
        device.write(block * BLOCK_BYTES, &[0xBD; BLOCK]).unwrap();
    }

    #[test]
    fn every_damaged_block_is_named_with_its_file() {
        let (device, vol) = volume(32 << 20);
        let files = Files::new(&vol);
        files.make("dir", true).unwrap();
        files.write("dir\\good", &[1; 500_000]);
        files.write("dir\\bad", &[2; 500_000]);
        files.write("dir\\bad:stream", &[3; 100_000]);
        vol.checkpoint().unwrap();
        let settings = ScrubSettings::default();
        let clean = vol.scrub(&settings).unwrap();
        assert_eq!((clean.damaged_blocks, clean.healed_blocks, clean.stopped), (0, 0, false));
        assert_eq!(clean.read_bytes, settings.total_bytes.load(Ordering::Relaxed));
        let at = place(&vol, "dir\\bad");
        damage(&device, at + 3);
        damage(&device, at + 4);
        let report = vol.scrub(&ScrubSettings::default()).unwrap();
        let expected = Damage { path: "dir\\bad".into(), offset: 3 * 4096, len: 2 * 4096 };
        assert_eq!((report.damaged_blocks, report.damage.as_slice()), (2, [expected].as_slice()));
        // Written anew, it is whole again.
        files.write("dir\\bad", &[4; 500_000]);
        assert_eq!(vol.scrub(&ScrubSettings::default()).unwrap().damage, []);
    }

    #[test]
    fn what_only_a_snapshot_has_is_looked_at_too() {
        let (device, vol) = volume(32 << 20);
        let files = Files::new(&vol);
        files.write("f", &[1; 200_000]);
        vol.checkpoint().unwrap();
        let at = place(&vol, "f");
        let time = vol.create_snapshot(arden_wire::FileTime(20_000_000_000), "").unwrap().time;
        files.write("f", &[2; 200_000]);
        assert_eq!(vol.scrub(&ScrubSettings::default()).unwrap().damage, []);
        damage(&device, at + 1);
        let path = format!("{}\\f", gmt_token(time));
        let report = vol.scrub(&ScrubSettings::default()).unwrap();
        assert_eq!(report.damage, [Damage { path, offset: 4096, len: 4096 }]);
        // No repair takes it for nobody's.
        assert_eq!(vol.repair(false).unwrap().done, Vec::<String>::new());
        assert!(vol.delete_snapshot(time).unwrap());
        assert_eq!(vol.scrub(&ScrubSettings::default()).unwrap().damage, []);
        assert!(vol.check(true).unwrap().is_clean());
    }

    #[test]
    fn a_damaged_node_is_reported_and_a_scrub_can_be_stopped() {
        let (device, vol) = volume(32 << 20);
        let files = Files::new(&vol);
        (0..500).for_each(|i| drop(files.write(&format!("file {i}"), b"x")));
        vol.checkpoint().unwrap();
        let node = *vol.engine.nodes().unwrap().last().unwrap();
        damage(&device, node.block + 1);
        let report = vol.scrub(&ScrubSettings::default()).unwrap();
        assert_eq!(report.damage, [Damage { path: String::new(), offset: node.block * 4096, len: 4 * 4096 }]);
        let settings = ScrubSettings { stop: AtomicBool::new(true), ..ScrubSettings::default() };
        assert!(vol.scrub(&settings).unwrap().stopped);
    }
}
