//! QUERY_DIRECTORY: classes, wildcards, flags, [MS-SMB2] 3.3.5.18 and [MS-FSA] 2.1.5.6.

use crate::client::*;

const CLASSES: [u8; 7] = [
    file_class::DIRECTORY,
    file_class::FULL_DIRECTORY,
    file_class::BOTH_DIRECTORY,
    file_class::NAMES,
    file_class::ID_BOTH_DIRECTORY,
    file_class::ID_FULL_DIRECTORY,
    file_class::ID_EXTD_DIRECTORY,
];

const RESTART: u8 = 1;
const SINGLE: u8 = 2;
const REOPEN: u8 = 0x10;

fn with_files(names: &[&str]) -> (Lab, Client, FileId) {
    let lab = Lab::new();
    let mut c = lab.client();
    c.make_directory("dir");
    for name in names {
        c.put(&format!("dir\\{name}"), &[7; 100]);
    }
    let d = c.open(want("dir").existing().directory());
    (lab, c, d.id)
}

/// `BVT_SMB2Basic_QueryDir_Reopen_OnDir`
#[test]
fn bvt_smb2basic_query_dir_reopen_on_dir() {
    let (_lab, mut c, d) = with_files(&["a", "b"]);
    let names = c.list_once(d, file_class::DIRECTORY, REOPEN, "a*").unwrap();
    assert_eq!(names, ["a"]);
    let names = c.list_once(d, file_class::DIRECTORY, REOPEN, "b*").unwrap();
    assert_eq!(names, ["b"], "a new pattern from the start");
}
/// `BVT_SMB2Basic_QueryDir_Reopen_OnFile`
#[test]
fn bvt_smb2basic_query_dir_reopen_on_file() {
    let lab = Lab::new();
    let mut c = lab.client();
    let f = c.open(want("file"));
    let status = c.list_once(f.id, file_class::DIRECTORY, REOPEN, "*").unwrap_err();
    assert_eq!(status, NtStatus::INVALID_PARAMETER);
}

/// `BVT_QueryDirectory_FileNamesInformation`, `BVT_QueryDirectory_FileDirectoryInformation`,
/// `BVT_QueryDirectory_FileFullDirectoryInformation`, `BVT_QueryDirectory_FileIdFullDirectoryInformation`,
/// `BVT_QueryDirectory_FileBothDirectoryInformation`, `BVT_QueryDirectory_FileIdBothDirectoryInformation`
#[test]
fn bvt_query_directory() {
    let (_lab, mut c, d) = with_files(&["file.txt"]);
    let f = c.open(want("dir\\file.txt").existing());
    let id = le_u64(&c.query(f.id, file_class::INTERNAL), 0);
    for class in CLASSES {
        let reply = c.call(&query_directory(d, class, RESTART, "*", 65536)).ok();
        let all = entries(reply.buffer(), class);
        let names: Vec<_> = all.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(names, [".", "..", "file.txt"], "class {class}");
        if class == file_class::NAMES {
            continue;
        }
        for (name, e) in &all {
            for at in [8, 16, 24, 32] {
                assert!(le_u64(e, at) > 0, "class {class}: a time of {name}");
            }
            let (size, allocation) = (le_u64(e, 40), le_u64(e, 48));
            let directory = name != "file.txt";
            assert_eq!(size, if directory { 0 } else { 100 });
            assert_eq!(allocation % 512, 0);
            assert_eq!(le_u32(e, 56), if directory { ATTR_DIRECTORY } else { ATTR_ARCHIVE });
        }
        let at = match class {
            file_class::ID_BOTH_DIRECTORY => 96,
            file_class::ID_FULL_DIRECTORY | file_class::ID_EXTD_DIRECTORY => 72,
            _ => continue,
        };
        assert_eq!(le_u64(&all[2].1, at), id, "class {class}");
        assert_ne!(le_u64(&all[0].1, at), 0);
    }
}

/// What matches, in every class.
fn check_pattern(files: &[&str], pattern: &str, expected: &[&str], dots: bool) {
    let (_lab, mut c, d) = with_files(files);
    for class in CLASSES {
        let mut names = c.list_once(d, class, RESTART, pattern).unwrap();
        if dots {
            assert_eq!(names[..2], [".", ".."], "class {class}");
            names.drain(..2);
        }
        names.sort();
        let mut expected = expected.to_vec();
        expected.sort();
        assert_eq!(names, expected, "class {class}, pattern {pattern}");
    }
}

const TEN: [&str; 10] =
    ["f0lkj", "a.b", "no-dot", "x.y.z", "UPPER.TXT", "q8", "w.", "long name with spaces", "ü", "zzz.zzz"];
const WORDS: [&str; 5] = ["Fine", "File", "Bile", "Fille", "Nine"];

