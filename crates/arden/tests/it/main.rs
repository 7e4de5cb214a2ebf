//! The program `arden` as an administrator uses it: daemons with pools on disk files, a module for each kind of work. One program, as each
//! further one takes seconds to link.

mod administration;
mod daemon;
mod space_export;
mod storage_devices;
mod storage_faults;
mod storage_image;
mod storage_kill;
mod storage_verbs;
