//! NDR 2.0, the transfer syntax of RPC calls ([C706] chapter 14, [MS-RPCE] 2.2.4), little-endian.
//! Refuses to know any interface: only primitive types, pointers, strings, SIDs and handles.

use crate::{
    Malformed,
    cursor::{Put, Reader, utf16_string},
    dtyp::Sid,
};

/// Reads a stub; alignment counts from its beginning.
#[derive(Debug, Clone, Copy)]
pub struct NdrReader<'a> {
    inner: Reader<'a>,
}

impl<'a> NdrReader<'a> {
    pub fn new(stub: &'a [u8]) -> NdrReader<'a> {
        NdrReader { inner: Reader::new(stub) }
    }

    /// Passes over padding up to a multiple of `n` bytes.
    ///
    /// # Errors
    /// The bytes end early.
    pub fn align(&mut self, n: usize) -> Result<(), Malformed> {
        let rest = self.inner.position() % n;
        if rest == 0 { Ok(()) } else { self.inner.skip(n - rest) }
    }

    /// Reads an octet.
    ///
    /// # Errors
    /// The bytes end early.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.inner.u8()
    }

    /// Reads 16 bits, little-endian, aligned to its size.
    ///
    /// # Errors
    /// The bytes end early.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.align(2)?;
        self.inner.u16()
    }

    /// Reads 32 bits, little-endian, aligned to its size.
    ///
    /// # Errors
    /// The bytes end early.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.align(4)?;
        self.inner.u32()
    }

    /// Reads 64 bits, little-endian, aligned to its size.
    ///
    /// # Errors
    /// The bytes end early.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.align(8)?;
        self.inner.u64()
    }

    /// Reads `n` bytes.
    ///
    /// # Errors
    /// The bytes end early.
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        self.inner.bytes(n)
    }

    pub fn remaining(&self) -> usize {
        self.inner.remaining()
    }

    /// The referent of a unique pointer: whether something follows for it.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn pointer(&mut self) -> Result<bool, Malformed> {
        Ok(self.u32()? != 0)
    }

    /// The maximum count of a conformant array, which cannot be more than `element` bytes each allow.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn count(&mut self, element: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        if count > self.remaining() / element.max(1) {
            return Err(Malformed("conformance beyond the stub"));
        }
        Ok(count)
    }

    /// A conformant varying array of UTF-16 units, without a terminator.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn wide(&mut self) -> Result<String, Malformed> {
        let max = self.u32()?;
        let offset = self.u32()?;
        let actual = self.u32()?;
        if offset != 0 || actual > max {
            return Err(Malformed("string variance"));
        }
        let bytes = self.inner.bytes((actual as usize).checked_mul(2).ok_or(Malformed("string length"))?)?;
        utf16_string(bytes)
    }

    /// A `[string]`: as [`wide`](Self::wide), and ends at its terminator.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn string(&mut self) -> Result<String, Malformed> {
        let mut text = self.wide()?;
        if let Some(end) = text.find('\0') {
            text.truncate(end);
        }
        Ok(text)
    }

    /// A `[string, unique]` parameter: the pointer with what it points at.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn unique_string(&mut self) -> Result<Option<String>, Malformed> {
        if self.pointer()? { self.string().map(Some) } else { Ok(None) }
    }

    /// The fixed part of an RPC_UNICODE_STRING, [MS-DTYP] 2.3.10: whether its buffer follows.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn unicode_head(&mut self) -> Result<bool, Malformed> {
        self.align(4)?;
        let length = self.u16()?;
        let max = self.u16()?;
        if length > max || length % 2 != 0 {
            return Err(Malformed("RPC_UNICODE_STRING length"));
        }
        self.pointer()
    }

    /// An RPC_UNICODE_STRING parameter: its fixed part, and its buffer directly after.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn unicode(&mut self) -> Result<String, Malformed> {
        if self.unicode_head()? { self.wide() } else { Ok(String::new()) }
    }

    /// An RPC_SID, [MS-DTYP] 2.4.2.3.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn sid(&mut self) -> Result<Sid, Malformed> {
        let count = self.u32()?;
        let sid = Sid::read(&mut self.inner)?;
        if sid.sub.len() != count as usize { Err(Malformed("RPC_SID conformance")) } else { Ok(sid) }
    }

    /// A context handle.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn handle(&mut self) -> Result<[u8; 20], Malformed> {
        self.align(4)?;
        self.inner.array()
    }
}

/// Writes a stub.
#[derive(Debug, Clone)]
pub struct NdrWriter {
    out: Vec<u8>,
    referent: u32,
}

impl Default for NdrWriter {
    fn default() -> NdrWriter {
        NdrWriter { out: Vec::new(), referent: 0x0002_0000 }
    }
}

impl NdrWriter {
    pub fn new() -> NdrWriter {
        NdrWriter::default()
    }

    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    pub fn align(&mut self, n: usize) {
        self.out.pad_to(0, n);
    }

