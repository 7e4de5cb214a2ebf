//! How a node gives up its pools for a time, and how one leaves for good. A node is taken out only when it is not alive, owns nothing
//! and is no holder: its commands could still reach disks, and a fence needs its name. Numbers of nodes that left are not given again.

use std::sync::Arc;

use arden_admin::{AdminError, ErrorKind, StateDirectory, error::Result};
use arden_cluster::NodeId;

use crate::{
    claims,
    etcd::{Etcd, Found, If, Then},
    keys::{self, AliveValue, NodeValue, PoolKeys},
    membership::{self, Membership},
    peers::Peers,
    trust::{Trust, seen_file},
};

/// Nodes come and go, and pools change hands, while one is taken out: it is tried so often.
const TRIES: usize = 10;

fn conflict(error: impl Into<String>, hint: impl Into<String>) -> AdminError {
    AdminError::new(ErrorKind::Conflict, error, hint)
}

fn busy() -> AdminError {
    conflict("the cluster changes all the time", "try again")
}

/// What came of something for which a node has to be ready.
pub enum Attempt<T> {
    Done(T),
    /// Why not. It may be otherwise in a moment.
    NotYet(AdminError),
}

/// Reads the keys below `prefix`, which have to be believed.
fn read(etcd: &Arc<Etcd>, trust: &Trust, prefix: &str) -> Result<Found> {
    let floor = trust.floor();
    let found = etcd.read_now(prefix, &trust.names().cluster())?;
    trust.check(&found, floor)?;
    Ok(found)
}

/// Takes a node out of the cluster. False: there is no such node.
///
/// # Errors
/// Conflict, when the node is alive, is a holder of a pool, or is the last one.
pub fn take_out(etcd: &Arc<Etcd>, trust: &Trust, number: u16, name: &str) -> Result<bool> {
    let names = trust.names();
    for _ in 0..TRIES {
        let nodes = read(etcd, trust, &names.nodes())?;
        trust.check_entry(&nodes)?;
        let key = names.node(number);
        let Some(pair) = nodes.get(&key) else { return Ok(false) };
        if keys::decode::<NodeValue>(pair).is_ok_and(|n| n.name != name) {
            return Ok(false);
        }
        if keys::nodes(names, &nodes).len() < 2 {
            let hint = "the cluster's users, shares and settings are in etcd, and nobody would have them";
            return Err(conflict(format!("{name} is the last node of the cluster"), hint));
        }
        let mut if_all = vec![If::Changed(key.clone(), pair.mod_revision)];
        if_all.extend(is_idle(etcd, trust, number, name)?);
        let given = read(etcd, trust, &names.numbers())?;
        let (last, revision) =
            keys::last_number(names, &given).map_err(|e| AdminError::failed(e, "update this arden"))?;
        if_all.push(If::Changed(names.numbers(), revision));
        let mut then = vec![
            Then::Delete(key),
            Then::Delete(names.drain(number)),
            Then::Put(names.numbers(), keys::encode(&last.max(number)), 0),
        ];
        // It claims nothing more: a claim needs its entry.
        then.extend(claims::release(names, &read(etcd, trust, &names.hosts())?, number));
        if trust.change(etcd, if_all, then)?.is_some() {
            return Ok(true);
        }
    }
    Err(busy())
}

/// That the node is not alive and no pool knows it, as conditions.
fn is_idle(etcd: &Arc<Etcd>, trust: &Trust, number: u16, name: &str) -> Result<Vec<If>> {
    let names = trust.names();
    let alive = read(etcd, trust, &names.alives())?;
    if alive.get(&names.alive(number)).is_some() {
        let hint = "stop its daemon, which hands its pools over; after a crash its lease ends by itself";
        return Err(conflict(format!("node {name} is alive"), hint));
    }
    let mut if_all = vec![If::Changed(names.alive(number), 0)];
    let pools = read(etcd, trust, &names.pools())?;
    for pair in pools.pairs.iter().filter(|p| p.key.ends_with("/record")) {
        let Some(pool) = names.relative(&pair.key).and_then(keys::pool_of) else { continue };
        let keys = PoolKeys::of(names, pool, &pools).map_err(|e| AdminError::failed(e, "update this arden"))?;
        let mut holders = keys.view.record.holders.iter().map(|h| h.node).chain(keys.view.owner.map(|o| o.node));
        if holders.any(|n| n == NodeId(number)) {
            let error = format!("node {name} may still write to the disks of the pool {:032x}", pool.0);
            return Err(conflict(error, "wait until another node has taken the pool over, or `arden pool take` there"));
        }
        if_all.push(If::Changed(names.record(pool), keys.view.changed.0));
    }
    Ok(if_all)
}

