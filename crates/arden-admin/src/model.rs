//! The records of users, groups, shares and settings, as they are stored and as the API shows them. Plain types without
//! rules.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A 64-bit identifier. In JSON it is a string of hexadecimal digits, because JSON numbers are exact up to 2^53 only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub u64);

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl std::str::FromStr for Id {
    type Err = std::num::ParseIntError;
    fn from_str(s: &str) -> std::result::Result<Id, Self::Err> {
        u64::from_str_radix(s.trim_start_matches("0x"), 16).map(Id)
    }
}

impl Serialize for Id {
    fn serialize<S: serde::Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl JsonSchema for Id {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Id".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "pattern": "^[0-9a-f]+$"})
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Id, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A user as stored. Of the password only the NT hash is stored, which NTLMv2 needs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRecord {
    pub name: String,
    #[serde(default)]
    pub full_name: String,
    pub rid: u32,
    /// MD4 of the password in UTF-16LE, as 32 hexadecimal digits: NTOWFv1, [MS-NLMP] 3.3.1.
    pub nt_hash: String,
    #[serde(default)]
    pub disabled: bool,
}

impl std::fmt::Debug for UserRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UserRecord({} rid {}{})", self.name, self.rid, if self.disabled { " disabled" } else { "" })
    }
}

/// A group as stored. `members` are SIDs: a later user with the name of a removed one is not a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    pub name: String,
    #[serde(default)]
    pub comment: String,
    pub sid: String,
    #[serde(default)]
    pub members: Vec<String>,
}

/// The store of a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ShareKind {
    /// An existing directory of any Linux file system.
    Dir,
    /// A directory of a volume.
    Volume,
}

/// The share ceiling: the most that a share grants a user. The ACLs of the files decide within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Rights {
    Read,
    Change,
    Full,
}

impl std::str::FromStr for Rights {
    type Err = String;
    fn from_str(s: &str) -> std::result::Result<Rights, String> {
        match s {
            "read" => Ok(Rights::Read),
            "change" => Ok(Rights::Change),
            "full" => Ok(Rights::Full),
            _ => Err(format!("{s:?} is not one of read, change, full")),
        }
    }
}

impl std::fmt::Display for Rights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Rights::Read => "read",
            Rights::Change => "change",
            Rights::Full => "full",
        })
    }
}

/// One entry of a share's access list. It is stored and compared by SID; `who` is its form in the API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Grant {
    /// A user, a group, `everyone`, or a SID.
    pub who: String,
    /// The most that is granted or, in `deny`, denied.
    pub rights: Rights,
}

/// A share as stored (grants by SID) and as shown (grants by name).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// At most 80 characters; compared without case.
    pub name: String,
    /// A directory of any Linux file system, or of a volume.
    #[serde(default = "dir_kind")]
    pub kind: ShareKind,
    /// The volume of `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Absolute path of the directory; on a volume from the volume's root.
    pub path: PathBuf,
    /// Shown in share lists.
    #[serde(default)]
    pub comment: String,
    /// Nobody may write.
    #[serde(default)]
    pub read_only: bool,
    /// Every request to this share has to be encrypted.
    #[serde(default)]
    pub encrypt: bool,
    /// Every change is on stable storage before it is acknowledged.
    #[serde(default)]
    pub write_through: bool,
    /// Persistent handles: opens outlive the daemon, for clients that ask for it.
    #[serde(default)]
    pub continuously_available: bool,
    /// In a cluster: a scale-out share, whose clients cache reads alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scale_out: bool,
    /// Left out of share lists; clients can connect by name.
    #[serde(default)]
    pub hidden: bool,
    /// Directory listings leave out entries that the caller may not read.
    #[serde(default)]
    pub access_based_enumeration: bool,
    /// Empty: every authenticated user has full access within the ACLs of the files.
    #[serde(default)]
    pub allow: Vec<Grant>,
    /// Takes precedence over `allow`.
    #[serde(default)]
    pub deny: Vec<Grant>,
    /// Limit of concurrent users; absent: no limit.
    #[serde(default)]
    pub users_max: Option<u32>,
    /// In requests only: allows a directory that holds, or is part of, files of the system or of Arden.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

