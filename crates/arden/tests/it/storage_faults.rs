//! Faults of a disk file while writes run: cut short, deleted, overwritten with noise, swapped, slow. The writers
//! continue, and everything that was acknowledged as durable is read back; then the pool is made whole.

use std::time::{Duration, Instant};

use crate::daemon::{
    Daemon,
    nbd::{Nbd, Oracle, Random},
    noise,
};

const MIB: u64 = 1 << 20;

/// Runs writers on several spaces, with `fault` in the middle.
fn under_load(d: &Daemon, spaces: &mut [(&str, Oracle)], seed: u64, fault: impl FnOnce()) {
    std::thread::scope(|s| {
        let running: Vec<_> = spaces
            .iter_mut()
            .enumerate()
            .map(|(i, (name, o))| {
                let path = d.dir.join(*name);
                s.spawn(move || {
                    let mut nbd = Nbd::connect(&path).expect("the export answers");
                    o.load(&mut nbd, &mut Random(seed + i as u64), Duration::from_secs(3))
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(500));
        fault();
        for r in running {
            assert!(r.join().expect("a writer") > 10, "writes went on");
        }
    });
}

/// Reads everything, including data that no flush has made durable. One flush follows, so that all that was read
/// survives a kill (a write without a flush may be lost with the process).
fn verify(d: &Daemon, spaces: &mut [(&str, Oracle)], when: &str) {
    for (name, o) in spaces {
        let mut nbd = Nbd::connect(&d.dir.join(*name)).expect("the export answers");
        assert_eq!(o.verify(&mut nbd), Ok(true), "{name} {when}\n{}", d.log());
        nbd.flush().expect("a flush");
    }
}

fn make<'a>(d: &Daemon, layouts: &[&'a str]) -> Vec<(&'a str, Oracle)> {
    let make = |&l: &&'a str| {
        d.done(&["space", "create", l, "--pool", "tank", "--layout", l, "--size", "16m"]);
        d.done(&["space", "export", l, "--nbd", &format!("unix:{l}")]);
        (l, Oracle::new(16 * MIB))
    };
    layouts.iter().map(make).collect()
}

fn disk_state(d: &Daemon, i: usize) -> String {
    d.json(&["pool", "show", "tank"])["disks"][i]["state"].as_str().expect("a state").to_string()
}

fn whole(d: &Daemon) -> bool {
    d.json(&["space", "list"]).as_array().expect("spaces").iter().all(|s| s["health"] == "whole")
}

#[test]
fn a_disk_file_is_cut_short_and_another_deleted_while_writes_run() {
    let mut d = Daemon::start("cut", 6, 96);
    d.done(&["pool", "create", "tank", "d0", "d1", "d2", "d3", "d4"]);
    let mut spaces = make(&d, &["mirror2", "parity", "dual-parity"]);
    let cut = d.disk(1);
    under_load(&d, &mut spaces, 1, || {
        std::fs::File::options().write(true).open(&cut).and_then(|f| f.set_len(3 * MIB)).expect("cut short");
    });
    d.wait(10, "the cut disk is out", |d| disk_state(d, 1) == "missing");
    verify(&d, &mut spaces, "without the cut disk");
    // Full length again, with a label and zeros: its content must not be used.
    std::fs::File::options().write(true).open(&cut).and_then(|f| f.set_len(96 * MIB)).expect("long again");
    d.wait(60, "it is back and up to date", |d| disk_state(d, 1) == "active" && whole(d));
    verify(&d, &mut spaces, "with the disk that was cut");

    let deleted = d.disk(2);
    under_load(&d, &mut spaces, 2, || std::fs::remove_file(&deleted).expect("deleted"));
    d.wait(10, "the deleted disk is out", |d| disk_state(d, 2) == "missing");
    verify(&d, &mut spaces, "without the deleted disk");
    d.done(&["pool", "add-disk", "tank", "d5"]);
    d.done(&["pool", "repair", "tank"]);
    d.wait(60, "every space is whole", whole);
    d.kill();
    d.launch();
    verify(&d, &mut spaces, "after the repair and a restart");
    d.done(&["pool", "remove-disk", "tank", "2"]);
    d.stop();
}

#[test]
fn noise_over_a_disk_is_healed_by_majority_and_a_lost_label_takes_the_disk_out() {
    let mut d = Daemon::start("noise", 6, 96);
    d.done(&["pool", "create", "tank", "d0", "d1", "d2", "d3", "d4"]);
    let mut spaces = make(&d, &["mirror3"]);
    // The pool rewrites labels and map while writes run: only the majority of the copies reveals the noise. Three
    // copies, without checksums of a volume.
    let victim = d.disk(3);
    under_load(&d, &mut spaces, 3, || noise(&victim, 0));
    let said = d.done(&["pool", "scrub", "tank"]);
    assert!(said.contains("0 undecided, 0 lost"), "{said}");
    verify(&d, &mut spaces, "after the scrub");
    // Without writes, the label shows the fault, and the disk leaves the pool.
    std::thread::sleep(Duration::from_secs(4));
    noise(&d.disk(4), 0);
    d.wait(30, "the disk of noise is out", |d| disk_state(d, 4) == "missing");
    under_load(&d, &mut spaces, 4, || ());
    verify(&d, &mut spaces, "without the disk of noise");
    d.kill();
    d.launch();
    verify(&d, &mut spaces, "after a restart");
    assert!(d.refused(6, &["pool", "add-disk", "tank", "d4"]).contains("--force"));
    d.done(&["pool", "replace", "tank", "4", "d5"]);
    d.wait(60, "every space is whole", whole);
    verify(&d, &mut spaces, "on the new disk");
    d.stop();
}

