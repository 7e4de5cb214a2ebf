//! NEGOTIATE: dialects, capabilities, contexts, the multi-protocol negotiate.

use crate::client::*;
use arden_wire::smb2::negotiate::{capability, context};

/// The SMB 1 request that offers these dialects.
fn smb1(dialects: &[&str]) -> Vec<u8> {
    let mut strings = Vec::new();
    for d in dialects {
        strings.put_u8(2);
        strings.extend_from_slice(d.as_bytes());
        strings.put_u8(0);
    }
    let mut m = vec![0xFF, b'S', b'M', b'B', 0x72];
    m.put_zeros(27);
    m.put_u8(0);
    m.put_u16(strings.len() as u16);
    m.extend_from_slice(&strings);
    m
}

fn answer(c: &mut Client) -> Negotiated {
    let reply = c.inbox.pop_front().expect("an answer");
    assert_eq!(reply.status(), NtStatus::SUCCESS);
    Negotiated::parse(&reply)
}

/// `BVT_Negotiate_Compatible_Wildcard`
#[test]
fn bvt_negotiate_compatible_wildcard() {
    let lab = Lab::new();
    let mut c = lab.connect();
    c.send_bytes(smb1(&["SMB 2.002", "SMB 2.???"]));
    let n = answer(&mut c);
    assert_eq!(n.dialect, 0x02FF);
    c.next_id = 1;
    let n = c.negotiate(&Offer::up_to(Dialect::Smb311));
    assert_eq!(n.dialect, 0x0311);
    c.logon(&logon(USER));
    c.connect(SHARE);
}

/// [MS-SMB2] 3.2.5.2: after the wildcard the client goes on with MessageId 1, and may ask for no credits; 3.3.1.2: it has one
/// all the same.
#[test]
fn a_client_that_asks_for_no_credits_goes_on_after_the_wildcard() {
    for first in [0, 1] {
        let lab = Lab::new();
        let mut c = lab.connect();
        c.send_bytes(smb1(&["SMB 2.002", "SMB 2.???"]));
        assert_eq!(answer(&mut c).dialect, 0x02FF);
        c.next_id = first;
        let reply = c.call(&Offer::up_to(Dialect::Smb302).req(7).credits(0));
        assert!(first == 0 || reply.ok().header.credits >= 1);
        c.next_id = first + 1;
        let mut next = Req::empty(Command::Echo).credits(0);
        next.sign = Some(false);
        let _ = c.call(&next);
        assert!(!c.is_closed(), "a request is answered, and not hung up on");
    }
}

/// `BVT_Negotiate_Compatible_2002`
#[test]
fn bvt_negotiate_compatible_2002() {
    let lab = Lab::new();
    let mut c = lab.connect();
    c.send_bytes(smb1(&["SMB 2.002"]));
    let n = answer(&mut c);
    assert_eq!(n.dialect, 0x0202);
    assert_eq!(n.capabilities & !capability::DFS, 0);
    assert_eq!((n.max_transact, n.max_read, n.max_write), (65536, 65536, 65536));
    c.next_id = 1;
    c.logon(&logon(USER));
    c.connect(SHARE);
}

#[test]
fn smb_1_alone_ends_the_connection() {
    let lab = Lab::new();
    let mut c = lab.connect();
    c.send_bytes(smb1(&["NT LM 0.12"]));
    assert!(c.is_closed());
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb210));
    c.send_bytes(smb1(&["SMB 2.???"]));
    assert!(c.is_closed());
}

/// `BVT_Negotiate_SigningEnabled`
#[test]
fn bvt_negotiate_signing_enabled() {
    let lab = Lab::new();
    let n = lab.connect().negotiate(&Offer { mode: 2, ..Offer::up_to(Dialect::Smb302) });
    assert_eq!(n.mode & 1, 1);
    let lab = Lab::with(|s| s.signing_required = false);
    let n = lab.connect().negotiate(&Offer { mode: 1, ..Offer::up_to(Dialect::Smb302) });
    assert_eq!(n.mode, 1);
}

