//! 8.3 names that a volume keeps beside the names of files, [MS-FSA] 2.1.1.4 (ShortName): given in NTFS' form with the
//! first name of a file, in the operation that makes it, and taken with it. Two records each, by the short name and by the name, so
//! that neither a look-up nor an enumeration searches. Without the setting 8.3 names are made of the long ones and kept nowhere.

use arden_store::name::{fold, is_short, short_candidates, short_name};

use crate::{
    disk::{
        error::{VolError, VolResult},
        keys::{self, Key},
        superblock::feature,
    },
    engine::{txn::Txn, view::View},
    files::{names::name_key, owner::Files},
};

/// Where 8.3 names come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ShortNames {
    /// Made of the name, and kept nowhere.
    #[default]
    Made,
    /// Kept: each new name that is none gets one.
    Kept,
    /// Those that are there are kept, and nothing gets one: GenerateShortNames of [MS-FSA] 2.1.1.1 is FALSE.
    Off,
}

pub fn setting_key() -> Key {
    keys::one(keys::SHORT, 0)
}

pub fn short_key(directory: u64, short: &str) -> Key {
    keys::named(keys::SHORT, directory, &fold(short))
}

pub fn short_of_key(directory: u64, name: &str) -> Key {
    keys::named(keys::SHORT_OF, directory, &fold(name))
}

/// The setting of the state that is looked at: a snapshot has its own.
///
/// # Errors
/// [`VolError::Corrupt`] where it is none of those.
pub fn setting(view: &dyn View) -> VolResult<ShortNames> {
    match view.get(&setting_key())?.as_deref() {
        None => Ok(ShortNames::Made),
        Some([1]) => Ok(ShortNames::Kept),
        Some([0]) => Ok(ShortNames::Off),
        Some(_) => Err(VolError::Corrupt("the setting of 8.3 names")),
    }
}

pub fn decode(value: &[u8]) -> VolResult<String> {
    String::from_utf8(value.to_vec()).map_err(|_| VolError::Corrupt("8.3 name"))
}

/// The folded name that has this 8.3 name, of those that are kept.
pub fn leads_to(view: &dyn View, directory: u64, short: &str) -> VolResult<Option<String>> {
    view.get(&short_key(directory, short))?.map(|v| decode(&v)).transpose()
}

/// The 8.3 name that is kept beside a name.
pub fn kept(view: &dyn View, directory: u64, name: &str) -> VolResult<Option<String>> {
    view.get(&short_of_key(directory, name))?.map(|v| decode(&v)).transpose()
}

/// The 8.3 name beside a name, kept or made; None where it has none but itself.
pub fn beside(view: &dyn View, directory: u64, name: &str) -> VolResult<Option<String>> {
    match kept(view, directory, name)? {
        None if setting(view)? == ShortNames::Made => Ok(short_name(name)),
        kept => Ok(kept),
    }
}

/// Gives a name that has no 8.3 name one, where the setting says so: `wanted`, or the first candidate that nothing in the directory
/// is called. One with as many others like it as it has candidates gets none.
pub fn give(t: &mut Txn<'_>, directory: u64, name: &str, wanted: Option<&str>) -> VolResult<()> {
    if is_short(name) || setting(t)? != ShortNames::Kept {
        return Ok(());
    }
    for short in wanted.map(str::to_owned).into_iter().chain(short_candidates(name)) {
        if t.get(&short_key(directory, &short))?.is_none() && t.get(&name_key(directory, &short))?.is_none() {
            put(t, directory, name, &short);
            break;
        }
    }
    Ok(())
}

/// Nothing in the directory may be called `short`.
pub fn put(t: &mut Txn<'_>, directory: u64, name: &str, short: &str) {
    t.put(short_key(directory, short), fold(name).as_bytes());
    t.put(short_of_key(directory, name), short.as_bytes());
}

/// A name goes, and so does its 8.3 name.
pub fn take(t: &mut Txn<'_>, directory: u64, name: &str) -> VolResult<()> {
    if let Some(short) = kept(t, directory, name)? {
        t.delete(short_key(directory, &short));
        t.delete(short_of_key(directory, name));
    }
    Ok(())
}

impl Files {
    pub fn short_names(&self) -> VolResult<ShortNames> {
        setting(&self.engine.reading())
    }

    /// For names that are made or changed from now on. Durable when it returns.
    ///
    /// # Errors
    /// [`VolError::Refused`] for [`ShortNames::Made`] on a volume that keeps some.
    pub fn set_short_names(&self, wanted: ShortNames) -> VolResult<()> {
        let value = match wanted {
            _ if wanted == self.short_names()? => return Ok(()),
            ShortNames::Made => return Err(VolError::Refused("a volume that keeps 8.3 names goes on doing so")),
            ShortNames::Kept => 1,
            ShortNames::Off => 0,
        };
        self.engine.use_feature(feature::SHORT_NAMES)?;
        self.engine.make_room()?;
        let mut t = self.engine.begin();
        t.put(setting_key(), [value]);
        let seq = t.commit()?;
        self.engine.commit_to(seq)
    }
}
