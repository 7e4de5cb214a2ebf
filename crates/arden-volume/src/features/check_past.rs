//! Checking snapshots: that their trees can be read, that what they hold is what the rule of births and deaths says, and
//! that the list of dead blocks names no other.

use std::{collections::HashSet, sync::Arc};

use crate::{
    disk::{inode::Extent, keys, run::Run},
    engine::{
        kept::{Dead, Snapshot},
        tree::Tree,
    },
};

/// What is known of blocks when the present state has been walked over.
#[derive(Default)]
pub struct Blocks {
    /// Of files, and when they were written; shared ones several times.
    pub live: Vec<(Run, u32)>,
    pub dead: Vec<Dead>,
    /// Of extents whose data was compared with its checksums.
    pub verified: HashSet<u64>,
}

fn union(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_unstable();
    let mut out: Vec<Run> = Vec::with_capacity(runs.len());
    for r in runs {
        match out.last_mut() {
            Some(last) if last.start + last.len >= r.start => {
                last.len = last.len.max((r.start + r.len).saturating_sub(last.start));
            }
            _ => out.push(r),
        }
    }
    out
}

impl Blocks {
    /// What a snapshot has to hold: born by its epoch, and not dead by then.
    fn held_by(&self, epoch: u32) -> Vec<Run> {
        let live = self.live.iter().filter(|(_, birth)| *birth <= epoch).map(|(r, _)| *r);
        let dead = self.dead.iter().filter(|d| d.epoch >= epoch && d.birth <= epoch).map(|d| d.run);
        union(live.chain(dead).collect())
    }

    /// All users of a block have to agree on when it was written.
    fn births(&mut self, error: &mut dyn FnMut(String)) {
        self.live.sort_unstable();
        for pair in self.live.windows(2) {
            let ((a, birth), (b, other)) = (pair[0], pair[1]);
            if a.start + a.len > b.start && birth != other {
                error(format!("block {}: written in epoch {birth} and in {other}", b.start));
            }
        }
    }

    fn dead_lists(&self, epochs: &[u32], error: &mut dyn FnMut(String)) {
        for d in &self.dead {
            if !epochs.contains(&d.epoch) || d.birth > d.epoch || d.run.len == 0 {
                error(format!("{:?}: dead blocks of snapshot {}, born in {}", d.run, d.epoch, d.birth));
            }
        }
    }

    /// `look` is given each extent that was not looked at yet.
    pub fn check(
        &mut self,
        tree: &Tree,
        snapshots: &[Arc<Snapshot>],
        error: &mut dyn FnMut(String),
        look: &mut dyn FnMut(u64, &Extent, &mut dyn FnMut(String)),
    ) {
        self.births(error);
        self.dead_lists(&snapshots.iter().map(|s| s.epoch).collect::<Vec<_>>(), error);
        for s in snapshots.iter().filter(|s| !s.is_leaving()) {
            let mut runs = Vec::new();
            let verified = &mut self.verified;
            let walked = tree.scan(&s.root, &[0], &[0xFF], &mut |k, v| {
                if k.first() != Some(&keys::EXTENT) {
                    return true;
                }
                match Extent::decode(keys::second(k), v) {
                    Ok(e) => {
                        runs.push(e.run());
                        if verified.insert(fingerprint(&e)) {
                            look(keys::first(k), &e, error);
                        }
                    }
                    Err(e) => error(format!("snapshot {}: stream {}: {e}", s.epoch, keys::first(k))),
                }
                true
            });
            if let Err(e) = walked {
                error(format!("snapshot {}: its tree: {e}", s.epoch));
                continue;
            }
            let (has, holds) = (union(runs), self.held_by(s.epoch));
            if has != holds {
                let wrong = has.iter().find(|r| !holds.contains(r)).or_else(|| holds.iter().find(|r| !has.contains(r)));
                error(format!("snapshot {}: what it reads is not what is held for it, first at {wrong:?}", s.epoch));
            }
        }
    }
}

/// Tells extents apart, so that none is read twice.
pub fn fingerprint(e: &Extent) -> u64 {
    e.sums.iter().fold(e.dev_block, |all, sum| all.rotate_left(7) ^ sum)
}
