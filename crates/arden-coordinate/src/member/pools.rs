//! What an administrator asks of the pools: to move one, to take one over without a fence, and to set its fence. Waits until what this node
//! knows of the pool says that it is done.

use super::*;

/// An import keeps other nodes from the pool for so long, and a node that ends meanwhile does too.
const IMPORT_SECONDS: u64 = 600;

impl ClusterApi {
    /// Waits until what this node knows of the pool is so.
    fn until(&self, pool: PoolId, wait: Duration, is: impl Fn(&PoolState) -> bool) -> bool {
        let end = Instant::now() + wait;
        while Instant::now() < end {
            if is(&self.seen_of(pool)) {
                return true;
            }
            thread::sleep(POLL);
        }
        false
    }

    /// The node, if it can take a pool now.
    fn ready(&self, node: &str) -> Result<Attempt<NodeInfo>> {
        let node = self.node(node)?;
        if !node.alive {
            let why = conflict(format!("node {} is not alive", node.name), "`arden node list` shows who is");
            return Ok(Attempt::NotYet(why));
        }
        // It would not acquire the pool, for which the others would wait.
        if node.drained {
            let hint = format!("`arden node resume {}` first, or move the pool to another node", node.name);
            return Err(conflict(format!("node {} is drained, and owns no pools", node.name), hint));
        }
        Ok(match departure::takes_pools(&self.member.etcd, &self.member.peers, node.number, &node.run) {
            Ok(()) => Attempt::Done(node),
            Err(why) => {
                Attempt::NotYet(conflict(format!("node {} cannot take the pool now: {why}", node.name), "try again"))
            }
        })
    }

    /// A blocked pool, or one with so many holders that nobody acquires it: the record's epoch and `written` become the newest of record and labels, and there are no holders.
    fn unblock(&self, pool: PoolId, keys: &PoolKeys) -> Result<()> {
        let hands = self.member.hands.lock().clone();
        let hands = hands.ok_or_else(|| conflict("this node is just starting", "try again"))?;
        let labels =
            hands.newest_epoch(pool).map_err(|e| AdminError::failed(e, "this node has to reach the pool's disks"))?;
        let old = &keys.view.record;
        let newest = Epoch(labels.0.max(old.epoch.0).max(old.blocked.map_or(0, |e| e.0)));
        let record = Record { epoch: newest, holders: Vec::new(), written: newest, blocked: None };
        let names = self.member.membership.names();
        let conditions = vec![If::Changed(names.record(pool), keys.view.changed.0), If::Changed(names.owner(pool), 0)];
        match self.put(names.record(pool), keys::encode_record(&record), conditions)? {
            true => Ok(()),
            false => Err(conflict("the pool's record changed meanwhile", "look again with `arden pool list`")),
        }
    }

    /// No other node imports the pool until [`ClusterApi::end_import`]: two would write to its disks.
    ///
    /// # Errors
    /// Conflict, when another does, or the cluster has the pool; those of etcd.
    pub fn begin_import(&self, pool: PoolId) -> Result<()> {
        let (member, names) = (&self.member, self.member.membership.names());
        let (lease, _) = member.etcd.grant_now(IMPORT_SECONDS)?;
        let put = Then::Put(names.import(pool), keys::encode(&member.number()), lease);
        let free = vec![If::Changed(names.import(pool), 0), If::Changed(names.record(pool), 0)];
        match member.trust.change(&member.etcd, free, vec![put])? {
            Some(_) => Ok(()),
            None => Err(conflict(
                "another node imports this pool, or the cluster has it already",
                format!(
                    "`arden pool list` shows it; a node that stopped while it imported is waited for {IMPORT_SECONDS} s"
                ),
            )),
        }
    }

    /// Whatever became of the import.
    pub fn end_import(&self, pool: PoolId) {
        let member = &self.member;
        let gone = vec![Then::Delete(member.membership.names().import(pool))];
        if let Err(e) = member.trust.change(&member.etcd, Vec::new(), gone) {
            tracing::warn!("no node can import the pool for {IMPORT_SECONDS} s: {e}");
        }
    }

    /// Makes a pool that is open nowhere one of the cluster, which the state of all nodes has already. `epoch` is the newest that a label
    /// of its disks bears.
    ///
    /// # Errors
    /// Conflict, when the cluster has the pool already; those of etcd, and then it may be the cluster's.
    pub fn adopt(&self, pool: PoolId, epoch: Epoch) -> Result<()> {
        let names = self.member.membership.names();
        let record = Record { epoch, holders: Vec::new(), written: epoch, blocked: None };
        let absent = vec![If::Changed(names.record(pool), 0)];
        match self.put(names.record(pool), keys::encode_record(&record), absent)? {
            true => Ok(()),
            false => Err(conflict("the cluster has this pool already", "`arden pool list` shows its owner")),
        }
    }

