//! Which node owns a pool. Owns the decisions of one node: its lease, when it acquires a pool, whom it fences, when it imports,
//! serves and stops. Refuses I/O, clocks and entropy: [`Node::handle`] takes an event with the time and gives actions, which a
//! shell carries out. `docs/cluster.md` has the states, the transactions, and why two owners never write.
//!
//! # Rules for the shell
//! * Times are of a clock that neither jumps nor stops while the machine runs or sleeps (`CLOCK_BOOTTIME`), in nanoseconds.
//! * `sent_ns` of a lease's answer is read before the request is sent.
//! * A request to a pool starts, and is answered, only when [`Node::may_serve`] says so at that moment.
//! * [`Action::Stop`] ends everything of that pool and epoch on this node; [`Event::Stopped`] says that nothing runs any more.
//! * A transaction is one atomic transaction of etcd; a read is linearizable.
#![forbid(unsafe_code)]

mod api;
mod keys;
mod lease;
mod node;
mod pool;

pub use api::{Action, Config, Event, IfAlive, ImportError, Outcome, Route};
pub use keys::{
    Epoch, HOLDERS_MAX, Holder, IfOwner, LeaseId, NodeId, OwnerKey, PoolId, Record, Revision, SetOwner, Transaction,
    View,
};
pub use node::Node;
pub use pool::Stage;
