//! RPC over TCP without sockets: a server with two users, a cluster that a test changes, and a client of its own.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use arden_auth::{Acceptor, AuthPolicy, MessageSecurity, ServerIdentity, Step, Token, UserDb, initiator::Initiator};
use arden_rpc::{
    endpoint_mapper::EndpointMapper,
    tcp::{Authenticated, Connection, Flow, Host, Logon, LogonStep, Standing, TcpService},
    witness::{self, Cluster, ClusterState, NodeState, Witness},
};
use arden_wire::{
    FileTime,
    ndr::{NdrReader, NdrWriter},
    rpc::{self, Bind, ContextElement, Header, Request, Syntax, Trailer, auth_level, auth_type},
};
use parking_lot::Mutex;

pub const DELAY: Duration = Duration::from_millis(700);

/// Logons with users alone, without a throttle.
pub struct TestHost {
    pub users: Arc<dyn UserDb>,
    pub good: Arc<Mutex<bool>>,
    random: Mutex<u64>,
}

struct TestLogon(Acceptor, Arc<Mutex<bool>>);
struct TestStanding(Arc<Mutex<bool>>);

impl Standing for TestStanding {
    fn is_good(&self) -> bool {
        *self.0.lock()
    }
}

impl Logon for TestLogon {
    fn step(&mut self, token: &[u8]) -> LogonStep {
        match self.0.step(token, FileTime(133_000_000_000_000_000), [7; 8]) {
            Ok(Step::Continue(token)) => LogonStep::Continue(token),
            Ok(Step::Done { reply, logon }) => {
                let security = self.0.message_security();
                let standing = Box::new(TestStanding(self.1.clone()));
                LogonStep::Done { reply, logon: Authenticated { user: logon.token, security, standing } }
            }
            Err(_) => LogonStep::Refused { delay: DELAY },
        }
    }
}

impl Host for TestHost {
    fn begin_logon(&self) -> Option<Box<dyn Logon>> {
        let identity = Arc::new(ServerIdentity::stand_alone("files.example.org"));
        let acceptor = Acceptor::new(self.users.clone(), identity, AuthPolicy::default());
        Some(Box::new(TestLogon(acceptor, self.good.clone())))
    }
    fn random(&self) -> [u8; 16] {
        counted(&self.random)
    }
}

fn counted(count: &Mutex<u64>) -> [u8; 16] {
    let mut count = count.lock();
    *count += 1;
    let mut out = [0; 16];
    out[..8].copy_from_slice(&count.to_le_bytes());
    out
}

/// The cluster, and how often its state was made.
pub struct TestCluster(pub Mutex<ClusterState>, pub Mutex<usize>);

impl Cluster for TestCluster {
    fn state(&self) -> ClusterState {
        *self.1.lock() += 1;
        self.0.lock().clone()
    }
    fn may_use(&self, user: &Token, share: &str) -> bool {
        user.is_administrator() || share != "secret"
    }
}

/// Two nodes, 10.0.0.1 and 10.0.0.2, of which the first owns `data` and this is the second.
pub fn cluster() -> ClusterState {
    let node = |number: u16| NodeState {
        number,
        name: format!("N{number}"),
        alive: true,
        drained: false,
        addresses: vec![IpAddr::from([10, 0, 0, number as u8])],
    };
    let shares = [("data", Some(1)), ("other", Some(2)), ("secret", Some(1))];
    ClusterState {
        name: "FILES".into(),
        here: 2,
        nodes: vec![node(1), node(2)],
        shares: shares.into_iter().map(|(name, owner)| (name.into(), owner)).collect(),
        floating: [].into(),
    }
}

pub struct World {
    pub cluster: Arc<TestCluster>,
    pub witness: Arc<Witness>,
    pub service: Arc<TcpService>,
    pub host: Arc<TestHost>,
    pub began: Instant,
}

impl World {
    pub fn new() -> World {
        let users = super::View::new().users;
        let cluster = Arc::new(TestCluster(Mutex::new(cluster()), Mutex::default()));
        let keys = Mutex::new(0);
        let witness = Witness::new(cluster.clone(), Box::new(move || counted(&keys)));
        let mapper = EndpointMapper::new(vec![(witness::SYNTAX, 49_200)]);
        let service = TcpService::new(vec![witness.clone(), Arc::new(mapper)]);
        let host = Arc::new(TestHost { users, good: Arc::new(Mutex::new(true)), random: Mutex::new(0) });
        World { cluster, witness, service, host, began: Instant::now() }
    }

    pub fn connection(&self) -> Connection {
        let local = SocketAddr::from(([10, 0, 0, 2], 49_200));
        let address = IpAddr::from([10, 0, 1, 1]);
        Connection::new(self.service.clone(), self.host.clone(), address, local, Box::new(|| {}))
    }

    /// The cluster changes, and the witness looks.
    pub fn change(&self, change: impl FnOnce(&mut ClusterState), seconds: u64) {
        change(&mut self.cluster.0.lock());
        self.witness.look(self.began + Duration::from_secs(seconds));
    }
}

