//! The folders of shares: whether the path of a share still leads to the one that is served. A store keeps its root open, so it goes on
//! serving a folder that was moved, removed and made again, or hidden by a file system that was mounted over it.

use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// What names a directory of this machine for as long as it is mounted: device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Folder {
    device: u64,
    inode: u64,
}

/// Why a path does not lead to the folder that is served.
const GONE: &str = "it is not there any more";
const ANOTHER: &str = "another folder is there by now, or a file system was mounted over it";

impl Folder {
    /// What the path leads to; none where that is no directory, or cannot be told.
    pub fn at(path: &Path) -> Option<Folder> {
        let found = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_dir)?;
        Some(Folder { device: found.dev(), inode: found.ino() })
    }
}

/// Folders that are served and that their path does not lead to, with the reason.
#[derive(Default)]
pub struct Strayed(BTreeMap<PathBuf, &'static str>);

impl Strayed {
    /// Notes what is found at the path of a folder that is served. Says what is new in the log.
    pub fn note(&mut self, path: &Path, served: Folder, found: Option<Folder>) {
        let why = match found {
            Some(found) if found == served => None,
            Some(_) => Some(ANOTHER),
            None => Some(GONE),
        };
        let before = match why {
            Some(why) => self.0.insert(path.to_path_buf(), why),
            None => self.0.remove(path),
        };
        let path = path.display();
        match why {
            Some(why) if before != Some(why) => tracing::warn!(
                %path,
                "clients are still served the folder that was at this path: {why}; `arden share set NAME --dir PATH` serves what is there"
            ),
            None if before.is_some() => tracing::info!(%path, "the folder that is served is at its path again"),
            _ => {}
        }
    }

    /// Forgets paths that are not served any more.
    pub fn keep(&mut self, is_served: impl Fn(&Path) -> bool) {
        self.0.retain(|path, _| is_served(path));
    }

    /// Why the path does not lead to what is served there.
    pub fn why(&self, path: &Path) -> Option<&'static str> {
        self.0.get(path).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_its_path_does_not_lead_to_is_noticed() {
        let name = arden_admin::secret::hex(&arden_admin::secret::random::<8>().unwrap());
        let dir = std::env::temp_dir().join(format!("arden-folders-{name}"));
        let path = dir.join("docs");
        std::fs::create_dir_all(&path).unwrap();
        let served = Folder::at(&path).unwrap();
        let mut strayed = Strayed::default();
        strayed.note(&path, served, Folder::at(&path));
        assert_eq!(strayed.why(&path), None);
        let moved = dir.join("moved");
        std::fs::rename(&path, &moved).unwrap();
        strayed.note(&path, served, Folder::at(&path));
        assert_eq!(strayed.why(&path), Some(GONE));
        std::fs::create_dir(&path).unwrap();
        strayed.note(&path, served, Folder::at(&path));
        assert_eq!(strayed.why(&path), Some(ANOTHER));
        std::fs::remove_dir(&path).unwrap();
        std::fs::rename(&moved, &path).unwrap();
        strayed.note(&path, served, Folder::at(&path));
        assert_eq!(strayed.why(&path), None);
        std::fs::remove_dir(&path).unwrap();
        strayed.note(&path, served, Folder::at(&path));
        strayed.keep(|_| false);
        assert_eq!(strayed.why(&path), None);
        std::fs::write(&path, "a file").unwrap();
        assert_eq!(Folder::at(&path), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
