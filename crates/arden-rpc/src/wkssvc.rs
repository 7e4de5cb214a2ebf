//! The Workstation Service, [MS-WKST] 3.2.4: names of the machine and its users. Joining domains and mapping drives are
//! not supported.

use crate::{
    PipeContext,
    call::{Answer, Fault, Interface, win32},
    handles::Handles,
    rows::{EnumArgs, Field, single, text},
    srvsvc::{PLATFORM_NT, VERSION_MAJOR, VERSION_MINOR},
};
use arden_wire::{
    ndr::{NdrReader, NdrWriter},
    rpc::{Syntax, uuid},
};

pub(crate) const INTERFACE: Interface = Interface {
    syntax: Syntax {
        uuid: uuid(0x6BFF_D098, 0xA112, 0x3610, [0x98, 0x33, 0x46, 0xC3, 0xF8, 0x7E, 0x34, 0x5A]),
        version: 1,
    },
    call,
};

fn call(context: &PipeContext, _: &mut Handles, opnum: u16, stub: &[u8]) -> Answer {
    let r = &mut NdrReader::new(stub);
    let _server_name = r.unique_string()?;
    match opnum {
        0 => get_info(context, r),
        2 => user_enum(context, r),
        20 => get_join_information(context, r),
        _ => Err(Fault::OPNUM_RANGE),
    }
}

/// NetrWkstaGetInfo, [MS-WKST] 3.2.4.1.
fn get_info(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let level = r.u32()?;
    let identity = context.view.identity();
    let mut row = vec![
        Field::U32(PLATFORM_NT),
        text(&identity.netbios_name),
        text(&identity.domain),
        Field::U32(VERSION_MAJOR),
        Field::U32(VERSION_MINOR),
    ];
    let admin = context.caller.is_administrator();
    let row = match level {
        100 => Ok(row),
        101 | 102 if !admin => Err(win32::ACCESS_DENIED),
        101 | 102 => {
            row.push(text(""));
            if level == 102 {
                row.push(Field::U32(users(context).len() as u32));
            }
            Ok(row)
        }
        _ => Err(win32::INVALID_LEVEL),
    };
    // The arms of the union: the levels above, and settings that this server does not have.
    let has_arm = matches!(level, 100..=102 | 502 | 1010..=1062);
    Ok(single(level, has_arm, row))
}

/// The users that have sessions, each listed once.
fn users(context: &PipeContext) -> Vec<String> {
    let mut users: Vec<String> =
        context.view.sessions().into_iter().map(|s| s.user).filter(|u| !u.is_empty()).collect();
    users.sort();
    users.dedup();
    users
}

/// NetrWkstaUserEnum, [MS-WKST] 3.2.4.3.
fn user_enum(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let args = EnumArgs::read(r)?;
    let identity = context.view.identity();
    let rows = if args.level > 1 {
        Err(win32::INVALID_LEVEL)
    } else if !context.caller.is_administrator() {
        Err(win32::ACCESS_DENIED)
    } else {
        let row = |user: String| {
            let mut row = vec![text(&user)];
            if args.level == 1 {
                row.extend([text(&identity.domain), text(""), text(&identity.netbios_name)]);
            }
            row
        };
        Ok(users(context).into_iter().map(row).collect())
    };
    Ok(args.answer(rows))
}

/// NetrGetJoinInformation, [MS-WKST] 3.2.4.12: always a workgroup.
fn get_join_information(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let _name = r.unique_string()?;
    const NET_SETUP_WORKGROUP_NAME: u16 = 2;
    let mut w = NdrWriter::new();
    w.unique_string(Some(&context.view.identity().domain));
    w.u16(NET_SETUP_WORKGROUP_NAME);
    w.u32(win32::SUCCESS);
    Ok(w.finish())
}
