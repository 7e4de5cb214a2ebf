//! Addresses of this machine's network interfaces, by the kernel's rtnetlink: listed, put on an interface for a time, taken away, and
//! announced to the neighbours. A lifetime is the kernel's: it takes the address away when nobody renews it, whatever became of the
//! program. Decides nothing; who may have an address is the caller's. Changes need CAP_NET_ADMIN, announcements CAP_NET_RAW.
//!
//! Each call has a socket of its own and waits for the kernel alone. No byte comes from the network.
#![deny(unsafe_code)]

mod announce;
mod message;
mod packet;

use std::{io, net::IpAddr, time::Duration};

use rustix::{
    fd::OwnedFd,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
        netdevice::name_to_index,
        netlink::SocketAddrNetlink,
        recv, sendto, socket_with,
        sockopt::{Timeout, set_socket_timeout},
    },
};

pub use announce::announce;
use message::{Answer, Request};
pub use message::{Assigned, Link};

/// The kernel answers at once; this ends a wait for an answer that was lost.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// The kernel sends at most 32 KiB of a list at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// A floating address on its interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub index: u32,
    pub address: IpAddr,
    pub prefix_length: u8,
}

fn netlink_socket() -> io::Result<OwnedFd> {
    // Without a protocol it is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_WAIT))?;
    Ok(socket)
}

/// Sends one request, and gives every part of the answer to `each` until its end.
fn ask(request: &Request, mut each: impl FnMut(&Answer)) -> io::Result<()> {
    let socket = netlink_socket()?;
    let bytes = request.bytes();
    sendto(&socket, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let (length, whole) = recv(&socket, &mut buffer[..], RecvFlags::TRUNC)?;
        if whole > length {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer of the kernel is too long"));
        }
        for answer in message::answers(&buffer[..length]) {
            match answer? {
                Answer::End => return Ok(()),
                Answer::Failed(code) => return Err(io::Error::from_raw_os_error(code)),
                other => each(&other),
            }
        }
    }
}

/// The number of an interface.
///
/// # Errors
/// NotFound (ENODEV) for a name that no interface has.
pub fn index_of(interface: &str) -> io::Result<u32> {
    Ok(name_to_index(netlink_socket()?, interface)?)
}

/// The addresses of all interfaces.
///
/// # Errors
/// The kernel's.
pub fn addresses() -> io::Result<Vec<Assigned>> {
    let mut all = Vec::new();
    ask(&Request::list_addresses(), |answer| {
        if let Answer::Address(address) = answer {
            all.push(*address);
        }
    })?;
    Ok(all)
}

/// An interface.
///
/// # Errors
/// The kernel's; NotFound, when there is none with this number.
pub fn link(index: u32) -> io::Result<Link> {
    let mut found = None;
    ask(&Request::link(index), |answer| {
        if let Answer::Link(link) = answer {
            found = Some(*link);
        }
    })?;
    found.ok_or_else(|| io::Error::from_raw_os_error(rustix::io::Errno::NODEV.raw_os_error()))
}

/// Puts an address on an interface for `seconds`, or lets one that is there live so long from now on. It is not the source of
/// connections that this machine makes by itself, where another address fits (IPv6). Duplicates are not looked for (IPv6).
///
/// # Errors
/// The kernel's: PermissionDenied without CAP_NET_ADMIN.
pub fn put(place: Place, seconds: u32) -> io::Result<()> {
    ask(&Request::put(place, seconds.max(1)), |_| {})
}

/// Takes an address away. One that is not there is no error.
///
/// # Errors
/// The kernel's: PermissionDenied without CAP_NET_ADMIN.
pub fn remove(place: Place) -> io::Result<()> {
    match ask(&Request::remove(place), |_| {}) {
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::ADDRNOTAVAIL.raw_os_error()) => Ok(()),
        done => done,
    }
}
