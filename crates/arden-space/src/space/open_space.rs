//! A space as its users see it: read, write, flush, discard. Decides which way a write goes; the ways themselves are
//! `mirror` and `parity`.

use std::rc::Rc;

use arden_block::sync::join_all;
use arden_block::{BLOCK_BYTES, BlockDevice, Buf, DeviceInfo, IoError, IoResult, LocalFuture, Media, SharedBuf};

use crate::base::error::{SpaceError, SpaceResult};
use crate::map::pool_map::Shape;
use crate::pool::open_pool::{Pool, SpaceRt, User};
use crate::state::journal::Item;

/// How often a writer looks for room in memory while nothing moves (0.2 ms each).
const ROOM_WAITS_MAX: u32 = 150_000;

/// A single write up to this is made durable by itself, where nothing else has to be.
const THROUGH_BYTES_MAX: usize = 256 << 10;

/// How long a writer waits to be told of room before it looks by itself.
const ROOM_WAIT_NS: u64 = 2_000_000;

/// Says whether bytes at an offset of the space are what the caller expects.
pub type Verifier = Rc<dyn Fn(u64, &[u8]) -> bool>;

/// An open space.
#[derive(Clone)]
pub struct Space {
    pub(crate) pool: Pool,
    pub(crate) rt: Rc<SpaceRt>,
}

/// A part of a request that lies in one group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) group: usize,
    /// Offset within the group.
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// Offset within the request.
    pub(crate) from: usize,
}

pub(crate) fn parts(shape: &Shape, offset: u64, len: u64) -> Vec<Part> {
    let mut out = Vec::with_capacity(1);
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let group = at / shape.group_bytes;
        let n = ((group + 1) * shape.group_bytes).min(end) - at;
        let part = Part { group: group as usize, at: at % shape.group_bytes, len: n, from: (at - offset) as usize };
        out.push(part);
        at += n;
    }
    out
}

impl Pool {
    pub fn space(&self, id: u32) -> SpaceResult<Space> {
        match self.space_rt(id) {
            Some(rt) => Ok(Space { pool: self.clone(), rt }),
            None => Err(SpaceError::NotFound(format!("no space {id}"))),
        }
    }

    pub fn space_named(&self, name: &str) -> SpaceResult<Space> {
        let id = self.0.map.read().spaces.values().find(|s| s.name == name).map(|s| s.id);
        id.map_or_else(|| Err(SpaceError::NotFound(format!("no space {name}"))), |id| self.space(id))
    }
}

