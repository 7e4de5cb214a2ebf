//! Sources of load targets: a file or disk, a file on a share, or none. A source owns its test file: it makes, fills
//! and removes it. Existing data is overwritten only with permission.

pub mod disk;
pub mod null;
pub mod share;

use arden_block::BLOCK_BYTES;

use crate::{
    Result,
    base::units::size,
    fail,
    load::{Content, Live, Target},
};

/// Default size of a test file in bytes.
pub const FILE_BYTES: u64 = 1 << 30;

/// The requirements of a load.
#[derive(Debug, Clone, Copy, Default)]
pub struct Need {
    pub writes: bool,
    /// Existing data may be overwritten.
    pub force: bool,
    /// The seed of the contents, when read data is compared.
    pub verify: Option<u64>,
    pub file_bytes: Option<u64>,
}

/// A test file that is ready.
#[derive(Debug, Clone, Copy)]
pub struct Prepared {
    pub file_bytes: u64,
    /// The load generator wrote every byte of the file.
    pub filled: bool,
}

/// A source of targets: each client opens one on its own thread.
pub trait Source: Sync {
    /// The name of the source, for display.
    fn name(&self) -> String;
    /// Checks the source and makes the test file.
    ///
    /// # Errors
    /// The source cannot be used for these requirements, or `live.stop` was set. [`Source::remove`] has to be called
    /// all the same.
    fn prepare(&mut self, need: &Need, live: &Live) -> Result<Prepared>;
    /// Opens a target for the calling thread.
    ///
    /// # Errors
    /// The target cannot be opened, or [`Source::prepare`] was not called.
    fn open(&self, writes: bool, write_through: bool) -> Result<Box<dyn Target>>;
    /// Removes the files that `prepare` made.
    ///
    /// # Errors
    /// A file cannot be removed.
    fn remove(&mut self) -> Result<()> {
        Ok(())
    }
    /// Whether several clients may open targets at the same time.
    fn many(&self) -> bool {
        true
    }
    /// The id of the server's process, when it runs on this machine.
    fn server(&self) -> Option<u32> {
        None
    }
}

/// A file name that no other process uses.
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

/// Decides whether an existing file or device may be used.
///
/// # Errors
/// The load writes and `force` is not set, or the file has fewer bytes than `need` asks for.
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
