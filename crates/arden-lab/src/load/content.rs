//! The bytes that are written: random ones that neither compress nor repeat, or, when data is verified, ones that say
//! where they belong and which write put them there.

use arden_block::{Buf, SharedBuf, rng::Rng};

use crate::{Result, fail};

const UNIT_BYTES: usize = 512;
const POOL_BYTES: usize = 4 << 20;
/// A block whose content is not ours.
pub const UNKNOWN: u32 = u32::MAX;

/// Makes and checks contents of one file.
pub struct Content {
    seed: u64,
    pool: SharedBuf,
    turn: usize,
    /// The version that each block has, when data is verified; by blocks of `block_bytes`.
    versions: Option<Vec<u32>>,
    busy: std::collections::HashSet<u64>,
}

fn splitmix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The 512 bytes at `offset` as `version` has them.
fn unit(seed: u64, offset: u64, version: u32, out: &mut [u8]) {
    let mut state = splitmix(seed ^ splitmix(offset) ^ (u64::from(version) << 32));
    for (i, word) in out.chunks_mut(8).enumerate() {
        let value = match i {
            0 => offset,
            1 => u64::from(version),
            _ => {
                state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
                state ^ (state >> 29)
            }
        };
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

impl Content {
    /// Contents that nobody will compare.
    pub fn plain(seed: u64) -> Content {
        let mut pool = Buf::new(POOL_BYTES);
        let mut rng = Rng::new(seed);
        for word in pool.chunks_exact_mut(8) {
            word.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
        Content { seed, pool: pool.share(), turn: 0, versions: None, busy: Default::default() }
    }

    /// Contents that are compared when they are read; `known`: everything was filled with version 0.
    pub fn verified(seed: u64, blocks: u64, known: bool) -> Content {
        let first = if known { 0 } else { UNKNOWN };
        Content { versions: Some(vec![first; blocks as usize]), ..Content::plain(seed) }
    }

    pub fn verifies(&self) -> bool {
        self.versions.is_some()
    }

    /// Bytes of the first version, or random ones; for filling a file.
    pub fn first(&mut self, offset: u64, bytes: u32) -> SharedBuf {
        if self.verifies() { self.made(offset, bytes, 0) } else { self.random(bytes) }
    }

    fn random(&mut self, bytes: u32) -> SharedBuf {
        let bytes = bytes as usize;
        if bytes > POOL_BYTES / 2 {
            let mut large = Buf::new(bytes);
            for part in large.chunks_mut(POOL_BYTES) {
                part.copy_from_slice(&self.pool[..part.len()]);
            }
            return large.share();
        }
        // Starts stay on page boundaries, as direct I/O wants them.
        self.turn = (self.turn + bytes.next_multiple_of(4096) + 4096) % (POOL_BYTES - bytes);
        self.pool.slice(self.turn / 4096 * 4096, bytes)
    }

    fn made(&self, offset: u64, bytes: u32, version: u32) -> SharedBuf {
        let mut buf = Buf::new(bytes as usize);
        for (i, part) in buf.chunks_mut(UNIT_BYTES).enumerate() {
            unit(self.seed, offset + (i * UNIT_BYTES) as u64, version, part);
        }
        buf.share()
    }

    /// May a request for this block be sent now? With verification no two meet on one block.
    pub fn reserve(&mut self, block: u64) -> bool {
        !self.verifies() || self.busy.insert(block)
    }

    pub fn release(&mut self, block: u64) {
        if self.verifies() {
            self.busy.remove(&block);
        }
    }

    /// The bytes of the next write to a block.
    pub fn next(&mut self, block: u64, offset: u64, bytes: u32) -> SharedBuf {
        let Some(versions) = &mut self.versions else { return self.random(bytes) };
        let version = &mut versions[block as usize];
        *version = version.wrapping_add(1) % UNKNOWN;
        let version = *version;
        self.made(offset, bytes, version)
    }

    /// A write failed: what the block holds is not known any more.
    pub fn forget(&mut self, block: u64) {
        if let Some(versions) = &mut self.versions {
            versions[block as usize] = UNKNOWN;
        }
    }

    /// Compares what was read; false: there was nothing to compare with.
    pub fn check(&self, block: u64, offset: u64, data: &[u8]) -> Result<bool> {
        let Some(versions) = &self.versions else { return Ok(false) };
        let version = versions[block as usize];
        if version == UNKNOWN {
            return Ok(false);
        }
        let mut want = [0; UNIT_BYTES];
        for (i, part) in data.chunks(UNIT_BYTES).enumerate() {
            let at = offset + (i * UNIT_BYTES) as u64;
            unit(self.seed, at, version, &mut want[..part.len()]);
            if part != &want[..part.len()] {
                let word =
                    |n: usize| part.get(n..n + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().expect("eight")));
                fail!(
                    "wrong data at byte {at}: written was version {version} for {at}, read is version {} for {}",
                    word(8),
                    word(0)
                );
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_moved_and_damaged_bytes_are_found() {
        let mut c = Content::verified(7, 16, true);
        let first = c.first(4096, 4096);
        assert!(c.check(1, 4096, &first).unwrap());
        let second = c.next(1, 4096, 4096);
        assert!(c.check(1, 4096, &second).unwrap());
        assert!(c.check(1, 4096, &first).unwrap_err().to_string().contains("version 0"));
        assert!(c.check(2, 8192, &first).is_err(), "another block's bytes");
        let mut flipped = second.to_vec();
        flipped[4000] ^= 1;
        assert!(c.check(1, 4096, &flipped).is_err());
        c.forget(1);
        assert!(!c.check(1, 4096, &flipped).unwrap());
    }

    #[test]
    fn two_requests_do_not_meet_on_a_verified_block() {
        let mut c = Content::verified(7, 16, true);
        assert!(c.reserve(3) && !c.reserve(3));
        c.release(3);
        assert!(c.reserve(3));
    }

    #[test]
    fn plain_buffers_of_any_size() {
        let mut c = Content::plain(1);
        for bytes in [512u32, 4096, 65536, 1 << 20, 8 << 20] {
            for _ in 0..20 {
                assert_eq!(c.next(0, 0, bytes).len(), bytes as usize);
            }
        }
    }
}
