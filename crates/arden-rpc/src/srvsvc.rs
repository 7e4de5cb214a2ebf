//! The Server Service, [MS-SRVS] 3.1.4: shares, sessions, opens, and information about the server. Shares cannot be
//! changed here: administration does it.

use crate::{
    PipeContext, ShareView,
    call::{Answer, Fault, Interface, win32},
    handles::Handles,
    rows::{EnumArgs, Field, Row, single, text},
};
use arden_auth::users::same_name;
use arden_wire::{
    FileTime, NtStatus,
    access::{FILE_APPEND_DATA, FILE_EXECUTE, FILE_READ_DATA, FILE_WRITE_DATA},
    dtyp::SecurityDescriptor,
    ndr::{NdrReader, NdrWriter},
    rpc::{Syntax, uuid},
};

pub(crate) const INTERFACE: Interface = Interface {
    syntax: Syntax {
        uuid: uuid(0x4B32_4FC8, 0x1670, 0x01D3, [0x12, 0x78, 0x5A, 0x47, 0xBF, 0x6E, 0xE1, 0x88]),
        version: 3,
    },
    call,
};

fn call(context: &PipeContext, _: &mut Handles, opnum: u16, stub: &[u8]) -> Answer {
    let r = &mut NdrReader::new(stub);
    let _server_name = r.unique_string()?;
    match opnum {
        8 => connection_enum(context, r),
        9 => file_enum(context, r),
        10 => file_get_info(context, r),
        14 | 17 | 22 => {
            // NetrShareAdd, NetrShareSetInfo and NetrServerSetInfo are refused, without a ParmErr.
            let mut w = NdrWriter::new();
            w.pointer(false);
            w.u32(win32::NOT_SUPPORTED);
            Ok(w.finish())
        }
        18 | 19 => status(win32::NOT_SUPPORTED),
        11 => file_close(context, r),
        12 => session_enum(context, r),
        13 => session_del(context, r),
        15 | 36 => share_enum(context, r, opnum == 36),
        16 => share_get_info(context, r),
        20 => share_check(context, r),
        21 => server_get_info(context, r),
        23 => disk_enum(context, r),
        26 => transport_enum(context, r),
        28 => remote_tod(context),
        33 => name_validate(r),
        39 => get_file_security(context, r),
        _ => Err(Fault::OPNUM_RANGE),
    }
}

/// A stub that holds a status alone.
fn status(code: u32) -> Answer {
    let mut w = NdrWriter::new();
    w.u32(code);
    Ok(w.finish())
}

fn admin(context: &PipeContext) -> Result<(), u32> {
    if context.caller.is_administrator() { Ok(()) } else { Err(win32::ACCESS_DENIED) }
}

/// Whether two names of a client are equal, with or without leading backslashes.
fn same_client(given: &str, client: &str) -> bool {
    same_name(given.trim_start_matches('\\'), client.trim_start_matches('\\'))
}

/// NetrConnectionEnum, [MS-SRVS] 3.1.4.1: the tree connects of a share, or those of a client when the qualifier is
/// `\\\\client`.
fn connection_enum(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let qualifier = r.unique_string()?;
    let args = EnumArgs::read(r)?;
    let rows = admin(context).and_then(|()| {
        let qualifier = qualifier.filter(|q| !q.is_empty()).ok_or(win32::INVALID_PARAMETER)?;
        if args.level > 1 {
            return Err(win32::INVALID_LEVEL);
        }
        let by_client = qualifier.starts_with("\\\\");
        if !by_client && !context.view.shares().iter().any(|s| same_name(&s.name, &qualifier)) {
            return Err(win32::NERR_NET_NAME_NOT_FOUND);
        }
        let wanted = |c: &crate::ConnectionView| {
            if by_client { same_client(&qualifier, &c.client) } else { same_name(&qualifier, &c.share) }
        };
        let connections = context.view.connections();
        Ok(connections
            .iter()
            .filter(|c| wanted(c))
            .map(|c| {
                let mut row = vec![Field::U32(c.id)];
                if args.level == 1 {
                    row.extend([c.kind, c.opens, c.users, c.seconds].map(Field::U32));
                    row.push(text(&c.user));
                    row.push(text(if by_client { &c.share } else { &c.client }));
                }
                row
            })
            .collect())
    });
    Ok(args.answer(rows))
}

