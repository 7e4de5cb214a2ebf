//! The cases of ranges of data: which there are, copies and clones.

use arden_store::{error::StoreError, store::*};
use arden_wire::access::*;

use super::cases::*;

pub fn sparse_ranges_are_told(store: &dyn FileStore) {
    let f = file(&store.root(), "f");
    f.write_at(None, 0, &[1; 65_536], Wait::Yes).unwrap();
    f.set_end_of_file(None, 1 << 20).unwrap();
    assert_eq!(f.allocated_ranges(0, 1 << 30, 10).unwrap(), [(0, 1 << 20)], "not sparse: all of it");
    f.set_sparse(None, true).unwrap();
    assert_eq!(f.stat().unwrap().attributes & ATTR_SPARSE, ATTR_SPARSE);
    f.write_at(None, 524_288, &[2; 65_536], Wait::Yes).unwrap();
    f.sync().unwrap();
    assert_eq!(f.allocated_ranges(0, 1 << 30, 10).unwrap(), [(0, 65_536), (524_288, 65_536)]);
    assert_eq!(f.allocated_ranges(0, 1 << 30, 1).unwrap(), [(0, 65_536)]);
    assert_eq!(f.allocated_ranges(0, u64::MAX, 2).unwrap(), [(0, 65_536), (524_288, 65_536)]);
    assert_eq!(f.allocated_ranges(4096, 8192, 10).unwrap(), [(4096, 8192)]);
    f.zero_range(None, 0, 65_536).unwrap();
    assert_eq!(f.allocated_ranges(0, 1 << 30, 10).unwrap(), [(524_288, 65_536)]);
    assert_eq!(f.allocated_ranges(1 << 20, 10, 10).unwrap(), []);
    f.set_basic(None, &BasicUpdate { attributes: Some(ATTR_HIDDEN), ..Default::default() }).unwrap();
    assert_eq!(f.stat().unwrap().attributes & ATTR_SPARSE, ATTR_SPARSE, "set on its own");
    f.set_sparse(None, false).unwrap();
    assert_eq!(f.stat().unwrap().attributes & ATTR_SPARSE, 0);
}

/// A store may look for them in pieces.
pub fn many_sparse_ranges_are_told(store: &dyn FileStore) {
    const BLOCK: u64 = 4096;
    const COUNT: u64 = 2500;
    let f = file(&store.root(), "f");
    f.set_sparse(None, true).unwrap();
    let block = [1; BLOCK as usize];
    // Every other block, but no hole in the middle.
    let holds_data = |i: u64| i.is_multiple_of(2) || (COUNT / 2..COUNT / 2 + 100).contains(&i);
    for i in (0..COUNT).filter(|i| holds_data(*i)) {
        f.write_at(None, i * BLOCK, &block, Wait::Yes).unwrap();
    }
    f.set_end_of_file(None, 1 << 40).unwrap();
    f.sync().unwrap();
    let mut wanted: Vec<(u64, u64)> = Vec::new();
    for i in (0..COUNT).filter(|i| holds_data(*i)) {
        match wanted.last_mut() {
            Some((from, len)) if *from + *len == i * BLOCK => *len += BLOCK,
            _ => wanted.push((i * BLOCK, BLOCK)),
        }
    }
    assert_eq!(f.allocated_ranges(0, 1 << 40, usize::MAX).unwrap(), wanted);
    assert_eq!(f.allocated_ranges(0, 1 << 40, 1000).unwrap(), wanted[..1000]);
    let (from, len) = wanted[700];
    assert_eq!(f.allocated_ranges(from + 1, 1 << 40, 1).unwrap(), [(from + 1, len - 1)]);
}

