//! Checking: every structure, every reference and every count of a volume against what the rest says. Online: the state
//! stands still meanwhile. Changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use arden_block::BLOCK_BYTES;
use arden_store::name::fold;

use crate::{
    alloc::Run,
    check_past::{Blocks, fingerprint},
    device::{BLOCK, BlockCheck, Device},
    ea,
    error::VolResult,
    extents::decode_refs,
    inode::{Extent, Inode, NameEntry, ROOT_INO, Stream},
    keys,
    kv::{Reading, View},
    ns::DEPTH_MAX,
    snapshot::{Dead, visit_nodes},
    superblock::{Counters, Superblock},
    treenode::NODE_BLOCKS,
    volume::{Volume, VolumeOptions, load},
};

/// More than this is not listed.
const ERRORS_MAX: usize = 100;

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    pub errors: Vec<String>,
    pub files: u64,
    pub directories: u64,
    pub streams: u64,
    pub extents: u64,
    pub data_blocks: u64,
    pub shared_blocks: u64,
    pub tree_nodes: u64,
    pub orphans: u64,
    pub handles: u64,
    pub snapshots: u64,
    /// Blocks of data that only snapshots hold.
    pub held_blocks: u64,
    /// Blocks in use that nothing accounts for: being written just now, or lost until the next opening.
    pub unaccounted_blocks: u64,
}

impl CheckReport {
    pub fn is_clean(&self) -> bool {
        self.errors.is_empty()
    }
}

/// What is known of a stream by its number.
#[derive(Default)]
struct Held {
    blocks: BTreeSet<u64>,
    owner: bool,
}

#[derive(Default)]
struct Check {
    report: CheckReport,
    inodes: HashMap<u64, Inode>,
    /// Names of each file: directory and folded name.
    names: HashMap<u64, Vec<(u64, String)>>,
    links: BTreeSet<(u64, u64, String)>,
    orphans: BTreeSet<u64>,
    streams: Vec<(u64, String, Stream)>,
    held: HashMap<u64, Held>,
    resident: i64,
    promised: i64,
    /// Uses of blocks of the device.
    uses: Vec<Run>,
    blocks: Blocks,
    refs: BTreeMap<u64, (u64, u32)>,
    sd_uses: HashMap<u64, u64>,
    sd_counts: HashMap<u64, u64>,
    sds: BTreeSet<u64>,
    sd_hashes: BTreeSet<u64>,
    ea_sizes: BTreeSet<u64>,
    reparse: BTreeSet<u64>,
}

impl Check {
    fn error(&mut self, text: String) {
        if self.report.errors.len() < ERRORS_MAX {
            self.report.errors.push(text);
        }
    }

