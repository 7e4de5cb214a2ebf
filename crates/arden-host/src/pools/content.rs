//! What lies on a space that nothing uses: a volume is not thrown away without a question, and one that came with an imported
//! pool is named.

use arden_admin::{
    AdminError, ErrorKind,
    error::Result,
    storage::{PoolInfo, PoolRecord},
};
use arden_volume::{Superblock, VolError};

use super::Pools;
use crate::volumes::device::{self, SpaceDevice};

#[derive(PartialEq, Eq)]
enum Content {
    Volume,
    /// The places that would tell cannot be read.
    Unread,
    /// Nothing, or what another system wrote over NBD.
    NoVolume,
}

impl Content {
    fn of(device: &SpaceDevice) -> Content {
        match Superblock::read(device) {
            Ok(_) | Err(VolError::Later | VolError::Corrupt(_)) => Content::Volume,
            Err(VolError::Io(_)) => Content::Unread,
            Err(_) => Content::NoVolume,
        }
    }
}

impl Pools {
    /// A space that nothing used. Nothing else can use it until the device is dropped.
    fn look_at(&self, space: &str, pool: u128) -> Result<SpaceDevice> {
        let taken = self.take_space(space, Some(pool), "a look at what is on it")?;
        device::open(taken, || ())
            .map_err(|e| AdminError::failed(format!("space {space}: {e}"), "see `arden pool show`"))
    }

    /// The space of a pool, once it is sure that nothing uses it and that no volume is on it. The caller does not hold `Pools::changing`.
    pub(super) fn without_volume(&self, space: &str, pool: u128) -> Result<SpaceDevice> {
        let device = self.look_at(space, pool)?;
        let (error, hint) = match Content::of(&device) {
            Content::NoVolume => return Ok(device),
            Content::Volume => (
                format!("a volume is on space {space:?}"),
                "--force deletes it with all of its files; `arden volume attach` opens it",
            ),
            Content::Unread => (
                format!("whether a volume is on space {space:?} cannot be read"),
                "bring back the missing disks; --force deletes it with all that is on it",
            ),
        };
        Err(AdminError::new(ErrorKind::Conflict, error, hint))
    }

    /// An event that names the spaces of an imported pool with volumes that no record names.
    pub(super) fn volumes_to_attach(&self, record: &PoolRecord, info: &PoolInfo) -> Option<String> {
        let snapshot = self.state.snapshot();
        let is_known = |space: &str| {
            let of_pool = |pool: &Option<String>| pool.as_ref().is_none_or(|id| *id == record.id);
            snapshot.volumes.values().any(|v| v.space.as_deref() == Some(space) && of_pool(&v.pool))
        };
        let id = super::pool_id(record).ok()?;
        let unknown = info.spaces.iter().map(|s| s.name.as_str()).filter(|name| !is_known(name));
        let has_volume = |name: &&str| self.look_at(name, id).is_ok_and(|d| Content::of(&d) == Content::Volume);
        let spaces: Vec<&str> = unknown.filter(has_volume).collect();
        let first = spaces.first()?;
        let event = format!(
            "volumes that are not attached are on these spaces: {}; `arden volume attach NAME --space {first} --pool {}` opens one",
            spaces.join(", "),
            record.name
        );
        tracing::info!(pool = record.name, "{event}");
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf, sync::Arc};

    use arden_admin::{
        State, Storage,
        storage::{NewPool, NewSpace, PoolImport, SpaceDelete},
        volume::{NewVolume, VolumeAdmin},
    };

    use super::*;
    use crate::{pools::PoolAdmin, sharing::NothingShared, volumes::Volumes};

    /// A daemon's storage with a pool `tank`, whose space `docs` has a volume that was closed. `empty` has none.
    struct Daemon {
        pools: Arc<Pools>,
        volumes: Arc<Volumes>,
    }

    impl Daemon {
        fn start() -> Daemon {
            let pools = Pools::start(&Arc::new(State::in_memory().unwrap()), Arc::new(NothingShared)).unwrap();
            let volumes = Volumes::new(&pools.state, &pools);
            Daemon { pools, volumes }
        }

        fn new(dir: &PathBuf) -> Daemon {
            fs::create_dir_all(dir).unwrap();
            let disk = dir.join("disk");
            fs::File::create(&disk).unwrap().set_len(1 << 30).unwrap();
            let daemon = Daemon::start();
            let new = NewPool { name: "tank".into(), disks: vec![disk], hot_spares: Vec::new(), force: false };
            daemon.admin().create_pool(&new).unwrap();
            for name in ["docs", "empty"] {
                let space = NewSpace {
                    name: name.into(),
                    layout: "simple".into(),
                    size_bytes: Some(64 << 20),
                    columns: None,
                    interleave_bytes: None,
                    fixed: false,
                };
                daemon.admin().create_space("tank", &space).unwrap();
            }
            let new = NewVolume { name: "v".into(), space: Some("docs".into()), ..NewVolume::default() };
            daemon.volumes.create_volume(&new).unwrap();
            daemon
        }

        fn admin(&self) -> PoolAdmin {
            PoolAdmin(self.pools.clone())
        }

        fn delete(&self, space: &str, force: bool) -> Result<()> {
            self.admin().delete_space("tank", space, &SpaceDelete { force })
        }
    }

    impl Drop for Daemon {
        fn drop(&mut self) {
            self.volumes.stop();
            self.pools.stop();
        }
    }

    fn directory(test: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("arden-content-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn a_space_with_a_volume_is_deleted_by_force_only() {
        let dir = directory("delete");
        let daemon = Daemon::new(&dir);
        let error = daemon.delete("docs", true).unwrap_err().error;
        assert_eq!(error, "space \"docs\" is used by volume v", "not by force either");
        daemon.volumes.forget_volume("v").unwrap();
        let refused = daemon.delete("docs", false).unwrap_err();
        assert_eq!((refused.kind, refused.error.as_str()), (ErrorKind::Conflict, "a volume is on space \"docs\""));
        assert!(refused.hint.contains("--force"), "{}", refused.hint);
        daemon.delete("empty", false).unwrap();
        daemon.delete("docs", true).unwrap();
        assert!(daemon.admin().spaces().unwrap().is_empty());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn an_import_names_the_spaces_with_volumes_to_attach() {
        let dir = directory("import");
        drop(Daemon::new(&dir));
        let daemon = Daemon::start();
        let import = PoolImport { disks: vec![dir.clone()], ..PoolImport::default() };
        let events = daemon.admin().import_pool(&import).unwrap().events;
        let named = "are on these spaces: docs; `arden volume attach NAME --space docs --pool tank`";
        assert!(events.last().is_some_and(|e| e.contains(named)), "{events:?}");
        assert!(daemon.delete("docs", false).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
