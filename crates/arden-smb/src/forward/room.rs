//! Room for requests that other nodes have. A request for which its user, the user's address or this node has no room waits here, in the order in which those of
//! its user came, until requests before it were answered. Connections begin no more while one of their messages waits, so a user's connections take turns.
//! Users do not wait for each other, but where the bound of all is reached: then they take turns.
//!
//! No wait is for ever: while nothing of a user is answered for [`ROOM_WAIT`], requests that have no room are refused, as what is in flight may itself
//! wait for a client (locks, watches). What a waiting message has charged already, for requests behind it in its compound, is no more than half of a bound, and
//! no request waits that needs more than the other half.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering, fence},
    },
};

use arden_lock::{Mutex, ranks};
use tokio::runtime::Handle;

use crate::{
    base::{
        flat,
        usage::{Charge, Kind},
    },
    forward::{ROOM_WAIT, turns::Lane},
    handlers::run::GoOn,
};

/// Who waits for room.
pub struct Room {
    me: Weak<Room>,
    runtime: Handle,
    /// Requests in `queues`. While there are none, no lock is taken.
    waiting: AtomicUsize,
    queues: Mutex<Queues, ranks::ForwardRoom>,
}

#[derive(Default)]
struct Queues {
    users: HashMap<Lane, Queue>,
    /// Room was given so many times, and queues were made.
    turns: u64,
}

/// Requests of one user.
struct Queue {
    waiters: VecDeque<(Arc<Waiter>, Charge)>,
    /// Tells it from a later one of the same user.
    id: u64,
    /// When it had its last turn.
    turn: u64,
    /// Requests of the user that were answered since it was made.
    freed: u64,
}

/// What a request at another node costs its user, as long as this is kept.
pub struct Paid {
    kept: Charge,
    room: Arc<Room>,
    lane: Lane,
}

/// A request that waits for room.
pub struct Waiter {
    bytes: usize,
    state: Mutex<Wait, ranks::ForwardWaiter>,
}

#[derive(Default)]
struct Wait {
    go_on: Option<GoOn>,
    is_over: bool,
    /// None: there was no room in time.
    paid: Option<Paid>,
}

/// Why a request is not paid for.
pub enum Unpaid {
    Waits(Arc<Waiter>),
    Refused,
}

impl Room {
    /// Those who wait go on on `runtime`.
    pub fn new(runtime: Handle) -> Arc<Room> {
        Arc::new_cyclic(|me| Room { me: me.clone(), runtime, waiting: AtomicUsize::new(0), queues: Mutex::default() })
    }

    /// Charges `bytes` for the user whose this account is, or puts the request behind those of the user that wait.
    ///
    /// # Errors
    /// It waits, or is refused, because it is too long to wait.
    pub fn pay(self: &Arc<Room>, lane: Lane, account: Charge, bytes: usize) -> Result<Paid, Unpaid> {
        let paid = |kept| Paid { kept, room: self.clone(), lane };
        if self.waiting.load(Ordering::Relaxed) == 0
            && let Some(kept) = account.also_quietly(Kind::ForwardedBytes, bytes)
        {
            return Ok(paid(kept));
        }
        let mut queues = self.queues.lock();
        // Who frees some from here on looks at the queues.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_first = !queues.users.contains_key(&lane);
        let kept = if is_first { account.also_quietly(Kind::ForwardedBytes, bytes) } else { None };
        if kept.is_none() && account.is_within_half(Kind::ForwardedBytes, bytes) {
            let waiter = Arc::new(Waiter { bytes, state: Mutex::default() });
            self.put(&mut queues, lane, (waiter.clone(), account));
            return Err(Unpaid::Waits(waiter));
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        drop(queues);
        match kept.map_or_else(|| account.also(Kind::ForwardedBytes, bytes), Ok) {
            Ok(kept) => Ok(paid(kept)),
            Err(_) => Err(Unpaid::Refused),
        }
    }

    fn put(&self, queues: &mut Queues, lane: Lane, waiter: (Arc<Waiter>, Charge)) {
        if let Some(queue) = queues.users.get_mut(&lane) {
            return queue.waiters.push_back(waiter);
        }
        queues.turns += 1;
        let id = queues.turns;
        queues.users.insert(lane, Queue { waiters: [waiter].into(), id, turn: id, freed: 0 });
        self.runtime.spawn(Room::watch(self.me.clone(), lane, id));
    }

    /// Gives room to those for whom there is some now, in turns.
    fn give(self: &Arc<Room>, queues: &mut Queues) -> Vec<(Arc<Waiter>, Option<Paid>)> {
        let mut given = Vec::new();
        loop {
            let before = given.len();
            let mut order: Vec<_> = queues.users.iter().map(|(lane, queue)| (queue.turn, *lane)).collect();
            order.sort_unstable_by_key(|(turn, _)| *turn);
            for (_, lane) in order {
                let Some(queue) = queues.users.get_mut(&lane) else { continue };
                let Some((waiter, account)) = queue.waiters.front() else { continue };
                let Some(kept) = account.also_quietly(Kind::ForwardedBytes, waiter.bytes) else { continue };
                let Some((waiter, _)) = queue.waiters.pop_front() else { continue };
                queues.turns += 1;
                queue.turn = queues.turns;
                if queue.waiters.is_empty() {
                    queues.users.remove(&lane);
                }
                given.push((waiter, Some(Paid { kept, room: self.clone(), lane })));
            }
            if given.len() == before {
                break;
            }
        }
        self.waiting.fetch_sub(given.len(), Ordering::Relaxed);
        given
    }

    /// A request of the user is answered, and has given back what it had.
    fn freed(self: &Arc<Room>, lane: Lane) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let given = {
            let mut queues = self.queues.lock();
            if let Some(queue) = queues.users.get_mut(&lane) {
                queue.freed += 1;
            }
            self.give(&mut queues)
        };
        self.end(given);
    }

