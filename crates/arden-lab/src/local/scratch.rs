//! A directory for the files of a measurement.

use std::path::{Path, PathBuf};

use arden_measure::{Context, Result, source::own_name};

/// A directory that is removed when the value is dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Makes a directory with a new name in `base`. Every user may enter it.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn new(base: &Path) -> Result<Scratch> {
        let dir = base.join(own_name());
        std::fs::create_dir_all(&dir).context(dir.display())?;
        // Samba serves as its user, who has to enter the directory whatever the umask is.
        let open: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&dir, open)?;
        Ok(Scratch(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
