//! The corpora, and mutations of them from a seed.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::TARGETS;

/// The files of a target's corpus, by name.
pub fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut out: Vec<_> = std::fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.expect("a corpus file").path())
        .map(|path| (path.clone(), std::fs::read(&path).expect("a corpus file")))
        .collect();
    out.sort();
    out
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

/// One to four changes: a byte, a bit, a small number, a cut, a repeated part, a piece of another entry.
fn mutate(entries: &[(PathBuf, Vec<u8>)], rng: &mut Rng) -> Vec<u8> {
    let mut data = entries[rng.below(entries.len())].1.clone();
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(data.len() + 1);
        match rng.below(6) {
            0 if at < data.len() => data[at] = rng.below(256) as u8,
            1 if at < data.len() => data[at] ^= 1 << rng.below(8),
            2 if at < data.len() => data[at] = [0, 1, 2, 4, 0x7F, 0x80, 0xFF][rng.below(7)],
            3 => data.truncate(at),
            4 => {
                let end = (at + rng.below(16)).min(data.len());
                let part = data[at..end].to_vec();
                data.splice(at..at, part);
            }
            _ => {
                let other = &entries[rng.below(entries.len())].1;
                let from = rng.below(other.len() + 1);
                let part = other[from..(from + rng.below(32)).min(other.len())].to_vec();
                data.splice(at..at, part);
            }
        }
    }
    data
}

/// Runs mutations of a target's corpus for so many seconds, and says how many. Prints the bytes that panic.
pub fn mutations(target: &str, seed: u64, seconds: f64) -> u64 {
    let Some((_, entry)) = TARGETS.iter().find(|(name, _)| *name == target) else { panic!("no target {target}") };
    let entries = corpus(target);
    let mut rng = Rng(0xA1DE_0000 + seed);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut round = 0u64;
    while Instant::now() < end {
        let data = mutate(&entries, &mut rng);
        if let Err(panic) = std::panic::catch_unwind(|| entry(&data)) {
            eprintln!("{target} round {round}: {data:02x?}");
            std::panic::resume_unwind(panic);
        }
        round += 1;
    }
    round
}
