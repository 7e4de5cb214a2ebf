//! The state store: durability, and refused changes.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::*;
use crate::address::NewAddress;
use crate::model::{Grant, NewGroup, NewUser, Rights, ShareChange, ShareKind, UserChange};

/// A directory that is removed at the end of the test.
struct Temp(PathBuf);
impl Temp {
    fn new() -> Temp {
        let dir = std::env::temp_dir().join(format!("arden-state-{}", secret::hex(&secret::random::<8>().unwrap())));
        Temp(dir)
    }
}
impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open(dir: &Path) -> Result<State> {
    State::open(&Arc::new(StateDirectory::open(dir)?))
}

fn user(name: &str) -> NewUser {
    NewUser { name: name.into(), password: "pw".into(), full_name: String::new(), groups: vec![], disabled: false }
}

fn share(name: &str) -> Share {
    serde_json::from_value(serde_json::json!({"name": name, "path": "/srv"})).unwrap()
}

#[test]
fn what_was_changed_is_there_after_reopening() {
    let t = Temp::new();
    let state = open(&t.0).unwrap();
    state
        .change(|s| {
            s.add_group(&NewGroup { name: "staff".into(), comment: "c".into() })?;
            s.add_user(&user("Alice"))?;
            s.add_member("staff", "alice")?;
            let mut docs = share("Docs");
            docs.encrypt = true;
            docs.allow = vec![Grant { who: "staff".into(), rights: Rights::Change }];
            s.add_share(&docs)
        })
        .unwrap();
    let before = state.snapshot();
    drop(state);
    let state = open(&t.0).unwrap();
    assert_eq!(before, state.snapshot());
    let s = state.snapshot();
    let alice = s.user("ALICE").unwrap();
    assert_eq!(s.user_info(alice).groups, ["staff"]);
    assert_eq!(alice.nt_hash, secret::hex(&secret::nt_hash("pw")));
    let docs = s.share_info(s.share("docs").unwrap());
    assert_eq!((docs.name.as_str(), docs.kind, docs.encrypt), ("Docs", ShareKind::Dir, true));
    assert_eq!(docs.allow, [Grant { who: "staff".into(), rights: Rights::Change }]);
}

fn with_pool(s: &mut Snapshot) {
    let tank = serde_json::json!({"name": "Tank", "id": "7", "devices": [], "grace_seconds": 0});
    s.pools.insert("tank".into(), serde_json::from_value(tank).unwrap());
}

fn address(address: &str, interface: &str, pool: &str) -> NewAddress {
    NewAddress { address: address.into(), interface: interface.into(), pool: pool.into() }
}