    fn expect(&mut self, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            self.error(text());
        }
    }

    fn entry(&mut self, key: &[u8], value: &[u8]) {
        let n = keys::first(key);
        match key.first().copied().unwrap_or(0) {
            keys::INODE => match Inode::decode(value) {
                Ok(i) => {
                    self.inodes.insert(n, i);
                }
                Err(e) => self.error(format!("inode {n}: {e}")),
            },
            keys::NAME => match NameEntry::decode(value) {
                Ok(e) => {
                    let folded = keys::text(key, 9).to_owned();
                    self.expect(fold(&e.name) == folded, || format!("directory {n}: {:?} has a wrong key", e.name));
                    self.names.entry(e.ino).or_default().push((n, folded));
                }
                Err(e) => self.error(format!("a name in directory {n}: {e}")),
            },
            keys::LINK => {
                self.links.insert((n, keys::second(key), keys::text(key, 17).to_owned()));
            }
            keys::STREAM => match Stream::decode(value) {
                Ok(s) => {
                    let folded = keys::text(key, 9).to_owned();
                    self.expect(fold(&s.name) == folded, || format!("file {n}: stream {:?} has a wrong key", s.name));
                    self.streams.push((n, folded, s));
                }
                Err(e) => self.error(format!("a stream of file {n}: {e}")),
            },
            keys::EXTENT => self.extent(n, keys::second(key), value),
            keys::BLOCK => {
                self.resident += 1;
                self.expect(value.len() <= BLOCK, || format!("stream {n}: a block in the tree is too long"));
                self.held.entry(n).or_default().blocks.insert(keys::second(key));
            }
            keys::REFS => match decode_refs(value) {
                Some((len, refs)) if len > 0 && refs > 1 => {
                    self.refs.insert(n, (len, refs));
                }
                _ => self.error(format!("count of users of block {n}")),
            },
            keys::ORPHAN => {
                self.orphans.insert(n);
            }
            keys::SD => {
                self.sds.insert(n);
            }
            keys::SD_COUNT => {
                self.sd_counts.insert(n, value.try_into().map_or(0, u64::from_le_bytes));
            }
            keys::SD_HASH => {
                self.sd_hashes.insert(keys::second(key));
            }
            keys::EAS => {
                self.ea_sizes.insert(n);
            }
            keys::REPARSE => {
                self.reparse.insert(n);
            }
            keys::HANDLE => self.report.handles += 1,
            keys::SNAPSHOT => self.report.snapshots += 1,
            keys::DEAD => match Dead::decode(key, value) {
                Ok(d) => {
                    self.report.held_blocks += d.run.len;
                    self.uses.push(d.run);
                    self.blocks.dead.push(d);
                }
                Err(e) => self.error(format!("dead block {}: {e}", keys::second(key))),
            },
            keys::MAP | b'W' => {}
            other => self.error(format!("a key of unknown kind {other:#x}")),
        }
    }

    fn extent(&mut self, sid: u64, block: u64, value: &[u8]) {
        match Extent::decode(block, value) {
            Ok(e) => {
                self.report.extents += 1;
                self.uses.push(e.run());
                self.blocks.live.push((e.run(), e.birth));
                let held = self.held.entry(sid).or_default();
                let before = held.blocks.len();
                held.blocks.extend(e.file_block..e.end());
                let _ = before;
            }
            Err(e) => self.error(format!("stream {sid}: block {block}: {e}")),
        }
    }

    fn sizes(&mut self, what: &str, data: &crate::inode::Data, orphan: bool) {
        self.promised += data.promised();
        let Some(held) = self.held.get_mut(&data.sid) else {
            self.expect(data.blocks == 0 || orphan, || format!("{what}: {} blocks are missing", data.blocks));
            return;
        };
        let again = std::mem::replace(&mut held.owner, true);
        let (count, last) = (held.blocks.len() as u64, held.blocks.last().copied());
        self.expect(!again, || format!("{what}: stream {} has two owners", data.sid));
        if !orphan {
            self.expect(count == data.blocks, || format!("{what}: {count} blocks, not {}", data.blocks));
            let end = data.eof.div_ceil(BLOCK_BYTES);
            self.expect(last.is_none_or(|l| l < end), || format!("{what}: a block behind the end"));
        }
    }

    fn files(&mut self) {
        let inodes = std::mem::take(&mut self.inodes);
        for (ino, inode) in &inodes {
            let what = format!("file {ino}");
            let orphan = self.orphans.contains(ino);
            if inode.directory {
                self.report.directories += 1
            } else {
                self.report.files += 1
            }
            let names = self.names.remove(ino).unwrap_or_default();
            let expected = if *ino == ROOT_INO { 0 } else { inode.links as usize };
            self.expect(names.len() == expected, || format!("{what}: {} names, not {expected}", names.len()));
            self.expect(orphan == (inode.links == 0), || format!("{what}: {} links, orphan: {orphan}", inode.links));
            for (parent, folded) in names {
                let is_directory = inodes.get(&parent).is_some_and(|i| i.directory);
                self.expect(is_directory, || format!("{what}: named in {parent}, which is no directory"));
                let first = inode.parent == parent && fold(&inode.name) == folded;
                let listed = self.links.remove(&(*ino, parent, folded.clone()));
                self.expect(first != listed, || format!("{what}: its name {folded:?} is not known to it"));
            }
            if inode.directory {
                self.expect(inode.links <= 1, || format!("{what}: a directory with several names"));
                self.expect(reaches_root(&inodes, *ino, inode), || format!("{what}: not below the root"));
            } else {
                self.sizes(&what, &inode.data, orphan);
            }
            if inode.sd != 0 {
                *self.sd_uses.entry(inode.sd).or_default() += 1;
            }
            let has_eas = self.ea_sizes.remove(ino);
            self.expect(has_eas == (inode.ea_size != 0) || orphan, || format!("{what}: EAs and their size"));
            let has_reparse = self.reparse.remove(ino);
            self.expect(has_reparse == (inode.reparse_tag != 0) || orphan, || format!("{what}: reparse point"));
        }
        for orphan in std::mem::take(&mut self.orphans) {
            self.report.orphans += 1;
            self.expect(inodes.contains_key(&orphan), || format!("orphan {orphan} does not exist"));
        }
        for (ino, name, stream) in std::mem::take(&mut self.streams) {
            self.report.streams += 1;
            let owner = inodes.get(&ino);
            self.expect(owner.is_some(), || format!("stream {name:?} of file {ino}, which does not exist"));
            let orphan = owner.is_some_and(|i| i.links == 0);
            self.sizes(&format!("stream {name:?} of file {ino}"), &stream.data, orphan);
        }
        self.leftovers();
    }

    fn leftovers(&mut self) {
        for (ino, _) in std::mem::take(&mut self.names) {
            self.error(format!("a name leads to file {ino}, which does not exist"));
        }
        for (ino, ..) in std::mem::take(&mut self.links) {
            self.error(format!("a link of file {ino} leads nowhere"));
        }
        for (sid, held) in std::mem::take(&mut self.held) {
            self.expect(held.owner, || format!("stream {sid} has data and no owner"));
        }
        for ino in std::mem::take(&mut self.ea_sizes).into_iter().chain(std::mem::take(&mut self.reparse)) {
            self.error(format!("attributes of file {ino}, which does not exist"));
        }
        let ids: BTreeSet<u64> = self
            .sds
            .iter()
            .chain(&self.sd_hashes)
            .chain(self.sd_counts.keys())
            .chain(self.sd_uses.keys())
            .copied()
            .collect();
        for id in ids {
            let (uses, count) = (self.sd_uses.get(&id).copied(), self.sd_counts.get(&id).copied());
            let whole = self.sds.contains(&id) && self.sd_hashes.contains(&id) && uses.is_some() && uses == count;
            self.expect(whole, || format!("descriptor {id}: {uses:?} files have it, {count:?} are counted"));
        }
    }

    fn snapshots(&mut self, vol: &Volume, view: &Reading<'_>, verify_data: bool) {
        let mut blocks = std::mem::take(&mut self.blocks);
        blocks.check(vol, &view.core.snapshots, &mut |text| self.error(text), &mut |sid, e, error| {
            if verify_data {
                verify_extent(vol, sid, e, error);
            }
        });
    }

    /// Users of each block against the counts and the block map.
    fn blocks(&mut self, vol: &State<'_>) {
        let mut edges: BTreeMap<u64, i64> = BTreeMap::new();
        for run in std::mem::take(&mut self.uses) {
            *edges.entry(run.start).or_default() += 1;
            *edges.entry(run.start.saturating_add(run.len)).or_default() -= 1;
        }
        for (start, (len, refs)) in &self.refs {
            // Counted uses cancel out against these; a single use stays as one.
            *edges.entry(*start).or_default() -= i64::from(*refs) - 1;
            *edges.entry(start.saturating_add(*len)).or_default() += i64::from(*refs) - 1;
            self.report.shared_blocks += len;
        }
        let mut used: Vec<Run> = Vec::new();
        let (mut count, mut from) = (0i64, 0);
        for (at, change) in edges {
            if count == 1 && at > from {
                match used.last_mut() {
                    Some(r) if r.start + r.len == from => r.len += at - from,
                    _ => used.push(Run { start: from, len: at - from }),
                }
            } else if count != 0 && at > from {
                self.error(format!("blocks {from} to {at}: users are not what is counted ({count} too many)"));
            }
            count += change;
            from = at;
        }
        self.report.data_blocks = used.iter().map(|r| r.len).sum();
        let mut mapped: Vec<Run> = Vec::new();
        for r in &vol.map {
            match mapped.last_mut() {
                Some(m) if m.start + m.len == r.start => m.len += r.len,
                _ => mapped.push(*r),
            }
        }
        if used != mapped {
            let wrong = used.iter().find(|r| !mapped.contains(r)).or_else(|| mapped.iter().find(|r| !used.contains(r)));
            self.error(format!("the block map is not what files use, first at {wrong:?}"));
        }
    }
}