    fn end(&self, waiters: Vec<(Arc<Waiter>, Option<Paid>)>) {
        for go_on in waiters.into_iter().filter_map(|(waiter, paid)| waiter.end(paid)) {
            // Not here: whoever frees room may hold locks. A runtime that stops drops it, and that frees room again.
            let runtime = self.runtime.clone();
            flat::run(move || drop(runtime.spawn(async move { go_on(false) })));
        }
    }

    /// Ends the waits of one queue when nothing of its user was answered for too long.
    async fn watch(room: Weak<Room>, lane: Lane, id: u64) {
        let mut freed = 0;
        loop {
            tokio::time::sleep(ROOM_WAIT).await;
            let Some(room) = room.upgrade() else { return };
            let mut queues = room.queues.lock();
            let Some(queue) = queues.users.get_mut(&lane).filter(|queue| queue.id == id) else { return };
            if std::mem::replace(&mut freed, queue.freed) != queue.freed {
                continue;
            }
            let Some(Queue { waiters, .. }) = queues.users.remove(&lane) else { return };
            room.waiting.fetch_sub(waiters.len(), Ordering::Relaxed);
            let mut ended = Vec::new();
            for (waiter, account) in waiters {
                let kept = account.also(Kind::ForwardedBytes, waiter.bytes);
                let paid = |kept| Paid { kept, room: room.clone(), lane };
                ended.push((waiter, kept.ok().map(paid)));
            }
            drop(queues);
            return room.end(ended);
        }
    }
}

impl Paid {
    /// The same for a request behind it, where its user has used less than half of every bound then.
    pub fn also_half(&self, bytes: usize) -> Option<Paid> {
        let kept = self.kept.also_half(Kind::ForwardedBytes, bytes)?;
        Some(Paid { kept, room: self.room.clone(), lane: self.lane })
    }

    pub fn is_past_half(&self) -> bool {
        self.kept.is_past_half()
    }

    /// It costs nothing for now.
    pub fn give_back(&self) {
        self.kept.release(usize::MAX);
        self.room.freed(self.lane);
    }

    /// It costs so much, whatever the bounds say: it was let in before.
    pub fn force(&self, bytes: usize) {
        self.kept.set(bytes);
    }
}

impl Drop for Paid {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Waiter {
    /// Who goes on now.
    fn end(&self, paid: Option<Paid>) -> Option<GoOn> {
        let mut state = self.state.lock();
        (state.is_over, state.paid) = (true, paid);
        state.go_on.take()
    }

    /// What it waited for, once. None: there was no room in time.
    pub fn take(&self) -> Option<Paid> {
        self.state.lock().paid.take()
    }

