//! The connection as others see it, [MS-SMB2] 3.3.1.7, and its channels: what NEGOTIATE settled, and what others leave for it to send.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use arden_lock::{Mutex, RwLock, ranks};
use arden_wire::smb2::Dialect;

use crate::{
    model::Negotiated,
    sessions::{
        Pending, Session, Unacknowledged,
        crypto::SigningKey,
        work::{Answers, BlockingWork, Parked},
    },
};

/// Longer frames are left to the connection: whoever writes one keeps others waiting for it.
const WRITE_HERE_BYTES_MAX: usize = 64 * 1024;
/// Breaks that wait for a client to read them: more than 16,384 of them.
const TOLD_BYTES_MAX: usize = 8 << 20;
/// A connection that has been silent for so long while another of its client was not may be dead.
const SILENT_MS: u64 = 10_000;
/// Connections of a client that are looked at for one to tell it something: as many as a session has channels.
const LOOKED_AT_MAX: usize = 32;
/// So many answers that were sent may wait for the connection to free what they hold.
const SPENT_MAX: usize = 16;

/// Writes to the connection's socket as much as that takes at once. How many bytes that is.
pub type WriteNow = Box<dyn Fn(&[u8]) -> usize + Send + Sync>;

/// The part of a connection that others reach: sessions bound to it, and what waits to be sent or run.
pub struct Peer {
    pub id: u64,
    pub ip: std::net::IpAddr,
    /// With the port, for people.
    pub address: String,
    pub local_address: std::net::SocketAddr,
    pub negotiated: OnceLock<Negotiated>,
    pub channels: RwLock<HashMap<u64, Arc<Channel>>, ranks::PeerChannels>,
    pub mailbox: Mutex<Mailbox, ranks::Mailbox>,
    pub unacknowledged: Unacknowledged,
    /// Tells the connection's owner that the mailbox has something.
    pub wake: Box<dyn Fn() + Send + Sync>,
    /// For whoever has an answer while the connection rests; the transport sets it.
    pub write_now: OnceLock<WriteNow>,
    pub closed: AtomicBool,
    /// When its last message came, in milliseconds after the server began.
    pub heard_ms: AtomicU64,
    /// Requests that a CANCEL can end.
    pub pending: Mutex<Pending, ranks::Pending>,
    /// The buffer of the last large answer, as long as that was: its bytes are there already, and need no zeros before
    /// the next is read into them.
    pub large: Mutex<Vec<u8>, ranks::LargeBuffer>,
    /// Messages that another engine was asked for, ever.
    pub elsewhere_asked: AtomicUsize,
    /// Bytes of messages and answers that wait for another engine's answer.
    pub elsewhere_bytes: AtomicUsize,
    /// Its user has so much at another engine that no more messages are begun before one of these is answered.
    pub elsewhere_is_much: AtomicBool,
    /// Messages that wait until their user has room at another engine: no more are begun meanwhile.
    pub elsewhere_held: AtomicUsize,
}

#[derive(Default)]
pub struct Mailbox {
    /// In the order in which it came: a break is behind the answer that grants what it takes away.
    pub left: VecDeque<Left>,
    /// What follows a cancelled request, or came after the work on an open, and may block.
    pub jobs: Vec<Box<dyn BlockingWork>>,
    /// The connection waits for input or for this mailbox, and has nothing to send: whoever has an answer may write it to the
    /// socket, under the lock of the mailbox.
    pub at_rest: bool,
    /// The end of a frame that the socket did not take: it goes before everything else.
    pub cut: Vec<u8>,
    /// Answers that were sent, for what they hold beside it: the connection frees that.
    pub spent: Vec<Box<dyn Answers>>,
    /// Bytes of what was not asked for, since nothing was left here.
    pub told: usize,
    /// Nobody looks here any more.
    pub closed: bool,
}

/// What others leave to the connection.
pub enum Left {
    /// A complete transport frame.
    Frame(Unsent),
    /// A parked request that may go on.
    Resumed(Box<dyn Parked>),
    /// A message that waited for stable storage.
    Finished(Box<dyn Answers>),
}

