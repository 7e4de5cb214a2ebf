//! The access check: named cases, and a naive oracle that asks for one bit at a time.

use super::Rng;
use crate::*;
use arden_wire::{access::*, dtyp::*};

fn sid(text: &str) -> Sid {
    text.parse().unwrap()
}

fn user() -> Token {
    Token {
        user: sid("S-1-5-21-1-2-3-1000"),
        user_name: "u".into(),
        groups: vec![sid("S-1-5-21-1-2-3-513"), well_known::EVERYONE.clone()],
        privileges: 0,
    }
}

fn with(owner: &Sid, aces: Vec<Ace>) -> SecurityDescriptor {
    SecurityDescriptor::with_dacl(owner, &well_known::BUILTIN_USERS, Acl::new(aces))
}

fn other() -> Sid {
    sid("S-1-5-21-1-2-3-2000")
}

#[test]
fn null_dacl_grants_all_and_an_empty_one_nothing() {
    let who = user();
    let null = SecurityDescriptor { control: SE_DACL_PRESENT, owner: Some(other()), ..Default::default() };
    assert_eq!(access_check(&null, &who, FILE_ALL_ACCESS), Ok(FILE_ALL_ACCESS));
    assert_eq!(access_check(&null, &who, MAXIMUM_ALLOWED), Ok(FILE_ALL_ACCESS));
    let empty = with(&other(), vec![]);
    assert_eq!(access_check(&empty, &who, FILE_READ_DATA), Err(AccessError::AccessDenied));
    assert_eq!(access_check(&empty, &who, MAXIMUM_ALLOWED), Err(AccessError::AccessDenied));
    assert_eq!(access_check(&empty, &who, 0), Ok(0));
}

#[test]
fn the_owner_may_always_repair_the_acl() {
    let who = user();
    let sd = with(&who.user, vec![Ace::deny(&well_known::EVERYONE, FILE_ALL_ACCESS, 0)]);
    assert_eq!(access_check(&sd, &who, READ_CONTROL | WRITE_DAC), Ok(READ_CONTROL | WRITE_DAC));
    assert_eq!(access_check(&sd, &who, FILE_READ_DATA), Err(AccessError::AccessDenied));
    assert_eq!(maximum_access(&sd, &who), READ_CONTROL | WRITE_DAC);
}

#[test]
fn owner_rights_replace_the_implicit_ones_and_add_to_the_owners_aces() {
    let who = user();
    let sd = with(
        &who.user,
        vec![Ace::allow(&who.user, FILE_GENERIC_READ, 0), Ace::allow(&well_known::OWNER_RIGHTS, FILE_WRITE_DATA, 0)],
    );
    assert_eq!(maximum_access(&sd, &who), FILE_GENERIC_READ | FILE_WRITE_DATA);
    let sd = with(
        &who.user,
        vec![Ace::deny(&well_known::OWNER_RIGHTS, FILE_READ_DATA, 0), Ace::allow(&who.user, FILE_GENERIC_READ, 0)],
    );
    assert_eq!(maximum_access(&sd, &who), FILE_GENERIC_READ & !FILE_READ_DATA);
    // An inherit-only ACE does not control access to its own object.
    let sd = with(&who.user, vec![Ace::allow(&well_known::OWNER_RIGHTS, FILE_READ_DATA, INHERIT_ONLY_ACE)]);
    assert_eq!(maximum_access(&sd, &who), READ_CONTROL | WRITE_DAC);
}

#[test]
fn a_later_deny_does_not_take_back_what_was_granted() {
    let who = user();
    let sd = with(
        &other(),
        vec![Ace::allow(&who.user, FILE_GENERIC_READ | FILE_WRITE_DATA, 0), Ace::deny(&who.user, FILE_WRITE_DATA, 0)],
    );
    assert_eq!(access_check(&sd, &who, FILE_WRITE_DATA), Ok(FILE_WRITE_DATA));
    assert_eq!(maximum_access(&sd, &who), FILE_GENERIC_READ | FILE_WRITE_DATA);
}

#[test]
fn maximum_allowed_still_needs_the_other_bits() {
    let who = user();
    let sd = with(&other(), vec![Ace::allow(&who.user, FILE_READ_DATA, 0)]);
    assert_eq!(access_check(&sd, &who, MAXIMUM_ALLOWED), Ok(FILE_READ_DATA));
    assert_eq!(access_check(&sd, &who, MAXIMUM_ALLOWED | FILE_READ_DATA), Ok(FILE_READ_DATA));
    assert_eq!(access_check(&sd, &who, MAXIMUM_ALLOWED | FILE_WRITE_DATA), Err(AccessError::AccessDenied));
}

