//! The feature level of a cluster: nodes write nothing that it does not have, so that nodes of adjacent versions work together. Each
//! node's entry says the newest level that it knows, and an administrator raises the level to the newest that all know. A node
//! writes its entry before it reads the level, and the raise depends on all entries: no node is left behind that began meanwhile.

use std::sync::Arc;

use arden_admin::{AdminError, ErrorKind, cluster::FeatureLevel, error::Result};

use crate::{
    etcd::{Etcd, If, Then},
    keys::{self, Names},
    trust::Trust,
};

/// Nodes come and start while the level is raised: it is tried so often.
const TRIES: usize = 10;

fn conflict(error: impl Into<String>, hint: impl Into<String>) -> AdminError {
    AdminError::new(ErrorKind::Conflict, error, hint)
}

fn not_understood(why: String) -> AdminError {
    AdminError::failed(why, "update this arden")
}

/// The level of a cluster that was made with `made`, and the revision of the key that raised it, zero without one.
///
/// # Errors
/// Those of etcd; failed, when the value is not understood.
pub fn read(etcd: &Arc<Etcd>, names: &Names, made: u32) -> Result<(u32, u64)> {
    keys::level(names, made, &etcd.read_now(&names.level(), &names.cluster())?).map_err(not_understood)
}

/// A node that does not know the level would write what others do not expect.
///
/// # Errors
/// Conflict, when this node does not know it.
pub fn check_known(level: u32) -> Result<()> {
    let known = keys::FEATURE_LEVEL;
    if level <= known {
        return Ok(());
    }
    Err(conflict(
        format!("the cluster's feature level is {level}, and this arden knows up to {known}"),
        "update this arden",
    ))
}

/// As [`read`], at a node that goes on only below a level that it knows.
///
/// # Errors
/// Also conflict, when this node does not know the level.
pub fn read_known(etcd: &Arc<Etcd>, names: &Names, made: u32) -> Result<(u32, u64)> {
    let (level, raised) = read(etcd, names, made)?;
    check_known(level)?;
    Ok((level, raised))
}

/// Raises the level of a cluster that was made with `made` to the newest that all nodes know.
///
/// # Errors
/// Conflict, when some node does not know more than the level is; those of etcd.
pub fn raise(etcd: &Arc<Etcd>, trust: &Trust, made: u32) -> Result<FeatureLevel> {
    let names = trust.names();
    for _ in 0..TRIES {
        let (level, raised) = read(etcd, names, made)?;
        let given = etcd.read_now(&names.numbers(), &names.cluster())?;
        let (_, given) = keys::last_number(names, &given).map_err(not_understood)?;
        let floor = trust.floor();
        let found = etcd.read_now(&names.nodes(), &names.cluster())?;
        trust.check(&found, floor)?;
        let mut if_all = vec![If::Changed(names.level(), raised), If::Changed(names.numbers(), given)];
        let nodes = found.pairs.iter().filter(|p| p.key.starts_with(&names.nodes()));
        if_all.extend(nodes.map(|p| If::Changed(p.key.clone(), p.mod_revision)));
        let nodes = keys::nodes(names, &found);
        let to = nodes.values().map(|n| n.feature_level).min().unwrap_or(level).min(keys::FEATURE_LEVEL);
        let newest = nodes.values().map(|n| n.feature_level).max().unwrap_or(level);
        if to <= level && newest <= level {
            return Ok(FeatureLevel { level, before: level });
        }
        if to <= level {
            let old = nodes.values().filter(|n| n.feature_level <= level).map(|n| n.name.as_str());
            let old: Vec<&str> = old.collect();
            let error = format!("the feature level stays {level}: these nodes know no newer one: {}", old.join(", "));
            return Err(conflict(error, "update and start them, or `arden node remove`, then repeat this"));
        }
        if trust.change(etcd, if_all, vec![Then::Put(names.level(), keys::encode(&to), 0)])?.is_some() {
            return Ok(FeatureLevel { level: to, before: level });
        }
    }
    Err(conflict("the cluster changes all the time", "try again"))
}
