//! Parity that does not fit its data, for whoever above keeps checksums of the data. The pool's own scrub sees that one of
//! them is wrong and not which; who knows that the data is right has the parity computed anew.

use arden_block::{BLOCK_BYTES, Buf};

use crate::base::error::SpaceResult;
use crate::map::pool_map::UNWRITTEN;
use crate::space::open_space::{Space, Verifier};
use crate::upkeep::scrub::consistent;

type Columns = Vec<Option<Vec<u8>>>;

impl Space {
    /// Reads all columns of the stripes of a range. How many bytes that were, and rows whose parity does not fit: where
    /// the data blocks of each lie. None: the space keeps no parity.
    pub async fn parity_mismatches(&self, offset: u64, len: u64) -> SpaceResult<Option<(u64, Vec<Vec<u64>>)>> {
        let shape = self.rt.shape;
        if !shape.is_parity() {
            return Ok(None);
        }
        self.check(offset, len)?;
        let (mut bytes, mut rows) = (0, Vec::new());
        for at in (offset - offset % shape.stripe_bytes..offset + len).step_by(shape.stripe_bytes as usize) {
            let (group, stripe) = self.stripe_at(at);
            let (first, end) = self.stripe_blocks(group, stripe);
            let _guard = self.rt.stripe_locks.lock(first, end).await;
            self.rt.doubts.begin_anew(at / BLOCK_BYTES..(at + shape.interleave) / BLOCK_BYTES);
            let Some(columns) = self.read_row(at, shape.interleave as usize).await else { continue };
            bytes += shape.columns as u64 * shape.interleave;
            if consistent(&columns, shape.data_columns(), shape.interleave as usize) {
                continue;
            }
            for from in (0..shape.interleave).step_by(BLOCK_BYTES as usize) {
                let block = from as usize..(from + BLOCK_BYTES) as usize;
                let row: Columns = columns.iter().map(|c| c.as_ref().map(|c| c[block.clone()].to_vec())).collect();
                if !consistent(&row, shape.data_columns(), BLOCK_BYTES as usize) {
                    rows.push((0..shape.data_columns() as u64).map(|i| at + i * shape.interleave + from).collect());
                }
            }
        }
        Ok(Some((bytes, rows)))
    }

    /// Computes the parity anew of the row whose first data block lies there, if all its data passes. Blocks written.
    pub async fn recompute_parity(&self, row: u64, verify: &Verifier) -> SpaceResult<u64> {
        self.check(row, BLOCK_BYTES)?;
        let (shape, len) = (self.rt.shape, BLOCK_BYTES as usize);
        let (group, stripe) = self.stripe_at(row);
        let (first, end) = self.stripe_blocks(group, stripe);
        let _guard = self.rt.stripe_locks.lock(first, end).await;
        if !shape.is_parity() || row % shape.stripe_bytes >= shape.interleave || !self.group_serves(group) {
            return Ok(0);
        }
        // Changed since it was told of: there may be blocks that `verify` does not know, and noise of them would be confirmed.
        if self.rt.doubts.is_doubted(row / BLOCK_BYTES) {
            return Ok(0);
        }
        let Some(columns) = self.read_row(row, len).await else { return Ok(0) };
        let data = shape.data_columns();
        let mut places = (row..).step_by(shape.interleave as usize).zip(columns.iter().take(data).flatten());
        // What waits in memory is newer than what would pass or fail here.
        if !places.all(|(at, block)| !self.is_gathered(at) && verify(at, block)) {
            return Ok(0);
        }
        let mut again: Columns = columns[..data].to_vec();
        again.resize(columns.len(), None);
        let Some(slot) = self.slot_of(group, stripe).filter(|_| arden_parity::reconstruct(&mut again, data, len))
        else {
            return Ok(0);
        };
        let mut written = 0;
        for i in (data..columns.len()).filter(|&i| again[i] != columns[i]) {
            if let Some(parity) = &again[i] {
                self.refresh_unit(group, slot, i, row % shape.interleave, &Buf::copy_of(parity)).await;
                written += 1;
            }
        }
        Ok(written)
    }

    pub(crate) fn stripe_at(&self, offset: u64) -> (usize, usize) {
        let shape = self.rt.shape;
        ((offset / shape.group_bytes) as usize, (offset % shape.group_bytes / shape.stripe_bytes) as usize)
    }

    pub(crate) fn slot_of(&self, group: usize, stripe: usize) -> Option<u16> {
        let map = self.pool.0.map.read();
        map.group(self.rt.id, group).and_then(|g| g.stripes.get(stripe)).filter(|&s| s != UNWRITTEN)
    }

    /// So many bytes of every column of a stripe, from the place of `at` in its column on. None where nothing was written,
    /// or not everything can be read: then nothing fails to fit. The stripe is locked.
    pub(crate) async fn read_row(&self, at: u64, len: usize) -> Option<Columns> {
        let shape = self.rt.shape;
        let (group, stripe) = self.stripe_at(at);
        let _hold = self.hold(group)?;
        let slot = self.slot_of(group, stripe)?;
        let from = at % shape.stripe_bytes % shape.interleave;
        let mut columns = Vec::new();
        for i in 0..shape.columns {
            columns.push(Some(self.read_unit(group, slot, i, from, len).await.ok()?.to_vec()));
        }
        Some(columns)
    }
}
