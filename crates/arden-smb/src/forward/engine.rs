//! Stands before this node's trees: a request for a share that another node owns goes to that node, and all others to the trees. Which
//! it is, is decided by a TREE_CONNECT, and by the tree connect from then on. Where the owner is lost or changes, the connections of
//! the sessions that used it end without an answer, as if they were lost: their clients come back, and replay.

use std::{
    any::Any,
    collections::HashMap,
    sync::{Arc, OnceLock, Weak},
    time::Instant,
};

use arden_lock::{Mutex, ranks};
use arden_store::{fs::WaitId, table::OpenTable};
use arden_wire::{
    NtStatus,
    dtyp::Sid,
    fscc::fsctl,
    smb2::{
        Command, Dialect, Header, flags,
        io::IoctlRequest,
        session::{TREE_CONNECT_REDIRECT_TO_OWNER, TreeConnectRequest, share_redirect},
    },
};
use tokio::{runtime::Handle, sync::oneshot, task::JoinHandle, time::timeout};

use crate::{
    base::{config::ServerConfig, time::Time, usage::Kind},
    forward::{
        ENDINGS_WAIT, Nodes, OWNER_WAIT, OWNER_WAIT_STEP, Place,
        link::{Answered, Call, Heard, Link, Next, NotSent},
        room::{Paid, Room, Unpaid, Waiter},
        turns::Lane,
    },
    handlers::run::{Elsewhere, GoOn, Here, InFlight, NOT_SERVED, RequestEngine},
    model::{
        SessionTables,
        seam::{Answer, Following, Notification, Outcome, Recipient, Related, VerifiedRequest},
        wire::{RUN_REQUESTS_MAX, Replied, Target, Version, at_trees},
    },
    server::Server,
    trees::endings::Then,
};

/// Bodies from this size on, that are answered with no more than this before them, take the connection's large buffer.
const LARGE_BODY_BYTES: usize = 128 << 10;
const LARGE_HEAD_BYTES_MAX: usize = 512;

/// Where this node's sessions have tree connects at other nodes.
pub struct Forwarder {
    me: Weak<Forwarder>,
    local: Arc<dyn RequestEngine>,
    server: OnceLock<Weak<Server>>,
    nodes: Arc<dyn Nodes>,
    runtime: Handle,
    routes: Mutex<Routes, ranks::Routes>,
    room: Arc<Room>,
}

#[derive(Default)]
struct Routes {
    links: HashMap<u16, Arc<Link>>,
    /// By serial number.
    sessions: HashMap<u64, Session>,
}

struct Session {
    id: u64,
    /// By the TreeId that the client knows.
    trees: HashMap<u32, Arc<Route>>,
    /// Connections over which a tree connect was asked for: the owner knows of the session.
    links: Vec<Arc<Link>>,
}

struct Route {
    link: Arc<Link>,
    target: Target,
    share: String,
    /// TreeId at the owner; 0: it is about to be connected.
    tree: u32,
}

/// A request at another node, and where it went.
struct Forwarded {
    call: Arc<Call>,
    route: Arc<Route>,
    /// TreeId that the client knows.
    tree: u32,
    /// Since when it looks for an owner.
    since: Option<Instant>,
}

impl Elsewhere for Forwarded {
    fn when_answered(&self, go_on: GoOn) {
        self.call.when_answered(go_on);
    }
    fn bytes(&self) -> usize {
        self.call.bytes()
    }
    fn is_much(&self) -> bool {
        self.call.is_much()
    }
}

/// A tree connect that waits for an owner.
struct Paused {
    runtime: Handle,
    /// Until there is a connection to it. None: a while.
    link: Option<Arc<Link>>,
    since: Instant,
    bytes: usize,
    _paid: Paid,
}

/// What an earlier run of a request left.
#[derive(Default)]
struct Earlier {
    /// Since when it looks for an owner, if it has met none.
    since: Option<Instant>,
    /// It waited for room.
    paid: Option<Paid>,
}

