//! NTLM messages, [MS-NLMP] 2.2: NEGOTIATE, CHALLENGE, AUTHENTICATE and their AV pairs. Cryptography belongs to
//! arden-auth.

use crate::{
    Malformed,
    cursor::{Put, Reader, slice_at, utf16_string},
    time::FileTime,
};

/// NegotiateFlags, [MS-NLMP] 2.2.2.5.
pub mod flags {
    pub const UNICODE: u32 = 0x0000_0001;
    pub const OEM: u32 = 0x0000_0002;
    pub const REQUEST_TARGET: u32 = 0x0000_0004;
    pub const SIGN: u32 = 0x0000_0010;
    pub const SEAL: u32 = 0x0000_0020;
    pub const LM_KEY: u32 = 0x0000_0080;
    pub const NTLM: u32 = 0x0000_0200;
    pub const ANONYMOUS: u32 = 0x0000_0800;
    pub const OEM_DOMAIN_SUPPLIED: u32 = 0x0000_1000;
    pub const OEM_WORKSTATION_SUPPLIED: u32 = 0x0000_2000;
    pub const ALWAYS_SIGN: u32 = 0x0000_8000;
    pub const TARGET_TYPE_DOMAIN: u32 = 0x0001_0000;
    pub const TARGET_TYPE_SERVER: u32 = 0x0002_0000;
    pub const EXTENDED_SESSIONSECURITY: u32 = 0x0008_0000;
    pub const IDENTIFY: u32 = 0x0010_0000;
    pub const TARGET_INFO: u32 = 0x0080_0000;
    pub const VERSION: u32 = 0x0200_0000;
    pub const NEGOTIATE_128: u32 = 0x2000_0000;
    pub const KEY_EXCH: u32 = 0x4000_0000;
    pub const NEGOTIATE_56: u32 = 0x8000_0000;
}

/// AvId of an AV_PAIR, [MS-NLMP] 2.2.2.1.
pub mod av {
    pub const EOL: u16 = 0;
    pub const NB_COMPUTER_NAME: u16 = 1;
    pub const NB_DOMAIN_NAME: u16 = 2;
    pub const DNS_COMPUTER_NAME: u16 = 3;
    pub const DNS_DOMAIN_NAME: u16 = 4;
    pub const DNS_TREE_NAME: u16 = 5;
    pub const FLAGS: u16 = 6;
    pub const TIMESTAMP: u16 = 7;
    pub const SINGLE_HOST: u16 = 8;
    pub const TARGET_NAME: u16 = 9;
    pub const CHANNEL_BINDINGS: u16 = 10;
    /// A bit of the value of MsvAvFlags: the AUTHENTICATE message has a MIC.
    pub const FLAG_MIC: u32 = 2;
}

/// Signature of every NTLM message, [MS-NLMP] 2.2.1.
pub const SIGNATURE: &[u8; 8] = b"NTLMSSP\0";
/// The bytes of the MIC in an AUTHENTICATE message, [MS-NLMP] 2.2.1.3.
pub const MIC_RANGE: std::ops::Range<usize> = 72..88;
/// Product version 10.0, NTLM revision 15, [MS-NLMP] 2.2.2.10. For debugging only; peers ignore it.
const VERSION: [u8; 8] = [10, 0, 0, 0, 0, 0, 0, 15];
/// AV pairs in one list; a longer list is malformed.
const AV_PAIRS_MAX: usize = 64;
/// Bytes of a user, domain or workstation name in an AUTHENTICATE message: 256 characters of UTF-16. Names of accounts
/// are shorter.
pub const NAME_BYTES_MAX: usize = 512;
/// Bytes of an NTLMv2 response. It has the target information of the server, and what the client adds to it.
pub const NT_RESPONSE_BYTES_MAX: usize = 8 << 10;

/// Whether the bytes begin with the signature of an NTLM message, without SPNEGO around it.
pub fn is_ntlm(bytes: &[u8]) -> bool {
    bytes.starts_with(SIGNATURE)
}

