//! FSCTL_REFS_STREAM_SNAPSHOT_MANAGEMENT, [MS-FSCC] 2.3.65 and 2.3.66: its buffers, and which of them [MS-FSA] 2.1.5.10.29
//! refuses before it looks at the open. Fields lie as the C structures have them, with gaps before fields of 8 bytes, which the
//! tables of [MS-FSCC] leave out.

use crate::{
    FileTime, NtStatus,
    cursor::{Put, Reader},
    names::{name_units, put_name_units},
};

/// REFS_STREAM_SNAPSHOT_MANAGEMENT_INPUT_BUFFER up to its name.
const HEADER_BYTES: usize = 24;
/// REFS_STREAM_SNAPSHOT_QUERY_DELTAS_INPUT_BUFFER.
const DELTAS_INPUT_BYTES: usize = 16;
/// REFS_STREAM_SNAPSHOT_LIST_OUTPUT_BUFFER and REFS_STREAM_SNAPSHOT_QUERY_DELTAS_OUTPUT_BUFFER without entries.
const OUTPUT_BYTES: usize = 16;
/// REFS_STREAM_SNAPSHOT_LIST_OUTPUT_BUFFER_ENTRY without its name.
const ENTRY_BYTES: usize = 48;
/// REFS_STREAM_EXTENT.
const EXTENT_BYTES: usize = 32;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    List,
    /// From this cluster of the stream on.
    QueryDeltas {
        from: i64,
        flags: u32,
    },
    Revert,
    SetShadow,
    ClearShadow,
}

/// A request that passed the checks on its buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    pub operation: Operation,
    /// In UTF-16; whether it is valid is not known.
    pub name: &'a [u8],
}

impl<'a> Request<'a> {
    /// In the order of [MS-FSA] 2.1.5.10.29. `output_max`: bytes of the output buffer.
    ///
    /// # Errors
    /// BUFFER_TOO_SMALL when the input is shorter than it says, INVALID_PARAMETER for what does not fit the operation.
    pub fn parse(input: &'a [u8], output_max: usize) -> Result<Request<'a>, NtStatus> {
        let short = |_| NtStatus::BUFFER_TOO_SMALL;
        let mut r = Reader::new(input);
        let operation = r.u32().map_err(short)?;
        let name_len = usize::from(r.u16().map_err(short)?);
        let more_len = usize::from(r.u16().map_err(short)?);
        r.skip(16).map_err(short)?;
        let more_at = if more_len == 0 { name_len } else { name_len.next_multiple_of(8) };
        let rest = r.rest();
        let (Some(name), Some(more)) = (rest.get(..name_len), rest.get(more_at..more_at + more_len)) else {
            return Err(NtStatus::BUFFER_TOO_SMALL);
        };
        let valid = |holds: bool| if holds { Ok(()) } else { Err(NtStatus::INVALID_PARAMETER) };
        valid((1..=6).contains(&operation))?;
        valid(name_len % 2 == 0 && more_len % 2 == 0)?;
        valid(name_len > 0 || operation > 3)?;
        let operation = match operation {
            1 => {
                valid(more_len == 0 && output_max == 0)?;
                Operation::Create
            }
            2 => {
                valid(more_len == 0 && output_max >= OUTPUT_BYTES)?;
                Operation::List
            }
            3 => {
                valid(more_len == DELTAS_INPUT_BYTES && output_max >= OUTPUT_BYTES)?;
                let mut r = Reader::new(more);
                Operation::QueryDeltas { from: r.u64().map_err(short)? as i64, flags: r.u32().map_err(short)? }
            }
            4 => Operation::Revert,
            5 => Operation::SetShadow,
            _ => Operation::ClearShadow,
        };
        Ok(Request { operation, name })
    }

    /// The input buffer, with padding before what follows the name.
    pub fn encode(operation: Operation, name: &str) -> Vec<u8> {
        let number = match operation {
            Operation::Create => 1,
            Operation::List => 2,
            Operation::QueryDeltas { .. } => 3,
            Operation::Revert => 4,
            Operation::SetShadow => 5,
            Operation::ClearShadow => 6,
        };
        let deltas = matches!(operation, Operation::QueryDeltas { .. });
        let mut out = Vec::with_capacity(HEADER_BYTES + 2 * name.len());
        out.put_u32(number);
        out.put_u16(2 * name_units(name) as u16);
        out.put_u16(if deltas { DELTAS_INPUT_BYTES as u16 } else { 0 });
        out.put_zeros(16);
        put_name_units(&mut out, name);
        if let Operation::QueryDeltas { from, flags } = operation {
            out.resize(out.len().next_multiple_of(8), 0);
            out.put_u64(from as u64);
            out.put_u32(flags);
            out.put_u32(0);
        }
        out
    }
}

/// REFS_STREAM_SNAPSHOT_LIST_OUTPUT_BUFFER in the making, [MS-FSA] 2.1.5.10.29.2: what does not fit is counted.
pub struct List {
    out: Vec<u8>,
    max: usize,
    entries: u32,
    required: usize,
    last: Option<usize>,
}

impl List {
    pub fn new(output_max: usize) -> List {
        List { out: vec![0; OUTPUT_BYTES], max: output_max, entries: 0, required: OUTPUT_BYTES, last: None }
    }

