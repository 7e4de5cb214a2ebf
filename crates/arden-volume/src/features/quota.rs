//! Quotas: how much the files of each owner take, and how much lies below a folder, counted in every transaction from
//! what it changes ([`QuotaCounts`]), so that no operation can forget it and no crash can part the counts from the files. Refuses what
//! goes over a limit; says what goes over a threshold.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arden_lock::{RwLock, ranks};
use arden_store::{
    name::fold,
    quota::{NONE, Quota, QuotaControl, control},
};
use arden_wire::{
    FileTime,
    cursor::{Put, Reader},
    dtyp::{Sid, well_known},
};

use crate::{
    disk::{
        error::{VolError, VolResult},
        inode::{Inode, NameEntry, ROOT_INO, Stream},
        keys::{self, Key, QUOTA},
        superblock::feature,
    },
    engine::{
        owner::Engine,
        txn::{Txn, TxnHook},
        view::View,
    },
    files::{descriptors::Descriptors, inodes::now, names::WayUp},
};

const SETTINGS: u8 = 0;
const USER: u8 = 1;
const FOLDER: u8 = 2;
/// A folder with more names and streams below it is not moved into or out of a counted one: that is left to copying.
const MOVED_MAX: u64 = 10_000;
/// The same when an administrator gives a folder a quota.
const COUNTED_MAX: u64 = 4_000_000;

pub fn settings_key() -> Key {
    vec![QUOTA, SETTINGS]
}

pub fn user_key(sid: &[u8]) -> Key {
    [&[QUOTA, USER], sid].concat()
}

pub fn folder_key(ino: u64) -> Key {
    [&[QUOTA, FOLDER][..], &ino.to_be_bytes()].concat()
}

fn encode(q: &Quota) -> Vec<u8> {
    let mut out = Vec::with_capacity(32);
    [q.used_bytes, q.threshold, q.limit, q.changed.0].iter().for_each(|n| out.put_u64(*n));
    out
}

pub fn decode(value: &[u8]) -> VolResult<Quota> {
    let mut r = Reader::new(value);
    let (used_bytes, threshold, limit) = (r.u64()?, r.u64()?, r.u64()?);
    Ok(Quota { used_bytes, threshold, limit, changed: FileTime(r.u64()?) })
}

/// What of it every transaction has to know, and counts. Changed under the engine's state alone.
pub struct QuotaCounts {
    on: AtomicBool,
    /// With a quota of their own; taken alone, mostly under the engine's state.
    folders: RwLock<BTreeSet<u64>, ranks::QuotaFolders>,
    descriptors: Arc<Descriptors>,
}

impl QuotaCounts {
    /// As the state says at opening.
    pub fn load(view: &dyn View, descriptors: &Arc<Descriptors>) -> VolResult<Arc<QuotaCounts>> {
        Ok(Arc::new(QuotaCounts {
            on: AtomicBool::new(is_on(view)?),
            folders: RwLock::new(counted_folders(view)?),
            descriptors: descriptors.clone(),
        }))
    }

    fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }
}

fn is_on(view: &dyn View) -> VolResult<bool> {
    Ok(view.get(&settings_key())?.is_some())
}

fn counted_folders(view: &dyn View) -> VolResult<BTreeSet<u64>> {
    let found = view.collect(&[QUOTA, FOLDER], &[QUOTA, FOLDER + 1], usize::MAX)?;
    Ok(found.iter().map(|(k, _)| folder_of(k)).collect())
}

impl TxnHook for QuotaCounts {
    fn admit(&self, t: &mut Txn<'_>) -> VolResult<()> {
        if self.is_on() { self.count(t) } else { Ok(()) }
    }

    fn applied(&self, key: &[u8], value: Option<&[u8]>) {
        match (key, value) {
            ([QUOTA, SETTINGS], _) => self.on.store(value.is_some(), Ordering::Release),
            ([QUOTA, FOLDER, ..], Some(_)) => {
                self.folders.write().insert(folder_of(key));
            }
            ([QUOTA, FOLDER, ..], None) => {
                self.folders.write().remove(&folder_of(key));
            }
            _ => {}
        }
    }
}