/// How a client protects its calls.
#[derive(Debug, Clone, Copy)]
pub struct How {
    pub level: u8,
    pub spnego: bool,
    pub signs_headers: bool,
    /// The last token goes with auth3; else with alter_context.
    pub auth3: bool,
    pub group: u32,
}

pub const SEAL: How = How { level: auth_level::PRIVACY, spnego: false, signs_headers: true, auth3: true, group: 0 };

pub struct Client {
    pub connection: Connection,
    pub security: Option<MessageSecurity>,
    pub how: How,
    pub group: u32,
    pub now: Instant,
    call_id: u32,
}

/// An answer of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Got {
    Stub(u32, Vec<u8>),
    Fault(u32, u32),
    Other(u8, Vec<u8>),
}

pub fn bind(interface: Syntax, group: u32) -> Bind {
    let contexts = vec![ContextElement { id: 0, interface, transfer: vec![rpc::NDR32] }];
    Bind { max_xmit: 5840, max_recv: 5840, group, contexts }
}

impl Client {
    /// A client without a logon.
    pub fn plain(world: &World, interface: Syntax) -> Client {
        let mut client = Client {
            connection: world.connection(),
            security: None,
            how: How { level: 1, ..SEAL },
            group: 0,
            now: world.began,
            call_id: 1,
        };
        let got = client.send(&bind(interface, 0).encode(rpc::BIND, 1)).1;
        assert!(matches!(&got[..], [Got::Other(rpc::BIND_ACK, _)]), "{got:?}");
        client
    }

    /// A client with a logon, which may have failed.
    pub fn log_on(world: &World, user: &str, password: &str, how: How) -> (Client, Flow) {
        let mut initiator = Initiator::new(user, "FILES", password);
        initiator.spnego = how.spnego;
        let (connection, now) = (world.connection(), world.began);
        let mut client = Client { connection, security: None, how, group: 0, now, call_id: 1 };
        let trailer = client.trailer();
        let mut pdu = bind(witness::SYNTAX, how.group).encode(rpc::BIND, 1);
        trailer.append_token(&mut pdu, &initiator.first());
        let header_signing = if how.signs_headers { rpc::PFC_SUPPORT_HEADER_SIGN } else { 0 };
        rpc::add_flags(&mut pdu, header_signing);
        let (flow, got) = client.send(&pdu);
        assert_eq!(flow, Flow::Go);
        let [Got::Other(rpc::BIND_ACK, ack)] = &got[..] else { panic!("{got:?}") };
        assert_eq!(ack[3] & rpc::PFC_SUPPORT_HEADER_SIGN, header_signing);
        client.group = u32::from_le_bytes(ack[20..24].try_into().unwrap());
        let header = Header::parse(ack).unwrap();
        let (_, _, at) = Trailer::split(&header, ack).unwrap();
        let mut random = [9; 24];
        random[8..].copy_from_slice(&world.host.random());
        let token = initiator.second(&ack[at + rpc::TRAILER_BYTES..], random).unwrap();
        let mut last = match how.auth3 {
            true => rpc::encode_auth3(2),
            false => Bind { contexts: Vec::new(), ..bind(witness::SYNTAX, 0) }.encode(rpc::ALTER_CONTEXT, 2),
        };
        trailer.append_token(&mut last, &token);
        let (flow, got) = client.send(&last);
        if flow == Flow::Go && !how.auth3 {
            assert!(matches!(&got[..], [Got::Other(rpc::ALTER_CONTEXT_RESP, _)]), "{got:?}");
        }
        client.security = initiator.message_security();
        (client, flow)
    }

    /// A client of the witness.
    pub fn of(world: &World, user: &str, how: How) -> Client {
        let (client, flow) = Client::log_on(world, user, &user[..1], how);
        assert_eq!(flow, Flow::Go);
        client
    }

    pub fn trailer(&self) -> Trailer {
        let auth_type = if self.how.spnego { auth_type::SPNEGO } else { auth_type::NTLM };
        Trailer { auth_type, level: self.how.level, pad: 0, context: 3 }
    }

    /// A request as it goes out.
    pub fn request(&mut self, opnum: u16, stub: &[u8]) -> Vec<u8> {
        self.fragment(opnum, stub, rpc::PFC_FIRST_FRAG | rpc::PFC_LAST_FRAG, true)
    }

    pub fn fragment(&mut self, opnum: u16, stub: &[u8], flags: u8, new: bool) -> Vec<u8> {
        if new {
            self.call_id += 1;
        }
        let mut pdu = Request { context: 0, opnum, stub }.encode(flags, self.call_id);
        let trailer = self.trailer();
        let Some(security) = &mut self.security else { return pdu };
        let token = trailer.append(&mut pdu, rpc::RESPONSE_HEADER_BYTES, 16, 16);
        let (from, at) = (rpc::RESPONSE_HEADER_BYTES, token - rpc::TRAILER_BYTES);
        let mut signed = pdu[..token].to_vec();
        let signature = match (self.how.level, self.how.signs_headers) {
            (auth_level::PRIVACY, true) => security.seal(&mut signed, from..at),
            (auth_level::PRIVACY, false) => security.seal(&mut signed[from..at], 0..at - from),
            (_, true) => security.sign(&signed),
            (_, false) => security.sign(&signed[from..at]),
        };
        pdu[..token].copy_from_slice(&signed);
        pdu[token..].copy_from_slice(&signature);
        pdu
    }

