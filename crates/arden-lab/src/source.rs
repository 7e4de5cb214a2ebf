//! Where a load goes, as a user names it: a file, a disk, a share, nothing at all. Owns the test file: it is made, filled,
//! and removed; nothing that was there before is written to without leave.

use std::{
    fs,
    net::ToSocketAddrs,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
};

use arden_block::{
    BLOCK_BYTES, BlockDevice, Rt,
    file::{Descriptor, FileDevice},
    identify,
};

use crate::{
    Result,
    client::{self, Protection, requests as r},
    cpu,
    daemon::{Home, SpaceSource, VolumeSource},
    fail,
    load::{
        BlockTarget, Content, Live, NullTarget, Target, fill,
        profile::size,
        smb::{How, SmbFile, SmbTarget},
    },
    simulated::Simulated,
};

/// The size of a test file that nobody gave one.
pub const FILE_BYTES: u64 = 1 << 30;

/// What a load needs of its target.
#[derive(Debug, Clone, Copy, Default)]
pub struct Need {
    pub writes: bool,
    /// Leave to overwrite what is there.
    pub force: bool,
    /// Contents will be compared; the seed that they are made from.
    pub verify: Option<u64>,
    pub file_bytes: Option<u64>,
}

/// A target that is ready.
#[derive(Debug, Clone, Copy)]
pub struct Prepared {
    pub file_bytes: u64,
    /// Every byte of it was written by us.
    pub filled: bool,
}

/// Something that targets can be opened on, one for each client, each on its client's thread.
pub trait Source: Sync {
    /// For people.
    fn name(&self) -> String;
    /// Checks and makes what `open` needs.
    fn prepare(&mut self, need: &Need, live: &Live) -> Result<Prepared>;
    fn open(&self, writes: bool, write_through: bool) -> Result<Box<dyn Target>>;
    /// Removes what `prepare` made.
    fn remove(&mut self) -> Result<()> {
        Ok(())
    }
    /// Whether several clients may open it at once.
    fn many(&self) -> bool {
        true
    }
    /// The server's process, when it runs here.
    fn server(&self) -> Option<u32> {
        None
    }
}

/// How shares are spoken to.
#[derive(Debug, Clone)]
pub struct Wire {
    pub protection: Protection,
    pub channels: usize,
    pub password: Option<String>,
}

/// A source by its name: `null`, `smb://user@host[:port]/share[/path]`, `space:NAME`, `volume:NAME[/path]`, `sim:...`, or a
/// path.
pub fn parse(text: &str, wire: &Wire, home: &Home) -> Result<Box<dyn Source>> {
    if text == "null" {
        return Ok(Box::new(Null));
    }
    if let Some(name) = text.strip_prefix("space:") {
        return Ok(Box::new(SpaceSource::new(name, home)?));
    }
    if let Some(name) = text.strip_prefix("volume:") {
        return Ok(Box::new(VolumeSource::new(name, home, wire)?));
    }
    if let Some(setup) = text.strip_prefix("sim:") {
        return Ok(Box::new(Simulated::parse(setup)?));
    }
    if let Some(rest) = text.strip_prefix("smb://") {
        return Ok(Box::new(Share { file: share(rest, wire)?, created: false, server: None }));
    }
    if text.contains("://") {
        fail!("{text}: only smb:// is known");
    }
    Ok(Box::new(Disk { path: PathBuf::from(text), created: false, locked: Mutex::default() }))
}

/// A file on a share, or a directory to make one in.
pub fn of_share(file: &SmbFile) -> Box<dyn Source> {
    Box::new(Share { file: file.clone(), created: false, server: None })
}

/// What follows `smb://`.
pub fn share(rest: &str, wire: &Wire) -> Result<SmbFile> {
    let form = "smb://user@host[:port]/share[/path]";
    let Some((user, rest)) = rest.split_once('@') else { fail!("the target has no user: {form}") };
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (share, path) = path.trim_matches('/').split_once('/').unwrap_or((path.trim_matches('/'), ""));
    if user.is_empty() || host.is_empty() || share.is_empty() {
        fail!("the target has to name user, host and share: {form}");
    }
    // [::1]:445 and ::1 have colons of their own.
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

/// A name that nobody else has.
pub fn own_name() -> String {
    let ns = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.subsec_nanos());
    format!("arden-lab-{}-{ns:09}.tmp", std::process::id())
}

fn contents(need: &Need) -> Content {
    match need.verify {
        Some(seed) => Content::verified(seed, 0, BLOCK_BYTES as u32, true),
        None => Content::plain(1),
    }
}

/// Refuses to use what is there, unless that does no harm or is allowed.
pub fn existing(what: &str, has_bytes: u64, need: &Need) -> Result<Prepared> {
    if need.writes && !need.force {
        fail!("{what} exists and this load writes to it: name a new file, or give --force to overwrite it");
    }
    if let Some(wanted) = need.file_bytes
        && has_bytes < wanted
    {
        fail!("{what} is too small: it has {}, --file-size says {}", size(has_bytes), size(wanted));
    }
    let file_bytes = need.file_bytes.unwrap_or(has_bytes);
    if file_bytes < 1 << 20 {
        fail!("{what} is too small: {} of at least 1 MiB", size(file_bytes));
    }
    Ok(Prepared { file_bytes, filled: false })
}

struct Null;

impl Source for Null {
    fn name(&self) -> String {
        "nothing".to_string()
    }
    fn prepare(&mut self, need: &Need, _: &Live) -> Result<Prepared> {
        if need.verify.is_some() {
            fail!("the null target keeps nothing that could be verified");
        }
        Ok(Prepared { file_bytes: need.file_bytes.unwrap_or(FILE_BYTES), filled: true })
    }
    fn open(&self, _: bool, _: bool) -> Result<Box<dyn Target>> {
        Ok(Box::new(NullTarget::default()))
    }
}

