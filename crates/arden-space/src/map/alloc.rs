//! Which slabs are free, and on which disks the next group goes.

use std::collections::BTreeMap;

use crate::base::bitmap::Bitmap;
use crate::map::layout::Layout;
use crate::map::pool_map::{DiskState, PoolMap};

#[derive(Default)]
pub(crate) struct Allocator {
    used: BTreeMap<u16, Bitmap>,
}

impl Allocator {
    pub(crate) fn from_map(map: &PoolMap) -> Allocator {
        let mut a = Allocator::default();
        for (&i, d) in &map.disks {
            a.add_disk(i, d.slabs);
        }
        for c in map.columns() {
            a.take(c.disk, c.slab);
        }
        a
    }

    pub(crate) fn add_disk(&mut self, disk: u16, slabs: u32) {
        self.used.insert(disk, Bitmap::new(slabs as usize));
    }

    pub(crate) fn remove_disk(&mut self, disk: u16) {
        self.used.remove(&disk);
    }

    fn take(&mut self, disk: u16, slab: u32) {
        if let Some(b) = self.used.get_mut(&disk) {
            b.set(slab as usize);
        }
    }

    /// Takes a slab that is free. False when it is not.
    pub(crate) fn claim(&mut self, disk: u16, slab: u32) -> bool {
        let free = self.is_free(disk, slab);
        if free {
            self.take(disk, slab);
        }
        free
    }

    pub(crate) fn release(&mut self, disk: u16, slab: u32) {
        if let Some(b) = self.used.get_mut(&disk) {
            b.clear(slab as usize);
        }
    }

    pub(crate) fn free(&self, disk: u16) -> usize {
        self.used.get(&disk).map_or(0, |b| b.len() - b.count())
    }

    pub(crate) fn is_free(&self, disk: u16, slab: u32) -> bool {
        self.used.get(&disk).is_some_and(|b| (slab as usize) < b.len() && !b.get(slab as usize))
    }

    /// Every slab that the map names is taken.
    pub(crate) fn check(&self, map: &PoolMap) -> Result<(), String> {
        let places = map.columns().flat_map(|c| [Some((c.disk, c.slab)), c.target]).flatten();
        match places.into_iter().find(|p| self.is_free(p.0, p.1)) {
            Some((disk, slab)) => Err(format!("slab {slab} of disk {disk} is in the map and free")),
            None => Ok(()),
        }
    }

    fn first_free(&self, disk: u16) -> Option<u32> {
        self.used.get(&disk)?.first_clear().map(|i| i as u32)
    }

    /// A slab on `disk`, taken.
    pub(crate) fn take_on(&mut self, disk: u16) -> Option<u32> {
        let slab = self.first_free(disk)?;
        self.take(disk, slab);
        Some(slab)
    }

    /// Slabs for one group, taken, in column order. Disks are chosen by free slabs, most
    /// first, which uses mixed sizes best; a group spreads over as many disks as it is wide,
    /// unless one disk is so large that only sharing it between columns can use it up.
    pub(crate) fn take_group(&mut self, disks: &[u16], layout: Layout, columns: usize) -> Option<Vec<(u16, u32)>> {
        let mut free: Vec<(usize, u16)> = disks.iter().map(|&d| (self.free(d), d)).filter(|f| f.0 > 0).collect();
        let most = free.iter().map(|f| f.0).max()?;
        let total: usize = free.iter().map(|f| f.0).sum();
        let copies = layout.copies();
        let width = layout.width(columns);
        let lopsided = most * copies > total && layout.parity() == 0 && copies > 1;
        let sort = |f: &mut Vec<(usize, u16)>| f.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut chosen = Vec::new();
        if free.len() >= width && !lopsided {
            sort(&mut free);
            chosen.extend(free[..width].iter().map(|f| f.1));
        } else if layout.parity() > 0 {
            return None;
        } else {
            for _ in 0..columns {
                sort(&mut free);
                if free.len() < copies || free[copies - 1].0 == 0 {
                    return None;
                }
                for f in &mut free[..copies] {
                    chosen.push(f.1);
                    f.0 -= 1;
                }
            }
        }
        chosen.into_iter().map(|d| self.take_on(d).map(|s| (d, s))).collect()
    }
}

/// Disks that new slabs may go to.
pub(crate) fn eligible(map: &PoolMap, online: impl Fn(u16) -> bool) -> Vec<u16> {
    map.disks.iter().filter(|(i, d)| d.state == DiskState::Active && online(**i)).map(|(&i, _)| i).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(sizes: &[u32], layout: Layout, columns: usize) -> (usize, usize) {
        let mut a = Allocator::default();
        sizes.iter().enumerate().for_each(|(i, &s)| a.add_disk(i as u16, s));
        let disks: Vec<u16> = (0..sizes.len() as u16).collect();
        let mut slabs = 0;
        while let Some(g) = a.take_group(&disks, layout, columns) {
            for c in g.chunks(layout.copies()) {
                let mut d: Vec<u16> = c.iter().map(|x| x.0).collect();
                d.sort_unstable();
                d.dedup();
                assert_eq!(d.len(), layout.copies(), "copies on distinct disks");
            }
            slabs += g.len();
        }
        (slabs, sizes.iter().sum::<u32>() as usize)
    }

    #[test]
    fn mixed_sizes_are_used_up() {
        for (sizes, layout) in [
            (vec![560, 560, 560, 560, 560], Layout::Mirror3),
            (vec![560; 6], Layout::Mirror3),
            (vec![560; 7], Layout::Mirror3),
            (vec![560; 8], Layout::Mirror3),
            (vec![100, 100, 200, 200], Layout::Mirror2),
            (vec![100, 100, 100, 300], Layout::Mirror2),
            (vec![100, 200, 300], Layout::Mirror2),
            (vec![500, 300, 400, 200, 600, 250], Layout::Mirror2),
            (vec![300, 300, 400, 400, 500], Layout::Parity),
            (vec![100, 400, 250, 300], Layout::Simple),
        ] {
            let columns = layout.default_columns(sizes.len());
            let (used, all) = fill(&sizes, layout, columns);
            assert!(used * 100 >= all * 98, "{sizes:?} {layout:?}: {used} of {all}");
        }
    }
}
