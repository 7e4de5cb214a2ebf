//! Fences of the kinds `scsi` and `nvme`: what the shell knows of the keys of the present ownership on a pool's disks, and what it asks of them. The
//! work for one pool is done in its order, on its thread.

use std::sync::Arc;

use arden_cluster::{Epoch, Event, Holder, NodeId, PoolId};

use super::{Input, Shell, claiming::claim_of};
use crate::{
    agent::{Fence, Reserve},
    gate::PoolGate,
};

/// An ownership whose key is registered with the pool's disks.
pub struct Reserved {
    pub me: Holder,
    pub reserve: Reserve,
    /// To be called when a disk refuses a command with a reservation conflict.
    pub refused: Box<dyn Fn() + Send + Sync>,
    /// To be called with the name by which a disk knows this machine, before the disk is written to. Blocks; says why the name is not this node's.
    pub claim: Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>,
}

/// A holder that is to be kept from disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    pub holder: Holder,
    /// Another may have begun to: its key may be gone from a disk while its commands are not.
    pub contested: bool,
}

/// The present ownership of a pool and its keys on disks.
#[derive(Debug, Clone, Default)]
pub(super) struct OnDisks {
    epoch: Epoch,
    /// Holders that were fenced for it there.
    fenced: Vec<Victim>,
    /// Its key is on all disks that are reached. None: nothing was asked for yet; of none: it needs none.
    pub(super) registered: Option<Option<Reserve>>,
}

impl Shell {
    /// What is known of the keys of this ownership; what was known of another one is forgotten.
    /// None: it is over.
    pub(super) fn on_disks(&mut self, pool: PoolId, epoch: Epoch) -> Option<&mut OnDisks> {
        let known = self.on_disks.entry(pool).or_default();
        if known.epoch < epoch {
            *known = OnDisks { epoch, ..OnDisks::default() };
        }
        (known.epoch == epoch).then_some(known)
    }

    pub(super) fn note_fenced(&mut self, pool: PoolId, epoch: Epoch, victim: Victim) {
        if let Some(known) = self.on_disks(pool, epoch) {
            known.fenced.push(victim);
        }
    }

    fn me(&self, epoch: Epoch) -> Holder {
        Holder { node: NodeId(self.parts.node), epoch }
    }

    pub(super) fn fence_of(&self, pool: PoolId) -> Result<Fence, String> {
        let seen = self.parts.seen.lock();
        let config = seen.pools.get(&pool).map(|p| p.keys.config.clone()).unwrap_or_default();
        Fence::parse(&config.fence, &config.fence_options).map_err(|e| e.to_string())
    }

    /// An agent cuts a whole node off: then there are no keys on the disks.
    pub(super) fn register(&mut self, pool: PoolId, epoch: Epoch) {
        let inputs = self.send_to();
        let Some(reserve) = self.fence_of(pool).ok().and_then(|f| f.on_disks()) else {
            if let Some(known) = self.on_disks(pool, epoch) {
                known.registered = Some(None);
            }
            let _ = inputs.send(Input::Node(Event::Registered { pool, epoch, keys: Vec::new() }));
            return;
        };
        let fenced = self.on_disks(pool, epoch).map(|k| k.fenced.clone()).unwrap_or_default();
        let (hands, me, claims) = (self.parts.hands.clone(), self.me(epoch), self.claims_for(pool, reserve, epoch));
        self.work(pool, epoch, move || {
            let result = claims().and_then(|()| hands.register_disks(pool, reserve, me, &fenced));
            let _ = inputs.send(Input::Registered { pool, epoch, reserve, result });
        });
    }

    /// On the disks. A holder of this node too: its key may have come by another path.
    pub(super) fn fence_on_disks(&mut self, pool: PoolId, epoch: Epoch, reserve: Reserve, victim: Victim) {
        let (hands, inputs, me) = (self.parts.hands.clone(), self.send_to(), self.me(epoch));
        let claims = self.claims_for(pool, reserve, epoch);
        self.work(pool, epoch, move || {
            let result = claims().and_then(|()| hands.fence_disks(pool, reserve, me, victim));
            let _ = inputs.send(Input::Fence { pool, epoch, victim, result });
        });
    }

    /// For the import: an ownership whose key is on the disks. After a conflict no client is answered, as another node has the pool.
    pub(super) fn reserved(&mut self, pool: PoolId, epoch: Epoch, gate: Arc<PoolGate>) -> Option<Reserved> {
        let reserve = self.on_disks(pool, epoch).and_then(|k| k.registered).flatten()?;
        let tell = self.send_to();
        let refused = move || {
            gate.close();
            let _ = tell.send(Input::Refused { pool, epoch });
        };
        let claim = claim_of(&self.parts.claims);
        Some(Reserved { me: self.me(epoch), reserve, refused: Box::new(refused), claim })
    }
}
