//! btrfs on loop devices as the peer of spaces with redundancy. A script, which needs root, sets it up and removes it.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use arden_block::Rt;
use arden_measure::{
    Result, fail,
    load::{BlockTarget, Content, Live, fill},
};

use crate::pools::files;

/// A mounted file system with one filled test file.
pub struct Mounted {
    script: PathBuf,
    mount: PathBuf,
    rt: Rt,
    file: PathBuf,
}

fn call(script: &Path, args: &[&str]) -> Result<()> {
    let out = Command::new(script).args(args).output()?;
    if !out.status.success() {
        fail!("{} {}: {}", script.display(), args.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(())
}

impl Mounted {
    /// Makes and mounts the file system. `profile` is btrfs's name: raid1 or raid5.
    ///
    /// # Errors
    /// The script fails, or the file cannot be filled.
    pub fn new(script: &Path, profile: &str, mount: &Path, disks: &[PathBuf], bytes: u64) -> Result<Mounted> {
        let mount_text = mount.display().to_string();
        let mut args = vec!["start", profile, &mount_text];
        let names: Vec<String> = disks.iter().map(|d| d.display().to_string()).collect();
        args.extend(names.iter().map(String::as_str));
        call(script, &args)?;
        let made = Mounted {
            script: script.to_path_buf(),
            mount: mount.to_path_buf(),
            rt: Rt::real(),
            file: mount.join("file"),
        };
        std::fs::File::create(&made.file)?.set_len(bytes)?;
        fill(&mut made.target()?, bytes, &mut Content::plain(1), &Live::default())?;
        rustix::fs::sync();
        Ok(made)
    }

    /// Opens the test file as a target.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn target(&self) -> Result<BlockTarget> {
        Ok(BlockTarget::new(&self.rt, files::open(&self.rt, &self.file)?))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.rt.shutdown();
        let _ = call(&self.script, &["stop", &self.mount.display().to_string()]);
    }
}
