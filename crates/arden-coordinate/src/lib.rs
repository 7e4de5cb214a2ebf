//! A node of a cluster with real I/O. Drives the decisions of `arden-cluster` with etcd (by its JSON gateway), `CLOCK_BOOTTIME` and
//! fence agents; keeps the state that all nodes share in etcd; makes and joins clusters. Refuses decisions of its own, and the disks,
//! which it reaches through [`Hands`]. Who can write to etcd is trusted with everything: etcd has password hashes, says who owns a
//! pool, and names the programs that fence.
#![forbid(unsafe_code)]

mod agent;
mod claims;
pub mod clock;
pub mod departure;
mod etcd;
mod etcd_tls;
mod files;
mod gate;
mod http;
mod identity;
mod keys;
mod level;
mod member;
pub mod membership;
pub mod peers;
mod shell;
mod store;
mod trust;

pub use agent::Reserve;
pub use etcd::Etcd;
pub use etcd_tls::{ClientFiles, EtcdFiles};
pub use gate::PoolGate;
pub use identity::{Fingerprint, Identity};
pub use keys::Names;
pub use member::{ClusterApi, Member, NodeSeen};
pub use membership::{Membership, NewCluster};
pub use shell::{Hands, Opening, Reserved, Victim};
pub use store::EtcdStore;
pub use trust::Trust;
