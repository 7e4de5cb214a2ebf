//! RPC over TCP: the endpoint mapper and the witness of a cluster.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use arden_auth::{Acceptor, AuthPolicy, MemoryUsers, ServerIdentity, Step, Token, initiator::Initiator};
use arden_rpc::{
    endpoint_mapper::{self, EndpointMapper},
    tcp::{Authenticated, Connection, Flow, Host, Logon, LogonStep, Standing, TcpService},
    witness::{self, Cluster, ClusterState, NodeState, Witness},
};
use arden_wire::{
    FileTime,
    dtyp::Sid,
    rpc::{self, Bind, ContextElement, Header, Request, Trailer, auth_level, auth_type},
};

use crate::auth::messages;

struct Fixed(Arc<MemoryUsers>);
struct Accepting(Acceptor);
struct Good;

impl Standing for Good {
    fn is_good(&self) -> bool {
        true
    }
}

impl Logon for Accepting {
    fn step(&mut self, token: &[u8]) -> LogonStep {
        match self.0.step(token, FileTime(133_000_000_000_000_000), [1; 8]) {
            Ok(Step::Continue(token)) => LogonStep::Continue(token),
            Ok(Step::Done { reply, logon }) => {
                let security = self.0.message_security();
                let logon = Authenticated { user: logon.token, security, standing: Box::new(Good) };
                LogonStep::Done { reply, logon }
            }
            Err(_) => LogonStep::Refused { delay: Default::default() },
        }
    }
}

impl Host for Fixed {
    fn begin_logon(&self) -> Option<Box<dyn Logon>> {
        let identity = Arc::new(ServerIdentity::stand_alone("fuzz.example.org"));
        Some(Box::new(Accepting(Acceptor::new(self.0.clone(), identity, AuthPolicy::default()))))
    }
    fn random(&self) -> [u8; 16] {
        [5; 16]
    }
}

impl Cluster for Fixed {
    fn state(&self) -> ClusterState {
        let addresses = vec![IpAddr::from([10, 0, 0, 1])];
        let node = NodeState { number: 1, name: "N1".into(), alive: true, drained: false, addresses };
        let shares = [("data".to_string(), Some(1))].into_iter().collect();
        ClusterState { name: "FUZZ".into(), here: 2, nodes: vec![node], shares, floating: [].into() }
    }
    fn may_use(&self, _: &Token, _: &str) -> bool {
        true
    }
}

/// What the server sends is well formed. Returns how many PDUs that is.
fn read(connection: &mut Connection) -> usize {
    connection.answers();
    let output = connection.take_output();
    let (mut rest, mut pdus) = (&output[..], 0);
    while !rest.is_empty() {
        let Ok(header) = Header::parse(rest) else { panic!("an answer is not a PDU") };
        let length = usize::from(header.frag_length);
        assert!(length <= rest.len(), "an answer is cut");
        rest = &rest[length..];
        pdus += 1;
    }
    pdus
}

/// Reads the answers so far, and goes on with the rest of a message that holds many PDUs, as the server's shell does. Returns how many PDUs were read.
fn go_on(connection: &mut Connection, flow: &mut Flow, now: Instant) -> usize {
    let mut pdus = read(connection);
    while *flow == Flow::More {
        *flow = connection.receive(&[], now);
        pdus += read(connection);
    }
    pdus
}

fn bind() -> Bind {
    let context = |id, interface| ContextElement { id, interface, transfer: vec![rpc::NDR32] };
    let contexts = vec![context(0, witness::SYNTAX), context(1, endpoint_mapper::SYNTAX)];
    Bind { max_xmit: 5840, max_recv: 5840, group: 0, contexts }
}

const TRAILER: Trailer = Trailer { auth_type: auth_type::NTLM, level: auth_level::INTEGRITY, pad: 0, context: 1 };

/// The first two bits of the first byte choose: 0: bytes as they are; 1: bound, then as they are; 2: calls of the endpoint mapper;
/// 3: signed calls of the witness after a logon. A call is an operation number and a stub.
pub fn connection(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else { return };
    let users = Arc::new(MemoryUsers::new("FUZZ", Sid::new(5, &[21, 1, 2, 3])));
    users.add_user("user", "password", &[]);
    let fixed = Arc::new(Fixed(users));
    let now = Instant::now();
    let witness = Witness::new(fixed.clone(), Box::new(|| [6; 16]));
    let mapper = EndpointMapper::new(vec![(witness::SYNTAX, 1)]);
    let service = TcpService::new(vec![witness.clone(), Arc::new(mapper)]);
    let local = SocketAddr::from(([10, 0, 0, 2], 135));
    let mut connection = Connection::new(service, fixed, local.ip(), local, Box::new(|| {}));
    let mut security = None;
    match choice & 3 {
        0 => {}
        3 => {
            let mut initiator = Initiator::new("user", "FUZZ", "password");
            initiator.spnego = false;
            let mut pdu = bind().encode(rpc::BIND, 1);
            TRAILER.append_token(&mut pdu, &initiator.first());
            connection.receive(&pdu, now);
            let ack = connection.take_output();
            let challenge = Header::parse(&ack).and_then(|h| Trailer::split(&h, &ack)).map(|(_, _, at)| at + 8);
            let Ok(token) = initiator.second(&ack[challenge.unwrap_or(0)..], [2; 24]) else { panic!("no challenge") };
            let mut pdu = rpc::encode_auth3(2);
            TRAILER.append_token(&mut pdu, &token);
            connection.receive(&pdu, now);
            security = initiator.message_security();
            assert!(connection.user().is_some(), "the logon failed");
        }
        _ => drop(connection.receive(&bind().encode(rpc::BIND, 1), now)),
    }
    read(&mut connection);
    for (number, message) in messages(rest).into_iter().take(8).enumerate() {
        let mut flow = match (choice & 3, message) {
            (mode @ (2 | 3), [opnum, stub @ ..]) => {
                let (context, stub) = (3 - u16::from(mode), &stub[..stub.len().min(4096)]);
                let call_id = 10 + number as u32;
                let mut pdu = Request { context, opnum: u16::from(*opnum), stub }.encode(3, call_id);
                if let Some(security) = &mut security {
                    let token = TRAILER.append(&mut pdu, rpc::RESPONSE_HEADER_BYTES, 16, 16);
                    let signature = security.sign(&pdu[24..token - 8]);
                    pdu[token..].copy_from_slice(&signature);
                }
                connection.receive(&pdu, now)
            }
            _ => connection.receive(message, now),
        };
        witness.look(now);
        go_on(&mut connection, &mut flow, now);
        if let Flow::Close(_) = flow {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_many_pdus_is_processed_to_its_end() {
        let fixed = Arc::new(Fixed(Arc::new(MemoryUsers::new("FUZZ", Sid::new(5, &[21, 1, 2, 3])))));
        let service = TcpService::new(vec![Arc::new(EndpointMapper::new(vec![(witness::SYNTAX, 1)]))]);
        let (local, now) = (SocketAddr::from(([10, 0, 0, 2], 135)), Instant::now());
        let mut connection = Connection::new(service, fixed, local.ip(), local, Box::new(|| {}));
        let mut flow = connection.receive(&bind().encode(rpc::BIND, 1), now);
        assert_eq!(go_on(&mut connection, &mut flow, now), 1);
        let call = |id| Request { context: 1, opnum: 99, stub: &[] }.encode(3, id);
        flow = connection.receive(&(0..100).flat_map(call).collect::<Vec<_>>(), now);
        assert_eq!((flow, go_on(&mut connection, &mut flow, now)), (Flow::More, 100));
    }
}
