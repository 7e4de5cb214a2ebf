//! The router against its OpenAPI document: every operation is called and every answer compared with its schema. The
//! notices that a change sends to the servers.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
};

use axum::{body::Body, http::Request};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::{storage_fake::FakeStorage, *};
use crate::{
    address::AddressAtNode,
    api::routes::{Answer, routes},
    cluster::{NoCluster, NodeQuestion},
    error::Result,
    model::{Id, Metric, OpenInfo, SessionInfo, Share},
    secret,
    state::{Change, Commit, Contents, MemoryStore, Revision, StateStore},
};

/// A server with one session and one open that records its notices. Its shares wait for as long as the last is set.
#[derive(Default)]
struct Fake(Mutex<Vec<String>>, OnceLock<Arc<State>>, AtomicBool);

impl Fake {
    fn note(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }
}

impl Control for Fake {
    fn check_share(&self, share: &Share) -> Result<()> {
        if share.path.starts_with("/slow") {
            // Opening a volume takes storage locks, whose holders change the state meanwhile.
            let (state, (done, waited)) = (self.1.get().unwrap().clone(), mpsc::channel());
            std::thread::spawn(move || done.send(state.change(|_| Ok(()))));
            waited.recv_timeout(Duration::from_secs(10)).expect("nobody changes the state while a share is checked")?;
        }
        if share.path.starts_with("/nowhere") {
            return Err(AdminError::invalid("no such directory", "make it first"));
        }
        Ok(())
    }
    fn check_exposure(&self, share: &Share) -> Result<()> {
        if share.path.starts_with("/etc") {
            return Err(AdminError::new(ErrorKind::Conflict, "the system's configuration", "--force"));
        }
        Ok(())
    }
    fn shares_changed(&self) {
        for _ in (0..4000).take_while(|_| self.2.load(Ordering::Relaxed)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.note("shares".to_string());
    }
    fn share_problems(&self) -> Vec<crate::model::ShareProblem> {
        vec![crate::model::ShareProblem { share: "docs".to_string(), problem: "not served".to_string() }]
    }
    fn accounts_changed(&self) {
        self.note("accounts".to_string());
    }
    fn close_user_sessions(&self, name: &str) -> usize {
        self.note(format!("sessions of {name}"));
        2
    }
    fn settings_changed(&self) {
        let signing = self.1.get().is_none_or(|state| state.snapshot().settings.signing_required);
        self.note(format!("signing {signing}"));
    }
    fn sessions(&self) -> Vec<SessionInfo> {
        let text = |s: &str| s.to_string();
        vec![SessionInfo {
            id: Id(0xfedc_ba98_7654_3210),
            user: text("alice"),
            client: text("127.0.0.1:5"),
            dialect: text("3.1.1"),
            signing: text("AES-GMAC"),
            encryption: text(""),
            channels: 1,
            opens: 1,
            age_seconds: 2,
            idle_seconds: 1,
            node: text(""),
        }]
    }
    fn session_count(&self) -> usize {
        1
    }
    fn open_count(&self) -> usize {
        1
    }
    fn close_session(&self, id: Id) -> bool {
        id == self.sessions()[0].id
    }
    fn opens(&self) -> Vec<OpenInfo> {
        let text = |s: &str| s.to_string();
        vec![OpenInfo {
            id: Id(7),
            session: None,
            user: text("alice"),
            client: text("127.0.0.1:5"),
            share: text("docs"),
            path: text("a\\b"),
            access: 0x12_0089,
            cache: text("lease rwh"),
            durable: true,
            locks: 0,
            node: text(""),
        }]
    }
    fn close_open(&self, id: Id) -> bool {
        id == Id(7)
    }
    fn metrics(&self) -> Vec<Metric> {
        let labels = vec![("command", "read".to_string())];
        vec![Metric { name: "requests_total", help: "Requests", counter: true, labels, value: 3.0 }]
    }
    fn floating_addresses(&self) -> Vec<AddressAtNode> {
        vec![AddressAtNode { address: [10, 0, 0, 50].into(), held: true, problem: String::new() }]
    }
    fn addresses_changed(&self) {
        self.note("addresses".to_string());
    }
    fn listen(&self) -> Vec<String> {
        vec!["127.0.0.1:4450".to_string()]
    }
}

fn api(fake: &Arc<Fake>, state: Arc<State>, cluster: Arc<dyn ClusterAdmin>) -> Arc<Api> {
    let storage = Arc::new(FakeStorage::default());
    Api::new(state, fake.clone(), storage.clone(), storage, cluster)
}

struct Fixture {
    dir: PathBuf,
    fake: Arc<Fake>,
    router: Router,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Fixture {
    fn new() -> Fixture {
        Fixture::of(Arc::new(FakeStorage::default()))
    }

    fn of(cluster: Arc<dyn ClusterAdmin>) -> Fixture {
        let dir = std::env::temp_dir().join(format!("arden-api-{}", secret::hex(&secret::random::<8>().unwrap())));
        std::fs::create_dir(&dir).unwrap();
        let state = Arc::new(State::in_memory().unwrap());
        let tank = json!({"name": "tank", "id": "7", "devices": [], "grace_seconds": 0});
        let tank: crate::storage::PoolRecord = serde_json::from_value(tank).unwrap();
        state.change(|s| Ok(s.pools.insert("tank".into(), tank.clone()))).unwrap();
        let fake = Arc::new(Fake::default());
        fake.1.get_or_init(|| state.clone());
        let router = router(api(&fake, state, cluster));
        Fixture { dir, fake, router }
    }

    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Vec<u8>) {
        let body = body.map_or(Body::empty(), |b| Body::from(b.to_string()));
        let request = Request::builder().method(method).uri(path).body(body).unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.into_body().collect().await.unwrap().to_bytes().to_vec())
    }