impl Elsewhere for Paused {
    fn when_answered(&self, go_on: GoOn) {
        let link = self.link.clone();
        self.runtime.spawn(async move {
            match link {
                Some(link) => link.settled().await,
                None => tokio::time::sleep(OWNER_WAIT_STEP).await,
            }
            go_on(false);
        });
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A request that waits until its user has less at other nodes.
struct Held {
    waiter: Arc<Waiter>,
    since: Option<Instant>,
}

impl Elsewhere for Held {
    fn when_answered(&self, go_on: GoOn) {
        self.waiter.when_over(go_on);
    }
    fn bytes(&self) -> usize {
        self.waiter.bytes()
    }
    fn is_held(&self) -> bool {
        true
    }
}

/// As long as it is asked, what it sent is kept, and what it may get.
fn bytes_kept(header: &Header, message: &[u8], room: usize) -> usize {
    message.len().max(usize::from(header.credit_charge.max(1)) << 16).min(message.len() + room)
}

fn close(request: &VerifiedRequest<'_>) -> Answer {
    Answer { outcome: Outcome::Close(NOT_SERVED), related: request.related }
}

fn refuse(request: &VerifiedRequest<'_>, status: NtStatus) -> Answer {
    Answer { outcome: status.into(), related: request.related }
}

impl Forwarder {
    /// A server whose requests for shares of other nodes go to these. Within a runtime, on which links live.
    pub fn before(
        config: ServerConfig,
        table: Arc<OpenTable>,
        time: Time,
        nodes: Arc<dyn Nodes>,
    ) -> (Arc<Server>, Arc<Forwarder>) {
        let made = OnceLock::new();
        let make = |local| Forwarder::new(local, nodes.clone(), Handle::current());
        let server = Server::with_engine(config, table, time, |local| made.get_or_init(|| make(local)).clone());
        let Some(forwarder) = made.into_inner() else { unreachable!("a server has an engine") };
        forwarder.attach(&server);
        (server, forwarder)
    }

    /// Before `local`, the engine of this node's trees. Links live on `runtime`. [`Forwarder::attach`] has to follow.
    fn new(local: Arc<dyn RequestEngine>, nodes: Arc<dyn Nodes>, runtime: Handle) -> Arc<Forwarder> {
        Arc::new_cyclic(|me| Forwarder {
            me: me.clone(),
            local,
            server: OnceLock::new(),
            nodes,
            room: Room::new(runtime.clone()),
            runtime,
            routes: Mutex::default(),
        })
    }

    /// The server that it was made for.
    fn attach(&self, server: &Arc<Server>) {
        let _ = self.server.set(Arc::downgrade(server));
    }

    fn server(&self) -> Option<Arc<Server>> {
        self.server.get()?.upgrade()
    }

    /// Owners may have changed: sessions whose shares are elsewhere by now lose their connections.
    pub fn places_changed(&self) {
        let all: Vec<_> = {
            let routes = self.routes.lock();
            let of = |(serial, session): (&u64, &Session)| {
                session
                    .trees
                    .values()
                    .map(|r| (*serial, session.id, r.share.clone(), r.link.node, r.target))
                    .collect::<Vec<_>>()
            };
            routes.sessions.iter().flat_map(of).collect()
        };
        for (serial, id, share, node, target) in all {
            if self.nodes.place(&share) != Place::Node(node, target) {
                self.disconnect(id, serial);
            }
        }
    }

    fn disconnect(&self, id: u64, serial: u64) {
        if let Some(server) = self.server() {
            server.disconnect_session(id, serial);
        }
    }

    fn route(&self, request: &VerifiedRequest<'_>) -> Option<(u32, Arc<Route>)> {
        let header = &request.header;
        let id = if header.is(flags::RELATED_OPERATIONS) { request.related.tree_id } else { header.tree_id() };
        let routes = self.routes.lock();
        let session = routes.sessions.get(&request.session_serial)?;
        session.trees.get(&id).map(|route| (id, route.clone()))
    }

    fn link(&self, node: u16) -> Option<Arc<Link>> {
        let me: Arc<dyn Heard> = self.me.upgrade()?;
        let mut routes = self.routes.lock();
        let link = routes.links.get(&node).filter(|link| !link.is_broken());
        if let Some(link) = link {
            return Some(link.clone());
        }
        let _runtime = self.runtime.enter();
        let link = Link::open(node, self.nodes.dial(node), me);
        routes.links.insert(node, link.clone());
        Some(link)
    }

    fn open_links(&self) -> Vec<Arc<Link>> {
        self.routes.lock().links.values().cloned().collect()
    }

    /// Every other node is asked, whether or not there is such a session: a client learns nothing of the ids of others. A node that has it and is reached late
    /// ends it late.
    fn end_previous_elsewhere(&self, id: u64, user: &Sid) -> Vec<JoinHandle<()>> {
        let ask = |link: Arc<Link>| {
            let (user, asked) = (user.clone(), link.clone());
            let end = self.runtime.spawn(async move {
                asked.settled().await;
                if asked.end_previous(id, &user)
                    && let Some(ended) = heard(|then| asked.endings.after(&user, then))
                {
                    let _ = ended.await;
                }
            });
            self.runtime.spawn(async move {
                link.settled_or_late().await;
                if link.version().is_some() {
                    let _ = end.await;
                }
            })
        };
        self.nodes.others().into_iter().filter_map(|node| self.link(node)).map(ask).collect()
    }

    fn connect(
        &self,
        request: &VerifiedRequest<'_>,
        here: &mut Here<'_>,
        out: &mut Vec<u8>,
        earlier: Earlier,
    ) -> Answer {
        let parsed = TreeConnectRequest::parse(request.message, request.dialect() == Dialect::Smb311);
        let (share, redirects) = match parsed {
            Ok(parsed) if !parsed.share_name().eq_ignore_ascii_case("IPC$") => {
                let asked = parsed.flags & TREE_CONNECT_REDIRECT_TO_OWNER != 0;
                let redirects = asked && request.dialect() == Dialect::Smb311;
                (parsed.share_name().to_owned(), redirects.then_some(parsed.path))
            }
            _ => return self.local.run(request, here, out),
        };
        let (node, target) = match self.nodes.place(&share) {
            Place::Here => return self.local.run(request, here, out),
            Place::Nobody => return self.pause(request, here, None, earlier),
            Place::Node(node, target) => (node, target),
        };
        let Some(server) = self.server() else { return close(request) };
        if let Some(redirect) = redirects.and_then(|path| self.redirect(&server, request, (&share, &path), node)) {
            return redirect;
        }
        let limit = server.trees.config.limits.trees_per_session_max;
        let held = self.routes.lock().sessions.get(&request.session_serial).map_or(0, |s| s.trees.len());
        if held >= limit {
            tracing::warn!(client = %request.address, limit, "trees_per_session_max reached");
            return refuse(request, NtStatus::INSUFFICIENT_RESOURCES);
        }
        let (Some(link), Some(tables)) = (self.link(node), server.trees.session_tables(request.session_serial)) else {
            return close(request);
        };
        if link.version().is_none() && !link.is_broken() {
            return self.pause(request, here, Some(link), earlier);
        }
        self.note(&tables, &link);
        let route = Arc::new(Route { link: link.clone(), target, share, tree: 0 });
        let asked = self.ask(request, here, (0, route), earlier);
        if tables.has_ended() {
            // Behind what was asked, whoever else said so before.
            self.note(&tables, &link);
            self.session_ended(tables.serial, true);
        }
        asked
    }

    /// [MS-SMB2] 3.3.5.7: a client that can go to the owner is told where that is, if it may use the share at all. One that cannot get
    /// there asks again without the flag.
    fn redirect(
        &self,
        server: &Server,
        request: &VerifiedRequest<'_>,
        (share, path): (&str, &str),
        node: u16,
    ) -> Option<Answer> {
        let listed = server.trees.listed_shares().into_iter().find(|s| s.name.eq_ignore_ascii_case(share))?;
        let is_trusted = request.header.is(flags::SIGNED) || request.encrypted;
        if request.anonymous || !is_trusted || listed.ceiling(&request.user) == 0 {
            // The owner refuses it.
            return None;
        }
        let addresses = self.nodes.addresses(node);
        if addresses.is_empty() {
            return None;
        }
        tracing::debug!(client = %request.address, user = %request.user.user_name, share, node, "redirected to the owner");
        // As the client named it: it looks for the share under the same name there.
        let data = share_redirect(path, &addresses);
        Some(Answer { outcome: Outcome::Error(NtStatus::BAD_NETWORK_NAME, data, 1), related: request.related })
    }

    /// The owner at the other end of the link is told when the session ends.
    fn note(&self, tables: &SessionTables, link: &Arc<Link>) {
        let new = || Session { id: tables.id, trees: HashMap::new(), links: Vec::new() };
        let mut routes = self.routes.lock();
        let session = routes.sessions.entry(tables.serial).or_insert_with(new);
        session.links.retain(|l| !l.is_broken());
        if !session.links.iter().any(|l| Arc::ptr_eq(l, link)) {
            session.links.push(link.clone());
        }
    }

    /// Until there is an owner that can be asked, but not for ever.
    fn pause(
        &self,
        request: &VerifiedRequest<'_>,
        here: &mut Here<'_>,
        link: Option<Arc<Link>>,
        mut earlier: Earlier,
    ) -> Answer {
        // A dial may take many steps.
        let since = *earlier.since.get_or_insert(here.now);
        if here.now.saturating_duration_since(since) > OWNER_WAIT {
            return close(request);
        }
        let (bytes, paid) = match self.pay(request, here, earlier) {
            Ok(paid) => paid,
            Err(answer) => return answer,
        };
        let runtime = self.runtime.clone();
        here.in_flight.elsewhere = Some(Arc::new(Paused { runtime, link, since, bytes, _paid: paid }));
        Answer { outcome: Outcome::Elsewhere, related: request.related }
    }

    /// The user pays until there is an answer. An answer is given back where the request waits until it can be paid for, or is refused.
    fn pay(
        &self,
        request: &VerifiedRequest<'_>,
        here: &mut Here<'_>,
        earlier: Earlier,
    ) -> Result<(usize, Paid), Answer> {
        let bytes = bytes_kept(&request.header, request.message, request.room);
        if let Some(paid) = earlier.paid {
            return Ok((bytes, paid));
        }
        let server = self.server().ok_or_else(|| close(request))?;
        let account = server.trees.usage.account(Kind::ForwardedBytes, &request.user, Some(request.ip));
        match self.room.pay(Lane::of(&request.user.user), account, bytes) {
            Ok(paid) => Ok((bytes, paid)),
            Err(Unpaid::Refused) => Err(refuse(request, NtStatus::INSUFFICIENT_RESOURCES)),
            Err(Unpaid::Waits(waiter)) => {
                here.in_flight.elsewhere = Some(Arc::new(Held { waiter, since: earlier.since }));
                Err(Answer { outcome: Outcome::Elsewhere, related: request.related })
            }
        }
    }

    /// The requests behind this one, for which is `paid`, that may go with it, and what each costs. They wait as one with it. Where their user has much at
    /// other nodes, they are asked for one by one, so that no other request of the user is refused for them.
    fn following<'a>(
        paid: &Paid,
        version: Option<Version>,
        request: &VerifiedRequest<'_>,
        here: &Here<'a>,
    ) -> (Vec<Following<'a>>, Vec<(usize, Paid)>) {
        let is_run = version.is_some_and(|version| version != Version::One) && request.async_id.is_none();
        let may_have = |n: &usize| *n + 1 < RUN_REQUESTS_MAX && is_run;
        let Some(behind) = here.behind.filter(|_| here.in_flight.ahead.is_empty()) else { return Default::default() };
        let charged = |following: Following<'a>| {
            let bytes = bytes_kept(&following.header, following.message, following.room);
            Some((following, (bytes, paid.also_half(bytes)?)))
        };
        (0..).take_while(may_have).map_while(|n| behind.related(n).and_then(charged)).unzip()
    }

