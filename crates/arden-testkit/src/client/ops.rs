//! Structures that requests carry, [MS-FSCC] and [MS-SMB2].

use arden_wire::cursor::Put;

/// FileBasicInformation.
pub fn basic(creation: u64, access: u64, write: u64, change: u64, attributes: u32) -> Vec<u8> {
    let mut b = Vec::new();
    for t in [creation, access, write, change] {
        b.put_u64(t);
    }
    b.put_u32(attributes);
    b.put_u32(0);
    b
}

/// FILE_FULL_EA_INFORMATION, a list.
pub fn eas(list: &[(&str, &[u8])]) -> Vec<u8> {
    let mut b = Vec::new();
    for (i, (name, value)) in list.iter().enumerate() {
        let at = b.len();
        b.put_u32(0);
        b.put_u8(0);
        b.put_u8(name.len() as u8);
        b.put_u16(value.len() as u16);
        b.extend_from_slice(name.as_bytes());
        b.put_u8(0);
        b.extend_from_slice(value);
        if i + 1 < list.len() {
            b.pad_to(at, 4);
            let len = (b.len() - at) as u32;
            b.patch_u32(at, len);
        }
    }
    b
}

/// FSCTL_VALIDATE_NEGOTIATE_INFO's input.
pub fn validate(capabilities: u32, guid: u128, mode: u16, dialects: &[u16]) -> Vec<u8> {
    let mut b = Vec::new();
    b.put_u32(capabilities);
    b.put_u128(guid);
    b.put_u16(mode);
    b.put_u16(dialects.len() as u16);
    dialects.iter().for_each(|d| b.put_u16(*d));
    b
}

/// SRV_COPYCHUNK_COPY: source offset, target offset, length.
pub fn copy_chunks(key: &[u8], chunks: &[(u64, u64, u32)]) -> Vec<u8> {
    let mut b = key[..24].to_vec();
    b.put_u32(chunks.len() as u32);
    b.put_u32(0);
    for (from, to, len) in chunks {
        b.put_u64(*from);
        b.put_u64(*to);
        b.put_u32(*len);
        b.put_u32(0);
    }
    b
}

/// Two 64-bit numbers: FILE_ZERO_DATA_INFORMATION, FILE_ALLOCATED_RANGE_BUFFER.
pub fn pair(a: u64, b: u64) -> Vec<u8> {
    [a.to_le_bytes(), b.to_le_bytes()].concat()
}

/// NETWORK_RESILIENCY_REQUEST.
pub fn resiliency(timeout_ms: u32) -> Vec<u8> {
    [timeout_ms.to_le_bytes(), [0; 4]].concat()
}

/// Actions and names of a CHANGE_NOTIFY answer.
pub fn changes(data: &[u8]) -> Vec<(u32, String)> {
    let mut out = Vec::new();
    let mut at = 0;
    loop {
        let next = super::le_u32(data, at) as usize;
        let len = super::le_u32(data, at + 8) as usize;
        let name = arden_wire::names::name_of_utf16(&data[at + 12..at + 12 + len]).unwrap();
        out.push((super::le_u32(data, at + 4), name));
        if next == 0 {
            return out;
        }
        at += next;
    }
}
