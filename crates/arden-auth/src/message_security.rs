//! Signing and sealing of messages with the keys of an NTLM logon, [MS-NLMP] 3.4: what RPC needs after it. Each
//! direction has a key to sign, a key stream to seal and a sequence number; a message that is repeated, left out or
//! changed does not verify, and the stream is useless from then on.

use std::ops::Range;

use arden_wire::ntlm::flags;
use hmac::KeyInit;
use rc4::{Rc4, StreamCipher};

use crate::crypto::{Side, equal_constant_time, hmac_md5, seal_key, sign_key};

/// Bytes of a signature: NTLMSSP_MESSAGE_SIGNATURE with extended session security, [MS-NLMP] 2.2.2.9.2.
pub const SIGNATURE_BYTES: usize = 16;

/// One direction of a connection.
struct Direction {
    sign_key: [u8; 16],
    stream: Rc4,
    sequence: u32,
    /// The checksum is sealed too: NTLMSSP_NEGOTIATE_KEY_EXCH.
    seals_checksum: bool,
}

impl Direction {
    fn new(negotiated: u32, session_key: &[u8; 16], side: Side, sequence: u32) -> Option<Direction> {
        Some(Direction {
            sign_key: sign_key(session_key, side),
            stream: Rc4::new_from_slice(&seal_key(negotiated, session_key, side)).ok()?,
            sequence,
            seals_checksum: negotiated & flags::KEY_EXCH != 0,
        })
    }

    /// The checksum of a message in plain text with the next sequence number, [MS-NLMP] 3.4.4.2.
    fn checksum(&self, message: &[u8]) -> [u8; 8] {
        let mac = hmac_md5(&self.sign_key, &[&self.sequence.to_le_bytes(), message]);
        let mut checksum = [0; 8];
        checksum.copy_from_slice(&mac[..8]);
        checksum
    }

    fn signature(&mut self, mut checksum: [u8; 8]) -> [u8; SIGNATURE_BYTES] {
        if self.seals_checksum {
            self.stream.apply_keystream(&mut checksum);
        }
        let mut out = [0; SIGNATURE_BYTES];
        out[0] = 1;
        out[4..12].copy_from_slice(&checksum);
        out[12..].copy_from_slice(&self.sequence.to_le_bytes());
        self.sequence = self.sequence.wrapping_add(1);
        out
    }
}

/// Protects what one end of a connection sends and checks what it receives.
pub struct MessageSecurity {
    send: Direction,
    receive: Direction,
    seals: bool,
}

impl MessageSecurity {
    /// `None` without extended session security, or when neither signing nor sealing was negotiated. `sequence` is 1 when
    /// SPNEGO has signed its list of mechanisms, else 0: the key stream begins anew after that, the numbers go on.
    pub(crate) fn new(negotiated: u32, session_key: &[u8; 16], own: Side, sequence: u32) -> Option<MessageSecurity> {
        let signs = negotiated & (flags::SIGN | flags::SEAL) != 0;
        if !signs || negotiated & flags::EXTENDED_SESSIONSECURITY == 0 {
            return None;
        }
        let other = match own {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        };
        let direction = |side| Direction::new(negotiated, session_key, side, sequence);
        let strong = flags::SEAL | flags::NEGOTIATE_128;
        Some(MessageSecurity {
            send: direction(own)?,
            receive: direction(other)?,
            seals: negotiated & strong == strong,
        })
    }

    /// Whether messages can be sealed: it was negotiated, with a key of 128 bits.
    pub fn can_seal(&self) -> bool {
        self.seals
    }

    /// Signs the next message.
    pub fn sign(&mut self, message: &[u8]) -> [u8; SIGNATURE_BYTES] {
        let checksum = self.send.checksum(message);
        self.send.signature(checksum)
    }

    /// Seals `range` of `message`, whose signature covers all of `message` in plain text.
    pub fn seal(&mut self, message: &mut [u8], range: Range<usize>) -> [u8; SIGNATURE_BYTES] {
        let checksum = self.send.checksum(message);
        self.send.stream.apply_keystream(&mut message[range]);
        self.send.signature(checksum)
    }

    /// Whether the signature is that of the next message. After a false one the connection has to end.
    pub fn verify(&mut self, message: &[u8], signature: &[u8]) -> bool {
        let checksum = self.receive.checksum(message);
        equal_constant_time(&self.receive.signature(checksum), signature)
    }

    /// Unseals `range` of `message`, and checks the signature of all of it. After a false one the connection has to end.
    pub fn unseal(&mut self, message: &mut [u8], range: Range<usize>, signature: &[u8]) -> bool {
        self.receive.stream.apply_keystream(&mut message[range]);
        self.verify(message, signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u32 =
        flags::NEGOTIATE_128 | flags::KEY_EXCH | flags::SIGN | flags::SEAL | flags::EXTENDED_SESSIONSECURITY;

    fn hex(text: &str) -> Vec<u8> {
        text.split_whitespace().map(|b| u8::from_str_radix(b, 16).unwrap()).collect()
    }
    fn side(own: Side) -> MessageSecurity {
        MessageSecurity::new(ALL, &[0x55; 16], own, 0).unwrap()
    }

    /// [MS-NLMP] 4.2.4.4.
    #[test]
    fn the_example_of_the_specification() {
        let mut message = hex("50 00 6c 00 61 00 69 00 6e 00 74 00 65 00 78 00 74 00");
        let plain = message.clone();
        let signature = side(Side::Client).seal(&mut message, 0..18);
        assert_eq!(message, hex("54 e5 01 65 bf 19 36 dc 99 60 20 c1 81 1b 0f 06 fb 5f"));
        assert_eq!(signature[..], hex("01 00 00 00 7f b3 8e c5 c5 5d 49 76 00 00 00 00"));
        let mut server = side(Side::Server);
        assert!(server.unseal(&mut message, 0..18, &signature));
        assert_eq!(message, plain);
    }

    #[test]
    fn what_is_changed_repeated_or_left_out_does_not_verify() {
        let (mut client, mut server) = (side(Side::Client), side(Side::Server));
        let signatures: Vec<_> = (0..3).map(|_| client.sign(b"message")).collect();
        assert!(server.verify(b"message", &signatures[0]));
        assert!(!server.verify(b"message", &signatures[0]), "repeated");
        let mut server = side(Side::Server);
        assert!(!server.verify(b"message", &signatures[1]), "one was left out");
        let mut server = side(Side::Server);
        assert!(!server.verify(b"massage", &signatures[0]), "changed");
        let mut server = side(Side::Server);
        assert!(!server.verify(b"message", &signatures[0][..8]), "cut");
        let mut client = side(Side::Client);
        let own = side(Side::Client).sign(b"message");
        assert!(!client.verify(b"message", &own), "its own, sent back");
    }

    #[test]
    fn weak_sessions_do_not_seal() {
        let of = |flags| MessageSecurity::new(flags, &[1; 16], Side::Server, 0).map(|s| s.can_seal());
        assert_eq!(of(ALL), Some(true));
        assert_eq!(of(ALL & !flags::NEGOTIATE_128), Some(false));
        assert_eq!(of(ALL & !flags::SEAL), Some(false));
        assert_eq!(of(ALL & !flags::SEAL & !flags::SIGN), None);
        assert_eq!(of(ALL & !flags::EXTENDED_SESSIONSECURITY), None);
    }
}
