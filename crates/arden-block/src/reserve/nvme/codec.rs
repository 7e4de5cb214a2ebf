//! The fields of reservation commands and the bytes of their answers (NVM Express Base Specification, the Reservation commands,
//! Identify, the feature Host Identifier). Numbers are little-endian. Parsers are total: no count in an answer is believed beyond
//! the bytes that came.

use super::super::{Kind, Reservation};

/// Bytes of a report before the registered controllers, in the extended form twice as many and more.
const HEADER_BYTES: usize = 24;
const HEADER_EXTENDED_BYTES: usize = 64;
const ENTRY_BYTES: usize = 24;
const ENTRY_EXTENDED_BYTES: usize = 64;
pub(super) const IDENTIFY_BYTES: usize = 4096;

const OPCODE_REGISTER: u8 = 0x0D;
const OPCODE_REPORT: u8 = 0x0E;
const OPCODE_ACQUIRE: u8 = 0x11;
const OPCODE_RELEASE: u8 = 0x15;
const ADMIN_IDENTIFY: u8 = 0x06;
const ADMIN_GET_FEATURES: u8 = 0x0A;
const FEATURE_HOST_IDENTIFIER: u32 = 0x81;
/// CPTPL of Reservation Register: registrations and the reservation persist through a loss of power.
const PERSISTS: u32 = 0b11 << 30;
/// Write exclusive - registrants only.
const REGISTRANTS_ONLY: u8 = 3;
/// Write exclusive - all registrants.
const ALL_REGISTRANTS: u8 = 5;

/// The queue that a command is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    Admin,
    Io,
}

/// A command, without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    pub queue: Queue,
    pub opcode: u8,
    /// It names the namespace, not its controller.
    pub of_namespace: bool,
    pub cdw10: u32,
    pub cdw11: u32,
}

fn io(opcode: u8, cdw10: u32, cdw11: u32) -> Command {
    Command { queue: Queue::Io, opcode, of_namespace: true, cdw10, cdw11 }
}

/// Types of reservations that a namespace is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    RegistrantsOnly = REGISTRANTS_ONLY as isize,
    AllRegistrants = ALL_REGISTRANTS as isize,
}

/// Changes of registrations and reservations, with their data. IEKEY, which would pass over the key that is registered, is never set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// RREGA 0. Succeeds for a host without a key, or with this one.
    Register { new: u64, persists: bool },
    /// RREGA 1.
    Unregister { key: u64 },
    /// RREGA 2.
    Replace { key: u64, new: u64, persists: bool },
    /// RACQA 0.
    Acquire { key: u64 },
    /// RACQA 1.
    Preempt { key: u64, victim: u64, kind: Type },
    /// RACQA 2. The commands of the hosts that lose their registration are ended.
    PreemptAndAbort { key: u64, victim: u64, kind: Type },
    /// RRELA 0.
    Release { key: u64 },
    /// RRELA 1.
    Clear { key: u64 },
}

fn pair(first: u64, second: u64) -> Vec<u8> {
    [first.to_le_bytes(), second.to_le_bytes()].concat()
}

/// A change as a command and its data.
pub(super) fn change(change: Change) -> (Command, Vec<u8>) {
    let lasting = |persists| if persists { PERSISTS } else { 0 };
    let typed = |kind: Type| (kind as u32) << 8;
    let only = typed(Type::RegistrantsOnly);
    match change {
        Change::Register { new, persists } => (io(OPCODE_REGISTER, lasting(persists), 0), pair(0, new)),
        Change::Unregister { key } => (io(OPCODE_REGISTER, 1, 0), pair(key, 0)),
        Change::Replace { key, new, persists } => (io(OPCODE_REGISTER, 2 | lasting(persists), 0), pair(key, new)),
        Change::Acquire { key } => (io(OPCODE_ACQUIRE, only, 0), pair(key, 0)),
        Change::Preempt { key, victim, kind } => (io(OPCODE_ACQUIRE, 1 | typed(kind), 0), pair(key, victim)),
        Change::PreemptAndAbort { key, victim, kind } => (io(OPCODE_ACQUIRE, 2 | typed(kind), 0), pair(key, victim)),
        Change::Release { key } => (io(OPCODE_RELEASE, only, 0), key.to_le_bytes().to_vec()),
        Change::Clear { key } => (io(OPCODE_RELEASE, 1 | only, 0), key.to_le_bytes().to_vec()),
    }
}