    /// Sends bytes, and reads what comes.
    pub fn send(&mut self, bytes: &[u8]) -> (Flow, Vec<Got>) {
        let flow = self.connection.receive(bytes, self.now);
        (flow, self.read())
    }

    pub fn read(&mut self) -> Vec<Got> {
        self.connection.answers();
        let output = self.connection.take_output();
        let (mut rest, mut got, mut stub) = (&output[..], Vec::new(), Vec::new());
        while !rest.is_empty() {
            let header = Header::parse(rest).unwrap();
            let (pdu, others) = rest.split_at(usize::from(header.frag_length));
            rest = others;
            match header.kind {
                rpc::FAULT => {
                    got.push(Got::Fault(header.call_id, u32::from_le_bytes(pdu[24..28].try_into().unwrap())));
                }
                rpc::RESPONSE => {
                    stub.extend(self.open(&header, pdu));
                    if header.is_last() {
                        got.push(Got::Stub(header.call_id, std::mem::take(&mut stub)));
                    }
                }
                kind => got.push(Got::Other(kind, pdu.to_vec())),
            }
        }
        got
    }

    fn open(&mut self, header: &Header, pdu: &[u8]) -> Vec<u8> {
        let Some(security) = &mut self.security else { return pdu[24..].to_vec() };
        let (_, end, at) = Trailer::split(header, pdu).unwrap();
        let token = at + rpc::TRAILER_BYTES;
        let (mut signed, signature) = (pdu[..token].to_vec(), &pdu[token..]);
        let good = match (self.how.level, self.how.signs_headers) {
            (auth_level::PRIVACY, true) => security.unseal(&mut signed, 24..at, signature),
            (auth_level::PRIVACY, false) => security.unseal(&mut signed[24..at], 0..at - 24, signature),
            (_, true) => security.verify(&signed, signature),
            (_, false) => security.verify(&signed[24..at], signature),
        };
        assert!(good, "the answer's signature is wrong");
        signed[24..end].to_vec()
    }

    /// A call that is answered at once.
    pub fn call(&mut self, opnum: u16, stub: &[u8]) -> Got {
        let pdu = self.request(opnum, stub);
        let (_, mut got) = self.send(&pdu);
        assert_eq!(got.len(), 1, "{got:?}");
        got.remove(0)
    }

    pub fn stub(&mut self, opnum: u16, stub: &[u8]) -> Vec<u8> {
        match self.call(opnum, stub) {
            Got::Stub(_, stub) => stub,
            other => panic!("{other:?}"),
        }
    }

    /// WitnessrRegisterEx, or WitnessrRegister without a share.
    pub fn register(&mut self, r: &Registering) -> (u32, [u8; 20]) {
        let stub = self.stub(if r.extended { 4 } else { 1 }, &r.stub());
        let mut reader = NdrReader::new(&stub);
        let handle = reader.handle().unwrap();
        (reader.u32().unwrap(), handle)
    }

    /// WitnessrAsyncNotify that has to wait.
    pub fn wait(&mut self, handle: &[u8; 20]) -> u32 {
        let pdu = self.request(3, handle);
        assert_eq!(self.send(&pdu), (Flow::Go, Vec::new()));
        self.call_id
    }
}

/// The parameters of a registration.
#[derive(Debug, Clone)]
pub struct Registering {
    pub extended: bool,
    pub version: u32,
    pub net_name: Option<&'static str>,
    pub share: Option<&'static str>,
    pub address: Option<&'static str>,
    pub client: Option<&'static str>,
    pub flags: u32,
    pub keep_alive: u32,
}

/// For `data` at the first node.
pub const DATA: Registering = Registering {
    extended: true,
    version: 0x0002_0000,
    net_name: Some("files.example.org"),
    share: Some("Data"),
    address: Some("10.0.0.1"),
    client: Some("CLIENT.example.org"),
    flags: 0,
    keep_alive: 120,
};
pub const VERSION_1: Registering = Registering { extended: false, version: 0x0001_0001, share: None, ..DATA };

impl Registering {
    pub fn stub(&self) -> Vec<u8> {
        let mut w = NdrWriter::new();
        w.u32(self.version);
        w.unique_string(self.net_name);
        if self.extended {
            w.unique_string(self.share);
        }
        w.unique_string(self.address);
        w.unique_string(self.client);
        if self.extended {
            w.u32(self.flags);
            w.u32(self.keep_alive);
        }
        w.finish()
    }
}
