//! Putting what was gathered in its place, and emptying the log by that.

use arden_block::LocalFuture;

use crate::base::error::SpaceResult;
use crate::pool::open_pool::Pool;
use crate::space::open_space::Space;

impl Pool {
    pub(crate) fn open_spaces(&self) -> Vec<Space> {
        self.0.spaces.borrow().values().map(|rt| Space { pool: self.clone(), rt: rt.clone() }).collect()
    }

    /// Puts everything that is gathered in its place.
    pub(crate) async fn apply_all(&self) -> SpaceResult<()> {
        self.apply_some(u64::MAX).await
    }

    pub(crate) async fn apply_some(&self, bytes: u64) -> SpaceResult<()> {
        let mut error = None;
        for s in self.open_spaces() {
            if s.rt.overlay.borrow().is_empty() {
                continue;
            }
            let r = if s.rt.shape.is_parity() { s.apply_parity(bytes).await } else { s.apply_mirror(bytes).await };
            // Whoever waits for room is of another space than one that is deleted meanwhile.
            let deleted = !self.0.spaces.borrow().contains_key(&s.rt.id);
            error = r.err().filter(|_| !deleted).or(error);
        }
        error.map_or(Ok(()), Err)
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
