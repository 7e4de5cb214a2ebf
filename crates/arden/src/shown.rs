//! Sessions as an administrator sees them.

use arden_admin::model::{Id, SessionInfo};
use arden_wire::smb2::{
    Dialect,
    negotiate::{Cipher, SigningAlgorithm},
};

/// What the list of sessions says of one.
pub fn session_info(s: &arden_smb::sessions::Session) -> SessionInfo {
    let signing = match s.signing_algorithm {
        SigningAlgorithm::HmacSha256 => "HMAC-SHA256",
        SigningAlgorithm::AesCmac => "AES-CMAC",
        SigningAlgorithm::AesGmac => "AES-GMAC",
    };
    let cipher = match s.cipher {
        Some(Cipher::Aes128Ccm) => "AES-128-CCM",
        Some(Cipher::Aes128Gcm) => "AES-128-GCM",
        Some(Cipher::Aes256Ccm) => "AES-256-CCM",
        Some(Cipher::Aes256Gcm) => "AES-256-GCM",
        None => "",
    };
    let dialect = match s.dialect {
        Dialect::Smb202 => "2.0.2",
        Dialect::Smb210 => "2.1",
        Dialect::Smb300 => "3.0",
        Dialect::Smb302 => "3.0.2",
        Dialect::Smb311 => "3.1.1",
    };
    // One lock after the other: in the expression below each would be held to its end.
    let channels = s.channels.lock().len() as u32;
    let opens = s.tables.opens.read().len() as u32;
    SessionInfo {
        id: Id(s.id),
        user: s.token().user_name.clone(),
        client: s.live_peer().map_or_else(String::new, |p| p.address.clone()),
        dialect: dialect.into(),
        signing: if s.anonymous { String::new() } else { signing.into() },
        encryption: if s.encrypt_data { cipher.into() } else { String::new() },
        channels,
        opens,
        age_seconds: s.created.elapsed().as_secs(),
        idle_seconds: s.idle(std::time::Instant::now()).as_secs(),
        node: String::new(),
    }
}
