//! What a create grants, [MS-FSA] 2.1.5.1: with MAXIMUM_ALLOWED, of streams, and below every share permission.

use arden_wire::dtyp::{Ace, DACL_SECURITY_INFORMATION};

use crate::{client::*, world::*};

const SOME: u32 = FILE_WRITE_DATA | FILE_READ_ATTRIBUTES | READ_CONTROL | SYNCHRONIZE;

/// [MS-FSA] 2.1.5.1.2: creating a stream in a file that is there is an open of that file, with FILE_WRITE_DATA added to what
/// is asked for. Its creator gets what the file's descriptor gives, and never all access.
#[test]
fn the_creator_of_a_stream_gets_what_the_file_gives() {
    for kind in KINDS {
        let world = World::on(kind);
        world.admin().make_with("t", vec![everyone(FILE_LIST_DIRECTORY | FILE_ADD_FILE, 0), admins()]);
        let mut admin = world.admin();
        for (n, rights) in [CHANGE_MASK, SOME, SOME | DELETE].into_iter().enumerate() {
            for name in [format!("t\\file{n}"), format!("t\\dir{n}")] {
                match name.contains("dir") {
                    true => admin.make_directory(&name),
                    false => admin.put(&name, b"theirs"),
                }
                let aces =
                    vec![Ace::allow(&world.sid(MALLORY), rights, 0), Ace::allow(&world.sid(ALICE), ALL_ACCESS, 0)];
                admin.protect(&name, aces);
                let mut mallory = world.client(MALLORY, FULL);
                for disposition in [CREATE, OPEN_IF, OVERWRITE_IF, SUPERSEDE] {
                    let stream = format!("{name}:s{disposition}");
                    let w = want(&stream).access(MAXIMUM_ALLOWED).disposition(disposition);
                    let f = mallory.open(w);
                    assert_eq!(f.action, CREATED);
                    assert_eq!(mallory.granted(f.id), rights, "{kind:?} {name} {rights:#x}");
                    let sd = descriptor(None, vec![everyone(ALL_ACCESS, 0)]);
                    assert_eq!(mallory.set_security(f.id, DACL_SECURITY_INFORMATION, &sd), DENIED);
                    mallory.close(f.id);
                }
                for more in [WRITE_DAC, WRITE_OWNER, FILE_DELETE_CHILD] {
                    let w = want(&format!("{name}:more")).disposition(CREATE);
                    assert_eq!(mallory.fails(w.clone().access(MAXIMUM_ALLOWED | more)), DENIED);
                    assert_eq!(mallory.fails(w.access(more)), DENIED);
                }
                let w = want(&format!("{name}:gone")).access(MAXIMUM_ALLOWED).disposition(CREATE).delete_on_close();
                let expected = if rights & DELETE != 0 { NtStatus::SUCCESS } else { DENIED };
                assert_eq!(mallory.opens(w), expected, "{kind:?} {name} {rights:#x}");
                for left in ["more", "gone"] {
                    let w = want(&format!("{name}:{left}")).existing().access(FILE_READ_ATTRIBUTES);
                    assert_eq!(admin.fails(w), NtStatus::OBJECT_NAME_NOT_FOUND, "nothing is left of what failed");
                }
            }
        }
        // Without the right to write there is no stream to be made.
        admin.put("t\\read", b"theirs");
        admin.protect("t\\read", vec![Ace::allow(&world.sid(MALLORY), READ_MASK, 0)]);
        let mut mallory = world.client(MALLORY, FULL);
        let w = want("t\\read:s").disposition(CREATE);
        for access in [MAXIMUM_ALLOWED, FILE_READ_DATA, FILE_READ_DATA | MAXIMUM_ALLOWED, GENERIC_READ] {
            assert_eq!(mallory.fails(w.clone().access(access)), DENIED, "{access:#x}");
        }
    }
}

