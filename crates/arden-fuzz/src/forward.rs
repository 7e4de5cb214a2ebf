//! Messages between the nodes of a cluster.

use arden_smb::wire::{FromOwner, LENGTH_BYTES, ToOwner};

/// A frame without its length, for either side: what was understood is said again, and means the same.
pub fn frame(data: &[u8]) {
    if let Ok(message) = ToOwner::parse(data) {
        let mut again = Vec::new();
        assert_eq!(message.put(&mut again), Ok(()));
        assert_eq!(&again[LENGTH_BYTES..], data);
    }
    if let Ok(message) = FromOwner::parse(data) {
        let mut again = Vec::new();
        assert_eq!(message.put(&mut again), Ok(()));
        assert_eq!(&again[LENGTH_BYTES..], data);
    }
}
