//! Volumes on thin devices of one pool that has less room than it promised: full, emptied, and full again at once.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arden_block::{Device, IoError, IoResult, Redundant, Verify, device::ParityMismatches};
use arden_store::{
    error::{NotDone, StoreError},
    name::NtPath,
    store::*,
};
use arden_volume::{Durability, MemDevice, VolError, Volume, VolumeOptions, VolumeStore};
use arden_wire::FileTime;

const PIECE: u64 = 256 << 10;
const SIZE: u64 = 64 << 20;

/// A device that asks a pool for each piece that is written.
struct Thin {
    memory: MemDevice,
    pool: Arc<Mutex<u64>>,
    held: Mutex<BTreeSet<u64>>,
    /// It keeps copies, which a crash may have left different.
    copies: AtomicBool,
}

impl Thin {
    fn new(pool: &Arc<Mutex<u64>>) -> Arc<Thin> {
        Arc::new(Thin {
            memory: MemDevice::new(SIZE as usize),
            pool: pool.clone(),
            held: Mutex::default(),
            copies: AtomicBool::new(false),
        })
    }
}

impl Device for Thin {
    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        self.memory.read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        let (mut pool, mut held) = (self.pool.lock().unwrap(), self.held.lock().unwrap());
        for piece in offset / PIECE..(offset + data.len() as u64).div_ceil(PIECE) {
            if !held.contains(&piece) {
                *pool = pool.checked_sub(1).ok_or(IoError::NoSpace)?;
                held.insert(piece);
            }
        }
        self.memory.write(offset, data)
    }
    fn flush(&self) -> IoResult<()> {
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        let (mut pool, mut held) = (self.pool.lock().unwrap(), self.held.lock().unwrap());
        let whole = offset.div_ceil(PIECE)..(offset + len) / PIECE;
        *pool += whole.filter(|piece| held.remove(piece)).count() as u64;
        drop((pool, held));
        self.memory.discard(offset, len)
    }
    fn thin(&self) -> Option<&dyn arden_block::Thin> {
        Some(self)
    }
    fn redundant(&self) -> Option<&dyn Redundant> {
        self.copies.load(Ordering::Relaxed).then_some(self as &dyn Redundant)
    }
}

impl Redundant for Thin {
    fn read_verified(&self, offset: u64, buf: &mut [u8], _: &Verify) -> IoResult<()> {
        self.read(offset, buf)
    }
    fn copies_pass(&self, _: u64, _: usize, _: &Verify) -> bool {
        true
    }
    fn heal(&self, _: u64, _: usize, _: &Verify) -> IoResult<u64> {
        Ok(0)
    }
    fn parity_mismatches(&self, _: u64, _: u64) -> IoResult<Option<ParityMismatches>> {
        Ok(None)
    }
    fn recompute_parity(&self, _: u64, _: &Verify) -> IoResult<u64> {
        Ok(0)
    }
    fn may_differ(&self) -> bool {
        true
    }
}

impl arden_block::Thin for Thin {
    fn piece_bytes(&self) -> u64 {
        PIECE
    }
    fn pieces_held(&self) -> Vec<u64> {
        self.held.lock().unwrap().iter().copied().collect()
    }
}

struct Files {
    vol: Arc<Volume>,
    store: Arc<VolumeStore>,
}

impl Files {
    /// On a volume that gives back what is empty after a minute, or when it has to.
    fn on(device: &Arc<Thin>) -> Files {
        Volume::format(&**device, "thin", 5 << 64 | 6, FileTime(1)).unwrap();
        Files::again(device)
    }

    fn again(device: &Arc<Thin>) -> Files {
        let options = VolumeOptions { commit_interval: Duration::from_secs(60), ..VolumeOptions::default() };
        let vol = Volume::open(device.clone(), options).unwrap();
        Files { store: VolumeStore::new(vol.clone(), Durability::Plain), vol }
    }

    fn make(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let new = NewFile { directory: false, attributes: 0, security: None, eas: &[], allocation: None };
        let node = self.store.root().create_child(None, name, &new)?;
        node.write_at(None, 0, bytes, Wait::Yes).map(|_| ())
    }