    /// Waits until the pool has an owner, and has it handed to this node, if that may own pools.
    ///
    /// # Errors
    /// Failed, when no node takes it in time. It is the cluster's in any case.
    pub fn await_owner(&self, pool: PoolId) -> Result<()> {
        let is_owned = |s: &PoolState| s.keys.view.owner.is_some_and(|owner| s.keys.view.record.written >= owner.epoch);
        if !self.until(pool, MOVE_WAIT, is_owned) {
            let hint = "`arden pool list` shows why; a node takes it as soon as it can";
            return Err(AdminError::failed("the pool is made, and no node has taken it yet", hint));
        }
        let owner = self.seen_of(pool).keys.view.owner.map(|owner| owner.node.0);
        let me = self.member.number();
        if owner == Some(me) {
            // Then it can be used here.
            self.until(pool, MOVE_WAIT, |s| s.stage == Some(Stage::Owned));
        } else if !self.member.seen.lock().drained.contains(&me) {
            let to = PoolMove { to: self.member.membership.name.clone() };
            match self.hand_to(&self.name_of(pool), &to) {
                Ok(_) => _ = self.until(pool, MOVE_WAIT, |s| s.stage == Some(Stage::Owned)),
                Err(e) => tracing::warn!("another node owns the pool that was made here: {e}"),
            }
        }
        Ok(())
    }

    /// Closes the pool, which this node owns or nobody can any more, and takes it out of the cluster.
    ///
    /// # Errors
    /// Conflict, when this node does not own it; failed, when it is not closed in time; those of etcd.
    pub fn let_go(&self, pool: PoolId) -> Result<()> {
        let is_retired = |s: &PoolState| s.keys.view.owner.is_none() && s.keys.view.record.is_retired();
        let state = self.seen_of(pool);
        if !is_retired(&state) {
            if state.stage != Some(Stage::Owned) {
                return Err(conflict(
                    "nobody serves the pool",
                    "wait until a node owns it: `arden pool list` shows it",
                ));
            }
            let gone = |_| AdminError::failed("the node is stopping", "");
            self.member.inputs.send(Input::Retire(pool)).map_err(gone)?;
            if !self.until(pool, MOVE_WAIT, is_retired) {
                return Err(AdminError::failed("the pool was not closed in time", "`arden pool list` shows why"));
            }
        }
        let (names, revision) = (self.member.membership.names(), self.seen_of(pool).keys.view.changed.0);
        let still = vec![If::Changed(names.record(pool), revision), If::Changed(names.owner(pool), 0)];
        let keys = [names.record(pool), names.config(pool), names.moving(pool)];
        let gone = self.member.trust.change(&self.member.etcd, still, keys.map(Then::Delete).to_vec())?;
        gone.ok_or_else(|| conflict("the pool's record changed meanwhile", "look again with `arden pool list`"))?;
        self.until(pool, MOVE_WAIT, |s| !s.is_there());
        Ok(())
    }

    /// Hands the pool over to a node that can take it.
    pub(super) fn hand_to(&self, pool: &str, to: &PoolMove) -> Result<PoolOwnership> {
        let id = self.pool(pool)?;
        let node = self.soon(|| self.ready(&to.to))?;
        let state = self.seen_of(id);
        let owner = state.keys.view.owner.ok_or_else(|| conflict(format!("nobody owns the pool {pool}"), "wait"))?;
        if owner.node.0 == node.number {
            return Ok(self.shown(id));
        }
        let names = self.member.membership.names();
        let value = keys::encode(&MoveValue { to: node.number, epoch: owner.epoch.0 });
        let conditions =
            vec![If::Changed(names.record(id), state.keys.view.changed.0), If::Changed(names.drain(node.number), 0)];
        if !self.put(names.moving(id), value, conditions)? {
            let error = format!("the pool's owner changed meanwhile, or node {} was drained", node.name);
            return Err(conflict(error, "look again with `arden pool list` and `arden node list`"));
        }
        let there = |s: &PoolState| {
            let newer = s.keys.view.owner.is_some_and(|o| o.node.0 == node.number && o.epoch > owner.epoch);
            // `written` rises when the new owner goes on to import.
            newer && s.keys.view.record.written > owner.epoch
        };
        if !self.until(id, MOVE_WAIT, there) {
            let hint = "`arden pool list` shows how far it is; another node takes it if that one cannot";
            return Err(AdminError::failed(format!("{} did not get the pool in time", to.to), hint));
        }
        Ok(self.shown(id))
    }

