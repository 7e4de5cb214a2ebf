//! kill -9 of the daemon at random times under load on three layouts. After each start everything that was acknowledged
//! is read back, in some rounds without one of the disks. ARDEN_KILL_ROUNDS is the number of rounds.

use std::time::{Duration, Instant};

use crate::daemon::{
    Daemon,
    nbd::{Nbd, Oracle, Random},
};

const LAYOUTS: [&str; 3] = ["mirror2", "parity", "dual-parity"];

#[test]
fn killed_at_random_points_nothing_acknowledged_is_lost() {
    let rounds: u64 = std::env::var("ARDEN_KILL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let seed: u64 = std::env::var("ARDEN_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0x5eed_0001);
    let mut d = Daemon::start("kill", 5, 96);
    d.done(&["pool", "create", "tank", "d0", "d1", "d2", "d3", "d4"]);
    for l in LAYOUTS {
        d.done(&["space", "create", l, "--pool", "tank", "--layout", l, "--size", "8m"]);
        d.done(&["space", "export", l, "--nbd", &format!("unix:{l}")]);
    }
    let mut spaces: Vec<(Oracle, Random)> =
        (0..3).map(|i| (Oracle::new(8 << 20), Random(seed.wrapping_mul(31) + i))).collect();
    let mut r = Random(seed);
    let (mut away, mut acknowledged, begun) = (None, 0, Instant::now());
    for round in 0..rounds {
        let time = Duration::from_millis(20 + r.below(180));
        let dir = d.dir.clone();
        let threads: Vec<_> = spaces
            .into_iter()
            .zip(LAYOUTS)
            .map(|((mut o, mut r), l)| {
                let path = dir.join(l);
                std::thread::spawn(move || {
                    let Ok(mut nbd) = Nbd::connect(&path) else { return (o, r, 0) };
                    let whole = o.verify(&mut nbd).unwrap_or_else(|e| panic!("round {round}, {l}: {e}"));
                    // The kill ends the load; writes that were acknowledged before count.
                    let n = if whole { o.load(&mut nbd, &mut r, Duration::from_secs(30)) } else { 0 };
                    (o, r, n)
                })
            })
            .collect();
        // The kill comes after the verification, and in some rounds during it.
        std::thread::sleep(time + Duration::from_millis(if round % 5 == 0 { 0 } else { 120 }));
        d.kill();
        match (round % 20, away) {
            (9, None) if r.below(4) > 0 => {
                let n = r.below(5) as usize;
                std::fs::rename(d.disk(n), d.dir.join("away")).expect("a disk goes");
                away = Some(n);
            }
            (14, Some(n)) => {
                std::fs::rename(d.dir.join("away"), d.disk(n)).expect("it returns");
                away = None;
            }
            _ => {}
        }
        d.launch();
        spaces = threads
            .into_iter()
            .map(|t| {
                let (o, r, n) = t.join().expect("no wrong byte");
                acknowledged += n;
                (o, r)
            })
            .collect();
        // The layouts survive one lost disk at a time: the pool is whole before the next one is lost.
        if round % 20 == 8 && away.is_none() {
            d.wait(60, "all spaces are whole", |d| {
                let list = d.json(&["space", "list"]);
                list.as_array().expect("spaces").iter().all(|s| s["health"] == "whole")
            });
        }
    }
    for ((o, _), l) in spaces.iter_mut().zip(LAYOUTS) {
        let mut nbd = Nbd::connect(&d.dir.join(l)).expect("the export answers");
        let whole = o.verify(&mut nbd).unwrap_or_else(|e| panic!("at the end, {l}: {e}"));
        assert!(whole, "{l} does not answer");
    }
    eprintln!("{rounds} rounds, seed {seed}, {acknowledged} writes, {} s", begun.elapsed().as_secs());
    d.stop();
}
