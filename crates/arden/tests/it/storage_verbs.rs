//! The storage commands on a running daemon: their effect, their refusals and the messages.

use std::os::unix::fs::FileExt;

use crate::daemon::{Daemon, has};

fn write_pattern(d: &Daemon, mib: u64) {
    let commands: Vec<String> = (0..mib / 16).map(|i| format!("write -P {} {}m 16m", 1 + i % 250, i * 16)).collect();
    d.qemu_io(&commands);
    d.qemu_io(&["flush".to_string()]);
}

fn check_pattern(d: &Daemon, mib: u64) {
    let commands: Vec<String> = (0..mib / 16).map(|i| format!("read -P {} {}m 16m", 1 + i % 250, i * 16)).collect();
    d.qemu_io(&commands);
}

fn has_qemu() -> bool {
    if !has("qemu-io") {
        eprintln!("skipped: qemu-io is not installed");
    }
    has("qemu-io")
}

#[test]
fn disks_are_named_labelled_and_protected() {
    let d = Daemon::start("disk", 2, 128);
    let ext: [u8; 2] = [0x53, 0xEF];
    std::fs::File::options().write(true).open(d.disk(1)).unwrap().write_all_at(&ext, 0x438).unwrap();
    let said = d.refused(6, &["pool", "create", "tank", "d0", "d1"]);
    assert!(said.contains("an ext file system") && said.contains("--force"), "{said}");
    assert!(d.refused(6, &["disk", "wipe", "d1"]).contains("an ext file system"));
    let disk = d.json(&["disk", "label", "d0", "--media", "ssd", "--model", "Shelf 2", "--serial", "B7"]);
    assert_eq!((&disk["media"], &disk["model"], &disk["serial"]), (&"ssd".into(), &"Shelf 2".into(), &"B7".into()));
    assert_eq!(d.json(&["disk", "label", "d0", "--model", ""])["model"], "file");
    d.refused(2, &["disk", "list", "nothing-here"]);
    d.done(&["pool", "create", "tank", "d0", "d1", "--force"]);
    let list = d.json(&["disk", "list"]);
    let ours: Vec<_> = list.as_array().unwrap().iter().filter(|x| x["pool"] == "tank").collect();
    assert_eq!(ours.len(), 2);
    assert_eq!(ours[0]["media"], "ssd");
    assert!(d.refused(6, &["disk", "wipe", "d0", "--force"]).contains("in use"));
    d.done(&["pool", "close", "tank"]);
    d.done(&["disk", "wipe", "d0", "--force"]);
    assert_eq!(d.json(&["disk", "list", "d0"])[0]["pool"], "");
}

#[test]
fn refusals_say_which_rule_and_how_to_meet_it() {
    let d = Daemon::start("rules", 4, 128);
    d.done(&["pool", "create", "tank", "d0", "d1", "d2", "d3"]);
    d.refused(5, &["pool", "create", "tank", "d0"]);
    let create = |name: &str, rest: &[&str]| {
        let all: Vec<&str> = ["space", "create", name, "--pool", "tank"].iter().chain(rest).copied().collect();
        d.run(&all)
    };
    let said = |rest: &[&str]| String::from_utf8_lossy(&create("x", rest).stderr).into_owned();
    let few = said(&["--layout", "mirror3", "--size", "1g"]);
    assert!(few.contains("at least 5 disks") && few.contains("add 1 more"), "{few}");
    let wide = said(&["--layout", "mirror2", "--columns", "3", "--size", "1g"]);
    assert!(wide.contains("at most 2 columns"), "{wide}");
    let odd = said(&["--layout", "simple", "--interleave", "96k", "--size", "1g"]);
    assert!(odd.contains("power of two from 64k to 1m"), "{odd}");
    assert!(create("v", &["--layout", "parity"]).status.success(), "all the room that there is");
    let v = d.json(&["space", "show", "v"]);
    assert!(v["size_bytes"].as_u64().unwrap() > 200 << 20, "{v}");
    d.refused(5, &["space", "create", "v", "--pool", "tank", "--layout", "simple", "--size", "1m"]);
    assert!(d.refused(6, &["space", "grow", "v", "--size", "1m"]).contains("only grows"));
    d.done(&["space", "grow", "v", "--size", "1g"]);
    d.refused(4, &["space", "show", "nobody"]);
    d.refused(4, &["pool", "remove-disk", "tank", "9"]);
    d.refused(4, &["pool", "scrub", "nobody"]);
    d.refused(2, &["pool", "set", "tank", "--warn", "70,80"]);
    assert!(d.refused(2, &["pool", "set", "tank", "--warn", "90,80,70"]).contains("ascending"));
    d.done(&["space", "export", "v", "--nbd", "unix:s"]);
    assert!(d.refused(6, &["space", "delete", "v"]).contains("arden space unexport v"));
    assert!(d.refused(6, &["pool", "close", "tank"]).contains("exported"));
    d.done(&["space", "unexport", "v"]);
    assert!(!crate::daemon::exists(&d.dir.join("s")), "the socket is gone");
    d.done(&["space", "delete", "v"]);
    assert_eq!(d.json(&["space", "list"]), serde_json::json!([]));
}

