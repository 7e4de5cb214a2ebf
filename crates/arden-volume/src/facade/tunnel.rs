//! Names of files that went, for those that come back soon.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use arden_lock::{Mutex, ranks, thread};
use arden_store::name::{may_be_made_short, short_name};

/// [MS-FSA] 2.1.1.1, TunnelCacheList: a file that is made again by its 8.3 name soon after it went gets its long name
/// back.
#[derive(Default)]
pub struct Tunnel {
    /// Directory, 8.3 name, name, when; taken alone.
    gone: Mutex<VecDeque<(u64, String, String, Instant)>, ranks::Tunnel>,
}

const TUNNEL_TIME: Duration = Duration::from_secs(15);
const TUNNEL_ENTRIES_MAX: usize = 256;

impl Tunnel {
    pub fn remember(&self, directory: u64, name: &str) {
        if let Some(short) = short_name(name) {
            let mut gone = self.gone.lock();
            if gone.len() >= TUNNEL_ENTRIES_MAX {
                gone.pop_front();
            }
            gone.push_back((directory, short, name.to_owned(), thread::now()));
        }
    }

    pub fn recall(&self, directory: u64, short: &str) -> Option<String> {
        if !may_be_made_short(short) {
            return None;
        }
        let gone = self.gone.lock();
        let found = gone.iter().rev().find(|(d, s, ..)| *d == directory && s.eq_ignore_ascii_case(short))?;
        (thread::now() - found.3 < TUNNEL_TIME).then(|| found.2.clone())
    }
}
