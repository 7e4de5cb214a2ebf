//! The seam between sessions and trees: requests are verified here, copied value by value, run by an engine on a thread that has
//! nothing but the copy, and answered by values that come back.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Sender, channel},
    },
    time::Instant,
};

use arden_auth::Token;
use arden_smb::{
    Server, ServerConfig,
    model::Negotiated,
    run::{Here, InFlight, RequestEngine},
    seam::{Answer, Outcome, Related, VerifiedRequest},
};
use arden_store::{commit::CommitScope, fs::ClientId};
use arden_testkit::client;
use arden_wire::smb2::Header;
use client::*;

/// A verified request as it would go over a connection between nodes: it owns all that it has.
struct Owned {
    header: Header,
    message: Vec<u8>,
    session_serial: u64,
    user: Token,
    client: u128,
    anonymous: bool,
    negotiated: Negotiated,
    ip: std::net::IpAddr,
    address: String,
    encrypted: bool,
    async_id: Option<u64>,
    related: Related,
    room: usize,
}

impl Owned {
    /// Names every field: one that comes to the seam has to be one that can be copied.
    fn of(request: &VerifiedRequest<'_>) -> Owned {
        let VerifiedRequest {
            header,
            message,
            session_serial,
            user,
            client,
            anonymous,
            negotiated,
            ip,
            address,
            encrypted,
            async_id,
            related,
            room,
        } = request;
        Owned {
            header: *header,
            message: message.to_vec(),
            session_serial: *session_serial,
            user: Token::clone(user),
            client: client.0,
            anonymous: *anonymous,
            negotiated: Negotiated::clone(negotiated),
            ip: *ip,
            address: (*address).to_owned(),
            encrypted: *encrypted,
            async_id: *async_id,
            related: *related,
            room: *room,
        }
    }

    fn verified(&self) -> VerifiedRequest<'_> {
        VerifiedRequest {
            header: self.header,
            message: &self.message,
            session_serial: self.session_serial,
            user: Arc::new(self.user.clone()),
            client: ClientId(self.client),
            anonymous: self.anonymous,
            negotiated: &self.negotiated,
            ip: self.ip,
            address: &self.address,
            encrypted: self.encrypted,
            async_id: self.async_id,
            related: self.related,
            room: self.room,
        }
    }
}

enum Asked {
    Run(Box<Owned>, Instant, Sender<(Answer, Vec<u8>)>),
    /// It is answered or given up: nothing is in flight any more.
    End(Header, Sender<usize>),
}

/// Stands where the connection to the node with the trees would be.
struct Between {
    to_engine: Mutex<Sender<Asked>>,
    seen: Mutex<Vec<Seen>>,
    /// Requests that the engine had last.
    in_flight: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    command: u16,
    resumed: bool,
    waits: bool,
}

impl RequestEngine for Between {
    fn run(&self, request: &VerifiedRequest<'_>, here: &mut Here<'_>, out: &mut Vec<u8>) -> Answer {
        if !here.may_block {
            // Whoever asks another node waits for it.
            return Answer { outcome: Outcome::Block, related: request.related };
        }
        let (reply, answered) = channel();
        let owned = Box::new(Owned::of(request));
        self.to_engine.lock().unwrap().send(Asked::Run(owned, here.now, reply)).unwrap();
        let (answer, body) = answered.recv().unwrap();
        self.seen.lock().unwrap().push(Seen {
            command: request.header.command,
            resumed: request.async_id.is_some(),
            waits: matches!(answer.outcome, Outcome::Pending(_)),
        });
        out.extend_from_slice(&body);
        answer
    }

    fn end(&self, header: &Header, _: &mut InFlight) {
        let (reply, left) = channel();
        self.to_engine.lock().unwrap().send(Asked::End(*header, reply)).unwrap();
        self.in_flight.store(left.recv().unwrap(), Ordering::Relaxed);
    }
}

