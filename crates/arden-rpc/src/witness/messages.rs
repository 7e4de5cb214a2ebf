//! The structures of [MS-SWN] 2.2.2, as stubs of responses.

use std::net::IpAddr;

use arden_wire::ndr::NdrWriter;

use super::{ClusterState, INTERFACES_MAX, VERSION_2};
use crate::call::win32;

/// A context handle.
pub(super) type Handle = [u8; 20];

const AVAILABLE: u16 = 1;
const UNAVAILABLE: u16 = 0xFF;
/// WCHARs of InterfaceGroupName, [MS-SWN] 2.2.2.5.
const GROUP_NAME_UNITS: usize = 260;
const IPV4: u32 = 1;
const IPV6: u32 = 2;
const INTERFACE_WITNESS: u32 = 4;
const ONLINE: u32 = 8;
const OFFLINE: u32 = 0x10;

/// What a client is told with one answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Notification {
    /// Interface groups, and whether each is available.
    Resources(Vec<(String, bool)>),
    /// To a node.
    ClientMove(u16),
    ShareMove(u16),
    /// Addresses, and whether each is there.
    Addresses(Vec<(IpAddr, bool)>),
}

fn put_address(w: &mut NdrWriter, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => {
            w.bytes(&v4.octets());
            w.bytes(&[0; 16]);
        }
        IpAddr::V6(v6) => {
            w.bytes(&[0; 4]);
            w.bytes(&v6.octets());
        }
    }
}

fn family(address: IpAddr) -> u32 {
    if address.is_ipv4() { IPV4 } else { IPV6 }
}

/// The response to WitnessrGetInterfaceList: one interface for each address. `None`: none is available.
pub(super) fn interface_list(cluster: &ClusterState) -> Option<Vec<u8>> {
    let all = cluster.nodes.iter().flat_map(|node| node.addresses.iter().map(move |address| (node, *address)));
    let all: Vec<_> = all.take(INTERFACES_MAX).collect();
    if !all.iter().any(|(node, _)| node.alive) {
        return None;
    }
    let mut w = NdrWriter::new();
    w.pointer(true);
    w.u32(all.len() as u32);
    w.pointer(true);
    w.u32(all.len() as u32);
    for (node, address) in all {
        w.align(4);
        let mut name: Vec<u16> = node.name.encode_utf16().take(GROUP_NAME_UNITS - 1).collect();
        name.resize(GROUP_NAME_UNITS, 0);
        name.into_iter().for_each(|unit| w.u16(unit));
        w.u32(VERSION_2);
        w.u16(if node.alive { AVAILABLE } else { UNAVAILABLE });
        w.align(4);
        put_address(&mut w, address);
        // Who is connected to this node registers for it at another.
        let elsewhere = if node.number == cluster.here { 0 } else { INTERFACE_WITNESS };
        w.u32(family(address) | elsewhere);
    }
    w.u32(win32::SUCCESS);
    Some(w.finish())
}

/// RESOURCE_CHANGE, [MS-SWN] 2.2.2.3.
fn put_resource_change(out: &mut Vec<u8>, name: &str, available: bool) {
    let name: Vec<u8> = name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
    let kind = if available { AVAILABLE } else { UNAVAILABLE };
    out.extend((8 + name.len() as u32).to_le_bytes());
    out.extend(u32::from(kind).to_le_bytes());
    out.extend(name);
}

/// IPADDR_INFO_LIST, [MS-SWN] 2.2.2.2.
fn address_list(addresses: impl ExactSizeIterator<Item = (IpAddr, u32)>) -> Vec<u8> {
    let mut w = NdrWriter::new();
    w.u32(12 + 24 * addresses.len() as u32);
    w.u32(0);
    w.u32(addresses.len() as u32);
    for (address, state) in addresses {
        w.u32(family(address) | state);
        put_address(&mut w, address);
    }
    w.finish()
}

/// Whether an address is there, for those lists that say so.
fn online(is_there: bool) -> u32 {
    if is_there { ONLINE } else { OFFLINE }
}

/// The addresses of a node. `says_state`: with whether each is there.
fn addresses_of(cluster: &ClusterState, node: u16, says_state: bool) -> Vec<u8> {
    let node = cluster.node(node);
    let addresses: &[IpAddr] = node.map_or(&[], |n| &n.addresses);
    let state = if says_state { online(node.is_some_and(|n| n.alive)) } else { 0 };
    address_list(addresses.iter().take(INTERFACES_MAX).map(|a| (*a, state)))
}

