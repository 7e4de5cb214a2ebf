//! Fences of holders, by the kind that the pool has: on its disks (`on_disks`), by an agent, or by the word of an administrator.

use std::{
    io,
    panic::{self, AssertUnwindSafe},
    thread,
};

use arden_cluster::{Epoch, PoolId};

use super::{Input, Job, Shell, Victim};
use crate::agent::{self, Fence};

/// A thread of its own for a fence that may take a minute.
fn spawn(job: Job) -> io::Result<()> {
    thread::Builder::new().name("arden-fence".into()).spawn(job).map(drop)
}

/// Runs a fence by `spawn`, and tells what came of it, also when there is no thread or it panics.
fn apart(
    spawn: impl FnOnce(Job) -> io::Result<()>,
    fence: impl FnOnce() -> Result<(), String> + Send + 'static,
    done: impl Fn(Result<(), String>) + Clone + Send + 'static,
) {
    let told = done.clone();
    let job = move || {
        let fenced = panic::catch_unwind(AssertUnwindSafe(fence));
        told(fenced.unwrap_or_else(|_| Err("arden panicked in the fence, see the log".to_string())));
    };
    if let Err(e) = spawn(Box::new(job)) {
        done(Err(format!("no thread for the fence: {e}")));
    }
}

impl Shell {
    /// Fences a holder. What comes of it is told in any case: else the node would fence for ever, and with it the pool.
    pub(super) fn fence(&mut self, pool: PoolId, epoch: Epoch, victim: Victim) {
        let (inputs, holder) = (self.send_to(), victim.holder);
        let done = move |result| _ = inputs.send(Input::Fence { pool, epoch, victim, result });
        let keyless = self.parts.seen.lock().pools.get(&pool).map_or(0, |p| p.keys.config.keyless);
        let reserves = self.fence_of(pool).ok().and_then(|f| f.on_disks());
        if let Some(reserve) = reserves.filter(|_| holder.epoch.0 > keyless) {
            return self.fence_on_disks(pool, epoch, reserve, victim);
        }
        // An earlier run of this node, or what it had open before: the kernel holds the locks of the disks until the last command has
        // ended, and the import waits for them.
        if holder.node.0 == self.parts.node || self.sure.contains(&(pool, holder)) {
            return done(Ok(()));
        }
        let seen = self.parts.seen.lock();
        let config = seen.pools.get(&pool).map(|p| p.keys.config.clone()).unwrap_or_default();
        let name = seen.nodes.get(&holder.node.0).cloned();
        drop(seen);
        match (Fence::parse(&config.fence, &config.fence_options), name) {
            (Ok(Fence::Agent { program, options }), Some(name)) => {
                tracing::warn!(node = name, agent = %program.display(), "fencing");
                apart(spawn, move || agent::fence(&program, &options, &name), done);
            }
            (Ok(Fence::Disks(reserve)), _) => done(Err(format!(
                "a holder became one before the fence {} was set, and has no keys: `arden pool take` decides",
                reserve.name()
            ))),
            (Ok(Fence::None), _) => done(Err("the pool has no fence: `arden pool take` decides".to_string())),
            (_, None) => done(Err(format!("node {} is not known", holder.node.0))),
            (Err(e), _) => done(Err(format!("the fence of the pool is not usable: {e}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn told(spawn: impl FnOnce(Job) -> io::Result<()>, fence: fn() -> Result<(), String>) -> Vec<Result<(), String>> {
        let (tx, rx) = mpsc::channel();
        apart(spawn, fence, move |result| tx.send(result).unwrap());
        rx.iter().collect()
    }

    #[test]
    fn a_fence_without_a_thread_and_one_that_panics_have_failed() {
        let here = |job: Job| {
            job();
            Ok(())
        };
        assert_eq!(told(here, || Ok(())), [Ok(())]);
        let no_thread = |_: Job| Err(io::Error::from(io::ErrorKind::WouldBlock));
        let said = told(no_thread, || Ok(()));
        assert!(matches!(&said[..], [Err(why)] if why.contains("no thread for the fence")), "{said:?}");
        let said = told(here, || panic!("a test"));
        assert!(matches!(&said[..], [Err(why)] if why.contains("panicked")), "{said:?}");
    }
}
