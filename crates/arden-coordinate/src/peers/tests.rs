//! Nodes that connect to each other over loopback, and whoever else tries to.

use std::{net::SocketAddr, time::Instant};

use arden_admin::error::ErrorKind;
use rustls::{ClientConfig, crypto::ring as provider, version::TLS13};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
    sync::mpsc,
};

use super::*;

type Refusals = mpsc::UnboundedReceiver<PeerError>;

fn me(node: u16) -> Me {
    Me {
        cluster: "c".into(),
        node,
        run: format!("run{node}"),
        versions: PROTOCOL,
        feature_level: 1,
        feature_level_max: 1,
    }
}

/// A node that is alive as the run that `me` says.
fn known(node: u16, identity: &Identity, address: Option<SocketAddr>) -> Known {
    Known {
        name: "n".into(),
        fingerprint: Some(identity.fingerprint()),
        run: Some(me(node).run),
        addresses: address.iter().map(ToString::to_string).collect(),
    }
}

/// Two nodes that know each other; the second listens.
struct Pair {
    ids: [Identity; 2],
    address: SocketAddr,
    second: Arc<Peers>,
    listener: Listener,
    refused: Refusals,
}

impl Pair {
    async fn new() -> Pair {
        Pair::with(me(2), |_| {}).await
    }

    /// `change`: the identity that the second one uses.
    async fn with(second: Me, change: impl FnOnce(&mut Identity)) -> Pair {
        let ids = [Identity::for_test(), Identity::for_test()];
        let mut used = ids[1].clone();
        change(&mut used);
        let table = BTreeMap::from([(1, known(1, &ids[0], None)), (2, known(2, &ids[1], None))]);
        let second = Peers::new(second, used, table);
        let (tx, refused) = mpsc::unbounded_channel();
        let on_refused: OnRefused = Arc::new(move |_, e: &PeerError| _ = tx.send(e.clone()));
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), &second, on_refused).await.unwrap();
        Pair { ids, address: listener.address(), second, listener, refused }
    }

    fn table(&self) -> BTreeMap<u16, Known> {
        BTreeMap::from([(1, known(1, &self.ids[0], None)), (2, known(2, &self.ids[1], Some(self.address)))])
    }

    /// A node that connects, as `me` and with this identity.
    fn first(&self, me: Me, identity: &Identity) -> Arc<Peers> {
        Peers::new(me, identity.clone(), self.table())
    }

    async fn refusal(&mut self) -> PeerError {
        self.refused.recv().await.unwrap()
    }

    /// That a node connects still.
    async fn works(&mut self) {
        let first = self.first(me(1), &self.ids[0]);
        let (a, b) = tokio::join!(first.connect(2), self.listener.accept());
        assert_eq!((a.unwrap().node, b.unwrap().node), (2, 1));
    }
}

fn not_trusted(e: &PeerError, says: &str) {
    assert!(matches!(e, PeerError::NotTrusted(why) if why.contains(says)), "{e:?} instead of {says}");
}

#[tokio::test]
async fn nodes_know_each_other_and_speak() {
    let mut pair = Pair::new().await;
    let first = pair.first(me(1), &pair.ids[0]);
    let (a, b) = tokio::join!(first.connect(2), pair.listener.accept());
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!((a.node, a.run.as_str(), a.version), (2, "run2", PROTOCOL.1));
    assert_eq!((b.node, b.run.as_str(), b.version), (1, "run1", PROTOCOL.1));
    // Split, and much at once.
    let (mut from_b, mut to_b) = tokio::io::split(a.stream);
    let (mut from_a, mut to_a) = tokio::io::split(b.stream);
    let much: Vec<u8> = (0..3_000_000u32).map(|i| i as u8).collect();
    let mirror = async {
        let mut all = vec![0u8; much.len()];
        from_a.read_exact(&mut all).await.unwrap();
        to_a.write_all(&all).await.unwrap();
        to_a.shutdown().await.unwrap();
    };
    let mut back = Vec::new();
    let send = async {
        to_b.write_all(&much).await.unwrap();
        to_b.flush().await.unwrap();
    };
    let (_, _, read) = tokio::join!(mirror, send, from_b.read_to_end(&mut back));
    assert!(read.unwrap() == much.len() && back == much);
}