fn folder_of(key: &[u8]) -> u64 {
    key.get(2..10).and_then(|b| b.try_into().ok()).map_or(0, u64::from_be_bytes)
}

/// What one file adds to whom.
struct Share {
    /// Its owner's SID; empty: nobody's.
    owner: Vec<u8>,
    bytes: i64,
    inode: Inode,
}

/// Without its named streams.
fn own_bytes(inode: &Inode) -> i64 {
    if inode.directory { 0 } else { inode.data.charged() as i64 }
}

/// What its streams take, and how many of them were looked at, of so many at most.
fn stream_bytes(view: &dyn View, ino: u64, streams_max: u64) -> VolResult<(i64, u64)> {
    let (mut sum, mut seen) = (0, 0);
    let mut result = Ok(());
    view.scan(&keys::one(keys::STREAM, ino), &keys::end_of(keys::STREAM, ino), &mut |_, v| {
        match Stream::decode(v) {
            Ok(s) => sum += s.data.charged() as i64,
            Err(e) => result = Err(e),
        }
        seen += 1;
        seen < streams_max
    })?;
    result.map(|()| (sum, seen))
}

fn owner_of(descriptors: &Descriptors, view: &dyn View, sd: u64) -> VolResult<Vec<u8>> {
    if sd == 0 {
        return Ok(Vec::new());
    }
    Ok(descriptors.get(view, sd)?.owner.as_ref().map(Sid::encode).unwrap_or_default())
}

fn inode_of(view: &dyn View, ino: u64) -> VolResult<Option<Inode>> {
    view.get(&keys::one(keys::INODE, ino))?.map(|v| Inode::decode(&v)).transpose()
}

/// The counted folders above something in `parent`, that one included.
fn folders_above(view: &dyn View, folders: &BTreeSet<u64>, parent: u64) -> VolResult<Vec<u64>> {
    let (mut out, mut at) = (Vec::new(), parent);
    if folders.is_empty() {
        return Ok(out);
    }
    let mut way = WayUp::default();
    while at != 0 {
        if folders.contains(&at) {
            out.push(at);
        }
        if at == ROOT_INO {
            break;
        }
        way.step()?;
        at = inode_of(view, at)?.map_or(0, |i| i.parent);
    }
    Ok(out)
}

/// What lies below a folder, counted by walking it, without what is counted by itself. Files with several names count
/// where their first one is. Streams are as much work as names.
fn bytes_below(view: &dyn View, folder: u64, by_itself: &BTreeSet<u64>, seen_max: u64) -> VolResult<i64> {
    let (mut sum, mut seen, mut waiting) = (0, 0_u64, vec![folder]);
    while let Some(at) = waiting.pop() {
        let mut children = Vec::new();
        view.scan(&keys::one(keys::NAME, at), &keys::end_of(keys::NAME, at), &mut |_, v| {
            children.extend(NameEntry::decode(v));
            seen += 1;
            seen <= seen_max
        })?;
        if seen > seen_max {
            return Err(VolError::TooFar);
        }
        for NameEntry { ino, name } in children.into_iter().filter(|c| !by_itself.contains(&c.ino)) {
            let is_first = |i: &Inode| i.parent == at && fold(&i.name) == fold(&name);
            let Some(inode) = inode_of(view, ino)?.filter(is_first) else { continue };
            let (streams, streams_seen) = stream_bytes(view, ino, seen_max - seen + 1)?;
            seen += streams_seen;
            if seen > seen_max {
                return Err(VolError::TooFar);
            }
            sum += own_bytes(&inode) + streams;
            if inode.directory {
                waiting.push(ino);
            }
        }
    }
    Ok(sum)
}

/// The counted folders above every directory, however deep: each is passed once.
struct Above<'a> {
    folders: &'a BTreeSet<u64>,
    /// The directory in which each directory is.
    parents: HashMap<u64, u64>,
    known: HashMap<u64, Rc<[u64]>>,
}