/// Says that a node is to own nothing, or may own again. False: there is no such node.
///
/// # Errors
/// Those of etcd, and conflict, when the cluster changes all the time.
pub fn set_drained(
    etcd: &Arc<Etcd>,
    trust: &Trust,
    peers: &Arc<Peers>,
    (number, drained): (u16, bool),
) -> Result<Attempt<bool>> {
    let names = trust.names();
    for _ in 0..TRIES {
        let nodes = read(etcd, trust, &names.nodes())?;
        trust.check_entry(&nodes)?;
        let Some(pair) = nodes.get(&names.node(number)) else { return Ok(Attempt::Done(false)) };
        let mut if_all = vec![If::Changed(names.node(number), pair.mod_revision)];
        let then = match drained {
            true => {
                match another(etcd, trust, peers, number)? {
                    Attempt::Done(conditions) => if_all.extend(conditions),
                    Attempt::NotYet(why) => return Ok(Attempt::NotYet(why)),
                }
                Then::Put(names.drain(number), Vec::new(), 0)
            }
            false => Then::Delete(names.drain(number)),
        };
        if trust.change(etcd, if_all, vec![then])?.is_some() {
            return Ok(Attempt::Done(true));
        }
    }
    Err(busy())
}

/// Whether a node can take a pool at once: its lease is good by etcd, and it answers as the run that has that lease. A node that was
/// killed has a lease for a while, in which it takes nothing, started again or not.
///
/// # Errors
/// Why not.
pub fn takes_pools(etcd: &Arc<Etcd>, peers: &Arc<Peers>, number: u16, run: &str) -> std::result::Result<(), String> {
    if number == peers.me().node {
        return if peers.me().run == run { Ok(()) } else { Err("it has no lease of its own yet".to_string()) };
    }
    let peers = peers.clone();
    let connected = etcd.wait(move |_| async move { Ok(peers.connect(number).await) }).map_err(|e| e.to_string())?;
    match connected {
        Ok(connected) if connected.run == run => Ok(()),
        Ok(_) => Err("it was started again, and has no lease of its own yet".to_string()),
        Err(e) => Err(e.to_string()),
    }
}

/// A node that can own what this one gives up, as conditions that it is alive and not drained: two nodes that are drained at the
/// same time do not rely on each other.
fn another(etcd: &Arc<Etcd>, trust: &Trust, peers: &Arc<Peers>, number: u16) -> Result<Attempt<Vec<If>>> {
    let names = trust.names();
    let (alive, drained) = (read(etcd, trust, &names.alives())?, read(etcd, trust, &names.drains())?);
    let prefix = names.alives();
    let fits = |n: u16| n != number && drained.get(&names.drain(n)).is_none();
    let number_of = |key: &str| key.strip_prefix(&prefix)?.parse::<u16>().ok().filter(|n| fits(*n));
    let mut why = "no other node is alive and not drained".to_string();
    for (other, pair) in alive.pairs.iter().filter_map(|p| Some((number_of(&p.key)?, p))) {
        let run = keys::decode::<AliveValue>(pair).map(|alive| alive.run);
        match run.and_then(|run| takes_pools(etcd, peers, other, &run)) {
            Ok(()) => {
                let conditions = [(pair.key.clone(), pair.mod_revision), (names.drain(other), 0)];
                return Ok(Attempt::Done(conditions.map(|(key, changed)| If::Changed(key, changed)).to_vec()));
            }
            Err(e) => why = format!("no other node can take its pools now: {e}"),
        }
    }
    let hint = "its pools would be served by nobody: try again, or stop it with its clients";
    Ok(Attempt::NotYet(conflict(why, hint)))
}

/// Makes the node on `directory` a daemon without a cluster, and without a state. Runs while no daemon uses the directory.
///
/// # Errors
/// Conflict without a cluster, and those of [`take_out`]; then the node is one as before.
pub fn leave(directory: &StateDirectory) -> Result<Membership> {
    let m = membership::load(directory.path())?.ok_or_else(membership::alone)?;
    let etcd = Etcd::start(&m.etcd, m.etcd_tls.as_ref())?;
    let trust = Trust::new(directory.path(), &m.names(), keys::encode(&m.cluster))?;
    if !take_out(&etcd, &trust, m.node, &m.name)? {
        tracing::info!("the cluster does not have this node any more");
    }
    // The file that says that this is a node goes last: until then `leave` can be repeated.
    let files = [directory.path().join("node.pem"), seen_file(directory.path()), membership::file(directory.path())];
    for file in files {
        match std::fs::remove_file(&file) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(AdminError::failed(format!("{}: {e}", file.display()), "try again"));
            }
            _ => {}
        }
    }
    Ok(m)
}
