//! What makes a daemon a node of a cluster: the file in its state directory, and how that comes to be. A cluster begins with the
//! state of one daemon; others join with a token, and without a state of their own. Runs while no daemon uses the directory.

use std::{path::Path, sync::Arc};

use arden_admin::{AdminError, ErrorKind, State, StateDirectory, error::Result, secret, state::Change};
use arden_cluster::{Epoch, PoolId, Record};
use ring::digest;
use serde::{Deserialize, Serialize};

use crate::{
    etcd::{Etcd, Found, If, STEPS_MAX, Then},
    etcd_tls::EtcdFiles,
    files,
    identity::Identity,
    keys::{self, ClusterValue, Names, NodeValue},
    level,
    trust::{Trust, seen_file},
};

/// A token is good for so long.
pub const TOKEN_SECONDS: u64 = 3600;
/// The shortest and the longest lease: below it etcd gives a longer one, above it clients give up.
const LEASE_SECONDS: std::ops::RangeInclusive<u64> = 2..=60;
/// Nodes that a cluster had, those that left included.
const NODES_MAX: u16 = 2000;

/// `cluster.json` in the state directory of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    pub cluster: ClusterValue,
    pub node: u16,
    pub name: String,
    pub etcd: Vec<String>,
    /// None: in the clear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_tls: Option<EtcdFiles>,
}

/// The pools of the state that a cluster begins with, and the newest epoch in the labels of each.
pub type Pools = Vec<(PoolId, Epoch)>;

fn conflict(error: impl Into<String>, hint: impl Into<String>) -> AdminError {
    AdminError::new(ErrorKind::Conflict, error, hint)
}

pub(crate) fn file(state_dir: &Path) -> std::path::PathBuf {
    state_dir.join("cluster.json")
}

fn check_node_name(name: &str) -> Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
    if name.is_empty() || name.len() > 63 || name.starts_with('-') || !name.chars().all(fits) {
        let hint = "use 1 to 63 letters, digits, dots and dashes; --node names it";
        return Err(AdminError::invalid(format!("{name:?} cannot be a node's name"), hint));
    }
    Ok(())
}

fn check_lease(seconds: u64) -> Result<()> {
    if LEASE_SECONDS.contains(&seconds) {
        return Ok(());
    }
    let range = format!("{} to {}", LEASE_SECONDS.start(), LEASE_SECONDS.end());
    Err(AdminError::invalid(format!("a lease of {seconds} seconds is out of range"), format!("use {range}")))
}

fn hash(secret: &str) -> String {
    secret::hex(digest::digest(&digest::SHA256, secret.as_bytes()).as_ref())
}

/// The membership of the daemon on `state_dir`; None: it stands alone.
///
/// # Errors
/// Failed, when the file cannot be read.
pub fn load(state_dir: &Path) -> Result<Option<Membership>> {
    let path = file(state_dir);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(AdminError::failed(format!("{}: {e}", path.display()), "")),
    };
    let found: Membership = serde_json::from_slice(&bytes)
        .map_err(|e| AdminError::failed(format!("{}: {e}", path.display()), "restore it from a backup"))?;
    check_known(&found.cluster)?;
    Ok(Some(found))
}

/// This node would not understand what it reads, or write what others do not understand.
fn check_known(cluster: &ClusterValue) -> Result<()> {
    if cluster.version > keys::VERSION {
        return Err(conflict("the cluster is of a later version", "update this arden"));
    }
    // Every time that a node waits for is a part of it.
    check_lease(cluster.lease_seconds)
        .map_err(|e| conflict(format!("the description of the cluster is damaged: {}", e.error), "restore it"))?;
    level::check_known(cluster.feature_level)
}

impl Membership {
    fn save(&self, state_dir: &Path) -> Result<()> {
        let bytes = serde_json::to_vec_pretty(self).map_err(|e| AdminError::failed(e.to_string(), ""))?;
        files::replace(&file(state_dir), &bytes)
    }

    /// Names of keys.
    pub fn names(&self) -> Names {
        Names::new(&self.cluster.id)
    }
}

pub(crate) fn alone() -> AdminError {
    conflict("this daemon is not a node of a cluster", "`arden cluster init` or `arden cluster join` makes it one")
}

fn check_alone(state_dir: &Path) -> Result<()> {
    match load(state_dir)? {
        Some(m) => Err(conflict(
            format!("this is node {} of the cluster {} already", m.name, m.cluster.name),
            "choose another state directory with --state",
        )),
        None => Ok(()),
    }
}

/// How a cluster is made.
#[derive(Debug, Clone)]
pub struct NewCluster {
    pub name: String,
    pub node: String,
    pub etcd: Vec<String>,
    pub etcd_tls: Option<EtcdFiles>,
    pub lease_seconds: u64,
}

