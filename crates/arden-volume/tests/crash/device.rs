//! A device in memory with a volatile cache: a crash keeps, loses or tears each write that was not flushed, sector by
//! sector and in any order. Dies by itself after a given number of writes and flushes.

use std::collections::HashMap;

use arden_block::{Device, IoError, IoResult, SECTOR_BYTES, Thin, check_range, rng::Rng};
use parking_lot::Mutex;

const SECTOR: usize = SECTOR_BYTES as usize;

struct State {
    media: Vec<u8>,
    /// What reads see where it differs from the media, by sector.
    visible: HashMap<u64, Vec<u8>>,
    cache: Vec<(u64, Vec<u8>)>,
    /// Writes and flushes until it dies.
    left: Option<u64>,
    dead: bool,
}

pub struct CrashDevice(Mutex<State>, bool);

impl CrashDevice {
    pub fn new(media: Vec<u8>, left: Option<u64>) -> CrashDevice {
        let state = State { media, visible: HashMap::new(), cache: Vec::new(), left, dead: false };
        CrashDevice(Mutex::new(state), false)
    }

    /// One that tells when it has written.
    pub fn telling(self, tells: bool) -> CrashDevice {
        CrashDevice(self.0, tells)
    }

    pub fn die_after(&self, left: Option<u64>) {
        self.0.lock().left = left;
    }

    pub fn is_dead(&self) -> bool {
        self.0.lock().dead
    }

    /// The process ends and the device keeps its power: what it was asked has happened, and its cache stays.
    pub fn outlive_host(self) -> CrashDevice {
        {
            let s = &mut *self.0.lock();
            (s.dead, s.left) = (false, None);
            for (offset, data) in &s.cache {
                for (i, sector) in data.chunks(SECTOR).enumerate() {
                    s.visible.insert(offset / SECTOR_BYTES + i as u64, sector.to_vec());
                }
            }
        }
        self
    }

    /// Power is lost: what the media holds afterwards.
    pub fn crash(&self, rng: &mut Rng) -> Vec<u8> {
        let mut s = self.0.lock();
        s.dead = true;
        let mut media = std::mem::take(&mut s.media);
        let mut cache = std::mem::take(&mut s.cache);
        for i in (1..cache.len()).rev() {
            cache.swap(i, rng.below(i as u64 + 1) as usize);
        }
        let style = rng.below(4);
        for (offset, data) in cache {
            let sectors = data.len() / SECTOR;
            let (mode, cut) = (rng.below(4), rng.below(sectors as u64 + 1) as usize);
            for (i, sector) in data.chunks(SECTOR).enumerate() {
                let keep = match (style, mode) {
                    (0, _) => false,
                    (1, _) => true,
                    (_, 0) => false,
                    (_, 1) => true,
                    (_, 2) => i < cut,
                    _ => rng.one_in(2),
                };
                if keep {
                    let at = offset as usize + i * SECTOR;
                    media[at..at + SECTOR].copy_from_slice(sector);
                }
            }
        }
        media
    }
}

impl State {
    fn step(&mut self) -> IoResult<()> {
        match self.left {
            Some(0) => self.dead = true,
            Some(n) => self.left = Some(n - 1),
            None => {}
        }
        if self.dead { Err(IoError::Gone) } else { Ok(()) }
    }
}

impl Device for CrashDevice {
    fn size_bytes(&self) -> u64 {
        self.0.lock().media.len() as u64
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> IoResult<()> {
        check_range(self.size_bytes(), offset, buf.len() as u64)?;
        let s = self.0.lock();
        if s.dead {
            return Err(IoError::Gone);
        }
        for (i, out) in buf.chunks_mut(SECTOR).enumerate() {
            let sector = offset / SECTOR_BYTES + i as u64;
            match s.visible.get(&sector) {
                Some(v) => out.copy_from_slice(v),
                None => out.copy_from_slice(&s.media[sector as usize * SECTOR..][..SECTOR]),
            }
        }
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        check_range(self.size_bytes(), offset, data.len() as u64)?;
        let mut s = self.0.lock();
        let alive = s.step();
        // One that was on its way may have arrived in part.
        s.cache.push((offset, data.to_vec()));
        alive?;
        for (i, sector) in data.chunks(SECTOR).enumerate() {
            s.visible.insert(offset / SECTOR_BYTES + i as u64, sector.to_vec());
        }
        Ok(())
    }
    fn writes_later(&self) -> bool {
        self.1
    }
    fn flush(&self) -> IoResult<()> {
        let mut s = self.0.lock();
        s.step()?;
        for (offset, data) in std::mem::take(&mut s.cache) {
            s.media[offset as usize..offset as usize + data.len()].copy_from_slice(&data);
        }
        s.visible.clear();
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> IoResult<()> {
        check_range(self.size_bytes(), offset, len)?;
        let mut s = self.0.lock();
        s.step()?;
        let junk = vec![0xDD; len as usize];
        s.media[offset as usize..(offset + len) as usize].copy_from_slice(&junk);
        s.cache.retain(|(o, d)| o + d.len() as u64 <= offset || *o >= offset + len);
        (offset / SECTOR_BYTES..(offset + len) / SECTOR_BYTES).for_each(|sector| {
            s.visible.remove(&sector);
        });
        Ok(())
    }
    fn thin(&self) -> Option<&dyn Thin> {
        Some(self)
    }
}

impl Thin for CrashDevice {
    fn piece_bytes(&self) -> u64 {
        1 << 20
    }
}
