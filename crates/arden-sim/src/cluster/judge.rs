//! What must not happen on the shared disks, whatever nodes and etcd say: a former owner's write after its successor's first, and
//! an epoch in the labels of two owners. Reads labels by itself.

use std::collections::{BTreeMap, BTreeSet};

use super::disks::DISKS_MAX;

/// The first bytes of a label, and where its epoch is (docs/on-disk-space.md).
const LABEL: &[u8] = b"ARDNDISK";
const EPOCH_AT: usize = 48;
pub(super) const LABELS_AT: [u64; 2] = [0, 64 << 10];

/// The epoch in a label.
pub(super) fn label_epoch(data: &[u8]) -> Option<u64> {
    let epoch = data.get(EPOCH_AT..EPOCH_AT + 8).filter(|_| data.starts_with(LABEL))?;
    epoch.try_into().ok().map(u64::from_le_bytes)
}

/// Who wrote to one disk.
#[derive(Default)]
struct History {
    writer: Option<u64>,
    former: BTreeSet<u64>,
    /// The newest epoch of an initiator that wrote.
    newest: Option<(u64, u64)>,
}

#[derive(Default)]
pub(super) struct Judge {
    of: [History; DISKS_MAX],
    writer: Option<u64>,
    /// The epoch under which each initiator opens the pool, and the newest of one that wrote. Initiators are numbered as they come.
    opens: BTreeMap<u64, u64>,
    newest: Option<(u64, u64)>,
    /// The disks that each initiator has: no former owner writes to any of them once it has written to one. A disk that it does not reach
    /// is neither fenced nor opened.
    has: BTreeSet<(u64, usize)>,
    /// Initiators up to this one were shut out by an administrator.
    shut_out: u64,
    /// Who wrote a label of this epoch.
    epochs: BTreeMap<u64, u64>,
    pub(super) violation: Option<String>,
    /// Changes of the writer.
    pub(super) successions: u64,
}

impl Judge {
    /// The initiator `id` begins to open the pool under `epoch`, on these disks.
    pub(super) fn opens(&mut self, id: u64, epoch: u64, disks: &[usize]) {
        self.opens.insert(id, epoch);
        self.has.extend(disks.iter().map(|disk| (id, *disk)));
    }

    /// The initiator `id` takes one more disk.
    pub(super) fn has(&mut self, id: u64, disk: usize) {
        self.has.insert((id, disk));
    }

    fn all_newest(&mut self) -> impl Iterator<Item = &mut Option<(u64, u64)>> {
        self.of.iter_mut().map(|of| &mut of.newest).chain([&mut self.newest])
    }

    /// etcd gives out epochs once more; who began an opening later still comes later.
    pub(super) fn forgets(&mut self) {
        self.all_newest().for_each(|newest| *newest = newest.map(|(_, id)| (0, id)));
    }

    /// An administrator saw to it that no initiator up to `id` writes any more.
    pub(super) fn shut_out(&mut self, id: u64) {
        self.shut_out = id;
        self.all_newest().for_each(|newest| *newest = None);
    }

    /// The initiator `id` changed a disk.
    pub(super) fn written(&mut self, id: u64, disk: usize, offset: u64, data: &[u8]) {
        if self.of[disk].former.contains(&id) {
            self.accuse(format!("initiator {id} writes at {offset} of disk {disk} after its successor"));
        }
        if id > 0 && id <= self.shut_out {
            self.accuse(format!("initiator {id} writes at {offset} after an administrator shut it out"));
        }
        if self.writer.replace(id) != Some(id) {
            self.successions += 1;
        }
        let of = &mut self.of[disk];
        if of.writer != Some(id) {
            of.former.extend(of.writer.replace(id));
        }
        if let Some(&epoch) = self.opens.get(&id) {
            let is_later = |(e, i): &(u64, u64)| id < *i || id != *i && epoch <= *e;
            let here = self.of[disk].newest.filter(is_later);
            let elsewhere = self.newest.filter(is_later);
            match here.or(elsewhere.filter(|(_, i)| self.has.contains(&(*i, disk)))) {
                Some((e, i)) => {
                    self.accuse(format!(
                        "initiator {id} of epoch {epoch} writes at {offset} of disk {disk} after {i} of epoch {e}"
                    ));
                }
                None => self.of[disk].newest = Some((epoch, id)),
            }
            if elsewhere.is_none() {
                self.newest = Some((epoch, id));
            }
        }
        if let Some(epoch) = label_epoch(data).filter(|_| LABELS_AT.contains(&offset)) {
            let first = *self.epochs.entry(epoch).or_insert(id);
            if first != id {
                self.accuse(format!("epoch {epoch} has the owners {first} and {id}"));
            }
        }
    }