/// Permissions of an open file, fi3_permissions, [MS-SRVS] 2.2.4.7.
fn file_permissions(access: u32) -> u32 {
    let mut out = 0;
    if access & (FILE_READ_DATA | FILE_EXECUTE) != 0 {
        out |= 1;
    }
    if access & (FILE_WRITE_DATA | FILE_APPEND_DATA) != 0 {
        out |= 2;
    }
    out
}

fn file_row(level: u32, open: &crate::OpenView) -> Result<Row, u32> {
    let mut row = vec![Field::U32(open.id)];
    match level {
        2 => {}
        3 => {
            row.extend([Field::U32(file_permissions(open.access)), Field::U32(open.locks)]);
            row.extend([text(&open.path), text(&open.user)]);
        }
        _ => return Err(win32::INVALID_LEVEL),
    }
    Ok(row)
}

/// NetrFileEnum, [MS-SRVS] 3.1.4.2.
fn file_enum(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let base = r.unique_string()?.filter(|b| !b.is_empty());
    let user = r.unique_string()?.filter(|u| !u.is_empty());
    let args = EnumArgs::read(r)?;
    let rows = admin(context).and_then(|()| {
        let under_base = |path: &str| match &base {
            Some(base) => path.to_lowercase().starts_with(&base.to_lowercase()),
            None => true,
        };
        let opens = context.view.opens();
        let wanted =
            opens.iter().filter(|o| under_base(&o.path) && user.as_ref().is_none_or(|u| same_name(u, &o.user)));
        // The level is checked even when no file is open.
        file_row(args.level, &crate::OpenView::default())?;
        wanted.map(|o| file_row(args.level, o)).collect()
    });
    Ok(args.answer(rows))
}

/// NetrFileGetInfo, [MS-SRVS] 3.1.4.3.
fn file_get_info(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let (id, level) = (r.u32()?, r.u32()?);
    let row = admin(context).and_then(|()| {
        let open = context.view.opens().into_iter().find(|o| o.id == id).ok_or(win32::NERR_FILE_ID_NOT_FOUND)?;
        file_row(level, &open)
    });
    Ok(single(level, matches!(level, 2 | 3), row))
}

/// NetrFileClose, [MS-SRVS] 3.1.4.4.
fn file_close(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let id = r.u32()?;
    status(match admin(context) {
        Err(error) => error,
        Ok(()) if context.view.close_file(id) => win32::SUCCESS,
        Ok(()) => win32::NERR_FILE_ID_NOT_FOUND,
    })
}

/// NetrSessionEnum, [MS-SRVS] 3.1.4.5. Only administrators see sessions, at every level.
fn session_enum(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let client = r.unique_string()?.filter(|c| !c.is_empty());
    let user = r.unique_string()?.filter(|u| !u.is_empty());
    let args = EnumArgs::read(r)?;
    let rows = admin(context).and_then(|()| {
        if ![0, 1, 2, 10, 502].contains(&args.level) {
            return Err(win32::INVALID_LEVEL);
        }
        let sessions = context.view.sessions();
        let found: Vec<Row> = sessions
            .iter()
            .filter(|s| client.as_ref().is_none_or(|c| same_client(c, &s.client)))
            .filter(|s| user.as_ref().is_none_or(|u| same_name(u, &s.user)))
            .map(|s| session_row(args.level, s))
            .collect();
        match (&client, &user) {
            (Some(_), None) if found.is_empty() => Err(win32::NERR_CLIENT_NAME_NOT_FOUND),
            (_, Some(_)) if found.is_empty() => Err(win32::NERR_USER_NOT_FOUND),
            _ => Ok(found),
        }
    });
    Ok(args.answer(rows))
}

fn session_row(level: u32, s: &crate::SessionView) -> Row {
    // Windows returns names of clients without backslashes here.
    let mut row = vec![text(&s.client)];
    if level == 0 {
        return row;
    }
    row.push(text(&s.user));
    if level != 10 {
        row.push(Field::U32(s.opens));
    }
    row.extend([Field::U32(s.seconds), Field::U32(s.idle_seconds)]);
    if level != 10 {
        row.push(Field::U32(u32::from(s.guest)));
    }
    if level == 2 || level == 502 {
        row.push(text(""));
    }
    if level == 502 {
        row.push(text(""));
    }
    row
}

