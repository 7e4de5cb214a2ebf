//! Every change through an open whose answers wait for stable storage joins the scope of its message, and nothing else does.

use std::sync::Arc;

use arden_store::{
    commit::{Cause, CommitScope},
    fs::{BasicInformation, Disposal, Fs, NameChange, Open, Step, security_info},
    name::NtPath,
    store::{Ea, Wait},
};
use arden_wire::dtyp::SecurityDescriptor;

use crate::world::*;

type Change = fn(&Fs, &Arc<Open>, Cause<'_>);

const CHANGES: &[(&str, Change)] = &[
    ("write", |fs, f, c| fs.write(f, 0, b"0123456789", Wait::Yes, c).unwrap()),
    ("set_end_of_file", |fs, f, c| fs.set_end_of_file(f, 5, c).unwrap()),
    ("set_allocation", |fs, f, c| fs.set_allocation(f, 1 << 16, c).unwrap()),
    ("zero_range", |fs, f, c| fs.zero_range(f, 0, 2, c).unwrap()),
    ("set_sparse", |fs, f, c| fs.set_sparse(c.scope, f, true).unwrap()),
    ("copy", |fs, f, c| assert_eq!(fs.copy(f, 0, f, 100, 3, c), Ok(3))),
    ("set_basic", |fs, f, c| {
        fs.set_basic(f, &BasicInformation { attributes: ATTR_HIDDEN, ..BasicInformation::default() }, c).unwrap();
    }),
    ("set_security", |fs, f, c| {
        let sd: SecurityDescriptor = (*fs.security(f, security_info::DACL).unwrap()).clone();
        fs.set_security(f, security_info::DACL, &sd, c).unwrap();
    }),
    ("set_eas", |fs, f, c| fs.set_eas(c.scope, f, &[Ea { name: "A".into(), flags: 0, value: vec![1] }]).unwrap()),
    ("set_object_id", |fs, f, c| fs.set_object_id(c.scope, f, 7).unwrap()),
    ("link", |fs, f, c| done(fs.link(f, &NtPath::parse("also").unwrap(), NameChange::default(), c).unwrap())),
    ("rename", |fs, f, c| done(fs.rename(f, &NtPath::parse("moved").unwrap(), NameChange::default(), c).unwrap())),
];

fn done(step: Step<()>) {
    assert!(matches!(step, Step::Done(())));
}

#[test]
fn every_change_joins_its_scope_where_answers_wait_for_it() {
    for durable in [true, false] {
        let w = World::new();
        w.fs.store().note_changes();
        let f = w.open_durable(want("f"), durable);
        w.scope.commit().unwrap();
        for (name, change) in CHANGES {
            let scope = CommitScope::begin();
            change(&w.fs, &f, scope.at(w.now));
            assert_eq!(scope.is_due(), durable, "{name}");
            assert!(w.fs.store().has_uncommitted(scope.id()), "{name}");
            scope.commit().unwrap();
            assert!(!scope.is_due(), "{name}");
            w.scope.join(&w.fs, true);
            w.scope.commit().unwrap();
        }
    }
}

#[test]
fn a_create_an_overwrite_and_a_deletion_join_their_scopes_and_looking_does_not() {
    for durable in [true, false] {
        let mut w = World::new();
        w.fs.store().note_changes();
        let joins = |w: &mut World, what: &str, act: &dyn Fn(&World)| {
            w.scope.join(&w.fs, true);
            w.scope.commit().unwrap();
            w.scope = CommitScope::begin();
            act(w);
            let joined = !w.scope.is_empty();
            assert_eq!(joined, durable && what != "look", "{what}");
        };
        joins(&mut w, "create", &|w| drop(w.open_durable(want("f"), durable)));
        joins(&mut w, "overwrite", &|w| {
            drop(w.open_durable(want("f").disposition(arden_store::fs::Disposition::OverwriteIf), durable));
        });
        joins(&mut w, "look", &|w| {
            let f = w.open_durable(want("f").existing(), durable);
            w.fs.stat(&f).unwrap();
            w.close(f);
        });
        joins(&mut w, "delete", &|w| {
            let f = w.open_durable(want("f").existing(), durable);
            let how = Disposal { delete: true, ..Disposal::default() };
            done(w.fs.set_disposition(&f, how, w.cause()).unwrap());
            w.close(f);
        });
        assert!(!w.dir.join("f").exists());
    }
}

/// Another message made the file, and is not committed: whoever opens it waits for that, and may not be told of an open that a
/// crash would take the file from.
#[test]
fn an_open_of_what_is_not_durable_yet_waits_for_it() {
    let w = World::new();
    w.fs.store().note_changes();
    let made = w.open_durable(want("d").directory(), true);
    let before = CommitScope::begin();
    let open = |path: &str, scope: &CommitScope| {
        let other = want(path).existing();
        w.open_in(other, scope, true)
    };
    let _at_once = open("d", &before);
    assert!(before.is_due(), "its name is not synced");
    w.scope.commit().unwrap();
    let after = CommitScope::begin();
    let _again = open("d", &after);
    assert!(!after.is_due() && after.is_empty());
    w.close(made);
}
