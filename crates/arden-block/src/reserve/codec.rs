//! The bytes of PERSISTENT RESERVE IN and OUT, of the names of a logical unit, and of sense data (SPC-4). Parsers are total: what a disk sends is
//! of any length and content, and no count in it is believed beyond the bytes that came.

use std::collections::BTreeSet;

/// Bytes of a READ KEYS answer before the keys, and of every other answer's header.
const HEADER_BYTES: usize = 8;
const KEY_BYTES: usize = 8;
/// The largest answer that a command can ask for.
pub(super) const ANSWER_BYTES_MAX: usize = u16::MAX as usize;
/// The parameter list of PERSISTENT RESERVE OUT.
pub(super) const PARAMETERS_BYTES: usize = 24;

const OPCODE_INQUIRY: u8 = 0x12;
const OPCODE_IN: u8 = 0x5E;
const OPCODE_OUT: u8 = 0x5F;
const APTPL: u8 = 0x01;
/// The page of INQUIRY with the names of a logical unit and its ports.
const DEVICE_IDENTIFICATION: u8 = 0x83;

/// Service actions of PERSISTENT RESERVE IN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Query {
    ReadKeys = 0,
    ReadReservation = 1,
    ReportCapabilities = 2,
}

/// Service actions of PERSISTENT RESERVE OUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Register = 0,
    Reserve = 1,
    Release = 2,
    Clear = 3,
    Preempt = 4,
    PreemptAndAbort = 5,
    RegisterAndIgnoreExistingKey = 6,
}

/// What a reservation keeps from whom. Scopes other than the whole logical unit are obsolete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Type 5: commands that write need a registered key, all can read.
    WriteExclusiveRegistrantsOnly,
    /// Another type or scope, as the disk gave it.
    Other(u8),
}

impl Kind {
    pub(super) fn raw(self) -> u8 {
        match self {
            Kind::WriteExclusiveRegistrantsOnly => 5,
            Kind::Other(raw) => raw,
        }
    }

    fn of(raw: u8) -> Kind {
        if raw == 5 { Kind::WriteExclusiveRegistrantsOnly } else { Kind::Other(raw) }
    }
}

/// A reservation that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// Of its holder.
    pub key: u64,
    pub kind: Kind,
}

/// What a disk can do (REPORT CAPABILITIES).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Registrations and the reservation can be made to outlive a loss of power.
    pub persists: bool,
    /// It has [`Kind::WriteExclusiveRegistrantsOnly`].
    pub registrants_only: bool,
}

/// All keys of a disk, or how many bytes they take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keys {
    All(Vec<u64>),
    /// The answer was cut off; it has this many bytes.
    Longer(usize),
}

/// The command block of a query whose answer has at most `room` bytes.
pub(super) fn query(action: Query, room: u16) -> [u8; 10] {
    let [hi, lo] = room.to_be_bytes();
    [OPCODE_IN, action as u8, 0, 0, 0, 0, 0, hi, lo, 0]
}

/// The command block that asks for the names of a logical unit, of at most `room` bytes.
pub(super) fn inquiry(room: u16) -> [u8; 6] {
    let [hi, lo] = room.to_be_bytes();
    [OPCODE_INQUIRY, 1, DEVICE_IDENTIFICATION, hi, lo, 0]
}

/// The command block of a change.
pub(super) fn change(action: Change, kind: Kind) -> [u8; 10] {
    [OPCODE_OUT, action as u8, kind.raw(), 0, 0, 0, 0, 0, PARAMETERS_BYTES as u8, 0]
}

/// The parameter list of a change: the key that this path has, and the one that the action is about.
pub(super) fn parameters(key: u64, about: u64, persists: bool) -> [u8; PARAMETERS_BYTES] {
    let mut list = [0; PARAMETERS_BYTES];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&about.to_be_bytes());
    list[20] = if persists { APTPL } else { 0 };
    list
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_be_bytes)
}

fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    data.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_be_bytes)
}

/// The answer to READ KEYS. `None`: it is none.
pub fn keys(data: &[u8]) -> Option<Keys> {
    let bytes = usize::try_from(u32_at(data, 4)?).ok()?;
    if !bytes.is_multiple_of(KEY_BYTES) {
        return None;
    }
    match data.get(HEADER_BYTES..HEADER_BYTES.checked_add(bytes)?) {
        None => Some(Keys::Longer(HEADER_BYTES.saturating_add(bytes))),
        Some(list) => Some(Keys::All(list.chunks_exact(KEY_BYTES).filter_map(|k| u64_at(k, 0)).collect())),
    }
}

/// The answer to READ RESERVATION: the outer `None` when it is none, the inner one when there is no reservation.
pub fn reservation(data: &[u8]) -> Option<Option<Reservation>> {
    match u32_at(data, 4)? {
        0 => Some(None),
        16.. => {
            let raw = *data.get(HEADER_BYTES + 13)?;
            Some(Some(Reservation { key: u64_at(data, HEADER_BYTES)?, kind: Kind::of(raw) }))
        }
        _ => None,
    }
}