/// NetrSessionDel, [MS-SRVS] 3.1.4.6.
fn session_del(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let client = r.unique_string()?.filter(|c| !c.is_empty());
    let user = r.unique_string()?.filter(|u| !u.is_empty());
    if let Err(error) = admin(context) {
        return status(error);
    }
    if client.is_none() && user.is_none() {
        return status(win32::INVALID_PARAMETER);
    }
    let mut ended = 0;
    for session in context.view.sessions() {
        let wanted = client.as_ref().is_none_or(|c| same_client(c, &session.client))
            && user.as_ref().is_none_or(|u| same_name(u, &session.user));
        if wanted && context.view.close_session(session.id) {
            ended += 1;
        }
    }
    status(if ended > 0 { win32::SUCCESS } else { win32::NERR_CLIENT_NAME_NOT_FOUND })
}

/// Whether every user may see this level. The other levels show paths and security.
fn share_level_is_public(level: u32) -> bool {
    matches!(level, 0 | 1 | 501 | 1005)
}

/// Whether this level shows how many use a share, [MS-SRVS] 2.2.4.24 to 2.2.4.27.
fn share_level_has_uses(level: u32) -> bool {
    matches!(level, 2 | 502 | 503)
}

/// `shares` with how many use each, for a level that shows it; administrators alone may ask for those.
fn count_uses(context: &PipeContext, level: u32, shares: &mut [ShareView]) {
    if share_level_has_uses(level) && !shares.is_empty() {
        let uses = context.view.share_uses();
        shares.iter_mut().for_each(|s| s.current_users = uses.get(&s.name).copied().unwrap_or(s.current_users));
    }
}

fn share_row(level: u32, s: &ShareView) -> Result<Row, u32> {
    let head = || vec![text(&s.name), Field::U32(s.kind), text(&s.comment)];
    let users = || {
        let max = s.max_users.unwrap_or(u32::MAX);
        // shi2_permissions belongs to share-level security and is 0.
        vec![Field::U32(0), Field::U32(max), Field::U32(s.current_users), text(&s.path), Field::Text(None)]
    };
    let security = || Field::Bytes(s.security.as_ref().map(SecurityDescriptor::encode));
    Ok(match level {
        0 => vec![text(&s.name)],
        1 => head(),
        2 => [head(), users()].concat(),
        501 => [head(), vec![Field::U32(s.flags)]].concat(),
        502 => [head(), users(), vec![security()]].concat(),
        503 => {
            let scope = text(if s.server_name.is_empty() { "*" } else { &s.server_name });
            [head(), users(), vec![scope, security()]].concat()
        }
        1004 => vec![text(&s.comment)],
        1005 => vec![Field::U32(s.flags)],
        1006 => vec![Field::U32(s.max_users.unwrap_or(u32::MAX))],
        1501 => vec![security()],
        _ => return Err(win32::INVALID_LEVEL),
    })
}

/// NetrShareEnum, [MS-SRVS] 3.1.4.8, and NetrShareEnumSticky, [MS-SRVS] 3.1.4.9, which leaves temporary shares out.
fn share_enum(context: &PipeContext, r: &mut NdrReader<'_>, sticky: bool) -> Answer {
    let args = EnumArgs::read(r)?;
    let known = if sticky { &[0, 1, 2, 502, 503][..] } else { &[0, 1, 2, 501, 502, 503] };
    let rows = if !known.contains(&args.level) {
        Err(win32::INVALID_LEVEL)
    } else if !share_level_is_public(args.level) && !context.caller.is_administrator() {
        Err(win32::ACCESS_DENIED)
    } else {
        let mut shares = context.view.shares();
        // Level 503 includes scoped shares; the others only have shares of the server's own name.
        shares.retain(|s| args.level == 503 || matches!(s.server_name.as_str(), "" | "*"));
        shares.retain(|s| !sticky || s.kind & crate::share_type::SPECIAL == 0);
        // Only administrators see hidden shares. IPC$ is shown to everybody.
        let ipc = crate::share_type::IPC | crate::share_type::SPECIAL;
        let all = context.caller.is_administrator();
        shares.retain(|s| all || s.kind == ipc || s.kind & crate::share_type::SPECIAL == 0);
        count_uses(context, args.level, &mut shares);
        shares.iter().map(|s| share_row(args.level, s)).collect()
    };
    Ok(args.answer(rows))
}

