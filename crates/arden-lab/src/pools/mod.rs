//! Pools with one space on it, made to be measured: on files and disks in real time (`files`), on simulated disks in virtual
//! time (`timed`). Know pools and spaces as any caller does, through `arden-space`'s public face.

pub mod files;
pub mod timed;
