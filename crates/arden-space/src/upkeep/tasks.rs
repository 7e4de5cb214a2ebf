//! What goes on in the background of an open pool: its loops, and what each does in a round.

use crate::base::error::SpaceResult;
use crate::pool::open_pool::Pool;
use crate::state::trims::Slab;

impl Pool {
    pub(crate) fn start_background(&self) {
        self.start_log_keeper();
        self.start_asking_slow_disks();
        self.start_trimming();
        self.start_looking_at_doubted_rows();
        let me = self.clone();
        self.0.rt.spawn(async move {
            while !me.0.life.is_closed() {
                let wait = me.0.background.woken();
                let _ = me.0.rt.timeout_ns(me.0.cfg.tick_ms * 1_000_000, wait).await;
                if me.0.life.is_closed() {
                    return;
                }
                let _ = me.background_round().await;
            }
        });
        let me = self.clone();
        self.0.rt.spawn(async move {
            while !me.0.life.is_closed() {
                let wait = me.0.background.woken();
                let _ = me.0.rt.timeout_ns(me.0.cfg.tick_ms * 1_000_000, wait).await;
                // Complete stripes are leaving: what is incomplete may yet become complete.
                let streaming = me.0.room.is_streaming();
                if !me.0.life.is_closed() && me.gathered_bytes() > 0 && !streaming {
                    let _ = me.apply_some(me.0.cfg.gather_bytes_max / 2).await;
                }
            }
        });
    }

    /// Empties the log beside its writers.
    fn start_log_keeper(&self) {
        let me = self.clone();
        self.0.rt.spawn(async move {
            while !me.0.life.is_closed() {
                let wait = me.0.journal.filling();
                let _ = me.0.rt.timeout_ns(me.0.cfg.tick_ms * 1_000_000, wait).await;
                if !me.0.life.is_closed() && !me.0.life.is_opening() {
                    let _ = me.empty_log().await;
                }
                me.0.journal.tell_emptied();
            }
        });
    }

    async fn empty_log(&self) -> SpaceResult<()> {
        if self.log_is_filling() {
            self.trim_log().await?;
        }
        if self.log_is_filling() { self.checkpoint().await } else { Ok(()) }
    }

    async fn background_round(&self) -> SpaceResult<()> {
        self.reform_journal_if_short().await?;
        self.resync().await?;
        self.background_moves().await?;
        self.clean().await
    }

    /// Discards slabs that are free on their disks, in the background.
    fn start_trimming(&self) {
        let me = self.clone();
        self.0.rt.spawn(async move {
            while !me.0.life.is_closed() {
                let more = me.0.trims.more();
                let next = me.0.trims.next();
                match next {
                    Some(slab) => me.trim(slab).await,
                    None => _ = me.0.rt.timeout_ns(me.0.cfg.tick_ms * 1_000_000, more).await,
                }
            }
        });
    }

    /// A disk that cannot do this keeps what it has: nobody relies on it.
    async fn trim(&self, (index, slab): Slab) {
        let started = self.0.rt.now_ns();
        {
            let _one = self.no_trim().await;
            let Some(disk) = self.disk(index).filter(|d| d.online.get() && !self.0.life.is_closed()) else { return };
            // It may have been given away since.
            if !self.0.alloc.borrow_mut().claim(index, slab) {
                return;
            }
            let len = self.0.map.read().slab_bytes;
            let _ = disk.discard(self.slab_at(index, slab), len).await;
            self.release_slab(index, slab);
        }
        let _ = self.throttle(started).await;
    }
}
