//! A member of etcd that hangs: its connections stay, and nothing comes from it any more.

use super::*;

/// Three members.
struct Trio {
    dir: PathBuf,
    urls: [String; 3],
    children: Vec<Child>,
}

impl Trio {
    fn start() -> Option<Trio> {
        let dir = std::env::temp_dir().join(format!("arden-etcd-trio-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let all = [(); 6].map(|()| format!("http://127.0.0.1:{}", port()));
        let [a, b, c, peers @ ..] = all;
        let (urls, peers): ([String; 3], [String; 3]) = ([a, b, c], peers);
        let cluster: Vec<String> = peers.iter().enumerate().map(|(n, peer)| format!("e{n}={peer}")).collect();
        let mut trio = Trio { dir, urls, children: Vec::new() };
        for (n, peer) in peers.iter().enumerate() {
            let url = &trio.urls[n];
            let child = Command::new("etcd")
                .args(["--name", &format!("e{n}"), "--log-level", "error", "--unsafe-no-fsync", "--data-dir"])
                .arg(trio.dir.join(format!("e{n}")))
                .args(["--listen-client-urls", url, "--advertise-client-urls", url])
                .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
                .args(["--initial-cluster", &cluster.join(",")])
                .args(["--heartbeat-interval", "300", "--election-timeout", "2000"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            match child {
                Ok(child) => trio.children.push(child),
                Err(_) => {
                    eprintln!("skipped: there is no program etcd (Debian: etcd-server)");
                    return None;
                }
            }
        }
        let etcd = Etcd::start(&trio.urls, None).unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        while etcd.read_now("/", "/").is_err() {
            assert!(Instant::now() < end, "etcd does not answer");
            thread::sleep(Duration::from_millis(50));
        }
        Some(trio)
    }

    fn signal(&self, member: usize, signal: &str) {
        let pid = self.children[member].id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    fn directory(&self, name: &str) -> Arc<StateDirectory> {
        Arc::new(StateDirectory::open(&self.dir.join(name)).unwrap())
    }
}

impl Drop for Trio {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Then etcd's revision is always ahead of what the watch tells, and the watch is begun anew again and again.
#[test]
fn a_node_misses_nothing_where_others_use_etcd_too() {
    let Some(two) = Two::new() else { return };
    let (etcd, names) = two.etcd();
    let is_drained = || two.members[0].nodes_seen().iter().any(|n| n.number == 2 && n.drained);
    let end = Instant::now() + Duration::from_secs(10);
    for drained in [true, false].into_iter().cycle().take_while(|_| Instant::now() < end) {
        etcd.put_now("/another/key", b"").unwrap();
        match drained {
            true => etcd.put_now(&names.drain(2), b"").unwrap(),
            false => etcd.delete_now(&names.drain(2)).unwrap(),
        }
        etcd.put_now("/another/key", b"").unwrap();
        let asked = Instant::now();
        while is_drained() != drained {
            assert!(asked.elapsed() < Duration::from_secs(20), "it did not hear of it: {drained}");
            thread::sleep(Duration::from_millis(5));
        }
    }
    two.members.iter().for_each(|m| m.leave());
}

/// The connection is there, so the watch does not end; requests go to other members, so the lease is good. The node must hear all the same
/// of a disabled user, or of a drain.
#[test]
fn a_node_hears_of_changes_though_the_member_with_its_watch_hangs() {
    let Some(trio) = Trio::start() else { return };
    let (first, second) = (trio.directory("a"), trio.directory("b"));
    let new = NewCluster {
        name: "FILES".into(),
        node: "a".into(),
        etcd: trio.urls.to_vec(),
        etcd_tls: None,
        lease_seconds: 3,
    };
    let a = membership::init(&first, &new, |_| Ok(Vec::new())).unwrap();
    let names = a.names();
    let a = Member::connect(first.path(), a).unwrap();
    let token = a.new_token().unwrap().token;
    let b = membership::join(&second, &trio.urls[1..], None, &token, "b").unwrap();
    let b = Member::connect(second.path(), b).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let _listeners = runtime.block_on(async { [listen(&a).await, listen(&b).await] });
    let until = |what: &str, is: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(60);
        while !is() {
            assert!(Instant::now() < end, "{what}");
            thread::sleep(Duration::from_millis(20));
        }
    };
    let both_alive = || [&a, &b].iter().all(|m| m.nodes_seen().iter().filter(|n| n.alive).count() == 2);
    until("both are alive", &both_alive);

    // The first URL is where the first node has everything.
    trio.signal(0, "-STOP");
    let elsewhere = Etcd::start(&trio.urls[1..], None).unwrap();
    until("the others go on", &|| elsewhere.read_now(&names.nodes(), &names.cluster()).is_ok());
    let heard = a.state_store().watch();
    let before = *heard.borrow();
    // A slow machine may change the leader once more.
    let change = || State::on(b.state_store()).and_then(|state| state.change(|s| s.add_user(&user("eve"))));
    // Also when the answer was late, and the change was made.
    let is_made = || State::on(b.state_store()).is_ok_and(|state| state.snapshot().user("eve").is_ok());
    until("the state changes", &|| change().is_ok() || is_made());
    until("it is drained", &|| elsewhere.put_now(&names.drain(2), b"").is_ok());
    let drained = || a.nodes_seen().iter().any(|n| n.number == 2 && n.drained);
    until("it hears of it", &|| drained() && *heard.borrow() > before);
    until("it has a lease", &|| a.has_lease());
    until("it goes on", &|| elsewhere.delete_now(&names.drain(2)).is_ok());
    until("it hears of that too", &|| !drained());
    trio.signal(0, "-CONT");
    a.leave();
    b.leave();
}
