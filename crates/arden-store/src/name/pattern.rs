//! Wildcards of a directory query, [MS-FSA] 2.1.4.4: `*`, `?`, DOS_STAR `<`, DOS_QM `>`, DOS_DOT `"`.
//! Matching walks the name once with the set of pattern positions that are still possible, 64 of them at a time, so that no
//! pattern costs more than the name's length times the pattern's in words.

use std::collections::BTreeMap;

use super::{eq_fold, fold_char};

/// The longest pattern that a directory query may have, in UTF-16 units: that of the longest name, [MS-FSCC] 2.1.5.2. A
/// protocol refuses a longer one with OBJECT_NAME_INVALID.
pub const PATTERN_UNITS_MAX: usize = 255;

/// A compiled pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    All,
    /// No wildcard in it.
    Exact(String),
    /// `*` and then no wildcard.
    Suffix(Vec<char>),
    Steps(Steps),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Char(char),
    Any,
    Star,
    DosStar,
    DosQm,
    DosDot,
}

impl Pattern {
    /// An empty pattern matches everything, as `*` does.
    pub fn new(pattern: &str) -> Pattern {
        let kind = if matches!(pattern, "" | "*" | "*.*") {
            Kind::All
        } else if !has_wildcard(pattern) {
            Kind::Exact(pattern.to_owned())
        } else if let Some(rest) = pattern.strip_prefix('*').filter(|r| !has_wildcard(r)) {
            Kind::Suffix(rest.chars().rev().map(fold_char).collect())
        } else {
            Kind::Steps(Steps::new(&compile(pattern)))
        };
        Pattern { kind }
    }

    pub fn is_all(&self) -> bool {
        self.kind == Kind::All
    }

    /// The one name that this pattern can match, in any case.
    pub fn exact(&self) -> Option<&str> {
        match &self.kind {
            Kind::Exact(name) => Some(name),
            _ => None,
        }
    }

    pub fn matches(&self, name: &str) -> bool {
        match &self.kind {
            Kind::All => true,
            Kind::Exact(exact) => eq_fold(exact, name),
            Kind::Suffix(tail) => {
                let mut chars = name.chars().rev();
                tail.iter().all(|t| chars.next().is_some_and(|c| fold_char(c) == *t))
            }
            Kind::Steps(steps) => steps.matches(name),
        }
    }
}

/// Whether the text holds any of `*?<>"`.
pub fn has_wildcard(pattern: &str) -> bool {
    pattern.bytes().any(|b| matches!(b, b'*' | b'?' | b'<' | b'>' | b'"'))
}

fn compile(pattern: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::with_capacity(pattern.len());
    for c in pattern.chars() {
        let step = match c {
            '*' => Step::Star,
            '?' => Step::Any,
            '<' => Step::DosStar,
            '>' => Step::DosQm,
            '"' => Step::DosDot,
            c => Step::Char(fold_char(c)),
        };
        if !(step == Step::Star && steps.last() == Some(&Step::Star)) {
            steps.push(step);
        }
    }
    steps
}

/// Words of the sets for patterns that [`PATTERN_UNITS_MAX`] allows: these need no memory of their own.
const WORDS: usize = 4;

/// The steps of a pattern as sets of positions, one bit for each step. A name is matched by carrying the set of positions
/// that are still possible from character to character, 64 positions at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Steps {
    /// How many steps; the position behind the last one means a match.
    len: usize,
    any: Vec<u64>,
    star: Vec<u64>,
    dos_star: Vec<u64>,
    dos_qm: Vec<u64>,
    dos_dot: Vec<u64>,
    /// Steps that want one character, by that character in its folded form, ascending.
    chars: Vec<(char, Vec<u64>)>,
}

impl Steps {
    fn new(steps: &[Step]) -> Steps {
        let words = steps.len() / 64 + 1;
        let set = |wanted: Step| {
            let mut set = vec![0; words];
            steps.iter().enumerate().filter(|(_, s)| **s == wanted).for_each(|(i, _)| set[i / 64] |= 1 << (i % 64));
            set
        };
        let mut chars: BTreeMap<char, Vec<u64>> = BTreeMap::new();
        for (i, step) in steps.iter().enumerate() {
            if let Step::Char(c) = step {
                chars.entry(*c).or_insert_with(|| vec![0; words])[i / 64] |= 1 << (i % 64);
            }
        }
        Steps {
            len: steps.len(),
            any: set(Step::Any),
            star: set(Step::Star),
            dos_star: set(Step::DosStar),
            dos_qm: set(Step::DosQm),
            dos_dot: set(Step::DosDot),
            chars: chars.into_iter().collect(),
        }
    }

    fn matches(&self, name: &str) -> bool {
        let words = self.any.len();
        if words <= WORDS { self.run(name, &mut [0; WORDS][..words]) } else { self.run(name, &mut vec![0; words]) }
    }

    fn wanting(&self, c: char) -> Option<&[u64]> {
        let found = self.chars.binary_search_by_key(&c, |(c, _)| *c).ok()?;
        Some(&self.chars[found].1)
    }

    fn run(&self, name: &str, now: &mut [u64]) -> bool {
        let last_dot = name.rfind('.');
        now[0] = 1;
        for (at, c) in name.char_indices() {
            let dot = c == '.';
            skip(now, |w| self.star[w] | self.dos_star[w] | if dot { self.dos_qm[w] } else { 0 });
            let wanting = self.wanting(fold_char(c));
            let last = last_dot == Some(at);
            let end_follows = at + c.len_utf8() == name.len();
            let (mut carry, mut left) = (0, 0);
            for (w, here) in now.iter_mut().enumerate() {
                // DOS_STAR goes up to the final dot and takes it, not beyond.
                let stays = *here & (self.star[w] | if last { 0 } else { self.dos_star[w] });
                let takes = self.any[w]
                    | wanting.map_or(0, |set| set[w])
                    | if last { self.dos_star[w] } else { 0 }
                    | if !dot || end_follows { self.dos_qm[w] } else { 0 }
                    | if dot { self.dos_dot[w] } else { 0 };
                let taken = *here & takes;
                *here = stays | taken << 1 | carry;
                carry = taken >> 63;
                left |= *here;
            }
            if left == 0 {
                return false;
            }
        }
        // At the end of the name, the steps that may stand for nothing are skipped.
        skip(now, |w| self.star[w] | self.dos_star[w] | self.dos_qm[w] | self.dos_dot[w]);
        now[self.len / 64] >> (self.len % 64) & 1 == 1
    }
}

/// Adds to `now` every position that follows one of its own over steps in `empty` only. Adding a position to a run of ones
/// carries to the end of the run, and the bits that change are those from the position to one behind the run.
fn skip(now: &mut [u64], empty: impl Fn(usize) -> u64) {
    let mut carry = false;
    for (w, here) in now.iter_mut().enumerate() {
        let empty = empty(w);
        let (sum, over) = empty.overflowing_add(*here & empty);
        let (sum, over_too) = sum.overflowing_add(u64::from(carry));
        // A carry into a step that is not in `empty` ends there: its position is reached.
        *here |= sum ^ empty;
        carry = over || over_too;
    }
}

#[cfg(test)]
mod tests;