#[tokio::test]
async fn a_certificate_that_etcd_does_not_have_is_refused() {
    let mut pair = Pair::new().await;
    let stranger = Identity::for_test();
    let error = pair.first(me(1), &stranger).connect(2).await.unwrap_err();
    not_trusted(&error, "does not know this node's certificate");
    not_trusted(&pair.refusal().await, "its certificate is not the one that etcd has");
    pair.works().await;
}

#[tokio::test]
async fn a_server_that_is_not_the_node_is_refused() {
    let stranger = Identity::for_test();
    let mut pair = Pair::with(me(2), |used| *used = stranger.clone()).await;
    let error = pair.first(me(1), &pair.ids[0]).connect(2).await.unwrap_err();
    not_trusted(&error, "its certificate is not the one that etcd has");
    not_trusted(&pair.refusal().await, "does not know this node's certificate");
    // Another node of the cluster is not that node either.
    let mut table = pair.table();
    table.insert(3, known(3, &Identity::for_test(), Some(pair.address)));
    let first = Peers::new(me(1), pair.ids[0].clone(), table);
    not_trusted(&first.connect(3).await.unwrap_err(), "its certificate is not the one that etcd has");
}

#[tokio::test]
async fn a_certificate_without_its_key_is_refused() {
    let mut pair = Pair::new().await;
    let thief = pair.ids[0].with_key_of(&Identity::for_test());
    let error = pair.first(me(1), &thief).connect(2).await.unwrap_err();
    not_trusted(&error, "says that this node does not have the key");
    not_trusted(&pair.refusal().await, "it does not have the key of its certificate");
    pair.works().await;

    let other = Identity::for_test();
    let mut pair = Pair::with(me(2), |used| *used = used.with_key_of(&other)).await;
    let error = pair.first(me(1), &pair.ids[0]).connect(2).await.unwrap_err();
    not_trusted(&error, "it does not have the key of its certificate");
    not_trusted(&pair.refusal().await, "says that this node does not have the key");
}

#[tokio::test]
async fn a_node_that_left_is_cut_off_and_stays_out() {
    let mut pair = Pair::new().await;
    let first = pair.first(me(1), &pair.ids[0]);
    let (a, b) = tokio::join!(first.connect(2), pair.listener.accept());
    let (_a, b) = (a.unwrap(), b.unwrap());
    let (mut read, mut write) = tokio::io::split(b.stream);
    let waits = tokio::spawn(async move { read.read_u8().await });
    tokio::task::yield_now().await;
    pair.second.set(BTreeMap::from([(2, known(2, &pair.ids[1], None))]));
    let error = timeout(HANDSHAKE_WAIT, waits).await.expect("a read that waits ends").unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    assert!(write.write_all(b"x").await.is_err());
    not_trusted(&first.connect(2).await.unwrap_err(), "does not know this node's certificate");
    not_trusted(&pair.refusal().await, "its certificate is not the one that etcd has");
    // Its number goes to nobody else, but another certificate would be another node.
    let other = Identity::for_test();
    pair.second.set(BTreeMap::from([(1, known(1, &other, None)), (2, known(2, &pair.ids[1], None))]));
    assert!(first.connect(2).await.is_err());
}

#[tokio::test]
async fn a_cluster_a_version_and_a_level_that_differ_are_told_on_both_sides() {
    let others = [
        (Me { cluster: "d".into(), ..me(1) }, "cluster"),
        (Me { versions: (99, 99), ..me(1) }, "no version of the protocol in common"),
        (Me { versions: (99, 99), ..me(1) }, "99 to 99"),
        (Me { versions: (99, 99), ..me(1) }, "1 to 4"),
        (Me { feature_level: 2, feature_level_max: 2, ..me(1) }, "feature level"),
    ];
    let mut pair = Pair::new().await;
    for (other, says) in others {
        let error = pair.first(other, &pair.ids[0]).connect(2).await.unwrap_err();
        assert!(matches!(&error, PeerError::Incompatible(why) if why.contains(says)), "{error:?}");
        let error = pair.refusal().await;
        assert!(matches!(&error, PeerError::Incompatible(why) if why.contains(says)), "{error:?}");
    }
    let error = pair.first(me(3), &pair.ids[0]).connect_for(2, Purpose::Ask).await.unwrap_err();
    assert!(error.to_string().contains("says that it is node 3"), "{error:?}");
    not_trusted(&pair.refusal().await, "says that it is node 3");
    pair.works().await;
}

