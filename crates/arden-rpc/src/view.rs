//! The facts about the server that the interfaces show. The SMB engine implements [`ServerView`].

use arden_auth::{ServerIdentity, UserDb};
use arden_wire::{FileTime, NtStatus, dtyp::SecurityDescriptor};
use std::{collections::HashMap, sync::Arc};

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
    /// Local path of the share, which administrators see.
    pub path: String,
    pub max_users: Option<u32>,
    /// Where it is asked for.
    pub current_users: u32,
    /// SHI1005_FLAGS, [MS-SRVS] 2.2.4.29: caching mode, access-based enumeration, encryption and others.
    pub flags: u32,
    /// Share-level security descriptor.
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
    /// Granted access as file access bits.
    pub access: u32,
    pub locks: u32,
    /// Local path: that of the share followed by that of the file.
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

/// The server as RPC clients see it. The interfaces check access before they call.
pub trait ServerView: Send + Sync {
    fn identity(&self) -> ServerIdentity;
    fn comment(&self) -> String {
        String::new()
    }
    fn now(&self) -> FileTime;
    fn started(&self) -> FileTime;
    fn users(&self) -> Arc<dyn UserDb>;

    /// All shares, including IPC$; how many use them is not counted.
    fn shares(&self) -> Vec<ShareView>;
    /// How many use each share, by its name: takes a look at all tree connects of everybody.
    fn share_uses(&self) -> HashMap<String, u32> {
        HashMap::new()
    }
    fn sessions(&self) -> Vec<SessionView>;
    fn opens(&self) -> Vec<OpenView>;
    fn connections(&self) -> Vec<ConnectionView>;

    /// Ends a session; false when there is none with this id.
    fn close_session(&self, id: u64) -> bool;
    /// Closes an open by order of an administrator; false when there is none with this id.
    fn close_file(&self, id: u32) -> bool;

    /// The parts of a file's descriptor that `information` names, for NetrpGetFileSecurity, [MS-SRVS] 3.1.4.27.
    ///
    /// # Errors
    /// The status of the file system.
    fn file_security(&self, _share: &str, _path: &str, _information: u32) -> Result<SecurityDescriptor, NtStatus> {
        Err(NtStatus::NOT_SUPPORTED)
    }

    /// Whether users without administrative rights may read the account database over samr. Windows refuses it.
    fn accounts_readable_by_users(&self) -> bool {
        false
    }
}
