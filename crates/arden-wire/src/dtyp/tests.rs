//! Tests of the descriptor codec: round trips, fixed bytes, hostile input.

use super::*;

fn sample() -> SecurityDescriptor {
    let user: Sid = "S-1-5-21-1-2-3-1000".parse().unwrap();
    SecurityDescriptor {
        control: SE_DACL_PRESENT | SE_SACL_PRESENT | SE_DACL_PROTECTED,
        owner: Some(user.clone()),
        group: Some(well_known::BUILTIN_USERS.clone()),
        sacl: Some(Acl::new(vec![
            Ace {
                kind: SYSTEM_AUDIT_ACE_TYPE,
                flags: FAILED_ACCESS_ACE_FLAG,
                mask: 2,
                sid: well_known::EVERYONE.clone(),
                extra: vec![],
            },
            Ace {
                kind: SYSTEM_MANDATORY_LABEL_ACE_TYPE,
                flags: 0,
                mask: 1,
                sid: well_known::HIGH_INTEGRITY.clone(),
                extra: vec![],
            },
        ])),
        dacl: Some(Acl::new(vec![
            Ace::deny(&well_known::ANONYMOUS, 0x1f01ff, 0),
            Ace::allow(&user, 0x1f01ff, OBJECT_INHERIT_ACE | CONTAINER_INHERIT_ACE),
            Ace {
                kind: ACCESS_ALLOWED_OBJECT_ACE_TYPE,
                flags: 0,
                mask: 7,
                sid: Sid::new(0, &[]),
                extra: vec![1, 0, 0, 0, 9, 9, 9, 9],
            },
            Ace {
                kind: ACCESS_ALLOWED_CALLBACK_ACE_TYPE,
                flags: 0,
                mask: 7,
                sid: user.clone(),
                extra: b"artx".to_vec(),
            },
        ])),
    }
}

#[test]
fn descriptor_round_trip() {
    let sd = sample();
    assert_eq!(SecurityDescriptor::parse(&sd.encode()), Ok(sd));
    let null = SecurityDescriptor { control: SE_DACL_PRESENT, ..Default::default() };
    assert_eq!(SecurityDescriptor::parse(&null.encode()), Ok(null));
    let empty = SecurityDescriptor { dacl: Some(Acl::new(vec![])), control: SE_DACL_PRESENT, ..Default::default() };
    assert_eq!(SecurityDescriptor::parse(&empty.encode()), Ok(empty));
}

#[test]
fn fixed_bytes() {
    let sd = SecurityDescriptor::with_dacl(
        &well_known::BUILTIN_ADMINISTRATORS,
        &well_known::SYSTEM,
        Acl::new(vec![Ace::allow(&well_known::EVERYONE, 0x1f01ff, 3)]),
    );
    let bytes: Vec<u8> = [
        &[1, 0, 4, 0x80, 20, 0, 0, 0, 36, 0, 0, 0, 0, 0, 0, 0, 48, 0, 0, 0][..],
        &[1, 2, 0, 0, 0, 0, 0, 5, 32, 0, 0, 0, 32, 2, 0, 0],
        &[1, 1, 0, 0, 0, 0, 0, 5, 18, 0, 0, 0],
        &[2, 0, 28, 0, 1, 0, 0, 0, 0, 3, 20, 0, 0xff, 1, 0x1f, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
    ]
    .concat();
    assert_eq!(sd.encode(), bytes);
    assert_eq!(SecurityDescriptor::parse(&bytes), Ok(sd.clone()));
    assert_eq!(sd.to_sddl(), "O:BAG:SYD:(A;OICI;FA;;;WD)");
}

#[test]
fn selection_keeps_only_what_was_asked_for() {
    let sd = sample();
    let dacl = sd.select(DACL_SECURITY_INFORMATION);
    assert_eq!((dacl.owner.clone(), dacl.sacl.clone()), (None, None));
    assert_eq!(dacl.control, SE_DACL_PRESENT | SE_DACL_PROTECTED);
    let owner = sd.select(OWNER_SECURITY_INFORMATION);
    assert_eq!((owner.owner.clone(), owner.dacl.clone(), owner.control), (sd.owner.clone(), None, 0));
    let label = sd.select(LABEL_SECURITY_INFORMATION).sacl.unwrap();
    assert_eq!(label.aces.len(), 1);
    assert_eq!(label.aces[0].kind, SYSTEM_MANDATORY_LABEL_ACE_TYPE);
}

#[test]
fn sid_text() {
    for text in ["S-1-0", "S-1-1-0", "S-1-5-32-544", "S-1-5-21-4294967295-2-3-500", "S-1-0x0100000000AB-7"] {
        assert_eq!(text.parse::<Sid>().unwrap().to_string().to_uppercase(), text.to_uppercase());
    }
    for text in
        ["", "S", "S-1", "S-2-5", "S-1-5-", "S-1--5", "S-1-5-+3", "S-1-5-4294967296", "S-1-0x1000000000000", "S-1-5-x"]
    {
        assert!(text.parse::<Sid>().is_err(), "{text}");
    }
    let too_long = format!("S-1-5{}", "-1".repeat(16));
    assert!(too_long.parse::<Sid>().is_err());
    let sid: Sid = "S-1-5-21-1-2-3-500".parse().unwrap();
    let (domain, rid) = sid.split_rid().unwrap();
    assert_eq!((rid, sid.rid_in(&domain), domain.with_rid(500)), (500, Some(500), sid));
}

#[test]
fn every_truncation_and_bit_flip_is_survived() {
    let bytes = sample().encode();
    for end in 0..bytes.len() {
        let _ = SecurityDescriptor::parse(&bytes[..end]);
    }
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            if let Ok(sd) = SecurityDescriptor::parse(&changed) {
                // An accepted descriptor has one encoding only.
                assert_eq!(SecurityDescriptor::parse(&sd.encode()), Ok(sd));
            }
        }
    }
}

#[test]
fn an_acl_that_does_not_fit_grants_nothing() {
    let acl = Acl::new(vec![Ace::allow(&well_known::EVERYONE, 1, 0); 4000]);
    assert!(!acl.fits());
    let mut out = Vec::new();
    acl.put(&mut out);
    assert_eq!(Acl::parse(&out).unwrap().aces, vec![]);
}
