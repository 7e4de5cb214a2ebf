//! One call: the arguments of an interface and its result.

use crate::{PipeContext, handles::Handles};
use arden_wire::{Malformed, NtStatus, ndr::NdrWriter, rpc::Syntax};

/// The status of a fault, [C706] appendix E and [MS-RPCE] 3.3.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault(pub u32);

impl Fault {
    pub(crate) const ACCESS_DENIED: Fault = Fault(5);
    /// RPC_X_BAD_STUB_DATA.
    pub(crate) const BAD_STUB: Fault = Fault(1783);
    pub(crate) const OPNUM_RANGE: Fault = Fault(0x1C01_0002);
    pub(crate) const UNKNOWN_INTERFACE: Fault = Fault(0x1C01_0003);
    pub(crate) const PROTOCOL_ERROR: Fault = Fault(0x1C01_000B);
    /// nca_s_server_too_busy.
    pub(crate) const TOO_BUSY: Fault = Fault(0x1C01_0014);
    /// nca_s_fault_cancel.
    pub(crate) const CANCELLED: Fault = Fault(0x1C00_000D);
    pub(crate) const CONTEXT_MISMATCH: Fault = Fault(0x1C00_001A);
}

impl From<Malformed> for Fault {
    fn from(_: Malformed) -> Fault {
        Fault::BAD_STUB
    }
}

/// The stub of a response, or a fault.
pub(crate) type Answer = Result<Vec<u8>, Fault>;

/// An interface: it takes the stub of a request and returns that of a response.
pub(crate) struct Interface {
    pub syntax: Syntax,
    pub call: fn(&PipeContext, &mut Handles, u16, &[u8]) -> Answer,
}

/// NET_API_STATUS and Win32 errors, [MS-ERREF] 2.2.
pub(crate) mod win32 {
    pub const SUCCESS: u32 = 0;
    pub const ACCESS_DENIED: u32 = 5;
    pub const NOT_SUPPORTED: u32 = 50;
    pub const INVALID_PARAMETER: u32 = 87;
    pub const INVALID_NAME: u32 = 123;
    pub const INVALID_LEVEL: u32 = 124;
    pub const MORE_DATA: u32 = 234;
    pub const NERR_USER_NOT_FOUND: u32 = 2221;
    pub const NERR_DEVICE_NOT_SHARED: u32 = 2311;
    pub const NERR_NET_NAME_NOT_FOUND: u32 = 2310;
    pub const NERR_CLIENT_NAME_NOT_FOUND: u32 = 2312;
    pub const NERR_FILE_ID_NOT_FOUND: u32 = 2314;
}

/// NTSTATUS values that only these interfaces use.
pub(crate) mod status {
    use arden_wire::NtStatus;
    pub const MORE_ENTRIES: NtStatus = NtStatus(0x0000_0105);
    pub const SOME_NOT_MAPPED: NtStatus = NtStatus(0x0000_0107);
    pub const NO_SUCH_PRIVILEGE: NtStatus = NtStatus(0xC000_0060);
    pub const NO_SUCH_GROUP: NtStatus = NtStatus(0xC000_0066);
    pub const NO_SUCH_DOMAIN: NtStatus = NtStatus(0xC000_00DF);
    pub const NO_SUCH_ALIAS: NtStatus = NtStatus(0xC000_0151);
}

/// Ends a stub with its status.
pub(crate) fn finish(mut w: NdrWriter, status: NtStatus) -> Answer {
    w.u32(status.0);
    Ok(w.finish())
}

/// The stub of a failed call with one `[out]` pointer: a null pointer and the error.
pub(crate) fn null_and(error: NtStatus) -> Answer {
    let mut w = NdrWriter::new();
    w.pointer(false);
    finish(w, error)
}
