//! What may be read back. Every block of every version has a content that names both, so that
//! a reader can tell which version each sector comes from.

use std::collections::{BTreeMap, HashMap, VecDeque};

use arden_block::{BLOCK_BYTES, Buf};

const SECTOR: usize = 512;
const SECTORS: usize = BLOCK_BYTES as usize / SECTOR;

/// So many writes of a block may begin while one read is under way: more than all clients of a life make.
const RECENT_MAX: usize = 256;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Fills one block with the content of `version`. Version 0 is zeros.
pub fn fill(block: u64, version: u32, out: &mut [u8]) {
    for (i, s) in out.chunks_mut(SECTOR).enumerate() {
        fill_sector(block, version, i, s);
    }
}

fn fill_sector(block: u64, version: u32, sector: usize, out: &mut [u8]) {
    if version == 0 {
        out.fill(0);
        return;
    }
    let key = mix(block << 36 ^ (sector as u64) << 32 ^ u64::from(version));
    for (i, w) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        w.copy_from_slice(&(key.wrapping_add((i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))).to_le_bytes());
    }
    out[..4].copy_from_slice(&version.to_le_bytes());
}

/// The version a sector claims; `None` when its bytes are not that version's.
fn version_of(block: u64, sector: usize, data: &[u8]) -> Option<u32> {
    let mut v = [0; 4];
    v.copy_from_slice(&data[..4]);
    let version = u32::from_le_bytes(v);
    let mut want = [0u8; SECTOR];
    fill_sector(block, version, sector, &mut want);
    (data == want).then_some(version)
}

#[derive(Debug, Clone, Default)]
struct Block {
    /// Contents that a read may show now.
    now: Vec<u32>,
    /// Contents that may be there after a crash: the last durable one and all since.
    history: Vec<u32>,
    in_flight: u32,
    raced: bool,
    /// The versions that were begun last, each with the stamp that it set.
    recent: VecDeque<(u64, u32)>,
    stamp: u64,
}

/// The state of one space as its users know it.
#[derive(Default, Clone)]
pub struct Oracle {
    blocks: Vec<Block>,
    next: u32,
    /// Blocks that a crash tore: a version whose sectors are of several versions.
    torn: HashMap<u32, [u32; SECTORS]>,
}

/// Taken when a read starts; `check` compares.
pub struct ReadMark(Vec<(u64, bool, Vec<u32>)>);

/// Taken when a flush starts.
pub struct FlushMark(BTreeMap<u64, u32>);

impl Oracle {
    pub fn new(blocks: u64) -> Oracle {
        let b = Block { now: vec![0], history: vec![0], ..Block::default() };
        Oracle { blocks: vec![b; blocks as usize], next: 1, torn: HashMap::new() }
    }

    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// New blocks are zeros.
    pub fn grow(&mut self, blocks: u64) {
        let b = Block { now: vec![0], history: vec![0], ..Block::default() };
        self.blocks.resize(self.blocks.len().max(blocks as usize), b);
    }

    fn sector(&self, version: u32, i: usize) -> u32 {
        self.torn.get(&version).map_or(version, |t| t[i])
    }