    async fn json(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let (status, bytes) = self.call(method, path, body).await;
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.fake.0.lock().unwrap())
    }
}

/// A checker for the part of JSON Schema that the document uses. Properties that a schema does not name are faults.
fn fault(document: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let target = document.pointer(name.trim_start_matches('#'));
        return target.map_or(Some(format!("{name} does not exist")), |s| fault(document, s, value, at));
    }
    if let Some(any) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        let fits = any.iter().any(|s| fault(document, s, value, at).is_none());
        return (!fits).then(|| format!("{at}: {value} is none of {any:?}"));
    }
    if !schema["const"].is_null() && schema["const"] != *value {
        return Some(format!("{at}: {value} is not {}", schema["const"]));
    }
    let is = |t: &str| match t {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64(),
        "null" => value.is_null(),
        _ => false,
    };
    let fits = match &schema["type"] {
        Value::Array(types) => types.iter().any(|t| t.as_str().is_some_and(is)),
        t => t.as_str().is_some_and(is),
    };
    if !fits {
        return Some(format!("{at}: {value} is no {}", schema["type"]));
    }
    if schema["enum"].as_array().is_some_and(|all| !all.contains(value)) {
        return Some(format!("{at}: {value} is not in {}", schema["enum"]));
    }
    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
        if let Some(f) = fault(document, &schema["items"], item, &format!("{at}[{i}]")) {
            return Some(f);
        }
    }
    if let (Some(object), Some(properties)) = (value.as_object(), schema["properties"].as_object()) {
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !object.contains_key(name) {
                return Some(format!("{at}: {name} is missing"));
            }
        }
        for (name, item) in object {
            let Some(schema) = properties.get(name) else { return Some(format!("{at}: {name} is not described")) };
            if let Some(f) = fault(document, schema, item, &format!("{at}.{name}")) {
                return Some(f);
            }
        }
    }
    None
}

