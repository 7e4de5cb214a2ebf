//! Entry points for hostile bytes: one function a target, which returns or panics.
//! cargo-fuzz calls them from `fuzz/`, an ordinary test replays the corpora there and mutates them.
//! A target says more than "does not crash": what was understood has to mean the same when said again.
#![forbid(unsafe_code)]

pub mod access;
mod auth;
mod engine;
mod forward;
mod mutate;
mod reserve;
mod rpc;
pub use engine::seeds;
pub use mutate::{corpus, mutations};
pub use rpc::PIPES;
mod smb2;
mod tcp;
mod wire;

use arden_testkit::client;

/// Takes any bytes.
pub type Entry = fn(&[u8]);

/// All targets, by the name of their corpus.
pub const TARGETS: &[(&str, Entry)] = &[
    ("dtyp", wire::dtyp),
    ("spnego", wire::spnego),
    ("ntlm", wire::ntlm),
    ("acceptor", auth::acceptor),
    ("access", auth::access),
    ("rpc", rpc::pdu),
    ("pipe", rpc::pipe),
    ("tcp", tcp::connection),
    ("smb2", smb2::messages),
    ("fscc", smb2::fscc),
    ("negotiate", smb2::negotiate),
    ("create", smb2::create),
    ("transform", smb2::transform),
    ("connection", engine::connection),
    ("forward", forward::frame),
    ("reserve", reserve::answer),
    ("nvme", reserve::nvme_answer),
];

/// Runs a target by name.
pub fn run(target: &str, data: &[u8]) {
    let Some((_, entry)) = TARGETS.iter().find(|(name, _)| *name == target) else { panic!("no target {target}") };
    entry(data);
}