    /// Calls `go_on` when its wait is over.
    pub fn when_over(&self, go_on: GoOn) {
        {
            let mut state = self.state.lock();
            if !state.is_over {
                state.go_on = Some(go_on);
                return;
            }
        }
        go_on(false);
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arden_auth::Token;
    use arden_wire::dtyp::Sid;

    use super::*;
    use crate::base::usage::{Bound, Usage, UsageLimits};

    struct World {
        runtime: tokio::runtime::Runtime,
        usage: Arc<Usage>,
        room: Arc<Room>,
        gone_on: Arc<Mutex<Vec<(u32, usize)>, ranks::LargeBuffer>>,
    }

    impl World {
        fn new(user: usize, whole: usize) -> World {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let room = Room::new(runtime.handle().clone());
            let forwarded_bytes = Bound { user, address: whole, whole };
            let usage = Usage::new(UsageLimits { forwarded_bytes, ..UsageLimits::default() });
            World { runtime, usage, room, gone_on: Arc::new(Mutex::new(Vec::new())) }
        }

        fn pay(&self, user: u32, bytes: usize) -> Result<Paid, Unpaid> {
            let sid = Sid::new(5, &[21, user]);
            let lane = Lane::of(&sid);
            let account = self.usage.account(Kind::ForwardedBytes, &Token { user: sid, ..Token::anonymous() }, None);
            self.room.pay(lane, account, bytes)
        }

        fn paid(&self, user: u32, bytes: usize) -> Paid {
            self.pay(user, bytes).unwrap_or_else(|_| panic!("there is room"))
        }

        /// The `n`th that waits.
        fn waits(&self, user: u32, bytes: usize, n: usize) -> Arc<Waiter> {
            let Err(Unpaid::Waits(waiter)) = self.pay(user, bytes) else { panic!("there is room") };
            let gone_on = self.gone_on.clone();
            waiter.when_over(Box::new(move |_| gone_on.lock().push((user, n))));
            waiter
        }

        /// Who has gone on since this was asked last.
        fn gone_on(&self) -> Vec<(u32, usize)> {
            self.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(5)).await });
            std::mem::take(&mut *self.gone_on.lock())
        }
    }

    #[test]
    fn requests_of_a_user_go_on_in_their_order_and_others_at_once() {
        let world = World::new(100, 1000);
        let (first, second) = (world.paid(1, 50), world.paid(1, 40));
        let waiters: Vec<_> = (0..3).map(|n| world.waits(1, 30, n)).collect();
        // There were room for it, but it came later.
        let small = world.waits(1, 5, 3);
        let other = world.paid(2, 100);
        assert!(world.gone_on().is_empty());
        drop(second);
        assert_eq!(world.gone_on(), [(1, 0)]);
        drop((first, waiters[0].take()));
        assert_eq!(world.gone_on(), [(1, 1), (1, 2), (1, 3)]);
        assert_eq!(world.usage.total(Kind::ForwardedBytes), 165);
        let taken: Vec<_> = waiters.iter().map(|waiter| waiter.take()).collect();
        assert!(taken[0].is_none() && taken[1].is_some() && small.take().is_some(), "each is given once");
        drop((taken, other));
        assert_eq!(world.usage.total(Kind::ForwardedBytes), 0);
        assert!(world.room.queues.lock().users.is_empty());
        world.paid(1, 100);
    }

    #[test]
    fn users_take_turns_where_the_room_of_all_is_used() {
        // A part of it is for administrators.
        let world = World::new(100, 160);
        let all: Vec<_> = (3..6).map(|user| world.paid(user, 50)).collect();
        let one: Vec<_> = (0..4).map(|n| world.waits(1, 25, n)).collect();
        let two: Vec<_> = (0..4).map(|n| world.waits(2, 25, n)).collect();
        drop(all);
        assert_eq!(world.gone_on(), [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2)]);
        drop((one, two));
        assert_eq!(world.gone_on().len(), 2);
        assert_eq!(world.usage.total(Kind::ForwardedBytes), 0);
    }

    #[test]
    fn a_message_that_is_forgotten_gives_its_room_back() {
        let world = World::new(100, 1000);
        let first = world.paid(1, 100);
        let (gone, next) = (world.waits(1, 50, 0), world.waits(1, 50, 1));
        let last = world.waits(1, 50, 2);
        drop((first, gone));
        assert_eq!(world.gone_on(), [(1, 0), (1, 1), (1, 2)]);
        assert!(next.take().is_some() && last.take().is_some());
    }

    #[test]
    fn no_wait_is_for_ever() {
        let world = World::new(100, 1000);
        assert!(matches!(world.pay(1, 101), Err(Unpaid::Refused)), "it would wait for ever");
        let first = world.paid(1, 90);
        assert!(
            matches!(world.pay(1, 51), Err(Unpaid::Refused)),
            "half may be kept for what is behind those that wait"
        );
        let (long, short) = (world.waits(1, 50, 0), world.waits(1, 10, 1));
        world.runtime.block_on(async {
            let both = async {
                while world.gone_on.lock().len() < 2 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(10), both).await.expect("they go on");
        });
        assert!(long.take().is_none() && short.take().is_some());
        drop(first);
        world.paid(1, 100);
    }

    #[test]
    fn those_who_wait_when_the_runtime_stops_need_no_stack() {
        let world = World::new(2, 10);
        let holds = world.paid(1, 2);
        for _ in 0..20_000 {
            let Err(Unpaid::Waits(waiter)) = world.pay(1, 1) else { panic!("there is room") };
            let held = waiter.clone();
            waiter.when_over(Box::new(move |_| drop(held)));
        }
        world.runtime.shutdown_background();
        let stops = move || drop(holds);
        std::thread::Builder::new().stack_size(128 << 10).spawn(stops).unwrap().join().unwrap();
        assert_eq!(world.room.waiting.load(Ordering::Relaxed), 0);
    }
}