/// A successful call of each operation, in an order in which all succeed.
fn calls() -> Vec<(&'static str, &'static str, Option<Value>)> {
    let erin = json!({"name": "erin", "password": "x", "groups": ["Users"]});
    let docs =
        json!({"name": "docs", "path": "/srv/docs", "allow": [{"who": "erin", "rights": "change"}], "users_max": 3});
    vec![
        ("status", "/v1/status", None),
        ("settings", "/v1/settings", None),
        ("changeSettings", "/v1/settings", Some(json!({"signing_required": false}))),
        ("addUser", "/v1/users", Some(erin)),
        ("users", "/v1/users", None),
        ("user", "/v1/users/ERIN", None),
        ("changeUser", "/v1/users/erin", Some(json!({"password": "y"}))),
        ("addGroup", "/v1/groups", Some(json!({"name": "staff"}))),
        ("groups", "/v1/groups", None),
        ("addMember", "/v1/groups/staff/members/erin", None),
        ("group", "/v1/groups/staff", None),
        ("removeMember", "/v1/groups/staff/members/erin", None),
        ("removeGroup", "/v1/groups/staff", None),
        ("addShare", "/v1/shares", Some(docs)),
        ("shares", "/v1/shares", None),
        ("share", "/v1/shares/docs", None),
        ("changeShare", "/v1/shares/docs", Some(json!({"read_only": true}))),
        ("removeShare", "/v1/shares/docs", None),
        ("closeUserSessions", "/v1/users/erin/sessions", None),
        ("removeUser", "/v1/users/erin", None),
        ("sessions", "/v1/sessions", None),
        ("closeSession", "/v1/sessions/fedcba9876543210", None),
        ("opens", "/v1/opens", None),
        ("closeOpen", "/v1/opens/7", None),
        ("disks", "/v1/disks", None),
        ("lookAtDisks", "/v1/disks/look", Some(json!({"disks": ["/d"]}))),
        ("labelDisk", "/v1/disks", Some(json!({"disk": "/d", "media": "ssd"}))),
        ("wipeDisk", "/v1/disks/wipe", Some(json!({"disk": "/d", "force": true}))),
        ("pools", "/v1/pools", None),
        ("createPool", "/v1/pools", Some(json!({"name": "tank", "disks": ["/d"]}))),
        ("importPool", "/v1/pools", Some(json!({"disks": []}))),
        ("pool", "/v1/pools/tank", None),
        ("changePool", "/v1/pools/tank", Some(json!({"name": "lake", "warn_percent": [50, 60, 70]}))),
        ("forgetPool", "/v1/pools/tank", None),
        ("addDisk", "/v1/pools/tank/disks", Some(json!({"disk": "/e", "hot_spare": true}))),
        ("changeDisk", "/v1/pools/tank/disks/1", Some(json!({"retire": true}))),
        ("startJob", "/v1/pools/tank/jobs", Some(json!({"kind": "remove-disk", "disk": 1}))),
        ("jobs", "/v1/jobs", None),
        ("job", "/v1/jobs/1", None),
        ("changeJob", "/v1/jobs/1", Some(json!({"paused": true}))),
        ("cancelJob", "/v1/jobs/1", None),
        ("spaces", "/v1/spaces", None),
        ("createSpace", "/v1/pools/tank/spaces", Some(json!({"name": "vm", "layout": "parity", "fixed": true}))),
        ("space", "/v1/pools/tank/spaces/vm", None),
        ("spaceMap", "/v1/pools/tank/spaces/vm/map", None),
        ("growSpace", "/v1/pools/tank/spaces/vm", Some(json!({"size_bytes": 8192}))),
        ("deleteSpace", "/v1/pools/tank/spaces/vm", None),
        ("discardSpace", "/v1/pools/tank/spaces/vm/delete", Some(json!({"force": true}))),
        ("exportSpace", "/v1/pools/tank/spaces/vm/export", Some(json!({"nbd": "unix:/s"}))),
        ("unexportSpace", "/v1/pools/tank/spaces/vm/export", None),
        ("cluster", "/v1/cluster", None),
        ("nodeLinks", "/v1/cluster/links", None),
        ("changeNode", "/v1/cluster/nodes/a", Some(json!({"drained": true}))),
        ("removeNode", "/v1/cluster/nodes/a", None),
        ("addAddress", "/v1/addresses", Some(json!({"address": "10.0.0.50/24", "interface": "eth0", "pool": "tank"}))),
        ("addresses", "/v1/addresses", None),
        ("removeAddress", "/v1/addresses/10.0.0.50", None),
        (
            "foundCluster",
            "/v1/cluster",
            Some(json!({"name": "FILES", "node": "a", "etcd": ["http://e:2379"], "lease_seconds": 5})),
        ),
        ("newToken", "/v1/cluster/tokens", None),
        ("raiseLevel", "/v1/cluster/level", None),
        ("moveClient", "/v1/cluster/client-moves", Some(json!({"client": "c", "to": "b"}))),
        ("movePool", "/v1/pools/tank/owner", Some(json!({"to": "b"}))),
        ("takePool", "/v1/pools/tank/take", Some(json!({"sure": true}))),
        ("setFence", "/v1/pools/tank/fence", Some(json!({"fence": "agent:/f", "options": ["ip=1"]}))),
        ("volumes", "/v1/volumes", None),
        ("createVolume", "/v1/volumes", Some(json!({"name": "docs", "space": "vm"}))),
        ("attachVolume", "/v1/volumes", Some(json!({"name": "docs", "file": "/srv/docs.img"}))),
        ("volume", "/v1/volumes/docs", None),
        ("checkVolume", "/v1/volumes/docs/check", Some(json!({"data": true}))),
        (
            "changeVolume",
            "/v1/volumes/docs",
            Some(json!({"grow": true, "size_bytes": 8192, "last_access": "always", "short_names": "off"})),
        ),
        ("repairVolume", "/v1/volumes/docs/repair", Some(json!({"dry_run": true}))),
        ("startVolumeScrub", "/v1/volumes/docs/scrub", Some(json!({"bytes_per_second": 1000}))),
        ("volumeScrub", "/v1/volumes/docs/scrub", None),
        ("stopVolumeScrub", "/v1/volumes/docs/scrub", None),
        ("quotas", "/v1/volumes/docs/quotas", None),
        ("setQuota", "/v1/volumes/docs/quotas", Some(json!({"user": "alice", "soft_bytes": 1, "hard_bytes": 2}))),
        ("removeQuota", "/v1/volumes/docs/quotas/remove", Some(json!({"folder": "a"}))),
        ("lookAtIntegrity", "/v1/volumes/docs/integrity/look", Some(json!({"path": "a/b"}))),
        ("setIntegrity", "/v1/volumes/docs/integrity", Some(json!({"path": "a", "state": "off", "recursive": true}))),
        ("deleteVolume", "/v1/volumes/docs/delete", Some(json!({"force": true}))),
        ("snapshots", "/v1/volumes/docs/snapshots", None),
        ("createSnapshot", "/v1/volumes/docs/snapshots", Some(json!({"label": "before"}))),
        ("deleteSnapshot", "/v1/volumes/docs/snapshots/@GMT-2026.05.31-12.00.00", None),
        ("lookAtStreamSnapshots", "/v1/volumes/docs/stream-snapshots/look", Some(json!({"path": "a/b"}))),
        ("snapshotSchedules", "/v1/volumes/docs/snapshot-schedules", None),
        (
            "setSnapshotSchedule",
            "/v1/volumes/docs/snapshot-schedules",
            Some(json!({"name": "hourly", "every_seconds": 3600, "keep": 24})),
        ),
        ("removeSnapshotSchedule", "/v1/volumes/docs/snapshot-schedules/hourly", None),
        ("forgetVolume", "/v1/volumes/docs", None),
        ("metrics", "/v1/metrics", None),
        ("prometheus", "/metrics", None),
        ("openapi", "/v1/openapi.json", None),
    ]
}