#[test]
fn disks_that_change_places_are_known_by_their_labels() {
    let mut d = Daemon::start("swap", 6, 96);
    d.done(&["pool", "create", "tank", "d0", "d1", "d2", "d3", "d4"]);
    let mut spaces = make(&d, &["mirror2", "parity", "dual-parity"]);
    let (a, b, c) = (d.disk(0), d.disk(3), d.dir.join("between"));
    under_load(&d, &mut spaces, 5, || {
        std::fs::rename(&a, &c)
            .and_then(|()| std::fs::rename(&b, &a))
            .and_then(|()| std::fs::rename(&c, &b))
            .expect("swap");
    });
    verify(&d, &mut spaces, "with swapped names");
    d.kill();
    d.launch();
    d.wait(60, "every space is whole", whole);
    verify(&d, &mut spaces, "after a restart with swapped names");
    // A foreign file in the place of a disk.
    let (foreign, place) = (d.disk(5), d.disk(2));
    under_load(&d, &mut spaces, 6, || std::fs::rename(&foreign, &place).expect("replaced"));
    d.wait(10, "the replaced disk is out", |d| disk_state(d, 2) == "missing");
    verify(&d, &mut spaces, "with a foreign file in a disk's place");
    d.done(&["pool", "replace", "tank", "2", "d2"]);
    d.wait(60, "every space is whole", whole);
    verify(&d, &mut spaces, "after the foreign file has taken its place");
    d.stop();
}

#[test]
fn an_idle_disk_that_goes_is_noticed() {
    let d = Daemon::start("idle", 3, 64);
    d.done(&["pool", "create", "tank", "d0", "d1", "d2"]);
    d.done(&["space", "create", "v", "--pool", "tank", "--layout", "mirror2", "--columns", "1", "--size", "8m"]);
    std::fs::remove_file(d.disk(1)).expect("deleted");
    d.wait(10, "the deleted disk is out", |d| disk_state(d, 1) == "missing");
    d.wait(5, "the log says why", |d| d.log().contains("disk 1 failed: gone"));
}

#[test]
fn a_disk_that_answers_slowly_is_reported_spared_and_read_again_when_it_recovers() {
    let d = Daemon::start("slow", 2, 64);
    std::fs::create_dir(d.delays()).expect("a place for delays");
    d.done(&["pool", "create", "tank", "d0", "d1"]);
    let mut spaces = make(&d, &["mirror2"]);
    under_load(&d, &mut spaces, 7, || ());
    verify(&d, &mut spaces, "before");
    let slow = |d: &Daemon| d.json(&["pool", "show", "tank"])["disks"][0]["slow"] == true;
    let mut nbd = Nbd::connect(&d.dir.join("mirror2")).expect("the export answers");
    let mut r = Random(8);
    let mut read = || {
        let begun = Instant::now();
        nbd.read(r.below(16 * MIB / 4096) * 4096, 4096).expect("a read");
        begun.elapsed()
    };
    // The first copy of everything is on this disk.
    let (said, delay) = (d.delays().join("d0"), Duration::from_millis(500));
    std::fs::write(&said, "500").expect("a delay");
    d.wait(20, "the slow disk is known", |d| {
        read();
        slow(d)
    });
    d.wait(5, "the log names it", |d| d.log().contains("far slower than its peers"));
    let late = (0..100).filter(|_| read() >= delay).count();
    assert!(late < 10, "{late} of 100 reads waited for the slow disk");
    verify(&d, &mut spaces, "beside a slow disk");
    std::fs::remove_file(&said).expect("no delay");
    d.wait(30, "it has recovered", |d| !slow(d));
    verify(&d, &mut spaces, "after it recovered");
}

/// It is looked for at its known path, for as long as a pool waits for a command.
#[test]
fn a_missing_disk_that_hangs_keeps_no_pool_from_opening() {
    let mut d = Daemon::start("hangs", 3, 64);
    std::fs::create_dir(d.delays()).expect("a place for delays");
    d.done(&["pool", "create", "tank", "d0", "d1", "d2"]);
    let mut spaces = make(&d, &["mirror2"]);
    under_load(&d, &mut spaces, 9, || ());
    d.kill();
    std::fs::rename(d.disk(2), d.dir.join("away")).expect("away");
    d.launch();
    d.wait(30, "the disk is out", |d| disk_state(d, 2) == "missing");
    verify(&d, &mut spaces, "without it");
    d.kill();
    std::fs::rename(d.dir.join("away"), d.disk(2)).expect("back");
    std::fs::write(d.delays().join("d2"), "600000").expect("a delay");
    d.launch();
    d.wait(60, "the pool is open", |d| d.ok(&["pool", "show", "tank"]) && disk_state(d, 0) == "active");
    assert_eq!(disk_state(&d, 2), "missing");
    verify(&d, &mut spaces, "beside a disk that hangs");
    assert!(d.log().contains("does not answer, and counts as not there"));
}
