//! Inheritance: the table of [MS-DTYP] 2.5.3.4.4, and a naive oracle over generations.

use super::Rng;
use crate::*;
use arden_wire::{access::*, dtyp::*};

const OI: u8 = OBJECT_INHERIT_ACE;
const CI: u8 = CONTAINER_INHERIT_ACE;
const NP: u8 = NO_PROPAGATE_INHERIT_ACE;
const IO: u8 = INHERIT_ONLY_ACE;
const ID: u8 = INHERITED_ACE;

fn who() -> Token {
    Token {
        user: "S-1-5-21-1-2-3-1000".parse().unwrap(),
        user_name: "u".into(),
        groups: vec![well_known::EVERYONE.clone(), "S-1-5-21-1-2-3-513".parse().unwrap()],
        privileges: 0,
    }
}

fn parent(control: u16, aces: Vec<Ace>) -> SecurityDescriptor {
    let who = who();
    let mut sd = SecurityDescriptor::with_dacl(&who.user, who.primary_group(), Acl::new(aces));
    sd.control |= control;
    sd
}

fn child_aces(parent: &SecurityDescriptor, directory: bool) -> Vec<Ace> {
    new_descriptor(Some(parent), None, directory, &who()).dacl.unwrap().aces
}

#[test]
fn creator_owner_by_every_combination_of_flags() {
    let who = who();
    for flags in 0..16u8 {
        let sd = parent(0, vec![Ace::allow(&well_known::CREATOR_OWNER, FILE_WRITE_DATA, flags)]);
        let owner = |flags| Ace::allow(&who.user, FILE_WRITE_DATA, flags);
        let creator = |flags| Ace::allow(&well_known::CREATOR_OWNER, FILE_WRITE_DATA, flags);
        let file = if flags & OI != 0 { vec![owner(0)] } else { default_dacl(&who.user).aces };
        assert_eq!(child_aces(&sd, false), file, "file {flags:#x}");
        let below = flags & (OI | CI) | IO;
        let directory = match (flags & CI != 0, flags & OI != 0, flags & NP != 0) {
            (true, _, true) => vec![owner(0)],
            (true, _, false) => vec![owner(0), creator(below)],
            (false, true, false) => vec![creator(below)],
            _ => default_dacl(&who.user).aces,
        };
        assert_eq!(child_aces(&sd, true), directory, "directory {flags:#x}");
    }
}

#[test]
fn inherited_marks_appear_only_below_an_auto_inherited_acl() {
    for (control, mark) in [(0, 0), (SE_DACL_AUTO_INHERITED, ID)] {
        let sd = parent(control | SE_DACL_PROTECTED, vec![Ace::allow(&well_known::EVERYONE, 3, OI | CI)]);
        let child = new_descriptor(Some(&sd), None, true, &who());
        assert_eq!(child.dacl.unwrap().aces, vec![Ace::allow(&well_known::EVERYONE, 3, OI | CI | mark)]);
        assert_eq!(child.control, SE_DACL_PRESENT | control);
    }
}

#[test]
fn generic_rights_are_split_for_directories() {
    let sd = parent(0, vec![Ace::allow(&well_known::EVERYONE, GENERIC_ALL, OI | CI)]);
    assert_eq!(
        child_aces(&sd, true),
        vec![
            Ace::allow(&well_known::EVERYONE, FILE_ALL_ACCESS, 0),
            Ace::allow(&well_known::EVERYONE, GENERIC_ALL, OI | CI | IO),
        ]
    );
    assert_eq!(child_aces(&sd, false), vec![Ace::allow(&well_known::EVERYONE, FILE_ALL_ACCESS, 0)]);
}

#[test]
fn explicit_descriptors_come_before_inherited_aces_or_alone_when_protected() {
    let who = who();
    let sd = parent(SE_DACL_AUTO_INHERITED, vec![Ace::allow(&well_known::EVERYONE, 3, OI)]);
    let mut explicit = SecurityDescriptor {
        control: SE_DACL_PRESENT,
        dacl: Some(Acl::new(vec![
            Ace::deny(&well_known::ANONYMOUS, 1, 0),
            Ace::allow(&well_known::BUILTIN_USERS, 7, ID),
            Ace::allow(&well_known::CREATOR_GROUP, GENERIC_READ, 0),
        ])),
        ..Default::default()
    };
    let own = [
        Ace::deny(&well_known::ANONYMOUS, 1, 0),
        Ace::allow(&well_known::BUILTIN_USERS, 7, 0),
        Ace::allow(who.primary_group(), FILE_GENERIC_READ, 0),
    ];
    let got = new_descriptor(Some(&sd), Some(&explicit), false, &who);
    let expected = vec![own[0].clone(), own[2].clone(), Ace::allow(&well_known::EVERYONE, 3, ID)];
    assert_eq!(got.dacl.unwrap().aces, expected);
    assert_eq!(got.control, SE_DACL_PRESENT | SE_DACL_AUTO_INHERITED);
    assert_eq!(got.owner, Some(who.user.clone()));

    explicit.control |= SE_DACL_PROTECTED;
    let got = new_descriptor(Some(&sd), Some(&explicit), false, &who);
    assert_eq!(got.dacl.unwrap().aces, own.to_vec());
    assert_eq!(got.control, SE_DACL_PRESENT | SE_DACL_PROTECTED);

    // The NULL DACL stays NULL.
    let null = SecurityDescriptor { control: SE_DACL_PRESENT, ..Default::default() };
    let got = new_descriptor(Some(&sd), Some(&null), false, &who);
    assert_eq!((got.dacl, got.control), (None, SE_DACL_PRESENT));
}

