//! Opens that come between the look at who has a file open and the change that followed from it.

use std::sync::Arc;

use arden_store::{
    dir::{DirOptions, DirStore},
    error::{NotDone, StoreError},
    fs::{Disposition, Fs, NameChange, OpenError, Step},
    name::NtPath,
};
use parking_lot::Mutex;

use crate::{
    hooked::{Hook, Hooked},
    world::*,
};

/// Two views of one directory: what is done by the first runs into its hook.
struct Race {
    w: World,
    beside: Arc<World>,
    hook: Arc<Hook>,
}

impl Race {
    fn new() -> Race {
        let mut w = World::new();
        let mut beside = World::with(w.table.clone());
        let store = DirStore::open(&w.dir, DirOptions::default()).unwrap();
        let hook = Arc::new(Hook::default());
        beside.fs = Fs::new(store.clone(), w.table.clone());
        w.fs = Fs::new(Arc::new(Hooked { store, hook: hook.clone() }), w.table.clone());
        Race { w, beside: Arc::new(beside), hook }
    }

    /// What comes of an open that is made right before the next change of a name.
    fn opens(&self, want: Want) -> Arc<Mutex<Option<String>>> {
        let came = Arc::new(Mutex::new(None));
        let (told, beside) = (came.clone(), self.beside.clone());
        self.hook.before_change(move || {
            let result = match beside.try_open(&want) {
                Ok(Step::Done(_)) => "opened".to_owned(),
                Ok(Step::Wait(wait)) => format!("resume {}", wait.0),
                Err(OpenError::NotDone(NotDone::Failed(e))) => format!("{e:?}"),
                Err(e) => format!("{e:?}"),
            };
            *told.lock() = Some(result);
        });
        came
    }

    /// The open waited, and goes on now.
    #[track_caller]
    fn went_on(&self, came: &Mutex<Option<String>>) {
        let came = came.lock().take().expect("the change was made");
        assert!(came.starts_with("resume"), "{came}");
        assert_eq!(self.beside.told(), [came]);
    }
}

/// [MS-FSA] 2.1.5.15.12: a file that is open makes no way; one that is opened a moment later is the new one.
#[test]
fn nobody_opens_a_file_that_a_rename_replaces() {
    for existing in [want("t").existing().share(0), want("t").existing().access(FILE_READ_ATTRIBUTES)] {
        let r = Race::new();
        r.w.close(r.w.open(want("t")));
        let f = r.w.open(want("f"));
        let came = r.opens(existing.clone());
        assert!(matches!(r.w.rename(&f, "t", true), Ok(Step::Done(()))));
        r.went_on(&came);
        let now = r.beside.open(existing.share(RWD));
        assert_eq!(now.file_id(), f.file_id());
        r.beside.close(now);
        r.w.close(f);
        assert_eq!(r.w.table.open_count(), 0);
    }
}

/// The same of FileLinkInformation, [MS-FSA] 2.1.5.15.7.
#[test]
fn nobody_opens_a_file_that_a_link_replaces() {
    let r = Race::new();
    r.w.close(r.w.open(want("t")));
    let f = r.w.open(want("f"));
    let came = r.opens(want("t").existing());
    let how = NameChange { replace: true, ..NameChange::default() };
    assert!(matches!(r.w.fs.link(&f, &NtPath::parse("t").unwrap(), how, r.w.cause()), Ok(Step::Done(()))));
    r.went_on(&came);
    assert_eq!(r.beside.open(want("t").existing()).file_id(), f.file_id());
}

/// A rename that comes to nothing lets the file be opened again, as it is.
#[test]
fn who_waited_for_a_rename_that_failed_opens_what_is_there() {
    let r = Race::new();
    let t = r.w.open(want("t"));
    let id = t.file_id();
    r.w.close(t);
    let f = r.w.open(want("f"));
    let (gone, came) = (r.w.dir.join("f"), r.opens(want("t").existing()));
    // Somebody else takes the file away.
    std::fs::remove_file(gone).unwrap();
    assert!(r.w.rename(&f, "t", true).is_err());
    r.went_on(&came);
    assert_eq!(r.beside.open(want("t").existing().share(0)).file_id(), id);
}

