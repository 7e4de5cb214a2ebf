//! Repair: does to what `check` found what is provably safe, and nothing else. A count that can be counted again is; what
//! nobody can reach and nobody owns is given back; an optional record that cannot be read is dropped. Data, names that
//! lead somewhere, descriptors and damaged nodes stay as they are, and are reported. When anything could not be read,
//! nothing is taken away at all: what seems to have no owner may have had one there.

use arden_store::name::fold;

use crate::{
    disk::{
        error::VolResult,
        inode::{Data, EXTENT_BLOCKS_MAX, NameEntry, Stream, StreamSnapshot},
        keys::{self, Key},
        run::Run,
    },
    engine::view::View,
    features::{check::look, ea, fix::Fix, quota::put_quota},
    files::{
        extents::{Removal, decode_refs},
        inodes::load_inode,
        owner::Files,
        txn::FileTxn,
    },
};

/// What one pass mends; the volume stands still meanwhile.
const FIXES_A_PASS: usize = 200;
/// Extents and blocks that one pass takes away.
const ENTRIES_A_PASS: usize = 1000;
/// What a record has for one mending at most, but for those that ask for room themselves.
const FIX_BYTES_MAX: usize = 8 << 10;
const PASSES_MAX: usize = 10_000;

/// What was done, or with `dry_run` would be, and what is left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairReport {
    pub done: Vec<String>,
    /// Not safe to do anything about.
    pub left: Vec<String>,
}

/// Mends what is safe to mend, while the volume is in use. With `dry_run` it only says what it would begin with.
pub fn repair(files: &Files, dry_run: bool) -> VolResult<RepairReport> {
    let mut report = RepairReport::default();
    for _ in 0..PASSES_MAX {
        files.engine.make_room()?;
        let mut t = files.begin();
        let found = look(files, &t, &t.core, false)?;
        report.left.clear();
        let mut fixes = Vec::new();
        for finding in found.findings {
            match finding.fix {
                Some(fix) if found.sure || !fix.needs_certainty() => fixes.push((finding.text, fix)),
                _ => report.left.push(finding.text),
            }
        }
        if dry_run {
            report.done.extend(fixes.iter().map(|(what, fix)| format!("{what}: {}", fix.text())));
            return Ok(report);
        }
        let mut mended = 0;
        for (what, fix) in fixes {
            if mended < FIXES_A_PASS && t.has_room(FIX_BYTES_MAX) && mend(&mut t, &fix)? {
                report.done.push(format!("{what}: {}", fix.text()));
                mended += 1;
            } else if mended == 0 {
                report.left.push(what);
            }
        }
        if mended == 0 {
            return Ok(report);
        }
        let seq = t.commit_mended()?;
        files.engine.commit_to(seq)?;
        // What repair made an orphan goes.
        files.collect_orphans()?;
    }
    Ok(report)
}

/// False when it cannot be done after all.
fn mend(t: &mut FileTxn<'_>, fix: &Fix) -> VolResult<bool> {
    match fix {
        Fix::Delete(key) => t.delete(key.clone()),
        Fix::Put(key) => t.put(key.clone(), []),
        Fix::Counters(counted) => {
            let kept = t.core.counters;
            t.changes.counters.promised += counted.promised - kept.promised;
            t.changes.counters.resident += counted.resident - kept.resident;
        }
        Fix::Blocks { ino, stream, blocks } => return mend_data(t, *ino, stream.as_ref(), |d| d.blocks = *blocks),
        Fix::SnapshotBlocks { ino, stream, blocks } => {
            return mend_data(t, *ino, stream.as_ref(), |d| d.snapshots.blocks = *blocks);
        }
        Fix::Links(ino, links) => {
            let mut inode = load_inode(t, *ino)?;
            inode.links = *links;
            t.put_inode(*ino, &inode);
        }
        Fix::Name(ino) => return mend_name(t, *ino),
        Fix::NoOwner(sid) => return mend_no_owner(t, *sid),
        Fix::Release(run) => t.free_mapped(*run),
        Fix::Claim(run) => return Ok(t.claim(*run)),
        Fix::Users(run, users) => mend_users(t, *run, *users)?,
        Fix::Descriptor(id, uses) => mend_descriptor(t, *id, *uses)?,
        Fix::DropEas(ino) => {
            let mut inode = load_inode(t, *ino)?;
            inode.ea_size = 0;
            t.delete_pieces(keys::EAS, *ino)?;
            t.put_inode(*ino, &inode);
        }
        Fix::DropAttributes(ino) => {
            t.delete_pieces(keys::EAS, *ino)?;
            t.delete_pieces(keys::REPARSE, *ino)?;
        }
        Fix::Quota(key, q) => put_quota(t, key.clone(), q),
        Fix::EaSize(ino) => {
            let mut inode = load_inode(t, *ino)?;
            inode.ea_size = ea::size(&ea::load(t, *ino)?);
            t.put_inode(*ino, &inode);
        }
    }
    Ok(true)
}

