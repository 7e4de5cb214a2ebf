//! The facts about shares that the storage manager needs. Knows no protocol of the file server.

use std::path::Path;

use arden_admin::error::Result;

/// The shares of this daemon. Calls may come from any thread, with locks of the storage manager held: they must not call back
/// into it.
pub trait Sharing: Send + Sync {
    /// The names of the shares whose files lie on the volume `name`, which is compared without case.
    fn shares_on_volume(&self, name: &str) -> Vec<String>;

    /// Whether the file or block device `device` may hold a part of a pool or a volume.
    ///
    /// # Errors
    /// Conflict, when users could read or overwrite it through a share.
    fn check_device(&self, device: &Path) -> Result<()>;
}

/// A program that shares nothing: a command on a volume while no daemon runs, and tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct NothingShared;

impl Sharing for NothingShared {
    fn shares_on_volume(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    fn check_device(&self, _: &Path) -> Result<()> {
        Ok(())
    }
}
