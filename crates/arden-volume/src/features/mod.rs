//! What a volume does beside files: quotas, the change journal, snapshots of the volume and of streams, extended attributes, growth, checking, repair
//! and scrub. Quotas and the change journal take part in transactions by `engine::txn::TxnHook`, the change journal in the
//! end of a file's use by `files::open::LastUse`. Refuses names and the store's users.

pub mod check;
pub mod check_past;
pub mod check_short;
pub mod ea;
pub mod fix;
pub mod grow;
pub mod parity_check;
pub mod quota;
pub mod repair;
pub mod scrub;
pub mod snapshot;
pub mod stream_snapshot;
pub mod usn;
pub mod usn_format;
pub mod usn_record;
pub mod usnwatch;