fn header(bytes: &[u8], kind: u32) -> Result<Reader<'_>, Malformed> {
    let mut r = Reader::new(bytes);
    if r.bytes(8)? != SIGNATURE {
        return Err(Malformed("NTLM signature"));
    }
    if r.u32()? != kind {
        return Err(Malformed("NTLM message type"));
    }
    Ok(r)
}

/// Reads a length, a maximum length and an offset, and returns the bytes of `message` that they denote.
fn field<'a>(r: &mut Reader<'_>, message: &'a [u8]) -> Result<&'a [u8], Malformed> {
    let length = usize::from(r.u16()?);
    r.skip(2)?;
    let offset = r.u32()? as usize;
    if length == 0 { Ok(&[]) } else { slice_at(message, offset, length) }
}

/// A [`field`] of at most `max` bytes.
fn short_field<'a>(r: &mut Reader<'_>, message: &'a [u8], max: usize) -> Result<&'a [u8], Malformed> {
    let bytes = field(r, message)?;
    if bytes.len() > max { Err(Malformed("NTLM field too long")) } else { Ok(bytes) }
}

fn text(bytes: &[u8], flags: u32) -> Result<String, Malformed> {
    if flags & flags::UNICODE != 0 {
        return utf16_string(bytes);
    }
    // The OEM character set is not known here: names outside ASCII need UNICODE.
    if bytes.is_ascii() {
        Ok(bytes.iter().map(|b| char::from(*b)).collect())
    } else {
        Err(Malformed("OEM name outside ASCII"))
    }
}

/// NEGOTIATE_MESSAGE, [MS-NLMP] 2.2.1.1. Its domain and workstation names are not decoded: a server does not use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiate {
    pub flags: u32,
}

impl Negotiate {
    /// Decodes the message.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(bytes: &[u8]) -> Result<Negotiate, Malformed> {
        Ok(Negotiate { flags: header(bytes, 1)?.u32()? })
    }

    /// Encodes the message, without names.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = SIGNATURE.to_vec();
        out.put_u32(1);
        out.put_u32(self.flags);
        out.put_zeros(16);
        if self.flags & flags::VERSION != 0 {
            out.extend_from_slice(&VERSION);
        }
        out
    }
}

/// An AV_PAIR, [MS-NLMP] 2.2.2.1: one attribute of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AvPair {
    pub id: u16,
    pub value: Vec<u8>,
}

impl AvPair {
    /// A pair whose value is text, in UTF-16LE.
    pub fn text(id: u16, text: &str) -> AvPair {
        let mut value = Vec::new();
        value.put_utf16(text);
        AvPair { id, value }
    }

    /// Decodes the pairs before MsvAvEOL. A list without MsvAvEOL ends with its bytes.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse_list(bytes: &[u8]) -> Result<Vec<AvPair>, Malformed> {
        let mut r = Reader::new(bytes);
        let mut out = Vec::new();
        while r.remaining() >= 4 {
            let id = r.u16()?;
            let length = usize::from(r.u16()?);
            if id == av::EOL {
                return Ok(out);
            }
            if out.len() == AV_PAIRS_MAX {
                return Err(Malformed("too many AV pairs"));
            }
            out.push(AvPair { id, value: r.bytes(length)?.to_vec() });
        }
        Ok(out)
    }

    /// Encodes the pairs and MsvAvEOL.
    pub fn encode_list(pairs: &[AvPair]) -> Vec<u8> {
        let mut out = Vec::new();
        for pair in pairs {
            out.put_u16(pair.id);
            out.put_u16(pair.value.len() as u16);
            out.extend_from_slice(&pair.value);
        }
        out.put_u32(0);
        out
    }
}

/// CHALLENGE_MESSAGE, [MS-NLMP] 2.2.1.2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Challenge {
    pub flags: u32,
    pub target_name: String,
    pub server_challenge: [u8; 8],
    /// The encoded AV pairs.
    pub target_info: Vec<u8>,
}