#[tokio::test]
async fn every_documented_operation_answers_as_documented() {
    let f = Fixture::new();
    let (_, document) = f.json("GET", "/v1/openapi.json", None).await;
    let calls = calls();
    let routes = routes();
    for route in &routes {
        assert!(calls.iter().any(|c| c.0 == route.operation), "{} is not called here", route.operation);
        assert!(!document["paths"][route.path][route.method.as_str().to_lowercase()].is_null());
    }
    for (operation, path, body) in calls {
        let route = routes.iter().find(|r| r.operation == operation).unwrap();
        let described = &document["paths"][route.path][route.method.as_str().to_lowercase()];
        if let Some(body) = &body {
            let schema = &described["requestBody"]["content"]["application/json"]["schema"];
            assert_eq!(fault(&document, schema, body, operation), None);
        }
        let (status, bytes) = f.call(route.method.as_str(), path, body).await;
        assert_eq!(status, route.success(), "{operation}: {}", String::from_utf8_lossy(&bytes));
        let schema = &described["responses"][status.to_string()]["content"]["application/json"]["schema"];
        match route.answer {
            Answer::Nothing => assert!(bytes.is_empty()),
            Answer::Text => {
                assert!(String::from_utf8(bytes).unwrap().contains("arden_requests_total{command=\"read\"} 3\n"))
            }
            Answer::Document => assert_eq!(document["openapi"], "3.1.0"),
            Answer::One(_) | Answer::List(_) => {
                let value = serde_json::from_slice(&bytes).unwrap();
                assert_eq!(fault(&document, schema, &value, operation), None);
            }
        }
    }
}

