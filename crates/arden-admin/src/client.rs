//! A blocking client of the API for the command line and tests: one HTTP/1.1 request for each connection to the Unix
//! socket.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::{AdminError, ErrorKind, Result},
    state::socket_path,
};

/// Time after which a daemon that does not answer is taken as broken. Allocating all slabs of a large space takes
/// minutes.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A client of the daemon on one state directory.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client of the daemon on `state_dir`. Nothing is connected yet.
    pub fn new(state_dir: &Path) -> Client {
        Client { socket: socket_path(state_dir) }
    }

    /// Gets `path` and reads the body as JSON.
    ///
    /// # Errors
    /// The error of the API, or `NotRunning` when no daemon listens.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        parse(&self.send("GET", path, None)?)
    }

    /// Gets `path` and returns the body as text.
    ///
    /// # Errors
    /// The error of the API, or `NotRunning` when no daemon listens.
    pub fn get_text(&self, path: &str) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.send("GET", path, None)?).into_owned())
    }

    /// Posts `body` to `path` and reads the answer.
    ///
    /// # Errors
    /// The error of the API, or `NotRunning` when no daemon listens.
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        parse(&self.send("POST", path, Some(encode(body)?))?)
    }

    /// Patches `path` with `body` and reads the answer.
    ///
    /// # Errors
    /// The error of the API, or `NotRunning` when no daemon listens.
    pub fn patch<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        parse(&self.send("PATCH", path, Some(encode(body)?))?)
    }

    /// Puts to `path` without a body and reads the answer.
    ///
    /// # Errors
    /// The error of the API, or `NotRunning` when no daemon listens.
    pub fn put<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        parse(&self.send("PUT", path, None)?)
    }

    /// Puts `body` to `path` and reads the answer.
    ///
    /// # Errors
    /// The error of the API, or `NotRunning` when no daemon listens.
    pub fn put_body<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        parse(&self.send("PUT", path, Some(encode(body)?))?)
    }

    /// Sends `body` to `path`; the answer has no body.
    ///
    /// # Errors
    /// The error of the API, or `NotRunning` when no daemon listens.
    pub fn send_only(&self, method: &str, path: &str, body: &impl Serialize) -> Result<()> {
        self.send(method, path, Some(encode(body)?)).map(drop)
    }

    /// Deletes `path` and reads the answer.
    ///
    /// # Errors
    /// The error of the API, or `NotRunning` when no daemon listens.
    pub fn delete_answered<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        parse(&self.send("DELETE", path, None)?)
    }

    /// Deletes `path`; the answer has no body.
    ///
    /// # Errors
    /// The error of the API, or `NotRunning` when no daemon listens.
    pub fn delete(&self, path: &str) -> Result<()> {
        self.send("DELETE", path, None).map(drop)
    }

    fn send(&self, method: &str, path: &str, body: Option<Vec<u8>>) -> Result<Vec<u8>> {
        let mut stream = self.connect()?;
        let broken = |e: std::io::Error| {
            AdminError::failed(
                format!("the daemon at {} broke off: {e}", self.socket.display()),
                "see the daemon's log",
            )
        };
        stream.set_read_timeout(Some(TIMEOUT)).map_err(broken)?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(broken)?;
        let body = body.unwrap_or_default();
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(&body);
        stream.write_all(&request).map_err(broken)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).map_err(broken)?;
        let (status, body) = split(&answer)
            .ok_or_else(|| AdminError::failed("the answer is not HTTP", "does another program own the socket?"))?;
        if (200..300).contains(&status) {
            return Ok(body.to_vec());
        }
        Err(serde_json::from_slice(body)
            .unwrap_or_else(|_| AdminError::failed(format!("the daemon answered {status}"), "see the daemon's log")))
    }

    fn connect(&self) -> Result<UnixStream> {
        UnixStream::connect(&self.socket).map_err(|e| {
            let socket = self.socket.display();
            match e.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => AdminError::new(
                    ErrorKind::NotRunning,
                    format!("no daemon answers on {socket}"),
                    "start it with `arden serve`, or name its state directory with --state or ARDEN_STATE",
                ),
                std::io::ErrorKind::PermissionDenied => AdminError::failed(
                    format!("you may not open {socket}"),
                    "run this as the user that runs the daemon, or as root",
                ),
                _ => AdminError::failed(format!("{socket}: {e}"), ""),
            }
        })
    }
}

fn encode(body: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(body).map_err(|e| AdminError::invalid(format!("this cannot be sent: {e}"), ""))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|e| {
        AdminError::failed(
            format!("the daemon's answer is not understood: {e}"),
            "are daemon and command of one version?",
        )
    })
}

/// Status and body of an answer that ends with the connection; `None` when it is malformed.
fn split(answer: &[u8]) -> Option<(u16, &[u8])> {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, &answer[end + 4..]))
}

/// Percent-encodes a name as one segment of a path, RFC 3986 2.1.
pub fn segment(name: &str) -> String {
    name.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => (b as char).to_string(),
            _ => format!("%{b:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_one_segment() {
        assert_eq!(segment("a b/ö$"), "a%20b%2F%C3%B6%24");
    }

    #[test]
    fn without_a_daemon_the_error_says_so() {
        let error = Client::new(Path::new("/nonexistent")).get::<serde_json::Value>("/v1/status").unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotRunning);
        assert!(error.hint.contains("arden serve"));
    }

    #[test]
    fn answers_split_into_status_and_body() {
        assert_eq!(split(b"HTTP/1.1 404 Not Found\r\nx: y\r\n\r\n{}"), Some((404, b"{}".as_slice())));
        assert_eq!(split(b"SSH-2.0"), None);
    }
}