/// Reservation Report into `room` bytes, a multiple of four; `extended`: with host identifiers of 128 bits.
pub(super) fn ask_report(extended: bool, room: usize) -> Command {
    io(OPCODE_REPORT, (room / 4).saturating_sub(1) as u32, u32::from(extended))
}

pub(super) fn identify_namespace() -> Command {
    Command { queue: Queue::Admin, opcode: ADMIN_IDENTIFY, of_namespace: true, cdw10: 0, cdw11: 0 }
}

pub(super) fn identify_controller() -> Command {
    Command { queue: Queue::Admin, opcode: ADMIN_IDENTIFY, of_namespace: false, cdw10: 1, cdw11: 0 }
}

pub(super) fn ask_host(extended: bool) -> Command {
    let (cdw10, cdw11) = (FEATURE_HOST_IDENTIFIER, u32::from(extended));
    Command { queue: Queue::Admin, opcode: ADMIN_GET_FEATURES, of_namespace: false, cdw10, cdw11 }
}

/// The identifier by which a namespace knows a host, whichever of the host's controllers a command comes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostId {
    /// As it is in the answer: the first byte is the lowest.
    pub value: u128,
    /// Of 128 bits, not of 64.
    pub extended: bool,
}

/// A host's registration, by one of its controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registrant {
    pub host: u128,
    pub key: u64,
    pub holds: bool,
}

/// What Reservation Report tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Raised by each change of a registration or reservation.
    pub generation: u32,
    /// Zero without a reservation.
    pub kind: u8,
    /// Registrations and the reservation persist through a loss of power (PTPLS).
    pub persists: bool,
    pub registrants: Vec<Registrant>,
}

/// An answer to Reservation Report: whole, or how many bytes it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reported {
    All(Report),
    Longer(usize),
}

fn number<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// The answer to Reservation Report. `None`: it is none.
pub fn report(data: &[u8], extended: bool) -> Option<Reported> {
    let (header, entry) =
        if extended { (HEADER_EXTENDED_BYTES, ENTRY_EXTENDED_BYTES) } else { (HEADER_BYTES, ENTRY_BYTES) };
    data.get(..header)?;
    let count = usize::from(u16::from_le_bytes(number(data, 5)?));
    let Some(entries) = data.get(header..header + count * entry) else {
        return Some(Reported::Longer(header + count * entry));
    };
    let registrant = |e: &[u8]| {
        let (host, key) = match extended {
            true => (u128::from_le_bytes(number(e, 16)?), number(e, 8)?),
            false => (u128::from(u64::from_le_bytes(number(e, 8)?)), number(e, 16)?),
        };
        Some(Registrant { host, key: u64::from_le_bytes(key), holds: *e.get(2)? & 1 != 0 })
    };
    Some(Reported::All(Report {
        generation: u32::from_le_bytes(number(data, 0)?),
        kind: *data.get(4)?,
        persists: *data.get(9)? & 1 != 0,
        registrants: entries.chunks_exact(entry).map(registrant).collect::<Option<_>>()?,
    }))
}

impl Report {
    /// The key of the host, if it has one. All of its controllers have the same one.
    pub(super) fn key_of(&self, host: u128) -> Option<u64> {
        self.registrants.iter().find(|r| r.host == host).map(|r| r.key)
    }

    /// Whether all registrants hold it, who keep only others from writing: a step of a preempting.
    pub(super) fn all_hold(&self) -> bool {
        self.kind == ALL_REGISTRANTS
    }

