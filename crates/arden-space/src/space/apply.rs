//! Putting what was gathered in its place, and emptying the log by that.

use std::rc::Rc;

use arden_block::{BLOCK_BYTES, LocalFuture};

use crate::base::error::{SpaceError, SpaceResult};
use crate::disk::open_disk::DiskRt;
use crate::map::pool_map::Group;
use crate::pool::open_pool::Pool;
use crate::space::mirror::Versions;
use crate::space::open_space::Space;

/// How often something is put in its place while disks leave and return.
const ROUNDS_MAX: usize = 4;

impl Space {
    /// These blocks lie in their place, and every disk that is here has been flushed since. They leave memory, and the log
    /// with that, where a good copy of each is on disks that were `here` all the time: one that left may have lost them,
    /// and a disk that is the last to have a copy is believed when it is back. Whether others could be put there again.
    fn let_go(&self, placed: &[(u64, u64)], here: &[Rc<DiskRt>]) -> bool {
        let per = self.rt.shape.group_bytes / BLOCK_BYTES;
        let mut again = false;
        let mut group = (u64::MAX, false);
        for &(block, version) in placed {
            if group.0 != block / per {
                group = (block / per, self.stayed_usable((block / per) as usize, here));
                again |= !group.1 && self.group_serves(group.0 as usize);
            }
            if group.1 {
                self.rt.overlay.borrow_mut().remove_upto(block, block + 1, version);
            }
        }
        again
    }

    /// The group has enough good columns on disks that were `here` and did not leave.
    fn stayed_usable(&self, group: usize, here: &[Rc<DiskRt>]) -> bool {
        let map = self.pool.0.map.read();
        let Some(g) = map.group(self.rt.id, group) else { return true };
        let mut stayed = Group::clone(g);
        for c in &mut stayed.columns {
            let disk = self.pool.disk(c.disk);
            c.stale |= !disk.is_some_and(|d| here.iter().any(|h| Rc::ptr_eq(h, &d)));
        }
        self.pool.group_usable(&self.rt.shape, &stayed)
    }
}

impl Pool {
    pub(crate) fn open_spaces(&self) -> Vec<Space> {
        self.0.spaces.borrow().values().map(|rt| Space { pool: self.clone(), rt: rt.clone() }).collect()
    }

    /// Puts everything that is gathered in its place.
    pub(crate) async fn apply_all(&self) -> SpaceResult<()> {
        self.apply_some(u64::MAX).await
    }

    pub(crate) async fn apply_some(&self, bytes: u64) -> SpaceResult<()> {
        let mut result = Ok(());
        for _ in 0..ROUNDS_MAX {
            let (again, applied) = self.apply_round(bytes).await;
            result = applied;
            if !again {
                break;
            }
        }
        result
    }

    /// Whether some of it has to be put in its place once more, because disks returned meanwhile without it.
    async fn apply_round(&self, bytes: u64) -> (bool, SpaceResult<()>) {
        let mut error = None;
        let here: Vec<Rc<DiskRt>> = self.0.disks.borrow().values().filter(|d| d.online.get()).cloned().collect();
        let mut in_place: Vec<(Space, Versions)> = Vec::new();
        for s in self.open_spaces() {
            if s.rt.overlay.borrow().is_empty() {
                continue;
            }
            let placed = Versions::default();
            let r = match s.rt.shape.is_parity() {
                true => s.apply_parity(bytes).await.map(drop),
                false => s.apply_mirror(bytes, &placed).await,
            };
            // Whoever waits for room is of another space than one that is deleted meanwhile.
            let deleted = !self.0.spaces.borrow().contains_key(&s.rt.id);
            error = r.err().filter(|_| !deleted).or(error);
            if !placed.borrow().is_empty() {
                in_place.push((s, placed));
            }
        }
        // Whoever needs only some room goes on beside that flush.
        self.0.unflushed.want();
        if bytes == u64::MAX && !self.settle().await {
            error = error.or(Some(SpaceError::Offline));
        }
        let mut again = false;
        if !in_place.is_empty() {
            error = self.flush_disks().await.err().or(error);
            in_place.iter().for_each(|(s, placed)| again |= s.let_go(&placed.take(), &here));
            if again {
                error = error.or(Some(SpaceError::Offline));
            }
        }
        (again, error.map_or(Ok(()), Err))
    }

    /// Puts everything that the log holds in its place, so that the log can begin anew.
    pub(crate) async fn checkpoint(&self) -> SpaceResult<()> {
        let _ = self.apply_all().await;
        self.commit().await
    }

    /// Puts everything in its place while the caller holds the log: nobody may append to it.
    pub(crate) fn empty_log_alone(self) -> LocalFuture<SpaceResult<()>> {
        Box::pin(async move {
            let _off = self.0.patches.forbid();
            self.checkpoint().await
        })
    }
}
