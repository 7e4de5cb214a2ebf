//! A small NBD client, and a writer with an oracle: every sector holds its number and a version. Writes that were
//! acknowledged as durable set the least version, writes that were sent the greatest.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

pub const BLOCK: usize = 4096;
const SECTOR: usize = 512;

pub struct Nbd {
    s: UnixStream,
    pub size: u64,
}

fn closed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, what.to_string())
}

impl Nbd {
    /// Connects; waits until the socket is served.
    pub fn connect(path: &Path) -> io::Result<Nbd> {
        let begun = Instant::now();
        let mut s = loop {
            match UnixStream::connect(path) {
                Ok(s) => break s,
                Err(e) if begun.elapsed() > Duration::from_secs(20) => return Err(e),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        s.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut head = [0; 18];
        s.read_exact(&mut head)?;
        s.write_all(&3u32.to_be_bytes())?;
        // NBD_OPT_EXPORT_NAME with an empty name.
        s.write_all(&0x4948_4156_454F_5054u64.to_be_bytes())?;
        s.write_all(&[0, 0, 0, 1, 0, 0, 0, 0])?;
        let mut answer = [0; 10];
        s.read_exact(&mut answer)?;
        let size = u64::from_be_bytes(answer[..8].try_into().map_err(|_| closed("size"))?);
        Ok(Nbd { s, size })
    }

    pub fn send(&mut self, kind: u16, fua: bool, cookie: u64, at: u64, len: usize, data: &[u8]) -> io::Result<()> {
        let mut b = Vec::with_capacity(28 + data.len());
        b.extend_from_slice(&0x2560_9513u32.to_be_bytes());
        b.extend_from_slice(&u16::from(fua).to_be_bytes());
        b.extend_from_slice(&kind.to_be_bytes());
        b.extend_from_slice(&cookie.to_be_bytes());
        b.extend_from_slice(&at.to_be_bytes());
        b.extend_from_slice(&(len as u32).to_be_bytes());
        b.extend_from_slice(data);
        self.s.write_all(&b)
    }

    /// Cookie and error number of the next answer.
    pub fn answer(&mut self) -> io::Result<(u64, u32)> {
        let mut h = [0; 16];
        self.s.read_exact(&mut h)?;
        let error = u32::from_be_bytes([h[4], h[5], h[6], h[7]]);
        let cookie = u64::from_be_bytes(h[8..].try_into().map_err(|_| closed("cookie"))?);
        Ok((cookie, error))
    }

    pub fn read(&mut self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        self.send(0, false, 0, at, len, &[])?;
        match self.answer()?.1 {
            0 => {}
            e => return Err(io::Error::from_raw_os_error(e as i32)),
        }
        let mut b = vec![0; len];
        self.s.read_exact(&mut b)?;
        Ok(b)
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.send(3, false, 0, 0, 0, &[])?;
        match self.answer()?.1 {
            0 => Ok(()),
            e => Err(io::Error::from_raw_os_error(e as i32)),
        }
    }
}

/// A small generator of reproducible random numbers.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

/// The versions that may be read from one export.
pub struct Oracle {
    /// The least and the greatest version of each sector.
    versions: Vec<(u32, u32)>,
    next: u32,
    /// Writes are aligned to this number of bytes, and multiples of it.
    pub unit: usize,
}

impl Oracle {
    pub fn new(size: u64) -> Oracle {
        Oracle { versions: vec![(0, 0); size as usize / SECTOR], next: 1, unit: BLOCK }
    }

    fn content(sector: usize, version: u32) -> [u8; SECTOR] {
        let mut b = [0; SECTOR];
        if version > 0 {
            let mut r = Random((sector as u64) << 32 | u64::from(version));
            r.next();
            for c in b.chunks_exact_mut(8) {
                c.copy_from_slice(&r.next().to_le_bytes());
            }
            b[..4].copy_from_slice(&version.to_le_bytes());
            b[4..8].copy_from_slice(&(sector as u32).to_le_bytes());
        }
        b
    }

    /// Writes at random with up to eight in flight and some flushes and FUA, until the time is over or the server stops
    /// or refuses. Returns the number of acknowledged writes.
    pub fn load(&mut self, nbd: &mut Nbd, r: &mut Random, time: Duration) -> usize {
        let (end, mut acknowledged) = (Instant::now() + time, 0);
        while Instant::now() < end {
            match self.batch(nbd, r) {
                Ok(n) => acknowledged += n,
                Err(_) => break,
            }
        }
        acknowledged
    }

    fn batch(&mut self, nbd: &mut Nbd, r: &mut Random) -> io::Result<usize> {
        let fua = r.below(4) == 0;
        let mut sent: Vec<(usize, usize, u32)> = Vec::new();
        for cookie in 0..1 + r.below(8) {
            let units = nbd.size as usize / self.unit;
            let most = if r.below(8) == 0 { 32 } else { 4 };
            let n = (1 + r.below(most) as usize).min(units);
            let first = r.below((units - n + 1) as u64) as usize * self.unit / SECTOR;
            let sectors = n * self.unit / SECTOR;
            // Two concurrent writes to one place have no order.
            if sent.iter().any(|u| first < u.0 + u.1 && u.0 < first + sectors) {
                continue;
            }
            let version = self.next;
            self.next += 1;
            let mut data = Vec::with_capacity(sectors * SECTOR);
            for s in first..first + sectors {
                data.extend_from_slice(&Oracle::content(s, version));
                self.versions[s].1 = version;
            }
            nbd.send(1, fua, cookie, (first * SECTOR) as u64, data.len(), &data)?;
            sent.push((first, sectors, version));
        }
        for _ in &sent {
            let (_, error) = nbd.answer()?;
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error as i32));
            }
        }
        if fua {
            for &(first, sectors, version) in &sent {
                self.versions[first..first + sectors].iter_mut().for_each(|v| v.0 = version);
            }
        } else if r.below(3) == 0 {
            nbd.flush()?;
            // A flush makes all writes durable that were acknowledged before it.
            self.versions.iter_mut().for_each(|v| v.0 = v.1);
        }
        Ok(sent.len())
    }

    /// Reads everything and returns what is wrong; false when the server stopped before the end. Data that was read has
    /// to stay; through a kill only when a flush followed.
    pub fn verify(&mut self, nbd: &mut Nbd) -> Result<bool, String> {
        let step = 1 << 20;
        for at in (0..nbd.size as usize).step_by(step) {
            let len = step.min(nbd.size as usize - at);
            let data = match nbd.read(at as u64, len) {
                Ok(d) => d,
                Err(e) if e.raw_os_error().is_some_and(|n| n == 5 || n == 22) => {
                    return Err(format!("read at {at}: {e}"));
                }
                Err(_) => return Ok(false),
            };
            for (i, got) in data.chunks_exact(SECTOR).enumerate() {
                let sector = at / SECTOR + i;
                let (least, most) = self.versions[sector];
                let version = u32::from_le_bytes([got[0], got[1], got[2], got[3]]);
                if version < least || version > most || got != Oracle::content(sector, version) {
                    return Err(format!("sector {sector}: version {version}, may be {least} to {most}"));
                }
                self.versions[sector] = (version, version);
            }
        }
        Ok(true)
    }
}
