//! A file or a block device as a source.

use std::{
    fs,
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

use super::{FILE_BYTES, Need, Prepared, Source, contents, existing, own_name};
use crate::{
    Context, Result,
    base::units::size,
    fail,
    load::{BlockTarget, Live, Target, fill},
};

/// A source on a file, on a file made in a directory, or on a block device.
pub struct Disk {
    path: PathBuf,
    created: bool,
    /// The descriptor of the first client, which holds the lock against other processes. Further clients share it.
    locked: Mutex<Option<Arc<Descriptor>>>,
}

fn device(rt: &Rt, path: &Path, writes: bool) -> Result<Rc<dyn BlockDevice>> {
    Ok(Rc::new(FileDevice::open(rt, path, writes).context(path.display())?))
}

impl Disk {
    /// A source on `path`: a file, which need not exist; a directory, in which a new file is made; or a block device.
    pub fn new(path: impl Into<PathBuf>) -> Disk {
        Disk { path: path.into(), created: false, locked: Mutex::default() }
    }

    fn create(&mut self, need: &Need, live: &Live) -> Result<Prepared> {
        let file_bytes = need.file_bytes.unwrap_or(FILE_BYTES) / BLOCK_BYTES * BLOCK_BYTES;
        let what = self.path.display();
        let file = fs::OpenOptions::new().write(true).create_new(true).open(&self.path).context(what)?;
        self.created = true;
        let room = rustix::fs::fstatvfs(&file).map_or(u64::MAX, |s| s.f_bavail * s.f_frsize);
        if room < file_bytes {
            fail!("{}: {} are wanted, {} are free", self.path.display(), size(file_bytes), size(room));
        }
        file.set_len(file_bytes).context(self.path.display())?;
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
        let device = opened.context(self.path.display())?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_not_written_to() {
        let dir = std::env::temp_dir().join(format!("arden-lab-source-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("precious");
        fs::write(&path, vec![7; 2 << 20]).unwrap();
        let prepare = |need: Need| Disk::new(&path).prepare(&need, &Live::default());
        let refused = prepare(Need { writes: true, ..Need::default() }).unwrap_err().to_string();
        assert!(refused.contains("--force"), "{refused}");
        let small = prepare(Need { file_bytes: Some(4 << 20), ..Need::default() }).unwrap_err().to_string();
        assert!(small.contains("too small"), "{small}");
        let ok = prepare(Need::default()).unwrap();
        assert_eq!((ok.file_bytes, ok.filled), (2 << 20, false));
        assert!(fs::read(&path).unwrap().iter().all(|b| *b == 7));

        // A file that the source made is filled, and removed.
        let mut made = Disk::new(&dir);
        let need = Need { writes: true, file_bytes: Some(3 << 20), ..Need::default() };
        assert_eq!(made.prepare(&need, &Live::default()).unwrap().file_bytes, 3 << 20);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
        made.remove().unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        let huge = Need { file_bytes: Some(1 << 60), ..need };
        let mut made = Disk::new(dir.join("huge"));
        assert!(made.prepare(&huge, &Live::default()).unwrap_err().to_string().contains("are free"));
        made.remove().unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::remove_dir_all(&dir).unwrap();
    }
}
