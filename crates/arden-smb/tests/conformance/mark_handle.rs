//! FSCTL_MARK_HANDLE, [MS-FSA] 2.1.5.10.19: the order of its checks, on a volume that keeps one copy of its data.
//!
//! `BVT_FsCtl_MarkHandle_File_IsSupported`, `FsCtl_MarkHandle_*`

use crate::client::*;
use crate::quotas::{client, lab};

const READ_COPY: u32 = 0x80;
const NOT_READ_COPY: u32 = 0x100;

fn info(copy: u32, flags: u32) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u32(copy);
    out.put_u32(0);
    out.put_u64(0);
    out.put_u32(flags);
    out.put_u32(0);
    out
}

fn mark(c: &mut Client, id: FileId, copy: u32, flags: u32) -> Result<Vec<u8>, NtStatus> {
    c.try_fsctl(id, fsctl::MARK_HANDLE, &info(copy, flags), 0)
}

#[test]
fn the_copy_of_a_volume_without_redundancy_cannot_be_chosen() {
    let (lab, _volume) = lab();
    let mut c = client(&lab, USER);
    let f = c.open(want("file").options(OPT_NO_INTERMEDIATE_BUFFERING));
    c.write(f.id, 0, b"content");
    assert_eq!(c.try_fsctl(f.id, fsctl::MARK_HANDLE, &info(0, READ_COPY)[..23], 0), Err(NtStatus::BUFFER_TOO_SMALL));
    for flags in [0, READ_COPY | NOT_READ_COPY, 1, READ_COPY | 1] {
        assert_eq!(mark(&mut c, f.id, 0, flags), Err(NtStatus::INVALID_PARAMETER), "{flags:#x}");
    }
    assert_eq!(mark(&mut c, f.id, 1, READ_COPY), Err(NtStatus::INVALID_PARAMETER), "there is one copy, of number 0");
    assert_eq!(mark(&mut c, f.id, 0, READ_COPY), Err(NtStatus::NOT_REDUNDANT_STORAGE));
    assert_eq!(mark(&mut c, f.id, 0, NOT_READ_COPY), Ok(Vec::new()));
    assert_eq!(c.read(f.id, 0, 7), b"content");
}

#[test]
fn opens_that_do_not_bypass_caches_and_directories_are_refused() {
    let (lab, _volume) = lab();
    let mut c = client(&lab, USER);
    let f = c.open(want("file"));
    for flags in [READ_COPY, NOT_READ_COPY] {
        assert_eq!(mark(&mut c, f.id, 0, flags), Err(NtStatus::INVALID_PARAMETER));
    }
    let d = c.open(want("directory").options(OPT_DIRECTORY_FILE));
    assert_eq!(mark(&mut c, d.id, 0, READ_COPY), Err(NtStatus::DIRECTORY_NOT_SUPPORTED));
}
