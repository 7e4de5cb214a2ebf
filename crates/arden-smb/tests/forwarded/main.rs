//! The cases of `conformance` with two nodes: clients connect to one, the shares are the other's. The name of this program makes the labs so.

use arden_testkit::client;

#[path = "../conformance/absent_owner.rs"]
mod absent_owner;
#[path = "../conformance/app_instance.rs"]
mod app_instance;
#[path = "../conformance/channels.rs"]
mod channels;
#[path = "../conformance/compounds.rs"]
mod compounds;
#[path = "../conformance/create.rs"]
mod create;
#[path = "../conformance/deletion.rs"]
mod deletion;
#[path = "../conformance/directory.rs"]
mod directory;
#[path = "../conformance/directory_leases.rs"]
mod directory_leases;
#[path = "../conformance/durable.rs"]
mod durable;
#[path = "../conformance/durable_v2.rs"]
mod durable_v2;
#[path = "../conformance/eas.rs"]
mod eas;
#[path = "../conformance/encryption.rs"]
mod encryption;
#[path = "../conformance/failover.rs"]
mod failover;
#[path = "../conformance/file_system.rs"]
mod file_system;
#[path = "../conformance/fsctls.rs"]
mod fsctls;
#[path = "../conformance/grants.rs"]
mod grants;
#[path = "../conformance/hostile.rs"]
mod hostile;
#[path = "../conformance/info.rs"]
mod info;
#[path = "../conformance/integrity.rs"]
mod integrity;
#[path = "../conformance/layout.rs"]
mod layout;
#[path = "../conformance/leases.rs"]
mod leases;
#[path = "../conformance/limits.rs"]
mod limits;
mod links;
#[path = "../conformance/load.rs"]
mod load;
#[path = "../conformance/locks.rs"]
mod locks;
#[path = "../conformance/mark_handle.rs"]
mod mark_handle;
#[path = "../conformance/negotiate.rs"]
mod negotiate;
mod nodes;
#[path = "../conformance/notify.rs"]
mod notify;
#[path = "../conformance/offload.rs"]
mod offload;
#[path = "../conformance/open_rules.rs"]
mod open_rules;
#[path = "../conformance/oplocks.rs"]
mod oplocks;
#[path = "../conformance/order.rs"]
mod order;
#[path = "../conformance/other_users.rs"]
mod other_users;
#[path = "../conformance/persistent.rs"]
mod persistent;
#[path = "../conformance/persistent_breaks.rs"]
mod persistent_breaks;
#[path = "../conformance/persistent_directories.rs"]
mod persistent_directories;
#[path = "../conformance/persistent_random.rs"]
mod persistent_random;
#[path = "../conformance/pipes.rs"]
mod pipes;
#[path = "../conformance/planned.rs"]
mod planned;
mod previous;
#[path = "../conformance/quotas.rs"]
mod quotas;
#[path = "../conformance/reparse_points.rs"]
mod reparse_points;
#[path = "../conformance/replay.rs"]
mod replay;
#[path = "../conformance/resilient.rs"]
mod resilient;
#[path = "../conformance/sessions.rs"]
mod sessions;
#[path = "../conformance/short_names.rs"]
mod short_names;
#[path = "../conformance/signing.rs"]
mod signing;
#[path = "../conformance/snapshots.rs"]
mod snapshots;
#[path = "../conformance/strangers.rs"]
mod strangers;
#[path = "../conformance/stream_snapshots.rs"]
mod stream_snapshots;
#[path = "../conformance/streams.rs"]
mod streams;
#[path = "../conformance/times.rs"]
mod times;
#[path = "../conformance/transport.rs"]
mod transport;
#[path = "../conformance/trees.rs"]
mod trees;
#[path = "../conformance/usn.rs"]
mod usn;
#[path = "../conformance/valid_data.rs"]
mod valid_data;
#[path = "../conformance/validate_negotiate.rs"]
mod validate_negotiate;
#[path = "../conformance/waits.rs"]
mod waits;
