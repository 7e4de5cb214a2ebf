//! Signing, encryption and key derivation, [MS-SMB2] 3.1.4. Keys and bytes only: knows no session.

use aes::{Aes128, Aes256};
use arden_wire::smb2::{
    Dialect,
    header::flags,
    negotiate::{Cipher, SigningAlgorithm},
    transform::AAD_OFFSET,
};
use ccm::{
    Ccm, KeyInit,
    aead::AeadInOut,
    consts::{U11, U16},
};
use ring::{aead, digest, hmac};

use crate::sessions::mac::{CmacKey, GmacKey, SIGNATURE, has_wide_gcm};

/// SHA-512 over what came before and one more message, [MS-SMB2] 3.3.5.4.
pub fn extend_preauth(hash: &mut [u8; 64], message: &[u8]) {
    let mut context = digest::Context::new(&digest::SHA512);
    context.update(hash);
    context.update(message);
    hash.copy_from_slice(context.finish().as_ref());
}

/// Who a client is to the tables of leases and create GUIDs: the machine that calls itself `client_guid`, and the user.
/// The GUID goes over the wire in the clear and anybody may send any, so by itself it is nobody's.
pub fn client_identity(client_guid: u128, user: &arden_wire::dtyp::Sid) -> u128 {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&client_guid.to_le_bytes());
    context.update(user.to_string().as_bytes());
    u128::from_le_bytes(*context.finish().as_ref().first_chunk().expect("32 bytes"))
}

/// A key that signs and checks messages of one channel.
pub enum SigningKey {
    Hmac(hmac::Key),
    Cmac(Box<CmacKey>),
    Gmac(Box<GmacKey>),
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SigningKey::Hmac(_) => "SigningKey::Hmac",
            SigningKey::Cmac(_) => "SigningKey::Cmac",
            SigningKey::Gmac(_) => "SigningKey::Gmac",
        })
    }
}

impl SigningKey {
    pub fn new(algorithm: SigningAlgorithm, key: &[u8; 16]) -> SigningKey {
        match algorithm {
            SigningAlgorithm::HmacSha256 => SigningKey::Hmac(hmac::Key::new(hmac::HMAC_SHA256, key)),
            SigningAlgorithm::AesCmac => SigningKey::Cmac(Box::new(CmacKey::new(key))),
            SigningAlgorithm::AesGmac => SigningKey::Gmac(Box::new(GmacKey::new(key))),
        }
    }

    /// The signature of `message`, whose signature field is zeros.
    fn signature(&self, message: &[u8]) -> [u8; 16] {
        match self {
            SigningKey::Hmac(key) => {
                let mut out = [0; 16];
                out.copy_from_slice(&hmac::sign(key, message).as_ref()[..16]);
                out
            }
            SigningKey::Cmac(key) => key.sign(message),
            SigningKey::Gmac(key) => key.sign(&gmac_nonce(message), message),
        }
    }

    pub fn sign_in_place(&self, message: &mut [u8]) {
        message[SIGNATURE].fill(0);
        let signature = self.signature(message);
        message[SIGNATURE].copy_from_slice(&signature);
    }

    /// Leaves `message` as it was.
    pub fn verify(&self, message: &mut [u8]) -> bool {
        let mut claimed = [0; 16];
        claimed.copy_from_slice(&message[SIGNATURE]);
        message[SIGNATURE].fill(0);
        let expected = self.signature(message);
        message[SIGNATURE].copy_from_slice(&claimed);
        // Both are MACs of 16 bytes: fold the differences so that no byte ends the comparison early.
        claimed.iter().zip(expected).fold(0, |d, (a, b)| d | (a ^ b)) == 0
    }
}

/// [MS-SMB2] 3.1.4.1: the MessageId, then bit 0 for the server's messages and bit 1 for CANCEL.
fn gmac_nonce(message: &[u8]) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&message[24..32]);
    nonce[8] = (message[16] & flags::SERVER_TO_REDIR as u8) | (u8::from(message[12] == 12 && message[13] == 0) << 1);
    nonce
}

