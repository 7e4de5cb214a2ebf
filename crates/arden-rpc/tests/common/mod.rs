//! A server view for the tests: two users, three shares, a session, an open.
#![allow(dead_code)]

pub mod tcp;

use arden_auth::*;
use arden_rpc::*;
use arden_wire::{FileTime, dtyp::*};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

pub struct View {
    pub users: Arc<MemoryUsers>,
    pub closed: AtomicU32,
    pub shares: Vec<ShareView>,
}

pub fn machine() -> Sid {
    "S-1-5-21-1001-2002-3003".parse().unwrap()
}

impl View {
    pub fn new() -> View {
        let users = MemoryUsers::new("ARDEN", machine());
        users.add_user("alice", "a", &[]);
        users.add_user("root", "r", std::slice::from_ref(&well_known::BUILTIN_ADMINISTRATORS));
        let mut alice = users.user("alice").unwrap();
        alice.full_name = "Alice Ärger".into();
        alice.comment = "a user".into();
        users.put_user(alice);
        users.put_group(GroupRecord {
            name: "Staff".into(),
            comment: "all staff".into(),
            sid: machine().with_rid(2000),
        });
        let mut root = users.user("root").unwrap();
        root.groups.push(machine().with_rid(2000));
        users.put_user(root);
        let disk = |name: &str, comment: &str| ShareView {
            name: name.into(),
            comment: comment.into(),
            path: format!("C:\\{name}"),
            security: Some(SecurityDescriptor::with_dacl(
                &well_known::BUILTIN_ADMINISTRATORS,
                &well_known::SYSTEM,
                Acl::new(vec![Ace::allow(&well_known::EVERYONE, 0x1f01ff, 0)]),
            )),
            ..Default::default()
        };
        let ipc = ShareView { kind: share_type::IPC | share_type::SPECIAL, ..disk("IPC$", "Remote IPC") };
        let shares = vec![disk("data", "Daten für alle"), disk("home", ""), ipc];
        View { users: Arc::new(users), closed: AtomicU32::new(0), shares }
    }
}

impl ServerView for View {
    fn identity(&self) -> ServerIdentity {
        ServerIdentity { domain: "WORKGROUP".into(), ..ServerIdentity::stand_alone("arden.example.org") }
    }
    fn comment(&self) -> String {
        "a file server".into()
    }
    fn now(&self) -> FileTime {
        FileTime::from_unix(1_795_000_000, 0)
    }
    fn started(&self) -> FileTime {
        FileTime::from_unix(1_794_000_000, 0)
    }
    fn users(&self) -> Arc<dyn UserDb> {
        self.users.clone()
    }
    fn shares(&self) -> Vec<ShareView> {
        self.shares.clone()
    }
    fn sessions(&self) -> Vec<SessionView> {
        vec![SessionView {
            id: 7,
            client: "10.0.0.9".into(),
            user: "alice".into(),
            opens: 1,
            seconds: 60,
            idle_seconds: 5,
            guest: false,
        }]
    }
    fn opens(&self) -> Vec<OpenView> {
        vec![OpenView { id: 42, access: 3, locks: 2, path: "C:\\data\\a.txt".into(), user: "alice".into() }]
    }
    fn connections(&self) -> Vec<ConnectionView> {
        vec![ConnectionView {
            id: 5,
            kind: 0,
            opens: 1,
            users: 1,
            seconds: 50,
            user: "alice".into(),
            client: "10.0.0.9".into(),
            share: "data".into(),
        }]
    }
    fn close_session(&self, id: u64) -> bool {
        self.closed.store(id as u32, Ordering::Relaxed);
        id == 7
    }
    fn close_file(&self, id: u32) -> bool {
        self.closed.store(id, Ordering::Relaxed);
        id == 42
    }
    fn file_security(&self, _: &str, _: &str, _: u32) -> Result<SecurityDescriptor, arden_wire::NtStatus> {
        Ok(self.shares[0].security.clone().unwrap())
    }
}

pub fn token(view: &View, name: &str) -> Token {
    token_for(&*view.users, &view.users.user(name).unwrap())
}

pub fn context(user: &str) -> PipeContext {
    let view = View::new();
    let caller = Arc::new(token(&view, user));
    PipeContext { view: Arc::new(view), caller }
}
