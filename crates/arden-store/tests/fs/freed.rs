//! What gives much back to the disk is not done on a thread that serves others.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arden_store::{error::NotDone, fs::*, name::NtPath, scope::RequestScope, table::Open};

use crate::world::*;

const MUCH: usize = 17 << 20;

fn made(w: &World, path: &str, bytes: usize) -> Arc<Open> {
    let f = w.open(want(path));
    w.write(&f, 0, &vec![7; bytes]).unwrap();
    f
}

fn size(w: &World, path: &str) -> u64 {
    let f = w.open(want(path).existing());
    let size = w.fs.stat(&f).unwrap().stat.end_of_file;
    w.close(f);
    size
}

/// Refused to a thread that must not wait, with nothing done; done on another.
pub fn asked_twice<T>(what: &str, much: bool, ask: impl Fn() -> Result<T, NotDone>, unchanged: impl Fn()) {
    let first = {
        let _scope = RequestScope::begin_without_waiting();
        ask()
    };
    match (first, much) {
        (Ok(_), false) => return,
        (Err(NotDone::WouldBlock), true) => unchanged(),
        (Ok(_), true) => panic!("{what}: it was done where it must not wait"),
        (Err(e), _) => panic!("{what}: {e}"),
    }
    let _scope = RequestScope::begin();
    assert!(ask().is_ok(), "{what}");
}

#[test]
fn large_files_are_not_overwritten_where_others_wait() {
    for (bytes, much) in [(MUCH, true), (1 << 20, false)] {
        for disposition in [Disposition::Overwrite, Disposition::OverwriteIf, Disposition::Supersede] {
            for stream in ["", ":s"] {
                let w = World::new();
                w.close(w.open(want("f")));
                w.close(made(&w, &format!("f{stream}"), bytes));
                let overwrite = || match w.try_open(&want("f").share(0).disposition(disposition)) {
                    Ok(Step::Done(opened)) => {
                        w.close(opened.open);
                        Ok(())
                    }
                    Ok(Step::Wait(_)) => panic!("nobody is in the way"),
                    Err(OpenError::NotDone(e)) => Err(e),
                    Err(OpenError::Symlink(_)) => panic!("there is none"),
                };
                let what = format!("{disposition:?} of a file with f{stream} of {bytes} bytes");
                asked_twice(&what, much, overwrite, || assert_eq!(size(&w, &format!("f{stream}")), bytes as u64));
                assert_eq!(size(&w, "f"), 0);
            }
        }
    }
}

#[test]
fn large_files_do_not_make_way_for_others_where_others_wait() {
    for (bytes, new, much) in [(MUCH, 5, true), (5, MUCH, true), (1 << 20, 1 << 20, false)] {
        for links in [false, true] {
            let w = World::new();
            w.close(made(&w, "large", bytes));
            let f = made(&w, "f", new);
            let (to, how) = (NtPath::parse("large").unwrap(), NameChange { replace: true, ..NameChange::default() });
            let replace = || match links {
                true => w.fs.link(&f, &to, how, w.cause()),
                false => w.rename(&f, "large", true),
            };
            asked_twice("replacing", much, replace, || assert_eq!(size(&w, "large"), bytes as u64));
            assert_eq!(size(&w, "large"), new as u64);
        }
    }
}

#[test]
fn who_closes_a_file_learns_whether_that_frees_much() {
    let w = World::new();
    let delete = |open: &Arc<Open>, posix| {
        let how = Disposal { delete: true, posix, ..Disposal::default() };
        assert!(matches!(w.fs.set_disposition(open, how, w.cause()).unwrap(), Step::Done(())));
    };
    for (bytes, much) in [(MUCH, true), (1 << 20, false)] {
        let f = made(&w, "f", bytes);
        assert!(!w.fs.closing_takes_long(&f), "it stays");
        delete(&f, false);
        assert_eq!(w.fs.closing_takes_long(&f), much);
        w.close(f);
        w.close(made(&w, "f:s", bytes));
        let f = w.open(want("f"));
        delete(&f, false);
        assert_eq!(w.fs.closing_takes_long(&f), much, "a large stream goes with it");
        w.close(f);
        let (f, other) = (made(&w, "f", bytes), w.open(want("f")));
        delete(&f, true);
        w.close(f);
        assert_eq!(w.fs.closing_takes_long(&other), much, "it has lost its name already");
        w.close(other);
        w.close(made(&w, "f", bytes));
        let f = w.open(want("f").options(OPT_DELETE_ON_CLOSE));
        assert_eq!(w.fs.closing_takes_long(&f), much);
        w.close(f);
    }
}

/// A file that was emptied and written anew is closed by another thread, and is closed.
#[test]
fn what_was_emptied_is_closed_soon() {
    let w = World::new();
    w.close(made(&w, "f", 1 << 20));
    let f = w.open(want("f").disposition(Disposition::Overwrite));
    w.write(&f, 0, &[1; 100]).unwrap();
    let path = w.dir.join("f");
    let is_open = || {
        let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        all.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|of| of == path)
    };
    assert!(is_open());
    w.close(f);
    let end = Instant::now() + Duration::from_secs(20);
    while is_open() {
        assert!(Instant::now() < end, "it stays open");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(size(&w, "f"), 100);
}

#[test]
fn and_whether_it_has_many_locks() {
    let w = World::new();
    let f = w.open(want("f"));
    for first in (0..10_000).step_by(2000) {
        assert!(!w.fs.closing_takes_long(&f), "{first}");
        let one = |n: u64| LockRange { offset: n * 2, len: 1, exclusive: true };
        let ranges: Vec<_> = (first..first + 2000).map(one).collect();
        assert!(matches!(w.fs.lock(&f, &ranges, true, w.cause()), Ok(Step::Done(()))));
    }
    assert!(w.fs.closing_takes_long(&f));
    w.close(f);
}

/// Each is taken away by itself where the file is emptied.
#[test]
fn many_streams_do_not_go_where_others_wait() {
    for (streams, much) in [(80, true), (20, false)] {
        let w = World::new();
        let f = w.open(want("f"));
        (0..streams).for_each(|n| w.close(w.open(want(&format!("f:{n}")))));
        let left = || w.fs.streams(&f).unwrap().len() - 1;
        let overwrite = want("f").disposition(Disposition::Overwrite);
        let overwrite = || match w.try_open(&overwrite) {
            Ok(_) => Ok(()),
            Err(OpenError::NotDone(e)) => Err(e),
            Err(e) => panic!("{e:?}"),
        };
        asked_twice("an overwrite", much, overwrite, || assert_eq!(left(), streams));
        assert_eq!(left(), 0);
    }
}
