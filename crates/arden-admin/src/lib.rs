//! Administration: the state store, the REST API on the daemon's Unix socket, its OpenAPI document, metrics, and the
//! client of the command line. Shares and sessions belong to the servers, which are reached through
//! [`control::Control`].
#![forbid(unsafe_code)]

pub mod address;
pub mod api;
pub mod client;
pub mod cluster;
pub mod control;
pub mod error;
mod follow;
pub mod metrics;
mod metrics_pools;
pub mod model;
pub mod names;
mod openapi;
pub mod secret;
pub mod snapshot;
pub mod state;
pub mod storage;
pub mod volume;

pub use cluster::{ClusterAdmin, NoCluster};
pub use control::Control;
pub use error::{AdminError, ErrorKind};
pub use snapshot::SnapshotAdmin;
pub use state::{State, StateDirectory, StateStore};
pub use storage::Storage;
pub use volume::VolumeAdmin;
