//! ACEs, [MS-DTYP] 2.4.4, and ACLs, [MS-DTYP] 2.4.5.

use super::Sid;
use crate::{
    Malformed,
    cursor::{Put, Reader},
};

// AceType, [MS-DTYP] 2.4.4.1.
pub const ACCESS_ALLOWED_ACE_TYPE: u8 = 0x00;
pub const ACCESS_DENIED_ACE_TYPE: u8 = 0x01;
pub const SYSTEM_AUDIT_ACE_TYPE: u8 = 0x02;
pub const SYSTEM_ALARM_ACE_TYPE: u8 = 0x03;
pub const ACCESS_ALLOWED_COMPOUND_ACE_TYPE: u8 = 0x04;
pub const ACCESS_ALLOWED_OBJECT_ACE_TYPE: u8 = 0x05;
pub const ACCESS_DENIED_OBJECT_ACE_TYPE: u8 = 0x06;
pub const SYSTEM_AUDIT_OBJECT_ACE_TYPE: u8 = 0x07;
pub const SYSTEM_ALARM_OBJECT_ACE_TYPE: u8 = 0x08;
pub const ACCESS_ALLOWED_CALLBACK_ACE_TYPE: u8 = 0x09;
pub const ACCESS_DENIED_CALLBACK_ACE_TYPE: u8 = 0x0A;
pub const ACCESS_ALLOWED_CALLBACK_OBJECT_ACE_TYPE: u8 = 0x0B;
pub const ACCESS_DENIED_CALLBACK_OBJECT_ACE_TYPE: u8 = 0x0C;
pub const SYSTEM_AUDIT_CALLBACK_ACE_TYPE: u8 = 0x0D;
pub const SYSTEM_ALARM_CALLBACK_ACE_TYPE: u8 = 0x0E;
pub const SYSTEM_AUDIT_CALLBACK_OBJECT_ACE_TYPE: u8 = 0x0F;
pub const SYSTEM_ALARM_CALLBACK_OBJECT_ACE_TYPE: u8 = 0x10;
pub const SYSTEM_MANDATORY_LABEL_ACE_TYPE: u8 = 0x11;
pub const SYSTEM_RESOURCE_ATTRIBUTE_ACE_TYPE: u8 = 0x12;
pub const SYSTEM_SCOPED_POLICY_ID_ACE_TYPE: u8 = 0x13;

// AceFlags, [MS-DTYP] 2.4.4.1.
pub const OBJECT_INHERIT_ACE: u8 = 0x01;
pub const CONTAINER_INHERIT_ACE: u8 = 0x02;
pub const NO_PROPAGATE_INHERIT_ACE: u8 = 0x04;
pub const INHERIT_ONLY_ACE: u8 = 0x08;
pub const INHERITED_ACE: u8 = 0x10;
pub const SUCCESSFUL_ACCESS_ACE_FLAG: u8 = 0x40;
pub const FAILED_ACCESS_ACE_FLAG: u8 = 0x80;

/// The revision of an ACL without object ACEs, [MS-DTYP] 2.4.5.
pub const ACL_REVISION: u8 = 2;
/// The revision of an ACL that holds object ACEs, [MS-DTYP] 2.4.5.
pub const ACL_REVISION_DS: u8 = 4;

/// An access control entry, [MS-DTYP] 2.4.4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ace {
    pub kind: u8,
    pub flags: u8,
    pub mask: u32,
    /// The trustee. For kinds without [`Ace::kind_has_sid`] it is S-1-0 without sub-authorities and is not encoded.
    pub sid: Sid,
    /// The bytes behind the SID (the condition or claim of callback and resource ACEs), or all bytes behind the mask
    /// for kinds without [`Ace::kind_has_sid`]. Not interpreted; a multiple of 4 bytes.
    pub extra: Vec<u8>,
}

impl Ace {
    /// An ACCESS_ALLOWED_ACE, [MS-DTYP] 2.4.4.2.
    pub fn allow(sid: &Sid, mask: u32, flags: u8) -> Ace {
        Ace { kind: ACCESS_ALLOWED_ACE_TYPE, flags, mask, sid: sid.clone(), extra: Vec::new() }
    }

    /// An ACCESS_DENIED_ACE, [MS-DTYP] 2.4.4.4.
    pub fn deny(sid: &Sid, mask: u32, flags: u8) -> Ace {
        Ace { kind: ACCESS_DENIED_ACE_TYPE, flags, mask, sid: sid.clone(), extra: Vec::new() }
    }

    /// Whether the SID follows the mask directly. Object ACEs have GUIDs in between and are kept as bytes.
    pub fn kind_has_sid(kind: u8) -> bool {
        matches!(
            kind,
            ACCESS_ALLOWED_ACE_TYPE
                | ACCESS_DENIED_ACE_TYPE
                | SYSTEM_AUDIT_ACE_TYPE
                | SYSTEM_ALARM_ACE_TYPE
                | ACCESS_ALLOWED_CALLBACK_ACE_TYPE
                | ACCESS_DENIED_CALLBACK_ACE_TYPE
                | SYSTEM_AUDIT_CALLBACK_ACE_TYPE
                | SYSTEM_ALARM_CALLBACK_ACE_TYPE
                | SYSTEM_MANDATORY_LABEL_ACE_TYPE
                | SYSTEM_RESOURCE_ATTRIBUTE_ACE_TYPE
                | SYSTEM_SCOPED_POLICY_ID_ACE_TYPE
        )
    }

