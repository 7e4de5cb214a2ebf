//! Reads of a space by threads other than the pool's: what lies in one place of one disk, and nothing of which is newer in memory.
//! Everything else, and whatever is in doubt, is read by the pool. What has to hold and why: `state/views.rs`.

use std::sync::Arc;

use arden_block::{BLOCK_BYTES, Buf, IoError, IoResult, LocalFuture, Rt};

use crate::base::error::SpaceResult;
use crate::disk::reads::DiskReads;
use crate::map::pool_map::{Shape, UNWRITTEN};
use crate::pool::open_pool::User;
use crate::space::open_space::{Space, Verifier};
use crate::space::parity::column_of;
use crate::state::views::{SpaceViews, View};

/// A space, for reads of its disks by any thread.
#[derive(Clone)]
pub struct DirectSpace(Arc<SpaceViews>);

/// A read that was begun. Three steps: it is begun, the disk is read ([`DirectRead::read_on`]), and what came counts if the view still
/// holds ([`DirectRead::end`]).
#[derive(Clone)]
pub struct DirectRead {
    view: Arc<View>,
    disk: Arc<DiskReads>,
    disk_index: u16,
    at: u64,
    len: usize,
}

/// A disk that did not answer a read in time: the pool is to look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doubt {
    disk: u16,
    at: u64,
}

impl DirectSpace {
    /// Begins a read. `None`: the pool has to do it.
    pub fn begin(&self, offset: u64, len: usize) -> Option<DirectRead> {
        let shape = &self.0.shape;
        let aligned = offset.is_multiple_of(BLOCK_BYTES) && (len as u64).is_multiple_of(BLOCK_BYTES);
        let (group, at) = ((offset / shape.group_bytes) as usize, offset % shape.group_bytes);
        if len == 0 || !aligned || at + len as u64 > shape.group_bytes {
            return None;
        }
        let view = self.0.view(group)?;
        // Before the disk is asked: what is newer now may be in its place, and forgotten, by the time of the second look.
        if view.gate.has_newer() || offset.checked_add(len as u64)? > view.size_bytes {
            return None;
        }
        let (column, slab_at) = place(shape, &view, at, len as u64)?;
        let disk = view.columns[column].clone()?;
        if disk.is_gone() {
            return None;
        }
        self.0.is_used();
        let c = &view.group.columns[column];
        let (disk_index, at) = (c.disk, disk.data_at + u64::from(c.slab) * shape.slab_bytes + slab_at);
        Some(DirectRead { view, disk, disk_index, at, len })
    }
}

impl DirectRead {
    /// Reads the disk, on a runtime of the calling thread. It is given up after [`DirectRead::limit_ns`].
    ///
    /// # Errors
    /// Those of the disk.
    pub fn read_on(&self, rt: &Rt) -> LocalFuture<IoResult<Buf>> {
        self.disk.read_on(rt, self.at, self.len)
    }

    /// How long the disk may take.
    pub fn limit_ns(&self) -> u64 {
        self.disk.limit_ns
    }

    /// Whether what was read before this call is what the space holds.
    pub fn holds(&self) -> bool {
        self.view.holds() && !self.disk.is_gone()
    }

    /// What to make of the disk's answer, and of none in time. An error: the pool has to read, and a disk may be in doubt.
    ///
    /// # Errors
    /// The disk did not answer, or what it read may be something else by now.
    pub fn end(&self, answer: Option<IoResult<Buf>>) -> Result<Buf, Option<Doubt>> {
        if !self.holds() {
            return Err(None);
        }
        let doubt = Doubt { disk: self.disk_index, at: self.at };
        match answer {
            Some(Ok(read)) => Ok(read),
            None | Some(Err(IoError::Gone)) => Err(Some(doubt)),
            Some(Err(_)) => Err(None),
        }
    }
}

