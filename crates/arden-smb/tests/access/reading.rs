//! What others may learn.

use arden_wire::dtyp::{
    ATTRIBUTE_SECURITY_INFORMATION, Ace, LABEL_SECURITY_INFORMATION, SACL_SECURITY_INFORMATION,
    SCOPE_SECURITY_INFORMATION, SE_SACL_PRESENT, SYSTEM_AUDIT_ACE_TYPE, SYSTEM_MANDATORY_LABEL_ACE_TYPE,
    SecurityDescriptor, Sid,
};

use crate::{client::*, world::*};

/// [MS-FSA] 2.1.5.14: labels, claims and policies take READ_CONTROL; the audit ACEs beside them in the SACL do not come along.
#[test]
fn audit_entries_are_for_who_may_read_the_sacl() {
    for kind in KINDS {
        let world = World::on(kind);
        let mut admin = world.admin();
        admin.put("file", b"x");
        let f = admin.open(want("file").existing().access(ACCESS_SYSTEM_SECURITY | READ_CONTROL | WRITE_OWNER));
        let label = Ace { kind: SYSTEM_MANDATORY_LABEL_ACE_TYPE, sid: Sid::new(16, &[0x2000]), ..everyone(1, 0) };
        let audit = Ace { kind: SYSTEM_AUDIT_ACE_TYPE, ..everyone(FILE_WRITE_DATA, 0x40) };
        let mut sd = SecurityDescriptor { control: SE_SACL_PRESENT, ..SecurityDescriptor::default() };
        sd.sacl = Some(arden_wire::dtyp::Acl::new(vec![audit, label.clone()]));
        let parts = SACL_SECURITY_INFORMATION | LABEL_SECURITY_INFORMATION;
        assert_eq!(admin.set_security(f.id, parts, &sd.encode()), NtStatus::SUCCESS);
        assert_eq!(admin.query_security(f.id, SACL_SECURITY_INFORMATION).unwrap().sacl.unwrap().aces.len(), 2);
        let mut c = world.client(MALLORY, FULL);
        let g = c.open(want("file").existing().access(READ_CONTROL));
        let all = LABEL_SECURITY_INFORMATION | ATTRIBUTE_SECURITY_INFORMATION | SCOPE_SECURITY_INFORMATION;
        for information in [LABEL_SECURITY_INFORMATION, all] {
            let seen = c.query_security(g.id, information).unwrap();
            assert_eq!(seen.sacl.map(|s| s.aces), Some(vec![label.clone()]), "{kind:?} {information:#x}");
        }
        let seen = c.query_security(g.id, ATTRIBUTE_SECURITY_INFORMATION).unwrap();
        assert!(seen.sacl.is_none() && seen.owner.is_none() && seen.dacl.is_none(), "{kind:?}");
        assert_eq!(c.query_security(g.id, SACL_SECURITY_INFORMATION), Err(DENIED));
    }
}

/// [MS-SMB2] 3.3.5.13 <364>, 3.3.5.15.6: the right to append is enough for WRITE and server-side copies, wherever they write. Not for
/// FSCTL_DUPLICATE_EXTENTS_TO_FILE, whose control code takes FILE_WRITE_DATA.
#[test]
fn who_may_append_may_overwrite() {
    for kind in KINDS {
        let world = World::on(kind);
        let mut admin = world.admin();
        let f = admin.open(want("log"));
        admin.write(f.id, 0, &[1; 8192]);
        admin.close(f.id);
        admin.put("source", &[2; 8192]);
        let mut c = world.client(MALLORY, FULL);
        let source = c.open(want("source").existing().access(FILE_READ_DATA | FILE_READ_ATTRIBUTES));
        let key = c.fsctl(source.id, fsctl::SRV_REQUEST_RESUME_KEY, &[], 32);
        let log = c.open(want("log").existing().access(FILE_APPEND_DATA | FILE_READ_DATA));
        let mut input = Vec::new();
        source.id.put(&mut input);
        for v in [0u64, 0, 4096] {
            input.put_u64(v);
        }
        assert_eq!(c.try_fsctl(log.id, fsctl::DUPLICATE_EXTENTS_TO_FILE, &input, 0), Err(DENIED), "{kind:?}");
        assert_eq!(c.read(log.id, 0, 8192), [1; 8192]);
        for (code, at) in
            [(fsctl::SRV_COPYCHUNK, 0), (fsctl::SRV_COPYCHUNK_WRITE, 4096), (fsctl::SRV_COPYCHUNK_WRITE, 8192)]
        {
            c.fsctl(log.id, code, &copy_chunks(&key, &[(0, at, 4096)]), 12);
        }
        assert_eq!(c.read(log.id, 0, 16384), [2; 12288], "{kind:?}");
        c.write(log.id, 0, &[3; 10]);
        assert_eq!(c.read(log.id, 0, 20), [[3; 10], [2; 10]].concat(), "{kind:?}");
        let beyond = c.open(want("log").existing().access(FILE_WRITE_DATA));
        c.write(beyond.id, 12288, &[4; 10]);
        assert_eq!(c.read(log.id, 12288, 20), [4; 10], "{kind:?}");
    }
}

