//! Properties of one user, [MS-SAMR] 3.1.5.5.5 and 2.2.6. The password and its hashes are never returned.

use super::domain::put_old_large;
use crate::call::{Answer, finish, null_and};
use arden_auth::{UserDb, UserRecord};
use arden_wire::{
    NtStatus,
    dtyp::well_known,
    ndr::{NdrReader, NdrWriter},
};

/// USER_ACCOUNT codes, [MS-SAMR] 2.2.1.12.
const USER_ACCOUNT_DISABLED: u32 = 0x0001;
const USER_NORMAL_ACCOUNT: u32 = 0x0010;
const USER_DONT_EXPIRE_PASSWORD: u32 = 0x0200;

/// The expiry time of an account that never expires, [MS-SAMR] 2.2.6.
const NO_EXPIRY: u64 = 0x7FFF_FFFF_FFFF_FFFF;
const HOURS_PER_WEEK: u16 = 168;

pub(super) fn account_control(user: &UserRecord) -> u32 {
    let disabled = if user.disabled { USER_ACCOUNT_DISABLED } else { 0 };
    USER_NORMAL_ACCOUNT | USER_DONT_EXPIRE_PASSWORD | disabled
}

/// SamrQueryInformationUser2 and SamrQueryInformationUser, [MS-SAMR] 3.1.5.5.5 and 3.1.5.5.6.
pub(super) fn query_information(db: &dyn UserDb, rid: u32, r: &mut NdrReader<'_>) -> Answer {
    let class = r.u16()?;
    let Some(user) = db.user_by_rid(rid) else { return null_and(NtStatus::NO_SUCH_USER) };
    let mut w = NdrWriter::new();
    w.pointer(true);
    w.u16(class);
    match class {
        1 => {
            w.unicode_head(&user.name);
            w.unicode_head(&user.full_name);
            w.u32(well_known::RID_USERS);
            w.unicode_head(&user.comment);
            w.unicode_head("");
            [&user.name, &user.full_name, &user.comment, ""].iter().for_each(|t| w.unicode_body(t));
        }
        3 | 5 => logon_information(&mut w, &user, class == 5),
        6 => {
            w.unicode_head(&user.name);
            w.unicode_head(&user.full_name);
            w.unicode_body(&user.name);
            w.unicode_body(&user.full_name);
        }
        7 => w.unicode(&user.name),
        8 => w.unicode(&user.full_name),
        9 => w.u32(well_known::RID_USERS),
        10 => {
            w.unicode_head("");
            w.unicode_head("");
            w.unicode_body("");
            w.unicode_body("");
        }
        11 | 12 | 14 => w.unicode(""),
        13 => w.unicode(&user.comment),
        16 => w.u32(account_control(&user)),
        17 => put_old_large(&mut w, NO_EXPIRY),
        20 => empty_binary(&mut w),
        21 => all_information(&mut w, &user),
        _ => return null_and(NtStatus::INVALID_INFO_CLASS),
    }
    finish(w, NtStatus::SUCCESS)
}

fn empty_binary(w: &mut NdrWriter) {
    w.align(4);
    w.u16(0);
    w.u16(0);
    w.pointer(false);
}

fn hours_head(w: &mut NdrWriter) {
    w.align(4);
    w.u16(HOURS_PER_WEEK);
    w.pointer(true);
}

/// Logon hours: all hours of the week.
fn hours_body(w: &mut NdrWriter) {
    w.u32(1260);
    w.u32(0);
    w.u32(u32::from(HOURS_PER_WEEK) / 8);
    w.bytes(&[0xFF; HOURS_PER_WEEK as usize / 8]);
}

/// SAMPR_USER_LOGON_INFORMATION, [MS-SAMR] 2.2.6.10, and SAMPR_USER_ACCOUNT_INFORMATION, [MS-SAMR] 2.2.6.11, which has
/// nearly the same members in another order.
fn logon_information(w: &mut NdrWriter, user: &UserRecord, account: bool) {
    let mut texts = vec![user.name.as_str(), user.full_name.as_str(), "", "", "", ""];
    if account {
        texts.push(&user.comment);
    }
    texts.push("");
    for (i, text) in texts.iter().enumerate() {
        w.unicode_head(text);
        if i == 1 {
            w.u32(user.rid);
            w.u32(well_known::RID_USERS);
        }
    }
    // Times of the last logon and logoff are not kept.
    put_old_large(w, 0);
    put_old_large(w, 0);
    if !account {
        put_old_large(w, 0);
        put_old_large(w, 0);
        put_old_large(w, NO_EXPIRY);
    }
    hours_head(w);
    w.u16(0);
    w.u16(0);
    if account {
        put_old_large(w, 0);
        put_old_large(w, NO_EXPIRY);
    }
    w.u32(account_control(user));
    texts.iter().for_each(|t| w.unicode_body(t));
    hours_body(w);
}

/// SAMPR_USER_ALL_INFORMATION, [MS-SAMR] 2.2.6.6.
fn all_information(w: &mut NdrWriter, user: &UserRecord) {
    // Times of the last logon, logoff and change of the password are not kept; nothing expires.
    for time in [0, 0, 0, NO_EXPIRY, 0, NO_EXPIRY] {
        put_old_large(w, time);
    }
    let texts = [user.name.as_str(), &user.full_name, "", "", "", "", &user.comment, "", ""];
    texts.iter().for_each(|t| w.unicode_head(t));
    // Parameters, and the two password hashes, which are never returned.
    (0..3).for_each(|_| empty_binary(w));
    w.unicode_head("");
    // No security descriptor.
    w.u32(0);
    w.pointer(false);
    w.u32(user.rid);
    w.u32(well_known::RID_USERS);
    w.u32(account_control(user));
    // WhichFields: all except passwords, private data and the descriptor.
    w.u32(0x00FF_FFFF);
    hours_head(w);
    // Bad passwords, logons, country code and code page.
    (0..4).for_each(|_| w.u16(0));
    w.bytes(&[0; 4]);
    texts.iter().for_each(|t| w.unicode_body(t));
    w.unicode_body("");
    hours_body(w);
}
