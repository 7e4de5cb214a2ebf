//! Names of files that went, for those that come back soon.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use arden_lock::{Mutex, ranks, thread};
use arden_store::name::{eq_fold, is_short};

/// [MS-FSA] 2.1.1.1, TunnelCacheList: a file that is made again by its 8.3 name soon after it went gets its long name
/// back, and one that is made again by its name its 8.3 name.
#[derive(Default)]
pub struct Tunnel {
    /// Directory, 8.3 name, name, when; taken alone, or under the engine's state.
    gone: Mutex<VecDeque<(u64, String, String, Instant)>, ranks::Tunnel>,
}

const TUNNEL_TIME: Duration = Duration::from_secs(15);
const TUNNEL_ENTRIES_MAX: usize = 256;

/// A name that went, and the 8.3 name that was beside it.
pub struct Gone {
    pub name: String,
    pub short: String,
}

impl Tunnel {
    pub fn remember(&self, directory: u64, name: &str, short: Option<String>) {
        let Some(short) = short else { return };
        let mut gone = self.gone.lock();
        if gone.len() >= TUNNEL_ENTRIES_MAX {
            gone.pop_front();
        }
        gone.push_back((directory, short, name.to_owned(), thread::now()));
    }

    /// What went last under this name or 8.3 name.
    pub fn recall(&self, directory: u64, name: &str) -> Option<Gone> {
        let by_short = is_short(name);
        let gone = self.gone.lock();
        let is_it = |short: &str, long: &str| by_short && short.eq_ignore_ascii_case(name) || eq_fold(long, name);
        let (_, short, long, at) =
            gone.iter().rev().find(|(d, short, long, _)| *d == directory && is_it(short, long))?;
        (thread::now() - *at < TUNNEL_TIME).then(|| Gone { name: long.clone(), short: short.clone() })
    }
}
