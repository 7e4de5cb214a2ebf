//! Which disks the log lies on.

use crate::map::pool_map::{DiskState, JournalRec};
use crate::pool::open_pool::Pool;
use crate::state::map::MapChange;

impl Pool {
    /// A fresh log on the fastest disks, those that stay first, as many copies as failures are to be survived and one.
    pub(crate) fn switch_journal(&self, new: JournalRec) {
        self.0.journal.reset(&new);
        self.0.map.apply(MapChange::Log(new));
    }

    pub(crate) fn choose_journal(&self, without: Option<u16>) -> JournalRec {
        let map = self.0.map.read();
        let want = map.tolerance() + 1;
        let disks = self.0.disks.borrow();
        let mut candidates: Vec<(bool, u8, u16)> = map
            .disks
            .iter()
            .filter(|(i, d)| {
                matches!(d.state, DiskState::Active | DiskState::Retiring)
                    && disks.get(i).is_some_and(|d| d.online.get())
                    && without != Some(**i)
            })
            .map(|(&i, d)| (d.state == DiskState::Retiring, u8::MAX - d.media, i))
            .collect();
        candidates.sort_unstable();
        let chosen: Vec<u16> = candidates.iter().take(want).map(|c| c.2).collect();
        let size = chosen.iter().filter_map(|d| disks.get(d)).map(|d| d.areas.journal_bytes).min().unwrap_or(0);
        JournalRec { log_id: self.0.rt.random_u64(), disks: chosen, size_bytes: size, start_pos: 0, start_seq: 1 }
    }
}