/// The response to WitnessrAsyncNotify.
pub(super) fn response(notification: &Notification, cluster: &ClusterState) -> Vec<u8> {
    let (kind, count, buffer) = match notification {
        Notification::Resources(changes) => {
            let mut buffer = Vec::new();
            changes.iter().for_each(|(name, available)| put_resource_change(&mut buffer, name, *available));
            (1, changes.len() as u32, buffer)
        }
        Notification::ClientMove(node) => (2, 1, addresses_of(cluster, *node, true)),
        // [MS-SWN] 3.1.4.4: only moves of clients, and changes of addresses, say what is there.
        Notification::ShareMove(node) => (3, 1, addresses_of(cluster, *node, false)),
        Notification::Addresses(addresses) => {
            (4, 1, address_list(addresses.iter().map(|(a, there)| (*a, online(*there)))))
        }
    };
    let mut w = NdrWriter::new();
    w.pointer(true);
    w.u32(kind);
    w.u32(buffer.len() as u32);
    w.u32(count);
    w.pointer(true);
    w.u32(buffer.len() as u32);
    w.bytes(&buffer);
    w.u32(win32::SUCCESS);
    w.finish()
}

/// The response to WitnessrAsyncNotify without a notification.
pub(super) fn null_response(status: u32) -> Vec<u8> {
    let mut w = NdrWriter::new();
    w.pointer(false);
    w.u32(status);
    w.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::witness::NodeState;

    fn words(bytes: &[u8]) -> Vec<u32> {
        bytes.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
    }

    /// The values of [MS-SWN] 4.1.
    #[test]
    fn the_resource_change_of_the_example() {
        let changes = Notification::Resources(vec![("GENERALFS".into(), false)]);
        let stub = response(&changes, &ClusterState::default());
        assert_eq!(words(&stub[4..16]), [1, 28, 1]);
        assert_eq!(words(&stub[20..32]), [28, 28, 0xFF]);
        let name: Vec<u8> = "GENERALFS\0".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(stub[32..52], name);
        assert_eq!((words(&stub[52..]), stub.len()), (vec![0], 56));
    }

    fn cluster() -> ClusterState {
        let node = |number, name: &str, last| NodeState {
            number,
            name: name.into(),
            alive: true,
            drained: false,
            addresses: vec![IpAddr::from([192, 168, 1, last])],
        };
        let nodes = vec![node(2, "NODE02", 22), node(1, "NODE01", 12)];
        ClusterState { here: 1, nodes, ..ClusterState::default() }
    }

    /// The values of [MS-SWN] 4.1, with the version that this server has.
    #[test]
    fn the_interface_list_of_the_example() {
        let stub = interface_list(&cluster()).unwrap();
        assert_eq!(words(&stub[4..8]), [2]);
        assert_eq!(words(&stub[12..16]), [2]);
        assert_eq!(stub.len(), 16 + 2 * 552 + 4);
        for (i, name, last, flags) in [(0, "NODE02", 22, 5), (1, "NODE01", 12, 1)] {
            let info = &stub[16 + i * 552..16 + (i + 1) * 552];
            let units: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
            assert_eq!(info[..14], [&units[..], &[0, 0]].concat());
            assert_eq!(words(&info[520..524]), [0x0002_0000]);
            assert_eq!(info[524..528], [1, 0, 0, 0]);
            assert_eq!(info[528..532], [192, 168, 1, last]);
            assert_eq!(info[532..548], [0; 16]);
            assert_eq!(words(&info[548..]), [flags]);
        }
    }

    #[test]
    fn a_move_has_the_addresses_of_the_node() {
        let mut cluster = cluster();
        cluster.nodes[0].addresses.push("2001:db8::7".parse().unwrap());
        let stub = response(&Notification::ShareMove(2), &cluster);
        assert_eq!(words(&stub[4..16]), [3, 60, 1]);
        assert_eq!(words(&stub[24..36]), [60, 0, 2]);
        assert_eq!(words(&stub[36..40]), [1]);
        assert_eq!(stub[40..44], [192, 168, 1, 22]);
        assert_eq!(words(&stub[60..64]), [2]);
        assert_eq!(stub[68..84], "2001:db8::7".parse::<std::net::Ipv6Addr>().unwrap().octets());
        let gone = response(&Notification::Addresses(vec![(IpAddr::from([10, 0, 0, 1]), false)]), &cluster);
        assert_eq!(words(&gone[4..16]), [4, 36, 1]);
        assert_eq!(words(&gone[36..40]), [0x11]);
    }

    #[test]
    fn a_list_without_an_available_interface_waits() {
        let mut cluster = cluster();
        cluster.nodes.iter_mut().for_each(|n| n.alive = false);
        assert_eq!(interface_list(&cluster), None);
    }
}
