//! The subset of DER that SPNEGO and Kerberos framing use: definite lengths, one-byte tags. Refuses indefinite lengths,
//! and lengths beyond the end of the input.

use crate::Malformed;

pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const OID: u8 = 0x06;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const ENUMERATED: u8 = 0x0A;
pub(crate) const GENERAL_STRING: u8 = 0x1B;
pub(crate) const APPLICATION_0: u8 = 0x60;

/// The context-specific constructed tag `[n]`.
pub(crate) const fn context(n: u8) -> u8 {
    0xA0 | n
}

/// Iterates over the elements of one level.
pub(crate) struct Elements<'a> {
    rest: &'a [u8],
}

/// One element: its tag, its contents, and its encoding as a whole.
#[derive(Clone, Copy)]
pub(crate) struct Element<'a> {
    pub tag: u8,
    pub contents: &'a [u8],
    pub whole: &'a [u8],
}

impl<'a> Elements<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Elements<'a> {
        Elements { rest: bytes }
    }

    /// The next element, or `None` at the end of the level.
    pub(crate) fn next(&mut self) -> Result<Option<Element<'a>>, Malformed> {
        let Some((&tag, after_tag)) = self.rest.split_first() else { return Ok(None) };
        if tag & 0x1F == 0x1F {
            return Err(Malformed("DER tag of several bytes"));
        }
        let (&first, after) = after_tag.split_first().ok_or(Malformed("DER length missing"))?;
        let (length, after) = if first < 0x80 {
            (usize::from(first), after)
        } else {
            let count = usize::from(first & 0x7F);
            if count == 0 || count > 4 || after.len() < count {
                return Err(Malformed("DER length"));
            }
            let (digits, after) = after.split_at(count);
            (digits.iter().fold(0usize, |n, b| n << 8 | usize::from(*b)), after)
        };
        if length > after.len() {
            return Err(Malformed("DER element longer than what holds it"));
        }
        let (contents, rest) = after.split_at(length);
        let whole = &self.rest[..self.rest.len() - rest.len()];
        self.rest = rest;
        Ok(Some(Element { tag, contents, whole }))
    }

    /// The next element; an error unless its tag is `tag`.
    pub(crate) fn expect(&mut self, tag: u8) -> Result<Element<'a>, Malformed> {
        match self.next()? {
            Some(e) if e.tag == tag => Ok(e),
            _ => Err(Malformed("DER element missing")),
        }
    }
}

/// The contents of the single element in `bytes`; an error unless its tag is `tag`.
pub(crate) fn only(bytes: &[u8], tag: u8) -> Result<&[u8], Malformed> {
    Ok(Elements::new(bytes).expect(tag)?.contents)
}

/// Encodes an element with these contents.
pub(crate) fn element(tag: u8, contents: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(contents.len() + 6);
    out.push(tag);
    if contents.len() < 0x80 {
        out.push(contents.len() as u8);
    } else {
        let digits = (contents.len() as u32).to_be_bytes();
        let skip = digits.iter().take_while(|b| **b == 0).count();
        out.push(0x80 | (4 - skip) as u8);
        out.extend_from_slice(&digits[skip..]);
    }
    out.extend_from_slice(contents);
    out
}
