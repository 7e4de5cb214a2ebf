//! The demonstration: a continuously available share `demo` on a mirrored volume over disk files in one directory, a
//! user of that name, and instructions for clients. Makes missing parts and opens existing ones. Leaves directories
//! with other content alone.

use std::{
    io::Write,
    net::{IpAddr, SocketAddr},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use arden_admin::{
    AdminError, ErrorKind, State, Storage,
    error::Result,
    model::{NewUser, Share, UserChange},
    secret,
    storage::{NewPool, NewSpace, PoolImport},
    volume::{NewVolume, VolumeAdmin, VolumeRecord},
};
use arden_host::{PoolAdmin, Pools, Volumes};
use arden_store::{
    commit::CommitScope,
    error::NotDone,
    name::NtPath,
    store::{FileStore, Lookup, NewFile, Wait},
};
use arden_wire::access::ATTR_ARCHIVE;

const NAME: &str = "demo";
/// Number of disk files. Each block is on two of them; the third replaces a lost one.
const DISKS: u64 = 3;
/// Limit of the size of a disk file in bytes. The files are sparse, and never larger than the free space of their file
/// system.
const DISK_BYTES_MAX: u64 = 64 << 30;
const DISK_BYTES_MIN: u64 = 256 << 20;
const GREETING: &[u8] = b"This file comes from Arden.\r\n";

/// The directory of the demonstration: the one that is given, or else, when the daemon starts at a terminal, one in the
/// state directory, if there is nothing to serve yet or the directory exists already.
pub fn place(state: &State, state_dir: &Path, asked: Option<PathBuf>, at_terminal: bool) -> Option<PathBuf> {
    let beside = state_dir.join(NAME);
    let s = state.snapshot();
    let blank = s.users.is_empty() && s.shares.is_empty() && s.pools.is_empty() && s.volumes.is_empty();
    let made = s.shares.contains_key(NAME) && Keeper::at(&beside).password().exists();
    asked.or_else(|| Some(beside).filter(|_| at_terminal && (blank || made)))
}

/// Makes the missing ones of disks, pool, space, volume, share and user. Returns the password, which never changes:
/// clients with open files use it again after a restart.
///
/// # Errors
/// The directory holds other content, or a part cannot be made.
pub fn prepare(state: &State, pools: &Arc<Pools>, volumes: &Volumes, dir: &Path) -> Result<String> {
    let keeper = Keeper::make(dir)?;
    let password = keeper.keep_password()?;
    if state.snapshot().share(NAME).is_err() {
        keeper.pool(state, &PoolAdmin(pools.clone()))?;
        keeper.volume(state, volumes)?;
    }
    state.change(|s| {
        match s.user(NAME).map(|u| u.nt_hash == secret::hex(&secret::nt_hash(&password)) && !u.disabled) {
            Ok(true) => {}
            Ok(false) => {
                let change =
                    UserChange { password: Some(password.clone()), disabled: Some(false), ..UserChange::default() };
                s.change_user(NAME, &change)?;
            }
            Err(_) => {
                let (name, password, full_name) = (NAME.to_string(), password.clone(), "Demonstration".to_string());
                s.add_user(&NewUser { name, password, full_name, groups: Vec::new(), disabled: false })?;
            }
        }
        if s.share(NAME).is_err() {
            let share = serde_json::json!({
                "name": NAME, "kind": "volume", "volume": NAME, "path": "/", "comment": "Demonstration",
                "continuously_available": true,
            });
            let share: Share = serde_json::from_value(share).map_err(|e| AdminError::failed(e.to_string(), ""))?;
            s.add_share(&share)?;
        }
        Ok(())
    })?;
    Ok(password)
}

/// The directory of the disk files and the password.
struct Keeper {
    dir: PathBuf,
}

impl Keeper {
    fn at(dir: &Path) -> Keeper {
        Keeper { dir: dir.to_path_buf() }
    }

    /// Opens the directory, and makes it when it is missing. A directory with other content is refused.
    fn make(dir: &Path) -> Result<Keeper> {
        let failed = failed(dir);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(&failed)?;
        let keeper = Keeper { dir: std::fs::canonicalize(dir).map_err(&failed)? };
        let foreign = !keeper.password().exists() && std::fs::read_dir(&keeper.dir).map_err(&failed)?.next().is_some();
        if foreign {
            let error = format!("{} holds files that are not the demonstration's", dir.display());
            return Err(AdminError::new(ErrorKind::Conflict, error, "name an empty directory, or one to be made"));
        }
        Ok(keeper)
    }

    fn password(&self) -> PathBuf {
        self.dir.join("password")
    }

    fn disks(&self) -> Vec<PathBuf> {
        (1..=DISKS).map(|i| self.dir.join(format!("disk{i}"))).collect()
    }

    /// Reads or makes the password. Its file is made first, and marks the other files as the demonstration's.
    fn keep_password(&self) -> Result<String> {
        let path = self.password();
        match std::fs::read_to_string(&path) {
            Ok(kept) if kept.trim().len() >= 8 => return Ok(kept.trim().to_string()),
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(&path)(e)),
            _ => {}
        }
        let password = secret::random_password()?;
        let write = || -> std::io::Result<()> {
            let mut file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
            writeln!(file, "{password}")?;
            file.sync_all()
        };
        write().map_err(failed(&path))?;
        Ok(password)
    }

    /// Opens the pool (a known one, or one found on the disk files) or makes it, with the mirrored space.
    fn pool(&self, state: &State, pools: &PoolAdmin) -> Result<()> {
        let disks = self.disks();
        if !state.snapshot().pools.contains_key(NAME) {
            let import = PoolImport { disks: vec![self.dir.clone()], name: Some(NAME.into()), ..PoolImport::default() };
            match pools.import_pool(&import) {
                Err(e) if e.kind == ErrorKind::NotFound => {
                    self.make_disks(&disks)?;
                    let new = NewPool { name: NAME.into(), disks, hot_spares: Vec::new(), force: true };
                    pools.create_pool(&new)?;
                }
                other => other.map(|_| ())?,
            }
        }
        if pools.space(NAME, NAME).is_err() {
            let (name, layout) = (NAME.to_string(), "mirror2".to_string());
            let new = NewSpace { name, layout, columns: None, interleave_bytes: None, size_bytes: None, fixed: false };
            pools.create_space(NAME, &new)?;
        }
        Ok(())
    }

    /// Makes empty disk files, of the size that the file system can hold when all are full.
    fn make_disks(&self, disks: &[PathBuf]) -> Result<()> {
        let failed = failed(&self.dir);
        let room = rustix::fs::statvfs(&self.dir).map_err(|e| failed(e.into()))?;
        let size = (room.f_bavail * room.f_frsize / DISKS).clamp(DISK_BYTES_MIN, DISK_BYTES_MAX) >> 20 << 20;
        for disk in disks {
            let file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(disk);
            file.and_then(|f| f.set_len(size)).map_err(&failed)?;
        }
        Ok(())
    }

    /// Opens the volume (a known one, or one found on the space) or formats it, with a welcome file.
    fn volume(&self, state: &State, volumes: &Volumes) -> Result<()> {
        if state.snapshot().volumes.contains_key(NAME) {
            return Ok(());
        }
        let (name, space) = (NAME.to_string(), Some(NAME.to_string()));
        if volumes
            .attach_volume(&VolumeRecord { name: name.clone(), space: space.clone(), ..VolumeRecord::default() })
            .is_ok()
        {
            return Ok(());
        }
        volumes.create_volume(&NewVolume { name, space, ..NewVolume::default() })?;
        let (store, _) = volumes.store(NAME, Path::new("/"))?;
        greet(&*store).map_err(|e| AdminError::failed(format!("Welcome.txt: {e}"), "see the daemon's log"))
    }
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> AdminError + '_ {
    move |e| AdminError::failed(format!("{}: {e}", path.display()), "choose another --demo directory")
}

