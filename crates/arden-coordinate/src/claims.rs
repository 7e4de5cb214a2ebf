//! Claims of the names by which disks know a machine: the host identifier of NVMe, the initiator's name of iSCSI, the port's name of Fibre Channel. A
//! registration with a disk is of that name, so two machines with the same one would be one registrant: what is fenced on one would write
//! by the other's key. So each name is one node's, and one machine's, in etcd, before the node owns a pool with a fence on its disks.

use std::{collections::BTreeSet, sync::Arc};

use arden_admin::{AdminError, ErrorKind, error::Result, secret};
use parking_lot::Mutex;
use ring::digest;
use serde::{Deserialize, Serialize};

use crate::{
    etcd::{Etcd, Found, If, Then},
    keys::{self, Names},
    trust::Trust,
};

/// Names that a machine has at the disks of one pool.
const NAMES_MAX: usize = 32;
/// Of one of them in bytes; that of iSCSI has at most 223 (RFC 3720, 3.2.6.1).
const NAME_BYTES_MAX: usize = 256;

/// `host/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct HostValue {
    node: u16,
    machine: Machine,
}

/// What stands for a machine: hashes of the identifiers that the system and the firmware have. A copy of the machine changes at least one, where both can be read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Machine {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    system: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    firmware: Option<String>,
}

impl Machine {
    /// This one.
    fn read() -> Machine {
        let of = |file: &str| {
            let text = std::fs::read_to_string(file).ok().filter(|text| !text.trim().is_empty())?;
            let hash = digest::digest(&digest::SHA256, format!("arden {file}\n{}", text.trim()).as_bytes());
            Some(secret::hex(&hash.as_ref()[..16]))
        };
        Machine { system: of("/etc/machine-id"), firmware: of("/sys/class/dmi/id/product_uuid") }
    }

    /// What is known of both differs.
    fn is_another(&self, than: &Machine) -> bool {
        let differ = |a: &Option<String>, b: &Option<String>| a.is_some() && b.is_some() && a != b;
        differ(&self.system, &than.system) || differ(&self.firmware, &than.firmware)
    }
}

/// A node on its machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Claimant {
    node: u16,
    machine: Machine,
}

/// The key of a name; bytes that are none of a path become hexadecimal digits.
fn key(names: &Names, name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b":.-".contains(&b);
    let text = |b: u8| if plain(b) { char::from(b).to_string() } else { format!("%{b:02x}") };
    format!("{}{}", names.hosts(), name.bytes().map(text).collect::<String>())
}

fn conflict(error: String, hint: &str) -> AdminError {
    AdminError::new(ErrorKind::Conflict, error, hint)
}

/// The claim of another, as an error.
fn refused(names: &Names, nodes: &Found, name: &str, me: &Claimant, of: &HostValue) -> AdminError {
    if of.node == me.node {
        let error = format!(
            "this node claimed {name} on another machine: its state directory was copied, or the machine was; the other one may still write to disks by that name"
        );
        let hint = "turn the other machine off for good, remove this node at another one (`arden node remove`), and join again";
        return conflict(error, hint);
    }
    let other = nodes.get(&names.node(of.node)).and_then(|pair| keys::decode::<keys::NodeValue>(pair).ok());
    let other = other.map_or_else(|| format!("number {}", of.node), |n| n.name);
    let error = format!(
        "disks know this machine as {name}, and node {other} by the same name: a fence of one would not keep the other away"
    );
    let hint = "give this machine a name of its own (NVMe: hostnqn and hostid of the connection, /etc/nvme; iSCSI: InitiatorName) and connect to the disks again; \
                `arden node remove` releases those of a node that is gone";
    conflict(error, hint)
}

/// The names of this node.
pub struct Claims {
    etcd: Arc<Etcd>,
    trust: Arc<Trust>,
    me: Claimant,
    /// Those that this run has claimed: only the removal of the node releases them, and a node that was removed owns nothing.
    made: Mutex<BTreeSet<String>>,
}