#[test]
fn a_pool_is_renamed_closed_and_found_by_its_labels() {
    let mut d = Daemon::start("import", 3, 128);
    d.done(&["pool", "create", "tank", "d0", "d1", "d2"]);
    d.done(&["space", "create", "v", "--pool", "tank", "--layout", "parity", "--size", "64m"]);
    assert_eq!(d.json(&["pool", "rename", "tank", "lake"])["name"], "lake");
    d.refused(4, &["pool", "show", "tank"]);
    d.done(&["pool", "set", "lake", "--grace", "7", "--warn", "50,60,95"]);
    d.stop();
    d.launch();
    let lake = d.json(&["pool", "show", "lake"]);
    assert_eq!(lake["grace_seconds"], 7);
    assert_eq!(lake["warn_percent"], serde_json::json!([50, 60, 95]));
    d.done(&["pool", "close", "lake"]);
    assert_eq!(d.json(&["pool", "list"]), serde_json::json!([]));
    // The files are moved and renamed.
    std::fs::create_dir(d.dir.join("moved")).unwrap();
    for i in 0..3 {
        std::fs::rename(d.disk(i), d.dir.join(format!("moved/x{}", 2 - i))).unwrap();
    }
    let found = d.json(&["pool", "import", "moved"]);
    assert_eq!((&found["name"], &found["health"]), (&"lake".into(), &"whole".into()));
    assert_eq!(found["spaces"][0]["name"], "v");
    d.refused(4, &["pool", "import", "moved"]);
    d.stop();
}

#[test]
fn disks_join_and_leave_while_a_space_is_in_use() {
    if !has_qemu() {
        return;
    }
    let d = Daemon::start("members", 6, 256);
    d.done(&["pool", "create", "tank", "d0", "d1", "d2"]);
    d.done(&["space", "create", "v", "--pool", "tank", "--layout", "mirror2", "--size", "200m"]);
    d.done(&["space", "export", "v", "--nbd", "unix:s"]);
    write_pattern(&d, 128);
    d.done(&["pool", "add-disk", "tank", "d3"]);
    assert!(d.done(&["pool", "rebalance", "tank"]).contains("columns moved"));
    let fourth = |d: &Daemon| d.json(&["pool", "show", "tank"])["disks"].as_array().unwrap().len();
    assert_eq!(fourth(&d), 4);
    d.done(&["pool", "remove-disk", "tank", "1"]);
    assert_eq!(d.json(&["disk", "list", "d1"])[0]["pool"], "", "its label is gone");
    d.done(&["pool", "replace", "tank", "2", "d4"]);
    let disks = d.json(&["pool", "show", "tank"])["disks"].clone();
    let left: Vec<u64> = disks.as_array().unwrap().iter().map(|x| x["index"].as_u64().unwrap()).collect();
    assert_eq!(left, [0, 3, 4]);
    d.done(&["pool", "retire", "tank", "0"]);
    d.wait(20, "disk 0 is empty", |d| {
        let disks = d.json(&["pool", "show", "tank"])["disks"].clone();
        disks[0]["state"] == "retiring" && disks[0]["slabs"] == disks[0]["slabs_free"]
    });
    d.done(&["pool", "retire", "tank", "0", "--undo"]);
    let map = d.json(&["space", "show", "v", "--map"]);
    assert!(!map["map"].as_array().unwrap().is_empty());
    assert!(d.done(&["pool", "scrub", "tank"]).contains("0 undecided, 0 lost"));
    check_pattern(&d, 128);
}

#[test]
fn a_full_thin_pool_warns_and_then_tells_the_writer() {
    if !has_qemu() {
        return;
    }
    let d = Daemon::start("full", 2, 128);
    d.done(&["pool", "create", "tank", "d0", "d1"]);
    d.done(&["space", "create", "v", "--pool", "tank", "--layout", "mirror2", "--size", "1g"]);
    d.done(&["space", "export", "v", "--nbd", "unix:s"]);
    write_pattern(&d, 96);
    let pool = d.json(&["pool", "show", "tank"]);
    assert!(pool["warning_percent"].as_u64().unwrap() >= 70, "{pool}");
    d.wait(5, "a warning in the log", |d| d.log().contains("% of the pool is used"));
    let said = d.qemu_io_output(&["write -P 9 200m 128m".to_string()]);
    assert!(said.contains("No space left on device"), "{said}");
    check_pattern(&d, 96);
}