/// A file, a directory to make one in, or a block device.
struct Disk {
    path: PathBuf,
    created: bool,
    /// The first client's descriptor. It holds the lock against other processes; further clients share it.
    locked: Mutex<Option<Arc<Descriptor>>>,
}

fn device(rt: &Rt, path: &Path, writes: bool) -> Result<Rc<dyn BlockDevice>> {
    match FileDevice::open(rt, path, writes) {
        Ok(device) => Ok(Rc::new(device)),
        Err(e) => fail!("{}: {e}", path.display()),
    }
}

impl Disk {
    fn create(&mut self, need: &Need, live: &Live) -> Result<Prepared> {
        let file_bytes = need.file_bytes.unwrap_or(FILE_BYTES) / BLOCK_BYTES * BLOCK_BYTES;
        let failed = |e: std::io::Error| crate::LabError(format!("{}: {e}", self.path.display()));
        let file = fs::OpenOptions::new().write(true).create_new(true).open(&self.path).map_err(failed)?;
        self.created = true;
        let room = rustix::fs::fstatvfs(&file).map_or(u64::MAX, |s| s.f_bavail * s.f_frsize);
        if room < file_bytes {
            fail!("{}: {} are wanted, {} are free", self.path.display(), size(file_bytes), size(room));
        }
        file.set_len(file_bytes).map_err(|e| crate::LabError(format!("{}: {e}", self.path.display())))?;
        drop(file);
        let rt = Rt::real();
        let mut target = BlockTarget::new(&rt, device(&rt, &self.path, true)?);
        let filled = fill(&mut target, file_bytes, &mut contents(need), live);
        drop(target);
        rt.shutdown();
        filled?;
        Ok(Prepared { file_bytes, filled: true })
    }
}

impl Source for Disk {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn prepare(&mut self, need: &Need, live: &Live) -> Result<Prepared> {
        if self.path.is_dir() {
            self.path.push(own_name());
        }
        let what = self.path.display().to_string();
        let kind = match fs::metadata(&self.path) {
            Ok(meta) => meta.file_type(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return self.create(need, live),
            Err(e) => fail!("{what}: {e}"),
        };
        if kind.is_block_device() {
            if need.writes
                && let Some(by) = identify::in_use_by(&self.path)
            {
                fail!("{what} is in use: {by}");
            }
            let bytes = identify::block_size_bytes(&self.path)?;
            return existing(&what, bytes, need);
        }
        if !kind.is_file() {
            fail!("{what} is neither a file nor a block device");
        }
        existing(&what, fs::metadata(&self.path)?.len(), need)
    }

    fn open(&self, writes: bool, _: bool) -> Result<Box<dyn Target>> {
        let rt = Rt::real();
        let mut locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = match &*locked {
            Some(fd) => FileDevice::open_again(&rt, &self.path, writes, fd.clone()),
            None => FileDevice::open(&rt, &self.path, writes),
        };
        let device = opened.map_err(|e| crate::LabError(format!("{}: {e}", self.path.display())))?;
        *locked = Some(device.descriptor());
        Ok(Box::new(BlockTarget::new(&rt, Rc::new(device))))
    }

    fn remove(&mut self) -> Result<()> {
        *self.locked.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        if std::mem::take(&mut self.created) {
            fs::remove_file(&self.path)?;
        }
        Ok(())
    }
}

/// A file on an SMB server.
struct Share {
    file: SmbFile,
    created: bool,
    server: Option<u32>,
}

impl Share {
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
            self.server = cpu::listener(self.file.target.address.port());
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
    fn what_is_there_is_not_written_to() {
        let dir = std::env::temp_dir().join(format!("arden-lab-source-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("precious");
        fs::write(&path, vec![7; 2 << 20]).unwrap();
        let prepare = |need: Need| {
            parse(path.to_str().unwrap(), &wire(), &Home::default()).unwrap().prepare(&need, &Live::default())
        };
        let refused = prepare(Need { writes: true, ..Need::default() }).unwrap_err().to_string();
        assert!(refused.contains("--force"), "{refused}");
        let small = prepare(Need { file_bytes: Some(4 << 20), ..Need::default() }).unwrap_err().to_string();
        assert!(small.contains("too small"), "{small}");
        let ok = prepare(Need::default()).unwrap();
        assert_eq!((ok.file_bytes, ok.filled), (2 << 20, false));
        assert!(fs::read(&path).unwrap().iter().all(|b| *b == 7));

        // What is made is filled, and goes.
        let mut made = parse(dir.to_str().unwrap(), &wire(), &Home::default()).unwrap();
        let need = Need { writes: true, file_bytes: Some(3 << 20), ..Need::default() };
        assert_eq!(made.prepare(&need, &Live::default()).unwrap().file_bytes, 3 << 20);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
        made.remove().unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        let huge = Need { file_bytes: Some(1 << 60), ..need };
        let mut made = parse(dir.join("huge").to_str().unwrap(), &wire(), &Home::default()).unwrap();
        assert!(made.prepare(&huge, &Live::default()).unwrap_err().to_string().contains("are free"));
        made.remove().unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_target_that_cannot_be_reached_is_named() {
        let port = crate::servers::free_port().unwrap();
        let mut s = parse(&format!("smb://a@127.0.0.1:{port}/s"), &wire(), &Home::default()).unwrap();
        let e = s.prepare(&Need::default(), &Live::default()).unwrap_err().to_string();
        assert!(e.contains(&port.to_string()) && e.contains("cannot be reached"), "{e}");
        assert!(parse("ftp://x", &wire(), &Home::default()).is_err());
    }
}
