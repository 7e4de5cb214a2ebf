//! Block devices (loop devices over files): refusals of devices in use, a device that loses its end under load, and
//! other programs that copy data through a space while a disk is lost.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::daemon::{
    Daemon, has,
    nbd::{Nbd, Oracle, Random},
};

struct Loop(String);

impl Loop {
    fn new(file: &Path) -> Result<Loop, String> {
        let out = Command::new("losetup").args(["--find", "--show"]).arg(file).output().map_err(|e| e.to_string())?;
        if !out.status.success() {
            return Err(String::from_utf8_lossy(&out.stderr).into_owned());
        }
        Ok(Loop(String::from_utf8_lossy(&out.stdout).trim().to_string()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// LOOP_GET_STATUS64, another lo_sizelimit, LOOP_SET_STATUS64. (When the file is shortened instead, the kernel reads
/// zeros until it reads the file's size again.)
const CUT: &str = "
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
info = bytearray(232)
fcntl.ioctl(fd, 0x4C05, info)
info[32:40] = struct.pack('<Q', 1 << 20)
fcntl.ioctl(fd, 0x4C04, bytes(info))
";

fn runs(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|o| o.status.success())
}

#[test]
fn loop_devices_are_disks() {
    let mut d = Daemon::start("loop", 6, 96);
    let loops: Result<Vec<Loop>, String> = (0..6).map(|i| Loop::new(&d.disk(i))).collect();
    let loops = match loops {
        Ok(l) => l,
        Err(e) => return eprintln!("skipped: losetup: {}", e.trim()),
    };
    let l: Vec<&str> = loops.iter().map(|l| l.0.as_str()).collect();
    let at = d.dir.join("mnt");
    std::fs::create_dir(&at).expect("a directory");
    if runs("mkfs.ext4", &["-q", l[5]]) && runs("mount", &[l[5], &at.display().to_string()]) {
        let mounted = Mounted(at.clone());
        let said = d.refused(6, &["pool", "create", "tank", l[0], l[5], "--force"]);
        assert!(said.contains("mounted at"), "{said}");
        assert!(d.json(&["disk", "list", l[5]])[0]["in_use"].as_str().expect("text").contains("mounted at"));
        drop(mounted);
        assert!(d.refused(6, &["pool", "create", "tank", l[0], l[5]]).contains("an ext file system"));
    } else {
        eprintln!("skipped in part: no mkfs.ext4 or no right to mount");
    }
    d.done(&["pool", "create", "tank", l[0], l[1], l[2], l[3]]);
    assert!(!runs("mkfs.ext4", &["-q", "-F", l[0]]), "others find the device in use");
    let list = d.json(&["disk", "list"]);
    assert!(list.as_array().expect("disks").iter().any(|x| x["path"] == l[0] && x["pool"] == "tank"));
    d.done(&["space", "create", "v", "--pool", "tank", "--layout", "parity", "--size", "32m"]);
    d.done(&["space", "export", "v", "--nbd", "unix:s"]);
    let mut o = Oracle::new(32 << 20);
    let load = |d: &Daemon, o: &mut Oracle, seed| {
        let mut nbd = Nbd::connect(&d.dir.join("s")).expect("the export answers");
        assert!(o.load(&mut nbd, &mut Random(seed), Duration::from_secs(3)) > 10);
        assert_eq!(o.verify(&mut nbd), Ok(true), "{}", d.log());
    };
    load(&d, &mut o, 1);
    // The device loses all but its first MiB: every I/O behind it fails, as on a disk that is pulled.
    let end = std::thread::spawn({
        let device = l[1].to_string();
        move || {
            std::thread::sleep(Duration::from_millis(500));
            assert!(runs("python3", &["-c", CUT, &device]));
        }
    });
    load(&d, &mut o, 2);
    end.join().expect("the cut");
    // The loss may come after the last write, and only a failed write takes the disk out of the pool.
    load(&d, &mut o, 5);
    let state = |d: &Daemon| d.json(&["pool", "show", "tank"])["disks"][1]["state"].clone();
    d.wait(20, "the pulled disk is out", |d| state(d) == "missing");
    load(&d, &mut o, 3);
    d.done(&["pool", "replace", "tank", "1", l[4]]);
    assert_eq!(d.json(&["space", "show", "v"])["health"], "whole");
    d.kill();
    d.launch();
    load(&d, &mut o, 4);
    d.stop();
}

#[test]
fn qemu_img_copies_real_data_while_a_disk_goes() {
    if !has("qemu-img") {
        return eprintln!("skipped: qemu-img is not installed");
    }
    let mut d = Daemon::start("img", 7, 128);
    d.done(&["pool", "create", "tank", "d0", "d1", "d2", "d3", "d4"]);
    // The program is a file of real data.
    let program = std::fs::File::open(env!("CARGO_BIN_EXE_arden")).expect("the program");
    let len = program.metadata().expect("its size").len().min(96 << 20) & !0xffff;
    let mut copy = std::fs::File::create(d.dir.join("real")).expect("a file");
    std::io::copy(&mut std::io::Read::take(program, len), &mut copy).expect("copied");
    // Dual parity has exactly as many disks as columns: new groups begin with one missing.
    for (layout, victim, new) in [("parity", 1, "d5"), ("dual-parity", 3, "d6")] {
        let size = (len.next_multiple_of(1 << 20)).to_string();
        d.done(&["space", "create", layout, "--pool", "tank", "--layout", layout, "--size", &size]);
        d.done(&["space", "export", layout, "--nbd", &format!("unix:{layout}")]);
        let target = format!("nbd+unix:///?socket={layout}");
        let mut convert = Command::new("qemu-img")
            .current_dir(&d.dir)
            .args(["convert", "-n", "-f", "raw", "-O", "raw", "real", &target])
            .spawn()
            .expect("qemu-img runs");
        std::thread::sleep(Duration::from_millis(150));
        std::fs::remove_file(d.disk(victim)).expect("a disk goes");
        assert!(convert.wait().is_ok_and(|s| s.success()), "{}", d.log());
        let compare = |d: &Daemon| {
            let args = ["compare", "-f", "raw", "-F", "raw", "real", &target];
            let out = Command::new("qemu-img").current_dir(&d.dir).args(args).output().expect("qemu-img runs");
            assert!(out.status.success(), "{layout}: {}\n{}", String::from_utf8_lossy(&out.stdout), d.log());
        };
        compare(&d);
        d.done(&["pool", "add-disk", "tank", new]);
        let said = d.done(&["pool", "repair", "tank"]);
        assert!(said.contains("columns rebuilt"), "{said}");
        d.stop();
        d.launch();
        compare(&d);
    }
    d.stop();
}

#[test]
fn clients_that_do_not_know_the_block_size_are_served() {
    let d = Daemon::start("parts", 3, 64);
    d.done(&["pool", "create", "tank", "d0", "d1", "d2"]);
    for layout in ["mirror2", "parity"] {
        let columns = if layout == "parity" { "3" } else { "1" };
        d.done(&[
            "space",
            "create",
            layout,
            "--pool",
            "tank",
            "--layout",
            layout,
            "--columns",
            columns,
            "--size",
            "4m",
        ]);
        d.done(&["space", "export", layout, "--nbd", &format!("unix:{layout}")]);
        let mut nbd = Nbd::connect(&d.dir.join(layout)).expect("the export answers");
        let mut want = vec![0u8; 64 << 10];
        for (i, &(at, len)) in [(0, 20_000), (512, 1024), (4095, 2), (8191, 4098), (12_288, 4096)].iter().enumerate() {
            let data = vec![i as u8 + 1; len];
            nbd.send(1, false, 1, at as u64, len, &data).expect("sent");
            assert_eq!(nbd.answer().expect("an answer").1, 0);
            want[at..at + len].copy_from_slice(&data);
        }
        // WRITE_ZEROES of a part of a block, and of several blocks with parts.
        for (at, len) in [(100usize, 50usize), (4000, 9000)] {
            nbd.send(6, false, 1, at as u64, len, &[]).expect("sent");
            assert_eq!(nbd.answer().expect("an answer").1, 0);
            want[at..at + len].fill(0);
        }
        assert!(nbd.read(0, 64 << 10).expect("read") == want, "{layout}");
        assert!(nbd.read(4000, 5000).expect("read") == want[4000..9000], "{layout}");
        let past = nbd.size;
        nbd.send(1, false, 1, past - 512, 1024, &[0; 1024]).expect("sent");
        assert_eq!(nbd.answer().expect("an answer").1, 22, "past the end");
    }
}
