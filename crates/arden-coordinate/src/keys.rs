//! Names and values of the keys of a cluster (`docs/cluster.md`), and the transactions of a node as etcd takes them. Values are
//! JSON. Refuses a value that it does not understand: nothing is guessed of who owns a pool.

use std::collections::{BTreeMap, BTreeSet};

use arden_cluster::{
    Epoch, Holder, IfOwner, LeaseId, NodeId, OwnerKey, PoolId, Record, Revision, SetOwner, Transaction, View,
};
use serde::{Deserialize, Serialize};

use crate::{
    etcd::{Found, If, KeyValue, Then},
    peers::Known,
};

/// The version of keys and values. One line for each bump:
/// 1: the first.
pub const VERSION: u32 = 1;

/// The newest feature level of a cluster that this node knows. One line for each:
/// 1: the first.
/// 2: floating addresses, scale-out shares.
/// 3: the fence `nvme`.
pub const FEATURE_LEVEL: u32 = 3;
/// The level of nodes that do not say which they know.
const FIRST_LEVEL: u32 = 1;

/// Of one cluster, by its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    prefix: String,
}

impl Names {
    pub fn new(cluster: &str) -> Names {
        Names { prefix: format!("/arden/{cluster}/") }
    }
    /// Of all keys.
    pub fn all(&self) -> String {
        self.prefix.clone()
    }
    /// What comes behind the prefix.
    pub fn relative<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&self.prefix)
    }
    pub fn cluster(&self) -> String {
        format!("{}cluster", self.prefix)
    }
    /// The feature level, once it was raised.
    pub fn level(&self) -> String {
        format!("{}level", self.prefix)
    }
    pub fn nodes(&self) -> String {
        format!("{}node/", self.prefix)
    }
    pub fn node(&self, node: u16) -> String {
        format!("{}node/{node}", self.prefix)
    }
    /// The last number that was given to a node.
    pub fn numbers(&self) -> String {
        format!("{}numbers", self.prefix)
    }
    pub fn drains(&self) -> String {
        format!("{}drain/", self.prefix)
    }
    pub fn drain(&self, node: u16) -> String {
        format!("{}drain/{node}", self.prefix)
    }
    /// Claims of names by which disks know machines.
    pub fn hosts(&self) -> String {
        format!("{}host/", self.prefix)
    }
    pub fn tokens(&self) -> String {
        format!("{}token/", self.prefix)
    }
    pub fn token(&self, hash: &str) -> String {
        format!("{}token/{hash}", self.prefix)
    }
    pub fn alives(&self) -> String {
        format!("{}alive/", self.prefix)
    }
    pub fn alive(&self, node: u16) -> String {
        format!("{}alive/{node}", self.prefix)
    }
    pub fn pools(&self) -> String {
        format!("{}pool/", self.prefix)
    }
    pub fn pool(&self, pool: PoolId) -> String {
        format!("{}pool/{:032x}/", self.prefix, pool.0)
    }
    /// Of a node that imports a pool, until the cluster has it.
    pub fn import(&self, pool: PoolId) -> String {
        format!("{}import/{:032x}", self.prefix, pool.0)
    }
    pub fn owner(&self, pool: PoolId) -> String {
        format!("{}owner", self.pool(pool))
    }
    pub fn record(&self, pool: PoolId) -> String {
        format!("{}record", self.pool(pool))
    }
    pub fn config(&self, pool: PoolId) -> String {
        format!("{}config", self.pool(pool))
    }
    pub fn moving(&self, pool: PoolId) -> String {
        format!("{}move", self.pool(pool))
    }
    pub fn client_moves(&self) -> String {
        format!("{}client-move/", self.prefix)
    }
    /// Of one client, whose name is in lower case.
    pub fn client_move(&self, client: &str) -> String {
        let hex: String = client.bytes().map(|b| format!("{b:02x}")).collect();
        format!("{}{hex}", self.client_moves())
    }
    pub fn state(&self) -> String {
        format!("{}state/", self.prefix)
    }
}

/// `cluster`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterValue {
    pub id: String,
    pub name: String,
    pub version: u32,
    /// When it was made.
    pub feature_level: u32,
    pub lease_seconds: u64,
}

/// `node/N`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeValue {
    pub name: String,
    /// The newest version of the keys that it knows.
    pub version: u32,
    /// The newest feature level that it knows.
    #[serde(default = "first_level")]
    pub feature_level: u32,
    /// Fingerprint of its certificate, 64 hexadecimal digits. None: it joined before nodes had certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
}

fn first_level() -> u32 {
    FIRST_LEVEL
}

