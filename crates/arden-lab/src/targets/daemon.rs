//! Spaces and volumes of a daemon as sources. A space is loaded through an NBD export, a volume through a share. Export
//! and share are made by the daemon's API and removed afterwards. Where no daemon runs, one is started on the state
//! directory for the time of the load: both cases are measured as clients see them.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};

use arden_admin::{
    AdminError,
    client::{Client, segment},
    error::ErrorKind,
    model::{Grant, NewUser, Rights, Share, ShareKind, StatusInfo},
    storage::{NewExport, SpaceInfo},
};

use arden_measure::{
    Error, Result, client, fail,
    load::{Live, NbdTarget, Target, smb::SmbFile},
    source::{
        self, Need, Prepared, Source,
        share::{self, Wire},
    },
};

use crate::local::servers::{self, Running};

/// The state directory of a daemon, and the program to start when none runs on it.
#[derive(Debug, Clone, Default)]
pub struct Home {
    pub state: PathBuf,
    pub program: Option<PathBuf>,
}

fn said(e: AdminError) -> Error {
    let hint = if e.hint.is_empty() { String::new() } else { format!("; {}", e.hint) };
    Error(format!("{}{hint}", e.error))
}

/// A running daemon.
struct Daemon {
    api: Client,
    status: StatusInfo,
    log: Option<PathBuf>,
    started: Option<Running>,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.started.take());
        if let Some(log) = self.log.take() {
            let _ = std::fs::remove_file(log);
        }
    }
}

impl Daemon {
    fn reach(home: &Home) -> Result<Daemon> {
        let api = Client::new(&home.state);
        let status = || api.get::<StatusInfo>("/v1/status");
        let e = match status() {
            Ok(status) => return Ok(Daemon { api, status, log: None, started: None }),
            Err(e) => e,
        };
        let (ErrorKind::NotRunning, Some(program)) = (e.kind, &home.program) else { return Err(said(e)) };
        if !home.state.join("state.redb").exists() {
            fail!("{} is no state directory of a daemon: name it with --state or ARDEN_STATE", home.state.display());
        }
        let log = std::env::temp_dir().join(source::own_name());
        let started = servers::daemon(program, &home.state, &log);
        let started = started.inspect_err(|_| drop(std::fs::remove_file(&log)))?;
        let mut daemon = Daemon { status: status().map_err(said)?, api: api.clone(), log: Some(log), started: None };
        daemon.started = Some(started);
        Ok(daemon)
    }

    /// The address at which a client on this machine reaches its shares.
    fn address(&self) -> Result<SocketAddr> {
        let all: Vec<SocketAddr> = self.status.listen.iter().filter_map(|l| l.parse().ok()).collect();
        let Some(first) = all.iter().find(|a| a.ip().is_loopback() || a.ip().is_unspecified()).or(all.first()) else {
            fail!("the daemon listens nowhere");
        };
        let ip = match first.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        Ok(SocketAddr::new(ip, first.port()))
    }
}

/// A source on the blocks of a space, through an export.
pub struct SpaceSource {
    home: Home,
    name: String,
    daemon: Option<Daemon>,
    place: String,
    /// The API path of the export that was made.
    made: Option<String>,
}

impl SpaceSource {
    /// A source on the space `NAME` or `POOL/NAME`.
    ///
    /// # Errors
    /// The name is empty.
    pub fn new(name: &str, home: &Home) -> Result<SpaceSource> {
        if name.is_empty() {
            fail!("space: has to be followed by the name of a space; `arden space list` shows them");
        }
        let (home, name) = (home.clone(), name.to_string());
        Ok(SpaceSource { home, name, daemon: None, place: String::new(), made: None })
    }

    fn find(&self, api: &Client) -> Result<SpaceInfo> {
        let all: Vec<SpaceInfo> = api.get("/v1/spaces").map_err(said)?;
        let (pool, name) = self.name.split_once('/').map_or((None, self.name.as_str()), |(p, n)| (Some(p), n));
        let mut found: Vec<SpaceInfo> =
            all.into_iter().filter(|s| s.name == name && pool.is_none_or(|p| s.pool == p)).collect();
        match (found.pop(), found.is_empty()) {
            (Some(space), true) => Ok(space),
            (Some(_), false) => fail!("several pools have a space {name}: name one as space:POOL/{name}"),
            (None, _) => fail!("there is no space {}; `arden space list` shows them", self.name),
        }
    }
}

impl Source for SpaceSource {
    fn name(&self) -> String {
        format!("space {}", self.name)
    }

    fn prepare(&mut self, need: &Need, _: &Live) -> Result<Prepared> {
        let daemon = self.daemon.insert(Daemon::reach(&self.home)?);
        let api = daemon.api.clone();
        let space = self.find(&api)?;
        // Checked before anything is exported.
        let prepared = source::existing(&self.name(), space.size_bytes, need)?;
        if space.nbd.is_empty() {
            let path = format!("/v1/pools/{}/spaces/{}/export", segment(&space.pool), segment(&space.name));
            let socket = std::env::temp_dir().join(source::own_name());
            let export = NewExport { nbd: format!("unix:{}", socket.display()) };
            let exported: SpaceInfo = api.put_body(&path, &export).map_err(said)?;
            self.place = exported.nbd;
            self.made = Some(path);
        } else {
            self.place = space.nbd;
        }
        Ok(prepared)
    }

