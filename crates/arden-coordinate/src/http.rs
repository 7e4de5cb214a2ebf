//! HTTP/1.1 requests with a JSON body to one of several endpoints, in the clear or by TLS. Keeps a few connections to each endpoint,
//! so that requests do not wait for each other, and a connection of its own for each answer that goes on. Refuses redirects and to
//! send anything twice: a request whose answer is lost may have been carried out.

use std::{
    error::Error as StdError,
    io,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    client::conn::http1::{self, SendRequest},
    header,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::etcd_tls::EtcdFiles;

/// The most that an answer may have.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// An endpoint that does not take a connection within this time is passed over.
const CONNECT_WAIT: Duration = Duration::from_millis(500);
/// So is one that does not finish the handshake of TLS.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(1);
/// A connection that says nothing for so long is asked whether it is there, so often, and so many times.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(5);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(2);
const KEEP_ALIVE_COUNT: u32 = 3;
/// Connections to one endpoint that are kept while no request uses them.
const KEPT_MAX: usize = 4;
/// And for so long: after many requests at once one or two go on.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpError {
    /// No endpoint took the connection: nothing was sent.
    NotSent(String),
    /// The request was sent, and its answer did not come.
    NoAnswer(String),
}

type Sender = SendRequest<Full<Bytes>>;

/// Connections that no request uses, each with the time at which the last one ended. The one that was used last is used next.
#[derive(Debug)]
struct Kept<T>(Vec<(Instant, T)>);

impl<T> Kept<T> {
    fn take(&mut self) -> Option<T> {
        self.0.pop().map(|(_, sender)| sender)
    }

    fn put(&mut self, sender: T, now: Instant) {
        self.0.retain(|(ended, _)| now.saturating_duration_since(*ended) < KEPT_FOR);
        if self.0.len() < KEPT_MAX {
            self.0.push((now, sender));
        }
    }
}

/// A server, by the authority of its URL.
#[derive(Debug)]
struct Endpoint {
    /// `host:port`.
    authority: String,
    /// The host, as its certificate has it.
    name: Option<ServerName<'static>>,
    kept: Mutex<Kept<Sender>>,
    /// It has answered a request.
    answered: AtomicBool,
}

/// Servers of which any may be asked.
#[derive(Debug)]
pub struct Endpoints {
    all: Vec<Endpoint>,
    tls: Option<EtcdFiles>,
    /// The one that answered last.
    last: AtomicUsize,
}

/// The authority of `http://host:port` or `https://host:port`.
///
/// # Errors
/// What is wrong with the URL.
fn authority(url: &str, scheme: &str) -> Result<String, String> {
    let rest = url.strip_prefix(scheme).ok_or_else(|| format!("{url} does not begin with {scheme}"))?;
    let rest = rest.trim_end_matches('/');
    let bad = rest.is_empty() || rest.contains(['/', '@', '?', '#', ' ']) || rest.chars().any(char::is_control);
    if bad {
        return Err(format!("{url} is not of the form {scheme}HOST:PORT"));
    }
    let has_port = rest.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Ok(if has_port { rest.to_string() } else { format!("{rest}:2379") })
}

fn server_name(authority: &str) -> Result<ServerName<'static>, String> {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_string()).map_err(|_| format!("{host} is neither a name nor an address"))
}

impl Endpoints {
    /// With TLS the URLs have to begin with https, else with http.
    ///
    /// # Errors
    /// What is wrong with the first URL that is none.
    pub fn new(urls: &[String], tls: Option<EtcdFiles>) -> Result<Endpoints, String> {
        let scheme = if tls.is_some() { "https://" } else { "http://" };
        let endpoint = |url: &String| {
            match (&tls, url.starts_with("https://")) {
                (None, true) => {
                    let why = "name the authority that signs etcd's certificates with --etcd-ca; those of the system are not used";
                    return Err(format!("{url}: {why}"));
                }
                (Some(_), false) => {
                    return Err(format!("{url} is without TLS: with --etcd-ca every URL begins with https://"));
                }
                _ => {}
            }
            let authority = authority(url, scheme)?;
            let name = tls.is_some().then(|| server_name(&authority)).transpose()?;
            Ok(Endpoint { authority, name, kept: Mutex::new(Kept(Vec::new())), answered: AtomicBool::new(false) })
        };
        let all = urls.iter().map(endpoint).collect::<Result<Vec<_>, _>>()?;
        if all.is_empty() {
            return Err("no URL of etcd is given".to_string());
        }
        Ok(Endpoints { all, tls, last: AtomicUsize::new(0) })
    }

    fn first(&self) -> usize {
        self.last.load(Ordering::Relaxed) % self.all.len()
    }