/// [MS-SMB2] 3.3.5.4: these are told to clients that name them.
#[test]
fn capabilities_that_a_client_does_not_know_are_not_named() {
    let asked = capability::MULTI_CHANNEL | capability::DIRECTORY_LEASING | capability::PERSISTENT_HANDLES;
    for dialect in [Dialect::Smb300, Dialect::Smb302, Dialect::Smb311] {
        for some in [0, capability::MULTI_CHANNEL, capability::DIRECTORY_LEASING, asked] {
            let offer = Offer { capabilities: some, ..Offer::up_to(dialect) };
            assert_eq!(Lab::new().connect().negotiate(&offer).capabilities & asked, some);
        }
    }
}

/// What the server may say it can, by dialect.
fn check_dialect(dialect: Dialect) {
    let lab = Lab::new();
    let n = lab.connect().negotiate(&Offer::up_to(dialect));
    assert_eq!(n.dialect, dialect as u16);
    let mut allowed = capability::DFS;
    if dialect >= Dialect::Smb210 {
        allowed |= capability::LEASING | capability::LARGE_MTU;
    }
    if dialect.is_smb3() {
        allowed |= capability::MULTI_CHANNEL
            | capability::PERSISTENT_HANDLES
            | capability::DIRECTORY_LEASING
            | capability::ENCRYPTION;
    }
    assert_eq!(n.capabilities & !allowed, 0);
    let has_encryption = n.capabilities & capability::ENCRYPTION != 0;
    assert_eq!(has_encryption, matches!(dialect, Dialect::Smb300 | Dialect::Smb302));
    let large = dialect >= Dialect::Smb210;
    assert_eq!(n.capabilities & capability::LARGE_MTU != 0, large);
    assert_eq!(n.max_read, if large { 8 << 20 } else { 65536 });
    assert_eq!(n.guid, lab.server.trees.config.guid);
}

/// `BVT_Negotiate_SMB2002`
#[test]
fn bvt_negotiate_smb2002() {
    check_dialect(Dialect::Smb202);
}
/// `BVT_Negotiate_SMB21`
#[test]
fn bvt_negotiate_smb21() {
    check_dialect(Dialect::Smb210);
}
/// `BVT_Negotiate_SMB30`, `BVT_SMBDialect`
#[test]
fn bvt_negotiate_smb30() {
    check_dialect(Dialect::Smb300);
}
/// `BVT_Negotiate_SMB302`
#[test]
fn bvt_negotiate_smb302() {
    check_dialect(Dialect::Smb302);
}
/// `BVT_Negotiate_SMB311`
#[test]
fn bvt_negotiate_smb311() {
    check_dialect(Dialect::Smb311);
    let n = with_contexts(&[preauth_context(&[1]), encryption_context(&[2, 1])]).unwrap();
    let preauth = n.context(context::PREAUTH_INTEGRITY).unwrap();
    assert_eq!(preauth[..6], [1, 0, 32, 0, 1, 0], "one hash, SHA-512, and a salt");
    assert_eq!(preauth.len(), 38);
    assert_eq!(n.chosen(context::ENCRYPTION), Some(2));
}

fn with_contexts(contexts: &[(u16, Vec<u8>)]) -> Result<Negotiated, NtStatus> {
    let lab = Lab::new();
    let n = lab.connect().try_negotiate(&Offer::up_to(Dialect::Smb311).contexts(contexts))?;
    assert_eq!(n.dialect, 0x0311);
    let hashes = n.contexts.iter().filter(|(k, _)| *k == context::PREAUTH_INTEGRITY).count();
    assert_eq!(hashes, 1);
    Ok(n)
}

/// `BVT_Negotiate_SMB311_Preauthentication`
#[test]
fn bvt_negotiate_smb311_preauthentication() {
    let n = with_contexts(&[preauth_context(&[1])]).unwrap();
    assert_eq!(n.context(context::ENCRYPTION), None);
    assert_eq!(n.capabilities & capability::ENCRYPTION, 0);
}

