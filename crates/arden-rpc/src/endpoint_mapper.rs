//! The endpoint mapper, [C706] appendix O and [MS-RPCE] 2.2.1.2: the port of an interface. It needs no logon, as clients ask
//! before they have one, and answers `ept_map` for the interfaces that it was made for; it lists nothing.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Instant,
};

use arden_wire::{
    Malformed,
    ndr::{NdrReader, NdrWriter},
    rpc::{NDR32, Syntax, uuid},
};

use crate::{
    call::Fault,
    tcp::{Called, Caller, Reply, TcpInterface},
};

/// The interface of the endpoint mapper, version 3.0.
pub const SYNTAX: Syntax =
    Syntax { uuid: uuid(0xE1AF_8308, 0x5D1F, 0x11C9, [0x91, 0xA4, 0x08, 0x00, 0x2B, 0x14, 0xA0, 0xFA]), version: 3 };

/// The status ept_s_not_registered.
const NOT_REGISTERED: u32 = 0x16C9_A0D6;
/// Limit of a tower in bytes; those of TCP have 75.
const TOWER_BYTES_MAX: usize = 512;
/// Limit of floors; those of TCP have 5.
const FLOORS_MAX: usize = 8;

// Protocol identifiers of floors, [C706] appendix I and L.
const UUID_FLOOR: u8 = 0x0D;
const CONNECTION_ORIENTED: u8 = 0x0B;
const TCP: u8 = 0x07;
const IP: u8 = 0x09;

/// Maps interfaces to ports.
pub struct EndpointMapper {
    endpoints: Vec<(Syntax, u16)>,
}

impl EndpointMapper {
    /// Interfaces of this server, with the TCP port of each.
    pub fn new(endpoints: Vec<(Syntax, u16)>) -> EndpointMapper {
        EndpointMapper { endpoints }
    }

    /// ept_map.
    fn map(&self, caller: &Caller, stub: &[u8]) -> Result<Vec<u8>, Malformed> {
        let mut r = NdrReader::new(stub);
        if r.pointer()? {
            r.align(4)?;
            r.bytes(16)?;
        }
        let mut interface = None;
        if r.pointer()? {
            let count = r.count(1)?;
            let length = r.u32()? as usize;
            if length > count || length > TOWER_BYTES_MAX {
                return Err(Malformed("tower length"));
            }
            interface = asked(r.bytes(length)?)?;
        }
        r.handle()?;
        let max_towers = r.u32()?;
        // The client's minor version may be lower than the server's.
        let meets = |s: &Syntax, asked: &Syntax| {
            s.uuid == asked.uuid
                && s.version & 0xFFFF == asked.version & 0xFFFF
                && asked.version >> 16 <= s.version >> 16
        };
        let found = interface.and_then(|asked| self.endpoints.iter().find(|(s, _)| meets(s, &asked)));
        let found = found.filter(|_| max_towers > 0);

        let mut w = NdrWriter::new();
        w.handle(&[0; 20]);
        w.u32(u32::from(found.is_some()));
        w.u32(max_towers);
        w.u32(0);
        w.u32(u32::from(found.is_some()));
        if let Some((syntax, port)) = found {
            let tower = tower(syntax, *port, caller.local);
            w.pointer(true);
            w.u32(tower.len() as u32);
            w.u32(tower.len() as u32);
            w.bytes(&tower);
        }
        w.u32(if found.is_some() { 0 } else { NOT_REGISTERED });
        Ok(w.finish())
    }
}

fn u16_at(bytes: &mut &[u8]) -> Result<usize, Malformed> {
    let (number, rest) = bytes.split_first_chunk::<2>().ok_or(Malformed("tower"))?;
    *bytes = rest;
    Ok(usize::from(u16::from_le_bytes(*number)))
}

fn part<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let length = u16_at(bytes)?;
    let (part, rest) = bytes.split_at_checked(length).ok_or(Malformed("floor length"))?;
    *bytes = rest;
    Ok(part)
}

/// The interface that a tower asks for; `None` when it is not to be reached by NDR over TCP.
fn asked(mut tower: &[u8]) -> Result<Option<Syntax>, Malformed> {
    let count = u16_at(&mut tower)?;
    if count > FLOORS_MAX {
        return Err(Malformed("too many floors"));
    }
    let floors: Vec<_> =
        (0..count).map(|_| Ok((part(&mut tower)?, part(&mut tower)?))).collect::<Result<_, Malformed>>()?;
    let [interface, transfer, rpc, tcp, ip] = floors[..] else { return Ok(None) };
    let protocol = |floor: (&[u8], &[u8]), id: u8| floor.0 == [id];
    if !protocol(rpc, CONNECTION_ORIENTED) || !protocol(tcp, TCP) || !protocol(ip, IP) {
        return Ok(None);
    }
    Ok(syntax(interface).filter(|_| syntax(transfer) == Some(NDR32)))
}

fn syntax((left, right): (&[u8], &[u8])) -> Option<Syntax> {
    let (&[UUID_FLOOR], rest) = left.split_first_chunk::<1>()? else { return None };
    let (uuid, major) = rest.split_first_chunk::<16>()?;
    let (major, minor) = (<[u8; 2]>::try_from(major).ok()?, <[u8; 2]>::try_from(right).ok()?);
    let version = u32::from(u16::from_le_bytes(major)) | u32::from(u16::from_le_bytes(minor)) << 16;
    Some(Syntax { uuid: *uuid, version })
}

