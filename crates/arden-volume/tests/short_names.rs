//! 8.3 names that a volume keeps, [MS-FSA] 2.1.1.4 ShortName: who gets which, that they lead to their files and go with them,
//! what may be set, and that the setting is the volume's own.

mod lab;

use std::{collections::BTreeSet, sync::Arc};

use arden_store::{
    error::StoreError,
    name::{SHORT_CANDIDATES_MAX, short_name},
    store::{DirEntry, FileStore, Lookup, NewFile, NodeRef, Wait},
};
use arden_volume::{MemDevice, ShortNames, Superblock, VolError, VolumeOptions};
use arden_wire::FileTime;

use lab::{Lab, find, formatted};

const LONG: &str = "A long name.text";
const SHORT: &str = "ALONGN~1.TEX";
const FEATURE: u32 = 512;

fn options() -> VolumeOptions {
    VolumeOptions { background: false, ..VolumeOptions::default() }
}

/// A volume that keeps 8.3 names.
fn keeping() -> Lab {
    let lab = Lab::on(formatted(), options());
    lab.volume.set_short_names(ShortNames::Kept).unwrap();
    lab
}

impl Lab {
    fn root(&self) -> NodeRef {
        self.store.root()
    }

    fn make(&self, name: &str) -> NodeRef {
        make(&self.root(), name, false)
    }

    fn find(&self, path: &str) -> Option<NodeRef> {
        find(&*self.store, path)
    }

    /// After the loss of all that was not durable.
    fn again(self) -> Lab {
        self.volume.sync().unwrap();
        Lab::on(Arc::new(MemDevice::holding(self.device.content())), options())
    }

    #[track_caller]
    fn check(&self) {
        let report = self.volume.check(true).unwrap();
        assert!(report.is_clean(), "{:?}", report.errors);
    }

    /// Of a name in the root; None where it has none, and where it is its own.
    #[track_caller]
    fn short(&self, name: &str) -> Option<String> {
        let short = self.find(name).unwrap_or_else(|| panic!("there is no {name}")).short_name().unwrap();
        let listed = list(&self.root(), &|_| true).into_iter().find(|e| e.name == name).unwrap();
        assert_eq!(listed.short_name(), short.clone().filter(|s| s != name), "{name}");
        short.filter(|s| s != name)
    }

    /// What a name leads to.
    #[track_caller]
    fn path(&self, name: &str) -> Option<String> {
        self.find(name).map(|node| node.path().join("\\"))
    }
}

fn make(directory: &NodeRef, name: &str, is_directory: bool) -> NodeRef {
    let new = NewFile { directory: is_directory, attributes: 0, security: None, eas: &[], allocation: None };
    directory.create_child(None, name, &new).unwrap()
}

fn list(directory: &NodeRef, accept: &dyn Fn(&str) -> bool) -> Vec<DirEntry> {
    let (mut cursor, mut out) = (directory.list().unwrap(), Vec::new());
    while let Some(entry) = cursor.peek(accept).unwrap() {
        out.push(entry);
        cursor.advance();
    }
    out
}

#[test]
fn names_get_short_names_in_the_order_of_ntfs_and_both_lead_to_the_file() {
    let lab = keeping();
    for n in 1..=4 {
        lab.make(&format!("A long name {n}.text"));
    }
    for n in 1..=4 {
        assert_eq!(lab.short(&format!("A long name {n}.text")).unwrap(), format!("ALONGN~{n}.TEX"));
        assert_eq!(lab.path(&format!("alongn~{n}.tex")).unwrap(), format!("A long name {n}.text"));
    }
    lab.make("A long name 5.text");
    let fifth = lab.short("A long name 5.text").unwrap();
    assert!(fifth.starts_with("AL") && fifth.ends_with("~1.TEX") && !fifth.contains("ALONGN"), "{fifth}");
    assert_eq!(lab.path(&fifth).unwrap(), "A long name 5.text");
    // An 8.3 name is its own.
    let own = lab.make("ReadMe.txt");
    assert_eq!(own.short_name().unwrap().unwrap(), "ReadMe.txt");
    assert_eq!(lab.short("ReadMe.txt"), None);
    assert_eq!(lab.root().short_name().unwrap(), None);
    // On the way, in a stream's path, and of a directory.
    let dir = make(&lab.root(), "a directory with files", true);
    make(&dir, LONG, false).create_stream(None, "s").unwrap();
    assert_eq!(lab.path("ADIREC~1\\alongn~1.tex").unwrap(), format!("a directory with files\\{LONG}"));
    assert_eq!(lab.find("ADIREC~1\\alongn~1.tex:S").unwrap().stream(), Some("s"));
    lab.check();
    let lab = lab.again();
    assert_eq!(lab.short("A long name 5.text").unwrap(), fifth);
    lab.check();
}

