//! A parity space is served over NBD to `qemu-io` by a daemon that is killed between writes and started again, at last
//! without one of its disks, and holds every acknowledged byte.

use crate::daemon::{Daemon, has};

#[test]
fn acknowledged_writes_survive_kill_and_a_lost_disk() {
    if !has("qemu-io") {
        eprintln!("skipped: qemu-io is not installed");
        return;
    }
    let mut d = Daemon::start("export", 4, 256);
    d.done(&["pool", "create", "tank", "d0", "d1", "d2", "d3"]);
    d.refused(6, &["pool", "create", "other", "d0"]);
    d.done(&["space", "create", "v", "--pool", "tank", "--layout", "parity", "--size", "128m"]);
    d.done(&["space", "export", "v", "--nbd", "unix:s"]);
    let mut checks = Vec::new();
    for round in 0..6u64 {
        let mut commands = checks.clone();
        for i in 0..4u64 {
            let at = (round * 4 + i) * 300 * 1024 / 4096 * 4096;
            commands.push(format!("write -f -P {} {at} {}", 1 + round * 4 + i, 64 << 10));
            checks.push(format!("read -P {} {at} {}", 1 + round * 4 + i, 64 << 10));
        }
        d.qemu_io(&commands);
        // Commands work while the space is exported.
        assert_eq!(d.json(&["space", "show", "v"])["health"], if round > 3 { "degraded" } else { "whole" });
        d.kill();
        if round == 3 {
            std::fs::remove_file(d.disk(2)).expect("the disk goes");
        }
        d.launch();
    }
    d.qemu_io(&checks);
    let show = d.json(&["pool", "show", "tank"]);
    assert_eq!(show["health"], "degraded");
    assert!(show["disks"].as_array().expect("disks").iter().any(|x| x["state"] == "missing"));
    assert!(d.done(&["pool", "repair", "tank"]).contains("columns rebuilt"));
    assert_eq!(d.json(&["space", "show", "v"])["health"], "whole");
    d.qemu_io(&checks);
    d.stop();
}
