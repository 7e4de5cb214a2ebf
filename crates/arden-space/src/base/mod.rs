//! Values and arithmetic that know nothing of pools: bitmaps, range locks, bytes of records, parity, errors.

pub(crate) mod bitmap;
pub(crate) mod codec;
pub(crate) mod error;
pub(crate) mod gf;
pub(crate) mod lock;
