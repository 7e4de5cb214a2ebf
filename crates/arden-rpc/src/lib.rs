//! Named pipes: MS-RPCE with srvsvc, wkssvc, lsarpc and samr, as state machines without I/O.
//! Refuses threads and sockets: SMB carries the bytes, [`ServerView`] has the facts.
#![forbid(unsafe_code)]

mod call;
mod dssetup;
mod handles;
mod lsarpc;
mod pipe;
mod rows;
mod samr;
mod srvsvc;
mod view;
mod wkssvc;

pub use pipe::{Pipe, PipeRead};
pub use view::{ConnectionView, OpenView, ServerView, SessionView, ShareView, share_type};

use arden_auth::Token;
use std::sync::Arc;

/// The server and the user that a pipe belongs to.
#[derive(Clone)]
pub struct PipeContext {
    pub view: Arc<dyn ServerView>,
    pub caller: Arc<Token>,
}

/// The pipe of this name (`srvsvc`, `\srvsvc`, `\PIPE\srvsvc`, in any case), or `None` for
/// OBJECT_NAME_NOT_FOUND.
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
