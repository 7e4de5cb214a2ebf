//! File disks, and pools on them. Every byte of a file is written once, so that first use is not measured.

use std::{fs, path::Path, path::PathBuf, rc::Rc};

use arden_block::{BlockDevice, Rt, file::FileDevice};
use arden_space::{Layout, Space};

use super::{SpaceSetup, create};

use arden_measure::{
    Context, Result, fail,
    load::{BlockTarget, Content, Live, fill},
};

/// Makes `count` files of `bytes` bytes in `dir`, with every byte written.
///
/// # Errors
/// A file cannot be made or filled.
pub fn make(dir: &Path, set: &str, count: usize, bytes: u64) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for i in 0..count {
        let path = dir.join(format!("{set}{i}"));
        write_whole(&path, bytes)?;
        all.push(path);
    }
    Ok(all)
}

/// Writes every byte of a file through direct I/O.
///
/// # Errors
/// The file cannot be made or filled.
pub fn write_whole(path: &Path, bytes: u64) -> Result<()> {
    let file = fs::File::create(path)?;
    file.set_len(bytes)?;
    let rt = Rt::real();
    let mut target = BlockTarget::new(&rt, open(&rt, path)?);
    fill(&mut target, bytes, &mut Content::plain(1), &Live::default())?;
    file.sync_all()?;
    drop(target);
    rt.shutdown();
    Ok(())
}

/// Opens a file as a block device.
///
/// # Errors
/// The file cannot be opened for writing.
pub fn open(rt: &Rt, path: &Path) -> Result<Rc<dyn BlockDevice>> {
    let device = FileDevice::open(rt, path, true).context(path.display())?;
    Ok(Rc::new(device))
}

/// A pool with one filled space on files.
pub struct FilePool {
    pub rt: Rt,
    pub space: Space,
    pub bytes: u64,
}

impl FilePool {
    /// A pool on `files` with a space of `bytes` bytes that is written once. `columns`: `None` is the layout's default.
    ///
    /// # Errors
    /// The pool cannot be built or filled.
    pub fn new(
        files: &[PathBuf],
        layout: Layout,
        columns: Option<usize>,
        interleave: u64,
        bytes: u64,
    ) -> Result<FilePool> {
        let rt = Rt::real();
        let disks = files.iter().map(|f| open(&rt, f)).collect::<Result<Vec<_>>>()?;
        let setup = SpaceSetup { layout, columns, interleave_bytes: interleave, bytes };
        let (_, space) = create(&rt, disks, Vec::new(), setup)?;
        let made = FilePool { rt, space, bytes };
        fill(&mut made.target(), bytes, &mut Content::plain(1), &Live::default())?;
        let space = made.space.clone();
        match made.rt.block_on(async move { space.flush().await }) {
            Some(Ok(())) => Ok(made),
            other => fail!("flush: {other:?}"),
        }
    }

    /// The space as a target.
    pub fn target(&self) -> BlockTarget {
        BlockTarget::new(&self.rt, Rc::new(self.space.device()))
    }
}

impl Drop for FilePool {
    fn drop(&mut self) {
        let pool = self.space.pool().clone();
        self.rt.block_on(async move { pool.close().await });
        self.rt.shutdown();
    }
}
