//! Security descriptors, [MS-DTYP] 2.4.6, and SECURITY_INFORMATION, [MS-DTYP] 2.4.7.

use super::{
    Ace, Acl, SYSTEM_MANDATORY_LABEL_ACE_TYPE, SYSTEM_RESOURCE_ATTRIBUTE_ACE_TYPE, SYSTEM_SCOPED_POLICY_ID_ACE_TYPE,
    Sid,
};
use crate::{
    Malformed,
    cursor::{Put, Reader},
};

// Control bits, [MS-DTYP] 2.4.6.
pub const SE_OWNER_DEFAULTED: u16 = 0x0001;
pub const SE_GROUP_DEFAULTED: u16 = 0x0002;
pub const SE_DACL_PRESENT: u16 = 0x0004;
pub const SE_DACL_DEFAULTED: u16 = 0x0008;
pub const SE_SACL_PRESENT: u16 = 0x0010;
pub const SE_SACL_DEFAULTED: u16 = 0x0020;
pub const SE_DACL_TRUSTED: u16 = 0x0040;
pub const SE_SERVER_SECURITY: u16 = 0x0080;
pub const SE_DACL_AUTO_INHERIT_REQ: u16 = 0x0100;
pub const SE_SACL_AUTO_INHERIT_REQ: u16 = 0x0200;
pub const SE_DACL_AUTO_INHERITED: u16 = 0x0400;
pub const SE_SACL_AUTO_INHERITED: u16 = 0x0800;
pub const SE_DACL_PROTECTED: u16 = 0x1000;
pub const SE_SACL_PROTECTED: u16 = 0x2000;
pub const SE_RM_CONTROL_VALID: u16 = 0x4000;
pub const SE_SELF_RELATIVE: u16 = 0x8000;

/// The control bits that describe the DACL.
pub const SE_DACL_BITS: u16 = SE_DACL_PRESENT
    | SE_DACL_DEFAULTED
    | SE_DACL_TRUSTED
    | SE_SERVER_SECURITY
    | SE_DACL_AUTO_INHERIT_REQ
    | SE_DACL_AUTO_INHERITED
    | SE_DACL_PROTECTED;
/// The control bits that describe the SACL.
pub const SE_SACL_BITS: u16 =
    SE_SACL_PRESENT | SE_SACL_DEFAULTED | SE_SACL_AUTO_INHERIT_REQ | SE_SACL_AUTO_INHERITED | SE_SACL_PROTECTED;

// SECURITY_INFORMATION, [MS-DTYP] 2.4.7.
pub const OWNER_SECURITY_INFORMATION: u32 = 0x0000_0001;
pub const GROUP_SECURITY_INFORMATION: u32 = 0x0000_0002;
pub const DACL_SECURITY_INFORMATION: u32 = 0x0000_0004;
pub const SACL_SECURITY_INFORMATION: u32 = 0x0000_0008;
pub const LABEL_SECURITY_INFORMATION: u32 = 0x0000_0010;
pub const ATTRIBUTE_SECURITY_INFORMATION: u32 = 0x0000_0020;
pub const SCOPE_SECURITY_INFORMATION: u32 = 0x0000_0040;
pub const BACKUP_SECURITY_INFORMATION: u32 = 0x0001_0000;
pub const UNPROTECTED_SACL_SECURITY_INFORMATION: u32 = 0x1000_0000;
pub const UNPROTECTED_DACL_SECURITY_INFORMATION: u32 = 0x2000_0000;
pub const PROTECTED_SACL_SECURITY_INFORMATION: u32 = 0x4000_0000;
pub const PROTECTED_DACL_SECURITY_INFORMATION: u32 = 0x8000_0000;

/// A security descriptor, [MS-DTYP] 2.4.6. `dacl: None` with SE_DACL_PRESENT is the NULL DACL.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SecurityDescriptor {
    /// SE_* control bits. SE_SELF_RELATIVE is implied and not kept here.
    pub control: u16,
    pub owner: Option<Sid>,
    pub group: Option<Sid>,
    pub sacl: Option<Acl>,
    pub dacl: Option<Acl>,
}

impl SecurityDescriptor {
    /// A descriptor with a DACL and the control bits that follow from it.
    pub fn with_dacl(owner: &Sid, group: &Sid, dacl: Acl) -> SecurityDescriptor {
        SecurityDescriptor {
            control: SE_DACL_PRESENT,
            owner: Some(owner.clone()),
            group: Some(group.clone()),
            sacl: None,
            dacl: Some(dacl),
        }
    }

    /// What it takes of memory beside itself, about.
    pub fn heap_bytes(&self) -> usize {
        let sid = |sid: &Sid| sid.sub.capacity() * size_of::<u32>();
        let ace = |ace: &Ace| size_of::<Ace>() + sid(&ace.sid) + ace.extra.capacity();
        let aces = [&self.sacl, &self.dacl].into_iter().flatten().flat_map(|acl| &acl.aces);
        aces.map(ace).sum::<usize>() + [&self.owner, &self.group].into_iter().flatten().map(sid).sum::<usize>()
    }

