//! When clients see a file's last write time move, as Windows up to Server 2019 and Samba do it: two seconds after an
//! open's first write, at once with FLUSH and changes of size or attributes, and not again before the open closes or flushes.
//! The file system's own time moves with each write; here is only what is shown instead. Of the unnamed stream alone.

use std::time::{Duration, Instant};

use arden_wire::FileTime;

/// What clients see as the time of the last write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum WriteTime {
    /// The file system's.
    #[default]
    Stored,
    /// The time from before the first write, until then.
    Until(Instant, FileTime),
    /// The time of the first writes, until the open that wrote after them closes.
    Held(FileTime),
}

impl WriteTime {
    /// A time to show instead of the stored one.
    pub fn shown(&mut self, now: Instant) -> Option<FileTime> {
        match *self {
            WriteTime::Until(at, _) if at <= now => {
                *self = WriteTime::Stored;
                None
            }
            WriteTime::Until(_, shown) | WriteTime::Held(shown) => Some(shown),
            WriteTime::Stored => None,
        }
    }

    /// An open is about to write; `first`: it did not before. False: not without `stored`, the file system's time.
    pub fn writes(&mut self, first: bool, now: Instant, delay: Duration, stored: Option<FileTime>) -> bool {
        let Some(shown) = self.shown(now).or(stored) else { return false };
        match self {
            WriteTime::Until(..) => {}
            _ if first => *self = WriteTime::Until(now + delay, shown),
            _ => *self = WriteTime::Held(shown),
        }
        true
    }

    /// An open that wrote closes, flushes, or changes size or attributes. True: the time of this is the time of its last
    /// write from now on.
    pub fn settle(&mut self) -> bool {
        matches!(std::mem::take(self), WriteTime::Held(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_secs(2);

    #[test]
    fn shown_late_and_then_held() {
        let start = Instant::now();
        let after = |s| start + Duration::from_secs(s);
        let mut t = WriteTime::default();
        assert!(!t.writes(true, after(1), DELAY, None));
        assert!(t.writes(true, after(1), DELAY, Some(FileTime(10))));
        assert_eq!(t.shown(after(2)), Some(FileTime(10)));
        assert!(t.writes(false, after(2), DELAY, None));
        assert_eq!(t.shown(after(3)), None);
        assert!(t.writes(false, after(4), DELAY, Some(FileTime(20))));
        assert_eq!(t.shown(after(1000)), Some(FileTime(20)));
        // Another open's first write shows after its own two seconds.
        assert!(t.writes(true, after(1000), DELAY, None));
        assert_eq!(t.shown(after(1001)), Some(FileTime(20)));
        assert_eq!(t.shown(after(1002)), None);
        assert!(!t.settle());
        assert!(t.writes(false, after(1003), DELAY, Some(FileTime(30))));
        assert!(t.settle());
        assert_eq!(t, WriteTime::Stored);
    }
}