    fn open(&self, _: bool, _: bool) -> Result<Box<dyn Target>> {
        Ok(Box::new(NbdTarget::connect(&self.place, "")?))
    }

    fn remove(&mut self) -> Result<()> {
        let removed = match (&self.daemon, self.made.take()) {
            (Some(daemon), Some(path)) => daemon.api.delete_answered::<SpaceInfo>(&path).map(drop).map_err(said),
            _ => Ok(()),
        };
        self.daemon = None;
        removed
    }

    fn server(&self) -> Option<u32> {
        self.daemon.as_ref().map(|d| d.status.pid)
    }
}

/// A source on a file of a volume, through a share that only the load's own user may open.
pub struct VolumeSource {
    home: Home,
    volume: String,
    path: String,
    wire: Wire,
    daemon: Option<Daemon>,
    /// The user and the share that were made.
    made: Vec<String>,
    file: Option<Box<dyn Source>>,
}

impl VolumeSource {
    /// A source on `NAME` or `NAME/path/of/a/file`.
    ///
    /// # Errors
    /// The name is empty.
    pub fn new(text: &str, home: &Home, wire: &Wire) -> Result<VolumeSource> {
        let (volume, path) = text.split_once('/').unwrap_or((text, ""));
        if volume.is_empty() {
            fail!("volume: has to be followed by the name of a volume; `arden volume list` shows them");
        }
        Ok(VolumeSource {
            home: home.clone(),
            volume: volume.to_string(),
            path: path.replace('/', "\\"),
            wire: wire.clone(),
            daemon: None,
            made: Vec::new(),
            file: None,
        })
    }

    /// Makes a user with a random password, and a hidden share for it.
    fn make(&mut self, daemon: &Daemon) -> Result<SmbFile> {
        let name = format!("arden-lab-{}", std::process::id());
        let mut random = [0; 24];
        if rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).is_err() {
            fail!("the system gives no random bytes");
        }
        let password: String = random.iter().map(|b| format!("{b:02x}")).collect();
        let user = NewUser {
            name: name.clone(),
            password: password.clone(),
            full_name: "A measurement that is running".to_string(),
            // Grants access whatever the descriptor of the volume's root is.
            groups: vec!["Administrators".to_string()],
            disabled: false,
        };
        daemon.api.post::<serde_json::Value>("/v1/users", &user).map_err(said)?;
        self.made.push(format!("/v1/users/{}", segment(&name)));
        let share = Share {
            name: name.clone(),
            kind: ShareKind::Volume,
            volume: Some(self.volume.clone()),
            path: "/".into(),
            comment: String::new(),
            read_only: false,
            encrypt: false,
            write_through: false,
            continuously_available: false,
            scale_out: false,
            hidden: true,
            access_based_enumeration: false,
            allow: vec![Grant { who: name.clone(), rights: Rights::Full }],
            deny: Vec::new(),
            users_max: None,
            force: false,
        };
        daemon.api.post::<serde_json::Value>("/v1/shares", &share).map_err(said)?;
        self.made.push(format!("/v1/shares/{}", segment(&name)));
        Ok(SmbFile {
            target: client::Target { address: daemon.address()?, share: name.clone(), user: name, password },
            path: self.path.clone(),
            protection: self.wire.protection,
            channels: self.wire.channels,
        })
    }
}

impl Source for VolumeSource {
    fn name(&self) -> String {
        format!("volume {}", self.volume)
    }

    fn prepare(&mut self, need: &Need, live: &Live) -> Result<Prepared> {
        let daemon = Daemon::reach(&self.home)?;
        let made = self.make(&daemon);
        self.daemon = Some(daemon);
        let file = self.file.insert(Box::new(share::Share::new(&made?)));
        file.prepare(need, live)
    }

    fn open(&self, writes: bool, write_through: bool) -> Result<Box<dyn Target>> {
        match &self.file {
            Some(file) => file.open(writes, write_through),
            None => fail!("volume {} is not prepared", self.volume),
        }
    }

    fn remove(&mut self) -> Result<()> {
        let mut result = self.file.take().map_or(Ok(()), |mut file| file.remove());
        if let Some(daemon) = self.daemon.take() {
            for path in self.made.drain(..).rev() {
                let removed = daemon.api.delete(&path).map_err(said);
                result = result.and(removed);
            }
        }
        result
    }

    fn server(&self) -> Option<u32> {
        self.daemon.as_ref().map(|d| d.status.pid)
    }
}

/// The daemon of `ARDEN_STATE`, or of /var/lib/arden, for programs without an option for the state directory.
pub fn default_home() -> Home {
    let state = std::env::var_os("ARDEN_STATE").map_or_else(|| PathBuf::from("/var/lib/arden"), PathBuf::from);
    Home { state, program: servers::own_program() }
}
