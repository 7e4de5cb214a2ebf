//! Frames on an interface. The only file here with `unsafe`: rustix has no address of a packet socket, and its trait for further
//! addresses is unsafe to implement.
#![allow(unsafe_code)]

use std::io;

use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType,
    addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque},
    sendto, socket_with,
};

/// `struct sockaddr_ll` of linux/if_packet.h.
#[repr(C)]
struct LinkAddress {
    family: u16,
    /// In the byte order of the network.
    protocol: u16,
    index: i32,
    hardware: u16,
    packet: u8,
    address_bytes: u8,
    address: [u8; 8],
}

// SAFETY: the pointer is to a whole LinkAddress without padding, which outlives the call of `f`, and the length is its own. It has the
// layout of a sockaddr_ll, which the kernel takes with sockets of AF_PACKET; others are refused by its family.
unsafe impl SocketAddrArg for LinkAddress {
    unsafe fn with_sockaddr<R>(&self, f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R) -> R {
        f(std::ptr::from_ref(self).cast(), size_of::<LinkAddress>() as SocketAddrLen)
    }
}

/// Sends whole frames, each with its header.
pub fn send(index: u32, ethertype: u16, frames: &[Vec<u8>]) -> io::Result<()> {
    // Without a protocol the socket gets no frame.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let to = LinkAddress {
        family: AddressFamily::PACKET.as_raw(),
        protocol: ethertype.to_be(),
        index: index.cast_signed(),
        hardware: 0,
        packet: 0,
        address_bytes: 6,
        address: [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
    };
    for frame in frames {
        sendto(&socket, frame, SendFlags::DONTWAIT, &to)?;
    }
    Ok(())
}