#[test]
fn nothing_else_is_called_like_a_short_name() {
    let lab = keeping();
    // What is there keeps its name, and what comes gets another.
    lab.make(SHORT).write_at(None, 0, b"first", Wait::Yes).unwrap();
    lab.make(LONG);
    assert_eq!(lab.short(LONG).unwrap(), "ALONGN~2.TEX");
    let new = NewFile { directory: false, attributes: 0, security: None, eas: &[], allocation: None };
    let taken = lab.root().create_child(None, "alongn~2.TEX", &new).map(drop);
    assert_eq!(taken.unwrap_err(), StoreError::NameCollision);
    // Names that are moved there are held to it as well, and replace the file whose short name it is.
    for (link, left) in [(false, 2), (true, 3)] {
        let f = lab.make("f");
        f.write_at(None, 0, b"new", Wait::Yes).unwrap();
        let take = |replace| match link {
            true => f.link(None, &*lab.root(), "alongn~2.tex", replace),
            false => f.rename(None, &*lab.root(), "alongn~2.tex", replace),
        };
        assert_eq!(take(false).unwrap_err(), StoreError::NameCollision);
        take(true).unwrap();
        assert!(lab.find(LONG).is_none(), "it made way");
        assert_eq!(lab.path("ALONGN~2.TEX").unwrap(), "alongn~2.tex");
        assert_eq!(list(&lab.root(), &|_| true).len(), left);
        lab.check();
        lab.find("alongn~2.tex").unwrap().unlink(None).unwrap();
        if !link {
            lab.make(LONG);
            assert_eq!(lab.short(LONG).unwrap(), "ALONGN~2.TEX");
        }
    }
}

#[test]
fn short_names_go_with_their_names() {
    let lab = keeping();
    let f = lab.make(LONG);
    f.rename(None, &*lab.root(), "Another name.html", false).unwrap();
    assert!(lab.find(SHORT).is_none());
    assert_eq!(lab.path("ANOTHE~1.HTM").unwrap(), "Another name.html");
    // Another spelling of the same name keeps it.
    f.rename(None, &*lab.root(), "ANOTHER name.html", false).unwrap();
    assert_eq!(lab.path("ANOTHE~1.HTM").unwrap(), "ANOTHER name.html");
    let dir = make(&lab.root(), "dir", true);
    f.rename(None, &*dir, "ANOTHER name.html", false).unwrap();
    assert!(lab.find("ANOTHE~1.HTM").is_none());
    assert_eq!(lab.path("dir\\anothe~1.htm").unwrap(), "dir\\ANOTHER name.html");
    // To a name that is none beside it, and to its own.
    f.rename(None, &*dir, "plain", false).unwrap();
    assert!(lab.find("dir\\anothe~1.htm").is_none());
    f.rename(None, &*lab.root(), LONG, false).unwrap();
    f.rename(None, &*lab.root(), SHORT, false).unwrap();
    assert_eq!((lab.path(SHORT).unwrap().as_str(), lab.short(SHORT)), (SHORT, None));
    f.rename(None, &*lab.root(), LONG, false).unwrap();
    lab.check();
    f.unlink(None).unwrap();
    assert!(lab.find(SHORT).is_none());
    assert!(list(&lab.root(), &|_| true).iter().all(|e| e.name == "dir"));
    dir.unlink(None).unwrap();
    lab.check();
    // Nothing is left of them.
    assert_eq!(lab.again().volume.repair(true).unwrap().done, Vec::<String>::new());
}

#[test]
fn of_several_names_the_first_has_one() {
    let lab = keeping();
    let f = lab.make(LONG);
    f.link(None, &*lab.root(), "A second name.text", false).unwrap();
    assert_eq!((lab.short(LONG).as_deref(), lab.short("A second name.text")), (Some(SHORT), None));
    let second = lab.find("A second name.text").unwrap();
    second.rename(None, &*lab.root(), "A third name.text", false).unwrap();
    assert_eq!(lab.short("A third name.text"), None);
    assert_eq!(second.set_short_name(None, "MINE").unwrap_err(), StoreError::NameCollision);
    lab.find(SHORT).unwrap().unlink(None).unwrap();
    assert!(lab.find(SHORT).is_none());
    lab.check();
    // It is the first now, and gets one with its next name.
    second.rename(None, &*lab.root(), "The only name.text", false).unwrap();
    assert_eq!(lab.short("The only name.text").unwrap(), "THEONL~1.TEX");
    lab.check();
}

