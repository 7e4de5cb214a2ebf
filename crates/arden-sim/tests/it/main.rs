//! Scenarios and fixed seeds under simulated faults, a module for each kind. One program, as each further one takes seconds to link.

mod batches;
mod common;
mod copies;
mod crowded;
mod direct;
mod flushes;
mod freeing;
mod fresh;
mod full_log;
mod growth;
mod host_stops;
mod identity;
mod joins;
mod last_log;
mod lies;
mod lost_answers;
mod map_room;
mod moves;
mod noise;
mod old_images;
mod order;
mod overtaken;
mod patches;
mod returns;
mod rewrites;
mod scenarios;
mod server;
mod slow;
mod spaces;
mod stuck;
mod together;
#[allow(dead_code, reason = "the simulator needs the rest")]
#[path = "../../src/volume/under.rs"]
mod under;
mod volume;
