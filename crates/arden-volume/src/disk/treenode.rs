//! One node of the tree: its bytes and how entries are found in them. 16 KiB in four blocks, each with its own
//! checksum, and one over all in the pointer that leads here. Refuses to know what keys and values mean.

use std::{cmp::Ordering, sync::Arc};

use arden_wire::cursor::{Put, Reader};
use xxhash_rust::xxh3::xxh3_64;

use crate::disk::{
    device::{BLOCK, BlockCheck, TRAILED},
    error::{VolError, VolResult},
};

pub const NODE_BLOCKS: u64 = 4;
pub const NODE_BYTES: usize = NODE_BLOCKS as usize * BLOCK;
const MAGIC: u32 = 0x4544_4F4E;
const HEADER: usize = 16;
/// Bytes for entries.
pub const CAPACITY: usize = NODE_BLOCKS as usize * TRAILED - HEADER;
/// One entry, so that any two fit into a node.
pub const ENTRY_MAX: usize = CAPACITY / 2;
/// A tree is never deeper.
pub const LEVEL_MAX: u8 = 12;

/// Where a node is, and what it has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Ptr {
    pub block: u64,
    /// The checkpoint that wrote it.
    pub birth: u64,
    pub sum: u64,
}

impl Ptr {
    pub const BYTES: usize = 24;
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.block);
        out.put_u64(self.birth);
        out.put_u64(self.sum);
    }
    pub fn decode(r: &mut Reader<'_>) -> VolResult<Ptr> {
        Ok(Ptr { block: r.u64()?, birth: r.u64()?, sum: r.u64()? })
    }
    fn seed(&self) -> u64 {
        self.block.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ self.birth
    }
    pub fn check(&self) -> BlockCheck {
        BlockCheck::Trailer { seed: self.seed() }
    }
}

/// The level that a structure on disk has beside its root while the tree is empty.
pub const NO_ROOT: u8 = 0xFF;

/// The root that a structure on disk names.
///
/// # Errors
/// Corrupt, with a level that no tree has: whoever goes down from the root calls itself once for each level.
pub fn root_of(ptr: Ptr, level: u32) -> VolResult<Option<(Ptr, u8)>> {
    match u8::try_from(level) {
        Ok(NO_ROOT) => Ok(None),
        Ok(level) if level <= LEVEL_MAX => Ok(Some((ptr, level))),
        _ => Err(VolError::Corrupt("the tree is too deep")),
    }
}

/// Bytes of a key that stand beside its place, after those that all keys of the node share.
const HEAD_BYTES: usize = 4;
/// As many entries as a node of names has.
const ENTRIES_EXPECTED: usize = 256;
/// The index in memory: level, shared bytes, entries, and for each entry its head and its place.
const INDEX_HEADER: usize = 8;
const INDEX_BYTES: usize = HEAD_BYTES + 2;

pub fn entry_bytes(key: &[u8], value: &[u8]) -> usize {
    4 + key.len() + value.len()
}

/// The entry at `at`: its key and its value.
fn entry(bytes: &[u8], at: usize) -> (&[u8], &[u8]) {
    let u = |a: usize| u16::from_le_bytes([bytes[a], bytes[a + 1]]) as usize;
    let (klen, vlen) = (u(at), u(at + 2));
    let (key, rest) = bytes[at + 4..].split_at(klen);
    (key, &rest[..vlen])
}

/// The bytes of `key` after the shared ones, as a number that sorts as they do; zeros follow a key that ends.
fn head(key: &[u8], shared: usize) -> u32 {
    let rest = key.get(shared..).unwrap_or(&[]);
    let mut out = [0; HEAD_BYTES];
    let n = rest.len().min(HEAD_BYTES);
    out[..n].copy_from_slice(&rest[..n]);
    u32::from_be_bytes(out)
}

/// A node that is being made. Entries in ascending order of their keys: `key length u16, value length u16, key, value`.
#[derive(Debug, Clone)]
pub struct Draft {
    pub level: u8,
    bytes: Vec<u8>,
    places: Vec<u16>,
}

