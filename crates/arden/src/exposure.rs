//! Directories that are shared with `--force` only: those that hold, or are part of, Arden's own files or the system's.
//! Locations are compared: symbolic links are resolved, and a bind mount counts as the directory that it shows.

use std::{
    ffi::OsString,
    os::unix::{ffi::OsStringExt, fs::MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use arden_admin::{
    AdminError, ErrorKind, State,
    error::Result,
    model::{Share, ShareKind},
    names::key,
    state::Snapshot,
};
use arden_host::Sharing;
use arden_store::dir::SPILL_DIRECTORY;

/// Directories that belong to the system with everything below them.
const SYSTEM_TREES: &[(&str, &str)] = &[
    ("/boot", "what the system starts from"),
    ("/dev", "the devices"),
    ("/etc", "the system's configuration"),
    ("/proc", "the kernel's view of all processes"),
    ("/root", "the administrator's home"),
    ("/run", "the sockets of running services"),
    ("/sys", "the kernel's settings"),
    ("/usr", "the system's programs"),
];
/// Directories that belong to the system, but whose subdirectories may be shared.
const SYSTEM_TOPS: &[(&str, &str)] = &[
    ("/", "the whole system"),
    ("/home", "the homes of all users"),
    ("/var", "the system's data"),
    ("/var/lib", "the data of all services"),
    ("/var/log", "the system's logs"),
    ("/var/spool", "mail and jobs of all users"),
];
/// Directories for data below directories of the system.
const DATA_TREES: &[&str] = &["/dev/shm", "/run/media"];

/// A directory that is shared with `--force` only.
#[derive(Debug, Clone)]
struct Guarded {
    path: PathBuf,
    what: String,
    /// Everything below the directory is guarded too.
    tree: bool,
}

/// A directory as its file system and its path in it, which are the same for all mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Location {
    device: String,
    path: PathBuf,
}

/// A line of /proc/self/mountinfo, proc_pid_mountinfo(5).
#[derive(Debug, Clone)]
struct Mount {
    device: String,
    /// The directory of the file system that is mounted.
    root: PathBuf,
    point: PathBuf,
}

fn mounts() -> Vec<Mount> {
    parse_mounts(&std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

fn parse_mounts(text: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let mut fields = line.split(' ').skip(2);
        let (device, root, point) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Mount { device: device.to_string(), root: unescape(root), point: unescape(point) })
    };
    text.lines().filter_map(mount).collect()
}

/// Decodes octal escapes such as `\\040` for a space.
fn unescape(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let octal = text.get(i + 1..i + 4).filter(|_| bytes[i] == b'\\');
        match octal.and_then(|o| u8::from_str_radix(o, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                i += 4;
            }
            None => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// The location of a canonical path.
fn location(path: &Path, mounts: &[Mount]) -> Option<Location> {
    // The last of several mounts at one point covers the others.
    let over = mounts.iter().filter(|m| path.starts_with(&m.point));
    let mount = over.max_by_key(|m| m.point.components().count())?;
    let rest = path.strip_prefix(&mount.point).ok()?;
    let path = if rest.as_os_str().is_empty() { mount.root.clone() } else { mount.root.join(rest) };
    Some(Location { device: mount.device.clone(), path })
}

fn same_file(a: &Path, b: &Path) -> bool {
    match (std::fs::metadata(a), std::fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// Whether `inner` is the directory `outer` or below it. Both paths are canonical.
fn is_within(inner: &Path, outer: &Path, mounts: &[Mount]) -> bool {
    if inner.starts_with(outer) {
        return true;
    }
    if let (Some(inner), Some(outer)) = (location(inner, mounts), location(outer, mounts)) {
        if inner.device == outer.device && inner.path.starts_with(&outer.path) {
            return true;
        }
    }
    // Without /proc the directories themselves are compared.
    inner.ancestors().any(|a| same_file(a, outer))
}

fn canonical(path: &Path) -> PathBuf {
    if let Ok(path) = std::fs::canonicalize(path) {
        return path;
    }
    // A path that does not exist yet is resolved by its parent.
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => canonical(parent).join(name),
        _ => path.to_path_buf(),
    }
}

fn guarded(state_dir: &Path, snapshot: &Snapshot, share: &Share) -> Vec<Guarded> {
    let mut all = vec![Guarded {
        path: canonical(state_dir),
        what: "Arden's own state, with what logs users on".to_string(),
        tree: true,
    }];
    for pool in snapshot.pools.values() {
        let what = format!("a disk of the pool {}", pool.name);
        all.extend(pool.devices.iter().map(|d| Guarded { path: canonical(d), what: what.clone(), tree: false }));
    }
    for volume in snapshot.volumes.values() {
        let what = format!("the file of the volume {}", volume.name);
        all.extend(volume.file.iter().map(|f| Guarded { path: canonical(f), what: what.clone(), tree: false }));
    }
    for other in snapshot.shares.values().filter(|s| s.kind == ShareKind::Dir && key(&s.name) != key(&share.name)) {
        let spill = canonical(&other.path).join(SPILL_DIRECTORY);
        if spill.is_dir() {
            all.push(Guarded {
                path: spill,
                what: format!("the hidden streams of the share {}", other.name),
                tree: true,
            });
        }
    }
    let system =
        |(path, what): &(&str, &str), tree| Guarded { path: canonical(path.as_ref()), what: (*what).into(), tree };
    all.extend(SYSTEM_TREES.iter().map(|t| system(t, true)));
    all.extend(SYSTEM_TOPS.iter().map(|t| system(t, false)));
    all
}

/// The reasons against sharing the directory `path`, each the end of a sentence that begins with the path.
fn reasons(path: &Path, guarded: &[Guarded], mounts: &[Mount]) -> Vec<String> {
    let path = canonical(path);
    let in_data_tree = DATA_TREES.iter().any(|d| path != Path::new(d) && path.starts_with(d));
    let mut reasons = Vec::new();
    for g in guarded {
        let named = g.path.display();
        let system = SYSTEM_TREES.iter().any(|(p, _)| g.path == Path::new(p));
        let outside = is_within(&g.path, &path, mounts);
        let inside = is_within(&path, &g.path, mounts) && (g.tree || outside) && !(system && in_data_tree);
        match (outside, inside) {
            (true, true) => reasons.push(format!("is {named}, {}", g.what)),
            (true, false) => reasons.push(format!("contains {named}, {}", g.what)),
            (false, true) => reasons.push(format!("lies in {named}, {}", g.what)),
            (false, false) => {}
        }
    }
    // Three reasons are enough for a directory that contains everything.
    reasons.truncate(3);
    reasons
}

/// The reasons against this share: files of the system or of Arden that its users could reach.
pub fn of_share(state_dir: &Path, snapshot: &Snapshot, share: &Share) -> Vec<String> {
    match share.kind {
        ShareKind::Volume => Vec::new(),
        ShareKind::Dir => reasons(&share.path, &guarded(state_dir, snapshot, share), &mounts()),
    }
}

/// Refuses a share of guarded directories.
///
/// # Errors
/// Conflict, when the directory of the share should not be shared.
pub fn check_share(state_dir: &Path, snapshot: &Snapshot, share: &Share) -> Result<()> {
    let reasons = of_share(state_dir, snapshot, share);
    if reasons.is_empty() {
        return Ok(());
    }
    Err(AdminError::new(
        ErrorKind::Conflict,
        format!("{} {}", share.path.display(), reasons.join("; it ")),
        "the users of the share could get at that: share a directory of its own, or add --force if that is meant",
    ))
}

/// Refuses a device below a share.
///
/// # Errors
/// Conflict, when a file that is to be a disk or a volume lies in a directory that is shared.
fn check_device(snapshot: &Snapshot, device: &Path) -> Result<()> {
    let (device_path, mounts) = (canonical(device), mounts());
    let mut shares = snapshot.shares.values().filter(|s| s.kind == ShareKind::Dir);
    let Some(share) = shares.find(|s| is_within(&device_path, &canonical(&s.path), &mounts)) else { return Ok(()) };
    Err(AdminError::new(
        ErrorKind::Conflict,
        format!("{} lies in {}, which is shared as {}", device.display(), share.path.display(), share.name),
        "the users of the share could read and overwrite it: put it elsewhere, or add --force if that is meant",
    ))
}

/// The shares of the state as the storage manager sees them.
pub struct Shares(pub Arc<State>);

impl Sharing for Shares {
    fn shares_on_volume(&self, name: &str) -> Vec<String> {
        let snapshot = self.0.snapshot();
        let on_it = |s: &&Share| s.volume.as_ref().is_some_and(|v| key(v) == key(name));
        snapshot.shares.values().filter(on_it).map(|s| s.name.clone()).collect()
    }

    fn check_device(&self, device: &Path) -> Result<()> {
        check_device(&self.0.snapshot(), device)
    }
}

/// Logs warnings about existing shares and devices when the daemon starts.
pub fn warn(state_dir: &Path, snapshot: &Snapshot) {
    for share in snapshot.shares.values() {
        for reason in of_share(state_dir, snapshot, share) {
            tracing::warn!(share = share.name, path = %share.path.display(), "the share's directory {reason}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let dir = std::env::temp_dir().join(format!("arden-exposure-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            Dir(std::fs::canonicalize(dir).unwrap())
        }
        fn sub(&self, name: &str) -> PathBuf {
            std::fs::create_dir_all(self.0.join(name)).unwrap();
            self.0.join(name)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn system(state: &Path) -> Vec<Guarded> {
        let system = |(path, what): &(&str, &str), tree| Guarded { path: path.into(), what: (*what).into(), tree };
        let mut all: Vec<_> = SYSTEM_TREES.iter().map(|t| system(t, true)).collect();
        all.extend(SYSTEM_TOPS.iter().map(|t| system(t, false)));
        all.push(Guarded { path: state.to_path_buf(), what: "state".into(), tree: true });
        all
    }

    #[test]
    fn the_system_and_the_state_are_guarded_and_data_is_not() {
        let dir = Dir::new("system");
        let state = dir.sub("srv/state");
        let guarded = system(&state);
        let first = |path: &Path| reasons(path, &guarded, &[]).into_iter().next().unwrap_or_default();
        for bad in
            ["/", "/etc", "/etc/ssl", "/proc/self", "/sys", "/dev", "/dev/shm", "/usr/bin", "/var", "/home", "/root"]
        {
            assert!(!first(bad.as_ref()).is_empty(), "{bad}");
        }
        for good in ["/srv", "/home/alice", "/var/www", "/opt", "/mnt/data", "/dev/shm/x", "/run/media/alice/disk"] {
            assert_eq!(first(good.as_ref()), "", "{good}");
        }
        assert!(first(&state).starts_with("is "));
        assert!(first(&dir.sub("srv")).starts_with("contains "));
        assert!(first(&dir.sub("srv/state/demo")).starts_with("lies in "));
        assert_eq!(first(&dir.sub("srv/state2")), "");
        std::os::unix::fs::symlink(&state, dir.0.join("link")).unwrap();
        assert!(first(&dir.0.join("link")).starts_with("is "));
        std::os::unix::fs::symlink("/etc", dir.0.join("etc")).unwrap();
        assert!(first(&dir.0.join("etc/ssl")).starts_with("lies in "));
    }

    #[test]
    fn a_bind_mount_is_what_it_shows() {
        let mounts = parse_mounts(
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
             30 22 8:1 /etc /mnt/conf rw - ext4 /dev/sda1 rw\n\
             31 22 8:1 / /mnt/all rw - ext4 /dev/sda1 rw\n\
             32 22 8:2 / /srv/a\\040b rw - ext4 /dev/sdb1 rw\n\
             33 22 8:2 /state /var/state rw - ext4 /dev/sdb1 rw\n",
        );
        let within = |a: &str, b: &str| is_within(a.as_ref(), b.as_ref(), &mounts);
        assert!(within("/mnt/conf/ssl", "/etc") && within("/etc/ssl", "/mnt/conf"));
        assert!(within("/mnt/all/etc/x", "/etc") && within("/etc/x", "/mnt/all"));
        assert!(within("/var/state/x", "/srv/a b") && within("/srv/a b/state/x", "/var/state"));
        assert!(!within("/srv/a b/other", "/var/state") && !within("/srv/a b", "/var/state"));
        assert!(!within("/mnt/confess", "/mnt/conf") && !within("/opt", "/etc"));
    }

    #[test]
    fn a_disk_in_a_shared_directory_is_refused() {
        let dir = Dir::new("disk");
        let disk = dir.sub("share/deep").join("disk1.img");
        let snapshot = |path: PathBuf| {
            let state = State::in_memory().unwrap();
            let mut snapshot = Snapshot::clone(&state.snapshot());
            let share = serde_json::json!({"name": "docs", "path": path});
            snapshot.shares.insert("docs".into(), serde_json::from_value(share).unwrap());
            snapshot
        };
        let error = check_device(&snapshot(dir.sub("share")), &disk).unwrap_err();
        assert!(error.error.contains("shared as docs"), "{}", error.error);
        assert!(check_device(&snapshot(dir.sub("other")), &disk).is_ok());
        std::os::unix::fs::symlink(dir.sub("share"), dir.0.join("link")).unwrap();
        assert!(check_device(&snapshot(dir.0.join("link")), &disk).is_err());
    }
}