/// `BVT_QueryDirectoryBySearchPattern_FileBothDirectoryInformation_AsteriskWildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileDirectoryInformation_AsteriskWildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileFullDirectoryInformation_AsteriskWildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileIdBothDirectoryInformation_AsteriskWildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileIdFullDirectoryInformation_AsteriskWildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileNamesInformation_AsteriskWildCard`
#[test]
fn bvt_query_directory_by_search_pattern_asterisk() {
    check_pattern(&TEN, "*", &TEN, true);
}
/// `BVT_QueryDirectoryBySearchPattern_FileBothDirectoryInformation_SpecialCase_AsteriskWildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileDirectoryInformation_SpecialCase_AsteriskWildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileFullDirectoryInformation_SpecialCase_AsteriskWildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileIdBothDirectoryInformation_SpecialCase_AsteriskWildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileIdFullDirectoryInformation_SpecialCase_AsteriskWildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileNamesInformation_SpecialCase_AsteriskWildCard`
#[test]
fn bvt_query_directory_by_search_pattern_special_case_asterisk() {
    check_pattern(&TEN, "*.*", &TEN, true);
}
/// `BVT_QueryDirectoryBySearchPattern_FileBothDirectoryInformation_WildCard_QuestionMark`,
/// `BVT_QueryDirectoryBySearchPattern_FileDirectoryInformation_WildCard_QuestionMark`,
/// `BVT_QueryDirectoryBySearchPattern_FileFullDirectoryInformation_WildCard_QuestionMark`,
/// `BVT_QueryDirectoryBySearchPattern_FileIdBothDirectoryInformation_WildCard_QuestionMark`,
/// `BVT_QueryDirectoryBySearchPattern_FileIdFullDirectoryInformation_WildCard_QuestionMark`,
/// `BVT_QueryDirectoryBySearchPattern_FileNamesInformation_WildCard_QuestionMark`
#[test]
fn bvt_query_directory_by_search_pattern_question_mark() {
    check_pattern(&WORDS, "Fi?e", &["Fine", "File"], false);
}
/// `BVT_QueryDirectoryBySearchPattern_FileBothDirectoryInformation_AsteriskInStringWildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileDirectoryInformation_AsteriskInStringWildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileFullDirectoryInformation_AsteriskInStringWildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileIdBothDirectoryInformation_AsteriskInStringWildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileIdFullDirectoryInformation_AsteriskInStringWildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileNamesInformation_AsteriskInStringWildCard`
#[test]
fn bvt_query_directory_by_search_pattern_asterisk_in_string() {
    check_pattern(&WORDS, "*ile", &["File", "Bile"], false);
}
/// `BVT_QueryDirectoryBySearchPattern_FileBothDirectoryInformation_DOS_STAR_WildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileDirectoryInformation_DOS_STAR_WildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileFullDirectoryInformation_DOS_STAR_WildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileIdBothDirectoryInformation_DOS_STAR_WildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileIdFullDirectoryInformation_DOS_STAR_WildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileNamesInformation_DOS_STAR_WildCard`
#[test]
fn bvt_query_directory_by_search_pattern_dos_star() {
    let files = ["Fine.txt", "FileGrip.txt", "Bile.txt", "Tile.txt", "Nine.jpg"];
    check_pattern(&files, "<txt", &files[..4], false);
}
/// `BVT_QueryDirectoryBySearchPattern_FileBothDirectoryInformation_DOS_QM_WildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileDirectoryInformation_DOS_QM_WildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileFullDirectoryInformation_DOS_QM_WildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileIdBothDirectoryInformation_DOS_QM_WildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileIdFullDirectoryInformation_DOS_QM_WildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileNamesInformation_DOS_QM_WildCard`
#[test]
fn bvt_query_directory_by_search_pattern_dos_qm() {
    check_pattern(&WORDS, "Fi>e", &["Fine", "File"], false);
}
/// `BVT_QueryDirectoryBySearchPattern_FileBothDirectoryInformation_DOS_DOT_WildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileDirectoryInformation_DOS_DOT_WildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileFullDirectoryInformation_DOS_DOT_WildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileIdBothDirectoryInformation_DOS_DOT_WildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileIdFullDirectoryInformation_DOS_DOT_WildCard`,
/// `BVT_QueryDirectoryBySearchPattern_FileNamesInformation_DOS_DOT_WildCard`
#[test]
fn bvt_query_directory_by_search_pattern_dos_dot() {
    let files = ["grcBlankFile1.", "grcBlankFile2.", "grcBlankFile3.", "grc.BadFile_1.txt", "grc.BadFile_2.txt"];
    check_pattern(&files, "grcBlankFile?\"", &files[..3], false);
}

/// `Fs_CreateDiretory_QueryDirectory_Suffix_INDEX_ALLOCATION`,
/// `Fs_CreateDirectory_QueryDirectory_Suffix_I30_INDEX_ALLOCATION`
#[test]
fn fs_create_directory_query_directory_suffix_index_allocation() {
    let lab = Lab::new();
    let mut c = lab.client();
    for suffix in ["::$INDEX_ALLOCATION", ":$I30:$INDEX_ALLOCATION"] {
        let d = c.open(want(&format!("dir{suffix}")).directory());
        assert_eq!(c.list_once(d.id, file_class::ID_BOTH_DIRECTORY, RESTART, "*").unwrap(), [".", ".."]);
        c.close(d.id);
    }
    assert!(lab.host("dir").is_dir());
}