    /// The reservation; the outer `None` when what is reported makes no sense. Of the types "all registrants" the key is zero, as all
    /// registrants hold it.
    pub fn reservation(&self) -> Option<Option<Reservation>> {
        let mut holders = self.registrants.iter().filter(|r| r.holds).map(|r| r.key);
        match self.kind {
            0 => Some(None),
            REGISTRANTS_ONLY => {
                let key = holders.next()?;
                let kind = Kind::WriteExclusiveRegistrantsOnly;
                holders.all(|k| k == key).then_some(Some(Reservation { key, kind }))
            }
            5 | 6 => Some(Some(Reservation { key: 0, kind: Kind::Other(self.kind) })),
            _ => Some(Some(Reservation { key: holders.next()?, kind: Kind::Other(self.kind) })),
        }
    }
}

/// What a namespace can do (Identify Namespace: NMIC and RESCAP).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// It can be attached to several controllers.
    pub shared: bool,
    /// It is in several NVM subsystems, whose reservations need more than these commands (dispersed namespace).
    pub dispersed: bool,
    pub reservations: bool,
    /// Registrations and the reservation can be made to outlive a loss of power.
    pub persists: bool,
    pub registrants_only: bool,
}

/// The answer to Identify Namespace.
pub fn capabilities(data: &[u8]) -> Option<Capabilities> {
    let (nmic, can) = (*data.get(30)?, *data.get(31)?);
    Some(Capabilities {
        shared: nmic & 1 != 0,
        dispersed: nmic & 2 != 0,
        reservations: can & 0x7E != 0,
        persists: can & 1 != 0,
        registrants_only: can & 0x08 != 0,
    })
}

/// Whether a controller has the reservation commands (ONCS of Identify Controller).
pub fn has_reservations(data: &[u8]) -> Option<bool> {
    Some(u16::from_le_bytes(number(data, 520)?) & 0x20 != 0)
}