/// `alive/N`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AliveValue {
    pub run: String,
    /// Where clients connect.
    pub addresses: Vec<String>,
    /// Where other nodes connect.
    #[serde(default)]
    pub node_addresses: Vec<String>,
    /// The lease that it was put under.
    #[serde(default)]
    pub lease: u64,
}

/// `client-move/CLIENT`: an administrator moves a client to a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientMoveValue {
    pub client: String,
    pub to: u16,
}

/// `pool/P/owner`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct OwnerValue {
    node: u16,
    epoch: u64,
}

/// `pool/P/record`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RecordValue {
    epoch: u64,
    holders: Vec<OwnerValue>,
    written: u64,
    blocked: Option<u64>,
}

/// `pool/P/config`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigValue {
    /// `agent:PATH`, `scsi`, `nvme`, or `none`.
    pub fence: String,
    /// With `scsi` and `nvme`: owners up to this epoch registered no keys with the disks.
    #[serde(default)]
    pub keyless: u64,
    /// `NAME=VALUE` for the agent, which may be secrets, or the fence.
    #[serde(default)]
    pub fence_options: Vec<String>,
}

/// `pool/P/move`: the owner with this epoch hands the pool over, and others let that node go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveValue {
    pub to: u16,
    pub epoch: u64,
}

/// The value of a key. It never fails: the types are plain.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// # Errors
/// The value is not understood.
pub fn decode<T: for<'a> Deserialize<'a>>(pair: &KeyValue) -> Result<T, String> {
    serde_json::from_slice(&pair.value).map_err(|_| format!("the value of {} is not understood", pair.key))
}

pub fn encode_record(record: &Record) -> Vec<u8> {
    let value = |h: &Holder| OwnerValue { node: h.node.0, epoch: h.epoch.0 };
    encode(&RecordValue {
        epoch: record.epoch.0,
        holders: record.holders.iter().map(value).collect(),
        written: record.written.0,
        blocked: record.blocked.map(|e| e.0),
    })
}

fn decode_record(pair: &KeyValue) -> Result<Record, String> {
    let value: RecordValue = decode(pair)?;
    let holder = |h: &OwnerValue| Holder { node: NodeId(h.node), epoch: Epoch(h.epoch) };
    Ok(Record {
        epoch: Epoch(value.epoch),
        holders: value.holders.iter().map(holder).collect(),
        written: Epoch(value.written),
        blocked: value.blocked.map(Epoch),
    })
}

fn encode_owner(key: &OwnerKey) -> Vec<u8> {
    encode(&OwnerValue { node: key.node.0, epoch: key.epoch.0 })
}

/// All keys of one pool as of one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolKeys {
    pub revision: Revision,
    pub view: View,
    pub config: ConfigValue,
    pub moving: Option<MoveValue>,
}

impl PoolKeys {
    /// # Errors
    /// A value is not understood.
    pub fn of(names: &Names, pool: PoolId, found: &Found) -> Result<PoolKeys, String> {
        let mut keys = PoolKeys { revision: Revision(found.revision), ..PoolKeys::default() };
        keys.config.fence = "none".to_string();
        if let Some(pair) = found.get(&names.owner(pool)) {
            let value: OwnerValue = decode(pair)?;
            let lease = LeaseId(pair.lease);
            keys.view.owner = Some(OwnerKey { node: NodeId(value.node), epoch: Epoch(value.epoch), lease });
        }
        if let Some(pair) = found.get(&names.record(pool)) {
            keys.view.record = decode_record(pair)?;
            keys.view.changed = Revision(pair.mod_revision);
        }
        if let Some(pair) = found.get(&names.config(pool)) {
            keys.config = decode(pair)?;
        }
        keys.moving = found.get(&names.moving(pool)).map(decode).transpose()?;
        Ok(keys)
    }
}

/// The transaction for etcd, beside the conditions that all of a node have.
pub fn transaction(names: &Names, pool: PoolId, t: &Transaction) -> (Vec<If>, Vec<Then>) {
    let (owner, record) = (names.owner(pool), names.record(pool));
    let mut if_all = Vec::new();
    match t.if_owner {
        IfOwner::Absent => if_all.push(If::Changed(owner.clone(), 0)),
        IfOwner::Is(key) => {
            if_all.push(If::Has(owner.clone(), encode_owner(&key)));
            if_all.push(If::OfLease(owner.clone(), key.lease.0));
        }
    }
    if_all.extend(t.if_record.map(|r| If::Changed(record.clone(), r.0)));
    let mut then = Vec::new();
    match t.owner {
        SetOwner::Keep => {}
        SetOwner::Put(key) => then.push(Then::Put(owner, encode_owner(&key), key.lease.0)),
        SetOwner::Delete => then.push(Then::Delete(owner)),
    }
    then.extend(t.record.as_ref().map(|r| Then::Put(record, encode_record(r), 0)));
    (if_all, then)
}