    /// Hands the request to its owner.
    fn ask(
        &self,
        request: &VerifiedRequest<'_>,
        here: &mut Here<'_>,
        (tree, route): (u32, Arc<Route>),
        earlier: Earlier,
    ) -> Answer {
        let Some(server) = self.server() else { return close(request) };
        let Some(tables) = server.trees.session_tables(request.session_serial) else {
            return refuse(request, NtStatus::USER_SESSION_DELETED);
        };
        let since = earlier.since;
        let (bytes, paid) = match self.pay(request, here, earlier) {
            Ok(paid) => paid,
            Err(answer) => return answer,
        };
        let related = if request.related.tree_id == tree { route.tree } else { 0 };
        let there = at_trees(request, route.tree, related);
        let (following, costs) = Forwarder::following(&paid, route.link.version(), request, here);
        let calls = route.link.begin(&request.user.user, std::iter::once((bytes, paid)).chain(costs).collect());
        let Some(first) = calls.first() else { return close(request) };
        match route.link.ask(first, route.target, &there, &following, &tables) {
            Ok(()) => {}
            Err(NotSent::TooLong) => calls.iter().for_each(|call| call.lose()),
            Err(NotSent::Ended) => {
                calls.iter().for_each(|call| call.forget());
                return refuse(request, NtStatus::USER_SESSION_DELETED);
            }
        }
        let forwarded = |call| Arc::new(Forwarded { call, route: route.clone(), tree, since }) as Arc<dyn Elsewhere>;
        let mut calls = calls.into_iter().map(forwarded);
        here.in_flight.elsewhere = calls.next();
        here.in_flight.ahead.extend(calls);
        Answer { outcome: Outcome::Elsewhere, related: request.related }
    }

