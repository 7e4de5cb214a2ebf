//! Rows of parity that were changed by a difference are looked at as a whole, soon and beside clients: the parity of one that does not fit is wrong,
//! or one of its blocks is. Whoever verifies what he reads is told which rows those are.

use std::time::Duration;

use arden_block::sync::join_all;
use arden_block::{BLOCK_BYTES, LocalFuture};

use crate::base::error::SpaceResult;
use crate::pool::open_pool::Pool;
use crate::space::open_space::Space;
use crate::upkeep::scrub::consistent;

/// Rows that are read at once.
const AT_ONCE: usize = 8;

impl Pool {
    pub(crate) fn start_looking_at_doubted_rows(&self) {
        let me = self.clone();
        self.0.rt.spawn(async move {
            while !me.0.life.is_closed() {
                me.0.rt.sleep_ns(me.0.cfg.tick_ms * 1_000_000).await;
                let ids: Vec<u32> = me.0.spaces.borrow().keys().copied().collect();
                for space in ids.into_iter().filter_map(|id| me.space(id).ok()) {
                    let _ = space.look_beside_clients().await;
                }
            }
        });
    }
}

impl Space {
    /// While clients are active only where there will soon be no room to remember more.
    async fn look_beside_clients(&self) -> SpaceResult<()> {
        let pool = &self.pool;
        let mut from = 0;
        let is_open = || !pool.0.life.is_closed() && !pool.0.life.is_opening();
        while is_open() && (self.rt.doubts.are_many() || !pool.is_busy()) {
            let started = pool.0.rt.now_ns();
            if !self.look_at_some(&mut from).await {
                break;
            }
            pool.throttle(started).await?;
        }
        let forgotten = self.rt.doubts.take_forgotten();
        if forgotten > 0 {
            pool.event(format!("{forgotten} changed rows of parity of space {} wait for a scrub", self.rt.id));
        }
        Ok(())
    }

    /// False at the end of the round. Where nothing can be said of some, as the group lacks a disk, the others of the group are left out.
    async fn look_at_some(&self, from: &mut u64) -> bool {
        let rows = self.rt.doubts.next(from, AT_ONCE);
        let look = |&row: &u64| -> LocalFuture<()> {
            let me = self.clone();
            Box::pin(async move { me.look_at_row(row).await })
        };
        join_all(rows.iter().map(look).collect()).await;
        if let Some(last) = rows.last().filter(|_| rows.iter().all(|row| self.rt.doubts.is_doubted(*row))) {
            let group_blocks = self.rt.shape.group_bytes / BLOCK_BYTES;
            *from = (last / group_blocks + 1) * group_blocks;
        }
        !rows.is_empty()
    }

    /// What cannot be read now is looked at later.
    async fn look_at_row(&self, row: u64) {
        let at = row * BLOCK_BYTES;
        let (group, stripe) = self.stripe_at(at);
        if self.pool.0.map.read().group(self.rt.id, group).is_some_and(|g| !self.pool.is_whole(g)) {
            return;
        }
        let (first, end) = self.stripe_blocks(group, stripe);
        let _guard = self.rt.stripe_locks.lock(first, end).await;
        if self.slot_of(group, stripe).is_none() {
            return self.rt.doubts.fits(row);
        }
        let Some(columns) = self.read_row(at, BLOCK_BYTES as usize).await else { return };
        if consistent(&columns, self.rt.shape.data_columns(), BLOCK_BYTES as usize) {
            self.rt.doubts.fits(row);
        } else {
            self.rt.doubts.is_wrong(row);
        }
    }

    /// Rows that were changed and whose parity does not fit since, each as the places of its data blocks. For so long those are looked
    /// at first that nobody had time for yet, when all that waits in memory has been put in its place.
    pub async fn doubted_parity(&self, patience: Duration) -> SpaceResult<Vec<Vec<u64>>> {
        self.pool.alive()?;
        if !self.rt.shape.is_parity() {
            return Ok(Vec::new());
        }
        let rt = &self.pool.0.rt;
        let until = rt.now_ns().saturating_add(patience.as_nanos() as u64);
        self.rt.doubts.look_again();
        if !patience.is_zero() {
            // What cannot leave memory now waits for its disks.
            let _ = self.apply_parity(u64::MAX).await;
            self.pool.settle().await;
        }
        let mut from = 0;
        while rt.now_ns() < until && self.look_at_some(&mut from).await {}
        let (unit, data) = (self.rt.shape.interleave, self.rt.shape.data_columns() as u64);
        let places = |row: u64| (0..data).map(|i| row * BLOCK_BYTES + i * unit).collect();
        Ok(self.rt.doubts.take_wrong().into_iter().map(places).collect())
    }
}