impl Draft {
    pub fn new(level: u8) -> Draft {
        Draft { level, bytes: Vec::new(), places: Vec::new() }
    }

    /// One that will be as full as a node may be, or nearly so.
    pub fn for_many(level: u8) -> Draft {
        Draft { level, bytes: Vec::with_capacity(CAPACITY), places: Vec::with_capacity(ENTRIES_EXPECTED) }
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Bytes of all entries.
    pub fn used(&self) -> usize {
        self.bytes.len()
    }

    /// The caller keeps the order and the capacity.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.places.push(self.bytes.len() as u16);
        self.bytes.put_u16(key.len() as u16);
        self.bytes.put_u16(value.len() as u16);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    pub fn append(&mut self, other: &Draft) {
        let at = self.bytes.len() as u16;
        self.places.extend(other.places.iter().map(|place| at + place));
        self.bytes.extend_from_slice(&other.bytes);
    }

    pub fn first_key(&self) -> &[u8] {
        if self.is_empty() { &[] } else { entry(&self.bytes, 0).0 }
    }

    /// The pointer of the first entry.
    pub fn first_ptr(&self) -> VolResult<Ptr> {
        if self.is_empty() { Err(VolError::Corrupt("node of the tree")) } else { ptr_of(entry(&self.bytes, 0).1) }
    }

    /// The node as it lies on the device; fills in the pointer's checksum.
    pub fn seal(&self, ptr: &mut Ptr) -> Vec<u8> {
        let mut out = Vec::with_capacity(NODE_BYTES);
        out.put_u32(MAGIC);
        out.put_u8(self.level);
        out.put_zeros(3);
        out.put_u32(self.len() as u32);
        out.put_u32(self.bytes.len() as u32);
        let mut rest = self.bytes.as_slice();
        for block in 0..NODE_BLOCKS as usize {
            let (part, after) = rest.split_at(rest.len().min(block * BLOCK + TRAILED - out.len()));
            out.extend_from_slice(part);
            out.resize((block + 1) * BLOCK, 0);
            rest = after;
        }
        BlockCheck::seal(ptr.seed(), &mut out);
        ptr.sum = sum_of(&out);
        out
    }
}

fn ptr_of(value: &[u8]) -> VolResult<Ptr> {
    if value.len() != Ptr::BYTES {
        return Err(VolError::Corrupt("pointer in the tree"));
    }
    Ptr::decode(&mut Reader::new(value))
}

/// A node in memory, in one piece: an index, in which the few bytes by which most keys differ are side by side, and the entries. A
/// search among nodes that the processor has not in its caches waits for few lines of memory.
#[derive(Debug, Clone)]
pub struct Node(Arc<[u8]>);

impl From<&Draft> for Node {
    fn from(draft: &Draft) -> Node {
        let Draft { level, bytes, places } = draft;
        let key = |place: &u16| entry(bytes, *place as usize).0;
        let shared = match (places.first(), places.last()) {
            (Some(first), Some(last)) => key(first).iter().zip(key(last)).take_while(|(a, b)| a == b).count(),
            _ => 0,
        };
        let mut out = Vec::with_capacity(INDEX_HEADER + places.len() * INDEX_BYTES + bytes.len());
        out.put_u32(u32::from(*level));
        out.put_u16(shared as u16);
        out.put_u16(places.len() as u16);
        places.iter().for_each(|place| out.put_u32(head(key(place), shared)));
        places.iter().for_each(|place| out.put_u16(*place));
        out.extend_from_slice(bytes);
        Node(out.into())
    }
}

impl From<&Node> for Draft {
    fn from(node: &Node) -> Draft {
        let places = (0..node.len()).map(|i| node.place(i) as u16).collect();
        Draft { level: node.level(), bytes: node.entries().to_vec(), places }
    }
}

impl Node {
    pub fn level(&self) -> u8 {
        self.0[0]
    }

