//! The pools that a cluster has this daemon own: opened, shared, handed over and dropped. Joins the storage manager, the volumes and
//! the SMB server; decides nothing.

use std::{net::IpAddr, sync::Arc};

use arden_admin::error;
use arden_cluster::{Epoch, Holder, ImportError, NodeId, PoolId};
use arden_coordinate::{ClusterApi, Hands, Member, Opening, PoolGate, Reserve, Reserved, Victim};
use arden_host::{Adopts, DiskKey, DiskProtocol, DiskVictim, PoolGuard, Pools, Volumes};
use arden_smb::wire::Target;
use arden_space::{Ownership, SpaceError};

use crate::{addresses::Addresses, server::SmbControl};

/// This daemon's storage and server, as the cluster uses them.
pub struct Owned {
    pub pools: Arc<Pools>,
    pub volumes: Arc<Volumes>,
    pub control: Arc<SmbControl>,
    /// The floating addresses of pools that this node owns.
    pub addresses: Arc<Addresses>,
    /// The cluster's id, which labels of its pools have.
    pub cluster: u128,
    /// What stands for the cluster in keys on disks.
    pub tag: u16,
}

fn protocol(reserve: Reserve) -> DiskProtocol {
    match reserve {
        Reserve::Scsi => DiskProtocol::Scsi,
        Reserve::Nvme { volatile } => DiskProtocol::Nvme { volatile },
    }
}

impl Owned {
    fn key(&self, holder: Holder) -> Result<DiskKey, String> {
        let key = DiskKey::new(self.tag, holder.node.0, holder.epoch.0);
        key.ok_or_else(|| format!("no key can name the epoch {}", holder.epoch.0))
    }

    fn victim(&self, victim: Victim) -> Result<DiskVictim, String> {
        Ok(DiskVictim { key: self.key(victim.holder)?, contested: victim.contested })
    }

    /// Ends the connections at addresses of the pool, and takes those away. In this order: without the address a client would not be
    /// told that its connection has ended, and wait for an answer.
    fn leave_addresses(&self, pool: PoolId, addresses: &[IpAddr]) {
        self.control.end_connections_at(addresses);
        self.addresses.leave(pool.0);
    }
}

/// The gate of a pool, as the SMB server asks it.
struct ShareGate {
    pool: PoolId,
    gate: Arc<PoolGate>,
}

impl arden_smb::Gate for ShareGate {
    fn may_start(&self) -> bool {
        self.gate.may_start()
    }
    fn may_answer(&self) -> bool {
        self.gate.may_answer()
    }
    fn target(&self) -> Option<Target> {
        Some(Target { pool: self.pool.0, epoch: self.gate.epoch() })
    }
}

impl Hands for Owned {
    fn import(&self, pool: PoolId, opening: Opening) -> Result<(), (ImportError, String)> {
        let (epoch, written) = (opening.epoch.0, opening.written.0);
        let ownership = Ownership { epoch, written, cluster: self.cluster };
        let guard = |r: Reserved| Ok(PoolGuard::new(self.key(r.me)?, protocol(r.reserve), r.refused, r.claim));
        let guard = opening.reserved.map(guard).transpose();
        let guard = guard.map_err(|why: String| (ImportError::Other, why))?;
        self.pools.open_owned(pool.0, ownership, guard, opening.no_disks).map_err(|e| {
            let why = match e {
                SpaceError::LaterEpoch(label) => ImportError::LaterEpoch(Epoch(label)),
                _ => ImportError::Other,
            };
            (why, format!("the pool cannot be opened: {e}"))
        })
    }

    fn fence_disks(&self, pool: PoolId, reserve: Reserve, me: Holder, victim: Victim) -> Result<(), String> {
        self.pools.fence_disks(pool.0, protocol(reserve), self.key(me)?, self.victim(victim)?)
    }

    fn register_disks(
        &self,
        pool: PoolId,
        reserve: Reserve,
        me: Holder,
        fenced: &[Victim],
    ) -> Result<Vec<Holder>, String> {
        let fenced = fenced.iter().map(|v| self.victim(*v)).collect::<Result<Vec<DiskVictim>, String>>()?;
        let others = self.pools.register_disks(pool.0, protocol(reserve), self.key(me)?, &fenced)?;
        Ok(others.iter().map(|k| Holder { node: NodeId(k.node()), epoch: Epoch(k.epoch()) }).collect())
    }