/// Changes what is known of a stream, or of the snapshot that has this key, without its promise getting lost.
fn mend_data(t: &mut FileTxn<'_>, ino: u64, key: Option<&Key>, mend: impl FnOnce(&mut Data)) -> VolResult<bool> {
    let Some(key) = key else {
        let mut inode = load_inode(t, ino)?;
        mend_promise(t, &mut inode.data, mend);
        t.put_inode(ino, &inode);
        return Ok(true);
    };
    let Some(value) = t.get(key)? else { return Ok(false) };
    if key.first() == Some(&keys::STREAM_SNAPSHOT) {
        let mut snapshot = StreamSnapshot::decode(&value)?;
        mend_promise(t, &mut snapshot.data, mend);
        t.put(key.clone(), snapshot.encode());
        return Ok(true);
    }
    let mut stream = Stream::decode(&value)?;
    mend_promise(t, &mut stream.data, mend);
    t.put(key.clone(), stream.encode());
    Ok(true)
}

fn mend_promise(t: &mut FileTxn<'_>, data: &mut Data, mend: impl FnOnce(&mut Data)) {
    let before = data.promised();
    mend(data);
    t.changes.counters.promised += data.promised() - before;
}

/// Only where nothing else has the name, in a directory that is one.
fn mend_name(t: &mut FileTxn<'_>, ino: u64) -> VolResult<bool> {
    let mut inode = load_inode(t, ino)?;
    let is_directory = load_inode(t, inode.parent).is_ok_and(|d| d.directory && d.links > 0);
    let key = keys::named(keys::NAME, inode.parent, &fold(&inode.name));
    if inode.name.is_empty() || !is_directory || t.get(&key)?.is_some() {
        return Ok(false);
    }
    inode.links = 1;
    t.put(key, NameEntry::encode(ino, &inode.name));
    t.put_inode(ino, &inode);
    Ok(true)
}

fn mend_no_owner(t: &mut FileTxn<'_>, sid: u64) -> VolResult<bool> {
    t.unmap_some(sid, &mut Removal::new(ENTRIES_A_PASS))?;
    t.changes.dirty.push((sid, None));
    Ok(true)
}

fn mend_users(t: &mut FileTxn<'_>, run: Run, users: u32) -> VolResult<()> {
    let end = run.start + run.len;
    let first = keys::one(keys::REFS, run.start.saturating_sub(EXTENT_BLOCKS_MAX - 1));
    for (key, value) in t.collect(&first, &keys::one(keys::REFS, end), usize::MAX)? {
        let Some((len, refs)) = decode_refs(&value) else { continue };
        let old = Run { start: keys::first(&key), len };
        if old.start + old.len <= run.start {
            continue;
        }
        t.delete(key);
        if old.start < run.start {
            t.put_refs(Run { start: old.start, len: run.start - old.start }, refs);
        }
        if old.start + old.len > end {
            t.put_refs(Run { start: end, len: old.start + old.len - end }, refs);
        }
    }
    for start in (run.start..end).step_by(EXTENT_BLOCKS_MAX as usize) {
        t.put_refs(Run { start, len: EXTENT_BLOCKS_MAX.min(end - start) }, users);
    }
    Ok(())
}

