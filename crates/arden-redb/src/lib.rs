//! A redb file that outlives errors of its file system. After one, for example because that was full, redb refuses everything until the
//! file is opened again: that is done here, with the next operation. Knows nothing of what lies in it.

mod backend;

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use arden_lock::{Mutex, ranks};
use redb::{Database, Error};

use backend::{Backend, Health, write_again};

/// What a file that was opened again has to have, at least what was promised to be there: `Err` says what is missing.
pub type Check<'a> = &'a dyn Fn(&Database) -> Result<(), Error>;

/// A redb database in a file.
pub struct RedbFile {
    path: PathBuf,
    cache_bytes: usize,
    /// None after an error, until it can be opened again.
    db: Mutex<Option<Database>, ranks::RedbFile>,
    health: Arc<Health>,
}

impl std::fmt::Debug for RedbFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedbFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// An error because the file system has no room.
pub fn is_full(e: &Error) -> bool {
    let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::FileTooLarge];
    matches!(e, Error::Io(e) if full.contains(&e.kind()))
}

/// An error because what lies in the file is not what was written there.
pub fn is_damage(e: &Error) -> bool {
    let damage = [io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof];
    match e {
        Error::Io(e) => damage.contains(&e.kind()),
        e => matches!(e, Error::Corrupted(_)),
    }
}

/// What lies in such a file is for the daemon's user alone, also in a copy of the file.
const MODE: u32 = 0o600;

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(MODE);
    options
}

impl RedbFile {
    /// Opens the file; makes it when it does not exist. It gets its name when it is whole, so one without content was not made here.
    ///
    /// # Errors
    /// Corrupted, also of an empty file; the error of the file system.
    pub fn open(path: &Path, cache_bytes: usize) -> Result<RedbFile, Error> {
        let file = RedbFile { path: path.to_path_buf(), cache_bytes, db: Mutex::default(), health: Arc::default() };
        let db = match options().open(path) {
            Ok(opened) => {
                // One that was made before this rule.
                opened.set_permissions(Permissions::from_mode(MODE))?;
                file.database(opened)?
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => file.make()?,
            Err(e) => return Err(e.into()),
        };
        *file.db.lock() = Some(db);
        Ok(file)
    }

    /// The database in a file that has one.
    fn database(&self, file: File) -> Result<Database, Error> {
        match file.metadata()?.len() {
            0 => Err(Error::Corrupted("the file is empty".to_string())),
            _ => self.database_in(file),
        }
    }

    fn database_in(&self, file: File) -> Result<Database, Error> {
        let backend = Backend::new(file, self.health.clone())?;
        Ok(redb::Builder::new().set_cache_size(self.cache_bytes).create_with_backend(backend)?)
    }

    fn make(&self) -> Result<Database, Error> {
        let unfinished = {
            let mut name = self.path.clone().into_os_string();
            name.push(".new");
            PathBuf::from(name)
        };
        let make = || {
            let db = self.database_in(options().create(true).truncate(true).open(&unfinished)?)?;
            fs::rename(&unfinished, &self.path)?;
            if let Some(directory) = self.path.parent() {
                File::open(directory)?.sync_all()?;
            }
            Ok(db)
        };
        make().inspect_err(|_| drop(fs::remove_file(&unfinished)))
    }

    /// Runs `work` on the database, one caller at a time. When redb refuses that because of an earlier error, the file is opened again,
    /// has to pass `check`, and `work` runs once more: it has to be right also when its first run got into the file.
    ///
    /// # Errors
    /// That of `work`; that of opening the file, which the next call tries again.
    pub fn with<T>(&self, check: Check<'_>, mut work: impl FnMut(&Database) -> Result<T, Error>) -> Result<T, Error> {
        let mut held = self.db.lock();
        if let Some(db) = held.as_ref() {
            match work(db) {
                Err(Error::PreviousIo) => *held = None,
                result => return result,
            }
        }
        let db = self.again()?;
        check(&db)?;
        tracing::warn!(file = %self.path.display(), "the file was opened again after an error");
        work(held.insert(db))
    }

    /// Opens the file after an error. It is not made anew: what it has was promised.
    fn again(&self) -> Result<Database, Error> {
        let file = options().open(&self.path)?;
        if self.health.may_be_unsynced() {
            write_again(&file)?;
            self.health.set_synced();
        }
        self.database(file)
    }

    /// Has writes, or syncs, of this file fail from now on, or succeed again.
    #[cfg(any(test, feature = "faults"))]
    pub fn set_fault(&self, fault: Fault) {
        self.health.set_fault(fault);
    }
}

#[cfg(any(test, feature = "faults"))]
pub use backend::Fault;

#[cfg(test)]
mod tests {
    use redb::{Durability, ReadableDatabase, TableDefinition};