    fn check_disks(&self, pool: PoolId, reserve: Reserve) -> Result<(), String> {
        self.pools.check_reservations(pool.0, protocol(reserve))
    }

    fn names_at_disks(&self, pool: PoolId, reserve: Reserve) -> Result<Vec<String>, String> {
        self.pools.names_at_disks(pool.0, protocol(reserve))
    }

    fn serve(&self, pool: PoolId, gate: &Arc<PoolGate>) {
        self.control.serve_pool(pool.0, Arc::new(ShareGate { pool, gate: gate.clone() }));
        // Clients find its shares served at the address.
        let left = gate.clone();
        self.addresses.serve(pool.0, Arc::new(move || left.remaining()));
        // Beside what may come next for this pool, which is the end of the ownership at times.
        let volumes = self.volumes.clone();
        let run = move || volumes.checkpoint_of_pool(pool.0);
        if let Err(e) = std::thread::Builder::new().name("arden-checkpoint".into()).spawn(run) {
            tracing::warn!("no thread for a checkpoint: {e}");
        }
    }

    fn close(&self, pool: PoolId) -> bool {
        let addresses = self.addresses.begin_to_leave(pool.0);
        self.control.keep_durable(pool.0);
        // The volumes first: what closes opens afterwards finds them closed, and changes nothing of what was kept.
        let (mut volumes, closed) = self.volumes.close_of_pool(pool.0);
        let closed = closed.and_then(|()| self.pools.close_owned(pool.0));
        if let Err(e) = &closed {
            tracing::error!("a pool was not closed cleanly: {e}");
            self.pools.drop_owned(pool.0, || {});
        }
        // One that was opened meanwhile is of no use without the pool.
        volumes.extend(self.volumes.close_of_pool(pool.0).0);
        self.control.leave_pool(pool.0, &volumes);
        self.leave_addresses(pool, &addresses);
        closed.is_ok()
    }

    fn stop(&self, pool: PoolId) {
        // The pool first: from then on nothing can be written. Clients go to the next owner before disks have answered that hang.
        self.pools.drop_owned(pool.0, || self.control.end_clients(pool.0));
        let addresses = self.addresses.begin_to_leave(pool.0);
        let (volumes, _) = self.volumes.close_of_pool(pool.0);
        self.control.leave_pool(pool.0, &volumes);
        self.leave_addresses(pool, &addresses);
    }

    fn newest_epoch(&self, pool: PoolId) -> Result<Epoch, String> {
        self.pools.newest_epoch_of(pool.0).map(Epoch).map_err(|e| e.to_string())
    }
}

/// The cluster, as pools that are made or imported at this node become its own.
pub struct ClusterOfPools(pub Arc<ClusterApi>);

impl Adopts for ClusterOfPools {
    fn has(&self, pool: u128) -> bool {
        self.0.member.has_pool(PoolId(pool))
    }

    fn begin_import(&self, pool: u128) -> error::Result<()> {
        self.0.begin_import(PoolId(pool))
    }

    fn end_import(&self, pool: u128) {
        self.0.end_import(PoolId(pool));
    }

    fn adopt(&self, pool: u128, epoch: u64) -> error::Result<()> {
        self.0.adopt(PoolId(pool), Epoch(epoch))
    }

    fn let_go(&self, pool: u128) -> error::Result<()> {
        self.0.let_go(PoolId(pool))
    }

    fn await_owner(&self, pool: u128) -> error::Result<()> {
        self.0.await_owner(PoolId(pool))
    }
}

/// Clients of shares that have another owner by now come again, until the daemon stops.
pub fn follow_owners(control: &Arc<SmbControl>, member: &Member) {
    let (control, mut changes) = (Arc::downgrade(control), member.owners_changed());
    tokio::spawn(async move {
        while changes.changed().await.is_ok() {
            let Some(control) = control.upgrade() else { return };
            let _ = tokio::task::spawn_blocking(move || control.places_changed()).await;
        }
    });
}
