//! Checking: every structure, every reference and every count of a volume against what the rest says. Online: the state
//! stands still meanwhile. Changes nothing; what `repair` may do about a finding goes with it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use arden_block::{BLOCK_BYTES, Device};
use arden_store::name::fold;

use crate::{
    disk::{
        device::{BLOCK, BlockCheck, read_checked},
        error::VolResult,
        inode::{Data, Extent, Inode, NameEntry, ROOT_INO, Stream, StreamSnapshot},
        keys::{self, Key},
        run::Run,
        superblock::Counters,
        treenode::NODE_BLOCKS,
    },
    engine::{
        kept::{Dead, visit_nodes},
        state::Core,
        view::View,
    },
    features::{
        check_past::{Blocks, fingerprint},
        check_short::ShortRecords,
        ea,
        fix::Fix,
        quota, usn_format,
    },
    files::{extents::decode_refs, owner::Files},
};

/// More than this is not listed.
const ERRORS_MAX: usize = 100;
/// Nor mended at once.
const FINDINGS_MAX: usize = 1000;

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

/// Finds one thing wrong, with what can safely be done about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub text: String,
    pub fix: Option<Fix>,
}

/// What is known of a stream by its number.
#[derive(Default)]
struct Held {
    blocks: BTreeSet<u64>,
    owner: bool,
}

/// The stream that a set of snapshots is of.
struct SetOwner {
    what: String,
    ino: u64,
    /// The key of a named one.
    stream: Option<Key>,
    blocks: u64,
    orphan: bool,
}

#[derive(Default)]
struct Check {
    report: CheckReport,
    findings: Vec<Finding>,
    /// Something could not be read: what seems to have no owner may have one.
    unsure: bool,
    inodes: HashMap<u64, Inode>,
    /// Whether directories are below the root, as far as that is known.
    reaching: HashMap<u64, bool>,
    /// Names of each file: directory and folded name.
    names: HashMap<u64, Vec<(u64, String)>>,
    links: BTreeSet<(u64, u64, String)>,
    short: ShortRecords,
    orphans: BTreeSet<u64>,
    streams: Vec<(u64, String, Stream)>,
    sets: BTreeMap<u64, SetOwner>,
    stream_snapshots: Vec<(u64, String, StreamSnapshot)>,
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
    unreadable_eas: BTreeSet<u64>,
    reparse: BTreeSet<u64>,
}

impl Check {
    fn error(&mut self, text: String) {
        self.find(text, None);
    }

