//! Tests of the generator: figures against disks of known latency and rate, stalls, errors, its own cost.

use arden_block::{
    Rt,
    sim::{Faults, SimDisk},
};
use arden_measure::load::{
    Access, BlockTarget, Content, Figures, Live, Load, Measured, Model, NullTarget, Target, Window, drive, fill,
};

fn load(outstanding: usize) -> Load {
    Load {
        access: Access::Random,
        read_percent: 67,
        block_bytes: 8192,
        base_bytes: 0,
        file_bytes: 64 << 20,
        outstanding,
        rate: None,
        durable: false,
        seed: 1,
        first_block: 0,
    }
}

const SECOND: u64 = 1_000_000_000;
const WINDOW: Window = Window { warm_up_ns: SECOND / 10, measure_ns: 2 * SECOND };

fn run(target: &mut dyn Target, load: &Load) -> Measured {
    drive(target, load, WINDOW, &mut Content::plain(1), &Live::default())
}

fn figures(target: &mut dyn Target, load: &Load) -> Figures {
    let measured = run(target, load);
    assert_eq!(measured.problem, None);
    measured.recorder.figures()
}

#[track_caller]
fn near(what: &str, got: f64, want: f64) {
    assert!((got / want - 1.0).abs() < 0.02, "{what}: {got}, known is {want}");
}

#[test]
fn a_disk_of_known_latency() {
    for (outstanding, parallel) in [(1, 1), (8, 8), (32, 8), (512, 16)] {
        let f = figures(&mut Model::new(100_000, 0, parallel), &load(outstanding));
        near("IO/s", f.io_s, 10_000.0 * parallel.min(outstanding) as f64);
        near("MB/s", f.mb_s, f.io_s * 8192.0 / 1e6);
        // Requests that wait for a server wait for whole rounds.
        let us = 100.0 * (outstanding as f64 / parallel as f64).max(1.0);
        near("mean", f.mean_us, us);
        near("p50", f.p50_us, us);
        near("p99.99", f.p9999_us, us);
        let slices = f.slices_io_s.iter().sum::<f64>() / f.slices_io_s.len() as f64;
        near("slices", slices, f.io_s);
        near("reads", f.reads as f64 / (f.reads + f.writes) as f64, 0.67);
    }
}

#[test]
fn a_disk_of_known_rate() {
    let mut sequential = load(4);
    sequential.access = Access::Sequential;
    sequential.block_bytes = 65536;
    let f = figures(&mut Model::new(10_000, 200_000_000, 1), &sequential);
    let each_us = 10.0 + 65536.0 / 200.0;
    near("IO/s", f.io_s, 1e6 / each_us);
    near("mean", f.mean_us, 4.0 * each_us);
}

#[test]
fn a_simulated_disk_in_virtual_time() {
    let rt = Rt::virtual_clock(1);
    let disk = SimDisk::new("d", 64 << 20, 1);
    disk.set_faults(Faults { latency_min_ns: 250_000, latency_max_ns: 250_000, ..Faults::default() });
    let mut target = BlockTarget::new(&rt, disk.attach(&rt));
    let f = figures(&mut target, &load(16));
    near("IO/s", f.io_s, 64_000.0);
    near("p99", f.p99_us, 250.0);
    let mut open = load(64);
    open.rate = Some(5000.0);
    let f = figures(&mut target, &open);
    near("rate", f.io_s, 5000.0);
    near("p50", f.p50_us, 250.0);
}

