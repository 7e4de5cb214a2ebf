//! The Local Security Authority, [MS-LSAT] 3.1.4 and [MS-LSAD] 3.1.4: names and SIDs, policy information, privileges.
//! Refuses every change, and look-ups without a handle, which need a secure channel.

use crate::{
    PipeContext,
    call::{Answer, Fault, Interface, finish, null_and},
    handles::{HandleBytes, Handles, NULL_HANDLE, Object},
};
use arden_wire::{
    NtStatus,
    access::{GENERIC_EXECUTE, GENERIC_READ, MAXIMUM_ALLOWED, READ_CONTROL},
    dtyp::{Ace, Acl, SecurityDescriptor, Sid, well_known},
    ndr::{NdrReader, NdrWriter},
    rpc::{Syntax, uuid},
};

pub(crate) mod lookup;
mod rights;

pub(crate) const INTERFACE: Interface = Interface {
    syntax: Syntax {
        uuid: uuid(0x1234_5778, 0x1234, 0xABCD, [0xEF, 0x00, 0x01, 0x23, 0x45, 0x67, 0x89, 0xAB]),
        version: 0,
    },
    call,
};

fn call(context: &PipeContext, handles: &mut Handles, opnum: u16, stub: &[u8]) -> Answer {
    let r = &mut NdrReader::new(stub);
    match opnum {
        0 => return close(handles, r),
        6 | 44 | 130 => return open_policy(context, handles, r, opnum),
        45 => return get_user_name(context, r),
        // LsarLookupSids3 and LsarLookupNames4 need Netlogon's secure channel, [MS-LSAT] 3.1.4.9 and 3.1.4.5.
        76 | 77 => return Err(Fault::ACCESS_DENIED),
        _ => {}
    }
    if !KNOWN.contains(&opnum) {
        return Err(Fault::OPNUM_RANGE);
    }
    let handle = r.handle()?;
    if handles.get(&handle) != Some(&Object::LsaPolicy) {
        return Err(Fault::CONTEXT_MISMATCH);
    }
    match opnum {
        2 => rights::enumerate_privileges(r),
        3 => query_security(r, 0x000F_1FFF, 0x0002_0801),
        7 | 46 => query_information(context, r),
        11 => rights::enumerate_accounts(context, r),
        13 => no_trusted_domains(r),
        14 | 58 | 68 => lookup::names(context, r, opnum),
        15 | 57 => lookup::sids(context, r, opnum),
        31 => rights::privilege_value(r),
        32 => rights::privilege_name(r),
        33 => rights::privilege_display_name(r),
        35 => rights::accounts_with_right(context, r),
        36 => rights::account_rights(context, r),
        50 => no_trusted_domains(r),
        _ => Err(Fault::OPNUM_RANGE),
    }
}

/// Opnums of the calls that take a policy handle.
const KNOWN: [u16; 17] = [2, 3, 7, 11, 13, 14, 15, 31, 32, 33, 35, 36, 46, 50, 57, 58, 68];

/// LsarClose, [MS-LSAD] 3.1.4.9.4.
fn close(handles: &mut Handles, r: &mut NdrReader<'_>) -> Answer {
    let handle = r.handle()?;
    if !handles.close(&handle, |o| *o == Object::LsaPolicy) {
        return Err(Fault::CONTEXT_MISMATCH);
    }
    let mut w = NdrWriter::new();
    w.handle(&NULL_HANDLE);
    finish(w, NtStatus::SUCCESS)
}

/// The access to the policy that every user is granted: to view it and to look up names, [MS-LSAD] 2.2.1.1.2.
const READ_ACCESS: u32 = 0x0807 | READ_CONTROL | GENERIC_READ | GENERIC_EXECUTE | MAXIMUM_ALLOWED;

/// LsarOpenPolicy, LsarOpenPolicy2 and LsarOpenPolicy3, [MS-LSAD] 3.1.4.4.2, 3.1.4.4.1 and 3.1.4.4.9.
fn open_policy(context: &PipeContext, handles: &mut Handles, r: &mut NdrReader<'_>, opnum: u16) -> Answer {
    let access = policy_access(r, opnum)?;
    let denied = context.caller.is_anonymous() || access & !READ_ACCESS != 0 && !context.caller.is_administrator();
    let (handle, status) =
        if denied { (NULL_HANDLE, NtStatus::ACCESS_DENIED) } else { opened(handles.open(Object::LsaPolicy)) };
    let mut w = NdrWriter::new();
    if opnum == 130 {
        // Revision 1 of the interface, without features.
        [1, 1, 1, 0].iter().for_each(|v| w.u32(*v));
    }
    w.handle(&handle);
    finish(w, status)
}

/// Reads the desired access, which follows the object attributes. The attributes are ignored.
fn policy_access(r: &mut NdrReader<'_>, opnum: u16) -> Result<u32, Fault> {
    if opnum == 6 {
        // One character instead of a string, [MS-LSAD] 3.1.4.4.2.
        if r.pointer()? {
            r.u16()?;
        }
    } else {
        r.unique_string()?;
    }
    let _length = r.u32()?;
    let (root, name) = (r.pointer()?, r.pointer()?);
    let _attributes = r.u32()?;
    let (descriptor, quality) = (r.pointer()?, r.pointer()?);
    if root || name || descriptor {
        // Clients must not send these: the position of the fields behind them is unknown.
        return Err(Fault::BAD_STUB);
    }
    if quality {
        r.u32()?;
        r.u16()?;
        r.u8()?;
        r.u8()?;
    }
    Ok(r.u32()?)
}

