//! Secrets: the NT hash of a password, and random bytes. Plain passwords are neither kept nor printed.

use md4::{Digest, Md4};

use crate::error::{AdminError, Result};

/// NTOWFv1 of a password, [MS-NLMP] 3.3.1: MD4 of its UTF-16LE.
pub fn nt_hash(password: &str) -> [u8; 16] {
    let utf16: Vec<u8> = password.encode_utf16().flat_map(u16::to_le_bytes).collect();
    Md4::digest(&utf16).into()
}

/// Lower-case hexadecimal digits of bytes.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Decodes 32 hexadecimal digits; `None` for other text.
pub fn unhex16(text: &str) -> Option<[u8; 16]> {
    u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32).map(u128::to_be_bytes)
}

/// Random bytes of the kernel's generator.
///
/// # Errors
/// Failed, when the kernel returns none.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut out = [0u8; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut out[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(AdminError::failed(format!("the kernel gave no random bytes: {e}"), "")),
        }
    }
    Ok(out)
}

/// A random password that is easy to type: 20 characters with 100 bits, none of which look alike.
///
/// # Errors
/// Failed, when the kernel returns no random bytes.
pub fn random_password() -> Result<String> {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let bytes: [u8; 20] = random()?;
    Ok(bytes.iter().map(|b| LETTERS[(b & 31) as usize] as char).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nt_hash_is_the_one_of_the_specification() {
        // [MS-NLMP] 4.2.2.1.2: the password "Password".
        assert_eq!(hex(&nt_hash("Password")), "a4f49c406510bdcab6824ee7c30fd852");
        assert_eq!(unhex16("a4f49c406510bdcab6824ee7c30fd852"), Some(nt_hash("Password")));
        assert_eq!(unhex16("a4"), None);
    }

    #[test]
    fn random_passwords_differ() {
        let (a, b) = (random_password().unwrap(), random_password().unwrap());
        assert!(a.len() == 20 && a != b);
    }
}