fn reaches_root(inodes: &HashMap<u64, Inode>, ino: u64, inode: &Inode) -> bool {
    if inode.links == 0 {
        return true;
    }
    let (mut at, mut parent) = (ino, inode.parent);
    for _ in 0..DEPTH_MAX {
        if at == ROOT_INO {
            return true;
        }
        at = parent;
        match inodes.get(&at) {
            Some(i) if i.links > 0 => parent = i.parent,
            _ => return false,
        }
    }
    false
}

/// What the walk over the keys is compared with.
struct State<'a> {
    view: Reading<'a>,
    map: Vec<Run>,
    counters: Counters,
    taken_blocks: u64,
    fixed_blocks: u64,
}

fn run(vol: &Volume, verify_data: bool) -> VolResult<CheckReport> {
    let view = vol.reading();
    let state = {
        let alloc = vol.alloc.lock();
        let sb = vol.superblock();
        State {
            map: alloc.data.runs().collect(),
            counters: view.core.counters,
            taken_blocks: alloc.total_blocks() - alloc.free_blocks(),
            fixed_blocks: sb.journal_blocks + 4,
            view,
        }
    };
    let mut c = Check::default();
    let walked = visit_nodes(&state.view.core, &vol.tree, &mut |_| {
        c.report.tree_nodes += 1;
        Ok(())
    });
    if let Err(e) = walked.and_then(|()| {
        state.view.scan(&[0], &[0xFF], &mut |k, v| {
            c.entry(k, v);
            true
        })
    }) {
        c.error(format!("the tree: {e}"));
        return Ok(c.report);
    }
    verify(vol, &state.view, &mut c, verify_data)?;
    c.snapshots(vol, &state.view, verify_data);
    c.files();
    c.blocks(&state);
    let counted = Counters { promised: c.promised, resident: c.resident };
    c.expect(counted == state.counters, || format!("{counted:?} is kept as {:?}", state.counters));
    let accounted = state.fixed_blocks + c.report.tree_nodes * NODE_BLOCKS + c.report.data_blocks;
    c.report.unaccounted_blocks = state.taken_blocks.saturating_sub(accounted);
    c.expect(state.taken_blocks >= accounted, || "blocks in use are marked as free".into());
    Ok(c.report)
}

