//! Closes descriptors whose closing takes long, on a thread of its own. A file system begins to write a file to the disk when it is closed
//! after it was emptied and written anew (ext4, XFS and Btrfs do), and gives its room back when it has no name.

use std::{
    os::fd::OwnedFd,
    sync::{
        OnceLock,
        mpsc::{SyncSender, sync_channel},
    },
};

/// Files that wait to be closed. More are closed by those who would leave them: each was written in full before.
const WAITING_MAX: usize = 256;

/// The last descriptors of a file.
pub type Last = [Option<OwnedFd>; 3];

/// Closes them soon, and does not keep the caller for it.
pub fn close_later(last: Last) {
    static CLOSER: OnceLock<Option<SyncSender<Last>>> = OnceLock::new();
    let begin = || {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let thread = std::thread::Builder::new().name("arden-closing".into());
        thread.spawn(move || receiver.into_iter().for_each(drop)).ok().map(|_| sender)
    };
    if let Some(closer) = CLOSER.get_or_init(begin) {
        // Given back where there is no room: then it is closed here.
        let _ = closer.try_send(last);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        time::{Duration, Instant},
    };

    use super::*;

    /// Closing this socket takes the time that it lingers for, as nobody reads what it sent.
    #[test]
    fn nobody_waits_for_what_closes_long() {
        const LINGER: Duration = Duration::from_secs(2);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        rustix::net::sockopt::set_socket_linger(&socket, Some(LINGER)).unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 1 << 16]).is_ok() {}
        let begun = Instant::now();
        close_later([Some(socket.into()), None, None]);
        assert!(begun.elapsed() < LINGER / 2, "{:?}", begun.elapsed());
        let (end, mut bytes) = (begun + LINGER * 5, vec![0; 1 << 16]);
        while !matches!(peer.read(&mut bytes), Ok(0) | Err(_)) {
            assert!(Instant::now() < end, "it is never closed");
        }
    }
}
