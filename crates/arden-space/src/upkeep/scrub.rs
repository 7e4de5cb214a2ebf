//! Scrub: reads everything that is allocated, compares copies and parity, heals what cannot be
//! read, and heals differences where a majority says which side is right.

use std::collections::BTreeMap;

use arden_block::{BLOCK_BYTES, Buf, IoError};

use crate::base::error::{SpaceError, SpaceResult};
use crate::map::pool_map::UNWRITTEN;
use crate::pool::open_pool::Pool;
use crate::space::mirror::pieces;
use crate::space::open_space::{Part, Space};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubReport {
    pub bytes: u64,
    /// Ranges that could not be read and were written anew from redundancy.
    pub healed: u64,
    /// Ranges whose copies differ with no majority: the checksums above decide on read.
    pub undecided: u64,
    /// Ranges of which nothing could be read; they may be on disks that are away.
    pub lost: u64,
}

impl Pool {
    /// Reads and compares everything once.
    pub async fn scrub(&self) -> SpaceResult<ScrubReport> {
        self.scrub_from(0, 0).await
    }

    /// As [`Pool::scrub`], from a group of a space on: see [`Pool::scrub_at`].
    pub async fn scrub_from(&self, first_space: u32, first_group: usize) -> SpaceResult<ScrubReport> {
        let result = self.scrub_groups((first_space, first_group)).await;
        self.0.events.finished("scrub");
        result
    }

    async fn scrub_groups(&self, from: (u32, usize)) -> SpaceResult<ScrubReport> {
        let mut report = ScrubReport::default();
        self.resync().await?;
        let all: Vec<(u32, usize)> = {
            let spaces = self.0.spaces.borrow();
            spaces
                .values()
                .flat_map(|s| s.groups.numbers().into_iter().map(|g| (s.id, g)).collect::<Vec<_>>())
                .collect()
        };
        let total = all.len() as u64;
        for (n, at) in all.into_iter().enumerate().filter(|(_, at)| *at >= from) {
            self.0.background.set_scrub_at(at);
            self.0.events.progress("scrub", n as u64, total);
            // Deleted meanwhile.
            let Ok(s) = self.space(at.0) else { continue };
            let done = match s.rt.shape.is_parity() {
                true => s.scrub_parity(at.1, &mut report).await,
                false => s.scrub_mirror(at.1, &mut report).await,
            };
            match done {
                // Or the space was deleted: what of it could not be read or written says nothing.
                Err(_) if s.is_gone(at.1) => self.alive()?,
                other => other?,
            }
        }
        Ok(report)
    }
}

impl Space {
    async fn scrub_mirror(&self, group: usize, report: &mut ScrubReport) -> SpaceResult<()> {
        for bit in 0..self.rt.shape.dirty_bits() {
            let started = self.pool.0.rt.now_ns();
            self.scrub_region(self.region(group, bit), report).await?;
            self.pool.throttle(started).await?;
        }
        Ok(())
    }

    /// Step by step, so that writes to the region do not wait for all of it.
    async fn scrub_region(&self, part: Part, report: &mut ScrubReport) -> SpaceResult<()> {
        let copies = self.rt.shape.layout.copies();
        // Piece by piece: which copies there are differs from column to column.
        let mut steps = Vec::new();
        for p in pieces(&self.rt.shape, part.at, part.len) {
            let mut at = 0;
            while at < p.len {
                let len = (64 << 10).min(p.len - at);
                steps.push(Part { at: p.at + at, len, ..part });
                at += len;
            }
        }
        while let Some(step) = steps.pop() {
            let _guard = self.lock_part(&step).await;
            self.pool.alive()?;
            if self.rt.group_rt(part.group).is_none() {
                // Given back meanwhile.
                return Ok(());
            }
            // Nothing is written to a group that waits for its disks. What a crash left different in it is made equal
            // when they are back: until then it says nothing.
            let waits = !self.group_serves(part.group);
            let mut all: Vec<Buf> = Vec::new();
            let mut failed = false;
            for k in 0..copies {
                match self.read_choice(step, k).await {
                    Ok(b) => all.push(b),
                    Err(SpaceError::Unreadable) => {}
                    Err(_) => failed = true,
                }
            }
            if failed && step.len > BLOCK_BYTES {
                // Only what cannot be read is written anew, not what lies beside it.
                let blocks = (step.at..step.at + step.len).step_by(BLOCK_BYTES as usize);
                steps.extend(blocks.map(|at| Part { at, len: BLOCK_BYTES, ..step }));
                continue;
            }
            report.bytes += step.len * all.len() as u64;
            let Some(first) = all.first() else {
                let lost = matches!(self.read_any_copy(step, |_| true).await, Err(SpaceError::Unreadable));
                // That nothing can be read of a space that was deleted meanwhile is no loss.
                report.lost += u64::from(lost && !self.is_gone(part.group));
                continue;
            };
            let same = all.iter().all(|b| b[..] == first[..]);
            if same && !failed || waits {
                continue;
            }
            let mut votes: BTreeMap<&[u8], usize> = BTreeMap::new();
            all.iter().for_each(|b| *votes.entry(&b[..]).or_default() += 1);
            let winner = votes.iter().find(|(_, n)| **n * 2 > all.len()).map(|(b, _)| Buf::copy_of(b));
            match winner {
                Some(b) => {
                    self.write_part(step, &b.share()).await?;
                    report.healed += 1;
                }
                None => report.undecided += 1,
            }
        }
        Ok(())
    }

