//! Images of each format version, made by `images/make` and kept: data of an earlier program is found by its labels,
//! read, written to and read again.

use std::process::Command;

use crate::daemon::{Daemon, nbd::Nbd};

/// `(pattern, offset, length)` as `images/make` wrote them; later ones overwrite earlier ones.
const CLEAN: [(u8, usize, usize); 3] = [(17, 0, 1 << 20), (34, 64 << 10, 192 << 10), (51, 1536 << 10, 4 << 10)];
const KILLED: [(u8, usize, usize); 2] = [(68, 4 << 10, 8 << 10), (85, 1 << 20, 12 << 10)];
/// Version 2: the first two were put in place with patches in the log, the last was in the log only.
const PATCHED: [(u8, usize, usize); 3] =
    [(102, 128 << 10, 4 << 10), (119, 896 << 10, 8 << 10), (136, 960 << 10, 4 << 10)];

fn expected(writes: &[(u8, usize, usize)]) -> Vec<u8> {
    let mut all = vec![0; 2 << 20];
    writes.iter().for_each(|&(pattern, at, len)| all[at..at + len].fill(pattern));
    all
}

fn open(name: &str, want: &[u8]) {
    let mut d = Daemon::start("image", 0, 0);
    let archive = format!("{}/tests/images/{name}.tar.gz", env!("CARGO_MANIFEST_DIR"));
    std::fs::create_dir(d.dir.join("disks")).expect("a directory");
    let tar = Command::new("tar").current_dir(d.dir.join("disks")).args(["xzf", &archive]).status();
    assert!(tar.is_ok_and(|s| s.success()), "tar unpacks {archive}");
    d.done(&["pool", "import", "disks"]);
    for space in ["mirror2", "parity"] {
        d.done(&["space", "export", space, "--nbd", &format!("unix:{space}")]);
        let mut nbd = Nbd::connect(&d.dir.join(space)).expect("the export answers");
        assert!(nbd.read(0, 2 << 20).expect("read") == want, "{name}: {space}");
        nbd.send(1, true, 0, 1 << 19, 4096, &[7; 4096]).expect("sent");
        assert_eq!(nbd.answer().expect("an answer").1, 0);
    }
    assert!(d.done(&["pool", "scrub", "old"]).contains("0 undecided, 0 lost"));
    d.kill();
    d.launch();
    for space in ["mirror2", "parity"] {
        let mut nbd = Nbd::connect(&d.dir.join(space)).expect("the export answers");
        let got = nbd.read(0, 2 << 20).expect("read");
        assert!(got[1 << 19..(1 << 19) + 4096] == [7; 4096] && got[..1 << 19] == want[..1 << 19], "{name}: {space}");
    }
    d.stop();
}

#[test]
fn a_pool_of_format_1_that_was_closed_opens() {
    open("v1-clean", &expected(&CLEAN));
}

#[test]
fn a_pool_of_format_1_that_was_killed_replays_its_journal() {
    open("v1-killed", &expected(&[&CLEAN[..], &KILLED[..]].concat()));
}

#[test]
fn a_pool_of_format_2_that_was_closed_opens() {
    open("v2-clean", &expected(&CLEAN));
}

#[test]
fn a_pool_of_format_2_that_was_killed_replays_the_stripes_changed_in_place() {
    open("v2-patched", &expected(&[&CLEAN[..], &KILLED[..], &PATCHED[..]].concat()));
}
