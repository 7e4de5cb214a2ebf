//! What lies on the device, and the device: layouts of the superblock, of nodes and of values, keys, checksums. Owns no state.

pub mod device;
pub mod error;
pub mod gather;
pub mod inode;
pub mod keys;
pub mod openings;
pub mod read_ahead;
pub mod run;
pub mod superblock;
pub mod treenode;