    pub fn len(&self) -> usize {
        u16::from_le_bytes([self.0[6], self.0[7]]) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Leading bytes that all keys have in common.
    fn shared(&self) -> usize {
        u16::from_le_bytes([self.0[4], self.0[5]]) as usize
    }

    fn entries(&self) -> &[u8] {
        &self.0[INDEX_HEADER + self.len() * INDEX_BYTES..]
    }

    /// Bytes of all entries.
    pub fn used(&self) -> usize {
        self.entries().len()
    }

    /// Memory.
    pub fn weight(&self) -> usize {
        self.0.len() + 32
    }

    fn place(&self, i: usize) -> usize {
        let at = INDEX_HEADER + self.len() * HEAD_BYTES + i * 2;
        u16::from_le_bytes([self.0[at], self.0[at + 1]]) as usize
    }

    /// Key and value.
    pub fn entry(&self, i: usize) -> (&[u8], &[u8]) {
        entry(self.entries(), self.place(i))
    }

    pub fn key(&self, i: usize) -> &[u8] {
        self.entry(i).0
    }

    pub fn ptr(&self, i: usize) -> VolResult<Ptr> {
        ptr_of(self.entry(i).1)
    }

    /// The entries whose keys have this head, as a range; where there is none, it begins where such would be.
    fn with_head(&self, head: u32) -> (usize, usize) {
        let (heads, _) = self.0[INDEX_HEADER..][..self.len() * HEAD_BYTES].as_chunks::<HEAD_BYTES>();
        // All are read, side by side: the next place does not depend on what the one before says.
        let (mut below, mut up_to) = (0u32, 0u32);
        for bytes in heads {
            let other = u32::from_le_bytes(*bytes);
            below += u32::from(other < head);
            up_to += u32::from(other <= head);
        }
        (below as usize, up_to as usize)
    }

    /// The index of the entry with this key, or of the first one whose key is larger.
    pub fn find(&self, key: &[u8]) -> Result<usize, usize> {
        if self.is_empty() {
            return Err(0);
        }
        let shared = self.shared();
        let first = self.key(0);
        let common = shared.min(key.len());
        match key[..common].cmp(&first[..common]) {
            Ordering::Equal if common == shared => {}
            Ordering::Greater => return Err(self.len()),
            // One that is shorter than what all share is below all.
            _ => return Err(0),
        }
        let (mut lo, mut hi) = self.with_head(head(key, shared));
        while lo < hi {
            let mid = (lo + hi) / 2;
            match self.key(mid).cmp(key) {
                Ordering::Less => lo = mid + 1,
                Ordering::Equal => return Ok(mid),
                Ordering::Greater => hi = mid,
            }
        }
        Err(lo)
    }

    /// Index of the first entry whose key is at least `key`.
    pub fn lower_bound(&self, key: &[u8]) -> usize {
        self.find(key).unwrap_or_else(|at| at)
    }

    /// The child that `key` belongs to: the last one that begins at or before it, else the first.
    pub fn child_for(&self, key: &[u8]) -> usize {
        self.find(key).unwrap_or_else(|at| at.saturating_sub(1))
    }

    /// Trusts nothing: lengths, order and checksum are all checked.
    pub fn open(ptr: &Ptr, blocks: &[u8], level: u8) -> VolResult<Node> {
        let damaged = VolError::Corrupt("node of the tree");
        if blocks.len() != NODE_BYTES || sum_of(blocks) != ptr.sum {
            return Err(damaged);
        }
        let mut body = Vec::with_capacity(NODE_BLOCKS as usize * TRAILED);
        for block in blocks.chunks_exact(BLOCK) {
            body.extend_from_slice(&block[..TRAILED]);
        }
        let mut r = Reader::new(&body);
        if r.u32()? != MAGIC || r.u8()? != level {
            return Err(damaged);
        }
        r.skip(3)?;
        let (count, used) = (r.u32()? as usize, r.u32()? as usize);
        if used > CAPACITY || count > used / 4 {
            return Err(damaged);
        }
        body.drain(..HEADER);
        body.truncate(used);
        let node = Node::from(&Draft { level, places: find_entries(&body, count)?, bytes: body });
        let ordered = (1..node.len()).all(|i| node.key(i - 1) < node.key(i));
        if !ordered || (level > 0 && node.is_empty()) {
            return Err(damaged);
        }
        Ok(node)
    }
}

fn find_entries(bytes: &[u8], count: usize) -> VolResult<Vec<u16>> {
    let mut places = Vec::with_capacity(count);
    let mut r = Reader::new(bytes);
    for _ in 0..count {
        places.push(r.position() as u16);
        let n = r.u16()? as usize + r.u16()? as usize;
        r.skip(n)?;
    }
    if r.remaining() == 0 { Ok(places) } else { Err(VolError::Corrupt("node of the tree")) }
}

/// Over the trailers: they stand for the blocks.
fn sum_of(blocks: &[u8]) -> u64 {
    let mut sums = [0u8; NODE_BLOCKS as usize * 8];
    for (out, block) in sums.chunks_exact_mut(8).zip(blocks.chunks_exact(BLOCK)) {
        out.copy_from_slice(&block[TRAILED..]);
    }
    xxh3_64(&sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arden_block::rng::Rng;

    /// Keys with long common parts, with zeros, and of which some begin others.
    fn keys(rng: &mut Rng) -> Vec<Vec<u8>> {
        let common = vec![rng.below(3) as u8; rng.below(12) as usize];
        let letters = 1 + rng.below(4);
        let mut out: Vec<Vec<u8>> = (0..rng.below(120))
            .map(|_| {
                let own = (0..rng.below(9)).map(|_| rng.below(letters) as u8 * 85);
                common.iter().copied().chain(own).collect()
            })
            .collect();
        out.sort();
        out.dedup();
        out
    }

    #[test]
    fn keys_are_found_as_a_plain_search_finds_them() {
        let mut rng = Rng::new(3);
        for _ in 0..3000 {
            let keys = keys(&mut rng);
            let mut draft = Draft::new(0);
            keys.iter().enumerate().for_each(|(i, key)| draft.push(key, &[i as u8; 3]));
            let node = Node::from(&draft);
            assert_eq!((node.len(), node.used(), node.level()), (keys.len(), draft.used(), 0));
            let mut asked = keys.clone();
            for key in &keys {
                asked.push(key[..key.len() / 2].to_vec());
                asked.push([&key[..], &[0]].concat());
                asked.push(key.iter().map(|b| b.wrapping_add(rng.below(2) as u8)).collect());
            }
            asked.push(vec![0xFF; 20]);
            for key in asked {
                assert_eq!(node.find(&key), keys.binary_search(&key), "{key:?} in {keys:?}");
            }
            for (i, key) in keys.iter().enumerate() {
                assert_eq!(node.entry(i), (key.as_slice(), &[i as u8; 3][..]));
            }
            let again = Draft::from(&node);
            assert_eq!((&again.bytes, &again.places), (&draft.bytes, &draft.places));
            let mut ptr = Ptr { block: 8, birth: 2, sum: 0 };
            let blocks = draft.seal(&mut ptr);
            assert_eq!(Node::open(&ptr, &blocks, 0).unwrap().0, node.0);
        }
    }

    #[test]
    fn drafts_are_joined() {
        let (mut a, mut b, mut all) = (Draft::new(0), Draft::new(0), Draft::new(0));
        for i in 0..40u8 {
            let key = [i; 5];
            if i < 25 {
                a.push(&key, &key[..2])
            } else {
                b.push(&key, &key[..2])
            }
            all.push(&key, &key[..2]);
        }
        a.append(&b);
        assert_eq!((a.bytes, a.places), (all.bytes, all.places));
    }
}
