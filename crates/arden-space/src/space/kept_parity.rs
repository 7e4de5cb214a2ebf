//! Parity of stripes of which a part is written, where whoever uses the space tells good blocks from others by himself: it is changed
//! by what is written, and never computed from what is only read. A disk that lies about the rest of the stripe would else take
//! with it what the other disks say of that.
//!
//! What is overwritten may be noise itself, and the difference with it. So each row that was changed is looked at as a whole soon afterwards
//! (`upkeep/doubted_rows.rs`).

use std::ops::Range;

use arden_block::sync::join_all;
use arden_block::{BLOCK_BYTES, Buf, LocalFuture, SharedBuf};

use crate::base::error::SpaceResult;
use crate::map::pool_map::UNWRITTEN;
use crate::pool::open_pool::User;
use crate::space::open_space::Space;
use crate::state::overlay::Entry;

impl Space {
    /// Whoever uses the space verifies what he reads, or may be about to.
    pub(crate) fn keeps_parity(&self) -> bool {
        let user = self.rt.user.get();
        user == User::Verifying || user == User::Nobody && self.pool.0.life.is_opening()
    }

    /// All columns of a stripe in slot `old` with what is newer. None: its parity has to be computed from its data, because all of
    /// it is newer, nothing was there, somebody else relies on that, or some of what was there is nowhere any more.
    pub(crate) async fn changed_stripe(
        &self,
        (group, stripe): (usize, usize),
        old: u16,
        newer: &[(u64, Entry)],
    ) -> Option<Vec<SharedBuf>> {
        let shape = self.rt.shape;
        let (first, end) = self.stripe_blocks(group, stripe);
        if !self.keeps_parity() || old == UNWRITTEN || newer.len() as u64 == end - first {
            return None;
        }
        let mut reads: Vec<LocalFuture<SpaceResult<Buf>>> = Vec::new();
        for i in 0..shape.columns {
            let (me, len) = (self.clone(), shape.interleave as usize);
            reads.push(Box::pin(async move { me.unit_or_rebuilt(group, old, i, 0, len).await.map(|(b, _)| b) }));
        }
        let mut all: Vec<Buf> = join_all(reads).await.into_iter().collect::<SpaceResult<_>>().ok()?;
        self.doubt_misfits(first, &all);
        for (b, e) in newer {
            let at = (b - first) * BLOCK_BYTES;
            let (i, from) = ((at / shape.interleave) as usize, (at % shape.interleave) as usize);
            self.change_block(&mut all, i, from..from + BLOCK_BYTES as usize, &e.data);
        }
        Some(all.into_iter().map(Buf::share).collect())
    }

    /// Of a stripe that changes: rows whose parity does not fit, which the change keeps so. Somebody has to look which of their blocks is wrong.
    fn doubt_misfits(&self, first: u64, all: &[Buf]) {
        let (data, parity) = all.split_at(self.rt.shape.data_columns());
        let block = BLOCK_BYTES as usize;
        for (is, should) in parity.iter().zip(self.parity_of(data)) {
            let rows = is.chunks_exact(block).zip(should.chunks_exact(block)).zip(first..);
            self.rt.doubts.note(rows.filter(|((is, should), _)| is != should).map(|(_, row)| row));
        }
    }

    /// A block of part `i` of a stripe becomes `now`, and the parity follows.
    fn change_block(&self, all: &mut [Buf], i: usize, block: Range<usize>, now: &[u8]) {
        let (data, parity) = all.split_at_mut(self.rt.shape.data_columns());
        let mut change = Buf::copy_of(now);
        arden_parity::xor_into(&mut change, &data[i][block.clone()]);
        data[i][block.clone()].copy_from_slice(now);
        for (k, column) in parity.iter_mut().enumerate() {
            if k == 1 {
                arden_parity::weigh(&mut change, i);
            }
            arden_parity::xor_into(&mut column[block.clone()], &change);
        }
    }
}
