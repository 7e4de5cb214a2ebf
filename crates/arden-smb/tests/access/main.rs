//! Who may do what: every operation under every share permission and every granted access, on both kinds of store, and
//! what a user who is logged on may not reach. Expected outcomes are those of [MS-FSA] and [MS-DTYP].

use arden_testkit::client;

mod creating;
mod hostile;
mod links;
mod owners;
mod reading;
mod reserved;
mod room;
mod table;
mod world;
