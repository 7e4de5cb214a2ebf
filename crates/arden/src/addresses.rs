//! The floating addresses of the pools that this node owns: on an interface while the ownership lasts, for a time that the kernel
//! counts too. So a node that is killed or frozen loses them, and its successor has them alone. Decides which addresses are to be
//! here; `arden_address` does what that needs of the system.
//!
//! An address is put for at most as long as the node's lease is good (whole seconds, rounded down, but one at least), again with each
//! renewal. It is not renewed in the last second of the lease.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use arden_address::Place;
use arden_admin::{
    State,
    address::{AddressAtNode, AddressRecord},
    state::Snapshot,
};
use parking_lot::{Mutex, RwLock};

/// How often ownerships and addresses are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// What could not be put on an interface is tried again after this.
const RETRY: Duration = Duration::from_secs(2);
/// Less is left of the lease: the address is not renewed.
const LEFT_MIN: Duration = Duration::from_secs(1);
/// Lifetimes are not longer, however long the lease is.
const LIFETIME_MAX: Duration = Duration::from_secs(3600);
/// The lease was renewed when its end moved by so much.
const RENEWED: Duration = Duration::from_millis(100);
/// An address is announced so often, once in each look: one announcement may be lost.
const ANNOUNCEMENTS: u8 = 4;

/// How long an ownership lasts, if nothing changes; zero: it is over.
pub type Left = Arc<dyn Fn() -> Duration + Send + Sync>;

/// What is asked of the system.
pub trait Links: Send + Sync {
    /// The number of the interface, if it can have the address, and nothing else has put it there.
    ///
    /// # Errors
    /// Why not, for people.
    fn find(&self, record: &AddressRecord) -> Result<u32, String>;
    /// Puts an address, or renews it.
    ///
    /// # Errors
    /// The system's.
    fn put(&self, place: Place, seconds: u32) -> io::Result<()>;
    /// Takes an address away.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, place: Place) -> io::Result<()>;
    /// Tells neighbours of an address.
    ///
    /// # Errors
    /// The system's.
    fn announce(&self, place: Place) -> io::Result<()>;
}

/// This machine.
pub struct System;

impl Links for System {
    fn find(&self, record: &AddressRecord) -> Result<u32, String> {
        let name = &record.interface;
        let index = arden_address::index_of(name).map_err(|_| format!("there is no interface {name} here"))?;
        let link = arden_address::link(index).map_err(|e| format!("interface {name}: {e}"))?;
        if !link.up {
            return Err(format!("the interface {name} is down"));
        }
        let all =
            arden_address::addresses().map_err(|e| format!("the addresses of this machine are not known: {e}"))?;
        match all.iter().find(|a| a.address == record.address) {
            Some(a) if a.permanent => Err("this machine has the address for good: take it off its interface".into()),
            Some(a) if a.index != index => Err("another interface of this machine has the address".into()),
            _ => Ok(index),
        }
    }
    fn put(&self, place: Place, seconds: u32) -> io::Result<()> {
        arden_address::put(place, seconds)
    }
    fn remove(&self, place: Place) -> io::Result<()> {
        arden_address::remove(place)
    }
    fn announce(&self, place: Place) -> io::Result<()> {
        arden_address::announce(place.index, place.address)
    }
}

/// The floating addresses of this node.
pub struct Addresses {
    state: Arc<State>,
    /// Where the SMB server listens.
    listens: Vec<SocketAddr>,
    links: Box<dyn Links>,
    inner: Mutex<Inner>,
    /// Addresses that are being given up.
    leaving: RwLock<BTreeSet<IpAddr>>,
}

#[derive(Default)]
struct Inner {
    pools: HashMap<u128, Served>,
    known: BTreeMap<IpAddr, Known>,
}

struct Served {
    left: Left,
    /// It is being handed over: nothing is put or taken away until that is done.
    leaving: bool,
}

/// An address of a pool that this node owns, or of which it still has the address.
struct Known {
    record: AddressRecord,
    /// On an interface, as far as this node knows.
    place: Option<Place>,
    /// When the kernel takes it away.
    until: Instant,
    /// The end of the lease at the last renewal; None: it is to be renewed at once.
    lease_end: Option<Instant>,
    /// The lease was over at the last look.
    was_over: bool,
    announcements: u8,
    retry: Instant,
    /// Why it is not put or renewed.
    problem: String,
    /// Why neighbours are not told.
    untold: String,
}

