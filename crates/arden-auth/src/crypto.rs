//! The primitives and key derivations of NTLM, [MS-NLMP] 3.3.2 and 3.4: MD4, MD5 and RC4, which are too weak for any
//! other use. NTLMv1 and LM are not implemented.

use arden_wire::ntlm::flags;
use hmac::{Hmac, KeyInit, Mac};
use md4::Md4;
use md5::{Digest, Md5};
use rc4::{Rc4, StreamCipher};

/// NTOWFv1 of a password, [MS-NLMP] 3.3.1: its MD4. The hash allows a logon as the password does: it is not printed,
/// and wiped on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct NtHash([u8; 16]);

impl NtHash {
    /// The hash of the empty password.
    pub const EMPTY: NtHash =
        NtHash([0x31, 0xD6, 0xCF, 0xE0, 0xD1, 0x6A, 0xE9, 0x31, 0xB7, 0x3C, 0x59, 0xD7, 0xE0, 0xC0, 0x89, 0xC0]);

    /// Hashes a password: NTOWFv1, [MS-NLMP] 3.3.1.
    pub fn of_password(password: &str) -> NtHash {
        let mut utf16: Vec<u8> = password.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let hash = NtHash(Md4::digest(&utf16).into());
        wipe(&mut utf16);
        hash
    }

    /// The hash with these bytes, computed before.
    pub fn from_bytes(bytes: [u8; 16]) -> NtHash {
        NtHash(bytes)
    }

    /// Parses the 32 hexadecimal digits of an account store; `None` for other text.
    pub fn from_hex(text: &str) -> Option<NtHash> {
        if text.len() != 32 || !text.is_ascii() {
            return None;
        }
        let mut out = [0; 16];
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(NtHash(out))
    }

    /// The bytes of the hash, for account stores only.
    pub fn expose(&self) -> &[u8; 16] {
        &self.0
    }
}

impl Drop for NtHash {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

impl std::fmt::Debug for NtHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NtHash(..)")
    }
}

/// Zeroes the bytes in a way that the compiler does not remove.
pub(crate) fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    std::hint::black_box(bytes);
}

/// Compares in a time that does not depend on the contents.
pub fn equal_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && std::hint::black_box(a.iter().zip(b).fold(0, |d, (x, y)| d | (x ^ y))) == 0
}

