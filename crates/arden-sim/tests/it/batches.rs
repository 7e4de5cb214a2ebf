//! The daemon's order of asking a volume for durability: several ask while a batch of its journal is on its way. `--volume` runs
//! one operation after the other, and so has nobody who asks meanwhile.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use arden_block::{Device, IoResult, Thin, device::Written};
use arden_store::name::NtPath;
use arden_store::store::{FileStore, Lookup, NewFile};
use arden_volume::{Durability, MemDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::FileTime;

type Batch = (Vec<(u64, Vec<u8>)>, Written);

/// Hands each batch to the test, which writes it or loses it.
struct Held {
    memory: MemDevice,
    batches: Mutex<Sender<Batch>>,
}

impl Device for Held {
    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        self.memory.read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        self.memory.write(offset, data)
    }
    fn flush(&self) -> IoResult<()> {
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        self.memory.discard(offset, len)
    }
    fn thin(&self) -> Option<&dyn Thin> {
        self.memory.thin()
    }
    fn writes_later(&self) -> bool {
        true
    }
    fn write_durably_later(&self, writes: Vec<(u64, Vec<u8>)>, told: Written) {
        self.batches.lock().unwrap().send((writes, told)).unwrap();
    }
}

fn options() -> VolumeOptions {
    VolumeOptions { background: false, ..VolumeOptions::default() }
}

fn volume() -> (Arc<Held>, Arc<Volume>, Receiver<Batch>) {
    let memory = Arc::new(MemDevice::new(8 << 20));
    Volume::format(&*memory, "test", 0x77, FileTime(1)).unwrap();
    drop(Volume::open(memory.clone(), options()).unwrap());
    let (tx, rx) = channel();
    let device = Arc::new(Held { memory: MemDevice::holding(memory.content()), batches: Mutex::new(tx) });
    let vol = Volume::open(device.clone(), options()).unwrap();
    (device, vol, rx)
}

fn create(vol: &Arc<Volume>, name: &str) {
    let store = VolumeStore::new(vol.clone(), Durability::Plain);
    let Lookup::Missing { parent, .. } = store.lookup(&NtPath::parse(name).unwrap()).unwrap() else {
        panic!("{name} is there")
    };
    let new = NewFile { directory: false, attributes: 0, security: None, eas: &[], allocation: None };
    parent.create_child(None, name, &new).unwrap();
}

/// Two users ask for the same operation while its batch is on its way. Power is lost: neither was told.
#[test]
fn nobody_is_told_of_an_operation_whose_batch_is_on_its_way() {
    let (device, vol, batches) = volume();
    let (tell, told) = channel();
    create(&vol, "file");
    let (seq, durable) = vol.progress();
    assert!(durable < seq);
    let ask = |who: &'static str| {
        let tell = tell.clone();
        vol.commit_later(seq, Box::new(move |r| tell.send((who, r)).unwrap()));
    };
    ask("first");
    let (writes, written) = batches.try_recv().expect("its batch has left");
    ask("second");
    assert!(told.try_recv().is_err() && vol.progress().1 < seq, "nothing is durable yet");
    let lost = Volume::open(Arc::new(MemDevice::holding(device.memory.content())), options()).unwrap();
    let store = VolumeStore::new(lost, Durability::Plain);
    assert!(matches!(store.lookup(&NtPath::parse("file").unwrap()).unwrap(), Lookup::Missing { .. }));
    writes.iter().for_each(|(at, bytes)| device.write(*at, bytes).unwrap());
    written(Ok(()));
    let mut all: Vec<_> = told.try_iter().collect();
    all.sort_by_key(|t| t.0);
    assert_eq!(all, [("first", Ok(())), ("second", Ok(()))]);
    assert_eq!(vol.progress().1, seq);
}