/// The answer to Get Features, Host Identifier.
pub fn host(data: &[u8], extended: bool) -> Option<HostId> {
    let value = match extended {
        true => u128::from_le_bytes(number(data, 0)?),
        false => u128::from(u64::from_le_bytes(number(data, 0)?)),
    };
    Some(HostId { value, extended })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn hex(command: &Command, data: &[u8]) -> (u8, u32, usize) {
        (command.opcode, command.cdw10, data.len())
    }

    #[test]
    fn commands_are_those_of_the_specification() {
        let (register, data) = change(Change::Register { new: 0x0102, persists: true });
        assert_eq!(hex(&register, &data), (0x0D, 0xC000_0000, 16));
        assert_eq!((&data[..8], &data[8..10]), (&[0; 8][..], &[2, 1][..]), "CRKEY, NRKEY");
        let (replace, data) = change(Change::Replace { key: 7, new: 8, persists: false });
        assert_eq!((hex(&replace, &data), data[0], data[8]), ((0x0D, 2, 16), 7, 8));
        let (abort, data) = change(Change::PreemptAndAbort { key: 7, victim: 8, kind: Type::RegistrantsOnly });
        assert_eq!((hex(&abort, &data), data[0], data[8]), ((0x11, 0x0302, 16), 7, 8));
        let (all, data) = change(Change::Preempt { key: 7, victim: 7, kind: Type::AllRegistrants });
        assert_eq!(hex(&all, &data), (0x11, 0x0501, 16));
        let of = |c| hex(&change(c).0, &change(c).1);
        assert_eq!(of(Change::Acquire { key: 7 }), (0x11, 0x0300, 16));
        assert_eq!(of(Change::Unregister { key: 7 }), (0x0D, 1, 16));
        assert_eq!(of(Change::Release { key: 7 }), (0x15, 0x0300, 8));
        assert_eq!(of(Change::Clear { key: 7 }), (0x15, 0x0301, 8));
        assert_eq!((ask_report(true, 4096).cdw10, ask_report(true, 4096).cdw11), (1023, 1));
        assert_eq!((ask_host(false).cdw10, ask_host(false).cdw11), (0x81, 0));
    }

    fn reported(extended: bool) -> Vec<u8> {
        let (header, entry) = if extended { (64, 64) } else { (24, 24) };
        let mut out = vec![0; header + 2 * entry];
        out[..10].copy_from_slice(&[9, 1, 0, 0, 3, 2, 0, 0, 0, 1]);
        for (i, host, key, holds) in [(0, 0x51, 0x61, 0), (1, 0x52, 0x62, 1)] {
            let at = header + i * entry;
            let (host_at, key_at) = if extended { (at + 16, at + 8) } else { (at + 8, at + 16) };
            (out[at + 2], out[host_at], out[key_at]) = (holds, host, key);
        }
        out
    }

    #[test]
    fn a_report_in_both_forms_is_whole_or_longer() {
        for extended in [false, true] {
            let data = reported(extended);
            let Some(Reported::All(r)) = report(&data, extended) else { panic!("it is whole") };
            assert_eq!((r.generation, r.kind, r.persists), (0x0109, 3, true));
            let of = |host, key, holds| Registrant { host, key, holds };
            assert_eq!(r.registrants, [of(0x51, 0x61, false), of(0x52, 0x62, true)]);
            let held = Reservation { key: 0x62, kind: Kind::WriteExclusiveRegistrantsOnly };
            assert_eq!(r.reservation(), Some(Some(held)));
            assert_eq!((r.key_of(0x51), r.key_of(0x62)), (Some(0x61), None));
            let header = if extended { 64 } else { 24 };
            assert_eq!(report(&data[..header], extended), Some(Reported::Longer(data.len())));
            assert_eq!(report(&data[..data.len() - 1], extended), Some(Reported::Longer(data.len())));
            assert_eq!(report(&data[..header - 1], extended), None);
        }
    }

    #[test]
    fn a_reservation_needs_one_holder() {
        let Some(Reported::All(mut r)) = report(&reported(true), true) else { panic!("it is whole") };
        r.registrants[0].holds = true;
        assert_eq!(r.reservation(), None, "two keys hold it");
        r.registrants[0].key = 0x62;
        assert!(matches!(r.reservation(), Some(Some(_))), "the same host by two controllers");
        r.kind = 5;
        assert_eq!(r.reservation(), Some(Some(Reservation { key: 0, kind: Kind::Other(5) })));
        (r.registrants, r.kind) = (vec![], 3);
        assert_eq!(r.reservation(), None, "nobody holds it");
        r.kind = 0;
        assert_eq!(r.reservation(), Some(None));
    }

    #[test]
    fn capabilities_and_the_host() {
        let mut data = vec![0; 4096];
        (data[30], data[31]) = (1, 0x0B);
        let can = capabilities(&data).unwrap();
        assert!(can.shared && can.reservations && can.persists && can.registrants_only && !can.dispersed);
        (data[30], data[31]) = (2, 0x81);
        let can = capabilities(&data).unwrap();
        assert!(!can.shared && can.dispersed && !can.reservations && can.persists && !can.registrants_only);
        assert_eq!((capabilities(&data[..31]), has_reservations(&data)), (None, Some(false)));
        data[520] = 0x20;
        assert_eq!((has_reservations(&data), has_reservations(&data[..521])), (Some(true), None));
        assert_eq!(host(&[1, 2], false), None);
        assert_eq!(host(&[1; 8], true), None);
        assert_eq!(host(&[1; 8], false), Some(HostId { value: 0x0101_0101_0101_0101, extended: false }));
    }

    /// Any bytes: no panic, and no more registrants than bytes that came.
    #[test]
    fn parsers_are_total() {
        let mut rng = Rng::new(7);
        for _ in 0..20_000 {
            let mut data: Vec<u8> = (0..rng.below(300)).map(|_| rng.next_u64() as u8).collect();
            if rng.below(2) == 0 && data.len() > 7 {
                (data[5], data[6]) = (data[5] % 5, 0);
            }
            for extended in [false, true] {
                if let Some(Reported::All(r)) = report(&data, extended) {
                    assert!(r.registrants.len() * 24 + 24 <= data.len());
                    let _ = r.reservation();
                }
                let _ = host(&data, extended);
            }
            let _ = (capabilities(&data), has_reservations(&data));
        }
    }
}
