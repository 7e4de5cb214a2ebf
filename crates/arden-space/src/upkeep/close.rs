//! Closing a pool.

use crate::base::error::SpaceResult;
use crate::pool::open_pool::Pool;
use crate::state::map::GroupChange;

impl Pool {
    /// Everything is in place and durable: no copy can differ from another.
    fn forget_dirty(&self) {
        for space in self.0.spaces.borrow().values().filter(|s| !s.shape.is_parity()) {
            for (gi, rt) in space.groups.all() {
                let whole = self.0.map.read().group(space.id, gi).is_some_and(|g| self.is_whole(g));
                let quiet = rt.regions.are_idle() && !rt.regions.any_suspect();
                if quiet && whole {
                    self.0.map.apply_to(space.id, gi, &GroupChange::AllClean);
                    rt.regions.forget_marks();
                }
            }
        }
    }

    /// Makes everything durable and stops; the handle and its spaces answer no more.
    pub async fn close(&self) -> SpaceResult<()> {
        self.flush().await?;
        self.checkpoint().await?;
        self.forget_dirty();
        self.commit().await?;
        // Whoever opens the disks next finds nothing under way.
        let _one = self.no_trim().await;
        self.0.life.close();
        self.0.background.wake();
        self.wait_for_writes().await;
        Ok(())
    }

    /// Other rounds may be putting something in its place once more, that has left memory meanwhile or stays in the log for
    /// its disks: they must not come after whoever opens the disks next.
    async fn wait_for_writes(&self) {
        for s in self.open_spaces() {
            drop(s.rt.locks.lock(0, u64::MAX).await);
            drop(s.rt.stripe_locks.lock(0, u64::MAX).await);
        }
    }
}