fn gcm_key(algorithm: &'static aead::Algorithm, key: &[u8]) -> aead::LessSafeKey {
    aead::LessSafeKey::new(aead::UnboundKey::new(algorithm, key).expect("the key has the algorithm's length"))
}

/// Whether graviola is the faster AES-GCM here. It uses VAES with AVX-512 alone, and `ring` with AVX2. With VAES and no AVX-512 `ring` is the faster, both ways and from
/// 256 bytes on: 1 MiB under 128 bits is encrypted at 6.4 GB/s and at 3.4 by graviola, and decrypted at 5.4 and 3.0. With AVX-512, and without VAES, it is graviola.
#[cfg(target_arch = "x86_64")]
fn is_wide_faster() -> bool {
    let has_vaes = is_x86_feature_detected!("vaes") && is_x86_feature_detected!("vpclmulqdq");
    let has_avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl");
    has_wide_gcm() && (has_avx512 || !has_vaes)
}

#[cfg(not(target_arch = "x86_64"))]
fn is_wide_faster() -> bool {
    false
}

/// A key of one direction of a session's encryption.
pub enum CipherKey {
    /// Where that is faster, see [`is_wide_faster`].
    Wide(Box<graviola::aead::AesGcm>),
    Gcm(aead::LessSafeKey),
    Ccm128(Box<Ccm<Aes128, U16, U11>>),
    Ccm256(Box<Ccm<Aes256, U16, U11>>),
}

impl CipherKey {
    pub fn new(cipher: Cipher, key: &[u8]) -> CipherKey {
        match cipher {
            Cipher::Aes128Gcm | Cipher::Aes256Gcm if is_wide_faster() => {
                CipherKey::Wide(Box::new(graviola::aead::AesGcm::new(key)))
            }
            Cipher::Aes128Gcm => CipherKey::Gcm(gcm_key(&aead::AES_128_GCM, key)),
            Cipher::Aes256Gcm => CipherKey::Gcm(gcm_key(&aead::AES_256_GCM, key)),
            Cipher::Aes128Ccm => CipherKey::Ccm128(Box::new(Ccm::new_from_slice(key).expect("16-byte key"))),
            Cipher::Aes256Ccm => CipherKey::Ccm256(Box::new(Ccm::new_from_slice(key).expect("32-byte key"))),
        }
    }

    /// `frame` is a TRANSFORM_HEADER, its nonce filled in, and the plain message; encrypts and fills in Signature.
    pub fn seal(&self, frame: &mut [u8]) {
        let (header, message) = frame.split_at_mut(arden_wire::smb2::transform::TRANSFORM_BYTES);
        let aad = &header[AAD_OFFSET..];
        let nonce = &header[AAD_OFFSET..AAD_OFFSET + 16];
        let mut tag = [0u8; 16];
        match self {
            CipherKey::Wide(key) => key.encrypt(first(nonce), aad, message, &mut tag),
            CipherKey::Gcm(key) => {
                let sealed = key
                    .seal_in_place_separate_tag(gcm_nonce(nonce), aead::Aad::from(aad), message)
                    .expect("messages are far shorter than the limit of AES-GCM");
                tag.copy_from_slice(sealed.as_ref());
            }
            CipherKey::Ccm128(key) => tag.copy_from_slice(
                &key.encrypt_inout_detached(ccm_nonce(nonce), aad, message.into()).expect("length is in bounds"),
            ),
            CipherKey::Ccm256(key) => tag.copy_from_slice(
                &key.encrypt_inout_detached(ccm_nonce(nonce), aad, message.into()).expect("length is in bounds"),
            ),
        }
        header[4..20].copy_from_slice(&tag);
    }

