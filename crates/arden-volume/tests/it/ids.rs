//! A file's id is never another file's: not after its deletion, a crash, another opening, nor when the last snapshot that
//! knew it is gone. So an id alone is enough, without a generation.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use arden_block::rng::Rng;
use arden_store::error::StoreError;
use arden_store::store::{FileStore, NewFile, NodeRef};
use arden_volume::{Durability, MemDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::FileTime;

fn open(device: &Arc<MemDevice>) -> (Arc<Volume>, Arc<VolumeStore>) {
    let options = VolumeOptions { background: false, ..VolumeOptions::default() };
    let volume = Volume::open(device.clone(), options).unwrap();
    (volume.clone(), VolumeStore::new(volume, Durability::Plain))
}

fn create(store: &VolumeStore, name: &str, directory: bool) -> NodeRef {
    let new = NewFile { directory, attributes: 0, security: None, eas: &[], allocation: None };
    store.root().create_child(None, name, &new).unwrap()
}

#[test]
fn an_id_is_never_given_again() {
    let mut rng = Rng::new(1);
    let mut device = Arc::new(MemDevice::new(16 << 20));
    Volume::format(&*device, "ids", 77, FileTime(1)).unwrap();
    // Ids that were durable once, those given since the last commit, and the files that there are.
    let (mut used, mut fresh) = (HashSet::from([1]), HashSet::new());
    let mut files = BTreeSet::new();
    let (mut crashes, mut second) = (0u64, 1);
    for life in 0..60 {
        let (volume, store) = open(&device);
        for step in 0..rng.below(40) {
            match rng.below(10) {
                0..=4 => {
                    let id = create(&store, &format!("{life} {step}"), rng.one_in(3)).id().file;
                    assert!(!used.contains(&id) && fresh.insert(id), "{id} was another file's");
                    files.insert(id);
                }
                // The youngest first: theirs would be the next ids for whoever counts what is there.
                5..=7 => {
                    let Some(id) = files.pop_last() else { continue };
                    store.lookup_id(id).unwrap().unlink(None).unwrap();
                    assert_eq!(store.lookup_id(id).err(), Some(StoreError::InvalidParameter.into()), "{id}");
                }
                8 if rng.one_in(2) => {
                    second += 1;
                    volume.create_snapshot(FileTime(second * 10_000_000), "").unwrap();
                }
                8 => {
                    let oldest = volume.snapshots().unwrap().into_iter().next();
                    oldest.into_iter().for_each(|s| assert!(volume.delete_snapshot(s.time).unwrap()));
                }
                _ => {
                    if rng.one_in(2) { volume.checkpoint() } else { volume.sync() }.unwrap();
                    used.extend(fresh.drain());
                }
            }
        }
        let crash = rng.one_in(2);
        crashes += u64::from(crash);
        if !crash {
            volume.close().unwrap();
            used.extend(fresh.drain());
        }
        device = Arc::new(MemDevice::holding(device.content()));
        drop((volume, store));
        // What was not durable is gone and was nobody's: of that, an id may be given again.
        let (_, store) = open(&device);
        let there = |id: &u64| store.lookup_id(*id).is_ok();
        used.extend(fresh.drain().filter(there));
        files = used.iter().copied().filter(|id| *id != 1 && there(id)).collect();
    }
    assert!(crashes > 5 && used.len() > 200, "{crashes} crashes, {} ids", used.len());
}