    /// A request that is elsewhere comes again.
    fn go_on(
        &self,
        asked: &Arc<Forwarded>,
        request: &VerifiedRequest<'_>,
        here: &mut Here<'_>,
        out: &mut Vec<u8>,
    ) -> Answer {
        let elsewhere = Answer { outcome: Outcome::Elsewhere, related: request.related };
        if !here.may_block && asked.call.is_answered_at_length() {
            // To copy and to sign it takes too long beside others.
            return Answer { outcome: Outcome::Block, related: request.related };
        }
        match asked.call.next() {
            Next::NotYet => elsewhere,
            Next::AskAgain => {
                asked.call.ask_again(request.async_id.unwrap_or(0));
                elsewhere
            }
            Next::Waits { related, resumed } => {
                let Some(server) = self.server() else { return close(request) };
                let wait = server.trees.new_wait();
                if asked.call.waits(wait, resumed) {
                    server.trees.resume(wait);
                }
                Answer { outcome: Outcome::Pending(wait), related: self.related_here(asked, related, asked.tree) }
            }
            Next::Answered(Answered { replied: Replied::NotRun, .. }) => {
                here.in_flight.elsewhere = None;
                self.run(request, here, out)
            }
            Next::Answered(answered) => {
                here.in_flight.elsewhere = None;
                self.answered(asked, answered, request, here, out)
            }
        }
    }