impl Challenge {
    /// Decodes the message.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(bytes: &[u8]) -> Result<Challenge, Malformed> {
        let mut r = header(bytes, 2)?;
        let name = field(&mut r, bytes)?;
        let flags = r.u32()?;
        let server_challenge = r.array()?;
        r.skip(8)?;
        let target_info = if flags & flags::TARGET_INFO != 0 { field(&mut r, bytes)? } else { &[] };
        Ok(Challenge { flags, target_name: text(name, flags)?, server_challenge, target_info: target_info.to_vec() })
    }

    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut name = Vec::new();
        if self.flags & flags::UNICODE != 0 {
            name.put_utf16(&self.target_name);
        } else {
            name.extend_from_slice(self.target_name.as_bytes());
        }
        let mut out = SIGNATURE.to_vec();
        out.put_u32(2);
        put_field(&mut out, name.len(), 56);
        out.put_u32(self.flags);
        out.extend_from_slice(&self.server_challenge);
        out.put_zeros(8);
        put_field(&mut out, self.target_info.len(), 56 + name.len());
        out.extend_from_slice(if self.flags & flags::VERSION != 0 { &VERSION } else { &[0; 8] });
        out.extend_from_slice(&name);
        out.extend_from_slice(&self.target_info);
        out
    }
}

fn put_field(out: &mut Vec<u8>, length: usize, offset: usize) {
    out.put_u16(length as u16);
    out.put_u16(length as u16);
    out.put_u32(offset as u32);
}

/// AUTHENTICATE_MESSAGE, [MS-NLMP] 2.2.1.3.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Authenticate {
    pub flags: u32,
    pub lm_response: Vec<u8>,
    pub nt_response: Vec<u8>,
    pub domain: String,
    pub user: String,
    pub workstation: String,
    pub encrypted_session_key: Vec<u8>,
}

impl std::fmt::Debug for Authenticate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Passwords can be guessed offline from the responses: no log may hold them.
        f.debug_struct("Authenticate")
            .field("flags", &format_args!("{:#x}", self.flags))
            .field("domain", &self.domain)
            .field("user", &self.user)
            .field("workstation", &self.workstation)
            .finish_non_exhaustive()
    }
}

impl Authenticate {
    /// Decodes the message.
    ///
    /// # Errors
    /// A field is out of its range or too long, or the bytes end early.
    pub fn parse(bytes: &[u8]) -> Result<Authenticate, Malformed> {
        let mut r = header(bytes, 3)?;
        let lm_response = field(&mut r, bytes)?;
        let nt_response = short_field(&mut r, bytes, NT_RESPONSE_BYTES_MAX)?;
        let domain = short_field(&mut r, bytes, NAME_BYTES_MAX)?;
        let user = short_field(&mut r, bytes, NAME_BYTES_MAX)?;
        let workstation = short_field(&mut r, bytes, NAME_BYTES_MAX)?;
        let session_key = field(&mut r, bytes)?;
        let flags = r.u32()?;
        Ok(Authenticate {
            flags,
            lm_response: lm_response.to_vec(),
            nt_response: nt_response.to_vec(),
            domain: text(domain, flags)?,
            user: text(user, flags)?,
            workstation: text(workstation, flags)?,
            encrypted_session_key: session_key.to_vec(),
        })
    }

    /// Encodes the message with zeros in place of the MIC, which the caller writes at [`MIC_RANGE`].
    pub fn encode(&self) -> Vec<u8> {
        let utf16 = |s: &str| {
            let mut out = Vec::new();
            out.put_utf16(s);
            out
        };
        let (domain, user, workstation) = (utf16(&self.domain), utf16(&self.user), utf16(&self.workstation));
        let parts: [&[u8]; 6] =
            [&self.lm_response, &self.nt_response, &domain, &user, &workstation, &self.encrypted_session_key];
        let mut out = SIGNATURE.to_vec();
        out.put_u32(3);
        let mut offset = MIC_RANGE.end;
        for part in parts {
            put_field(&mut out, part.len(), offset);
            offset += part.len();
        }
        out.put_u32(self.flags | flags::UNICODE);
        out.extend_from_slice(&VERSION);
        out.put_zeros(16);
        for part in parts {
            out.extend_from_slice(part);
        }
        out
    }
}

