//! The value of `user.DOSATTRIB`: Samba's xattr_DOSATTRIB, NDR little-endian. An empty or hexadecimal string,
//! then a versioned structure. Reads all versions that were ever written (the bare string, 1 to 5), writes 5.

use arden_wire::{FileTime, Malformed, cursor::Put, cursor::Reader};

/// What Arden takes from the attribute: the rest of what old versions hold is known better by the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DosInfo {
    pub attributes: Option<u32>,
    pub creation: Option<FileTime>,
}

const VALID_ATTRIB: u32 = 0x01;
const VALID_CREATE_TIME: u32 = 0x10;
/// The longest value that is worth reading: version 2 carries a file name.
pub const VALUE_BYTES_MAX: usize = 512;

pub fn parse(value: &[u8]) -> Result<DosInfo, Malformed> {
    let nul = value.iter().position(|b| *b == 0);
    let text = &value[..nul.unwrap_or(value.len())];
    let rest_at = nul.map_or(value.len(), |n| n + 1);
    if rest_at >= value.len() {
        return parse_text(text);
    }
    // NDR aligns to the start of the value.
    let mut r = Reader::new(value);
    r.skip(rest_at)?;
    align(&mut r, 2)?;
    let version = r.u16()?;
    align(&mut r, 2)?;
    if r.u16()? != version {
        return Err(Malformed("DOSATTRIB union switch"));
    }
    align(&mut r, 4)?;
    match version {
        1 => {
            let attributes = r.u32()?;
            r.skip(4 + 8 + 8)?;
            Ok(info(VALID_ATTRIB | VALID_CREATE_TIME, attributes, r.u64()?))
        }
        2 => {
            let flags = r.u32()?;
            let _ = flags;
            let attributes = r.u32()?;
            r.skip(4 + 8 + 8)?;
            Ok(info(VALID_ATTRIB | VALID_CREATE_TIME, attributes, r.u64()?))
        }
        3 => {
            let valid = r.u32()?;
            let attributes = r.u32()?;
            r.skip(4 + 8 + 8)?;
            Ok(info(valid, attributes, r.u64()?))
        }
        4 => {
            let valid = r.u32()?;
            let attributes = r.u32()?;
            r.skip(8)?;
            Ok(info(valid, attributes, r.u64()?))
        }
        5 => {
            let valid = r.u32()?;
            let attributes = r.u32()?;
            Ok(info(valid, attributes, r.u64()?))
        }
        _ => Err(Malformed("DOSATTRIB version")),
    }
}

fn info(valid: u32, attributes: u32, creation: u64) -> DosInfo {
    DosInfo {
        attributes: (valid & VALID_ATTRIB != 0).then_some(attributes),
        creation: (valid & VALID_CREATE_TIME != 0 && creation != 0).then_some(FileTime(creation)),
    }
}

/// `0x20`: all that the oldest versions stored.
fn parse_text(text: &[u8]) -> Result<DosInfo, Malformed> {
    let bad = Malformed("DOSATTRIB text");
    let text = std::str::from_utf8(text).map_err(|_| bad)?;
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).ok_or(bad)?;
    if hex.is_empty() || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(bad);
    }
    let attributes = u32::from_str_radix(hex, 16).map_err(|_| bad)?;
    Ok(DosInfo { attributes: Some(attributes), creation: None })
}

fn align(r: &mut Reader<'_>, n: usize) -> Result<(), Malformed> {
    let over = r.position() % n;
    if over == 0 { Ok(()) } else { r.skip(n - over) }
}

/// Version 5.
pub fn encode(info: &DosInfo) -> Vec<u8> {
    let mut valid = 0;
    if info.attributes.is_some() {
        valid |= VALID_ATTRIB;
    }
    if info.creation.is_some() {
        valid |= VALID_CREATE_TIME;
    }
    let mut out = Vec::with_capacity(24);
    out.put_u16(0);
    out.put_u16(5);
    out.put_u16(5);
    out.put_u16(0);
    out.put_u32(valid);
    out.put_u32(info.attributes.unwrap_or(0));
    out.put_u64(info.creation.unwrap_or_default().0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        for info in [
            DosInfo { attributes: Some(0x22), creation: Some(FileTime(133_000_000_000_000_000)) },
            DosInfo { attributes: None, creation: Some(FileTime(1)) },
            DosInfo { attributes: Some(0), creation: None },
        ] {
            assert_eq!(parse(&encode(&info)), Ok(info));
        }
    }

    #[test]
    fn version_5_as_samba_lays_it_out() {
        let value = [0, 0, 5, 0, 5, 0, 0, 0, 0x11, 0, 0, 0, 0x20, 0, 0, 0, 0x80, 0xa1, 0xde, 0x3f, 0x4f, 0x5b, 0xdc, 1];
        let info = parse(&value).unwrap();
        assert_eq!(info.attributes, Some(0x20));
        assert_eq!(encode(&info), value);
    }

    #[test]
    fn old_versions() {
        assert_eq!(parse(b"0x27").unwrap().attributes, Some(0x27));
        assert_eq!(parse(b"0x27\0").unwrap().attributes, Some(0x27));
        let mut v3 = vec![];
        v3.extend_from_slice(b"0x20\0\0");
        v3.put_u16(3);
        v3.put_u16(3);
        v3.pad_to(0, 4);
        v3.put_u32(VALID_ATTRIB | VALID_CREATE_TIME);
        v3.put_u32(0x20);
        v3.put_u32(0);
        v3.put_u64(11);
        v3.put_u64(22);
        v3.put_u64(33);
        v3.put_u64(44);
        assert_eq!(parse(&v3), Ok(DosInfo { attributes: Some(0x20), creation: Some(FileTime(33)) }));
        let mut v4 = vec![0, 0, 4, 0, 4, 0, 0, 0];
        v4.put_u32(0x51);
        v4.put_u32(0x10);
        v4.put_u64(7);
        v4.put_u64(8);
        assert_eq!(parse(&v4), Ok(DosInfo { attributes: Some(0x10), creation: Some(FileTime(8)) }));
    }

    #[test]
    fn hostile_values_are_errors() {
        for bad in [&b""[..], b"0x", b"0xzz", b"x", &[0, 0], &[0, 0, 9, 0, 9, 0, 0, 0, 0], &[0, 0, 5, 0, 5, 0, 0, 0, 1]]
        {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        let good = encode(&DosInfo { attributes: Some(1), creation: Some(FileTime(2)) });
        for n in 0..good.len() {
            let _ = parse(&good[..n]);
        }
    }
}
