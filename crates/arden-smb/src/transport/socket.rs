//! A connection's socket, and who waits for it: the runtime, or the thread that the connection has while it is busy.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};

use arden_lock::{Mutex, ranks};
use rustix::{
    buffer::spare_capacity,
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, retry_on_intr},
};
use tokio::{io::unix::AsyncFd, sync::Notify};

use crate::{base::threads::Signal, sessions::WriteNow};

/// A thread waits so long for its connection's socket.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// A client that has not answered the system for so long is gone.
const DEAD_AFTER: Duration = Duration::from_secs(100);
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBES: u32 = 4;

/// Tells a connection that others left something to it.
#[derive(Default)]
pub struct Wake {
    at_runtime: Notify,
    /// Of the thread that the connection has at the moment.
    on_thread: Mutex<Option<Arc<Signal>>, ranks::ThreadSignal>,
}

impl Wake {
    pub fn wake(&self) {
        self.at_runtime.notify_one();
        if let Some(signal) = &*self.on_thread.lock() {
            signal.raise();
        }
    }

    /// At the runtime.
    pub async fn woken(&self) {
        self.at_runtime.notified().await;
    }

    /// This thread waits for the socket from now on. What others left before, it is not told of.
    pub fn enter_thread(&self, signal: &Arc<Signal>) {
        signal.take();
        *self.on_thread.lock() = Some(signal.clone());
    }

    pub fn leave_thread(&self) {
        *self.on_thread.lock() = None;
    }

    fn thread(&self) -> Option<Arc<Signal>> {
        self.on_thread.lock().clone()
    }
}

/// What the wait for a socket ended with.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// So many bytes; none at the end of the stream.
    Bytes(usize),
    /// Others left something.
    Woken,
    /// The thread has waited long enough.
    Pause,
}

pub struct Socket {
    stream: Arc<TcpStream>,
    /// None while the connection has a thread of its own, and until the runtime waits for it again.
    at_runtime: Option<AsyncFd<Arc<TcpStream>>>,
    pub wake: Arc<Wake>,
}

impl Socket {
    /// `stream` does not block.
    pub fn new(stream: TcpStream) -> io::Result<Socket> {
        let stream = Arc::new(stream);
        let at_runtime = Some(watch(&stream)?);
        Ok(Socket { stream, at_runtime, wake: Arc::default() })
    }

    /// For whoever has an answer while the connection rests.
    pub fn write_now(&self) -> WriteNow {
        let stream = Arc::downgrade(&self.stream);
        Box::new(move |bytes| stream.upgrade().and_then(|stream| (&*stream).write(bytes).ok()).unwrap_or(0))
    }

    /// A thread will wait for it.
    pub fn leave_runtime(&mut self) {
        self.at_runtime = None;
    }

    /// The runtime waits for it from now on.
    pub fn register(&mut self) -> io::Result<()> {
        if self.at_runtime.is_none() {
            self.at_runtime = Some(watch(&self.stream)?);
        }
        Ok(())
    }

    pub fn has_thread(&self) -> bool {
        self.wake.on_thread.lock().is_some()
    }

    /// Whether the connection's own thread waits for the socket: the runtime does for the rest of a message that comes slowly.
    pub fn waits_on_thread(&self) -> bool {
        self.at_runtime.is_none() && self.has_thread()
    }

    /// Until there is input, or something that others left. At most `most` bytes are read into what `buffer` has room for; none
    /// are looked for where that is 0. Only a thread of its own makes a pause.
    pub async fn read(&mut self, buffer: &mut Vec<u8>, most: usize) -> io::Result<Event> {
        if self.at_runtime.is_none() {
            match self.wake.thread() {
                Some(signal) => return self.read_on_thread(&signal, buffer, most),
                None => self.register()?,
            }
        }
        let Some(stream) = &self.at_runtime else { return Ok(Event::Pause) };
        tokio::select! {
            biased;
            read = read_at_runtime(stream, buffer, most), if most > 0 => read.map(Event::Bytes),
            () = self.wake.woken() => Ok(Event::Woken),
        }
    }

