//! What a disk answers to questions about persistent reservations.

use arden_block::reserve::{Keys, capabilities, keys, reservation, sense};

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
    let _ = (capabilities(data), sense(data));
}