    /// Posts `body` to `path` at the endpoint that answered last, or the next one that takes a connection. `keep`: a connection from
    /// before may be used. `used` says which one it is, also while there is no answer.
    async fn send(
        &self,
        path: &str,
        body: Vec<u8>,
        keep: bool,
        used: &AtomicUsize,
    ) -> Result<(usize, Sender, Response<Incoming>), HttpError> {
        let body = Bytes::from(body);
        let at = self.first();
        used.store(at, Ordering::Relaxed);
        while let Some(mut sender) = keep.then(|| self.all[at].kept.lock().take()).flatten() {
            // A connection that the server closed meanwhile.
            if sender.is_closed() || sender.ready().await.is_err() {
                continue;
            }
            let request = self.request(at, path, body.clone())?;
            match sender.try_send_request(request).await {
                Ok(answer) => return Ok((at, sender, answer)),
                // Nothing of it was sent, so it may go by another connection.
                Err(mut e) => match e.take_message() {
                    Some(_) => continue,
                    None => return Err(self.lost(at, &e.into_error())),
                },
            }
        }
        let (at, mut sender) = self.connect().await.map_err(HttpError::NotSent)?;
        used.store(at, Ordering::Relaxed);
        let request = self.request(at, path, body)?;
        let answer = sender.send_request(request).await.map_err(|e| self.lost(at, &e))?;
        Ok((at, sender, answer))
    }

    fn request(&self, at: usize, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, HttpError> {
        Request::post(path)
            .header(header::HOST, self.all[at].authority.as_str())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|e| HttpError::NotSent(e.to_string()))
    }

    /// A server that refuses this node's certificate says so only when the request is on its way.
    fn lost(&self, at: usize, e: &hyper::Error) -> HttpError {
        let authority = &self.all[at].authority;
        match self.tls.as_ref().and_then(|t| t.distrust(e)) {
            Some(why) => HttpError::NotSent(format!("{authority}: {why}")),
            None if self.tls.is_none() && !self.all[at].answered.load(Ordering::Relaxed) => {
                HttpError::NoAnswer(format!("{authority}: {}; if it wants TLS, write https://", chain(e)))
            }
            None => HttpError::NoAnswer(format!("{authority}: {}", chain(e))),
        }
    }

    /// A new connection to the first endpoint that takes one.
    async fn connect(&self) -> Result<(usize, Sender), String> {
        let (first, mut why) = (self.first(), String::new());
        for i in 0..self.all.len() {
            let at = (first + i) % self.all.len();
            match self.connect_to(&self.all[at]).await {
                Ok(sender) => {
                    self.last.store(at, Ordering::Relaxed);
                    return Ok((at, sender));
                }
                Err(e) => why = format!("{}: {e}", self.all[at].authority),
            }
        }
        Err(why)
    }

    async fn connect_to(&self, endpoint: &Endpoint) -> Result<Sender, String> {
        let late = |wait: Duration| format!("no connection within {} ms", wait.as_millis());
        let tcp = timeout(CONNECT_WAIT, TcpStream::connect(endpoint.authority.as_str())).await;
        let tcp = tcp.map_err(|_| late(CONNECT_WAIT))?.map_err(|e| e.to_string())?;
        let _ = tcp.set_nodelay(true);
        if let Err(e) = notice_a_dead_end(&tcp) {
            tracing::warn!(etcd = %endpoint.authority, "no keep-alive on the connection: {e}");
        }
        let (Some(files), Some(name)) = (&self.tls, &endpoint.name) else { return speak(tcp).await };
        let connecting = TlsConnector::from(files.read()?).connect(name.clone(), tcp);
        let tls = timeout(HANDSHAKE_WAIT, connecting).await.map_err(|_| late(HANDSHAKE_WAIT))?;
        let why = |e: io::Error| match (files.distrust(&e), e.kind()) {
            (Some(why), _) => why,
            // A server that closes with the hello unread resets the connection.
            (None, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
                "it ended the handshake; if it has no TLS, write http://".to_string()
            }
            (None, _) => e.to_string(),
        };
        speak(tls.map_err(why)?).await
    }

    /// The next request goes to another endpoint first, and no connection to the last one is used again: it did not answer well.
    pub fn pass_over(&self) {
        self.pass_over_one(self.first());
    }

