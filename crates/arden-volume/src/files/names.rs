//! Finding names: the folded name is part of the key, so two spellings of one name cannot both exist. Refuses to change any.

pub mod short_names;

use arden_store::name::{fold, is_short, may_be_made_short, short_name};

use crate::{
    disk::{
        error::{VolError, VolResult},
        inode::{NameEntry, ROOT_INO},
        keys::{self, Key},
    },
    engine::view::View,
    files::{inodes::load_inode, names::short_names::ShortNames},
};

/// Names of a path that is looked up. Directories may be deeper, because they are moved with all that is below them.
pub const DEPTH_MAX: usize = 1024;
/// Steps of a way up, which is gone with the state locked: who moves chains of directories below each other makes them as deep as
/// he likes. What is deeper has no path and is not found by its id, and nothing is moved there, or changed below a counted folder.
pub const WAY_MAX: usize = 4 * DEPTH_MAX;
/// And of their names together: a client cannot send half of it.
const WAY_BYTES_MAX: usize = 256 << 10;

/// Steps up from a directory, of which there are at most so many: a damaged volume may also show a loop.
#[derive(Default)]
pub struct WayUp(usize);

impl WayUp {
    /// # Errors
    /// [`VolError::TooDeep`].
    pub fn step(&mut self) -> VolResult<()> {
        self.0 += 1;
        if self.0 > WAY_MAX { Err(VolError::TooDeep) } else { Ok(()) }
    }
}

pub fn name_key(directory: u64, name: &str) -> Key {
    keys::named(keys::NAME, directory, &fold(name))
}

/// The entry `name` of a directory, in any case, by its 8.3 name too.
pub fn find(view: &dyn View, directory: u64, name: &str) -> VolResult<Option<NameEntry>> {
    if let Some(value) = view.get(&name_key(directory, name))? {
        return NameEntry::decode(&value).map(Some);
    }
    if !is_short(name) {
        return Ok(None);
    }
    if let Some(folded) = short_names::leads_to(view, directory, name)? {
        let value = view.get(&keys::named(keys::NAME, directory, &folded))?;
        return NameEntry::decode(&value.ok_or(VolError::Corrupt("an 8.3 name of no name"))?).map(Some);
    }
    if !may_be_made_short(name) || short_names::setting(view)? != ShortNames::Made {
        return Ok(None);
    }
    // The only entry whose 8.3 name this is.
    let mut found = None;
    let mut several = false;
    view.scan(&keys::one(keys::NAME, directory), &keys::end_of(keys::NAME, directory), &mut |_, value| {
        if let Ok(entry) = NameEntry::decode(value)
            && short_name(&entry.name).is_some_and(|s| s.eq_ignore_ascii_case(name))
        {
            several |= found.replace(entry).is_some();
        }
        !several
    })?;
    Ok(found.filter(|_| !several))
}

pub fn is_empty(view: &dyn View, directory: u64) -> VolResult<bool> {
    let found = view.collect(&keys::one(keys::NAME, directory), &keys::end_of(keys::NAME, directory), 1)?;
    Ok(found.is_empty())
}

/// The components from `root` down to `parent\name`; None when it is not below, or too deep.
pub fn path(view: &dyn View, root: u64, parent: u64, name: &str) -> VolResult<Option<Vec<String>>> {
    Ok(trail(view, root, parent, name)?.map(|trail| trail.into_iter().map(|(_, name)| name).collect()))
}

/// The same, each with the number of its directory.
pub fn trail(view: &dyn View, root: u64, parent: u64, name: &str) -> VolResult<Option<Vec<(u64, String)>>> {
    let mut out = vec![(parent, name.to_owned())];
    let (mut at, mut way, mut bytes) = (parent, WayUp::default(), 0);
    while at != root {
        if at == ROOT_INO || way.step().is_err() || bytes > WAY_BYTES_MAX {
            return Ok(None);
        }
        let inode = load_inode(view, at)?;
        bytes += inode.name.len();
        out.push((inode.parent, inode.name));
        at = inode.parent;
    }
    out.reverse();
    Ok(Some(out))
}

/// Whether directory `at` is `top` or below it.
pub fn is_below(view: &dyn View, mut at: u64, top: u64) -> VolResult<bool> {
    let mut way = WayUp::default();
    loop {
        if at == top {
            return Ok(true);
        }
        if at == ROOT_INO || at == 0 {
            return Ok(false);
        }
        way.step()?;
        at = load_inode(view, at)?.parent;
    }
}