    /// Decrypts the message behind the TRANSFORM_HEADER in place; false when it is not authentic.
    #[must_use]
    pub fn open(&self, frame: &mut [u8]) -> bool {
        let (header, message) = frame.split_at_mut(arden_wire::smb2::transform::TRANSFORM_BYTES);
        let aad = &header[AAD_OFFSET..];
        let nonce = &header[AAD_OFFSET..AAD_OFFSET + 16];
        let mut tag = [0u8; 16];
        tag.copy_from_slice(&header[4..20]);
        match self {
            CipherKey::Wide(key) => key.decrypt(first(nonce), aad, message, &tag).is_ok(),
            CipherKey::Gcm(key) => {
                key.open_in_place_separate_tag(gcm_nonce(nonce), aead::Aad::from(aad), tag.into(), message, 0..).is_ok()
            }
            CipherKey::Ccm128(key) => {
                key.decrypt_inout_detached(ccm_nonce(nonce), aad, message.into(), &tag.into()).is_ok()
            }
            CipherKey::Ccm256(key) => {
                key.decrypt_inout_detached(ccm_nonce(nonce), aad, message.into(), &tag.into()).is_ok()
            }
        }
    }
}

/// The twelve bytes of the nonce that GCM uses.
fn first(nonce: &[u8]) -> &[u8; 12] {
    nonce.first_chunk().expect("sixteen bytes")
}

fn gcm_nonce(nonce: &[u8]) -> aead::Nonce {
    aead::Nonce::assume_unique_for_key(*first(nonce))
}

fn ccm_nonce(nonce: &[u8]) -> &ccm::Nonce<U11> {
    nonce[..11].try_into().expect("eleven bytes")
}

/// Which key, [MS-SMB2] 3.3.5.5.3 and 3.1.4.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Signing,
    /// Client to server.
    Decryption,
    /// Server to client.
    Encryption,
    Application,
}

