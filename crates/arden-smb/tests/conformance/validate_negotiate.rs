//! FSCTL_VALIDATE_NEGOTIATE_INFO, [MS-SMB2] 3.3.5.15.12.

use crate::client::*;

struct Said {
    capabilities: u32,
    guid: u128,
    mode: u16,
    dialects: Vec<u16>,
    max: u32,
}

/// Negotiates 3.0, then validates what `change` made of it: the answer, or None when the connection ended.
fn validate_with(change: impl FnOnce(&mut Said)) -> Option<(Reply, Negotiated)> {
    let lab = Lab::new();
    let mut c = lab.connect();
    let offer = Offer::up_to(Dialect::Smb300);
    let n = c.negotiate(&offer);
    c.logon(&logon(USER));
    c.connect("IPC$");
    let mut said = Said {
        capabilities: offer.capabilities,
        guid: c.guid,
        mode: offer.mode,
        dialects: offer.dialects.clone(),
        max: 24,
    };
    change(&mut said);
    let input = validate(said.capabilities, said.guid, said.mode, &said.dialects);
    let id = c.send(&ioctl(FileId::RELATED, fsctl::VALIDATE_NEGOTIATE_INFO, &input, said.max));
    let reply = c.poll(id);
    assert_eq!(reply.is_none(), c.is_closed());
    reply.map(|r| (r, n))
}

/// `BVT_ValidateNegotiateInfo`
#[test]
fn bvt_validate_negotiate_info() {
    let (reply, n) = validate_with(|_| {}).unwrap();
    let output = reply.ioctl_output();
    assert_eq!(reply.status(), NtStatus::SUCCESS);
    assert!(reply.signed);
    assert_eq!(le_u32(output, 0), n.capabilities);
    assert_eq!(output[4..20], n.guid.to_le_bytes());
    assert_eq!(le_u16(output, 20), n.mode);
    assert_eq!(le_u16(output, 22), 0x0300);
}
/// `ValidateNegotiateInfo_Negative_InvalidDialects_NoCommonDialect`
#[test]
fn validate_negotiate_info_negative_invalid_dialects_no_common_dialect() {
    assert!(validate_with(|s| s.dialects = vec![0xFFFF]).is_none());
}
/// `ValidateNegotiateInfo_Negative_InvalidDialects_CommonDialectNotExpected`
#[test]
fn validate_negotiate_info_negative_invalid_dialects_common_dialect_not_expected() {
    assert!(validate_with(|s| s.dialects = vec![0x0210]).is_none());
}
/// `ValidateNegotiateInfo_Negative_InvalidGuid`
#[test]
fn validate_negotiate_info_negative_invalid_guid() {
    assert!(validate_with(|s| s.guid ^= 1).is_none());
}
/// `ValidateNegotiateInfo_Negative_InvalidSecurityMode`
#[test]
fn validate_negotiate_info_negative_invalid_security_mode() {
    assert!(validate_with(|s| s.mode = 0).is_none());
}
/// `ValidateNegotiateInfo_Negative_InvalidCapabilities`
#[test]
fn validate_negotiate_info_negative_invalid_capabilities() {
    assert!(validate_with(|s| s.capabilities = 0).is_none());
}
/// `ValidateNegotiateInfo_Negative_InvalidMaxOutputResponse`
#[test]
fn validate_negotiate_info_negative_invalid_max_output_response() {
    assert!(validate_with(|s| s.max = 0).is_none());
    assert!(validate_with(|s| s.max = 23).is_none());
}

/// `ValidateNegotiateInfo_Negative_SMB311`
#[test]
fn validate_negotiate_info_negative_smb311() {
    let lab = Lab::new();
    let mut c = lab.client();
    let input = validate(ALL_CAPABILITIES, c.guid, 1, &[0x0202, 0x0210, 0x0300, 0x0302, 0x0311]);
    c.send(&ioctl(FileId::RELATED, fsctl::VALIDATE_NEGOTIATE_INFO, &input, 24));
    assert!(c.is_closed());
}

/// Nothing of what was answered before it in its compound is sent.
#[test]
fn a_compound_that_ends_the_connection_is_not_answered() {
    let lab = Lab::new();
    let mut c = lab.client();
    let input = validate(ALL_CAPABILITIES, c.guid, 1, &[0x0202, 0x0210, 0x0300, 0x0302, 0x0311]);
    let sent =
        c.send_all(&[want("file").req(), ioctl(FileId::RELATED, fsctl::VALIDATE_NEGOTIATE_INFO, &input, 24).related()]);
    assert!(sent.into_iter().all(|id| c.poll(id).is_none()) && c.is_closed());
}
