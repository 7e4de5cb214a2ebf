//! 8.3 names that a volume keeps: beside which names they have to be, that each leads to its file alone, and that one that was
//! seen stays until its name changes. Which of its candidates a name gets is the volume's choice: the model looks at it once.

use std::collections::BTreeMap;

use arden_store::{
    error::{NotDone, StoreError},
    name::{NtPath, fold, is_short},
    store::{DirEntry, EntryShort, FileStore, Lookup, NodeRef, Result},
};
use arden_volume::ShortNames;

use super::{
    model::{Dump, Model},
    ops::{Both, World},
};

/// None of these is a name that files are made by.
const NAMES: [&str; 4] = ["MINE", "Other.txt", "mine", ""];

/// The 8.3 name beside a name that may have one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Short {
    Is(String),
    /// Nobody was told: any, or none.
    Unknown,
}

/// 8.3 names by the path of the name that they are beside.
#[derive(Debug, Clone, Default)]
pub(super) struct Shorts(BTreeMap<String, Short>);

impl PartialEq for Shorts {
    fn eq(&self, other: &Shorts) -> bool {
        let fits = |a: &Shorts, b: &Shorts| {
            a.0.iter().all(|(path, short)| match (short, b.0.get(path)) {
                (Short::Unknown, _) | (_, Some(Short::Unknown)) => true,
                (Short::Is(_), other) => Some(short) == other,
            })
        };
        fits(self, other) && fits(other, self)
    }
}

impl Shorts {
    pub fn insert(&mut self, path: &str, short: Short) {
        self.0.insert(path.to_owned(), short);
    }

    /// An entry of a volume, which is found by its 8.3 name too.
    pub fn see(&mut self, path: &str, entry: &DirEntry, node: &NodeRef, store: &dyn FileStore) {
        let EntryShort::Kept(Some(short)) = &entry.short else {
            assert!(
                entry.short == EntryShort::Made || node.short_name().unwrap().is_none_or(|s| s == entry.name),
                "{path}"
            );
            return;
        };
        assert_eq!(node.short_name().unwrap().as_ref(), Some(short), "{path}");
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        let by_short = NtPath::parse(format!("{directory}/{short}").trim_start_matches('/')).unwrap();
        match store.lookup(&by_short).unwrap() {
            Lookup::Found(found) => {
                assert_eq!((found.id(), found.path()), (node.id(), node.path()), "{path} by {short}")
            }
            _ => panic!("{path} is not found by {short}"),
        }
        self.insert(path, Short::Is(short.clone()));
    }
}

impl Model {
    pub fn key_by_short(&self, directory: u64, name: &str) -> Option<(u64, String)> {
        let is_it = |short: &Short| matches!(short, Short::Is(s) if fold(s) == fold(name));
        let found = self.shorts.iter().find(|((d, _), short)| *d == directory && is_it(short));
        found.map(|(key, _)| key.clone())
    }

    /// What a volume that is like the model shows is known from now on.
    pub fn learn_shorts(&mut self, dump: &Dump) {
        let known: Vec<_> =
            self.names.iter().map(|(key, (name, _))| (key.clone(), self.path_to(key.0) + "/" + name)).collect();
        for (key, path) in known {
            match dump.shorts.0.get(&path) {
                Some(short) => self.shorts.insert(key, short.clone()),
                None => self.shorts.remove(&key),
            };
        }
    }

    fn path_to(&self, directory: u64) -> String {
        match self.names.iter().find(|(_, (_, id))| *id == directory) {
            Some(((parent, _), (name, _))) => self.path_to(*parent) + "/" + name,
            None => String::new(),
        }
    }
}

impl World<'_> {
    /// A name was given, which `node` is, if that is known: what stands beside it. `sole`: the file has no other.
    pub(super) fn named(&mut self, (directory, name): (u64, &str), node: Option<&NodeRef>, sole: bool) {
        let key = (directory, fold(name).into_owned());
        self.model.shorts.remove(&key);
        if is_short(name) || self.model.keeps_shorts != Some(true) {
            return;
        }
        match node.map(|node| node.short_name()) {
            Some(Ok(Some(short))) => {
                assert!(is_short(&short), "{name:?} has {short:?}");
                assert!(self.model.key_of(directory, &short).is_none(), "{short:?} of {name:?} is taken");
                self.model.shorts.insert(key, Short::Is(short));
            }
            Some(Ok(None)) => assert!(!sole, "{name:?} has no 8.3 name"),
            // Power is lost.
            Some(Err(_)) | None => {
                self.model.shorts.insert(key, Short::Unknown);
            }
        }
    }

    /// One of the 8.3 names in a directory.
    pub(super) fn short_in(&mut self, directory: u64) -> Option<String> {
        let all = self.model.shorts.iter().filter(|((d, _), _)| *d == directory);
        let all: Vec<String> =
            all.filter_map(|(_, s)| if let Short::Is(s) = s { Some(s.clone()) } else { None }).collect();
        if all.is_empty() { None } else { Some(all[self.rng.below(all.len() as u64) as usize].clone()) }
    }

    pub(super) fn switch_short_names(&mut self) -> Both {
        let keeps = !self.rng.one_in(4);
        let result = self.vol.set_short_names(if keeps { ShortNames::Kept } else { ShortNames::Off });
        self.durable = result.is_ok() && self.model.keeps_shorts != Some(keeps);
        self.model.keeps_shorts = Some(keeps);
        Some((result.map_err(Into::into), Ok(())))
    }

    pub(super) fn set_short_name(&mut self) -> Both {
        let at = self.any()?;
        let key = (at.parent, fold(&at.name).into_owned());
        let name = match self.rng.below(4) {
            0 => self.short_in(at.parent)?,
            // One that is there: a file made by the 8.3 name of one that went would get the name of that.
            1 => Some(self.name().to_owned()).filter(|name| self.model.find(at.parent, name).is_some())?,
            _ => NAMES[self.rng.below(NAMES.len() as u64) as usize].to_owned(),
        };
        if !name.is_empty() && !is_short(&name) || self.model.links(at.id) > 1 {
            return None;
        }
        let result: Result<()> = at.node.set_short_name(None, &name);
        if self.model.keeps_shorts != Some(true) {
            return Some((result, Err(StoreError::ShortNamesDisabled.into())));
        }
        if !name.is_empty() && self.model.key_of(at.parent, &name).is_some_and(|k| k != key) {
            return Some((result, Err(NotDone::Failed(StoreError::NameCollision))));
        }
        if name.is_empty() || fold(&name) == key.1 {
            self.model.shorts.remove(&key);
        } else {
            self.model.shorts.insert(key, Short::Is(name));
        }
        Some((result, Ok(())))
    }
}
