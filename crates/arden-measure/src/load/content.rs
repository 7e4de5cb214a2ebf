//! Contents of written blocks: random bytes, which neither compress nor repeat, or, for verification, bytes that encode
//! their offset and the number of the write.

use arden_block::{Buf, SharedBuf, rng::Rng};

use crate::{Result, fail};

/// Bytes that are made and compared as a unit.
pub const UNIT_BYTES: usize = 512;
const POOL_BYTES: usize = 4 << 20;
/// The version of a grain whose content the load generator does not know.
pub const UNKNOWN: u32 = u32::MAX;

/// Makes and checks the contents of one file.
pub struct Content {
    seed: u64,
    pool: SharedBuf,
    turn: usize,
    versions: Option<Versions>,
    /// Offsets of requests in flight, when data is verified.
    busy: std::collections::HashSet<u64>,
}

/// The version of each grain. Every block of every load is a whole number of grains: versions stay valid when the block
/// size changes.
struct Versions {
    grain_bytes: u32,
    of: Vec<u32>,
}

impl Versions {
    fn at(&mut self, offset: u64, bytes: u32) -> &mut [u32] {
        let from = (offset / u64::from(self.grain_bytes)) as usize;
        &mut self.of[from..from + (bytes / self.grain_bytes) as usize]
    }
}

fn splitmix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Writes the unit at `offset` in the given version to `out`.
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
    /// Contents that are not compared.
    pub fn plain(seed: u64) -> Content {
        let mut pool = Buf::new(POOL_BYTES);
        let mut rng = Rng::new(seed);
        for word in pool.chunks_exact_mut(8) {
            word.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
        Content { seed, pool: pool.share(), turn: 0, versions: None, busy: Default::default() }
    }

    /// Contents that are compared when they are read. `known`: the file was filled with version 0. All offsets and
    /// lengths are multiples of `grain_bytes`.
    pub fn verified(seed: u64, file_bytes: u64, grain_bytes: u32, known: bool) -> Content {
        let first = if known { 0 } else { UNKNOWN };
        let of = vec![first; (file_bytes / u64::from(grain_bytes.max(1))) as usize];
        Content { versions: Some(Versions { grain_bytes, of }), ..Content::plain(seed) }
    }

    /// Whether read data is compared with written data.
    pub fn verifies(&self) -> bool {
        self.versions.is_some()
    }

    /// The contents for filling a file: version 0 or, without verification, random bytes.
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
        // Buffers start on page boundaries, as direct I/O requires.
        self.turn = (self.turn + bytes.next_multiple_of(4096) + 4096) % (POOL_BYTES - bytes);
        self.pool.slice(self.turn / 4096 * 4096, bytes)
    }

    fn made(&self, offset: u64, bytes: u32, version: u32) -> SharedBuf {
        let mut buf = Buf::new(bytes as usize);
        self.make(offset, version, &mut buf);
        buf.share()
    }

    fn make(&self, offset: u64, version: u32, out: &mut [u8]) {
        for (i, part) in out.chunks_mut(UNIT_BYTES).enumerate() {
            unit(self.seed, offset + (i * UNIT_BYTES) as u64, version, part);
        }
    }

    /// Reserves a block for a request; false when a request for it is in flight. All requests of one load have the same
    /// size. Without verification no block is reserved.
    pub fn reserve(&mut self, offset: u64) -> bool {
        !self.verifies() || self.busy.insert(offset)
    }

    /// Releases a block when its request was answered.
    pub fn release(&mut self, offset: u64) {
        if self.verifies() {
            self.busy.remove(&offset);
        }
    }

    /// The bytes of the next write at `offset`.
    pub fn next(&mut self, offset: u64, bytes: u32) -> SharedBuf {
        let Some(mut versions) = self.versions.take() else { return self.random(bytes) };
        let mut buf = Buf::new(bytes as usize);
        let grain_bytes = versions.grain_bytes as usize;
        for (i, version) in versions.at(offset, bytes).iter_mut().enumerate() {
            *version = version.wrapping_add(1) % UNKNOWN;
            let from = i * grain_bytes;
            self.make(offset + from as u64, *version, &mut buf[from..from + grain_bytes]);
        }
        self.versions = Some(versions);
        buf.share()
    }

    /// Marks the content of a failed write as unknown.
    pub fn forget(&mut self, offset: u64, bytes: u32) {
        if let Some(versions) = &mut self.versions {
            versions.at(offset, bytes).fill(UNKNOWN);
        }
    }

    /// Compares data that was read. Returns false when its content is unknown.
    ///
    /// # Errors
    /// The first byte that differs.
    pub fn check(&mut self, offset: u64, data: &[u8]) -> Result<bool> {
        let seed = self.seed;
        let Some(versions) = &mut self.versions else { return Ok(false) };
        let grain_bytes = versions.grain_bytes as usize;
        let (mut want, mut compared) = ([0; UNIT_BYTES], false);
        let known = versions.at(offset, data.len() as u32).iter().copied();
        for (g, (grain, version)) in data.chunks(grain_bytes).zip(known).enumerate() {
            if version == UNKNOWN {
                continue;
            }
            compared = true;
            for (i, part) in grain.chunks(UNIT_BYTES).enumerate() {
                let at = offset + (g * grain_bytes + i * UNIT_BYTES) as u64;
                unit(seed, at, version, &mut want[..part.len()]);
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
        }
        Ok(compared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_moved_and_damaged_bytes_are_found() {
        let mut c = Content::verified(7, 16 * 4096, 4096, true);
        let first = c.first(4096, 4096);
        assert!(c.check(4096, &first).unwrap());
        let second = c.next(4096, 4096);
        assert!(c.check(4096, &second).unwrap());
        assert!(c.check(4096, &first).unwrap_err().to_string().contains("version 0"));
        assert!(c.check(8192, &first).is_err(), "another block's bytes");
        let mut flipped = second.to_vec();
        flipped[4000] ^= 1;
        assert!(c.check(4096, &flipped).is_err());
        c.forget(4096, 4096);
        assert!(!c.check(4096, &flipped).unwrap());
    }

    #[test]
    fn what_is_known_outlasts_a_change_of_the_block_size() {
        let mut c = Content::verified(7, 1 << 20, 4096, true);
        let large = c.first(0, 64 << 10);
        let small = c.next(8192, 8192);
        let mut now = large.to_vec();
        assert!(c.check(0, &now).is_err(), "a part of it was overwritten");
        now[8192..16384].copy_from_slice(&small);
        assert!(c.check(0, &now).unwrap());
        let large = c.next(0, 64 << 10);
        assert!(c.check(8192, &large[8192..16384]).unwrap() && c.check(0, &now).is_err());
        // The known grains of a request are compared although others are unknown.
        c.forget(8192, 8192);
        let mut other = large.to_vec();
        other[9000] ^= 1;
        assert!(c.check(0, &other).unwrap());
        other[0] ^= 1;
        assert!(c.check(0, &other).is_err());
    }

    #[test]
    fn two_requests_do_not_meet_on_a_verified_block() {
        let mut c = Content::verified(7, 16 * 4096, 4096, true);
        assert!(c.reserve(4096) && !c.reserve(4096));
        c.release(4096);
        assert!(c.reserve(4096));
    }

    #[test]
    fn plain_buffers_of_any_size() {
        let mut c = Content::plain(1);
        for bytes in [512u32, 4096, 65536, 1 << 20, 8 << 20] {
            for _ in 0..20 {
                assert_eq!(c.next(0, bytes).len(), bytes as usize);
            }
        }
    }
}
