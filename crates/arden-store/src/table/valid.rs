//! Where the valid data of a stream ends, [MS-FSA]'s ValidDataLength: up to there somebody wrote, or said that what is there
//! counts. Behind it every store gives zeros, so that nothing here decides what is read. It is known while the file is
//! open and forgotten with the last close, as FAT does it; then all of the stream is valid.

/// The valid data of one stream. In doubt more counts as valid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ValidData {
    /// Up to the end of the stream.
    #[default]
    All,
    /// The stream is being made longer; up to here was written meanwhile.
    Growing { written: u64 },
    /// Up to `end`, which is less than `size`, the length that the stream was given.
    Until { end: u64, size: u64 },
}

impl ValidData {
    /// Before the size is set, and before what it was is asked for. True: [`Self::end_resize`] has to follow, with that.
    pub fn begin_resize(&mut self) -> bool {
        let begins = *self == ValidData::All;
        if begins {
            *self = ValidData::Growing { written: 0 };
        }
        begins
    }

    /// The stream was `before` bytes long when its size was set to `size`.
    pub fn end_resize(&mut self, before: u64, size: u64) {
        if let ValidData::Growing { written } = *self {
            *self = ValidData::of(written.max(before), size);
        }
    }

    /// The size is set where the end of the valid data was known already.
    pub fn resized(&mut self, size: u64) {
        if let ValidData::Until { end, .. } = *self {
            *self = ValidData::of(end, size);
        }
    }

    /// The stream is at most so long now.
    pub fn cut(&mut self, size_max: u64) {
        if let ValidData::Until { end, size } = *self {
            *self = ValidData::of(end, size.min(size_max));
        }
    }

    /// Bytes that are valid of a stream that is `size` bytes long.
    pub fn end(&self, size: u64) -> u64 {
        match *self {
            ValidData::Until { end, .. } => end.min(size),
            _ => size,
        }
    }

    /// Data up to `to` is there, and so is all before it.
    pub fn reaches(&mut self, to: u64) {
        match self {
            ValidData::All => {}
            ValidData::Growing { written } => *written = to.max(*written),
            ValidData::Until { end, size } => *self = ValidData::of(to.max(*end), *size),
        }
    }

    /// A range is made zeros, [MS-FSA] 2.1.5.10.39: the part of it behind the valid data is zeros anyway, but for what is left
    /// of the step that the valid data ends in.
    pub fn zeroed(&mut self, from: u64, to: u64) {
        const STEP: u64 = 0x40000;
        if let ValidData::Until { end, .. } = *self {
            let stepped = end.checked_next_multiple_of(STEP).unwrap_or(to);
            self.reaches(if from < end { to.min(stepped) } else { from });
        } else {
            self.reaches(to);
        }
    }

    fn of(end: u64, size: u64) -> ValidData {
        if end < size { ValidData::Until { end, size } } else { ValidData::All }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(from: u64, to: u64) -> ValidData {
        let mut v = ValidData::All;
        assert!(v.begin_resize());
        v.end_resize(from, to);
        v
    }

    #[test]
    fn ends_where_it_was_written() {
        let mut v = grown(100, 1000);
        assert_eq!((v.end(1000), v.end(50)), (100, 50));
        v.reaches(30);
        assert_eq!(v.end(1000), 100);
        v.reaches(400);
        assert_eq!(v.end(1000), 400);
        assert!(!v.begin_resize());
        v.resized(2000);
        assert_eq!(v.end(2000), 400);
        v.cut(5000);
        v.cut(500);
        assert_eq!(v, ValidData::Until { end: 400, size: 500 });
        v.cut(0);
        assert_eq!(v, ValidData::All);
        let mut v = grown(100, 1000);
        v.resized(100);
        assert_eq!(v, ValidData::All);
        let mut v = grown(100, 1000);
        v.reaches(1000);
        assert_eq!(v, ValidData::All);
        assert_eq!(grown(1000, 100), ValidData::All);
    }

    #[test]
    fn what_is_written_while_it_grows_counts() {
        let mut v = ValidData::All;
        v.begin_resize();
        v.reaches(500);
        assert_eq!(v.end(1000), 1000, "not known yet");
        v.end_resize(100, 1000);
        assert_eq!(v.end(1000), 500);
    }

    #[test]
    fn zeros_reach_the_end_of_their_step() {
        let step = 0x40000;
        for (end, from, to, then) in [
            (100, 50, 80, 100),
            (100, 50, 1000, 1000),
            (100, 50, 5 * step, step),
            (step, 50, 5 * step, step),
            (100, 100, 1000, 100),
            (100, 300, 1000, 300),
        ] {
            let mut v = grown(end, 10 * step);
            v.zeroed(from, to);
            assert_eq!(v.end(10 * step), then, "{end} {from} {to}");
        }
    }
}