/// One kind of create: what it needs of the share beside the access that it asks for.
struct Creation {
    name: &'static str,
    want: fn(usize) -> Want,
    share: u32,
}

const RESETS: u32 = FILE_WRITE_EA | FILE_WRITE_ATTRIBUTES;

fn creations() -> Vec<Creation> {
    vec![
        Creation { name: "open", want: |n| want(&format!("t\\f{n}")).existing(), share: 0 },
        Creation {
            name: "create a file",
            want: |n| want(&format!("t\\new{n}")).disposition(CREATE).options(OPT_NON_DIRECTORY_FILE),
            share: FILE_ADD_FILE,
        },
        Creation {
            name: "create a directory",
            want: |n| want(&format!("t\\new{n}")).disposition(CREATE).directory(),
            share: FILE_ADD_SUBDIRECTORY,
        },
        Creation {
            name: "create a stream",
            want: |n| want(&format!("t\\f{n}:s")).disposition(OPEN_IF),
            share: FILE_WRITE_DATA,
        },
        Creation {
            name: "overwrite",
            want: |n| want(&format!("t\\f{n}")).disposition(OVERWRITE),
            share: FILE_WRITE_DATA | RESETS,
        },
        Creation {
            name: "overwrite or create",
            want: |n| want(&format!("t\\f{n}")).disposition(OVERWRITE_IF),
            share: FILE_WRITE_DATA | RESETS,
        },
        Creation {
            name: "supersede",
            want: |n| want(&format!("t\\f{n}")).disposition(SUPERSEDE),
            share: DELETE | RESETS,
        },
        Creation {
            name: "delete on close",
            want: |n| want(&format!("t\\f{n}")).existing().delete_on_close(),
            share: DELETE,
        },
        Creation {
            name: "delete on close of a new one",
            want: |n| want(&format!("t\\new{n}")).disposition(CREATE).delete_on_close(),
            share: DELETE | FILE_ADD_FILE,
        },
    ]
}

/// The share's permissions bound every create, whatever access it asks for; MAXIMUM_ALLOWED gives what both allow.
#[test]
fn a_share_bounds_every_create() {
    for kind in KINDS {
        let world = World::on(kind);
        let mut admin = world.admin();
        admin.make_with("t", vec![everyone(ALL_ACCESS, BOTH)]);
        let mut n = 0;
        for share in SHARES {
            let mut c = world.client(MALLORY, share);
            for creation in creations() {
                for access in
                    [FILE_READ_ATTRIBUTES, FILE_READ_DATA, MAXIMUM_ALLOWED, FILE_READ_DATA | DELETE, GENERIC_ALL]
                {
                    n += 1;
                    admin.put(&format!("t\\f{n}"), b"there");
                    let w = (creation.want)(n).access(access);
                    let deletes = w.options & OPT_DELETE_ON_CLOSE != 0;
                    let concrete = if access == GENERIC_ALL { ALL_ACCESS } else { access & !MAXIMUM_ALLOWED };
                    let may = ceiling(share) & creation.share == creation.share
                        && concrete & !ceiling(share) == 0
                        && (!deletes || access == MAXIMUM_ALLOWED || concrete & DELETE != 0);
                    let what = format!("{kind:?} {share}: {} with {access:#x}", creation.name);
                    match c.try_open(&w) {
                        Ok(f) => {
                            assert!(may, "{what} succeeds");
                            let expected = if access == MAXIMUM_ALLOWED { ceiling(share) } else { concrete };
                            assert_eq!(c.granted(f.id), expected, "{what}");
                            c.close(f.id);
                        }
                        Err(status) => {
                            assert_eq!((status, may), (DENIED, false), "{what}");
                            assert_eq!(admin.content(&format!("t\\f{n}")), b"there", "{what}");
                            for left in [format!("t\\new{n}"), format!("t\\f{n}:s")] {
                                let w = want(&left).existing().access(FILE_READ_ATTRIBUTES);
                                assert_eq!(admin.fails(w), NtStatus::OBJECT_NAME_NOT_FOUND, "{what} leaves {left}");
                            }
                        }
                    }
                }
            }
        }
    }
}

