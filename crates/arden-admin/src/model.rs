//! The data that administration speaks of, as it is stored and as the API shows it. Plain types: no rules.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A 64-bit identifier in JSON: a string of hexadecimal digits, because JSON numbers end at 2^53.
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

/// A user as stored. The password is not: only its NT hash, which is what NTLMv2 needs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRecord {
    pub name: String,
    #[serde(default)]
    pub full_name: String,
    pub rid: u32,
    /// MD4 of the UTF-16LE password, 32 hexadecimal digits.
    pub nt_hash: String,
    #[serde(default)]
    pub disabled: bool,
}

impl std::fmt::Debug for UserRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UserRecord({} rid {}{})", self.name, self.rid, if self.disabled { " disabled" } else { "" })
    }
}

/// A group as stored; `members` are SIDs, so that a later user of the same name inherits nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    pub name: String,
    #[serde(default)]
    pub comment: String,
    pub sid: String,
    #[serde(default)]
    pub members: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ShareKind {
    /// An existing directory of any Linux file system.
    Dir,
    /// A directory of a volume.
    Volume,
}

/// The most that a share grants a user; the files' own ACLs decide within it.
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

/// One entry of a share's access list. Stored and compared by SID; `who` is what the API shows and takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Grant {
    /// A user, a group, `everyone`, or a SID.
    pub who: String,
    /// At most this.
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
    /// The volume that `path` is on, from its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Absolute path of the directory, on a volume from its root.
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
    /// Also open handles outlive the daemon, for clients that ask for it.
    #[serde(default)]
    pub continuously_available: bool,
    /// Left out of share lists; the name still connects.
    #[serde(default)]
    pub hidden: bool,
    /// Directory listings leave out what the caller may not read.
    #[serde(default)]
    pub access_based_enumeration: bool,
    /// Empty: every authenticated user has full access (within the files' ACLs).
    #[serde(default)]
    pub allow: Vec<Grant>,
    /// Stronger than `allow`.
    #[serde(default)]
    pub deny: Vec<Grant>,
    /// Concurrent users; none: no limit of its own.
    #[serde(default)]
    pub users_max: Option<u32>,
    /// Of a request only: also a directory that holds, or is part of, what belongs to the system or to Arden.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

fn dir_kind() -> ShareKind {
    ShareKind::Dir
}

/// Fields of a share to change; what is absent stays.
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
    /// Requests have to be encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypt: Option<bool>,
    /// Changes are on stable storage before they are acknowledged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_through: Option<bool>,
    /// Also open handles outlive the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuously_available: Option<bool>,
    /// Left out of share lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden: Option<bool>,
    /// Listings leave out what the caller may not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_based_enumeration: Option<bool>,
    /// Replaces the whole list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<Grant>>,
    /// Replaces the whole list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deny: Option<Vec<Grant>>,
    /// 0 takes the limit away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users_max: Option<u32>,
    /// Also a `path` that holds, or is part of, what belongs to the system or to Arden.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "User")]
pub struct UserInfo {
    /// Compared without case.
    pub name: String,
    /// For people.
    pub full_name: String,
    /// Stays with the account.
    pub sid: String,
    /// Names of groups.
    pub groups: Vec<String>,
    /// Cannot log on.
    pub disabled: bool,
}

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewUser {
    /// At most 20 characters.
    pub name: String,
    /// Only its NT hash is stored.
    pub password: String,
    /// For people.
    #[serde(default)]
    pub full_name: String,
    /// Names of groups to join.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Cannot log on.
    #[serde(default)]
    pub disabled: bool,
}

#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UserChange {
    /// Ends the user's sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_name: Option<String>,
    /// Ends the user's sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Group")]