fn chosen_cipher(offered: &[u16]) -> Option<u16> {
    with_contexts(&[preauth_context(&[1]), encryption_context(offered)]).unwrap().chosen(context::ENCRYPTION)
}

/// `BVT_Negotiate_SMB311_Preauthentication_Encryption_CCM`
#[test]
fn bvt_negotiate_smb311_preauthentication_encryption_ccm() {
    assert!([1, 2].contains(&chosen_cipher(&[1, 2]).unwrap()));
    assert_eq!(chosen_cipher(&[1]), Some(1));
}
/// `BVT_Negotiate_SMB311_Preauthentication_Encryption_AES_256_CCM`
#[test]
fn bvt_negotiate_smb311_preauthentication_encryption_aes_256_ccm() {
    assert!([3, 4].contains(&chosen_cipher(&[3, 4]).unwrap()));
    assert_eq!(chosen_cipher(&[3]), Some(3));
}
/// `BVT_Negotiate_SMB311_Preauthentication_Encryption_GCM`
#[test]
fn bvt_negotiate_smb311_preauthentication_encryption_gcm() {
    assert!([1, 2].contains(&chosen_cipher(&[2, 1]).unwrap()));
    assert_eq!(chosen_cipher(&[2]), Some(2));
}
/// `BVT_Negotiate_SMB311_Preauthentication_Encryption_AES_256_GCM`
#[test]
fn bvt_negotiate_smb311_preauthentication_encryption_aes_256_gcm() {
    assert!([3, 4].contains(&chosen_cipher(&[4, 3]).unwrap()));
    assert_eq!(chosen_cipher(&[4]), Some(4));
}

fn compression_context(ids: &[u16], flags: u32) -> (u16, Vec<u8>) {
    let mut data = Vec::new();
    data.put_u16(ids.len() as u16);
    data.put_u16(0);
    data.put_u32(flags);
    ids.iter().for_each(|i| data.put_u16(*i));
    (context::COMPRESSION, data)
}

/// `Negotiate_SMB311_WithAllContexts`
#[test]
fn negotiate_smb311_with_all_contexts() {
    let n = with_contexts(&[preauth_context(&[1]), encryption_context(&[2, 1]), compression_context(&[1, 2, 3], 1)])
        .unwrap();
    assert_eq!(n.chosen(context::ENCRYPTION), Some(2));
    // Without compression in the answer, the client sends nothing compressed.
    assert_eq!(n.context(context::COMPRESSION), None);
}

/// `Negotiate_SMB311_WithoutAnyContexts`
#[test]
fn negotiate_smb311_without_any_contexts() {
    assert_eq!(with_contexts(&[]).unwrap_err(), NtStatus::INVALID_PARAMETER);
}
/// `Negotiate_SMB311_WithEncryptionContextWithoutIntegrityContext`
#[test]
fn negotiate_smb311_with_encryption_context_without_integrity_context() {
    assert_eq!(with_contexts(&[encryption_context(&[2, 1])]).unwrap_err(), NtStatus::INVALID_PARAMETER);
}
/// `Negotiate_SMB311_WithCompressionContextWithoutIntegrityContext`
#[test]
fn negotiate_smb311_with_compression_context_without_integrity_context() {
    assert_eq!(with_contexts(&[compression_context(&[1], 0)]).unwrap_err(), NtStatus::INVALID_PARAMETER);
}
/// `Negotiate_SMB311_WithEncryptionAndCompressionContextsWithoutIntegrityContext`
#[test]
fn negotiate_smb311_with_encryption_and_compression_contexts_without_integrity_context() {
    let contexts = [encryption_context(&[2, 1]), compression_context(&[1], 0)];
    assert_eq!(with_contexts(&contexts).unwrap_err(), NtStatus::INVALID_PARAMETER);
}

