//! A process is killed while it makes files with marks: what has a name has its mark and its descriptor, so that the
//! create that made it can be asked for again.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use arden_store::{
    dir::{DirOptions, DirStore},
    name::{NtPath, PathWants},
    store::{FileStore, Lookup, NewFile, NodeRef},
};
use arden_wire::dtyp::SecurityDescriptor;

/// Where the process that is killed works.
const CHILD: &str = "ARDEN_KILLED_CHILD";
const ROUNDS: u64 = 40;

fn owner_only() -> SecurityDescriptor {
    // Not the default, so that it has to be stored.
    SecurityDescriptor { owner: Some("S-1-5-21-1-2-3-1234".parse().unwrap()), ..Default::default() }
}

fn name(number: u128) -> String {
    format!("f{number}")
}

/// Files, directories, streams of a file that was there, and files with a stream at once, as fast as they can be made.
#[test]
fn child() {
    let Some(root) = std::env::var_os(CHILD) else { return };
    let store = DirStore::open(root.as_ref(), DirOptions::default()).unwrap();
    let sd = owner_only();
    let first = u128::from(std::process::id()) * 1_000_000;
    let mut old = None;
    for number in first.. {
        if number % 60 == 0 || old.is_none() {
            let name = format!("old{number}");
            old = Some(store.root().create_child(None, &name, &new(false, None)).unwrap());
        }
        match (number % 3, &old) {
            (0, Some(old)) => drop(old.create_stream_marked(None, &name(number), number).unwrap()),
            (kind, _) => {
                let new = new(kind == 1, Some(&sd));
                drop(store.root().create_child_marked(None, &name(number), &new, number).unwrap());
            }
        }
    }
}

fn new(directory: bool, security: Option<&SecurityDescriptor>) -> NewFile<'_> {
    NewFile { directory, attributes: 0, security, eas: &[], allocation: None }
}

fn found(store: &dyn FileStore, name: &str) -> NodeRef {
    let path = NtPath { components: vec![name.to_owned()], stream: None, wants: PathWants::Any };
    match store.lookup(&path).unwrap() {
        Lookup::Found(node) => node,
        _ => panic!("{name} is listed and not found"),
    }
}

#[test]
fn a_name_without_its_mark_is_never_left() {
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("killed-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&root);
    std::fs::create_dir_all(root.join("parent")).unwrap();
    let place = root.join("parent");
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact"])
            .env(CHILD, &place)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = u128::from(child.id());
        while std::fs::read_dir(&place).unwrap().count() < 20 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(round * 397 % 5_000));
        child.kill().unwrap();
        child.wait().unwrap();

        let store = DirStore::open(&place, DirOptions::default()).unwrap();
        let mut names = Vec::new();
        let mut cursor = store.root().list().unwrap();
        while let Some(entry) = cursor.peek(&|_| true).unwrap() {
            names.push(entry.name.clone());
            cursor.advance();
        }
        assert!(names.len() > 10, "round {round}: {} names", names.len());
        let mut streams = 0;
        for name in &names {
            let node = found(&*store, name);
            if let Some(number) = name.strip_prefix('f') {
                assert_eq!(node.create_mark().unwrap(), Some(number.parse().unwrap()), "round {round}: {name}");
                assert_eq!(node.security().unwrap().owner, owner_only().owner, "round {round}: {name}");
            } else {
                for stream in node.streams().unwrap().iter().filter(|s| !s.name.is_empty()) {
                    let number = stream.name[1..].parse().unwrap();
                    let stream = node.named_stream(&stream.name).unwrap().unwrap();
                    assert_eq!(stream.create_mark().unwrap(), Some(number), "round {round}: a stream");
                    streams += 1;
                }
            }
        }
        assert!(streams > 0, "round {round} of process {pid}: no stream was made");
        // What a killed process left keeps no directory: it goes with its names.
        for name in &names {
            found(&*store, name).unlink(None).unwrap();
        }
        let above = DirStore::open(&root, DirOptions::default()).unwrap();
        found(&*above, "parent").unlink(None).unwrap();
        std::fs::create_dir(&place).unwrap();
    }
    std::fs::remove_dir_all(&root).unwrap();
}
