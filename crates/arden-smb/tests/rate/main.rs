//! Processor time of an operation, client and server in memory on one thread: for comparing two builds, not for judging one.
//! `cargo test --release -p arden-smb --test rate -- --ignored --nocapture`

use arden_testkit::client;

use client::*;

/// Nanoseconds that this thread ran.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split_whitespace().next().unwrap().parse().unwrap()
}

/// The least of several rounds, in nanoseconds for each time that `work` ran.
fn least(times: u32, mut work: impl FnMut()) -> u64 {
    let round = |work: &mut dyn FnMut()| {
        let began = cpu_ns();
        (0..times).for_each(|_| work());
        (cpu_ns() - began) / u64::from(times)
    };
    (0..15).map(|_| round(&mut work)).min().unwrap()
}

#[test]
#[ignore = "measures"]
fn processor_time_of_operations() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.put("file", &[7; 64 * 1024]);
    let f = c.open(want("file").existing()).id;
    let mut rows = Vec::new();
    rows.push(("echo", least(20_000, || drop(c.call(&echo())))));
    rows.push(("read 4 KiB", least(20_000, || drop(c.read(f, 4096, 4096)))));
    rows.push(("write 4 KiB", least(10_000, || c.write(f, 4096, &[1; 4096]))));
    let stat = query_info(f, info_type::FILE, file_class::STANDARD, 0, &[], 64);
    rows.push(("query info", least(20_000, || drop(c.call(&stat)))));
    rows.push((
        "create, close",
        least(3_000, || {
            let f = c.open(want("file").existing()).id;
            c.close(f);
        }),
    ));
    let compound =
        [want("file").existing().req(), read(FileId::RELATED, 0, 4096).related(), close(FileId::RELATED).related()];
    rows.push(("compound of open, read, close", least(3_000, || drop(c.compound(&compound)))));
    for (what, ns) in rows {
        println!("{what:32}{:8.2} us", ns as f64 / 1000.0);
    }
}
