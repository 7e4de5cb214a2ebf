//! Messages of rtnetlink (linux/netlink.h, rtnetlink.h, if_addr.h, if_link.h), in the byte order of the machine. Pure: bytes in, bytes
//! out. Knows the few messages and attributes that addresses need, and skips all others.

use std::{io, net::IpAddr};

use crate::Place;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_CREATE: u16 = 0x400;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_CACHEINFO: u16 = 6;
const IFA_FLAGS: u16 = 8;
const IFA_F_NODAD: u8 = 0x02;
const IFA_F_PERMANENT: u32 = 0x80;
const IFLA_ADDRESS: u16 = 1;
const IFF_UP: u32 = 1;
const IFF_NOARP: u32 = 0x80;
const ARPHRD_ETHER: u16 = 1;
const RT_SCOPE_HOST: u8 = 254;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// The type of an attribute, without flags of its content.
const NLA_TYPE_MASK: u16 = 0x3fff;
const HEADER_BYTES: usize = 16;

/// An address that an interface has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assigned {
    pub index: u32,
    pub address: IpAddr,
    pub prefix_length: u8,
    /// It has no lifetime.
    pub permanent: bool,
}

/// An interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub up: bool,
    /// Its address on an Ethernet where neighbours are looked for.
    pub ethernet: Option<[u8; 6]>,
}

/// A request with its body.
pub struct Request {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = 4 + value.len() as u16;
    out.extend(length.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn octets(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(v4) => (AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (AF_INET6, v6.octets().to_vec()),
    }
}

/// The body of both messages that change an address: ifaddrmsg with the address.
fn address_body(place: Place) -> Vec<u8> {
    let (family, octets) = octets(place.address);
    let flags = if family == AF_INET6 { IFA_F_NODAD } else { 0 };
    let scope = if place.address.is_loopback() { RT_SCOPE_HOST } else { 0 };
    let mut body = vec![family, place.prefix_length, flags, scope];
    body.extend(place.index.to_ne_bytes());
    attribute(&mut body, IFA_LOCAL, &octets);
    attribute(&mut body, IFA_ADDRESS, &octets);
    body
}

impl Request {
    pub fn list_addresses() -> Request {
        Request { kind: RTM_GETADDR, flags: NLM_F_DUMP, body: vec![0; 8] }
    }

    pub fn link(index: u32) -> Request {
        // ifinfomsg: family, padding, type, index, flags, change.
        let mut body = vec![0; 4];
        body.extend(index.to_ne_bytes());
        body.resize(16, 0);
        Request { kind: RTM_GETLINK, flags: NLM_F_ACK, body }
    }

    /// The preferred lifetime is 0: IPv6 chooses another source for connections of the machine.
    pub fn put(place: Place, valid_seconds: u32) -> Request {
        let mut body = address_body(place);
        let lifetimes = [0, valid_seconds, 0, 0].map(u32::to_ne_bytes).concat();
        attribute(&mut body, IFA_CACHEINFO, &lifetimes);
        Request { kind: RTM_NEWADDR, flags: NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, body }
    }

    pub fn remove(place: Place) -> Request {
        Request { kind: RTM_DELADDR, flags: NLM_F_ACK, body: address_body(place) }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let length = (HEADER_BYTES + self.body.len()) as u32;
        let mut out = length.to_ne_bytes().to_vec();
        out.extend(self.kind.to_ne_bytes());
        out.extend((self.flags | NLM_F_REQUEST).to_ne_bytes());
        // The number of the request and the port: each socket has one request.
        out.extend(1u32.to_ne_bytes());
        out.extend(0u32.to_ne_bytes());
        out.extend(&self.body);
        out
    }
}

/// A part of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Address(Assigned),
    Link(Link),
    /// Nothing follows, and the request was carried out.
    End,
    /// With the number of the error.
    Failed(i32),
    Other,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The attributes in `bytes`, by type. Ends at the first that does not fit.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(u16_at(bytes, 0)?), u16_at(bytes, 2)? & NLA_TYPE_MASK);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn ip(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => <[u8; 4]>::try_from(octets).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(octets).ok().map(IpAddr::from),
        _ => None,
    }
}

fn assigned(body: &[u8]) -> Option<Assigned> {
    let (prefix_length, mut flags, index) = (*body.get(1)?, u32::from(*body.get(2)?), u32_at(body, 4)?);
    let (mut local, mut other) = (None, None);
    for (kind, value) in attributes(body.get(8..)?) {
        match kind {
            IFA_LOCAL => local = ip(value),
            IFA_ADDRESS => other = ip(value),
            IFA_FLAGS => flags = u32_at(value, 0)?,
            _ => {}
        }
    }
    // IFA_ADDRESS is that of the other end, where there is one.
    Some(Assigned { index, address: local.or(other)?, prefix_length, permanent: flags & IFA_F_PERMANENT != 0 })
}

