//! NDR 2.0, the transfer syntax of RPC calls ([C706] chapter 14, [MS-RPCE] 2.2.4), little-endian. Knows no interface:
//! only primitive types, pointers, strings, SIDs and context handles.

use crate::{
    Malformed,
    cursor::{Put, Reader, utf16_string},
    dtyp::Sid,
};

/// Reads a stub. Alignment counts from the beginning of the stub.
#[derive(Debug, Clone, Copy)]
pub struct NdrReader<'a> {
    inner: Reader<'a>,
}

impl<'a> NdrReader<'a> {
    /// A reader at the beginning of `stub`.
    pub fn new(stub: &'a [u8]) -> NdrReader<'a> {
        NdrReader { inner: Reader::new(stub) }
    }

    /// Skips padding up to the next multiple of `n` bytes.
    ///
    /// # Errors
    /// The bytes end early.
    pub fn align(&mut self, n: usize) -> Result<(), Malformed> {
        let rest = self.inner.position() % n;
        if rest == 0 { Ok(()) } else { self.inner.skip(n - rest) }
    }

    /// Reads 8 bits.
    ///
    /// # Errors
    /// The bytes end early.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.inner.u8()
    }

    /// Reads 16 bits, little-endian, aligned to 2 bytes.
    ///
    /// # Errors
    /// The bytes end early.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.align(2)?;
        self.inner.u16()
    }

    /// Reads 32 bits, little-endian, aligned to 4 bytes.
    ///
    /// # Errors
    /// The bytes end early.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.align(4)?;
        self.inner.u32()
    }

    /// Reads 64 bits, little-endian, aligned to 8 bytes.
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

    /// Bytes that were not read yet.
    pub fn remaining(&self) -> usize {
        self.inner.remaining()
    }

    /// Reads the referent id of a unique pointer; false for the NULL pointer, which has no referent.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn pointer(&mut self) -> Result<bool, Malformed> {
        Ok(self.u32()? != 0)
    }

    /// Reads the maximum count of a conformant array. A count that exceeds the bytes left, with `element` bytes each,
    /// is malformed.
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

    /// Reads a conformant varying array of UTF-16 units without a terminator.
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

    /// Reads a `[string]`: an array as in [`wide`](Self::wide), cut at its terminator.
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

    /// Reads a `[string, unique]` parameter: the pointer and its referent.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn unique_string(&mut self) -> Result<Option<String>, Malformed> {
        if self.pointer()? { self.string().map(Some) } else { Ok(None) }
    }

    /// Reads the fixed part of an RPC_UNICODE_STRING, [MS-DTYP] 2.3.10; true when its buffer follows.
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

    /// Reads an RPC_UNICODE_STRING parameter: its fixed part and, directly after, its buffer.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn unicode(&mut self) -> Result<String, Malformed> {
        if self.unicode_head()? { self.wide() } else { Ok(String::new()) }
    }

    /// Reads an RPC_SID, [MS-DTYP] 2.4.2.3.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn sid(&mut self) -> Result<Sid, Malformed> {
        let count = self.u32()?;
        let sid = Sid::read(&mut self.inner)?;
        if sid.sub.len() != count as usize { Err(Malformed("RPC_SID conformance")) } else { Ok(sid) }
    }

    /// Reads a context handle: 20 bytes, [MS-RPCE] 2.2.1.1.4.
    ///
    /// # Errors
    /// A field is out of its range, or the bytes end early.
    pub fn handle(&mut self) -> Result<[u8; 20], Malformed> {
        self.align(4)?;
        self.inner.array()
    }
}

/// Writes a stub. Alignment counts from the beginning of the stub.
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
    /// An empty stub.
    pub fn new() -> NdrWriter {
        NdrWriter::default()
    }

    /// The bytes of the stub.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    /// Pads with zeros to the next multiple of `n` bytes.
    pub fn align(&mut self, n: usize) {
        self.out.pad_to(0, n);
    }

    /// Writes 8 bits.
    pub fn u8(&mut self, v: u8) {
        self.out.put_u8(v);
    }

    /// Writes 16 bits, little-endian, aligned to 2 bytes.
    pub fn u16(&mut self, v: u16) {
        self.align(2);
        self.out.put_u16(v);
    }

    /// Writes 32 bits, little-endian, aligned to 4 bytes.
    pub fn u32(&mut self, v: u32) {
        self.align(4);
        self.out.put_u32(v);
    }

    /// Writes 64 bits, little-endian, aligned to 8 bytes.
    pub fn u64(&mut self, v: u64) {
        self.align(8);
        self.out.put_u64(v);
    }

    /// Writes bytes as they are, without alignment.
    pub fn bytes(&mut self, v: &[u8]) {
        self.out.extend_from_slice(v);
    }

    /// Writes a unique pointer: a new referent id, or the NULL pointer. The caller writes the referent.
    pub fn pointer(&mut self, present: bool) {
        if present {
            self.referent += 4;
            self.u32(self.referent);
        } else {
            self.u32(0);
        }
    }

    /// Writes a `[string]` with its terminator.
    pub fn string(&mut self, text: &str) {
        let units = text.encode_utf16().count() as u32 + 1;
        self.u32(units);
        self.u32(0);
        self.u32(units);
        self.out.put_utf16(text);
        self.out.put_u16(0);
    }

    /// Writes a `[string, unique]` parameter: the pointer and its referent.
    pub fn unique_string(&mut self, text: Option<&str>) {
        self.pointer(text.is_some());
        if let Some(text) = text {
            self.string(text);
        }
    }

    /// Writes the fixed part of an RPC_UNICODE_STRING, [MS-DTYP] 2.3.10. Text beyond its 16-bit length is cut.
    pub fn unicode_head(&mut self, text: &str) {
        let length = (utf16_units(text) * 2) as u16;
        self.align(4);
        self.u16(length);
        self.u16(length);
        self.pointer(true);
    }

    /// Writes the buffer of an RPC_UNICODE_STRING.
    pub fn unicode_body(&mut self, text: &str) {
        let units = utf16_units(text);
        self.u32(units as u32);
        self.u32(0);
        self.u32(units as u32);
        for unit in text.encode_utf16().take(units) {
            self.out.put_u16(unit);
        }
    }

    /// Writes [`unicode_head`](Self::unicode_head) with a maximum length that has room for a terminator: some clients
    /// need it in the names of domains.
    pub fn unicode_large_head(&mut self, text: &str) {
        let length = (utf16_units(text) * 2) as u16;
        self.align(4);
        self.u16(length);
        self.u16(length + 2);
        self.pointer(true);
    }

    /// Writes the buffer of [`unicode_large_head`](Self::unicode_large_head).
    pub fn unicode_large_body(&mut self, text: &str) {
        let units = utf16_units(text);
        self.u32(units as u32 + 1);
        self.u32(0);
        self.u32(units as u32);
        for unit in text.encode_utf16().take(units) {
            self.out.put_u16(unit);
        }
    }

    /// Writes an RPC_UNICODE_STRING parameter: its fixed part and, directly after, its buffer.
    pub fn unicode(&mut self, text: &str) {
        self.unicode_head(text);
        self.unicode_body(text);
    }

    /// Writes an RPC_SID, [MS-DTYP] 2.4.2.3.
    pub fn sid(&mut self, sid: &Sid) {
        self.u32(sid.sub.len() as u32);
        sid.put(&mut self.out);
    }

    /// Writes a context handle: 20 bytes.
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
