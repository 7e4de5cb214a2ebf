//! What an administrator is told: mistakes in a command, and shares whose folder is not what it was.

use std::os::unix::fs::PermissionsExt;

use crate::daemon::Daemon;

fn error(d: &Daemon, code: i32, args: &[&str]) -> serde_json::Value {
    let said = d.refused(code, args);
    serde_json::from_str(&said).unwrap_or_else(|e| panic!("{args:?}: {e}: {said}"))
}

#[test]
fn mistakes_have_their_exit_code_and_say_what_to_do() {
    let d = Daemon::start("mistakes", 2, 128);
    for args in
        [&["--json", "user", "add"][..], &["--json", "user"], &["--json", "space", "create", "x", "--size", "1q"]]
    {
        let said = error(&d, 2, args);
        assert_eq!(said["kind"], "invalid", "{args:?}: {said}");
        assert!(said["error"].as_str().is_some_and(|e| !e.starts_with("error")), "{args:?}: {said}");
    }
    assert!(d.done(&["--json", "user", "--help"]).contains("Example"));
    d.done(&["user", "add", "alice", "--password", "secret"]);
    assert!(d.refused(2, &["user", "set", "alice"]).contains("nothing to change"));
    assert!(d.refused(5, &["group", "add", "alice"]).contains("users and groups share their names"));
    assert!(d.refused(2, &["open", "close", "zzz"]).contains("is not the id of an open"));
    assert!(d.refused(2, &["pool", "create", "tank", "d0", "./d0"]).contains("named twice"));
    assert!(
        d.refused(6, &["volume", "create", "v", "--file", "nowhere/v", "--size", "64m"]).contains("make the directory")
    );
    d.done(&["pool", "create", "tank", "d0", "d1"]);
    assert!(d.refused(2, &["pool", "set", "tank", "--warn", "90,80,70"]).contains("--warn 70,80,90"));
    let create = ["space", "create", "x", "--pool", "tank", "--layout", "mirror2", "--size", "0"];
    assert!(d.refused(2, &create).contains("no size"));
    d.done(&["volume", "create", "v", "--file", "v", "--size", "64m"]);
    let quota = ["quota", "set", "v", "--user", "alice", "--soft", "12m", "--hard", "10m"];
    assert!(d.refused(2, &quota).contains("soft limit is above"));
    let mode = std::fs::metadata(d.dir.join("state/handles.redb")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_share_whose_folder_was_replaced_is_told_of_and_served_anew_when_it_is_set() {
    let d = Daemon::start("folder", 0, 0);
    let folder = d.dir.join("docs");
    std::fs::create_dir(&folder).unwrap();
    d.done(&["share", "add", "docs", "--dir", "docs", "--force"]);
    let problem = |d: &Daemon| d.json(&["status"])["share_problems"][0]["problem"].as_str().unwrap_or("").to_string();
    assert_eq!(problem(&d), "");
    std::fs::remove_dir(&folder).unwrap();
    d.wait(30, "the folder is missed", |d| problem(d).contains("not there any more"));
    assert!(d.refused(2, &["share", "set", "docs", "--comment", "x"]).contains("mount the file system"));
    std::fs::create_dir(&folder).unwrap();
    d.wait(30, "another folder is noticed", |d| problem(d).contains("another folder"));
    assert!(d.done(&["status"]).contains("docs: the folder that was at"));
    assert!(d.done(&["metrics"]).contains("arden_share_problems 1\n"));
    d.done(&["share", "set", "docs", "--comment", "x"]);
    assert_eq!(problem(&d), "");
    assert!(d.done(&["metrics"]).contains("arden_share_problems 0\n"));
}
