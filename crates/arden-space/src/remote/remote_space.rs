//! A space as a block device of another thread's runtime: reads of its disks that this can do by itself happen on that runtime, every
//! other operation travels to the pool's thread and its answer back. Refuses nothing of its own.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use arden_block::{BlockDevice, Buf, DeviceInfo, IoError, IoResult, LocalFuture, Rt, SharedBuf};
use parking_lot::Mutex;

use crate::base::error::{SpaceError, SpaceResult};
use crate::disk::watch::Watch;
use crate::pool::open_pool::Pool;
use crate::remote::host::Caller;
use crate::space::direct::{DirectSpace, Doubt};
use crate::space::open_space::Space;

/// A space that lives on another thread.
#[derive(Clone)]
pub struct RemoteSpace(Rc<Remote>);

struct Remote {
    rt: Rt,
    caller: Caller,
    space: u32,
    info: DeviceInfo,
    /// None: the pool reads everything.
    direct: Option<DirectSpace>,
    /// Reads in flight on this runtime. When one takes too long all of them are given up, and another watch begins.
    watch: RefCell<Rc<Watch>>,
}

type Slot<T> = Arc<Mutex<(Option<T>, Option<Waker>)>>;

/// Where an answer is put by one thread and awaited by another.
struct Answer<T>(Slot<T>);

/// Somebody who waits for an answer, also where the pool is closed before it comes to that.
struct Awaited<T>(Option<Slot<SpaceResult<T>>>);

impl<T> Awaited<T> {
    fn tell(mut self, result: SpaceResult<T>) {
        self.tell_once(result);
    }

    fn tell_once(&mut self, result: SpaceResult<T>) {
        let Some(slot) = self.0.take() else { return };
        let mut state = slot.lock();
        state.0 = Some(result);
        let waker = state.1.take();
        drop(state);
        if let Some(w) = waker {
            w.wake();
        }
    }
}

impl<T> Drop for Awaited<T> {
    fn drop(&mut self) {
        self.tell_once(Err(SpaceError::Closed));
    }
}

impl<T> Future for Answer<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.lock();
        match state.0.take() {
            Some(v) => Poll::Ready(v),
            None => {
                state.1 = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Caller {
    /// The space `name` as a device of `rt`, a runtime of the calling thread. Blocks until the pool
    /// answers; the size is what it was then.
    pub fn device(&self, rt: &Rt, name: &str) -> SpaceResult<RemoteSpace> {
        let name = name.to_string();
        let (space, info, direct) = self.call(move |pool: Pool| async move {
            let s = pool.space_named(&name)?;
            Ok((s.id(), s.device().info().clone(), s.direct()))
        })?;
        let watch = RefCell::default();
        Ok(RemoteSpace(Rc::new(Remote {
            rt: rt.clone(),
            caller: self.clone(),
            space,
            info,
            direct: Some(direct),
            watch,
        })))
    }
}

impl RemoteSpace {
    /// The same without reads on this runtime, to compare the two.
    pub fn by_pool_alone(&self) -> RemoteSpace {
        let Remote { rt, caller, space, info, .. } = &*self.0;
        let (rt, caller, info, watch) = (rt.clone(), caller.clone(), info.clone(), RefCell::default());
        RemoteSpace(Rc::new(Remote { rt, caller, space: *space, info, direct: None, watch }))
    }

    /// Runs `work` on the pool's thread.
    pub(crate) fn ask<T, F, Fut>(&self, work: F) -> LocalFuture<SpaceResult<T>>
    where
        T: Send + 'static,
        F: FnOnce(Space) -> Fut + Send + 'static,
        Fut: Future<Output = SpaceResult<T>> + 'static,
    {
        let slot = Arc::new(Mutex::new((None, None::<Waker>)));
        let (answer, space, awaited) = (Answer(slot.clone()), self.0.space, Awaited(Some(slot)));
        let work = move |pool: Pool| async move { work(pool.space(space)?).await };
        let sent = self.0.caller.submit(work, move |result| awaited.tell(result));
        Box::pin(async move {
            sent?;
            answer.await
        })
    }

    fn run<T, F, Fut>(&self, work: F) -> LocalFuture<IoResult<T>>
    where
        T: Send + 'static,
        F: FnOnce(Space) -> Fut + Send + 'static,
        Fut: Future<Output = SpaceResult<T>> + 'static,
    {
        let answer = self.ask(work);
        Box::pin(async move { answer.await.map_err(IoError::from) })
    }

    /// Reads on this runtime what can be read there, and asks the pool for all else.
    ///
    /// # Errors
    /// Those of [`Space::read`].
    pub(crate) async fn read_blocks(&self, offset: u64, len: usize) -> SpaceResult<Buf> {
        match self.0.read_direct(offset, len).await {
            Ok(read) => Ok(read),
            Err(doubt) => self.ask(move |s| async move { s.read_for(offset, len, doubt).await }).await,
        }
    }
}

impl Remote {
    /// An error: the pool has to read, and a disk may be in doubt.
    async fn read_direct(&self, offset: u64, len: usize) -> Result<Buf, Option<Doubt>> {
        let read = self.direct.as_ref().and_then(|d| d.begin(offset, len)).ok_or(None)?;
        let watch = self.watch.borrow().clone();
        let answer = watch.run(&self.rt, read.limit_ns(), 1, || read.read_on(&self.rt)).await;
        if watch.has_given_up() && Rc::ptr_eq(&watch, &self.watch.borrow()) {
            self.watch.take();
        }
        read.end(Some(answer))
    }
}

impl BlockDevice for RemoteSpace {
    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }
    fn read(&self, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        let me = self.clone();
        Box::pin(async move { me.read_blocks(offset, len).await.map_err(IoError::from) })
    }
    fn write(&self, offset: u64, data: SharedBuf, durable: bool) -> LocalFuture<IoResult<()>> {
        self.run(move |s| async move { s.write(offset, data, durable).await })
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        self.run(move |s| async move { s.zero(offset, len).await })
    }
    fn discard(&self, offset: u64, len: u64) -> LocalFuture<IoResult<()>> {
        self.run(move |s| async move { s.discard(offset, len).await })
    }
    fn flush(&self) -> LocalFuture<IoResult<()>> {
        self.run(|s| async move { s.flush().await })
    }
}
