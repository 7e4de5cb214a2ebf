//! Owners and SACLs that a client sets, [MS-DTYP] 2.5.3.4 and [MS-FSA] 2.1.5.1.1 and 2.1.5.17.

use arden_wire::dtyp::{
    Ace, Acl, OWNER_SECURITY_INFORMATION, SE_DACL_PRESENT, SE_SACL_PRESENT, SYSTEM_AUDIT_ACE_TYPE,
    SYSTEM_MANDATORY_LABEL_ACE_TYPE, SecurityDescriptor, Sid, well_known,
};

use crate::{client::*, world::*};

fn with_sacl(aces: Vec<Ace>) -> Vec<u8> {
    let mut sd = SecurityDescriptor::parse(&descriptor(None, vec![everyone(ALL_ACCESS, 0)])).unwrap();
    sd.control |= SE_SACL_PRESENT | SE_DACL_PRESENT;
    sd.sacl = Some(Acl::new(aces));
    sd.encode()
}

fn audit() -> Ace {
    Ace { kind: SYSTEM_AUDIT_ACE_TYPE, ..everyone(FILE_WRITE_DATA, 0x40) }
}

fn label() -> Ace {
    Ace { kind: SYSTEM_MANDATORY_LABEL_ACE_TYPE, sid: Sid::new(16, &[0x4000]), ..everyone(1, 0) }
}

/// Creates a file, a directory and a stream of a new file with this descriptor; the owner that the file has.
fn create(c: &mut Client, n: &mut usize, sd: &[u8]) -> Vec<Result<Sid, NtStatus>> {
    let mut out = Vec::new();
    for (name, options) in [("f", 0), ("d", OPT_DIRECTORY_FILE), ("s:stream", 0)] {
        *n += 1;
        let name = format!("t\\{n}{name}");
        let w = want(&name).disposition(CREATE).options(options).context(tag::SD_BUFFER, sd.to_vec());
        out.push(match c.try_open(&w) {
            Ok(f) => {
                let owner = c.query_security(f.id, OWNER_SECURITY_INFORMATION).unwrap().owner.unwrap();
                c.close(f.id);
                Ok(owner)
            }
            Err(status) => {
                let base = name.split(':').next().unwrap();
                let left = c.opens(want(base).existing().access(FILE_READ_ATTRIBUTES));
                assert_eq!(left, NtStatus::OBJECT_NAME_NOT_FOUND, "nothing is left");
                Err(status)
            }
        });
    }
    out
}

/// Only oneself, Administrators for their members, and anybody for who holds SeRestorePrivilege.
#[test]
fn the_owner_of_a_new_file_is_one_that_its_creator_may_give() {
    for kind in KINDS {
        let world = World::on(kind);
        world.admin().make_with("t", vec![everyone(ALL_ACCESS, BOTH)]);
        let mut n = 0;
        let everybody = [
            world.sid(ALICE),
            world.sid(MALLORY),
            well_known::SYSTEM.clone(),
            well_known::BUILTIN_ADMINISTRATORS.clone(),
            well_known::EVERYONE.clone(),
            well_known::CREATOR_OWNER.clone(),
            Sid::new(5, &[21, 9, 9, 9, 500]),
        ];
        let (mut mallory, mut admin) = (world.client(MALLORY, FULL), world.admin());
        for owner in &everybody {
            let sd = descriptor(Some(owner), vec![everyone(ALL_ACCESS, 0)]);
            let own = *owner == world.sid(MALLORY);
            for made in create(&mut mallory, &mut n, &sd) {
                let expected = if own { Ok(owner.clone()) } else { Err(NtStatus::INVALID_OWNER) };
                assert_eq!(made, expected, "{kind:?}");
            }
            for made in create(&mut admin, &mut n, &sd) {
                assert_eq!(made.as_ref(), Ok(owner), "{kind:?}: SeRestorePrivilege");
            }
            // The same afterwards.
            let f = mallory.open(want(&format!("t\\own{n}")).disposition(CREATE));
            let status = mallory.set_security(f.id, OWNER_SECURITY_INFORMATION, &sd);
            assert_eq!(status, if own { NtStatus::SUCCESS } else { NtStatus::INVALID_OWNER });
            mallory.close(f.id);
        }
        // Who gives none is the owner, and so it is where the directory hands down CREATOR OWNER.
        admin.make_with(
            "t\\inherits",
            vec![Ace::allow(&well_known::CREATOR_OWNER, ALL_ACCESS, BOTH | 8), everyone(CHANGE_MASK, 0)],
        );
        let f = mallory.open(want("t\\inherits\\f").disposition(CREATE));
        let sd = mallory.query_security(f.id, 5).unwrap();
        assert_eq!(sd.owner, Some(world.sid(MALLORY)));
        assert!(sd.dacl.unwrap().aces.iter().any(|a| a.sid == world.sid(MALLORY)));
        let sd = descriptor(Some(&world.sid(ALICE)), vec![]);
        let w = want("t\\inherits\\g").disposition(CREATE).context(tag::SD_BUFFER, sd);
        assert_eq!(mallory.fails(w), NtStatus::INVALID_OWNER);
    }
}

/// A SACL, even an empty one, takes SeSecurityPrivilege.
#[test]
fn the_sacl_of_a_new_file_takes_the_privilege() {
    for kind in KINDS {
        let world = World::on(kind);
        world.admin().make_with("t", vec![everyone(ALL_ACCESS, BOTH)]);
        let mut n = 0;
        let (mut mallory, mut admin) = (world.client(MALLORY, FULL), world.admin());
        for aces in [vec![audit()], vec![label()], vec![]] {
            for made in create(&mut mallory, &mut n, &with_sacl(aces.clone())) {
                assert_eq!(made, Err(NtStatus::PRIVILEGE_NOT_HELD), "{kind:?} {aces:?}");
            }
            for made in create(&mut admin, &mut n, &with_sacl(aces)) {
                assert!(made.is_ok(), "{kind:?}");
            }
        }
    }
}

/// [MS-FSA] 2.1.5.1.1 for new files; for those that are there the access check says PRIVILEGE_NOT_HELD.
#[test]
fn access_to_the_sacl_takes_the_privilege() {
    for kind in KINDS {
        let world = World::on(kind);
        world.admin().make_with("t", vec![everyone(ALL_ACCESS, BOTH)]);
        world.admin().put("t\\there", b"x");
        let mut mallory = world.client(MALLORY, FULL);
        for access in [ACCESS_SYSTEM_SECURITY, ACCESS_SYSTEM_SECURITY | MAXIMUM_ALLOWED, ACCESS_SYSTEM_SECURITY | 1] {
            for options in [0, OPT_DIRECTORY_FILE, OPT_OPEN_FOR_BACKUP_INTENT] {
                let w = want("t\\new").disposition(CREATE).options(options).access(access);
                assert_eq!(mallory.fails(w), DENIED, "{kind:?} {access:#x}");
                assert_eq!(mallory.fails(want("t\\new").existing()), NtStatus::OBJECT_NAME_NOT_FOUND);
            }
            for name in ["t\\there", "t\\there:new"] {
                let w = want(name).access(access);
                assert_eq!(mallory.fails(w), NtStatus::PRIVILEGE_NOT_HELD, "{kind:?} {name} {access:#x}");
            }
        }
        let f = world.admin().open(want("t\\new").disposition(CREATE).access(ACCESS_SYSTEM_SECURITY | MAXIMUM_ALLOWED));
        assert_eq!(f.action, CREATED);
    }
}
