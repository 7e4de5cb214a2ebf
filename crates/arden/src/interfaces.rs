//! The addresses of this machine to which clients may open further channels (FSCTL_QUERY_NETWORK_INTERFACE_INFO,
//! [MS-SMB2] 2.2.32.5). Read from /proc, which lists the addresses that the kernel answers to.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use arden_admin::state::Snapshot;
use arden_smb::Interface;

/// The speed in bits a second that is reported for a link of unknown speed.
const SPEED_BITS: u64 = 10_000_000_000;

/// The floating addresses of the cluster. A further channel or a client of the witness is to reach one node, and those may be at
/// another any moment.
pub fn floating(snapshot: &Snapshot) -> BTreeSet<IpAddr> {
    snapshot.addresses.values().map(|a| a.address).collect()
}

/// The interfaces of the addresses that are listened on, without floating ones. Loopback is listed only when there is no other:
/// another machine must not be directed to itself.
pub fn listening(addresses: &[SocketAddr], floating: &BTreeSet<IpAddr>) -> Vec<Interface> {
    (1..)
        .zip(reachable(addresses, floating))
        .map(|(index, address)| Interface { index, address, speed_bits: SPEED_BITS, rss: true })
        .collect()
}

/// The addresses with the port at which others reach one that is listened on, without floating ones.
pub fn reached_at(listens: SocketAddr, floating: &BTreeSet<IpAddr>) -> Vec<String> {
    let at = |ip| SocketAddr::new(ip, listens.port()).to_string();
    reachable(&[listens], floating).into_iter().map(at).collect()
}

/// The addresses at which others reach one that is listened on. Loopback is listed only when there is no other.
fn reachable(addresses: &[SocketAddr], floating: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
    let fib = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let v6 = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let mut ips = Vec::new();
    for address in addresses {
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => ips.extend(local_v4(&fib)),
            IpAddr::V6(ip) if ip.is_unspecified() => {
                ips.extend(local_v4(&fib));
                ips.extend(local_v6(&v6));
            }
            ip => ips.push(ip),
        }
    }
    ips.sort();
    ips.dedup();
    ips.retain(|ip| !floating.contains(ip));
    if ips.iter().any(|ip| !ip.is_loopback()) {
        ips.retain(|ip| !ip.is_loopback());
    }
    ips
}

/// The local addresses in /proc/net/fib_trie: an address is in the line before its `/32 host LOCAL`.
fn local_v4(fib_trie: &str) -> Vec<IpAddr> {
    let lines: Vec<&str> = fib_trie.lines().map(str::trim).collect();
    lines
        .windows(2)
        .filter(|pair| pair[1] == "/32 host LOCAL")
        .filter_map(|pair| pair[0].strip_prefix("|-- ")?.parse::<Ipv4Addr>().ok())
        .map(IpAddr::V4)
        .collect()
}

/// The local addresses in /proc/net/if_inet6: 32 digits, interface, prefix length, scope (00: global).
fn local_v6(if_inet6: &str) -> Vec<IpAddr> {
    if_inet6
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [digits, _, _, "00", ..] = fields[..] else { return None };
            u128::from_str_radix(digits, 16).ok().map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_found_where_the_kernel_lists_them() {
        let fib = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n  \
                   |-- 192.0.2.2\n     /32 host LOCAL\n  |-- 192.0.2.255\n     /32 link BROADCAST\n  |-- 127.0.0.1\n     /32 host LOCAL\n";
        assert_eq!(local_v4(fib), ["192.0.2.2".parse::<IpAddr>().unwrap(), "127.0.0.1".parse().unwrap()]);
        let v6 = "fd000000000000000000000000000002 04 40 00 80     eth0\nfe8000000000000000fc00fffe000001 04 40 20 80 eth0\n";
        assert_eq!(local_v6(v6), ["fd00::2".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn loopback_is_named_only_when_it_is_all_there_is() {
        let ips = |listen: &[&str]| -> Vec<String> {
            let listen: Vec<SocketAddr> = listen.iter().map(|a| a.parse().unwrap()).collect();
            listening(&listen, &BTreeSet::new()).iter().map(|i| i.address.to_string()).collect()
        };
        assert_eq!(ips(&["127.0.0.1:445"]), ["127.0.0.1"]);
        assert_eq!(ips(&["127.0.0.1:445", "192.0.2.9:445"]), ["192.0.2.9"]);
        assert!(!ips(&["0.0.0.0:445"]).is_empty());
    }

    #[test]
    fn floating_addresses_are_not_those_of_a_node() {
        let listens: Vec<SocketAddr> = ["192.0.2.9:445", "192.0.2.50:445"].map(|a| a.parse().unwrap()).into();
        let floating = BTreeSet::from(["192.0.2.50".parse().unwrap()]);
        let ips: Vec<String> = listening(&listens, &floating).iter().map(|i| i.address.to_string()).collect();
        assert_eq!(ips, ["192.0.2.9"]);
        assert!(reached_at(listens[1], &floating).is_empty());
    }

    #[test]
    fn an_address_is_published_with_its_port() {
        let none = BTreeSet::new();
        assert_eq!(reached_at("127.0.0.2:99".parse().unwrap(), &none), ["127.0.0.2:99"]);
        assert!(reached_at("0.0.0.0:7445".parse().unwrap(), &none).iter().all(|a| a.ends_with(":7445")));
    }
}
