//! Messages between the nodes of a cluster.

use arden_smb::wire::{FromOwner, LENGTH_BYTES, ToOwner, Version};

/// A frame without its length, for either side and in each version: what was understood is said again, and means the same.
pub fn frame(data: &[u8]) {
    for version in Version::ALL {
        if let Ok(message) = ToOwner::parse(data, version) {
            let mut again = Vec::new();
            assert_eq!(message.put(&mut again), Ok(()));
            assert_eq!(&again[LENGTH_BYTES..], data);
        }
        if let Ok(message) = FromOwner::parse(data, version) {
            let mut again = Vec::new();
            assert_eq!(message.put(&mut again), Ok(()));
            assert_eq!(&again[LENGTH_BYTES..], data);
        }
    }
}
