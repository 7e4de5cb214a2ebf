//! Which operation changed a file, or gave it a name, last: whoever opens the file relies on that operation being durable. Owns
//! a table of fixed size, which says a later operation where two files share a slot, and never an earlier one. Refuses to
//! know who waits.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    disk::{error::VolResult, inode::NameEntry},
    engine::{
        txn::{Txn, TxnHook},
        view::View,
    },
    files::{inodes::load_inode, names::WayUp},
};

/// Slots of each table, 8 bytes each. Ids count upward, so that files of one time have slots of their own.
const SLOTS: usize = 8192;

/// Numbers of operations, by file.
struct Slots(Box<[AtomicU64]>);

impl Slots {
    fn new() -> Slots {
        Slots((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }

    fn of(&self, ino: u64) -> &AtomicU64 {
        &self.0[(ino % SLOTS as u64) as usize]
    }

    fn note(&self, ino: u64, seq: u64) {
        self.of(ino).fetch_max(seq, Ordering::Release);
    }

    fn last(&self, ino: u64) -> u64 {
        self.of(ino).load(Ordering::Acquire)
    }
}

/// The last operations by file.
pub struct Recent {
    /// Changed the file, its streams or its data.
    files: Slots,
    /// Gave the file a name.
    names: Slots,
}

impl Recent {
    pub fn new() -> Recent {
        Recent { files: Slots::new(), names: Slots::new() }
    }

    /// No operation after this one changed file `ino`, or gave a name to it or to a directory from `parent` up to `root`.
    ///
    /// # Errors
    /// A directory cannot be read, or the way up is too long.
    pub fn last(&self, view: &dyn View, ino: u64, parent: u64, root: u64) -> VolResult<u64> {
        let mut last = self.files.last(ino).max(self.names.last(ino));
        let mut at = parent;
        let mut way = WayUp::default();
        while at != root && at != 0 {
            way.step()?;
            last = last.max(self.names.last(at));
            at = load_inode(view, at)?.parent;
        }
        Ok(last)
    }
}

impl TxnHook for Recent {
    fn record(&self, t: &mut Txn<'_>) -> VolResult<()> {
        if t.unanswered {
            return Ok(());
        }
        // The number that it gets, or the next one where it fails: noted before anybody sees the change.
        let seq = t.core.seq + 1;
        t.changed_files().keys().for_each(|ino| self.files.note(*ino, seq));
        for key in t.changed_names() {
            if let Some(entry) = t.get(&key)? {
                self.names.note(NameEntry::decode(&entry)?.ino, seq);
            }
        }
        Ok(())
    }

    fn applied(&self, _key: &[u8], _value: Option<&[u8]>) {}
}

#[cfg(test)]
mod tests {
    use arden_store::{
        commit::CommitScope,
        store::{BasicUpdate, Wait},
    };

    use crate::{
        LastAccess,
        testing::{Files, volume},
    };

    #[test]
    fn who_opens_a_file_relies_on_changes_of_it_and_of_names_on_its_path_alone() {
        let (_device, vol) = volume(32 << 20);
        vol.set_last_access(LastAccess::Always).unwrap();
        let files = Files::new(&vol);
        let scope = CommitScope::begin();
        let top = files.make("top", true).unwrap();
        files.make("top\\sub", true).unwrap();
        let file = files.write("top\\sub\\file", b"content");
        let other = files.write("other", b"content");
        let relies = || (file.rely_on(scope.id()), other.rely_on(scope.id()));
        assert_eq!(relies(), (true, true), "made, and not durable");
        vol.sync().unwrap();
        assert_eq!(relies(), (false, false));

        // Neither another file, nor what a directory on the path holds, nor that the file was read.
        files.write("top\\sub\\neighbour", b"content");
        assert!(vol.progress().0 > vol.progress().1);
        assert_eq!(relies(), (false, false));
        assert_eq!(file.read_at(0, &mut [0; 7], Wait::Yes).unwrap(), 7);
        assert!(vol.progress().0 > vol.progress().1 + 1, "the time of access moved");
        assert_eq!(relies(), (false, false));

        // Each kind of change of it.
        let changes: [&dyn Fn(); 5] = [
            &|| file.write_at(None, 0, b"C", Wait::Yes).unwrap(),
            &|| file.set_end_of_file(None, 3).unwrap(),
            &|| file.set_basic(None, &BasicUpdate { attributes: Some(1), ..BasicUpdate::default() }).unwrap(),
            &|| drop(file.create_stream(None, "stream").unwrap()),
            &|| file.link(None, &*top, "link", false).unwrap(),
        ];
        for change in changes {
            vol.sync().unwrap();
            assert_eq!(relies(), (false, false));
            change();
            assert_eq!(relies(), (true, false));
        }
        // A name above it, far up.
        vol.sync().unwrap();
        top.rename(None, &*files.find("").unwrap(), "moved", false).unwrap();
        assert_eq!(relies(), (true, false));
        vol.sync().unwrap();
        assert_eq!(relies(), (false, false));
    }
}