/// A frame that is to be sent, and what it holds until it was.
pub struct Unsent {
    pub frame: Vec<u8>,
    /// Nothing of it is used: it is dropped with the frame.
    _held: Option<Box<dyn Send>>,
}

impl From<Vec<u8>> for Unsent {
    fn from(frame: Vec<u8>) -> Unsent {
        Unsent { frame, _held: None }
    }
}

impl Unsent {
    /// With something that goes when the frame was sent, or its connection is gone.
    pub fn holding(frame: Vec<u8>, held: Box<dyn Send>) -> Unsent {
        Unsent { frame, _held: Some(held) }
    }
}

impl Mailbox {
    pub fn is_empty(&self) -> bool {
        self.left.is_empty() && self.jobs.is_empty()
    }
}

/// The connection by which a client is told something: the first of them, but for those that were silent for [`SILENT_MS`] longer than
/// another one. Their network may be gone, which the system has not noticed yet, and a break would be lost with them.
pub fn to_be_told<T>(of: impl Iterator<Item = T>, peer: impl Fn(&T) -> &Peer) -> Option<T> {
    let heard = |one: &T| peer(one).heard_ms.load(Ordering::Relaxed);
    let mut all: Vec<T> = of.take(LOOKED_AT_MAX).collect();
    let last = all.iter().map(heard).max()?;
    let first = all.iter().position(|one| last - heard(one).min(last) < SILENT_MS)?;
    Some(all.swap_remove(first))
}