    fn find(&mut self, text: String, fix: Option<Fix>) {
        if self.report.errors.len() < ERRORS_MAX {
            self.report.errors.push(text.clone());
        }
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { text, fix });
        }
    }

    fn expect(&mut self, holds: bool, text: impl FnOnce() -> String) {
        self.expect_or(holds, text, || None);
    }

    fn expect_or(&mut self, holds: bool, text: impl FnOnce() -> String, fix: impl FnOnce() -> Option<Fix>) {
        if !holds {
            self.find(text(), fix());
        }
    }

    /// It cannot be read, and so nobody knows what it stood for.
    fn unreadable(&mut self, text: String) {
        self.unsure = true;
        self.error(text);
    }

    fn entry(&mut self, key: &[u8], value: &[u8]) {
        let n = keys::first(key);
        match key.first().copied().unwrap_or(0) {
            keys::INODE => match Inode::decode(value) {
                Ok(i) => {
                    self.inodes.insert(n, i);
                }
                Err(e) => self.unreadable(format!("inode {n}: {e}")),
            },
            keys::NAME => match NameEntry::decode(value) {
                Ok(e) => {
                    let folded = keys::text(key, 9).to_owned();
                    self.expect(fold(&e.name) == folded, || format!("directory {n}: {:?} has a wrong key", e.name));
                    self.names.entry(e.ino).or_default().push((n, folded));
                }
                Err(e) => self.unreadable(format!("a name in directory {n}: {e}")),
            },
            keys::LINK => {
                self.links.insert((n, keys::second(key), keys::text(key, 17).to_owned()));
            }
            keys::SHORT | keys::SHORT_OF => self.short.entry(key, value),
            keys::STREAM => match Stream::decode(value) {
                Ok(s) => {
                    let folded = keys::text(key, 9).to_owned();
                    self.expect(fold(&s.name) == folded, || format!("file {n}: stream {:?} has a wrong key", s.name));
                    self.streams.push((n, folded, s));
                }
                Err(e) => self.unreadable(format!("a stream of file {n}: {e}")),
            },
            keys::STREAM_SNAPSHOT => match StreamSnapshot::decode(value) {
                Ok(s) => {
                    let folded = keys::text(key, 9).to_owned();
                    self.expect(fold(&s.name) == folded, || format!("set {n}: snapshot {:?} has a wrong key", s.name));
                    self.stream_snapshots.push((n, folded, s));
                }
                Err(e) => self.unreadable(format!("a snapshot of set {n}: {e}")),
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
                _ => self.find(format!("count of users of block {n}"), Some(Fix::Delete(key.to_vec()))),
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
                Err(e) => self.unreadable(format!("dead block {}: {e}", keys::second(key))),
            },
            keys::MAP | keys::QUOTA | keys::JOURNAL | keys::DIRTY => {}
            other => self.unreadable(format!("a key of unknown kind {other:#x}")),
        }
    }

    fn extent(&mut self, sid: u64, block: u64, value: &[u8]) {
        match Extent::decode(block, value) {
            Ok(e) => {
                self.report.extents += 1;
                self.uses.push(e.run());
                self.blocks.live.push((e.run(), e.birth));
                self.held.entry(sid).or_default().blocks.extend(e.file_block..e.end());
            }
            Err(e) => self.unreadable(format!("stream {sid}: block {block}: {e}")),
        }
    }

    /// `stream`: the key of a named one.
    fn sizes(&mut self, what: &str, data: &Data, orphan: bool, (ino, stream): (u64, Option<&Key>)) {
        self.promised += data.promised();
        if data.snapshots.id != 0 {
            let (what, stream, blocks) = (what.to_owned(), stream.cloned(), data.snapshots.blocks);
            let again = self.sets.insert(data.snapshots.id, SetOwner { what, ino, stream, blocks, orphan });
            if let Some(other) = again {
                self.error(format!("{} and another stream have the same snapshots", other.what));
            }
        }
        let fix = |blocks| Some(Fix::Blocks { ino, stream: stream.cloned(), blocks });
        let Some(held) = self.held.get_mut(&data.sid) else {
            let holds = data.blocks == 0 || orphan;
            return self.expect_or(holds, || format!("{what}: {} blocks are missing", data.blocks), || fix(0));
        };
        let again = std::mem::replace(&mut held.owner, true);
        let (count, last) = (held.blocks.len() as u64, held.blocks.last().copied());
        self.expect(!again, || format!("{what}: stream {} has two owners", data.sid));
        if !orphan {
            let text = || format!("{what}: {count} blocks, not {}", data.blocks);
            self.expect_or(count == data.blocks, text, || fix(count));
            let end = data.eof.div_ceil(BLOCK_BYTES);
            self.expect(last.is_none_or(|l| l < end), || format!("{what}: a block behind the end"));
        }
    }

    fn files(&mut self) {
        let inodes = std::mem::take(&mut self.inodes);
        for (ino, inode) in &inodes {
            let orphan = self.orphans.contains(ino);
            if inode.directory {
                self.report.directories += 1
            } else {
                self.report.files += 1
            }
            self.names_of(&inodes, *ino, inode, orphan);
            let what = format!("file {ino}");
            if !inode.directory {
                self.sizes(&what, &inode.data, orphan, (*ino, None));
            }
            if inode.sd != 0 {
                *self.sd_uses.entry(inode.sd).or_default() += 1;
            }
            let has_eas = self.ea_sizes.remove(ino);
            if self.unreadable_eas.remove(ino) {
                self.find(format!("{what}: its EAs cannot be read"), Some(Fix::DropEas(*ino)));
            } else {
                let holds = has_eas == (inode.ea_size != 0) || orphan;
                self.expect_or(holds, || format!("{what}: EAs and their size"), || Some(Fix::EaSize(*ino)));
            }
            let has_reparse = self.reparse.remove(ino);
            self.expect(has_reparse == (inode.reparse_tag != 0) || orphan, || format!("{what}: reparse point"));
        }
        for orphan in std::mem::take(&mut self.orphans) {
            self.report.orphans += 1;
            let fix = || Some(Fix::Delete(keys::one(keys::ORPHAN, orphan)));
            self.expect_or(inodes.contains_key(&orphan), || format!("orphan {orphan} does not exist"), fix);
        }
        for (ino, name, stream) in std::mem::take(&mut self.streams) {
            self.report.streams += 1;
            let owner = inodes.get(&ino);
            self.expect(owner.is_some(), || format!("stream {name:?} of file {ino}, which does not exist"));
            let orphan = owner.is_some_and(|i| i.links == 0);
            let key = keys::named(keys::STREAM, ino, &name);
            self.sizes(&format!("stream {name:?} of file {ino}"), &stream.data, orphan, (ino, Some(&key)));
        }
        for (fault, key) in std::mem::take(&mut self.short).faults() {
            self.find(fault, Some(Fix::Delete(key)));
        }
        self.stream_snapshots();
        self.leftovers(&inodes);
        self.descriptors();
    }

    fn stream_snapshots(&mut self) {
        let sets = std::mem::take(&mut self.sets);
        let mut counted: HashMap<u64, u64> = HashMap::new();
        let mut times = BTreeSet::new();
        for (set, folded, snapshot) in std::mem::take(&mut self.stream_snapshots) {
            let key = keys::named(keys::STREAM_SNAPSHOT, set, &folded);
            let Some(owner) = sets.get(&set) else {
                self.find(format!("snapshot {folded:?} of set {set} is of no stream"), Some(Fix::Delete(key)));
                continue;
            };
            let what = format!("snapshot {folded:?} of {}", owner.what);
            let plain = snapshot.data.snapshots.id == 0 && snapshot.data.sparse && snapshot.data.reserved == 0;
            self.expect(plain, || format!("{what}: data that no snapshot has"));
            self.expect(times.insert((set, snapshot.created)), || format!("{what}: as old as another"));
            self.sizes(&what, &snapshot.data, owner.orphan, (owner.ino, Some(&key)));
            *counted.entry(set).or_default() += snapshot.data.blocks;
        }
        for (id, owner) in sets.into_iter().filter(|(_, owner)| !owner.orphan) {
            let blocks = counted.get(&id).copied().unwrap_or(0);
            let text = || format!("{}: snapshots hold {blocks} blocks, not {}", owner.what, owner.blocks);
            let fix = || Some(Fix::SnapshotBlocks { ino: owner.ino, stream: owner.stream.clone(), blocks });
            self.expect_or(blocks == owner.blocks, text, fix);
        }
    }

    fn names_of(&mut self, inodes: &HashMap<u64, Inode>, ino: u64, inode: &Inode, orphan: bool) {
        let what = format!("file {ino}");
        let names = self.names.remove(&ino).unwrap_or_default();
        let expected = if ino == ROOT_INO { 0 } else { inode.links as usize };
        let first_is_there = names.iter().any(|(p, f)| *p == inode.parent && fold(&inode.name) == *f);
        let fix = || match (names.len(), first_is_there) {
            // It knows the name that it had.
            (0, _) if inode.links > 0 && ino != ROOT_INO => Some(Fix::Name(ino)),
            (n, true) if ino != ROOT_INO => Some(Fix::Links(ino, n as u32)),
            _ => None,
        };
        self.expect_or(names.len() == expected, || format!("{what}: {} names, not {expected}", names.len()), fix);
        let text = || format!("{what}: {} links, orphan: {orphan}", inode.links);
        let fix = || match (inode.links, names.len()) {
            (0, 0) => Some(Fix::Put(keys::one(keys::ORPHAN, ino))),
            // It has a name: it is not to be taken away.
            (l, n) if l > 0 && n > 0 => Some(Fix::Delete(keys::one(keys::ORPHAN, ino))),
            _ => None,
        };
        self.expect_or(orphan == (inode.links == 0), text, fix);
        for (parent, folded) in names {
            let is_directory = inodes.get(&parent).is_some_and(|i| i.directory);
            self.expect(is_directory, || format!("{what}: named in {parent}, which is no directory"));
            let first = inode.parent == parent && fold(&inode.name) == folded;
            self.short.name(parent, &folded, first);
            let listed = self.links.remove(&(ino, parent, folded.clone()));
            let link = keys::link(ino, parent, &folded);
            let fix = || match (first, listed) {
                (true, _) => Some(Fix::Delete(link)),
                (false, _) if first_is_there => Some(Fix::Put(link)),
                _ => None,
            };
            self.expect_or(first != listed, || format!("{what}: its name {folded:?} is not known to it"), fix);
        }
        if inode.directory {
            self.expect(inode.links <= 1, || format!("{what}: a directory with several names"));
            let reaches = reaches_root(inodes, &mut self.reaching, ino, inode);
            self.expect(reaches, || format!("{what}: not below the root"));
        }
    }

    fn leftovers(&mut self, inodes: &HashMap<u64, Inode>) {
        for (ino, names) in std::mem::take(&mut self.names) {
            for (parent, folded) in names {
                let fix = Some(Fix::Delete(keys::named(keys::NAME, parent, &folded)));
                self.find(format!("a name leads to file {ino}, which does not exist"), fix);
            }
        }
        for (ino, parent, folded) in std::mem::take(&mut self.links) {
            let fix = Some(Fix::Delete(keys::link(ino, parent, &folded)));
            self.find(format!("a link of file {ino} leads nowhere"), fix);
        }
        for (sid, held) in std::mem::take(&mut self.held) {
            self.expect_or(held.owner, || format!("stream {sid} has data and no owner"), || Some(Fix::NoOwner(sid)));
        }
        let left = std::mem::take(&mut self.ea_sizes).into_iter().chain(std::mem::take(&mut self.reparse));
        for ino in left.chain(std::mem::take(&mut self.unreadable_eas)).filter(|i| !inodes.contains_key(i)) {
            self.find(format!("attributes of file {ino}, which does not exist"), Some(Fix::DropAttributes(ino)));
        }
    }

    fn descriptors(&mut self) {
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
            let there = self.sds.contains(&id);
            let whole = there && self.sd_hashes.contains(&id) && uses.is_some() && uses == count;
            let fix = there.then(|| Fix::Descriptor(id, uses.unwrap_or(0)));
            self.expect_or(whole, || format!("descriptor {id}: {uses:?} files have it, {count:?} are counted"), || fix);
        }
    }

    /// What a snapshot reads is not known to be free where it does not fit with what is held for it.
    fn snapshots(&mut self, files: &Files, core: &Core, verify_data: bool) {
        let (mut blocks, device) = (std::mem::take(&mut self.blocks), &*files.engine.device);
        blocks.check(
            &files.engine.state.tree,
            &core.snapshots,
            &mut |text| self.unreadable(text),
            &mut |sid, e, error| {
                if verify_data {
                    verify_extent(device, sid, e, error);
                }
            },
        );
    }

    /// Users of each block against the counts and the block map.
    fn blocks(&mut self, vol: &State<'_>) {
        // At each block where something begins or ends: users more, counted users more.
        let mut edges: BTreeMap<u64, (i64, i64)> = BTreeMap::new();
        for run in std::mem::take(&mut self.uses) {
            edges.entry(run.start).or_default().0 += 1;
            edges.entry(run.start.saturating_add(run.len)).or_default().0 -= 1;
        }
        for (start, (len, refs)) in &self.refs {
            edges.entry(*start).or_default().1 += i64::from(*refs);
            edges.entry(start.saturating_add(*len)).or_default().1 -= i64::from(*refs);
            self.report.shared_blocks += len;
        }
        let mut used: Vec<Run> = Vec::new();
        let (mut users, mut counted, mut from) = (0i64, 0i64, 0);
        for (at, (more_users, more_counted)) in edges {
            let run = Run { start: from, len: at - from };
            if users > 0 && run.len > 0 {
                push_run(&mut used, run);
            }
            if run.len > 0 && counted != if users > 1 { users } else { 0 } {
                let text = format!("blocks {from} to {at}: {users} users, {} counted", counted.max(1));
                self.find(text, Some(Fix::Users(run, users.max(0) as u32)));
            }
            users += more_users;
            counted += more_counted;
            from = at;
        }
        self.report.data_blocks = used.iter().map(|r| r.len).sum();
        let mut mapped: Vec<Run> = Vec::new();
        vol.map.iter().for_each(|r| push_run(&mut mapped, *r));
        for run in differences(&mapped, &used) {
            self.find(format!("blocks from {} on, {}: in use by nobody", run.start, run.len), Some(Fix::Release(run)));
        }
        for run in differences(&used, &mapped) {
            self.find(
                format!("blocks from {} on, {}: in use and marked as free", run.start, run.len),
                Some(Fix::Claim(run)),
            );
        }
    }
}