pub(crate) fn opened(handle: Option<HandleBytes>) -> (HandleBytes, NtStatus) {
    match handle {
        Some(handle) => (handle, NtStatus::SUCCESS),
        None => (NULL_HANDLE, NtStatus::INSUFFICIENT_RESOURCES),
    }
}

/// LsarGetUserName, [MS-LSAT] 3.1.4.4.
fn get_user_name(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    r.unique_string()?;
    if r.pointer()? {
        r.unicode()?;
    }
    let wants_domain = r.pointer()?;
    let caller = &context.caller;
    let known = context.view.users().lookup_sid(&caller.user);
    let (name, domain) = match known {
        Some(p) => (p.name, p.domain),
        None => (caller.user_name.clone(), context.view.identity().netbios_name),
    };
    let mut w = NdrWriter::new();
    w.pointer(true);
    w.unicode(&name);
    w.pointer(wants_domain);
    if wants_domain {
        w.pointer(true);
        w.unicode(&domain);
    }
    finish(w, NtStatus::SUCCESS)
}

/// LsarQueryInformationPolicy and LsarQueryInformationPolicy2, [MS-LSAD] 3.1.4.4.4 and 3.1.4.4.3.
fn query_information(context: &PipeContext, r: &mut NdrReader<'_>) -> Answer {
    let class = r.u16()?;
    let identity = context.view.identity();
    let mut w = NdrWriter::new();
    w.pointer(true);
    w.u16(class);
    match class {
        // PolicyAuditLogInformation: an empty log of unlimited size.
        1 => {
            w.align(8);
            w.u32(0);
            w.u32(0);
            w.u64(0);
            w.u8(0);
            w.u64(0);
            w.u32(0);
        }
        // PolicyAuditEventsInformation: auditing is off in all nine categories.
        2 => {
            w.u32(0);
            w.pointer(true);
            w.u32(9);
            w.u32(9);
            (0..9).for_each(|_| w.u32(0));
        }
        // PolicyPdAccountInformation and PolicyReplicaSourceInformation.
        4 => w.unicode(""),
        7 => {
            (0..2).for_each(|_| w.unicode_head(""));
            (0..2).for_each(|_| w.unicode_body(""));
        }
        // PolicyPrimaryDomainInformation: a workgroup has no SID.
        3 => domain_info(&mut w, &identity.domain, None),
        // PolicyAccountDomainInformation and PolicyLocalAccountDomainInformation.
        5 | 14 => domain_info(&mut w, &identity.netbios_name, Some(&context.view.users().machine_sid())),
        // PolicyLsaServerRoleInformation: primary.
        6 => w.u32(3),
        // PolicyDefaultQuotaInformation: none.
        8 => {
            w.align(8);
            (0..5).for_each(|_| w.u32(0));
            w.u64(0);
        }
        // PolicyDnsDomainInformation and its internal form: no domain, no forest, no SID.
        12 | 13 => {
            let names = [identity.domain.as_str(), "", ""];
            names.iter().for_each(|n| w.unicode_large_head(n));
            w.bytes(&[0; 16]);
            w.pointer(false);
            names.iter().for_each(|n| w.unicode_large_body(n));
        }
        _ => return null_and(NtStatus::INVALID_PARAMETER),
    }
    finish(w, NtStatus::SUCCESS)
}

fn domain_info(w: &mut NdrWriter, name: &str, sid: Option<&Sid>) {
    w.unicode_large_head(name);
    w.pointer(sid.is_some());
    w.unicode_large_body(name);
    if let Some(sid) = sid {
        w.sid(sid);
    }
}

/// LsarQuerySecurityObject, [MS-LSAD] 3.1.4.9.1, and SamrQuerySecurityObject, [MS-SAMR] 3.1.5.12.2: administrators have
/// `full`, everybody who may open the object has `read`.
pub(crate) fn query_security(r: &mut NdrReader<'_>, full: u32, read: u32) -> Answer {
    let information = r.u32()?;
    let aces =
        vec![Ace::allow(&well_known::BUILTIN_ADMINISTRATORS, full, 0), Ace::allow(&well_known::EVERYONE, read, 0)];
    let owner = &well_known::BUILTIN_ADMINISTRATORS;
    let bytes = SecurityDescriptor::with_dacl(owner, &well_known::SYSTEM, Acl::new(aces)).encode_selected(information);
    let mut w = NdrWriter::new();
    w.pointer(true);
    w.u32(bytes.len() as u32);
    w.pointer(true);
    w.u32(bytes.len() as u32);
    w.bytes(&bytes);
    finish(w, NtStatus::SUCCESS)
}

/// LsarEnumerateTrustedDomains and LsarEnumerateTrustedDomainsEx, [MS-LSAD] 3.1.4.7.8 and 3.1.4.7.7: no domains.
fn no_trusted_domains(r: &mut NdrReader<'_>) -> Answer {
    let resume = r.u32()?;
    let mut w = NdrWriter::new();
    w.u32(resume);
    w.u32(0);
    w.pointer(false);
    finish(w, NtStatus::NO_MORE_ENTRIES)
}
