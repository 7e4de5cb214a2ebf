//! A pool on a thread of its own, for callers on other threads. What they hand over runs on
//! the pool's thread, between its other tasks.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use arden_block::Rt;
use arden_block::rt::Remote;

use crate::base::error::{SpaceError, SpaceResult};
use crate::pool::open_pool::Pool;
use crate::state::views::PoolViews;

thread_local! {
    static POOL: RefCell<Option<Pool>> = const { RefCell::new(None) };
}

/// Runs a pool until it is dropped or [`PoolHost::stop`]ped.
pub struct PoolHost {
    remote: Remote,
    views: Arc<PoolViews>,
    thread: Option<JoinHandle<()>>,
}

impl PoolHost {
    /// Starts a thread and opens (or creates) the pool there.
    pub fn start<F>(open: F) -> SpaceResult<PoolHost>
    where
        F: FnOnce(Rt) -> Pin<Box<dyn Future<Output = SpaceResult<Pool>>>> + Send + 'static,
    {
        let (tx, rx) = sync_channel::<SpaceResult<(Remote, Arc<PoolViews>)>>(1);
        let spawned = std::thread::Builder::new().name("arden-pool".into()).spawn(move || {
            let rt = Rt::real();
            let opened = rt.block_on(open(rt.clone())).unwrap_or(Err(SpaceError::Closed));
            let answer = match opened {
                Ok(pool) => {
                    let views = pool.0.views.clone();
                    POOL.with(|p| *p.borrow_mut() = Some(pool));
                    Ok((rt.remote(), views))
                }
                Err(e) => Err(e),
            };
            let go = answer.is_ok();
            if tx.send(answer).is_ok() && go {
                rt.run_forever();
            }
            POOL.with(|p| p.borrow_mut().take());
            rt.shutdown();
        });
        let thread = spawned.map_err(|e| SpaceError::Refused(format!("no thread for the pool: {e}")))?;
        match rx.recv() {
            Ok(Ok((remote, views))) => Ok(PoolHost { remote, views, thread: Some(thread) }),
            Ok(Err(e)) => Err(e),
            Err(_) => Err(SpaceError::Closed),
        }
    }

    /// A handle that can be cloned into other threads.
    pub fn caller(&self) -> Caller {
        Caller { remote: self.remote.clone() }
    }

    /// See [`Caller::call`].
    pub fn call<T, F, Fut>(&self, f: F) -> SpaceResult<T>
    where
        T: Send + 'static,
        F: FnOnce(Pool) -> Fut + Send + 'static,
        Fut: Future<Output = SpaceResult<T>> + 'static,
    {
        self.caller().call(f)
    }

    /// Makes everything durable, closes the pool and ends its thread.
    pub fn stop(mut self) -> SpaceResult<()> {
        let result = self.call(|pool| async move { pool.close().await });
        self.end();
        result
    }

    /// Nothing more is begun: who asks is refused. What is on its way to the disks may still arrive, until this is dropped, and a
    /// disk that hangs may make that long.
    pub fn refuse(&self) {
        // Whoever reads by himself asks nobody here.
        self.views.close();
        self.remote.close();
    }

    fn end(&mut self) {
        self.refuse();
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

impl Drop for PoolHost {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reaches a hosted pool from any thread.
#[derive(Clone)]
pub struct Caller {
    remote: Remote,
}

impl Caller {
    /// Runs `f` on the pool's thread; `done` is called there with its answer.
    pub fn submit<T, F, Fut>(&self, f: F, done: impl FnOnce(SpaceResult<T>) + Send + 'static) -> SpaceResult<()>
    where
        T: 'static,
        F: FnOnce(Pool) -> Fut + Send + 'static,
        Fut: Future<Output = SpaceResult<T>> + 'static,
    {
        let job = move |rt: &Rt| match POOL.with(|p| p.borrow().clone()) {
            Some(pool) => rt.spawn(async move { done(f(pool).await) }),
            None => done(Err(SpaceError::Closed)),
        };
        self.remote.run(job).map_err(|_| SpaceError::Closed)
    }

    /// Runs `f` on the pool's thread and waits for its answer.
    pub fn call<T, F, Fut>(&self, f: F) -> SpaceResult<T>
    where
        T: Send + 'static,
        F: FnOnce(Pool) -> Fut + Send + 'static,
        Fut: Future<Output = SpaceResult<T>> + 'static,
    {
        let (tx, rx) = sync_channel(1);
        self.submit(f, move |r| {
            let _ = tx.send(r);
        })?;
        rx.recv().unwrap_or(Err(SpaceError::Closed))
    }
}