#[tokio::test]
async fn nodes_of_adjacent_versions_speak_the_older_one() {
    let mut pair = Pair::new().await;
    for (versions, spoken) in [((1, 1), 1), ((1, 2), 2), ((2, 3), 3), ((3, 4), 4), ((4, 5), 4)] {
        let first = pair.first(Me { versions, ..me(1) }, &pair.ids[0]);
        let (there, here) = tokio::join!(first.connect(2), pair.listener.accept());
        assert_eq!((there.unwrap().version, here.unwrap().version), (spoken, spoken), "{versions:?}");
    }
}

/// Whoever is no node: without a certificate, and without TLS.
#[tokio::test]
async fn others_than_nodes_are_refused() {
    let mut pair = Pair::new().await;
    let mut plain = TcpStream::connect(pair.address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let error = pair.refusal().await;
    assert!(matches!(error, PeerError::Malformed(_)), "{error:?}");
    let mut rest = Vec::new();
    let _ = plain.read_to_end(&mut rest).await;

    let nobody = without_certificate(pair.ids[1].fingerprint());
    let tcp = TcpStream::connect(pair.address).await.unwrap();
    let name = ServerName::try_from("node.arden").unwrap();
    let mut tls = TlsConnector::from(nobody).connect(name, tcp).await.unwrap();
    assert!(tls.read_u8().await.is_err());
    not_trusted(&pair.refusal().await, "it has no certificate");
    pair.works().await;
}

/// A client of the node with this fingerprint, which has no certificate.
fn without_certificate(fingerprint: Fingerprint) -> Arc<ClientConfig> {
    let mut config = (*verify::client(Identity::for_test().certified(), fingerprint).unwrap()).clone();
    config.client_auth_cert_resolver = {
        let roots = rustls::RootCertStore::empty();
        let provider = Arc::new(provider::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]).unwrap();
        builder.with_root_certificates(roots).with_no_client_auth().client_auth_cert_resolver
    };
    Arc::new(config)
}

/// A resumed session would not ask for the certificate of a node that has left meanwhile.
#[tokio::test]
async fn no_session_is_resumed() {
    let mut pair = Pair::new().await;
    let mut config = (*verify::client(pair.ids[0].certified(), pair.ids[1].fingerprint()).unwrap()).clone();
    config.resumption = rustls::client::Resumption::default();
    let config = Arc::new(config);
    for _ in 0..2 {
        let tcp = TcpStream::connect(pair.address).await.unwrap();
        let name = ServerName::try_from("node.arden").unwrap();
        let mut tls = TlsConnector::from(config.clone()).connect(name, tcp).await.unwrap();
        let agreed = hello::exchange(&mut tls, &me(1), 2, Purpose::Forward, async |agreed| Ok(agreed)).await.unwrap();
        assert_eq!(agreed.run, "run2");
        let connection = tls.get_ref().1;
        assert_eq!(connection.handshake_kind(), Some(rustls::HandshakeKind::Full));
        assert_eq!(connection.tls13_tickets_received(), 0);
        pair.listener.accept().await.unwrap();
    }
}

#[tokio::test]
async fn there_is_nothing_to_connect_to() {
    let pair = Pair::new().await;
    let mut table = pair.table();
    table.insert(3, known(3, &Identity::for_test(), None));
    table.insert(4, Known { fingerprint: None, ..known(4, &pair.ids[1], Some(pair.address)) });
    let first = Peers::new(me(1), pair.ids[0].clone(), table);
    for (node, says) in [(1, "this node itself"), (3, "not alive"), (4, "no certificate yet"), (5, "no node 5")] {
        let error = first.connect(node).await.unwrap_err();
        assert!(matches!(&error, PeerError::Unknown(why) if why.contains(says)), "{error:?}");
    }
    let address = pair.address;
    drop(pair);
    let of = |node, address| (node, known(node, &Identity::for_test(), address));
    let gone = Peers::new(me(1), Identity::for_test(), BTreeMap::from([of(1, None), of(2, Some(address))]));
    assert!(matches!(gone.connect(2).await, Err(PeerError::Unreachable(_))));
}

