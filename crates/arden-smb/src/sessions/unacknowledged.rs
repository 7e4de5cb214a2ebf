//! Breaks that went over one connection and that their client has not acknowledged. Nobody may have read them when the connection
//! ends: then they are told over another one, [MS-SMB2] 3.3.4.6 and 3.3.4.7, instead of being waited for until they time out.
//!
//! What is kept is limited. A break that is told again in vain, because it was acknowledged by a way that is not known here or because
//! its time is over, harms nothing: its client caches less than it might.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use arden_lock::{Mutex, ranks};
use arden_store::fs::ClientId;
use arden_wire::smb2::io::BreakAck;

use crate::model::seam::{Notification, Recipient};

/// Of one connection. Where there are more, the oldest are not told again.
const BREAKS_MAX: usize = 256;
/// As long as the longest break is waited for.
const KEPT: Duration = Duration::from_secs(180);

struct Told {
    at: Instant,
    to: Recipient,
    what: Notification,
}

#[derive(Default)]
pub struct Unacknowledged(Mutex<State, ranks::Unacknowledged>);

#[derive(Default)]
struct State {
    told: VecDeque<Told>,
    /// The connection has ended.
    ended: bool,
}

impl Unacknowledged {
    /// It is about to be told over this connection. False: the connection has ended.
    pub fn note(&self, now: Instant, to: Recipient, what: &Notification) -> bool {
        let what = match what {
            // The opens are for who looks for the client.
            Notification::LeaseBreak(b) if b.ack => {
                Notification::LeaseBreak(arden_store::fs::LeaseBreak { opens: Default::default(), ..b.clone() })
            }
            Notification::LeaseBreak(_) => return !self.0.lock().ended,
            what => what.clone(),
        };
        let mut state = self.0.lock();
        if state.ended {
            return false;
        }
        // The last one of an oplock or lease says where it is to go.
        state.told.retain(|told| now.saturating_duration_since(told.at) < KEPT && !is_of_same(&told.what, &what));
        if state.told.len() >= BREAKS_MAX {
            state.told.pop_front();
        }
        state.told.push_back(Told { at: now, to, what });
        true
    }

    /// A client has acknowledged a break, over whatever connection.
    pub fn forget(&self, client: ClientId, ack: &BreakAck) {
        let mut state = self.0.lock();
        state.told.retain(|told| match (&told.what, ack) {
            (Notification::OplockBreak { id, .. }, BreakAck::Oplock { file_id, .. }) => id != file_id,
            (Notification::LeaseBreak(b), BreakAck::Lease { key, .. }) => b.client != client || b.key != *key,
            _ => true,
        });
    }

    /// The connection has ended: what has to be told over another one.
    pub fn end(&self, now: Instant) -> Vec<(Recipient, Notification)> {
        let mut state = self.0.lock();
        state.ended = true;
        let told = std::mem::take(&mut state.told);
        let recent = told.into_iter().filter(|told| now.saturating_duration_since(told.at) < KEPT);
        recent.map(|told| (told.to, told.what)).collect()
    }
}

fn is_of_same(one: &Notification, other: &Notification) -> bool {
    match (one, other) {
        (Notification::OplockBreak { id: a, .. }, Notification::OplockBreak { id: b, .. }) => a == b,
        (Notification::LeaseBreak(a), Notification::LeaseBreak(b)) => (a.client, a.key) == (b.client, b.key),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use arden_store::fs::OplockLevel;
    use arden_wire::smb2::FileId;

    use super::*;

    fn id(n: u64) -> FileId {
        FileId { persistent: n, volatile: n }
    }

    #[test]
    fn what_is_kept_is_limited_in_number_and_time() {
        let breaks = Unacknowledged::default();
        let start = crate::base::time::Time::read().now;
        let to = Recipient::Session { id: 1, serial: 1 };
        let note = |n, at| breaks.note(at, to, &Notification::OplockBreak { id: id(n), to: OplockLevel::LevelII });
        for n in 0..1000 {
            assert!(note(n, start));
            // Of one open once.
            assert!(note(n, start));
        }
        assert_eq!(breaks.0.lock().told.len(), BREAKS_MAX);
        assert!(note(1000, start + KEPT));
        assert_eq!(breaks.0.lock().told.len(), 1);
        breaks.forget(ClientId(1), &BreakAck::Lease { key: 1000, state: 0 });
        breaks.forget(ClientId(1), &BreakAck::Oplock { level: 0, file_id: id(999) });
        assert_eq!(breaks.0.lock().told.len(), 1);
        breaks.forget(ClientId(1), &BreakAck::Oplock { level: 0, file_id: id(1000) });
        assert!(note(1001, start + KEPT));
        assert_eq!(breaks.end(start + KEPT).len(), 1);
        assert!(!note(1002, start + KEPT), "it would be told by nobody");
    }
}