fn push_run(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(r) if r.start + r.len == run.start => r.len += run.len,
        _ => runs.push(run),
    }
}

/// What is in `a` and not in `b`, both ascending.
fn differences(a: &[Run], b: &[Run]) -> Vec<Run> {
    let (mut out, mut next) = (Vec::new(), 0);
    for run in a {
        let (mut at, end) = (run.start, run.start + run.len);
        while next < b.len() && b[next].start + b[next].len <= at {
            next += 1;
        }
        for other in b[next..].iter().take_while(|o| o.start < end) {
            if other.start > at {
                out.push(Run { start: at, len: other.start - at });
            }
            at = at.max(other.start + other.len);
        }
        if at < end {
            out.push(Run { start: at, len: end - at });
        }
    }
    out
}

/// Whether a directory is below the root. Each is passed once for all that are below it: they may be as deep as there are many.
fn reaches_root(inodes: &HashMap<u64, Inode>, known: &mut HashMap<u64, bool>, ino: u64, inode: &Inode) -> bool {
    if inode.links == 0 {
        return true;
    }
    let (mut at, mut parent) = (ino, inode.parent);
    let mut way = Vec::new();
    let reaches = loop {
        if at == ROOT_INO {
            break true;
        }
        if let Some(known) = known.get(&at) {
            break *known;
        }
        // Until it is known: who comes here again goes round.
        known.insert(at, false);
        way.push(at);
        at = parent;
        match inodes.get(&at) {
            Some(i) if i.links > 0 => parent = i.parent,
            _ => break false,
        }
    };
    known.extend(way.into_iter().map(|at| (at, reaches)));
    reaches
}