fn mend_descriptor(t: &mut FileTxn<'_>, id: u64, uses: u64) -> VolResult<()> {
    let Some(bytes) = t.pieces(keys::SD, id)? else { return Ok(()) };
    let hash = keys::two(keys::SD_HASH, xxhash_rust::xxh3::xxh3_64(&bytes), id);
    let count = keys::one(keys::SD_COUNT, id);
    if uses == 0 {
        t.delete(hash);
        t.delete(count);
        return t.delete_pieces(keys::SD, id);
    }
    t.put(hash, []);
    t.put(count, uses.to_le_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arden_store::{quota::Quota, store::Node};

    use super::*;
    use crate::{
        disk::inode::Inode,
        testing::{Files, Volume, volume, volume_on},
    };

    /// A volume with one of everything.
    fn filled() -> (Arc<crate::disk::device::MemDevice>, Arc<Volume>) {
        let (device, vol) = volume(32 << 20);
        let files = Files::new(&vol);
        files.make("dir", true).unwrap();
        let a = files.write("dir\\a", &[1; 300_000]);
        files.write("dir\\a:s", b"stream");
        a.set_eas(None, &[arden_store::store::Ea { name: "E".into(), flags: 0, value: b"v".to_vec() }]).unwrap();
        a.link(None, &*files.find("").unwrap(), "second", false).unwrap();
        let b = files.write("b", &[0; 300_000]);
        Node::clone_from(&*b, None, &*a, 0, 0, 131_072).unwrap();
        let c = files.write("c", &[7; 100_000]);
        c.create_stream_snapshot(None, "before").unwrap();
        files.write("c:s", b"of a stream").create_stream_snapshot(None, "before").unwrap();
        (device, vol)
    }

    fn ino(vol: &Arc<Volume>, path: &str) -> u64 {
        Files::new(vol).find(path).unwrap().id().file
    }

    fn change(vol: &Volume, change: impl FnOnce(&mut FileTxn<'_>)) {
        let mut t = vol.files.begin();
        change(&mut t);
        t.commit_mended().unwrap();
    }

    fn with_inode(vol: &Volume, ino: u64, f: impl FnOnce(&mut Inode)) {
        change(vol, |t| {
            let mut inode = load_inode(t, ino).unwrap();
            f(&mut inode);
            t.put_inode(ino, &inode);
        });
    }

    /// After `damage` the volume is found wrong, said to be, mended, and as it was, over a reopening too.
    fn mends(what: &str, damage: impl FnOnce(&Arc<Volume>)) {
        let (device, vol) = filled();
        damage(&vol);
        vol.close().unwrap();
        drop(vol);
        let vol = volume_on(device.clone());
        assert!(!vol.check(false).unwrap().is_clean(), "{what}: not noticed");
        let before = vol.progress().0;
        let plan = vol.repair(true).unwrap();
        assert!(!plan.done.is_empty(), "{what}: nothing planned, left: {:?}", plan.left);
        assert_eq!(vol.progress().0, before, "{what}: a dry run changed something");
        let done = vol.repair(false).unwrap();
        assert_eq!(done.left, Vec::<String>::new(), "{what}");
        let check = vol.check(true).unwrap();
        assert!(check.is_clean(), "{what}: {:?} after {:?}", check.errors, done.done);
        vol.close().unwrap();
        drop(vol);
        let vol = volume_on(device);
        assert!(vol.check(true).unwrap().is_clean(), "{what}: after reopening");
        let files = Files::new(&vol);
        assert_eq!(files.read("dir\\a"), vec![1; 300_000], "{what}");
        assert_eq!(files.read("second"), vec![1; 300_000], "{what}");
        assert_eq!(files.read("dir\\a:s"), b"stream", "{what}");
        assert_eq!(files.read("b")[..131_072], vec![1; 131_072], "{what}");
        files.write("c", &[9; 100_000]);
        files.find("c").unwrap().revert_stream(None, "before").unwrap();
        assert_eq!(files.read("c"), vec![7; 100_000], "{what}");
        files.write("b", &[5; 300_000]);
        assert!(vol.check(true).unwrap().is_clean(), "{what}: used on");
    }

    #[test]
    fn wrong_counts_are_counted_again() {
        mends("sums", |vol| change(vol, |t| (t.changes.counters.promised, t.changes.counters.resident) = (77, -3)));
        mends("blocks", |vol| with_inode(vol, ino(vol, "b"), |i| i.data.blocks += 9));
        mends("links", |vol| with_inode(vol, ino(vol, "b"), |i| i.links = 5));
        mends("size of EAs", |vol| with_inode(vol, ino(vol, "dir\\a"), |i| i.ea_size = 0));
        mends("users of descriptors", |vol| {
            let ino = ino(vol, "b");
            let sd = load_inode(&vol.engine.reading(), ino).unwrap().sd;
            change(vol, |t| t.put(keys::one(keys::SD_COUNT, sd), 99u64.to_le_bytes()));
        });
        mends("users of blocks", |vol| {
            let all = vol.engine.reading().collect(&[keys::REFS], &[keys::REFS + 1], 9).unwrap();
            assert!(!all.is_empty());
            change(vol, |t| all.iter().for_each(|(k, _)| t.delete(k.clone())));
        });
        mends("too many users of blocks", |vol| {
            let all = vol.engine.reading().collect(&[keys::REFS], &[keys::REFS + 1], 1).unwrap();
            change(vol, |t| t.put(all[0].0.clone(), [1u32.to_le_bytes(), 7u32.to_le_bytes()].concat()));
        });
    }

    #[test]
    fn wrong_quotas_are_counted_again() {
        mends("quotas", |vol| {
            let sid = &arden_wire::dtyp::well_known::BUILTIN_ADMINISTRATORS;
            vol.set_user_quota(sid, 5, u64::MAX).unwrap();
            vol.set_folder_quota(1, 5, 20 << 20).unwrap();
            let keys = [crate::features::quota::user_key(&sid.encode()), crate::features::quota::folder_key(1)];
            change(vol, |t| {
                keys.iter().for_each(|k| put_quota(t, k.clone(), &Quota { used_bytes: 77, ..Quota::default() }))
            });
        });
    }

    /// Of one of the two streams of `c`.
    fn with_stream(vol: &Volume, change_it: impl FnOnce(&mut Stream)) {
        let all = vol.engine.reading().collect(&[keys::STREAM], &[keys::STREAM + 1], 9).unwrap();
        let found = all.into_iter().map(|(k, v)| (k, Stream::decode(&v).unwrap()));
        let (key, mut stream) = found.into_iter().find(|(_, s)| s.data.snapshots.id != 0).unwrap();
        change_it(&mut stream);
        change(vol, |t| t.put(key, stream.encode()));
    }

    #[test]
    fn snapshots_of_streams_are_counted_again() {
        mends("blocks of snapshots", |vol| with_inode(vol, ino(vol, "c"), |i| i.data.snapshots.blocks += 3));
        mends("blocks of a stream's snapshots", |vol| with_stream(vol, |s| s.data.snapshots.blocks = 0));
        mends("blocks of one snapshot", |vol| {
            let c = ino(vol, "c");
            let set = load_inode(&vol.engine.reading(), c).unwrap().data.snapshots.id;
            let key = keys::named(keys::STREAM_SNAPSHOT, set, "BEFORE");
            let value = vol.engine.reading().get(&key).unwrap().unwrap();
            let mut snapshot = StreamSnapshot::decode(&value).unwrap();
            snapshot.data.blocks += 1;
            change(vol, |t| t.put(key, snapshot.encode()));
        });
        mends("a snapshot of no stream", |vol| with_stream(vol, |s| s.data.snapshots = Default::default()));
    }

    /// All of it is more than one record of a small journal may have.
    #[test]
    fn much_is_mended_in_several_passes() {
        let (_, vol) = volume(16 << 20);
        let files = Files::new(&vol);
        let name = |i: u32| format!("{}{i}", "\u{7530}".repeat(240));
        let inodes: Vec<u64> = (0..190).map(|i| files.write(&name(i), b"content").id().file).collect();
        vol.checkpoint().unwrap();
        inodes.iter().for_each(|ino| with_inode(&vol, *ino, |i| i.links = 5));
        let dev_block = vol.engine.state.alloc.lock().reserve_data(1, 1).unwrap()[0].start;
        for i in 0..10 {
            change(&vol, |t| {
                let sid = t.new_id();
                let extent = |file_block| crate::disk::inode::Extent { file_block, dev_block, birth: 1, sums: vec![0] };
                (0..1000).for_each(|block| t.map(sid, &extent(block)));
                if i == 0 {
                    t.enter(Run { start: dev_block, len: 1 });
                }
                t.put_refs(Run { start: dev_block, len: 1 }, 1000 * (i + 1));
            });
        }
        assert!(!vol.check(false).unwrap().is_clean());
        let report = vol.repair(false).unwrap();
        assert_eq!(report.left, Vec::<String>::new());
        let check = vol.check(false).unwrap();
        assert!(check.is_clean() && check.unaccounted_blocks == 0, "{:?}", check.errors);
        assert!((0..190).all(|i| files.read(&name(i)) == b"content"));
    }

    #[test]
    fn what_nobody_has_is_given_back() {
        mends("leaked blocks", |vol| {
            let run = vol.engine.state.alloc.lock().reserve_data(300, 256).unwrap();
            change(vol, |t| run.iter().for_each(|r| t.enter(*r)));
        });
        mends("data without an owner", |vol| {
            let sid = vol.files.begin().new_id();
            let run = vol.engine.state.alloc.lock().reserve_data(5, 256).unwrap()[0];
            let sums = vec![0; run.len as usize];
            let e = crate::disk::inode::Extent { file_block: 0, dev_block: run.start, birth: 1, sums };
            change(vol, |t| {
                t.map(sid, &e);
                t.enter(run);
            });
        });
        mends("an inode without a name", |vol| {
            change(vol, |t| {
                let ino = t.new_id();
                t.put_inode(ino, &Inode::default());
            });
        });
        mends("an orphan that does not exist", |vol| change(vol, |t| t.put(keys::one(keys::ORPHAN, 9999), [])));
        mends("a name that leads nowhere", |vol| {
            change(vol, |t| t.put(keys::named(keys::NAME, 1, "GHOST"), NameEntry::encode(9999, "ghost")));
        });
        mends("attributes of nobody", |vol| change(vol, |t| t.put(keys::piece(keys::EAS, 9999, 0), [0])));
    }

    #[test]
    fn names_and_maps_are_brought_in_line_with_what_is_certain() {
        mends("a name that is lost", |vol| change(vol, |t| t.delete(keys::named(keys::NAME, 1, "B"))));
        mends("a link that is not listed", |vol| {
            let all = vol.engine.reading().collect(&[keys::LINK], &[keys::LINK + 1], 9).unwrap();
            change(vol, |t| t.delete(all[0].0.clone()));
        });
        mends("an orphan that has a name", |vol| {
            let b = ino(vol, "b");
            change(vol, |t| t.put(keys::one(keys::ORPHAN, b), []));
        });
        mends("blocks in use that the map calls free", |vol| {
            let a = ino(vol, "dir\\a");
            let sid = load_inode(&vol.engine.reading(), a).unwrap().data.sid;
            let e = crate::files::places::extents(&vol.engine.reading(), sid, 60, 61).unwrap()[0].clone();
            change(vol, |t| t.free(Run { start: e.dev_block, len: 2 }));
        });
        let (_, vol) = filled();
        let a = ino(&vol, "dir\\a");
        change(&vol, |t| t.put(keys::piece(keys::EAS, a, 0), [0, 200, 1]));
        let done = vol.repair(false).unwrap();
        assert!(done.done.iter().any(|d| d.contains("EAs that cannot be read")), "{done:?}");
        assert!(vol.check(true).unwrap().is_clean());
    }

    #[test]
    fn short_names_that_do_not_hold_go() {
        use crate::files::names::short_names::{ShortNames, put, setting_key, short_key, short_of_key};

        let (_, vol) = filled();
        vol.set_short_names(ShortNames::Kept).unwrap();
        let files = Files::new(&vol);
        files.write("a long name.text", b"1");
        files.write("plain", b"2");
        let a = files.find("dir\\a").unwrap();
        a.link(None, &*files.find("").unwrap(), "another long name", false).unwrap();
        assert!(vol.check(true).unwrap().is_clean());
        let mends = |what: &str, damage: &dyn Fn(&mut FileTxn<'_>)| {
            change(&vol, |t| damage(t));
            let found = vol.check(true).unwrap();
            assert!(!found.is_clean(), "{what}: not found");
            assert!(vol.repair(false).unwrap().left.is_empty(), "{what}");
            assert!(vol.check(true).unwrap().is_clean(), "{what}");
            assert_eq!((files.read("a long name.text"), files.read("plain")), (b"1".to_vec(), b"2".to_vec()), "{what}");
        };
        let (name, short) = ("a long name.text", "ALONGN~1.TEX");
        mends("one record without the other", &|t| t.delete(short_key(1, short)));
        mends("the other without the one", &|t| t.put(short_key(1, short), fold(name).as_bytes()));
        mends("of no name", &|t| put(t, 1, "nothing there", "NOTHIN~1"));
        mends("the name of another file", &|t| put(t, 1, name, "PLAIN"));
        mends("one of two", &|t| {
            put(t, 1, name, "ONE");
            put(t, 1, name, "TWO");
        });
        mends("no 8.3 name", &|t| put(t, 1, name, "not short"));
        mends("of a second name", &|t| put(t, 1, "another long name", "SECOND"));
        mends("no text", &|t| t.put(short_of_key(1, name), [0xFF]));
        mends("no setting", &|t| t.put(setting_key(), [7]));
    }

    #[test]
    fn nothing_is_taken_away_while_something_cannot_be_read() {
        let (_, vol) = filled();
        let b = ino(&vol, "b");
        change(&vol, |t| t.put(keys::one(keys::INODE, b), [1, 2, 3]));
        let before = vol.progress().0;
        let report = vol.repair(false).unwrap();
        assert_eq!((report.done.as_slice(), vol.progress().0), ([].as_slice(), before));
        assert!(report.left.iter().any(|l| l.contains(&format!("inode {b}"))), "{report:?}");
        assert!(report.left.iter().any(|l| l.contains("no owner")), "{report:?}");
    }
}
