//! The tables of `make bench-space` in Markdown.

use std::fmt::Write;

use super::Line;

/// All lines by section. Ratios that meet their aim are bold.
pub fn tables(lines: &[Line]) -> String {
    let mut out = String::new();
    let mut section = "";
    for l in lines {
        if l.section != section {
            section = l.section;
            let _ =
                writeln!(out, "\n### {section}\n\n| what | space | beside it | ratio | aim |\n|---|---|---|---|---|");
        }
        let ratio = if l.at_most { format!("{:+.1} us", l.ratio) } else { format!("{:.2}", l.ratio) };
        let ratio = if l.aim.is_nan() || !l.met() { ratio } else { format!("**{ratio}**") };
        let aim = match (l.aim.is_nan(), l.at_most) {
            (true, _) => "–".to_string(),
            (_, true) => format!("≤ {} us", l.aim),
            (_, false) => format!("≥ {}", (l.aim * 1000.0).round() / 1000.0),
        };
        let _ = writeln!(out, "| {} | {} | {} | {ratio} | {aim} |", l.what, l.ours, l.peer);
    }
    out
}

/// One line for each section: the number of aims that are met, and the lowest and highest ratio.
pub fn summary(lines: &[Line]) -> String {
    let mut out = String::from("| spaces, beside what | ratios, lowest to highest | aims met |\n|---|---|---|\n");
    let mut at = 0;
    while at < lines.len() {
        let section = lines[at].section;
        let end = lines[at..].iter().position(|l| l.section != section).map_or(lines.len(), |n| at + n);
        let of: Vec<&Line> = lines[at..end].iter().filter(|l| !l.aim.is_nan()).collect();
        let rates: Vec<f64> = of.iter().filter(|l| !l.at_most).map(|l| l.ratio).collect();
        let low = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let high = rates.iter().copied().fold(0.0, f64::max);
        let met = of.iter().filter(|l| l.met()).count();
        if !of.is_empty() {
            let _ = writeln!(out, "| {section} | {low:.2} to {high:.2} | {met} of {} |", of.len());
        }
        at = end;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(section: &'static str, ratio: f64, aim: f64, at_most: bool) -> Line {
        Line { section, what: "w".into(), ours: "1/s".into(), peer: "2/s".into(), ratio, aim, at_most }
    }

    #[test]
    fn met_aims_are_bold_and_counted() {
        let lines = [
            line("a", 0.95, 0.9, false),
            line("a", 0.5, 0.9, false),
            line("a", -1.0, 6.0, true),
            line("b", 2.0, 1.0, false),
        ];
        let t = tables(&lines);
        assert!(t.contains("| w | 1/s | 2/s | **0.95** | ≥ 0.9 |"), "{t}");
        assert!(t.contains("| 0.50 | ≥ 0.9 |") && t.contains("**-1.0 us** | ≤ 6 us |"), "{t}");
        let s = summary(&lines);
        assert!(s.contains("| a | 0.50 to 0.95 | 2 of 3 |") && s.contains("| b | 2.00 to 2.00 | 1 of 1 |"), "{s}");
    }
}
