//! Path syntax and folding.

use super::*;
use crate::error::StoreError;

fn ok(path: &str) -> NtPath {
    NtPath::parse(path).unwrap_or_else(|e| panic!("{path:?}: {e}"))
}

#[test]
fn plain_paths() {
    assert_eq!(ok(""), NtPath::default());
    assert_eq!(ok("a\\b c\\d.txt").components, ["a", "b c", "d.txt"]);
    assert_eq!(ok("dir\\").wants, PathWants::Directory);
    assert_eq!(ok("a/b\\c/").components, ["a", "b", "c"]);
    assert_eq!(NtPath::parse("/a"), Err(StoreError::InvalidParameter));
    assert_eq!(ok("...").components, ["..."]);
    assert_eq!(ok("ends. ").components, ["ends. "]);
}

#[test]
fn streams() {
    let p = ok("d\\f:s:$DATA");
    assert_eq!((p.components.len(), p.stream.as_deref(), p.wants), (2, Some("s"), PathWants::Data));
    assert_eq!(ok("f:s").stream.as_deref(), Some("s"));
    let p = ok("f::$data");
    assert_eq!((p.stream, p.wants), (None, PathWants::Data));
    assert_eq!(ok("d::$INDEX_ALLOCATION").wants, PathWants::Directory);
    assert_eq!(ok("d:$I30:$INDEX_ALLOCATION").wants, PathWants::Directory);
    assert_eq!(ok(":root stream").components.len(), 0);
    assert_eq!(ok("f:a*?<>\"|\u{1}b").stream.as_deref(), Some("a*?<>\"|\u{1}b"));
    for bad in ["f:", "f::", "f:s:", "f:s:$BITMAP", "f:s:$DATA:x", "f:s\\g", "f:a/b", "f:s\\"] {
        assert_eq!(NtPath::parse(bad), Err(StoreError::InvalidName), "{bad}");
    }
}

#[test]
fn what_may_not_be_a_name() {
    for bad in ["a*", "a?b", "a<", "a>", "a|b", "a\"b", "a\u{1f}", "a\0b", ".", "a\\.", "\u{7}"] {
        assert_eq!(NtPath::parse(bad), Err(StoreError::InvalidName), "{bad:?}");
    }
    for bad in ["..", "..\\a", "..\\..\\..", ".\\.."] {
        assert_eq!(NtPath::parse(bad), Err(StoreError::PathAboveRoot), "{bad}");
    }
    for bad in ["a\\..\\..", "a\\..\\..\\etc", "a\\..\\b", "a/../b", "a\\b\\..\\..\\c", "a\\.\\..\\b"] {
        assert_eq!(NtPath::parse(bad), Err(StoreError::InvalidParameter), "{bad}");
    }
    assert_eq!(NtPath::parse("d:x:$INDEX_ALLOCATION"), Err(StoreError::InvalidParameter));
    for above in ["a\\b\\..", "a/b/..", "a\\.\\b\\..\\"] {
        let path = NtPath::parse(above).unwrap();
        assert_eq!((path.components, path.wants), (vec!["a".to_owned()], PathWants::Directory), "{above}");
    }
    for root in ["a\\..", "a\\b\\..\\.."] {
        assert_eq!(NtPath::parse(root).unwrap().components.len(), 0, "{root}");
    }
    for same in ["a\\.\\b", "a\\\\b", "a\\x\\..\\b", "a\\x\\y\\..\\..\\b"] {
        assert_eq!(NtPath::parse(same).unwrap().components, ["a", "b"]);
    }
    assert_eq!(NtPath::parse("\\a"), Err(StoreError::InvalidParameter));
    assert_eq!(NtPath::parse("\\"), Err(StoreError::InvalidParameter));
}

#[test]
fn length_counts_utf16_units() {
    assert!(NtPath::parse(&"x".repeat(255)).is_ok());
    assert!(NtPath::parse(&"x".repeat(256)).is_err());
    assert!(NtPath::parse(&"ä".repeat(255)).is_ok());
    assert!(NtPath::parse(&"😀".repeat(127)).is_ok());
    assert!(NtPath::parse(&"😀".repeat(128)).is_err());
}

#[test]
fn folding_is_one_to_one() {
    assert_eq!(fold("Straße.Ümlaut"), "STRAßE.ÜMLAUT");
    assert_eq!(fold("ALREADY.UP"), "ALREADY.UP");
    assert!(eq_fold("ａ", "Ａ"), "fullwidth letters");
    assert!(eq_fold("ЖЯ", "жя"));
    assert!(!eq_fold("ı", "I"), "dotless i stays itself");
    assert!(!eq_fold("ſ", "S"));
    assert!(!eq_fold("ß", "SS"));
    assert!(!eq_fold("\u{10428}", "\u{10400}"), "only the basic plane folds");
    for c in (0..=0xFFFFu32).filter_map(char::from_u32) {
        assert_eq!(c.len_utf16(), fold_char(c).len_utf16());
        let up = fold_char(c);
        assert_eq!(fold_char(up), up, "folding {c:?} twice");
    }
}
