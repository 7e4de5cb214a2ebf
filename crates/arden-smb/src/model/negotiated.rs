//! What NEGOTIATE settled for a connection, as values.

use arden_wire::smb2::{
    Dialect,
    negotiate::{Cipher, SigningAlgorithm, capability},
};

/// What NEGOTIATE settled for a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    pub dialect: Dialect,
    pub client_guid: u128,
    pub client_capabilities: u32,
    pub client_security_mode: u16,
    pub client_dialects: Vec<u16>,
    pub server_capabilities: u32,
    pub server_security_mode: u16,
    pub cipher: Option<Cipher>,
    pub signing: SigningAlgorithm,
    pub max_transact: u32,
    pub max_read: u32,
    pub max_write: u32,
}

impl Negotiated {
    pub fn multi_credit(&self) -> bool {
        self.dialect >= Dialect::Smb210
    }

    /// Can the client encrypt? By an agreed cipher in 3.1.1, by its capability before.
    pub fn client_encrypts(&self) -> bool {
        self.cipher.is_some()
            && (self.dialect == Dialect::Smb311 || self.client_capabilities & capability::ENCRYPTION != 0)
    }
}
