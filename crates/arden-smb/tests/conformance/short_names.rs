//! 8.3 names that a volume keeps, over SMB: FileShortNameInformation, [MS-FSA] 2.1.5.15.14, FileAlternateNameInformation,
//! 2.1.5.12.4, and the classes of directory queries that show them.

use std::sync::Arc;

use arden_volume::{ShortNames, Volume};

use crate::client::*;
use crate::quotas::{client, lab};

const LONG: &str = "A long name.text";
const SHORT: &str = "ALONGN~1.TEX";
const NAMES: [u32; 2] = [4, 5];
const REMOVED: u32 = 2;

/// A share on a volume that keeps 8.3 names, its administrator, and the volume.
fn keeping() -> (Lab, Client, Arc<Volume>) {
    let (lab, volume) = lab();
    volume.set_short_names(ShortNames::Kept).unwrap();
    let c = client(&lab, USER);
    (lab, c, volume)
}

fn backup(name: &str) -> Want {
    want(name).options(OPT_OPEN_FOR_BACKUP_INTENT)
}

fn set(c: &mut Client, id: FileId, name: &str) -> NtStatus {
    let mut data = ((name.encode_utf16().count() * 2) as u32).to_le_bytes().to_vec();
    data.put_utf16(name);
    c.set(id, file_class::SHORT_NAME, &data)
}

fn alternate(c: &mut Client, id: FileId) -> Result<String, NtStatus> {
    let data = c.try_query(id, file_class::ALTERNATE_NAME)?;
    let len = le_u32(&data, 0) as usize;
    assert_eq!(data.len(), 4 + len);
    Ok(arden_wire::cursor::utf16_string(&data[4..]).unwrap())
}

/// Name and 8.3 name of each entry but `.` and `..`.
fn listed(c: &mut Client, class: u8, pattern: &str) -> Result<Vec<(String, String)>, NtStatus> {
    let root = c.open(want("").existing().access(FILE_LIST_DIRECTORY).directory());
    let reply = c.call(&query_directory(root.id, class, 0, pattern, 60_000)).result();
    c.close(root.id);
    let data = reply?.buffer().to_vec();
    let mut out: Vec<_> = entries(&data, class)
        .into_iter()
        .map(|(name, entry)| {
            let len = usize::from(entry[68]);
            assert!(len <= 24 && entry[70 + len..94].iter().all(|b| *b == 0), "padded with zeros");
            (name, arden_wire::cursor::utf16_string(&entry[70..70 + len]).unwrap())
        })
        .filter(|(name, _)| name != "." && name != "..")
        .collect();
    out.sort();
    Ok(out)
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()
}

/// `BVT_QueryDirectory_FileBothDirectoryInformation`, `BVT_QueryDirectory_FileIdBothDirectoryInformation`,
/// `FileInfo_Query_FileAlternateNameInformation`
#[test]
fn short_names_are_shown_and_opened() {
    let (_lab, mut c, _) = keeping();
    c.put(LONG, b"content");
    c.put("plain", b"");
    for class in [file_class::BOTH_DIRECTORY, file_class::ID_BOTH_DIRECTORY] {
        assert_eq!(listed(&mut c, class, "*").unwrap(), pairs(&[(LONG, SHORT), ("plain", "")]));
        // [MS-FSA] 2.1.5.6.3: by either name.
        for pattern in [SHORT, "alongn~*", "*~1.tex"] {
            assert_eq!(listed(&mut c, class, pattern).unwrap(), pairs(&[(LONG, SHORT)]), "{pattern}");
        }
        assert_eq!(listed(&mut c, class, "ALONGN~2.TEX").unwrap_err(), NtStatus::NO_SUCH_FILE);
    }
    assert_eq!(c.content("alongn~1.tex"), b"content");
    let f = c.open(want(SHORT).existing());
    assert_eq!(alternate(&mut c, f.id).unwrap(), SHORT);
    let plain = c.open(want("PLAIN").existing());
    assert_eq!(alternate(&mut c, plain.id).unwrap(), "plain");
    let root = c.open(want("").existing().directory());
    assert_eq!(alternate(&mut c, root.id).unwrap_err(), NtStatus::OBJECT_NAME_NOT_FOUND);
    let too_short = c.status(&query_info(root.id, info_type::FILE, file_class::ALTERNATE_NAME, 0, &[], 7));
    assert_eq!(too_short, NtStatus::INFO_LENGTH_MISMATCH, "the length first");
    // What is told of the file has its long name.
    let path = c.query(f.id, file_class::NORMALIZED_NAME);
    assert_eq!(arden_wire::cursor::utf16_string(&path[4..]).unwrap(), LONG);
    c.close(f.id);
    // Made by its 8.3 name it is the one that is there; replaced and deleted by it as by its name.
    assert_eq!(c.fails(want(SHORT).disposition(CREATE)), NtStatus::OBJECT_NAME_COLLISION);
    let f = c.open(want(SHORT).disposition(OVERWRITE));
    c.write(f.id, 0, b"over");
    c.close(f.id);
    assert_eq!(c.content(LONG), b"over");
    let f = c.open(want(SHORT).existing().delete_on_close());
    c.close(f.id);
    assert_eq!(c.fails(want(LONG).existing()), NtStatus::OBJECT_NAME_NOT_FOUND);
}

