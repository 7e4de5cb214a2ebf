//! Room that is promised, not written: what it costs the server, its quotas and the other users.

use std::os::unix::fs::MetadataExt;

use arden_store::quota::{NONE, control};

use crate::{client::*, world::*};

const GB: u64 = 1 << 30;
const MB: u64 = 1 << 20;
const FAR: u64 = 1 << 40;

/// Bytes that the file takes on the host's disk.
fn taken(world: &World, name: &str) -> u64 {
    std::fs::metadata(world.lab.host(name)).unwrap().blocks() * 512
}

/// And everything in the share's directory.
fn taken_by_all(world: &World) -> u64 {
    fn below(dir: &std::path::Path) -> u64 {
        let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap());
        entries
            .map(|e| {
                let m = e.metadata().unwrap();
                m.blocks() * 512 + if m.is_dir() { below(&e.path()) } else { 0 }
            })
            .sum()
    }
    below(&world.lab.host(""))
}

fn set(c: &mut Client, id: FileId, class: u8, size: u64) -> NtStatus {
    c.set(id, class, &size.to_le_bytes())
}

/// On a shared directory an allocation is a hint: it is shown while the file is open, and takes no block of the disk.
#[test]
fn allocations_take_nothing_from_the_hosts_disk() {
    let world = World::on(Kind::Directory);
    let mut c = world.client(MALLORY, CHANGE);
    let f = c.open(want("set").access(GENERIC_WRITE | FILE_READ_ATTRIBUTES));
    assert_eq!(set(&mut c, f.id, file_class::ALLOCATION, GB), NtStatus::SUCCESS);
    assert!(le_u64(&c.query(f.id, file_class::NETWORK_OPEN), 32) >= GB, "[MS-FSA] 2.1.5.15.1");
    assert!(taken(&world, "set") < MB);
    c.close(f.id);
    let w = want("asked").access(GENERIC_WRITE).context(tag::ALLOCATION_SIZE, GB.to_le_bytes().to_vec());
    let f = c.open(w.clone());
    assert!(f.allocation >= GB);
    assert!(taken(&world, "asked") < MB);
    c.close(f.id);
    let f = c.open(w.disposition(OVERWRITE_IF).access(CHANGE_MASK));
    assert!(taken(&world, "asked") < MB);
    c.close(f.id);
    // [MS-FSA] 2.1.5.5 phase 4: with the last handle it is gone.
    for name in ["set", "asked"] {
        let f = c.open(want(name).existing().access(FILE_READ_ATTRIBUTES));
        assert!(f.allocation < MB, "{name}");
        c.close(f.id);
    }
}

/// More than there is room for is refused, as [MS-FSA] 2.1.5.15.1 has it.
#[test]
fn an_allocation_has_to_fit_the_disk() {
    let world = World::on(Kind::Directory);
    let mut c = world.client(MALLORY, CHANGE);
    let f = c.open(want("set").access(GENERIC_WRITE));
    assert_eq!(set(&mut c, f.id, file_class::ALLOCATION, i64::MAX as u64), NtStatus::DISK_FULL);
    assert_eq!(set(&mut c, f.id, file_class::ALLOCATION, u64::MAX), NtStatus::INVALID_PARAMETER);
    for size in [i64::MAX as u64, u64::MAX] {
        let w = want("asked").access(GENERIC_WRITE).context(tag::ALLOCATION_SIZE, size.to_le_bytes().to_vec());
        assert_eq!(c.fails(w), NtStatus::DISK_FULL, "{size:#x}");
        assert_eq!(c.opens(want("asked").existing().access(FILE_READ_ATTRIBUTES)), NtStatus::OBJECT_NAME_NOT_FOUND);
    }
}