pub fn copies_inside_the_store(store: &dyn FileStore) {
    let (a, b) = (file(&store.root(), "a"), file(&store.root(), "b"));
    let data: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
    a.write_at(None, 0, &data, Wait::Yes).unwrap();
    assert_eq!(b.copy_from(None, &*a, 1000, 500, 100_000).unwrap(), 100_000);
    let copied = read_all(&b);
    assert_eq!(copied.len(), 100_500);
    assert_eq!(copied[500..], data[1000..101_000]);
    assert_eq!(b.copy_from(None, &*a, 199_000, 0, 5000).unwrap(), 1000, "only what is there");
    let s = a.create_stream(None, "s").unwrap();
    assert_eq!(s.copy_from(None, &*a, 0, 0, 2000).unwrap(), 2000);
    assert_eq!(read_all(&s), data[..2000]);
    assert_eq!(a.copy_from(None, &*a, 0, 100_000, 100_000).unwrap(), 100_000);
    assert_eq!(read_all(&a)[100_000..], data[..100_000]);
    match Node::clone_from(&*b, None, &*a, 0, 0, 65_536) {
        Ok(()) => assert_eq!(read_all(&b)[..65_536], data[..65_536]),
        Err(e) => assert_eq!(e, StoreError::NotSupported),
    }
}

/// SRV_COPYCHUNK within a file: the target has what the source had before, however the ranges overlap and wherever blocks begin.
pub fn copies_of_overlapping_ranges_are_as_if_read_first(store: &dyn FileStore) {
    let f = file(&store.root(), "f");
    let mut wanted: Vec<u8> = (0..300_000u32).map(|i| (i / 3 % 251) as u8).collect();
    f.write_at(None, 0, &wanted, Wait::Yes).unwrap();
    let (cluster, far) = (CLUSTER_BYTES, 16 * CLUSTER_BYTES);
    let distances = [1, 2000, cluster, cluster + 1, far - 1, far, far + 1];
    for (from, distance) in [100, cluster].into_iter().flat_map(|from| distances.map(|distance| (from, distance))) {
        for (source, target, len) in [(from, from + distance, 131_072), (from + distance, from, 200_001)] {
            assert_eq!(f.copy_from(None, &*f, source, target, len).unwrap(), len);
            wanted.copy_within(source as usize..(source + len) as usize, target as usize);
            assert!(read_all(&f) == wanted, "{len} bytes from {source} to {target}");
        }
    }
}

/// [MS-FSA] 2.1.5.10.4, where the store shares extents: what cannot be shared is refused and not copied.
pub fn clones_share_or_do_nothing(store: &dyn FileStore) {
    const BLOCK: u64 = 4096;
    let (a, b) = (file(&store.root(), "a"), file(&store.root(), "b"));
    let data: Vec<u8> = (0..16 * BLOCK).map(|i| (i / 7 % 251) as u8).collect();
    a.write_at(None, 0, &data, Wait::Yes).unwrap();
    let clone = |to: &NodeRef, from: &NodeRef, source_offset: u64, offset: u64, len: u64| {
        Node::clone_from(&**to, None, &**from, source_offset * BLOCK, offset * BLOCK, len)
    };
    if clone(&b, &a, 0, 0, 8 * BLOCK) == Err(StoreError::NotSupported.into()) {
        return;
    }
    assert_eq!(read_all(&b), data[..8 * BLOCK as usize]);
    for (from, to) in [(0, 2), (2, 0), (3, 3)] {
        assert_eq!(error(clone(&a, &a, from, to, 4 * BLOCK)), StoreError::NotSupported, "{from} onto {to}");
    }
    assert_eq!(error(clone(&b, &a, 8, 0, 9 * BLOCK)), StoreError::NotSupported, "more than there is");
    assert_eq!(error(clone(&b, &a, 0, 0, BLOCK + 1)), StoreError::InvalidParameter);
    assert_eq!(read_all(&a), data);
    clone(&b, &a, 0, 0, 0).unwrap();
    assert_eq!(read_all(&b), data[..8 * BLOCK as usize]);
    clone(&a, &a, 0, 8, 4 * BLOCK).unwrap();
    assert_eq!(read_all(&a)[8 * BLOCK as usize..12 * BLOCK as usize], data[..4 * BLOCK as usize]);
    // An end that is the end of both.
    a.set_end_of_file(None, 5000).unwrap();
    b.set_end_of_file(None, 0).unwrap();
    clone(&b, &a, 0, 0, 5000).unwrap();
    assert_eq!(read_all(&b), data[..5000]);
    a.set_sparse(None, true).unwrap();
    assert_eq!(error(clone(&b, &a, 0, 0, BLOCK)), StoreError::NotSupported, "holes where there may be none");
    b.set_sparse(None, true).unwrap();
    clone(&b, &a, 0, 0, BLOCK).unwrap();
}
