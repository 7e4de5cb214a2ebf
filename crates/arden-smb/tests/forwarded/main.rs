//! Two nodes: clients connect to one, the shares are the other's. The name of this program makes the labs so. The cases of
//! `conformance` run so too, by `tests/unit`.

use arden_testkit::client;

mod links;
mod nodes;
mod previous;
