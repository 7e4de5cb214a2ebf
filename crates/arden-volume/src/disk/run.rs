//! A run of blocks of the device.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    pub start: u64,
    pub len: u64,
}