    fn related_here(&self, asked: &Forwarded, mut related: Related, tree: u32) -> Related {
        if related.tree_id != 0 && (related.tree_id == asked.route.tree || asked.route.tree == 0) {
            related.tree_id = tree;
        }
        related
    }

    fn answered(
        &self,
        asked: &Arc<Forwarded>,
        answered: Answered,
        request: &VerifiedRequest<'_>,
        here: &mut Here<'_>,
        out: &mut Vec<u8>,
    ) -> Answer {
        let Answered { replied, related, body } = answered;
        let command = Command::from_u16(request.header.command);
        if command == Some(Command::TreeConnect) && replied == Replied::Moved {
            // Nothing was done: it asks the owner that there is by then.
            return self.pause(request, here, None, Earlier { since: asked.since, paid: None });
        }
        let mut tree = asked.tree;
        if matches!(replied, Replied::Done(_)) {
            append(&body, here, out);
            asked.call.link.out.give_spare(body.into_buffer());
            match command {
                Some(Command::TreeConnect) => match self.add_route(request, asked, related.tree_id) {
                    Some(id) => tree = id,
                    None => return close(request),
                },
                Some(Command::TreeDisconnect) => self.remove_route(request.session_serial, asked.tree),
                _ => {}
            }
        }
        let related = self.related_here(asked, related, tree);
        replied.into_answer(related).unwrap_or_else(|| close(request))
    }