/// `Negotiate_SMB311_InvalidHashAlgorithm`
#[test]
fn negotiate_smb311_invalid_hash_algorithm() {
    let contexts = [preauth_context(&[0xFFFF]), encryption_context(&[2, 1])];
    assert_eq!(with_contexts(&contexts).unwrap_err(), NtStatus::SMB_NO_PREAUTH_INTEGRITY_HASH_OVERLAP);
}

/// `Negotiate_SMB311_InvalidCipher`
#[test]
fn negotiate_smb311_invalid_cipher() {
    assert_eq!(chosen_cipher(&[0xFFFF]), Some(0));
}

/// `Negotiate_SMB311_SigningCapability`
#[test]
fn negotiate_smb311_signing_capability() {
    for id in [0, 1, 2] {
        let n = with_contexts(&[preauth_context(&[1]), signing_context(&[id])]).unwrap();
        assert_eq!(n.chosen(context::SIGNING), Some(id));
    }
    let n = with_contexts(&[preauth_context(&[1]), signing_context(&[9])]).unwrap();
    assert_eq!(n.context(context::SIGNING), None, "nothing in common: AES-CMAC without a word");
    let empty = [preauth_context(&[1]), signing_context(&[])];
    assert_eq!(with_contexts(&empty).unwrap_err(), NtStatus::INVALID_PARAMETER);
}

/// `Negotiate_SMB311_Compression_InvalidSmbDialect`
#[test]
fn negotiate_smb311_compression_invalid_smb_dialect() {
    let lab = Lab::new();
    let offer = Offer::up_to(Dialect::Smb302).contexts(&[compression_context(&[1], 0)]);
    let n = lab.connect().negotiate(&offer);
    assert_eq!(n.dialect, 0x0302);
}

/// `Negotiate_SMB311_Compression_CompressionAlgorithmNotSupported`,
/// `Negotiate_SMB311_Compression_ChainedCompressionNotSupported`
#[test]
fn negotiate_smb311_compression_algorithm_not_supported() {
    for flags in [0, 1] {
        let n = with_contexts(&[preauth_context(&[1]), compression_context(&[0xFF], flags)]).unwrap();
        assert_eq!(n.context(context::COMPRESSION), None);
    }
}

/// `Negotiate_SMB311_ContextID_NetName`
#[test]
fn negotiate_smb311_context_id_net_name() {
    let mut name = Vec::new();
    name.put_utf16("somebody-else");
    let n = with_contexts(&[preauth_context(&[1]), encryption_context(&[2]), (context::NETNAME, name)]).unwrap();
    assert_eq!(n.context(context::NETNAME), None);
}

#[test]
fn a_context_that_comes_twice_is_refused() {
    for again in [preauth_context(&[1]), encryption_context(&[2]), signing_context(&[1])] {
        let contexts = [preauth_context(&[1]), encryption_context(&[2]), signing_context(&[1]), again];
        assert_eq!(with_contexts(&contexts).unwrap_err(), NtStatus::INVALID_PARAMETER);
    }
}

#[test]
fn contexts_that_nobody_knows_are_skipped() {
    with_contexts(&[(0x4711, vec![1, 2, 3]), preauth_context(&[1]), (0x4712, vec![])]).unwrap();
}

#[test]
fn no_dialect_and_no_common_dialect() {
    let lab = Lab::new();
    assert_eq!(lab.connect().try_negotiate(&Offer::of(&[])).unwrap_err(), NtStatus::INVALID_PARAMETER);
    assert_eq!(lab.connect().try_negotiate(&Offer::of(&[0x0999])).unwrap_err(), NtStatus::NOT_SUPPORTED);
}

#[test]
fn a_second_negotiate_ends_the_connection() {
    let lab = Lab::new();
    let mut c = lab.connect();
    c.negotiate(&Offer::up_to(Dialect::Smb311));
    let again = Offer::up_to(Dialect::Smb311).req(1);
    c.send(&again);
    assert!(c.is_closed());
}
