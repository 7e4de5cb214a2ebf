//! Where a load goes: a file or disk, a file on a share, nothing at all. A source owns its test file: it is made, filled and
//! removed; nothing that was there before is written to without leave.

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
    ///
    /// # Errors
    /// When the target cannot be used for this, or `live.stop` was set. [`Source::remove`] is due all the same.
    fn prepare(&mut self, need: &Need, live: &Live) -> Result<Prepared>;
    /// Opens a target for the calling thread.
    ///
    /// # Errors
    /// When it cannot be opened; before [`Source::prepare`].
    fn open(&self, writes: bool, write_through: bool) -> Result<Box<dyn Target>>;
    /// Removes what `prepare` made.
    ///
    /// # Errors
    /// When something is left.
    fn remove(&mut self) -> Result<()> {
        Ok(())
    }
    /// Whether several clients may open it at once.
    fn many(&self) -> bool {
        true
    }
    /// The id of the server's process, when it runs on this machine.
    fn server(&self) -> Option<u32> {
        None
    }
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
///
/// # Errors
/// When the load writes without `force`, and when less is there than `need` asks for.
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