#[tokio::test]
async fn errors_say_what_is_wrong_and_what_to_do() {
    let f = Fixture::new();
    let (_, document) = f.json("GET", "/v1/openapi.json", None).await;
    let error = document.pointer("/components/schemas/Error").unwrap();
    let user = json!({"name": "a", "password": "x"});
    assert_eq!(f.json("POST", "/v1/users", Some(user.clone())).await.0, 201);
    for (method, path, body, want) in [
        ("GET", "/v1/nothing", None, 404),
        ("PUT", "/v1/users", None, 405),
        ("GET", "/v1/users/nobody", None, 404),
        ("POST", "/v1/users", Some(user), 409),
        ("POST", "/v1/users", Some(json!({"name": "b"})), 400),
        ("POST", "/v1/users", Some(json!({"name": "b", "password": "x", "what": 1})), 400),
        ("POST", "/v1/users", Some(json!({"name": "b", "password": "x", "groups": ["none"]})), 404),
        ("POST", "/v1/shares", Some(json!({"name": "s", "path": "/nowhere"})), 400),
        ("POST", "/v1/shares", Some(json!({"name": "s", "path": "relative"})), 400),
        ("POST", "/v1/shares", Some(json!({"name": "s", "path": "/x", "deny": [{"who": "z", "rights": "full"}]})), 400),
        ("PATCH", "/v1/settings", Some(json!({"server_name": "under_score"})), 400),
        ("DELETE", "/v1/groups/users", None, 409),
        ("DELETE", "/v1/sessions/1", None, 404),
        ("DELETE", "/v1/opens/zz", None, 400),
        ("GET", "/v1/pools/none", None, 404),
        ("GET", "/v1/jobs/x", None, 400),
        ("PATCH", "/v1/pools/tank/disks/x", Some(json!({"retire": true})), 400),
        ("POST", "/v1/pools", Some(json!({"name": "x"})), 400),
    ] {
        let (status, answer) = f.json(method, path, body).await;
        assert_eq!(status, want, "{method} {path}: {answer}");
        assert_eq!(fault(&document, error, &answer, path), None);
        assert!(!answer["hint"].as_str().unwrap().is_empty(), "{method} {path}");
    }
    // Refused requests changed nothing.
    assert_eq!(f.json("GET", "/v1/shares", None).await.1, json!([]));
    assert_eq!(f.json("GET", "/v1/users", None).await.1.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn servers_are_told_after_the_change() {
    let f = Fixture::of(Arc::new(NoCluster::default()));
    f.json("POST", "/v1/users", Some(json!({"name": "a", "password": "x"}))).await;
    f.json("POST", "/v1/shares", Some(json!({"name": "s", "path": "/x"}))).await;
    f.json("PATCH", "/v1/users/A", Some(json!({"full_name": "An Example"}))).await;
    f.json("PATCH", "/v1/users/A", Some(json!({"password": "y"}))).await;
    f.json("DELETE", "/v1/users/A", None).await;
    f.json("PATCH", "/v1/settings", Some(json!({"signing_required": false}))).await;
    f.json("DELETE", "/v1/shares/S", None).await;
    assert_eq!(f.told(), ["shares", "sessions of a", "accounts", "signing false", "shares"]);
}

/// What another node of the cluster changes is in force here when it is answered there, and each change once.
#[tokio::test]
async fn a_change_is_in_force_at_every_node_when_it_is_answered() {
    let store = Arc::new(MemoryStore::default());
    let here = Arc::new(State::on(store.clone()).unwrap());
    let f = Fixture::new();
    let follows = api(&f.fake, here.clone(), Arc::new(FakeStorage::default()));
    let there = Arc::new(FakeStorage::default());
    there.other.get_or_init(|| follows.clone());
    let state = Arc::new(State::on(store).unwrap());
    let other = router(api(&Arc::default(), state, there));
    let change = async |method: &str, path: &str, body: Value| {
        let request = Request::builder().method(method).uri(path).body(Body::from(body.to_string())).unwrap();
        other.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    let told = ["accounts", "signing true", "shares", "addresses"];
    assert_eq!(change("POST", "/v1/shares", json!({"name": "s", "path": "/x"})).await, 201);
    assert!(here.snapshot().shares.contains_key("s"), "the change is read");
    assert_eq!(f.told(), told, "and applied");
    assert_eq!(change("GET", "/v1/shares/s", Value::Null).await, 200);
    assert_eq!(change("DELETE", "/v1/shares/none", Value::Null).await, 404);
    assert!(f.told().is_empty(), "nothing was changed");
    follows.catch_up().await.unwrap();
    assert!(f.told().is_empty(), "it is in force");
    assert_eq!(change("DELETE", "/v1/shares/s", Value::Null).await, 204);
    assert!(!here.snapshot().shares.contains_key("s") && f.told() == told, "also when it is taken away");

    // Who knew the password of before does not get in again between the end of his sessions and the new one.
    assert_eq!(change("POST", "/v1/users", json!({"name": "a", "password": "x"})).await, 201);
    f.told();
    assert_eq!(change("PATCH", "/v1/users/a", json!({"password": "y"})).await, 200);
    assert_eq!(f.told(), [&told[..2], &["sessions of a"], &told[2..]].concat());
}

/// Shares may wait for a disk. Users and passwords do not wait for shares, nor do sessions that end because of them.
#[tokio::test]
async fn accounts_do_not_wait_for_shares() {
    let store = Arc::new(MemoryStore::default());
    let f = Fixture::new();
    let follows = api(&f.fake, Arc::new(State::on(store.clone()).unwrap()), Arc::new(FakeStorage::default()));
    let there = State::on(store).unwrap();
    let add = |name| {
        there.change(|s| s.add_user(&serde_json::from_value(json!({"name": name, "password": "x"})).unwrap())).unwrap();
    };
    let has = async |user: &str| {
        while follows.state.snapshot().user(user).is_err() || !f.told().contains(&"accounts".to_string()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    f.fake.2.store(true, Ordering::Relaxed);
    follows.follow();
    for user in ["a", "b"] {
        add(user);
        tokio::time::timeout(Duration::from_secs(30), has(user)).await.expect("the change is in force");
    }
    let close = NodeQuestion::CloseUserSessions("a".to_string());
    let closed = tokio::time::timeout(Duration::from_secs(3), answer_node(&follows, close)).await;
    assert!(closed.is_ok() && f.told() == ["sessions of a"]);
    f.fake.2.store(false, Ordering::Relaxed);
    follows.catch_up().await.unwrap();
    assert!(f.told().contains(&"shares".to_string()));
}

/// A watch of etcd that is late tells late who owns the pools. What the state has does not wait for it.
#[tokio::test]
async fn the_state_is_followed_though_the_owners_of_pools_are_not_known() {
    let store = Arc::new(MemoryStore::default());
    let deaf = FakeStorage { deaf: true.into(), ..FakeStorage::default() };
    let f = Fixture::new();
    let follows = api(&f.fake, Arc::new(State::on(store.clone()).unwrap()), Arc::new(deaf));
    let there = State::on(store).unwrap();
    there.change(|s| s.add_user(&serde_json::from_value(json!({"name": "a", "password": "x"})).unwrap())).unwrap();
    assert!(follows.catch_up().await.is_err());
    assert!(follows.state.snapshot().user("a").is_ok() && f.told().contains(&"accounts".to_string()));
}

/// A change whose notice is missed, or comes while the store cannot be read, comes into force all the same.
#[tokio::test]
async fn a_change_is_followed_though_the_store_could_not_be_read() {
    let store = Arc::new(Unread::default());
    let f = Fixture::new();
    let follows = api(&f.fake, Arc::new(State::on(store.clone()).unwrap()), Arc::new(FakeStorage::default()));
    let there = State::on(store.clone()).unwrap();
    there.change(|s| s.add_user(&serde_json::from_value(json!({"name": "a", "password": "x"})).unwrap())).unwrap();
    store.fails.store(1, Ordering::Relaxed);
    follows.follow();
    let has = async || {
        while follows.state.snapshot().user("a").is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), has()).await.expect("the change is read");
    assert_eq!(store.fails.load(Ordering::Relaxed), 0);
}

/// A store that cannot be read for some times.
#[derive(Debug, Default)]
struct Unread {
    inner: MemoryStore,
    fails: AtomicU32,
}

impl StateStore for Unread {
    fn read(&self) -> Result<Contents> {
        self.inner.read()
    }
    fn newest(&self) -> Result<Revision> {
        let fails = self.fails.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        fails.map_or_else(|_| self.inner.newest(), |_| Err(AdminError::failed("it does not answer", "")))
    }
    fn commit(&self, expected: Revision, changes: &[Change]) -> Result<Commit> {
        self.inner.commit(expected, changes)
    }
    fn watch(&self) -> tokio::sync::watch::Receiver<Revision> {
        self.inner.watch()
    }
}

#[tokio::test]
async fn lists_and_closing_reach_all_nodes() {
    let f = Fixture::new();
    let sessions = f.json("GET", "/v1/sessions", None).await.1;
    let of = |list: &Value, field| list.as_array().unwrap().iter().map(|v| v[field].clone()).collect::<Vec<_>>();
    assert_eq!(of(&sessions, "node"), ["n1", "n2"]);
    let opens = f.json("GET", "/v1/opens", None).await.1;
    assert_eq!(of(&opens, "node"), ["n1", "n2"]);
    assert_eq!(of(&opens, "client"), ["127.0.0.1:5", "127.0.0.1:5"], "the second is of a client of the first node");
    for (path, status) in [("sessions/77", 204), ("sessions/78", 404), ("opens/88", 204), ("opens/89", 404)] {
        assert_eq!(f.json("DELETE", &format!("/v1/{path}"), None).await.0, status, "{path}");
    }
    let closed = f.json("DELETE", "/v1/users/alice/sessions", None).await.1;
    assert_eq!(closed["closed"], 3);
}

#[tokio::test]
async fn what_another_node_owns_is_handled_there() {
    let f = Fixture::new();
    let volume = json!({"name": "v", "space": "s", "pool": "fa"});
    let volume: crate::volume::VolumeRecord = serde_json::from_value(volume).unwrap();
    f.fake.1.get().unwrap().change(|s| Ok(s.volumes.insert("v".into(), volume.clone()))).unwrap();
    let share = json!({"name": "of v", "volume": "v", "path": "/"});
    let body = share.to_string();
    // Method and path, and what the owner is asked.
    for (method, path, body, asked) in [
        ("GET", "/v1/pools/far", "", "/v1/pools/far"),
        ("PATCH", "/v1/pools/far/spaces/a%20b", "{}", "/v1/pools/far/spaces/a%20b"),
        ("POST", "/v1/volumes/V/snapshots", "{}", "/v1/volumes/V/snapshots"),
        ("POST", "/v1/shares", &body, "/v1/shares"),
        ("PATCH", "/v1/jobs/8589934593", "{}", "/v1/jobs/1"),
    ] {
        let sent = (!body.is_empty()).then(|| serde_json::from_str(body).unwrap());
        let (status, answer) = f.json(method, path, sent).await;
        assert_eq!((status, &answer["method"], &answer["path"]), (200, &json!(method), &json!(asked)), "{answer}");
    }
    for path in ["/v1/pools/tank", "/v1/jobs/1"] {
        assert!(f.json("GET", path, None).await.1["method"].is_null(), "{path} is here");
    }
    assert!(f.json("PUT", "/v1/pools/far/owner", Some(json!({"node": "b"}))).await.1["method"].is_null());
    let jobs = f.json("GET", "/v1/jobs", None).await.1;
    let of = |field: &str| jobs.as_array().unwrap().iter().map(|job| job[field].clone()).collect::<Vec<_>>();
    assert_eq!((of("pool"), of("id")), (vec![json!("tank"), json!("far")], vec![json!(1), json!((2u64 << 32) + 1)]));
    // What was passed on goes no further.
    let api = api(&f.fake, f.fake.1.get().unwrap().clone(), Arc::new(FakeStorage::default()));
    let passed_on = async |method: &str, path: &str| {
        let (method, path, body) = (method.to_string(), path.to_string(), String::new());
        handle_for_node(api.clone(), crate::cluster::NodeRequest { method, path, body }).await
    };
    let response = passed_on("GET", "/v1/pools/far").await;
    assert!(response.status == 404 && response.body.contains("there is no pool"), "{response:?}");
    // Nor does it reach what is not a pool's.
    for (method, path) in [
        ("POST", "/v1/disks/wipe"),
        ("DELETE", "/v1/users/erin"),
        ("PUT", "/v1/pools/tank/take"),
        ("POST", "/v1/cluster"),
        ("POST", "/v1/cluster/tokens"),
        ("PATCH", "/v1/settings"),
    ] {
        let response = passed_on(method, path).await;
        assert!(response.status == 400 && response.body.contains("does not pass"), "{path}: {response:?}");
    }
}

/// Through a node a body is taken and refused as at the owner itself.
#[tokio::test]
async fn a_body_is_the_same_to_the_owner_and_through_a_node() {
    let f = Fixture::new();
    let post = async |path: &str, body: Vec<u8>| {
        let request = Request::builder().method("POST").uri(path).body(Body::from(body)).unwrap();
        let answer = f.router.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice::<Value>(&bytes).unwrap_or(Value::Null))
    };
    let there = async |body: &[u8]| post("/v1/pools/far/spaces", body.to_vec()).await;
    let here = async |body: &[u8]| post("/v1/pools/tank/spaces", body.to_vec()).await;
    let (status, answer) = here(b"{\"name\": \"caf\xe9\", \"layout\": \"parity\"}").await;
    assert!(status == 400 && answer["error"].as_str().unwrap().contains("unicode"), "{answer}");
    assert_eq!(there(b"{\"name\": \"caf\xe9\", \"layout\": \"parity\"}").await, (status, answer));
    let long = [b"{\"name\": \"q\", \"layout\": \"parity\"}".to_vec(), vec![b'\n'; 255 << 10]].concat();
    assert_eq!(here(&long).await.0, 201);
    let (status, answer) = there(&long).await;
    assert_eq!((status, answer["body"].as_str().map(str::len)), (200, Some(long.len())));
    let too_long = vec![b' '; BODY_BYTES_MAX + 1];
    assert_eq!((here(&too_long).await.0, there(&too_long).await.0), (400, 400));
}

#[tokio::test]
async fn a_job_has_one_number_at_each_node() {
    let f = Fixture::new();
    // That of this node, as it prints it and as the others do.
    for id in [3, (1u64 << 32) + 3] {
        assert_eq!(f.json("GET", &format!("/v1/jobs/{id}"), None).await.1["id"], 3, "{id}");
    }
    // What the owner says of its job 4 can be typed here.
    let there = (2u64 << 32) + 4;
    let (status, answer) = f.json("DELETE", &format!("/v1/jobs/{there}"), None).await;
    assert_eq!((status, &answer["error"]), (409, &json!(format!("job {there} is done"))));
    let hint = format!("`arden job cancel {there}`; there is no job \"{there}\", and no job at 4");
    assert_eq!(answer["hint"], hint);
}

/// Knows pools by these names.
fn know_pools(f: &Fixture, names: &[&str]) {
    let pool = |name: &&str| {
        let record = json!({"name": name, "id": format!("id of {name}"), "devices": [], "grace_seconds": 0});
        (name.to_string(), serde_json::from_value(record).unwrap())
    };
    let change = |s: &mut crate::state::Snapshot| {
        s.pools = names.iter().map(pool).collect();
        Ok(())
    };
    f.fake.1.get().unwrap().change(change).unwrap();
}

#[tokio::test]
async fn a_space_of_several_pools_is_not_taken_by_its_name() {
    let f = Fixture::new();
    know_pools(&f, &["tank", "pond"]);
    let create = async |space: &str, pool: Option<&str>| {
        let mut body = json!({"name": "new", "space": space, "force": true});
        pool.into_iter().for_each(|pool| body["pool"] = pool.into());
        f.json("POST", "/v1/volumes", Some(body)).await
    };
    // `vm` is a space of both: here of `tank`, at another node of `pond`.
    let (status, answer) = create("vm", None).await;
    assert_eq!((status, &answer["hint"]), (409, &json!("say which with --pool")), "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("pond, tank"), "{answer}");
    assert_eq!(create("vm", Some("tank")).await.0, 201);
    for (space, pool) in [("vm", Some("pond")), ("vm", Some("id of pond")), ("p", None)] {
        let (status, answer) = create(space, pool).await;
        assert_eq!((status, &answer["path"]), (200, &json!("/v1/volumes")), "{space} {pool:?}: {answer}");
    }
    let record = json!({"name": "new", "space": "vm"});
    assert_eq!(f.json("PUT", "/v1/volumes", Some(record)).await.0, 409);
    let new_space = async |name: &str| {
        f.json("POST", "/v1/pools/tank/spaces", Some(json!({"name": name, "layout": "parity"}))).await
    };
    assert_eq!(new_space("q").await.0, 201);
    let (status, answer) = new_space("p").await;
    assert_eq!((status, &answer["kind"]), (409, &json!("exists")), "{answer}");
    assert!(answer["hint"].as_str().unwrap().contains("pool \"pond\" has it"), "{answer}");
    // A pool that nobody has open may have a space of that name, too.
    know_pools(&f, &["tank", "pond", "lost"]);
    for (space, says) in [("p", "another pool may have one"), ("none", "not every pool is open")] {
        let (status, answer) = create(space, None).await;
        assert!(status == 409 && answer["error"].as_str().unwrap().contains(says), "{answer}");
        assert!(answer["error"].as_str().unwrap().contains("lost"), "{answer}");
    }
    assert_eq!(create("p", Some("pond")).await.0, 200);
    assert_eq!(new_space("q").await.0, 201);
}

#[tokio::test]
async fn a_volume_without_an_owner_is_not_said_to_be_missing() {
    let f = Fixture::new();
    know_pools(&f, &["tank", "lost"]);
    let volume = json!({"name": "docs", "space": "s", "pool": "id of lost"});
    let volume: crate::volume::VolumeRecord = serde_json::from_value(volume).unwrap();
    f.fake.1.get().unwrap().change(|s| Ok(s.volumes.insert("docs".into(), volume.clone()))).unwrap();
    for (method, path, body) in [
        ("POST", "/v1/volumes/docs/snapshots", json!({"label": ""})),
        ("PUT", "/v1/volumes/docs/quotas", json!({})),
        ("PATCH", "/v1/volumes/docs", json!({})),
        ("POST", "/v1/shares", json!({"name": "s", "volume": "docs", "path": "/"})),
        ("POST", "/v1/volumes", json!({"name": "w", "space": "s", "pool": "lost"})),
    ] {
        let (status, answer) = f.json(method, path, Some(body)).await;
        assert_eq!((status, &answer["kind"]), (409, &json!("conflict")), "{path}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains("owns the pool \"lost\""), "{path}: {answer}");
    }
    assert_eq!(f.json("GET", "/v1/volumes/docs", None).await.0, 200);
    // Of a volume that nobody knows another node may know more.
    let (status, answer) = f.json("GET", "/v1/volumes/silent", None).await;
    assert!(status == 500 && answer["error"].as_str().unwrap().contains("node n2"), "{answer}");
}

#[tokio::test]
async fn others_change_the_state_while_a_share_is_checked() {
    let f = Fixture::new();
    assert_eq!(f.json("POST", "/v1/shares", Some(json!({"name": "s", "path": "/slow"}))).await.0, 201);
    assert_eq!(f.json("PATCH", "/v1/shares/s", Some(json!({"path": "/slow/er"}))).await.0, 200);
    assert_eq!(f.json("GET", "/v1/shares/s", None).await.1["path"], "/slow/er");
}

#[tokio::test]
async fn the_socket_is_private_and_replaces_a_dead_one() {
    let f = Fixture::new();
    let path = f.dir.join("api.sock");
    drop(bind(&path).unwrap());
    assert!(path.exists(), "a dead socket stays behind");
    let listener = bind(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let api = api(&f.fake, Arc::new(State::in_memory().unwrap()), Arc::new(FakeStorage::default()));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(serve(listener, api, async move {
        let _ = stopped.await;
    }));
    let dir = f.dir.clone();
    let status: Value =
        tokio::task::spawn_blocking(move || crate::client::Client::new(&dir).get("/v1/status").unwrap()).await.unwrap();
    assert_eq!((&status["sessions"], &status["share_problems"][0]["share"]), (&1.into(), &"docs".into()));
    stop.send(()).unwrap();
    server.await.unwrap().unwrap();
}

#[tokio::test]
async fn metrics_name_pools_disks_spaces_and_long_work() {
    let f = Fixture::new();
    let (status, text) = f.call("GET", "/metrics", None).await;
    let text = String::from_utf8(text).unwrap();
    assert_eq!(status, 200);
    for line in [
        "arden_pools_answer 1",
        "arden_pool_open{pool=\"tank\"} 1",
        "arden_pool_health{pool=\"tank\"} 1",
        "arden_pool_free_bytes{pool=\"tank\"} 536870912",
        "arden_disk_used_bytes{pool=\"tank\",disk=\"0\",path=\"/d\"} 4194304",
        "arden_disk_read_seconds{pool=\"tank\",disk=\"0\",path=\"/d\"} 0.00008",
        "arden_disk_write_errors_total{pool=\"tank\",disk=\"0\",path=\"/d\"} 0",
        "arden_space_health{pool=\"tank\",space=\"vm\",layout=\"parity\"} 1",
        "arden_space_up_to_date_ratio{pool=\"tank\",space=\"vm\",layout=\"parity\"} 0.66",
        "arden_pool_work_done{pool=\"tank\",work=\"repair\"} 1",
        "arden_pool_work_steps{pool=\"tank\",work=\"repair\"} 2",
        "arden_share_problems 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
}

#[test]
fn every_field_is_described() {
    let document = crate::openapi::document(&routes());
    let schemas = document.pointer("/components/schemas").unwrap().as_object().unwrap();
    assert!(schemas.len() > 50, "{}", schemas.len());
    for (name, schema) in schemas {
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            assert!(property["description"].as_str().is_some_and(|d| d.len() > 3), "{name}.{field}");
        }
    }
}
