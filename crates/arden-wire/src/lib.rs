//! Codecs of the protocols that Arden implements. No I/O, no clock, no state. Hostile input does not panic: every
//! decoder returns [`Malformed`].
#![forbid(unsafe_code)]

pub mod access;
pub mod cursor;
mod der;
pub mod dtyp;
pub mod fscc;
pub mod names;
pub mod ndr;
pub mod ntlm;
pub mod rpc;
pub mod smb2;
pub mod spnego;
pub mod status;
pub mod stream_snapshot;
pub mod time;

pub use status::NtStatus;
pub use time::FileTime;

/// The input breaks its specification. The text names the structure, for logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "malformed: {}", self.0)
    }
}
impl std::error::Error for Malformed {}