/// Connections from an address of their own.
async fn silent(to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.3:0".parse().unwrap()).unwrap();
    socket.connect(to).await.unwrap()
}

#[tokio::test]
async fn silent_peers_take_few_places_and_for_a_short_time() {
    let mut pair = Pair::new().await;
    let began = Instant::now();
    let mut held = Vec::new();
    for _ in 0..HALF_OPEN_PER_ADDRESS_MAX {
        held.push(silent(pair.address).await);
    }
    // Past the limit of the address a connection is closed at once, and other addresses are served.
    let mut one_more = silent(pair.address).await;
    assert!(matches!(one_more.read(&mut [0u8; 1]).await, Ok(0) | Err(_)));
    pair.works().await;
    assert!(began.elapsed() < HANDSHAKE_WAIT);
    for _ in 0..HALF_OPEN_PER_ADDRESS_MAX {
        let error = pair.refusal().await;
        assert!(matches!(error, PeerError::Late(_)), "{error:?}");
    }
    assert!(began.elapsed() < HANDSHAKE_WAIT * 2);
    for mut tcp in held {
        assert!(matches!(tcp.read(&mut [0u8; 1]).await, Ok(0) | Err(_)), "it is closed");
    }
    let mut again = silent(pair.address).await;
    let waits = timeout(Duration::from_millis(200), again.read(&mut [0u8; 1])).await;
    assert!(waits.is_err(), "the places are free again");
}

#[tokio::test]
async fn a_node_that_says_no_hello_and_one_that_does_not_answer_are_given_up() {
    let mut pair = Pair::new().await;
    let config = verify::client(pair.ids[0].certified(), pair.ids[1].fingerprint()).unwrap();
    let tcp = TcpStream::connect(pair.address).await.unwrap();
    let name = ServerName::try_from("node.arden").unwrap();
    let _mute = TlsConnector::from(config).connect(name, tcp).await.unwrap();
    let deaf = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut table = pair.table();
    table.insert(3, known(3, &Identity::for_test(), Some(deaf.local_addr().unwrap())));
    let first = Peers::new(me(1), pair.ids[0].clone(), table);
    let (connected, refused) = tokio::join!(first.connect(3), pair.refusal());
    assert!(matches!(connected, Err(PeerError::Late(_))), "{connected:?}");
    assert!(matches!(refused, PeerError::Late(_)), "{refused:?}");
}

#[tokio::test]
async fn a_question_is_answered_by_the_node_that_it_is_for() {
    let mut pair = Pair::new().await;
    let one = pair.first(me(1), &pair.ids[0]);
    let asks = async { (one.ask(2, b"who").await, one.ask(2, &vec![0; ask::QUESTION_BYTES_MAX + 1]).await) };
    let answers = async {
        let mut outcomes = Vec::new();
        for _ in 0..2 {
            let connected = pair.listener.accept().await.unwrap();
            assert_eq!((connected.node, connected.purpose), (1, Purpose::Ask));
            outcomes.push(answer(connected.stream, |question| async move { [&question[..], b" am I"].concat() }).await);
        }
        outcomes
    };
    let ((answered, too_long), outcomes) = tokio::join!(asks, answers);
    assert_eq!(answered.unwrap(), b"who am I");
    assert_eq!(outcomes[0], Ok(()));
    assert!(too_long.is_err() && matches!(outcomes[1], Err(PeerError::Malformed(_))), "{outcomes:?}");
}