/// [MS-FSA] 2.1.5.12.30: who came by the file's id learns its path only with FILE_TRAVERSE.
#[test]
fn an_id_does_not_tell_a_path() {
    for kind in KINDS {
        let world = World::on(kind);
        let mut admin = world.admin();
        admin.make_with("private", vec![admins()]);
        admin.put("private\\secret name", b"x");
        admin.protect("private\\secret name", vec![everyone(READ_MASK, 0), admins()]);
        let kept = admin.open(want("private\\secret name").existing());
        let id = le_u64(&admin.query(kept.id, file_class::INTERNAL), 0);
        let mut c = world.client(MALLORY, FULL);
        for (access, tells) in [(FILE_READ_ATTRIBUTES, false), (FILE_READ_ATTRIBUTES | FILE_TRAVERSE, true)] {
            let w = want("").existing().access(access).options(OPT_OPEN_BY_FILE_ID);
            let f = Created::parse(&c.call(&w.req_named(&id.to_le_bytes())).ok());
            let name = c.try_query(f.id, file_class::NORMALIZED_NAME);
            assert_eq!(name.err(), (!tells).then_some(DENIED), "{kind:?}");
            let all = c.query(f.id, file_class::ALL);
            assert_eq!((le_u32(&all, 96), all.len()), (0, 104), "{kind:?}: FileAllInformation tells no name");
            c.close(f.id);
        }
    }
}

/// Access-based enumeration: what somebody may not read is as if it were not there, one entry at a time and by its name too.
#[test]
fn an_enumeration_does_not_tell_of_what_it_hides() {
    for kind in KINDS {
        let world = World::on(kind);
        let mut admin = world.admin();
        admin.make_with("t", vec![everyone(READ_MASK, 0), admins()]);
        for i in 0..20 {
            let name = format!("t\\file{i:02}");
            admin.put(&name, b"x");
            if i % 5 == 0 {
                admin.protect(&name, vec![everyone(READ_MASK, 0), admins()]);
            }
        }
        let mut c = world.client(MALLORY, "seen");
        let visible: Vec<String> = (0..20).step_by(5).map(|i| format!("file{i:02}")).collect();
        let d = c.open(want("t").existing().access(FILE_LIST_DIRECTORY).directory());
        assert_eq!(c.list(d.id, "*"), visible, "{kind:?}");
        // RESTART_SCANS and RETURN_SINGLE_ENTRY, then one after the other.
        let (mut seen, mut flags) = (Vec::new(), 3);
        while let Ok(names) = c.list_once(d.id, file_class::NAMES, flags, "*") {
            assert_eq!(names.len(), 1);
            seen.extend(names);
            flags = 2;
        }
        seen.retain(|n| !n.starts_with('.'));
        seen.sort();
        assert_eq!(seen, visible, "{kind:?}");
        for name in ["file01", "none"] {
            let e = c.open(want("t").existing().access(FILE_LIST_DIRECTORY).directory());
            for flags in [1, 0] {
                let status = c.list_once(e.id, file_class::NAMES, flags, name);
                assert_eq!(status, Err(NtStatus::NO_SUCH_FILE), "{kind:?} {name}");
            }
            c.close(e.id);
        }
    }
}
