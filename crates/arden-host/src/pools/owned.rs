//! The pools of a node of a cluster: opened under an epoch, closed when they are handed over, dropped when they are lost. When
//! that is due is decided elsewhere (`arden-cluster`); nothing else opens a pool of such a node.

use std::sync::{Arc, atomic::Ordering};

use arden_admin::{AdminError, ErrorKind, error::Result, names::key, storage::PoolRecord};
use arden_space::{Ownership, PoolHost, Right, SpaceError, SpaceResult};

use super::{OpenPool, PoolGuard, Pools, Slot, devices, pool_id};

/// The cluster of this node, as far as pools become its own.
pub trait Adopts: Send + Sync {
    /// Whether it has the pool.
    fn has(&self, pool: u128) -> bool;

    /// No other node imports the pool until [`Adopts::end_import`].
    ///
    /// # Errors
    /// Conflict, when another does.
    fn begin_import(&self, pool: u128) -> Result<()>;

    /// Whatever became of it.
    fn end_import(&self, pool: u128);

    /// Makes a pool that is open nowhere the cluster's. `epoch` is the newest that a label of it bears.
    ///
    /// # Errors
    /// Conflict, when it is not; others, when it may be.
    fn adopt(&self, pool: u128, epoch: u64) -> Result<()>;

    /// Closes a pool that this node owns, and takes it out of the cluster.
    ///
    /// # Errors
    /// Conflict, when this node does not own it; failed, when it is not closed in time.
    fn let_go(&self, pool: u128) -> Result<()>;

    /// Waits until a node owns it: this one, if it may.
    ///
    /// # Errors
    /// Failed, when none does in time.
    fn await_owner(&self, pool: u128) -> Result<()>;
}

/// The newest epoch that a label of the pool bears. Opens disks for reading only.
///
/// # Errors
/// Not found, when no disk of the pool is there; invalid, when the record's id is none.
pub fn newest_epoch(record: &PoolRecord) -> Result<u64> {
    let id = pool_id(record)?;
    let newest = devices::scan(&record.devices).into_iter().filter(|f| f.pool_id == id).map(|f| f.epoch).max();
    newest.ok_or_else(|| {
        AdminError::new(
            ErrorKind::NotFound,
            format!("no disk of the pool {:?} was found", record.name),
            "this node has to reach the disks of every pool",
        )
    })
}

impl Pools {
    pub(super) fn record_of(&self, id: u128) -> Option<PoolRecord> {
        self.state.snapshot().pools.values().find(|r| pool_id(r).is_ok_and(|found| found == id)).cloned()
    }

    fn owned(&self, id: u128) -> Option<(String, Arc<OpenPool>)> {
        self.open_pools().into_iter().find(|(_, pool)| pool.id == id)
    }

    /// Opens the pool under an epoch of the cluster; with a guard, those of its disks that were entered with its key. `no_disks` is called
    /// on the pool's thread when none of them answers any more.
    ///
    /// # Errors
    /// Those of [`arden_space::Pool::open_as`]; refused, when the state does not know the pool or it is open already.
    pub fn open_owned(
        self: &Arc<Pools>,
        id: u128,
        ownership: Ownership,
        guard: Option<Arc<PoolGuard>>,
        no_disks: Box<dyn FnOnce() + Send>,
    ) -> SpaceResult<()> {
        self.open_with(id, |record| {
            let pool = self.open_as(record, id, Vec::new(), Right::Owner(ownership), guard)?;
            pool.caller.submit(
                move |p| async move {
                    p.when_all_disks_left(no_disks);
                    Ok(())
                },
                |_| {},
            )?;
            tracing::info!(pool = record.name, epoch = ownership.epoch, "pool open");
            Ok(pool)
        })
    }

    /// `open` may take long, and other pools are opened and closed meanwhile. This one is not: its ownership does one after the other.
    fn open_with(
        self: &Arc<Pools>,
        id: u128,
        open: impl FnOnce(&PoolRecord) -> SpaceResult<Arc<OpenPool>>,
    ) -> SpaceResult<()> {
        let closed = || {
            let unknown = || SpaceError::Refused(format!("the state does not know the pool {id:032x}"));
            // Of a pool that was just made another node may have heard before of its record.
            let read = || self.state.refreshed().ok().and_then(|_| self.record_of(id));
            let record = self.record_of(id).or_else(read).ok_or_else(unknown)?;
            match self.owned(id) {
                Some(_) => Err(SpaceError::Refused(format!("pool {} is open already", record.name))),
                None => Ok(record),
            }
        };
        let pool = open(&closed()?)?;
        let _one = self.changing.lock();
        if self.stopping.load(Ordering::SeqCst) {
            pool.close().map_err(|e| SpaceError::Refused(e.to_string()))?;
            return Err(SpaceError::Closed);
        }
        self.keep(&closed()?, pool);
        Ok(())
    }