#[test]
fn short_names_can_be_set_and_taken_away() {
    let lab = keeping();
    let f = lab.make(LONG);
    lab.make("Another name.text");
    lab.make("plain");
    for taken in ["PLAIN", "anothe~1.tex"] {
        assert_eq!(f.set_short_name(None, taken).unwrap_err(), StoreError::NameCollision, "{taken}");
    }
    assert_eq!(lab.short(LONG).unwrap(), SHORT);
    let before = f.stat().unwrap().change;
    f.set_short_name(None, "Mine.txt").unwrap();
    assert!(f.stat().unwrap().change >= before);
    assert!(lab.find(SHORT).is_none());
    assert_eq!((lab.short(LONG).unwrap().as_str(), lab.path("MINE.TXT").unwrap().as_str()), ("Mine.txt", LONG));
    f.set_short_name(None, "MINE.TXT").unwrap();
    assert_eq!(lab.short(LONG).unwrap(), "MINE.TXT");
    // A name that is an 8.3 name may have another beside it.
    let plain = lab.find("plain").unwrap();
    plain.set_short_name(None, "OTHER").unwrap();
    assert_eq!((lab.short("plain").unwrap().as_str(), lab.path("other").unwrap().as_str()), ("OTHER", "plain"));
    plain.set_short_name(None, "PLAIN").unwrap();
    assert_eq!((lab.short("plain"), lab.path("other")), (None, None));
    f.set_short_name(None, "").unwrap();
    assert_eq!((lab.short(LONG), lab.path("mine.txt")), (None, None));
    assert_eq!(f.short_name().unwrap(), None);
    f.set_short_name(None, "").unwrap();
    lab.check();
    f.unlink(None).unwrap();
    assert_eq!(f.set_short_name(None, "LATE").unwrap_err(), StoreError::Deleted);
    assert_eq!(lab.root().set_short_name(None, "ROOT").unwrap_err(), StoreError::RootStays);
    lab.check();
}

#[test]
fn a_query_takes_entries_by_their_short_names() {
    let lab = keeping();
    lab.make(LONG);
    lab.make("other");
    let found = list(&lab.root(), &|name| name == SHORT);
    assert_eq!(found.iter().map(|e| e.name.as_str()).collect::<Vec<_>>(), [LONG]);
    assert_eq!(found[0].short_name().as_deref(), Some(SHORT));
    // Again after what was read ahead was given up.
    let mut cursor = lab.root().list().unwrap();
    assert_eq!(cursor.peek(&|name| name == SHORT).unwrap().unwrap().name, LONG);
    cursor.forget_read_ahead().unwrap();
    assert_eq!(cursor.peek(&|name| name == SHORT).unwrap().unwrap().name, LONG);
}

#[test]
fn a_name_that_comes_back_soon_has_its_short_name_back() {
    let lab = keeping();
    lab.make("A long name 1");
    lab.make("A long name 2").unlink(None).unwrap();
    lab.find("A long name 1").unwrap().unlink(None).unwrap();
    lab.make("A LONG name 2");
    assert_eq!(lab.short("A LONG name 2").unwrap(), "ALONGN~2");
    // Made again by its short name it has its long one back.
    lab.make("alongn~1");
    assert_eq!(
        (lab.path("ALONGN~1").as_deref(), lab.find("alongn~1").unwrap().path()),
        (Some("A long name 1"), vec!["A long name 1".to_owned()])
    );
    // Unless somebody else has that by now.
    lab.find("ALONGN~1").unwrap().unlink(None).unwrap();
    let other = lab.make("other");
    other.rename(None, &*lab.root(), "A long name 1", false).unwrap();
    other.set_short_name(None, "OTHER").unwrap();
    assert_eq!(lab.make("ALONGN~1").path(), ["ALONGN~1"]);
    // What is saved under another name and moved to the place of what went has its 8.3 name, too.
    let doc = lab.make("The document.docx");
    let own = doc.short_name().unwrap().unwrap();
    doc.set_short_name(None, "DOC").unwrap();
    doc.rename(None, &*lab.root(), "backup", false).unwrap();
    lab.make("temporary").rename(None, &*lab.root(), "The document.docx", false).unwrap();
    assert_eq!((own.as_str(), lab.short("The document.docx").as_deref()), ("THEDOC~1.DOC", Some("DOC")));
    lab.check();
}

