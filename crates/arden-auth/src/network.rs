//! What counts as one client where addresses are counted. One rule for logons, connections and what is held.

use std::net::{IpAddr, Ipv6Addr};

/// What counts as one address: an IPv4 address, or the /64 of an IPv6 address, which is what one host can choose from. Of
/// the link-local /64, which all hosts of a link share, each address counts, and so does the host's own.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() && !v6.is_unicast_link_local() => {
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::network;

    #[test]
    fn an_address_counts_with_those_of_its_host() {
        let cases = [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("fd00::1:2", "fd00::"),
            ("fe80::1:2", "fe80::1:2"),
            ("::1", "::1"),
        ];
        for (address, expected) in cases {
            assert_eq!(network(address.parse().unwrap()), expected.parse::<std::net::IpAddr>().unwrap(), "{address}");
        }
    }
}
