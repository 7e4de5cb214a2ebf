//! Timestamps: set, kept, frozen and thawed, [MS-FSA] 2.1.4.17 to 2.1.4.19 and 2.1.5.15.2.

use std::{thread::sleep, time::Duration};

use crate::client::*;

const NAMES: [&str; 4] = ["CreationTime", "LastAccessTime", "LastWriteTime", "ChangeTime"];
const CREATION: usize = 0;
const ACCESS: usize = 1;
const WRITE: usize = 2;
const CHANGE: usize = 3;
const A_TIME: u64 = 0x01D0_0000_0000_0000;

fn times(c: &mut Client, id: FileId) -> [u64; 4] {
    let data = c.query(id, file_class::BASIC);
    [le_u64(&data, 0), le_u64(&data, 8), le_u64(&data, 16), le_u64(&data, 24)]
}

fn set_one(c: &mut Client, id: FileId, which: usize, value: i64) -> NtStatus {
    let mut t = [0; 4];
    t[which] = value as u64;
    c.set(id, file_class::BASIC, &basic(t[0], t[1], t[2], t[3], 0))
}

fn both(check: impl Fn(&mut Client, &str, FileId, bool)) {
    for directory in [false, true] {
        let lab = Lab::new();
        let mut c = lab.client();
        let name = if directory { "dir" } else { "file" };
        let f = if directory { c.open(want(name).directory()) } else { c.open(want(name)) };
        check(&mut c, name, f.id, directory);
    }
}

/// Something that changes its times.
fn touch(c: &mut Client, name: &str, id: FileId, directory: bool) {
    sleep(Duration::from_millis(15));
    if directory {
        c.put(&format!("{name}\\inner"), b"x");
    } else {
        c.write(id, 0, b"more");
        c.read(id, 0, 4);
    }
}

/// `FileInfo_Set_FileBasicInformation_File_LastWriteTime`, `FileInfo_Set_FileBasicInformation_File_CreationTime`,
/// `FileInfo_Set_FileBasicInformation_File_ChangeTime`, `FileInfo_Set_FileBasicInformation_File_LastAccessTime`,
/// `FileInfo_Set_FileBasicInformation_Dir_LastWriteTime`, `FileInfo_Set_FileBasicInformation_Dir_CreationTime`,
/// `FileInfo_Set_FileBasicInformation_Dir_ChangeTime`, `FileInfo_Set_FileBasicInformation_Dir_LastAccessTime`
#[test]
fn file_info_set_file_basic_information() {
    both(|c, _, id, _| {
        for (which, name) in NAMES.iter().enumerate() {
            let value = A_TIME + which as u64 * 10_000_000;
            assert_eq!(set_one(c, id, which, value as i64), NtStatus::SUCCESS);
            assert_eq!(times(c, id)[which], value, "{name}");
        }
    });
}

/// `FileInfo_Set_FileBasicInformation_File_Negative`, `FileInfo_Set_FileBasicInformation_Dir_Negative`
#[test]
fn file_info_set_file_basic_information_negative() {
    both(|c, _, id, directory| {
        assert_eq!(c.set(id, file_class::BASIC, &[0; 35]), NtStatus::INFO_LENGTH_MISMATCH);
        let wrong = if directory { ATTR_TEMPORARY } else { ATTR_DIRECTORY };
        assert_eq!(c.set(id, file_class::BASIC, &basic(0, 0, 0, 0, wrong)), NtStatus::INVALID_PARAMETER);
    });
}

/// `FileInfo_Set_FileBasicInformation_Timestamp_Negative_File_LastAccessTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_Negative_Dir_LastAccessTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_Negative_File_LastWriteTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_Negative_Dir_LastWriteTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_Negative_File_ChangeTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_Negative_Dir_ChangeTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_Negative_File_CreationTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_Negative_Dir_CreationTime`,
/// `FileInfo_Query_FileBasicInformation_File_CreationTime_Negative`,
/// `FileInfo_Query_FileBasicInformation_Dir_CreationTime_Negative`
#[test]
fn file_info_set_file_basic_information_timestamp_negative() {
    both(|c, _, id, _| {
        for (which, name) in NAMES.iter().enumerate() {
            for value in [-3, i64::MIN] {
                assert_eq!(set_one(c, id, which, value), NtStatus::INVALID_PARAMETER, "{name} {value}");
            }
        }
    });
}

/// `FileInfo_Set_FileBasicInformation_Timestamp_Zero_Dir_ChangeTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_Zero_File_ChangeTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_Zero_File_LastWriteTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_Zero_Dir_LastWriteTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_Zero_File_LastAccessTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_Zero_Dir_LastAccessTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_Zero_File_CreationTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_Zero_Dir_CreationTime`,
/// `FileInfo_Query_FileBasicInformation_File_CreationTime_Zero`,
/// `FileInfo_Query_FileBasicInformation_Dir_CreationTime_Zero`
#[test]
fn file_info_set_file_basic_information_timestamp_zero() {
    both(|c, _, id, _| {
        let before = times(c, id);
        for which in 0..4 {
            assert_eq!(set_one(c, id, which, 0), NtStatus::SUCCESS);
        }
        assert_eq!(times(c, id), before);
    });
}

