//! One connection's state machine, without a socket: messages become requests, requests run, answers are signed and framed.

pub mod chain;
mod commits;
pub mod conn;
pub(crate) mod logons;
mod negotiate;
mod setup;
