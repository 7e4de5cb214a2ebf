//! The data that administration speaks of, as it is stored and as the API shows it. Plain types: no rules.

use std::path::PathBuf;

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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShareKind {
    /// An existing directory of any Linux file system.
    Dir,
    /// A directory of a volume.
    Volume,
}

/// What a share lets somebody do at most; the files' own ACLs decide within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// A user, a group, `everyone`, or a SID.
    pub who: String,
    pub rights: Rights,
}

/// A share as stored (grants by SID) and as shown (grants by name).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    pub name: String,
    #[serde(default = "dir_kind")]
    pub kind: ShareKind,
    /// The volume that `path` is on, from its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    pub path: PathBuf,
    #[serde(default)]
    pub comment: String,
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShareChange {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypt: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_through: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuously_available: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden: Option<bool>,
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserInfo {
    pub name: String,
    pub full_name: String,
    pub sid: String,
    pub groups: Vec<String>,
    pub disabled: bool,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewUser {
    pub name: String,
    pub password: String,
    #[serde(default)]
    pub full_name: String,
    #[serde(default)]
    pub groups: Vec<String>,
    #[serde(default)]
    pub disabled: bool,
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UserChange {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupInfo {
    pub name: String,
    pub comment: String,
    pub sid: String,
    /// Made by Arden; cannot be removed.
    pub builtin: bool,
    pub members: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewGroup {
    pub name: String,
    #[serde(default)]
    pub comment: String,
}

/// What holds for the whole server. Changes need no restart unless they say so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// NetBIOS name, at most 15 characters; clients see it in NTLM and in server lists. Empty: the host's name.
    pub server_name: String,
    pub comment: String,
    pub signing_required: bool,
    /// Every session has to encrypt: clients before SMB 3.0 cannot connect.
    pub encryption_required: bool,
    pub multichannel: bool,
    /// Sessions have to authenticate again after this time, those that exist too; 0: never.
    pub session_lifetime_seconds: u32,
    /// Needs a restart, as the two below.
    pub connections_max: u32,
    pub sessions_max: u32,
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SettingsChange {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_required: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption_required: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multichannel: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opens_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_lifetime_seconds: Option<u32>,
    /// Refused once there are accounts whose SIDs begin with the old one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_sid: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    pub id: Id,
    pub user: String,
    /// `address:port` of the first channel.
    pub client: String,
    /// As [MS-SMB2] writes it: 2.0.2, 2.1, 3.0, 3.0.2, 3.1.1.
    pub dialect: String,
    /// Algorithm, or empty when not signed.
    pub signing: String,
    /// Cipher, or empty when not encrypted.
    pub encryption: String,
    pub channels: u32,
    pub opens: u32,
    pub age_seconds: u64,
    pub idle_seconds: u64,
}

/// How many sessions of a user were ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionsClosed {
    pub closed: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenInfo {
    pub id: Id,
    /// None while a durable open waits for its client.
    pub session: Option<Id>,
    pub user: String,
    /// `address:port` of the session's first channel; empty while the open waits for its client.
    pub client: String,
    pub share: String,
    /// Relative to the share, with backslashes; empty for its root.
    pub path: String,
    /// Granted access mask.
    pub access: u32,
    /// For example `batch`, `lease rwh`, or empty.
    pub cache: String,
    pub durable: bool,
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusInfo {
    pub version: String,
    pub pid: u32,
    pub uptime_seconds: u64,
    /// `address:port` that clients connect to.
    pub listen: Vec<String>,
    pub server_name: String,
    pub server_guid: String,
    pub machine_sid: String,
    pub shares: u32,
    pub users: u32,
    pub sessions: u32,
    pub opens: u32,
    pub memory_bytes: u64,
}
