//! Pools that are added to the cluster, and leave it, while this node runs.

use std::{sync::mpsc::Sender, thread};

use arden_cluster::PoolId;

use super::{Input, Job, Shell, WATCH_AGAIN};
use crate::{clock, keys};

/// The thread of a pool.
pub(super) fn worker() -> std::io::Result<Sender<Job>> {
    let (jobs, work) = std::sync::mpsc::channel::<Job>();
    let run = move || work.into_iter().for_each(|job| job());
    thread::Builder::new().name("arden-owner".into()).spawn(run)?;
    Ok(jobs)
}

impl Shell {
    /// A pool that was added to the cluster. False: it is known.
    pub(super) fn meet(&mut self, pool: PoolId) -> bool {
        if self.workers.contains_key(&pool) {
            return false;
        }
        match worker() {
            Ok(jobs) => self.workers.insert(pool, jobs),
            Err(e) => {
                tracing::error!(pool = %format_args!("{:032x}", pool.0), "no thread for a pool that was added: {e}");
                return false;
            }
        };
        self.node.add_pool(pool, 0);
        self.node.set_takes_over(pool, false);
        self.parts.pools.push(pool);
        true
    }

    /// It leaves the cluster.
    pub(super) fn retire(&mut self, pool: PoolId) {
        let now = clock::now_ns();
        if let Some((epoch, _)) = self.node.served(pool, now) {
            let actions = self.node.retire(now, pool, epoch);
            self.carry_out(actions);
        }
    }

    pub(super) fn meet_all(&mut self, pools: Vec<PoolId>) {
        for pool in pools {
            if self.meet(pool) {
                self.read(pool, None);
            }
        }
    }

    /// Which pools there are: some may have been added while nobody watched.
    pub(super) fn read_pools(&self) {
        let (etcd, names, wait, inputs) = (self.parts.etcd.clone(), self.names.clone(), self.wait, self.send_to());
        let trust = self.parts.trust.clone();
        self.parts.etcd.handle().spawn(async move {
            while !inputs.is_closed() {
                let floor = trust.floor();
                if let Ok(found) = etcd.read(&names.pools(), &names.cluster(), wait).await {
                    // What is not to be believed is found when the pools are read.
                    if trust.check(&found, floor).is_ok() {
                        let _ = inputs.send(Input::Pools(keys::pools(&names, &found)));
                    }
                    return;
                }
                tokio::time::sleep(WATCH_AGAIN).await;
            }
        });
    }
}