/// The node with the trees: what is in flight stays here, and a change is durable before its answer leaves.
fn serve(engine: &dyn RequestEngine, asked: std::sync::mpsc::Receiver<Asked>) {
    let mut in_flight: HashMap<(u64, u64), InFlight> = HashMap::new();
    for asked in asked {
        match asked {
            Asked::Run(owned, now, reply) => {
                let scope = CommitScope::begin();
                let large = Default::default();
                let in_flight = in_flight.entry((owned.header.session_id, owned.header.message_id)).or_default();
                let mut gates = arden_smb::Gates::default();
                let mut here =
                    Here { now, may_block: true, scope: &scope, large: &large, gates: &mut gates, in_flight };
                let mut body = Vec::new();
                let mut answer = engine.run(&owned.verified(), &mut here, &mut body);
                if scope.commit().is_err() {
                    answer.outcome = NtStatus::INTERNAL_ERROR.into();
                }
                reply.send((answer, body)).unwrap();
            }
            Asked::End(header, left) => {
                if let Some(mut ended) = in_flight.remove(&(header.session_id, header.message_id)) {
                    engine.end(&header, &mut ended);
                }
                left.send(in_flight.len()).unwrap();
            }
        }
    }
}

static BETWEEN: OnceLock<Arc<Between>> = OnceLock::new();

fn far(config: ServerConfig, table: Arc<arden_store::table::OpenTable>, time: arden_smb::time::Time) -> Arc<Server> {
    Server::with_engine(config, table, time, |engine| {
        let (to_engine, asked) = channel();
        std::thread::spawn(move || serve(&*engine, asked));
        let between =
            Between { to_engine: Mutex::new(to_engine), seen: Mutex::default(), in_flight: AtomicUsize::new(0) };
        BETWEEN.get_or_init(|| Arc::new(between)).clone()
    })
}

#[test]
fn requests_and_answers_pass_the_seam_as_values() {
    let lab = Lab::with(|setup| setup.server = far);
    let (mut one, mut two) = (lab.client(), lab.client());
    // Opens, data, and a compound whose requests are related.
    let f = one.open(want("file").lease(5, "RWH"));
    one.write(f.id, 0, b"over the seam");
    assert_eq!(one.read(f.id, 5, 8), b"the seam");
    let compound = [want("other").req(), write(FileId::RELATED, 0, b"x").related(), close(FileId::RELATED).related()];
    one.compound(&compound).into_iter().for_each(|r| drop(r.ok()));
    assert_eq!(std::fs::read(lab.host("other")).unwrap(), b"x");
    // A create that waits for a break, which its client is told by the session's id.
    let create = two.starts(want("file").existing());
    assert_eq!(one.lease_break(), ("RWH".to_owned(), "RH".to_owned(), true));
    one.call(&lease_ack(5, "RH")).ok();
    let g = two.opened(create);
    // A lock that waits, and one that is cancelled.
    one.call(&lock(f.id, 0, &[(0, 10, lock_flags::EXCLUSIVE)])).ok();
    let waiting = two.send(&lock(g.id, 0, &[(5, 10, lock_flags::EXCLUSIVE)]));
    two.interim(waiting);
    one.call(&lock(f.id, 0, &[(0, 10, lock_flags::UNLOCK)])).ok();
    two.receive(waiting).ok();
    let cancelled = one.send(&lock(f.id, 0, &[(5, 1, lock_flags::SHARED)]));
    let async_id = one.interim(cancelled);
    one.cancel(async_id);
    assert_eq!(one.receive(cancelled).status(), NtStatus::CANCELLED);
    // A notification.
    let directory = one.open(want("dir").directory()).id;
    let watch = one.send(&notify(directory, 0, 1, 4096));
    one.interim(watch);
    two.open(want("dir\\new"));
    assert_eq!(changes(one.receive(watch).ok().buffer()), [(1, "new".to_owned())]);
    // The end of a session on the sessions' side ends what it has on the other.
    one.close(f.id);
    one.status(&Req::empty(Command::Logoff));
    two.disconnect();
    assert!(lab.server.trees.opens().is_empty());
    let between = BETWEEN.get().unwrap();
    assert_eq!(between.in_flight.load(Ordering::Relaxed), 0, "every request came to an end");
    let seen = between.seen.lock().unwrap().clone();
    for command in [Command::Create, Command::Lock, Command::ChangeNotify] {
        let of: Vec<_> = seen.iter().filter(|s| s.command == command as u16).collect();
        assert!(of.iter().any(|s| s.waits), "{command:?}: {of:?}");
        assert!(of.iter().any(|s| s.resumed && !s.waits), "{command:?}: {of:?}");
    }
    for command in [Command::TreeConnect, Command::Write, Command::Read, Command::Close] {
        assert!(seen.iter().any(|s| s.command == command as u16), "{command:?}");
    }
    assert!(seen.iter().all(|s| s.command != Command::Logoff as u16), "a session's own request stays on its side");
}