/// Sizes without data, zeros over them, and what becomes of them when they turn into streams and back.
#[test]
fn zeros_take_nothing_from_the_hosts_disk() {
    let world = World::on(Kind::Directory);
    let mut c = world.client(MALLORY, CHANGE);
    for name in ["file", "with:stream"] {
        let f = c.open(want(name).access(CHANGE_MASK));
        assert_eq!(set(&mut c, f.id, file_class::END_OF_FILE, FAR), NtStatus::SUCCESS);
        let began = std::time::Instant::now();
        c.fsctl(f.id, fsctl::SET_ZERO_DATA, &pair(0, FAR), 0);
        let trim = [&0u32.to_le_bytes()[..], &1u32.to_le_bytes(), &pair(0, FAR)].concat();
        c.fsctl(f.id, fsctl::FILE_LEVEL_TRIM, &trim, 4);
        assert!(began.elapsed().as_secs() < 5, "{name}");
        assert!(taken_by_all(&world) < MB, "{name}");
        c.close(f.id);
    }
    // The data becomes a stream, and a stream the data.
    let f = c.open(want("file").existing().access(CHANGE_MASK));
    assert_eq!(c.rename(f.id, ":moved", false), NtStatus::SUCCESS);
    assert!(taken_by_all(&world) < MB);
    assert_eq!(le_u64(&c.query(f.id, file_class::STANDARD), 8), FAR);
    assert_eq!(c.rename(f.id, "::$DATA", true), NtStatus::SUCCESS);
    assert!(taken_by_all(&world) < MB);
    assert_eq!(le_u64(&c.query(f.id, file_class::STANDARD), 8), FAR);
    c.write(f.id, FAR - 3, b"end");
    assert_eq!(c.read(f.id, FAR - 5, 10), b"\0\0end");
    c.close(f.id);
    let f = c.open(want("file").existing().access(CHANGE_MASK));
    assert_eq!(c.rename(f.id, ":moved", false), NtStatus::SUCCESS);
    assert_eq!(c.read(f.id, FAR - 5, 10), b"\0\0end");
    c.close(f.id);
}

/// Zeros over data are zeros.
#[test]
fn zeroed_data_reads_as_zeros() {
    for kind in KINDS {
        let world = World::on(kind);
        let mut c = world.client(MALLORY, CHANGE);
        for name in ["file", "file:stream"] {
            let f = c.open(want(name).access(CHANGE_MASK));
            for i in 0..4 {
                c.write(f.id, i * 50_000, &[1; 50_000]);
            }
            c.fsctl(f.id, fsctl::SET_ZERO_DATA, &pair(10_001, 150_003), 0);
            let data: Vec<u8> = (0..4).flat_map(|i| c.read(f.id, i * 50_000, 50_000)).collect();
            let expected = |i: usize| u8::from(!(10_001..150_003).contains(&i));
            assert!(
                data.len() == 200_000 && data.iter().enumerate().all(|(i, b)| *b == expected(i)),
                "{kind:?} {name}"
            );
            c.close(f.id);
        }
    }
}

/// On a volume what is promised is kept for who asked, counts as theirs, and is given back with the last handle.
#[test]
fn a_volume_counts_what_it_promises() {
    let world = World::on(Kind::Volume);
    let volume = world.volume.clone().unwrap();
    let settings = arden_store::quota::QuotaControl { threshold: NONE, limit: NONE, flags: control::ENFORCE };
    volume.set_quota_control(&settings).unwrap();
    volume.set_user_quota(&world.sid(MALLORY), NONE, 8 * MB).unwrap();
    let mut c = world.client(MALLORY, CHANGE);
    let f = c.open(want("file").access(CHANGE_MASK));
    let over = |status: NtStatus| assert!(matches!(status, NtStatus::DISK_FULL | NtStatus::QUOTA_EXCEEDED), "{status}");
    for class in [file_class::ALLOCATION, file_class::END_OF_FILE] {
        over(set(&mut c, f.id, class, 9 * MB));
        over(set(&mut c, f.id, class, FAR));
    }
    let w = want("other").access(CHANGE_MASK).context(tag::ALLOCATION_SIZE, (9 * MB).to_le_bytes().to_vec());
    over(c.fails(w));
    assert_eq!(set(&mut c, f.id, file_class::ALLOCATION, 7 * MB), NtStatus::SUCCESS);
    let g = c.open(want("file:s").access(CHANGE_MASK));
    over(set(&mut c, g.id, file_class::ALLOCATION, 2 * MB));
    let used = || volume.user_quota(&world.sid(MALLORY)).unwrap().unwrap().used_bytes;
    assert!(used() >= 7 * MB);
    // Somebody else has it open too: it stays.
    let again = c.open(want("file").existing().access(FILE_READ_DATA));
    c.close(f.id);
    assert!(used() >= 7 * MB);
    c.close(again.id);
    assert!(used() < MB, "[MS-FSA] 2.1.5.5 phase 4: {}", used());
    assert_eq!(set(&mut c, g.id, file_class::ALLOCATION, 2 * MB), NtStatus::SUCCESS);
    c.close(g.id);
    assert!(used() < MB, "streams too: {}", used());
    let w = want("asked").access(CHANGE_MASK).context(tag::ALLOCATION_SIZE, (5 * MB).to_le_bytes().to_vec());
    let f = c.open(w);
    assert!(f.allocation >= 5 * MB && used() >= 5 * MB);
    c.close(f.id);
    assert!(used() < MB, "of the create too: {}", used());
    let report = volume.check(true).unwrap();
    assert_eq!(report.errors, Vec::<String>::new());
}