fn pool_of(record: &AddressRecord) -> Option<u128> {
    u128::from_str_radix(&record.pool, 16).ok()
}

/// The system's error, with what to do about it.
fn explained(e: &io::Error, right: &str) -> String {
    match e.kind() {
        io::ErrorKind::PermissionDenied => format!("the daemon lacks the right {right}"),
        _ => e.to_string(),
    }
}

impl Known {
    fn new(record: &AddressRecord, now: Instant) -> Known {
        Known {
            record: record.clone(),
            place: None,
            until: now,
            lease_end: None,
            was_over: false,
            announcements: 0,
            retry: now,
            problem: String::new(),
            untold: String::new(),
        }
    }

    /// Logs a problem when it is a new one.
    fn log(&self, before: &str, problem: &str) {
        if problem != before && !problem.is_empty() {
            tracing::warn!(address = %self.record.address, interface = self.record.interface, "floating address: {problem}");
        }
    }

    fn take_away(&mut self, links: &dyn Links) {
        let Some(place) = self.place.take() else { return };
        match links.remove(place) {
            Ok(()) => tracing::info!(address = %place.address, "floating address given up"),
            Err(e) => tracing::warn!(address = %place.address,
                "a floating address is not taken away, and goes with its lifetime: {e}"),
        }
    }

    /// Puts the address or renews it, unless that was done for this lease. `left`: of the lease.
    fn keep(&mut self, left: &Left, links: &dyn Links, now: Instant) {
        let remaining = left();
        self.was_over = remaining.is_zero();
        if now >= self.until {
            self.place = None;
        }
        if remaining < LEFT_MIN || self.place.is_none() && now < self.retry {
            return;
        }
        let is_renewed = self.lease_end.is_none_or(|end| now + remaining > end + RENEWED);
        if self.place.is_none() || is_renewed || self.until < now + LEFT_MIN {
            let was = self.place;
            match self.put(remaining, links, now) {
                Ok(place) => {
                    self.problem.clear();
                    if was.is_none() {
                        tracing::info!(address = %place.address, interface = self.record.interface, "floating address taken");
                        self.announcements = ANNOUNCEMENTS;
                    }
                    // The process may have been stopped between the look at the lease and the kernel's.
                    if left().is_zero() {
                        return self.take_away(links);
                    }
                }
                Err(problem) => {
                    self.retry = now + RETRY;
                    self.log(&self.problem, &problem);
                    self.problem = problem;
                    return;
                }
            }
        }
        self.announce(links);
    }

    fn put(&mut self, remaining: Duration, links: &dyn Links, now: Instant) -> Result<Place, String> {
        let (address, prefix_length) = (self.record.address, self.record.prefix_length);
        let place = match self.place {
            Some(place) => place,
            None => Place { index: links.find(&self.record)?, address, prefix_length },
        };
        let lifetime = Duration::from_secs(remaining.min(LIFETIME_MAX).as_secs().max(1));
        let done = links.put(place, lifetime.as_secs() as u32);
        done.map_err(|e| explained(&e, "CAP_NET_ADMIN to change addresses"))?;
        (self.until, self.lease_end, self.place) = (now + lifetime, Some(now + remaining), Some(place));
        Ok(place)
    }

    fn announce(&mut self, links: &dyn Links) {
        let Some(place) = self.place.filter(|_| self.announcements > 0) else { return };
        self.announcements -= 1;
        match links.announce(place) {
            Ok(()) => self.untold.clear(),
            Err(e) => {
                let why = explained(&e, "CAP_NET_RAW");
                let untold = format!("neighbours are not told of the address, and find it late: {why}");
                self.log(&self.untold, &untold);
                (self.untold, self.announcements) = (untold, 0);
            }
        }
    }
}

impl Inner {
    /// Makes the addresses here those that are to be here.
    fn look(&mut self, snapshot: &Snapshot, links: &dyn Links, now: Instant) {
        if self.take_away(snapshot, links) {
            // With the first address of a network the kernel takes the others of it away.
            self.known.values_mut().for_each(|k| k.lease_end = None);
        }
        for record in snapshot.addresses.values() {
            let Some(served) = pool_of(record).and_then(|pool| self.pools.get(&pool)) else { continue };
            let known = self.known.entry(record.address).or_insert_with(|| Known::new(record, now));
            if !served.leaving {
                known.keep(&served.left, links, now);
            }
        }
    }