    /// Sizes in bytes.
    pub fn add(&mut self, name: &str, created: FileTime, size: u64, allocation: u64) {
        let name_len = 2 * name_units(name);
        let entry_len = (ENTRY_BYTES + name_len).next_multiple_of(8);
        self.required += entry_len;
        if self.required > self.max {
            return;
        }
        let at = self.out.len();
        if let Some(last) = self.last.replace(at) {
            self.out.patch_u32(last, (at - last) as u32);
        }
        self.out.put_u32(0);
        self.out.put_u16(name_len as u16);
        self.out.put_u16(0);
        for n in [created.0, size, allocation, 0, 0] {
            self.out.put_u64(n);
        }
        put_name_units(&mut self.out, name);
        self.out.resize(at + entry_len, 0);
        self.entries += 1;
    }

    /// BUFFER_OVERFLOW where something was left out.
    pub fn finish(mut self) -> (NtStatus, Vec<u8>) {
        self.out.patch_u32(0, self.entries);
        self.out.patch_u32(4, self.required as u32);
        let status = if self.required > self.max { NtStatus::BUFFER_OVERFLOW } else { NtStatus::SUCCESS };
        (status, self.out)
    }
}

/// REFS_STREAM_EXTENT_PROPERTIES, [MS-FSCC] 2.3.66.2.1.
pub mod property {
    pub const SPARSE: u32 = 0x8;
    pub const VALID: u32 = 0x10;
    pub const STREAM_RESERVED: u32 = 0x20;
}

/// Extents that fit in an output buffer of so many bytes.
pub fn extents_max(output_max: usize) -> usize {
    output_max.saturating_sub(OUTPUT_BYTES) / EXTENT_BYTES
}

/// REFS_STREAM_SNAPSHOT_QUERY_DELTAS_OUTPUT_BUFFER: Vcn, Lcn (-1 for none), Length and Properties of each extent.
pub fn encode_deltas(extents: &[(u64, i64, u64, u32)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(OUTPUT_BYTES + extents.len() * EXTENT_BYTES);
    out.put_u32(extents.len() as u32);
    out.put_zeros(OUTPUT_BYTES - 4);
    for (vcn, lcn, length, properties) in extents {
        out.put_u64(*vcn);
        out.put_u64(*lcn as u64);
        out.put_u64(*length);
        out.put_u32(*properties);
        out.put_u32(0);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_are_written() {
        let all = [
            (Operation::Create, 0),
            (Operation::List, 16),
            (Operation::QueryDeltas { from: -7, flags: 3 }, 16),
            (Operation::Revert, 0),
            (Operation::SetShadow, 0),
            (Operation::ClearShadow, 0),
        ];
        for (operation, output_max) in all {
            for name in ["a", "four", "fiver"] {
                let input = Request::encode(operation, name);
                let request = Request::parse(&input, output_max).unwrap();
                let units: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
                assert_eq!((request.operation, request.name), (operation, &units[..]));
                for len in 0..input.len() {
                    assert_eq!(Request::parse(&input[..len], output_max), Err(NtStatus::BUFFER_TOO_SMALL), "{len}");
                }
            }
        }
    }

    #[test]
    fn a_list_counts_what_does_not_fit() {
        let entries = |max| {
            let mut list = List::new(max);
            list.add("a", FileTime(1), 2, 3);
            list.add("long", FileTime(4), 5, 6);
            list.finish()
        };
        let (status, all) = entries(16 + 2 * 56);
        assert_eq!((status, all.len(), &all[..8]), (NtStatus::SUCCESS, 128, &[2, 0, 0, 0, 128, 0, 0, 0][..]));
        assert_eq!((&all[16..20], &all[72..76]), (&[56, 0, 0, 0][..], &[0; 4][..]), "NextEntryOffset");
        let (status, one) = entries(127);
        assert_eq!((status, one.len(), &one[..8]), (NtStatus::BUFFER_OVERFLOW, 72, &[1, 0, 0, 0, 128, 0, 0, 0][..]));
        assert_eq!(one[16..20], [0; 4], "the last one that is there");
        assert_eq!((entries(16).0, entries(16).1.len()), (NtStatus::BUFFER_OVERFLOW, 16));
        assert_eq!((extents_max(15), extents_max(47), extents_max(48)), (0, 0, 1));
    }
}