    use super::*;

    const TABLE: TableDefinition<'_, u64, u64> = TableDefinition::new("t");

    fn write(file: &RedbFile, check: Check<'_>, value: u64) -> Result<(), Error> {
        file.with(check, |db| {
            let mut tx = db.begin_write()?;
            tx.set_durability(Durability::Immediate)?;
            tx.open_table(TABLE)?.insert(1, value)?;
            Ok(tx.commit()?)
        })
    }

    fn read(db: &Database) -> Result<u64, Error> {
        let tx = db.begin_read()?;
        Ok(tx.open_table(TABLE)?.get(1)?.map_or(0, |v| v.value()))
    }

    fn path(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("arden-redb-{test}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        path
    }

    #[test]
    fn a_file_system_that_was_full_or_failed_is_used_again() {
        for fault in [Fault::Write, Fault::Sync] {
            let path = path(&format!("{fault:?}"));
            let file = RedbFile::open(&path, 1 << 18).unwrap();
            let kept = |db: &Database| match read(db)? {
                1.. => Ok(()),
                0 => Err(Error::Corrupted("it is gone".into())),
            };
            write(&file, &kept, 1).unwrap();
            file.set_fault(fault);
            for _ in 0..3 {
                let error = write(&file, &kept, 2).unwrap_err();
                assert!(!matches!(error, Error::PreviousIo) && (fault == Fault::Sync || is_full(&error)), "{error}");
            }
            file.set_fault(Fault::None);
            assert!([1, 2].contains(&file.with(&kept, read).unwrap()));
            write(&file, &kept, 3).unwrap();
            assert_eq!(file.with(&kept, read).unwrap(), 3);
            drop(file);
            assert_eq!(RedbFile::open(&path, 1 << 18).unwrap().with(&kept, read).unwrap(), 3);
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn one_that_lost_what_was_promised_is_not_used_again() {
        let path = path("lost");
        let file = RedbFile::open(&path, 1 << 18).unwrap();
        let kept = |db: &Database| match read(db)? {
            7 => Ok(()),
            _ => Err(Error::Corrupted("it went back".into())),
        };
        write(&file, &kept, 6).unwrap();
        let before = fs::read(&path).unwrap();
        write(&file, &kept, 7).unwrap();
        file.set_fault(Fault::Write);
        write(&file, &kept, 8).unwrap_err();
        file.set_fault(Fault::None);
        let now = fs::read(&path).unwrap();
        for other in [Some(before), Some(Vec::new()), None] {
            match &other {
                Some(content) => fs::write(&path, content).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            assert!(write(&file, &kept, 9).is_err(), "{:?}", other.map(|o| o.len()));
        }
        assert!(!path.exists(), "none is made in its place");
        fs::write(&path, now).unwrap();
        write(&file, &kept, 9).unwrap();
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn only_its_user_reads_a_file_also_one_of_before() {
        let path = path("mode");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        drop(RedbFile::open(&path, 1 << 18).unwrap());
        assert_eq!(mode(), MODE);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        drop(RedbFile::open(&path, 1 << 18).unwrap());
        assert_eq!(mode(), MODE);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn an_empty_or_damaged_file_is_none() {
        let path = path("damaged");
        let damaged = |content: &[u8]| {
            fs::write(&path, content).unwrap();
            let error = RedbFile::open(&path, 1 << 18).unwrap_err();
            assert!(is_damage(&error) && !is_full(&error), "{error:?}");
            assert_eq!(fs::read(&path).unwrap(), content, "it is left as it is");
        };
        damaged(b"");
        damaged(&[0; 4096]);
        damaged(&[0x5a; 100]);
        fs::remove_file(&path).unwrap();
        drop(RedbFile::open(&path, 1 << 18).unwrap());
        let whole = fs::read(&path).unwrap();
        damaged(&whole[..100]);
        fs::remove_file(&path).unwrap();
    }
}
