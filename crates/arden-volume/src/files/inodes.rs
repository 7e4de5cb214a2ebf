//! Inodes and named streams, found by their numbers and names.

use std::time::SystemTime;

use arden_store::name::fold;
use arden_wire::FileTime;

use crate::{
    disk::{
        error::{VolError, VolResult},
        inode::{Inode, Stream},
        keys::{self, Key},
    },
    engine::view::View,
};

pub fn now() -> FileTime {
    FileTime::from_system(SystemTime::now())
}

pub fn load_inode(view: &dyn View, ino: u64) -> VolResult<Inode> {
    find_inode(view, ino)?.ok_or(VolError::Corrupt("an inode is missing"))
}

pub fn find_inode(view: &dyn View, ino: u64) -> VolResult<Option<Inode>> {
    view.get(&keys::one(keys::INODE, ino))?.map(|value| Inode::decode(&value)).transpose()
}

pub fn load_stream(view: &dyn View, ino: u64, name: &str) -> VolResult<Option<(Key, Stream)>> {
    let key = keys::named(keys::STREAM, ino, &fold(name));
    match view.get(&key)? {
        Some(value) => Ok(Some((key, Stream::decode(&value)?))),
        None => Ok(None),
    }
}
