//! The seam between sessions and trees: requests are verified here, go as bytes to an engine on a thread that has nothing but these,
//! and are answered by bytes that come back. Nobody waits for them on a thread.

use std::{
    any::Any,
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{Sender, channel},
    },
    time::{Duration, Instant},
};

use arden_smb::{
    Server, ServerConfig,
    run::{Elsewhere, GoOn, Here, InFlight, RequestEngine},
    seam::{Answer, Outcome, VerifiedRequest},
    wire::{
        FromOwner, LENGTH_BYTES, Origin, Replied, Run, Target, ToOwner, Version, put_answered, put_origin, put_run,
    },
};
use arden_store::{commit::CommitScope, fs::WaitId};
use arden_testkit::client;
use arden_wire::smb2::Header;
use client::*;

enum Asked {
    /// Two frames: who asks, and what.
    Run([Vec<u8>; 2], Instant, Arc<Waiting>),
    Again(u64, u64, Instant, Arc<Waiting>),
    /// It is answered or given up: nothing is in flight any more.
    End(u64),
}

/// A request at the engine beyond, until it is answered.
struct Waiting {
    number: u64,
    bytes: usize,
    state: Mutex<State>,
    /// Told when nobody waits any more.
    ended: Mutex<Sender<Asked>>,
}

#[derive(Default)]
struct State {
    /// A frame without its length, and the wait where it waits there.
    answer: Option<(Vec<u8>, Option<WaitId>)>,
    go_on: Option<GoOn>,
}

impl Waiting {
    fn answered(&self, frame: Vec<u8>, wait: Option<WaitId>) {
        let go_on = {
            let mut state = self.state.lock().unwrap();
            state.answer = Some((frame, wait));
            state.go_on.take()
        };
        go_on.into_iter().for_each(|go_on| go_on(false));
    }
}

impl Elsewhere for Waiting {
    fn when_answered(&self, go_on: GoOn) {
        let mut state = self.state.lock().unwrap();
        if state.answer.is_none() {
            state.go_on = Some(go_on);
            return;
        }
        drop(state);
        go_on(false);
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.ended.lock().unwrap().send(Asked::End(self.number));
    }
}

/// Stands where the connection to the node with the trees would be. No thread waits on this side.
struct Between {
    to_engine: Mutex<Sender<Asked>>,
    seen: Mutex<Vec<Seen>>,
    numbers: AtomicU64,
    /// Requests that the engine had last.
    in_flight: Arc<AtomicUsize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    command: u16,
    resumed: bool,
    waits: bool,
}

const TARGET: Target = Target { pool: 1, epoch: 1 };

impl RequestEngine for Between {
    fn run(&self, request: &VerifiedRequest<'_>, here: &mut Here<'_>, out: &mut Vec<u8>) -> Answer {
        let elsewhere = Answer { outcome: Outcome::Elsewhere, related: request.related };
        let asked = here.in_flight.elsewhere.clone();
        let asked = asked.map(|asked| (asked as Arc<dyn Any + Send + Sync>).downcast::<Waiting>().unwrap());
        let to_engine = self.to_engine.lock().unwrap();
        let Some(asked) = asked else {
            let number = self.numbers.fetch_add(1, Ordering::Relaxed);
            let mut frames = [const { Vec::new() }; 2];
            put_origin(&mut frames[0], request.session_serial, &Origin::of(request, false)).unwrap();
            put_run(&mut frames[1], number, TARGET, request, &[], None).unwrap();
            let (bytes, ended) = (request.message.len(), Mutex::new(to_engine.clone()));
            let waiting = Arc::new(Waiting { number, bytes, state: Mutex::default(), ended });
            here.in_flight.elsewhere = Some(waiting.clone());
            to_engine.send(Asked::Run(frames, here.now, waiting)).unwrap();
            return elsewhere;
        };
        let Some((frame, wait)) = asked.state.lock().unwrap().answer.take() else {
            let async_id = request.async_id.unwrap();
            to_engine.send(Asked::Again(asked.number, async_id, here.now, asked.clone())).unwrap();
            return elsewhere;
        };
        let Ok(FromOwner::Answered { answer, related, body, .. }) = FromOwner::parse(&frame, Version::NEWEST) else {
            panic!()
        };
        self.seen.lock().unwrap().push(Seen {
            command: request.header.command,
            resumed: request.async_id.is_some(),
            waits: wait.is_some(),
        });
        out.extend_from_slice(body);
        answer.into_answer(related).unwrap_or_else(|| Answer { outcome: Outcome::Pending(wait.unwrap()), related })
    }

