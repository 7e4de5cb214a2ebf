//! Names of files as text. Windows takes any UTF-16 units in a name, also a surrogate without its partner, which no `str` can
//! hold. Such a unit is a character of a private range here, U+10D800 to U+10DFFF, which is the unit and 0x100000. The characters
//! of that range themselves are two of those: the units of their own surrogate pair. So each sequence of units is one `str`, and
//! each `str` that this module made is one sequence of units.
//!
//! Where names are bytes (Linux), a lone surrogate is three bytes, as in UTF-8 were it a character (WTF-8). Names of accounts,
//! machines and shares are no names of files: they are decoded strictly, by [`crate::cursor::utf16_string`].

use std::borrow::Cow;

use crate::Malformed;

const ESCAPE: u32 = 0x10_0000;
/// The first byte in UTF-8 of every character of the private range.
const LEAD: u8 = 0xF4;

/// The unit that a character of the private range stands for.
fn lone(c: char) -> Option<u16> {
    let unit = (c as u32).checked_sub(ESCAPE)?;
    (0xD800..0xE000).contains(&unit).then_some(unit as u16)
}

fn push(name: &mut String, c: Result<char, u16>) {
    let escaped = |unit: u16| char::from_u32(ESCAPE + u32::from(unit));
    match c {
        Ok(c) if lone(c).is_some() => {
            let mut units = [0; 2];
            name.extend(c.encode_utf16(&mut units).iter().filter_map(|unit| escaped(*unit)));
        }
        Ok(c) => name.push(c),
        Err(unit) => name.extend(escaped(unit)),
    }
}

/// Decodes a name in UTF-16LE.
///
/// # Errors
/// The length is odd.
pub fn name_of_utf16(bytes: &[u8]) -> Result<String, Malformed> {
    if !bytes.len().is_multiple_of(2) {
        return Err(Malformed("odd UTF-16 length"));
    }
    if bytes.chunks_exact(2).all(|c| c[1] == 0 && c[0] < 0x80) {
        return Ok(bytes.iter().step_by(2).map(|b| *b as char).collect());
    }
    let mut name = String::with_capacity(bytes.len());
    for c in char::decode_utf16(bytes.chunks_exact(2).map(|c| u16::from_le_bytes([c[0], c[1]]))) {
        push(&mut name, c.map_err(|e| e.unpaired_surrogate()));
    }
    Ok(name)
}

/// Appends a name in UTF-16LE.
pub fn put_name_units(out: &mut Vec<u8>, name: &str) {
    if is_plain(name) {
        return name.encode_utf16().for_each(|unit| out.extend_from_slice(&unit.to_le_bytes()));
    }
    for c in name.chars() {
        let mut units = [0; 2];
        let unit = lone(c);
        let units = unit.as_ref().map_or_else(|| &*c.encode_utf16(&mut units), std::slice::from_ref);
        units.iter().for_each(|unit| out.extend_from_slice(&unit.to_le_bytes()));
    }
}

/// How many UTF-16 units a name has.
pub fn name_units(name: &str) -> usize {
    match is_plain(name) {
        true => name.encode_utf16().count(),
        false => name.chars().map(|c| if lone(c).is_some() { 1 } else { c.len_utf16() }).sum(),
    }
}

/// Decodes a name that is bytes; None where no client could name it: what is neither UTF-8 nor has lone surrogates alone beside it.
pub fn name_of_bytes(bytes: &[u8]) -> Option<Cow<'_, str>> {
    match std::str::from_utf8(bytes) {
        Ok(name) if is_plain(name) => return Some(Cow::Borrowed(name)),
        Ok(_) => {}
        // Only these begin a surrogate.
        Err(_) if bytes.contains(&0xED) => {}
        Err(_) => return None,
    }
    let mut name = String::with_capacity(bytes.len());
    let mut high_before = false;
    let mut rest = bytes;
    while !rest.is_empty() {
        let valid = match std::str::from_utf8(rest) {
            Ok(all) => all,
            Err(e) => std::str::from_utf8(&rest[..e.valid_up_to()]).unwrap_or(""),
        };
        valid.chars().for_each(|c| push(&mut name, Ok(c)));
        rest = &rest[valid.len()..];
        high_before &= valid.is_empty();
        match rest {
            [] => {}
            [0xED, a @ 0xA0..=0xBF, b @ 0x80..=0xBF, behind @ ..] => {
                let unit = 0xD000 | u16::from(a & 0x3F) << 6 | u16::from(b & 0x3F);
                let high = unit < 0xDC00;
                // A pair has another spelling, which is its only one.
                if high_before && !high {
                    return None;
                }
                push(&mut name, Err(unit));
                (high_before, rest) = (high, behind);
            }
            _ => return None,
        }
    }
    Some(Cow::Owned(name))
}

