//! The value of `security.NTACL`: Samba's xattr_NTACL, NDR little-endian. Reads versions 1 to 4; the hashes of the
//! POSIX ACL in 2 to 4 are not checked, because Arden decides by the NT descriptor alone. Writes version 1, the bare
//! descriptor, which Samba takes as it is, without comparing hashes.

use arden_wire::{Malformed, cursor::Put, cursor::Reader, dtyp::SecurityDescriptor};

const HASH_BYTES: usize = 64;
/// Longer values are not read; an ACL has at most 64 KiB.
pub const VALUE_BYTES_MAX: usize = 65_536;

pub fn parse(value: &[u8]) -> Result<SecurityDescriptor, Malformed> {
    let mut r = Reader::new(value);
    let version = r.u16()?;
    if r.u16()? != version {
        return Err(Malformed("NTACL union switch"));
    }
    if r.u32()? == 0 {
        return Err(Malformed("NTACL without content"));
    }
    if version > 1 {
        // The structure that holds the descriptor's pointer; the descriptor itself is deferred behind it.
        if r.u32()? == 0 {
            return Err(Malformed("NTACL without descriptor"));
        }
        match version {
            2 => r.skip(16)?,
            3 => r.skip(2 + HASH_BYTES)?,
            4 => {
                r.skip(2 + HASH_BYTES)?;
                while r.u8()? != 0 {}
                align(&mut r, 4)?;
                r.skip(8 + HASH_BYTES)?;
            }
            _ => return Err(Malformed("NTACL version")),
        }
        align(&mut r, 4)?;
    }
    let base = r.position() as u32;
    let mut sd = r.rest().to_vec();
    shift_offsets(&mut sd, |offset| offset.checked_sub(base))?;
    SecurityDescriptor::parse(&sd)
}

/// The offsets in NDR's form count from the start of the whole value, not from the descriptor.
fn shift_offsets(sd: &mut [u8], shift: impl Fn(u32) -> Option<u32>) -> Result<(), Malformed> {
    for at in [4, 8, 12, 16] {
        let field = sd.get_mut(at..at + 4).ok_or(Malformed("truncated"))?;
        let mut offset = [0; 4];
        offset.copy_from_slice(field);
        let offset = u32::from_le_bytes(offset);
        if offset != 0 {
            let moved = shift(offset).ok_or(Malformed("offset before the security descriptor"))?;
            field.copy_from_slice(&moved.to_le_bytes());
        }
    }
    Ok(())
}

fn align(r: &mut Reader<'_>, n: usize) -> Result<(), Malformed> {
    let over = r.position() % n;
    if over == 0 { Ok(()) } else { r.skip(n - over) }
}

const V1_HEADER_BYTES: usize = 8;

/// Version 1.
pub fn encode(sd: &SecurityDescriptor) -> Vec<u8> {
    let mut bytes = sd.encode();
    // A descriptor that was just encoded has its header.
    let _ = shift_offsets(&mut bytes, |offset| offset.checked_add(V1_HEADER_BYTES as u32));
    let mut out = Vec::with_capacity(V1_HEADER_BYTES + bytes.len());
    out.put_u16(1);
    out.put_u16(1);
    out.put_u32(0x0002_0000);
    out.extend_from_slice(&bytes);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Samba 4.17 wrote it.
    const V4: &str = "0400040000000200040002000100a4baa481a96d5004e46a40a1e78420420e862b6256f515cd74b56863f3ef43fa00000000000000000\
        00000000000000000000000000000000000000000000000706f7369785f61636c007668c82e2779dd015dd2b193e43b4dc35157ee98c7526c731dd3e007cf\
        250e67358da2c7ca90748e000000000000000000000000000000000000000000000000000000000000000001000480b4000000d000000000000000ec00000\
        0010500000000000515000000dff6a002b2df8567f8bbd1b7e8030000010500000000000515000000dff6a002b2df8567f8bbd1b70102000002008800040\
        0000000001400a90012000101000000000001000000000000 2400a9001200010500000000000515000000dff6a002b2df8567f8bbd1b701020000000024\
        00ff011f00010500000000000515000000dff6a002b2df8567f8bbd1b7e803000000002400a900120001050000000000051500000001000000020000000\
        30000005c110000";

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter_map(|b| (b as char).to_digit(16)).map(|d| d as u8).collect();
        digits.chunks_exact(2).map(|c| c[0] << 4 | c[1]).collect()
    }

    #[test]
    fn version_4_as_samba_wrote_it() {
        let sd = parse(&hex(V4)).unwrap();
        assert_eq!(sd.owner.as_ref().unwrap().to_string(), "S-1-5-21-44103391-1736826802-3083975672-1000");
        let aces = &sd.dacl.as_ref().unwrap().aces;
        assert_eq!(aces.len(), 4);
        assert_eq!((aces[3].sid.to_string().as_str(), aces[3].mask), ("S-1-5-21-1-2-3-4444", 0x1200a9));
        assert_eq!(parse(&encode(&sd)), Ok(sd));
    }

    #[test]
    fn older_versions_hold_the_same() {
        let sd = parse(&hex(V4)).unwrap();
        for (version, between) in [(2u16, 16usize), (3, 2 + HASH_BYTES)] {
            let mut value = Vec::new();
            value.put_u16(version);
            value.put_u16(version);
            value.put_u32(0x20000);
            value.put_u32(0x20004);
            value.put_zeros(between);
            value.pad_to(0, 4);
            let base = value.len() as u32;
            let mut bytes = sd.encode();
            shift_offsets(&mut bytes, |o| Some(o + base)).unwrap();
            value.extend_from_slice(&bytes);
            assert_eq!(parse(&value), Ok(sd.clone()), "version {version}");
        }
    }

    #[test]
    fn damaged_values_are_errors() {
        let good = hex(V4);
        for n in 0..good.len() - 1 {
            assert!(parse(&good[..n]).is_err(), "{n}");
        }
        for i in 0..good.len() {
            let mut bad = good.clone();
            bad[i] ^= 0xff;
            let _ = parse(&bad);
        }
        assert!(parse(&[9, 0, 9, 0, 1, 0, 0, 0]).is_err());
    }
}
