//! How background work stands back for clients, and how much of it is under way at once.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use arden_block::LocalFuture;
use arden_block::sync::join_all;

use crate::base::error::{SpaceError, SpaceResult};
use crate::pool::open_pool::Pool;

/// Parts of a repair that are under way at once, and the memory that they may take.
const LANES_MAX: u64 = 16;
const LANES_BYTES_MAX: u64 = 16 << 20;
pub(crate) type Work = Rc<dyn Fn(usize) -> LocalFuture<SpaceResult<bool>>>;

impl Pool {
    /// Lets foreground I/O pass: while clients are active, background work takes at most
    /// about a quarter of the time.
    pub(crate) async fn throttle(&self, started_ns: u64) -> SpaceResult<()> {
        if self.is_busy() {
            let took = self.0.rt.now_ns() - started_ns;
            self.0.rt.sleep_ns(took * 3).await;
        }
        while self.0.background.is_paused() && !self.0.life.is_closed() {
            self.0.rt.sleep_ns(self.0.cfg.tick_ms * 1_000_000).await;
        }
        if self.0.background.is_cancelled() { Err(SpaceError::Cancelled) } else { Ok(()) }
    }

    /// Clients are active.
    pub(crate) fn is_busy(&self) -> bool {
        let now = self.0.rt.now_ns();
        if self.0.views.take_used() {
            self.0.background.client_at(now);
        }
        self.0.background.is_busy(now, self.0.cfg.busy_ms)
    }

    /// Does `work` for every part, in order, until one fails. While no client is active several
    /// are under way at once, so that the disks that are read and the one that is written all
    /// stream; else one at a time. `work` says whether there was anything to do.
    pub(crate) async fn in_lanes(&self, parts: Vec<usize>, part_bytes: u64, work: Work) -> SpaceResult<()> {
        let parts = Rc::new(RefCell::new(parts.into_iter()));
        let failed = Rc::new(Cell::new(false));
        let mut lanes: Vec<LocalFuture<SpaceResult<()>>> = Vec::new();
        for lane in 0..(LANES_BYTES_MAX / part_bytes).clamp(1, LANES_MAX) {
            let (me, parts, failed, work) = (self.clone(), parts.clone(), failed.clone(), work.clone());
            lanes.push(Box::pin(async move {
                while !failed.get() {
                    if lane > 0 && me.is_busy() {
                        me.0.rt.sleep_ns(me.0.cfg.busy_ms * 1_000_000).await;
                    } else {
                        let next = parts.borrow_mut().next();
                        let Some(part) = next else { break };
                        let started = me.0.rt.now_ns();
                        let done = match work(part).await {
                            Ok(true) => me.throttle(started).await,
                            other => other.map(|_| ()),
                        };
                        if done.is_err() {
                            failed.set(true);
                            return done;
                        }
                    }
                    if lane > 0 && parts.borrow().len() == 0 {
                        break;
                    }
                }
                Ok(())
            }));
        }
        join_all(lanes).await.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }

    /// Stops and restarts long background work.
    pub fn set_paused(&self, paused: bool) {
        self.0.background.set_paused(paused);
    }
}
