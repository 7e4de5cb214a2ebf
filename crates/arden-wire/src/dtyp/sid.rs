//! The security identifier, [MS-DTYP] 2.4.2, and the well-known ones, [MS-DTYP] 2.4.2.4.

use crate::{
    Malformed,
    cursor::{Put, Reader},
};

/// Sub-authorities of one SID, [MS-DTYP] 2.4.2.2.
pub const SUB_AUTHORITIES_MAX: usize = 15;

/// A security identifier, [MS-DTYP] 2.4.2: revision 1, a 48-bit authority and up to 15 sub-authorities.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sid {
    pub authority: u64,
    pub sub: Vec<u32>,
}

impl Sid {
    /// A SID of this authority and these sub-authorities.
    pub fn new(authority: u64, sub: &[u32]) -> Sid {
        Sid { authority, sub: sub.to_vec() }
    }

    /// Reads one SID, [MS-DTYP] 2.4.2.2, and leaves the reader behind it.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn read(r: &mut Reader<'_>) -> Result<Sid, Malformed> {
        if r.u8()? != 1 {
            return Err(Malformed("SID revision"));
        }
        let count = usize::from(r.u8()?);
        if count > SUB_AUTHORITIES_MAX {
            return Err(Malformed("SID sub-authority count"));
        }
        let mut authority = [0; 8];
        authority[2..].copy_from_slice(r.bytes(6)?);
        let mut sub = Vec::with_capacity(count);
        for _ in 0..count {
            sub.push(r.u32()?);
        }
        Ok(Sid { authority: u64::from_be_bytes(authority), sub })
    }

    /// Decodes the SID at the start of `bytes`; bytes behind it are ignored.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(bytes: &[u8]) -> Result<Sid, Malformed> {
        Sid::read(&mut Reader::new(bytes))
    }

    /// The encoded size in bytes.
    pub fn encoded_len(&self) -> usize {
        8 + 4 * self.sub.len().min(SUB_AUTHORITIES_MAX)
    }

    /// Appends the encoded SID, [MS-DTYP] 2.4.2.2.
    pub fn put(&self, out: &mut Vec<u8>) {
        let count = self.sub.len().min(SUB_AUTHORITIES_MAX);
        out.put_u8(1);
        out.put_u8(count as u8);
        out.extend_from_slice(&self.authority.to_be_bytes()[2..]);
        for sub in &self.sub[..count] {
            out.put_u32(*sub);
        }
    }

    /// The encoded SID, [MS-DTYP] 2.4.2.2.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.encoded_len());
        self.put(&mut out);
        out
    }

    /// The SID of an account: this SID as the domain, `rid` as the relative identifier.
    pub fn with_rid(&self, rid: u32) -> Sid {
        let mut sub = self.sub.clone();
        sub.push(rid);
        Sid { authority: self.authority, sub }
    }

    /// The domain and the relative identifier; `None` without sub-authorities.
    pub fn split_rid(&self) -> Option<(Sid, u32)> {
        let (rid, domain) = self.sub.split_last()?;
        Some((Sid::new(self.authority, domain), *rid))
    }

    /// The relative identifier, when this SID is an account of `domain`.
    pub fn rid_in(&self, domain: &Sid) -> Option<u32> {
        let (rid, rest) = self.sub.split_last()?;
        (self.authority == domain.authority && rest == domain.sub).then_some(*rid)
    }
}