fn link(body: &[u8]) -> Option<Link> {
    let (hardware, index, flags) = (u16_at(body, 2)?, u32_at(body, 4)?, u32_at(body, 8)?);
    let mut attributes = attributes(body.get(16..)?);
    let address = attributes.find(|(kind, _)| *kind == IFLA_ADDRESS).and_then(|(_, v)| <[u8; 6]>::try_from(v).ok());
    let ethernet = address.filter(|_| hardware == ARPHRD_ETHER && flags & IFF_NOARP == 0);
    Some(Link { index, up: flags & IFF_UP != 0, ethernet })
}

fn answer(kind: u16, body: &[u8]) -> Option<Answer> {
    Some(match kind {
        NLMSG_DONE => Answer::End,
        NLMSG_ERROR => match u32_at(body, 0)?.cast_signed() {
            0 => Answer::End,
            code => Answer::Failed(code.wrapping_neg()),
        },
        RTM_NEWADDR => assigned(body).map_or(Answer::Other, Answer::Address),
        RTM_NEWLINK => Answer::Link(link(body)?),
        _ => Answer::Other,
    })
}

/// The messages in what was received at once.
pub fn answers(mut bytes: &[u8]) -> impl Iterator<Item = io::Result<Answer>> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "an answer of the kernel that is not understood");
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let length = u32_at(bytes, 0).map_or(0, |n| n as usize);
        let parts = u16_at(bytes, 4).zip(bytes.get(HEADER_BYTES..length));
        bytes = bytes.get(length.next_multiple_of(4)..).filter(|_| parts.is_some()).unwrap_or_default();
        Some(parts.and_then(|(kind, body)| answer(kind, body)).ok_or_else(bad))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(address: &str) -> Place {
        Place { index: 7, address: address.parse().unwrap(), prefix_length: 24 }
    }

    #[test]
    fn a_request_reads_back_as_the_kernels_own_message() {
        for address in ["10.0.0.50", "2001:db8::50"] {
            let bytes = Request::put(place(address), 4).bytes();
            assert_eq!(bytes.len() % 4, 0);
            let all: Vec<Answer> = answers(&bytes).map(Result::unwrap).collect();
            let want = Assigned { index: 7, address: address.parse().unwrap(), prefix_length: 24, permanent: false };
            assert_eq!(all, [Answer::Address(want)]);
        }
        let bytes = Request::put(place("10.0.0.50"), 4).bytes();
        assert!(bytes.ends_with(&[0u32, 4, 0, 0].map(u32::to_ne_bytes).concat()), "preferred 0, valid 4");
        assert_eq!(bytes[HEADER_BYTES..HEADER_BYTES + 4], [AF_INET, 24, 0, 0]);
        assert_eq!(
            Request::remove(place("::1")).bytes()[HEADER_BYTES..HEADER_BYTES + 4],
            [AF_INET6, 24, IFA_F_NODAD, RT_SCOPE_HOST]
        );
    }

    #[test]
    fn errors_have_their_number_and_no_bytes_panic() {
        let mut bytes = 20u32.to_ne_bytes().to_vec();
        bytes.extend(NLMSG_ERROR.to_ne_bytes());
        bytes.resize(16, 0);
        bytes.extend((-1i32).to_ne_bytes());
        assert_eq!(answers(&bytes).next().unwrap().unwrap(), Answer::Failed(1));
        let whole = Request::put(place("2001:db8::1"), 1).bytes();
        for cut in 0..whole.len() {
            let _ = answers(&whole[..cut]).count();
            for flip in [0u8, 1, 0x7f, 0xff] {
                let mut other = whole.clone();
                other[cut] = flip;
                let _ = answers(&other).count();
            }
        }
    }

    #[test]
    fn the_kernel_lists_loopback() {
        let all = crate::addresses().unwrap();
        let lo = crate::index_of("lo").unwrap();
        let link = crate::link(lo).unwrap();
        assert_eq!((link.index, link.ethernet), (lo, None));
        // In a new namespace it is down, and has none.
        let there = all.iter().any(|a| a.index == lo && a.address.is_loopback() && a.permanent);
        assert_eq!(there, link.up, "{all:?}");
        assert!(crate::index_of("no-such-if").is_err() && crate::link(1 << 30).is_err());
    }
}