#[tokio::test]
async fn an_answer_that_is_too_long_or_ends_early_is_none() {
    for (sent, is_long) in [(&b"\xff\xff\xff\xff"[..], true), (b"\x00\x00\x00\x09x", false)] {
        let mut pair = Pair::new().await;
        let one = pair.first(me(1), &pair.ids[0]);
        let answers = async {
            let mut stream = pair.listener.accept().await.unwrap().stream;
            let mut question = [0; 7];
            stream.read_exact(&mut question).await.unwrap();
            stream.write_all(sent).await.unwrap();
            stream.shutdown().await.unwrap();
        };
        let (asked, ()) = tokio::join!(one.ask(2, b"who"), answers);
        match is_long {
            true => assert!(matches!(asked, Err(PeerError::Malformed(_))), "{asked:?}"),
            false => assert!(matches!(asked, Err(PeerError::Unreachable(_))), "{asked:?}"),
        }
    }
}

/// The longest body that a node takes itself, each byte of which is six in a string of JSON, and one of more than 64 KiB as a node of an earlier version has it.
#[tokio::test]
async fn a_request_of_an_administrator_is_taken_with_the_longest_body() {
    let mut pair = Pair::new().await;
    let one = pair.first(me(1), &pair.ids[0]);
    let body = "\u{1}".repeat(arden_admin::api::BODY_BYTES_MAX);
    let request = arden_admin::cluster::NodeRequest {
        method: "PATCH".to_string(),
        path: format!("/v1/volumes/{}", "v".repeat(65_000)),
        body,
    };
    let request = serde_json::to_vec(&arden_admin::cluster::ToNode::Request { request }).unwrap();
    assert!(request.len() > 6 * arden_admin::api::BODY_BYTES_MAX);
    let asks = async { (one.ask_for_work(2, &request).await, one.ask_for_work(2, &request).await) };
    let answers = async {
        let new = pair.listener.accept().await.unwrap();
        let count = |question: Vec<u8>| async move { question.len().to_be_bytes().to_vec() };
        answer(new.stream, count).await.unwrap();
        // As an earlier version.
        let mut earlier = pair.listener.accept().await.unwrap();
        earlier.stream.read_u32().await.unwrap();
    };
    let ((taken, refused), ()) = tokio::join!(asks, answers);
    assert_eq!(taken.unwrap(), request.len().to_be_bytes());
    let error = refused.unwrap_err().into_admin("n");
    assert!(error.hint.contains("takes 65536 bytes from another node: ask that node itself"), "{error:?}");
}

#[tokio::test]
async fn a_node_that_is_not_reached_is_named_and_waited_for() {
    let mut pair = Pair::new().await;
    let one = pair.first(me(1), &pair.ids[0]);
    // It takes the question, and its daemon dies.
    let asks = async { one.ask_for_work(2, b"what").await.unwrap_err().into_admin("n") };
    let dies = async { drop(pair.listener.accept().await.unwrap()) };
    let (error, ()) = tokio::join!(asks, dies);
    assert!(error.kind == ErrorKind::Failed && error.hint.contains("it may have done"), "{error:?}");
    drop(pair.listener);
    let error = one.ask_for_work(2, b"what").await.unwrap_err().into_admin("n");
    assert!(error.kind == ErrorKind::Conflict && error.hint.contains("another node owns the pool"), "{error:?}");
    assert!(
        error.error.starts_with("node n does not answer: ") && error.error.matches("node n").count() == 1,
        "{error:?}"
    );
}

fn not_alive(e: &PeerError, says: &str) {
    assert!(matches!(e, PeerError::NotAlive(why) if why.contains(says)), "{e:?} instead of {says}");
}

impl Pair {
    /// Both tables, with nodes that are alive as these runs.
    fn alive(&self, first: &Peers, runs: [Option<&str>; 2]) {
        let mut table = self.table();
        for (node, run) in (1..).zip(runs) {
            table.entry(node).and_modify(|k| k.run = run.map(Into::into));
        }
        first.set(table.clone());
        self.second.set(table);
    }

    /// A connection from the first node, at both of its ends.
    async fn connected(&mut self, first: &Peers, purpose: Purpose) -> (PeerStream, PeerStream) {
        let (a, b) = tokio::join!(first.connect_for(2, purpose), self.listener.accept());
        (a.unwrap().stream, b.unwrap().stream)
    }
}