/// `FileInfo_Set_FileBasicInformation_Timestamp_MinusOne_File_ChangeTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_MinusOne_Dir_ChangeTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_MinusOne_File_LastWriteTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_MinusOne_Dir_LastWriteTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_MinusOne_File_LastAccessTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_MinusOne_Dir_LastAccessTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_MinusOne_File_CreationTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_MinusOne_Dir_CreationTime`
#[test]
fn file_info_set_file_basic_information_timestamp_minus_one() {
    for which in [CREATION, ACCESS, WRITE, CHANGE] {
        both(|c, name, id, directory| {
            // The vendor's case writes to a stream of the directory through the handle that is frozen.
            let stream = directory.then(|| c.open(want(&format!("{name}:stream"))).id);
            let before = times(c, id);
            assert_eq!(set_one(c, stream.unwrap_or(id), which, -1), NtStatus::SUCCESS);
            if let Some(stream) = stream {
                sleep(Duration::from_millis(15));
                c.write(stream, 0, b"x");
            } else {
                touch(c, name, id, directory);
            }
            assert_eq!(times(c, id)[which], before[which], "{} of a frozen {name}", NAMES[which]);
        });
    }
}

/// `FileInfo_Set_FileBasicInformation_Timestamp_MinusTwo_File_ChangeTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_MinusTwo_File_LastWriteTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_MinusTwo_File_LastAccessTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_MinusTwo_File_CreationTime`,
/// `FileInfo_Query_FileBasicInformation_File_CreationTime_MinusTwo`
#[test]
fn file_info_set_file_basic_information_timestamp_minus_two_file() {
    for which in [CREATION, ACCESS, WRITE, CHANGE] {
        let lab = Lab::new();
        let mut c = lab.client();
        let f = c.open(want("file"));
        let before = times(&mut c, f.id);
        assert_eq!(set_one(&mut c, f.id, which, -1), NtStatus::SUCCESS);
        touch(&mut c, "file", f.id, false);
        assert_eq!(times(&mut c, f.id)[which], before[which]);
        assert_eq!(set_one(&mut c, f.id, which, -2), NtStatus::SUCCESS);
        touch(&mut c, "file", f.id, false);
        let after = times(&mut c, f.id)[which];
        if which == CREATION {
            assert_eq!(after, before[which]);
        } else {
            assert_ne!(after, before[which], "{} moves again", NAMES[which]);
        }
    }
}

/// `FileInfo_Set_FileBasicInformation_Timestamp_MinusTwo_Dir_ChangeTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_MinusTwo_Dir_LastWriteTime`,
/// `FileInfo_Set_FileBasicInformation_Timestamp_MinusTwo_Dir_CreationTime`,
/// `FileInfo_Query_FileBasicInformation_Dir_CreationTime_MinusTwo`
#[test]
fn file_info_set_file_basic_information_timestamp_minus_two_dir() {
    for which in [CREATION, WRITE, CHANGE] {
        let lab = Lab::new();
        let mut c = lab.client();
        let f = c.open(want("dir").directory());
        let before = times(&mut c, f.id);
        set_one(&mut c, f.id, which, -1);
        set_one(&mut c, f.id, which, -2);
        touch(&mut c, "dir", f.id, true);
        let after = times(&mut c, f.id)[which];
        assert_eq!(after == before[which], which == CREATION, "{}", NAMES[which]);
    }
}

/// `FileInfo_Query_FileBasicInformation_File_CreationTime`, `FileInfo_Query_FileBasicInformation_Dir_CreationTime`
#[test]
fn file_info_query_file_basic_information_creation_time() {
    both(|c, name, id, directory| {
        let before = times(c, id)[CREATION];
        touch(c, name, id, directory);
        assert_eq!(times(c, id)[CREATION], before);
    });
}

/// `Algorithm_NotingFileAccessed_File_LastAccessTime`, `Algorithm_NotingFileAccessed_Dir_LastAccessTime`
#[test]
fn algorithm_noting_file_accessed() {
    both(|c, _, id, directory| {
        let before = times(c, id);
        sleep(Duration::from_millis(15));
        if directory {
            c.list(id, "*");
        } else {
            c.try_read(id, 0, 1).unwrap_err();
        }
        let after = times(c, id);
        assert_eq!(after[CREATION], before[CREATION]);
        assert!(after[ACCESS] >= before[ACCESS]);
        assert_eq!((after[WRITE], after[CHANGE]), (before[WRITE], before[CHANGE]));
    });
}

