//! From opening to close. While the log of the last opening is put in its place nothing is acknowledged, and its
//! sequence numbers mean nothing here.

use std::cell::Cell;
use std::sync::Arc;

use crate::state::views::PoolViews;

pub(crate) struct Lifecycle {
    opening: Cell<bool>,
    closed: Cell<bool>,
    views: Arc<PoolViews>,
}

impl Lifecycle {
    pub(crate) fn new(views: &Arc<PoolViews>) -> Lifecycle {
        Lifecycle { opening: Cell::default(), closed: Cell::default(), views: views.clone() }
    }

    pub(crate) fn begin_opening(&self) {
        self.opening.set(true);
    }

    pub(crate) fn serve(&self) {
        self.opening.set(false);
    }

    pub(crate) fn close(&self) {
        self.views.close();
        self.closed.set(true);
    }

    pub(crate) fn is_opening(&self) -> bool {
        self.opening.get()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }
}

/// A pool that ends without being closed, too, is read by nobody any more.
impl Drop for Lifecycle {
    fn drop(&mut self) {
        self.views.close();
    }
}
