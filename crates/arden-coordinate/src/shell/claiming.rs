//! Claims of the names by which the disks of pools know this machine (`claims`). A pool with a fence on its disks is not acquired before the
//! node has them: a name that is another node's too would let that one write by this one's key. They are looked at once more before a key is
//! registered, as disks may have been connected by another name meanwhile.

use std::{sync::Arc, thread, time::Duration};

use arden_admin::{AdminError, ErrorKind};
use arden_cluster::{Epoch, Event, PoolId};

use super::{Hands, Input, Shell};
use crate::{
    agent::{Fence, Reserve},
    claims::Claims,
    keys::PoolKeys,
};

/// A claim that was not made is tried again after this time: the disks may be connected anew.
const RETRY: Duration = Duration::from_secs(2);

/// How far this node is with the names for one pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claiming {
    reserve: Reserve,
    made: bool,
    /// Why not.
    reason: String,
}

fn reserve_of(keys: &PoolKeys) -> Option<Reserve> {
    Fence::parse(&keys.config.fence, &keys.config.fence_options).ok()?.on_disks()
}

fn text(e: &AdminError) -> String {
    format!("{}: {}", e.error, e.hint)
}

/// Claims one more name.
pub(super) fn claim_of(claims: &Arc<Claims>) -> Box<dyn Fn(&str) -> Result<(), String> + Send + Sync> {
    let claims = claims.clone();
    Box::new(move |name| claims.claim(&[name.to_string()]).map_err(|e| text(&e)))
}

/// Claims the names by which the pool's disks know this machine. An error says whether one is another's.
fn claim(hands: &Arc<dyn Hands>, claims: &Claims, pool: PoolId, reserve: Reserve) -> Result<(), (bool, String)> {
    let names = hands.names_at_disks(pool, reserve).map_err(|why| (false, why))?;
    claims.claim(&names).map_err(|e| (e.kind == ErrorKind::Conflict, text(&e)))
}

impl Shell {
    /// Begins to claim the names, once for each fence. Until then the pool is not acquired.
    pub(super) fn claim_names(&mut self, pool: PoolId, keys: &PoolKeys) {
        let Some(reserve) = reserve_of(keys) else {
            self.claiming.remove(&pool);
            return self.node.set_may_own(pool, true);
        };
        if self.claiming.get(&pool).is_some_and(|c| c.reserve == reserve) {
            return;
        }
        self.claiming.insert(pool, Claiming { reserve, made: false, reason: String::new() });
        self.node.set_may_own(pool, false);
        self.try_to_claim(pool, reserve, Duration::ZERO);
    }

    fn try_to_claim(&mut self, pool: PoolId, reserve: Reserve, after: Duration) {
        let (claims, hands, inputs) = (self.parts.claims.clone(), self.parts.hands.clone(), self.send_to());
        let attempt = move || {
            thread::sleep(after);
            let result = claim(&hands, &claims, pool, reserve).map_err(|(_, why)| why);
            let _ = inputs.send(Input::Claimed { pool, reserve, result, epoch: None });
        };
        if let Err(e) = thread::Builder::new().name("arden-claim".into()).spawn(attempt) {
            tracing::error!("no thread for the names at disks: {e}");
            self.claiming.remove(&pool);
        }
    }

    /// For the thread of the pool, right before a key is registered. Ends the ownership where a name is another's.
    pub(super) fn claims_for(
        &self,
        pool: PoolId,
        reserve: Reserve,
        epoch: Epoch,
    ) -> impl FnOnce() -> Result<(), String> + use<> {
        let (claims, hands, inputs) = (self.parts.claims.clone(), self.parts.hands.clone(), self.send_to());
        move || {
            claim(&hands, &claims, pool, reserve).map_err(|(is_anothers, why)| {
                if is_anothers {
                    let result = Err(why.clone());
                    let _ = inputs.send(Input::Claimed { pool, reserve, result, epoch: Some(epoch) });
                }
                why
            })
        }
    }

    /// `epoch`: the ownership for which they were asked for, if there is one.
    pub(super) fn claimed(&mut self, pool: PoolId, reserve: Reserve, result: Result<(), String>, epoch: Option<Epoch>) {
        let Some(claiming) = self.claiming.get_mut(&pool).filter(|c| c.reserve == reserve) else { return };
        let why = match result {
            Ok(()) => {
                let before = std::mem::take(&mut claiming.reason);
                claiming.made = true;
                if let Some(p) = self.parts.seen.lock().pools.get_mut(&pool).filter(|p| p.reason == before) {
                    p.reason.clear();
                }
                self.node.set_may_own(pool, true);
                return self.tell(Event::Tick);
            }
            Err(why) => why,
        };
        // Else an attempt is under way.
        let again = std::mem::take(&mut claiming.made) || epoch.is_none();
        let is_new = claiming.reason != why;
        claiming.reason.clone_from(&why);
        self.node.set_may_own(pool, false);
        if let Some(epoch) = epoch {
            self.tell(Event::DisksLost { pool, epoch });
        }
        if is_new {
            self.because(pool, why);
        } else {
            self.parts.seen.lock().pools.entry(pool).or_default().reason = why;
        }
        if again {
            self.try_to_claim(pool, reserve, RETRY);
        }
    }
}