    /// Takes the pool over without a fence, where an administrator is sure of all holders.
    pub(super) fn take(&self, pool: &str, take: &PoolTake) -> Result<PoolOwnership> {
        let id = self.pool(pool)?;
        let state = self.seen_of(id);
        let record = &state.keys.view.record;
        let seen = self.member.seen.lock();
        let holders: Vec<String> = record.holders.iter().map(|h| names_of(&seen.nodes, h.node)).collect();
        let owner = state.keys.view.owner.filter(|o| o.node.0 != self.member.number());
        let owner = owner.map(|o| names_of(&seen.nodes, o.node));
        drop(seen);
        if !take.sure {
            let error = match holders.is_empty() {
                true => "nothing is known of who may still write to the disks".to_string(),
                false => format!("these may still write to the disks, and would destroy data: {}", holders.join(", ")),
            };
            return Err(AdminError::invalid(error, "switch them off, then repeat it with --i-am-sure"));
        }
        if let Some(owner) = owner {
            return Err(conflict(
                format!("node {owner} owns the pool, or is about to"),
                "run this there, or stop that node",
            ));
        }
        if state.stage == Some(Stage::Owned) {
            return Ok(self.shown(id));
        }
        tracing::warn!(pool, holders = holders.join(", "), "an administrator says that no holder writes any more");
        if record.blocked.is_some() || is_full(&state) {
            self.unblock(id, &state.keys)?;
        }
        let (reply, answer) = oneshot::channel();
        let gone = || AdminError::failed("the node is stopping", "");
        self.member.inputs.send(Input::Sure(id, reply)).map_err(|_| gone())?;
        answer.blocking_recv().map_err(|_| gone())?;
        if !self.until(id, MOVE_WAIT, |s| s.stage == Some(Stage::Owned)) {
            return Err(AdminError::failed("the pool was not taken in time", "`arden pool list` shows why"));
        }
        Ok(self.shown(id))
    }

    /// Sets the fence of the pool.
    pub(super) fn fence_with(&self, pool: &str, fence: &PoolFence) -> Result<PoolOwnership> {
        let id = self.pool(pool)?;
        let wanted = Fence::parse(&fence.fence, &fence.options)?;
        let state = self.seen_of(id);
        let old = &state.keys.config;
        let before = Fence::parse(&old.fence, &old.fence_options).ok().and_then(|f| f.on_disks());
        match (before, wanted.on_disks()) {
            // A node that was fenced may be stopped in the middle of a write, which would pass.
            (Some(before), wanted) if wanted != Some(before) => {
                return Err(conflict(
                    format!(
                        "a change from the fence {} to another, or to other options, is not supported",
                        before.name()
                    ),
                    "its reservations keep nodes away that were fenced and may still run: close the pool, clear them, import it again \
                     (docs/cluster.md, Changing the fence)",
                ));
            }
            (None, Some(reserve)) => return self.begin_reservations(id, &state, reserve, fence),
            _ => {}
        }
        let value =
            ConfigValue { fence: fence.fence.clone(), fence_options: fence.options.clone(), keyless: old.keyless };
        if !self.put(self.member.membership.names().config(id), keys::encode(&value), Vec::new())? {
            return Err(conflict("etcd does not have this cluster", "restore etcd"));
        }
        self.until(id, Duration::from_secs(5), |s| s.keys.config == value);
        Ok(self.shown(id))
    }

    /// Sets a fence on the disks. The present owner has no keys on the disks: it hands the pool over to itself, and registers them.
    fn begin_reservations(
        &self,
        pool: PoolId,
        state: &PoolState,
        reserve: Reserve,
        fence: &PoolFence,
    ) -> Result<PoolOwnership> {
        let hands = self.member.hands.lock().clone();
        let hands = hands.ok_or_else(|| conflict("this node is just starting", "try again"))?;
        let needs = match reserve {
            Reserve::Scsi => "the fence scsi needs SCSI disks that all nodes reach",
            Reserve::Nvme { .. } => "the fence nvme needs NVMe namespaces with reservations that all nodes reach",
        };
        hands.check_disks(pool, reserve).map_err(|why| conflict(why, needs))?;
        self.member.claim_names(&hands.names_at_disks(pool, reserve).map_err(|why| conflict(why, needs))?)?;
        let keys = &state.keys;
        let owner = keys.view.owner.filter(|o| keys.view.record.holders.iter().all(|h| h.epoch == o.epoch));
        let owner = owner.ok_or_else(|| conflict("nobody owns the pool for sure yet", "wait until it is owned"))?;
        let names = self.member.membership.names();
        let value = ConfigValue {
            fence: fence.fence.clone(),
            fence_options: fence.options.clone(),
            keyless: keys.view.record.epoch.0,
        };
        let again = MoveValue { to: owner.node.0, epoch: owner.epoch.0 };
        let conditions = vec![If::Changed(names.record(pool), keys.view.changed.0)];
        let then = vec![
            Then::Put(names.config(pool), keys::encode(&value), 0),
            Then::Put(names.moving(pool), keys::encode(&again), 0),
        ];
        if self.member.trust.change(&self.member.etcd, conditions, then)?.is_none() {
            return Err(conflict("the pool's owner changed meanwhile", "try again"));
        }
        let begun = |s: &PoolState| {
            let record = &s.keys.view.record;
            s.keys.config == value && s.keys.view.owner.is_some() && record.written.0 > value.keyless
        };
        if !self.until(pool, MOVE_WAIT, begun) {
            let hint = "`arden pool list` shows why";
            return Err(AdminError::failed("the owner did not register its keys in time", hint));
        }
        Ok(self.shown(pool))
    }
}
