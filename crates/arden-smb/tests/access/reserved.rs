//! What the dir store keeps for itself in a tree: no name, no id and no share leads there.

use std::os::unix::fs::MetadataExt;

use arden_store::{
    dir::{DirOptions, DirStore, SPILL_DIRECTORY},
    fs::Fs,
    name::short_name,
};

use crate::{client::*, world::*};

/// A stream too long for an attribute; where its bytes are on the host.
fn spilled(world: &World) -> std::path::PathBuf {
    let mut admin = world.admin();
    admin.put("file", b"x");
    let f = admin.open(want("file:secret"));
    for i in 0..4 {
        admin.write(f.id, i * 50_000, &[0x53; 50_000]);
    }
    admin.close(f.id);
    let dir = world.lab.host(SPILL_DIRECTORY);
    let mut found: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(found.len(), 1);
    found.remove(0)
}

/// A client of a share of the directory that has the tree of `world` in it, as `a`.
fn outer(world: &World, user: &str) -> Client {
    let store = DirStore::open(&world.lab.dir, DirOptions::default()).unwrap();
    let fs = Fs::new(store, world.lab.server.trees.table.clone());
    let mut shares = vec![share("outer", &fs)];
    shares.extend(SHARES.iter().map(|s| (*world.lab.server.trees.share(s).unwrap()).clone()));
    world.lab.server.trees.set_shares(shares);
    world.client(user, "outer")
}

/// Every spelling that may lead to the directory, below `at`.
fn spellings(at: &str) -> Vec<String> {
    let long = SPILL_DIRECTORY;
    let short = short_name(long).unwrap();
    let mut names = vec![
        long.to_owned(),
        long.to_uppercase(),
        ".Arden-Streams".to_owned(),
        long.replacen('s', "\u{17f}", 1),
        short.clone(),
        short.to_lowercase(),
    ];
    for name in [long, short.as_str()] {
        names.extend([".", "..", " ", ". ."].map(|tail| format!("{name}{tail}")));
        names.extend(
            ["::$INDEX_ALLOCATION", ":$I30:$INDEX_ALLOCATION", "\\", ":stream", "::$DATA"]
                .map(|t| format!("{name}{t}")),
        );
    }
    names.iter().map(|n| if at.is_empty() { n.clone() } else { format!("{at}\\{n}") }).collect()
}

/// Nothing below `at` opens, lists, makes, renames or links there.
fn refuses(c: &mut Client, at: &str, id: &str) {
    let not_there = [NtStatus::OBJECT_NAME_NOT_FOUND, NtStatus::OBJECT_PATH_NOT_FOUND, NtStatus::OBJECT_NAME_INVALID];
    let prefix = if at.is_empty() { String::new() } else { format!("{at}\\") };
    for name in spellings(at) {
        for access in [FILE_READ_ATTRIBUTES, FILE_LIST_DIRECTORY, DELETE, MAXIMUM_ALLOWED] {
            for options in [0, OPT_DIRECTORY_FILE, OPT_OPEN_REPARSE_POINT, OPT_OPEN_FOR_BACKUP_INTENT] {
                let status = c.opens(want(&name).existing().access(access).options(options));
                assert!(not_there.contains(&status) || status == NtStatus::NOT_A_DIRECTORY, "{name}: {status}");
            }
        }
        let status = c.opens(want(&format!("{name}\\{id}")).existing().access(FILE_READ_DATA));
        assert!(not_there.contains(&status), "{name}\\{id}: {status}");
        let status = c.opens(want(&format!("{name}\\new")).disposition(CREATE));
        assert!(not_there.contains(&status), "{name}\\new: {status}");
        let f = c.open(want(&format!("{prefix}mine")));
        for class in [file_class::RENAME, file_class::LINK] {
            for to in [format!("{name}\\new"), format!("{name}\\{id}")] {
                let status = c.set(f.id, class, &name_change(&to, true));
                assert!(not_there.contains(&status), "{to}: {status}");
            }
        }
        c.close(f.id);
    }
    // The name itself is not to be had either, nor another spelling of it.
    for name in &spellings(at)[..3] {
        for options in [0, OPT_DIRECTORY_FILE] {
            for disposition in [CREATE, OPEN_IF] {
                let w = want(name).disposition(disposition).options(options);
                assert_eq!(c.fails(w), DENIED, "{name}");
            }
        }
        let f = c.open(want(&format!("{prefix}mine")));
        for class in [file_class::RENAME, file_class::LINK] {
            assert_eq!(c.set(f.id, class, &name_change(name, true)), DENIED, "{name}");
        }
        c.close(f.id);
    }
    let root = c.open(want(at).existing().access(FILE_LIST_DIRECTORY).directory());
    let long = SPILL_DIRECTORY;
    for pattern in ["*".to_owned(), ".*".to_owned(), long.to_owned(), short_name(long).unwrap(), "A*".to_owned()] {
        let names = c.list(root.id, &pattern);
        assert!(names.iter().all(|n| !n.to_lowercase().contains("arden-str")), "{pattern}: {names:?}");
    }
    c.close(root.id);
}

