//! A space of a pool of this daemon as the device of a volume: the way to the pool's thread, and room that others give back.

use std::sync::Arc;

use arden_block::{Buf, IoResult};
use arden_space::{Access, Caller, DirectRead, Pool, SharedSpace, Space, SpaceResult, SpaceThread};

use crate::pools::SpaceUse;

/// A space of a pool of this daemon, as the device of a volume.
pub type SpaceDevice = SharedSpace<PoolSpace>;

/// A space in use, reached by its pool's thread.
pub struct PoolSpace {
    caller: Caller,
    space: u32,
    taken: SpaceUse,
}

/// The device of a space in use. `give_back`: has the volume on it give back what it can.
///
/// # Errors
/// The pool is closed, or the space is not there any more.
pub fn open(taken: SpaceUse, give_back: impl Fn() + Send + Sync + 'static) -> SpaceResult<SpaceDevice> {
    taken.add_reclaimer(Arc::new(give_back));
    let caller = taken.caller();
    let name = taken.space().to_string();
    let space = caller.call(move |pool: Pool| async move { Ok(pool.space_named(&name)?.id()) })?;
    SharedSpace::new(PoolSpace { caller, space, taken })
}

impl SpaceThread for PoolSpace {
    fn submit<T, F, Fut>(
        &self,
        _access: Access,
        work: F,
        done: impl FnOnce(SpaceResult<T>) + Send + 'static,
    ) -> SpaceResult<()>
    where
        T: Send + 'static,
        F: FnOnce(Space) -> Fut + Send + 'static,
        Fut: Future<Output = SpaceResult<T>> + 'static,
    {
        let space = self.space;
        self.caller.submit(move |pool: Pool| async move { work(pool.space(space)?).await }, done)
    }

    fn read_disk(&self, read: &DirectRead) -> Option<IoResult<Buf>> {
        arden_space::read_here(read)
    }

    fn has_clock(&self) -> bool {
        true
    }

    fn ask_for_room(&self) -> bool {
        self.taken.ask_for_room()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, sync::OnceLock, sync::mpsc::channel};

    use arden_admin::{
        State, Storage,
        storage::{NewPool, NewSpace},
    };
    use arden_block::{BLOCK_BYTES, Device, IoError, Thin};

    use super::*;
    use crate::{
        pools::{PoolAdmin, Pools},
        sharing::NothingShared,
    };

    /// A small pool with two thin spaces, each larger than what it has.
    fn pools(dir: &Path) -> Arc<Pools> {
        fs::create_dir_all(dir).unwrap();
        let disk = dir.join("disk");
        fs::File::create(&disk).unwrap().set_len(2 << 30).unwrap();
        let pools = Pools::start(&Arc::new(State::in_memory().unwrap()), Arc::new(NothingShared)).unwrap();
        let admin = PoolAdmin(pools.clone());
        let new = NewPool { name: "tank".into(), disks: vec![disk], hot_spares: Vec::new(), force: false };
        admin.create_pool(&new).unwrap();
        for name in ["a", "b"] {
            let space = NewSpace {
                name: name.into(),
                layout: "simple".into(),
                size_bytes: Some(8 << 30),
                columns: None,
                interleave_bytes: None,
                fixed: false,
            };
            admin.create_space("tank", &space).unwrap();
        }
        pools
    }

    fn later(device: &SpaceDevice, at: u64) -> IoResult<()> {
        let (tell, told) = channel();
        device.write_durably_later(vec![(at, vec![1; BLOCK_BYTES as usize])], Box::new(move |r| tell.send(r).unwrap()));
        told.recv().unwrap()
    }

    #[test]
    fn the_log_of_a_volume_on_a_pool_in_files_is_written_when_it_is_made() {
        use std::os::unix::fs::MetadataExt;
        let dir = std::env::temp_dir().join(format!("arden-log-{}", std::process::id()));
        let pools = pools(&dir);
        let device = open(pools.take_space("a", None, "a test").unwrap(), || {}).unwrap();
        let taken = || fs::metadata(dir.join("disk")).unwrap().blocks() * 512;
        assert!(device.room_of_files().is_some_and(|room| room > 0));
        let before = taken();
        arden_volume::Volume::format(&device, "written", 7 << 64 | 9, arden_wire::FileTime(1)).unwrap();
        let (more, piece) = (taken() - before, device.thin().unwrap().piece_bytes());
        // A volume of 8 GiB has the largest log. It takes no group that it did not take anyway: its own, and that of the end.
        assert!(more > 250 << 20, "{more} bytes");
        assert_eq!(device.pieces_held().len() as u64, (256_u64 << 20).div_ceil(piece) + 1);
        drop(device);
        pools.stop();
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_write_that_finds_the_pool_full_asks_the_other_spaces_and_is_tried_again() {
        let dir = std::env::temp_dir().join(format!("arden-room-{}", std::process::id()));
        let pools = pools(&dir);
        let full: Arc<OnceLock<SpaceDevice>> = Arc::default();
        let gives = full.clone();
        let give_back = move || gives.get().unwrap().discard(0, 8 << 30).unwrap();
        let made = open(pools.take_space("a", None, "a test").unwrap(), give_back).unwrap();
        full.set(made).ok().unwrap();
        let device = open(pools.take_space("b", None, "a test").unwrap(), || {}).unwrap();
        let piece = device.thin().unwrap().piece_bytes();
        let taken =
            (0..8 << 30).step_by(piece as usize).take_while(|at| later(full.get().unwrap(), *at).is_ok()).count();
        assert!(taken > 0 && (taken as u64) < (8 << 30) / piece, "{taken} pieces filled the pool");
        assert!(full.get().unwrap().pieces_held().len() == taken && device.pieces_held().is_empty());
        assert_eq!(later(&device, 0), Ok(()), "nothing was in the way but what the other gave back");
        assert!(full.get().unwrap().pieces_held().is_empty() && device.pieces_held().len() == 1);
        pools.stop();
        assert_eq!(later(&device, 0), Err(IoError::Gone), "told also where there is no pool any more");
        fs::remove_dir_all(&dir).unwrap();
    }
}