fn dir_kind() -> ShareKind {
    ShareKind::Dir
}

/// Fields of a share to change; absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ShareChange {
    /// Absolute path of the directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Shown in share lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Nobody may write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Every request has to be encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypt: Option<bool>,
    /// Every change is on stable storage before it is acknowledged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_through: Option<bool>,
    /// Persistent handles: opens outlive the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuously_available: Option<bool>,
    /// In a cluster: a scale-out share, whose clients cache reads alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_out: Option<bool>,
    /// Left out of share lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden: Option<bool>,
    /// Directory listings leave out entries that the caller may not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_based_enumeration: Option<bool>,
    /// Replaces the whole list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<Grant>>,
    /// Replaces the whole list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deny: Option<Vec<Grant>>,
    /// Limit of concurrent users; 0 removes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users_max: Option<u32>,
    /// Allows a `path` that holds, or is part of, files of the system or of Arden.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// A user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "User")]
pub struct UserInfo {
    /// Compared without case.
    pub name: String,
    /// The person's name.
    pub full_name: String,
    /// Never changes.
    pub sid: String,
    /// Names of the groups that the user is in.
    pub groups: Vec<String>,
    /// The user cannot log on.
    pub disabled: bool,
}

/// A user to add.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewUser {
    /// At most 20 characters.
    pub name: String,
    /// Only the NT hash of the password is stored.
    pub password: String,
    /// The person's name.
    #[serde(default)]
    pub full_name: String,
    /// Names of groups to join.
    #[serde(default)]
    pub groups: Vec<String>,
    /// The user cannot log on.
    #[serde(default)]
    pub disabled: bool,
}

/// Fields of a user to change; absent fields stay as they are.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UserChange {
    /// A new password; ends the user's sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// The person's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_name: Option<String>,
    /// Whether the user cannot log on; a change ends the user's sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled: Option<bool>,
}

/// A group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Group")]
pub struct GroupInfo {
    /// Compared without case.
    pub name: String,
    /// Description.
    pub comment: String,
    /// Never changes.
    pub sid: String,
    /// Made by Arden; cannot be removed.
    pub builtin: bool,
    /// Names of the users in the group.
    pub members: Vec<String>,
}

/// A group to add.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewGroup {
    /// At most 256 characters; no user has it.
    pub name: String,
    /// Description.
    #[serde(default)]
    pub comment: String,
}

/// Settings of the whole server. Changes take effect without a restart unless a field says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// NetBIOS name, at most 15 characters; clients see it in NTLM and in server lists. Empty: the host's name.
    pub server_name: String,
    /// Shown in server lists.
    pub comment: String,
    /// Clients have to sign.
    pub signing_required: bool,
    /// Every session has to be encrypted: clients before SMB 3.0 cannot connect.
    pub encryption_required: bool,
    /// A session may have several connections.
    pub multichannel: bool,
    /// Time after which sessions, also existing ones, have to authenticate again; 0: never.
    pub session_lifetime_seconds: u32,
    /// Limit of TCP connections. A change needs a restart.
    pub connections_max: u32,
    /// Limit of sessions. A change needs a restart.
    pub sessions_max: u32,
    /// Limit of open files and directories. A change needs a restart.
    pub opens_max: u32,
    /// Memory for blocks of volumes' files and for their metadata, in bytes; 0: an eighth of the machine's. At least 32 MiB.
    pub volume_cache_bytes: u64,
    /// SID of the machine, the domain of local accounts. Shown here only; it is stored with the identity of the server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub machine_sid: String,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            server_name: String::new(),
            comment: String::new(),
            signing_required: true,
            encryption_required: false,
            multichannel: true,
            connections_max: 4096,
            sessions_max: 8192,
            opens_max: 262_144,
            volume_cache_bytes: 0,
            session_lifetime_seconds: 0,
            machine_sid: String::new(),
        }
    }
}