impl Above<'_> {
    /// Of what lies in directory `at`, that one included.
    fn of(&mut self, mut at: u64) -> Rc<[u64]> {
        let (mut way, none) = (Vec::new(), Rc::<[u64]>::from([]));
        let mut above = loop {
            if let Some(known) = self.known.get(&at) {
                break known.clone();
            }
            // Until it is known: a damaged volume may show a loop.
            self.known.insert(at, none.clone());
            way.push(at);
            match self.parents.get(&at).filter(|_| at != ROOT_INO) {
                Some(parent) => at = *parent,
                None => break none,
            }
        };
        for directory in way.into_iter().rev() {
            if self.folders.contains(&directory) {
                above = above.iter().copied().chain([directory]).collect();
            }
            self.known.insert(directory, above.clone());
        }
        above
    }
}

/// Everything counted anew: by owner, and by folder.
pub fn recount(
    descriptors: &Descriptors,
    view: &dyn View,
    folders: &BTreeSet<u64>,
) -> VolResult<(BTreeMap<Vec<u8>, i64>, BTreeMap<u64, i64>)> {
    let mut streams: HashMap<u64, i64> = HashMap::new();
    let mut above = Above { folders, parents: HashMap::new(), known: HashMap::new() };
    let mut files = Vec::new();
    let mut result = Ok(());
    view.scan(&[keys::STREAM], &[keys::STREAM + 1], &mut |k, v| {
        match Stream::decode(v) {
            Ok(s) => *streams.entry(keys::first(k)).or_default() += s.data.charged() as i64,
            Err(e) => result = Err(e),
        }
        true
    })?;
    view.scan(&[keys::INODE], &[keys::INODE + 1], &mut |k, v| {
        match Inode::decode(v) {
            Ok(i) => {
                let bytes = own_bytes(&i) + streams.get(&keys::first(k)).copied().unwrap_or(0);
                if bytes != 0 {
                    files.push((i.sd, i.parent, bytes));
                }
                if i.directory && !folders.is_empty() {
                    above.parents.insert(keys::first(k), i.parent);
                }
            }
            Err(e) => result = Err(e),
        }
        true
    })?;
    result?;
    let (mut by_user, mut by_folder) = (BTreeMap::<Vec<u8>, i64>::new(), BTreeMap::<u64, i64>::new());
    for (sd, parent, bytes) in files {
        let owner = owner_of(descriptors, view, sd)?;
        if !owner.is_empty() {
            *by_user.entry(owner).or_default() += bytes;
        }
        for folder in above.of(parent).iter() {
            *by_folder.entry(*folder).or_default() += bytes;
        }
    }
    Ok((by_user, by_folder))
}

/// Records whose count is not what a recount says: key, what it is for, and what it has to say.
pub fn differences(descriptors: &Descriptors, view: &dyn View) -> VolResult<Vec<(Key, String, Quota)>> {
    if !is_on(view)? {
        return Ok(Vec::new());
    }
    let (by_user, by_folder) = recount(descriptors, view, &counted_folders(view)?)?;
    let mut should: BTreeMap<Key, i64> = by_user.iter().map(|(sid, n)| (user_key(sid), *n)).collect();
    should.extend(by_folder.iter().map(|(ino, n)| (folder_key(*ino), *n)));
    let mut out = Vec::new();
    for (key, value) in view.collect(&[QUOTA, USER], &[QUOTA, FOLDER + 1], usize::MAX)? {
        let q = decode(&value).unwrap_or_default();
        let counted = should.remove(&key).unwrap_or(0) as u64;
        if q.used_bytes != counted {
            out.push((key, format!("{} bytes, {counted} counted", q.used_bytes), Quota { used_bytes: counted, ..q }));
        }
    }
    for (key, n) in should.into_iter().filter(|(_, n)| *n != 0) {
        out.push((key, format!("none, {n} counted"), Quota { used_bytes: n as u64, ..Quota::default() }));
    }
    Ok(out)
}