    /// Takes away what is not to be here. False: nothing was.
    fn take_away(&mut self, snapshot: &Snapshot, links: &dyn Links) -> bool {
        let (pools, mut removed) = (&self.pools, false);
        self.known.retain(|ip, known| {
            let stays = snapshot.addresses.get(&ip.to_string()) == Some(&known.record);
            let served = pool_of(&known.record).and_then(|pool| pools.get(&pool)).filter(|_| stays);
            // Over twice: at the first time a hand-over may just begin, which tells the clients before the address goes.
            let is_over = served.is_none_or(|s| !s.leaving && known.was_over && (s.left)().is_zero());
            if is_over {
                removed |= known.place.is_some();
                known.take_away(links);
            }
            served.is_some()
        });
        removed
    }

    fn of_pool(&self, pool: u128) -> impl Iterator<Item = &Known> {
        self.known.values().filter(move |k| pool_of(&k.record) == Some(pool))
    }
}

impl Addresses {
    /// Looks after addresses from now on, as long as what is returned is there.
    ///
    /// # Errors
    /// There is no thread.
    pub fn start(state: Arc<State>, listens: Vec<SocketAddr>, links: Box<dyn Links>) -> io::Result<Arc<Addresses>> {
        let addresses = Addresses { state, listens, links, inner: Mutex::default(), leaving: RwLock::default() };
        let addresses = Arc::new(addresses);
        let weak = Arc::downgrade(&addresses);
        thread::Builder::new().name("arden-addresses".into()).spawn(move || run(&weak))?;
        Ok(addresses)
    }

    /// This node serves the pool, for as long as `left` says.
    pub fn serve(&self, pool: u128, left: Left) {
        self.inner.lock().pools.insert(pool, Served { left, leaving: false });
        self.look();
    }

    /// The pool is about to be handed over. Connections to its addresses are not taken any more. Gives the addresses.
    pub fn begin_to_leave(&self, pool: u128) -> Vec<IpAddr> {
        let mut inner = self.inner.lock();
        if let Some(served) = inner.pools.get_mut(&pool) {
            served.leaving = true;
        }
        let held: Vec<IpAddr> = inner.of_pool(pool).filter(|k| k.place.is_some()).map(|k| k.record.address).collect();
        self.leaving.write().extend(&held);
        held
    }

    /// The pool is not served any more: its addresses are taken away before this returns.
    pub fn leave(&self, pool: u128) {
        let of_pool: Vec<IpAddr> = {
            let mut inner = self.inner.lock();
            inner.pools.remove(&pool);
            inner.of_pool(pool).map(|k| k.record.address).collect()
        };
        self.look();
        self.leaving.write().retain(|ip| !of_pool.contains(ip));
    }

    /// Whether connections to this address of the machine are to be taken.
    pub fn admits(&self, local: IpAddr) -> bool {
        !self.leaving.read().contains(&local.to_canonical())
    }

    /// Takes all addresses away, for good.
    pub fn stop(&self) {
        self.inner.lock().pools.clear();
        self.look();
    }

    /// Ownerships, addresses or leases may have changed.
    pub fn look(&self) {
        let snapshot = self.state.snapshot();
        self.inner.lock().look(&snapshot, &*self.links, Instant::now());
    }

    /// The addresses of the pools that this node owns.
    pub fn shown(&self) -> Vec<AddressAtNode> {
        let inner = self.inner.lock();
        let show = |known: &Known| {
            let ip = known.record.address;
            let problem = match known.place {
                _ if !known.problem.is_empty() => known.problem.clone(),
                Some(_) if !listens_at(&self.listens, ip) => {
                    format!("the SMB server does not listen there, but at {}", self.listening())
                }
                _ => known.untold.clone(),
            };
            AddressAtNode { address: ip, held: known.place.is_some() && Instant::now() < known.until, problem }
        };
        inner.known.values().map(show).collect()
    }

    fn listening(&self) -> String {
        self.listens.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
}

fn listens_at(listens: &[SocketAddr], ip: IpAddr) -> bool {
    let covers = |at: IpAddr| match at {
        IpAddr::V4(v4) if v4.is_unspecified() => ip.is_ipv4(),
        // Sockets of [::] are for IPv4 too, unless the system says otherwise.
        IpAddr::V6(v6) if v6.is_unspecified() => true,
        other => other == ip,
    };
    listens.iter().any(|a| covers(a.ip()))
}

fn run(addresses: &Weak<Addresses>) {
    while let Some(addresses) = addresses.upgrade() {
        addresses.look();
        drop(addresses);
        thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests;