    fn accuse(&mut self, text: String) {
        self.violation.get_or_insert(text);
    }

    /// The newest epoch that any label was given.
    pub(super) fn newest_epoch(&self) -> u64 {
        self.epochs.keys().next_back().copied().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(epoch: u64) -> Vec<u8> {
        let mut b = vec![0; 4096];
        b[..8].copy_from_slice(LABEL);
        b[EPOCH_AT..EPOCH_AT + 8].copy_from_slice(&epoch.to_le_bytes());
        b
    }

    #[test]
    fn a_former_owner_that_writes_is_seen() {
        let mut j = Judge::default();
        (0..3).for_each(|at| j.written(1, 0, at * 4096, &[0; 4096]));
        j.written(2, 0, 0, &label(5));
        assert!(j.violation.is_none() && j.newest_epoch() == 5);
        j.written(1, 0, 4096, &[0; 4096]);
        assert!(j.violation.is_some());
    }

    #[test]
    fn two_owners_of_one_epoch_are_seen() {
        let mut j = Judge::default();
        j.written(1, 0, 0, &label(5));
        j.written(2, 0, 64 << 10, &label(5));
        assert!(j.violation.is_some());
    }

    #[test]
    fn a_former_owner_that_had_written_nothing_is_seen_at_its_first_write() {
        for (former, successor) in [(4, 5), (5, 5)] {
            let mut j = Judge::default();
            j.opens(1, former, &[0]);
            j.opens(2, successor, &[0]);
            j.written(2, 0, 4096, &[0; 4096]);
            assert!(j.violation.is_none());
            j.written(1, 0, 4096, &[0; 4096]);
            assert!(j.violation.is_some());
        }
    }

    #[test]
    fn an_epoch_that_is_given_again_is_of_the_later_one() {
        let mut j = Judge::default();
        j.opens(1, 5, &[0]);
        j.written(1, 0, 4096, &[0; 4096]);
        j.forgets();
        j.opens(2, 5, &[0]);
        j.opens(3, 6, &[0]);
        j.written(3, 0, 4096, &[0; 4096]);
        assert!(j.violation.is_none());
        j.written(2, 0, 4096, &[0; 4096]);
        assert!(j.violation.is_some());
    }

    #[test]
    fn who_was_shut_out_writes_no_more_and_epochs_may_begin_anew() {
        let mut j = Judge::default();
        j.opens(1, 9, &[0]);
        j.written(1, 0, 4096, &[0; 4096]);
        j.shut_out(1);
        j.opens(2, 5, &[0]);
        j.written(2, 0, 4096, &[0; 4096]);
        assert!(j.violation.is_none());
        j.written(1, 0, 4096, &[0; 4096]);
        assert!(j.violation.is_some());
    }

    #[test]
    fn a_former_owner_may_write_to_a_disk_that_its_successor_does_not_have() {
        for (has, sound) in [(&[0][..], true), (&[0, 1], false)] {
            let mut j = Judge::default();
            j.opens(1, 4, &[0, 1]);
            j.opens(2, 5, has);
            j.written(2, 0, 4096, &[0; 4096]);
            j.written(1, 1, 4096, &[0; 4096]);
            assert_eq!(j.violation.is_none(), sound);
        }
        // Taken back later.
        let mut j = Judge::default();
        j.opens(1, 4, &[0, 1]);
        j.opens(2, 5, &[0]);
        j.written(2, 0, 4096, &[0; 4096]);
        j.has(2, 1);
        j.written(1, 1, 4096, &[0; 4096]);
        assert!(j.violation.is_some());
    }
}