/// `Algorithm_NotingFileModified_File_LastModificationTime`, `Algorithm_NotingFileModified_File_LastAccessTime`,
/// `Algorithm_NotingFileModified_File_LastChangeTime`, `Algorithm_NotingFileModified_Dir_LastModificationTime`,
/// `Algorithm_NotingFileModified_Dir_LastChangeTime`, `Algorithm_NotingFileModified_Dir_LastAccessTime`
#[test]
fn algorithm_noting_file_modified() {
    both(|c, name, id, directory| {
        let before = times(c, id);
        touch(c, name, id, directory);
        c.close(id);
        let f = c.open(want(name).existing());
        let after = times(c, f.id);
        assert_eq!(after[CREATION], before[CREATION]);
        for which in [ACCESS, WRITE, CHANGE] {
            assert!(after[which] > before[which], "{} of {name}", NAMES[which]);
        }
    });
}

/// `Algorithm_NotingFileModified_File_Archive`
#[test]
fn algorithm_noting_file_modified_file_archive() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    assert_eq!(c.set(f.id, file_class::BASIC, &basic(0, 0, 0, 0, ATTR_NORMAL)), NtStatus::SUCCESS);
    assert_eq!(le_u32(&c.query(f.id, file_class::BASIC), 32), ATTR_NORMAL);
    c.write(f.id, 0, b"x");
    assert_eq!(le_u32(&c.query(f.id, file_class::BASIC), 32) & ATTR_ARCHIVE, ATTR_ARCHIVE);
}

/// `Algorithm_NotingFileModified_Dir_LastAccessTime`: of a volume, by its policy. Directories get no archive attribute.
#[test]
fn algorithm_noting_file_modified_dir_on_a_volume() {
    let (_lab, volumes, mut c) = crate::snapshots::on_volumes();
    volumes[0].set_last_access(arden_volume::LastAccess::Always).unwrap();
    let d = c.open(want("dir").directory().access(FILE_READ_ATTRIBUTES | FILE_WRITE_ATTRIBUTES));
    let attributes = |c: &mut Client| le_u32(&c.query(d.id, file_class::BASIC), 32);
    let changes: [fn(&mut Client); 3] = [
        |c| c.put("dir\\file", b"x"),
        |c| {
            let f = c.open(want("dir\\file").existing());
            assert_eq!(c.rename(f.id, "dir\\other", false), NtStatus::SUCCESS);
            c.close(f.id);
        },
        |c| {
            let f = c.open(want("dir\\other").existing());
            assert_eq!(c.delete(f.id), NtStatus::SUCCESS);
            c.close(f.id);
        },
    ];
    for change in changes {
        assert_eq!(c.set(d.id, file_class::BASIC, &basic(0, 0, 0, 0, ATTR_DIRECTORY)), NtStatus::SUCCESS);
        assert_eq!(attributes(&mut c), ATTR_DIRECTORY);
        let before = times(&mut c, d.id);
        sleep(Duration::from_millis(2));
        change(&mut c);
        assert_eq!(attributes(&mut c), ATTR_DIRECTORY);
        let after = times(&mut c, d.id);
        assert!(after[ACCESS] > before[ACCESS] && after[WRITE] > before[WRITE]);
    }
}

/// TunnelCacheEntry.FileCreationTime, [MS-FSA] 2.1.5.1.1 and 2.1.5.15.12: what is saved by writing another file has been created when the first was.
#[test]
fn a_file_that_comes_back_soon_keeps_its_creation_time() {
    let (lab, _volume) = crate::quotas::lab();
    let mut c = crate::quotas::client(&lab, USER);
    let made = |c: &mut Client, name: &str, old: Option<u64>| {
        let f = c.open(want(name));
        old.into_iter().for_each(|t| assert_eq!(set_one(c, f.id, CREATION, t as i64), NtStatus::SUCCESS));
        let created = times(c, f.id)[CREATION];
        c.close(f.id);
        created
    };
    let away = |c: &mut Client, name: &str, to: Option<&str>| {
        let f = c.open(want(name).existing());
        let done = match to {
            Some(to) => c.rename(f.id, to, false),
            None => c.delete(f.id),
        };
        assert_eq!(done, NtStatus::SUCCESS);
        c.close(f.id);
    };
    made(&mut c, "report.docx", Some(A_TIME));
    made(&mut c, "new.tmp", None);
    away(&mut c, "report.docx", Some("old.tmp"));
    away(&mut c, "new.tmp", Some("Report.docx"));
    assert_eq!(made(&mut c, "REPORT.DOCX", None), A_TIME, "saved by two renames");
    assert_eq!(made(&mut c, "old.tmp", None), A_TIME);
    assert_ne!(made(&mut c, "new.tmp", None), A_TIME, "the name of what was created later");
    // Once: the file with its name is deleted, and one more comes after one that came back.
    away(&mut c, "old.tmp", None);
    assert_eq!(made(&mut c, "old.tmp", None), A_TIME);
    away(&mut c, "old.tmp", Some("else"));
    away(&mut c, "report.docx", Some("old.tmp"));
    away(&mut c, "old.tmp", Some("third"));
    assert_eq!(made(&mut c, "old.tmp", None), A_TIME);
    c.open(want("directory").directory());
    assert_ne!(made(&mut c, "directory\\report.docx", None), A_TIME, "in another directory");
    let d = c.open(want("report.docx").directory());
    assert_ne!(times(&mut c, d.id)[CREATION], A_TIME, "directories do not come back");
}
