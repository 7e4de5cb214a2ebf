//! A space as a block device of another thread's runtime: every operation travels to the
//! pool's thread and its answer back. Refuses nothing of its own.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use arden_block::{BlockDevice, Buf, DeviceInfo, IoError, IoResult, LocalFuture, SharedBuf};
use parking_lot::Mutex;

use crate::base::error::SpaceResult;
use crate::pool::open_pool::Pool;
use crate::remote::host::Caller;
use crate::space::open_space::Space;

/// A space that lives on another thread.
#[derive(Clone)]
pub struct RemoteSpace {
    caller: Caller,
    space: u32,
    info: DeviceInfo,
}

/// Where an answer is put by one thread and awaited by another.
struct Answer<T>(Arc<Mutex<(Option<T>, Option<Waker>)>>);

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
    /// The space `name` as a device for the calling thread's runtime. Blocks until the pool
    /// answers; the size is what it was then.
    pub fn device(&self, name: &str) -> SpaceResult<RemoteSpace> {
        let name = name.to_string();
        let (space, info) = self.call(move |pool: Pool| async move {
            let s = pool.space_named(&name)?;
            Ok((s.id(), s.device().info().clone()))
        })?;
        Ok(RemoteSpace { caller: self.clone(), space, info })
    }
}

impl RemoteSpace {
    fn run<T, F, Fut>(&self, work: F) -> LocalFuture<IoResult<T>>
    where
        T: Send + 'static,
        F: FnOnce(Space) -> Fut + Send + 'static,
        Fut: Future<Output = SpaceResult<T>> + 'static,
    {
        let slot = Arc::new(Mutex::new((None, None::<Waker>)));
        let (answer, space) = (Answer(slot.clone()), self.space);
        let done = move |r: SpaceResult<T>| {
            let mut state = slot.lock();
            state.0 = Some(r);
            if let Some(w) = state.1.take() {
                w.wake();
            }
        };
        let sent = self.caller.submit(move |pool: Pool| async move { work(pool.space(space)?).await }, done);
        Box::pin(async move {
            if sent.is_err() {
                return Err(IoError::Gone);
            }
            answer.await.map_err(IoError::from)
        })
    }
}

impl BlockDevice for RemoteSpace {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn read(&self, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        self.run(move |s| async move { s.read(offset, len).await })
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
