//! Experiments: the servers, disks and spaces that are measured, the work they do, their comparison, and the command
//! lines. Driving a load, storing and showing a result belong to `arden-measure`. Servers are known from outside only.
//!
//! Folders are layers, lowest first; each imports only those before it:
//!
//! - `local`: servers that are started on this machine, directories that go again, signals
//! - `pools`: pools with one space, on files and on simulated disks
//! - `targets`: what a load may run on, by name
//! - `work`: fixed amounts of work with files of a share
//! - `experiment`: `arden lab run`, the published experiments, `arden lab advise`
//! - `spaces`: spaces beside fio and btrfs, as `make bench-space` does
//! - `bench`: Arden beside Samba, an echo and its own spaces, as `make bench` does
//! - `cli`: the grammar of `arden lab`, and what each verb does
#![forbid(unsafe_code)]

pub mod bench;
pub mod cli;
pub mod experiment;
pub mod local;
pub mod pools;
pub mod spaces;
pub mod targets;
pub mod work;
