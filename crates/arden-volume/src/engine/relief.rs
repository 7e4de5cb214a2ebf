//! What a volume does for room under it. What nothing lies in goes back to the device after a rest; where the device has
//! no room for more, at once, and new blocks are looked for first where it keeps room for them already. Only when
//! neither helps is the device full.

use std::collections::BTreeSet;

use arden_block::{BLOCK_BYTES, IoError};

use crate::{
    disk::{
        device::pieces,
        error::{VolError, VolResult},
        inode::EXTENT_BLOCKS_MAX,
    },
    engine::{alloc::Reserved, owner::Engine},
};

/// Pieces that go back to the device at one time.
const PIECES_GIVEN_BACK: usize = 64;

impl Engine {
    /// Gives what nothing lies in any more back to the device: not when it becomes free, as most of it is soon written
    /// again and nobody who waits for a commit should wait for this too.
    pub fn give_back(&self) {
        let _ = (0..PIECES_GIVEN_BACK).all(|_| self.give_one_back());
    }

    fn give_one_back(&self) -> bool {
        let Some(run) = self.state.alloc.lock().take_empty() else { return false };
        let given = self.device.discard(run.start * BLOCK_BYTES, run.len * BLOCK_BYTES);
        self.state.alloc.lock().end_empty(run);
        if let Err(e) = &given {
            tracing::debug!("discard: {e}");
        }
        given.is_ok()
    }

    /// What can be given back is given back now: others need it.
    pub fn give_all_back(&self) {
        self.deferrals.reclaim();
        // What was freed may be used when that is durable.
        if self.sync().is_err() {
            return;
        }
        self.state.alloc.lock().rest_at_once();
        while self.give_one_back() {}
    }

    /// Tries what needs new blocks again where the device has no room for more.
    pub fn with_relief<T>(&self, mut attempt: impl FnMut() -> VolResult<T>) -> VolResult<T> {
        let mut tried = attempt();
        for last in [false, true] {
            if !matches!(tried, Err(VolError::Full | VolError::Io(IoError::NoSpace))) {
                break;
            }
            if last {
                self.give_all_back();
            }
            self.keep_to_held();
            tried = attempt();
        }
        tried
    }

    fn keep_to_held(&self) {
        let held: BTreeSet<u64> = pieces(&*self.device).1.into_iter().collect();
        if !held.is_empty() {
            self.state.alloc.lock().keep_within(held);
        }
    }

    fn reserve(&self, blocks: u64) -> VolResult<Reserved<'_>> {
        let runs = self.state.alloc.lock().reserve_data(blocks, EXTENT_BLOCKS_MAX)?;
        Ok(Reserved { alloc: &self.state.alloc, runs })
    }

    /// Fresh blocks, and what writing them gave.
    pub fn place<T>(&self, blocks: u64, write: impl Fn(&Reserved<'_>) -> VolResult<T>) -> VolResult<(Reserved<'_>, T)> {
        self.with_relief(|| {
            let reserved = self.reserve(blocks)?;
            let written = write(&reserved)?;
            Ok((reserved, written))
        })
    }
}