/// NetrShareGetInfo, [MS-SRVS] 3.1.4.10.
fn share_get_info(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let name = r.string()?;
    let level = r.u32()?;
    let row = if !share_level_is_public(level) && !context.caller.is_administrator() {
        // An unknown level is reported before missing access.
        share_row(level, &ShareView::default()).and(Err(win32::ACCESS_DENIED))
    } else {
        let mut shares = context.view.shares();
        shares.retain(|s| same_name(&s.name, &name));
        count_uses(context, level, &mut shares);
        shares.first().ok_or(win32::NERR_NET_NAME_NOT_FOUND).and_then(|s| share_row(level, s))
    };
    let has_arm = matches!(level, 0..=2 | 501..=503 | 1004..=1007 | 1501);
    Ok(single(level, has_arm, row))
}

/// NetrShareCheck, [MS-SRVS] 3.1.4.16: whether a device, which is a path, is shared.
fn share_check(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let device = r.string()?;
    let share = context.view.shares().into_iter().find(|s| same_name(&s.path, &device));
    let mut w = NdrWriter::new();
    w.u32(share.as_ref().map_or(0, |s| s.kind & 0xFF));
    w.u32(if share.is_some() { win32::SUCCESS } else { win32::NERR_DEVICE_NOT_SHARED });
    Ok(w.finish())
}

/// SV_PLATFORM_ID_NT, [MS-SRVS] 2.2.2.6, and version 10.0.
pub(crate) const PLATFORM_NT: u32 = 500;
pub(crate) const VERSION_MAJOR: u32 = 10;
pub(crate) const VERSION_MINOR: u32 = 0;
/// SV_TYPE_WORKSTATION | SV_TYPE_SERVER | SV_TYPE_NT | SV_TYPE_SERVER_NT, [MS-SRVS] 2.2.2.7.
const SERVER_TYPE: u32 = 0x0000_9003;

/// NetrServerGetInfo, [MS-SRVS] 3.1.4.17.
fn server_get_info(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let level = r.u32()?;
    let name = context.view.identity().netbios_name;
    let row = match level {
        100 => Ok(vec![Field::U32(PLATFORM_NT), text(&name)]),
        101 | 102 => {
            let mut row = vec![Field::U32(PLATFORM_NT), text(&name)];
            row.extend([VERSION_MAJOR, VERSION_MINOR, SERVER_TYPE].map(Field::U32));
            row.push(text(&context.view.comment()));
            if level == 102 {
                // No limit of users, no automatic disconnect, visible, announced every four minutes.
                row.extend([u32::MAX, u32::MAX, 0, 240, 3000, 0].map(Field::U32));
                row.push(text("C:\\"));
            }
            if level == 102 && !context.caller.is_administrator() { Err(win32::ACCESS_DENIED) } else { Ok(row) }
        }
        _ => Err(win32::INVALID_LEVEL),
    };
    // The arms of the union: the levels above, and settings that this server does not have.
    let has_arm = matches!(level, 100..=103 | 502 | 503 | 599 | 1005 | 1010 | 1016..=1018 | 1107 | 1501..=1556);
    Ok(single(level, has_arm, row))
}

/// NetrServerDiskEnum, [MS-SRVS] 3.1.4.19: no drive letters.
fn disk_enum(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let (level, _entries) = (r.u32()?, r.u32()?);
    if r.pointer()? {
        // An empty array: maximum count, offset and actual count.
        let (_max, _offset, actual) = (r.u32()?, r.u32()?, r.u32()?);
        if actual != 0 {
            return Err(Fault::BAD_STUB);
        }
    }
    let _preferred_max = r.u32()?;
    let resume = r.pointer()?;
    let code = match admin(context) {
        Err(error) => error,
        Ok(()) if level != 0 => win32::INVALID_LEVEL,
        Ok(()) => win32::SUCCESS,
    };
    let mut w = NdrWriter::new();
    w.u32(0);
    w.pointer(false);
    w.u32(0);
    w.pointer(resume);
    if resume {
        w.u32(0);
    }
    w.u32(code);
    Ok(w.finish())
}

/// NetrServerTransportEnum, [MS-SRVS] 3.1.4.24: no NetBIOS transports.
fn transport_enum(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let args = EnumArgs::read(r)?;
    let rows = if args.level > 3 { Err(win32::INVALID_LEVEL) } else { admin(context).map(|()| Vec::new()) };
    Ok(args.answer(rows))
}