impl Claims {
    pub fn new(etcd: &Arc<Etcd>, trust: &Arc<Trust>, node: u16) -> Arc<Claims> {
        let me = Claimant { node, machine: Machine::read() };
        Arc::new(Claims { etcd: etcd.clone(), trust: trust.clone(), me, made: Mutex::default() })
    }

    /// Makes these names the node's own, once and for all: until the node is removed. Blocks.
    ///
    /// # Errors
    /// Conflict, when one is that of another node or machine, which the error names; those of etcd.
    pub fn claim(&self, hosts: &[String]) -> Result<()> {
        let names = self.trust.names();
        if hosts.len() > NAMES_MAX || hosts.iter().any(|name| name.is_empty() || name.len() > NAME_BYTES_MAX) {
            let error = "the disks know this machine by too many names, or by one that is too long".to_string();
            return Err(conflict(error, "use fewer adapters for the disks of pools"));
        }
        for name in hosts {
            if self.made.lock().contains(name) {
                continue;
            }
            let key = key(names, name);
            // Until it is this node's, or somebody's.
            while !claim_one(&self.etcd, &self.trust, &self.me, (name, &key))? {}
            self.made.lock().insert(name.clone());
        }
        Ok(())
    }
}

/// False: it has changed meanwhile.
fn claim_one(etcd: &Arc<Etcd>, trust: &Trust, me: &Claimant, (name, key): (&str, &str)) -> Result<bool> {
    let names = trust.names();
    let floor = trust.floor();
    let found = etcd.read_now(key, &names.cluster())?;
    trust.check(&found, floor)?;
    let floor = trust.floor();
    let nodes = etcd.read_now(&names.nodes(), &names.cluster())?;
    trust.check(&nodes, floor)?;
    trust.check_entry(&nodes)?;
    let mut if_all = Vec::new();
    match found.get(key) {
        None => if_all.push(If::Changed(key.to_string(), 0)),
        Some(pair) => {
            let of: HostValue = keys::decode(pair).map_err(|why| AdminError::failed(why, "update this arden"))?;
            if of.node == me.node && !of.machine.is_another(&me.machine) {
                return Ok(true);
            }
            if nodes.get(&names.node(of.node)).is_some() {
                return Err(refused(names, &nodes, name, me, &of));
            }
            // It left, and its number is not given again.
            if_all.extend([If::Changed(key.to_string(), pair.mod_revision), If::Changed(names.node(of.node), 0)]);
        }
    }
    let value = HostValue { node: me.node, machine: me.machine.clone() };
    Ok(trust.change(etcd, if_all, vec![Then::Put(key.to_string(), keys::encode(&value), 0)])?.is_some())
}

/// Steps that release the names of a node that leaves.
pub fn release(names: &Names, found: &Found, node: u16) -> Vec<Then> {
    let is_its = |pair: &&crate::etcd::KeyValue| keys::decode::<HostValue>(pair).is_ok_and(|value| value.node == node);
    let claimed = found.pairs.iter().filter(|p| p.key.starts_with(&names.hosts()));
    claimed.filter(is_its).map(|pair| Then::Delete(pair.key.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_key() {
        let names = Names::new("c");
        assert_eq!(key(&names, "nvme:0a"), "/arden/c/host/nvme:0a");
        assert_eq!(key(&names, "iscsi:iqn.2026-11.x:a/b c"), "/arden/c/host/iscsi:iqn.2026-11.x:a%2fb%20c");
    }

    #[test]
    fn machines_are_told_apart_by_what_is_known_of_both() {
        let machine = |system: Option<&str>, firmware: Option<&str>| Machine {
            system: system.map(Into::into),
            firmware: firmware.map(Into::into),
        };
        let one = machine(Some("a"), Some("x"));
        assert!(one.is_another(&machine(Some("a"), Some("y"))) && one.is_another(&machine(Some("b"), None)));
        assert!(!one.is_another(&one) && !one.is_another(&machine(Some("a"), None)));
        assert!(!one.is_another(&Machine::default()));
    }
}