#[test]
fn no_name_leads_to_spilled_streams() {
    let world = World::on(Kind::Directory);
    let spill = spilled(&world);
    let id = spill.file_name().unwrap().to_str().unwrap();
    for user in [MALLORY, ADMIN] {
        let mut c = world.client(user, FULL);
        refuses(&mut c, "", id);
    }
    assert_eq!(std::fs::read(&spill).unwrap(), [0x53; 200_000]);
}

#[test]
fn no_share_around_it_leads_to_spilled_streams() {
    let world = World::on(Kind::Directory);
    let spill = spilled(&world);
    let id = spill.file_name().unwrap().to_str().unwrap();
    for user in [MALLORY, ADMIN] {
        let mut c = outer(&world, user);
        refuses(&mut c, "a", id);
        refuses(&mut c, "", id);
        // The tree with them in it is not empty, whatever is seen of it.
        c.make_directory("empty");
        std::fs::create_dir_all(world.lab.dir.join("empty").join(SPILL_DIRECTORY)).unwrap();
        let f = c.open(want("empty").existing().access(DELETE).directory());
        assert_eq!(c.delete(f.id), NtStatus::DIRECTORY_NOT_EMPTY);
        c.close(f.id);
    }
    assert_eq!(std::fs::read(&spill).unwrap(), [0x53; 200_000]);
}

#[test]
fn no_id_leads_to_spilled_streams() {
    let world = World::on(Kind::Directory);
    let spill = spilled(&world);
    let ids = [&spill, &world.lab.host(SPILL_DIRECTORY)].map(|p| std::fs::metadata(p).unwrap().ino());
    for mut c in [world.admin(), outer(&world, ADMIN)] {
        // As far as it could have been seen on the way.
        for at in ["", "a"] {
            let name =
                if at.is_empty() { short_name(SPILL_DIRECTORY).unwrap() } else { format!("a\\{SPILL_DIRECTORY}") };
            let _ = c.opens(want(&format!("{name}\\x")).existing());
        }
        for id in ids {
            let w = want("").existing().access(FILE_READ_ATTRIBUTES).options(OPT_OPEN_BY_FILE_ID);
            let status = c.status(&w.req_named(&id.to_le_bytes()));
            assert!(status.is_error(), "{id}: {status}");
        }
    }
}

/// A name that no client may write is not to be had by its short name either.
#[test]
fn a_short_name_is_no_door_to_what_has_no_name() {
    let world = World::on(Kind::Directory);
    for name in ["a:b with more", "back\\slash and more", "star * and more", "tab\tand more"] {
        std::fs::write(world.lab.host(name), "local").unwrap();
        let mut c = world.admin();
        let short = short_name(name).unwrap();
        let status = c.opens(want(&short).existing().access(FILE_READ_ATTRIBUTES));
        assert_eq!(status, NtStatus::OBJECT_NAME_NOT_FOUND, "{name}");
    }
    std::fs::write(world.lab.host("a plain long name"), "local").unwrap();
    let mut c = world.admin();
    assert_eq!(c.content(&short_name("a plain long name").unwrap()), b"local");
}