#[tokio::test]
async fn a_run_that_is_not_the_one_that_is_alive_is_refused() {
    let mut pair = Pair::new().await;
    let copy = pair.first(Me { run: "copy".into(), ..me(1) }, &pair.ids[0].clone());
    for runs in [[Some("run1"), Some("run2")], [None, Some("run2")]] {
        pair.alive(&copy, runs);
        let error = copy.connect_for(2, Purpose::Ask).await.unwrap_err();
        assert!(error.to_string().contains("node 1 is not alive in etcd, or another daemon has its name"), "{error}");
        not_alive(&pair.refusal().await, "node 1 is not alive in etcd, or another daemon has its name");
        not_alive(&copy.connect(2).await.unwrap_err(), "this node's own lease is not good");
    }
    // The node that was connected to is not what etcd says either.
    let first = pair.first(me(1), &pair.ids[0].clone());
    pair.alive(&first, [Some("run1"), Some("run3")]);
    not_alive(&first.connect_for(2, Purpose::Ask).await.unwrap_err(), "node 2 is not alive in etcd");
    assert!(matches!(pair.refusal().await, PeerError::Incompatible(_)));
}

#[tokio::test]
async fn a_node_that_has_just_become_alive_is_waited_for() {
    let mut pair = Pair::new().await;
    let first = pair.first(me(1), &pair.ids[0].clone());
    let mut table = pair.table();
    table.entry(1).and_modify(|k| k.run = None);
    pair.second.set(table);
    let (second, later) = (pair.second.clone(), pair.table());
    let watch = async {
        tokio::time::sleep(ALIVE_WAIT / 3).await;
        second.set(later);
    };
    let (a, b, ()) = tokio::join!(first.connect(2), pair.listener.accept(), watch);
    assert_eq!((a.unwrap().node, b.unwrap().node), (2, 1));
}

#[tokio::test]
async fn a_connection_ends_with_the_run_at_either_end_and_not_with_a_new_lease() {
    let mut pair = Pair::new().await;
    let first = pair.first(me(1), &pair.ids[0].clone());
    let good = [Some("run1"), Some("run2")];
    let gone = [[None, good[1]], [Some("other"), good[1]], [good[0], None], [good[0], Some("other")]];
    for (purpose, runs) in [Purpose::Forward, Purpose::Ask].into_iter().flat_map(|p| gone.map(|runs| (p, runs))) {
        pair.alive(&first, good);
        let (mut a, mut b) = pair.connected(&first, purpose).await;
        // As when a node puts its key under another lease.
        pair.alive(&first, good);
        a.write_u8(7).await.unwrap();
        a.flush().await.unwrap();
        assert_eq!(b.read_u8().await.unwrap(), 7);
        pair.alive(&first, runs);
        let (a, b) = tokio::join!(timeout(CONNECT_WAIT, a.read_u8()), timeout(CONNECT_WAIT, b.read_u8()));
        // A node does not have to hear of itself, unless it is for shares: the other end ends it.
        let ended = [a, b].map(|r| r.is_ok_and(|r| r.is_err()));
        let wanted = if purpose == Purpose::Forward { [true; 2] } else { [runs[1] != good[1], runs[0] != good[0]] };
        assert_eq!(ended, wanted, "{purpose:?} {runs:?}");
    }
    // A node that comes back finds a connection ended that was seen to end.
    pair.alive(&first, good);
    let (mut a, _b) = pair.connected(&first, Purpose::Ask).await;
    pair.alive(&first, gone[2]);
    assert!(a.read_u8().await.is_err());
    pair.alive(&first, good);
    assert!(a.read_u8().await.is_err() && a.write_u8(7).await.is_err());
}

#[tokio::test]
async fn a_question_to_a_node_that_is_not_alive_any_more_ends() {
    let mut pair = Pair::new().await;
    let first = pair.first(me(1), &pair.ids[0].clone());
    let froze = async {
        let connected = pair.listener.accept().await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        pair.alive(&first, [Some("run1"), None]);
        connected
    };
    let asked = async { timeout(CONNECT_WAIT, first.ask_for_work(2, b"what takes long")).await };
    let (answer, _connected) = tokio::join!(asked, froze);
    let error = answer.expect("it ends").unwrap_err().into_peer();
    assert!(matches!(&error, PeerError::Unreachable(why) if why.contains("not alive any more")), "{error:?}");
}