/// What the walk over the keys is compared with.
struct State<'a> {
    view: &'a dyn View,
    map: Vec<Run>,
    counters: Counters,
    taken_blocks: u64,
    fixed_blocks: u64,
}

/// What was found, and whether all of it could be read.
pub struct Found {
    pub report: CheckReport,
    pub findings: Vec<Finding>,
    pub sure: bool,
}

/// `view` shows the state that `core` is of.
pub fn look(files: &Files, view: &dyn View, core: &Core, verify_data: bool) -> VolResult<Found> {
    let state = {
        let alloc = files.engine.state.alloc.lock();
        let sb = files.engine.superblock();
        State {
            map: alloc.data.runs().collect(),
            counters: core.counters,
            taken_blocks: alloc.total_blocks() - alloc.free_blocks(),
            fixed_blocks: sb.journal_blocks + 4,
            view,
        }
    };
    let mut c = Check::default();
    let walked = visit_nodes(&core.snapshots, &core.root, &files.engine.state.tree, &mut |_| {
        c.report.tree_nodes += 1;
        Ok(())
    });
    if let Err(e) = walked.and_then(|()| {
        state.view.scan(&[0], &[0xFF], &mut |k, v| {
            c.entry(k, v);
            true
        })
    }) {
        c.unreadable(format!("the tree: {e}"));
        return Ok(c.done());
    }
    verify(files, state.view, &mut c, verify_data)?;
    c.snapshots(files, core, verify_data);
    c.files();
    c.blocks(&state);
    usn_format::faults(state.view)?.into_iter().for_each(|fault| c.error(fault));
    match quota::differences(&files.descriptors, state.view) {
        Ok(wrong) => wrong.into_iter().for_each(|(key, what, quota)| {
            c.find(format!("{}: {what}", quota::name_of(&key)), Some(Fix::Quota(key, quota)));
        }),
        Err(e) => c.error(format!("quotas: {e}")),
    }
    let counted = Counters { promised: c.promised, resident: c.resident };
    let text = || format!("{counted:?} is kept as {:?}", state.counters);
    c.expect_or(counted == state.counters, text, || Some(Fix::Counters(counted)));
    let accounted = state.fixed_blocks + c.report.tree_nodes * NODE_BLOCKS + c.report.data_blocks;
    c.report.unaccounted_blocks = state.taken_blocks.saturating_sub(accounted);
    c.expect(state.taken_blocks >= accounted, || "blocks in use are marked as free".into());
    Ok(c.done())
}

