//! Old images: what stands in the place of a disk, with a label older than the one that the disk had at least. Nothing on it counts, and all
//! of it is written again. Where nothing could be rebuilt without it, it is refused before anything is written.

use std::collections::BTreeMap;

use crate::base::error::{SpaceError, SpaceResult};
use crate::disk::label::DiskHeader;
use crate::map::pool_map::{DiskRec, DiskState, Group, PoolMap, Shape, SpaceRec};

/// Whether what was found in the place of the disk is older than the disk.
pub(crate) fn is_old_image(map: &PoolMap, rec: &DiskRec, found: &DiskHeader) -> bool {
    match rec.state {
        DiskState::Missing => found.newest_seq.is_some_and(|seq| seq < rec.label_seq_min),
        // Behind what every disk had is a disk that was away without our knowing.
        _ => found.label.seq < map.replicated_seq,
    }
}

/// Whether the column can be made again from others on disks that are `current`.
fn can_be_rebuilt(shape: &Shape, group: &Group, column: usize, current: impl Fn(u16) -> bool) -> bool {
    let live = |c: &usize| !group.columns[*c].stale && current(group.columns[*c].disk);
    if shape.is_parity() {
        return (0..group.columns.len()).filter(live).count() >= shape.data_columns();
    }
    let copies = shape.layout.copies();
    let first = column - column % copies;
    (first..first + copies).any(|c| live(&c))
}

/// Refuses the old images (their names by the index of the disk) when some column on them could not be rebuilt from disks that are
/// `current`, which they are not.
///
/// What an old image holds is out of date once it was taken into the pool, and then it is so on the disk that has the place today.
/// Where nothing could be rebuilt without it nobody is to do that by mistake.
pub(crate) fn check_old_images(
    map: &PoolMap,
    old: &BTreeMap<u16, String>,
    current: impl Fn(u16) -> bool,
) -> SpaceResult<()> {
    let condemned = |s: &SpaceRec| {
        let shape = s.shape(map.slab_bytes);
        s.groups.iter().flatten().any(|g| {
            let mut held =
                (0..g.columns.len()).filter(|&c| !g.columns[c].stale && old.contains_key(&g.columns[c].disk));
            held.any(|c| !can_be_rebuilt(&shape, g, c, &current))
        })
    };
    let Some(space) = map.spaces.values().find(|s| condemned(s)) else { return Ok(()) };
    let images: Vec<String> = old.iter().map(|(i, name)| format!("disk {i} ({name})")).collect();
    Err(SpaceError::Diverged(format!(
        "{} held older content than this pool has: without what is there, space {} has too few copies; put the disks of today in their \
         places, leave these out, or discard what they hold",
        images.join(", "),
        space.name
    )))
}
