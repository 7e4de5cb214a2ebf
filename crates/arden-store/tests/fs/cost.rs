//! What a create, an open and a close cost in this layer; printed, and bounded loosely.

use std::time::Instant;

use arden_store::fs::Disposition;

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
