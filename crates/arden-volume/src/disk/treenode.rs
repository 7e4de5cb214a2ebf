//! One node of the tree: its bytes and how entries are found in them. 16 KiB in four blocks, each with its own
//! checksum, and one over all in the pointer that leads here. Refuses to know what keys and values mean.

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

/// Entries in ascending order of their keys: `key length u16, value length u16, key, value`.
#[derive(Debug, Clone)]
pub struct Node {
    pub level: u8,
    bytes: Vec<u8>,
    offsets: Vec<u32>,
}

pub fn entry_bytes(key: &[u8], value: &[u8]) -> usize {
    4 + key.len() + value.len()
}

impl Node {
    pub fn new(level: u8) -> Node {
        Node { level, bytes: Vec::new(), offsets: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Bytes of all entries.
    pub fn used(&self) -> usize {
        self.bytes.len()
    }

    /// Memory.
    pub fn weight(&self) -> usize {
        self.bytes.capacity() + self.offsets.capacity() * 4 + 64
    }

    /// The caller keeps the order and the capacity.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.offsets.push(self.bytes.len() as u32);
        self.bytes.put_u16(key.len() as u16);
        self.bytes.put_u16(value.len() as u16);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    pub fn append(&mut self, other: &Node) {
        for i in 0..other.len() {
            self.push(other.key(i), other.value(i));
        }
    }

    fn lengths(&self, i: usize) -> (usize, usize, usize) {
        let at = self.offsets[i] as usize;
        let u = |a: usize| u16::from_le_bytes([self.bytes[a], self.bytes[a + 1]]) as usize;
        (at + 4, u(at), u(at + 2))
    }

    pub fn key(&self, i: usize) -> &[u8] {
        let (at, klen, _) = self.lengths(i);
        &self.bytes[at..at + klen]
    }

    pub fn value(&self, i: usize) -> &[u8] {
        let (at, klen, vlen) = self.lengths(i);
        &self.bytes[at + klen..at + klen + vlen]
    }

    pub fn ptr(&self, i: usize) -> VolResult<Ptr> {
        let v = self.value(i);
        if v.len() != Ptr::BYTES {
            return Err(VolError::Corrupt("pointer in the tree"));
        }
        Ptr::decode(&mut Reader::new(v))
    }

    /// Index of the first entry whose key is at least `key`.
    pub fn lower_bound(&self, key: &[u8]) -> usize {
        let (mut lo, mut hi) = (0, self.len());
        while lo < hi {
            let mid = (lo + hi) / 2;
            if self.key(mid) < key {
                lo = mid + 1;
            } else {
                hi = mid;
            }
        }
        lo
    }

    /// The child that `key` belongs to: the last one that begins at or before it, else the first.
    pub fn child_for(&self, key: &[u8]) -> usize {
        let at = self.lower_bound(key);
        if at < self.len() && self.key(at) == key { at } else { at.saturating_sub(1) }
    }

    /// The node as it lies on the device; fills in the pointer's checksum.
    pub fn seal(&self, ptr: &mut Ptr) -> Vec<u8> {
        let mut body = Vec::with_capacity(NODE_BLOCKS as usize * TRAILED);
        body.put_u32(MAGIC);
        body.put_u8(self.level);
        body.put_zeros(3);
        body.put_u32(self.len() as u32);
        body.put_u32(self.bytes.len() as u32);
        body.extend_from_slice(&self.bytes);
        body.resize(NODE_BLOCKS as usize * TRAILED, 0);
        let mut out = vec![0; NODE_BYTES];
        for (block, part) in out.chunks_exact_mut(BLOCK).zip(body.chunks_exact(TRAILED)) {
            block[..TRAILED].copy_from_slice(part);
        }
        BlockCheck::seal(ptr.seed(), &mut out);
        ptr.sum = sum_of(&out);
        out
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
        let node = Node { level, offsets: find_entries(&body, count)?, bytes: body };
        let ordered = (1..node.len()).all(|i| node.key(i - 1) < node.key(i));
        if !ordered || (level > 0 && node.is_empty()) {
            return Err(damaged);
        }
        Ok(node)
    }
}

fn find_entries(bytes: &[u8], count: usize) -> VolResult<Vec<u32>> {
    let mut offsets = Vec::with_capacity(count);
    let mut r = Reader::new(bytes);
    for _ in 0..count {
        offsets.push(r.position() as u32);
        let n = r.u16()? as usize + r.u16()? as usize;
        r.skip(n)?;
    }
    if r.remaining() == 0 { Ok(offsets) } else { Err(VolError::Corrupt("node of the tree")) }
}

/// Over the trailers: they stand for the blocks.
fn sum_of(blocks: &[u8]) -> u64 {
    let mut sums = [0u8; NODE_BLOCKS as usize * 8];
    for (out, block) in sums.chunks_exact_mut(8).zip(blocks.chunks_exact(BLOCK)) {
        out.copy_from_slice(&block[TRAILED..]);
    }
    xxh3_64(&sums)
}
