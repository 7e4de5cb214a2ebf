//! Tells neighbours that an address is here now, so that they do not go on with the link address of the node that had it: ARP
//! announcements (RFC 5227, 3) as request and reply, because some devices heed only one of them, and unsolicited neighbour advertisements (RFC 4861, 7.2.6).

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV6},
};

use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, bind, ipproto, sendto, socket_with,
    sockopt::{set_ipv6_multicast_hops, set_ipv6_multicast_if},
};

use crate::packet;

const BROADCAST: [u8; 6] = [0xff; 6];
const ETHERTYPE_ARP: u16 = 0x0806;
const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;
/// The shortest frame of an Ethernet, without its checksum.
const FRAME_BYTES_MIN: usize = 60;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// Override: what neighbours know is not true any more.
const FLAG_OVERRIDE: u8 = 0x20;
const OPTION_TARGET_LINK_ADDRESS: u8 = 2;
/// Others are not taken from further away (RFC 4861, 7.1.2).
const HOPS: u32 = 255;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

fn arp(operation: u16, from: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    let target = if operation == ARP_REQUEST { [0; 6] } else { BROADCAST };
    let mut frame = [BROADCAST, from].concat();
    frame.extend(ETHERTYPE_ARP.to_be_bytes());
    // Ethernet, IPv4, and how long their addresses are.
    frame.extend([0, 1, 8, 0, 6, 4]);
    frame.extend(operation.to_be_bytes());
    frame.extend(from);
    frame.extend(address.octets());
    frame.extend(target);
    frame.extend(address.octets());
    frame.resize(FRAME_BYTES_MIN, 0);
    frame
}

/// Without the checksum, which the kernel makes.
fn advertisement(from: [u8; 6], address: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, FLAG_OVERRIDE, 0, 0, 0];
    message.extend(address.octets());
    message.extend([OPTION_TARGET_LINK_ADDRESS, 1]);
    message.extend(from);
    message
}

/// Announces an address that is on the interface `index`; nothing where there are no neighbours to tell.
///
/// # Errors
/// The kernel's: PermissionDenied without CAP_NET_RAW.
pub fn announce(index: u32, address: IpAddr) -> io::Result<()> {
    let Some(from) = crate::link(index)?.ethernet else { return Ok(()) };
    match address {
        IpAddr::V4(v4) => {
            let frames = [ARP_REQUEST, ARP_REPLY].map(|operation| arp(operation, from, v4));
            packet::send(index, ETHERTYPE_ARP, &frames)
        }
        IpAddr::V6(v6) => {
            let protocol = Some(ipproto::ICMPV6);
            let socket = socket_with(AddressFamily::INET6, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
            set_ipv6_multicast_hops(&socket, HOPS)?;
            set_ipv6_multicast_if(&socket, index)?;
            bind(&socket, &SocketAddrV6::new(v6, 0, 0, 0))?;
            let to = SocketAddrV6::new(ALL_NODES, 0, 0, index);
            sendto(&socket, &advertisement(from, v6), SendFlags::DONTWAIT, &to)?;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_as_the_standards_say() {
        let from = [2, 0, 0, 0, 0, 9];
        let frame = arp(ARP_REQUEST, from, Ipv4Addr::new(10, 0, 0, 50));
        assert_eq!(frame.len(), 60);
        assert_eq!(frame[..14], [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 8, 6]);
        assert_eq!(frame[14..22], [0, 1, 8, 0, 6, 4, 0, 1]);
        assert_eq!(frame[22..42], [2, 0, 0, 0, 0, 9, 10, 0, 0, 50, 0, 0, 0, 0, 0, 0, 10, 0, 0, 50]);
        let message = advertisement(from, Ipv6Addr::LOCALHOST);
        assert_eq!((message.len(), message[0], message[4], message[24], message[25]), (32, 136, 0x20, 2, 1));
    }
}