    fn read_on_thread(&self, signal: &Signal, buffer: &mut Vec<u8>, most: usize) -> io::Result<Event> {
        let mut both = [PollFd::new(signal, PollFlags::IN), PollFd::new(&*self.stream, PollFlags::IN)];
        let wanted = if most > 0 { 2 } else { 1 };
        match poll(&mut both[..wanted], Some(&PAUSE)) {
            Ok(0) => return Ok(Event::Pause),
            Err(e) if e != Errno::INTR => return Err(e.into()),
            _ => {}
        }
        if !both[0].revents().is_empty() {
            signal.take();
            return Ok(Event::Woken);
        }
        match receive(&self.stream, buffer, most) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Event::Woken),
            received => received.map(Event::Bytes),
        }
    }

    /// As many bytes as the socket takes at once.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match (&*self.stream).write(bytes) {
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
            written => written,
        }
    }

    /// On the connection's own thread: whether it takes more within a pause.
    pub fn takes_more(&self) -> bool {
        poll(&mut [PollFd::new(&*self.stream, PollFlags::OUT)], Some(&PAUSE)) != Ok(0)
    }

    /// As many bytes as the socket takes, once it takes any. The runtime waits for that.
    pub async fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.register()?;
        let Some(stream) = &self.at_runtime else { return Ok(0) };
        loop {
            let mut ready = stream.writable().await?;
            if let Ok(written) = ready.try_io(|stream| (&**stream.get_ref()).write(bytes)) {
                return written;
            }
        }
    }
}

/// Has the system ask a client that is silent whether it is there, and end the connection of one that does not answer within
/// [`DEAD_AFTER`], or does not acknowledge what it was sent. A client that lost its network or its power says no word, and would keep
/// its opens, locks and leases for good.
pub fn notice_a_dead_client(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_tcp_keepidle(stream, DEAD_AFTER - PROBE_EVERY * PROBES)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_tcp_user_timeout(stream, DEAD_AFTER.as_millis() as u32)?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

/// The runtime tells when it is ready.
#[expect(
    deprecated,
    reason = "its successor is unsafe: the descriptor has to stay as it is, which that of a shared stream does"
)]
fn watch(stream: &Arc<TcpStream>) -> io::Result<AsyncFd<Arc<TcpStream>>> {
    AsyncFd::new(stream.clone())
}

async fn read_at_runtime(stream: &AsyncFd<Arc<TcpStream>>, buffer: &mut Vec<u8>, most: usize) -> io::Result<usize> {
    loop {
        let mut ready = stream.readable().await?;
        let room = most.min(buffer.capacity() - buffer.len());
        let Ok(received) = ready.try_io(|stream| receive(stream.get_ref(), buffer, most)) else { continue };
        if received.as_ref().is_ok_and(|n| (1..room).contains(n)) {
            // There was no more: the next try would only find that out.
            ready.clear_ready();
        }
        return received;
    }
}

/// Reads what there is, at most `most` bytes and what `buffer` has room for, which is not none. No bytes: the stream has ended.
fn receive(stream: &TcpStream, buffer: &mut Vec<u8>, most: usize) -> io::Result<usize> {
    if buffer.capacity() - buffer.len() <= most {
        return Ok(retry_on_intr(|| rustix::io::read(stream, spare_capacity(buffer)))?);
    }
    let before = buffer.len();
    match Read::take(stream, most as u64).read_to_end(buffer) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock && buffer.len() > before => Ok(buffer.len() - before),
        received => received,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_notices_a_client_that_is_gone() {
        use rustix::net::sockopt;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        notice_a_dead_client(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        let silent = sockopt::tcp_keepidle(&stream).unwrap();
        let asked = sockopt::tcp_keepintvl(&stream).unwrap() * sockopt::tcp_keepcnt(&stream).unwrap();
        assert_eq!(silent + asked, DEAD_AFTER);
        assert_eq!(u128::from(sockopt::tcp_user_timeout(&stream).unwrap()), DEAD_AFTER.as_millis());
    }
}
