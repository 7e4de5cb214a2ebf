//! Named pipes.

use crate::auth::messages;
use arden_auth::{MemoryUsers, ServerIdentity, Token, UserDb};
use arden_rpc::{ConnectionView, OpenView, PipeContext, ServerView, SessionView, ShareView, open_pipe};
use arden_wire::{
    FileTime,
    dtyp::{Sid, well_known},
    ndr::NdrReader,
    rpc::{self, Bind, ContextElement, Header, Request, Syntax, uuid},
};
use std::sync::Arc;

/// PDUs and NDR primitives.
pub fn pdu(data: &[u8]) {
    let Ok(header) = Header::parse(data) else { return };
    let body = &data[rpc::HEADER_BYTES..];
    if let Ok(bind) = Bind::parse(body) {
        let bytes = bind.encode(rpc::BIND, header.call_id);
        assert_eq!(Bind::parse(&bytes[rpc::HEADER_BYTES..]), Ok(bind));
    }
    let _ = Request::parse(&header, body);
    let mut r = NdrReader::new(body);
    let _ = (r.unique_string(), r.unicode(), r.sid(), r.count(4), r.handle());
}

struct View(Arc<MemoryUsers>);

impl ServerView for View {
    fn identity(&self) -> ServerIdentity {
        ServerIdentity::stand_alone("fuzz.example.org")
    }
    fn now(&self) -> FileTime {
        FileTime(133_000_000_000_000_000)
    }
    fn started(&self) -> FileTime {
        FileTime(132_000_000_000_000_000)
    }
    fn users(&self) -> Arc<dyn UserDb> {
        self.0.clone()
    }
    fn shares(&self) -> Vec<ShareView> {
        vec![ShareView { name: "data".into(), path: "C:\\data".into(), ..Default::default() }]
    }
    fn sessions(&self) -> Vec<SessionView> {
        vec![SessionView { id: 1, client: "c".into(), user: "user".into(), ..Default::default() }]
    }
    fn opens(&self) -> Vec<OpenView> {
        vec![OpenView { id: 1, path: "C:\\data\\f".into(), user: "user".into(), ..Default::default() }]
    }
    fn connections(&self) -> Vec<ConnectionView> {
        vec![ConnectionView { id: 1, share: "data".into(), client: "c".into(), ..Default::default() }]
    }
    fn close_session(&self, id: u64) -> bool {
        id == 1
    }
    fn close_file(&self, id: u32) -> bool {
        id == 1
    }
}

const fn interface(a: u32, b: u16, c: u16, d: [u8; 8], version: u32) -> Syntax {
    Syntax { uuid: uuid(a, b, c, d), version }
}

/// Name, and the interface that a target binds before the input comes.
pub const PIPES: [(&str, Syntax); 4] = [
    ("srvsvc", interface(0x4B32_4FC8, 0x1670, 0x01D3, [0x12, 0x78, 0x5A, 0x47, 0xBF, 0x6E, 0xE1, 0x88], 3)),
    ("wkssvc", interface(0x6BFF_D098, 0xA112, 0x3610, [0x98, 0x33, 0x46, 0xC3, 0xF8, 0x7E, 0x34, 0x5A], 1)),
    ("lsarpc", interface(0x1234_5778, 0x1234, 0xABCD, [0xEF, 0, 1, 0x23, 0x45, 0x67, 0x89, 0xAB], 0)),
    ("samr", interface(0x1234_5778, 0x1234, 0xABCD, [0xEF, 0, 1, 0x23, 0x45, 0x67, 0x89, 0xAC], 1)),
];

/// The first byte chooses the pipe and whether it is bound already: then each message is an operation number
/// and a stub. Unbound, the messages are raw bytes.
pub fn pipe(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else { return };
    let (name, interface) = PIPES[usize::from(choice & 3)];
    let users = Arc::new(MemoryUsers::new("FUZZ", Sid::new(5, &[21, 1, 2, 3])));
    users.add_user("user", "", std::slice::from_ref(&well_known::BUILTIN_ADMINISTRATORS));
    let context = PipeContext { view: Arc::new(View(users)), caller: Arc::new(Token::system()) };
    let Some(mut pipe) = open_pipe(name, context) else { return };
    let bound = choice & 4 == 0;
    if bound {
        let contexts = vec![ContextElement { id: 0, interface, transfer: vec![rpc::NDR32] }];
        let bind = Bind { max_xmit: 4280, max_recv: 4280, group: 0, contexts };
        let _ = pipe.write(&bind.encode(rpc::BIND, 1));
    }
    for message in messages(rest).into_iter().take(8) {
        match message {
            [opnum, stub @ ..] if bound => {
                let flags = rpc::PFC_FIRST_FRAG | rpc::PFC_LAST_FRAG;
                let request = Request { context: 0, opnum: u16::from(*opnum), stub };
                let _ = pipe.write(&request.encode(flags, 2));
            }
            _ => {
                let _ = pipe.write(message);
            }
        }
        while let Ok(read) = pipe.read(4280) {
            assert!(Header::parse(&read.data).is_ok());
        }
    }
}
