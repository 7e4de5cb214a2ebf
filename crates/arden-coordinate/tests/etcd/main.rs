//! Against a real etcd (Debian's etcd-server), which each test starts for itself: the suite of every state store, what a token and a
//! join are, and an etcd that was emptied. Without the program `etcd` the tests say so and pass.

mod alive;
mod gaps;
mod joining;
mod pools;
mod removed;
mod silent;

use std::{
    collections::BTreeSet,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use arden_admin::{
    ErrorKind, State, StateDirectory,
    cluster::{ClusterAdmin, NodeChange},
    model::NewUser,
    state::StateStore,
};
use arden_cluster::{Epoch, Holder, ImportError, PoolId};
use arden_coordinate::{
    ClientFiles, ClusterApi, Etcd, EtcdFiles, EtcdStore, Hands, Member, Names, NewCluster, Opening, PoolGate, Reserve,
    Victim, departure, membership,
    peers::{Listener, PeerError},
};
use arden_testkit::state::{Open, failures};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

struct Server {
    dir: PathBuf,
    url: String,
    child: Option<Child>,
    tls: Option<EtcdFiles>,
}

fn port() -> u16 {
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/free-port")).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

impl Server {
    fn start() -> Option<Server> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("arden-etcd-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let server = Server { dir, url: format!("http://127.0.0.1:{}", port()), child: None, tls: None };
        server.started()
    }

    fn started(mut self) -> Option<Server> {
        if !self.run() {
            eprintln!("skipped: there is no program etcd (Debian: etcd-server)");
            return None;
        }
        Some(self)
    }

    fn run(&mut self) -> bool {
        let peer = format!("http://127.0.0.1:{}", port());
        let mut etcd = Command::new("etcd");
        if self.tls.is_some() {
            let file = |name: &str| self.dir.join(name);
            etcd.arg("--client-cert-auth").arg("--trusted-ca-file").arg(file("ca.pem"));
            etcd.arg("--cert-file").arg(file("server.pem")).arg("--key-file").arg(file("server.key"));
        }
        let started = etcd
            .args(["--name", "e", "--log-level", "error", "--unsafe-no-fsync", "--data-dir"])
            .arg(self.dir.join("data"))
            .args(["--listen-client-urls", &self.url, "--advertise-client-urls", &self.url])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("e={peer}")])
            // The suite changes 2 MiB at once; without this etcd takes 1.5 MiB.
            .args(["--max-request-bytes", "16777216"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = started.ok();
        if self.child.is_none() {
            return false;
        }
        let etcd = Etcd::start(std::slice::from_ref(&self.url), self.tls.as_ref()).unwrap();
        for _ in 0..200 {
            if etcd.read_now("/", "/").is_ok() {
                return true;
            }
            thread::sleep(Duration::from_millis(50));
        }
        panic!("etcd does not answer");
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn directory(&self, name: &str) -> Arc<StateDirectory> {
        Arc::new(StateDirectory::open(&self.dir.join(name)).unwrap())
    }

    fn cluster(&self) -> NewCluster {
        NewCluster {
            name: "FILES".into(),
            node: "a".into(),
            etcd: vec![self.url.clone()],
            etcd_tls: self.tls.clone(),
            lease_seconds: 3,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn user(name: &str) -> NewUser {
    NewUser {
        name: name.into(),
        password: "a-plain-secret".into(),
        full_name: String::new(),
        groups: vec![],
        disabled: false,
    }
}

#[test]
fn it_passes_the_suite_of_state_stores() {
    let Some(server) = Server::start() else { return };
    let number = AtomicU32::new(0);
    let make = || -> Open {
        // A cluster of its own for each check, whose state is taken away.
        let name = format!("s{}", number.fetch_add(1, Ordering::Relaxed));
        let directory = server.directory(&name);
        membership::init(&directory, &server.cluster(), |_| Ok(Vec::new())).unwrap();
        let found = membership::load(directory.path()).unwrap().unwrap();
        let etcd = Etcd::start(&found.etcd, None).unwrap();
        etcd.delete_now(&found.names().state()).unwrap();
        let path = directory.path().to_path_buf();
        Box::new(move || -> Arc<dyn StateStore> { EtcdStore::of(&etcd, &path, &found).unwrap() })
    };
    assert_eq!(failures(&make), Vec::<&str>::new());
}

#[test]
fn a_cluster_has_the_state_of_its_first_node_and_one_token_one_node() {
    let Some(server) = Server::start() else { return };
    let first = server.directory("a");
    let sid = {
        let state = State::open(&first).unwrap();
        state.change(|s| s.add_user(&user("alice"))).unwrap();
        state.snapshot().machine_sid.clone()
    };
    let a = membership::init(&first, &server.cluster(), |_| Ok(Vec::new())).unwrap();
    assert_eq!(membership::init(&first, &server.cluster(), |_| Ok(Vec::new())).unwrap_err().kind, ErrorKind::Conflict);
    assert!(!first.state_file().exists(), "what is left of the old state is not used by mistake");
    let member = Member::connect(first.path(), a.clone()).unwrap();
    let state = State::on(member.state_store()).unwrap();
    assert_eq!(state.snapshot().machine_sid, sid);
    assert!(state.snapshot().user("alice").is_ok());
    assert_eq!(state.snapshot().server_name(), "FILES");

    let token = member.new_token().unwrap().token;
    let urls = std::slice::from_ref(&server.url);
    let join = |dir: &str, token: &str, name: &str| membership::join(&server.directory(dir), urls, None, token, name);
    assert_eq!(join("b", "nonsense", "b").unwrap_err().kind, ErrorKind::Invalid);
    assert!(join("b", &token, "a").unwrap_err().error.contains("has a node a"));
    let wrong = format!("{}.{}", a.cluster.id, "0".repeat(32));
    assert!(join("b", &wrong, "b").unwrap_err().error.contains("used, or is more than an hour old"));
    let b = join("b", &token, "b").unwrap();
    assert_eq!((b.node, b.cluster.clone()), (2, a.cluster.clone()));
    assert!(join("c", &token, "c").is_err(), "a token is good once");
    let other = Member::connect(server.directory("b").path(), b).unwrap();
    let there = State::on(other.state_store()).unwrap();
    there.change(|s| s.add_user(&user("bob"))).unwrap();
    state.refreshed().unwrap();
    assert!(state.snapshot().user("bob").is_ok());
    let full = server.directory("full");
    State::open(&full).unwrap().change(|s| s.add_user(&user("carol"))).unwrap();
    let token = member.new_token().unwrap().token;
    assert!(membership::join(&full, urls, None, &token, "d").unwrap_err().error.contains("would be lost"));
}

#[test]
fn an_emptied_etcd_is_refused_and_no_state_is_read_from_it() {
    let Some(mut server) = Server::start() else { return };
    let directory = server.directory("a");
    let a = membership::init(&directory, &server.cluster(), |_| Ok(Vec::new())).unwrap();
    let member = Member::connect(directory.path(), a.clone()).unwrap();
    let state = State::on(member.state_store()).unwrap();
    state.change(|s| s.add_user(&user("alice"))).unwrap();
    server.stop();
    std::fs::remove_dir_all(server.dir.join("data")).unwrap();
    server.run();
    let refused = state.refreshed().unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Conflict, "{refused}");
    assert!(state.snapshot().user("alice").is_ok(), "what was read before stays");
    assert!(state.change(|s| s.add_user(&user("bob"))).is_err());
    let error = Member::connect(directory.path(), a.clone()).err().unwrap();
    assert!(error.error.contains("went back"), "{error}");
    membership::trust(&directory).unwrap();
    let error = Member::connect(directory.path(), a).err().unwrap();
    assert!(error.error.contains("emptied"), "believed or not, the cluster is not there: {error}");
}

/// A daemon without pools.
struct NoPools {
    /// It opens any pool all the same.
    opens: AtomicBool,
    /// It panics when it is to serve a pool, once.
    panics: AtomicBool,
    /// Held by a test: no pool is served meanwhile.
    serving: Mutex<()>,
    /// By which disks know its machine.
    name: Mutex<String>,
    /// How often it was asked to register its key or to fence.
    entered: AtomicU32,
}

impl Default for NoPools {
    /// Every node has the same name.
    fn default() -> NoPools {
        let (opens, panics) = (AtomicBool::new(false), AtomicBool::new(false));
        let (serving, name) = (Mutex::default(), Mutex::new("nvme:01".into()));
        NoPools { opens, panics, serving, name, entered: AtomicU32::new(0) }
    }
}

impl Hands for NoPools {
    fn import(&self, _: PoolId, _: Opening) -> Result<(), (ImportError, String)> {
        let error = (ImportError::Other, "there is none".to_string());
        if self.opens.load(Ordering::SeqCst) { Ok(()) } else { Err(error) }
    }
    fn fence_disks(&self, _: PoolId, _: Reserve, _: Holder, _: Victim) -> Result<(), String> {
        self.entered.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn register_disks(&self, _: PoolId, _: Reserve, _: Holder, _: &[Victim]) -> Result<Vec<Holder>, String> {
        self.entered.fetch_add(1, Ordering::SeqCst);
        Err("there is none".to_string())
    }
    fn check_disks(&self, _: PoolId, _: Reserve) -> Result<(), String> {
        Err("there is none".to_string())
    }
    fn names_at_disks(&self, _: PoolId, _: Reserve) -> Result<Vec<String>, String> {
        Ok(vec![self.name.lock().unwrap().clone()])
    }
    fn serve(&self, _: PoolId, _: &Arc<PoolGate>) {
        assert!(!self.panics.swap(false, Ordering::SeqCst), "a test");
        drop(self.serving.lock().unwrap());
    }
    fn close(&self, _: PoolId) -> bool {
        true
    }
    fn stop(&self, _: PoolId) {}
    fn newest_epoch(&self, _: PoolId) -> Result<Epoch, String> {
        if self.opens.load(Ordering::SeqCst) { Ok(Epoch(4)) } else { Err("there is none".to_string()) }
    }
}

async fn listen(member: &Arc<Member>) -> Listener {
    listen_with(member, &Arc::default()).await
}

async fn listen_with(member: &Arc<Member>, hands: &Arc<NoPools>) -> Listener {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), member.peers(), Arc::new(|_, _| {})).await.unwrap();
    member.start(hands.clone(), Vec::new(), vec![listener.address().to_string()]).unwrap();
    listener
}

#[test]
fn nodes_find_each_other_by_etcd_until_one_is_taken_out() {
    let Some(server) = Server::start() else { return };
    let (first, second) = (server.directory("a"), server.directory("b"));
    let a = membership::init(&first, &server.cluster(), |_| Ok(Vec::new())).unwrap();
    let names = a.names();
    let a = Member::connect(first.path(), a).unwrap();
    let token = a.new_token().unwrap().token;
    let urls = std::slice::from_ref(&server.url);
    let b = membership::join(&second, urls, None, &token, "b").unwrap();
    let b = Member::connect(second.path(), b).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (connected, accepted) = runtime.block_on(async {
        let (_at_a, mut at_b) = (listen(&a).await, listen(&b).await);
        let (mut at_first, mut at_second) = (a.peers().table(), b.peers().table());
        let is_there = |n: u16| {
            move |t: &arden_coordinate::peers::Table| {
                t.get(&n).is_some_and(|k| k.run.is_some() && !k.addresses.is_empty())
            }
        };
        for at in [&mut at_first, &mut at_second] {
            at.wait_for(is_there(1)).await.unwrap();
            at.wait_for(is_there(2)).await.unwrap();
        }
        let (connected, accepted) = tokio::join!(a.peers().connect(2), at_b.accept());
        (connected.unwrap(), accepted.unwrap())
    });
    assert_eq!((connected.node, accepted.node), (2, 1));
    assert_eq!(connected.run, b.peers().me().run);
    // Without its key in etcd a node is cut off, and does not start again.
    let etcd = Etcd::start(urls, None).unwrap();
    etcd.delete_now(&names.node(2)).unwrap();
    let mut stream = connected.stream;
    runtime.block_on(async {
        let read = tokio::time::timeout(Duration::from_secs(10), tokio::io::AsyncReadExt::read_u8(&mut stream)).await;
        assert_eq!(read.expect("it ends").unwrap_err().kind(), std::io::ErrorKind::ConnectionAborted);
        assert!(matches!(a.peers().connect(2).await, Err(PeerError::Unknown(_))));
    });
    b.leave();
    let again = Member::connect(second.path(), membership::load(second.path()).unwrap().unwrap());
    assert!(again.err().unwrap().error.contains("no node 2"));
    a.leave();
}

#[test]
fn a_node_is_its_key_and_one_from_before_keys_makes_it() {
    let Some(server) = Server::start() else { return };
    let directory = server.directory("a");
    let a = membership::init(&directory, &server.cluster(), |_| Ok(Vec::new())).unwrap();
    let file = directory.path().join("node.pem");
    let kept = std::fs::read(&file).unwrap();
    let connect = || Member::connect(directory.path(), a.clone());
    connect().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(connect().err().unwrap().error.contains("is gone"));
    let other = server.directory("other");
    arden_coordinate::Identity::make(other.path(), &a.cluster.id, "a").unwrap();
    std::fs::copy(other.path().join("node.pem"), &file).unwrap();
    let error = connect().err().unwrap();
    assert!(error.kind == ErrorKind::Conflict && error.error.contains("another certificate"), "{error}");
    std::fs::write(&file, &kept).unwrap();
    connect().unwrap();
    // An entry as nodes made it before they had certificates.
    let etcd = Etcd::start(&a.etcd, None).unwrap();
    etcd.put_now(&a.names().node(1), br#"{"name":"a","version":1}"#).unwrap();
    let fingerprint = connect().unwrap().peers().table().borrow()[&1].fingerprint;
    assert!(fingerprint.is_some());
    assert_ne!(std::fs::read(&file).unwrap(), kept);
    assert_eq!(connect().unwrap().peers().table().borrow()[&1].fingerprint, fingerprint, "it is made once");
}

type Authority = CertifiedIssuer<'static, KeyPair>;

/// An authority, whose certificate is in `NAME.pem`.
fn authority(dir: &Path, name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let made = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(dir.join(format!("{name}.pem")), made.pem()).unwrap();
    made
}

/// A certificate for `host` in `NAME.pem`, and its key in `NAME.key`.
fn issue(dir: &Path, by: &Authority, name: &str, host: &str, expired: bool) -> ClientFiles {
    let mut params = CertificateParams::new(vec![host.to_string()]).unwrap();
    // etcd's gateway logs on to etcd itself with the server's certificate.
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    if expired {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    }
    let key = KeyPair::generate().unwrap();
    let made = params.signed_by(&key, by).unwrap();
    let files = ClientFiles { certificate: dir.join(format!("{name}.pem")), key: dir.join(format!("{name}.key")) };
    std::fs::write(&files.certificate, made.pem()).unwrap();
    std::fs::write(&files.key, key.serialize_pem()).unwrap();
    std::fs::set_permissions(&files.key, PermissionsExt::from_mode(0o600)).unwrap();
    files
}

impl Server {
    /// etcd with TLS, which wants certificates of its clients.
    fn with_tls(name: &str) -> Option<(Server, Authority)> {
        let dir = std::env::temp_dir().join(format!("arden-etcd-tls-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let by = authority(&dir, "ca");
        issue(&dir, &by, "server", "127.0.0.1", false);
        let client = Some(issue(&dir, &by, "client", "n1", false));
        let tls = Some(EtcdFiles { ca: dir.join("ca.pem"), client });
        let server = Server { dir, url: format!("https://127.0.0.1:{}", port()), child: None, tls };
        Some((server.started()?, by))
    }

    /// What an attempt with these files says.
    fn says(&self, url: &str, tls: Option<EtcdFiles>) -> String {
        let etcd = match Etcd::start(&[url.to_string()], tls.as_ref()) {
            Ok(etcd) => etcd,
            Err(e) => return e.error,
        };
        etcd.read_now("/", "/").map_or_else(|e| e.to_string(), |_| "it works".to_string())
    }
}

#[test]
fn a_cluster_lives_in_an_etcd_with_tls() {
    let Some((server, _)) = Server::with_tls("cluster") else { return };
    let first = server.directory("a");
    let a = membership::init(&first, &server.cluster(), |_| Ok(Vec::new())).unwrap();
    let loaded = membership::load(first.path()).unwrap().unwrap();
    assert_eq!((loaded.etcd_tls.clone(), &loaded), (server.tls.clone(), &a));
    let a = Member::connect(first.path(), loaded).unwrap();
    let token = a.new_token().unwrap().token;
    let second = server.directory("b");
    let urls = std::slice::from_ref(&server.url);
    assert!(membership::join(&second, urls, None, &token, "b").unwrap_err().error.contains("--etcd-ca"));
    let b = membership::join(&second, urls, server.tls.clone(), &token, "b").unwrap();
    let b = Member::connect(second.path(), b).unwrap();
    // Leases, and what the watch tells.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (_at_a, _at_b) = (listen(&a).await, listen(&b).await);
        let mut table = a.peers().table();
        table.wait_for(|t| t.get(&2).is_some_and(|k| !k.addresses.is_empty())).await.unwrap();
    });
    a.leave();
    b.leave();
}

#[test]
fn an_etcd_that_is_not_trusted_or_does_not_trust_is_refused_with_the_reason() {
    let Some((server, by)) = Server::with_tls("refused") else { return };
    let (dir, url) = (server.dir.clone(), server.url.clone());
    let good = server.tls.clone().unwrap();
    assert_eq!(server.says(&url, Some(good.clone())), "it works");
    let other = authority(&dir, "other");
    let with = |client: Option<ClientFiles>| Some(EtcdFiles { client, ..good.clone() });
    let check = |url: &str, tls: Option<EtcdFiles>, says: &str| {
        let said = server.says(url, tls);
        assert!(said.contains(says), "{said:?} instead of {says:?}");
    };
    let wrong = EtcdFiles { ca: dir.join("other.pem"), ..good.clone() };
    check(&url, Some(wrong), "no authority in");
    check(&url, with(None), "wants a certificate of its clients");
    check(&url, with(Some(issue(&dir, &other, "stranger", "n1", false))), "does not take this node's certificate");
    check(&url, with(Some(issue(&dir, &by, "old", "n1", true))), "does not take this node's certificate");
    check(&url, None, "--etcd-ca");
    check(&url.replace("https", "http"), Some(good.clone()), "without TLS");
    check(&url.replace("https", "http"), None, "if it wants TLS, write https://");
    check(&url.replace("127.0.0.1", "localhost"), Some(good.clone()), "for another name or address");
    // Files that are not usable.
    let mixed = ClientFiles { key: dir.join("old.key"), ..good.client.clone().unwrap() };
    check(&url, with(Some(mixed)), "old.key");
    check(&url, Some(EtcdFiles { ca: dir.join("absent.pem"), ..good.clone() }), "absent.pem");
    check(&url, Some(EtcdFiles { ca: dir.join("client.key"), ..good.clone() }), "no certificate in PEM");
    let open = issue(&dir, &by, "open", "n1", false);
    std::fs::set_permissions(&open.key, PermissionsExt::from_mode(0o644)).unwrap();
    check(&url, with(Some(open)), "everybody on this machine can access the key");
    // A file that is replaced is used without a restart.
    let etcd = Etcd::start(std::slice::from_ref(&url), with(Some(issue(&dir, &other, "turned", "n1", false))).as_ref())
        .unwrap();
    assert!(etcd.read_now("/", "/").is_err());
    issue(&dir, &by, "turned", "n1", false);
    etcd.read_now("/", "/").unwrap();
}

#[test]
fn an_etcd_whose_certificate_has_expired_and_one_without_tls_are_refused() {
    let Some(plain) = Server::start() else { return };
    let by = authority(&plain.dir, "ca");
    let tls = Some(EtcdFiles { ca: plain.dir.join("ca.pem"), client: None });
    let said = plain.says(&plain.url.replace("http", "https"), tls.clone());
    assert!(said.contains("if it has no TLS, write http://"), "{said}");
    // The same from a server that closes without reading the hello, which resets the connection.
    let resets = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", resets.local_addr().unwrap());
    thread::spawn(move || resets.incoming().flatten().for_each(|tcp| drop(tcp.peek(&mut [0]))));
    let said = plain.says(&url, tls.clone());
    assert!(said.contains("if it has no TLS, write http://"), "{said}");
    issue(&plain.dir, &by, "old", "127.0.0.1", true);
    // etcd itself does not start with such a certificate where it has to log on to itself: openssl shows it instead.
    let port = port();
    let server = Command::new("openssl")
        .args(["s_server", "-quiet", "-www", "-accept", &port.to_string(), "-cert"])
        .arg(plain.dir.join("old.pem"))
        .arg("-key")
        .arg(plain.dir.join("old.key"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut server) = server else { return eprintln!("skipped: there is no program openssl") };
    let mut said = String::new();
    for _ in 0..100 {
        said = plain.says(&format!("https://127.0.0.1:{port}"), tls.clone());
        if !said.contains("refused") {
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(said.contains("has expired"), "{said}");
}

/// A cluster of two nodes whose daemons run, and the runtime on which they listen.
struct Two {
    server: Server,
    directories: [Arc<StateDirectory>; 2],
    members: [Arc<Member>; 2],
    hands: [Arc<NoPools>; 2],
    runtime: tokio::runtime::Runtime,
    listeners: [Listener; 2],
}

impl Two {
    fn new() -> Option<Two> {
        Two::with(None, ["nvme:01"; 2])
    }

    /// With this configuration of the pool, and nodes that disks know by these names.
    fn with(config: Option<&str>, known_as: [&str; 2]) -> Option<Two> {
        // A pool that nobody can open: its keys are what counts.
        let hands = known_as.map(|name| Arc::new(NoPools { name: Mutex::new(name.into()), ..NoPools::default() }));
        Two::started(hands, |etcd, names| {
            if let Some(config) = config {
                etcd.put_now(&names.config(POOL), config.as_bytes()).unwrap();
            }
        })
    }

    /// `prepare` changes the cluster before the first node of it starts.
    fn started(hands: [Arc<NoPools>; 2], prepare: impl FnOnce(&Arc<Etcd>, &Names)) -> Option<Two> {
        let server = Server::start()?;
        let directories = [server.directory("a"), server.directory("b")];
        let a = membership::init(&directories[0], &server.cluster(), |_| Ok(vec![(POOL, Epoch(4))])).unwrap();
        prepare(&Etcd::start(std::slice::from_ref(&server.url), None).unwrap(), &a.names());
        let a = Member::connect(directories[0].path(), a).unwrap();
        let token = a.new_token().unwrap().token;
        let b = membership::join(&directories[1], std::slice::from_ref(&server.url), None, &token, "b").unwrap();
        let b = Member::connect(directories[1].path(), b).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listeners =
            runtime.block_on(async { [listen_with(&a, &hands[0]).await, listen_with(&b, &hands[1]).await] });
        let two = Two { server, directories, members: [a, b], hands, runtime, listeners };
        for member in &two.members {
            // Also that it has a lease itself: without one it connects to nobody.
            two.until(member, |t| t.values().filter(|k| !k.addresses.is_empty() && k.run.is_some()).count() == 2);
        }
        Some(two)
    }

    fn until(&self, member: &Member, is: impl Fn(&arden_coordinate::peers::Table) -> bool) {
        let mut table = member.peers().table();
        let wait = self.runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(10), table.wait_for(is)).await.map(|r| r.is_ok())
        });
        assert_eq!(wait, Ok(true));
    }

    fn api(&self, of: usize) -> ClusterApi {
        let member = self.members[of].clone();
        let state = Arc::new(State::on(member.state_store()).unwrap());
        ClusterApi { member, state }
    }

    fn join(&self, dir: &str, name: &str) -> membership::Membership {
        let token = self.members[0].new_token().unwrap().token;
        let urls = std::slice::from_ref(&self.server.url);
        membership::join(&self.server.directory(dir), urls, None, &token, name).unwrap()
    }

    fn etcd(&self) -> (Arc<Etcd>, Names) {
        let names = membership::load(self.directories[0].path()).unwrap().unwrap().names();
        (Etcd::start(std::slice::from_ref(&self.server.url), None).unwrap(), names)
    }

    fn put_record(&self, holders: &str) {
        let names = membership::load(self.directories[0].path()).unwrap().unwrap().names();
        let value = format!(r#"{{"epoch":9,"holders":[{holders}],"written":9,"blocked":null}}"#);
        let etcd = Etcd::start(std::slice::from_ref(&self.server.url), None).unwrap();
        etcd.put_now(&names.record(POOL), value.as_bytes()).unwrap();
    }
}

const POOL: PoolId = PoolId(7);
const NVME: &str = r#"{"fence":"nvme","keyless":0}"#;

#[test]
fn a_node_leaves_only_when_nothing_of_it_is_left_and_its_number_is_not_given_again() {
    let Some(two) = Two::new() else { return };
    let api = two.api(0);
    let refused = |node: &str, says: &str| {
        let error = api.remove_node(node).unwrap_err();
        assert!(error.error.contains(says), "{error}");
        error.kind
    };
    assert_eq!(refused("c", "c"), ErrorKind::NotFound);
    assert_eq!(refused("a", "is the node that answers"), ErrorKind::Conflict);
    assert_eq!(refused("b", "is alive"), ErrorKind::Conflict);
    two.members[1].leave();
    two.put_record(r#"{"node":2,"epoch":9}"#);
    assert_eq!(refused("b", "may still write to the disks"), ErrorKind::Conflict);
    assert!(departure::leave(&two.directories[1]).unwrap_err().error.contains("may still write"));
    assert!(membership::load(two.directories[1].path()).unwrap().is_some(), "it is a node as before");
    two.put_record("");
    api.remove_node("b").unwrap();
    two.until(&two.members[0], |t| !t.contains_key(&2));
    assert!(api.cluster().unwrap().nodes.iter().all(|n| n.name != "b"));
    // What is left of the node at its machine.
    let left =
        Member::connect(two.directories[1].path(), membership::load(two.directories[1].path()).unwrap().unwrap());
    assert!(left.err().unwrap().error.contains("no node 2"));
    departure::leave(&two.directories[1]).unwrap();
    assert!(membership::load(two.directories[1].path()).unwrap().is_none());
    assert!(!two.directories[1].path().join("node.pem").exists());
    assert!(departure::leave(&two.directories[1]).unwrap_err().error.contains("not a node of a cluster"));

    let b = two.join("b2", "b");
    assert_eq!(b.node, 3, "the number 2 was one of a node before");
    departure::leave(&two.server.directory("b2")).unwrap();
    assert_eq!(two.join("b2", "b").node, 4);
    departure::leave(&two.server.directory("b2")).unwrap();
    two.members[0].leave();
    let error = departure::leave(&two.directories[0]).unwrap_err();
    assert!(error.error.contains("last node"), "{error}");
}

#[test]
fn a_name_at_the_disks_is_one_nodes_until_that_is_removed() {
    let Some(two) = Two::new() else { return };
    let [a, b] = &two.members;
    let names = ["nvme:0a".to_string(), "iscsi:iqn.x".to_string()];
    a.claim_names(&names).unwrap();
    a.claim_names(&names).unwrap();
    let error = b.claim_names(&names[1..]).unwrap_err();
    assert!(error.error.contains("iscsi:iqn.x") && error.error.contains("node a by the same name"), "{error}");
    assert!(error.hint.contains("InitiatorName"), "{}", error.hint);
    b.claim_names(&["nvme:0b".to_string()]).unwrap();
    // As if the claim had been made by this node on another machine.
    let names = membership::load(two.directories[0].path()).unwrap().unwrap().names();
    let etcd = Etcd::start(std::slice::from_ref(&two.server.url), None).unwrap();
    let copied = format!("{}nvme:0c", names.hosts());
    etcd.put_now(&copied, br#"{"node":1,"machine":{"system":"another"}}"#).unwrap();
    match std::fs::read_to_string("/etc/machine-id") {
        Ok(id) if !id.trim().is_empty() => {
            let error = a.claim_names(&["nvme:0c".to_string()]).unwrap_err();
            assert!(error.error.contains("on another machine"), "{error}");
        }
        _ => eprintln!("this machine has no identifier"),
    }
    b.leave();
    two.api(0).remove_node("b").unwrap();
    assert!(etcd.read_now(&names.hosts(), &names.cluster()).unwrap().pairs.iter().all(|p| !p.key.ends_with("0b")));
    a.claim_names(&["nvme:0b".to_string()]).unwrap();
    // One that nobody released, of a node that is gone.
    let left = format!("{}nvme:0d", names.hosts());
    etcd.put_now(&left, br#"{"node":2,"machine":{}}"#).unwrap();
    a.claim_names(&["nvme:0d".to_string()]).unwrap();
    a.leave();
}

/// Two nodes that the disks take for one: the pool is acquired by one of them alone, and the other says why.
#[test]
fn a_node_with_the_name_of_another_does_not_acquire_a_pool() {
    let Some(two) = Two::with(Some(NVME), ["nvme:01"; 2]) else { return };
    let names = membership::load(two.directories[0].path()).unwrap().unwrap().names();
    let etcd = Etcd::start(std::slice::from_ref(&two.server.url), None).unwrap();
    let entered = || [0, 1].map(|n: usize| two.hands[n].entered.load(Ordering::SeqCst));
    let (mut owners, mut reasons) = (BTreeSet::new(), [String::new(), String::new()]);
    let end = Instant::now() + Duration::from_secs(30);
    let mut look = || {
        let found = etcd.read_now(&names.owner(POOL), &names.cluster()).unwrap();
        owners.extend(found.get(&names.owner(POOL)).map(|pair| pair.value.clone()));
    };
    while Instant::now() < end && (entered() == [0, 0] || reasons.iter().all(|r| !r.contains("by the same name"))) {
        look();
        reasons = [0, 1].map(|n| two.api(n).ownerships()[0].reason.clone());
        thread::sleep(Duration::from_millis(20));
    }
    let loser = reasons.iter().position(|r| r.contains("by the same name")).expect("one of them says why");
    assert!(reasons[loser].contains(["node b", "node a"][loser]), "{reasons:?}");
    let entered = entered();
    assert!(entered[1 - loser] > 0 && entered[loser] == 0, "the other one acquires: {entered:?}");
    // A node that acquires it without its names has it for a moment, and again and again.
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        look();
    }
    let loser = format!("\"node\":{}", loser + 1);
    assert!(owners.iter().all(|o| !String::from_utf8_lossy(o).contains(&loser)), "{owners:?}");
    two.members.iter().for_each(|m| m.leave());
}

/// Disks that were connected by the name of another node while the node ran.
#[test]
fn a_key_is_not_registered_by_the_name_of_another_node() {
    let Some(two) = Two::with(Some(NVME), ["nvme:0a", "nvme:0b"]) else { return };
    let (api, hands) = (two.api(1), &two.hands[1]);
    let until = |what: &str, is: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(20);
        while !is() {
            assert!(Instant::now() < end, "{what}: {:?}", api.ownerships());
            thread::sleep(Duration::from_millis(20));
        }
    };
    until("both enter", &|| two.hands.iter().all(|h| h.entered.load(Ordering::SeqCst) > 0));
    *hands.name.lock().unwrap() = "nvme:0a".into();
    thread::sleep(Duration::from_millis(200));
    let before = hands.entered.load(Ordering::SeqCst);
    two.members[0].leave();
    until("it says why", &|| api.ownerships()[0].reason.contains("node a by the same name"));
    until("it gives up", &|| api.ownerships()[0].state == "unowned");
    thread::sleep(Duration::from_secs(4));
    assert_eq!((hands.entered.load(Ordering::SeqCst), api.ownerships()[0].state.as_str()), (before, "unowned"));
    *hands.name.lock().unwrap() = "nvme:0b".into();
    until("it goes on", &|| hands.entered.load(Ordering::SeqCst) > before);
    two.members[1].leave();
}

#[test]
fn a_removed_node_gets_no_lease() {
    let Some(two) = Two::new() else { return };
    // As if the node had been cut off until its lease ended, and was removed then.
    two.members[1].leave();
    two.api(0).remove_node("b").unwrap();
    let names = membership::load(two.directories[0].path()).unwrap().unwrap().names();
    let etcd = Etcd::start(std::slice::from_ref(&two.server.url), None).unwrap();
    // It starts with an entry, which is gone before it has a lease.
    etcd.put_now(&names.node(2), br#"{"name":"b","version":1}"#).unwrap();
    let second = membership::load(two.directories[1].path()).unwrap().unwrap();
    let again = Member::connect(two.directories[1].path(), second).unwrap();
    etcd.delete_now(&names.node(2)).unwrap();
    let _listens = two.runtime.block_on(listen(&again));
    thread::sleep(Duration::from_secs(2));
    let alive = etcd.read_now(&names.alives(), &names.cluster()).unwrap();
    assert!(alive.get(&names.alive(2)).is_none() && alive.get(&names.alive(1)).is_some());
    again.leave();
    two.members[0].leave();
}

#[test]
fn a_drain_lasts_and_somebody_is_left() {
    let Some(two) = Two::new() else { return };
    let (first, second) = (two.api(0), two.api(1));
    let change = |drained| NodeChange { drained };
    assert_eq!(first.change_node("c", &change(true)).unwrap_err().kind, ErrorKind::NotFound);
    assert!(first.change_node("b", &change(true)).unwrap().drained);
    let error = second.change_node("a", &change(true)).unwrap_err();
    assert!(error.kind == ErrorKind::Conflict && error.error.contains("no other node"), "{error}");
    let drained = |api: &ClusterApi| api.cluster().unwrap().nodes.iter().map(|n| n.drained).collect::<Vec<_>>();
    assert_eq!(drained(&first), [false, true]);
    // After a restart, too.
    two.members[1].leave();
    let again =
        Member::connect(two.directories[1].path(), membership::load(two.directories[1].path()).unwrap().unwrap());
    assert!(again.unwrap().is_drained());
    assert!(!first.change_node("b", &change(false)).unwrap().drained);
    assert!(first.change_node("a", &change(true)).is_err(), "the other one is not alive");
    assert_eq!(drained(&second), [false, false]);
    two.members[0].leave();
}

#[test]
fn a_node_that_was_started_again_takes_nothing_before_it_has_a_lease() {
    let Some(two) = Two::new() else { return };
    let (first, second) = (two.api(0), two.api(1));
    let names = membership::load(two.directories[0].path()).unwrap().unwrap().names();
    let etcd = Etcd::start(std::slice::from_ref(&two.server.url), None).unwrap();
    let found = etcd.read_now(&names.alives(), &names.cluster()).unwrap();
    let good = found.get(&names.alive(2)).unwrap().value.clone();
    let run = two.members[1].peers().me().run.clone();
    // As after a kill: the lease is of the run before.
    let before = String::from_utf8(good.clone()).unwrap().replace(&run, "0123456789abcdef");
    etcd.put_now(&names.alive(2), before.as_bytes()).unwrap();
    let drain = NodeChange { drained: true };
    for api in [&first, &second] {
        let error = api.change_node("a", &drain).unwrap_err();
        let why = ["no lease of its own", "is not alive in etcd, or another daemon has its name"];
        let says = why.iter().any(|why| error.error.contains(why));
        assert!(error.kind == ErrorKind::Conflict && says, "{error}");
    }
    etcd.put_now(&names.alive(2), &good).unwrap();
    assert!(first.change_node("a", &drain).unwrap().drained);
    two.members.iter().for_each(|member| member.leave());
}

/// A node's entry as an arden writes it that does not know feature levels.
fn as_an_older_one(etcd: &Arc<Etcd>, names: &arden_coordinate::Names, node: u16) {
    let found = etcd.read_now(&names.nodes(), &names.cluster()).unwrap();
    let mut entry: serde_json::Value = serde_json::from_slice(&found.get(&names.node(node)).unwrap().value).unwrap();
    entry.as_object_mut().unwrap().remove("feature_level").unwrap();
    etcd.put_now(&names.node(node), entry.to_string().as_bytes()).unwrap();
}

#[test]
fn the_feature_level_rises_when_all_nodes_know_it() {
    let Some(server) = Server::start() else { return };
    let (first, second) = (server.directory("a"), server.directory("b"));
    let mut a = membership::init(&first, &server.cluster(), |_| Ok(Vec::new())).unwrap();
    // A cluster that an older arden made.
    a.cluster.feature_level = 1;
    let (names, urls) = (a.names(), std::slice::from_ref(&server.url));
    let etcd = Etcd::start(urls, None).unwrap();
    etcd.put_now(&names.cluster(), &serde_json::to_vec(&a.cluster).unwrap()).unwrap();
    let member = Member::connect(first.path(), a.clone()).unwrap();
    let state = Arc::new(State::on(member.state_store()).unwrap());
    let api = ClusterApi { member: member.clone(), state };
    let b = membership::join(&second, urls, None, &member.new_token().unwrap().token, "b").unwrap();
    as_an_older_one(&etcd, &names, 2);

    let levels = || api.cluster().unwrap().nodes.iter().map(|n| n.feature_level).collect::<Vec<_>>();
    assert_eq!((api.cluster().unwrap().feature_level, levels()), (1, vec![3, 1]));
    let error = api.raise_level().unwrap_err();
    assert!(error.kind == ErrorKind::Conflict && error.error.ends_with("know no newer one: b"), "{error}");
    assert_eq!(api.cluster().unwrap().feature_level, 1, "nothing changed");
    // The node is updated, and starts.
    let connect = || Member::connect(second.path(), b.clone());
    connect().unwrap();
    assert_eq!(levels(), [3, 3]);
    let raised = |r: arden_admin::cluster::FeatureLevel| (r.before, r.level);
    assert_eq!(raised(api.raise_level().unwrap()), (1, 3));
    assert_eq!(raised(api.raise_level().unwrap()), (3, 3));
    assert_eq!(api.cluster().unwrap().feature_level, 3);
    assert_eq!(connect().unwrap().peers().me().feature_level, 3);
    assert_eq!(
        etcd.read_now(&names.cluster(), &names.cluster()).unwrap().get(&names.cluster()).unwrap().value,
        serde_json::to_vec(&a.cluster).unwrap()
    );

    // A cluster that a later arden has raised.
    etcd.put_now(&names.level(), b"4").unwrap();
    let says = "feature level is 4, and this arden knows up to 3";
    let error = connect().err().unwrap();
    assert!(error.kind == ErrorKind::Conflict && error.error.contains(says), "{error}");
    let token = member.new_token().unwrap().token;
    let error = membership::join(&server.directory("c"), urls, None, &token, "c").unwrap_err();
    assert!(error.error.contains(says), "{error}");
    etcd.put_now(&names.level(), b"3").unwrap();
    membership::join(&server.directory("c"), urls, None, &token, "c").expect("the token was not used up");
}