/// `Fs_CreateFiles_QueryDirectory_With_Single_Entry_Flag`
#[test]
fn fs_create_files_query_directory_with_single_entry_flag() {
    let (_lab, mut c, d) = with_files(&["a", "b"]);
    let mut seen = Vec::new();
    let mut flags = RESTART | SINGLE;
    while let Ok(names) = c.list_once(d, file_class::BOTH_DIRECTORY, flags, "*") {
        assert_eq!(names.len(), 1);
        seen.extend(names);
        flags = SINGLE;
    }
    seen.sort();
    assert_eq!(seen, [".", "..", "a", "b"]);
}

/// `CreateFile_CheckNoFilesFound`, `CreateFile_CheckSingleFileFound`, `CreateFile_CheckSubDirAndSingleFileFound`,
/// `CreateFile_CheckMultipleFilesFound`
#[test]
fn create_file_find_all_files() {
    let lab = Lab::new();
    let mut c = lab.client();
    c.make_directory("dir");
    let list = |c: &mut Client, name: &str| {
        let d = c.open(want(name).existing().directory());
        let mut names = c.list_once(d.id, file_class::BOTH_DIRECTORY, RESTART, "*").unwrap();
        c.close(d.id);
        assert_eq!(names[..2], [".", ".."]);
        names.drain(..2);
        names.sort();
        names
    };
    assert!(list(&mut c, "dir").is_empty());
    c.put("dir\\file", b"");
    assert_eq!(list(&mut c, "dir"), ["file"]);
    c.make_directory("dir\\sub");
    assert_eq!(list(&mut c, "dir"), ["file", "sub"]);
    c.put("dir\\sub\\deep", b"");
    assert_eq!(list(&mut c, "dir\\sub"), ["deep"]);
}

/// `FileInfo_Query_FileBothDirectoryInformation_Dir_CreationTime`,
/// `FileInfo_Query_FileFullDirectoryInformation_Dir_CreationTime`
#[test]
fn file_info_query_directory_information_creation_time() {
    let (_lab, mut c, d) = with_files(&["file"]);
    for class in [file_class::BOTH_DIRECTORY, file_class::FULL_DIRECTORY] {
        let creation = |c: &mut Client| {
            let reply = c.call(&query_directory(d, class, RESTART, "*", 65536)).ok();
            le_u64(&entries(reply.buffer(), class)[0].1, 8)
        };
        let before = creation(&mut c);
        c.put(&format!("dir\\inner{class}"), b"");
        assert_eq!(creation(&mut c), before);
    }
}

#[test]
fn scans_go_on_end_and_restart() {
    let names: Vec<String> = (0..500).map(|i| format!("a-rather-long-name-{i:04}")).collect();
    let refs: Vec<&str> = names.iter().map(String::as_str).collect();
    let (_lab, mut c, d) = with_files(&refs);
    let mut seen = Vec::new();
    loop {
        let reply = c.call(&query_directory(d, file_class::ID_BOTH_DIRECTORY, 0, "a*", 4096));
        match reply.status() {
            NtStatus::SUCCESS => {
                assert!(reply.buffer().len() <= 4096);
                seen.extend(entry_names(reply.buffer(), file_class::ID_BOTH_DIRECTORY));
            }
            status => {
                assert_eq!(status, NtStatus::NO_MORE_FILES);
                break;
            }
        }
    }
    seen.sort();
    assert_eq!(seen, names);
    assert_eq!(c.list_once(d, file_class::NAMES, 0, "a*").unwrap_err(), NtStatus::NO_MORE_FILES);
    assert!(!c.list_once(d, file_class::NAMES, RESTART, "a*").unwrap().is_empty());
}

#[test]
fn what_is_refused() {
    let (_lab, mut c, d) = with_files(&["a-name-of-some-length"]);
    // 50: FileIdGlobalTxDirectoryInformation, of transactions.
    for class in [99, 50] {
        assert_eq!(c.status(&query_directory(d, class, RESTART, "*", 4096)), NtStatus::INVALID_INFO_CLASS);
    }
    assert_eq!(c.list_once(d, file_class::NAMES, RESTART, "none*").unwrap_err(), NtStatus::NO_SUCH_FILE);
    let small = |max| query_directory(d, file_class::BOTH_DIRECTORY, RESTART, "a*", max);
    assert_eq!(c.status(&small(8)), NtStatus::INFO_LENGTH_MISMATCH);
    assert_eq!(c.status(&small(100)), NtStatus::BUFFER_OVERFLOW);
    let f = c.open(want("dir").existing().directory().access(FILE_READ_ATTRIBUTES | SYNCHRONIZE));
    assert_eq!(c.list_once(f.id, file_class::NAMES, RESTART, "*").unwrap_err(), NtStatus::ACCESS_DENIED);
}