    pub fn u8(&mut self, v: u8) {
        self.out.put_u8(v);
    }

    pub fn u16(&mut self, v: u16) {
        self.align(2);
        self.out.put_u16(v);
    }

    pub fn u32(&mut self, v: u32) {
        self.align(4);
        self.out.put_u32(v);
    }

    pub fn u64(&mut self, v: u64) {
        self.align(8);
        self.out.put_u64(v);
    }

    pub fn bytes(&mut self, v: &[u8]) {
        self.out.extend_from_slice(v);
    }

    /// A unique pointer: a fresh referent, or the NULL pointer.
    pub fn pointer(&mut self, present: bool) {
        if present {
            self.referent += 4;
            self.u32(self.referent);
        } else {
            self.u32(0);
        }
    }

    /// A `[string]` with its terminator.
    pub fn string(&mut self, text: &str) {
        let units = text.encode_utf16().count() as u32 + 1;
        self.u32(units);
        self.u32(0);
        self.u32(units);
        self.out.put_utf16(text);
        self.out.put_u16(0);
    }

    /// A `[string, unique]` parameter.
    pub fn unique_string(&mut self, text: Option<&str>) {
        self.pointer(text.is_some());
        if let Some(text) = text {
            self.string(text);
        }
    }

    /// The fixed part of an RPC_UNICODE_STRING. Longer ones than it can say are cut.
    pub fn unicode_head(&mut self, text: &str) {
        let length = (utf16_units(text) * 2) as u16;
        self.align(4);
        self.u16(length);
        self.u16(length);
        self.pointer(true);
    }

    /// The buffer of an RPC_UNICODE_STRING.
    pub fn unicode_body(&mut self, text: &str) {
        let units = utf16_units(text);
        self.u32(units as u32);
        self.u32(0);
        self.u32(units as u32);
        for unit in text.encode_utf16().take(units) {
            self.out.put_u16(unit);
        }
    }

    /// [`unicode_head`](Self::unicode_head) with room for a terminator, which some clients need in names of domains.
    pub fn unicode_large_head(&mut self, text: &str) {
        let length = (utf16_units(text) * 2) as u16;
        self.align(4);
        self.u16(length);
        self.u16(length + 2);
        self.pointer(true);
    }

    /// The buffer for [`unicode_large_head`](Self::unicode_large_head).
    pub fn unicode_large_body(&mut self, text: &str) {
        let units = utf16_units(text);
        self.u32(units as u32 + 1);
        self.u32(0);
        self.u32(units as u32);
        for unit in text.encode_utf16().take(units) {
            self.out.put_u16(unit);
        }
    }

    /// An RPC_UNICODE_STRING on its own.
    pub fn unicode(&mut self, text: &str) {
        self.unicode_head(text);
        self.unicode_body(text);
    }

    /// An RPC_SID.
    pub fn sid(&mut self, sid: &Sid) {
        self.u32(sid.sub.len() as u32);
        sid.put(&mut self.out);
    }

    pub fn handle(&mut self, handle: &[u8; 20]) {
        self.align(4);
        self.bytes(handle);
    }
}

fn utf16_units(text: &str) -> usize {
    text.encode_utf16().count().min(0x7FFE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let sid: Sid = "S-1-5-21-1-2-3-4".parse().unwrap();
        let mut w = NdrWriter::new();
        w.u8(1);
        w.unique_string(Some("häl"));
        w.unique_string(None);
        w.unicode("abc");
        w.sid(&sid);
        w.u16(7);
        w.u64(9);
        w.handle(&[3; 20]);
        let bytes = w.finish();
        let mut r = NdrReader::new(&bytes);
        assert_eq!(r.u8(), Ok(1));
        assert_eq!(r.unique_string(), Ok(Some("häl".into())));
        assert_eq!(r.unique_string(), Ok(None));
        assert_eq!(r.unicode(), Ok("abc".into()));
        assert_eq!(r.sid(), Ok(sid));
        assert_eq!(r.u16(), Ok(7));
        assert_eq!(r.u64(), Ok(9));
        assert_eq!((r.handle(), r.remaining()), (Ok([3; 20]), 0));
    }

    #[test]
    fn alignment_and_referents_are_fixed_bytes() {
        let mut w = NdrWriter::new();
        w.u16(1);
        w.unique_string(Some("a"));
        w.pointer(true);
        let expected = [1, 0, 0, 0, 4, 0, 2, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, b'a', 0, 0, 0, 8, 0, 2, 0];
        assert_eq!(w.finish(), expected);
    }

    #[test]
    fn hostile_counts() {
        let huge = [0xFF; 64];
        assert!(NdrReader::new(&huge).string().is_err());
        assert!(NdrReader::new(&huge).count(1).is_err());
        assert!(NdrReader::new(&huge).sid().is_err());
        assert!(NdrReader::new(&huge).unicode().is_err());
        let mut r = NdrReader::new(&[2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 65, 0]);
        assert!(r.string().is_err());
    }
}
