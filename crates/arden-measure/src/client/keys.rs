//! Signing and encryption on the client's side. The load generator must not be the bottleneck: GMAC is computed by
//! `graviola` where the processor supports it, which is three to ten times as fast at additional data as `ring`.

use aes::Aes128;
use cmac::{Cmac, KeyInit, Mac};
use ring::{aead, hmac};
use smb2::crypto::signing::SigningAlgorithm;

const SIGNATURE: std::ops::Range<usize> = 48..64;
/// Length of the TRANSFORM_HEADER in bytes, [MS-SMB2] 2.2.41.
pub const TRANSFORM_BYTES: usize = 52;

/// A signing key with its algorithm.
#[allow(clippy::large_enum_variant)]
pub enum Signer {
    Hmac(hmac::Key),
    Cmac(Box<Cmac<Aes128>>),
    Gmac(aead::LessSafeKey),
    WideGmac(Box<graviola::aead::AesGcm>),
}

/// Whether the processor has the instructions that graviola requires. It panics without them.
#[cfg(target_arch = "x86_64")]
fn has_wide_gcm() -> bool {
    let multiplies = is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("avx2");
    multiplies && is_x86_feature_detected!("aes") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("adx")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_wide_gcm() -> bool {
    false
}

/// The nonce of GMAC: MessageId and sender, [MS-SMB2] 3.1.4.1.
fn gmac_nonce(message: &[u8], server: bool) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&message[24..32]);
    nonce[8] = u8::from(server);
    nonce
}

fn gcm(key: &[u8]) -> aead::LessSafeKey {
    let algorithm = if key.len() == 32 { &aead::AES_256_GCM } else { &aead::AES_128_GCM };
    aead::LessSafeKey::new(aead::UnboundKey::new(algorithm, key).expect("length fits"))
}

impl Signer {
    /// A signer. `key` has at least 16 bytes, of which GMAC uses 16.
    pub fn new(algorithm: SigningAlgorithm, key: &[u8]) -> Signer {
        match algorithm {
            SigningAlgorithm::HmacSha256 => Signer::Hmac(hmac::Key::new(hmac::HMAC_SHA256, key)),
            SigningAlgorithm::AesCmac => Signer::Cmac(Box::new(Cmac::new_from_slice(key).expect("16 bytes"))),
            SigningAlgorithm::AesGmac if has_wide_gcm() => {
                Signer::WideGmac(Box::new(graviola::aead::AesGcm::new(&key[..16])))
            }
            SigningAlgorithm::AesGmac => Signer::Gmac(gcm(&key[..16])),
        }
    }

    /// The signature of a message whose signature field is zero.
    fn signature(&self, message: &[u8], server: bool) -> [u8; 16] {
        let mut out = [0; 16];
        match self {
            Signer::Hmac(key) => out.copy_from_slice(&hmac::sign(key, message).as_ref()[..16]),
            Signer::Cmac(key) => {
                let mut mac = key.as_ref().clone();
                mac.update(message);
                out.copy_from_slice(&mac.finalize().into_bytes());
            }
            Signer::Gmac(key) => {
                let nonce = aead::Nonce::assume_unique_for_key(gmac_nonce(message, server));
                let tag = key
                    .seal_in_place_separate_tag(nonce, aead::Aad::from(message), &mut [])
                    .expect("any length that fits in memory");
                out.copy_from_slice(tag.as_ref());
            }
            Signer::WideGmac(key) => key.encrypt(&gmac_nonce(message, server), message, &mut [], &mut out),
        }
        out
    }

    /// Signs a request, [MS-SMB2] 3.1.4.1.
    pub fn sign(&self, message: &mut [u8]) {
        message[SIGNATURE].fill(0);
        let signature = self.signature(message, false);
        message[SIGNATURE].copy_from_slice(&signature);
    }

    /// Verifies the signature of a response, and zeroes the field.
    pub fn verify(&self, message: &mut [u8]) -> bool {
        let mut claimed = [0; 16];
        claimed.copy_from_slice(&message[SIGNATURE]);
        message[SIGNATURE].fill(0);
        self.signature(message, true) == claimed
    }
}

/// Encryption and decryption with AES-GCM.
pub struct Sealer {
    outgoing: aead::LessSafeKey,
    incoming: aead::LessSafeKey,
    counter: u64,
    session_id: u64,
}

fn nonce(bytes: &[u8]) -> aead::Nonce {
    let mut n = [0; 12];
    n.copy_from_slice(&bytes[..12]);
    aead::Nonce::assume_unique_for_key(n)
}

impl Sealer {
    /// A sealer of one connection. Channels of one session share the keys: `channel` keeps their nonces apart.
    pub fn new(outgoing: &[u8], incoming: &[u8], session_id: u64, channel: u16) -> Sealer {
        Sealer { outgoing: gcm(outgoing), incoming: gcm(incoming), counter: u64::from(channel) << 48, session_id }
    }

    /// Encrypts a frame in place, [MS-SMB2] 3.1.4.3. `frame` is room for a TRANSFORM_HEADER and the plain message.
    pub fn seal(&mut self, frame: &mut [u8]) {
        let (header, message) = frame.split_at_mut(TRANSFORM_BYTES);
        self.counter += 1;
        header.fill(0);
        header[..4].copy_from_slice(&[0xFD, b'S', b'M', b'B']);
        header[20..28].copy_from_slice(&self.counter.to_le_bytes());
        header[36..40].copy_from_slice(&(message.len() as u32).to_le_bytes());
        header[42] = 1;
        header[44..52].copy_from_slice(&self.session_id.to_le_bytes());
        let tag = self
            .outgoing
            .seal_in_place_separate_tag(nonce(&header[20..36]), aead::Aad::from(&header[20..52]), message)
            .expect("messages are short enough");
        header[4..20].copy_from_slice(tag.as_ref());
    }

    /// Decrypts a frame in place; false when it was not encrypted by the server.
    pub fn open(&self, frame: &mut [u8]) -> bool {
        let (header, message) = frame.split_at_mut(TRANSFORM_BYTES);
        let mut tag = [0; 16];
        tag.copy_from_slice(&header[4..20]);
        let aad = aead::Aad::from(&header[20..52]);
        self.incoming.open_in_place_separate_tag(nonce(&header[20..36]), aad, tag.into(), message, 0..).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_and_narrow_gmac_agree() {
        if !has_wide_gcm() {
            return;
        }
        let key: Vec<u8> = (0..16).collect();
        let wide = Signer::new(SigningAlgorithm::AesGmac, &key);
        assert!(matches!(wide, Signer::WideGmac(_)));
        let narrow = Signer::Gmac(gcm(&key));
        for len in (64..160).chain([4208, 65648]) {
            let mut message: Vec<u8> = (0..len).map(|i| (i * 7 + i / 256) as u8).collect();
            wide.sign(&mut message);
            let signed = message.clone();
            narrow.sign(&mut message);
            assert_eq!(signed, message, "{len} bytes");
            assert!(!narrow.verify(&mut message.clone()), "a server's signature is another");
        }
    }
}
