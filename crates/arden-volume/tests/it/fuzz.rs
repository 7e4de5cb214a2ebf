//! Damaged images: opening and checking never panic and never loop, and nothing that is read is wrong: it is right, or an
//! error. The seeds come from `ARDEN_VOLUME_SEEDS=from..to`.

use std::{sync::Arc, time::Duration};

use arden_block::rng::Rng;
use arden_store::store::*;
use arden_volume::{
    Durability, MemDevice, ShortNames, Volume, VolumeOptions, VolumeStore, check_device, read_stream_snapshot,
};
use arden_wire::FileTime;

fn options() -> VolumeOptions {
    VolumeOptions {
        cache_bytes: 1 << 20,
        blocks: None,
        overlay_bytes_max: 1 << 20,
        background: false,
        gather_bytes_max: 0,
        commit_interval: Duration::from_secs(60),
        give_back_after: Duration::ZERO,
    }
}

fn content(i: u64) -> Vec<u8> {
    let mut rng = Rng::new(i);
    let len = [0, 100, 5000, 70_000, 200_000][i as usize % 5];
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

const FILES: u64 = 60;

fn plain(directory: bool) -> NewFile<'static> {
    NewFile { directory, attributes: 0, security: None, eas: &[], allocation: None }
}

/// Part in the tree, part in the journal, some shared; names with 8.3 names beside them.
fn image() -> Vec<u8> {
    let device = Arc::new(MemDevice::new(16 << 20));
    Volume::format(&*device, "fuzz", 99, FileTime(1)).unwrap();
    let vol = Volume::open(device.clone(), options()).unwrap();
    vol.set_short_names(ShortNames::Kept).unwrap();
    let store = VolumeStore::new(vol.clone(), Durability::Plain);
    for i in 0..FILES {
        let dir = match i % 10 {
            0 => store.root().create_child(None, &format!("dir {i}"), &plain(true)).unwrap(),
            _ => store.root(),
        };
        let f = dir.create_child(None, &format!("file {i}"), &plain(false)).unwrap();
        if !content(i).is_empty() {
            f.write_at(None, 0, &content(i), Wait::Yes).unwrap();
        }
        if i % 7 == 0 {
            f.create_stream(None, "side").unwrap().write_at(None, 0, b"stream", Wait::Yes).unwrap();
        }
        if i % 20 == 6 {
            f.create_stream_snapshot(None, "before").unwrap();
        }
        if i % 20 == 4 {
            let g = dir.create_child(None, &format!("clone {i}"), &plain(false)).unwrap();
            Node::clone_from(&*g, None, &*f, 0, 0, content(i).len() as u64).unwrap();
        }
        if i == FILES / 2 {
            vol.checkpoint().unwrap();
        }
    }
    vol.sync().unwrap();
    device.content()
}

fn damage(image: &mut [u8], rng: &mut Rng) {
    for _ in 0..1 + rng.below(12) {
        // Mostly where metadata is: the beginning, the end, and after the journal.
        let at = match rng.below(5) {
            0 => rng.below(8192),
            1 => image.len() as u64 - 1 - rng.below(8192),
            2 => 8192 + rng.below(1 << 20),
            3 => 8192 + (1 << 20) + rng.below(2 << 20),
            _ => rng.below(image.len() as u64),
        } as usize;
        let len = [1, 8, 512, 4096, 16_384][rng.below(5) as usize].min(image.len() - at);
        match rng.below(4) {
            0 => image[at..at + len].iter_mut().for_each(|b| *b = rng.next_u64() as u8),
            1 => image[at] ^= 1 << rng.below(8),
            2 => image[at..at + len].fill(0),
            _ => {
                let from = rng.below((image.len() - len) as u64) as usize;
                image.copy_within(from..from + len, at);
            }
        }
    }
}

#[test]
fn damaged_images_are_errors_and_never_wrong_data() {
    let good = image();
    let report = check_device(Arc::new(MemDevice::holding(good.clone())), options(), true).unwrap();
    assert!(report.is_clean(), "{:?}", report.errors);
    assert!(report.shared_blocks > 0 && report.streams > 0);
    let range = std::env::var("ARDEN_VOLUME_SEEDS").ok();
    let range = range.as_deref().and_then(|s| s.split_once(".."));
    let (from, to) = range.map_or((0, 60), |(a, b)| (a.parse().unwrap(), b.parse().unwrap()));
    let (mut refused, mut found, mut unseen) = (0, 0, 0);
    for seed in from..to {
        let mut rng = Rng::new(seed);
        let mut bytes = good.clone();
        damage(&mut bytes, &mut rng);
        match check_device(Arc::new(MemDevice::holding(bytes.clone())), options(), true) {
            Err(_) => refused += 1,
            Ok(r) if r.is_clean() => unseen += 1,
            Ok(_) => found += 1,
        }
        let Ok(vol) = Volume::open(Arc::new(MemDevice::holding(bytes)), options()) else { continue };
        let store = VolumeStore::new(vol.clone(), Durability::Plain);
        let Ok(mut cursor) = store.root().list() else { continue };
        while let Ok(Some(entry)) = cursor.peek(&|_| true) {
            cursor.advance();
            let path = arden_store::name::NtPath::parse(&entry.name).unwrap();
            let Ok(Lookup::Found(node)) = store.lookup(&path) else { continue };
            let Some(i) = entry.name.strip_prefix("file ").and_then(|n| n.parse::<u64>().ok()) else { continue };
            let want = content(i);
            let mut buf = vec![0; want.len() + 10];
            if let Ok(n) = node.read_at(0, &mut buf, Wait::Yes) {
                // The journal may end earlier where it is damaged: then a file may be as it was made.
                assert!(buf[..n] == want || n == 0, "seed {seed}: {} reads as something else", entry.name);
            }
            if let Ok(then) = read_stream_snapshot(&*node, "before") {
                assert!(then == want, "seed {seed}: the snapshot of {} reads as something else", entry.name);
            }
            let _ = (node.security(), node.streams(), node.eas(), node.stream_deltas("before", 0, 10));
        }
        let _ =
            store.root().create_child(None, "after", &plain(false)).map(|f| f.write_at(None, 0, &[1; 9000], Wait::Yes));
        let _ = vol.checkpoint();
    }
    println!("{refused} refused, {found} found by check, {unseen} hit nothing that is used");
    assert!(range.is_some() || refused + found > 20);
}