/// The column that is read, and where in its slab; `None` when it is more than one place.
fn place(shape: &Shape, view: &View, at: u64, len: u64) -> Option<(usize, u64)> {
    if shape.is_parity() {
        let (stripe, within) = ((at / shape.stripe_bytes) as usize, at % shape.stripe_bytes);
        let (unit, from) = ((within / shape.interleave) as usize, within % shape.interleave);
        let slot = view.group.stripes.get(stripe).filter(|&s| s != UNWRITTEN)?;
        let inside = from + len <= shape.interleave;
        return inside.then(|| (column_of(unit, slot, shape.columns), u64::from(slot) * shape.interleave + from));
    }
    let (mut column, mut slab_at) = (0, at);
    if shape.columns > 1 {
        let (unit, from) = (at / shape.interleave, at % shape.interleave);
        if from + len > shape.interleave {
            return None;
        }
        column = (unit % shape.columns as u64) as usize;
        slab_at = unit / shape.columns as u64 * shape.interleave + from;
    }
    let copies = shape.layout.copies();
    let prefer = (slab_at >> 20) as usize % copies;
    let rank = |&k: &usize| {
        let disk = view.columns[column * copies + k].as_ref();
        disk.map_or((true, u32::MAX, k), |d| (d.is_slow(), d.reading(), (k + copies - prefer) % copies))
    };
    (0..copies).min_by_key(rank).map(|k| (column * copies + k, slab_at))
}

impl Space {
    /// The space for other threads. They know of a group what was shown last ([`Space::show`]).
    pub fn direct(&self) -> DirectSpace {
        DirectSpace(self.rt.views.clone())
    }

    /// Shows other threads where the group at `offset` lies, if that is all there is to know of it.
    pub fn show(&self, offset: u64) {
        let (p, shape) = (&self.pool.0, &self.rt.shape);
        let number = (offset / shape.group_bytes) as usize;
        if p.life.is_closed() || p.life.is_opening() || self.rt.user.get() == User::Nobody {
            return;
        }
        let Some(rt) = self.rt.group_rt(number).filter(|g| g.is_mapped() && !g.gate.has_newer()) else { return };
        let per = shape.group_bytes / BLOCK_BYTES;
        let blocks = number as u64 * per..(number as u64 + 1) * per;
        // Copies that a crash may have left different are made equal by whoever reads them first; and what could not be read is
        // written anew by the next read that verifies.
        let differ = self.rt.user.get() != User::Verifying && rt.regions.any_suspect();
        if differ || !self.rt.unread.within(blocks).is_empty() {
            return;
        }
        let map = p.map.read();
        let Some((size_bytes, group)) = map.shown(self.rt.id, number) else { return };
        let readable = |c: &crate::map::pool_map::Column| {
            let disk = (!c.stale).then(|| self.pool.disk(c.disk)).flatten().filter(|d| d.online.get())?;
            disk.reads.can_be_read().then(|| disk.reads.clone())
        };
        let columns = group.columns.iter().map(readable).collect();
        self.rt.views.show(number, group, size_bytes, columns);
    }

    /// A read that another thread could not do by itself, and `doubt` about a disk. Afterwards it knows where the group lies.
    ///
    /// # Errors
    /// Those of [`Space::read`].
    pub async fn read_for(&self, offset: u64, len: usize, doubt: Option<Doubt>) -> SpaceResult<Buf> {
        self.look_into(doubt);
        let read = self.read(offset, len).await;
        self.show(offset);
        read
    }

    /// As [`Space::read_for`], with a check.
    ///
    /// # Errors
    /// Those of [`Space::read_verified`].
    pub async fn read_verified_for(
        &self,
        offset: u64,
        len: usize,
        verify: Verifier,
        doubt: Option<Doubt>,
    ) -> SpaceResult<Buf> {
        self.look_into(doubt);
        let read = self.read_verified(offset, len, verify).await;
        self.show(offset);
        read
    }

    /// Asks a disk that somebody else had no answer of: it leaves when it has none for the pool either.
    fn look_into(&self, doubt: Option<Doubt>) {
        let Some((doubt, disk)) = doubt.and_then(|d| Some((d, self.pool.disk(d.disk)?))) else { return };
        let pool = self.pool.clone();
        self.pool.0.rt.spawn(async move {
            let answer = disk.read(doubt.at, BLOCK_BYTES as usize).await;
            if matches!(answer, Err(IoError::Gone)) && disk.online.get() {
                let _ = pool.fail_disk(&disk, "gone").await;
            }
        });
    }
}