#[test]
fn floating_addresses_are_kept_and_are_unique() {
    let t = Temp::new();
    let state = open(&t.0).unwrap();
    state
        .change(|s| {
            with_pool(s);
            s.add_address(&address("10.0.0.50/24", "eth0", "TANK"))?;
            s.add_address(&address("2001:DB8:0::50/64", "eth0", "tank"))
        })
        .unwrap();
    drop(state);
    let state = open(&t.0).unwrap();
    let s = state.snapshot();
    assert_eq!(s.addresses.keys().map(String::as_str).collect::<Vec<_>>(), ["10.0.0.50", "2001:db8::50"]);
    assert_eq!(s.pool_of_address(&s.addresses["10.0.0.50"]), "Tank");
    let kind = |new: NewAddress| state.change(|s| s.add_address(&new)).unwrap_err().kind;
    assert_eq!(kind(address("10.0.0.50/16", "eth1", "tank")), ErrorKind::Exists);
    assert_eq!(kind(address("2001:db8::0:50/64", "eth0", "tank")), ErrorKind::Exists, "another form of the same");
    assert_eq!(kind(address("10.0.0.51/24", "eth0", "lake")), ErrorKind::NotFound);
    assert_eq!(kind(address("10.0.0.51/24", "a b", "tank")), ErrorKind::Invalid);
    assert_eq!(kind(address("0.0.0.0/24", "eth0", "tank")), ErrorKind::Invalid);
    let gone = "10.0.0.50".parse().unwrap();
    state.change(|s| s.remove_address(gone)).unwrap();
    assert_eq!(state.change(|s| s.remove_address(gone)).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(open_again(state, &t.0).snapshot().addresses.len(), 1);
}

#[test]
fn there_is_a_limit_of_floating_addresses() {
    let mut s = Snapshot::fresh().unwrap();
    with_pool(&mut s);
    for n in 0..crate::address::ADDRESSES_MAX {
        s.add_address(&address(&format!("fd00::{:x}/64", n + 1), "eth0", "tank")).unwrap();
    }
    assert_eq!(s.add_address(&address("10.0.0.1/8", "eth0", "tank")).unwrap_err().kind, ErrorKind::Conflict);
}

fn open_again(state: State, dir: &Path) -> State {
    drop(state);
    open(dir).unwrap()
}

#[test]
fn a_failed_change_leaves_nothing() {
    let state = State::in_memory().unwrap();
    let before = state.snapshot();
    let result = state.change(|s| {
        s.add_user(&user("bob"))?;
        s.add_share(&share("bad/name"))
    });
    assert_eq!(result.unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(before, state.snapshot());
}

#[test]
fn one_daemon_for_each_directory_and_nobody_else_reads_it() {
    let t = Temp::new();
    let state = open(&t.0).unwrap();
    let error = open(&t.0).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Conflict);
    assert!(error.error.contains(&std::process::id().to_string()), "{error}");
    let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&t.0), 0o700);
    for file in ["state.redb", "lock"] {
        assert_eq!(mode(&t.0.join(file)), 0o600, "{file}");
    }
    drop(state);
    open(&t.0).unwrap();
}

#[test]
fn no_password_lies_in_the_directory() {
    let t = Temp::new();
    let state = open(&t.0).unwrap();
    let mut carol = user("carol");
    carol.password = "a-plain-secret".into();
    state.change(|s| s.add_user(&carol)).unwrap();
    drop(state);
    for entry in std::fs::read_dir(&t.0).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        let utf16: Vec<u8> = "a-plain-secret".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert!(!bytes.windows(14).any(|w| w == b"a-plain-secret"));
        assert!(!bytes.windows(utf16.len()).any(|w| w == utf16));
    }
}

#[test]
fn a_new_user_of_an_old_name_inherits_nothing() {
    let state = State::in_memory().unwrap();
    let (old, new) = state
        .change(|s| {
            let old = s.add_user(&user("dave"))?;
            s.add_member("administrators", "dave")?;
            let mut vault = share("vault");
            vault.allow = vec![Grant { who: "dave".into(), rights: Rights::Full }];
            s.add_share(&vault)?;
            s.remove_user("DAVE")?;
            Ok((old, s.add_user(&user("dave"))?))
        })
        .unwrap();
    assert_ne!(old.sid, new.sid);
    assert!(new.groups.is_empty());
    let s = state.snapshot();
    // The grant still protects the share, and shows whom it names.
    assert_eq!(s.share_info(s.share("vault").unwrap()).allow[0].who, old.sid);
}

#[test]
fn names_clash_without_case_and_across_users_and_groups() {
    let state = State::in_memory().unwrap();
    state.change(|s| s.add_user(&user("Erin")).map(drop)).unwrap();
    let kind = |r: Result<()>| r.unwrap_err().kind;
    assert_eq!(kind(state.change(|s| s.add_user(&user("eRIN")).map(drop))), ErrorKind::Exists);
    let group = NewGroup { name: "erin".into(), comment: String::new() };
    assert_eq!(kind(state.change(|s| s.add_group(&group).map(drop))), ErrorKind::Exists);
    assert_eq!(kind(state.change(|s| s.remove_group("users"))), ErrorKind::Conflict);
    assert_eq!(kind(state.change(|s| s.add_member("users", "nobody").map(drop))), ErrorKind::NotFound);
    let empty = UserChange { password: Some(String::new()), ..UserChange::default() };
    assert_eq!(kind(state.change(|s| s.change_user("erin", &empty).map(drop))), ErrorKind::Invalid);
    let relative = ShareChange { path: Some("x/y".into()), ..ShareChange::default() };
    state.change(|s| s.add_share(&share("s")).map(drop)).unwrap();
    assert_eq!(kind(state.change(|s| s.change_share("s", &relative).map(drop))), ErrorKind::Invalid);
}