pub struct GroupInfo {
    /// Compared without case.
    pub name: String,
    /// For people.
    pub comment: String,
    /// Stays with the account.
    pub sid: String,
    /// Made by Arden; cannot be removed.
    pub builtin: bool,
    /// Users, by name.
    pub members: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewGroup {
    /// Shares its names with users.
    pub name: String,
    /// For people.
    #[serde(default)]
    pub comment: String,
}

/// What holds for the whole server. Changes need no restart unless they say so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// NetBIOS name, at most 15 characters; clients see it in NTLM and in server lists. Empty: the host's name.
    pub server_name: String,
    /// Shown in server lists.
    pub comment: String,
    /// Clients have to sign.
    pub signing_required: bool,
    /// Every session has to encrypt: clients before SMB 3.0 cannot connect.
    pub encryption_required: bool,
    /// Several connections for one session.
    pub multichannel: bool,
    /// Sessions have to authenticate again after this time, those that exist too; 0: never.
    pub session_lifetime_seconds: u32,
    /// Needs a restart, as the two below.
    pub connections_max: u32,
    /// Sessions at most.
    pub sessions_max: u32,
    /// Open files and directories.
    pub opens_max: u32,
    /// SID that local accounts start with. Only shown here: the snapshot keeps it.
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
            session_lifetime_seconds: 0,
            machine_sid: String::new(),
        }
    }
}

/// Fields of the settings to change; what is absent stays.
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
    /// Clients have to encrypt, which SMB before 3.0 cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption_required: Option<bool>,
    /// Several connections for one session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multichannel: Option<bool>,
    /// TCP connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_max: Option<u32>,
    /// Sessions at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions_max: Option<u32>,
    /// Open files and directories.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opens_max: Option<u32>,
    /// After this time sessions have to authenticate again; 0: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_lifetime_seconds: Option<u32>,
    /// Refused once there are accounts whose SIDs begin with the old one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_sid: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Session")]
pub struct SessionInfo {
    /// Hexadecimal digits.
    pub id: Id,
    /// Who logged on.
    pub user: String,
    /// `address:port` of the first channel.
    pub client: String,
    /// As [MS-SMB2] writes it: 2.0.2, 2.1, 3.0, 3.0.2, 3.1.1.
    #[schemars(extend("enum" = ["2.0.2", "2.1", "3.0", "3.0.2", "3.1.1"]))]
    pub dialect: String,
    /// Algorithm, or empty when not signed.
    pub signing: String,
    /// Cipher, or empty when not encrypted.
    pub encryption: String,
    /// Connections bound to the session.
    pub channels: u32,
    /// Open files and directories.
    pub opens: u32,
    /// Seconds since the logon.
    pub age_seconds: u64,
    /// Seconds since the last request.
    pub idle_seconds: u64,
}

/// How many sessions of a user were ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionsClosed {
    /// Sessions that were ended.
    pub closed: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Open")]
pub struct OpenInfo {
    /// Hexadecimal digits.
    pub id: Id,
    /// None while a durable open waits for its client.
    pub session: Option<Id>,
    /// Who opened it.
    pub user: String,
    /// `address:port` of the session's first channel; empty while the open waits for its client.
    pub client: String,
    /// Name of the share.
    pub share: String,
    /// Relative to the share, with backslashes; empty for its root.
    pub path: String,
    /// Granted access mask.
    pub access: u32,
    /// For example `batch`, `lease rwh`, or empty.
    pub cache: String,
    /// Survives a lost connection.
    pub durable: bool,
    /// Byte-range locks held.
    pub locks: u32,
}

/// A counter or gauge of a server, for `/metrics` and `status`.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// Without the `arden_` in front; `_total` at the end of counters.
    pub name: &'static str,
    pub help: &'static str,
    pub counter: bool,
    /// Label pairs of one sample.
    pub labels: Vec<(&'static str, String)>,
    pub value: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Status")]
pub struct StatusInfo {
    /// The daemon's version.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since the daemon started.
    pub uptime_seconds: u64,
    /// `address:port` that clients connect to.
    pub listen: Vec<String>,
    /// NetBIOS name.
    pub server_name: String,
    /// ServerGuid of the negotiation.
    pub server_guid: String,
    /// SID that local accounts start with.
    pub machine_sid: String,
    /// Shares that are configured.
    pub shares: u32,
    /// Users that are known.
    pub users: u32,
    /// Authenticated sessions.
    pub sessions: u32,
    /// Open files and directories.
    pub opens: u32,
    /// Resident memory.
    pub memory_bytes: u64,
}
