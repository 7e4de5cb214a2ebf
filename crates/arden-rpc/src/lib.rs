//! RPC, [MS-RPCE], as state machines without I/O and threads: named pipes with srvsvc, wkssvc, lsarpc, samr and dssetup, whose
//! bytes SMB carries, and TCP ([`tcp`]) with the endpoint mapper and the witness service of a cluster. [`ServerView`] and
//! [`witness::Cluster`] supply the facts.
#![forbid(unsafe_code)]

mod call;
mod dssetup;
pub mod endpoint_mapper;
mod handles;
mod lsarpc;
mod pipe;
mod rows;
mod samr;
mod srvsvc;
pub mod tcp;
mod view;
pub mod witness;
mod wkssvc;

pub use pipe::{Pipe, PipeRead};
pub use view::{ConnectionView, OpenView, ServerView, SessionView, ShareView, share_type};

use arden_auth::Token;
use std::sync::Arc;

/// The server and the user of a pipe.
#[derive(Clone)]
pub struct PipeContext {
    pub view: Arc<dyn ServerView>,
    pub caller: Arc<Token>,
}

/// Opens the pipe of this name (`srvsvc`, `\\srvsvc`, `\\PIPE\\srvsvc`, in any case). `None`: OBJECT_NAME_NOT_FOUND.
pub fn open_pipe(name: &str, context: PipeContext) -> Option<Box<dyn Pipe>> {
    let name = name.trim_start_matches('\\').to_ascii_lowercase();
    let name = name.strip_prefix("pipe\\").unwrap_or(&name);
    let service = match name {
        "srvsvc" => pipe::Service::Server,
        "wkssvc" => pipe::Service::Server,
        "lsarpc" | "samr" | "lsass" => pipe::Service::Security,
        _ => return None,
    };
    Some(Box::new(pipe::RpcPipe::new(name, service, context)))
}