    async fn scrub_parity(&self, group: usize, report: &mut ScrubReport) -> SpaceResult<()> {
        for stripe in 0..self.rt.shape.stripes {
            let started = self.pool.0.rt.now_ns();
            {
                let (first, end) = self.stripe_blocks(group, stripe);
                let _guard = self.rt.stripe_locks.lock(first, end).await;
                self.pool.alive()?;
                let slot = {
                    let map = self.pool.0.map.read();
                    map.group(self.rt.id, group).and_then(|g| g.stripes.get(stripe)).unwrap_or(UNWRITTEN)
                };
                if slot == UNWRITTEN {
                    continue;
                }
                self.scrub_slot(group, slot, report).await?;
            }
            // Without the lock: a pause may be long.
            self.pool.throttle(started).await?;
        }
        Ok(())
    }

    async fn scrub_slot(&self, group: usize, slot: u16, report: &mut ScrubReport) -> SpaceResult<()> {
        let (len, block) = (self.rt.shape.interleave as usize, BLOCK_BYTES as usize);
        if !self.scrub_rows(group, slot, (0, len), report).await {
            // Only what cannot be read is written anew, not what lies beside it.
            for from in (0..len).step_by(block) {
                self.scrub_rows(group, slot, (from as u64, block), report).await;
            }
        }
        Ok(())
    }

    /// So many bytes of every unit of a slot, from there on. False: sectors of more than one block cannot be read.
    async fn scrub_rows(&self, group: usize, slot: u16, (from, len): (u64, usize), report: &mut ScrubReport) -> bool {
        let shape = self.rt.shape;
        let mut columns: Vec<Option<Vec<u8>>> = Vec::new();
        for i in 0..shape.columns {
            match self.read_unit(group, slot, i, from, len).await {
                Err(SpaceError::Device(IoError::Media)) if len > BLOCK_BYTES as usize => return false,
                read => columns.push(read.ok().map(|b| b.to_vec())),
            }
        }
        report.bytes += columns.iter().flatten().count() as u64 * len as u64;
        if self.is_gone(group) {
            return true;
        }
        let unread: Vec<usize> = (0..columns.len()).filter(|&i| columns[i].is_none()).collect();
        if !unread.is_empty() {
            let mut whole = columns;
            if !arden_parity::reconstruct(&mut whole, shape.data_columns(), len) {
                report.lost += 1;
                return true;
            }
            if !self.group_serves(group) {
                return true;
            }
            for i in unread {
                if let Some(v) = &whole[i] {
                    self.refresh_unit(group, slot, i, from, &Buf::copy_of(v)).await;
                    report.healed += 1;
                }
            }
            return true;
        }
        if consistent(&columns, shape.data_columns(), len) || !self.group_serves(group) {
            return true;
        }
        // With two parities one wrong column gives itself away: without it all fits.
        if shape.layout.parity() == 2 {
            for i in 0..columns.len() {
                let mut trial = columns.clone();
                trial[i] = None;
                let others_fit = fits_without(&trial, i, shape.data_columns(), len);
                if others_fit && arden_parity::reconstruct(&mut trial, shape.data_columns(), len) {
                    if let Some(v) = &trial[i] {
                        self.refresh_unit(group, slot, i, from, &Buf::copy_of(v)).await;
                        report.healed += 1;
                    }
                    return true;
                }
            }
        }
        report.undecided += 1;
        true
    }
}

pub(crate) fn consistent(columns: &[Option<Vec<u8>>], data: usize, len: usize) -> bool {
    let mut again: Vec<Option<Vec<u8>>> = columns[..data].to_vec();
    again.resize(columns.len(), None);
    arden_parity::reconstruct(&mut again, data, len) && again[..] == columns[..]
}

/// With column `i` left out, do the remaining ones agree with each other?
fn fits_without(trial: &[Option<Vec<u8>>], i: usize, data: usize, len: usize) -> bool {
    let mut a = trial.to_vec();
    if !arden_parity::reconstruct(&mut a, data, len) {
        return false;
    }
    // Leaving one more out and restoring both must give the same answer.
    let other = if i == data { data + 1 } else { data };
    let mut b = trial.to_vec();
    b[other] = None;
    arden_parity::reconstruct(&mut b, data, len) && a[i] == b[i]
}