/// The values of the keys `PREFIX/N`, by number. One that is not understood is left out.
fn numbered<T: for<'a> Deserialize<'a>>(prefix: &str, found: &Found) -> BTreeMap<u16, T> {
    let value = |pair: &KeyValue| Some((pair.key.strip_prefix(prefix)?.parse().ok()?, decode(pair).ok()?));
    found.pairs.iter().filter_map(value).collect()
}

/// What nodes that are alive say of themselves, by number. One that is not understood is left out.
pub fn alive(names: &Names, found: &Found) -> BTreeMap<u16, AliveValue> {
    numbered(&names.alives(), found)
}

/// The nodes that are to own nothing.
pub fn drained(names: &Names, found: &Found) -> BTreeSet<u16> {
    let prefix = names.drains();
    found.pairs.iter().filter_map(|p| p.key.strip_prefix(&prefix)?.parse().ok()).collect()
}

/// The nodes of the cluster.
pub fn nodes(names: &Names, found: &Found) -> BTreeMap<u16, NodeValue> {
    numbered(&names.nodes(), found)
}

/// The feature level of a cluster that was made with `made`, and the revision of the key that raised it; zero without it.
///
/// # Errors
/// The value is not understood.
pub fn level(names: &Names, made: u32, found: &Found) -> Result<(u32, u64), String> {
    match found.get(&names.level()) {
        Some(pair) => Ok((made.max(decode(pair)?), pair.mod_revision)),
        None => Ok((made, 0)),
    }
}

/// The last number that was given to a node, and the revision of the key; zeros without it.
///
/// # Errors
/// The value is not understood.
pub fn last_number(names: &Names, found: &Found) -> Result<(u16, u64), String> {
    match found.get(&names.numbers()) {
        Some(pair) => Ok((decode(pair)?, pair.mod_revision)),
        None => Ok((0, 0)),
    }
}

/// The nodes of the cluster as others connect to them. `found` has the keys `node/` and `alive/` as of one revision.
pub fn peers(names: &Names, found: &Found) -> BTreeMap<u16, Known> {
    let mut alive = alive(names, found);
    let known = |(number, node): (u16, NodeValue)| {
        let (run, addresses) = alive.remove(&number).map(|a| (a.run, a.node_addresses)).unzip();
        let fingerprint = node.certificate.and_then(|c| c.parse().ok());
        (number, Known { name: node.name, fingerprint, run, addresses: addresses.unwrap_or_default() })
    };
    nodes(names, found).into_iter().map(known).collect()
}

/// The id of the pool that a key is of, by what comes behind the cluster's prefix.
pub fn pool_of(relative: &str) -> Option<PoolId> {
    let id = relative.strip_prefix("pool/")?.split('/').next()?;
    u128::from_str_radix(id, 16).ok().map(PoolId)
}

/// The pools that have a record.
pub fn pools(names: &Names, found: &Found) -> Vec<PoolId> {
    let records = found.pairs.iter().filter(|p| p.key.ends_with("/record"));
    records.filter_map(|p| pool_of(names.relative(&p.key)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_read_back_as_it_was_written() {
        let names = Names::new("c");
        let pool = PoolId(0xab);
        let record = Record {
            epoch: Epoch(7),
            holders: vec![Holder { node: NodeId(2), epoch: Epoch(7) }],
            written: Epoch(6),
            blocked: Some(Epoch(9)),
        };
        let key = OwnerKey { node: NodeId(2), epoch: Epoch(7), lease: LeaseId(99) };
        let pair = |key: String, value: Vec<u8>, lease| KeyValue { key, value, mod_revision: 41, lease };
        let mut found = Found {
            revision: 50,
            pairs: vec![
                pair(names.record(pool), encode_record(&record), 0),
                pair(names.owner(pool), encode_owner(&key), 99),
            ],
        };
        let keys = PoolKeys::of(&names, pool, &found).unwrap();
        assert_eq!(keys.view, View { owner: Some(key), record, changed: Revision(41) });
        assert_eq!((keys.revision, keys.config.fence.as_str()), (Revision(50), "none"));
        found.pairs[0].value = b"{}".to_vec();
        let error = PoolKeys::of(&names, pool, &found).unwrap_err();
        assert!(error.contains("not understood") && !error.contains("{}"), "{error}");
    }

    #[test]
    fn keys_name_their_pool() {
        let names = Names::new("c");
        let key = names.record(PoolId(0xab));
        assert_eq!(names.relative(&key).and_then(pool_of), Some(PoolId(0xab)));
        assert_eq!(names.relative(&names.node(3)).and_then(pool_of), None);
        assert_eq!(names.relative("/arden/other/pool/1/record"), None);
    }
}
