//! What every `FileStore` has to do, over a directory.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use arden_store::{
    dir::{DirOptions, DirStore},
    store::{FileStore, NewFile, Wait},
};

/// A directory that goes away with its user.
struct TempDir(PathBuf);

impl TempDir {
    fn make() -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("arden-behaviour-{}-{n}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        TempDir(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn dir_store() -> (TempDir, Arc<dyn FileStore>) {
    let temp = TempDir::make();
    let store = DirStore::open(&temp.0, DirOptions::default()).unwrap();
    (temp, store)
}

arden_testkit::all_cases!(dir: crate::dir_store);

/// A create that is asked for again finds its stream under the stream's name, and nothing under one that the stream had before.
#[test]
fn the_mark_of_a_stream_goes_with_its_name() {
    let (_temp, store) = dir_store();
    let new = NewFile { directory: false, attributes: 0, security: None, eas: &[], allocation: None };
    let f = store.root().create_child(None, "f", &new).unwrap();
    let s = f.create_stream_marked(None, "s", 7).unwrap();
    s.rename_stream(None, Some("a longer name"), false).unwrap();
    assert_eq!(s.create_mark(), Ok(Some(7)));
    s.rename_stream(None, Some("t"), false).unwrap();
    s.write_at(None, 0, &[1; 200_000], Wait::Yes).unwrap();
    s.rename_stream(None, Some("T"), false).unwrap();
    assert_eq!(s.create_mark(), Ok(Some(7)));
    f.rename_stream(None, Some("s"), false).unwrap();
    assert_eq!(f.create_mark(), Ok(None), "the data of the file has another name now, which no create made");
}
