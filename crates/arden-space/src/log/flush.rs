//! The flush of a pool: makes moved stripes and gathered writes durable through the log.

use crate::base::error::SpaceResult;
use crate::pool::open_pool::Pool;
use crate::state::journal::Item;

impl Pool {
    /// Makes everything written so far durable. Callers that come while a flush runs share
    /// the next one.
    pub async fn flush(&self) -> SpaceResult<()> {
        let p = &self.0;
        self.alive()?;
        let Some(round) = p.flushes.next().await else { return Ok(()) };
        let asked = round.asked();
        loop {
            self.alive()?;
            let skipped = p.journal.skipped();
            let mut items: Vec<Item> = Vec::new();
            for s in p.spaces.borrow().values() {
                let blocks = s.overlay.borrow().unlogged();
                items.extend(blocks.into_iter().map(|block| Item::Block { space: s.id, block }));
            }
            let flip = p.flips.next_id();
            self.flush_disks().await?;
            self.wait_departures_durable().await?;
            items.extend(p.flips.ids_before(flip).into_iter().map(|id| Item::Flip { id }));
            if !items.is_empty() {
                self.journal_append(items).await?;
                self.retire_flips(flip);
            }
            if p.journal.skipped() == skipped {
                break;
            }
        }
        round.done(asked);
        Ok(())
    }
}
