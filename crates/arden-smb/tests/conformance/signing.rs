//! Signing: required, verified, by every algorithm.

use crate::client::*;

/// `BVT_Signing`
#[test]
fn bvt_signing() {
    let lab = Lab::with(|s| s.signing_required = false);
    for dialect in [Dialect::Smb202, Dialect::Smb210, Dialect::Smb300, Dialect::Smb302, Dialect::Smb311] {
        let mut c = lab.connect();
        c.negotiate(&Offer { mode: 2, ..Offer::up_to(dialect) });
        c.logon(&logon(USER).requiring_signing());
        let reply = c.connect(SHARE);
        assert!(reply.signed);
        assert!(c.call(&want("x").req()).signed);
        // Who asked for signing does not go without it.
        assert_eq!(c.status(&want("x").req().signed(false)), NtStatus::ACCESS_DENIED);
    }
}

/// `Signing_VerifySignatureWhenEncrypted`
#[test]
fn signing_verify_signature_when_encrypted() {
    let lab = Lab::new();
    let mut c = lab.client_with(Dialect::Smb302);
    c.encrypt = true;
    c.connect(SEALED);
    let reply = c.call(&want("x").req()).ok();
    assert!(reply.encrypted);
    assert_eq!(reply.header.signature, [0; 16]);
}

/// `Signing_VerifyAesGmacSigning`
#[test]
fn signing_verify_aes_gmac_signing() {
    let lab = Lab::new();
    for algorithm in [0, 1, 2] {
        let mut c = lab.connect();
        let contexts = [preauth_context(&[1]), signing_context(&[algorithm])];
        c.negotiate(&Offer { mode: 2, ..Offer::up_to(Dialect::Smb311).contexts(&contexts) });
        c.logon(&logon(USER));
        assert!(c.connect(SHARE).signed);
        c.put("x", b"signed");
    }
}

#[test]
fn a_wrong_signature_is_refused() {
    let lab = Lab::new();
    for dialect in [Dialect::Smb202, Dialect::Smb300, Dialect::Smb311] {
        let mut c = lab.client_with(dialect);
        let (id, mut message) = c.encode(&want("x").req(), false);
        message[48] ^= 1;
        c.send_bytes(message);
        assert_eq!(c.receive(id).status(), NtStatus::ACCESS_DENIED);
        assert!(!lab.host("x").exists());
    }
}

#[test]
fn unsigned_requests_are_refused_where_signing_is_required() {
    let lab = Lab::new();
    let mut c = lab.client();
    assert_eq!(c.status(&want("x").req().signed(false)), NtStatus::ACCESS_DENIED);
    assert!(!lab.host("x").exists());
}

#[test]
fn unsigned_requests_pass_where_nobody_requires_signing() {
    let lab = Lab::with(|s| s.signing_required = false);
    let mut c = lab.client_with(Dialect::Smb302);
    let reply = c.call(&want("x").req().signed(false)).ok();
    assert!(!reply.signed);
    assert!(c.call(&want("x").req()).ok().signed, "a signed request is answered signed");
}