/// The answer to REPORT CAPABILITIES. `None`: it is none.
pub fn capabilities(data: &[u8]) -> Option<Capabilities> {
    if data.len() < 6 || u16::from_be_bytes([data[0], data[1]]) < 6 {
        return None;
    }
    // Without TMV the mask of types says nothing; then RESERVE tells.
    let types_are_told = data[3] & 0x80 != 0;
    Some(Capabilities { persists: data[2] & 0x01 != 0, registrants_only: !types_are_told || data[4] & 0x20 != 0 })
}

/// The names of a logical unit, and how many bytes the whole answer has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitNames {
    pub names: BTreeSet<Vec<u8>>,
    pub bytes: usize,
}

/// The names of the logical unit that a path leads to, by which it is told from all others, each with its type and code set: its
/// designators of the types NAA, EUI-64 and SCSI name string, as far as they came. Those that only the vendor or this place tells from
/// others (T10, NAA 3h) count where there is no other. Those of ports are others on each path. `None`: the answer is something else, or of
/// a path at which there is no logical unit.
pub fn unit_names(data: &[u8]) -> Option<UnitNames> {
    const HEADER_BYTES: usize = 4;
    let is_connected = data.first()? >> 5 == 0;
    let bytes = HEADER_BYTES + usize::from(u16::from_be_bytes([*data.get(2)?, *data.get(3)?]));
    if data[1] != DEVICE_IDENTIFICATION || !is_connected {
        return None;
    }
    let mut rest = &data[HEADER_BYTES..bytes.min(data.len())];
    let (mut names, mut weak) = (BTreeSet::new(), BTreeSet::new());
    while let Some((head, all)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let Some((name, others)) = all.split_at_checked(usize::from(head[3])) else { break };
        rest = others;
        let (code_set, of, kind) = (head[0] & 0x0F, head[1] >> 4 & 3, head[1] & 0x0F);
        if of != 0 || name.iter().all(|b| matches!(b, 0 | b' ' | b'0')) {
            continue;
        }
        let named = [&[kind, code_set], name].concat();
        match (kind, name[0] >> 4) {
            (1, _) | (3, 3) => weak.insert(named),
            (2 | 3 | 8, _) => names.insert(named),
            _ => false,
        };
    }
    Some(UnitNames { names: if names.is_empty() { weak } else { names }, bytes })
}

/// Why a command ended with CHECK CONDITION: sense key, additional sense code, its qualifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sense {
    pub key: u8,
    pub code: u8,
    pub qualifier: u8,
}

impl Sense {
    /// Something happened before this command, which was not executed.
    pub(super) fn is_unit_attention(self) -> bool {
        self.key == 6
    }

    /// The disk does not know the command, or a field of it.
    pub(super) fn is_illegal_request(self) -> bool {
        self.key == 5
    }
}