/// The bytes of a name, of which [`name_of_bytes`] makes this name again.
pub fn name_to_bytes(name: &str) -> Cow<'_, [u8]> {
    if is_plain(name) {
        return Cow::Borrowed(name.as_bytes());
    }
    let mut out = Vec::with_capacity(name.len());
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        let Some(unit) = lone(c) else {
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        };
        let low = chars.peek().and_then(|next| lone(*next));
        let pair = low.and_then(|low| char::decode_utf16([unit, low]).next().and_then(Result::ok));
        match pair {
            Some(c) => {
                chars.next();
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
            None => out.extend_from_slice(&[0xED, 0x80 | (unit >> 6) as u8 & 0x3F, 0x80 | unit as u8 & 0x3F]),
        }
    }
    Cow::Owned(out)
}

/// Nothing in it is of the private range.
fn is_plain(name: &str) -> bool {
    !name.as_bytes().contains(&LEAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(units: &[u16]) -> String {
        let bytes: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let name = name_of_utf16(&bytes).unwrap();
        let mut back = Vec::new();
        put_name_units(&mut back, &name);
        assert_eq!(back, bytes, "{units:x?}");
        assert_eq!(name_units(&name), units.len(), "{units:x?}");
        let on_disk = name_to_bytes(&name).into_owned();
        assert_eq!(name_of_bytes(&on_disk).as_deref(), Some(&*name), "{units:x?}");
        assert!(String::from_utf16(units).is_ok() == std::str::from_utf8(&on_disk).is_ok(), "{units:x?}");
        name
    }

    #[test]
    fn each_sequence_of_units_is_a_name_of_its_own() {
        // The last three are the borders of the private range as characters: their pairs.
        let parts: [&[u16]; 11] = [
            &[0x41],
            &[0xE4],
            &[0xD7FF],
            &[0xD800],
            &[0xDBFF],
            &[0xDC00],
            &[0xDFFF],
            &[0xD83D, 0xDE00],
            &[0xDBF6, 0xDC00],
            &[0xDBF7, 0xDFFF],
            &[0xDBF8, 0xDC00],
        ];
        let mut all = std::collections::HashMap::new();
        for a in parts {
            for b in parts {
                for c in parts {
                    let units = [a, b, c].concat();
                    let name = round(&units);
                    assert_eq!(*all.entry(name).or_insert_with(|| units.clone()), units);
                }
            }
        }
        assert!(all.len() > 1000);
        assert!(name_of_utf16(&[0x41]).is_err());
    }

    #[test]
    fn bytes_that_are_no_name() {
        // A pair as two surrogates, a surrogate cut short, Latin-1, a character in more bytes than it takes.
        for bytes in [&b"\xED\xA0\x80\xED\xB0\x80"[..], b"a\xED\xA0", b"\xE4", b"\xC0\xAF", b"\xED\xA0\x80\xFF"] {
            assert_eq!(name_of_bytes(bytes), None, "{bytes:x?}");
        }
        assert_eq!(name_of_bytes(b"\xED\xB0\x80\xED\xA0\x80").map(|name| name_units(&name)), Some(2));
        assert_eq!(name_of_bytes(b"\xED\xA0\x80a\xED\xB0\x80").map(|name| name_units(&name)), Some(3));
        assert_eq!(name_of_bytes(b"\xED\x9F\xBFb").as_deref(), Some("\u{D7FF}b"));
    }
}
