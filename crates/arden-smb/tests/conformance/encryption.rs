//! Encryption: by session, by share, by every cipher.

use crate::client::*;
use arden_wire::smb2::session::{session_flags, share_flags};

fn operate(c: &mut Client) {
    let f = c.open(want("file").options(OPT_NON_DIRECTORY_FILE | OPT_DELETE_ON_CLOSE));
    let content = vec![b'x'; 70_000];
    c.write(f.id, 0, &content);
    assert_eq!(c.read(f.id, 0, content.len() as u32), content);
    c.close(f.id);
    assert_eq!(c.status(&Req::empty(Command::TreeDisconnect)), NtStatus::SUCCESS);
    assert_eq!(c.status(&Req::empty(Command::Logoff)), NtStatus::SUCCESS);
}

/// `BVT_Encryption_PerShareEncryptionEnabled`
#[test]
fn bvt_encryption_per_share_encryption_enabled() {
    let lab = Lab::new();
    for dialect in [Dialect::Smb300, Dialect::Smb302, Dialect::Smb311] {
        let mut c = lab.client_with(dialect);
        let reply = c.connect(SEALED);
        assert_eq!(reply.u32(4) & share_flags::ENCRYPT_DATA, share_flags::ENCRYPT_DATA);
        assert_eq!(c.status(&want("x").req()), NtStatus::ACCESS_DENIED, "unencrypted");
        c.encrypt = true;
        assert!(c.call(&want("x").req()).ok().encrypted);
        operate(&mut c);
    }
}

/// `BVT_Encryption_GlobalEncryptionEnabled`
#[test]
fn bvt_encryption_global_encryption_enabled() {
    let lab = Lab::with(|s| s.encryption_required = true);
    for dialect in [Dialect::Smb300, Dialect::Smb302, Dialect::Smb311] {
        let mut c = lab.connect();
        c.negotiate(&Offer::up_to(dialect));
        let session = c.logon(&logon(USER));
        assert_eq!(session.flags & session_flags::ENCRYPT_DATA, session_flags::ENCRYPT_DATA);
        assert_eq!(c.try_connect(SHARE).unwrap_err(), NtStatus::ACCESS_DENIED);
        c.encrypt = true;
        let reply = c.connect(SHARE);
        assert_eq!(reply.u32(4) & share_flags::ENCRYPT_DATA, 0, "the share itself asks for nothing");
        operate(&mut c);
    }
}

fn with_cipher(ids: &[u16]) {
    let lab = Lab::new();
    let mut c = lab.connect();
    let n = c.negotiate(&Offer::up_to(Dialect::Smb311).contexts(&[preauth_context(&[1]), encryption_context(ids)]));
    assert_eq!(n.chosen(arden_wire::smb2::negotiate::context::ENCRYPTION), Some(ids[0]));
    c.logon(&logon(USER));
    c.encrypt = true;
    c.connect(SEALED);
    operate(&mut c);
}

/// `BVT_Encryption_SMB311`
#[test]
fn bvt_encryption_smb311() {
    with_cipher(&[2, 1]);
}
/// `BVT_Encryption_SMB311_CCM`
#[test]
fn bvt_encryption_smb311_ccm() {
    with_cipher(&[1]);
}
/// `BVT_Encryption_SMB311_AES_256_CCM`
#[test]
fn bvt_encryption_smb311_aes_256_ccm() {
    with_cipher(&[3]);
}
/// `BVT_Encryption_SMB311_GCM`
#[test]
fn bvt_encryption_smb311_gcm() {
    with_cipher(&[2]);
}
/// `BVT_Encryption_SMB311_AES_256_GCM`
#[test]
fn bvt_encryption_smb311_aes_256_gcm() {
    with_cipher(&[4]);
}

#[test]
fn who_cannot_encrypt_is_not_let_in() {
    let lab = Lab::new();
    for dialect in [Dialect::Smb202, Dialect::Smb210] {
        let mut c = lab.client_with(dialect);
        assert_eq!(c.try_connect(SEALED).unwrap_err(), NtStatus::ACCESS_DENIED);
    }
    let lab = Lab::with(|s| s.encryption_required = true);
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb210));
    assert_eq!(c.try_logon(&logon(USER)).err(), Some(NtStatus::ACCESS_DENIED));
}

#[test]
fn what_is_not_authentic_ends_the_connection() {
    let lab = Lab::new();
    let mut c = lab.client();
    let (_, message) = c.encode(&want("x").req().signed(false), false);
    let mut frame = c.seal(&message);
    let last = frame.len() - 1;
    frame[last] ^= 1;
    c.send_bytes(frame);
    assert!(c.is_closed());
    assert!(!lab.host("x").exists());
}

#[test]
fn encrypted_for_another_session_ends_the_connection() {
    let lab = Lab::new();
    let mut c = lab.client();
    let (_, message) = c.encode(&want("x").req().signed(false), false);
    let mut frame = c.seal(&message);
    frame[44] ^= 0xFF;
    c.send_bytes(frame);
    assert!(c.is_closed());
}

#[test]
fn an_encrypted_request_is_answered_encrypted_where_nothing_asks_for_it() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.encrypt = true;
    assert!(c.call(&want("x").req()).ok().encrypted);
    assert!(c.call(&want("no\\such").req()).encrypted);
}
