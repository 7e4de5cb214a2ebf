//! What must not happen on the shared disks, whatever nodes and etcd say: a former owner's write after its successor's first, and
//! an epoch in the labels of two owners. Reads labels by itself.

use std::collections::{BTreeMap, BTreeSet};

/// The first bytes of a label, and where its epoch is (docs/on-disk-space.md).
const LABEL: &[u8] = b"ARDNDISK";
const EPOCH_AT: usize = 48;
const LABELS_AT: [u64; 2] = [0, 64 << 10];

#[derive(Default)]
pub(super) struct Judge {
    writer: Option<u64>,
    former: BTreeSet<u64>,
    /// Who wrote a label of this epoch.
    epochs: BTreeMap<u64, u64>,
    pub(super) violation: Option<String>,
    /// Changes of the writer.
    pub(super) successions: u64,
}

impl Judge {
    /// The initiator `id` changed a disk.
    pub(super) fn written(&mut self, id: u64, offset: u64, data: &[u8]) {
        if self.former.contains(&id) {
            let text = format!("initiator {id} writes at {offset} after its successor {:?}", self.writer);
            self.violation.get_or_insert(text);
        }
        if self.writer != Some(id) {
            self.successions += 1;
            self.former.extend(self.writer.replace(id));
        }
        if LABELS_AT.contains(&offset) && data.starts_with(LABEL) {
            let mut epoch = [0; 8];
            epoch.copy_from_slice(&data[EPOCH_AT..EPOCH_AT + 8]);
            let epoch = u64::from_le_bytes(epoch);
            let first = *self.epochs.entry(epoch).or_insert(id);
            if first != id {
                self.violation.get_or_insert(format!("epoch {epoch} has the owners {first} and {id}"));
            }
        }
    }

    /// The newest epoch that any label ever had.
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
        (0..3).for_each(|at| j.written(1, at * 4096, &[0; 4096]));
        j.written(2, 0, &label(5));
        assert!(j.violation.is_none() && j.newest_epoch() == 5);
        j.written(1, 4096, &[0; 4096]);
        assert!(j.violation.is_some());
    }

    #[test]
    fn two_owners_of_one_epoch_are_seen() {
        let mut j = Judge::default();
        j.written(1, 0, &label(5));
        j.written(2, 64 << 10, &label(5));
        assert!(j.violation.is_some());
    }
}