    fn find(&self, name: &str) -> NodeRef {
        match self.store.lookup(&NtPath::parse(name).unwrap()).unwrap() {
            Lookup::Found(node) => node,
            _ => panic!("there is no {name}"),
        }
    }

    fn holds(&self, name: &str, bytes: &[u8]) {
        let node = self.find(name);
        let mut found = vec![0; node.stat().unwrap().end_of_file as usize];
        node.read_at(0, &mut found, Wait::Yes).unwrap();
        assert!(found == bytes, "{name}");
    }

    /// Files of so many bytes until there is no room for another; how many there are.
    fn fill(&self, prefix: &str, bytes: usize) -> usize {
        for i in 0.. {
            let name = format!("{prefix}{i}");
            match self.make(&name, &vec![i as u8; bytes]) {
                Ok(()) => {}
                Err(NotDone::Failed(StoreError::DiskFull)) => {
                    // What has no content may still have a name.
                    if let Ok(Lookup::Found(node)) = self.store.lookup(&NtPath::parse(&name).unwrap()) {
                        node.unlink(None).unwrap();
                    }
                    return i;
                }
                Err(e) => panic!("{name}: {e}"),
            }
        }
        0
    }

    fn empty(&self, prefix: &str, files: impl Iterator<Item = usize>) {
        files.for_each(|i| self.find(&format!("{prefix}{i}")).unlink(None).unwrap());
    }
}

#[test]
fn what_was_deleted_makes_room_in_a_full_pool_at_once() {
    let pool = Arc::new(Mutex::new(64));
    let device = Thin::new(&pool);
    let files = Files::on(&device);
    for round in 0..6 {
        let name = format!("round {round} ");
        let n = files.fill(&name, 700_000);
        assert!(n >= 14, "{n} of 16 MiB in round {round}");
        assert_eq!(*pool.lock().unwrap(), 0);
        (0..n).for_each(|i| files.holds(&format!("{name}{i}"), &vec![i as u8; 700_000]));
        files.empty(&name, 0..n);
    }
    // Also in pieces that stay half full.
    let n = files.fill("small ", 100_000);
    files.empty("small ", (0..n).step_by(2));
    let more = files.fill("again ", 100_000);
    assert!(more + 4 >= n / 2, "{more} where {n} were");
    (1..n).step_by(2).for_each(|i| files.holds(&format!("small {i}"), &vec![i as u8; 100_000]));
    files.empty("small ", 1..2);
    files.vol.close().unwrap();
    let report = files.vol.check(true).unwrap();
    assert!(report.is_clean(), "{:?}", report.errors);
    drop(files);
    let files = Files::again(&device);
    (0..more).for_each(|i| files.holds(&format!("again {i}"), &vec![i as u8; 100_000]));
}

#[test]
fn a_full_pool_stops_no_volume_and_refuses_no_deletion() {
    let pool = Arc::new(Mutex::new(48));
    let device = Thin::new(&pool);
    let files = Files::on(&device);
    let large = files.fill("large ", 300_000);
    // Through the journal, until there is no room there either.
    let small = files.fill("small ", 30_000);
    assert!(files.vol.checkpoint().is_ok() || small > 0);
    files.empty("large ", 0..large);
    files.empty("small ", 0..small);
    let new = files.fill("new ", 300_000);
    assert!(new + 3 >= large, "{new} where {large} were, beside {small} small ones");
    files.empty("new ", 0..1);
    files.vol.close().unwrap();
    assert!(files.vol.check(true).unwrap().is_clean());
}

/// No room for the tree of a checkpoint: the journal has everything, and the next opening finds it there.
#[test]
fn a_volume_in_a_full_pool_is_closed_and_nothing_is_missing() {
    let pool = Arc::new(Mutex::new(48));
    let device = Thin::new(&pool);
    let files = Files::on(&device);
    let large = files.fill("large ", 300_000);
    let small = files.fill("small ", 30_000);
    assert!(large > 20 && small > 0, "{large} {small}");
    assert_eq!(files.vol.checkpoint(), Err(VolError::Full));
    assert_eq!(files.vol.close(), Ok(()));
    drop(files);
    let files = Files::again(&device);
    (0..large).for_each(|i| files.holds(&format!("large {i}"), &vec![i as u8; 300_000]));
    (0..small).for_each(|i| files.holds(&format!("small {i}"), &vec![i as u8; 30_000]));
    assert_eq!(files.vol.close(), Ok(()));
    // With room again, it is closed as ever.
    let files = Files::again(&device);
    files.empty("large ", 0..large / 2);
    assert_eq!(files.vol.checkpoint(), Ok(()));
    assert_eq!(files.vol.close(), Ok(()));
    let report = files.vol.check(true).unwrap();
    assert!(report.is_clean(), "{:?}", report.errors);
}