impl Peer {
    pub fn dialect(&self) -> Dialect {
        self.negotiated.get().map_or(Dialect::Smb202, |n| n.dialect)
    }
    pub fn client_guid(&self) -> u128 {
        self.negotiated.get().map_or(0, |n| n.client_guid)
    }
    pub fn channel(&self, session_id: u64) -> Option<Arc<Channel>> {
        self.channels.read().get(&session_id).cloned()
    }
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
    pub fn send(&self, frame: Vec<u8>) {
        self.send_unsent(frame.into());
    }
    /// Sends what was not asked for. A client that reads none of it may lose its connection: nobody pays for what waits here.
    pub fn tell(&self, frame: Vec<u8>) {
        let told = {
            let mut mailbox = self.mailbox.lock();
            if mailbox.left.is_empty() {
                mailbox.told = 0;
            }
            mailbox.told += frame.capacity() + size_of::<Left>();
            mailbox.told
        };
        if told > TOLD_BYTES_MAX {
            tracing::warn!(client = %self.address, bytes = told, "connection is closed: it does not read what it is told");
            self.closed.store(true, Ordering::Release);
            (self.wake)();
            return;
        }
        self.send(frame);
    }
    /// The same with something that goes when the frame was sent, or its connection is gone.
    pub fn send_holding(&self, frame: Vec<u8>, held: Box<dyn Send>) {
        self.send_unsent(Unsent::holding(frame, held));
    }
    fn send_unsent(&self, frame: Unsent) {
        {
            let mut mailbox = self.mailbox.lock();
            if mailbox.closed {
                return;
            }
            mailbox.left.push_back(Left::Frame(frame));
        }
        (self.wake)();
    }
    /// The message's answers are signed and sent by the connection; with `here`, where it rests, by the caller, so that nobody
    /// has to be woken for them. Given back where the connection is gone.
    pub fn finish(&self, finished: Box<dyn Answers>, here: bool) -> Option<Box<dyn Answers>> {
        let mut mailbox = self.mailbox.lock();
        if mailbox.closed {
            return Some(finished);
        }
        let wake = if here && mailbox.at_rest && mailbox.is_empty() && finished.bytes() <= WRITE_HERE_BYTES_MAX {
            self.write_here(&mut mailbox, finished)
        } else {
            mailbox.left.push_back(Left::Finished(finished));
            true
        };
        drop(mailbox);
        if wake {
            (self.wake)();
        }
        None
    }
    /// Whether the connection has to be woken for what is left.
    fn write_here(&self, mailbox: &mut Mailbox, mut finished: Box<dyn Answers>) -> bool {
        let frame = finished.frame();
        let is_written = self.write_frame(mailbox, frame);
        finished.is_written();
        mailbox.spent.push(finished);
        !is_written || mailbox.spent.len() >= SPENT_MAX
    }
    /// False: the socket did not take all of it, and the connection has to be woken for the rest.
    fn write_frame(&self, mailbox: &mut Mailbox, mut frame: Vec<u8>) -> bool {
        let written = self.write_now.get().map_or(0, |write| write(&frame));
        if written == frame.len() {
            return true;
        }
        mailbox.at_rest = false;
        mailbox.cut = frame.split_off(written);
        false
    }
    /// Whether others may write to the socket at the moment, and this is all that the connection has elsewhere, in bytes: it finds
    /// several answers when it is woken once, and reads on when less is elsewhere.
    pub fn rests(&self, elsewhere_bytes: usize) -> bool {
        self.elsewhere_bytes.load(Ordering::Relaxed) <= elsewhere_bytes && self.mailbox.lock().at_rest
    }
    /// Complete frames are sent by the caller where the connection rests, and else by the connection.
    pub fn send_here(&self, frames: Vec<u8>) {
        if frames.is_empty() {
            return;
        }
        let mut mailbox = self.mailbox.lock();
        if mailbox.closed {
            return;
        }
        if mailbox.at_rest && mailbox.is_empty() && frames.len() <= WRITE_HERE_BYTES_MAX {
            if self.write_frame(&mut mailbox, frames) {
                return;
            }
        } else {
            mailbox.left.push_back(Left::Frame(frames.into()));
        }
        drop(mailbox);
        (self.wake)();
    }
    /// The connection waits from now on, and has nothing to send.
    pub fn begin_rest(&self) {
        let mut mailbox = self.mailbox.lock();
        mailbox.at_rest = mailbox.is_empty() && self.write_now.get().is_some();
    }
    /// The connection alone writes to its socket from now on: what is left to be sent first.
    pub fn end_rest(&self) -> Vec<u8> {
        let mut mailbox = self.mailbox.lock();
        mailbox.at_rest = false;
        let (cut, spent) = (std::mem::take(&mut mailbox.cut), std::mem::take(&mut mailbox.spent));
        drop(mailbox);
        drop(spent);
        cut
    }
    /// The connection runs it where it may block. Where that is gone, it is forgotten.
    pub fn run(&self, job: Box<dyn BlockingWork>) {
        let mut mailbox = self.mailbox.lock();
        if mailbox.closed {
            drop(mailbox);
            return drop(job);
        }
        mailbox.jobs.push(job);
        drop(mailbox);
        (self.wake)();
    }
    /// The message goes on at the connection. Given back where that is gone.
    pub fn resume(&self, message: Box<dyn Parked>) -> Option<Box<dyn Parked>> {
        let mut mailbox = self.mailbox.lock();
        if mailbox.closed {
            return Some(message);
        }
        mailbox.left.push_back(Left::Resumed(message));
        drop(mailbox);
        (self.wake)();
        None
    }
}

/// A session on a connection, [MS-SMB2] 3.3.1.14.
pub struct Channel {
    pub session: Arc<Session>,
    pub signing: SigningKey,
    pub peer: Weak<Peer>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::work::{Ran, Without};

    /// Frees nothing before it is dropped.
    struct Answer(Vec<u8>, Arc<AtomicUsize>);

    impl Answers for Answer {
        fn bytes(&self) -> usize {
            self.0.len()
        }
        fn frame(&mut self) -> Vec<u8> {
            std::mem::take(&mut self.0)
        }
        fn is_written(&mut self) {}
    }

