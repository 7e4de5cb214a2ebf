//! A space as a network block device: the fixed newstyle handshake and simple replies of the
//! NBD protocol, with FLUSH, FUA, TRIM and WRITE_ZEROES. One thread for each connection
//! (`nbd_client.rs` says what it does with requests). Blocks of 4096 bytes are announced;
//! clients that ask for less all the same get it, at the price of a read. Refuses TLS and
//! structured replies.
//!
//! The protocol has no authentication: whoever connects reads and writes the whole space. So TCP
//! is for loopback addresses only, and a Unix socket is its owner's alone.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use arden_block::{BLOCK_BYTES, BlockDevice, Rt};
use parking_lot::Mutex;

use crate::remote::host::Caller;
use crate::remote::nbd_client;

/// Connections of one export; more are refused.
const CONNECTIONS_MAX: usize = 64;
/// A client that says nothing for so long before its first request is hung up on.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest request.
pub(super) const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// The longest option that a client may send.
const OPTION_BYTES_MAX: u32 = 4096;

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454F_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// HAS_FLAGS, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES, CAN_MULTI_CONN.
const FLAGS: u16 = 1 | 4 | 8 | 32 | 64 | 256;

/// Where an export listens.
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    fn bind(place: &str) -> io::Result<Listener> {
        match place.strip_prefix("unix:") {
            Some(path) => {
                let path = PathBuf::from(path);
                // Left behind by a daemon that was killed; never a file that is something else.
                let is_socket = path.symlink_metadata().is_ok_and(|m| m.file_type().is_socket());
                if is_socket && UnixStream::connect(&path).is_err() {
                    std::fs::remove_file(&path)?;
                }
                Ok(Listener::Unix(bind_private(&path)?, path))
            }
            None => Ok(Listener::Tcp(TcpListener::bind(&loopback(place)?[..])?)),
        }
    }

    /// The next connection: for its handshake, for its requests, and to end it with.
    fn accept(&self) -> io::Result<(Box<dyn Stream>, OwnedFd, OwnedFd)> {
        match self {
            Listener::Tcp(l) => {
                let (s, _) = l.accept()?;
                s.set_nodelay(true)?;
                Ok((Box::new(s.try_clone()?), s.try_clone()?.into(), s.into()))
            }
            Listener::Unix(l, _) => {
                let (s, _) = l.accept()?;
                Ok((Box::new(s.try_clone()?), s.try_clone()?.into(), s.into()))
            }
        }
    }
}

/// The addresses of `ADDR:PORT`.
///
/// # Errors
/// PermissionDenied when one of them is not a loopback address.
fn loopback(place: &str) -> io::Result<Vec<SocketAddr>> {
    let addresses: Vec<SocketAddr> = place.to_socket_addrs()?.collect();
    if addresses.iter().any(|a| !a.ip().to_canonical().is_loopback()) {
        let reason = "NBD has no authentication: TCP is for loopback addresses only";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    Ok(addresses)
}

/// A listening socket that only its owner may connect to, from the moment when it is there.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    use rustix::fs::Mode;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // unix(7): the file that bind makes has the mode of the socket, less the umask.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listen(&socket, 128)?;
    Ok(UnixListener::from(socket))
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

#[derive(Default)]
struct Connections {
    stopped: AtomicBool,
    open: Mutex<BTreeMap<u64, OwnedFd>>,
}

/// A space that is being served; until [`Export::stop`] or drop.
pub struct Export {
    place: String,
    connections: Arc<Connections>,
    thread: Option<JoinHandle<()>>,
}

impl Export {
    /// Serves `space` at `unix:PATH` or `ADDR:PORT`.
    pub fn start(place: &str, caller: Caller, space: &str) -> io::Result<Export> {
        let listener = Listener::bind(place)?;
        let place = match &listener {
            Listener::Tcp(l) => l.local_addr()?.to_string(),
            Listener::Unix(..) => place.to_string(),
        };
        let connections = Arc::new(Connections::default());
        let (shared, space) = (connections.clone(), space.to_string());
        let thread = std::thread::Builder::new()
            .name("arden-nbd".into())
            .spawn(move || accept_all(&listener, &shared, &caller, &space))?;
        Ok(Export { place, connections, thread: Some(thread) })
    }

    /// Where it listens; a port of 0 is the one that was given.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Clients that are connected.
    pub fn clients(&self) -> usize {
        self.connections.open.lock().len()
    }

    /// Hangs up on every client and closes the socket.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.connections.stopped.store(true, Ordering::SeqCst);
        for fd in self.connections.open.lock().values() {
            let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
        }
        // The listener sleeps in accept: a last connection wakes it.
        let woken = match self.place.strip_prefix("unix:") {
            Some(path) => UnixStream::connect(path).is_ok(),
            None => TcpStream::connect(&self.place).is_ok(),
        };
        if woken {
            let _ = thread.join();
        }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.end();
    }
}