/// For people.
pub fn name_of(key: &[u8]) -> String {
    match key {
        [QUOTA, USER, sid @ ..] => {
            Sid::parse(sid).map_or_else(|_| "quota of a SID".into(), |s| format!("quota of {s}"))
        }
        _ => format!("quota of folder {}", folder_of(key)),
    }
}

pub fn put_quota(t: &mut Txn<'_>, key: Key, quota: &Quota) {
    t.put(key, encode(quota));
}

impl QuotaCounts {
    fn share_of(&self, view: &dyn View, ino: u64, streams: bool) -> VolResult<Option<Share>> {
        let Some(inode) = inode_of(view, ino)? else { return Ok(None) };
        let owner = owner_of(&self.descriptors, view, inode.sd)?;
        let bytes = own_bytes(&inode) + if streams { stream_bytes(view, ino, u64::MAX)?.0 } else { 0 };
        Ok(Some(Share { owner, bytes, inode }))
    }

    /// Adds what the transaction changes to the counts, or refuses it.
    fn count(&self, t: &mut Txn<'_>) -> VolResult<()> {
        let (mut by_user, mut by_folder) = (BTreeMap::<Vec<u8>, i64>::new(), BTreeMap::<u64, i64>::new());
        let mut gone = Vec::new();
        {
            let old = t.before();
            let folders = &*self.folders.read();
            let mut counted = Vec::new();
            for (ino, streams) in t.changed_files() {
                let (a, b) = (inode_of(&old, ino)?, inode_of(t, ino)?);
                // Most writes: the same owner, the same place, and no stream.
                let alike = a.as_ref().zip(b.as_ref()).is_some_and(|(a, b)| a.sd == b.sd && a.parent == b.parent);
                if !alike || streams || a.as_ref().map(own_bytes) != b.as_ref().map(own_bytes) {
                    counted.push((ino, streams || !alike));
                }
            }
            // A file whose first name gets below a folder that moves in the same moment is not moved with it.
            let by_itself: BTreeSet<u64> = counted.iter().map(|c| c.0).collect();
            for (ino, whole) in counted {
                let (a, b) = (self.share_of(&old, ino, whole)?, self.share_of(t, ino, whole)?);
                if b.is_none() && folders.contains(&ino) {
                    gone.push(folder_key(ino));
                }
                for (share, sign) in [(&a, -1), (&b, 1)] {
                    let Some(s) = share else { continue };
                    if !s.owner.is_empty() {
                        *by_user.entry(s.owner.clone()).or_default() += sign * s.bytes;
                    }
                }
                let above = |share: &Option<Share>, view: &dyn View| {
                    folders_above(view, folders, share.as_ref().map_or(0, |s| s.inode.parent))
                };
                let (before, after) = (above(&a, &old)?, above(&b, t)?);
                let is_directory = b.as_ref().or(a.as_ref()).is_some_and(|s| s.inode.directory);
                let below =
                    if is_directory && before != after { bytes_below(t, ino, &by_itself, MOVED_MAX)? } else { 0 };
                let bytes = |share: &Option<Share>| share.as_ref().map_or(0, |s| s.bytes) + below;
                before.iter().for_each(|f| *by_folder.entry(*f).or_default() -= bytes(&a));
                after.iter().for_each(|f| *by_folder.entry(*f).or_default() += bytes(&b));
            }
        }
        let control = control_of(t)?;
        let admins = well_known::BUILTIN_ADMINISTRATORS.encode();
        for (sid, more) in by_user.into_iter().filter(|(_, n)| *n != 0) {
            let limited = control.enforces() && sid != admins;
            let default = Quota { threshold: control.threshold, limit: control.limit, ..Quota::default() };
            charge(t, user_key(&sid), more, default, limited, control.flags)?;
        }
        for (ino, more) in by_folder.into_iter().filter(|(_, n)| *n != 0) {
            let key = folder_key(ino);
            if t.get(&key)?.is_some() {
                let flags = control::LOG_THRESHOLD | control::LOG_LIMIT;
                charge(t, key, more, Quota::default(), true, flags)?;
            }
        }
        gone.into_iter().for_each(|key| t.delete(key));
        Ok(())
    }
}

