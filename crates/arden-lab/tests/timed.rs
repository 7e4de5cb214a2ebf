//! Figures in virtual time that hold on every machine: the gain of more disks, the cost of parity for a stream, the
//! speed of a repair. `make bench-space` has the long versions.

use arden_lab::{
    pools::timed::{Disk, Setup, World},
    spaces::{
        Line,
        models::{bare_doubling, doubling, parity_stream, repair},
    },
};
use arden_space::Layout;

const SAS: Disk = Disk::Sas { write_cache: true };
const SAS_WITHOUT_CACHE: Disk = Disk::Sas { write_cache: false };
const SPAN: u64 = 8 << 30;

#[track_caller]
fn holds(line: Line) {
    assert!(line.met(), "{line:?}");
}

#[test]
fn eight_disks_stream_twice_as_much_as_four() {
    holds(doubling(SAS, "streaming", SPAN, 0.4).unwrap());
    holds(doubling(SAS_WITHOUT_CACHE, "restore", SPAN, 0.4).unwrap());
    holds(doubling(Disk::SataSsd, "restore", SPAN, 0.05).unwrap());
}

#[test]
fn eight_ssds_take_twice_the_random_load_of_four() {
    holds(doubling(Disk::SataSsd, "file-server", SPAN, 0.1).unwrap());
    holds(doubling(Disk::SataSsd, "database", SPAN, 0.03).unwrap());
}

#[test]
fn parity_streams_at_the_rate_of_its_data_disks() {
    holds(parity_stream(SAS, 3, 0.6).unwrap());
    holds(parity_stream(SAS_WITHOUT_CACHE, 5, 0.6).unwrap());
}

#[test]
fn repair_streams() {
    holds(repair(SAS, Layout::Mirror2, 6, 1 << 30).unwrap());
    holds(repair(SAS_WITHOUT_CACHE, Layout::Mirror3, 6, 512 << 20).unwrap());
}

#[test]
fn three_copies_take_a_third_of_the_pool_whatever_the_disks() {
    for disks in [5, 6, 7, 8] {
        let pool_bytes = disks as u64 * 147_000_000_000;
        let wanted = (pool_bytes / 3 * 98 / 100).next_multiple_of(4096);
        // The space is provisioned at creation, which succeeds only when the slabs exist.
        World::new(Setup::new(Layout::Mirror3, disks, SAS).file_bytes(wanted)).unwrap();
    }
}

#[test]
fn random_load_gains_from_eight_disks_what_bare_disks_gain() {
    for name in ["file-server", "database"] {
        let (space, bare) = (doubling(SAS, name, SPAN, 2.0).unwrap(), bare_doubling(SAS, name, SPAN, 2.0).unwrap());
        assert!(space.ratio >= bare.ratio - 0.03, "{space:?} beside {bare:?}");
    }
}