fn accept_all(listener: &Listener, connections: &Arc<Connections>, caller: &Caller, space: &str) {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    let mut full = false;
    for id in 0.. {
        let accepted = listener.accept();
        if connections.stopped.load(Ordering::SeqCst) {
            break;
        }
        let Ok((stream, socket, fd)) = accepted else {
            // Out of descriptors, or a client that left at once.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if connections.open.lock().len() >= CONNECTIONS_MAX {
            if !std::mem::replace(&mut full, true) {
                tracing::warn!(space, limit = CONNECTIONS_MAX, "connections of an NBD export: more are refused");
            }
            continue;
        }
        full = false;
        let _ = set_socket_timeout(&fd, Timeout::Recv, Some(HANDSHAKE_TIMEOUT));
        connections.open.lock().insert(id, fd);
        if connections.stopped.load(Ordering::SeqCst) {
            break;
        }
        let (caller, space, all) = (caller.clone(), space.to_string(), connections.clone());
        let run = move || {
            let begun = || {
                if let Some(fd) = all.open.lock().get(&id) {
                    let _ = set_socket_timeout(fd, Timeout::Recv, None);
                }
            };
            connection(stream, socket, &caller, &space, begun);
            all.open.lock().remove(&id);
        };
        if std::thread::Builder::new().name("arden-nbd".into()).spawn(run).is_err() {
            connections.open.lock().remove(&id);
        }
    }
    if let Listener::Unix(_, path) = listener {
        let _ = std::fs::remove_file(path);
    }
}

/// Serves one client; calls `begun` after its handshake.
fn connection(mut stream: Box<dyn Stream>, socket: OwnedFd, caller: &Caller, name: &str, begun: impl FnOnce()) {
    let rt = Rt::for_socket();
    let Ok(space) = caller.device(&rt, name) else { return };
    if let Ok(true) = handshake(&mut *stream, name, space.info().size_bytes) {
        drop(stream);
        begun();
        nbd_client::serve(&rt, socket, space);
    }
    rt.shutdown();
}

fn read_u32(r: &mut (impl Read + ?Sized)) -> io::Result<u32> {
    let mut b = [0; 4];
    r.read_exact(&mut b)?;
    Ok(u32::from_be_bytes(b))
}

fn read_u64(r: &mut (impl Read + ?Sized)) -> io::Result<u64> {
    let mut b = [0; 8];
    r.read_exact(&mut b)?;
    Ok(u64::from_be_bytes(b))
}