/// [MS-FSA] 2.1.5.15.12.1: a stream that is open makes no way either, and one that is made a moment later is another.
#[test]
fn nobody_opens_a_stream_that_a_rename_replaces() {
    let create = want("f:two").disposition(Disposition::Create);
    for (there, comes) in [(true, want("f:two").existing().share(0)), (false, create.clone()), (true, want("f"))] {
        let r = Race::new();
        if there {
            r.w.close(r.w.open(want("f:two")));
        }
        let one = r.w.open(want("f:one"));
        let came = r.opens(comes.clone());
        let to = NtPath { stream: Some("two".into()), ..NtPath::default() };
        let how = NameChange { replace: true, ..NameChange::default() };
        assert!(matches!(r.w.fs.rename(&one, &to, how, r.w.cause()), Ok(Step::Done(()))));
        r.went_on(&came);
        assert_eq!(r.w.fs.path(&one), "f:two");
        match comes.disposition {
            Disposition::Create => assert_eq!(r.beside.fails(create.clone()), StoreError::NameCollision),
            _ => drop(r.beside.open(comes.share(RWD))),
        }
    }
}

/// [MS-FSA] 2.1.5.5: from the close that deletes a file or stream until its name is gone nobody opens it any more.
#[test]
fn nobody_opens_what_a_close_deletes() {
    for (name, by) in
        [("f", want("f").existing().share(0)), ("f:s", want("f:s").existing()), ("d", want("d").existing())]
    {
        let r = Race::new();
        r.w.close(r.w.open(if name == "d" { want(name).directory() } else { want(name) }));
        let came = r.opens(by.clone());
        r.w.unlink(name).unwrap();
        assert_eq!(came.lock().take().as_deref(), Some("DeletePending"), "{name}");
        assert_eq!(r.beside.fails(by), StoreError::NotFound);
        assert_eq!(r.w.table.open_count(), 0);
        // Nothing is left that keeps another of the name from being opened.
        r.w.close(r.w.open(if name == "d" { want(name).directory() } else { want(name) }));
    }
}

/// [MS-FSA] 2.1.4.2: nothing below a directory is open when it is moved; who comes while it is finds it gone.
#[test]
fn nobody_opens_something_below_a_directory_that_is_moved() {
    let create = want("d\\b\\new").disposition(Disposition::Create);
    let stream = want("d\\f:new").disposition(Disposition::Create);
    for comes in [want("d\\f").existing(), want("d\\b").existing(), want("d").existing(), create, stream] {
        let r = Race::new();
        for (name, directory) in [("d", true), ("d\\b", true), ("d\\f", false)] {
            r.w.close(r.w.open(if directory { want(name).directory() } else { want(name) }));
        }
        let d = r.w.open(want("d").directory());
        let came = r.opens(comes.clone());
        assert!(matches!(r.w.rename(&d, "e", false), Ok(Step::Done(()))), "{}", comes.path);
        r.went_on(&came);
        let gone = if comes.path == "d" { StoreError::NotFound } else { StoreError::PathNotFound };
        assert_eq!(r.beside.fails(comes), gone);
        assert!(!r.w.dir.join("e/b/new").exists());
        r.w.close(d);
        // It can be moved again: nothing of who came is left.
        let e = r.w.open(want("e").directory());
        assert!(matches!(r.w.rename(&e, "d", false), Ok(Step::Done(()))));
        r.w.close(e);
        assert_eq!(r.w.table.open_count(), 0);
    }
}

/// The directory is moved before the new file is in the table: it is not left behind, and not open, where the directory is now.
#[test]
fn nothing_is_made_in_a_directory_that_was_moved_meanwhile() {
    let r = Race::new();
    let d = r.w.open(want("d").directory());
    r.w.close(r.w.open(want("d\\f")));
    let beside = r.beside.clone();
    r.hook.before_change(move || {
        let d = beside.open(want("d").directory());
        assert!(matches!(beside.rename(&d, "e", false), Ok(Step::Done(()))));
        beside.close(d);
    });
    assert_eq!(r.w.fails(want("d\\new").disposition(Disposition::Create)), StoreError::PathNotFound);
    assert!(!r.w.dir.join("e/new").exists() && r.w.dir.join("e/f").exists());
    r.w.close(d);
    assert_eq!(r.w.table.open_count(), 0);
}