    pub fn new_version(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// A version of its own for zeros: two discards of a block with a write between them are
    /// two contents, of which a flush covers the one or the other.
    pub fn new_zeros(&mut self) -> u32 {
        let id = self.new_version();
        self.torn.insert(id, [0; SECTORS]);
        id
    }

    pub fn busy(&self, first: u64, n: u64) -> bool {
        self.blocks[first as usize..(first + n) as usize].iter().any(|b| b.in_flight > 0)
    }

    pub fn write_begin(&mut self, first: u64, n: u64, version: u32) {
        for b in &mut self.blocks[first as usize..(first + n) as usize] {
            b.now.push(version);
            b.history.push(version);
            b.in_flight += 1;
            b.raced |= b.in_flight > 1;
            b.stamp += 1;
            if b.recent.len() >= RECENT_MAX {
                b.recent.pop_front();
            }
            b.recent.push_back((b.stamp, version));
        }
    }

    pub fn write_end(&mut self, first: u64, n: u64, version: u32, ok: bool, durable: bool) {
        for b in &mut self.blocks[first as usize..(first + n) as usize] {
            b.stamp += 1;
            b.in_flight -= 1;
            if ok && !b.raced {
                b.now = vec![version];
                if durable {
                    b.history = vec![version];
                }
            }
            if b.in_flight == 0 {
                b.raced = false;
            }
        }
    }

    pub fn flush_begin(&self) -> FlushMark {
        let settled = |b: &Block| b.in_flight == 0 && b.now.len() == 1;
        FlushMark(
            self.blocks.iter().enumerate().filter(|(_, b)| settled(b)).map(|(i, b)| (i as u64, b.now[0])).collect(),
        )
    }

    pub fn flush_end(&mut self, mark: FlushMark) {
        for (i, v) in mark.0 {
            let b = &mut self.blocks[i as usize];
            if let Some(at) = b.history.iter().position(|&h| h == v) {
                b.history.drain(..at);
            }
        }
    }

    pub fn read_begin(&self, first: u64, n: u64) -> ReadMark {
        ReadMark(
            self.blocks[first as usize..(first + n) as usize]
                .iter()
                .map(|b| (b.stamp, b.in_flight == 0, b.now.clone()))
                .collect(),
        )
    }

    /// Is this what the block holds? For verifiers: they know what was last written, and what is
    /// being written now.
    pub fn accepts(&self, first: u64, data: &[u8]) -> bool {
        data.chunks(BLOCK_BYTES as usize).enumerate().all(|(k, bytes)| {
            let block = first + k as u64;
            let b = &self.blocks[block as usize];
            (0..SECTORS).all(|i| {
                let got = version_of(block, i, &bytes[i * SECTOR..(i + 1) * SECTOR]);
                got.is_some_and(|v| b.now.iter().any(|&c| self.sector(c, i) == v))
            })
        })
    }

    /// Checks what a read returned, and remembers it.
    pub fn check(&mut self, first: u64, data: &Buf, mark: &ReadMark) -> Result<(), String> {
        for (k, bytes) in data.chunks(BLOCK_BYTES as usize).enumerate() {
            let block = first + k as u64;
            let b = &self.blocks[block as usize];
            let quiet = mark.0[k].1 && mark.0[k].0 == b.stamp && b.in_flight == 0;
            let mut seen = [0; SECTORS];
            for i in 0..SECTORS {
                let sector = &bytes[i * SECTOR..(i + 1) * SECTOR];
                let Some(v) = version_of(block, i, sector) else {
                    let of = (0..self.blocks.len() as u64)
                        .flat_map(|b| (0..SECTORS).map(move |s| (b, s)))
                        .find(|&(b, s)| version_of(b, s, sector).is_some());
                    return Err(format!("block {block} sector {i}: foreign bytes {:02x?}, of {of:?}", &sector[..16]));
                };
                let allowed = |list: &[u32]| list.iter().any(|&c| self.sector(c, i) == v);
                // A read that writes overlap may show what was there when it began, or whatever was begun since.
                let (stamp, _, before) = &mark.0[k];
                let mut since = b.recent.iter().filter(|r| r.0 > *stamp);
                if !(allowed(&b.now) || allowed(before) || since.any(|r| allowed(&[r.1]))) {
                    return Err(format!(
                        "block {block} sector {i}: version {v}, allowed now {:?}, since the last flush {:?}, when the read began {:?}, quiet {quiet}",
                        b.now, b.history, mark.0[k].2
                    ));
                }
                seen[i] = v;
            }
            if quiet && b.now.len() > 1 {
                self.pin(block, seen, false);
            }
        }
        Ok(())
    }

    fn pin(&mut self, block: u64, seen: [u32; SECTORS], durable: bool) {
        let same = self.blocks[block as usize]
            .now
            .iter()
            .copied()
            .find(|&c| (0..SECTORS).all(|i| self.sector(c, i) == seen[i]));
        let id = same.unwrap_or_else(|| {
            self.next += 1;
            self.torn.insert(self.next, seen);
            self.next
        });
        let b = &mut self.blocks[block as usize];
        if durable {
            b.now = vec![id];
            b.history = vec![id];
        } else if same.is_none() {
            b.now.push(id);
            b.history.push(id);
        }
    }

    /// Power was lost: anything since the last durable content may be there.
    pub fn crash(&mut self) {
        for b in &mut self.blocks {
            b.now = b.history.clone();
            b.in_flight = 0;
            b.raced = false;
            b.stamp += 1;
        }
    }

    /// After an opening: what is read now is what stays.
    pub fn check_after_open(&mut self, first: u64, data: &Buf) -> Result<(), String> {
        let mark = self.read_begin(first, data.len() as u64 / BLOCK_BYTES);
        self.check(first, data, &mark)?;
        for (k, bytes) in data.chunks(BLOCK_BYTES as usize).enumerate() {
            let block = first + k as u64;
            let mut seen = [0; SECTORS];
            for (i, s) in seen.iter_mut().enumerate() {
                *s = version_of(block, i, &bytes[i * SECTOR..(i + 1) * SECTOR]).unwrap_or(0);
            }
            self.pin(block, seen, true);
        }
        Ok(())
    }
}
