//! Pools with one space, made for measurements: on files and disks in real time (`files`), and on simulated disks in
//! virtual time (`timed`). Uses the public interface of `arden-space` only.

pub mod files;
pub mod timed;

use std::rc::Rc;

use arden_block::{BlockDevice, Rt};
use arden_measure::{Result, fail};
use arden_space::{CreateOptions, Layout, Pool, Provision, Space, SpaceError};

/// The configuration of the measured space.
#[derive(Debug, Clone, Copy)]
pub struct SpaceSetup {
    pub layout: Layout,
    /// `None`: the layout's default.
    pub columns: Option<usize>,
    pub interleave_bytes: u64,
    pub bytes: u64,
}

/// Makes a pool of `disks` with `spares`, and one space on it with all of its slabs allocated.
///
/// # Errors
/// A disk cannot be used, or the space does not fit on the disks.
pub fn create(
    rt: &Rt,
    disks: Vec<Rc<dyn BlockDevice>>,
    spares: Vec<Rc<dyn BlockDevice>>,
    setup: SpaceSetup,
) -> Result<(Pool, Space)> {
    let (own, count) = (rt.clone(), disks.len());
    let SpaceSetup { layout, columns, interleave_bytes, bytes } = setup;
    let made = rt.block_on(async move {
        let pool = Pool::create(&own, "measured", disks, spares, CreateOptions::default()).await?;
        let space = pool.create_space("s", layout, columns, interleave_bytes, bytes, Provision::Fixed).await?;
        Ok::<_, SpaceError>((pool, space))
    });
    match made {
        Some(Ok(made)) => Ok(made),
        Some(Err(e)) => fail!("{} on {count} disks: {e}", layout.name()),
        None => fail!("{} on {count} disks never came to be", layout.name()),
    }
}