    fn add_route(&self, request: &VerifiedRequest<'_>, asked: &Forwarded, tree_there: u32) -> Option<u32> {
        let server = self.server()?;
        let tables = server.trees.session_tables(request.session_serial)?;
        let id = tables.next_tree_id();
        let Route { link, target, share, .. } = &*asked.route;
        let (link, target, share) = (link.clone(), *target, share.clone());
        let route = Arc::new(Route { link, target, share, tree: tree_there });
        self.note(&tables, &asked.route.link);
        if let Some(session) = self.routes.lock().sessions.get_mut(&request.session_serial) {
            session.trees.insert(id, route);
        }
        // One of the two sees the other: that it ended, or that it has this.
        if tables.has_ended() {
            self.session_ended(request.session_serial, true);
            return None;
        }
        Some(id)
    }

    fn remove_route(&self, serial: u64, tree: u32) {
        let mut routes = self.routes.lock();
        if let Some(session) = routes.sessions.get_mut(&serial) {
            session.trees.remove(&tree);
        }
    }

    /// FSCTLs that are about the client's connection are answered by the node that has it.
    fn is_on_connection(request: &VerifiedRequest<'_>) -> bool {
        request.header.command == Command::Ioctl as u16
            && IoctlRequest::parse(request.message).is_ok_and(|ioctl| {
                matches!(ioctl.ctl_code, fsctl::VALIDATE_NEGOTIATE_INFO | fsctl::QUERY_NETWORK_INTERFACE_INFO)
            })
    }
}

/// Appends a body. A long one goes into the connection's buffer of large answers, whose pages are there.
fn append(body: &[u8], here: &Here<'_>, out: &mut Vec<u8>) {
    if body.len() >= LARGE_BODY_BYTES && out.len() <= LARGE_HEAD_BYTES_MAX && out.capacity() < body.len() {
        let mut large = std::mem::take(&mut *here.large.lock());
        large.clear();
        large.reserve_exact(out.len() + body.len());
        large.extend_from_slice(out);
        *out = large;
    }
    out.extend_from_slice(body);
}