/// SP800-108 in counter mode with HMAC-SHA256, [MS-SMB2] 3.1.4.2. `out` is 16 or 32 bytes.
pub fn derive(session_key: &[u8], purpose: Purpose, dialect: Dialect, preauth: &[u8; 64], out: &mut [u8]) {
    let (label, context): (&[u8], &[u8]) = if dialect == Dialect::Smb311 {
        let label: &[u8] = match purpose {
            Purpose::Signing => b"SMBSigningKey\0",
            Purpose::Decryption => b"SMBC2SCipherKey\0",
            Purpose::Encryption => b"SMBS2CCipherKey\0",
            Purpose::Application => b"SMBAppKey\0",
        };
        (label, preauth)
    } else {
        match purpose {
            Purpose::Signing => (b"SMB2AESCMAC\0", b"SmbSign\0"),
            Purpose::Decryption => (b"SMB2AESCCM\0", b"ServerIn \0"),
            Purpose::Encryption => (b"SMB2AESCCM\0", b"ServerOut\0"),
            Purpose::Application => (b"SMB2APP\0", b"SmbRpc\0"),
        }
    };
    let key = hmac::Key::new(hmac::HMAC_SHA256, session_key);
    let mut mac = hmac::Context::with_key(&key);
    mac.update(&1u32.to_be_bytes());
    mac.update(label);
    mac.update(&[0]);
    mac.update(context);
    mac.update(&(out.len() as u32 * 8).to_be_bytes());
    out.copy_from_slice(&mac.sign().as_ref()[..out.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Vec<u8> {
        let mut m = vec![0u8; 64];
        m[..4].copy_from_slice(&arden_wire::smb2::PROTOCOL_ID);
        m[24] = 7;
        m.extend_from_slice(b"payload that is not a multiple of sixteen");
        m
    }

    #[test]
    fn every_algorithm_signs_and_notices_changes() {
        for algorithm in [SigningAlgorithm::HmacSha256, SigningAlgorithm::AesCmac, SigningAlgorithm::AesGmac] {
            let key = SigningKey::new(algorithm, b"0123456789abcdef");
            let mut m = message();
            key.sign_in_place(&mut m);
            let signed = m.clone();
            assert!(key.verify(&mut m), "{algorithm:?}");
            assert_eq!(m, signed);
            for i in [0, 30, 50, 70] {
                let mut bad = m.clone();
                bad[i] ^= 1;
                assert!(!key.verify(&mut bad), "{algorithm:?} byte {i}");
            }
        }
    }

    #[test]
    fn every_cipher_seals_and_opens() {
        for (cipher, len) in
            [(Cipher::Aes128Ccm, 16), (Cipher::Aes128Gcm, 16), (Cipher::Aes256Ccm, 32), (Cipher::Aes256Gcm, 32)]
        {
            let key = CipherKey::new(cipher, &vec![3; len]);
            let mut frame = vec![9u8; 52];
            frame.extend_from_slice(&message());
            let plain = frame.clone();
            key.seal(&mut frame);
            assert_ne!(frame[52..], plain[52..]);
            let mut bad = frame.clone();
            bad[40] ^= 1;
            assert!(!key.open(&mut bad), "{cipher:?}");
            assert!(key.open(&mut frame), "{cipher:?}");
            assert_eq!(frame[52..], plain[52..]);
        }
    }

    /// Both kinds of key give the same bytes and understand each other, whatever the length of the last block.
    #[test]
    fn both_implementations_of_gcm_agree() {
        for (cipher, algorithm, len) in
            [(Cipher::Aes128Gcm, &aead::AES_128_GCM, 16), (Cipher::Aes256Gcm, &aead::AES_256_GCM, 32)]
        {
            if !has_wide_gcm() {
                return;
            }
            let one = CipherKey::Wide(Box::new(graviola::aead::AesGcm::new(&vec![5; len])));
            let two = CipherKey::Gcm(gcm_key(algorithm, &vec![5; len]));
            for message in (64..200).chain([65_536 + 9]) {
                let plain: Vec<u8> = (0..52 + message).map(|i| (i * 7) as u8).collect();
                let (mut a, mut b) = (plain.clone(), plain.clone());
                one.seal(&mut a);
                two.seal(&mut b);
                assert_eq!(a, b, "{cipher:?} of {message}");
                assert!(two.open(&mut a) && one.open(&mut b));
                assert_eq!((&a[52..], &b[52..]), (&plain[52..], &plain[52..]));
            }
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_processor_with_vaes_alone_has_keys_of_ring() {
        let has_avx512 = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl");
        let has_vaes = is_x86_feature_detected!("vaes") && is_x86_feature_detected!("vpclmulqdq");
        for (cipher, len) in [(Cipher::Aes128Gcm, 16), (Cipher::Aes256Gcm, 32)] {
            let is_wide = matches!(CipherKey::new(cipher, &vec![5; len]), CipherKey::Wide(_));
            assert_eq!(is_wide, has_wide_gcm() && (has_avx512 || !has_vaes), "{cipher:?}");
        }
    }

    /// The worked example that Microsoft published for SMB 3.1.1 key derivation and signing (AES-CMAC).
    #[test]
    fn derives_known_keys_for_smb_3_0() {
        let session_key =
            [0x7C, 0xD4, 0x51, 0x82, 0x5D, 0x04, 0x50, 0xD2, 0x35, 0x42, 0x4E, 0x44, 0xBA, 0x6E, 0x78, 0xCC];
        let expected = [0x0B, 0x7E, 0x9C, 0x5C, 0xAC, 0x36, 0xC0, 0xF6, 0xEA, 0x9A, 0xB2, 0x75, 0x29, 0x8C, 0xED, 0xCE];
        let mut out = [0; 16];
        derive(&session_key, Purpose::Signing, Dialect::Smb300, &[0; 64], &mut out);
        assert_eq!(out, expected);
    }
}
