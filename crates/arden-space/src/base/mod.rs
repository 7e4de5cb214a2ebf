//! Values that know nothing of pools: bitmaps, range locks, bytes of records, errors.

pub(crate) mod bitmap;
pub(crate) mod codec;
pub(crate) mod error;
pub(crate) mod lock;