    /// Ends exports, makes everything durable and closes the pool. Its spaces are not in use any more.
    ///
    /// # Errors
    /// That of closing: commands may have failed.
    pub fn close_owned(&self, id: u128) -> Result<()> {
        let Some((name, pool)) = self.take_owned(id) else { return Ok(()) };
        pool.close()?;
        tracing::info!(pool = name, "pool closed");
        Ok(())
    }

    /// Ends everything of the pool on this node. Nothing more is written: not even what is in memory. `refused` is called when nothing more
    /// is begun; then this waits for what is on its way to the disks, for which a disk that hangs may be long.
    pub fn drop_owned(&self, id: u128, refused: impl FnOnce()) {
        let Some((name, pool)) = self.take_owned(id) else { return refused() };
        // The pool's thread ends first: an export that stops may not write any more.
        let host = pool.host.lock().take();
        host.iter().for_each(PoolHost::refuse);
        refused();
        drop(host);
        let exports = std::mem::take(&mut *pool.exports.lock());
        exports.into_values().for_each(arden_space::nbd::Export::stop);
        tracing::warn!(pool = name, "pool dropped");
    }

    fn take_owned(&self, id: u128) -> Option<(String, Arc<OpenPool>)> {
        let _one = self.changing.lock();
        let (name, pool) = self.owned(id)?;
        let reason = "this node does not own it".to_string();
        self.pools.lock().insert(key(&name), Slot { open: None, reason });
        self.jobs.lock().retain(|_, job| key(&job.pool) != key(&name));
        Some((name, pool))
    }

    /// Has pools that are made or imported here become those of the cluster.
    pub fn set_cluster(&self, cluster: Arc<dyn Adopts>) {
        _ = self.cluster.set(cluster);
    }

    /// Whether this daemon is a node of a cluster.
    pub fn is_member(&self) -> bool {
        self.member
    }

    /// The name of the pool, as the state knows it.
    pub fn name_of(&self, id: u128) -> Option<String> {
        self.record_of(id).map(|r| r.name)
    }

    /// As [`newest_epoch`], of a pool of the state.
    ///
    /// # Errors
    /// As [`newest_epoch`].
    pub fn newest_epoch_of(&self, id: u128) -> Result<u64> {
        let record = self.record_of(id).ok_or_else(|| AdminError::not_found("pool", &format!("{id:032x}")))?;
        newest_epoch(&record)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{atomic::AtomicBool, mpsc::channel};

    use super::*;
    use crate::pools::jobs::tests::Bench;

    #[test]
    fn who_drops_a_pool_whose_disks_hang_goes_on_before_they_answer() {
        let bench = Bench::new("dropped");
        bench.pool("one");
        let pools = &bench.pools;
        let id = pool_id(&pools.record("one").unwrap()).unwrap();
        let caller = pools.owned(id).unwrap().1.caller.clone();
        // As a disk that does not answer.
        let (answer, hangs) = channel::<()>();
        let hang = move |_| async move {
            let _ = hangs.recv();
            Ok(())
        };
        caller.submit(hang, |_| {}).unwrap();
        let (mut told, refused) = (Some(answer), AtomicBool::new(false));
        pools.drop_owned(id, || {
            refused.store(caller.submit(|_| async { Ok(()) }, |_| {}).is_err(), Ordering::Relaxed);
            drop(told.take());
        });
        assert!(refused.into_inner(), "something was begun");
        assert!(pools.owned(id).is_none());
    }

    #[test]
    fn a_pool_that_takes_long_to_open_keeps_no_other_from_being_closed() {
        let bench = Bench::new("owned");
        ["one", "two"].iter().for_each(|name| bench.pool(name));
        let pools = &bench.pools;
        let id = |name: &str| pool_id(&pools.record(name).unwrap()).unwrap();
        let (one, two) = (id("one"), id("two"));
        pools.close_owned(one).unwrap();
        pools
            .open_with(one, |record| {
                // A failover of the other pool, while this one replays its log.
                assert!(pools.changing.try_lock().is_some());
                pools.close_owned(two).unwrap();
                pools.open_as(record, one, Vec::new(), Right::Alone, None)
            })
            .unwrap();
        assert!(pools.owned(one).is_some() && pools.owned(two).is_none());
        let again = pools.open_with(one, |_| unreachable!("it is open"));
        assert!(again.unwrap_err().to_string().contains("open already"));
    }
}