impl std::fmt::Display for Sid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // [MS-DTYP] 2.4.2.1: authorities of 2^32 and above are hexadecimal.
        if self.authority < 1 << 32 {
            write!(f, "S-1-{}", self.authority)?;
        } else {
            write!(f, "S-1-{:#014X}", self.authority)?;
        }
        for sub in &self.sub {
            write!(f, "-{sub}")?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Sid {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Sid, Malformed> {
        let bad = Malformed("SID text");
        let mut parts = text.split('-');
        if !parts.next().is_some_and(|s| s.eq_ignore_ascii_case("S")) || parts.next() != Some("1") {
            return Err(bad);
        }
        let authority = parts.next().ok_or(bad)?;
        let authority = match authority.strip_prefix("0x").or_else(|| authority.strip_prefix("0X")) {
            Some(hex) if hex.bytes().all(|b| b.is_ascii_hexdigit()) => u64::from_str_radix(hex, 16).map_err(|_| bad)?,
            _ => decimal(authority).ok_or(bad)?,
        };
        if authority >= 1 << 48 {
            return Err(bad);
        }
        let mut sub = Vec::new();
        for part in parts {
            let value = decimal(part).and_then(|v| u32::try_from(v).ok()).ok_or(bad)?;
            if sub.len() == SUB_AUTHORITIES_MAX {
                return Err(bad);
            }
            sub.push(value);
        }
        Ok(Sid { authority, sub })
    }
}

/// Parses digits only: `str::parse` would also take a sign.
fn decimal(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Well-known SIDs, [MS-DTYP] 2.4.2.4.
pub mod well_known {
    use super::Sid;
    use std::sync::LazyLock;

    macro_rules! sids {
        ($($(#[$doc:meta])* $name:ident = $authority:literal $(, $sub:literal)*;)*) => {
            $($(#[$doc])* pub static $name: LazyLock<Sid> = LazyLock::new(|| Sid::new($authority, &[$($sub),*]));)*
        };
    }

    sids! {
        /// S-1-0-0: nobody.
        NULL_SID = 0, 0;
        /// S-1-1-0.
        EVERYONE = 1, 0;
        /// S-1-2-0.
        LOCAL = 2, 0;
        /// S-1-3-0: replaced by the owner on inheritance.
        CREATOR_OWNER = 3, 0;
        /// S-1-3-1: replaced by the primary group on inheritance.
        CREATOR_GROUP = 3, 1;
        /// S-1-3-4: replaces the rights that an owner is granted implicitly.
        OWNER_RIGHTS = 3, 4;
        /// S-1-5-2.
        NETWORK = 5, 2;
        /// S-1-5-3.
        BATCH = 5, 3;
        /// S-1-5-4.
        INTERACTIVE = 5, 4;
        /// S-1-5-6.
        SERVICE = 5, 6;
        /// S-1-5-7.
        ANONYMOUS = 5, 7;
        /// S-1-5-10.
        PRINCIPAL_SELF = 5, 10;
        /// S-1-5-11.
        AUTHENTICATED_USERS = 5, 11;
        /// S-1-5-15.
        THIS_ORGANIZATION = 5, 15;
        /// S-1-5-18.
        SYSTEM = 5, 18;
        /// S-1-5-19.
        LOCAL_SERVICE = 5, 19;
        /// S-1-5-20.
        NETWORK_SERVICE = 5, 20;
        /// S-1-5-32: the domain of the built-in groups.
        BUILTIN = 5, 32;
        /// S-1-5-32-544.
        BUILTIN_ADMINISTRATORS = 5, 32, 544;
        /// S-1-5-32-545.
        BUILTIN_USERS = 5, 32, 545;
        /// S-1-5-32-546.
        BUILTIN_GUESTS = 5, 32, 546;
        /// S-1-5-32-547.
        BUILTIN_POWER_USERS = 5, 32, 547;
        /// S-1-5-32-551.
        BUILTIN_BACKUP_OPERATORS = 5, 32, 551;
        /// S-1-5-64-10.
        NTLM_AUTHENTICATION = 5, 64, 10;
        /// S-1-16-8192.
        MEDIUM_INTEGRITY = 16, 8192;
        /// S-1-16-12288.
        HIGH_INTEGRITY = 16, 12288;
        /// S-1-5-88-3: the mode bits that a POSIX client shows as an ACE.
        POSIX_MODE = 5, 88, 3;
    }

    /// Relative identifiers that every account domain has, [MS-DTYP] 2.4.2.4.
    pub const RID_ADMINISTRATOR: u32 = 500;
    pub const RID_GUEST: u32 = 501;
    /// The group of all users: "None" on a machine, "Domain Users" in a domain.
    pub const RID_USERS: u32 = 513;
}