/// Whether [`init`] would come as far as etcd, and etcd answers: everything that can be known before anything is changed.
///
/// # Errors
/// As [`init`].
pub fn check_init(state_dir: &Path, new: &NewCluster, state: &State) -> Result<Arc<Etcd>> {
    check_alone(state_dir)?;
    check_node_name(&new.node)?;
    check_lease(new.lease_seconds)?;
    let etcd = Etcd::start(&new.etcd, new.etcd_tls.as_ref())?;
    check_servable(state)?;
    etcd.read_now("/arden/", "/arden/")?;
    Ok(etcd)
}

/// Makes a cluster whose first node is the daemon of `directory`, with its state. `pools`: says which pools there are, and looks at
/// the labels of their disks.
///
/// # Errors
/// Conflict, when the state has what a cluster cannot serve; those of etcd, and then the daemon stands alone as before.
pub fn init(
    directory: &Arc<StateDirectory>,
    new: &NewCluster,
    pools: impl FnOnce(&State) -> Result<Pools>,
) -> Result<Membership> {
    check_alone(directory.path())?;
    let state = State::open(directory)?;
    let etcd = check_init(directory.path(), new, &state)?;
    let change = arden_admin::model::SettingsChange { server_name: Some(new.name.clone()), ..Default::default() };
    state.change(|s| s.change_settings(&change).map(drop))?;
    let pools = pools(&state)?;
    let id = secret::hex(&secret::random::<16>()?);
    let names = Names::new(&id);
    let cluster = ClusterValue {
        id,
        name: new.name.clone(),
        version: keys::VERSION,
        feature_level: keys::FEATURE_LEVEL,
        lease_seconds: new.lease_seconds,
    };
    let mut steps = state_steps(&names, &state)?;
    for (pool, epoch) in pools {
        let record = Record { epoch, holders: Vec::new(), written: epoch, blocked: None };
        steps.push(Then::Put(names.record(pool), keys::encode_record(&record), 0));
    }
    let identity = Identity::make(directory.path(), &cluster.id, &new.node)?;
    let node = node_value(&new.node, &identity);
    steps.push(Then::Put(names.node(1), keys::encode(&node), 0));
    steps.push(Then::Put(names.numbers(), keys::encode(&1u16), 0));
    for part in steps.chunks(STEPS_MAX) {
        etcd.transact_now(Vec::new(), part.to_vec())?;
    }
    // With this key there is a cluster. Before it, nobody looks at the others.
    let last = vec![Then::Put(names.cluster(), keys::encode(&cluster), 0)];
    let made = etcd.transact_now(vec![If::Changed(names.cluster(), 0)], last)?;
    made.ok_or_else(|| conflict("there is a cluster of this id already", "try again"))?;
    let (etcd, etcd_tls) = (new.etcd.clone(), new.etcd_tls.clone());
    let membership = Membership { cluster, node: 1, name: new.node.clone(), etcd, etcd_tls };
    membership.save(directory.path())?;
    drop(state);
    put_aside(directory)?;
    Ok(membership)
}

/// The state of the file is the cluster's by now. What is left of it must not be used by mistake.
fn put_aside(directory: &StateDirectory) -> Result<()> {
    let from = directory.state_file();
    let to = directory.path().join("state.before-cluster.redb");
    match std::fs::rename(&from, &to) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(AdminError::failed(format!("{}: {e}", from.display()), "remove it by hand"))
        }
        _ => Ok(()),
    }
}

/// Refuses what every node would serve by itself: no fence keeps two nodes from one file or directory.
fn check_servable(state: &State) -> Result<()> {
    let snapshot = state.snapshot();
    if let Some(share) = snapshot.shares.values().find(|s| s.volume.is_none()) {
        let error = format!("the share {} is a directory, which is not supported in a cluster", share.name);
        return Err(conflict(error, "remove it first, or share a volume on a pool"));
    }
    if let Some(volume) = snapshot.volumes.values().find(|v| v.space.is_none()) {
        let error = format!("the volume {} is on a file, which is not supported in a cluster", volume.name);
        return Err(conflict(error, "make it on a space of a pool"));
    }
    Ok(())
}

fn state_steps(names: &Names, state: &State) -> Result<Vec<Then>> {
    let changes: Vec<Change> = state.records()?;
    let put = |c: Change| Some(Then::Put(format!("{}{}/{}", names.state(), c.table.name(), c.key), c.value?, 0));
    Ok(changes.into_iter().filter_map(put).collect())
}

