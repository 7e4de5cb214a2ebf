//! File operations over the dir store, scenario by scenario, as other people's suites ask for them.

mod archive;
mod commits;
mod cost;
mod crowd;
mod delete;
mod freed;
mod hooked;
mod leases;
mod locks;
mod more;
mod notify;
mod open;
mod races;
mod random;
mod rename;
mod scope;
mod streams;
mod times;
mod world;