impl Space {
    pub fn id(&self) -> u32 {
        self.rt.id
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn size_bytes(&self) -> u64 {
        self.pool.0.map.read().spaces.get(&self.rt.id).map_or(0, |s| s.size_bytes)
    }

    /// The map does not have the group: it has no slabs, or its space was deleted.
    pub(crate) fn is_gone(&self, group: usize) -> bool {
        self.pool.0.map.read().group(self.rt.id, group).is_none()
    }

    /// Enough disks of the group are here to read and write it.
    pub(crate) fn group_serves(&self, group: usize) -> bool {
        let map = self.pool.0.map.read();
        map.group(self.rt.id, group).is_none_or(|g| self.pool.group_usable(&self.rt.shape, g))
    }

    pub(crate) fn check(&self, offset: u64, len: u64) -> SpaceResult<()> {
        self.pool.alive()?;
        self.pool.0.background.client_at(self.pool.0.rt.now_ns());
        if !offset.is_multiple_of(BLOCK_BYTES) || !len.is_multiple_of(BLOCK_BYTES) {
            return Err(SpaceError::BadRange);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.size_bytes() => Ok(()),
            _ => Err(SpaceError::BadRange),
        }
    }

    /// From now on whoever uses the space verifies every block that counts: none of a mirror's copies is written over
    /// another after a crash, because a disk that lies may hold the first of them. Whether there are copies that may
    /// differ; [`Space::end_crash_resync`] ends that.
    pub fn begin_verifying(&self) -> bool {
        self.rt.user.set(User::Verifying);
        self.rt.groups.all().iter().any(|(_, g)| g.regions.any_suspect())
    }

    /// The copies of all blocks that count are equal, as far as the disks are there.
    pub async fn end_crash_resync(&self) -> SpaceResult<()> {
        self.pool.flush_disks().await?;
        self.rt.groups.all().iter().for_each(|(_, g)| g.regions.trust_all());
        Ok(())
    }

    fn used(&self) {
        if self.rt.user.get() == User::Nobody {
            self.rt.user.set(User::Trusting);
        }
    }

    /// Reads; parts never written are zeros.
    pub async fn read(&self, offset: u64, len: usize) -> SpaceResult<Buf> {
        self.check(offset, len as u64)?;
        self.used();
        self.read_at(offset, len).await
    }

    /// Reads what the verifier accepts: other copies or reconstruction are tried before it
    /// fails, and what was wrong is written anew. The verifier is asked about single blocks
    /// of 4096 bytes.
    pub async fn read_verified(&self, offset: u64, len: usize, verify: Verifier) -> SpaceResult<Buf> {
        self.check(offset, len as u64)?;
        let mut buf = match self.read_at(offset, len).await {
            Ok(b) => b,
            Err(SpaceError::Closed) => return Err(SpaceError::Closed),
            Err(_) => Buf::new(0),
        };
        let whole = buf.len() == len;
        if !whole {
            buf = Buf::zeroed(len);
        }
        for at in (0..len).step_by(BLOCK_BYTES as usize) {
            let pos = offset + at as u64;
            let block = &mut buf[at..at + BLOCK_BYTES as usize];
            if whole && verify(pos, block) {
                continue;
            }
            let b = if self.rt.shape.is_parity() {
                self.heal_parity(pos, &verify).await?
            } else {
                self.heal_mirror(pos, &verify, false).await?
            };
            block.copy_from_slice(&b);
        }
        self.heal_unread(offset, len, &verify).await;
        Ok(buf)
    }

    /// The block as it is in memory, when the verifier accepts that: what was written while we
    /// looked on the disks.
    pub(crate) fn gathered(&self, offset: u64, verify: &Verifier) -> Option<Buf> {
        let entry = self.rt.overlay.borrow().get(offset / BLOCK_BYTES).cloned()?;
        verify(offset, &entry.data).then(|| Buf::copy_of(&entry.data))
    }

    pub(crate) async fn read_at(&self, offset: u64, len: usize) -> SpaceResult<Buf> {
        let shape = &self.rt.shape;
        let first = offset / BLOCK_BYTES;
        let end = first + len as u64 / BLOCK_BYTES;
        // Taken before the first await: what is applied meanwhile is still seen.
        let newer = {
            let o = self.rt.overlay.borrow();
            if o.is_empty() { Vec::new() } else { o.snapshot(first, end) }
        };
        if newer.len() as u64 == end - first && !newer.is_empty() {
            let mut buf = Buf::new(len);
            patch(&mut buf, first, &newer);
            return Ok(buf);
        }
        let list = parts(shape, offset, len as u64);
        let mut buf = if list.len() == 1 {
            self.read_part(list[0]).await?
        } else {
            let mut all: Vec<LocalFuture<SpaceResult<Buf>>> = Vec::new();
            for &p in &list {
                let me = self.clone();
                all.push(Box::pin(async move { me.read_part(p).await }));
            }
            let mut buf = Buf::new(len);
            for (p, r) in list.iter().zip(join_all(all).await) {
                buf[p.from..p.from + p.len as usize].copy_from_slice(&r?);
            }
            buf
        };
        patch(&mut buf, first, &newer);
        Ok(buf)
    }

    async fn read_part(&self, part: Part) -> SpaceResult<Buf> {
        let Some(_hold) = self.hold(part.group) else { return Ok(Buf::zeroed(part.len as usize)) };
        if self.rt.shape.is_parity() { self.read_parity(part).await } else { self.read_mirror(part).await }
    }

    /// Writes; with `durable` it returns only when the write survives a crash.
    pub async fn write(&self, offset: u64, data: SharedBuf, durable: bool) -> SpaceResult<()> {
        self.check(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(());
        }
        let _holds = self.hold_all(&parts(&self.rt.shape, offset, data.len() as u64)).await?;
        if self.rt.shape.is_parity() {
            return self.write_parity(offset, &data, durable).await;
        }
        // Without copies there is nothing that a crash could leave different: the log would only
        // write everything twice.
        if durable && self.rt.shape.layout.copies() > 1 && data.len() <= self.pool.0.cfg.journal_write_max {
            if !self.is_marked(offset, data.len() as u64) {
                return self.write_journalled(offset, &data).await;
            }
        }
        self.write_direct(offset, data, durable).await
    }

    /// Writes these side by side; they, and all that was written before, survive a crash when it returns. One small write
    /// to a mirror that nothing else waits to be flushed beside is durable by its own step, without a flush after it.
    pub async fn write_durably(&self, writes: Vec<(u64, SharedBuf)>) -> SpaceResult<()> {
        if let [(at, data)] = &writes[..]
            && !self.rt.shape.is_parity()
            && data.len() <= THROUGH_BYTES_MAX
            && self.pool.unflushed_disks().is_empty()
        {
            self.check(*at, data.len() as u64)?;
            let _holds = self.hold_all(&parts(&self.rt.shape, *at, data.len() as u64)).await?;
            return self.write_direct(*at, data.clone(), true).await;
        }
        let all: Vec<LocalFuture<SpaceResult<()>>> = writes
            .into_iter()
            .map(|(at, data)| {
                let me = self.clone();
                Box::pin(async move { me.write(at, data, false).await }) as LocalFuture<SpaceResult<()>>
            })
            .collect();
        join_all(all).await.into_iter().collect::<SpaceResult<()>>()?;
        self.flush().await
    }

    /// Parity: into memory, and when it is to be durable, into the log.
    async fn write_parity(&self, offset: u64, data: &SharedBuf, durable: bool) -> SpaceResult<()> {
        if durable {
            self.pool.wait_for_log().await;
        }
        let skipped = self.pool.0.journal.skipped();
        self.write_gathered(offset, data).await?;
        if !durable {
            return Ok(());
        }
        if data.len() <= self.pool.0.cfg.journal_write_max {
            let blocks = offset / BLOCK_BYTES..(offset + data.len() as u64) / BLOCK_BYTES;
            let space = self.rt.id;
            self.pool.journal_append(blocks.map(|block| Item::Block { space, block })).await?;
            // A block that left memory for its place before it was logged is durable by a flush only.
            if self.pool.0.journal.skipped() == skipped {
                return Ok(());
            }
        }
        self.pool.flush().await
    }

    /// A small durable write: into memory, into the log, later in its place.
    pub(crate) async fn write_journalled(&self, offset: u64, data: &SharedBuf) -> SpaceResult<()> {
        for p in parts(&self.rt.shape, offset, data.len() as u64) {
            let map = self.pool.0.map.read();
            let Some(g) = map.group(self.rt.id, p.group) else { return Err(SpaceError::Closed) };
            if !self.pool.group_usable(&self.rt.shape, g) {
                return Err(SpaceError::Offline);
            }
        }
        self.pool.wait_for_log().await;
        self.make_room(data.len() as u64).await?;
        let version = self.pool.next_version();
        let first = offset / BLOCK_BYTES;
        self.rt.overlay.borrow_mut().put(first, data, version);
        let n = data.len() as u64 / BLOCK_BYTES;
        let space = self.rt.id;
        let mut warm = Vec::new();
        for p in parts(&self.rt.shape, offset, data.len() as u64) {
            warm.push(self.warm_up(&p)?);
        }
        let marks = warm.iter().flat_map(|w| w.items.clone());
        self.pool.journal_append(marks.chain((first..first + n).map(|block| Item::Block { space, block }))).await?;
        warm.iter().for_each(|w| self.warmed_up(w));
        Ok(())
    }

    /// Waits until more may be gathered, and the gathered writes leave room in memory.
    pub(crate) async fn make_room(&self, bytes: u64) -> SpaceResult<()> {
        let max = self.pool.0.cfg.gather_bytes_max;
        let mut idle = 0;
        loop {
            self.pool.0.journal.may_gather().await;
            let mut before = self.pool.gathered_bytes();
            if before + bytes <= max || before == 0 {
                break;
            }
            before -= self.pool.stuck_bytes();
            if before + bytes <= max || before == 0 {
                break;
            }
            self.pool.alive()?;
            let p = &self.pool.0;
            if p.room.is_being_made() {
                // Room is being made. To destage more now would send incomplete stripes away.
                let wait = p.room.made();
                let _ = p.rt.timeout_ns(ROOM_WAIT_NS, wait).await;
                continue;
            }
            let guard = p.room.make().await;
            let applied = self.pool.apply_some(max / 2).await;
            drop(guard);
            p.room.tell();
            // A space that waits for its disks, maybe another one, is no reason to refuse: there may be room all the same.
            if let Err(e) = applied
                && e != SpaceError::Offline
            {
                return Err(e);
            }
            if self.pool.gathered_bytes() - self.pool.stuck_bytes() < before {
                idle = 0;
                continue;
            }
            // What is there is on its way into the log: wait for those who write it.
            idle += 1;
            if idle > ROOM_WAITS_MAX {
                return Err(SpaceError::Offline);
            }
            self.pool.0.rt.sleep_ns(200_000).await;
        }
        if self.pool.gathered_bytes() > max / 2 {
            self.pool.0.background.wake();
        }
        Ok(())
    }

    pub async fn flush(&self) -> SpaceResult<()> {
        self.pool.0.background.client_at(self.pool.0.rt.now_ns());
        self.pool.flush().await
    }

    /// Forgets a range: it reads as zeros. Whole groups of a thin space give their slabs back.
    pub async fn discard(&self, offset: u64, len: u64) -> SpaceResult<()> {
        self.check(offset, len)?;
        let left = self.free_groups(parts(&self.rt.shape, offset, len)).await?;
        self.zero_parts(offset, &left).await
    }

    /// Zeros, in whatever slabs there are.
    pub async fn zero(&self, offset: u64, len: u64) -> SpaceResult<()> {
        self.check(offset, len)?;
        self.zero_parts(offset, &parts(&self.rt.shape, offset, len)).await
    }

    async fn zero_parts(&self, offset: u64, list: &[Part]) -> SpaceResult<()> {
        for &p in list {
            let Some(_hold) = self.hold(p.group) else { continue };
            let start = offset + p.from as u64;
            if self.rt.shape.is_parity() {
                self.discard_parity(start, p).await?;
            } else {
                self.discard_mirror(start, p).await?;
            }
        }
        Ok(())
    }
}

pub(crate) fn patch(buf: &mut Buf, first: u64, newer: &[(u64, crate::state::overlay::Entry)]) {
    for (b, e) in newer {
        let at = ((b - first) * BLOCK_BYTES) as usize;
        buf[at..at + BLOCK_BYTES as usize].copy_from_slice(&e.data);
    }
}

/// A block of a group without slabs, for a reader whose verifier did not accept what he found: that was there until all of
/// the group was discarded, and now there are zeros.
pub(crate) fn no_content(offset: u64, verify: &Verifier) -> SpaceResult<Buf> {
    let zeros = Buf::zeroed(BLOCK_BYTES as usize);
    if verify(offset, &zeros) { Ok(zeros) } else { Err(SpaceError::Unreadable) }
}

/// A space behind the trait that disks implement.
pub struct SpaceDevice {
    space: Space,
    info: DeviceInfo,
}

impl Space {
    /// The space as a device. Its size is what it was at this call.
    pub fn device(&self) -> SpaceDevice {
        let map = self.pool.0.map.read();
        let name = map.spaces.get(&self.rt.id).map_or_else(String::new, |s| s.name.clone());
        let info = DeviceInfo {
            name: name.clone(),
            size_bytes: self.size_bytes(),
            media: Media::Unknown,
            model: "Arden space".into(),
            serial: format!("{:032x}-{}", map.pool_id, self.rt.id),
        };
        SpaceDevice { space: self.clone(), info }
    }
}

impl BlockDevice for SpaceDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn read(&self, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        let s = self.space.clone();
        Box::pin(async move { s.read(offset, len).await.map_err(IoError::from) })
    }
    fn write(&self, offset: u64, data: SharedBuf, durable: bool) -> LocalFuture<IoResult<()>> {
        let s = self.space.clone();
        Box::pin(async move { s.write(offset, data, durable).await.map_err(IoError::from) })
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        let s = self.space.clone();
        Box::pin(async move { s.zero(offset, len).await.map_err(IoError::from) })
    }
    fn discard(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        let s = self.space.clone();
        Box::pin(async move { s.discard(offset, len).await.map_err(IoError::from) })
    }
    fn flush(&self) -> LocalFuture<IoResult<()>> {
        let s = self.space.clone();
        Box::pin(async move { s.flush().await.map_err(IoError::from) })
    }
}
