//! Any block device as a target: a file or disk, a space, a simulated disk, in real or virtual time.

use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    task::{Poll, Waker},
};

use arden_block::{BLOCK_BYTES, BlockDevice, IoError, Rt, SharedBuf};

use super::{Done, Kind, Op, Target};
use crate::{Result, fail};

#[derive(Default)]
struct Inbox {
    done: Vec<Done>,
    waker: Option<Waker>,
}

/// Drives a device on its runtime.
pub struct BlockTarget {
    rt: Rt,
    device: Rc<dyn BlockDevice>,
    inbox: Rc<RefCell<Inbox>>,
    /// The timer of the last wait is used again: timers are only forgotten when they fire.
    timer: Option<(u64, Rc<RefCell<Pin<Box<arden_block::rt::Sleep>>>>)>,
}

impl BlockTarget {
    pub fn new(rt: &Rt, device: Rc<dyn BlockDevice>) -> BlockTarget {
        BlockTarget { rt: rt.clone(), device, inbox: Rc::default(), timer: None }
    }

    pub fn size_bytes(&self) -> u64 {
        self.device.info().size_bytes
    }
}

fn text(e: IoError) -> Option<String> {
    Some(e.to_string())
}

impl Target for BlockTarget {
    fn now_ns(&self) -> u64 {
        self.rt.now_ns()
    }

    fn start(&mut self, op: Op, data: Option<&SharedBuf>) -> Result<()> {
        let future: arden_block::LocalFuture<(Option<arden_block::Buf>, Option<String>)> = match op.kind {
            Kind::Read => {
                let answer = self.device.read(op.offset, op.bytes as usize);
                Box::pin(async move {
                    match answer.await {
                        Ok(data) => (op.want_data.then_some(data), None),
                        Err(e) => (None, text(e)),
                    }
                })
            }
            Kind::Write => {
                let Some(data) = data else { fail!("a write without data") };
                let answer = self.device.write(op.offset, data.slice(0, op.bytes as usize), op.durable);
                Box::pin(async move { (None, answer.await.err().and_then(text)) })
            }
            Kind::Flush => {
                let answer = self.device.flush();
                Box::pin(async move { (None, answer.await.err().and_then(text)) })
            }
        };
        let (inbox, rt) = (self.inbox.clone(), self.rt.clone());
        self.rt.spawn(async move {
            let (data, error) = future.await;
            let mut inbox = inbox.borrow_mut();
            inbox.done.push(Done { tag: op.tag, at_ns: rt.now_ns(), data, error });
            if let Some(waker) = inbox.waker.take() {
                waker.wake();
            }
        });
        Ok(())
    }

    fn wait(&mut self, until_ns: Option<u64>, done: &mut Vec<Done>) -> Result<()> {
        if let Some(at) = until_ns
            && self.timer.as_ref().is_none_or(|t| t.0 != at)
        {
            self.timer = Some((at, Rc::new(RefCell::new(Box::pin(self.rt.sleep_until_ns(at))))));
        }
        let timer = until_ns.and_then(|_| self.timer.as_ref().map(|t| t.1.clone()));
        let inbox = self.inbox.clone();
        let something = poll_fn(move |cx| {
            let mut inbox = inbox.borrow_mut();
            if !inbox.done.is_empty() {
                return Poll::Ready(());
            }
            inbox.waker = Some(cx.waker().clone());
            timer.as_ref().map_or(Poll::Pending, |t| t.borrow_mut().as_mut().poll(cx))
        });
        if self.rt.block_on(something).is_none() {
            fail!("the simulated device never answers");
        }
        done.append(&mut self.inbox.borrow_mut().done);
        Ok(())
    }

    fn granule_bytes(&self) -> u32 {
        BLOCK_BYTES as u32
    }

    fn is_real(&self) -> bool {
        !self.rt.is_virtual()
    }
}