#[test]
fn audit_aces_are_inherited_like_the_others() {
    let mut sd = parent(0, vec![]);
    let audit = |flags| Ace { kind: SYSTEM_AUDIT_ACE_TYPE, ..Ace::allow(&well_known::EVERYONE, 2, flags) };
    sd.sacl = Some(Acl::new(vec![audit(FAILED_ACCESS_ACE_FLAG | OI)]));
    sd.control |= SE_SACL_PRESENT | SE_SACL_AUTO_INHERITED;
    let child = new_descriptor(Some(&sd), None, false, &who());
    assert_eq!(child.sacl.unwrap().aces, vec![audit(FAILED_ACCESS_ACE_FLAG | ID)]);
    assert_eq!(child.control, SE_DACL_PRESENT | SE_SACL_PRESENT | SE_SACL_AUTO_INHERITED);
}

#[test]
fn the_request_bit_decides_whether_auto_inherited_is_kept() {
    let who = who();
    let current = parent(0, vec![]);
    for given in 0..8u16 {
        let mut new = parent(0, vec![Ace::allow(&who.user, GENERIC_READ, ID)]);
        let (ai, req, prot) = (given & 1 != 0, given & 2 != 0, given & 4 != 0);
        let set = |on: bool, bit: u16| if on { bit } else { 0 };
        new.control |= set(ai, SE_DACL_AUTO_INHERITED) | set(req, SE_DACL_AUTO_INHERIT_REQ);
        new.control |= set(prot, SE_DACL_PROTECTED);
        let got = change_descriptor(&current, &new, DACL_SECURITY_INFORMATION, &who).unwrap();
        let expected = SE_DACL_PRESENT | set(ai && req, SE_DACL_AUTO_INHERITED) | set(prot, SE_DACL_PROTECTED);
        assert_eq!(got.control, expected, "{given}");
        assert_eq!(got.dacl.unwrap().aces, vec![Ace::allow(&who.user, FILE_GENERIC_READ, ID)]);
        // A later change of the owner alone does not change the bits.
        let base = change_descriptor(&current, &new, DACL_SECURITY_INFORMATION, &who).unwrap();
        let chowned = change_descriptor(&base, &new, OWNER_SECURITY_INFORMATION, &who).unwrap();
        assert_eq!(chowned.control, expected);
    }
}

#[test]
fn owners_may_not_be_anybody() {
    let mut who = who();
    let current = parent(0, vec![]);
    let to = |sid: &Sid| SecurityDescriptor { owner: Some(sid.clone()), ..Default::default() };
    let set = |sid: &Sid, who: &Token| change_descriptor(&current, &to(sid), OWNER_SECURITY_INFORMATION, who);
    assert_eq!(set(&well_known::ANONYMOUS, &who), Err(AccessError::InvalidOwner));
    assert_eq!(set(&well_known::BUILTIN_ADMINISTRATORS, &who), Err(AccessError::InvalidOwner));
    assert!(set(&who.user.clone(), &who).is_ok());
    who.groups.push(well_known::BUILTIN_ADMINISTRATORS.clone());
    assert!(set(&well_known::BUILTIN_ADMINISTRATORS, &who).is_ok());
    who.privileges = privilege::RESTORE;
    assert!(set(&well_known::ANONYMOUS, &who).is_ok());
    let nobody = change_descriptor(&current, &SecurityDescriptor::default(), OWNER_SECURITY_INFORMATION, &who);
    assert_eq!(nobody, Err(AccessError::InvalidOwner));
}

#[test]
fn a_label_and_the_audit_aces_are_set_apart() {
    let who = who();
    let audit = Ace { kind: SYSTEM_AUDIT_ACE_TYPE, ..Ace::allow(&well_known::EVERYONE, 2, FAILED_ACCESS_ACE_FLAG) };
    let label =
        |mask| Ace { kind: SYSTEM_MANDATORY_LABEL_ACE_TYPE, ..Ace::allow(&well_known::HIGH_INTEGRITY, mask, 0) };
    let mut current = parent(0, vec![]);
    current.sacl = Some(Acl::new(vec![audit.clone(), label(1)]));
    let new = SecurityDescriptor { sacl: Some(Acl::new(vec![label(2)])), ..Default::default() };
    let got = change_descriptor(&current, &new, LABEL_SECURITY_INFORMATION, &who).unwrap();
    assert_eq!(got.sacl.unwrap().aces, vec![label(2), audit.clone()]);
    let got = change_descriptor(&current, &new, SACL_SECURITY_INFORMATION, &who).unwrap();
    assert_eq!(got.sacl.unwrap().aces, vec![label(1)]);
}

