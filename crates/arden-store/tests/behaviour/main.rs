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
    store::FileStore,
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