/// Values that are not looked at as a whole elsewhere, and the data itself.
fn verify(vol: &Volume, view: &Reading<'_>, c: &mut Check, data: bool) -> VolResult<()> {
    for ino in c.ea_sizes.clone() {
        if let Err(e) = ea::load(view, ino) {
            c.error(format!("EAs of file {ino}: {e}"));
        }
    }
    for id in c.sds.clone() {
        if let Err(e) = vol.descriptor(view, id) {
            c.error(format!("descriptor {id}: {e}"));
        }
    }
    if !data {
        return Ok(());
    }
    view.scan(&[keys::EXTENT], &[keys::EXTENT + 1], &mut |k, v| {
        if let Ok(e) = Extent::decode(keys::second(k), v) {
            verify_extent(vol, keys::first(k), &e, &mut |text| c.error(text));
            c.blocks.verified.insert(fingerprint(&e));
        }
        true
    })
}

fn verify_extent(vol: &Volume, sid: u64, e: &Extent, error: &mut dyn FnMut(String)) {
    let mut buf = vec![0; e.sums.len() * BLOCK];
    let check = BlockCheck::Sums(Arc::from(e.sums.as_slice()));
    if let Err(err) = vol.device.read_checked(e.dev_block * BLOCK_BYTES, &mut buf, &check) {
        error(format!("stream {sid}: data of block {} on: {err}", e.file_block));
    }
}

impl Volume {
    /// Looks at everything; with `verify_data` also reads all data against its checksums. Errors are in the report.
    pub fn check(&self, verify_data: bool) -> VolResult<CheckReport> {
        self.reap_now();
        run(self, verify_data)
    }
}

/// Checks a volume that is not open. Nothing is written: what is in the journal is applied in memory.
pub fn check_device(device: Arc<dyn Device>, options: VolumeOptions, verify_data: bool) -> VolResult<CheckReport> {
    let sb = Superblock::read(&*device)?;
    let parts = load(&device, &sb, &options)?;
    let vol = Volume::from_parts(device, sb, parts, VolumeOptions { background: false, ..options });
    run(&vol, verify_data)
}