fn greet(store: &dyn FileStore) -> std::result::Result<(), NotDone> {
    let scope = CommitScope::begin().id();
    let path = NtPath::parse("Welcome.txt")?;
    if let Lookup::Missing { parent, base: None } = store.lookup(&path)? {
        let new = NewFile { directory: false, attributes: ATTR_ARCHIVE, security: None, eas: &[], allocation: None };
        parent.create_child(Some(scope), "Welcome.txt", &new)?.write_at(Some(scope), 0, GREETING, Wait::Yes)?;
    }
    Ok(store.commit(scope)?)
}

/// Commands for each kind of client.
pub fn how_to_connect(state: &Path, dir: &Path, address: SocketAddr, password: &str) -> String {
    let port = address.port();
    let host = match address.ip() {
        ip if ip.is_unspecified() => "127.0.0.1".to_string(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    let local = address.ip().is_loopback();
    let other = if local {
        format!("\n(from another machine: start with --listen 0.0.0.0:{port} and use this machine's address)")
    } else {
        String::new()
    };
    let (state, dir) = (state.display(), dir.display());
    format!(
        "
Arden serves \\\\{host}\\{NAME} on port {port}: mirrored on disk files in {dir},
continuously available. Kill it in the middle of a copy and start it again: the copy goes on.

  user      {NAME}
  password  {password}

smbclient:
  smbclient //{host}/{NAME} -p {port} -U {NAME}%{password}
Linux:
  mount -t cifs //{host}/{NAME} /mnt -o port={port},username={NAME},password={password},vers=3.1.1,persistenthandles,hard,nostrictsync
Windows 11 24H2 or Server 2025 (PowerShell; older ones know only port 445):
  New-SmbMapping -RemotePath \\\\{host}\\{NAME} -TcpPort {port} -UserName {NAME} -Password {password}{other}
Administration:
  arden --state {state} status

Ctrl-C stops the daemon.
"
    )
}

#[cfg(test)]
mod tests {
    use arden_admin::state::MemoryStore;
    use arden_host::NothingShared;

    use super::*;

    fn temporary() -> PathBuf {
        std::env::temp_dir().join(format!("arden-demo-{}", secret::hex(&secret::random::<8>().unwrap())))
    }

    /// One run of the daemon without its servers.
    fn run(dir: &Path, store: &Arc<MemoryStore>, work: impl FnOnce(&State, &Volumes, &str)) {
        let state = Arc::new(State::on(store.clone()).unwrap());
        let pools = Pools::start(&state, Arc::new(NothingShared)).unwrap();
        let volumes = Volumes::new(&state, &pools);
        let password = prepare(&state, &pools, &volumes, &dir.join("disks")).unwrap();
        work(&state, &volumes, &password);
        volumes.stop();
        pools.stop();
    }

    fn welcome(volumes: &Volumes) -> Vec<u8> {
        let (store, _) = volumes.store(NAME, Path::new("/")).unwrap();
        let Lookup::Found(node) = store.lookup(&NtPath::parse("Welcome.txt").unwrap()).unwrap() else {
            panic!("no greeting")
        };
        let mut text = vec![0; 100];
        let n = node.read_at(0, &mut text, Wait::Yes).unwrap();
        text.truncate(n);
        text
    }

    #[test]
    fn what_the_demo_made_is_there_again_even_when_the_state_is_lost() {
        let dir = temporary();
        let (mut first, store) = (String::new(), Arc::default());
        run(&dir, &store, |state, volumes, password| {
            first = password.to_string();
            let s = state.snapshot();
            assert_eq!(s.user(NAME).unwrap().nt_hash, secret::hex(&secret::nt_hash(password)));
            assert!(s.share(NAME).unwrap().continuously_available);
            assert_eq!(welcome(volumes), GREETING);
        });
        run(&dir, &store, |state, volumes, password| {
            assert_eq!((password, state.snapshot().shares.len()), (first.as_str(), 1));
            assert_eq!(welcome(volumes), GREETING);
        });
        run(&dir, &Arc::default(), |_, volumes, password| {
            assert_eq!((welcome(volumes), password), (GREETING.to_vec(), first.as_str()))
        });
        let text = how_to_connect(&dir, &dir, "127.0.0.1:14450".parse().unwrap(), &first);
        assert!(text.contains(&format!("smbclient //127.0.0.1/demo -p 14450 -U demo%{first}")));
        assert!(text.contains("--listen 0.0.0.0:14450"));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_directory_with_other_things_is_left_alone() {
        let dir = temporary();
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("disk1"), "somebody's").unwrap();
        assert!(Keeper::make(&dir).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn only_a_person_with_nothing_to_serve_gets_it_unasked() {
        let dir = temporary();
        let state = State::in_memory().unwrap();
        assert_eq!(place(&state, &dir, None, true), Some(dir.join(NAME)));
        assert_eq!(place(&state, &dir, None, false), None);
        assert_eq!(place(&state, &dir, Some("/x".into()), false), Some("/x".into()));
        let user = NewUser {
            name: "alice".into(),
            password: "secret-secret".into(),
            full_name: String::new(),
            groups: Vec::new(),
            disabled: false,
        };
        state.change(|s| s.add_user(&user).map(|_| ())).unwrap();
        assert_eq!(place(&state, &dir, None, true), None);
    }
}
