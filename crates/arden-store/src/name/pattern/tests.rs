//! Wildcards against an oracle that follows the rules by plain recursion.

use super::*;

/// The rules written down one by one, exponential and obviously right.
fn oracle(p: &[char], n: &[char], last_dot: Option<usize>, at: usize) -> bool {
    let Some((&first, rest)) = p.split_first() else { return at == n.len() };
    let here = n.get(at).copied();
    match first {
        '*' => (at..=n.len()).any(|k| oracle(rest, n, last_dot, k)),
        '<' => {
            let stop = match last_dot {
                Some(d) if d >= at => d + 1,
                _ => n.len(),
            };
            (at..=stop).any(|k| oracle(rest, n, last_dot, k))
        }
        '?' => here.is_some() && oracle(rest, n, last_dot, at + 1),
        '>' => match here {
            None => oracle(rest, n, last_dot, at),
            Some('.') => oracle(rest, n, last_dot, at) || (at + 1 == n.len() && oracle(rest, n, last_dot, at + 1)),
            Some(_) => oracle(rest, n, last_dot, at + 1),
        },
        '"' => match here {
            None => oracle(rest, n, last_dot, at),
            Some('.') => oracle(rest, n, last_dot, at + 1),
            Some(_) => false,
        },
        c => here.is_some_and(|h| fold_char(h) == fold_char(c)) && oracle(rest, n, last_dot, at + 1),
    }
}

fn naive(pattern: &str, name: &str) -> bool {
    if matches!(pattern, "*" | "*.*") {
        return true;
    }
    let p: Vec<char> = pattern.chars().collect();
    let n: Vec<char> = name.chars().collect();
    oracle(&p, &n, n.iter().rposition(|c| *c == '.'), 0)
}

#[test]
fn named_cases() {
    for (pattern, name, want) in [
        ("*", "anything", true),
        ("*.*", "nodot", true),
        ("*.txt", "A.TXT", true),
        ("*.txt", "a.txt.bak", false),
        ("FOO", "foo", true),
        ("ä*", "Ärger", true),
        ("?", "", false),
        ("????", "abc", false),
        (">>>>", "abc", true),
        (">>>>.>>>", "ab.c", true),
        ("<.txt", "a.b.txt", true),
        ("<", "abc", true),
        ("<", "a.b", false),
        ("a\"", "a", true),
        ("a\"b", "a.b", true),
        ("a\"b", "ab", false),
        ("<\"b", "x.y.b", true),
        ("f*o*o", "foo", true),
        ("f*o*o", "fo", false),
    ] {
        assert_eq!(Pattern::new(pattern).matches(name), want, "{pattern} {name}");
    }
}

#[test]
fn agrees_with_the_oracle_on_all_short_inputs() {
    let alphabet_p = ['*', '?', '<', '>', '"', '.', 'a'];
    let alphabet_n = ['.', 'a', 'B'];
    let words = |alphabet: &[char], max: usize| {
        let mut out = vec![String::new()];
        let mut from = 0;
        for _ in 0..max {
            let to = out.len();
            for i in from..to {
                for c in alphabet {
                    out.push(format!("{}{c}", out[i]));
                }
            }
            from = to;
        }
        out
    };
    let names = words(&alphabet_n, 5);
    for pattern in words(&alphabet_p, 4).iter().skip(1) {
        let compiled = Pattern::new(pattern);
        for name in names.iter().skip(1) {
            assert_eq!(compiled.matches(name), naive(pattern, name), "{pattern} {name}");
        }
    }
}

#[test]
fn long_patterns_agree_too_and_stay_cheap() {
    let long = format!("{}*>", "a?<".repeat(30));
    for name in ["aa".repeat(30), format!("{}.x", "ab".repeat(31)), "b".into()] {
        assert_eq!(Pattern::new(&long).matches(&name), naive(&long, &name), "{name}");
    }
    // A backtracking matcher would not come back from this one.
    let started = std::time::Instant::now();
    assert!(!Pattern::new(&format!("{}b", "*a".repeat(120))).matches(&"a".repeat(255)));
    assert!(!Pattern::new(&"<a*>".repeat(60)).matches(&format!("{}c", ".b".repeat(120))));
    assert!(started.elapsed().as_secs() < 10);
}

/// Patterns that reach over the borders of words, and longer ones than a client may send.
#[test]
fn patterns_of_several_words_agree_with_a_table() {
    let mut rng = arden_block::rng::Rng::new(7);
    for round in 0..500 {
        let len = 1 + rng.below(if round % 10 == 0 { 400 } else { 140 }) as usize;
        let wild = 1 + rng.below(9);
        let pattern: String = (0..len)
            .map(|_| {
                if rng.below(10) < wild {
                    ['*', '?', '<', '>', '"'][rng.below(5) as usize]
                } else {
                    ['.', 'a', 'b'][rng.below(3) as usize]
                }
            })
            .collect();
        let name: String = (0..rng.below(90)).map(|_| ['.', 'a', 'B'][rng.below(3) as usize]).collect();
        assert_eq!(Pattern::new(&pattern).matches(&name), by_table(&pattern, &name), "{pattern} {name}");
    }
}

/// The oracle's rules, each pair of a position in the pattern and one in the name once, from the end.
fn by_table(pattern: &str, name: &str) -> bool {
    if matches!(pattern, "*" | "*.*") {
        return true;
    }
    let (p, n): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let last_dot = n.iter().rposition(|c| *c == '.');
    let mut rest = vec![false; n.len() + 1];
    rest[n.len()] = true;
    for first in p.iter().rev() {
        let mut here = vec![false; n.len() + 1];
        for at in 0..=n.len() {
            let c = n.get(at).copied();
            here[at] = match first {
                '*' => (at..=n.len()).any(|k| rest[k]),
                '<' => {
                    let stop = last_dot.filter(|d| *d >= at).map_or(n.len(), |d| d + 1);
                    (at..=stop).any(|k| rest[k])
                }
                '?' => c.is_some() && rest[at + 1],
                '>' => match c {
                    None => rest[at],
                    Some('.') => rest[at] || (at + 1 == n.len() && rest[at + 1]),
                    Some(_) => rest[at + 1],
                },
                '"' => match c {
                    None => rest[at],
                    Some('.') => rest[at + 1],
                    Some(_) => false,
                },
                want => c.is_some_and(|c| fold_char(c) == fold_char(*want)) && rest[at + 1],
            };
        }
        rest = here;
    }
    rest[0]
}

/// The worst pattern that a client may send costs little for the longest name.
#[test]
fn the_worst_pattern_is_cheap() {
    let pattern = Pattern::new(&format!("{}c", "*a".repeat(127)));
    let name = "a".repeat(255);
    let started = std::time::Instant::now();
    for _ in 0..1000 {
        assert!(!pattern.matches(&name));
    }
    assert!(started.elapsed().as_secs() < 3, "{:?}", started.elapsed());
}
