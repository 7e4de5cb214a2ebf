#!/usr/bin/env python3
"""Makes the patches of this directory anew from the sources as they are: `faults.py` writes NAME.patch for each fault.

Each fault is a file, a piece of text that has to be there once, and what stands there instead. With 200 operations a seed the
fuzzer found them, from seed 1 on, after so many seeds: both-names-of-a-file-stay 1244, creator-owner-stays-a-macro 7,
deny-aces-do-not-deny 33, durable-handles-are-anybodys 2, inherit-only-aces-count 17, inheritance-goes-on-for-ever 234,
links-into-dying-directories 100, marked-streams-survive-their-file 3257, overlapping-shares-miss-large-streams 1011,
overwriting-needs-no-right 1, owner-rights-add-up 142, previous-sessions-end-for-anybody 2, read-only-files-are-written 19,
reading-needs-no-right 2, renaming-needs-no-right 1, shares-do-not-deny 3, who-lists-a-directory-deletes 1. 100 seeds take a
second. reverting-needs-no-write came later: 1729 seeds of 300 operations.
"""
import difflib
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
AUTH, STORE, SMB = "crates/arden-auth/src/", "crates/arden-store/src/fs/", "crates/arden-smb/src/"
DIR, TABLE = "crates/arden-store/src/dir/", "crates/arden-store/src/table/"

FAULTS = [
    ("deny-aces-do-not-deny", AUTH + "check.rs",
     "ACCESS_DENIED_ACE_TYPE | ACCESS_DENIED_CALLBACK_ACE_TYPE => matches(&ace.sid).then_some(false),",
     "ACCESS_DENIED_ACE_TYPE | ACCESS_DENIED_CALLBACK_ACE_TYPE => matches(&ace.sid).then_some(false).filter(|_| false),"),
    ("inherit-only-aces-count", AUTH + "check.rs",
     "for ace in dacl.aces.iter().filter(|a| !a.is_inherit_only()) {",
     "for ace in dacl.aces.iter() {"),
    ("owner-rights-add-up", AUTH + "check.rs",
     "if is_owner && !spoken_of() {", "if is_owner && (true || !spoken_of()) {"),
    ("inheritance-goes-on-for-ever", AUTH + "inherit.rs",
     "ace.flags & INHERIT != 0 && ace.flags & NO_PROPAGATE_INHERIT_ACE == 0;",
     "ace.flags & INHERIT != 0;"),
    ("creator-owner-stays-a-macro", AUTH + "inherit.rs",
     "let sid = if ace.sid == *well_known::CREATOR_OWNER {",
     "let sid = if ace.sid == *well_known::CREATOR_OWNER && !target.directory {"),
    ("shares-do-not-deny", SMB + "model/share.rs", "mask = allowed & !denied;", "mask = allowed | denied & 0;"),
    ("overwriting-needs-no-right", STORE + "open.rs",
     "also = effect | if stream { 0 } else { FILE_WRITE_EA | FILE_WRITE_ATTRIBUTES };",
     "also = effect & 0;"),
    ("who-lists-a-directory-deletes", STORE + "access.rs",
     "if parent & FILE_DELETE_CHILD != 0 {", "if parent & (FILE_DELETE_CHILD | FILE_LIST_DIRECTORY) != 0 {"),
    ("read-only-files-are-written", STORE + "access.rs",
     "if !stat.directory && readonly && (desired | also) & (FILE_WRITE_DATA | FILE_APPEND_DATA) != 0 {",
     "if !stat.directory && readonly && (desired | also) & FILE_WRITE_DATA != 0 {"),
    ("durable-handles-are-anybodys", SMB + "handlers/durable.rs",
     "if open.owner.user != request.verified.user.user {",
     "if open.owner.user != request.verified.user.user && false {"),
    ("reading-needs-no-right", STORE + "rights.rs",
     "Operation::Read => Needs { any: FILE_READ_DATA | FILE_EXECUTE, ..read },", "Operation::Read => read,"),
    ("reverting-needs-no-write", STORE + "rights.rs",
     "Operation::RevertStream => Needs { all: FILE_WRITE_ATTRIBUTES | FILE_WRITE_DATA, ..change },",
     "Operation::RevertStream => Needs { all: FILE_WRITE_ATTRIBUTES, ..change },"),
    ("renaming-needs-no-right", STORE + "rights.rs",
     "Operation::Delete | Operation::Rename => Needs { any: DELETE, ..change },",
     "Operation::Delete => Needs { any: DELETE, ..change },\n            Operation::Rename => change,"),
    ("previous-sessions-end-for-anybody", SMB + "engine/setup.rs",
     "|old| old.token().user == session.token().user)", "|old| old.token().user == session.token().user || true)"),
    ("both-names-of-a-file-stay", DIR + "namespace.rs", "if stat.key == inode.key {\n            // rename(2)",
     "if stat.key == inode.key && false {\n            // rename(2)"),
    ("overlapping-shares-miss-large-streams", DIR + "overlap.rs",
     "s.overlap.overlaps(&self.overlap));", "s.overlap.overlaps(&self.overlap) && false);"),
    ("marked-streams-survive-their-file", TABLE + "admit.rs",
     "s.delete.clone().filter(|_| s.opens.is_empty());", "s.delete.clone().filter(|_| false);"),
    ("links-into-dying-directories", STORE + "rename.rs", "        self.check_parent_lives(&target.parent)?;\n", ""),
]


def main():
    bad = 0
    for name, path, old, new in FAULTS:
        text = (ROOT / path).read_text()
        if text.count(old) != 1:
            print(f"{name}: {path} has the text {text.count(old)} times", file=sys.stderr)
            bad = 1
            continue
        diff = difflib.unified_diff(text.splitlines(True), text.replace(old, new).splitlines(True),
                                    "a/" + path, "b/" + path)
        (HERE / (name + ".patch")).write_text("".join(diff))
    sys.exit(bad)


if __name__ == "__main__":
    main()
