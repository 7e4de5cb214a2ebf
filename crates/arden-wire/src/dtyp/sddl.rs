//! Security descriptors as text, [MS-DTYP] 2.5.1: output only, for administrators and logs.

use super::*;
use std::fmt::Write;

impl SecurityDescriptor {
    /// The descriptor in SDDL. ACE kinds without a SID are shown as their number.
    pub fn to_sddl(&self) -> String {
        let mut out = String::new();
        if let Some(owner) = &self.owner {
            let _ = write!(out, "O:{}", alias(owner));
        }
        if let Some(group) = &self.group {
            let _ = write!(out, "G:{}", alias(group));
        }
        if self.control & SE_DACL_PRESENT != 0 || self.dacl.is_some() {
            let bits = [(SE_DACL_PROTECTED, "P"), (SE_DACL_AUTO_INHERIT_REQ, "AR"), (SE_DACL_AUTO_INHERITED, "AI")];
            put_acl(&mut out, "D:", self.control, &bits, self.dacl.as_ref());
        }
        if self.control & SE_SACL_PRESENT != 0 || self.sacl.is_some() {
            let bits = [(SE_SACL_PROTECTED, "P"), (SE_SACL_AUTO_INHERIT_REQ, "AR"), (SE_SACL_AUTO_INHERITED, "AI")];
            put_acl(&mut out, "S:", self.control, &bits, self.sacl.as_ref());
        }
        out
    }
}

fn put_acl(out: &mut String, head: &str, control: u16, bits: &[(u16, &str)], acl: Option<&Acl>) {
    out.push_str(head);
    for (bit, text) in bits {
        if control & bit != 0 {
            out.push_str(text);
        }
    }
    match acl {
        None => out.push_str("NO_ACCESS_CONTROL"),
        Some(acl) => acl.aces.iter().for_each(|ace| put_ace(out, ace)),
    }
}

fn put_ace(out: &mut String, ace: &Ace) {
    out.push('(');
    match ace.kind {
        ACCESS_ALLOWED_ACE_TYPE => out.push('A'),
        ACCESS_DENIED_ACE_TYPE => out.push('D'),
        SYSTEM_AUDIT_ACE_TYPE => out.push_str("AU"),
        SYSTEM_ALARM_ACE_TYPE => out.push_str("AL"),
        ACCESS_ALLOWED_CALLBACK_ACE_TYPE => out.push_str("XA"),
        ACCESS_DENIED_CALLBACK_ACE_TYPE => out.push_str("XD"),
        SYSTEM_AUDIT_CALLBACK_ACE_TYPE => out.push_str("XU"),
        SYSTEM_MANDATORY_LABEL_ACE_TYPE => out.push_str("ML"),
        SYSTEM_RESOURCE_ATTRIBUTE_ACE_TYPE => out.push_str("RA"),
        SYSTEM_SCOPED_POLICY_ID_ACE_TYPE => out.push_str("SP"),
        kind => {
            let _ = write!(out, "{kind:#04x}");
        }
    }
    out.push(';');
    let flags = [
        (OBJECT_INHERIT_ACE, "OI"),
        (CONTAINER_INHERIT_ACE, "CI"),
        (NO_PROPAGATE_INHERIT_ACE, "NP"),
        (INHERIT_ONLY_ACE, "IO"),
        (INHERITED_ACE, "ID"),
        (SUCCESSFUL_ACCESS_ACE_FLAG, "SA"),
        (FAILED_ACCESS_ACE_FLAG, "FA"),
    ];
    for (bit, text) in flags {
        if ace.flags & bit != 0 {
            out.push_str(text);
        }
    }
    let rights = match ace.mask {
        0x001F_01FF => "FA".to_string(),
        0x0012_0089 => "FR".to_string(),
        0x0012_0116 => "FW".to_string(),
        0x0012_00A0 => "FX".to_string(),
        0x1000_0000 => "GA".to_string(),
        mask => format!("{mask:#x}"),
    };
    let _ = write!(out, ";{rights};;;{})", alias(&ace.sid));
}

/// The two-letter alias of a well-known SID, [MS-DTYP] 2.5.1.1, or the SID itself.
fn alias(sid: &Sid) -> String {
    let known = [
        (&well_known::EVERYONE, "WD"),
        (&well_known::CREATOR_OWNER, "CO"),
        (&well_known::CREATOR_GROUP, "CG"),
        (&well_known::OWNER_RIGHTS, "OW"),
        (&well_known::NETWORK, "NU"),
        (&well_known::INTERACTIVE, "IU"),
        (&well_known::SERVICE, "SU"),
        (&well_known::ANONYMOUS, "AN"),
        (&well_known::PRINCIPAL_SELF, "PS"),
        (&well_known::AUTHENTICATED_USERS, "AU"),
        (&well_known::SYSTEM, "SY"),
        (&well_known::LOCAL_SERVICE, "LS"),
        (&well_known::NETWORK_SERVICE, "NS"),
        (&well_known::BUILTIN_ADMINISTRATORS, "BA"),
        (&well_known::BUILTIN_USERS, "BU"),
        (&well_known::BUILTIN_GUESTS, "BG"),
        (&well_known::BUILTIN_POWER_USERS, "PU"),
        (&well_known::BUILTIN_BACKUP_OPERATORS, "BO"),
        (&well_known::MEDIUM_INTEGRITY, "ME"),
        (&well_known::HIGH_INTEGRITY, "HI"),
    ];
    match known.iter().find(|(known, _)| ***known == *sid) {
        Some((_, alias)) => (*alias).to_string(),
        None => sid.to_string(),
    }
}
