//! Floating addresses of a cluster: the record, its bodies in the API, and the rules for them. Each belongs to a pool and is on an
//! interface of the node that owns the pool.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{AdminError, ErrorKind, Result};

/// Most floating addresses of a cluster. A node looks at each of them several times a second.
pub const ADDRESSES_MAX: usize = 256;
/// Longest name of an interface: IFNAMSIZ with its end.
const INTERFACE_BYTES_MAX: usize = 15;

/// A floating address to add.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAddress {
    /// Address and length of the prefix of its network: `10.0.0.50/24`.
    pub address: String,
    /// Interface that gets it, by the same name at every node.
    pub interface: String,
    /// The node that owns this pool has the address.
    pub pool: String,
}

/// A floating address as stored, under the address without the prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressRecord {
    pub address: IpAddr,
    pub prefix_length: u8,
    pub interface: String,
    /// Identity of the pool, 32 hexadecimal digits.
    pub pool: String,
}

/// A floating address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Address")]
pub struct AddressInfo {
    /// Address and length of the prefix of its network.
    pub address: String,
    /// Interface that gets it.
    pub interface: String,
    /// The node that owns this pool has the address.
    pub pool: String,
    /// The node that has it now; empty: none that answers.
    pub node: String,
    /// Why clients cannot reach the server there; empty: they can.
    pub problem: String,
}

/// What a node says of a floating address whose pool it owns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressAtNode {
    pub address: IpAddr,
    /// It is on the node's interface.
    pub held: bool,
    /// Why it is not, or is of no use; empty without a problem.
    pub problem: String,
}

impl AddressRecord {
    /// With the length of the prefix.
    pub fn text(&self) -> String {
        format!("{}/{}", self.address, self.prefix_length)
    }
}

/// An address with the length of its prefix.
///
/// # Errors
/// Invalid, for one that no interface could have, or that is not of one node.
pub fn parse(text: &str) -> Result<(IpAddr, u8)> {
    let bad = |why: &str| AdminError::invalid(format!("{text:?} {why}"), "write it as 10.0.0.50/24 or 2001:db8::50/64");
    let (ip, length) = text.split_once('/').ok_or_else(|| bad("has no length of a prefix"))?;
    let ip: IpAddr = ip.parse().map_err(|_| bad("does not begin with an IP address"))?;
    let bits = if ip.is_ipv4() { 32 } else { 128 };
    let length = length.parse::<u8>().ok().filter(|n| (1..=bits).contains(n));
    let length = length.ok_or_else(|| bad(&format!("needs a prefix of 1 to {bits} bits")))?;
    if ip.is_unspecified() || ip.is_multicast() {
        return Err(bad("is not the address of one machine"));
    }
    match ip {
        IpAddr::V4(v4) => {
            let host = v4.to_bits() & u32::MAX.checked_shr(length.into()).unwrap_or(0);
            let all_ones = u32::MAX.checked_shr(length.into()).unwrap_or(0);
            if v4.is_broadcast() || length < 31 && (host == 0 || host == all_ones) {
                return Err(bad("is the address of the network itself, or of all its machines"));
            }
        }
        IpAddr::V6(v6) => {
            if v6.to_ipv4_mapped().is_some() {
                return Err(bad("is an IPv4 address in IPv6 form"));
            }
            if v6.is_unicast_link_local() {
                return Err(bad("is good on one link only: clients would have to name their interface"));
            }
        }
    }
    Ok((ip, length))
}

/// Checks the name of an interface, as the kernel does.
///
/// # Errors
/// Invalid, for a name that no interface can have.
pub fn check_interface(name: &str) -> Result<()> {
    let bad = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    if name.is_empty() || name.len() > INTERFACE_BYTES_MAX || name == "." || name == ".." || name.contains(bad) {
        return Err(AdminError::invalid(format!("{name:?} is no name of an interface"), "`ip link` shows their names"));
    }
    Ok(())
}

/// The address in a request, with or without a prefix.
///
/// # Errors
/// Not found, for anything else.
pub fn key_of(text: &str) -> Result<IpAddr> {
    let ip = text.split('/').next().unwrap_or_default();
    ip.parse().map_err(|_| AdminError::not_found("address", text))
}

/// An address that is a node's own is no floating one.
///
/// # Errors
/// Conflict, naming the node.
pub fn check_is_no_nodes(ip: IpAddr, nodes: &[crate::cluster::NodeInfo]) -> Result<()> {
    let has = |of: &&crate::cluster::NodeInfo| {
        let all = of.addresses.iter().chain(&of.node_addresses);
        all.filter_map(|a| a.parse::<std::net::SocketAddr>().ok()).any(|a| a.ip() == ip)
    };
    match nodes.iter().find(has) {
        None => Ok(()),
        Some(node) => Err(AdminError::new(
            ErrorKind::Conflict,
            format!("{ip} is an address of the node {} itself", node.name),
            "take one that no machine has",
        )),
    }
}