/// A checkpoint that found no room is ended by the next one, which has what was done between the two as well.
#[test]
fn a_checkpoint_behind_one_without_room_has_everything() {
    let pool = Arc::new(Mutex::new(48));
    let device = Thin::new(&pool);
    let files = Files::on(&device);
    // Others have taken what the pool had.
    let left = std::mem::take(&mut *pool.lock().unwrap());
    let no_room = (0..100).find(|round| {
        (0..200).for_each(|i| files.make(&format!("{round} {i}"), b"").unwrap());
        files.vol.checkpoint() == Err(VolError::Full)
    });
    assert!(no_room.is_some());
    *pool.lock().unwrap() = left;
    files.make("behind", b"it").unwrap();
    let (done, durable) = files.vol.progress();
    assert!(durable < done, "the test shows nothing: it is durable by the journal");
    assert_eq!(files.vol.checkpoint(), Ok(()));
    // As a crash leaves it: without what the journal only has in memory.
    let left = Arc::new(MemDevice::holding(device.memory.content()));
    let vol = Volume::open(left, VolumeOptions::default()).unwrap();
    let found = Files { store: VolumeStore::new(vol.clone(), Durability::Plain), vol };
    found.holds("behind", b"it");
}

#[test]
fn what_one_volume_gives_back_when_it_is_asked_is_another_ones() {
    let pool = Arc::new(Mutex::new(96));
    let devices = [Thin::new(&pool), Thin::new(&pool)];
    let [one, two] = [Files::on(&devices[0]), Files::on(&devices[1])];
    let n = one.fill("one ", 700_000);
    assert!(two.make("two", &[7; 700_000]).is_err());
    one.empty("one ", 1..n);
    one.vol.give_all_back();
    assert!(two.fill("two ", 700_000) + 3 >= n);
    one.holds("one 0", &[0; 700_000]);
}

#[test]
fn a_hole_punched_into_a_file_is_room_for_others() {
    let pool = Arc::new(Mutex::new(64));
    let device = Thin::new(&pool);
    let files = Files::on(&device);
    files.make("large", &[9; 6 << 20]).unwrap();
    let before = *pool.lock().unwrap();
    let node = files.find("large");
    node.set_sparse(None, true).unwrap();
    node.zero_range(None, 1 << 20, 4 << 20).unwrap();
    files.vol.give_all_back();
    let given = *pool.lock().unwrap() - before;
    assert!(given >= 14, "{given} pieces of the 16 that the hole covers");
    let mut content = vec![9; 6 << 20];
    content[1 << 20..5 << 20].fill(0);
    files.holds("large", &content);
    assert!(files.vol.check(true).unwrap().is_clean());
}

#[test]
fn a_volume_that_a_full_pool_cannot_let_grow_stays_as_it_is_and_goes_on() {
    let pool = Arc::new(Mutex::new(200));
    let device = Thin::new(&pool);
    let files = Files::on(&device);
    files.make("before", &[1; 100_000]).unwrap();
    device.memory.extend(2 * SIZE as usize);
    let free = std::mem::take(&mut *pool.lock().unwrap());
    assert!(matches!(files.vol.grow(), Err(VolError::Full)), "there is no room for the superblock at the new end");
    files.make("after", &[2; 100_000]).unwrap();
    files.vol.sync().unwrap();
    drop(files);
    // Power was lost between the growth of the device and that of the volume, in a mirror.
    device.copies.store(true, Ordering::Relaxed);
    let files = Files::again(&device);
    files.holds("after", &[2; 100_000]);
    *pool.lock().unwrap() = free;
    assert_eq!(files.vol.grow().unwrap(), 2 * SIZE);
    files.holds("before", &[1; 100_000]);
}