/// What is listed with an 8.3 name is found by it also where none is kept.
#[test]
fn names_are_found_by_8_3_names_that_are_made() {
    let (made, _) = lab();
    let of_volume = client(&made, USER);
    let directory = Lab::new();
    for mut c in [of_volume, directory.client()] {
        c.put(LONG, b"content");
        c.put("B long name.text", b"");
        let class = file_class::BOTH_DIRECTORY;
        let all = listed(&mut c, class, "*").unwrap();
        for (name, short) in &all {
            assert!(short.contains('~'), "{name}: {short}");
            for pattern in [short.clone(), short.to_lowercase()] {
                assert_eq!(listed(&mut c, class, &pattern).unwrap(), pairs(&[(name, short)]), "{pattern}");
            }
        }
        assert_eq!(all.len(), 2);
        assert_eq!(listed(&mut c, class, "ABCDEF~1.TEX").unwrap_err(), NtStatus::NO_SUCH_FILE);
        // In one listing, and below a directory.
        c.open(want("sub").directory());
        c.put("sub\\A long name.text", b"");
        let sub = c.open(want("sub").existing().access(FILE_LIST_DIRECTORY).directory());
        for pattern in [all[0].1.as_str(), "other", &all[0].1] {
            let flags = arden_wire::smb2::info::directory_flags::RESTART_SCANS;
            let found = c.call(&query_directory(sub.id, class, flags, pattern, 60_000)).result();
            assert_eq!(found.is_ok(), pattern != "other", "{pattern}");
        }
    }
}

/// Where the names of the directory are too many to be gone through on a thread that serves others.
#[test]
fn an_8_3_name_that_is_made_is_found_among_thousands() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.open(want("many").directory());
    (0..5000).for_each(|i| std::fs::write(lab.host(&format!("many/name {i} of many")), b"").unwrap());
    let many = c.open(want("many").existing().access(FILE_LIST_DIRECTORY).directory());
    let name = "name 4321 of many";
    let short = arden_store::name::short_name(name).unwrap();
    for flags in [0, arden_wire::smb2::info::directory_flags::RESTART_SCANS] {
        let found = c.call(&query_directory(many.id, file_class::NAMES, flags, &short, 60_000)).result().unwrap();
        let found: Vec<_> = entries(found.buffer(), file_class::NAMES).into_iter().map(|(name, _)| name).collect();
        assert_eq!(found, [name]);
    }
}