/// Settings to change; absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SettingsChange {
    /// NetBIOS name; empty: the host's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    /// Shown in server lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Clients have to sign.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_required: Option<bool>,
    /// Every session has to be encrypted: clients before SMB 3.0 cannot connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption_required: Option<bool>,
    /// A session may have several connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multichannel: Option<bool>,
    /// Limit of TCP connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_max: Option<u32>,
    /// Limit of sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions_max: Option<u32>,
    /// Limit of open files and directories.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opens_max: Option<u32>,
    /// Memory for blocks of volumes' files and for their metadata, in bytes; 0: an eighth of the machine's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_cache_bytes: Option<u64>,
    /// Time after which sessions have to authenticate again; 0: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_lifetime_seconds: Option<u32>,
    /// SID of the machine. Refused when accounts have SIDs of the old one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_sid: Option<String>,
}

/// A session of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Session")]
pub struct SessionInfo {
    /// Hexadecimal digits.
    pub id: Id,
    /// Name of the user.
    pub user: String,
    /// `address:port` of the first channel.
    pub client: String,
    /// Dialect as [MS-SMB2] writes it: 2.0.2, 2.1, 3.0, 3.0.2, 3.1.1.
    #[schemars(extend("enum" = ["2.0.2", "2.1", "3.0", "3.0.2", "3.1.1"]))]
    pub dialect: String,
    /// Signing algorithm; empty when not signed.
    pub signing: String,
    /// Cipher; empty when not encrypted.
    pub encryption: String,
    /// Connections bound to the session.
    pub channels: u32,
    /// Open files and directories.
    pub opens: u32,
    /// Seconds since the logon.
    pub age_seconds: u64,
    /// Seconds since the last request.
    pub idle_seconds: u64,
    /// In a cluster: the node that the client is connected to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
}

/// The result of ending a user's sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionsClosed {
    /// Number of sessions that were ended.
    pub closed: u32,
}

/// An open file or directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Open")]
pub struct OpenInfo {
    /// Hexadecimal digits.
    pub id: Id,
    /// Absent while a durable open waits for its client.
    pub session: Option<Id>,
    /// Name of the user.
    pub user: String,
    /// `address:port` of the session's first channel; empty while the open waits for its client.
    pub client: String,
    /// Name of the share.
    pub share: String,
    /// Relative to the share, with backslashes; empty for its root.
    pub path: String,
    /// Granted access mask.
    pub access: u32,
    /// Cached rights, for example `batch` or `lease rwh`; empty for none.
    pub cache: String,
    /// The open outlives its connection.
    pub durable: bool,
    /// Byte-range locks held.
    pub locks: u32,
    /// In a cluster: the node that serves the share.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
}

/// A counter or gauge of a server, for `/metrics` and the status.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// Name without the prefix `arden_`; counters end in `_total`.
    pub name: &'static str,
    pub help: &'static str,
    pub counter: bool,
    /// Labels and their values.
    pub labels: Vec<(&'static str, String)>,
    pub value: f64,
}

/// The state of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Status")]
pub struct StatusInfo {
    /// The daemon's version.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since the daemon started.
    pub uptime_seconds: u64,
    /// `address:port` of each listening socket.
    pub listen: Vec<String>,
    /// NetBIOS name.
    pub server_name: String,
    /// ServerGuid, [MS-SMB2] 2.2.4.
    pub server_guid: String,
    /// SID of the machine, the domain of local accounts.
    pub machine_sid: String,
    /// Number of shares.
    pub shares: u32,
    /// Shares that are not served as they are written down.
    #[serde(default)]
    pub share_problems: Vec<ShareProblem>,
    /// Number of users.
    pub users: u32,
    /// Number of authenticated sessions.
    pub sessions: u32,
    /// Number of open files and directories.
    pub opens: u32,
    /// Resident memory of the daemon.
    pub memory_bytes: u64,
    /// A part of it: blocks of volumes' files, nodes of their trees, and changes that wait for a checkpoint.
    pub volume_cache_bytes: u64,
    /// As much as these may take: a setting. Less while the machine is short of memory.
    pub volume_cache_bytes_max: u64,
}

/// A share that is not served, or not from where it is said to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShareProblem {
    /// The share's name.
    pub share: String,
    /// What is wrong.
    pub problem: String,
}

/// The least that `volume_cache_bytes` may be set to, except 0.
pub const VOLUME_CACHE_BYTES_MIN: u64 = 32 << 20;
