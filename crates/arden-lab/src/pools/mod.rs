//! Pools with one space on it, made to be measured: on files and disks in real time (`files`), on simulated disks in virtual
//! time (`timed`). Know pools and spaces as any caller does, through `arden-space`'s public face.

pub mod files;
pub mod timed;

use std::rc::Rc;

use arden_block::{BlockDevice, Rt};
use arden_measure::{Result, fail};
use arden_space::{CreateOptions, Layout, Pool, Provision, Space, SpaceError};

/// The space that is to be measured.
#[derive(Debug, Clone, Copy)]
pub struct SpaceSetup {
    pub layout: Layout,
    /// The layout's default when none.
    pub columns: Option<usize>,
    pub interleave_bytes: u64,
    pub bytes: u64,
}

/// Makes a pool of `disks`, with `spares` standing by, and one space on it that has all of its slabs.
///
/// # Errors
/// Disks that cannot be had, or a space that does not fit on them.
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