#[test]
fn a_stall_is_charged_to_everything_that_was_due() {
    // 1,000 requests a second for two seconds, with a stall of half a second: a quarter of all requests were due in it,
    // and waited from half a second down to nothing.
    let mut open = load(4096);
    open.rate = Some(1000.0);
    let mut stalling = Model::new(100_000, 0, 4096);
    stalling.stalls = vec![(SECOND, SECOND + SECOND / 2)];
    let f = figures(&mut stalling, &open);
    assert_eq!(f.unsent, 0);
    near("p50", f.p50_us, 100.0);
    near("p90", f.p90_us, 300_000.0);
    near("max", f.max_us, 500_100.0);
    near("mean", f.mean_us, 100.0 + 0.25 * 250_000.0);
    // The same when so few may be in flight that most requests could not be sent during the stall.
    open.outstanding = 4;
    let mut stalling = Model::new(100_000, 0, 4);
    stalling.stalls = vec![(SECOND, SECOND + SECOND / 2)];
    let f = figures(&mut stalling, &open);
    assert!(f.p90_us > 290_000.0 && f.max_us > 499_000.0, "{f:?}");
    // The closed loop does not show the stall, which is why there is an open one.
    let mut stalling = Model::new(100_000, 0, 4);
    stalling.stalls = vec![(SECOND, SECOND + SECOND / 2)];
    let f = figures(&mut stalling, &load(4));
    near("p99 of the closed loop", f.p99_us, 100.0);
}

#[test]
fn more_than_the_target_can_do_is_said() {
    let mut open = load(8);
    open.rate = Some(20_000.0);
    let f = figures(&mut Model::new(100_000, 0, 1), &open);
    near("what it can do", f.io_s, 10_000.0);
    assert!(f.unsent > 15_000, "{}", f.unsent);
    assert!(f.p99_us > 900_000.0);
}

#[test]
fn errors_keep_what_was_seen() {
    let mut model = Model::new(100_000, 0, 1);
    model.fails_after = Some(5000);
    let measured = run(&mut model, &load(1));
    assert!(measured.problem.unwrap().contains("no space left"));
    let f = measured.recorder.figures();
    near("rate until then", f.io_s, 10_000.0);
    assert!(f.seconds < 0.5);
}

#[test]
fn impossible_loads_are_refused() {
    let rt = Rt::virtual_clock(1);
    let mut target = BlockTarget::new(&rt, SimDisk::new("d", 64 << 20, 1).attach(&rt));
    let mut odd = load(1);
    odd.block_bytes = 1000;
    assert!(run(&mut target, &odd).problem.unwrap().contains("multiples of 4096"));
    let mut small = load(1);
    small.file_bytes = 4096;
    assert!(run(&mut target, &small).problem.unwrap().contains("too small"));
}

#[test]
fn verification_finds_what_a_disk_did_wrong() {
    let rt = Rt::virtual_clock(3);
    let disk = SimDisk::new("d", 8 << 20, 3);
    let mut target = BlockTarget::new(&rt, disk.attach(&rt));
    let mut small = load(16);
    small.file_bytes = 8 << 20;
    let live = Live::default();
    let mut content = Content::verified(3, small.file_bytes, 8192, true);
    fill(&mut target, small.file_bytes, &mut content, &live).unwrap();
    let window = Window { warm_up_ns: 0, measure_ns: SECOND / 20 };
    let good = drive(&mut target, &small, window, &mut content, &live);
    assert_eq!(good.problem, None);
    assert!(good.recorder.verified > 100);
    disk.set_faults(Faults { lost_ppm: 10_000, ..Faults::default() });
    let bad = drive(&mut target, &small, Window { warm_up_ns: 0, measure_ns: 2 * SECOND }, &mut content, &live);
    assert!(bad.problem.unwrap().contains("wrong data at byte"));
}

fn null(load: &Load) -> f64 {
    let window = Window { warm_up_ns: 0, measure_ns: SECOND / 3 };
    drive(&mut NullTarget::default(), load, window, &mut Content::plain(1), &Live::default()).recorder.figures().io_s
}

/// The generator's rate on one core with an optimised build; the debug build has its own bound.
#[test]
fn the_generator_costs_little() {
    let mut small = load(32);
    small.block_bytes = 4096;
    let least = if cfg!(debug_assertions) { 8_000.0 } else { 100_000.0 };
    // Other work may take the processors for a moment: the best of three counts.
    let best = (0..3).map(|_| null(&small)).fold(0.0, f64::max);
    println!("null target: {best:.0} 4 KiB operations a second");
    assert!(best >= least, "{best:.0}/s against a target that costs nothing");
}
