//! The decisions about floating addresses against a machine that is a map, on a clock of the test.

use super::*;
use arden_admin::{address::NewAddress, storage::PoolRecord};

const TANK: u128 = 7;
const LAKE: u128 = 8;

/// What the machine has, with when it takes it away, and what was done.
#[derive(Default)]
struct Machine {
    has: BTreeMap<IpAddr, Instant>,
    done: Vec<String>,
    now: Option<Instant>,
    finds: Option<String>,
    denies: bool,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Machine>>);

impl Fake {
    fn done(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().done)
    }
    fn has(&self, ip: &str, now: Instant) -> bool {
        self.0.lock().has.get(&ip.parse().unwrap()).is_some_and(|until| now < *until)
    }
}

impl Links for Fake {
    fn find(&self, _: &AddressRecord) -> Result<u32, String> {
        self.0.lock().finds.clone().map_or(Ok(3), Err)
    }
    fn put(&self, place: Place, seconds: u32) -> io::Result<()> {
        let mut m = self.0.lock();
        if m.denies {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let until = m.now.unwrap() + Duration::from_secs(seconds.into());
        m.has.insert(place.address, until);
        m.done.push(format!("put {} {seconds}", place.address));
        Ok(())
    }
    fn remove(&self, place: Place) -> io::Result<()> {
        let mut m = self.0.lock();
        m.has.remove(&place.address);
        m.done.push(format!("remove {}", place.address));
        Ok(())
    }
    fn announce(&self, place: Place) -> io::Result<()> {
        self.0.lock().done.push(format!("announce {}", place.address));
        Ok(())
    }
}

/// A node with the pool tank on a clock of its own.
struct Node {
    inner: Inner,
    fake: Fake,
    state: State,
    now: Instant,
    left: Arc<Mutex<Duration>>,
}

fn new(address: &str, pool: &str) -> NewAddress {
    NewAddress { address: address.into(), interface: "eth0".into(), pool: pool.into() }
}

impl Node {
    fn new(addresses: &[&str]) -> Node {
        let state = State::in_memory().unwrap();
        let pool = |name: &str, id: u128| PoolRecord {
            name: name.into(),
            id: format!("{id:032x}"),
            devices: Vec::new(),
            grace_seconds: 0,
            exports: Vec::new(),
            jobs: Vec::new(),
        };
        state
            .change(|s| {
                s.pools.insert("tank".into(), pool("tank", TANK));
                s.pools.insert("lake".into(), pool("lake", LAKE));
                addresses.iter().try_for_each(|a| s.add_address(&new(a, "tank")).map(|_| ()))
            })
            .unwrap();
        let left = Arc::new(Mutex::new(Duration::from_millis(4500)));
        Node { inner: Inner::default(), fake: Fake::default(), state, now: Instant::now(), left }
    }
    fn owns(&mut self, pool: u128) {
        let left = self.left.clone();
        let left: Left = Arc::new(move || *left.lock());
        self.inner.pools.insert(pool, Served { left, leaving: false });
    }
    fn look(&mut self) -> Vec<String> {
        self.fake.0.lock().now = Some(self.now);
        self.inner.look(&self.state.snapshot(), &self.fake, self.now);
        self.fake.done()
    }
    /// Time passes, and with it the lease.
    fn passes(&mut self, ms: u64) {
        let time = Duration::from_millis(ms);
        self.now += time;
        let mut left = self.left.lock();
        *left = left.saturating_sub(time);
    }
}

#[test]
fn the_owner_takes_announces_and_renews_with_its_lease() {
    let mut n = Node::new(&["10.0.0.50/24"]);
    assert_eq!(n.look(), [""; 0], "of a pool that another node owns");
    n.owns(LAKE);
    assert_eq!(n.look(), [""; 0]);
    n.owns(TANK);
    assert_eq!(n.look(), ["put 10.0.0.50 4", "announce 10.0.0.50"]);
    for _ in 0..3 {
        n.passes(250);
        assert_eq!(n.look(), ["announce 10.0.0.50"]);
    }
    n.passes(250);
    assert_eq!(n.look(), [""; 0]);
    *n.left.lock() = Duration::from_millis(4500);
    assert_eq!(n.look(), ["put 10.0.0.50 4"]);
}

#[test]
fn the_kernel_takes_it_before_the_lease_ends() {
    let mut n = Node::new(&["10.0.0.50/24"]);
    n.owns(TANK);
    n.look();
    let end = n.now + Duration::from_millis(4500);
    // Nobody renews the lease; the node goes on looking, until it is frozen at any time.
    for _ in 0..30 {
        let until = n.fake.0.lock().has.get(&"10.0.0.50".parse().unwrap()).copied();
        assert!(until.is_none_or(|until| until <= end), "it would outlive the lease");
        let lapsed = !n.fake.has("10.0.0.50", n.now);
        assert!(!lapsed || n.now + Duration::from_secs(1) > end, "it is gone too early");
        n.passes(250);
        n.look();
    }
    assert!(!n.fake.has("10.0.0.50", n.now));
}

#[test]
fn a_process_that_was_stopped_while_it_renewed_takes_it_back() {
    let mut n = Node::new(&["10.0.0.50/24"]);
    let looks = Arc::new(Mutex::new(0));
    // Good at the look before the kernel is asked, over at the one after it.
    let left: Left = Arc::new(move || {
        let mut looks = looks.lock();
        *looks += 1;
        Duration::from_secs(if *looks == 1 { 4 } else { 0 })
    });
    n.inner.pools.insert(TANK, Served { left, leaving: false });
    assert_eq!(n.look(), ["put 10.0.0.50 4", "remove 10.0.0.50"], "and is not announced");
}

#[test]
fn a_hand_over_keeps_it_until_clients_were_told() {
    let mut n = Node::new(&["10.0.0.50/24"]);
    n.owns(TANK);
    n.look();
    *n.left.lock() = Duration::ZERO;
    assert_eq!(n.look(), [""; 0], "the gate has closed right now");
    n.inner.pools.get_mut(&TANK).unwrap().leaving = true;
    assert_eq!((n.look(), n.look()), (vec![], vec![]));
    n.inner.pools.clear();
    assert_eq!(n.look(), ["remove 10.0.0.50"]);
    assert!(n.inner.known.is_empty());
}

#[test]
fn changes_of_the_state_are_followed() {
    let mut n = Node::new(&["10.0.0.50/24", "10.0.0.51/24"]);
    n.owns(TANK);
    n.look();
    let first = "10.0.0.50".parse().unwrap();
    n.state.change(|s| s.remove_address(first)).unwrap();
    // The kernel takes the others of the network with the first one: they are put again.
    assert_eq!(n.look(), ["remove 10.0.0.50", "put 10.0.0.51 4", "announce 10.0.0.51"]);
    n.state.change(|s| s.add_address(&new("10.0.0.50/16", "lake"))).unwrap();
    assert_eq!(n.look(), ["announce 10.0.0.51"]);
}

#[test]
fn what_cannot_be_done_is_said_and_tried_again() {
    let mut n = Node::new(&["10.0.0.50/24"]);
    let problem = |n: &Node| n.inner.known[&"10.0.0.50".parse::<IpAddr>().unwrap()].problem.clone();
    n.owns(TANK);
    n.fake.0.lock().finds = Some("there is no interface eth0 here".into());
    assert_eq!(n.look(), [""; 0]);
    assert_eq!(problem(&n), "there is no interface eth0 here");
    n.fake.0.lock().finds = None;
    n.fake.0.lock().denies = true;
    assert_eq!(n.look(), [""; 0], "not at once");
    assert_eq!(problem(&n), "there is no interface eth0 here");
    n.passes(2000);
    *n.left.lock() = Duration::from_secs(5);
    n.look();
    assert!(problem(&n).contains("CAP_NET_ADMIN"));
    n.fake.0.lock().denies = false;
    n.passes(2000);
    assert_eq!(n.look(), ["put 10.0.0.50 3", "announce 10.0.0.50"]);
    assert_eq!(problem(&n), "");
}

#[test]
fn a_renewal_that_fails_leaves_it_until_the_kernel_takes_it() {
    let mut n = Node::new(&["10.0.0.50/24"]);
    n.owns(TANK);
    n.look();
    n.fake.0.lock().denies = true;
    let problem = |n: &Node| n.inner.known[&"10.0.0.50".parse::<IpAddr>().unwrap()].problem.clone();
    let known = |n: &Node| n.inner.known[&"10.0.0.50".parse::<IpAddr>().unwrap()].place;
    for _ in 0..4 {
        n.passes(900);
        *n.left.lock() = Duration::from_millis(4500);
        n.look();
        assert!(known(&n).is_some());
    }
    assert!(problem(&n).contains("CAP_NET_ADMIN"));
    n.passes(900);
    *n.left.lock() = Duration::from_millis(4500);
    n.look();
    assert!(known(&n).is_none());
    // Whatever was wrong, the interface is looked for again.
    n.fake.0.lock().denies = false;
    n.passes(2000);
    *n.left.lock() = Duration::from_millis(4500);
    assert_eq!(n.look(), ["put 10.0.0.50 4", "announce 10.0.0.50"]);
    assert_eq!(problem(&n), "");
    // A hand-over meanwhile takes away what may still be there.
    n.fake.0.lock().denies = true;
    n.passes(1000);
    n.look();
    n.inner.pools.clear();
    assert_eq!(n.look(), ["remove 10.0.0.50"]);
}

#[test]
fn connections_are_refused_at_an_address_that_is_given_up() {
    let n = Node::new(&["10.0.0.50/24"]);
    let fake = n.fake.clone();
    fake.0.lock().now = Some(Instant::now());
    let listens = vec!["10.0.0.1:445".parse().unwrap()];
    let addresses = Addresses::start(Arc::new(n.state), listens, Box::new(n.fake)).unwrap();
    let ip: IpAddr = "10.0.0.50".parse().unwrap();
    addresses.serve(TANK, Arc::new(|| Duration::from_secs(5)));
    let shown = addresses.shown();
    assert!(shown[0].held && shown[0].problem.contains("does not listen there"), "{shown:?}");
    assert!(addresses.admits(ip));
    assert_eq!(addresses.begin_to_leave(TANK), [ip]);
    assert!(!addresses.admits(ip) && !addresses.admits("::ffff:10.0.0.50".parse().unwrap()));
    assert!(fake.has("10.0.0.50", Instant::now()));
    addresses.leave(TANK);
    assert!(addresses.admits(ip) && addresses.shown().is_empty());
    assert!(!fake.has("10.0.0.50", Instant::now()));
}

#[test]
fn unspecified_addresses_cover_those_of_their_family() {
    let covers = |listen: &str, ip: &str| listens_at(&[listen.parse().unwrap()], ip.parse().unwrap());
    assert!(covers("0.0.0.0:445", "10.0.0.50") && !covers("0.0.0.0:445", "fd00::1"));
    assert!(covers("[::]:445", "fd00::1") && covers("[::]:445", "10.0.0.50"));
    assert!(covers("10.0.0.50:445", "10.0.0.50") && !covers("10.0.0.51:445", "10.0.0.50"));
}