/// The tower of an interface at this port: five floors.
fn tower(interface: &Syntax, port: u16, address: IpAddr) -> Vec<u8> {
    let address = match address.to_canonical() {
        IpAddr::V4(v4) => v4,
        // A tower has no place for it; clients take the address that they are connected to.
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    };
    let mut out = vec![5, 0];
    let mut floor = |left: &[u8], right: &[u8]| {
        for part in [left, right] {
            out.extend((part.len() as u16).to_le_bytes());
            out.extend(part);
        }
    };
    for syntax in [interface, &NDR32] {
        let version = syntax.version.to_le_bytes();
        let left = [&[UUID_FLOOR][..], &syntax.uuid, &version[..2]].concat();
        floor(&left, &version[2..]);
    }
    floor(&[CONNECTION_ORIENTED], &[0, 0]);
    floor(&[TCP], &port.to_be_bytes());
    floor(&[IP], &address.octets());
    out
}

impl TcpInterface for EndpointMapper {
    fn syntax(&self) -> Syntax {
        SYNTAX
    }
    fn needs_logon(&self) -> bool {
        false
    }
    fn call(&self, caller: &Caller, opnum: u16, stub: &[u8], _: Reply, _: Instant) -> Called {
        match opnum {
            3 => Called::Done(self.map(caller, stub).map_err(|_| Fault::BAD_STUB.0)),
            // ept_lookup_handle_free: `ept_map` has no handles to go on with.
            4 => {
                let mut w = NdrWriter::new();
                w.handle(&[0; 20]);
                w.u32(0);
                Called::Done(Ok(w.finish()))
            }
            _ => Called::fault(Fault::OPNUM_RANGE),
        }
    }
    fn cancel(&self, _: u64) {}
    fn group_ended(&self, _: u32) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITNESS: Syntax = crate::witness::SYNTAX;

    fn caller() -> Caller {
        let address = IpAddr::from([192, 0, 2, 1]);
        Caller { user: None, address, local: IpAddr::from([192, 0, 2, 7]), group: 0 }
    }

    fn request(tower: &[u8], max_towers: u32) -> Vec<u8> {
        let mut w = NdrWriter::new();
        w.pointer(true);
        w.bytes(&[0; 16]);
        w.pointer(true);
        w.u32(tower.len() as u32);
        w.u32(tower.len() as u32);
        w.bytes(tower);
        w.handle(&[0; 20]);
        w.u32(max_towers);
        w.finish()
    }

    #[test]
    fn an_interface_has_a_port() {
        let mapper = EndpointMapper::new(vec![(WITNESS, 49_200)]);
        let answer = mapper.map(&caller(), &request(&tower(&WITNESS, 0, IpAddr::from([0, 0, 0, 0])), 4)).unwrap();
        let mut r = NdrReader::new(&answer);
        assert_eq!(r.handle(), Ok([0; 20]));
        let head: Vec<u32> = (0..4).map(|_| r.u32().unwrap()).collect();
        assert_eq!(head, [1, 4, 0, 1]);
        assert!(r.pointer().unwrap());
        let (count, length) = (r.u32().unwrap(), r.u32().unwrap() as usize);
        assert_eq!((count as usize, length), (length, 75));
        let found = r.bytes(length).unwrap();
        assert_eq!(asked(found), Ok(Some(WITNESS)));
        // The port has the order of the network.
        assert_eq!(found[62..66], [2, 0, 0xC0, 0x30]);
        assert_eq!(found[71..], [192, 0, 2, 7]);
        assert_eq!(r.u32(), Ok(0));
    }

    #[test]
    fn others_have_none() {
        let mapper = EndpointMapper::new(vec![(WITNESS, 1)]);
        let zero = IpAddr::from([0, 0, 0, 0]);
        let later = Syntax { version: 0x0002_0001, ..WITNESS };
        let none = |stub: &[u8]| {
            let answer = mapper.map(&caller(), stub).unwrap();
            answer[20..24] == [0; 4] && answer[answer.len() - 4..] == NOT_REGISTERED.to_le_bytes()
        };
        assert!(none(&request(&tower(&SYNTAX, 0, zero), 1)));
        assert!(none(&request(&tower(&later, 0, zero), 1)), "a later minor version");
        assert!(none(&request(&tower(&WITNESS, 0, zero), 0)), "room for none");
        let mut udp = tower(&WITNESS, 0, zero);
        udp[61] = 8;
        assert!(none(&request(&udp, 1)));
        assert!(none(&request(&[0, 0], 1)));
    }

    #[test]
    fn hostile_towers() {
        let mapper = EndpointMapper::new(vec![(WITNESS, 1)]);
        let good = tower(&WITNESS, 0, IpAddr::from([0, 0, 0, 0]));
        for end in 0..good.len() {
            assert!(mapper.map(&caller(), &request(&good[..end], 1)).is_err(), "{end}");
        }
        for place in 0..good.len() {
            for value in [0, 1, 0x7F, 0xFF] {
                let mut bad = good.clone();
                bad[place] = value;
                let _ = mapper.map(&caller(), &request(&bad, u32::MAX));
            }
        }
        assert!(mapper.map(&caller(), &[0xFF; 64]).is_err());
    }
}