impl RequestEngine for Forwarder {
    fn run(&self, request: &VerifiedRequest<'_>, here: &mut Here<'_>, out: &mut Vec<u8>) -> Answer {
        let mut earlier = Earlier::default();
        if let Some(asked) = here.in_flight.elsewhere.clone() {
            let asked: Arc<dyn Any + Send + Sync> = asked;
            let other = match asked.downcast::<Forwarded>() {
                Ok(asked) => return self.go_on(&asked, request, here, out),
                Err(other) => other,
            };
            here.in_flight.elsewhere = None;
            match other.downcast::<Paused>() {
                Ok(paused) => {
                    earlier.since = Some(paused.since);
                    if paused.link.as_ref().is_some_and(|link| link.is_broken()) {
                        drop(paused);
                        return self.pause(request, here, None, earlier);
                    }
                }
                Err(other) => {
                    if let Ok(held) = other.downcast::<Held>() {
                        let Some(paid) = held.waiter.take() else {
                            return refuse(request, NtStatus::INSUFFICIENT_RESOURCES);
                        };
                        earlier = Earlier { since: held.since, paid: Some(paid) };
                    }
                }
            }
        }
        if request.header.command == Command::TreeConnect as u16 {
            return self.connect(request, here, out, earlier);
        }
        let Some((tree, route)) = self.route(request) else { return self.local.run(request, here, out) };
        if Forwarder::is_on_connection(request) {
            here.tree_elsewhere = true;
            let mut answer = self.local.run(request, here, out);
            answer.related.tree_id = tree;
            return answer;
        }
        self.ask(request, here, (tree, route), Earlier { since: None, ..earlier })
    }

    fn end(&self, header: &Header, in_flight: &mut InFlight) {
        in_flight.elsewhere = None;
        self.local.end(header, in_flight);
    }

    fn session_ended(&self, serial: u64, keep_durable: bool) {
        let gone = self.routes.lock().sessions.remove(&serial);
        for link in gone.into_iter().flat_map(|session| session.links) {
            link.end_session(serial, keep_durable);
        }
    }

    fn has_endings(&self, user: &Sid) -> bool {
        self.local.has_endings(user) || self.open_links().iter().any(|link| link.endings.has(user))
    }

    fn after_endings(&self, user: &Sid, previous: Option<u64>, then: Then) -> Result<(), Then> {
        let asked = previous.map(|id| self.end_previous_elsewhere(id, user)).unwrap_or_default();
        let (links, local) = (self.open_links(), self.local.clone());
        let mut waits: Vec<_> = links.iter().filter_map(|link| heard(|then| link.endings.after(user, then))).collect();
        waits.extend(heard(|then| local.after_endings(user, None, then)));
        if asked.is_empty() && waits.is_empty() {
            return Err(then);
        }
        self.runtime.spawn(async move {
            let all = async {
                for wait in waits {
                    let _ = wait.await;
                }
                for task in asked {
                    let _ = task.await;
                }
            };
            if timeout(ENDINGS_WAIT, all).await.is_err() {
                tracing::warn!(
                    "what a session had open that has ended may not be closed yet: another node did not say so in time"
                );
            }
            then();
        });
        Ok(())
    }
}

/// Is told when what `after` waits for is over. None: there is nothing.
fn heard(after: impl FnOnce(Then) -> Result<(), Then>) -> Option<oneshot::Receiver<()>> {
    let (said, heard) = oneshot::channel();
    after(Box::new(move || _ = said.send(()))).is_ok().then_some(heard)
}

impl Heard for Forwarder {
    fn notify(&self, to: Recipient, what: &Notification) {
        if let Some(server) = self.server() {
            server.notify_here(to, what);
        }
    }

    fn leave(&self, serial: u64) {
        let id = self.routes.lock().sessions.get(&serial).map(|s| s.id);
        if let Some(id) = id {
            self.disconnect(id, serial);
        }
    }

    fn resume(&self, wait: WaitId) {
        if let Some(server) = self.server() {
            server.trees.resume(wait);
        }
    }

    fn broken(&self, link: &Arc<Link>) {
        let lost: Vec<_> = {
            let mut routes = self.routes.lock();
            if routes.links.get(&link.node).is_some_and(|l| Arc::ptr_eq(l, link)) {
                routes.links.remove(&link.node);
            }
            let uses = |s: &Session| s.trees.values().any(|r| Arc::ptr_eq(&r.link, link));
            routes.sessions.iter().filter(|(_, s)| uses(s)).map(|(serial, s)| (*serial, s.id)).collect()
        };
        lost.into_iter().for_each(|(serial, id)| self.disconnect(id, serial));
    }
}
