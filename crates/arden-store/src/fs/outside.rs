//! Changes made outside Arden, as the store hears of them. The store leaves out its own.

use std::sync::{Arc, OnceLock, Weak};

use super::{Fs, notify_filter as f};
use crate::commit::CommitScope;
use crate::store::{ChangeKind, ChangeSink, Named};

/// Whether the store was asked to tell.
#[derive(Default)]
pub(super) struct Outside(OnceLock<()>);

struct Sink {
    fs: Weak<Fs>,
}

impl ChangeSink for Sink {
    fn changed(&self, kind: ChangeKind, trail: &[Named], directory: bool) {
        let Some(fs) = self.fs.upgrade() else { return };
        if !fs.is_anybody_watching() {
            return;
        }
        let filter = match kind {
            ChangeKind::Added | ChangeKind::Removed | ChangeKind::RenamedOld | ChangeKind::RenamedNew => {
                if directory {
                    f::DIR_NAME
                } else {
                    f::FILE_NAME
                }
            }
            ChangeKind::Modified => f::ATTRIBUTES | f::SIZE | f::LAST_WRITE | f::CREATION | f::EA | f::SECURITY,
            ChangeKind::AddedStream | ChangeKind::RemovedStream => f::STREAM_NAME,
            ChangeKind::ModifiedStream => f::STREAM_SIZE | f::STREAM_WRITE,
        };
        // Nobody answers for it.
        fs.report(&CommitScope::begin(), (kind, trail, None), filter, None);
    }
    fn overflow(&self) {
        let Some(fs) = self.fs.upgrade() else { return };
        let mut woken = Vec::new();
        fs.watches.overflow(&mut woken);
        fs.table.resume(woken);
    }
}

impl Fs {
    /// From the first watch on, the store is listened to; a store that cannot is not.
    pub(super) fn listen_outside(self: &Arc<Self>) {
        self.outside.0.get_or_init(|| {
            if let Err(e) = self.store.watch(Arc::new(Sink { fs: Arc::downgrade(self) })) {
                tracing::debug!("changes made outside are not seen: {e}");
            }
        });
    }
}
