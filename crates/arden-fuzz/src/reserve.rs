//! What a disk answers to questions about persistent reservations.

use arden_block::reserve::nvme::{self, Reported};
use arden_block::reserve::{Keys, capabilities, keys, reservation, sense, unit_names};

/// Any answer to any of the questions. Keys are told all or not at all.
pub fn answer(data: &[u8]) {
    match keys(data) {
        Some(Keys::All(all)) => {
            let again: Vec<u8> = all.iter().flat_map(|k| k.to_be_bytes()).collect();
            assert_eq!(data[8..8 + again.len()], again);
            assert_eq!(u32::from_be_bytes(data[4..8].try_into().expect("four bytes")) as usize, again.len());
        }
        Some(Keys::Longer(bytes)) => assert!(bytes > data.len()),
        None => {}
    }
    if let Some(Some(held)) = reservation(data) {
        assert_eq!(data[8..16], held.key.to_be_bytes());
    }
    let names = unit_names(data).map_or_else(Default::default, |told| told.names);
    assert!(names.iter().map(|name| name.len() + 2).sum::<usize>() + 4 <= data.len().max(4));
    let _ = (capabilities(data), sense(data));
}

/// The same of NVMe: the first byte says which form the answer has.
pub fn nvme_answer(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    let extended = first & 1 != 0;
    let (header, entry) = if extended { (64, 64) } else { (24, 24) };
    match nvme::report(data, extended) {
        Some(Reported::All(told)) => {
            assert!(header + entry * told.registrants.len() <= data.len());
            assert_eq!(usize::from(u16::from_le_bytes([data[5], data[6]])), told.registrants.len());
            if let Some(Some(held)) = told.reservation() {
                assert!(held.key == 0 || told.registrants.iter().any(|r| r.holds && r.key == held.key));
            }
        }
        Some(Reported::Longer(bytes)) => assert!(bytes > data.len()),
        None => assert!(data.len() < header),
    }
    let _ = (nvme::capabilities(data), nvme::has_reservations(data), nvme::host(data, extended));
}