fn charge(t: &mut Txn<'_>, key: Key, more: i64, default: Quota, limited: bool, flags: u32) -> VolResult<()> {
    let mut q = t.get(&key)?.map_or(Ok(default), |v| decode(&v))?;
    let before = q.used_bytes;
    q.used_bytes = before.saturating_add_signed(more);
    if more > 0 && q.used_bytes > q.limit {
        if flags & control::LOG_LIMIT != 0 && before <= q.limit {
            tracing::warn!(limit = q.limit, used = before, asked = more, "{}: over its limit", name_of(&key));
        }
        if limited && !t.unlimited {
            return Err(VolError::OverQuota);
        }
    }
    if before <= q.threshold && q.used_bytes > q.threshold && flags & control::LOG_THRESHOLD != 0 {
        let (threshold, used) = (q.threshold, q.used_bytes);
        tracing::warn!(threshold, used, "{}: over its warning threshold", name_of(&key));
    }
    put_quota(t, key, &q);
    Ok(())
}

pub fn control_of(view: &dyn View) -> VolResult<QuotaControl> {
    let Some(value) = view.get(&settings_key())? else { return Ok(QuotaControl::default()) };
    let mut r = Reader::new(&value);
    let flags = r.u32()?;
    Ok(QuotaControl { threshold: r.u64()?, limit: r.u64()?, flags })
}

fn put_control(t: &mut Txn<'_>, c: &QuotaControl) {
    let mut out = Vec::with_capacity(20);
    out.put_u32(c.flags);
    out.put_u64(c.threshold);
    out.put_u64(c.limit);
    t.put(settings_key(), out);
}

/// The volume's quotas, as they are asked for and set.
pub struct Quotas {
    engine: Arc<Engine>,
    counts: Arc<QuotaCounts>,
}

impl Quotas {
    pub fn new(engine: Arc<Engine>, counts: Arc<QuotaCounts>) -> Quotas {
        Quotas { engine, counts }
    }

    /// Counts from now on. The first time this looks at every file once; changes wait meanwhile.
    pub fn begin_counting(&self) -> VolResult<()> {
        if self.counts.is_on() {
            return Ok(());
        }
        self.engine.use_feature(feature::QUOTAS)?;
        self.engine.make_room()?;
        let mut t = self.engine.begin();
        if self.counts.is_on() {
            return Ok(());
        }
        let (by_user, _) = recount(&self.counts.descriptors, &t, &BTreeSet::new())?;
        put_control(
            &mut t,
            &QuotaControl {
                flags: control::ENFORCE | control::LOG_THRESHOLD | control::LOG_LIMIT,
                ..QuotaControl::default()
            },
        );
        for (sid, n) in by_user {
            put_quota(&mut t, user_key(&sid), &Quota { used_bytes: n as u64, ..Quota::default() });
        }
        let seq = t.commit()?;
        self.engine.commit_to(seq)
    }

    pub fn control(&self) -> VolResult<QuotaControl> {
        control_of(&self.engine.reading())
    }

    pub fn set_control(&self, control: &QuotaControl) -> VolResult<()> {
        self.begin_counting()?;
        let mut t = self.engine.begin();
        put_control(&mut t, &QuotaControl { flags: control.flags & control::SETTABLE, ..*control });
        let seq = t.commit()?;
        self.engine.commit_to(seq)
    }

    pub fn users(&self) -> VolResult<Vec<(Sid, Quota)>> {
        let all = self.engine.reading().collect(&[QUOTA, USER], &[QUOTA, USER + 1], usize::MAX)?;
        all.iter().map(|(k, v)| Ok((Sid::parse(&k[2..])?, decode(v)?))).collect()
    }