#[test]
fn the_setting_is_kept_and_names_that_are_there_stay_as_they_are() {
    let device = formatted();
    let lab = Lab::on(device.clone(), options());
    assert_eq!((lab.volume.short_names().unwrap(), lab.store.generates_short_names()), (ShortNames::Made, false));
    let f = lab.make(LONG);
    let made = short_name(LONG).unwrap();
    assert_eq!(lab.short(LONG).unwrap(), made);
    assert_eq!(f.set_short_name(None, "MINE").unwrap_err(), StoreError::ShortNamesDisabled);
    lab.volume.create_snapshot(FileTime(20_000_000), "made").unwrap();
    assert_eq!(Superblock::read(&*device).unwrap().features & FEATURE, 0);
    lab.volume.set_short_names(ShortNames::Kept).unwrap();
    assert_eq!(Superblock::read(&*device).unwrap().features & FEATURE, FEATURE, "before the first record");
    // Durable when it returned: what the device holds is enough.
    let lab = Lab::on(Arc::new(MemDevice::holding(device.content())), options());
    assert_eq!((lab.volume.short_names().unwrap(), lab.store.generates_short_names()), (ShortNames::Kept, true));
    // As on NTFS, what was there before has none until its name changes, or one is set.
    assert_eq!((lab.short(LONG), lab.path(&made)), (None, None));
    lab.find(LONG).unwrap().set_short_name(None, "MINE").unwrap();
    let past = lab.store.snapshot(FileTime(20_000_000)).unwrap();
    assert_eq!(find(&*past, &made).unwrap().short_name().unwrap().unwrap(), made, "the past is as it was");
    assert!(find(&*past, "MINE").is_none());
    lab.make("Another name.text");
    lab.volume.create_snapshot(FileTime(40_000_000), "kept").unwrap();

    lab.volume.set_short_names(ShortNames::Off).unwrap();
    assert!(!lab.store.generates_short_names());
    let before = lab.find("anothe~1.TEX").unwrap();
    assert_eq!(before.set_short_name(None, "X").unwrap_err(), StoreError::ShortNamesDisabled);
    lab.make("A name of today.text");
    assert_eq!(lab.short("A name of today.text"), None);
    before.rename(None, &*lab.root(), "Renamed today.text", false).unwrap();
    assert_eq!((lab.short("Renamed today.text"), lab.path("anothe~1.TEX")), (None, None));
    assert_eq!(lab.path("mine").unwrap(), LONG);
    let past = lab.store.snapshot(FileTime(40_000_000)).unwrap();
    assert_eq!(find(&*past, "anothe~1.TEX").unwrap().path(), ["Another name.text"]);
    assert_eq!(find(&*past, "anothe~1.TEX").unwrap().set_short_name(None, "X").unwrap_err(), StoreError::ReadOnly);
    let refused = lab.volume.set_short_names(ShortNames::Made).unwrap_err();
    assert!(matches!(refused, VolError::Refused(_)), "{refused}");
    lab.check();
    let lab = lab.again();
    assert_eq!(lab.volume.short_names().unwrap(), ShortNames::Off);
    lab.volume.set_short_names(ShortNames::Kept).unwrap();
    lab.find("Renamed today.text").unwrap().rename(None, &*lab.root(), "Renamed again.text", false).unwrap();
    assert_eq!(lab.short("Renamed again.text").unwrap(), "RENAME~1.TEX");
    lab.check();
}

#[test]
fn thousands_of_names_alike_have_short_names_of_their_own() {
    let lab = keeping();
    let root = lab.root();
    let names = 5000;
    for n in 0..names {
        make(&root, &format!("The same beginning {n}.text"), false);
    }
    let listed = list(&root, &|_| true);
    let shorts: BTreeSet<String> = listed.iter().filter_map(|e| e.short_name()).collect();
    assert_eq!((listed.len(), shorts.len()), (names, names));
    assert_eq!(lab.path(shorts.last().unwrap()).unwrap().split(' ').count(), 4);
    lab.check();
}

/// A name with as many others like it as it has candidates.
#[test]
fn a_name_without_a_free_candidate_has_none_and_is_whole() {
    let lab = keeping();
    let all: Vec<String> = arden_store::name::short_candidates(LONG).collect();
    assert_eq!(all.len(), SHORT_CANDIDATES_MAX);
    for short in &all {
        lab.make(short);
    }
    lab.make(LONG);
    assert_eq!(lab.short(LONG), None);
    lab.check();
}

#[test]
fn streams_and_missing_names_have_nothing_of_it() {
    let lab = keeping();
    let f = lab.make(LONG);
    let stream = f.create_stream(None, "s").unwrap();
    assert_eq!(stream.set_short_name(None, "S").unwrap_err(), StoreError::InvalidParameter);
    for missing in ["ALONGN~2.TEX", "ALONGN~1", "ALONGN~1.TE", "NOTHING"] {
        let looked = lab.store.lookup(&arden_store::name::NtPath::parse(missing).unwrap()).unwrap();
        assert!(matches!(looked, Lookup::Missing { base: None, .. }), "{missing}");
    }
}
