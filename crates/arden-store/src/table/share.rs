//! Share modes of one stream, [MS-FSA] 2.1.5.1.2.2: counters, so that a check costs the same for any number of
//! opens.

use arden_wire::access::*;

pub(crate) const READS: u32 = FILE_READ_DATA | FILE_EXECUTE;
pub(crate) const WRITES: u32 = FILE_WRITE_DATA | FILE_APPEND_DATA;
/// The rights that take part in sharing.
pub(crate) const SHARED_ACCESS: u32 = READS | WRITES | DELETE;

/// Opens that take part, and how many of them read, write, delete, and let others do so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ShareCounts {
    opens: u32,
    readers: u32,
    writers: u32,
    deleters: u32,
    share_read: u32,
    share_write: u32,
    share_delete: u32,
}

impl ShareCounts {
    /// Whether an open with these rights and sharing can stand beside those that are there.
    pub fn allows(&self, access: u32, share: u32) -> bool {
        if access & SHARED_ACCESS == 0 || self.opens == 0 {
            return true;
        }
        let reads = access & READS != 0;
        let writes = access & WRITES != 0;
        let deletes = access & DELETE != 0;
        !((reads && self.share_read < self.opens)
            || (writes && self.share_write < self.opens)
            || (deletes && self.share_delete < self.opens)
            || (self.readers > 0 && share & FILE_SHARE_READ == 0)
            || (self.writers > 0 && share & FILE_SHARE_WRITE == 0)
            || (self.deleters > 0 && share & FILE_SHARE_DELETE == 0))
    }

    /// Of the unnamed stream and the others: deleting the file means deleting them all, [MS-FSA] 2.1.5.1.2.1.
    pub fn allows_beside(&self, access: u32, share: u32, this_is_base: bool, other_is_base: bool) -> bool {
        if access & SHARED_ACCESS == 0 || self.opens == 0 {
            return true;
        }
        !((this_is_base && access & DELETE != 0 && self.share_delete < self.opens)
            || (other_is_base && self.deleters > 0 && share & FILE_SHARE_DELETE == 0))
    }

    pub fn add(&mut self, access: u32, share: u32) {
        self.change(access, share, 1);
    }
    pub fn remove(&mut self, access: u32, share: u32) {
        self.change(access, share, u32::MAX);
    }
    fn change(&mut self, access: u32, share: u32, by: u32) {
        if access & SHARED_ACCESS == 0 {
            return;
        }
        let step = |field: &mut u32, on: bool| {
            if on {
                *field = field.wrapping_add(by);
            }
        };
        step(&mut self.opens, true);
        step(&mut self.readers, access & READS != 0);
        step(&mut self.writers, access & WRITES != 0);
        step(&mut self.deleters, access & DELETE != 0);
        step(&mut self.share_read, share & FILE_SHARE_READ != 0);
        step(&mut self.share_write, share & FILE_SHARE_WRITE != 0);
        step(&mut self.share_delete, share & FILE_SHARE_DELETE != 0);
    }
}

/// An open with no other rights than these disturbs nobody's oplock, [MS-FSA] 2.1.4.12.
pub(crate) fn is_stat_open(access: u32) -> bool {
    access & !(FILE_READ_ATTRIBUTES | FILE_WRITE_ATTRIBUTES | SYNCHRONIZE) == 0
}

/// The same for leases, which READ_CONTROL does not break either.
pub(crate) fn is_lease_stat_open(access: u32) -> bool {
    is_stat_open(access & !READ_CONTROL)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair_conflicts(a: (u32, u32), b: (u32, u32)) -> bool {
        if a.0 & SHARED_ACCESS == 0 || b.0 & SHARED_ACCESS == 0 {
            return false;
        }
        let one = |x: (u32, u32), y: (u32, u32)| {
            (x.0 & READS != 0 && y.1 & FILE_SHARE_READ == 0)
                || (x.0 & WRITES != 0 && y.1 & FILE_SHARE_WRITE == 0)
                || (x.0 & DELETE != 0 && y.1 & FILE_SHARE_DELETE == 0)
        };
        one(a, b) || one(b, a)
    }

    #[test]
    fn agrees_with_comparing_every_pair() {
        let rights = [FILE_READ_DATA, FILE_EXECUTE, FILE_WRITE_DATA, FILE_APPEND_DATA, DELETE, FILE_READ_ATTRIBUTES];
        let mut x = 88_172_645_463_325_252u64;
        let mut next = move || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x
        };
        for _ in 0..300 {
            let mut counts = ShareCounts::default();
            let mut opens: Vec<(u32, u32)> = Vec::new();
            for _ in 0..60 {
                let n = next();
                let access = rights.iter().enumerate().filter(|(i, _)| n >> i & 3 == 3).fold(0, |a, (_, r)| a | r);
                let new = (access, (n >> 20) as u32 & 7);
                if n >> 40 & 3 == 0 && !opens.is_empty() {
                    let old = opens.swap_remove((n >> 42) as usize % opens.len());
                    counts.remove(old.0, old.1);
                }
                let expect = !opens.iter().any(|o| pair_conflicts(new, *o));
                assert_eq!(counts.allows(new.0, new.1), expect, "{new:x?} beside {opens:x?}");
                if expect {
                    counts.add(new.0, new.1);
                    opens.push(new);
                }
            }
            for o in opens.drain(..) {
                counts.remove(o.0, o.1);
            }
            assert_eq!(counts, ShareCounts::default());
        }
    }
}