#[test]
fn a_state_of_the_future_is_refused() {
    let t = Temp::new();
    drop(open(&t.0).unwrap());
    let db = redb::Database::create(t.0.join("state.redb")).unwrap();
    let tx = db.begin_write().unwrap();
    const META: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("meta");
    tx.open_table(META).unwrap().insert("schema", b"99".as_slice()).unwrap();
    tx.commit().unwrap();
    drop(db);
    assert!(open(&t.0).unwrap_err().error.contains("schema 99"));
}

#[test]
fn a_file_from_before_revisions_opens_and_changes() {
    let t = Temp::new();
    drop(open(&t.0).unwrap());
    let db = redb::Database::create(t.0.join("state.redb")).unwrap();
    let tx = db.begin_write().unwrap();
    const REVISION: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("revision");
    assert!(tx.delete_table(REVISION).unwrap());
    tx.commit().unwrap();
    drop(db);
    let state = open(&t.0).unwrap();
    let sid = state.snapshot().machine_sid.clone();
    state.change(|s| s.add_user(&user("alice"))).unwrap();
    drop(state);
    let s = open(&t.0).unwrap().snapshot();
    assert_eq!((s.machine_sid.as_str(), s.users.len()), (sid.as_str(), 1));
}

#[test]
fn another_servers_place_is_taken_before_there_are_accounts() {
    use crate::model::SettingsChange;
    let t = Temp::new();
    let state = open(&t.0).unwrap();
    let import = |sid: &str| {
        let change = SettingsChange { machine_sid: Some(sid.into()), ..SettingsChange::default() };
        state.change(|s| s.change_settings(&change))
    };
    for bad in ["", "S-1-5-21-1-2", "S-1-5-21-1-2-3-4", "S-1-5-32-1-2-3", "S-1-5-21-01-2-3", "S-1-5-21-1-2-4294967296"]
    {
        assert_eq!(import(bad).unwrap_err().kind, ErrorKind::Invalid, "{bad}");
    }
    let sid = "S-1-5-21-11-22-4294967295";
    assert_eq!(import(sid).unwrap().machine_sid, sid);
    assert_eq!(state.snapshot().settings.machine_sid, "", "it is kept once");
    state.change(|s| s.add_user(&user("alice"))).unwrap();
    let alice = state.snapshot();
    assert_eq!(alice.user_info(alice.user("alice").unwrap()).sid, format!("{sid}-1000"));
    assert_eq!(import("S-1-5-21-1-2-3").unwrap_err().kind, ErrorKind::Conflict);
    assert_eq!(import(sid).unwrap().machine_sid, sid, "the same again changes nothing");
    drop(state);
    assert_eq!(open(&t.0).unwrap().snapshot().settings_shown().machine_sid, sid);
}

#[test]
fn a_path_that_is_not_absolute_is_refused_with_what_to_do() {
    let state = State::in_memory().unwrap();
    let mut docs = share("docs");
    docs.path = "here".into();
    let said = |share: &Share| state.change(|s| s.add_share(share)).unwrap_err().to_string();
    assert!(said(&docs).contains("give the full path"));
    docs.kind = ShareKind::Volume;
    docs.volume = Some("v".into());
    assert!(said(&docs).contains("put a / before it"));
}