fn option_reply(w: &mut (impl Write + ?Sized), option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let mut out = Vec::with_capacity(20 + data.len());
    out.extend_from_slice(&REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
    w.write_all(&out)
}

/// True when the client wants to go on to requests.
fn handshake(s: &mut (impl Read + Write + ?Sized), space: &str, size: u64) -> io::Result<bool> {
    const SERVER: u32 = 2;
    const ERR_UNSUPPORTED: u32 = 0x8000_0001;
    const ERR_INVALID: u32 = 0x8000_0003;
    const ERR_UNKNOWN: u32 = 0x8000_0006;
    s.write_all(&MAGIC.to_be_bytes())?;
    s.write_all(&OPTION_MAGIC.to_be_bytes())?;
    s.write_all(&3u16.to_be_bytes())?;
    let no_zeroes = read_u32(s)? & 2 != 0;
    loop {
        if read_u64(s)? != OPTION_MAGIC {
            return Ok(false);
        }
        let (option, len) = (read_u32(s)?, read_u32(s)?);
        if len > OPTION_BYTES_MAX {
            return Ok(false);
        }
        let mut data = vec![0; len as usize];
        s.read_exact(&mut data)?;
        match option {
            1 => {
                // EXPORT_NAME has no way to refuse but to hang up.
                if !data.is_empty() && data != space.as_bytes() {
                    return Ok(false);
                }
                s.write_all(&size.to_be_bytes())?;
                s.write_all(&FLAGS.to_be_bytes())?;
                if !no_zeroes {
                    s.write_all(&[0; 124])?;
                }
                return Ok(true);
            }
            2 => {
                option_reply(s, option, ACK, &[])?;
                return Ok(false);
            }
            3 => {
                let mut entry = (space.len() as u32).to_be_bytes().to_vec();
                entry.extend_from_slice(space.as_bytes());
                option_reply(s, option, SERVER, &entry)?;
                option_reply(s, option, ACK, &[])?;
            }
            6 | 7 => {
                let name_len = data.get(..4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]) as usize);
                let name = name_len.and_then(|n| data.get(4..4usize.checked_add(n)?));
                match name {
                    None => option_reply(s, option, ERR_INVALID, &[])?,
                    Some(n) if !n.is_empty() && n != space.as_bytes() => option_reply(s, option, ERR_UNKNOWN, &[])?,
                    Some(_) => {
                        tell_export(s, option, size)?;
                        if option == 7 {
                            return Ok(true);
                        }
                    }
                }
            }
            _ => option_reply(s, option, ERR_UNSUPPORTED, &[])?,
        }
    }
}

const ACK: u32 = 1;

/// The answer to INFO and GO: size, flags and block sizes of the export.
fn tell_export(w: &mut (impl Write + ?Sized), option: u32, size: u64) -> io::Result<()> {
    const INFO: u32 = 3;
    let mut export = 0u16.to_be_bytes().to_vec();
    export.extend_from_slice(&size.to_be_bytes());
    export.extend_from_slice(&FLAGS.to_be_bytes());
    option_reply(w, option, INFO, &export)?;
    let mut blocks = 3u16.to_be_bytes().to_vec();
    for n in [BLOCK_BYTES as u32, 64 << 10, REQUEST_BYTES_MAX] {
        blocks.extend_from_slice(&n.to_be_bytes());
    }
    option_reply(w, option, INFO, &blocks)?;
    option_reply(w, option, ACK, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_is_for_loopback_addresses() {
        for good in ["127.0.0.1:0", "127.9.9.9:10809", "[::1]:10809", "[::ffff:127.0.0.1]:1"] {
            assert!(loopback(good).is_ok(), "{good}");
        }
        for bad in ["0.0.0.0:10809", "192.0.2.1:10809", "[::]:10809", "[2001:db8::1]:1", "[::ffff:192.0.2.1]:1"] {
            assert_eq!(loopback(bad).unwrap_err().kind(), io::ErrorKind::PermissionDenied, "{bad}");
        }
    }

    #[test]
    fn a_unix_socket_is_its_owners_and_takes_no_files_place() {
        let dir = std::env::temp_dir().join(format!("arden-nbd-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (socket, file) = (dir.join("s"), dir.join("precious"));
        let place = |path: &Path| format!("unix:{}", path.display());
        let listener = Listener::bind(&place(&socket)).unwrap();
        assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Listener::bind(&place(&socket)).is_err(), "it is in use");
        drop(listener);
        assert!(Listener::bind(&place(&socket)).is_ok(), "in the place of a dead one");
        std::fs::write(&file, b"data").unwrap();
        assert!(Listener::bind(&place(&file)).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"data");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
