//! The server cases of the vendor's own suite, against the server without sockets. The comment of a test names
//! its cases; `docs/conformance.md` lists them all.

use arden_testkit::client;

mod absent_owner;
mod app_instance;
mod channels;
mod commit_scopes;
mod commit_waits;
mod compounds;
mod create;
mod crowds;
mod deletion;
mod directory;
mod directory_leases;
mod durable;
mod durable_v2;
mod eas;
mod encryption;
mod failover;
mod file_system;
mod fsctls;
mod gates;
mod grants;
mod hostile;
mod info;
mod integrity;
mod kept;
mod layout;
mod leases;
mod limits;
mod load;
mod locks;
mod logs;
mod mark_handle;
mod negotiate;
mod notify;
mod offload;
mod open_rules;
mod oplocks;
mod order;
mod other_users;
mod persistent;
mod persistent_breaks;
mod persistent_directories;
mod persistent_random;
mod pipes;
mod planned;
mod quotas;
mod reparse_points;
mod replay;
mod resilient;
mod revocation;
mod rpc;
mod sessions;
mod short_names;
mod signing;
mod snapshots;
mod starving;
mod strangers;
mod stream_snapshots;
mod streams;
mod surrogates;
mod threads;
mod times;
mod transport;
mod trees;
mod usage;
mod usn;
mod valid_data;
mod validate_negotiate;
mod waits;

/// The table of the cases names tests that are there.
#[test]
fn the_table_names_tests_that_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = std::fs::read_to_string(root.join("../../docs/conformance.md")).unwrap();
    let mut sources = std::collections::HashMap::new();
    let names = table.split('`').filter_map(|part| part.split_once("::"));
    let mut count = 0;
    for (module, name) in names {
        let source = sources.entry(module).or_insert_with(|| {
            let places = ["tests/conformance", "tests/forwarded", "../arden-rpc/tests", "../arden-rpc/src/witness"];
            let mut found =
                places.iter().filter_map(|at| std::fs::read_to_string(root.join(at).join(format!("{module}.rs"))).ok());
            found.next().unwrap_or_else(|| panic!("no module {module}"))
        });
        assert!(source.contains(&format!("fn {name}(")), "{module}::{name}");
        count += 1;
    }
    assert!(count > 400, "{count}");
}