/// A new token, as text for [`join`].
///
/// # Errors
/// Those of etcd.
pub fn new_token(etcd: &Arc<Etcd>, trust: &Trust, cluster: &str) -> Result<String> {
    let secret = secret::hex(&secret::random::<16>()?);
    let (lease, _) = etcd.grant_now(TOKEN_SECONDS)?;
    let then = vec![Then::Put(trust.names().token(&hash(&secret)), Vec::new(), lease)];
    let made = trust.change(etcd, Vec::new(), then)?;
    made.ok_or_else(|| conflict("etcd does not have this cluster", "restore etcd"))?;
    Ok(format!("{cluster}.{secret}"))
}

/// Makes the daemon of `directory`, which has no state, a node.
///
/// # Errors
/// Conflict, for a token that was used or is too old, a name that is taken, or a state that is not empty; those of etcd.
pub fn join(
    directory: &Arc<StateDirectory>,
    urls: &[String],
    etcd_tls: Option<EtcdFiles>,
    token: &str,
    name: &str,
) -> Result<Membership> {
    check_alone(directory.path())?;
    check_node_name(name)?;
    let (id, secret) = token_parts(token)?;
    check_empty(directory)?;
    let etcd = Etcd::start(urls, etcd_tls.as_ref())?;
    let names = Names::new(id);
    let token_key = names.token(&hash(secret));
    let mut made = None;
    loop {
        // As of one revision: a node that joins between two reads would be in the number and not in the list.
        let prefixes = vec![names.nodes(), names.numbers(), names.level(), names.tokens()];
        let found = etcd.read_all_now(prefixes, &names.cluster())?;
        let pair = found.get(&names.cluster());
        let pair =
            pair.ok_or_else(|| conflict("etcd does not have the cluster of this token", "check the URLs of etcd"))?;
        let cluster: ClusterValue = keys::decode(pair).map_err(|e| AdminError::failed(e, "update this arden"))?;
        check_known(&cluster)?;
        let not_understood = |e| AdminError::failed(e, "update this arden");
        let (level, raised) = keys::level(&names, cluster.feature_level, &found).map_err(not_understood)?;
        level::check_known(level)?;
        let given = keys::last_number(&names, &found).map_err(not_understood)?;
        let last = given.0.max(check_name_is_free(&names, &found, name)?);
        if last >= NODES_MAX {
            return Err(conflict("the cluster had too many nodes", ""));
        }
        let number = last + 1;
        let Some(good) = found.get(&token_key) else {
            return Err(conflict("the token was used, or is more than an hour old", TOKEN_HINT));
        };
        let identity = match made.take() {
            Some(identity) => identity,
            None => Identity::make(directory.path(), id, name)?,
        };
        let node = node_value(name, &identity);
        let if_all = vec![
            If::Has(names.cluster(), pair.value.clone()),
            If::Changed(names.node(number), 0),
            If::Changed(names.numbers(), given.1),
            If::Changed(names.level(), raised),
            If::Changed(token_key.clone(), good.mod_revision),
        ];
        let then = vec![
            Then::Delete(token_key.clone()),
            Then::Put(names.node(number), keys::encode(&node), 0),
            Then::Put(names.numbers(), keys::encode(&number), 0),
        ];
        if etcd.transact_now(if_all, then)?.is_some() {
            let membership =
                Membership { cluster, node: number, name: name.to_string(), etcd: urls.to_vec(), etcd_tls };
            membership.save(directory.path())?;
            put_aside(directory)?;
            return Ok(membership);
        }
        // Another node joined meanwhile.
        made = Some(identity);
    }
}

/// The largest number of the nodes that are there, none of which has this name. Names that differ in case alone would be mixed up.
fn check_name_is_free(names: &Names, found: &Found, name: &str) -> Result<u16> {
    let mut last = 0;
    for pair in found.pairs.iter().filter(|p| p.key.starts_with(&names.nodes())) {
        let node: NodeValue = keys::decode(pair).map_err(|e| AdminError::failed(e, "update this arden"))?;
        if node.name.eq_ignore_ascii_case(name) {
            return Err(conflict(format!("the cluster has a node {}", node.name), "name this one with --node"));
        }
        last = last.max(pair.key[names.nodes().len()..].parse::<u16>().unwrap_or(0));
    }
    Ok(last)
}

const TOKEN_HINT: &str = "`arden cluster token` at a node makes one";

/// The cluster's id and the secret.
fn token_parts(token: &str) -> Result<(&str, &str)> {
    let hex = |s: &str| s.len() == 32 && s.chars().all(|c| c.is_ascii_hexdigit());
    let parts = token.split_once('.').filter(|(id, secret)| hex(id) && hex(secret));
    parts.ok_or_else(|| AdminError::invalid("this is no token", TOKEN_HINT))
}

