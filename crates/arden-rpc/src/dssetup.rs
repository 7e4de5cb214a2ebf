//! Directory Services Setup, [MS-DSSP] 3.2.5: the role of the server, which is always that of a stand-alone server.

use crate::{
    PipeContext,
    call::{Answer, Fault, Interface, win32},
    handles::Handles,
};
use arden_wire::{
    ndr::{NdrReader, NdrWriter},
    rpc::{Syntax, uuid},
};

pub(crate) const INTERFACE: Interface = Interface {
    syntax: Syntax {
        uuid: uuid(0x3919_286A, 0xB10C, 0x11D0, [0x9B, 0xA8, 0x00, 0xC0, 0x4F, 0xD9, 0x2E, 0xF5]),
        version: 0,
    },
    call,
};

/// DsRolerGetPrimaryDomainInformation, [MS-DSSP] 3.2.5.1.
fn call(context: &PipeContext, _: &mut Handles, opnum: u16, stub: &[u8]) -> Answer {
    if opnum != 0 {
        return Err(Fault::OPNUM_RANGE);
    }
    let level = NdrReader::new(stub).u16()?;
    let mut w = NdrWriter::new();
    w.pointer(true);
    w.u16(level);
    match level {
        // DsRolePrimaryDomainInfoBasic: DsRole_RoleStandaloneServer in a workgroup.
        1 => {
            w.align(4);
            w.u16(2);
            w.u32(0);
            w.pointer(true);
            w.pointer(false);
            w.pointer(false);
            w.align(4);
            w.bytes(&[0; 16]);
            w.string(&context.view.identity().domain);
        }
        // DsRoleUpgradeStatus: no upgrade, no earlier role.
        2 => {
            w.u32(0);
            w.u16(0);
        }
        // DsRoleOperationState: idle.
        3 => w.u16(0),
        _ => {
            let mut w = NdrWriter::new();
            w.pointer(false);
            w.u32(win32::INVALID_PARAMETER);
            return Ok(w.finish());
        }
    }
    w.u32(win32::SUCCESS);
    Ok(w.finish())
}
