//! From opening to close. While the log of the last opening is put in its place nothing is acknowledged, and its
//! sequence numbers mean nothing here.

use std::cell::Cell;

#[derive(Default)]
pub(crate) struct Lifecycle {
    opening: Cell<bool>,
    closed: Cell<bool>,
}

impl Lifecycle {
    pub(crate) fn begin_opening(&self) {
        self.opening.set(true);
    }

    pub(crate) fn serve(&self) {
        self.opening.set(false);
    }

    pub(crate) fn close(&self) {
        self.closed.set(true);
    }

    pub(crate) fn is_opening(&self) -> bool {
        self.opening.get()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }
}