#[test]
fn a_thin_pool_gets_trimmed_slabs_back_and_gives_them_again() {
    if !has_qemu() {
        return;
    }
    let mut d = Daemon::start("trim", 2, 128);
    d.done(&["pool", "create", "tank", "d0", "d1"]);
    d.done(&["space", "create", "v", "--pool", "tank", "--layout", "mirror2", "--size", "1g"]);
    d.done(&["space", "export", "v", "--nbd", "unix:s"]);
    let used = |d: &Daemon| {
        let pool = d.json(&["pool", "show", "tank"]);
        (pool["total_bytes"].as_u64().unwrap() - pool["free_bytes"].as_u64().unwrap()) >> 20
    };
    write_pattern(&d, 96);
    assert_eq!(used(&d), 192, "two copies");
    // 16 MiB stay, and so does a part of a slab.
    d.qemu_io(&["discard 16m 79m".to_string(), "discard 95m 512k".to_string()]);
    d.wait(30, "the pool has its slabs again", |d| used(d) == 36);
    d.qemu_io(&["read -P 1 0 16m".to_string(), "read -P 0 16m 79m".to_string()]);
    d.kill();
    d.launch();
    d.wait(30, "the export is there again", |d| !d.qemu_io_output(&["read 0 4k".to_string()]).contains("ailed"));
    assert_eq!(used(&d), 36);
    d.qemu_io(&["read -P 1 0 16m".to_string(), "read -P 0 16m 79m".to_string()]);
    write_pattern(&d, 96);
    assert_eq!(used(&d), 192);
    check_pattern(&d, 96);
    assert!(d.done(&["pool", "scrub", "tank"]).contains("0 undecided, 0 lost"));
}

#[test]
fn a_hot_spare_takes_over_after_the_grace_time() {
    if !has_qemu() {
        return;
    }
    let mut d = Daemon::start("spare", 4, 256);
    d.done(&["pool", "create", "tank", "d0", "d1", "d2", "--hot-spare", "d3"]);
    d.done(&["pool", "set", "tank", "--grace", "1"]);
    d.done(&["space", "create", "v", "--pool", "tank", "--layout", "parity", "--size", "128m"]);
    d.done(&["space", "export", "v", "--nbd", "unix:s"]);
    write_pattern(&d, 64);
    d.kill();
    std::fs::rename(d.disk(1), d.dir.join("away")).unwrap();
    d.launch();
    d.wait(30, "the spare has taken over", |d| d.json(&["space", "show", "v"])["health"] == "whole");
    let disks = d.json(&["pool", "show", "tank"])["disks"].clone();
    assert_eq!(disks[3]["state"], "active");
    check_pattern(&d, 64);
    // The lost disk returns as free room.
    std::fs::rename(d.dir.join("away"), d.disk(1)).unwrap();
    d.wait(20, "the disk is taken back", |d| d.json(&["pool", "show", "tank"])["disks"][1]["state"] == "active");
    check_pattern(&d, 64);
}

#[test]
fn jobs_pause_resume_survive_a_restart_and_can_be_cancelled() {
    if !has_qemu() {
        return;
    }
    let mut d = Daemon::start("jobs", 4, 512);
    d.done(&["pool", "create", "tank", "d0", "d1", "d2", "d3"]);
    d.done(&["space", "create", "v", "--pool", "tank", "--layout", "parity", "--size", "400m"]);
    d.done(&["space", "export", "v", "--nbd", "unix:s"]);
    write_pattern(&d, 384);
    let job = d.json(&["pool", "scrub", "tank", "--no-wait"])["id"].to_string();
    assert_eq!(d.json(&["job", "pause", &job])["state"], "paused");
    assert!(d.refused(6, &["pool", "rebalance", "tank"]).contains("job cancel"));
    d.stop();
    d.launch();
    assert_eq!(d.json(&["job", "show", &job])["state"], "paused", "it is still there after a restart");
    assert_eq!(d.json(&["job", "resume", &job])["state"], "running");
    assert!(d.done(&["job", "wait", &job]).contains("0 undecided, 0 lost"));
    let job = d.json(&["pool", "scrub", "tank", "--no-wait"])["id"].to_string();
    d.done(&["job", "pause", &job]);
    d.done(&["job", "cancel", &job]);
    d.wait(10, "it is cancelled", |d| d.json(&["job", "show", &job])["state"] == "cancelled");
    d.refused(6, &["job", "resume", &job]);
    // No background work is still paused.
    d.done(&["pool", "scrub", "tank"]);
    check_pattern(&d, 384);
}