fn node_value(name: &str, identity: &Identity) -> NodeValue {
    NodeValue {
        name: name.to_string(),
        version: keys::VERSION,
        feature_level: keys::FEATURE_LEVEL,
        certificate: Some(identity.fingerprint().to_string()),
    }
}

/// The key and certificate of a member, which etcd has to know. Its entry there says from now on what this node knows, and `trust` acts as
/// this node; one that joined before there were certificates makes them.
///
/// # Errors
/// Conflict, when etcd has no such node, or knows it by another certificate; failed, when the file is gone or not readable.
pub(crate) fn identity(etcd: &Arc<Etcd>, state_dir: &Path, m: &Membership, trust: &Trust) -> Result<Identity> {
    let names = m.names();
    let floor = trust.floor();
    let found = etcd.read_now(&names.nodes(), &names.cluster())?;
    trust.check(&found, floor)?;
    let pair = found.get(&names.node(m.node));
    let node =
        pair.map(keys::decode::<NodeValue>).transpose().map_err(|e| AdminError::failed(e, "update this arden"))?;
    let (Some(pair), Some(node)) = (pair, node.filter(|n| n.name == m.name)) else {
        return Err(conflict(
            format!("the cluster has no node {} of the name {}", m.node, m.name),
            "join with a new token, and an empty state directory",
        ));
    };
    let hint = "restore node.pem from a backup, or remove the node and join again";
    let identity = match (&node.certificate, Identity::load(state_dir)?) {
        (None, _) => Identity::make(state_dir, &m.cluster.id, &m.name)?,
        (Some(known), Some(identity)) if identity.fingerprint().to_string() == *known => identity,
        (Some(_), Some(_)) => {
            return Err(conflict("etcd knows this node by another certificate than that in node.pem", hint));
        }
        (Some(_), None) => return Err(AdminError::failed("the file node.pem with this node's key is gone", hint)),
    };
    let wanted = node_value(&m.name, &identity);
    if wanted == node {
        trust.act_as(m.node, &pair.value);
        return Ok(identity);
    }
    let entry = keys::encode(&wanted);
    let then = Then::Put(names.node(m.node), entry.clone(), 0);
    let if_all = vec![trust.cluster(), If::Has(names.node(m.node), pair.value.clone())];
    let done = etcd.transact_now(if_all, vec![then])?;
    done.ok_or_else(|| conflict("the node's entry in etcd changed meanwhile", "start it again"))?;
    trust.act_as(m.node, &entry);
    Ok(identity)
}

fn check_empty(directory: &Arc<StateDirectory>) -> Result<()> {
    if !directory.state_file().exists() {
        return Ok(());
    }
    let snapshot = State::open(directory)?.snapshot();
    let has = [
        ("users", snapshot.users.len()),
        ("shares", snapshot.shares.len()),
        ("pools", snapshot.pools.len()),
        ("volumes", snapshot.volumes.len()),
    ];
    match has.iter().find(|(_, n)| *n > 0) {
        Some((what, n)) => Err(conflict(
            format!("this daemon has {n} {what} of its own, which would be lost"),
            "join with an empty state directory",
        )),
        None => Ok(()),
    }
}

/// etcd is believed again though it is older than what this node has seen.
///
/// # Errors
/// Conflict, when the daemon stands alone.
pub fn trust(directory: &StateDirectory) -> Result<Membership> {
    let membership = load(directory.path())?;
    let membership = membership.ok_or_else(alone)?;
    match std::fs::remove_file(seen_file(directory.path())) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(AdminError::failed(e.to_string(), "")),
        _ => Ok(membership),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_of_a_later_version_or_level_or_without_a_lease_is_refused() {
        let now = ClusterValue {
            id: "c".into(),
            name: "C".into(),
            version: keys::VERSION,
            feature_level: keys::FEATURE_LEVEL,
            lease_seconds: 3,
        };
        check_known(&now).unwrap();
        let later = ClusterValue { version: keys::VERSION + 1, ..now.clone() };
        assert!(check_known(&later).unwrap_err().error.contains("later version"));
        let later = ClusterValue { feature_level: keys::FEATURE_LEVEL + 1, ..now.clone() };
        assert!(check_known(&later).unwrap_err().error.contains(&format!("knows up to {}", keys::FEATURE_LEVEL)));
        for lease_seconds in [0, 1, 61, u64::MAX] {
            let error = check_known(&ClusterValue { lease_seconds, ..now.clone() }).unwrap_err().error;
            assert!(error.contains(&format!("a lease of {lease_seconds} seconds is out of range")), "{error}");
        }
    }
}