/// `FileInfo_Set_FileShortNameInfo_File_IsShortNameSupported`, `FileInfo_Set_FileShortNameInfo_Dir_IsShortNameSupported`
#[test]
fn short_names_are_set() {
    let (lab, mut c, volume) = keeping();
    c.put(LONG, b"content");
    c.put("Another name.text", b"");
    c.put("plain", b"");
    let f = c.open(backup(LONG));
    for taken in ["PLAIN", "another~1", "anothe~1.tex"] {
        let wanted = if taken == "another~1" { NtStatus::INVALID_PARAMETER } else { NtStatus::OBJECT_NAME_COLLISION };
        assert_eq!(set(&mut c, f.id, taken), wanted, "{taken}");
    }
    for wrong in ["\\X", "a b", "A.B.C", "TOOLONGNAME", "x.text", "ä", "*"] {
        assert_eq!(set(&mut c, f.id, wrong), NtStatus::INVALID_PARAMETER, "{wrong}");
    }
    assert_eq!(c.set(f.id, file_class::BASIC, &basic(0, 0, 0, 0, arden_wire::access::ATTR_NORMAL)), NtStatus::SUCCESS);
    assert_eq!(set(&mut c, f.id, "MINE.TXT"), NtStatus::SUCCESS);
    assert_eq!(alternate(&mut c, f.id).unwrap(), "MINE.TXT");
    assert_eq!(le_u32(&c.query(f.id, file_class::BASIC), 32), arden_wire::access::ATTR_ARCHIVE);
    assert_eq!(
        (c.content("mine.txt"), c.fails(want(SHORT).existing())),
        (b"content".to_vec(), NtStatus::OBJECT_NAME_NOT_FOUND)
    );
    // [MS-FSCC] 2.4.46: an empty name takes it away.
    assert_eq!(set(&mut c, f.id, ""), NtStatus::SUCCESS);
    assert_eq!(alternate(&mut c, f.id).unwrap_err(), NtStatus::OBJECT_NAME_NOT_FOUND);
    assert_eq!(c.fails(want("mine.txt").existing()), NtStatus::OBJECT_NAME_NOT_FOUND);
    // A directory's, while nothing below it is open.
    c.make_directory("A directory.with files");
    c.put("A directory.with files\\f", b"");
    let dir = c.open(backup("A directory.with files").directory());
    let below = c.open(want("ADIREC~1.WIT\\f").existing());
    assert_eq!(set(&mut c, dir.id, "DIR"), NtStatus::ACCESS_DENIED);
    c.close(below.id);
    assert_eq!(set(&mut c, dir.id, "DIR"), NtStatus::SUCCESS);
    assert_eq!(c.content("dir\\f"), b"");
    // Where they are switched off, and for who has no privilege.
    volume.set_short_names(ShortNames::Off).unwrap();
    assert_eq!(set(&mut c, dir.id, "DIR2"), NtStatus(0xC000_019F));
    volume.set_short_names(ShortNames::Kept).unwrap();
    lab.users.add_user("carol", PASSWORD, &[]);
    let mut other = client(&lab, "carol");
    c.make_with("hers", vec![arden_wire::dtyp::Ace::allow(&arden_wire::dtyp::well_known::EVERYONE, ALL_ACCESS, 0)]);
    let g = other.open(backup("hers").existing().access(FILE_WRITE_ATTRIBUTES | DELETE));
    assert_eq!(set(&mut other, g.id, "CAROL"), NtStatus::PRIVILEGE_NOT_HELD);
    assert!(volume.check(true).unwrap().is_clean());
}

#[test]
fn changes_of_short_names_are_told() {
    let (lab, mut c, _) = keeping();
    c.put(LONG, b"");
    let mut watcher = client(&lab, USER);
    let root = watcher.open(want("").directory().access(FILE_GENERIC_READ)).id;
    let f = c.open(backup(LONG));
    let mut told = |c: &mut Client, name: &str| {
        let id = watcher.send(&notify(root, 0, 1, 4096));
        assert_eq!(set(c, f.id, name), NtStatus::SUCCESS, "{name}");
        changes(watcher.receive(id).ok().buffer())
    };
    let renamed = |from: &str, to: &str| vec![(NAMES[0], from.to_owned()), (NAMES[1], to.to_owned())];
    assert_eq!(told(&mut c, "MINE"), renamed(SHORT, "MINE"));
    // What it is called already is no change.
    assert_eq!(set(&mut c, f.id, "MINE"), NtStatus::SUCCESS);
    assert_eq!(told(&mut c, "OTHER"), renamed("MINE", "OTHER"));
    assert_eq!(told(&mut c, ""), [(REMOVED, "OTHER".to_owned())]);
    assert_eq!(told(&mut c, "NEW"), [(NAMES[1], "NEW".to_owned())]);
}

/// Renaming and linking to an 8.3 name takes the file that has it, by the rules for a name.
#[test]
fn new_names_meet_short_names() {
    let (_lab, mut c, volume) = keeping();
    c.put(LONG, b"old");
    c.put("f", b"new");
    let f = c.open(want("f").existing());
    assert_eq!(c.rename(f.id, SHORT, false), NtStatus::OBJECT_NAME_COLLISION);
    let target = c.open(want(LONG).existing());
    assert_eq!(c.rename(f.id, SHORT, true), NtStatus::ACCESS_DENIED, "it is open");
    c.close(target.id);
    assert_eq!(c.rename(f.id, SHORT, true), NtStatus::SUCCESS);
    assert_eq!(c.content(SHORT), b"new");
    assert_eq!(c.fails(want(LONG).existing()), NtStatus::OBJECT_NAME_NOT_FOUND);
    // To its own.
    assert_eq!(c.rename(f.id, "Another name.text", false), NtStatus::SUCCESS);
    assert_eq!(c.rename(f.id, "ANOTHE~1.TEX", false), NtStatus::SUCCESS);
    assert_eq!(listed(&mut c, file_class::BOTH_DIRECTORY, "*").unwrap(), pairs(&[("ANOTHE~1.TEX", "")]));
    assert!(volume.check(true).unwrap().is_clean());
}
