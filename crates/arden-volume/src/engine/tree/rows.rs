//! What was found last in trees, by root and key. A request looks for the same few keys many times: directories of a path, and
//! the file that it is about. A root stands for all that its tree has (its pointer carries the checksum of everything below), so
//! nothing here is ever out of date.

use arden_lock::{Mutex, ranks};

use crate::{
    disk::{
        keys::{Key, Val},
        treenode::Ptr,
    },
    engine::tree::Root,
};

const ROWS: usize = 512;
/// Keys and values with more bytes together are not kept: all rows are a few hundred KiB at most.
const ROW_BYTES_MAX: usize = 512;

struct Row {
    root: Ptr,
    key: Key,
    value: Option<Val>,
}

/// One row for each remainder of a key's hash: the last that was looked for.
pub struct Rows(Box<[Mutex<Option<Row>, ranks::TreeRows>]>);

impl Default for Rows {
    fn default() -> Rows {
        Rows((0..ROWS).map(|_| Mutex::default()).collect())
    }
}

impl Rows {
    fn row(&self, hash: u64) -> &Mutex<Option<Row>, ranks::TreeRows> {
        &self.0[hash as usize % ROWS]
    }

    /// What the tree has of the key, or that it has nothing; None when that is not known here.
    pub fn get(&self, root: &Root, key: &[u8], hash: u64) -> Option<Option<Val>> {
        let (root, _) = root.as_ref()?;
        let row = self.row(hash).lock();
        row.as_ref().filter(|row| row.key == key && row.root == *root).map(|row| row.value.clone())
    }

    /// The tree has this of the key.
    pub fn keep(&self, root: &Root, key: &[u8], hash: u64, value: Option<&Val>) {
        let Some((root, _)) = root else { return };
        if key.len() + value.map_or(0, |v| v.len()) > ROW_BYTES_MAX {
            return;
        }
        let row = Row { root: *root, key: key.to_vec(), value: value.cloned() };
        let old = self.row(hash).lock().replace(row);
        drop(old);
    }
}