    /// Whether INHERITED_ACE is set.
    pub fn is_inherited(&self) -> bool {
        self.flags & INHERITED_ACE != 0
    }

    /// Whether INHERIT_ONLY_ACE is set: the ACE does not control access to its own object.
    pub fn is_inherit_only(&self) -> bool {
        self.flags & INHERIT_ONLY_ACE != 0
    }

    /// The encoded size in bytes, header included.
    pub fn encoded_len(&self) -> usize {
        let sid = if Ace::kind_has_sid(self.kind) { self.sid.encoded_len() } else { 0 };
        (8 + sid + self.extra.len()).next_multiple_of(4)
    }

    /// Reads one ACE and leaves the reader behind it.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn read(r: &mut Reader<'_>) -> Result<Ace, Malformed> {
        let kind = r.u8()?;
        let flags = r.u8()?;
        let size = usize::from(r.u16()?);
        if size < 8 || size % 4 != 0 {
            return Err(Malformed("ACE size"));
        }
        let mut body = Reader::new(r.bytes(size - 4)?);
        let mask = body.u32()?;
        let sid = if Ace::kind_has_sid(kind) { Sid::read(&mut body)? } else { Sid::new(0, &[]) };
        Ok(Ace { kind, flags, mask, sid, extra: body.rest().to_vec() })
    }

    fn put(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.put_u8(self.kind);
        out.put_u8(self.flags);
        out.put_u16(self.encoded_len() as u16);
        out.put_u32(self.mask);
        if Ace::kind_has_sid(self.kind) {
            self.sid.put(out);
        }
        out.extend_from_slice(&self.extra);
        out.pad_to(start, 4);
    }
}

/// An access control list, [MS-DTYP] 2.4.5.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Acl {
    /// Encoded as 2 when it is 0.
    pub revision: u8,
    pub aces: Vec<Ace>,
}

impl Acl {
    /// An ACL of revision 0, which is encoded as ACL_REVISION.
    pub fn new(aces: Vec<Ace>) -> Acl {
        Acl { revision: ACL_REVISION, aces }
    }

    /// Decodes the ACL at the start of `bytes`.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(bytes: &[u8]) -> Result<Acl, Malformed> {
        let mut r = Reader::new(bytes);
        let revision = r.u8()?;
        if !(2..=4).contains(&revision) {
            return Err(Malformed("ACL revision"));
        }
        r.skip(1)?;
        let size = usize::from(r.u16()?);
        let count = usize::from(r.u16()?);
        r.skip(2)?;
        let body = size.checked_sub(8).ok_or(Malformed("ACL size"))?;
        let mut r = Reader::new(r.bytes(body)?);
        // An ACE takes at least 8 bytes: a count cannot cause a larger allocation than the input allows.
        if count > body / 8 {
            return Err(Malformed("ACE count"));
        }
        let mut aces = Vec::with_capacity(count);
        for _ in 0..count {
            aces.push(Ace::read(&mut r)?);
        }
        Ok(Acl { revision, aces })
    }

    /// The encoded size in bytes, header included.
    pub fn encoded_len(&self) -> usize {
        8 + self.aces.iter().map(Ace::encoded_len).sum::<usize>()
    }

    /// Whether the encoded size fits the 16-bit field AclSize.
    pub fn fits(&self) -> bool {
        self.encoded_len() <= usize::from(u16::MAX)
    }

    /// Appends the ACL. One that does not [`fit`](Acl::fits) is written as an empty ACL, which grants nobody anything;
    /// callers that can refuse check `fits` before.
    pub fn put(&self, out: &mut Vec<u8>) {
        let (aces, len) = if self.fits() { (&self.aces[..], self.encoded_len()) } else { (&[][..], 8) };
        out.put_u8(if self.revision == 0 { ACL_REVISION } else { self.revision });
        out.put_u8(0);
        out.put_u16(len as u16);
        out.put_u16(aces.len() as u16);
        out.put_u16(0);
        for ace in aces {
            ace.put(out);
        }
    }
}

/// The parts of an object ACE, [MS-DTYP] 2.4.4.3: the GUIDs that are present, and the SID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectParts {
    pub object_type: Option<[u8; 16]>,
    pub inherited_object_type: Option<[u8; 16]>,
    pub sid: Sid,
}

impl Ace {
    /// Decodes the parts of an object ACE; `None` for other kinds and for malformed bytes.
    pub fn object_parts(&self) -> Option<ObjectParts> {
        let object = matches!(
            self.kind,
            ACCESS_ALLOWED_OBJECT_ACE_TYPE
                | ACCESS_DENIED_OBJECT_ACE_TYPE
                | SYSTEM_AUDIT_OBJECT_ACE_TYPE
                | SYSTEM_ALARM_OBJECT_ACE_TYPE
                | ACCESS_ALLOWED_CALLBACK_OBJECT_ACE_TYPE
                | ACCESS_DENIED_CALLBACK_OBJECT_ACE_TYPE
                | SYSTEM_AUDIT_CALLBACK_OBJECT_ACE_TYPE
                | SYSTEM_ALARM_CALLBACK_OBJECT_ACE_TYPE
        );
        if !object {
            return None;
        }
        let mut r = Reader::new(&self.extra);
        let flags = r.u32().ok()?;
        let object_type = if flags & 1 != 0 { Some(r.array().ok()?) } else { None };
        let inherited_object_type = if flags & 2 != 0 { Some(r.array().ok()?) } else { None };
        Some(ObjectParts { object_type, inherited_object_type, sid: Sid::read(&mut r).ok()? })
    }
}