    fn end(&self, _: &Header, in_flight: &mut InFlight) {
        in_flight.elsewhere = None;
    }
}

/// The node with the trees: what is in flight stays here, and a change is durable before its answer leaves.
fn serve(engine: &dyn RequestEngine, asked: std::sync::mpsc::Receiver<Asked>, count: &AtomicUsize) {
    let mut requests: HashMap<u64, (Box<Run>, Box<Origin>, InFlight)> = HashMap::new();
    for asked in asked {
        let (number, now, waiting) = match asked {
            Asked::Run([origin, run], now, waiting) => {
                let Ok(ToOwner::Origin { serial, origin }) = ToOwner::parse(&origin[LENGTH_BYTES..], Version::NEWEST)
                else {
                    panic!()
                };
                let Ok(ToOwner::Run(run, None)) = ToOwner::parse(&run[LENGTH_BYTES..], Version::NEWEST) else {
                    panic!()
                };
                assert_eq!(serial, run.session_serial);
                let number = run.number;
                requests.insert(number, (run, origin, InFlight::default()));
                count.store(requests.len(), Ordering::Relaxed);
                (number, now, waiting)
            }
            Asked::Again(number, async_id, now, waiting) => {
                requests.get_mut(&number).unwrap().0.async_id = Some(async_id);
                (number, now, waiting)
            }
            Asked::End(number) => {
                if let Some((run, _, mut in_flight)) = requests.remove(&number) {
                    engine.end(run.header(), &mut in_flight);
                }
                count.store(requests.len(), Ordering::Relaxed);
                continue;
            }
        };
        let (run, origin, in_flight) = requests.get_mut(&number).unwrap();
        let scope = CommitScope::begin();
        let large = Default::default();
        let mut gates = arden_smb::Gates::default();
        let mut here = Here {
            now,
            may_block: true,
            scope: &scope,
            large: &large,
            gates: &mut gates,
            in_flight,
            behind: None,
            tree_elsewhere: false,
        };
        let mut body = Vec::new();
        let mut answer = engine.run(&run.verified(origin, run.session_serial), &mut here, &mut body);
        if scope.commit().is_err() {
            answer.outcome = NtStatus::INTERNAL_ERROR.into();
        }
        let wait = if let Outcome::Pending(wait) = answer.outcome { Some(wait) } else { None };
        let replied = Replied::of(answer.outcome).unwrap();
        if !matches!(replied, Replied::Done(_)) {
            body.clear();
        }
        let mut frame = Vec::new();
        put_answered(&mut frame, number, &replied, &answer.related, &body).unwrap();
        waiting.answered(frame.split_off(LENGTH_BYTES), wait);
    }
}

static BETWEEN: OnceLock<Arc<Between>> = OnceLock::new();

fn far(config: ServerConfig, table: Arc<arden_store::table::OpenTable>, time: arden_smb::time::Time) -> Arc<Server> {
    Server::with_engine(config, table, time, |engine| {
        let (to_engine, asked) = channel();
        let in_flight = Arc::new(AtomicUsize::new(0));
        let count = in_flight.clone();
        std::thread::spawn(move || serve(&*engine, asked, &count));
        let (to_engine, numbers) = (Mutex::new(to_engine), AtomicU64::new(1));
        let between = Between { to_engine, seen: Mutex::default(), numbers, in_flight };
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
    let end = Instant::now() + Duration::from_secs(10);
    while between.in_flight.load(Ordering::Relaxed) != 0 {
        assert!(Instant::now() < end, "every request comes to an end");
        std::thread::yield_now();
    }
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
