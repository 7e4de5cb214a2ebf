//! HTTP/1.1 requests with a JSON body to one of several endpoints: one connection for each. Refuses TLS, redirects and to send
//! anything twice: a request whose answer is lost may have been carried out.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    client::conn::http1::{self, SendRequest},
    header,
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

/// The most that an answer may have.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// An endpoint that does not take a connection within this time is passed over.
const CONNECT_WAIT: Duration = Duration::from_millis(500);

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpError {
    /// No endpoint took the connection: nothing was sent.
    NotSent(String),
    /// The request was sent, and its answer did not come.
    NoAnswer(String),
}

/// A server, by the authority of its URL.
#[derive(Debug)]
pub struct Endpoints {
    /// `host:port`.
    authorities: Vec<String>,
    /// The one that answered last.
    last: AtomicUsize,
}

/// The authority of `http://host:port`.
///
/// # Errors
/// What is wrong with the URL.
pub fn authority(url: &str) -> Result<String, String> {
    if url.starts_with("https://") {
        return Err(format!("{url}: TLS to etcd is not supported yet"));
    }
    let rest = url.strip_prefix("http://").ok_or_else(|| format!("{url} does not begin with http://"))?;
    let rest = rest.trim_end_matches('/');
    let bad = rest.is_empty() || rest.contains(['/', '@', '?', '#', ' ']) || rest.chars().any(char::is_control);
    if bad {
        return Err(format!("{url} is not of the form http://HOST:PORT"));
    }
    let has_port = rest.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Ok(if has_port { rest.to_string() } else { format!("{rest}:2379") })
}

impl Endpoints {
    /// # Errors
    /// What is wrong with the first URL that is none.
    pub fn new(urls: &[String]) -> Result<Endpoints, String> {
        let authorities = urls.iter().map(|u| authority(u)).collect::<Result<Vec<_>, _>>()?;
        if authorities.is_empty() {
            return Err("no URL of etcd is given".to_string());
        }
        Ok(Endpoints { authorities, last: AtomicUsize::new(0) })
    }

    /// Posts `body` to `path` at the first endpoint that takes a connection.
    async fn send(
        &self,
        path: &str,
        body: Vec<u8>,
    ) -> Result<(SendRequest<Full<Bytes>>, Response<Incoming>), HttpError> {
        let (mut sender, authority) = self.connect().await.map_err(HttpError::NotSent)?;
        let lost = |e: hyper::Error| HttpError::NoAnswer(format!("{authority}: {e}"));
        let request = Request::post(path)
            .header(header::HOST, authority.as_str())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| HttpError::NotSent(e.to_string()))?;
        let answer = sender.send_request(request).await.map_err(lost)?;
        Ok((sender, answer))
    }

    async fn connect(&self) -> Result<(SendRequest<Full<Bytes>>, String), String> {
        let (first, mut why) = (self.last.load(Ordering::Relaxed), String::new());
        for i in 0..self.authorities.len() {
            let at = (first + i) % self.authorities.len();
            let authority = &self.authorities[at];
            let stream = match timeout(CONNECT_WAIT, TcpStream::connect(authority.as_str())).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(e)) => {
                    why = format!("{authority}: {e}");
                    continue;
                }
                Err(_) => {
                    why = format!("{authority}: no connection within {} ms", CONNECT_WAIT.as_millis());
                    continue;
                }
            };
            let _ = stream.set_nodelay(true);
            match http1::handshake(TokioIo::new(stream)).await {
                Ok((sender, connection)) => {
                    tokio::spawn(async move {
                        let _ = connection.await;
                    });
                    self.last.store(at, Ordering::Relaxed);
                    return Ok((sender, authority.clone()));
                }
                Err(e) => why = format!("{authority}: {e}"),
            }
        }
        Err(why)
    }

    /// The next request goes to another endpoint first: the last one did not answer well.
    pub fn pass_over(&self) {
        self.last.fetch_add(1, Ordering::Relaxed);
    }

    /// Status and body of the answer.
    ///
    /// # Errors
    /// See [`HttpError`].
    pub async fn post(&self, path: &str, body: Vec<u8>, wait: Duration) -> Result<(u16, Vec<u8>), HttpError> {
        let whole = async {
            let (_sender, answer) = self.send(path, body).await?;
            let status = answer.status().as_u16();
            let lost = |e| HttpError::NoAnswer(format!("the answer broke off: {e}"));
            let bytes = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(lost)?.to_bytes();
            Ok((status, bytes.to_vec()))
        };
        let late = || HttpError::NoAnswer(format!("no answer within {} ms", wait.as_millis()));
        let answer = timeout(wait, whole).await.unwrap_or_else(|_| Err(late()));
        if matches!(answer, Err(HttpError::NoAnswer(_))) {
            self.pass_over();
        }
        answer
    }

    /// An answer that goes on: its lines as they come.
    ///
    /// # Errors
    /// See [`HttpError`].
    pub async fn stream(&self, path: &str, body: Vec<u8>, wait: Duration) -> Result<Lines, HttpError> {
        let late = || HttpError::NoAnswer(format!("no answer within {} ms", wait.as_millis()));
        let (sender, answer) = timeout(wait, self.send(path, body)).await.unwrap_or_else(|_| Err(late()))?;
        if !answer.status().is_success() {
            return Err(HttpError::NoAnswer(format!("status {}", answer.status())));
        }
        Ok(Lines { _sender: sender, body: answer.into_body(), rest: Vec::new() })
    }
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
    use super::*;

    #[test]
    fn urls_are_plain_http_with_a_host() {
        assert_eq!(authority("http://10.0.0.1:2379/"), Ok("10.0.0.1:2379".to_string()));
        assert_eq!(authority("http://etcd"), Ok("etcd:2379".to_string()));
        assert!(authority("https://etcd").unwrap_err().contains("not supported"));
        for bad in ["etcd:2379", "http://", "http://a@b", "http://a/b", "http://a b"] {
            assert!(authority(bad).is_err(), "{bad}");
        }
    }
}
