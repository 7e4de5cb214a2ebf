//! FILETIME, [MS-DTYP] 2.3.3: 100 ns units since 1601-01-01 UTC.

/// A time in 100 ns units since 1601-01-01 UTC; 0 means "not given".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FileTime(pub u64);

const UNIX_EPOCH_AS_FILETIME: u64 = 116_444_736_000_000_000;

impl FileTime {
    /// The time 0, "not given".
    pub const ZERO: FileTime = FileTime(0);

    /// The time at seconds and nanoseconds since 1970-01-01 UTC; times before 1601 become 0.
    pub fn from_unix(secs: i64, nanos: u32) -> FileTime {
        let ticks = i128::from(secs) * 10_000_000 + i128::from(nanos / 100) + i128::from(UNIX_EPOCH_AS_FILETIME);
        FileTime(u64::try_from(ticks).unwrap_or(0))
    }

    /// Seconds and nanoseconds since 1970-01-01 UTC.
    pub fn to_unix(self) -> (i64, u32) {
        let ticks = self.0 as i128 - i128::from(UNIX_EPOCH_AS_FILETIME);
        (ticks.div_euclid(10_000_000) as i64, (ticks.rem_euclid(10_000_000) * 100) as u32)
    }

    /// The time of the system clock; times before 1601 become 0.
    pub fn from_system(t: std::time::SystemTime) -> FileTime {
        match t.duration_since(std::time::UNIX_EPOCH) {
            Ok(d) => FileTime::from_unix(d.as_secs() as i64, d.subsec_nanos()),
            Err(e) => FileTime(UNIX_EPOCH_AS_FILETIME.saturating_sub((e.duration().as_nanos() / 100) as u64)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn unix_round_trip() {
        for (s, n) in [(0, 0), (1_700_000_000, 123_456_700), (-1, 999_999_900)] {
            assert_eq!(FileTime::from_unix(s, n).to_unix(), (s, n));
        }
        assert_eq!(FileTime::from_unix(0, 0).0, UNIX_EPOCH_AS_FILETIME);
    }
}