#[test]
fn privileges() {
    let sd = with(&other(), vec![]);
    let mut who = user();
    assert_eq!(access_check(&sd, &who, ACCESS_SYSTEM_SECURITY), Err(AccessError::PrivilegeNotHeld));
    who.privileges = privilege::ADMINISTRATOR;
    assert_eq!(access_check(&sd, &who, ACCESS_SYSTEM_SECURITY), Ok(ACCESS_SYSTEM_SECURITY));
    assert_eq!(access_check(&sd, &who, WRITE_OWNER), Ok(WRITE_OWNER));
    // Without the intent to back up, the privileges to read and write everything do not count.
    assert_eq!(access_check(&sd, &who, FILE_GENERIC_READ), Err(AccessError::AccessDenied));
    assert_eq!(access_check_backup(&sd, &who, FILE_GENERIC_READ), Ok(FILE_GENERIC_READ));
    assert_eq!(access_check_backup(&sd, &who, FILE_GENERIC_WRITE | DELETE), Ok(FILE_GENERIC_WRITE | DELETE));
    who.privileges = privilege::BACKUP;
    assert_eq!(access_check_backup(&sd, &who, DELETE), Err(AccessError::AccessDenied));
    // WRITE_OWNER by privilege is part of the maximum only when it is desired.
    who.privileges = privilege::TAKE_OWNERSHIP;
    let sd = with(&other(), vec![Ace::allow(&who.user, FILE_READ_DATA, 0)]);
    assert_eq!(access_check(&sd, &who, MAXIMUM_ALLOWED), Ok(FILE_READ_DATA));
    assert_eq!(access_check(&sd, &who, MAXIMUM_ALLOWED | WRITE_OWNER), Ok(FILE_READ_DATA | WRITE_OWNER));
}

#[test]
fn conditions_that_are_not_evaluated_only_deny() {
    let who = user();
    let conditional = |kind| Ace { kind, flags: 0, mask: 1, sid: who.user.clone(), extra: b"artx".to_vec() };
    let allow_all = Ace::allow(&who.user, FILE_ALL_ACCESS, 0);
    let sd = with(&other(), vec![conditional(ACCESS_ALLOWED_CALLBACK_ACE_TYPE)]);
    assert_eq!(access_check(&sd, &who, 1), Err(AccessError::AccessDenied));
    let sd = with(&other(), vec![conditional(ACCESS_DENIED_CALLBACK_ACE_TYPE), allow_all]);
    assert_eq!(access_check(&sd, &who, 1), Err(AccessError::AccessDenied));
    assert_eq!(access_check(&sd, &who, 2), Ok(2));
}

/// [MS-DTYP] 2.5.3.2 as written, for one request without MAXIMUM_ALLOWED.
fn oracle(sd: &SecurityDescriptor, who: &Token, desired: u32) -> bool {
    let mut remaining = desired;
    if remaining & ACCESS_SYSTEM_SECURITY != 0 {
        if who.privileges & privilege::SECURITY == 0 {
            return false;
        }
        remaining &= !ACCESS_SYSTEM_SECURITY;
    }
    if who.privileges & privilege::TAKE_OWNERSHIP != 0 {
        remaining &= !WRITE_OWNER;
    }
    let Some(dacl) = &sd.dacl else { return true };
    let in_token = |s: &Sid| who.user == *s || who.groups.iter().any(|g| g == s);
    let owner = in_token(sd.owner.as_ref().unwrap());
    let effective: Vec<&Ace> = dacl.aces.iter().filter(|a| a.flags & INHERIT_ONLY_ACE == 0).collect();
    if owner && !effective.iter().any(|a| a.sid == *well_known::OWNER_RIGHTS) {
        remaining &= !(READ_CONTROL | WRITE_DAC);
    }
    for ace in effective {
        if !(in_token(&ace.sid) || owner && ace.sid == *well_known::OWNER_RIGHTS) {
            continue;
        }
        match ace.kind {
            0 => remaining &= !ace.mask,
            _ if remaining & ace.mask != 0 => return false,
            _ => {}
        }
    }
    remaining == 0
}

#[test]
fn agrees_with_the_oracle() {
    let who = user();
    let people = [
        who.user.clone(),
        who.groups[0].clone(),
        other(),
        well_known::EVERYONE.clone(),
        well_known::OWNER_RIGHTS.clone(),
    ];
    let mut rng = Rng(0x5eed);
    for round in 0..20_000 {
        let aces = (0..rng.below(5))
            .map(|_| Ace {
                kind: rng.below(2) as u8,
                flags: if rng.below(5) == 0 { INHERIT_ONLY_ACE } else { 0 },
                mask: rng.next() as u32 & FILE_ALL_ACCESS,
                sid: people[rng.below(5) as usize].clone(),
                extra: vec![],
            })
            .collect();
        let sd = with(&people[rng.below(3) as usize], aces);
        let mut who = who.clone();
        who.privileges = rng.below(16) as u32;
        let maximum = maximum_access(&sd, &who);
        for bit in (0..25).map(|b| 1u32 << b).filter(|b| b & (FILE_ALL_ACCESS | ACCESS_SYSTEM_SECURITY) != 0) {
            let expected = oracle(&sd, &who, bit);
            assert_eq!(access_check(&sd, &who, bit).is_ok(), expected, "round {round} bit {bit:#x} {sd:?}");
            if bit & (ACCESS_SYSTEM_SECURITY | WRITE_OWNER) == 0 {
                assert_eq!(maximum & bit != 0, expected, "round {round} bit {bit:#x}");
            }
        }
        let desired = rng.next() as u32 & rng.next() as u32 & rng.next() as u32 & FILE_ALL_ACCESS;
        assert_eq!(access_check(&sd, &who, desired).is_ok(), oracle(&sd, &who, desired), "round {round} {sd:?}");
    }
}
