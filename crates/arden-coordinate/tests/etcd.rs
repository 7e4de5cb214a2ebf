//! Against a real etcd (Debian's etcd-server), which each test starts for itself: the suite of every state store, what a token and a
//! join are, and an etcd that was emptied. Without the program `etcd` the tests say so and pass.

use std::{
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use arden_admin::{ErrorKind, State, StateDirectory, model::NewUser, state::StateStore};
use arden_cluster::{Epoch, ImportError, PoolId};
use arden_coordinate::{
    ClientFiles, Etcd, EtcdFiles, EtcdStore, Hands, Member, NewCluster, PoolGate, membership,
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
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
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
    assert!(state.refresh().unwrap() && state.snapshot().user("bob").is_ok());
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
    let refused = state.refresh().unwrap_err();
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
struct NoPools;

impl Hands for NoPools {
    fn import(&self, _: PoolId, _: Epoch, _: Epoch) -> Result<(), (ImportError, String)> {
        Err((ImportError::Other, "there is none".to_string()))
    }
    fn serve(&self, _: PoolId, _: &Arc<PoolGate>) {}
    fn close(&self, _: PoolId) -> bool {
        true
    }
    fn stop(&self, _: PoolId) {}
    fn newest_epoch(&self, _: PoolId) -> Result<Epoch, String> {
        Err("there is none".to_string())
    }
}

async fn listen(member: &Arc<Member>) -> Listener {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), member.peers(), Arc::new(|_, _| {})).await.unwrap();
    member.start(Arc::new(NoPools), Vec::new(), vec![listener.address().to_string()]).unwrap();
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
        at_first.wait_for(|t| t.get(&2).is_some_and(|k| !k.addresses.is_empty())).await.unwrap();
        at_second.wait_for(|t| t.get(&1).is_some_and(|k| !k.addresses.is_empty())).await.unwrap();
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
