//! Checking 8.3 names: that both records of each agree, that they are beside the first name of a file, and that nothing else in the
//! directory is called so. A record that does not hold is taken away: a name without an 8.3 name is whole.

use std::collections::{BTreeMap, BTreeSet};

use arden_store::name::{fold, is_short};

use crate::{
    disk::keys::{self, Key},
    files::names::short_names::{decode, setting_key, short_key, short_of_key},
};

/// A directory, and a folded name in it.
type Place = (u64, String);

/// What is known of 8.3 names when all records have been walked over.
#[derive(Default)]
pub struct ShortRecords {
    /// Folded names by folded 8.3 names, and the other way round, as given.
    names: BTreeMap<Place, String>,
    shorts: BTreeMap<Place, String>,
    /// Names that a file has first.
    first: BTreeSet<Place>,
    /// 8.3 names that something is called.
    taken: BTreeSet<Place>,
    faults: Vec<(String, Key)>,
}

impl ShortRecords {
    /// A record of this kind of key.
    pub fn entry(&mut self, key: &[u8], value: &[u8]) {
        let place = (keys::first(key), keys::text(key, 9).to_owned());
        if *key == *setting_key() {
            if !matches!(value, [0 | 1]) {
                self.faults.push(("the setting of 8.3 names is none of those".into(), key.to_vec()));
            }
            return;
        }
        let of = if key.first() == Some(&keys::SHORT) { &mut self.names } else { &mut self.shorts };
        match decode(value) {
            Ok(text) => {
                of.insert(place, text);
            }
            Err(_) => self.faults.push((format!("directory {}: 8.3 name of {:?}", place.0, place.1), key.to_vec())),
        }
    }

    /// A name that leads to a file; `first`: it is the file's first.
    pub fn name(&mut self, directory: u64, folded: &str, first: bool) {
        let place = (directory, folded.to_owned());
        if self.names.contains_key(&place) {
            self.taken.insert(place.clone());
        }
        if first && self.shorts.contains_key(&place) {
            self.first.insert(place);
        }
    }

    /// What is wrong, and the record that has to go. After the last name.
    pub fn faults(mut self) -> Vec<(String, Key)> {
        for ((directory, folded), short) in &self.shorts {
            let wrong = match self.names.get(&(*directory, fold(short).into_owned())) {
                _ if !is_short(short) => Some("is none"),
                _ if !self.first.contains(&(*directory, folded.clone())) => Some("is beside no first name"),
                Some(name) if name == folded => None,
                _ => Some("leads elsewhere"),
            };
            if let Some(wrong) = wrong {
                let text = format!("directory {directory}: 8.3 name {short:?} of {folded:?} {wrong}");
                self.faults.push((text, short_of_key(*directory, folded)));
            }
        }
        for ((directory, short), folded) in &self.names {
            let has = self.shorts.get(&(*directory, folded.clone()));
            let wrong = if self.taken.contains(&(*directory, short.clone())) {
                Some("is the name of another file, too")
            } else if has.is_none_or(|s| fold(s) != *short) {
                Some("is not known to the name")
            } else {
                None
            };
            if let Some(wrong) = wrong {
                let text = format!("directory {directory}: 8.3 name {short:?} of {folded:?} {wrong}");
                self.faults.push((text, short_key(*directory, short)));
            }
        }
        self.faults
    }
}
