//! Little-endian encoding of on-disk structures, and a reader that never panics.

use crate::base::error::{SpaceError, SpaceResult};

pub(crate) fn checksum(data: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(data)
}

#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, v: u8) {
        self.0.push(v);
    }
    pub(crate) fn u16(&mut self, v: u16) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    pub(crate) fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    pub(crate) fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    pub(crate) fn u128(&mut self, v: u128) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    pub(crate) fn text(&mut self, s: &str) {
        let n = s.len().min(255);
        self.u8(n as u8);
        self.0.extend_from_slice(&s.as_bytes()[..n]);
    }
}

pub(crate) struct Reader<'a> {
    data: &'a [u8],
    what: &'static str,
    /// Bytes that will follow.
    more: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(data: &'a [u8], what: &'static str) -> Reader<'a> {
        Reader::of_more(data, what, 0)
    }
    /// Of the beginning of something; `more` bytes follow.
    pub(crate) fn of_more(data: &'a [u8], what: &'static str, more: usize) -> Reader<'a> {
        Reader { data, what, more }
    }
    pub(crate) fn left(&self) -> usize {
        self.data.len()
    }
    pub(crate) fn bad<T>(&self) -> SpaceResult<T> {
        Err(SpaceError::Corrupt(format!("{} is damaged", self.what)))
    }
    fn take(&mut self, n: usize) -> SpaceResult<&'a [u8]> {
        if self.data.len() < n {
            return self.bad();
        }
        let (a, b) = self.data.split_at(n);
        self.data = b;
        Ok(a)
    }
    fn array<const N: usize>(&mut self) -> SpaceResult<[u8; N]> {
        let mut a = [0; N];
        a.copy_from_slice(self.take(N)?);
        Ok(a)
    }
    pub(crate) fn u8(&mut self) -> SpaceResult<u8> {
        Ok(self.take(1)?[0])
    }
    pub(crate) fn u16(&mut self) -> SpaceResult<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    pub(crate) fn u32(&mut self) -> SpaceResult<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    pub(crate) fn u64(&mut self) -> SpaceResult<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    pub(crate) fn u128(&mut self) -> SpaceResult<u128> {
        Ok(u128::from_le_bytes(self.array()?))
    }
    pub(crate) fn text(&mut self) -> SpaceResult<String> {
        let n = usize::from(self.u8()?);
        match std::str::from_utf8(self.take(n)?) {
            Ok(s) => Ok(s.to_string()),
            Err(_) => self.bad(),
        }
    }
    /// A count that cannot be larger than what is left, so that damage cannot ask for memory.
    pub(crate) fn count(&mut self) -> SpaceResult<usize> {
        let n = self.u32()? as usize;
        if n > (self.data.len() + self.more) * 8 {
            return self.bad();
        }
        Ok(n)
    }
}
