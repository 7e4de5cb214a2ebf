//! Registration keys that say whose they are: 16 bits of the cluster, 16 of the node and 32 of the epoch.

use std::fmt;

/// A key of one ownership. Node and cluster are never zero, so neither is the key: zero means "no key" to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    cluster: u16,
    node: u16,
    epoch: u32,
}

impl Key {
    /// `None` for a node of zero and an epoch of 2^32 or more, which no key can name.
    pub fn new(cluster: u16, node: u16, epoch: u64) -> Option<Key> {
        let epoch = u32::try_from(epoch).ok()?;
        (cluster != 0 && node != 0).then_some(Key { cluster, node, epoch })
    }

    /// 16 bits that stand for the cluster with this id. Two clusters have the same ones by chance once in 65,535.
    pub fn cluster_tag(id: &str) -> u16 {
        let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        (hash % 0xFFFF) as u16 + 1
    }

    /// The key that a disk told of, if a node of the cluster can have registered it.
    pub fn of(raw: u64, cluster: u16) -> Option<Key> {
        let key = Key { cluster: (raw >> 48) as u16, node: (raw >> 32) as u16, epoch: raw as u32 };
        (key.cluster == cluster && key.cluster != 0 && key.node != 0).then_some(key)
    }

    pub fn raw(self) -> u64 {
        u64::from(self.cluster) << 48 | u64::from(self.node) << 32 | u64::from(self.epoch)
    }

    pub fn cluster(self) -> u16 {
        self.cluster
    }

    pub fn node(self) -> u16 {
        self.node
    }

    pub fn epoch(self) -> u64 {
        u64::from(self.epoch)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x} (node {}, epoch {})", self.raw(), self.node, self.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_whose_it_is() {
        let tag = Key::cluster_tag("6fd0a9");
        let key = Key::new(tag, 7, 12).unwrap();
        assert_eq!(Key::of(key.raw(), tag), Some(key));
        assert_eq!((key.cluster(), key.node(), key.epoch()), (tag, 7, 12));
        assert_eq!(Key::of(key.raw(), tag ^ 1), None, "of another cluster");
        assert_eq!(Key::of(u64::from(tag) << 48, tag), None, "there is no node 0");
        assert_eq!(Key::of(0, 0), None);
        assert_eq!(Key::new(tag, 0, 1), None);
        assert_eq!(Key::new(tag, 1, 1 << 32), None, "it is not cut off");
        assert!(Key::new(tag, 1, (1 << 32) - 1).is_some());
        assert_ne!(Key::cluster_tag(""), 0);
        assert_ne!(tag, Key::cluster_tag("6fd0aa"));
    }
}