/// A floating address as an administrator sees it: by what nodes say of it, and who owns its pool (`owner`, empty for nobody).
pub fn shown(record: &AddressRecord, pool: String, owner: &str, said: &[(String, AddressAtNode)]) -> AddressInfo {
    let of = said.iter().filter(|(_, a)| a.address == record.address);
    let held: Vec<&str> = of.clone().filter(|(_, a)| a.held).map(|(node, _)| node.as_str()).collect();
    let told: Vec<String> =
        of.filter(|(_, a)| !a.problem.is_empty()).map(|(node, a)| format!("{node}: {}", a.problem)).collect();
    let problem = match held.len() {
        _ if !told.is_empty() => told.join("; "),
        0 if owner.is_empty() => "no node owns the pool".to_string(),
        0 => format!("{owner} owns the pool and has not taken the address yet, or does not answer"),
        1 => String::new(),
        _ => "several nodes have it".to_string(),
    };
    let (address, interface) = (record.text(), record.interface.clone());
    AddressInfo { address, interface, pool, node: held.join(", "), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_no_node_can_have_are_refused() {
        for bad in [
            "10.0.0.50",
            "10.0.0.50/0",
            "10.0.0.50/33",
            "10.0.0.50/x",
            "host/24",
            "0.0.0.0/24",
            "224.0.0.1/24",
            "255.255.255.255/32",
            "10.0.0.0/24",
            "10.0.0.255/24",
            "::/64",
            "ff02::1/64",
            "::ffff:10.0.0.1/96",
            "fe80::1/64",
            "2001:db8::1/129",
            "/24",
            "",
        ] {
            assert_eq!(parse(bad).unwrap_err().kind, ErrorKind::Invalid, "{bad}");
        }
        for good in
            ["10.0.0.50/24", "10.0.0.0/31", "10.0.0.255/32", "127.0.0.9/8", "2001:db8::50/64", "::1/128", "fd00::/127"]
        {
            let (ip, length) = parse(good).unwrap();
            assert_eq!(format!("{ip}/{length}"), good);
        }
    }

    #[test]
    fn interfaces_have_names_that_the_kernel_takes() {
        assert!(["eth0", "bond0.5", "br-lan", "fifteen-letters"].iter().all(|n| check_interface(n).is_ok()));
        assert!(
            ["", "a b", "a/b", "eth0:1", "sixteen-letters1", ".", ".."].iter().all(|n| check_interface(n).is_err())
        );
    }

    #[test]
    fn the_address_of_a_node_does_not_float() {
        let node = crate::cluster::NodeInfo {
            number: 1,
            name: "n1".into(),
            alive: true,
            drained: false,
            feature_level: 2,
            run: String::new(),
            addresses: vec!["10.0.0.1:445".into()],
            node_addresses: vec!["[fd00::1]:7445".into()],
        };
        for (ip, free) in [("10.0.0.1", false), ("fd00::1", false), ("10.0.0.2", true)] {
            assert_eq!(check_is_no_nodes(ip.parse().unwrap(), std::slice::from_ref(&node)).is_ok(), free, "{ip}");
        }
    }

    #[test]
    fn what_nodes_say_is_what_is_shown() {
        let address: IpAddr = "10.0.0.50".parse().unwrap();
        let record = AddressRecord { address, prefix_length: 24, interface: "eth0".into(), pool: String::new() };
        let says = |node: &str, held, problem: &str| {
            (node.to_string(), AddressAtNode { address, held, problem: problem.to_string() })
        };
        let show = |owner: &str, said: &[(String, AddressAtNode)]| {
            let info = shown(&record, "tank".into(), owner, said);
            (info.node, info.problem)
        };
        assert_eq!(show("", &[]), (String::new(), "no node owns the pool".into()));
        assert!(show("n1", &[]).1.starts_with("n1 owns the pool"));
        assert_eq!(show("n1", &[says("n1", true, "")]), ("n1".into(), String::new()));
        assert_eq!(show("n1", &[says("n1", false, "no right")]), (String::new(), "n1: no right".into()));
        assert_eq!(
            show("n1", &[says("n1", true, ""), says("n2", true, "")]),
            ("n1, n2".into(), "several nodes have it".into())
        );
    }
}
