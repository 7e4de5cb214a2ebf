//! What a file system tells of itself and of where a file lies: FSCTL_GET_NTFS_VOLUME_DATA and FSCTL_GET_REFS_VOLUME_DATA,
//! FSCTL_GET_RETRIEVAL_POINTERS and its count, and FSCTL_QUERY_FILE_REGIONS. A volume has what administrators of either file
//! system look for, so it answers both; a directory has no clusters of its own, and answers INVALID_DEVICE_REQUEST.

use std::sync::Arc;

use arden_store::{store::ClusterRun, table::Open};
use arden_wire::{
    NtStatus,
    cursor::{Put, Reader},
    fscc::fsctl,
    smb2::io::IoctlRequest,
};

use crate::handlers::request::Fail;

type Output = Result<(NtStatus, Vec<u8>), Fail>;

/// NTFS_VOLUME_DATA_BUFFER, [MS-FSCC] 2.3.22.
const NTFS_VOLUME_DATA_BYTES: u32 = 96;
/// REFS_VOLUME_DATA_BUFFER, [MS-FSCC] 2.3.24.
const REFS_VOLUME_DATA_BYTES: u32 = 152;
/// RETRIEVAL_POINTERS_BUFFER before its extents, [MS-FSCC] 2.3.32, and one of them.
const POINTERS_HEADER_BYTES: usize = 16;
const POINTER_BYTES: usize = 16;
/// FILE_REGION_OUTPUT before its regions, [MS-FSCC] 2.3.56, and one of them.
const REGIONS_HEADER_BYTES: usize = 16;
const REGION_BYTES: usize = 24;
/// FILE_REGION_INPUT, [MS-FSCC] 2.3.55.
const REGION_INPUT_BYTES: usize = 24;
/// Runs that one answer has at most, and that a count looks at at one time.
const RUNS_PART: usize = 16_384;
/// A file that lies in more runs is answered INSUFFICIENT_RESOURCES when it is counted.
const RUNS_COUNTED_MAX: usize = 1 << 20;

fn too_small(ioctl: &IoctlRequest<'_>, bytes: usize) -> Result<(), Fail> {
    if (ioctl.max_output_response as usize) < bytes { Err(NtStatus::BUFFER_TOO_SMALL.into()) } else { Ok(()) }
}

/// [MS-FSA] 2.1.5.10.11 and 2.1.5.10.12. Room is what FileFsFullSizeInformation says to the same user.
pub fn volume_data(file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    if !file.fs().store().volume().has_clusters {
        return Err(NtStatus::INVALID_DEVICE_REQUEST.into());
    }
    let refs = ioctl.ctl_code == fsctl::GET_REFS_VOLUME_DATA;
    let bytes = if refs { REFS_VOLUME_DATA_BYTES } else { NTFS_VOLUME_DATA_BYTES };
    too_small(ioctl, bytes as usize)?;
    let room = file.fs().space(file)?;
    let cluster = u64::from(room.sector_bytes) * u64::from(room.sectors_per_unit);
    let mut out = Vec::with_capacity(bytes as usize);
    if refs {
        out.put_u32(bytes);
        // The version of ReFS whose structures these are.
        out.put_u32(3);
        out.put_u32(4);
        out.put_u32(cluster as u32);
    }
    out.put_u64(file.node().id().volume);
    out.put_u64(room.total_bytes / u64::from(room.sector_bytes));
    out.put_u64(room.total_bytes / cluster);
    out.put_u64(room.free_bytes / cluster);
    // TotalReserved: what is kept back is not among the free clusters.
    out.put_u64(0);
    out.put_u32(room.sector_bytes);
    out.put_u32(cluster as u32);
    if !refs {
        // A file's record lies in nodes of one cluster. They are where the tree puts them: there is no table of files, no
        // mirror of it, and no zone kept for it.
        out.put_u32(cluster as u32);
        out.put_u32(1);
    }
    out.resize(bytes as usize, 0);
    Ok((NtStatus::SUCCESS, out))
}

/// Input and checks that both requests about retrieval pointers have in common.
fn starting_cluster(ioctl: &IoctlRequest<'_>, output_bytes: usize) -> Result<u64, Fail> {
    let from = Reader::new(ioctl.input).u64()?;
    too_small(ioctl, output_bytes)?;
    if from > i64::MAX as u64 { Err(NtStatus::INVALID_PARAMETER.into()) } else { Ok(from) }
}

