//! A file that another takes the place of, or with a stream that does so within it, and a directory that is moved: between the look
//! at who has it open, or something below it, and the end of the change nobody opens that. No lock is held meanwhile, as the store
//! may wait for a disk.

use std::sync::{Arc, atomic::Ordering};

use super::{Admission, Admitted, OpenTable, file::FileInner, file::FileState};
use crate::{
    error::StoreError,
    fs::{Owner, WaitId},
    store::{Node, NodeRef},
};

/// Opens of the file wait until this is dropped. Never kept over a wait: they would wait as long.
pub(crate) struct Shut<'a> {
    table: &'a OpenTable,
    file: Arc<FileState>,
    /// Opens of what is below it, too.
    below: bool,
}

impl OpenTable {
    /// Opens of the file wait from now on. Err: some are there, or the deletion of this name is under way.
    pub(crate) fn shut_unused(&self, node: &NodeRef) -> Result<Shut<'_>, Arc<FileState>> {
        loop {
            let file = self.find_or_add(node.id());
            let mut inner = file.lock();
            if inner.dead {
                continue;
            }
            if inner.open_count() > 0 || inner.check_not_deleted(node).is_err() {
                drop(inner);
                return Err(file);
            }
            inner.shut += 1;
            drop(inner);
            return Ok(Shut { table: self, file, below: false });
        }
    }

    /// Further opens of a file that is open wait from now on.
    pub(crate) fn shut(&self, file: &Arc<FileState>) -> Shut<'_> {
        file.lock().shut += 1;
        Shut { table: self, file: file.clone(), below: false }
    }

    /// The same of a directory that is open, and of all below it: who comes to it from now on is seen by a look at the table that
    /// follows, or waits.
    pub(crate) fn shut_below(&self, file: &Arc<FileState>) -> Shut<'_> {
        file.lock().shut += 1;
        self.moves.fetch_add(1, Ordering::SeqCst);
        Shut { table: self, file: file.clone(), below: true }
    }

    /// Whether `node` is below a directory that is being moved, or with `itself` is one: then its open waits. Asked before something is
    /// created in it, and when an open is in the table, which leaves it then.
    pub(crate) fn wait_for_move(
        &self,
        owner: &Owner,
        node: &dyn Node,
        itself: bool,
    ) -> Result<Option<WaitId>, StoreError> {
        if self.moves.load(Ordering::SeqCst) == 0 {
            return Ok(None);
        }
        let above = node.trail().into_iter().map(|named| named.directory);
        for file in above.chain(itself.then(|| node.id())).filter_map(|id| self.find(id)) {
            let mut inner = file.lock();
            if inner.shut > 0 {
                return Ok(Some(self.wait_among(&mut inner.shut_out, owner)?));
            }
        }
        Ok(None)
    }

    /// An open that comes while the file is shut waits, and then looks its name up again.
    pub(super) fn wait_until_open(&self, a: &Admission<'_>, inner: &mut FileInner) -> Result<Admitted, StoreError> {
        Ok(Admitted::ShutOut(self.wait_among(&mut inner.shut_out, a.owner)?))
    }
}

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        // Who looked the name up before, and comes after this, looks again.
        self.table.unlinks.fetch_add(1, Ordering::AcqRel);
        let mut inner = self.file.lock();
        inner.shut -= 1;
        let woken = if inner.shut == 0 { std::mem::take(&mut inner.shut_out) } else { Vec::new() };
        drop(inner);
        if self.below {
            self.table.moves.fetch_sub(1, Ordering::SeqCst);
        }
        self.table.forget_if_idle(&self.file);
        self.table.resume(woken);
    }
}