/// NTLMv2_CLIENT_CHALLENGE, [MS-NLMP] 2.2.2.7: the part of an NTLMv2 response behind its 16 bytes of proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientChallenge {
    pub timestamp: FileTime,
    pub challenge: [u8; 8],
    pub av_pairs: Vec<AvPair>,
}

impl ClientChallenge {
    /// Decodes the structure.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn parse(bytes: &[u8]) -> Result<ClientChallenge, Malformed> {
        let mut r = Reader::new(bytes);
        if r.u16()? != 0x0101 {
            return Err(Malformed("NTLMv2 response version"));
        }
        r.skip(6)?;
        let timestamp = FileTime(r.u64()?);
        let challenge = r.array()?;
        r.skip(4)?;
        Ok(ClientChallenge { timestamp, challenge, av_pairs: AvPair::parse_list(r.rest())? })
    }

    /// Encodes the structure.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u16(0x0101);
        out.put_zeros(6);
        out.put_u64(self.timestamp.0);
        out.extend_from_slice(&self.challenge);
        out.put_u32(0);
        out.extend(AvPair::encode_list(&self.av_pairs));
        out.put_u32(0);
        out
    }

    /// The value of the first pair with this AvId.
    pub fn av(&self, id: u16) -> Option<&[u8]> {
        self.av_pairs.iter().find(|p| p.id == id).map(|p| &p.value[..])
    }

    /// Whether MsvAvFlags says that the AUTHENTICATE message has a MIC.
    pub fn has_mic(&self) -> bool {
        let flags = self.av(av::FLAGS).and_then(|v| <[u8; 4]>::try_from(v).ok());
        flags.is_some_and(|f| u32::from_le_bytes(f) & av::FLAG_MIC != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        text.split_whitespace().map(|b| u8::from_str_radix(b, 16).unwrap()).collect()
    }

    /// The CHALLENGE of [MS-NLMP] 4.2.4.3.
    #[test]
    fn challenge_of_the_specification() {
        let bytes =
            hex("4e 54 4c 4d 53 53 50 00 02 00 00 00 0c 00 0c 00 38 00 00 00 33 82 8a e2 01 23 45 67 89 ab cd ef
             00 00 00 00 00 00 00 00 24 00 24 00 44 00 00 00 06 00 70 17 00 00 00 0f 53 00 65 00 72 00 76 00
             65 00 72 00 02 00 0c 00 44 00 6f 00 6d 00 61 00 69 00 6e 00 01 00 0c 00 53 00 65 00 72 00 76 00
             65 00 72 00 00 00 00 00");
        let challenge = Challenge::parse(&bytes).unwrap();
        assert_eq!((challenge.flags, challenge.target_name.as_str()), (0xe28a_8233, "Server"));
        assert_eq!(challenge.server_challenge, [1, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
        let pairs = AvPair::parse_list(&challenge.target_info).unwrap();
        assert_eq!(pairs, [AvPair::text(av::NB_DOMAIN_NAME, "Domain"), AvPair::text(av::NB_COMPUTER_NAME, "Server")]);
        assert_eq!(AvPair::encode_list(&pairs), challenge.target_info);
        let mut again = challenge.encode();
        again[48..56].copy_from_slice(&bytes[48..56]);
        assert_eq!(again, bytes);
    }

    #[test]
    fn authenticate_round_trip_and_hostile_fields() {
        let message = Authenticate {
            flags: flags::UNICODE,
            lm_response: vec![0; 24],
            nt_response: vec![5; 60],
            domain: "Dom".into(),
            user: "Jürgen".into(),
            workstation: "WS".into(),
            encrypted_session_key: vec![1; 16],
        };
        let bytes = message.encode();
        assert_eq!(Authenticate::parse(&bytes), Ok(message));
        for at in 12..64 {
            let mut changed = bytes.clone();
            changed[at] = 0xFF;
            let _ = Authenticate::parse(&changed);
        }
        for end in 0..bytes.len() {
            assert!(Authenticate::parse(&bytes[..end]).is_err());
        }
        assert!(Challenge::parse(&bytes).is_err());
    }
}
