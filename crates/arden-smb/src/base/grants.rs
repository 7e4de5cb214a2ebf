//! Breaks of what their client may not know yet to have: a client ignores them, and whoever waits for what they take away waits
//! until it times out. They are held until the answers are on their way that may grant it, [MS-SMB2] 3.3.4.6 and 3.3.4.7.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Arc, Weak},
};

use arden_lock::{Mutex, ranks};
use arden_store::fs::ClientId;

use super::alive::find;

/// What is granted to one client, over whatever connection and by whatever node.
#[derive(Default)]
pub struct Grants(Mutex<State, ranks::Grants>);

#[derive(Default)]
struct State {
    /// Messages that may grant something, and whose answers are not on their way, by number.
    open: BTreeSet<u64>,
    /// The number of the next of them.
    next: u64,
    /// Breaks, each behind the answers of all messages with a number below this.
    held: VecDeque<(u64, Box<dyn FnOnce() + Send>)>,
}

/// A message that may grant what others can break at once. Dropped when its answer is on its way, or never will be.
pub struct Granting {
    grants: Arc<Grants>,
    number: u64,
}

impl Grants {
    /// Breaks that come from now on are held.
    pub fn begin(self: &Arc<Grants>) -> Granting {
        let mut state = self.0.lock();
        let number = state.next;
        state.next += 1;
        state.open.insert(number);
        Granting { grants: self.clone(), number }
    }

    /// Sends a break now, or behind the answers that are not on their way yet. `send` leaves it to a connection, and does not wait.
    pub fn send_break(&self, send: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock();
        match state.open.is_empty() {
            // Under the lock: those that were held are before it.
            true => send(),
            false => {
                let below = state.next;
                state.held.push_back((below, Box::new(send)));
            }
        }
    }

    fn end(&self, number: u64) {
        let mut state = self.0.lock();
        state.open.remove(&number);
        let first = state.open.first().copied().unwrap_or(u64::MAX);
        while state.held.front().is_some_and(|(below, _)| *below <= first) {
            let Some((_, send)) = state.held.pop_front() else { break };
            send();
        }
    }
}

impl Granting {
    pub fn grants(&self) -> &Arc<Grants> {
        &self.grants
    }

    pub fn is_of(&self, grants: &Arc<Grants>) -> bool {
        Arc::ptr_eq(&self.grants, grants)
    }
}

impl Drop for Granting {
    fn drop(&mut self) {
        self.grants.end(self.number);
    }
}

/// Those of all clients with a session.
#[derive(Default)]
pub struct AllGrants(Mutex<HashMap<ClientId, Weak<Grants>>, ranks::AllGrants>);

impl AllGrants {
    /// The same for all sessions of a client.
    pub fn of(&self, client: ClientId) -> Arc<Grants> {
        find(&self.0, client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_break_waits_for_the_answers_that_were_under_way_when_it_came() {
        let grants = Arc::<Grants>::default();
        let sent = Arc::new(Mutex::<Vec<u32>, ranks::LargeBuffer>::new(Vec::new()));
        let send = |n| {
            let sent = sent.clone();
            grants.send_break(move || sent.lock().push(n));
        };
        send(1);
        assert_eq!(sent.lock()[..], [1], "nothing is under way");
        let first = grants.begin();
        send(2);
        let second = grants.begin();
        send(3);
        assert_eq!(sent.lock().len(), 1);
        drop(first);
        assert_eq!(sent.lock()[..], [1, 2], "the second message began later, and cannot grant what was broken then");
        send(4);
        drop(second);
        assert_eq!(sent.lock()[..], [1, 2, 3, 4]);
    }

    #[test]
    fn the_sessions_of_a_client_have_them_together_and_none_is_kept_without() {
        let all = AllGrants::default();
        let one = all.of(ClientId(1));
        assert!(Arc::ptr_eq(&one, &all.of(ClientId(1))));
        assert!(!Arc::ptr_eq(&one, &all.of(ClientId(2))));
        for n in 3..1000 {
            all.of(ClientId(n));
        }
        assert!(all.0.lock().len() < 32, "those of clients without a session go");
        assert!(Arc::ptr_eq(&one, &all.of(ClientId(1))));
    }
}
