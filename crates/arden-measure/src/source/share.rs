//! A source on a file of an SMB share, and the parser of its URL.

use std::net::ToSocketAddrs;

use super::{FILE_BYTES, Need, Prepared, Source, contents, existing, own_name};
use crate::{
    Result,
    base::process,
    client::{self, Protection, requests as r},
    fail,
    load::{
        Live, Target, fill,
        smb::{How, SmbFile, SmbTarget},
    },
};

/// The protection and number of connections, and the password, of a share.
#[derive(Debug, Clone)]
pub struct Wire {
    pub protection: Protection,
    pub channels: usize,
    pub password: Option<String>,
}

/// Parses the URL of a share behind `smb://`: `user@host[:port]/share[/path]`. The default port is 445.
///
/// # Errors
/// A missing part, a host without an address, or no password in `wire`.
pub fn share(rest: &str, wire: &Wire) -> Result<SmbFile> {
    let form = "smb://user@host[:port]/share[/path]";
    let Some((user, rest)) = rest.split_once('@') else { fail!("the target has no user: {form}") };
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (share, path) = path.trim_matches('/').split_once('/').unwrap_or((path.trim_matches('/'), ""));
    if user.is_empty() || host.is_empty() || share.is_empty() {
        fail!("the target has to name user, host and share: {form}");
    }
    // The address in [::1]:445 and in ::1 has colons itself.
    let bare = host.starts_with('[') && host.ends_with(']')
        || !host.contains(':')
        || host.matches(':').count() > 1 && !host.starts_with('[');
    let full = if bare { format!("{}:445", bracketed(host)) } else { host.to_string() };
    let address = match full.to_socket_addrs().map(|mut all| all.next()) {
        Ok(Some(address)) => address,
        Ok(None) => fail!("{host} has no address"),
        Err(e) => fail!("{host}: {e}"),
    };
    let Some(password) = wire.password.clone() else { fail!("no password for {user}") };
    Ok(SmbFile {
        target: client::Target { address, share: share.to_string(), user: user.to_string(), password },
        path: path.replace('/', "\\"),
        protection: wire.protection,
        channels: wire.channels,
    })
}

fn bracketed(host: &str) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_string() }
}

/// A source on a file of an SMB server.
pub struct Share {
    file: SmbFile,
    created: bool,
    server: Option<u32>,
}

impl Share {
    /// A source on `file.path`: a file, which need not exist, or a directory, in which a new file is made.
    pub fn new(file: &SmbFile) -> Share {
        Share { file: file.clone(), created: false, server: None }
    }

    fn is_directory(&self, client: &mut client::Client) -> Result<bool> {
        if self.file.path.is_empty() {
            return Ok(true);
        }
        let body = r::create(&self.file.path, 0x80, smb2::msg::create::CreateDisposition::FileOpen, 0);
        match client.try_open(&body)? {
            Ok(open) => {
                client.close(open.id)?;
                Ok(open.is_directory)
            }
            Err(_) => Ok(false),
        }
    }
}

impl Source for Share {
    fn name(&self) -> String {
        let t = &self.file.target;
        format!("smb://{}@{}/{}/{}", t.user, t.address, t.share, self.file.path.replace('\\', "/"))
    }

    fn prepare(&mut self, need: &Need, live: &Live) -> Result<Prepared> {
        let mut client = self.file.connect()?;
        if self.file.target.address.ip().is_loopback() {
            self.server = process::listener(self.file.target.address.port());
        }
        if self.is_directory(&mut client)? {
            let path = &mut self.file.path;
            *path = if path.is_empty() { own_name() } else { format!("{path}\\{}", own_name()) };
        }
        match self.file.open(&mut client, How::Read, false)? {
            Ok(open) => {
                client.close(open.id)?;
                return existing(&self.name(), open.size_bytes, need);
            }
            Err(r::OBJECT_NAME_NOT_FOUND) => {}
            Err(status) => fail!("{}: {}", self.name(), r::status_name(status)),
        }
        drop(client);
        let file_bytes = need.file_bytes.unwrap_or(FILE_BYTES);
        let mut target = SmbTarget::open(&self.file, How::Create, false)?;
        self.created = true;
        fill(&mut target, file_bytes, &mut contents(need), live)?;
        target.close()?;
        Ok(Prepared { file_bytes, filled: true })
    }

    fn open(&self, writes: bool, write_through: bool) -> Result<Box<dyn Target>> {
        let how = if writes { How::Write } else { How::Read };
        Ok(Box::new(SmbTarget::open(&self.file, how, write_through)?))
    }

    fn remove(&mut self) -> Result<()> {
        if std::mem::take(&mut self.created) {
            self.file.connect()?.delete(&self.file.path)?;
        }
        Ok(())
    }

    fn server(&self) -> Option<u32> {
        self.server
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire() -> Wire {
        Wire { protection: Protection::Plain, channels: 1, password: Some("pw".into()) }
    }

    #[test]
    fn shares_by_name() {
        let f = share("alice@127.0.0.1/docs/a/b.bin", &wire()).unwrap();
        assert_eq!((f.target.address.port(), f.target.share.as_str(), f.path.as_str()), (445, "docs", "a\\b.bin"));
        let f = share("alice@127.0.0.1:4450/docs", &wire()).unwrap();
        assert_eq!((f.target.address.port(), f.path.as_str()), (4450, ""));
        let f = share("alice@[::1]:4450/docs/x", &wire()).unwrap();
        assert!(f.target.address.is_ipv6() && f.target.address.port() == 4450);
        assert_eq!(share("alice@::1/docs/x", &wire()).unwrap().target.address.port(), 445);
        for bad in ["127.0.0.1/docs", "alice@/docs", "alice@127.0.0.1", "alice@127.0.0.1:4450/", "@h/s"] {
            assert!(share(bad, &wire()).is_err(), "{bad}");
        }
        let no_password = Wire { password: None, ..wire() };
        assert!(share("alice@127.0.0.1/docs", &no_password).unwrap_err().to_string().contains("password"));
    }

    #[test]
    fn a_target_that_cannot_be_reached_is_named() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let mut s = Share::new(&share(&format!("a@127.0.0.1:{port}/s"), &wire()).unwrap());
        let e = s.prepare(&Need::default(), &Live::default()).unwrap_err().to_string();
        assert!(e.contains(&port.to_string()) && e.contains("cannot be reached"), "{e}");
    }
}
