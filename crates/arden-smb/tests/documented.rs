//! `docs/security.md` names every limit with its default.

use std::fmt::Debug;

use arden_smb::UsageLimits;

const DOC: &str = include_str!("../../../docs/security.md");

/// The fields of a struct and their values, as `Debug` prints them; those that are structs themselves are left out.
fn fields(limits: &impl Debug) -> Vec<(String, String)> {
    let text = format!("{limits:#?}");
    let own =
        text.lines().filter_map(|l| l.strip_prefix("    ")).filter(|l| !l.starts_with([' ', '}']) && !l.ends_with('{'));
    own.map(|line| {
        let (name, value) = line.trim_end_matches(',').split_once(": ").expect("a name and a value");
        (name.to_owned(), value.to_owned())
    })
    .collect()
}

/// All ways in which the document may write a value.
fn spellings(value: &str) -> Vec<String> {
    let Ok(n) = value.parse::<u64>() else {
        let unit = value.find(|c: char| c.is_alphabetic()).expect("a duration");
        return vec![format!("{} {}", &value[..unit], &value[unit..])];
    };
    let digits = n.to_string();
    let mut grouped = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(c);
    }
    let mut all = vec![grouped, format!("{} MiB - 1", (n + 1) >> 20)];
    let powers = [(20, "MiB"), (10, "KiB")];
    all.extend(
        powers.iter().filter(|(p, _)| n > 0 && n.is_multiple_of(1 << p)).map(|(p, u)| format!("{} {u}", n >> p)),
    );
    all
}

fn row(name: &str) -> Vec<String> {
    let start = format!("| `{name}`");
    let line = DOC
        .lines()
        .find(|l| l.starts_with(&start))
        .unwrap_or_else(|| panic!("docs/security.md has no row for `{name}`"));
    line.split('|').skip(1).map(|cell| cell.trim().to_owned()).collect()
}

fn says(cell: &str, value: &str) -> bool {
    let starts = |s: &String| {
        cell.strip_prefix(s.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', ',', ';']))
    };
    spellings(value).iter().any(starts)
}

fn check(limits: &impl Debug) {
    for (name, value) in fields(limits) {
        let cells = row(&name);
        assert!(says(&cells[1], &value), "`{name}` is {value}, docs/security.md has {:?}", cells[1]);
    }
}

#[test]
fn limits_are_documented() {
    check(&arden_smb::Limits::default());
    check(&arden_auth::ThrottlePolicy::default());
    check(&arden_store::table::TableLimits::default());
    let usage = UsageLimits::default();
    let UsageLimits { opens, trees, pipes, pipe_bytes, watches, watch_bytes, waits, wait_bytes, locks, .. } = usage;
    let UsageLimits { jobs, job_bytes, endings, buffer_bytes, forwarded_bytes, .. } = usage;
    for (name, bound) in [
        ("opens", opens),
        ("trees", trees),
        ("pipes", pipes),
        ("pipe_bytes", pipe_bytes),
        ("watches", watches),
        ("watch_bytes", watch_bytes),
        ("waits", waits),
        ("wait_bytes", wait_bytes),
        ("forwarded_bytes", forwarded_bytes),
        ("locks", locks),
        ("jobs", jobs),
        ("job_bytes", job_bytes),
        ("endings", endings),
        ("buffer_bytes", buffer_bytes),
    ] {
        let cells = row(name);
        for (cell, value) in cells[1..4].iter().zip([bound.user, bound.address, bound.whole]) {
            assert!(says(cell, &value.to_string()), "`{name}` has {value}, docs/security.md {cell:?}");
        }
    }
}
