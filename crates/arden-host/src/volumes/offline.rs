//! Reaching into a volume while no daemon has it: on a file or block device by its path, or by the name that the state
//! directory knows, on a space too. Whoever holds the state's lock keeps others away.

use std::{
    io::{Read, Write},
    path::Path,
    sync::Arc,
};

use arden_admin::{AdminError, ErrorKind, State, error::Result};
use arden_store::{
    name::NtPath,
    store::{FileStore, Lookup, NewFile, NodeRef, Wait},
};
use arden_volume::{Durability, FileDevice, Volume, VolumeOptions, VolumeStore};
use arden_wire::{NtStatus, access::ATTR_ARCHIVE};

use super::{Volumes, no_file, refusal};
use crate::{commands::Out, pools::Pools};

const COPY_BYTES: usize = 1 << 20;

/// A volume for the time of one command.
struct Opened {
    name: String,
    store: Arc<VolumeStore>,
    /// None when it was opened by its path.
    known: Option<(Arc<Volumes>, Arc<Pools>)>,
}

impl Opened {
    fn new(out: &Out, volume: &Path) -> Result<Opened> {
        let name = volume.display().to_string();
        let is_name = volume.components().count() == 1 && !volume.exists() && out.state.join("state.redb").exists();
        if !is_name {
            let device = FileDevice::open(volume, true).map_err(|e| no_file(volume, e))?;
            let options = VolumeOptions { background: false, ..VolumeOptions::default() };
            let opened = Volume::open(Arc::new(device), options).map_err(|e| refusal(&name, e))?;
            return Ok(Opened { name, store: VolumeStore::new(opened, Durability::Plain), known: None });
        }
        let state = Arc::new(State::open(&out.state)?);
        let pools = Pools::start(&state)?;
        let volumes = Volumes::new(&state, &pools);
        match volumes.volume(&name) {
            Ok((opened, _)) => {
                let store = VolumeStore::new(opened, Durability::Plain);
                Ok(Opened { name, store, known: Some((volumes, pools)) })
            }
            Err(e) => {
                pools.stop();
                Err(e)
            }
        }
    }

    fn find(&self, path: &str) -> Result<NodeRef> {
        let parsed = NtPath::parse(path.trim_start_matches('/')).map_err(status(path))?;
        match self.store.lookup(&parsed).map_err(status(path))? {
            Lookup::Found(node) => Ok(node),
            _ => Err(AdminError::new(ErrorKind::NotFound, format!("there is no {path:?}"), "")),
        }
    }

    /// What was done is on the device afterwards.
    fn close(&self) -> Result<()> {
        match &self.known {
            None => self.store.volume_handle().close().map_err(|e| refusal(&self.name, e)),
            Some((volumes, pools)) => {
                volumes.stop();
                pools.stop();
                Ok(())
            }
        }
    }
}

fn status(path: &str) -> impl Fn(NtStatus) -> AdminError + '_ {
    move |e| AdminError::failed(format!("{path}: {e}"), "")
}

/// Runs `work` on the volume; it is closed also when that fails.
fn with<T>(out: &Out, volume: &Path, work: impl FnOnce(&Opened) -> Result<T>) -> Result<T> {
    let opened = Opened::new(out, volume)?;
    let done = work(&opened);
    let closed = opened.close();
    let done = done?;
    closed.map(|()| done)
}

pub fn list(out: &Out, volume: &Path, path: &str) -> Result<()> {
    let entries = with(out, volume, |v| {
        let mut cursor = v.find(path)?.list().map_err(status(path))?;
        let mut entries = Vec::new();
        while let Some(e) = cursor.peek(&|_| true).map_err(status(path))? {
            entries.push(serde_json::json!({
                "name": e.name, "directory": e.stat.directory, "size_bytes": e.stat.end_of_file,
            }));
            cursor.advance();
        }
        Ok(entries)
    })?;
    out.show(&entries, |entries| {
        let mut text = String::new();
        for e in entries {
            let mark = if e["directory"] == true { "/" } else { "" };
            text += &format!("{:>14}  {}{mark}\n", e["size_bytes"], e["name"].as_str().unwrap_or(""));
        }
        text
    });
    Ok(())
}

pub fn get(out: &Out, volume: &Path, path: &str, to: &Path) -> Result<()> {
    with(out, volume, |v| {
        let node = v.find(path)?;
        let failed = |e: std::io::Error| AdminError::failed(format!("{}: {e}", to.display()), "");
        let mut target = std::fs::File::create(to).map_err(failed)?;
        let (mut buf, mut at) = (vec![0; COPY_BYTES], 0);
        loop {
            let n = node.read_at(at, &mut buf, Wait::Yes).map_err(status(path))?;
            if n == 0 {
                return target.sync_all().map_err(failed);
            }
            target.write_all(&buf[..n]).map_err(failed)?;
            at += n as u64;
        }
    })
}

pub fn put(out: &Out, volume: &Path, from: &Path, path: &str) -> Result<()> {
    let failed = |e: std::io::Error| AdminError::failed(format!("{}: {e}", from.display()), "");
    let mut source = std::fs::File::open(from).map_err(failed)?;
    with(out, volume, |v| {
        let node = target(v, path)?;
        let (mut buf, mut at) = (vec![0; COPY_BYTES], 0);
        loop {
            let n = source.read(&mut buf).map_err(failed)?;
            if n == 0 {
                return Ok(());
            }
            node.write_at(at, &buf[..n], Wait::Yes).map_err(status(path))?;
            at += n as u64;
        }
    })
}

/// The file to be written, empty.
fn target(v: &Opened, path: &str) -> Result<NodeRef> {
    let parsed = NtPath::parse(path.trim_start_matches('/')).map_err(status(path))?;
    match v.store.lookup(&parsed).map_err(status(path))? {
        Lookup::Found(node) => {
            node.set_end_of_file(0).map_err(status(path))?;
            Ok(node)
        }
        Lookup::Missing { parent, base: None } => {
            let name = parsed.components.last().cloned().unwrap_or_default();
            let new =
                NewFile { directory: false, attributes: ATTR_ARCHIVE, security: None, eas: &[], allocation: None };
            parent.create_child(&name, &new).map_err(status(path))
        }
        _ => Err(AdminError::new(ErrorKind::NotFound, format!("{path:?} cannot be made"), "")),
    }
}
