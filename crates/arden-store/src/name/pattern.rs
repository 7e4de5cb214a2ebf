//! Wildcards of a directory query, [MS-FSA] 2.1.4.4: `*`, `?`, DOS_STAR `<`, DOS_QM `>`, DOS_DOT `"`.
//! Matching walks the name once with the set of pattern positions that are still possible, so that no
//! pattern costs more than pattern times name.

use super::{eq_fold, fold_char};

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
    Steps(Vec<Step>),
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
            Kind::Steps(compile(pattern))
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
            Kind::Steps(steps) => match_steps(steps, name),
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

fn match_steps(steps: &[Step], name: &str) -> bool {
    if steps.len() < 64 {
        run::<u64>(steps, name, 0, 0)
    } else {
        run(steps, name, vec![false; steps.len() + 1], vec![])
    }
}

/// A set of positions in the pattern.
trait Positions: Clone {
    fn has(&self, i: usize) -> bool;
    fn add(&mut self, i: usize);
    fn clear(&mut self, len: usize);
    fn is_empty(&self) -> bool;
}

impl Positions for u64 {
    fn has(&self, i: usize) -> bool {
        self >> i & 1 == 1
    }
    fn add(&mut self, i: usize) {
        *self |= 1 << i;
    }
    fn clear(&mut self, _: usize) {
        *self = 0;
    }
    fn is_empty(&self) -> bool {
        *self == 0
    }
}

impl Positions for Vec<bool> {
    fn has(&self, i: usize) -> bool {
        self[i]
    }
    fn add(&mut self, i: usize) {
        self[i] = true;
    }
    fn clear(&mut self, len: usize) {
        Vec::clear(self);
        self.resize(len, false);
    }
    fn is_empty(&self) -> bool {
        !self.contains(&true)
    }
}

fn run<P: Positions>(steps: &[Step], name: &str, mut now: P, mut next: P) -> bool {
    let last_dot = name.rfind('.');
    now.add(0);
    for (at, c) in name.char_indices() {
        next.clear(steps.len() + 1);
        let end_follows = at + c.len_utf8() == name.len();
        for (i, step) in steps.iter().enumerate() {
            if now.has(i) {
                advance(*step, i, c, last_dot == Some(at), end_follows, &mut now, &mut next);
            }
        }
        std::mem::swap(&mut now, &mut next);
        if now.is_empty() {
            return false;
        }
    }
    // At the end of the name, what may stand for nothing is skipped.
    for (i, step) in steps.iter().enumerate() {
        if now.has(i) && !matches!(step, Step::Char(_) | Step::Any) {
            now.add(i + 1);
        }
    }
    now.has(steps.len())
}

/// Positions that follow from `step` at `i` when `c` comes: without taking it into `now`, having taken it into `next`.
fn advance<P: Positions>(step: Step, i: usize, c: char, last_dot: bool, end_follows: bool, now: &mut P, next: &mut P) {
    match step {
        Step::Char(want) => {
            if fold_char(c) == want {
                next.add(i + 1);
            }
        }
        Step::Any => next.add(i + 1),
        Step::Star => {
            now.add(i + 1);
            next.add(i);
        }
        // Goes up to the final dot and takes it, not beyond.
        Step::DosStar => {
            now.add(i + 1);
            next.add(if last_dot { i + 1 } else { i });
        }
        Step::DosQm if c == '.' => {
            now.add(i + 1);
            if end_follows {
                next.add(i + 1);
            }
        }
        Step::DosQm => next.add(i + 1),
        Step::DosDot => {
            if c == '.' {
                next.add(i + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests;
