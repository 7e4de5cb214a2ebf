//! Tells a disk that is only behind from one that went on without all others. The lineage tells openings from each other; this is about
//! what happened within one opening that both know. In doubt a disk counts as one that went on: it may hold what was acknowledged
//! and is nowhere else.

use crate::map::pool_map::{DiskRec, DiskState, PoolMap};

impl PoolMap {
    /// Whether the disk may have gone on, in an opening that is over and was served, when all disks of this history had left it. `found`
    /// is the map on the disk, whose label has the sequence `seq`; openings that were not served may have followed.
    ///
    /// Two histories part at an opening, which goes on from the newest map on the disks that it finds; the other history has newer maps
    /// of the opening before. The least label sequence of a missing disk is less than the sequence of the map that first has it. So a label
    /// with the next sequence is never one of another history. An opening without the disk records the replicated sequence of the map
    /// that it found, and most labels are no newer than that map.
    pub(crate) fn left_behind(&self, disk: u16, seq: u64, found: &PoolMap) -> bool {
        let rec = self.disks.get(&disk).filter(|rec| rec.state == DiskState::Missing);
        let is_newer = rec.is_some_and(|rec| seq > rec.label_seq_min.saturating_add(1));
        is_newer && self.lineage.last() != found.lineage.last() && !self.shares_a_disk_with(seq, found)
    }

    /// Disks, and their ids, that were in use in the last opening that this map knows to be served.
    pub(crate) fn in_use_when_served(&self) -> impl Iterator<Item = (u16, u128)> {
        let in_use = |rec: &DiskRec| rec.state != DiskState::Missing || rec.left_unserved;
        self.disks.iter().filter(move |(_, rec)| in_use(rec)).map(|(&i, rec)| (i, rec.id))
    }

    /// Whether a disk that was in use in the last opening that `found`, of this sequence, knows to be served took part in this history later:
    /// it is in use, or was when maps had that sequence here. Either it has all that was acknowledged up to `found`, or `found` never was on all disks in use.
    /// A disk that was removed tells nothing: it may have been missing then.
    fn shares_a_disk_with(&self, seq: u64, found: &PoolMap) -> bool {
        let in_use = found.in_use_when_served();
        let mut here = in_use.filter_map(|(i, id)| self.disks.get(&i).filter(|rec| rec.id == id));
        here.any(|rec| rec.state != DiskState::Missing || rec.label_seq_min >= seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::pool_map::JournalRec;
    use std::collections::BTreeMap;

    /// A map of this epoch and sequence, with what it says of each disk: `None` in use, or its least label sequence.
    fn map(epoch: u64, seq: u64, disks: &[Option<u64>]) -> PoolMap {
        let rec = |i: usize, label_seq_min: Option<u64>| DiskRec {
            id: 100 + i as u128,
            size_bytes: 1,
            slabs: 1,
            state: if label_seq_min.is_some() { DiskState::Missing } else { DiskState::Active },
            retire: false,
            media: 0,
            name: format!("d{i}"),
            label_seq_min: label_seq_min.unwrap_or(0),
            left_unserved: false,
        };
        PoolMap {
            pool_id: 1,
            name: "p".to_string(),
            epoch,
            seq,
            slab_bytes: 1 << 20,
            next_incarnation: 1,
            next_space: 1,
            next_disk: disks.len() as u16,
            lineage: (1..=epoch).map(|e| (e, e)).collect(),
            warn_percent: [70, 80, 90],
            replicated_seq: seq - 1,
            served_epoch: epoch,
            flip_floor: 0,
            moved: Vec::new(),
            journal: JournalRec::default(),
            disks: disks.iter().enumerate().map(|(i, &min)| (i as u16, rec(i, min))).collect::<BTreeMap<_, _>>(),
            spaces: BTreeMap::new(),
        }
    }

    /// Disk 1 has map 20 of epoch 1, in which disk 0 is missing and disk 2 is not. Disk 0 is in use now.
    fn is_refused(min: u64, third: Option<u64>) -> bool {
        let here = map(3, 40, &[None, Some(min), third]);
        here.left_behind(1, 20, &map(1, 20, &[Some(9), None, None]))
    }

    #[test]
    fn a_label_next_to_the_least_one_is_of_this_history() {
        assert!(!is_refused(19, Some(19)) && !is_refused(20, Some(19)));
        assert!(is_refused(18, Some(18)));
    }

    /// Commits that failed on other disks may leave newer labels on one disk only.
    #[test]
    fn a_disk_that_both_histories_had_tells_that_they_are_one() {
        assert!(!is_refused(10, None), "it is in use");
        assert!(!is_refused(10, Some(20)), "it was when this history had come as far");
        assert!(is_refused(10, Some(19)), "it may have left before the histories parted");
    }

    /// Disk 1 was opened alone, which did not come to its end, and then disk 0 alone.
    #[test]
    fn what_an_opening_that_was_not_served_says_of_absent_disks_does_not_count() {
        for epoch in 2..5 {
            let here = map(epoch, 40, &[None, Some(10)]);
            let mut found = map(3, 20, &[Some(9), None]);
            (found.served_epoch, found.lineage) = (1, vec![(1, 1), (3, 33)]);
            assert!(here.left_behind(1, 20, &found), "disk 0 had left before");
            found.disks.get_mut(&0).unwrap().left_unserved = true;
            assert!(!here.left_behind(1, 20, &found), "disk 0 had not left before");
            found.serve();
            assert!(!found.has_unserved_departures());
        }
        let here = map(3, 40, &[None, Some(10)]);
        assert!(!here.left_behind(1, 20, &map(3, 20, &[Some(9), None])), "one opening does not part");
    }

    #[test]
    fn without_any_disk_of_both_histories_a_newer_one_is_refused() {
        let mut here = map(3, 40, &[None, Some(10), None]);
        here.disks.retain(|&i, _| i == 1);
        let found = map(1, 20, &[Some(9), None, None]);
        assert!(here.left_behind(1, 20, &found), "all others were replaced");
        here.disks.insert(2, DiskRec { id: 7, ..map(1, 1, &[None]).disks[&0].clone() });
        assert!(here.left_behind(1, 20, &found), "the number of another disk");
        assert!(!here.left_behind(1, 11, &found), "it is not newer");
    }
}
