//! FSCTL_REFS_STREAM_SNAPSHOT_MANAGEMENT, [MS-FSA] 2.1.5.10.29: the conditions on its buffers come first, in their order, then
//! access, then names.

use std::sync::Arc;

use arden_store::{
    fs,
    name::{PATTERN_UNITS_MAX, Pattern},
    store::{DeltaPlace, StreamDelta},
    table::Open,
};
use arden_wire::{
    NtStatus,
    fscc::FILE_SUPPORTS_STREAM_SNAPSHOTS,
    names::{name_of_utf16, name_units},
    smb2::io::IoctlRequest,
    stream_snapshot::{self, List, Operation, encode_deltas, extents_max, property},
};

use super::Output;
use crate::handlers::request::Request;

/// More are not asked of the store for one answer.
const EXTENTS_MAX: usize = 1 << 16;

pub fn manage(request: &Request<'_>, file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    let fs = file.fs();
    if fs.store().volume().capabilities & FILE_SUPPORTS_STREAM_SNAPSHOTS == 0 {
        return Err(NtStatus::INVALID_DEVICE_REQUEST.into());
    }
    let output_max = ioctl.max_output_response as usize;
    let asked = stream_snapshot::Request::parse(ioctl.input, output_max)?;
    // One that is no text is the empty one, which no snapshot has.
    let name = name_of_utf16(asked.name).unwrap_or_default();
    match asked.operation {
        Operation::Create => fs.create_stream_snapshot(request.scope, file, &name)?,
        Operation::List => return list(file, &name, output_max),
        Operation::QueryDeltas { from, flags } => return deltas(file, &name, (from, flags), output_max),
        Operation::Revert => fs.revert_stream(file, &name, request.cause())?,
        // As Windows has it, <127> and <128>.
        Operation::SetShadow | Operation::ClearShadow => {
            file.check(fs::Operation::CreateStreamSnapshot)?;
            return Err(NtStatus::NOT_IMPLEMENTED.into());
        }
    }
    Ok((NtStatus::SUCCESS, Vec::new()))
}

/// 2.1.5.10.29.2.
fn list(file: &Arc<Open>, pattern: &str, output_max: usize) -> Output {
    let all = file.fs().stream_snapshots(file)?;
    if pattern.is_empty() || name_units(pattern) > PATTERN_UNITS_MAX {
        return Err(NtStatus::OBJECT_NAME_INVALID.into());
    }
    let pattern = Pattern::new(pattern);
    let mut list = List::new(output_max);
    for s in all.iter().filter(|s| pattern.matches(&s.name)) {
        list.add(&s.name, s.created, s.size, s.allocation);
    }
    Ok(list.finish())
}

/// 2.1.5.10.29.3.
fn deltas(file: &Arc<Open>, name: &str, (from, flags): (i64, u32), output_max: usize) -> Output {
    file.check(fs::Operation::ListStreamSnapshots)?;
    let Some(from) = u64::try_from(from).ok().filter(|_| flags == 0) else {
        return Err(NtStatus::INVALID_PARAMETER.into());
    };
    let max = extents_max(output_max).min(EXTENTS_MAX);
    let found = file.fs().stream_deltas(file, name, from, max)?;
    let extent = |d: &StreamDelta| match d.place {
        DeltaPlace::At(cluster) => (d.from, cluster as i64, d.blocks, property::VALID),
        DeltaPlace::Unplaced => (d.from, -1, d.blocks, property::STREAM_RESERVED),
        DeltaPlace::Hole => (d.from, -1, d.blocks, property::SPARSE),
    };
    let extents: Vec<_> = found.iter().take(max).map(extent).collect();
    let status = if found.len() > max { NtStatus::BUFFER_OVERFLOW } else { NtStatus::SUCCESS };
    Ok((status, encode_deltas(&extents)))
}
