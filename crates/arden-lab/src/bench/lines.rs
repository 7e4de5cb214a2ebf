//! Lines of the tables: a measurement, its comparison, its aim, and whether the aim is met. A ratio that misses its aim
//! refers to a heading of the page with the reason.

use std::fmt::Write;

/// The page of the reasons, as the tables name it.
pub const PAGE: &str = "docs/bench.md";

/// The aim of a ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Aim {
    AtLeast(f64),
    AtMost(f64),
    /// No aim: the ratio is for orientation.
    Nothing,
}

impl Aim {
    /// Whether a ratio meets its aim; false when it was not measured.
    pub fn met(self, ratio: f64) -> bool {
        match self {
            Aim::AtLeast(least) => ratio >= least,
            Aim::AtMost(most) => ratio <= most,
            Aim::Nothing => true,
        }
    }

    fn text(self) -> String {
        match self {
            Aim::AtLeast(least) => format!("≥ {least}"),
            Aim::AtMost(most) => format!("≤ {most}"),
            Aim::Nothing => "–".to_string(),
        }
    }

    /// "yes", or "no" and a link to the reason, which is a heading of the page.
    fn verdict(self, ratio: f64, why: &str) -> String {
        match (self, self.met(ratio)) {
            (Aim::Nothing, _) => "–".to_string(),
            (_, true) => "yes".to_string(),
            (_, false) => format!("[no]({PAGE}#{why})"),
        }
    }
}

/// The ratio with as many digits as show on which side of its aim it is.
fn number(ratio: f64, aim: Aim) -> String {
    match aim {
        Aim::AtMost(_) => format!("{ratio:.3}"),
        _ => format!("{ratio:.2}"),
    }
}

/// The ratio as a cell: bold when it meets its aim.
pub fn score(ratio: f64, aim: Aim, why: &str) -> String {
    let text = number(ratio, aim);
    match (aim, aim.met(ratio)) {
        (Aim::Nothing, _) => text,
        (_, true) => format!("**{text}**"),
        (_, false) => format!("{text} [no]({PAGE}#{why})"),
    }
}

/// A line of a table.
#[derive(Debug, Clone)]
pub struct Line {
    pub what: String,
    pub ours: String,
    pub beside: String,
    /// Arden's value over the compared one.
    pub ratio: f64,
    pub published: Option<f64>,
    pub aim: Aim,
    pub why: &'static str,
}

/// A table with the heads of its first three columns. It has a column of published ratios when a line has one.
pub fn table([what, ours, beside]: [&str; 3], lines: &[Line]) -> String {
    let published = lines.iter().any(|l| l.published.is_some());
    let (head, rule) = if published { (" published |", "---|") } else { ("", "") };
    let mut out =
        format!("| {what} | {ours} | {beside} | ratio |{head} aim | met |\n|---|---|---|---|{rule}---|---|\n");
    for l in lines {
        let cell = l.published.map_or("–".to_string(), |p| p.to_string());
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} |{} {} | {} |",
            l.what,
            l.ours,
            l.beside,
            number(l.ratio, l.aim),
            if published { format!(" {cell} |") } else { String::new() },
            l.aim.text(),
            l.aim.verdict(l.ratio, l.why),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(ratio: f64, aim: Aim, published: Option<f64>) -> Line {
        Line { what: "w".into(), ours: "1".into(), beside: "2".into(), ratio, published, aim, why: "reasons" }
    }

    #[test]
    fn a_line_says_its_aim_and_whether_it_is_met() {
        let t = table(["a", "b", "c"], &[line(0.91, Aim::AtLeast(0.9), None), line(0.5, Aim::Nothing, None)]);
        assert_eq!(
            t,
            "| a | b | c | ratio | aim | met |\n|---|---|---|---|---|---|\n\
             | w | 1 | 2 | 0.91 | ≥ 0.9 | yes |\n| w | 1 | 2 | 0.50 | – | – |\n"
        );
        let t =
            table(["a", "b", "c"], &[line(1.054, Aim::AtMost(1.05), Some(1.465)), line(1.0, Aim::AtMost(1.0), None)]);
        assert!(t.contains("| 1.054 | 1.465 | ≤ 1.05 | [no](docs/bench.md#reasons) |"), "{t}");
        assert!(t.contains("| 1.000 | – | ≤ 1 | yes |"), "{t}");
    }

    #[test]
    fn nothing_measured_meets_no_aim() {
        assert!(!Aim::AtLeast(1.0).met(f64::NAN) && !Aim::AtMost(1.0).met(f64::NAN));
        assert_eq!(score(5.2, Aim::AtLeast(5.0), "x"), "**5.20**");
        assert_eq!(score(4.9, Aim::AtLeast(5.0), "x"), "4.90 [no](docs/bench.md#x)");
    }
}