    pub fn user(&self, sid: &Sid) -> VolResult<Option<Quota>> {
        self.engine.reading().get(&user_key(&sid.encode()))?.map(|v| decode(&v)).transpose()
    }

    pub fn set_user(&self, sid: &Sid, threshold: u64, limit: u64) -> VolResult<()> {
        self.begin_counting()?;
        let key = user_key(&sid.encode());
        let mut t = self.engine.begin();
        let q = t.get(&key)?.map_or(Ok(Quota::default()), |v| decode(&v))?;
        put_quota(&mut t, key, &Quota { threshold, limit, changed: now(), ..q });
        let seq = t.commit()?;
        self.engine.commit_to(seq)
    }

    /// False when there is none. Who owns something stays counted, without a limit.
    pub fn remove_user(&self, sid: &Sid) -> VolResult<bool> {
        let key = user_key(&sid.encode());
        let mut t = self.engine.begin();
        let Some(value) = t.get(&key)? else { return Ok(false) };
        let q = decode(&value)?;
        if q.used_bytes == 0 {
            t.delete(key);
        } else {
            put_quota(&mut t, key, &Quota { used_bytes: q.used_bytes, changed: now(), ..Quota::default() });
        }
        let seq = t.commit()?;
        self.engine.commit_to(seq)?;
        Ok(true)
    }

    /// By the folders' numbers.
    pub fn folders(&self) -> VolResult<Vec<(u64, Quota)>> {
        let all = self.engine.reading().collect(&[QUOTA, FOLDER], &[QUOTA, FOLDER + 1], usize::MAX)?;
        all.iter().map(|(k, v)| Ok((folder_of(k), decode(v)?))).collect()
    }

    /// For what lies below a directory, with all below that.
    pub fn set_folder(&self, ino: u64, threshold: u64, limit: u64) -> VolResult<()> {
        self.begin_counting()?;
        let key = folder_key(ino);
        let mut t = self.engine.begin();
        if !inode_of(&t, ino)?.is_some_and(|i| i.directory && (i.links > 0 || ino == ROOT_INO)) {
            return Err(VolError::Refused("a quota is for a directory that exists"));
        }
        let q = match t.get(&key)? {
            Some(value) => decode(&value)?,
            None => Quota {
                used_bytes: bytes_below(&t, ino, &BTreeSet::new(), COUNTED_MAX)?.max(0) as u64,
                ..Quota::default()
            },
        };
        put_quota(&mut t, key, &Quota { threshold, limit, changed: now(), ..q });
        let seq = t.commit()?;
        self.engine.commit_to(seq)
    }

    /// False when there is none.
    pub fn remove_folder(&self, ino: u64) -> VolResult<bool> {
        let mut t = self.engine.begin();
        if t.get(&folder_key(ino))?.is_none() {
            return Ok(false);
        }
        t.delete(folder_key(ino));
        let seq = t.commit()?;
        self.engine.commit_to(seq)?;
        Ok(true)
    }

    /// What limits leave to `who` in directory or file `ino`: the smallest limit, and the least that is left of one.
    pub fn room(&self, who: &Sid, ino: u64) -> VolResult<(u64, u64)> {
        let view = self.engine.reading();
        if !self.counts.is_on() {
            return Ok((NONE, NONE));
        }
        let defaults = control_of(&view)?;
        let unknown = Quota { limit: defaults.limit, ..Quota::default() };
        let mut all = Vec::new();
        if *who != *well_known::BUILTIN_ADMINISTRATORS {
            all.push(view.get(&user_key(&who.encode()))?.map_or(Ok(unknown), |v| decode(&v))?);
        }
        for folder in folders_above(&view, &self.counts.folders.read(), ino)? {
            all.extend(view.get(&folder_key(folder))?.map(|v| decode(&v)).transpose()?);
        }
        let limited = all.iter().filter(|q| q.limit != NONE);
        Ok(limited.fold((NONE, NONE), |(limit, left), q| {
            (limit.min(q.limit), left.min(q.limit.saturating_sub(q.used_bytes)))
        }))
    }
}