/// On a volume that keeps 8.3 names one is another spelling of the name: who may do what, and who sees it, is the same.
#[test]
fn a_short_name_is_no_second_door() {
    let world = World::on(Kind::Volume);
    world.volume.as_ref().unwrap().set_short_names(arden_volume::ShortNames::Kept).unwrap();
    let mut admin = world.admin();
    admin.put("a secret of the admin", b"secret");
    admin.protect("a secret of the admin", vec![admins()]);
    admin.make_directory("a closed directory");
    admin.put("a closed directory\\a file in it", b"inside");
    admin.protect("a closed directory", vec![admins()]);
    let mut c = world.client(MALLORY, FULL);
    for name in ["a secret of the admin", "ASECRE~1"] {
        for disposition in [OPEN, OPEN_IF, OVERWRITE, OVERWRITE_IF, SUPERSEDE] {
            assert_eq!(c.fails(want(name).disposition(disposition)), DENIED, "{name}");
        }
        assert_eq!(c.fails(want(name).existing().delete_on_close().access(DELETE)), DENIED, "{name}");
        assert_eq!(c.fails(want(name).disposition(CREATE)), NtStatus::OBJECT_NAME_COLLISION, "{name}");
        let mine = c.open(want("mine"));
        for class in [file_class::RENAME, file_class::LINK] {
            assert_eq!(c.set(mine.id, class, &name_change(name, true)), DENIED, "{name}");
            assert_eq!(c.set(mine.id, class, &name_change(name, false)), NtStatus::OBJECT_NAME_COLLISION, "{name}");
        }
        c.close(mine.id);
    }
    for directory in ["a closed directory", "ACLOSE~1"] {
        assert_eq!(c.fails(want(directory).existing().access(FILE_LIST_DIRECTORY)), DENIED, "{directory}");
        for name in ["a file in it", "AFILEI~1"] {
            let path = format!("{directory}\\{name}");
            assert_eq!(
                c.opens(want(&path).existing()),
                c.opens(want("a closed directory\\a file in it").existing()),
                "{path}"
            );
        }
        assert_eq!(c.fails(want(&format!("{directory}\\new")).disposition(CREATE)), DENIED, "{directory}");
    }
    // What enumeration hides is hidden from queries by either name.
    let mut seen = world.client(MALLORY, "seen");
    let root = seen.open(want("").existing().access(FILE_LIST_DIRECTORY).directory());
    for pattern in ["a secret*", "ASECRE~1", "*~1"] {
        let flags = arden_wire::smb2::info::directory_flags::RESTART_SCANS;
        let names = seen.list_once(root.id, file_class::BOTH_DIRECTORY, flags, pattern);
        assert!(names.is_err(), "{pattern}: {names:?}");
    }
    assert_eq!(admin.content("ASECRE~1"), b"secret");
}

/// Those who watch a tree hear nothing of it, through the share or one around it.
#[test]
fn watchers_hear_nothing_of_spilled_streams() {
    let world = World::on(Kind::Directory);
    let mut watchers = [world.admin(), outer(&world, ADMIN)];
    let mut waiting = Vec::new();
    for c in &mut watchers {
        let root = c.open(want("").existing().directory());
        waiting.push((root.id, c.send(&notify(root.id, 1, 0xFFF, 4096))));
    }
    spilled(&world);
    std::thread::sleep(std::time::Duration::from_millis(300));
    for (c, (root, first)) in watchers.iter_mut().zip(waiting) {
        let mut id = first;
        while let Some(reply) = c.poll(id) {
            for (_, name) in changes(reply.buffer()) {
                assert!(!name.contains("arden-str"), "{name}");
            }
            id = c.send(&notify(root, 1, 0xFFF, 4096));
        }
    }
}