/// [MS-FSA] 2.1.5.10.15. The first run begins with the cluster that was asked for.
pub fn retrieval_pointers(file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    let from = starting_cluster(ioctl, POINTERS_HEADER_BYTES + POINTER_BYTES)?;
    let room = ((ioctl.max_output_response as usize - POINTERS_HEADER_BYTES) / POINTER_BYTES).min(RUNS_PART);
    let runs = file.fs().cluster_runs(file, from, room + 1)?;
    let mut out = Vec::with_capacity(POINTERS_HEADER_BYTES + runs.len().min(room) * POINTER_BYTES);
    out.put_u32(runs.len().min(room) as u32);
    out.put_u32(0);
    out.put_u64(from);
    for ClusterRun { next, at } in runs.iter().take(room) {
        out.put_u64(*next);
        out.put_u64(at.unwrap_or(u64::MAX));
    }
    let status = if runs.len() > room { NtStatus::BUFFER_OVERFLOW } else { NtStatus::SUCCESS };
    Ok((status, out))
}

/// [MS-FSA] 2.1.5.10.17.
pub fn retrieval_pointer_count(file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    let mut from = starting_cluster(ioctl, 4)?;
    let mut count = 0usize;
    loop {
        // One more than is counted: how it goes on tells whether the last one is whole.
        let runs = file.fs().cluster_runs(file, from, RUNS_PART + 1)?;
        if runs.len() <= RUNS_PART {
            return Ok((NtStatus::SUCCESS, ((count + runs.len()) as u32).to_le_bytes().to_vec()));
        }
        count += RUNS_PART;
        from = runs[RUNS_PART - 1].next;
        if count >= RUNS_COUNTED_MAX {
            return Err(NtStatus::INSUFFICIENT_RESOURCES.into());
        }
    }
}

/// [MS-FSA] 2.1.5.10.24: which part of a range is valid data, and which would read as zeros that nobody wrote.
pub fn file_regions(file: &Arc<Open>, ioctl: &IoctlRequest<'_>) -> Output {
    const VALID_CACHED_DATA: u32 = 1;
    const VALID_NONCACHED_DATA: u32 = 2;
    let (offset, len, usage) = match ioctl.input.len() {
        0 => (0, i64::MAX as u64, VALID_CACHED_DATA),
        n if n < REGION_INPUT_BYTES => return Err(NtStatus::BUFFER_TOO_SMALL.into()),
        _ => {
            let mut r = Reader::new(ioctl.input);
            (r.u64()?, r.u64()?, r.u32()?)
        }
    };
    let known = matches!(usage, VALID_CACHED_DATA | VALID_NONCACHED_DATA);
    if file.is_directory() || !known || len == 0 || offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    too_small(ioctl, REGIONS_HEADER_BYTES + REGION_BYTES)?;
    let (valid, eof) = file.fs().valid_data(file)?;
    if offset > eof || offset == eof && eof > 0 {
        return Ok((NtStatus::SUCCESS, Vec::new()));
    }
    let end = (offset + len).min(eof);
    let split = valid.clamp(offset, end);
    let mut regions = Vec::new();
    if split > offset {
        regions.push((offset, split - offset, usage));
    }
    if split < end || regions.is_empty() {
        regions.push((split, end - split, 0));
    }
    let room = (ioctl.max_output_response as usize - REGIONS_HEADER_BYTES) / REGION_BYTES;
    let mut out = Vec::with_capacity(REGIONS_HEADER_BYTES + regions.len() * REGION_BYTES);
    out.put_u32(0);
    out.put_u32(regions.len() as u32);
    out.put_u32(regions.len().min(room) as u32);
    out.put_u32(0);
    for (at, len, usage) in regions.iter().take(room) {
        out.put_u64(*at);
        out.put_u64(*len);
        out.put_u32(*usage);
        out.put_u32(0);
    }
    let status = if regions.len() > room { NtStatus::BUFFER_OVERFLOW } else { NtStatus::SUCCESS };
    Ok((status, out))
}
