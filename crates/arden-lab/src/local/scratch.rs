//! A directory for what is made while something is measured.

use std::path::{Path, PathBuf};

use arden_measure::{Context, Result, source::own_name};

/// A directory that goes with the value.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Makes a directory of an own name in `base`, which everybody may enter.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(base: &Path) -> Result<Scratch> {
        let dir = base.join(own_name());
        std::fs::create_dir_all(&dir).context(dir.display())?;
        // Samba serves as its user, whatever the umask is.
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