#[cfg(test)]
thread_local! {
    /// How often this thread computed an HMAC: the time that a check takes.
    pub(crate) static HMACS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

pub(crate) fn hmac_md5(key: &[u8], parts: &[&[u8]]) -> [u8; 16] {
    #[cfg(test)]
    HMACS.set(HMACS.get() + 1);
    // HMAC takes keys of any length.
    let Ok(mut mac) = Hmac::<Md5>::new_from_slice(key) else { return [0; 16] };
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

fn md5(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Md5::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

/// RC4K, [MS-NLMP] 6: one-time RC4 encryption.
pub(crate) fn rc4k(key: &[u8; 16], data: &mut [u8]) {
    if let Ok(mut cipher) = Rc4::new_from_slice(key) {
        cipher.apply_keystream(data);
    }
}

/// NTOWFv2, [MS-NLMP] 3.3.2.
pub(crate) fn ntowf_v2(hash: &NtHash, user: &str, domain: &str) -> [u8; 16] {
    let text: Vec<u8> = upper(user).encode_utf16().chain(domain.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    hmac_md5(&hash.0, &[&text])
}

/// Upper case, one character at a time as Windows does it: "ß" stays.
pub(crate) fn upper(text: &str) -> String {
    text.chars()
        .map(|c| {
            let mut upper = c.to_uppercase();
            match (upper.next(), upper.next()) {
                (Some(u), None) => u,
                _ => c,
            }
        })
        .collect()
}

/// The end of the connection that signs or seals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// SIGNKEY, [MS-NLMP] 3.4.5.2.
pub(crate) fn sign_key(session_key: &[u8; 16], side: Side) -> [u8; 16] {
    let magic: &[u8] = match side {
        Side::Client => b"session key to client-to-server signing key magic constant\0",
        Side::Server => b"session key to server-to-client signing key magic constant\0",
    };
    md5(&[session_key, magic])
}

/// SEALKEY with extended session security, [MS-NLMP] 3.4.5.3.
pub(crate) fn seal_key(negotiated: u32, session_key: &[u8; 16], side: Side) -> [u8; 16] {
    let strength = if negotiated & flags::NEGOTIATE_128 != 0 {
        16
    } else if negotiated & flags::NEGOTIATE_56 != 0 {
        7
    } else {
        5
    };
    let magic: &[u8] = match side {
        Side::Client => b"session key to client-to-server sealing key magic constant\0",
        Side::Server => b"session key to server-to-client sealing key magic constant\0",
    };
    md5(&[&session_key[..strength], magic])
}

/// The signature of a connection's first message (sequence number 0), [MS-NLMP] 3.4.4.2.
pub(crate) fn first_mic(negotiated: u32, session_key: &[u8; 16], side: Side, message: &[u8]) -> [u8; 16] {
    let sequence = [0; 4];
    let mac = hmac_md5(&sign_key(session_key, side), &[&sequence, message]);
    let mut checksum = [0; 8];
    checksum.copy_from_slice(&mac[..8]);
    if negotiated & flags::KEY_EXCH != 0 {
        rc4k(&seal_key(negotiated, session_key, side), &mut checksum);
    }
    let mut out = [0; 16];
    out[0] = 1;
    out[4..12].copy_from_slice(&checksum);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION_KEY: [u8; 16] = [0x55; 16];
    const ALL: u32 = flags::NEGOTIATE_128 | flags::KEY_EXCH;

    fn hex(text: &str) -> Vec<u8> {
        text.split_whitespace().map(|b| u8::from_str_radix(b, 16).unwrap()).collect()
    }

    /// [MS-NLMP] 4.2.2.1.2 and 4.2.4.1.1.
    #[test]
    fn one_way_functions() {
        let hash = NtHash::of_password("Password");
        assert_eq!(hash.0[..], hex("a4 f4 9c 40 65 10 bd ca b6 82 4e e7 c3 0f d8 52"));
        assert_eq!(ntowf_v2(&hash, "User", "Domain")[..], hex("0c 86 8a 40 3b fd 7a 93 a3 00 1e f2 2e f0 2e 3f"));
        assert_eq!(NtHash::of_password(""), NtHash::EMPTY);
        assert_eq!(NtHash::from_hex("a4f49c406510bdcab6824ee7c30fd852"), Some(hash));
        assert_eq!(NtHash::from_hex("a4f49c406510bdcab6824ee7c30fd8"), None);
    }

    /// [MS-NLMP] 4.2.4.4.
    #[test]
    fn session_keys() {
        let seal = hex("59 f6 00 97 3c c4 96 0a 25 48 0a 7c 19 6e 4c 58");
        let sign = hex("47 88 dc 86 1b 47 82 f3 5d 43 fd 98 fe 1a 2d 39");
        assert_eq!(seal_key(ALL, &SESSION_KEY, Side::Client)[..], seal);
        assert_eq!(sign_key(&SESSION_KEY, Side::Client)[..], sign);
        let mut data = hex("50 00 6c 00 61 00 69 00 6e 00 74 00 65 00 78 00 74 00");
        let mac = hmac_md5(&sign_key(&SESSION_KEY, Side::Client), &[&[0; 4], &data]);
        assert_eq!(mac[..8], hex("70 35 28 51 f2 56 43 09"));
        // The example seals the data before the checksum, with the same key stream.
        data.extend_from_slice(&mac[..8]);
        rc4k(&seal_key(ALL, &SESSION_KEY, Side::Client), &mut data);
        assert_eq!(data[..18], hex("54 e5 01 65 bf 19 36 dc 99 60 20 c1 81 1b 0f 06 fb 5f"));
        assert_eq!(data[18..], hex("7f b3 8e c5 c5 5d 49 76"));
    }

    #[test]
    fn secrets_are_not_shown() {
        assert_eq!(format!("{:?}", NtHash::EMPTY), "NtHash(..)");
    }
}
