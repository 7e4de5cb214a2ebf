//! Reads of simulated disks by whoever is no task of the device's runtime. A simulated disk stays on the thread of its run, so the
//! handle is a number that means something there only: elsewhere its reads are not supported.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};

use super::{Initiator, Queue, SimDevice, SimDisk, State, fail};
use crate::{Buf, DeviceInfo, IoError, IoResult, LocalFuture, Rt, SharedReads, timing::Model};

/// A device as it was attached, without keeping the disk.
struct Attached {
    state: Weak<RefCell<State>>,
    info: Rc<DeviceInfo>,
    model: Option<Rc<Model>>,
    queue: Rc<RefCell<Queue>>,
    from: Initiator,
}

thread_local! {
    static ATTACHED: RefCell<HashMap<u64, Attached>> = RefCell::default();
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

/// An attachment, by its number on the thread of its run. Unlike a file's it outlives its device: what is read by it after that is
/// an answer that somebody has to refuse.
pub(super) struct SimReads(u64);

impl SimReads {
    pub(super) fn of(device: &SimDevice) -> SimReads {
        let id = NEXT.get();
        NEXT.set(id + 1);
        let attached = Attached {
            state: Rc::downgrade(&device.disk.state),
            info: device.disk.info.clone(),
            model: device.disk.model.clone(),
            queue: device.queue.clone(),
            from: device.from,
        };
        ATTACHED.with_borrow_mut(|all| {
            all.retain(|_, a| a.state.strong_count() > 0);
            all.insert(id, attached);
        });
        SimReads(id)
    }
}

impl SharedReads for SimReads {
    fn read_on(&self, rt: &Rt, offset: u64, len: usize) -> LocalFuture<IoResult<Buf>> {
        let device = ATTACHED.with_borrow(|all| {
            let a = all.get(&self.0)?;
            let disk = SimDisk { state: a.state.upgrade()?, info: a.info.clone(), model: a.model.clone() };
            Some(SimDevice { disk, rt: rt.clone(), queue: a.queue.clone(), from: a.from })
        });
        device.map_or_else(|| fail(IoError::Unsupported), |d| d.read_on(rt, offset, len))
    }
}
