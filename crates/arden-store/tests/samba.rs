//! A directory goes from Samba to Arden and back without losing attributes, creation times, descriptors, streams or
//! EAs. Needs root, smbd and smbclient; says so and passes where they are missing.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use arden_store::{
    dir::{DirOptions, DirStore},
    name::NtPath,
    store::*,
};
use arden_wire::{
    access::*,
    dtyp::{Ace, Acl, SecurityDescriptor, Sid, well_known},
};

struct Samba {
    base: PathBuf,
    /// An address of its own on the loopback network: smbcacls takes no port.
    address: String,
    smbd: Child,
}

impl Samba {
    fn start() -> Option<Samba> {
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
        if !is_root || !Path::new("/usr/sbin/smbd").exists() || !Path::new("/usr/bin/smbclient").exists() {
            eprintln!("not run: needs root, smbd and smbclient");
            return None;
        }
        let base = std::env::temp_dir().join(format!("arden-samba-{}", std::process::id()));
        let pid = std::process::id();
        let address = format!("127.{}.{}.{}", 100 + (pid >> 16) % 100, pid >> 8 & 0xff, (pid & 0xff).max(1));
        drop(TcpListener::bind((address.as_str(), 445)).expect("port 445 of a loopback address"));
        for d in ["share", "private", "lock", "state", "cache", "pid", "ncalrpc", "log"] {
            std::fs::create_dir_all(base.join(d)).unwrap();
        }
        let b = base.display();
        let conf = format!(
            "[global]\n server role = standalone server\n smb ports = 445\n interfaces = {address}/8\n \
             bind interfaces only = yes\n private dir = {b}/private\n lock directory = {b}/lock\n \
             state directory = {b}/state\n cache directory = {b}/cache\n pid directory = {b}/pid\n \
             ncalrpc dir = {b}/ncalrpc\n log file = {b}/log/log\n disable spoolss = yes\n load printers = no\n \
             passdb backend = tdbsam\n ea support = yes\n[test]\n path = {b}/share\n read only = no\n \
             vfs objects = acl_xattr streams_xattr\n"
        );
        let conf_path = base.join("smb.conf");
        std::fs::write(&conf_path, conf).unwrap();
        let mut add = Command::new("smbpasswd")
            .args(["-c", conf_path.to_str().unwrap(), "-a", "-s", "root"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut add.stdin.take().unwrap(), b"pw\npw\n").unwrap();
        assert!(add.wait().unwrap().success());
        // It makes a process group of its own, and ends all of it when it stops.
        let smbd = Command::new("/usr/sbin/smbd")
            .args(["-F", "-s", conf_path.to_str().unwrap()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let samba = Samba { base, address, smbd };
        for _ in 0..100 {
            if samba.client("quit").is_some() {
                return Some(samba);
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        panic!("smbd does not answer");
    }

    fn share(&self) -> PathBuf {
        self.base.join("share")
    }

    fn client(&self, commands: &str) -> Option<String> {
        let out = Command::new("smbclient")
            .args([&format!("//{}/test", self.address), "-U", "root%pw", "-c", commands])
            .current_dir(&self.base)
            .output()
            .unwrap();
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
    }

    fn run(&self, commands: &str) -> String {
        self.client(commands).unwrap_or_else(|| panic!("smbclient: {commands}"))
    }

    /// The descriptor as numbers.
    fn acl(&self, file: &str) -> String {
        let out = Command::new("smbcacls")
            .args(["--numeric", &format!("//{}/test", self.address), file, "-U", "root%pw"])
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }
}

impl Drop for Samba {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.smbd.id().to_string()).status();
        let _ = self.smbd.wait();
        let _ = std::fs::remove_dir_all(&self.base);
    }
}

fn get(store: &DirStore, p: &str) -> NodeRef {
    match store.lookup(&NtPath::parse(p).unwrap()).unwrap() {
        Lookup::Found(n) => n,
        _ => panic!("{p} is missing"),
    }
}

fn text(node: &NodeRef) -> String {
    let mut buf = [0; 100];
    let n = node.read_at(0, &mut buf, Wait::Yes).unwrap();
    String::from_utf8_lossy(&buf[..n]).into_owned()
}

#[test]
fn there_and_back() {
    let Some(samba) = Samba::start() else { return };
    from_samba(&samba);
    to_samba(&samba);
}

fn from_samba(samba: &Samba) {
    std::fs::write(samba.base.join("local.txt"), "hello").unwrap();
    samba.run(
        "put local.txt \"Hello World.txt\"; setmode \"Hello World.txt\" +rhs; mkdir Dir; cd Dir; put local.txt inner.txt; \
         put local.txt inner.txt:side",
    );
    samba.run("utimes \"Dir\\inner.txt\" 2001:02:03-04:05:06 -1 2010:11:12-13:14:15 -1");
    let acl = Command::new("smbcacls")
        .args([&format!("//{}/test", samba.address), "Dir\\inner.txt", "-U", "root%pw"])
        .args(["--add", "ACL:S-1-5-21-1-2-3-4444:ALLOWED/0x0/0x001200a9"])
        .output()
        .unwrap();
    assert!(acl.status.success(), "{}", String::from_utf8_lossy(&acl.stderr));
    samba.run("cd Dir; setea inner.txt colour blue");

    let store = DirStore::open(&samba.share(), DirOptions::default()).unwrap();
    let hello = get(&store, "HELLO world.txt");
    assert_eq!(hello.stat().unwrap().attributes, ATTR_ARCHIVE | ATTR_READONLY | ATTR_HIDDEN | ATTR_SYSTEM);
    let inner = get(&store, "dir\\INNER.txt");
    let stat = inner.stat().unwrap();
    let utc = |t: arden_wire::FileTime| t.to_unix().0;
    assert_eq!(utc(stat.creation), 981_173_106);
    assert_eq!(utc(stat.last_write), 1_289_567_655);
    assert_eq!(text(&inner), "hello");
    assert_eq!(text(&get(&store, "dir\\inner.txt:SIDE")), "hello");
    assert_eq!(inner.eas().unwrap(), [Ea { name: "colour".into(), flags: 0, value: b"blue".to_vec() }]);
    let sd = inner.security().unwrap();
    let added = Sid::new(5, &[21, 1, 2, 3, 4444]);
    let shown = samba.acl("Dir\\inner.txt");
    let ace = sd.dacl.as_ref().unwrap().aces.iter().find(|a| a.sid == added);
    let ace = ace.unwrap_or_else(|| panic!("the entry that was added: {} and {shown}", sd.to_sddl()));
    assert_eq!((ace.mask, ace.flags), (0x1200a9, 0));
    for ace in &sd.dacl.as_ref().unwrap().aces {
        let line = format!("ACL:{}:{}/0x{:x}/0x{:08x}", ace.sid, ace.kind, ace.flags, ace.mask);
        assert!(shown.contains(&line), "{line} in {shown}");
    }
    assert!(get(&store, "dir").security().unwrap().owner.is_some());
}

fn to_samba(samba: &Samba) {
    let store = DirStore::open(&samba.share(), DirOptions::default()).unwrap();
    let owner = Sid::new(5, &[21, 7, 8, 9, 1234]);
    let sd = SecurityDescriptor::with_dacl(
        &owner,
        &well_known::BUILTIN_USERS,
        Acl::new(vec![Ace::allow(&owner, FILE_ALL_ACCESS, 0), Ace::allow(&well_known::EVERYONE, FILE_GENERIC_READ, 0)]),
    );
    let new = NewFile {
        directory: false,
        attributes: ATTR_ARCHIVE | ATTR_HIDDEN,
        security: Some(&sd),
        eas: &[Ea { name: "shape".into(), flags: 0, value: b"round".to_vec() }],
        allocation: None,
    };
    let f = store.root().create_child(None, "from arden", &new).unwrap();
    f.write_at(None, 0, b"data of arden", Wait::Yes).unwrap();
    f.create_stream(None, "side").unwrap().write_at(None, 0, b"stream of arden", Wait::Yes).unwrap();
    let creation = arden_wire::FileTime::from_unix(981_173_106, 0);
    f.set_basic(None, &BasicUpdate { creation: Some(creation), ..Default::default() }).unwrap();

    let info = samba.run("allinfo \"from arden\"");
    assert!(info.contains("attributes: HA (22)"), "{info}");
    assert!(info.contains("create_time:    Sat Feb  3 ") && info.contains("2001"), "{info}");
    assert!(info.contains("stream: [:side:$DATA], 15 bytes"), "{info}");
    let eas = samba.run("geteas \"from arden\"");
    assert!(eas.to_lowercase().contains("shape"), "{eas}");
    samba.run("get \"from arden:side\" back");
    assert_eq!(std::fs::read_to_string(samba.base.join("back")).unwrap(), "stream of arden");
    let shown = samba.acl("from arden");
    assert!(shown.contains(&format!("OWNER:{owner}")), "{shown}");
    assert!(shown.contains(&format!("ACL:{owner}:0/0x0/0x001f01ff")), "{shown}");
    assert!(shown.contains("ACL:S-1-1-0:0/0x0/0x00120089"), "{shown}");
}