    /// As [`Endpoints::pass_over`], unless another request has done it: of several that this endpoint did not answer the second would pass
    /// over one that does.
    fn pass_over_one(&self, at: usize) {
        self.all[at].kept.lock().0.clear();
        let last = self.last.load(Ordering::Relaxed);
        if last % self.all.len() == at {
            let _ = self.last.compare_exchange(last, last.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Keeps a connection whose answer was read to its end, for the next request.
    fn keep(&self, at: usize, sender: Sender) {
        self.all[at].answered.store(true, Ordering::Relaxed);
        if !sender.is_closed() {
            self.all[at].kept.lock().put(sender, Instant::now());
        }
    }

    /// Status and body of the answer.
    ///
    /// # Errors
    /// See [`HttpError`].
    pub async fn post(&self, path: &str, body: Vec<u8>, wait: Duration) -> Result<(u16, Vec<u8>), HttpError> {
        let used = AtomicUsize::new(self.first());
        let whole = async {
            let (at, sender, answer) = self.send(path, body, true, &used).await?;
            let status = answer.status().as_u16();
            let lost = |e| HttpError::NoAnswer(format!("the answer broke off: {e}"));
            let bytes = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(lost)?.to_bytes();
            self.keep(at, sender);
            Ok((status, bytes.to_vec()))
        };
        let late = || HttpError::NoAnswer(format!("no answer within {} ms", wait.as_millis()));
        let answer = timeout(wait, whole).await.unwrap_or_else(|_| Err(late()));
        if matches!(answer, Err(HttpError::NoAnswer(_))) {
            self.pass_over_one(used.into_inner());
        }
        answer
    }

    /// An answer that goes on: its lines as they come.
    ///
    /// # Errors
    /// See [`HttpError`].
    pub async fn stream(&self, path: &str, body: Vec<u8>, wait: Duration) -> Result<Lines, HttpError> {
        let used = AtomicUsize::new(self.first());
        let late = || HttpError::NoAnswer(format!("no answer within {} ms", wait.as_millis()));
        let sent = timeout(wait, self.send(path, body, false, &used)).await.unwrap_or_else(|_| Err(late()));
        let sent = sent.and_then(|(_, sender, answer)| match answer.status() {
            status if status.is_success() => Ok(Lines { _sender: sender, body: answer.into_body(), rest: Vec::new() }),
            status => Err(HttpError::NoAnswer(format!("status {status}"))),
        });
        if matches!(sent, Err(HttpError::NoAnswer(_))) {
            self.pass_over_one(used.into_inner());
        }
        sent
    }
}

/// An answer that goes on is read only: of an end that is gone without a word it would never hear.
fn notice_a_dead_end(tcp: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_tcp_keepidle(tcp, KEEP_ALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(tcp, KEEP_ALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(tcp, KEEP_ALIVE_COUNT)?;
    sockopt::set_socket_keepalive(tcp, true)?;
    Ok(())
}

/// Speaks HTTP on a connection.
async fn speak<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(stream: S) -> Result<Sender, String> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| chain(&e))?;
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}

/// An error with its causes.
fn chain(e: &(dyn StdError + 'static)) -> String {
    let (mut text, mut next) = (e.to_string(), e.source());
    while let Some(e) = next {
        text += &format!(": {e}");
        next = e.source();
    }
    text
}

/// The lines of an answer.
pub struct Lines {
    _sender: SendRequest<Full<Bytes>>,
    body: Incoming,
    rest: Vec<u8>,
}

impl Lines {
    /// The next line; None when the answer ends.
    ///
    /// # Errors
    /// The answer broke off, or a line is too long.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, HttpError> {
        loop {
            if let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
                let mut line: Vec<u8> = self.rest.drain(..=end).collect();
                line.pop();
                return Ok(Some(line));
            }
            if self.rest.len() > ANSWER_BYTES_MAX {
                return Err(HttpError::NoAnswer("a line is too long".to_string()));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(e)) => return Err(HttpError::NoAnswer(format!("the answer broke off: {e}"))),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.rest.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    const WAIT: Duration = Duration::from_secs(5);

    fn files() -> EtcdFiles {
        EtcdFiles { ca: "/none".into(), client: None }
    }

    #[test]
    fn urls_have_a_host_and_fit_the_files() {
        let new = |url: &str, tls: Option<EtcdFiles>| Endpoints::new(&[url.to_string()], tls);
        let authority = |url: &str, tls| new(url, tls).unwrap().all[0].authority.clone();
        assert_eq!(authority("http://10.0.0.1:2379/", None), "10.0.0.1:2379");
        assert_eq!(authority("http://etcd", None), "etcd:2379");
        assert_eq!(authority("https://[::1]:1", Some(files())), "[::1]:1");
        for bad in ["etcd:2379", "http://", "http://a@b", "http://a/b", "http://a b"] {
            assert!(new(bad, None).is_err(), "{bad}");
        }
        assert!(new("https://etcd", None).unwrap_err().contains("--etcd-ca"));
        assert!(new("http://etcd", Some(files())).unwrap_err().contains("without TLS"));
        assert!(new("https://a_b c", Some(files())).is_err());
        let mixed = ["https://a".to_string(), "http://b".to_string()];
        assert!(Endpoints::new(&mixed, Some(files())).is_err() && Endpoints::new(&mixed, None).is_err());
    }

    /// What a server does with its connections and requests.
    #[derive(Debug, Default)]
    struct Seen {
        connections: AtomicUsize,
        requests: AtomicUsize,
    }

    /// A server that answers `{}` to each request after `think`, and closes a connection after `most` of them, `lose`: instead of the
    /// last answer.
    async fn server(most: usize, think: Duration, lose: bool) -> (Endpoints, Arc<Seen>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Seen::default());
        let counts = seen.clone();
        tokio::spawn(async move {
            loop {
                let (mut tcp, _) = listener.accept().await.unwrap();
                counts.connections.fetch_add(1, Ordering::Relaxed);
                let counts = counts.clone();
                tokio::spawn(async move {
                    for number in 1..=most {
                        let mut request = Vec::new();
                        while !request.ends_with(b"\r\n\r\n{}") {
                            let mut more = [0u8; 512];
                            match tcp.read(&mut more).await {
                                Ok(n) if n > 0 => request.extend_from_slice(&more[..n]),
                                _ => return,
                            }
                        }
                        counts.requests.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(think).await;
                        if lose && number == most {
                            return;
                        }
                        tcp.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await.unwrap();
                    }
                });
            }
        });
        (Endpoints::new(&[url], None).unwrap(), seen)
    }

    async fn ask(endpoints: &Endpoints) -> Result<(u16, Vec<u8>), HttpError> {
        endpoints.post("/p", b"{}".to_vec(), WAIT).await
    }

    #[test]
    fn few_connections_are_kept_and_the_idle_ones_are_dropped() {
        let (mut kept, begin) = (Kept(Vec::new()), Instant::now());
        (0..6).for_each(|i| kept.put(i, begin));
        assert_eq!(kept.0.len(), KEPT_MAX);
        for second in 1..=40 {
            let used = kept.take().unwrap();
            kept.put(used, begin + Duration::from_secs(second));
        }
        assert_eq!((kept.take(), kept.take()), (Some(3), None));
    }

    #[tokio::test]
    async fn one_connection_serves_requests_in_a_row_and_several_those_at_once() {
        let (endpoints, seen) = server(usize::MAX, Duration::from_millis(20), false).await;
        for _ in 0..10 {
            ask(&endpoints).await.unwrap();
        }
        assert_eq!(seen.connections.load(Ordering::Relaxed), 1);
        let all = tokio::join!(ask(&endpoints), ask(&endpoints), ask(&endpoints));
        assert!(all.0.is_ok() && all.1.is_ok() && all.2.is_ok(), "{all:?}");
        assert_eq!(seen.connections.load(Ordering::Relaxed), 3, "none waits for another");
        ask(&endpoints).await.unwrap();
        assert_eq!(seen.connections.load(Ordering::Relaxed), 3);
        endpoints.pass_over();
        ask(&endpoints).await.unwrap();
        assert_eq!(seen.connections.load(Ordering::Relaxed), 4, "a bad endpoint is connected to anew");
    }

    #[tokio::test]
    async fn requests_that_hang_together_pass_over_one_endpoint() {
        let hangs = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let hung = format!("http://{}", hangs.local_addr().unwrap());
        let (good, seen) = server(usize::MAX, Duration::ZERO, false).await;
        let (other, of_other) = server(usize::MAX, Duration::ZERO, false).await;
        let url = |e: &Endpoints| format!("http://{}", e.all[0].authority);
        let all = Endpoints::new(&[hung, url(&good), url(&other)], None).unwrap();
        let late = || all.post("/p", b"{}".to_vec(), Duration::from_millis(300));
        let said = tokio::join!(late(), late());
        assert!(said.0.is_err() && said.1.is_err(), "{said:?}");
        ask(&all).await.unwrap();
        assert_eq!([&seen, &of_other].map(|s| s.requests.load(Ordering::Relaxed)), [1, 0]);
    }

    #[tokio::test]
    async fn a_connection_that_the_server_closed_is_replaced() {
        let (endpoints, seen) = server(1, Duration::ZERO, false).await;
        for i in 1..=5 {
            ask(&endpoints).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(seen.requests.load(Ordering::Relaxed), i);
        }
        assert_eq!(seen.connections.load(Ordering::Relaxed), 5);
    }

    #[tokio::test]
    async fn a_request_whose_answer_is_lost_is_not_sent_again() {
        // On a new connection, and on one that was kept.
        for most in [1, 2] {
            let (endpoints, seen) = server(most, Duration::ZERO, true).await;
            if most == 2 {
                ask(&endpoints).await.unwrap();
            }
            let said = ask(&endpoints).await;
            assert!(matches!(said, Err(HttpError::NoAnswer(_))), "{said:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(seen.requests.load(Ordering::Relaxed), most);
        }
    }
}