/// Sense data in either format. `None`: it is neither, or too short.
pub fn sense(data: &[u8]) -> Option<Sense> {
    let (key, code, qualifier) = match data.first()? & 0x7F {
        0x70 | 0x71 => (2, 12, 13),
        0x72 | 0x73 => (1, 2, 3),
        _ => return None,
    };
    let at = |i: usize| data.get(i).copied();
    Some(Sense { key: at(key)? & 0x0F, code: at(code).unwrap_or(0), qualifier: at(qualifier).unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn read_keys(keys: &[u64]) -> Vec<u8> {
        let mut out = vec![0, 0, 0, 9];
        out.extend(((keys.len() * 8) as u32).to_be_bytes());
        keys.iter().for_each(|k| out.extend(k.to_be_bytes()));
        out
    }

    #[test]
    fn command_blocks_are_those_of_the_specification() {
        assert_eq!(query(Query::ReadKeys, 0x0408), [0x5E, 0, 0, 0, 0, 0, 0, 4, 8, 0]);
        let kind = Kind::WriteExclusiveRegistrantsOnly;
        assert_eq!(change(Change::PreemptAndAbort, kind), [0x5F, 5, 5, 0, 0, 0, 0, 0, 24, 0]);
        let list = parameters(0x0102, 0x0304, true);
        assert_eq!((&list[6..8], &list[14..16], list[20]), (&[1, 2][..], &[3, 4][..], 1));
    }

    #[test]
    fn all_keys_or_none() {
        let whole = read_keys(&[1, u64::MAX, 1]);
        assert_eq!(keys(&whole), Some(Keys::All(vec![1, u64::MAX, 1])));
        assert_eq!(keys(&read_keys(&[])), Some(Keys::All(vec![])));
        for cut in 8..whole.len() {
            assert_eq!(keys(&whole[..cut]), Some(Keys::Longer(32)), "cut at {cut}");
        }
        assert_eq!(keys(&whole[..7]), None);
        let mut odd = whole.clone();
        odd[7] = 23;
        assert_eq!(keys(&odd), None, "a part of a key");
        odd[4..8].copy_from_slice(&0xFFFF_FFF8_u32.to_be_bytes());
        assert_eq!(keys(&odd), Some(Keys::Longer(0x1_0000_0000)));
    }

    #[test]
    fn a_reservation_with_its_holder_and_type() {
        let mut data = vec![0; 24];
        assert_eq!(reservation(&data), Some(None));
        data[7] = 16;
        data[8..16].copy_from_slice(&77_u64.to_be_bytes());
        data[21] = 5;
        let held = Reservation { key: 77, kind: Kind::WriteExclusiveRegistrantsOnly };
        assert_eq!(reservation(&data), Some(Some(held)));
        data[21] = 0x15;
        assert_eq!(reservation(&data).flatten().map(|r| r.kind), Some(Kind::Other(0x15)), "another scope");
        assert_eq!(reservation(&data[..21]), None);
    }

    #[test]
    fn capabilities_and_sense() {
        let can = |a, b, c| capabilities(&[0, 8, a, b, c, 0, 0, 0]);
        assert_eq!(can(0x01, 0x80, 0x20), Some(Capabilities { persists: true, registrants_only: true }));
        assert_eq!(can(0x00, 0x80, 0x02), Some(Capabilities { persists: false, registrants_only: false }));
        assert_eq!(can(0x01, 0x00, 0x00).map(|c| c.registrants_only), Some(true), "it does not tell of types");
        assert_eq!(capabilities(&[0, 8, 1, 0x80, 0x20]), None);
        let mut fixed = [0; 18];
        (fixed[0], fixed[2], fixed[12], fixed[13]) = (0x70, 0x06, 0x2A, 0x03);
        assert_eq!(sense(&fixed), Some(Sense { key: 6, code: 0x2A, qualifier: 3 }));
        assert_eq!(sense(&[0x72, 5, 0x26, 0]), Some(Sense { key: 5, code: 0x26, qualifier: 0 }));
        assert_eq!((sense(&[]), sense(&[0x70, 0]), sense(&[0; 18])), (None, None, None));
    }

    /// Those of the logical unit alone, of any length that the answer has.
    #[test]
    fn names_of_a_logical_unit() {
        let naa = [0x01, 0x03, 0, 4, 0x60, 1, 2, 3];
        let vendor = [0x02, 0x01, 0, 3, b'a', b'b', b'c'];
        let port = [0x01, 0x14, 0, 4, 0, 0, 0, 2];
        let (group, empty) = ([0x01, 0x06, 0, 4, 0, 0, 0, 9], [0x01, 0x03, 0, 4, 0, 0, 0, 0]);
        let list = [&naa[..], &port, &vendor, &group, &empty].concat();
        let page = |first: u8, page: u8, list: &[u8]| [&[first, page, 0, list.len() as u8], list].concat();
        let of = |data: &[u8]| unit_names(data).map(|told| told.names);
        let [strong, weak] =
            [vec![3, 1, 0x60, 1, 2, 3], vec![1, 2, b'a', b'b', b'c']].map(|name| BTreeSet::from([name]));
        assert_eq!(of(&page(0, 0x83, &list)), Some(strong.clone()), "the vendor's name says less");
        assert_eq!(of(&page(0, 0x83, &list[8..])), Some(weak), "and counts alone");
        assert_eq!(of(&[&page(0, 0x83, &list)[..], &[0; 9]].concat()), Some(strong.clone()), "what is behind it");
        let cut = &page(0, 0x83, &list)[..17];
        let told = unit_names(cut).unwrap();
        assert_eq!((told.names, told.bytes), (strong, 4 + list.len()), "as far as it came");
        assert_eq!(of(&page(0, 0x83, &port)), Some(BTreeSet::new()));
        assert_eq!(unit_names(&page(0x20, 0x83, &list)), None, "no logical unit is there");
        assert_eq!(unit_names(&page(0x7F, 0x83, &list)), None);
        assert_eq!(unit_names(&page(0, 0x80, &list)), None, "another page");
        assert_eq!(of(&page(0, 0x83, &naa[..7])), Some(BTreeSet::new()), "a part of a name");
        assert_eq!((unit_names(&[]), unit_names(&[0, 0x83, 0])), (None, None), "cut off");
    }

    /// Any bytes: no panic, and no more keys than bytes that came.
    #[test]
    fn parsers_are_total() {
        let mut rng = Rng::new(7);
        for _ in 0..20_000 {
            let mut data: Vec<u8> = (0..rng.below(64)).map(|_| rng.next_u64() as u8).collect();
            if rng.below(2) == 0 && data.len() > 7 {
                data[4..7].fill(0);
            }
            if let Some(Keys::All(list)) = keys(&data) {
                assert!(list.len() * 8 + 8 <= data.len());
            }
            let _ = (reservation(&data), capabilities(&data), sense(&data), unit_names(&data));
        }
    }
}
