//! A stateful fuzzer of access: two ordinary users and an administrator send random sequences of valid requests over
//! several sessions to the whole server in memory. An oracle, written from [MS-DTYP] 2.5.3, [MS-FSA] and [MS-SMB2] and not
//! from the server's code, says of each request whether it may succeed and what it shows; a sweep compares the whole
//! tree with the model. It owns sequences, their replay and their shortening, and shares no access code with the server.

mod acl;
mod files;
mod fsctls;
mod judge;
mod names;
mod op;
mod opens;
mod rng;
mod run;
mod sessions;
mod sweep;
mod tree;
mod world;

pub use run::{Failure, Report, Settings, fuzz, shrink};
pub use world::StoreKind;