    impl Drop for Answer {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A connection whose socket takes `room` bytes, and what it counts: bytes that the socket took, wake-ups, answers freed.
    fn peer(room: usize) -> (Peer, Arc<Mutex<Vec<u8>, ranks::LargeBuffer>>, Arc<AtomicUsize>, Arc<AtomicUsize>) {
        let (sent, woken) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (socket, wake) = (sent.clone(), woken.clone());
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 445));
        let peer = Peer {
            id: 1,
            ip: address.ip(),
            address: address.to_string(),
            local_address: address,
            negotiated: OnceLock::new(),
            channels: RwLock::new(HashMap::new()),
            mailbox: Mutex::default(),
            unacknowledged: Unacknowledged::default(),
            wake: Box::new(move || _ = wake.fetch_add(1, Ordering::Relaxed)),
            write_now: OnceLock::new(),
            closed: AtomicBool::new(false),
            heard_ms: AtomicU64::new(0),
            pending: Mutex::default(),
            large: Mutex::default(),
            elsewhere_asked: AtomicUsize::new(0),
            elsewhere_bytes: AtomicUsize::new(0),
            elsewhere_is_much: AtomicBool::new(false),
            elsewhere_held: AtomicUsize::new(0),
        };
        let write = move |bytes: &[u8]| {
            let mut sent = socket.lock();
            let n = bytes.len().min(room - sent.len());
            sent.extend_from_slice(&bytes[..n]);
            n
        };
        assert!(peer.write_now.set(Box::new(write)).is_ok());
        (peer, sent, woken, Arc::default())
    }

    #[test]
    fn who_reads_nothing_of_what_it_is_told_loses_its_connection() {
        let (peer, ..) = peer(0);
        let tell = |times| (0..times).for_each(|_| peer.tell(vec![0; 192]));
        tell(20_000);
        assert!(!peer.is_closed());
        // It has read them.
        peer.mailbox.lock().left.clear();
        tell(20_000);
        assert!(!peer.is_closed());
        tell(20_000);
        assert!(peer.is_closed());
        let bytes: usize = peer.mailbox.lock().left.len() * 192;
        assert!(bytes <= TOLD_BYTES_MAX, "{bytes}");
    }

    #[test]
    fn who_has_an_answer_writes_it_only_while_the_connection_rests() {
        let (peer, sent, woken, freed) = peer(1000);
        let answer = |bytes: &[u8]| Box::new(Answer(bytes.to_vec(), freed.clone()));
        let count = |of: &Arc<AtomicUsize>| of.load(Ordering::Relaxed);
        assert!(peer.finish(answer(b"busy"), true).is_none());
        assert_eq!((sent.lock().len(), count(&woken)), (0, 1), "it is left to the connection, which is told");
        peer.begin_rest();
        assert!(peer.finish(answer(b"behind it"), true).is_none());
        assert!(sent.lock().is_empty(), "nothing overtakes what waits in the mailbox");
        peer.mailbox.lock().left.clear();
        peer.begin_rest();
        assert!(peer.finish(answer(b"for the connection"), false).is_none());
        assert!(sent.lock().is_empty());
        peer.mailbox.lock().left.clear();
        let (before, were_freed) = (count(&woken), count(&freed));
        peer.begin_rest();
        assert!(peer.finish(answer(b"alone"), true).is_none());
        assert_eq!((&sent.lock()[..], count(&woken)), (&b"alone"[..], before), "nobody is woken");
        assert_eq!(count(&freed), were_freed, "the caller may hold what freeing it would wait for");
        assert!(peer.end_rest().is_empty());
        assert_eq!(count(&freed), were_freed + 1);
        assert!(peer.finish(answer(b"busy again"), true).is_none());
        assert_eq!(sent.lock().len(), 5);
        peer.mailbox.lock().closed = true;
        assert!(peer.finish(answer(b"gone"), true).is_some());
    }

    #[test]
    fn frames_of_others_do_not_overtake_and_are_not_cut() {
        let (peer, sent, woken, _) = peer(8);
        let count = || woken.load(Ordering::Relaxed);
        assert!(!peer.rests(0));
        peer.send_here(b"busy".to_vec());
        assert_eq!((sent.lock().len(), count()), (0, 1), "it is left to the connection, which is told");
        peer.begin_rest();
        assert!(!peer.rests(0), "something waits in the mailbox");
        peer.mailbox.lock().left.clear();
        peer.begin_rest();
        peer.elsewhere_bytes.store(11, Ordering::Relaxed);
        assert!(!peer.rests(10) && peer.rests(11), "it has something else elsewhere");
        peer.mailbox.lock().left.push_back(Left::Frame(b"before".to_vec().into()));
        peer.send_here(b"behind".to_vec());
        assert_eq!((sent.lock().len(), count()), (0, 2), "nothing overtakes what came while it rested");
        peer.mailbox.lock().left.clear();
        peer.send_here(b"here".to_vec());
        peer.send_here(Vec::new());
        assert_eq!((&sent.lock()[..], count()), (&b"here"[..], 2), "nobody is woken");
        peer.send_here(b"and cut".to_vec());
        assert_eq!((&sent.lock()[..], count()), (&b"hereand "[..], 3));
        assert!(!peer.rests(11));
        peer.send_here(b"behind".to_vec());
        assert_eq!((peer.end_rest(), peer.mailbox.lock().left.len()), (b"cut".to_vec(), 1));
        peer.mailbox.lock().closed = true;
        peer.send_here(b"gone".to_vec());
        assert_eq!(peer.mailbox.lock().left.len(), 1);
    }

    #[test]
    fn what_the_socket_does_not_take_goes_before_everything_else() {
        let (peer, sent, woken, freed) = peer(4);
        let answer = |bytes: &[u8]| Box::new(Answer(bytes.to_vec(), freed.clone()));
        peer.begin_rest();
        assert!(peer.finish(answer(b"first answer"), true).is_none());
        assert!(peer.finish(answer(b"second"), true).is_none());
        assert_eq!((&sent.lock()[..], woken.load(Ordering::Relaxed)), (&b"firs"[..], 2));
        assert_eq!(peer.end_rest(), b"t answer");
        assert_eq!(peer.mailbox.lock().left.len(), 1);
    }

    #[test]
    fn answers_that_were_sent_are_freed_before_they_are_many() {
        let (peer, _, woken, freed) = peer(1 << 20);
        peer.begin_rest();
        for n in 1..=SPENT_MAX {
            assert!(peer.finish(Box::new(Answer(vec![1; 10], freed.clone())), true).is_none());
            assert_eq!(woken.load(Ordering::Relaxed), usize::from(n == SPENT_MAX));
        }
        peer.end_rest();
        assert_eq!(freed.load(Ordering::Relaxed), SPENT_MAX);
        let long = Answer(vec![1; WRITE_HERE_BYTES_MAX + 1], freed.clone());
        peer.begin_rest();
        assert!(peer.finish(Box::new(long), true).is_none());
        assert_eq!(peer.mailbox.lock().left.len(), 1, "whoever writes so much keeps others waiting");
    }

    /// A request that waited.
    struct Message(Arc<Peer>, Arc<AtomicUsize>);

    impl Parked for Message {
        fn peer(&self) -> &Arc<Peer> {
            &self.0
        }
        fn without(&self, _: u64) -> Without {
            Without::Forgotten
        }
        fn run(self: Box<Self>, _: &mut Vec<u8>, _: bool) -> Ran {
            Ran::default()
        }
        fn run_beside(self: Box<Self>, _: &mut Vec<u8>) -> Ran {
            Ran::default()
        }
        fn abort(self: Box<Self>, _: arden_wire::NtStatus, _: &mut Vec<u8>) -> Ran {
            Ran::default()
        }
        fn detach(self: Box<Self>) -> Box<dyn BlockingWork> {
            unreachable!("whoever has it back does this")
        }
    }

    impl Drop for Message {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The connection ends between the look at it and this.
    #[test]
    fn a_message_that_goes_on_too_late_is_given_back() {
        let (peer, _, woken, freed) = peer(100);
        let peer = Arc::new(peer);
        let message = || Box::new(Message(peer.clone(), freed.clone()));
        assert!(peer.resume(message()).is_none());
        assert_eq!((peer.mailbox.lock().left.len(), woken.load(Ordering::Relaxed)), (1, 1));
        let left = std::mem::replace(&mut *peer.mailbox.lock(), Mailbox { closed: true, ..Mailbox::default() });
        drop(left);
        let back = peer.resume(message());
        assert!(back.is_some() && peer.mailbox.lock().is_empty());
        drop(back);
        assert_eq!((freed.load(Ordering::Relaxed), woken.load(Ordering::Relaxed)), (2, 1));
        assert_eq!(Arc::strong_count(&peer), 1, "nothing is left that holds it");
    }
}
