//! What is known of files that went, for those that come back soon.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

use arden_lock::{Mutex, ranks, thread};
use arden_store::name::{eq_fold, fold, is_short};
use arden_wire::FileTime;

/// [MS-FSA] 2.1.1.1, TunnelCacheList: a file that is made again by its name soon after it went gets its 8.3 name and its creation time back,
/// and one that is made again by its 8.3 name its name too. Programs save so: the old file gets another name, or goes, and the new one has its name.
#[derive(Default)]
pub struct Tunnel {
    /// Taken alone, or under the engine's state. The last one that went is the last one.
    gone: Mutex<VecDeque<Entry>, ranks::Tunnel>,
    hasher: RandomState,
}

struct Entry {
    directory: u64,
    /// Of the name without its case. Files are made far more often than they come back.
    hash: u64,
    gone: Gone,
    at: Instant,
}

const TUNNEL_TIME: Duration = Duration::from_secs(15);
const TUNNEL_ENTRIES_MAX: usize = 256;

/// A name that went.
pub struct Gone {
    pub name: String,
    /// The 8.3 name that was kept beside it.
    pub short: Option<String>,
    /// None for a directory.
    pub creation: Option<FileTime>,
}

impl Tunnel {
    pub fn remember(&self, directory: u64, gone: Gone) {
        if gone.short.is_none() && gone.creation.is_none() {
            return;
        }
        let (hash, at) = (self.hash(&gone.name), thread::now());
        let mut all = self.gone.lock();
        if all.len() >= TUNNEL_ENTRIES_MAX {
            all.pop_front();
        }
        all.push_back(Entry { directory, hash, gone, at });
    }

    /// What went last under this name or 8.3 name, once.
    pub fn recall(&self, directory: u64, name: &str) -> Option<Gone> {
        let (hash, by_short) = (self.hash(name), is_short(name));
        let mut all = self.gone.lock();
        let is_it = |e: &Entry| {
            let is_short = || e.gone.short.as_ref().is_some_and(|short| by_short && short.eq_ignore_ascii_case(name));
            e.directory == directory && (e.hash == hash && eq_fold(&e.gone.name, name) || is_short())
        };
        let found = all.iter().rposition(is_it)?;
        let entry = all.remove(found)?;
        (thread::now() - entry.at < TUNNEL_TIME).then_some(entry.gone)
    }

    fn hash(&self, name: &str) -> u64 {
        self.hasher.hash_one(fold(name))
    }
}
