//! Moving the log to other disks, when some of its own have gone or more copies are wanted. The
//! log begins anew there, so nothing in the old one may be needed any more. Owns the stop of
//! the writers that this takes at its end.

use crate::base::error::{SpaceError, SpaceResult};
use crate::map::pool_map::DiskState;
use crate::pool::open_pool::Pool;

/// How often it is looked whether the last patch has ended.
const PATCHES_END_NS: u64 = 100_000;

/// While it lives nothing new is gathered in memory.
struct Stop(Pool);

impl Stop {
    fn new(pool: &Pool) -> Stop {
        pool.0.journal.stop();
        Stop(pool.clone())
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.0.journal.go_on();
    }
}

impl Pool {
    /// Replaces journal disks that have gone, when others could serve.
    pub(crate) async fn reform_journal_if_short(&self) -> SpaceResult<()> {
        let (have, want, can) = {
            let map = self.0.map.read();
            let active = |d: &DiskState| matches!(d, DiskState::Active | DiskState::Retiring);
            let can = map.disks.iter().filter(|(i, d)| active(&d.state) && self.online(**i)).count();
            (self.0.journal.state().disks.len(), map.tolerance() + 1, can)
        };
        if have >= want.min(can) {
            return Ok(());
        }
        self.reform_journal(None).await.map(|_| ())
    }

    /// Takes the log off a disk. The others get a whole new one: with one copy less the old log would lie on fewer
    /// disks than may fail at once, and what nobody noticed yet may have befallen those.
    pub(crate) async fn leave_journal(&self, disk: u16) -> SpaceResult<()> {
        if self.choose_journal(Some(disk)).disks.is_empty() {
            return Err(SpaceError::Refused(format!("disk {disk} is the last one for the log; add a disk first")));
        }
        if self.reform_journal(Some(disk)).await? {
            return Ok(());
        }
        Err(SpaceError::Refused(format!(
            "disk {disk} has a copy of the log, and either the log holds what waits for missing disks or no other disk can \
             take it; bring them back, then remove it again"
        )))
    }

    /// Starts a new log on other disks, and not on the one to do `without`. The old one must
    /// hold nothing that is still needed (false when it does); nothing is appended meanwhile.
    /// Most of it is put in its place beside the writers. Those who write one block again and
    /// again would keep the rest needed for ever, so they wait for the end: one more batch and
    /// what it holds.
    async fn reform_journal(&self, without: Option<u16>) -> SpaceResult<bool> {
        let _off = self.0.patches.forbid();
        while self.0.patches.is_under_way() {
            // They wait for the log, and it for them.
            self.alive()?;
            self.0.rt.sleep_ns(PATCHES_END_NS).await;
        }
        let _guard = self.0.journal.lock().await;
        let applied = self.apply_all().await;
        self.commit().await?;
        if applied.is_err() {
            // A group without enough disks: only the old log has what belongs there.
            return Ok(false);
        }
        let _stop = Stop::new(self);
        self.write_queue().await?;
        self.checkpoint().await?;
        let gathered = self.0.spaces.borrow().values().any(|s| s.overlay.borrow().oldest_needed().is_some());
        if gathered || self.0.patches.oldest_log().is_some() {
            return Ok(false);
        }
        let new = self.choose_journal(without);
        if new.disks.is_empty() {
            // The last disk that could have had it left meanwhile.
            return Ok(false);
        }
        let id = new.log_id;
        self.0.journal.begin_switch(self.0.map.read().journal.clone());
        self.switch_journal(new);
        self.0.flips.forget_superseded();
        let committed = self.commit().await;
        self.0.journal.end_switch();
        committed?;
        if self.0.map.read().journal.log_id != id {
            return Ok(false);
        }
        // Sequence numbers of the old log mean nothing in the new one.
        for s in self.0.spaces.borrow().values() {
            s.logged.log_is_new();
            s.groups.all().iter().for_each(|(_, g)| g.slots.log_is_new());
        }
        Ok(true)
    }
}