/// [MS-FSA] 2.1.5.1.2.1: the parent's FILE_DELETE_CHILD is DELETE on the child and its FILE_LIST_DIRECTORY is
/// FILE_READ_ATTRIBUTES; neither is anything else, and a deny ACE on the child does not take them away.
#[test]
fn a_parent_gives_delete_and_attributes_and_nothing_else() {
    for kind in KINDS {
        let world = World::on(kind);
        let mut admin = world.admin();
        let mut mallory = world.client(MALLORY, FULL);
        for (n, parent) in
            [0, FILE_DELETE_CHILD, FILE_LIST_DIRECTORY, FILE_DELETE_CHILD | FILE_LIST_DIRECTORY].into_iter().enumerate()
        {
            let dir = format!("d{n}");
            admin.make_with(&dir, vec![everyone(parent, 0), admins()]);
            let file = format!("{dir}\\f");
            admin.put(&file, b"theirs");
            let deny = Ace::deny(&world.sid(MALLORY), ALL_ACCESS, 0);
            admin.protect(&file, vec![deny, admins()]);
            for bit in BITS {
                let by_parent = bit == DELETE && parent & FILE_DELETE_CHILD != 0
                    || bit == FILE_READ_ATTRIBUTES && parent & FILE_LIST_DIRECTORY != 0;
                let status = mallory.opens(want(&file).existing().access(bit));
                assert_eq!(status == NtStatus::SUCCESS, by_parent, "{kind:?} {parent:#x} {bit:#x}: {status}");
            }
            let most = match mallory.try_open(&want(&file).existing().access(MAXIMUM_ALLOWED)) {
                Ok(f) => {
                    let most = mallory.granted(f.id);
                    mallory.close(f.id);
                    most
                }
                Err(_) => 0,
            };
            let delete = if parent & FILE_DELETE_CHILD != 0 { DELETE } else { 0 };
            let attributes = if parent & FILE_LIST_DIRECTORY != 0 { FILE_READ_ATTRIBUTES } else { 0 };
            assert_eq!(most, delete | attributes, "{kind:?} {parent:#x}");
        }
    }
}

const BITS: [u32; 12] = [
    FILE_READ_DATA,
    FILE_WRITE_DATA,
    FILE_APPEND_DATA,
    FILE_READ_EA,
    FILE_WRITE_EA,
    FILE_EXECUTE,
    FILE_READ_ATTRIBUTES,
    FILE_WRITE_ATTRIBUTES,
    DELETE,
    READ_CONTROL,
    WRITE_DAC,
    WRITE_OWNER,
];

/// [MS-FSA] 2.1.5.1.2: what is read-only, hidden or system is not overwritten as if it were not.
#[test]
fn protected_attributes_hold_against_overwriting() {
    for kind in KINDS {
        let world = World::on(kind);
        world.admin().make_with("t", vec![everyone(ALL_ACCESS, BOTH)]);
        let mut c = world.client(MALLORY, FULL);
        for (attribute, name) in [(ATTR_READONLY, "r"), (ATTR_HIDDEN, "h"), (ATTR_SYSTEM, "s")] {
            let name = format!("t\\{name}");
            let f = c.open(want(&name).attributes(attribute).disposition(CREATE));
            c.write(f.id, 0, b"kept");
            c.close(f.id);
            for disposition in [OVERWRITE, OVERWRITE_IF, SUPERSEDE] {
                let w = want(&name).disposition(disposition).access(FILE_READ_DATA);
                assert_eq!(c.fails(w), DENIED, "{kind:?} {name} {disposition}");
            }
            assert_eq!(c.content(&name), b"kept");
        }
    }
}
