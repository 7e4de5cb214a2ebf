//! Reparse points with the tags of other vendors, [MS-FSCC] 2.1.2.3, and with little room, [MS-FSA] 2.1.5.10.14.

use crate::{client::*, snapshots::on_volumes};

/// Of a tag that is not the vendor's own: its high bit is clear.
const THIRD_PARTY: u32 = 0x0000_0BAD;
const OWN: u32 = 0x8000_0BAD;
const GUID: u128 = 0x1122_3344_5566_7788_99AA_BBCC_DDEE_FF00;

/// REPARSE_DATA_BUFFER, or REPARSE_GUID_DATA_BUFFER.
fn buffer(tag: u32, guid: Option<u128>, data: &[u8]) -> Vec<u8> {
    let mut b = Vec::new();
    b.put_u32(tag);
    b.put_u16(data.len() as u16);
    b.put_u16(0);
    guid.into_iter().for_each(|guid| b.put_u128(guid));
    b.extend_from_slice(data);
    b
}

fn on_both(check: impl Fn(&mut Client)) {
    let lab = Lab::new();
    check(&mut lab.client());
    let (_lab, _volumes, mut on_volume) = on_volumes();
    check(&mut on_volume);
}

fn tried(c: &mut Client, id: FileId, code: u32, input: &[u8]) -> NtStatus {
    c.try_fsctl(id, code, input, 0).err().unwrap_or(NtStatus::SUCCESS)
}

#[test]
fn tags_of_other_vendors_keep_their_guid() {
    const SET: u32 = fsctl::SET_REPARSE_POINT;
    const DELETE: u32 = fsctl::DELETE_REPARSE_POINT;
    on_both(|c| {
        for w in [want("file"), want("directory").directory()] {
            let id = c.open(w.clone()).id;
            for wrong in [
                buffer(THIRD_PARTY, None, b"data"),
                // As long as if the GUID counted.
                buffer(THIRD_PARTY, None, &[7; 20]),
                buffer(THIRD_PARTY, Some(0), b"data"),
                buffer(OWN, Some(GUID), b"data"),
                buffer(THIRD_PARTY, Some(GUID), &[7; 16_361]),
            ] {
                assert_eq!(tried(c, id, SET, &wrong), NtStatus::IO_REPARSE_DATA_INVALID, "{:?}", &wrong[..8]);
            }
            for reserved in [0, 1] {
                assert_eq!(tried(c, id, SET, &buffer(reserved, None, b"")), NtStatus::IO_REPARSE_TAG_INVALID);
            }
            let first = buffer(THIRD_PARTY, Some(GUID), b"data");
            assert_eq!(tried(c, id, SET, &first), NtStatus::SUCCESS);
            assert_eq!(c.fsctl(id, fsctl::GET_REPARSE_POINT, &[], 4096), first);
            assert_eq!(le_u32(&c.query(id, file_class::ATTRIBUTE_TAG), 4), THIRD_PARTY);
            c.close(id);
            assert_eq!(c.fails(w.clone().existing()), NtStatus::IO_REPARSE_TAG_NOT_HANDLED);
            let id = c.open(w.existing().options(OPT_OPEN_REPARSE_POINT)).id;
            for code in [SET, DELETE] {
                let data: &[u8] = if code == SET { b"other" } else { b"" };
                let mismatch = NtStatus::IO_REPARSE_TAG_MISMATCH;
                assert_eq!(tried(c, id, code, &buffer(THIRD_PARTY ^ 2, Some(GUID), data)), mismatch);
                assert_eq!(tried(c, id, code, &buffer(OWN, None, data)), mismatch);
                let conflict = NtStatus::REPARSE_ATTRIBUTE_CONFLICT;
                assert_eq!(tried(c, id, code, &buffer(THIRD_PARTY, Some(GUID ^ 1), data)), conflict);
                let invalid = NtStatus::IO_REPARSE_DATA_INVALID;
                assert_eq!(tried(c, id, code, &buffer(THIRD_PARTY, None, data)), invalid);
            }
            assert_eq!(c.fsctl(id, fsctl::GET_REPARSE_POINT, &[], 4096), first);
            let longer = buffer(THIRD_PARTY, Some(GUID), &[7; 2000]);
            assert_eq!(tried(c, id, SET, &longer), NtStatus::SUCCESS);
            assert_eq!(c.fsctl(id, fsctl::GET_REPARSE_POINT, &[], 4096), longer);
            assert_eq!(tried(c, id, DELETE, &buffer(THIRD_PARTY, Some(GUID), b"")), NtStatus::SUCCESS);
            assert_eq!(c.try_fsctl(id, fsctl::GET_REPARSE_POINT, &[], 4096), Err(NtStatus::NOT_A_REPARSE_POINT));
        }
    });
}

#[test]
fn what_fits_is_told_where_the_header_does() {
    on_both(|c| {
        for (name, tag, guid, header) in [("own", OWN, None, 8), ("other", THIRD_PARTY, Some(GUID), 24)] {
            let id = c.open(want(name)).id;
            let all = buffer(tag, guid, b"some data");
            c.fsctl(id, fsctl::SET_REPARSE_POINT, &all, 0);
            let small = c.try_fsctl(id, fsctl::GET_REPARSE_POINT, &[], header - 1).unwrap_err();
            assert_eq!(small, NtStatus::BUFFER_TOO_SMALL, "{name}");
            for room in [header, header + 5, header + 8] {
                let reply = c.call(&ioctl(id, fsctl::GET_REPARSE_POINT, &[], room));
                assert_eq!(reply.status(), NtStatus::BUFFER_OVERFLOW, "{name}");
                assert_eq!(reply.ioctl_output(), &all[..room as usize], "{name}");
            }
            assert_eq!(c.fsctl(id, fsctl::GET_REPARSE_POINT, &[], all.len() as u32), all);
        }
    });
}
