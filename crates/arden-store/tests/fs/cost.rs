//! What a create, an open and a close cost in this layer; printed, and bounded loosely.

use std::time::Instant;

use arden_store::fs::{ClientId, Disposition, LockRange};

use crate::world::*;

#[test]
#[ignore = "figures, for a quiet machine: cargo test --release -p arden-store --test fs cost -- --ignored --nocapture"]
fn create_open_close() {
    let w = World::new();
    let n = 20_000;
    let timed = |what: &str, f: &mut dyn FnMut(usize)| {
        let start = Instant::now();
        (0..n).for_each(&mut *f);
        println!("{what}: {:.2} us", start.elapsed().as_secs_f64() * 1e6 / n as f64);
    };
    timed("create+close", &mut |i| {
        let name = format!("f{}", i);
        w.close(w.open(want(&name).disposition(Disposition::Create).lease(7 + i as u128, "RWH")));
    });
    timed("open+close, one file, no lease", &mut |_| w.close(w.open(want("f0").existing())));
    timed("open+close, one file, lease", &mut |_| w.close(w.open(want("f0").existing().lease(7, "RWH"))));
    timed("stat open+close, one file", &mut |_| w.close(w.open(want("f0").existing().access(FILE_READ_ATTRIBUTES))));
    timed("open+close, all files", &mut |i| w.close(w.open(want(&format!("f{i}")).existing().lease(7, "RWH"))));
    let held: Vec<_> = (0..1000).map(|_| w.open(want("f0"))).collect();
    timed("open+close beside 1000 opens", &mut |_| w.close(w.open(want("f0").existing())));
    held.into_iter().for_each(|o| w.close(o));
    let f = w.open(want("f0"));
    timed("write 4 KiB", &mut |i| w.write(&f, (i % 64) as u64 * 4096, &[7; 4096]).unwrap());
    let mut buf = [0; 4096];
    timed("read 4 KiB", &mut |i| {
        w.fs.read(&w.scope, &f, (i % 64) as u64 * 4096, &mut buf, arden_store::store::Wait::Yes).unwrap();
    });
}

#[test]
#[ignore = "figures, for a quiet machine: as above"]
fn crowds() {
    const LEASES: u128 = 16_000;
    const WAITS: u64 = 4_000;
    let timed = |what: &str, f: &mut dyn FnMut()| {
        let start = Instant::now();
        f();
        println!("{what}: {:.2} ms", start.elapsed().as_secs_f64() * 1e3);
    };
    let w = World::new();
    let f = w.open(want("f"));
    let mut opens = Vec::new();
    timed("16,000 leases", &mut || opens.extend((0..LEASES).map(|n| w.open(want("f").lease(n, "RH")))));
    timed("an open and close beside them", &mut || w.close(w.open(want("f"))));
    timed("a lock that breaks them", &mut || {
        w.fs.lock(&f, &[LockRange { offset: 0, len: 1, exclusive: true }], true, w.cause()).unwrap();
    });
    println!("{} told", w.told().len());
    timed("a write beside them", &mut || w.write(&f, 0, b"x").unwrap());
    timed("the answer to one break", &mut || {
        w.table.ack_lease_break(ClientId(1), LEASES - 1, 0, w.cause()).unwrap();
    });
    let w = World::new();
    let f = w.open(want("f"));
    opens = (0..LEASES).map(|_| w.open(want("f").lease(1, "RH"))).collect();
    timed("the opens of a lease", &mut || assert_eq!(w.table.lease_opens(ClientId(1), 1).unwrap().len(), 16_000));
    timed("a write that breaks it", &mut || w.write(&f, 0, b"x").unwrap());
    drop(opens);
    let w = World::new();
    let (f, g) = (w.open(want("f")), w.open(want("f")));
    let range = |offset, len| [LockRange { offset, len, exclusive: false }];
    let exclusive = |offset| [LockRange { exclusive: true, ..range(offset, 1)[0] }];
    (0..2).for_each(|at| assert!(w.fs.lock(&f, &exclusive(at), true, w.cause()).is_ok()));
    (0..WAITS).for_each(|n| assert!(w.fs.lock(&g, &range(0, 10 + n), false, w.cause()).is_ok()));
    timed("an unlock for which 4,000 locks wait", &mut || w.fs.unlock(&f, &range(1, 1)).1.unwrap());
    timed("an unlock that gives them", &mut || w.fs.unlock(&f, &range(0, 1)).1.unwrap());
    println!("{} told", w.told().len());
    let w = World::new();
    let f = w.open(want("f"));
    (0..90).for_each(|n| w.close(w.open(want(&format!("f:{n}")))));
    timed("a list of 90 streams", &mut || assert_eq!(w.fs.streams(&f).unwrap().len(), 91));
    w.close(f);
    timed("an overwrite of these", &mut || w.close(w.open(want("f").disposition(Disposition::Overwrite))));
    (0..90).for_each(|n| w.close(w.open(want(&format!("f:{n}")))));
    timed("a deletion of these", &mut || w.unlink("f").unwrap());
}