/// The effect of a directory's ACEs below it, computed naively: the (sid, mask) pairs that are effective on an object
/// reached through `path` (directories, then the object itself).
fn oracle_effective(aces: &[Ace], path: &[bool]) -> Vec<(Sid, u32)> {
    let mut out = Vec::new();
    for ace in aces {
        let depth = path.len();
        let carries = |i: usize| i == 0 || ace.flags & NP == 0;
        // The last object inherits an ACE when all directories before it pass the ACE on.
        let handed_on = (0..depth).all(carries) && (depth == 1 || ace.flags & NP == 0);
        let wanted = if path[depth - 1] { CI } else { OI };
        let is_dir_only = path[..depth - 1].iter().all(|d| *d);
        if handed_on && is_dir_only && ace.flags & wanted != 0 {
            let sid = if ace.sid == *well_known::CREATOR_OWNER { who().user } else { ace.sid.clone() };
            out.push((sid, map_generic(ace.mask)));
        }
    }
    out
}

#[test]
fn agrees_with_the_oracle_over_three_generations() {
    let people = [well_known::EVERYONE.clone(), well_known::CREATOR_OWNER.clone(), well_known::BUILTIN_USERS.clone()];
    let mut rng = Rng(0xACE);
    for round in 0..5_000 {
        let aces: Vec<Ace> = (0..1 + rng.below(4))
            .map(|_| {
                let mask = if rng.below(3) == 0 { GENERIC_READ } else { 1 << rng.below(9) };
                Ace::allow(&people[rng.below(3) as usize], mask, rng.below(16) as u8)
            })
            .collect();
        let path: Vec<bool> = match rng.below(5) {
            0 => vec![false],
            1 => vec![true],
            2 => vec![true, false],
            3 => vec![true, true],
            _ => vec![true, true, false],
        };
        let mut sd = parent(0, aces.clone());
        let mut defaulted = false;
        for &directory in &path {
            let next = new_descriptor(Some(&sd), None, directory, &who());
            defaulted = next.dacl == Some(default_dacl(&who().user));
            sd = next;
            if defaulted {
                break;
            }
        }
        let mut effective: Vec<(Sid, u32)> =
            sd.dacl.unwrap().aces.into_iter().filter(|a| !a.is_inherit_only()).map(|a| (a.sid, a.mask)).collect();
        let mut expected = oracle_effective(&aces, &path);
        if defaulted {
            effective.clear();
        }
        effective.sort();
        expected.sort();
        assert_eq!(effective, expected, "round {round} path {path:?} aces {aces:?}");
    }
}

fn allowed(sd: &SecurityDescriptor, who: &Token) -> Result<(), AccessError> {
    creator_descriptor(sd, who).map(|same| assert_eq!(same, *sd))
}

#[test]
fn a_creator_gives_only_owners_that_are_its_own() {
    let owned_by = |owner: &Sid| SecurityDescriptor { owner: Some(owner.clone()), ..Default::default() };
    let plain = who();
    let member = Token { groups: vec![well_known::BUILTIN_ADMINISTRATORS.clone()], ..who() };
    let restores = Token { privileges: privilege::RESTORE, ..who() };
    let group = plain.groups[0].clone();
    let anybody = [&*well_known::SYSTEM, &well_known::EVERYONE, &well_known::CREATOR_OWNER, &group];
    for owner in anybody {
        assert_eq!(allowed(&owned_by(owner), &plain), Err(AccessError::InvalidOwner), "{owner}");
        assert_eq!(allowed(&owned_by(owner), &restores), Ok(()), "{owner}");
    }
    assert_eq!(allowed(&owned_by(&plain.user), &plain), Ok(()));
    let administrators = owned_by(&well_known::BUILTIN_ADMINISTRATORS);
    assert_eq!(allowed(&administrators, &plain), Err(AccessError::InvalidOwner));
    assert_eq!(allowed(&administrators, &member), Ok(()));
    // Any group may be named, because a group gives no access by itself.
    let grouped = SecurityDescriptor { group: Some(well_known::SYSTEM.clone()), ..Default::default() };
    assert_eq!(allowed(&grouped, &plain), Ok(()));
}

#[test]
fn a_creator_gives_a_sacl_only_with_the_privilege() {
    let sd = SecurityDescriptor { control: SE_SACL_PRESENT, sacl: Some(Acl::new(vec![])), ..Default::default() };
    let holds = Token { privileges: privilege::SECURITY, ..who() };
    assert_eq!(allowed(&sd, &who()), Err(AccessError::PrivilegeNotHeld));
    assert_eq!(allowed(&sd, &holds), Ok(()));
    // A SACL that is present without an ACL counts as none, and the parent's is inherited.
    let none = SecurityDescriptor { control: SE_SACL_PRESENT, ..Default::default() };
    assert_eq!(creator_descriptor(&none, &who()), Ok(SecurityDescriptor::default()));
    assert_eq!(creator_descriptor(&none, &holds), Ok(none));
}
