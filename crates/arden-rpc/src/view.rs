//! The part of the server that the interfaces show. The SMB engine implements [`ServerView`].

use arden_auth::{ServerIdentity, UserDb};
use arden_wire::{FileTime, NtStatus, dtyp::SecurityDescriptor};
use std::sync::Arc;

/// Share types, [MS-SRVS] 2.2.2.4.
pub mod share_type {
    pub const DISKTREE: u32 = 0;
    pub const PRINTQ: u32 = 1;
    pub const DEVICE: u32 = 2;
    pub const IPC: u32 = 3;
    pub const CLUSTER_FS: u32 = 0x0200_0000;
    pub const CLUSTER_SOFS: u32 = 0x0400_0000;
    pub const CLUSTER_DFS: u32 = 0x0800_0000;
    pub const TEMPORARY: u32 = 0x4000_0000;
    pub const SPECIAL: u32 = 0x8000_0000;
}

/// A share, [MS-SRVS] 2.2.4.26.
#[derive(Debug, Clone, Default)]
pub struct ShareView {
    pub name: String,
    pub comment: String,
    /// [`share_type`] bits; IPC$ is IPC | SPECIAL.
    pub kind: u32,
    /// Where it is, as administrators see it.
    pub path: String,
    pub max_users: Option<u32>,
    pub current_users: u32,
    /// SHI1005_FLAGS, [MS-SRVS] 2.2.4.29: caching mode, access-based enumeration, encryption and so on.
    pub flags: u32,
    /// Share-level security.
    pub security: Option<SecurityDescriptor>,
    /// The server name that the share is scoped to; "*" when empty.
    pub server_name: String,
}

/// A session, [MS-SRVS] 2.2.4.15.
#[derive(Debug, Clone, Default)]
pub struct SessionView {
    pub id: u64,
    /// The client's address or name, without backslashes.
    pub client: String,
    pub user: String,
    pub opens: u32,
    pub seconds: u32,
    pub idle_seconds: u32,
    pub guest: bool,
}

/// An open file or pipe, [MS-SRVS] 2.2.4.7.
#[derive(Debug, Clone, Default)]
pub struct OpenView {
    pub id: u32,
    /// Access granted, in file access bits.
    pub access: u32,
    pub locks: u32,
    /// As administrators see it: the share's path and the file's.
    pub path: String,
    pub user: String,
}

/// A tree connect, [MS-SRVS] 2.2.4.2.
#[derive(Debug, Clone, Default)]
pub struct ConnectionView {
    pub id: u32,
    /// [`share_type`] of the share.
    pub kind: u32,
    pub opens: u32,
    pub users: u32,
    pub seconds: u32,
    pub user: String,
    /// The client's address or name, without backslashes.
    pub client: String,
    pub share: String,
}

/// The server as RPC clients see it. The interfaces check who may call what; this need not.
pub trait ServerView: Send + Sync {
    fn identity(&self) -> ServerIdentity;
    fn comment(&self) -> String {
        String::new()
    }
    fn now(&self) -> FileTime;
    fn started(&self) -> FileTime;
    fn users(&self) -> Arc<dyn UserDb>;

    /// All shares, IPC$ included.
    fn shares(&self) -> Vec<ShareView>;
    fn sessions(&self) -> Vec<SessionView>;
    fn opens(&self) -> Vec<OpenView>;
    fn connections(&self) -> Vec<ConnectionView>;

    /// Ends a session; whether there was one.
    fn close_session(&self, id: u64) -> bool;
    /// Closes an open as an administrator's order; whether there was one.
    fn close_file(&self, id: u32) -> bool;

    /// The descriptor of a file by share and path, for NetrpGetFileSecurity.
    fn file_security(&self, _share: &str, _path: &str, _information: u32) -> Result<SecurityDescriptor, NtStatus> {
        Err(NtStatus::NOT_SUPPORTED)
    }

    /// Whether users who are no administrators may read the account database over samr. Windows has refused
    /// that since 2016.
    fn accounts_readable_by_users(&self) -> bool {
        false
    }
}