/// NetrRemoteTOD, [MS-SRVS] 3.1.4.21.
fn remote_tod(context: &PipeContext) -> Answer {
    let now = context.view.now();
    let (seconds, nanos) = now.to_unix();
    let day_seconds = seconds.rem_euclid(86_400) as u32;
    let (year, month, day) = civil_date(seconds.div_euclid(86_400));
    let weekday = (seconds.div_euclid(86_400) + 4).rem_euclid(7) as u32;
    let mut w = NdrWriter::new();
    w.pointer(true);
    let fields = [
        seconds as u32,
        ticks_since(context.view.started(), now),
        day_seconds / 3600,
        day_seconds / 60 % 60,
        day_seconds % 60,
        nanos / 10_000_000,
        // The time zone is UTC, and a clock tick has 31 units of 0.1 ms as on Windows.
        0,
        310,
        day,
        month,
        year,
        weekday,
    ];
    fields.iter().for_each(|f| w.u32(*f));
    w.u32(win32::SUCCESS);
    Ok(w.finish())
}

/// Milliseconds since the start, wrapping at 32 bits as GetTickCount does.
fn ticks_since(start: FileTime, now: FileTime) -> u32 {
    (now.0.saturating_sub(start.0) / 10_000) as u32
}

/// Year, month and day of a day given as days since 1970-01-01.
fn civil_date(days: i64) -> (u32, u32, u32) {
    // Years begin in March, in eras of 400: the leap day is then the last day of its year.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year as u32, month as u32, day as u32)
}

/// NetprNameValidate, [MS-SRVS] 3.1.4.32. Clients ask for NAMETYPE_SHARE.
fn name_validate(r: &mut NdrReader<'_>) -> Answer {
    let name = r.string()?;
    let (kind, flags) = (r.u32()?, r.u32()?);
    const NAMETYPE_SHARE: u32 = 9;
    const LM2: u32 = 0x8000_0000;
    if flags & !LM2 != 0 {
        return status(win32::INVALID_PARAMETER);
    }
    let max = match (kind, flags & LM2 != 0) {
        (NAMETYPE_SHARE, false) => 80,
        (NAMETYPE_SHARE, true) => 12,
        (1 | 3 | 5, _) => 15,
        _ => return status(win32::INVALID_PARAMETER),
    };
    let bad = |c: char| c < ' ' || "\"/\\[]:|<>+=;,?*".contains(c);
    let valid = !name.is_empty() && name.encode_utf16().count() <= max && !name.chars().any(bad);
    status(if valid { win32::SUCCESS } else { win32::INVALID_NAME })
}

/// NetrpGetFileSecurity, [MS-SRVS] 3.1.4.27.
fn get_file_security(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let share = r.unique_string()?.unwrap_or_default();
    let path = r.string()?;
    let information = r.u32()?;
    let found = match admin(context) {
        Err(error) => Err(error),
        Ok(()) => context.view.file_security(&share, &path, information).map_err(win32_of),
    };
    let mut w = NdrWriter::new();
    w.pointer(found.is_ok());
    let code = match found {
        Ok(sd) => {
            let bytes = sd.encode_selected(information);
            w.u32(bytes.len() as u32);
            w.pointer(true);
            w.u32(bytes.len() as u32);
            w.bytes(&bytes);
            win32::SUCCESS
        }
        Err(error) => error,
    };
    w.u32(code);
    Ok(w.finish())
}

fn win32_of(status: NtStatus) -> u32 {
    match status {
        NtStatus::SUCCESS => win32::SUCCESS,
        NtStatus::ACCESS_DENIED => win32::ACCESS_DENIED,
        NtStatus::OBJECT_NAME_NOT_FOUND => 2,
        NtStatus::OBJECT_PATH_NOT_FOUND => 3,
        NtStatus::BAD_NETWORK_NAME => win32::NERR_NET_NAME_NOT_FOUND,
        NtStatus::NOT_SUPPORTED => win32::NOT_SUPPORTED,
        NtStatus::OBJECT_NAME_INVALID => win32::INVALID_NAME,
        // ERROR_GEN_FAILURE.
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(civil_date(0), (1970, 1, 1));
        assert_eq!(civil_date(11_016), (2000, 2, 29));
        assert_eq!(civil_date(20_777), (2026, 11, 20));
        assert_eq!(civil_date(-1), (1969, 12, 31));
    }
}