    /// Decodes the self-relative form. An ACL whose present bit is clear is absent, whatever its offset.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(bytes: &[u8]) -> Result<SecurityDescriptor, Malformed> {
        let mut r = Reader::new(bytes);
        if r.u8()? != 1 {
            return Err(Malformed("security descriptor revision"));
        }
        r.skip(1)?;
        let control = r.u16()?;
        let at = |offset: u32| -> Result<Option<&[u8]>, Malformed> {
            match offset as usize {
                0 => Ok(None),
                n if n < HEADER_BYTES => Err(Malformed("offset into the security descriptor's header")),
                n => bytes.get(n..).map(Some).ok_or(Malformed("offset outside the security descriptor")),
            }
        };
        let owner = at(r.u32()?)?.map(Sid::parse).transpose()?;
        let group = at(r.u32()?)?.map(Sid::parse).transpose()?;
        let (sacl, dacl) = (r.u32()?, r.u32()?);
        let acl = |present: u16, offset: u32| -> Result<Option<Acl>, Malformed> {
            if control & present == 0 {
                return Ok(None);
            }
            at(offset)?.map(Acl::parse).transpose()
        };
        let sacl = acl(SE_SACL_PRESENT, sacl)?;
        let dacl = acl(SE_DACL_PRESENT, dacl)?;
        Ok(SecurityDescriptor { control: control & !SE_SELF_RELATIVE, owner, group, sacl, dacl })
    }

    /// Encodes the self-relative form.
    pub fn encode(&self) -> Vec<u8> {
        let mut control = self.control | SE_SELF_RELATIVE;
        if self.dacl.is_some() {
            control |= SE_DACL_PRESENT;
        }
        if self.sacl.is_some() {
            control |= SE_SACL_PRESENT;
        }
        let mut out = Vec::with_capacity(128);
        out.put_u8(1);
        out.put_u8(0);
        out.put_u16(control);
        out.put_zeros(16);
        if let Some(owner) = &self.owner {
            let at = out.len() as u32;
            out.patch_u32(4, at);
            owner.put(&mut out);
        }
        if let Some(group) = &self.group {
            let at = out.len() as u32;
            out.patch_u32(8, at);
            group.put(&mut out);
        }
        for (acl, field) in [(&self.sacl, 12), (&self.dacl, 16)] {
            if let Some(acl) = acl {
                let at = out.len() as u32;
                out.patch_u32(field, at);
                acl.put(&mut out);
            }
        }
        out
    }

    /// The parts that a query with these SECURITY_INFORMATION bits returns, with their control bits.
    pub fn select(&self, information: u32) -> SecurityDescriptor {
        let all = information & BACKUP_SECURITY_INFORMATION != 0;
        let wants = |bit: u32| all || information & bit != 0;
        let mut out = SecurityDescriptor { control: self.control & SE_RM_CONTROL_VALID, ..Default::default() };
        if wants(OWNER_SECURITY_INFORMATION) {
            out.owner = self.owner.clone();
            out.control |= self.control & SE_OWNER_DEFAULTED;
        }
        if wants(GROUP_SECURITY_INFORMATION) {
            out.group = self.group.clone();
            out.control |= self.control & SE_GROUP_DEFAULTED;
        }
        if wants(DACL_SECURITY_INFORMATION) {
            out.dacl = self.dacl.clone();
            out.control |= self.control & SE_DACL_BITS;
        }
        if wants(SACL_SECURITY_INFORMATION) {
            out.sacl = self.sacl.clone();
            out.control |= self.control & SE_SACL_BITS;
        } else if let Some(sacl) = &self.sacl {
            // Labels, claims and policies are stored in the SACL but may be read without the right to its audit ACEs.
            let aces: Vec<_> = sacl.aces.iter().filter(|a| information & sacl_part(a.kind) != 0).cloned().collect();
            if !aces.is_empty() {
                out.sacl = Some(Acl { revision: sacl.revision, aces });
                out.control |= self.control & SE_SACL_BITS;
            }
        }
        out
    }

    /// Encodes the parts that [`select`](Self::select) returns.
    pub fn encode_selected(&self, information: u32) -> Vec<u8> {
        self.select(information).encode()
    }

    /// Whether SE_DACL_PRESENT is set without an ACL, which grants everybody all access, as does a descriptor without
    /// any DACL.
    pub fn has_null_dacl(&self) -> bool {
        self.dacl.is_none()
    }
}

const HEADER_BYTES: usize = 20;

/// The SECURITY_INFORMATION bit under which an ACE of a SACL can be read alone, [MS-DTYP] 2.4.7; 0 for audit ACEs.
pub fn sacl_part(kind: u8) -> u32 {
    match kind {
        SYSTEM_MANDATORY_LABEL_ACE_TYPE => LABEL_SECURITY_INFORMATION,
        SYSTEM_RESOURCE_ATTRIBUTE_ACE_TYPE => ATTRIBUTE_SECURITY_INFORMATION,
        SYSTEM_SCOPED_POLICY_ID_ACE_TYPE => SCOPE_SECURITY_INFORMATION,
        _ => 0,
    }
}
