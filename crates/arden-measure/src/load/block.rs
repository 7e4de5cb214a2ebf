//! A block device as a target: a file, a disk, a space or a simulated disk, in real or virtual time.

use std::{cell::RefCell, rc::Rc};

use arden_block::{BLOCK_BYTES, BlockDevice, Rt, SharedBuf};

use super::target::{Done, Kind, Op, Target};
use crate::{Result, fail};

/// Sends requests to a device on the device's runtime.
pub struct BlockTarget {
    rt: Rt,
    device: Rc<dyn BlockDevice>,
    inbox: Rc<RefCell<Vec<Done>>>,
}

impl BlockTarget {
    /// A target on `device`, whose runtime is `rt`.
    pub fn new(rt: &Rt, device: Rc<dyn BlockDevice>) -> BlockTarget {
        BlockTarget { rt: rt.clone(), device, inbox: Rc::default() }
    }

    /// The size of the device in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.device.info().size_bytes
    }
}

impl Target for BlockTarget {
    fn now_ns(&self) -> u64 {
        self.rt.now_ns()
    }

    fn start(&mut self, op: Op, data: Option<&SharedBuf>) -> Result<()> {
        let (rt, device, inbox) = (self.rt.clone(), self.device.clone(), self.inbox.clone());
        let data = match (op.kind, data) {
            (Kind::Write, None) => fail!("a write without data"),
            (Kind::Write, Some(data)) => Some(data.slice(0, op.bytes as usize)),
            _ => None,
        };
        self.rt.spawn(async move {
            let answer = match (op.kind, data) {
                (Kind::Read, _) => device.read(op.offset, op.bytes as usize).await.map(|b| op.want_data.then_some(b)),
                (Kind::Write, Some(data)) => device.write(op.offset, data, op.durable).await.map(|()| None),
                (Kind::Write | Kind::Flush, _) => device.flush().await.map(|()| None),
            };
            let at_ns = rt.now_ns();
            let (data, error) = match answer {
                Ok(data) => (data, None),
                Err(e) => (None, Some(e.to_string())),
            };
            inbox.borrow_mut().push(Done { tag: op.tag, at_ns, data, error });
        });
        Ok(())
    }

    fn send(&mut self) {
        self.rt.run_ready();
    }

    fn wait(&mut self, until_ns: Option<u64>, done: &mut Vec<Done>) -> Result<()> {
        let inbox = self.inbox.clone();
        if !self.rt.run_while(until_ns, &|| inbox.borrow().is_empty()) {
            fail!("the simulated device never answers");
        }
        done.append(&mut self.inbox.borrow_mut());
        Ok(())
    }

    fn granule_bytes(&self) -> u32 {
        BLOCK_BYTES as u32
    }

    fn is_real(&self) -> bool {
        !self.rt.is_virtual()
    }
}
