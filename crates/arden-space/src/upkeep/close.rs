//! Closing a pool.

use crate::base::error::SpaceResult;
use crate::pool::open_pool::Pool;

impl Pool {
    /// Everything is in place and durable: no copy can differ from another.
    fn forget_dirty(&self) {
        let mut map = self.0.map.borrow_mut();
        for space in self.0.spaces.borrow().values().filter(|s| !s.shape.is_parity()) {
            for (gi, rt) in space.groups.all() {
                let Some(g) = map.group_mut(space.id, gi) else { continue };
                let quiet = rt.regions.are_idle() && !rt.regions.any_suspect();
                if quiet && self.is_whole(g) {
                    g.dirty.clear_all();
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
        Ok(())
    }
}
