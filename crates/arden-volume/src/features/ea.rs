//! Extended attributes, [MS-FSCC] 2.4.16, all of a file in one value: `flags u8, name length u8, value length u16, name,
//! value` each.

use arden_store::error::StoreError;
use arden_store::store::{Ea, Result};
use arden_wire::cursor::{Put, Reader};

use crate::{
    disk::{error::VolResult, keys},
    engine::{txn::Txn, view::View},
};

const NAME_BYTES_MAX: usize = 250;
/// What a client is told of all EAs together has 16 bits of length.
const ALL_BYTES_MAX: usize = 65_535;

/// [MS-FSCC] 2.4.16: ASCII without these. Names that Samba's layout keeps for itself are refused on every store alike.
fn is_valid_name(name: &str) -> bool {
    const RESERVED: [&str; 6] = ["DOSATTRIB", "NTACL", "ArdenObjectId", "SmbReparse", "SAMBA_PAI", "SAMBA_STREAMS"];
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(|b| (0x20..0x7f).contains(&b) && !b"\"*+,/:;<=>?[\\]|".contains(&b))
        && !RESERVED.contains(&name)
        && !name.starts_with("DosStream.")
}

pub fn check(eas: &[Ea]) -> Result<()> {
    for ea in eas {
        if !is_valid_name(&ea.name) {
            return Err(StoreError::InvalidEaName.into());
        }
        if ea.value.len() > usize::from(u16::MAX) {
            return Err(StoreError::EaTooLarge.into());
        }
    }
    Ok(())
}

/// Sets; an empty value deletes. Names match in any case and keep the case that they were first given.
pub fn merge(mut present: Vec<Ea>, new: &[Ea]) -> Vec<Ea> {
    for ea in new {
        let at = present.iter().position(|p| p.name.eq_ignore_ascii_case(&ea.name));
        match (at, ea.value.is_empty()) {
            (Some(i), true) => {
                present.remove(i);
            }
            (Some(i), false) => {
                present[i].value.clone_from(&ea.value);
                present[i].flags = ea.flags;
            }
            (None, true) => {}
            (None, false) => present.push(ea.clone()),
        }
    }
    present
}

pub fn load(view: &dyn View, ino: u64) -> VolResult<Vec<Ea>> {
    let Some(bytes) = view.pieces(keys::EAS, ino)? else { return Ok(Vec::new()) };
    let mut r = Reader::new(&bytes);
    let mut out = Vec::new();
    while r.remaining() > 0 {
        let (flags, name_len, value_len) = (r.u8()?, r.u8()? as usize, r.u16()? as usize);
        let name = String::from_utf8_lossy(r.bytes(name_len)?).into_owned();
        out.push(Ea { name, flags, value: r.bytes(value_len)?.to_vec() });
    }
    Ok(out)
}

fn sum(eas: &[Ea]) -> usize {
    eas.iter().map(|e| 4 + e.name.len() + 1 + e.value.len()).sum()
}

/// What FileEaInformation says of them.
pub fn size(eas: &[Ea]) -> u32 {
    if eas.is_empty() { 0 } else { 4 + sum(eas) as u32 }
}

/// What FileEaInformation says of them afterwards.
pub fn store(t: &mut Txn<'_>, ino: u64, eas: &[Ea]) -> Result<u32> {
    let sum = sum(eas);
    if sum + 4 > ALL_BYTES_MAX {
        return Err(StoreError::EaTooLarge.into());
    }
    if eas.is_empty() {
        t.delete_pieces(keys::EAS, ino)?;
        return Ok(0);
    }
    let mut out = Vec::with_capacity(sum);
    for ea in eas {
        out.put_u8(ea.flags);
        out.put_u8(ea.name.len() as u8);
        out.put_u16(ea.value.len() as u16);
        out.extend_from_slice(ea.name.as_bytes());
        out.extend_from_slice(&ea.value);
    }
    t.put_pieces(keys::EAS, ino, &out)?;
    Ok(size(eas))
}
