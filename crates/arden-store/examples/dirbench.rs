//! What the dir store costs without any protocol: operations a second and CPU microseconds for each, one thread.
//! `cargo run --release -p arden-store --example dirbench [DIRECTORY [FILES]]`

use std::{path::PathBuf, time::Instant};

use arden_store::{
    dir::{DirOptions, DirStore},
    name::NtPath,
    store::*,
};
use arden_wire::{
    access::{ATTR_ARCHIVE, FILE_ALL_ACCESS},
    dtyp::{Ace, Acl, INHERITED_ACE, SecurityDescriptor, Sid, well_known},
};

fn main() {
    let mut args = std::env::args().skip(1);
    let parent = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let files: usize = args.next().and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let path = parent.join(format!("arden-dirbench-{}", std::process::id()));
    std::fs::create_dir(&path).expect("a directory to work in");
    run(&path, files);
    std::fs::remove_dir_all(&path).expect("cleaning up");
}

fn run(path: &std::path::Path, files: usize) {
    let open = || DirStore::open(path, DirOptions::default()).expect("a store");
    let store = open();
    let owner = Sid::new(5, &[21, 1111, 2222, 3333, 1001]);
    let dacl = Acl::new(vec![
        Ace::allow(&well_known::BUILTIN_ADMINISTRATORS, FILE_ALL_ACCESS, INHERITED_ACE),
        Ace::allow(&well_known::SYSTEM, FILE_ALL_ACCESS, INHERITED_ACE),
        Ace::allow(&owner, FILE_ALL_ACCESS, INHERITED_ACE),
        Ace::allow(&well_known::AUTHENTICATED_USERS, 0x1301BF, INHERITED_ACE),
    ]);
    let sd = SecurityDescriptor::with_dacl(&owner, &owner, dacl);
    let data = vec![0x5a; 16 * 1024];
    let mut buf = vec![0; 16 * 1024];
    for (label, security) in [("default descriptor", None), ("own descriptor", Some(&sd))] {
        let new = NewFile { directory: false, attributes: ATTR_ARCHIVE, security, eas: &[], allocation: None };
        let dir_name = format!("dir {label}");
        store.root().create_child(None, &dir_name, &NewFile { directory: true, ..new.clone() }).expect("mkdir");
        measure(&format!("create+write16K+close, {label}"), files, |i| {
            let p = NtPath::parse(&format!("{dir_name}\\file{i}.dat")).expect("path");
            let Lookup::Missing { parent, .. } = store.lookup(&p).expect("lookup") else { panic!("there already") };
            parent.security().expect("parent's descriptor");
            let f = parent.create_child(None, &format!("file{i}.dat"), &new).expect("create");
            f.write_at(None, 0, &data, Wait::No).expect("write");
        });
    }
    let name = |i: usize| NtPath::parse(&format!("dir own descriptor\\file{i}.dat")).expect("path");
    let open_stat = |store: &DirStore, i: usize| {
        let Lookup::Found(f) = store.lookup(&name(i)).expect("lookup") else { panic!("gone") };
        f.security().expect("descriptor");
        f.stat().expect("stat");
        f
    };
    let cold = open();
    measure("open+stat+close, first time", files, |i| drop(open_stat(&cold, i)));
    measure("open+stat+close", files, |i| drop(open_stat(&store, i)));
    measure("open+stat+close again", files, |i| drop(open_stat(&store, i)));
    measure("open+stat+close, other case", files, |i| {
        let p = NtPath::parse(&format!("DIR own DESCRIPTOR\\FILE{i}.DAT")).expect("path");
        let Lookup::Found(f) = store.lookup(&p).expect("lookup") else { panic!("gone") };
        f.security().expect("descriptor");
        f.stat().expect("stat");
    });
    measure("miss", files, |i| {
        let p = NtPath::parse(&format!("dir own descriptor\\nothing{i}")).expect("path");
        assert!(matches!(store.lookup(&p), Ok(Lookup::Missing { .. })));
    });
    measure("open+stat+read16K+close", files, |i| {
        let f = open_stat(&store, i);
        assert_eq!(f.read_at(0, &mut buf, Wait::No).expect("read"), buf.len());
    });
    let one = open_stat(&store, 0);
    measure("read 4K", files * 10, |i| {
        one.read_at((i % 4 * 4096) as u64, &mut buf[..4096], Wait::No).expect("read");
    });
    let list = |store: &DirStore| {
        let Lookup::Found(d) = store.lookup(&NtPath::parse("dir default descriptor").expect("path")).expect("lookup")
        else {
            panic!("gone")
        };
        let mut cursor = d.list().expect("list");
        let mut n = 0;
        while cursor.peek(&|_| true).expect("entry").is_some() {
            cursor.advance();
            n += 1;
        }
        assert_eq!(n, files);
    };
    let cold = open();
    measure_batch("list, for each entry, first time", files, || list(&cold));
    measure_batch("list, for each entry, first again", files, || list(&cold));
    measure_batch("list, for each entry", files, || list(&store));
    measure("rename", files, |i| {
        let f = open_stat(&store, i);
        let Lookup::Missing { parent, .. } =
            store.lookup(&NtPath::parse(&format!("dir own descriptor\\new{i}")).expect("path")).expect("lookup")
        else {
            panic!("there already")
        };
        f.rename(None, &*parent, &format!("new{i}"), false).expect("rename");
    });
    measure("delete", files, |i| {
        let p = NtPath::parse(&format!("dir own descriptor\\new{i}")).expect("path");
        let Lookup::Found(f) = store.lookup(&p).expect("lookup") else { panic!("gone") };
        f.security().expect("descriptor");
        if i > 0 {
            f.unlink(None).expect("unlink");
        }
    });
}

/// CPU nanoseconds of this thread so far.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn measure(label: &str, n: usize, mut f: impl FnMut(usize)) {
    measure_batch(label, n, || (0..n).for_each(&mut f));
}

fn measure_batch(label: &str, n: usize, f: impl FnOnce()) {
    let (cpu, started) = (cpu_ns(), Instant::now());
    f();
    let (wall, cpu) = (started.elapsed(), cpu_ns() - cpu);
    let per_second = n as f64 / wall.as_secs_f64();
    println!("{label:44} {per_second:10.0} ops/s {:8.2} CPU us", cpu as f64 / 1000.0 / n as f64);
}