/// Looks at everything; with `verify_data` also reads all data against its checksums. Errors are in the report.
pub fn check(files: &Files, verify_data: bool) -> VolResult<CheckReport> {
    let view = files.engine.reading();
    look(files, &view, &view.core, verify_data).map(|found| found.report)
}

impl Check {
    fn done(self) -> Found {
        Found { report: self.report, findings: self.findings, sure: !self.unsure }
    }
}

/// Values that are not looked at as a whole elsewhere, and the data itself.
fn verify(files: &Files, view: &dyn View, c: &mut Check, data: bool) -> VolResult<()> {
    for ino in c.ea_sizes.clone() {
        if ea::load(view, ino).is_err() {
            c.unreadable_eas.insert(ino);
        }
    }
    for id in c.sds.clone() {
        if let Err(e) = files.descriptors.get(view, id) {
            c.error(format!("descriptor {id}: {e}"));
        }
    }
    if !data {
        return Ok(());
    }
    view.scan(&[keys::EXTENT], &[keys::EXTENT + 1], &mut |k, v| {
        if let Ok(e) = Extent::decode(keys::second(k), v) {
            verify_extent(&*files.engine.device, keys::first(k), &e, &mut |text| c.error(text));
            c.blocks.verified.insert(fingerprint(&e));
        }
        true
    })
}

fn verify_extent(device: &dyn Device, sid: u64, e: &Extent, error: &mut dyn FnMut(String)) {
    let mut buf = vec![0; e.sums.len() * BLOCK];
    let check = BlockCheck::Sums(Arc::from(e.sums.as_slice()));
    if let Err(err) = read_checked(device, e.dev_block * BLOCK_BYTES, &mut buf, &check) {
        error(format!("stream {sid}: data of block {} on: {err}", e.file_block));
    }
}
