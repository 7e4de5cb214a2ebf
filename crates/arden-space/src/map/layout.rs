//! The layouts and their rules: how many disks, columns, copies, and what may fail.

use crate::base::error::{SpaceError, SpaceResult};

/// The most columns a layout may have.
pub(crate) const COLUMNS_MAX: u16 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layout {
    /// Striped; no disk may fail.
    Simple,
    /// Two copies; one disk may fail.
    Mirror2,
    /// Three copies; two disks may fail.
    Mirror3,
    /// One parity column; one disk may fail.
    Parity,
    /// Two parity columns; two disks may fail.
    DualParity,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provision {
    /// Slabs are taken when first written.
    Thin,
    /// Slabs are taken at creation.
    Fixed,
}

impl Layout {
    pub const ALL: [Layout; 5] = [Layout::Simple, Layout::Mirror2, Layout::Mirror3, Layout::Parity, Layout::DualParity];

    pub fn name(self) -> &'static str {
        match self {
            Layout::Simple => "simple",
            Layout::Mirror2 => "mirror2",
            Layout::Mirror3 => "mirror3",
            Layout::Parity => "parity",
            Layout::DualParity => "dual-parity",
        }
    }

    pub fn parse(s: &str) -> Option<Layout> {
        Layout::ALL.into_iter().find(|l| l.name() == s)
    }

    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<Layout> {
        Layout::ALL.get(usize::from(code)).copied()
    }

    /// Copies of each column.
    pub fn copies(self) -> usize {
        match self {
            Layout::Mirror2 => 2,
            Layout::Mirror3 => 3,
            Layout::Simple | Layout::Parity | Layout::DualParity => 1,
        }
    }

    /// Columns of a stripe that hold parity.
    pub fn parity(self) -> usize {
        match self {
            Layout::Parity => 1,
            Layout::DualParity => 2,
            Layout::Simple | Layout::Mirror2 | Layout::Mirror3 => 0,
        }
    }

    /// Disks that may fail.
    pub fn tolerance(self) -> usize {
        self.copies() - 1 + self.parity()
    }

    pub fn disks_min(self) -> usize {
        match self {
            Layout::Simple => 1,
            Layout::Mirror2 => 2,
            Layout::Mirror3 | Layout::DualParity => 5,
            Layout::Parity => 3,
        }
    }

    /// Columns when nobody says otherwise. For the parity layouts they count the parity columns.
    pub fn default_columns(self, disks: usize) -> usize {
        match self {
            Layout::Simple => disks.min(8),
            Layout::Mirror2 => disks / 2,
            Layout::Mirror3 => disks / 3,
            Layout::Parity => 3,
            Layout::DualParity => 5,
        }
        .min(usize::from(COLUMNS_MAX))
    }

    /// Disks that one slab group of `columns` columns spans.
    pub(crate) fn width(self, columns: usize) -> usize {
        columns * self.copies()
    }

    /// Says which rule `columns` on `disks` disks breaks, and how to meet it.
    pub fn check(self, disks: usize, columns: usize) -> SpaceResult<()> {
        let name = self.name();
        if disks < self.disks_min() {
            return Err(SpaceError::Refused(format!(
                "{name} needs at least {} disks and the pool has {disks}; add {} more",
                self.disks_min(),
                self.disks_min() - disks
            )));
        }
        let least = if self.parity() > 0 { self.parity() + 2 } else { 1 };
        if columns < least {
            return Err(SpaceError::Refused(format!("{name} needs at least {least} columns, not {columns}")));
        }
        if columns > usize::from(COLUMNS_MAX) {
            return Err(SpaceError::Refused(format!("at most {COLUMNS_MAX} columns, not {columns}")));
        }
        if self.width(columns) > disks {
            return Err(SpaceError::Refused(format!(
                "{name} with {columns} columns needs {} disks and the pool has {disks}; use at most {} columns or add disks",
                self.width(columns),
                disks / self.copies()
            )));
        }
        Ok(())
    }
}

/// The rule for the interleave that a user may choose.
pub fn check_interleave(bytes: u64) -> SpaceResult<()> {
    if bytes.is_power_of_two() && (64 << 10..=1 << 20).contains(&bytes) {
        return Ok(());
    }
    Err(SpaceError::Refused(format!("interleave must be a power of two from 64k to 1m, not {bytes} bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_name_themselves() {
        let e = Layout::Mirror3.check(4, 1).unwrap_err().to_string();
        assert!(e.contains("at least 5 disks") && e.contains("add 1 more"), "{e}");
        let e = Layout::Mirror2.check(4, 3).unwrap_err().to_string();
        assert!(e.contains("at most 2 columns"), "{e}");
        assert!(Layout::Parity.check(3, 3).is_ok());
        assert_eq!(Layout::Simple.default_columns(12), 8);
        assert_eq!(Layout::Mirror2.default_columns(8), 4);
        assert_eq!(Layout::Parity.default_columns(8), 3);
        assert!(check_interleave(256 << 10).is_ok() && check_interleave(96 << 10).is_err());
    }
}
