//! The systems of experiments: named shares, or servers that are started for the experiment and removed afterwards.

use std::path::{Path, PathBuf};

use arden_measure::{
    Result,
    base::process,
    fail,
    load::smb::SmbFile,
    source::share::{self, Wire},
};

use crate::local::servers::{self, Running};

/// A server with its variants.
pub struct System {
    pub name: String,
    pub variants: Vec<Variant>,
    /// The id of its process, when it runs on this machine.
    pub server: Option<u32>,
    /// Servers that are stopped with the system.
    pub owns: Vec<Running>,
}

/// A share, and the way its files are written.
#[derive(Debug, Clone)]
pub struct Variant {
    pub name: String,
    /// The directory of the test; its path may be empty.
    pub file: SmbFile,
    /// The client marks every write as write-through.
    pub mark: bool,
}

/// The systems of the command line.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    pub target: Option<String>,
    pub safe: Option<String>,
    pub against: Option<String>,
    pub against_safe: Option<String>,
    /// The program to start when no target is given.
    pub arden: Option<PathBuf>,
    /// The storage of its shares.
    pub store: Store,
    pub samba: Option<PathBuf>,
    /// Only Samba's plain share is measured.
    pub samba_plain_only: bool,
    /// Divisor of the published amounts of data.
    pub scale: u64,
}

/// The storage of the shares of an Arden that is started here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Store {
    /// A volume on a mirror of two disk files
    #[default]
    Volume,
    /// A directory
    Dir,
}

/// Size in bytes of each of two disk files: room for two copies of E2's file, because deleted space is freed with a
/// delay.
const DISK_BYTES: u64 = 24 << 30;
const DISK_BYTES_MIN: u64 = 2 << 30;

/// Bytes of disk that an experiment may use: a volume fills its disk files in time, and Samba has its own copy.
pub fn room_bytes(scale: u64) -> u64 {
    (2 * DISK_BYTES + (10 << 30)) / scale.max(1)
}

/// The variants that an experiment needs, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kinds {
    /// A plain share.
    Plain,
    /// A plain and a continuously available share.
    PlainCa,
    /// Cached, write-through marked by the client, and write-through forced by the share.
    Through,
}

fn variant(name: &str, file: SmbFile, mark: bool) -> Variant {
    Variant { name: name.to_string(), file, mark }
}

fn share_of(server: &Running, share: &str, wire: &Wire) -> SmbFile {
    let mut target = server.target.clone();
    target.share = share.to_string();
    SmbFile { target, path: String::new(), protection: wire.protection, channels: wire.channels }
}

/// The variants on a plain and a safe share.
fn variants(kinds: Kinds, plain: SmbFile, safe: Option<(SmbFile, &str)>) -> Vec<Variant> {
    match (kinds, safe) {
        (Kinds::Plain, _) => vec![variant("plain", plain, false)],
        (Kinds::PlainCa, Some((safe, name))) => vec![variant("plain", plain, false), variant(name, safe, false)],
        // Without a safe share the client gives the same guarantee: it acknowledges no write early.
        (Kinds::PlainCa, None) => {
            vec![variant("plain", plain.clone(), false), variant("write-through by the client", plain, true)]
        }
        (Kinds::Through, safe) => {
            let mut all = vec![variant("cached", plain.clone(), false), variant("marked by the client", plain, true)];
            all.extend(safe.map(|(safe, _)| variant("forced by the share", safe, false)));
            all
        }
    }
}

fn named(name: &str, url: &str, safe: Option<&str>, kinds: Kinds, wire: &Wire) -> Result<System> {
    let file = |url: &str| match url.strip_prefix("smb://") {
        Some(rest) => share::share(rest, wire),
        None => fail!("{url}: experiments run on smb:// shares"),
    };
    let plain = file(url)?;
    let local = plain.target.address.ip().is_loopback();
    let server = if local { process::listener(plain.target.address.port()) } else { None };
    let safe = safe.map(file).transpose()?.map(|s| (s, "the safe share"));
    Ok(System { name: name.to_string(), variants: variants(kinds, plain, safe), server, owns: Vec::new() })
}

/// Starts Arden under `dir` with a plain and a safe share.
fn own_arden(program: &Path, dir: &Path, wanted: &Wanted, kinds: Kinds, wire: &Wire) -> Result<System> {
    let safe = if kinds == Kinds::Through { "--write-through" } else { "--ca" };
    let mut shares = vec![("plain", None)];
    if kinds != Kinds::Plain {
        shares.push(("safe", Some(safe)));
    }
    let work = dir.join("arden");
    let running = match wanted.store {
        Store::Volume => {
            let disk_bytes = (DISK_BYTES / wanted.scale.max(1)).max(DISK_BYTES_MIN);
            servers::arden_on_volume(program, &work, disk_bytes, &shares)?
        }
        Store::Dir => {
            let shares: Vec<_> = shares.iter().map(|(name, option)| (*name, *name, *option)).collect();
            servers::arden_with(program, &work, &shares)?
        }
    };
    let safe = (share_of(&running, "safe", wire), if kinds == Kinds::Through { "write-through" } else { "CA" });
    let variants = variants(kinds, share_of(&running, "plain", wire), Some(safe));
    Ok(System { name: "Arden".to_string(), variants, server: Some(running.pid), owns: vec![running] })
}

/// Starts Samba twice. Both keep NT ACLs and streams as Arden does; the second syncs every write.
fn own_samba(script: &Path, dir: &Path, kinds: Kinds, wire: &Wire) -> Result<System> {
    let plain = servers::samba(script, "nt", &dir.join("samba-nt"))?;
    let mut owns = Vec::new();
    let mut safe = None;
    if kinds != Kinds::Plain {
        let durable = servers::samba(script, "durable", &dir.join("samba-durable"))?;
        safe = Some((share_of(&durable, "test", wire), "sync always"));
        owns.push(durable);
    }
    let variants = variants(kinds, share_of(&plain, "test", wire), safe);
    let server = Some(plain.pid);
    owns.push(plain);
    Ok(System { name: "Samba".to_string(), variants, server, owns })
}

/// Opens the systems of an experiment: the named ones, else an Arden that is started here, and Samba when its script is
/// given.
///
/// # Errors
/// No server is named or can be started, or a server does not start.
pub fn open(wanted: &Wanted, kinds: Kinds, dir: &Path, wire: &Wire) -> Result<Vec<System>> {
    let mut all = Vec::new();
    match (&wanted.target, &wanted.arden) {
        (Some(url), _) => all.push(named("the target", url, wanted.safe.as_deref(), kinds, wire)?),
        (None, Some(program)) => all.push(own_arden(program, dir, wanted, kinds, wire)?),
        (None, None) => fail!("no server: --target smb://user@host/share, or --arden PROGRAM to start one"),
    }
    if let Some(url) = &wanted.against {
        all.push(named("the other", url, wanted.against_safe.as_deref(), kinds, wire)?);
    }
    if let Some(script) = &wanted.samba {
        all.push(own_samba(script, dir, if wanted.samba_plain_only { Kinds::Plain } else { kinds }, wire)?);
    }
    Ok(all)
}
