//! Reading and writing of little-endian fields without panics.

use crate::Malformed;

/// A position in a byte slice. Every read is checked against the end.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    data: &'a [u8],
    pos: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the start of `data`.
    pub fn new(data: &'a [u8]) -> Reader<'a> {
        Reader { data, pos: 0 }
    }
    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.pos
    }
    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.data.len() - self.pos
    }
    /// Reads `n` bytes.
    ///
    /// # Errors
    /// The bytes end early.
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        if n > self.remaining() {
            return Err(Malformed("truncated"));
        }
        let out = &self.data[self.pos..self.pos + n];
        self.pos += n;
        Ok(out)
    }
    /// Reads `N` bytes.
    ///
    /// # Errors
    /// The bytes end early.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }
    /// Skips `n` bytes.
    ///
    /// # Errors
    /// The bytes end early.
    pub fn skip(&mut self, n: usize) -> Result<(), Malformed> {
        self.bytes(n).map(|_| ())
    }
    /// Reads 8 bits.
    ///
    /// # Errors
    /// The bytes end early.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }
    /// Reads 16 bits, little-endian.
    ///
    /// # Errors
    /// The bytes end early.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    /// Reads 32 bits, little-endian.
    ///
    /// # Errors
    /// The bytes end early.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    /// Reads 64 bits, little-endian.
    ///
    /// # Errors
    /// The bytes end early.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    /// Reads 128 bits, little-endian.
    ///
    /// # Errors
    /// The bytes end early.
    pub fn u128(&mut self) -> Result<u128, Malformed> {
        Ok(u128::from_le_bytes(self.array()?))
    }
    /// Takes all bytes that were not read yet.
    pub fn rest(&mut self) -> &'a [u8] {
        let out = &self.data[self.pos..];
        self.pos = self.data.len();
        out
    }
}

/// Returns `len` bytes at `offset` of `data`.
///
/// # Errors
/// The range is not all inside `data`.
pub fn slice_at(data: &[u8], offset: usize, len: usize) -> Result<&[u8], Malformed> {
    let end = offset.checked_add(len).ok_or(Malformed("offset overflow"))?;
    data.get(offset..end).ok_or(Malformed("offset outside the buffer"))
}

/// Appends little-endian fields.
pub trait Put {
    fn put_u8(&mut self, v: u8);
    fn put_u16(&mut self, v: u16);
    fn put_u32(&mut self, v: u32);
    fn put_u64(&mut self, v: u64);
    fn put_u128(&mut self, v: u128);
    fn put_zeros(&mut self, n: usize);
    /// Appends zeros until the length, counted from `base`, is a multiple of `n`.
    fn pad_to(&mut self, base: usize, n: usize);
    fn put_utf16(&mut self, s: &str);
    /// Overwrites the four bytes at `at`.
    fn patch_u32(&mut self, at: usize, v: u32);
    fn patch_u16(&mut self, at: usize, v: u16);
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, v: u8) {
        self.push(v);
    }
    fn put_u16(&mut self, v: u16) {
        self.extend_from_slice(&v.to_le_bytes());
    }
    fn put_u32(&mut self, v: u32) {
        self.extend_from_slice(&v.to_le_bytes());
    }
    fn put_u64(&mut self, v: u64) {
        self.extend_from_slice(&v.to_le_bytes());
    }
    fn put_u128(&mut self, v: u128) {
        self.extend_from_slice(&v.to_le_bytes());
    }
    fn put_zeros(&mut self, n: usize) {
        self.resize(self.len() + n, 0);
    }
    fn pad_to(&mut self, base: usize, n: usize) {
        let rest = (self.len() - base) % n;
        if rest != 0 {
            self.put_zeros(n - rest);
        }
    }
    fn put_utf16(&mut self, s: &str) {
        for unit in s.encode_utf16() {
            self.put_u16(unit);
        }
    }
    fn patch_u32(&mut self, at: usize, v: u32) {
        self[at..at + 4].copy_from_slice(&v.to_le_bytes());
    }
    fn patch_u16(&mut self, at: usize, v: u16) {
        self[at..at + 2].copy_from_slice(&v.to_le_bytes());
    }
}

/// Decodes UTF-16LE.
///
/// # Errors
/// The length is odd, or a surrogate has no partner.
pub fn utf16_string(bytes: &[u8]) -> Result<String, Malformed> {
    if !bytes.len().is_multiple_of(2) {
        return Err(Malformed("odd UTF-16 length"));
    }
    if bytes.chunks_exact(2).all(|c| c[1] == 0 && c[0] < 0x80) {
        return Ok(bytes.iter().step_by(2).map(|b| *b as char).collect());
    }
    char::decode_utf16(bytes.chunks_exact(2).map(|c| u16::from_le_bytes([c[0], c[1]])))
        .collect::<Result<String, _>>()
        .map_err(|_| Malformed("unpaired surrogate"))
}
